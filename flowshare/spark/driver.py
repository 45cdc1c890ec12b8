"""What a query's own process knows of its batches: which were acquired, committed and accepted, and what comes next.

Invariants of the stream:

1. A record is accepted only when the batch it was in is in Spark's commit log. `latestOffset(start)` proves that of
   `start`; `commit` may come late or never.
2. Nothing is acquired that the offset which is returned does not hold.
3. A record in a committed batch is in `done` until it is accepted or finished, and never in a second batch.

| state at a crash | what a restart finds |
|---|---|
| acquired, not in the write-ahead log | the locks lapse or go with the connection; delivered again; in one batch |
| in the log, not committed | Spark runs the batch again, from the log; accepted when it is committed |
| committed, the next one not in the log | `latestOffset(start)` accepts; what is refused is `done` |
| committed, the next one in the log, not accepted | it is `done` there: swallowed when it comes again |
| accepted | nothing of it comes again |

With `recovery=drop`, and with outcomes, a batch that this process did not run is nobody's: it is neither read again
nor accepted, and the group delivers its records again.

Where the group's window has room, the next batch is acquired first and the accept of the last one sent behind it: it
is on its way while the batch runs. A broker takes one request of a connection after the other, and to wait for its
accept (12 ms on Kafka, most of it the share coordinator's linger) would hold up every batch.
"""

from __future__ import annotations

import logging
import time
import uuid
from typing import TYPE_CHECKING, Final

from flowshare.agents.limits import DELIVERIES_MAX
from flowshare.client.errors import ClientError
from flowshare.spark.accepts import Accepts
from flowshare.spark.agent import OutcomeListener
from flowshare.spark.judge import Judge
from flowshare.spark.member import GroupMember
from flowshare.spark.passed import Passed
from flowshare.spark.ranges import Offset, Range, merged, records_in, share_out
from flowshare.spark.rate import Rate
from flowshare.spark.reading import Part

if TYPE_CHECKING:
    from flowshare.spark.options import SourceOptions

PRUNE_S: Final = 10.0
"""How often `done` is held against the group's start offsets."""
EMPTY_S: Final = 5.0
"""How long past a lock's duration a run that empties the backlog waits for what others hold."""
FULL_BATCHES: Final = 16
"""How long a window that was full is taken for full."""

logger = logging.getLogger("flowshare.spark")


class Driver:
    """The part that lives in the query's own process: one member, and what it knows of the batches."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self.initial = Offset(member=str(uuid.uuid4()))
        self.emptying = False
        self._member: GroupMember | None = None
        self._listener: OutcomeListener | None = None
        self._accepts: Accepts
        self._passed: Passed | None = None
        """Only where records can be archived unread."""
        self._unread: list[Range] = []
        """Finished by no batch, and not told yet."""
        self._completed = 0
        self._mine: set[int] = set()
        """Numbers of the batches that were acquired by this process."""
        self._rate = Rate(options.records_per_second, options.records_per_trigger)
        self._prune_s = 0.0
        self._full = 0
        """For how many batches more the window is taken for full."""

    def next(self, begun: Offset) -> Offset | None:
        """The offset behind `begun`, which is committed; None: there is nothing at the moment."""
        member = self._open(begun)
        try:
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
        return Offset(
            number=begun.number + 1,
            member=member.member_id,
            ranges=tuple(fresh),
            done=self._accepts.ranges(),
            topics=member.topics,
            starts=self._passed.starts if self._passed else {},
            passed=tuple(self._passed.ranges()) if self._passed else (),
        )

    def parts(self, offset: Offset) -> list[Part]:
        """What the tasks of a batch read."""
        member = self._open(offset)
        if not self._ours(offset):
            return []
        return [
            Part(
                broker=self._options.broker,
                hosts=member.hosts,
                ranges=tuple(ranges),
                topics=dict(offset.topics),
                committed=member.facts.committed,
            )
            for ranges in share_out(offset.ranges, self._options.task_count)
        ]

    def close(self) -> None:
        """Give back what is held, and leave the group."""
        if self._listener is not None:
            self._listener.close()
        member, self._member = self._member, None
        if member is not None:
            member.close()

    # --- what is committed --------------------------------------------------------------------------------------------

    def _committed(self, member: GroupMember, offset: Offset) -> None:
        """The batch `offset` is proven to be complete."""
        if offset.number <= self._completed:
            return
        if self._ours(offset):
            if self._options.outcomes:
                # Some are settled already: what is left had no row.
                refused = member.accept([piece for one in offset.ranges for piece in member.held(one)])
                if refused:
                    logger.warning(
                        "group %s: %d records of batch %d are not accepted, their locks were lost; they come again",
                        self._options.group,
                        records_in(refused),
                        offset.number,
                    )
            else:
                self._accepts.owe(offset.ranges)
            if self._passed is not None:
                self._passed.add(offset.ranges)
        self._completed = offset.number  # not before: what raises on the way is tried again with the next trigger

    def _open(self, known: Offset) -> GroupMember:
        if self._member is None:
            member = GroupMember(self._options, known.member or self.initial.member)
            member.open()
            self._member = member
            self._accepts = Accepts(member, known.done, group=self._options.group)
            if not member.facts.endless:
                self._passed = Passed(known.starts, known.passed)
            if known.member != self.initial.member:  # this process takes another one's place
                member.adopt(known.ranges if self._ours(known) else ())
            if self._options.outcomes:
                self._listener = OutcomeListener(
                    self._options.broker, self._options.group, Judge(self._options, member).take
                )
        return self._member

    def _ours(self, offset: Offset) -> bool:
        """Whether a batch is to be finished, whoever acquired it."""
        again = self._options.recovery == "rerun" and not self._options.outcomes
        return again or offset.number in self._mine

    # --- what is next -------------------------------------------------------------------------------------------------

    def _fresh(self, member: GroupMember, before: int) -> list[Range]:
        """Ranges for a batch, none of which was in one that is committed. before: records of the last one."""
        room = self._rate.room(time.monotonic())
        if room <= 0:
            self._accepts.settle()
            time.sleep(self._options.wait)
            return []
        ahead = self._accepts.pending and not self._full
        self._full = max(0, self._full - 1)
        fresh = self._taken(member.acquire(room, 0.0)) if ahead else []
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
            self._rate.took(records_in(fresh), time.monotonic())
            self._warn_of_end(member, fresh)
        return merged(fresh)

    def _behind(self, member: GroupMember, room: int, *, wait: bool) -> list[Range]:
        """What is to be had when all is accepted: until then the window may be full of it."""
        deadline = time.monotonic() + EMPTY_S + member.lock_s if self.emptying and wait else 0.0
        while True:
            self._accepts.settle()
            got = member.acquire(room, self._options.wait if wait else 0.0)
            fresh = self._taken(got)
            if fresh or not (got or (time.monotonic() < deadline and member.backlog())):
                return fresh

    def _taken(self, got: list[Range]) -> list[Range]:
        """Of what was acquired, what was in no batch yet."""
        fresh = self._accepts.swallow(got)
        if fresh and self._passed is not None:
            self._passed.begin(got)
        return fresh

    def _prune(self, member: GroupMember) -> None:
        """Forget what the group has finished; tell of what it finished unread."""
        if not (self._accepts or self._passed) or time.monotonic() < self._prune_s:
            return
        self._prune_s = time.monotonic() + PRUNE_S
        starts = member.starts()
        self._accepts.prune(starts)
        if self._passed is not None:
            self._unread += self._passed.advance(starts)
        # Kept until they are counted: the group may not be reached just now.
        count = member.count_unread(self._unread) if self._unread else 0
        unread, self._unread = self._unread, []
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
