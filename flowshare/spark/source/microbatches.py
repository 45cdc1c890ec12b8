"""The micro-batches of a query, in its own process: which were acquired, committed and accepted, and what comes next.

Invariants of the stream:

1. A record is accepted only when the batch it was in is in Spark's commit log. `latestOffset(start)` proves that of
   `start`, and the checkpoint itself, where it can be read; `commit` may come late or never.
2. Nothing is acquired that the offset which is returned does not hold.
3. A record in a committed batch is in `done` until it is accepted or finished, and never in a second batch.
4. What a checkpoint says of offsets is believed of the topic and the life of the group that it was written in only.

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

| since the checkpoint was written | how it is known |
|---|---|
| the topic was made anew | its id is another |
| the group's offsets went back | a start offset lies before one that the checkpoint has |
| the group was deleted, or reset to where it began | what is committed comes for the *first* time, by its old leader |

In each of them `done` and the last batch do not count, and what comes is read.

The last rule needs that a record of a batch in the log never comes again with the count it had: so it is never given
back unrun. What the checkpoint has as committed is accepted before the first fetch of a process, when nothing can be
this member's but what its last process held: an accept that came later could meet a record that was acquired anew.

A batch that fails again and again is void: it is run empty, nothing of it is accepted, and its records come again in
smaller ones, until the one that is at fault is alone (`flowshare.spark.source.narrowing`).

With `recovery=drop`, and with outcomes, a batch that this process did not run is nobody's: it is neither read again
nor accepted, and the group delivers its records again.

Where the group's window has room, the next batch is acquired first and the accept of the last one sent behind it: it
is on its way while the batch runs. A broker takes one request of a connection after the other, and to wait for its
accept (12 ms on Kafka, most of it the share coordinator's linger) would hold up every batch.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from flowshare.agents.feed.limits import DELIVERIES_MAX
from flowshare.agents.handler.rate_limit import TokenBucket
from flowshare.client.errors import ClientError
from flowshare.spark.source import progress
from flowshare.spark.source.accepts import Accepts
from flowshare.spark.source.checkpoint import ASYNC_PROGRESS, DamagedNote, NotWritten, find_checkpoint, local_checkpoint
from flowshare.spark.source.member import Fenced, GroupMember
from flowshare.spark.source.narrowing import REASON, Narrowing
from flowshare.spark.source.outcomes import MemberOutcomes, OutcomeListener
from flowshare.spark.source.progress import ArchivedUnread, BacklogEnd
from flowshare.spark.source.ranges import Offset, Place, Range, merged, records_in, share_out
from flowshare.spark.source.reading import ReadTask, lose

if TYPE_CHECKING:
    from flowshare.spark.source.checkpoint import Checkpoint
    from flowshare.spark.source.options import SourceOptions

PRUNE_S: Final = 10.0
"""How often `done` is held against the group's start offsets."""
EMPTY_S: Final = 5.0
"""How long past a lock's duration a run that empties the backlog waits for what others hold."""
FULL_BATCHES: Final = 16
"""How long a window that was full is taken for full."""

COMMITTED_S: Final = 0.25
"""How often the checkpoint is looked at while a batch runs."""
TROUBLES: Final = {
    "records_lost": "Records that were gone from the log before they were read.",
    "locks_lost": "Records whose lock was lost while their batch ran; they come again, and are left out then.",
    "records_archived": "Records that the brokers archived without having been in a batch.",
}
CHECKED: Final = 3
"""Batches of a process that are looked for in the checkpoint."""
CLOSE_S: Final = 5.0
"""How long a stop waits for the accept of what is committed."""

logger = logging.getLogger("flowshare.spark")


class MicroBatches:
    """What `ShareStreamReader` asks: one member of the group, and what is known of the query's batches.

    Spark's thread calls it, and one of its own looks at the checkpoint meanwhile; a lock lets one do something at a
    time.
    """

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self.initial = Offset(member=str(uuid.uuid4()))
        self.emptying = False
        self._member: GroupMember | None = None
        self._listener: OutcomeListener | None = None
        self._accepts: Accepts
        self._archived: ArchivedUnread | None = None
        """Only where records can be archived unread."""
        self._unread: list[Range] = []
        """Finished by no batch, and not told yet."""
        self._completed = 0
        self._mine: set[int] = set()
        """Numbers of the batches that were acquired by this process."""
        self._rate = None if options.rate is None else TokenBucket(options.rate, time.monotonic())
        self._prune_s = 0.0
        self._full = 0
        """For how many batches more the window is taken for full."""
        self._starts: dict[Place, int] = {}
        """The group's start offsets as they were looked at last."""
        self._restored = False
        """Whether what the checkpoint says is compared with the group."""
        self._backlog: BacklogEnd | None = None
        """Only where what is there is emptied."""
        self._begun = Offset()
        """The offset that this process began with."""
        self._running: Offset | None = None
        """The batch that was handed out last."""
        self._given: tuple[Range, ...] = ()
        """Ranges of the newest offset that Spark has, which is in the write-ahead log or about to be."""
        self._checkpoint: Checkpoint | None = None
        self._narrowing = Narrowing()
        self._process = str(uuid.uuid4())
        self._kept: list[Range] = []
        """Acquired, and held for a later batch."""
        self._told = dict.fromkeys(TROUBLES, 0)
        self._lock = threading.RLock()
        self._closing = threading.Event()

    def next(self, begun: Offset) -> Offset | None:
        """The offset behind `begun`, which is committed; None: there is nothing at the moment."""
        with self._lock:
            member = self._open(begun)
            try:
                self._restore(member)
                self._check_written(member, begun)
                self._committed(member, begun)
                self._prune(member)
                fresh = self._fresh(member, records_in(begun.ranges))
            except (ClientError, OSError) as error:
                logger.warning("group %s: %s", self._options.group, error)
                time.sleep(self._options.wait)  # a broker that is away is waited for, not a reason to fail
                return None
            if not fresh:
                return None
            self._mine.add(begun.number + 1)
            self._given = tuple(fresh)
            return Offset(
                number=begun.number + 1,
                member=member.member_id,
                ranges=tuple(fresh),
                done=self._accepts.ranges(),
                topics=member.topics,
                starts={**self._starts, **(self._archived.starts if self._archived else {})},
                leaders=self._accepts.leaders({one.place: member.leader(one.place) for one in fresh}),
                passed=tuple(self._archived.ranges()) if self._archived else (),
            )

    def tasks(self, offset: Offset) -> list[ReadTask]:
        """What the tasks of a batch read."""
        with self._lock:
            member = self._open(offset)
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
        """Accept what is committed, give back what is held besides, and leave the group."""
        self._closing.set()
        if self._listener is not None:
            self._listener.close()
        with self._lock:
            member, self._member = self._member, None
            if member is None:
                return
            try:
                self._restore(member)
                if self._running is not None and self._running.number > self._completed:
                    if self._written(member):
                        self._committed(member, self._running)
                    else:
                        self._failed(member, self._running)
                self._settle_all(member)
            except (ClientError, OSError, Fenced) as error:
                logger.warning("group %s: what is committed was not accepted: %s", self._options.group, error)
            member.close(run=self._given)

    def told(self) -> dict[str, int]:
        """What went wrong since this process began, for the query's progress: `TROUBLES`."""
        locks = self._member.locks_lost if self._member is not None else 0
        return {**self._told, "locks_lost": locks}

    def _there(self, member: GroupMember, offset: Offset) -> list[Range]:
        """Of a batch's ranges, what the log still has. Raises: DataLoss, unless the source is to go on without it.

        Looked up here, in the process whose log somebody reads, for a batch that an earlier process acquired, and where
        the source may go on without; else the task that misses a record fails, and then it is an earlier one's.
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
        """The batch `offset` is proven to be complete."""
        if offset.number <= self._completed:
            return
        if self._narrowing.is_void(offset.number):
            self._completed = offset.number
            return
        if self._ours(offset):
            if self._options.outcomes:
                # Some are settled already: what is left had no row.
                refused = member.accept([piece for pieces in member.held(offset.ranges) for piece in pieces])
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
        if self._archived is not None:
            self._archived.add(offset.ranges)
        if self._narrowing.committed(offset.number, offset.ranges):
            self._note(member)
        self._completed = offset.number  # not before: what raises on the way is tried again with the next trigger

    def _failed(self, member: GroupMember, offset: Offset) -> None:
        """The query ends and a batch of its is not committed."""
        if self._ours(offset):
            again = self._options.recovery == "rerun" and not self._options.outcomes
            self._narrowing.failed(offset.number, offset.ranges, whole=again)
            self._note(member)

    def _note(self, member: GroupMember) -> None:
        """Write down what is known of suspects. What could not be written is as if it had not been found out."""
        place = self._place(member)
        try:
            if place is not None and not place.write_note(member.member_id, self._process, self._narrowing.to_json()):
                logger.debug("group %s: another process of the query notes suspects now", self._options.group)
        except (OSError, DamagedNote) as error:
            logger.warning("group %s: suspects cannot be noted in the checkpoint: %s", self._options.group, error)

    def _noted(self, member: GroupMember, known: Offset) -> Narrowing:
        """What the checkpoint notes, without topics that were made anew since it had the offset `known`.

        Raises: OSError, DamagedNote: a void batch that is not known as one would be accepted, so nothing is done here.
        """
        place = self._place(member)
        note = {} if place is None else place.take_note(member.member_id, self._process)
        found = Narrowing.from_json(note) if note else Narrowing()
        for topic, topic_id in known.topics.items():
            if member.topics.get(topic, topic_id) != topic_id:
                found.forget(topic)
        if found.told:  # here, as Spark heeds nothing that is said at the end of a query
            logger.warning("group %s: %s", self._options.group, found.told)
            found.told = ""
        return found

    def _settle_all(self, member: GroupMember) -> None:
        """Leave nothing in `done`, as far as that is to be had now: whoever is next may have another checkpoint.

        What was refused is the group's again; what else comes with it is given back when the member leaves.
        """
        self._accepts.settle(CLOSE_S)
        until = time.monotonic() + CLOSE_S
        while (refused := records_in(self._accepts.ranges())) and time.monotonic() < until:
            # The stop may have cut off an acquire: what that got is held, and nobody knows of it.
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

    def _open(self, known: Offset) -> GroupMember:
        if self._member is None:
            earlier = known.member != self.initial.member  # this process takes another one's place
            member = GroupMember(self._options, known.member or self.initial.member, adopts=earlier)
            member.open()
            self._member = member
            self._begun = known
            self._accepts = Accepts(member, group=self._options.group)
            if not member.facts.endless:
                self._archived = ArchivedUnread(known.starts, known.passed)
            if earlier:
                try:
                    self._narrowing = self._noted(member, known)
                    runs = self._ours(known) and not self._narrowing.is_void(known.number)
                    member.adopt((*known.done, *(known.ranges if runs else ())), known.topics)
                except BaseException:  # what is not adopted would be given to others: begin anew
                    self._member = None
                    member.close()
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
        """Believe what the checkpoint has as committed, as far as the group is the one that it was."""
        if self._restored:
            return
        self._starts = member.ask(progress.starts, self._options.group)
        known = self._begun
        self._accepts.restore(replace(known, ranges=known.done), self._starts)
        self._accepts.settle()
        self._restored = True

    def _watch(self) -> None:
        """See in the checkpoint that a batch is committed when the next trigger does not come at once."""
        while not self._closing.wait(COMMITTED_S):
            with self._lock:
                member = self._member
                if member is None or self._closing.is_set() or not self._restored or not self._written(member):
                    continue
                assert self._running is not None
                try:
                    self._committed(member, self._running)
                    self._accepts.begin()
                except (ClientError, OSError, Fenced) as error:
                    logger.debug("group %s: not accepted yet: %s", self._options.group, error)

    def _written(self, member: GroupMember) -> bool:
        """Whether the batch that was handed out last is in the commit log, and not known as that yet."""
        if self._running is None or self._running.number <= self._completed:
            return False
        place = self._place(member)
        return place is not None and place.committed(member.member_id) >= self._running.number

    def _check_written(self, member: GroupMember, begun: Offset) -> None:
        """See of the first batches that Spark writes them down before it goes on. Raises: NotWritten."""
        if begun.number not in self._mine or len(self._mine) > CHECKED:
            return
        place = self._place(member)
        if place is not None and place.committed(member.member_id) < begun.number:
            raise NotWritten(
                f"batch {begun.number} of group {self._options.group} is not in its checkpoint. {ASYNC_PROGRESS}"
            )

    def _place(self, member: GroupMember) -> Checkpoint | None:
        """The query's checkpoint; None: it is not known, or not to be read from here."""
        if self._checkpoint is None:
            named = self._options.checkpoint
            self._checkpoint = local_checkpoint(named) if named else find_checkpoint(member.member_id)
        return self._checkpoint

    def _ours(self, offset: Offset) -> bool:
        """Whether a batch is to be finished, whoever acquired it."""
        again = self._options.recovery == "rerun" and not self._options.outcomes
        return again or offset.number in self._mine

    # --- what is next -------------------------------------------------------------------------------------------------

    def _fresh(self, member: GroupMember, before: int) -> list[Range]:
        """Ranges for a batch, none of which was in one that is committed. before: records of the last one."""
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
        """What the group has for the next batch. before: records of the last one."""
        room = self._options.records_per_trigger
        if self._rate is not None:
            room = min(room, self._rate.available(time.monotonic()))
        if room <= 0:
            self._accepts.settle()
            time.sleep(self._options.wait)
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
            # What is held must get into a batch; what is owed stays so.
            logger.warning("group %s: %s", self._options.group, error)
        if fresh:
            if self._rate is not None:
                self._rate.take(records_in(fresh))
            self._warn_of_end(member, fresh)
        return fresh

    def _behind(self, member: GroupMember, room: int, *, wait: bool) -> list[Range]:
        """What is to be had when all is accepted: until then the window may be full of it."""
        while True:
            self._accepts.settle()
            got = member.acquire(room, self._options.wait if wait else 0.0)
            fresh = self._taken(member, got)
            if fresh or not (got or (wait and not self._over(member))):
                return fresh

    def _over(self, member: GroupMember) -> bool:
        """Whether nothing more is waited for: always, unless the backlog is to be emptied."""
        if self._backlog is None:
            return True
        left = member.ask(progress.left, self._options.group, self._backlog.ends)
        return self._backlog.over(left, time.monotonic())

    def _taken(self, member: GroupMember, got: list[Range]) -> list[Range]:
        """Of what was acquired, what was in no batch yet."""
        if self._backlog is not None:
            self._backlog.took(got, time.monotonic() + EMPTY_S + member.lock_s)
        for topic in self._accepts.meet(member.topics):
            logger.warning(
                "group %s: topic %s was made anew: what the query had of it does not count for it",
                self._options.group,
                topic,
            )
            self._narrowing.forget(topic)
            if self._archived is not None:
                self._archived.forget(topic)
        fresh = self._accepts.swallow(got)
        if fresh and self._archived is not None:
            self._archived.begin(got)
        return fresh

    def _prune(self, member: GroupMember) -> None:
        """Forget what the group has finished; tell of what it finished unread."""
        if time.monotonic() < self._prune_s:
            return
        self._prune_s = time.monotonic() + PRUNE_S
        self._starts = starts = member.ask(progress.starts, self._options.group)
        self._accepts.prune(starts)
        self._narrowing.prune(starts)
        if self._archived is not None:
            self._unread += self._archived.advance(starts)
        # Kept until they are counted: the group may not be reached just now.
        group, mine = self._options.group, member.member_id
        count = member.ask(progress.count_unread, group, mine, self._unread) if self._unread else 0
        unread, self._unread = self._unread, []
        self._told["records_archived"] += count
        if count:
            first = unread[0]
            logger.error(
                "group %s: the brokers archived %d records that were in no batch, the first at %s-%d@%d: they were "
                "delivered %d times to a query that died before it had written them down. They are still in the log; "
                "raise %s, and see why the query died",
                self._options.group,
                count,
                first.topic,
                first.partition,
                first.first,
                member.facts.deliveries,
                DELIVERIES_MAX,
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
