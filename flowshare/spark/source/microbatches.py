"""`MicroBatches`: the micro-batches of a query, in its own process: acquires, commits and accepts them.

Invariants of the stream:

1. A record is accepted only when its batch is in Spark's commit log. `latestOffset(start)` proves that of `start`, and
   the checkpoint itself, where it can be read; `commit` may come late or never.
2. Nothing is acquired that is not in the returned offset.
3. A record in a committed batch is in `done` until it is accepted or finished, and never in a second batch.
4. A checkpoint's offsets count only for the topic, and the life of the group, for which they were written.

| state at a crash | what a restart finds |
|---|---|
| acquired, not in the write-ahead log | the locks lapse or go with the connection; delivered again; in one batch |
| in the log, not committed | Spark runs the batch again, from the log; accepted when it is committed |
| committed, the next one not in the log | `latestOffset(start)` accepts; what is refused is `done` |
| committed, the next one in the log, not accepted | it is `done` there: swallowed when it comes again |
| accepted | nothing of it comes again |

| a stop in order | what it does |
|---|---|
| acquired, not in the write-ahead log | given back, where flowshare leads as if it had not been delivered |
| in the log, not committed | given back as delivered once more |
| committed | accepted, before the member leaves; what was refused is acquired for that, where it can be had |
| committed, and the group takes no accept | given back as delivered once more |

| since the checkpoint was written | how it is known |
|---|---|
| the topic was made anew | its id is another |
| the group's offsets went back | a start offset lies before one that the checkpoint has, and so does the log's begin |
| the group was deleted, or reset to where it began | what is committed comes for the *first* time, by its old leader |

In each of these cases `done` and the last batch do not count, and all records that come are read.

The last rule needs that a record of a batch in the log never comes again with its old count: so it is never given back
unrun. A checkpoint's committed batch is accepted before the first fetch of a process, when this member can hold only
records of its last process: a later accept could meet a record that was acquired anew.

A batch that kills Python workers again and again is void: it is run empty, nothing of it is accepted, and its records
come again in smaller batches, until the record at fault is alone (`flowshare.spark.source.narrowing`). A batch that
ended for any other reason is offered again unchanged.

A record that two sources of one query share is seen by one branch of the query only, and would be accepted all the
same: such a query is refused when the write-ahead log shows both sources, before anything is accepted (`SharedGroup`).
A checkpoint that is not the one that the group went on with is refused, too (`flowshare.spark.source.ledger`).

With `recovery=drop`, and with outcomes, a batch that another process ran is neither read again nor accepted, and the
group delivers its records again.

Where the group's window has room, the next batch is acquired first and the accept of the last one sent behind it: it is
on its way while the batch runs. A broker answers the requests of one connection one after the other, and waiting for
the accept (12 ms on Kafka, most of it the share coordinator's linger) would delay every batch.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from flowshare.agents.feed.backend_limits import DELIVERIES_MAX
from flowshare.agents.handler.rate_limit import TokenBucket
from flowshare.client.errors import ClientError
from flowshare.core_errors import FlowshareError
from flowshare.spark.source import progress
from flowshare.spark.source.accepts import Accepts
from flowshare.spark.source.checkpoint import ASYNC_PROGRESS, DamagedNote, NotWritten, find_checkpoint, local_checkpoint
from flowshare.spark.source.ledger import Entry
from flowshare.spark.source.member import Fenced, GroupMember
from flowshare.spark.source.narrowing import REASON, Narrowing
from flowshare.spark.source.options import overlap
from flowshare.spark.source.outcomes import MemberOutcomes, OutcomeListener
from flowshare.spark.source.progress import BacklogEnd, Passed
from flowshare.spark.source.ranges import Offset, Place, Range, merged, records_in, share_out
from flowshare.spark.source.reading import ReadTask, lose

if TYPE_CHECKING:
    from collections.abc import Mapping

    from flowshare.spark.source.checkpoint import Checkpoint
    from flowshare.spark.source.options import SourceOptions

PRUNE_S: Final = 10.0
"""The seconds between two comparisons of `done` with the group's start offsets."""
AWAY_S: Final = 60.0
"""The seconds that a run which empties the backlog tries to reach its group again, before it fails."""
EMPTY_S: Final = 5.0
"""The seconds past a lock's duration that a run which empties the backlog waits for records that others hold."""
FULL_BATCHES: Final = 16
"""The number of batches for which a full window is assumed to stay full."""

NOTED_S: Final = 1.0
"""The seconds that the first batch waits until its query's checkpoint is noted."""
COMMITTED_S: Final = 0.25
"""The seconds between two looks at the checkpoint while a batch runs."""
BACKLOG_S: Final = 1.0
"""The shortest time, in seconds, between two requests for the backlog, for the query's progress."""
TROUBLES: Final = {
    "records_lost": "Records that were gone from the log before they were read.",
    "locks_lost": "Records whose lock was lost while their batch ran; they come again, and are left out then.",
    "records_archived": "Records that the brokers archived without having been in a batch.",
}
CHECKED: Final = 3
"""The number of a process's first batches that are looked up in the checkpoint."""
CLOSE_S: Final = 5.0
"""The time limit, in seconds, of a stop for accepts of committed records."""

logger = logging.getLogger("flowshare.spark")


class SharedGroup(FlowshareError, RuntimeError):
    """Two sources of one query are in one group, and both read a topic."""


class MicroBatches:
    """A query's micro-batches, as `ShareStreamReader` asks for them: one member of the group, and the state of the
    batches.

    Spark's thread calls the methods, and a thread of this class reads the checkpoint meanwhile. A lock lets only one of
    the two act at a time.
    """

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self.initial = Offset(source=options.source, reads=options.reads, member=str(uuid.uuid4()))
        self.emptying = False
        self._member: GroupMember | None = None
        self._listener: OutcomeListener | None = None
        self._accepts: Accepts
        self._passed = Passed()
        self._unread: list[Range] = []
        """Ranges that the group passed, in no batch, and not reported yet."""
        self._others: set[str] = set()
        """Other queries in the group that were reported."""
        self._completed = 0
        self._mine: set[int] = set()
        """Numbers of the batches that this process acquired."""
        self._rate = None if options.rate is None else TokenBucket(options.rate, time.monotonic())
        self._prune_s = 0.0
        self._logs_asked = False
        """True if the log starts of this process's beginning were looked up."""
        self._log_starts: dict[Place, int] = {}
        """The log starts at that time. Brokers may report earlier start offsets until the group's next fetch or
        accept."""
        self._full = 0
        """The number of further batches for which the window counts as full."""
        self._starts: dict[Place, int] = {}
        """The group's start offsets, as last looked up."""
        self._restored = False
        """True if the checkpoint's state was compared with the group."""
        self._backlog: BacklogEnd | None = None
        """The end of the backlog; None: this run does not empty it."""
        self._away_from_s: float | None = None
        """Time since which no records can be acquired for want of an answer; None: the last acquire was answered."""
        self._begun = Offset()
        """The offset with which this process began."""
        self._running: Offset | None = None
        """The batch that was handed out last."""
        self._given: tuple[Range, ...] = ()
        """Ranges of Spark's newest offset, which is in the write-ahead log or about to be."""
        self._checkpoint: Checkpoint | None = None
        self._narrowing = Narrowing()
        self._process = str(uuid.uuid4())
        self._kept: list[Range] = []
        """Acquired ranges that are held for a later batch."""
        self._told = dict.fromkeys(TROUBLES, 0)
        self._backlog_now = -1
        self._backlog_s = 0.0
        self._lock = threading.RLock()
        self._closing = threading.Event()

    def next(self, begun: Offset) -> Offset | None:
        """Return the offset after `begun`, which is committed; None: there are no records at the moment, or the backlog
        that was to be emptied is read.

        Raises: ClientError, OSError: the group refused this member for good, and a query that is started again joins it
        anew; or the rest of a backlog cannot be had.
        """
        with self._lock:
            member = self._open(begun, committed=begun)
            self._warn_of_others(member)
            fresh = self._tried(member, begun)
            if not fresh:
                return None
            self._mine.add(begun.number + 1)
            self._given = tuple(fresh)
            return Offset(
                number=begun.number + 1,
                tag=uuid.uuid4().hex[:12],
                source=self._options.source,
                reads=self._options.reads,
                member=member.member_id,
                ranges=tuple(fresh),
                done=self._accepts.ranges(),
                topics=member.topics,
                starts={**self._starts, **self._passed.starts},
                leaders=self._accepts.leaders({one.place: member.leader(one.place) for one in fresh}),
                passed=tuple(self._passed.ranges()),
            )

    def _tried(self, member: GroupMember, begun: Offset) -> list[Range]:
        """Take in that `begun` is committed, and return ranges for the next batch; none if there are no records, or if
        the group is not reached at the moment.

        A run that empties the backlog ends at its first batch without a record, so it tries again until no acquire has
        been answered for AWAY_S, and then fails. Raises: ClientError, OSError.
        """
        self._away_from_s = None
        while True:
            try:
                self._restore(member)
                self._check_written(member, begun)
                self._committed(member, begun)
                self._prune(member)
                return self._fresh(member, records_in(begun.ranges))
            except (ClientError, OSError) as error:
                now_s = time.monotonic()
                self._away_from_s = self._away_from_s or now_s
                if member.refused or (self._backlog is not None and now_s >= self._away_from_s + AWAY_S):
                    raise
                logger.warning("group %s: %s", self._options.group, error)
                time.sleep(self._options.wait)  # a broker that is away is waited for, not a reason to fail
                if self._backlog is None:
                    return []

    def tasks(self, offset: Offset, begun: Offset) -> list[ReadTask]:
        """Return the read tasks of a batch. begun: the offset before the batch, which is committed."""
        with self._lock:
            member = self._open(offset, committed=begun)
            self._check_sources(member, offset)
            self._running, self._given = offset, offset.ranges
            if not self._ours(offset) or self._narrowing.is_void(offset.number):
                return []
            ranges = self._there(member, offset)
            buried = REASON if self._narrowing.buries(offset.ranges) else ""
            return [
                ReadTask(
                    broker=self._options.broker,
                    hosts=member.hosts,
                    ranges=tuple(part),
                    topics=dict(offset.topics),
                    committed=member.facts.committed,
                    lossy=self._options.on_data_loss == "continue",
                    buried=buried,
                )
                for part in share_out(ranges, self._options.task_count)
            ]

    def close(self) -> None:
        """Accept committed records, give back all other held ones, and leave the group."""
        self._closing.set()
        if self._listener is not None:
            self._listener.close()
        with self._lock:
            member, self._member = self._member, None
            if member is None:
                return
            logged = [*self._given, *_logged(self._begun), *self._accepts.ranges()]  # before any of it is accepted
            try:
                self._restore(member)
                if self._running is not None and self._written(member):
                    self._committed(member, self._running)
                self._settle_all(member)
            except (ClientError, OSError, Fenced, SharedGroup) as error:
                logger.warning("group %s: what is committed was not accepted: %s", self._options.group, error)
            member.close(run=logged)

    def told(self) -> dict[str, int]:
        """Return counts for the query's progress: of `TROUBLES` since this process began, and the group's backlog now.

        The backlog is looked up every BACKLOG_S at most; −1: not known.
        """
        with self._lock:
            if self._member is None:
                return {**self._told, "backlog": self._backlog_now}
            if time.monotonic() >= self._backlog_s:
                self._backlog_s = time.monotonic() + BACKLOG_S
                try:
                    self._backlog_now = self._member.ask(progress.backlog, self._options.group, self._member.topics)
                except (ClientError, OSError) as error:
                    self._backlog_now = -1
                    logger.debug("group %s: its backlog is not known: %s", self._options.group, error)
            return {**self._told, "locks_lost": self._member.locks_lost, "backlog": self._backlog_now}

    def _there(self, member: GroupMember, offset: Offset) -> list[Range]:
        """Return the parts of a batch's ranges that the log still has. Raises: DataLoss, unless on_data_loss=continue.

        The log is looked up for a batch of an earlier process, and with on_data_loss=continue. Otherwise the task that
        misses a record fails, and the batch is then an earlier process's.
        """
        lossy = self._options.on_data_loss == "continue"
        if offset.number in self._mine and not lossy:
            return list(offset.ranges)
        found = [one for one in offset.ranges if offset.topics.get(one.topic) == member.topics.get(one.topic)]
        starts = member.ask(progress.log_starts, {one.place for one in found})
        found = [
            one._replace(first=max(one.first, starts[one.place])) for one in found if one.last >= starts[one.place]
        ]
        gone = records_in(offset.ranges) - records_in(found)
        if gone:
            self._told["records_lost"] += gone
            lose(
                f"group {self._options.group}: {gone} records of batch {offset.number} are gone from the log, by "
                "retention or with a topic that was deleted or made anew, before they were read",
                lossy=lossy,
            )
        return found

    # --- what is committed --------------------------------------------------------------------------------------------

    def _committed(self, member: GroupMember, offset: Offset) -> None:
        """Take in that a batch is proven to be committed."""
        if offset.number <= self._completed:
            return
        self._check_sources(member, offset)
        if self._narrowing.is_void(offset.number):
            self._completed = offset.number
            return
        if self._ours(offset):
            if self._options.outcomes:
                # Some records are settled already: the others had no row.
                refused = member.accept(
                    [piece for pieces in member.held(offset.ranges) for piece in pieces], Entry.of(offset)
                )
                if refused:
                    logger.warning(
                        "group %s: %d records of batch %d are not accepted, their locks were lost; they come again",
                        self._options.group,
                        records_in(refused),
                        offset.number,
                    )
            elif offset.number in self._mine:
                self._accepts.owe(offset)
            else:
                self._accepts.restore(offset, self._starts)
                self._accepts.settle()
        self._passed.add(offset.ranges)
        if self._narrowing.committed(offset.number, offset.ranges):
            self._note(member)
        self._completed = offset.number  # not before: what raises on the way is tried again with the next trigger

    def _note(self, member: GroupMember) -> None:
        """Write the facts on suspects to the checkpoint. Facts that cannot be written are lost with this process."""
        place = self._place(member, self._running or self._begun)
        try:
            if place is not None and not place.write_note(member.member_id, self._process, self._narrowing.to_json()):
                logger.debug("group %s: another process of the query notes suspects now", self._options.group)
        except (OSError, DamagedNote) as error:
            logger.warning("group %s: suspects cannot be noted in the checkpoint: %s", self._options.group, error)

    def _noted(self, member: GroupMember, known: Offset, *, again: bool) -> Narrowing:
        """Read the checkpoint's note, without topics that were created anew since the offset `known`.

        again: the batch of `known` shall be run again, unless it turns out to be void.
        Raises: OSError, DamagedNote. Nothing is done in that case: an unknown void batch would be accepted.
        """
        place = self._place(member, known)
        note = {} if place is None else place.take_note(member.member_id, self._process)
        found = Narrowing.from_json(note) if note else Narrowing()
        if not self._options.narrowing:
            return found.switched_off()
        for topic, topic_id in known.topics.items():
            if member.topics.get(topic, topic_id) != topic_id:
                found.forget(topic)
        if place is not None and again:
            times = place.kills(member.member_id, known.number)
            found.failed(known.number, known.ranges, times=times, whole=self._ours(known))
        if found.told:  # here, as Spark heeds nothing that is said at the end of a query
            logger.warning("group %s: %s", self._options.group, found.told)
            found.told = ""
        if place is not None and found:  # void is noted before it is run so
            place.write_note(member.member_id, self._process, found.to_json())
        return found

    def _settle_all(self, member: GroupMember) -> None:
        """Empty `done`, as far as that is possible now: the next process may have another checkpoint.

        Refused ranges are the group's again; other ranges acquired with them are given back when the member leaves.
        """
        self._accepts.settle(CLOSE_S)
        until = time.monotonic() + CLOSE_S
        while (refused := records_in(self._accepts.ranges())) and time.monotonic() < until:
            # The stop may have interrupted an acquire: its ranges are held, but in no list.
            held = [part for parts in member.held(self._accepts.ranges()) for part in parts]
            self._accepts.swallow(held or member.acquire(refused, self._options.wait))
            self._accepts.settle(CLOSE_S)
        if refused:
            logger.warning(
                "group %s: %d records of committed batches could not be accepted, somebody else holds them. This "
                "query's checkpoint leaves them out when they come again; with another checkpoint they are in a batch "
                "once more",
                self._options.group,
                refused,
            )

    def _open(self, known: Offset, committed: Offset) -> GroupMember:
        """Return the member, opened if needed. known: Spark's first offset. committed: the newest one that is surely
        committed."""
        if self._member is None:
            earlier = known.member != self.initial.member  # this process takes another one's place
            name = known.member or self.initial.member
            member = GroupMember(self._options, name, adopts=earlier, known=Entry.of(committed))
            member.open()
            self._member = member
            self._begun = known
            self._accepts = Accepts(member, group=self._options.group)
            now = member.topics
            self._passed = Passed(known.starts if known.tag else {}, known.passed)
            for topic in [name for name, topic_id in known.topics.items() if now.get(name, topic_id) != topic_id]:
                self._passed.forget(topic)
            if earlier:
                try:
                    self._narrowing = self._noted(member, known, again=known.number > committed.number)
                    runs = self._ours(known) and not self._narrowing.is_void(known.number)
                    member.adopt((*known.done, *(known.ranges if runs else ())), known.topics)
                except BaseException:  # what is not adopted would be given to others: begin anew
                    self._member = None
                    member.close(run=_logged(known))
                    raise
            if self.emptying:
                self._backlog = BacklogEnd(member.ask(progress.ends, self._options))
            if self._options.outcomes:
                outcomes = MemberOutcomes(self._options, member)
                self._listener = OutcomeListener(
                    self._options.broker, self._options.group, outcomes.take, outcomes.tell
                )
            threading.Thread(target=self._watch, name="flowshare checkpoint", daemon=True).start()
        return self._member

    def _restore(self, member: GroupMember) -> None:
        """Restore the checkpoint's committed ranges, as far as the group is still the same."""
        if self._restored:
            return
        told = member.ask(progress.starts, self._options.group)
        known = self._begun
        if back := [place for place, start in told.items() if start < known.starts.get(place, 0)]:
            self._log_starts = member.ask(progress.log_starts_left, back)  # else retention would be taken for a reset
        self._starts = self._in_logs(told)
        self._accepts.restore(replace(known, number=0, ranges=known.done), self._starts)
        self._accepts.settle()
        self._restored = True

    def _watch(self) -> None:
        """Look in the checkpoint for the commit of a batch, as the next trigger may come late."""
        while not self._closing.wait(COMMITTED_S):
            with self._lock:
                member = self._member
                if member is None or self._closing.is_set() or not self._restored or not self._written(member):
                    continue
                assert self._running is not None
                try:
                    self._committed(member, self._running)
                    self._accepts.begin()
                except (ClientError, OSError, Fenced, SharedGroup) as error:
                    logger.debug("group %s: not accepted yet: %s", self._options.group, error)

    def _written(self, member: GroupMember) -> bool:
        """True if the batch that was handed out last is in the commit log, and `_committed` was not called for it."""
        if self._running is None or self._running.number <= self._completed:
            return False
        place = self._place(member, self._running)
        return place is not None and place.committed(member.member_id) == (self._running.number, self._running.tag)

    def _check_written(self, member: GroupMember, begun: Offset) -> None:
        """Check, for the first batches, that Spark writes them down before it goes on. Raises: NotWritten."""
        if begun.number not in self._mine or len(self._mine) > CHECKED:
            return
        place = self._place(member, begun)
        if place is not None and place.committed(member.member_id) != (begun.number, begun.tag):
            raise NotWritten(
                f"batch {begun.number} of group {self._options.group} is not in its checkpoint. {ASYNC_PROGRESS}"
            )

    def _check_sources(self, member: GroupMember, offset: Offset) -> None:
        """Check, for the first batches, that no other source of the query is in the group. Raises: SharedGroup."""
        if len(self._mine) > CHECKED:
            return
        place = self._place(member, offset)
        until_s = time.monotonic() + NOTED_S
        while place is None and not self._options.checkpoint and not self._running and time.monotonic() < until_s:
            time.sleep(NOTED_S / 20)
            place = self._place(member, offset)
        for other, found in (place.newest() if place is not None else {}).items():
            same = other != member.member_id and found.get("source") == self._options.source
            if same and overlap(self._options.reads, found.get("reads", ())):
                raise SharedGroup(
                    f"group {self._options.group} is read by two sources of this query ({self._options.about}): each "
                    "record goes to one of them, and the other one's branch never sees it. Nothing of it is accepted. "
                    "Read the group once, and write all that becomes of a batch in one foreachBatch; or give each "
                    "load() a group of its own, which gets all records"
                )

    def _warn_of_others(self, member: GroupMember) -> None:
        for other in member.others.keys() - self._others:
            self._others.add(other)
            place = find_checkpoint(other, "")
            logger.warning(
                "group %s has another query of Spark beside this one, member %s at %s%s: each record goes to one of "
                "them only. Where each is to have all records, give each a group of its own",
                self._options.group,
                other,
                member.others[other],
                f" with checkpoint {place.root}" if place is not None else "",
            )

    def _place(self, member: GroupMember, offset: Offset) -> Checkpoint | None:
        """Return the checkpoint of this offset's query; None: not known, or not readable from here."""
        if self._options.checkpoint:
            return local_checkpoint(self._options.checkpoint)
        place = self._checkpoint
        if place is None or place.newest().get(member.member_id, {}).get("tag") != offset.tag:
            self._checkpoint = find_checkpoint(member.member_id, offset.tag)
        return self._checkpoint

    def _ours(self, offset: Offset) -> bool:
        """True if this process shall finish the batch: with recovery=rerun and no outcomes any batch, else only a batch
        that it acquired itself."""
        again = self._options.recovery == "rerun" and not self._options.outcomes
        return again or offset.number in self._mine

    # --- what is next -------------------------------------------------------------------------------------------------

    def _fresh(self, member: GroupMember, before: int) -> list[Range]:
        """Return ranges for a batch, none of which was in a committed one. before: number of records in the last
        batch."""
        if self._kept:
            self._accepts.settle()
            still = [part for parts in member.held(self._kept) for part in parts]  # the others' locks were lost
            fresh, self._kept = self._narrowing.split(still)
            if fresh:
                return merged(fresh)
        fresh = self._acquired(member, before)
        if self._narrowing:
            fresh, self._kept = self._narrowing.split(fresh)
        return merged(fresh)

    def _acquired(self, member: GroupMember, before: int) -> list[Range]:
        """Acquire ranges for the next batch. before: number of records in the last batch."""
        room = self._room(member)
        if not room:
            return []
        if self._backlog is not None and not self._backlog.ahead:
            self._accepts.settle()
            if self._over(member):
                return []
        ahead = self._accepts.pending and not self._full
        self._full = max(0, self._full - 1)
        fresh = self._taken(member, member.acquire(room, 0.0)) if ahead else []
        try:
            if fresh and (records_in(fresh) >= room or before < room // 2):
                self._accepts.begin()
            else:
                more = self._behind(member, room - records_in(fresh), wait=not fresh)
                self._full = FULL_BATCHES if ahead and more else self._full
                fresh += more
        except (ClientError, OSError) as error:
            if not fresh:
                raise
            # Held records must get into a batch; owed accepts stay owed.
            logger.warning("group %s: %s", self._options.group, error)
        if fresh:
            if self._rate is not None:
                self._rate.take(records_in(fresh))
            self._warn_of_end(member, fresh)
        return fresh

    def _room(self, member: GroupMember) -> int:
        """Return the most records of the next batch. 0: the rate allows none now; a run that empties the backlog waits
        until it does."""
        while self._rate is not None:
            room = min(self._options.records_per_trigger, self._rate.available(time.monotonic()))
            if room > 0:
                return room
            self._accepts.settle()
            if self._over(member):
                time.sleep(self._options.wait)
                return 0
            self._reached()
            time.sleep(min(self._rate.wait_s(), BACKLOG_S))
        return self._options.records_per_trigger

    def _behind(self, member: GroupMember, room: int, *, wait: bool) -> list[Range]:
        """Acquire after all accepts are settled: until then, committed records may fill the group's window."""
        while True:
            self._accepts.settle()
            got = member.acquire(room, self._options.wait if wait else 0.0)
            fresh = self._taken(member, got)
            if fresh or not (got or (wait and not self._over(member))):
                return fresh

    def _over(self, member: GroupMember) -> bool:
        """True if the run need not wait for more records; always True unless the backlog is being emptied."""
        if self._backlog is None:
            return True
        left = member.ask(progress.left, self._options.group, self._backlog.ends)
        if left and self._away_from_s is not None:
            return False  # first an acquire: records may have become free meanwhile
        return self._backlog.over(left, time.monotonic())

    def _reached(self) -> None:
        """Note that the group gives records, or need not yet. Time that it was away does not count for the end of the
        backlog."""
        away_from_s, self._away_from_s = self._away_from_s, None
        if away_from_s is not None and self._backlog is not None:
            self._backlog.put_off(time.monotonic() - away_from_s)

    def _taken(self, member: GroupMember, got: list[Range]) -> list[Range]:
        """Return the acquired ranges that were in no batch yet."""
        self._reached()
        if self._backlog is not None:
            self._backlog.took(got, time.monotonic() + EMPTY_S + member.lock_s)
        for topic in self._accepts.meet(member.topics):
            logger.warning(
                "group %s: topic %s was made anew: what the query had of it does not count for it",
                self._options.group,
                topic,
            )
            self._forget(topic)
        fresh = self._accepts.swallow(got)
        if fresh:
            self._passed.begin(got)
        return fresh

    def _prune(self, member: GroupMember) -> None:
        """Forget finished ranges, and report ranges that the group passed without a batch. Raises: DataLoss."""
        if time.monotonic() < self._prune_s:
            return
        self._prune_s = time.monotonic() + PRUNE_S
        told = member.ask(progress.starts, self._options.group)
        if self._begun.number and not self._logs_asked:
            self._log_starts = member.ask(progress.log_starts_left, told)
            self._logs_asked = True
            self._passed.know(told)
        self._starts = starts = self._in_logs(told)
        self._accepts.prune(starts)
        self._narrowing.prune(starts)
        self._unread += self._passed.advance(starts)
        if self._unread:
            self._tell_unread(member)

    def _in_logs(self, starts: Mapping[Place, int]) -> dict[Place, int]:
        """Return the group's start offsets, none of them before its log's known start."""
        return {place: max(start, self._log_starts.get(place, start)) for place, start in starts.items()}

    def _forget(self, topic: str) -> None:
        """Forget a topic that was created anew."""
        self._narrowing.forget(topic)
        self._passed.forget(topic)
        self._log_starts = {place: start for place, start in self._log_starts.items() if place[0] != topic}

    def _tell_unread(self, member: GroupMember) -> None:
        """Report ranges that the group passed in no batch: retention took them, or brokers archived them. Raises:
        DataLoss."""
        # Kept until they are counted: the group may not be reachable just now.
        group, mine, counted = self._options.group, member.member_id, not member.facts.endless
        found = member.ask(progress.unread, group, mine, self._unread, archived=counted)
        self._unread = []
        self._told["records_archived"] += found.archived
        self._told["records_lost"] += found.lost
        if found.archived:
            logger.error(
                "group %s: the brokers archived %d records that were in no batch, the first at %s-%d@%d: they were "
                "delivered %d times to a query that died before it had written them down. They are still in the log; "
                "raise %s, and see why the query died",
                group,
                found.archived,
                found.first.topic,
                found.first.partition,
                found.first.first,
                member.facts.deliveries,
                DELIVERIES_MAX,
            )
        if found.lost:
            lose(
                f"group {group}: {found.lost} records are gone from the log, by retention or by hand, "
                "before they were in a batch, the first at "
                f"{found.first.topic}-{found.first.partition}@{found.first.first}",
                lossy=self._options.on_data_loss == "continue",
            )

    def _warn_of_end(self, member: GroupMember, fresh: list[Range]) -> None:
        if member.facts.endless:
            return
        last = [one for one in fresh if one.delivery >= member.facts.deliveries - 1]
        if last:
            logger.error(
                "group %s: %d records are at delivery %d of %d, after which the brokers archive them unread; the query "
                "fails again and again between an acquire and its write-ahead log: see its log, and raise %s",
                self._options.group,
                records_in(last),
                max(one.delivery for one in last),
                member.facts.deliveries,
                DELIVERIES_MAX,
            )


def _logged(offset: Offset) -> tuple[Range, ...]:
    """Return the ranges that are in the write-ahead log by this offset: of its batch, and of earlier ones."""
    return *offset.ranges, *offset.done
