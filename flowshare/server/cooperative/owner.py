"""One partition of one cooperative group: decided here, one call after another; made durable by `writing`.

Every call decides at once and returns what is to be awaited: the answer, when it may leave. What is decided counts for
the next call; a write that fails takes it back, together with all that was decided after it, and whoever asked asks
again (`flowshare.cooperative.partition`).

Before a step the owner follows the partition's log: what is before its start is passed over, what lay behind an end
that was cut off is taken back (SG-9's words). And when nobody holds anything it looks at the group's ordinary committed
offset: one that somebody else has set is where the group begins anew (`beside`).
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final, TypeVar

from flowshare.cooperative.decisions import DecisionState
from flowshare.core_errors import CoordinatorNotAvailable
from flowshare.log.base import SettlesApart, UnknownTopic
from flowshare.protocol.messages.cooperative import STABLE_METADATA, GroupOffset, offset_of, stable_metadata
from flowshare.protocol.messages.share import SETTLE_WAIT_MS
from flowshare.server.cooperative.apart import ApartSettles
from flowshare.server.runtime.parked_settles import ParkedSettles

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Container, Coroutine, Sequence

    from flowshare.clock import Clock
    from flowshare.cooperative.decisions import Decision
    from flowshare.cooperative.partition import (
        CommitAnswer,
        CooperativePartition,
        HoldAnswer,
        Progress,
        Read,
        SettleAnswer,
    )
    from flowshare.cooperative.ranges import Pair
    from flowshare.cooperative.types import CommitEntry, Entry, Terms
    from flowshare.log.base import CheckedOutput, Log, LogOffsets, Topic
    from flowshare.server.cooperative.beside import Beside
    from flowshare.server.cooperative.stats import Stats
    from flowshare.server.cooperative.store import PartitionKey
    from flowshare.server.cooperative.writing import Doubt, GroupWriter
    from flowshare.server.runtime.state import Write

R = TypeVar("R")
logger = logging.getLogger(__name__)

PARTITION_BYTES: Final = 2_000
RANGE_BYTES: Final = 16
CLAIM_BYTES: Final = 300
STARTS_BYTES: Final = 100
"""About what these take in memory: a partition by itself, a committed range, a claim with its member, a record whose
starts are counted."""


class PartitionOwner:
    """Made by the coordinator, which keeps one a partition of a group."""

    def __init__(
        self,
        key: PartitionKey,
        topic: Topic,
        partition: CooperativePartition,
        *,
        writer: GroupWriter,
        beside: Beside,
        log: Log,
        clock: Clock,
        stats: Stats,
        ends_known: bool,
        seen: bool,
        run: Callable[[Coroutine[object, object, None]], asyncio.Task[None]],
    ) -> None:
        """ends_known: the log's end as this server knows it is where it ends. seen: see `store`. run: runs a task to
        its end."""
        self.key = key
        self.topic = topic
        self.partition = partition
        self.prefix = key.prefix
        self.closed = False
        self.used_ms = clock.steady_ms()
        self.seen = seen
        """Records that the group's ordinary offset was once seen to be ours (`store`); the next write stores this."""
        self.seen_stored = seen
        self.mirrored = mirror(topic, partition.offsets.stable, partition.offsets.reset_epoch)
        """The ordinary offset that this server wrote last; any other committed offset is somebody else's."""
        self.doubt: Doubt | None = None
        """The entries that the next write has to repair after a failed write (`writing`)."""
        self._adoption: tuple[Decision[Any], GroupOffset | None] | None = None
        """A decision under way that begins anew, and somebody else's offset that it is written over."""
        self.parked = ParkedSettles(clock)
        self._apart: ApartSettles | None = None
        if isinstance(log, SettlesApart):
            self._apart = ApartSettles(log, self, writer=writer, clock=clock, run=run)
        self._writer = writer
        self._beside = beside
        self._log = log
        self._clock = clock
        self._stats = stats
        self._ends_known = ends_known
        self._end: int | None = None
        """Of the log, when it was looked at last."""

    # --- what is asked ------------------------------------------------------------------------------------------

    @property
    def size(self) -> int:
        """About the bytes that it takes in memory."""
        partition = self.partition
        held = len(partition.claims.state.claims)
        begun = STARTS_BYTES * len(partition.attempts.state.starts)
        return PARTITION_BYTES + RANGE_BYTES * partition.offsets.count + CLAIM_BYTES * held + begun

    @property
    def idle(self) -> bool:
        """True if no member holds or waits for anything, and nothing is left to write or to tell."""
        partition = self.partition
        unused = not partition.in_use and not partition.claims.state.members
        return unused and not self._writer.busy and self.doubt is None

    def bounds(self) -> LogOffsets | None:
        """Of the log, as they are known here; None: not now."""
        try:
            return self._log.offsets(self.topic.name, self.key.partition)
        except UnknownTopic:
            return None

    def check_open(self) -> None:
        """Raises: CoordinatorNotAvailable."""
        if self.closed:
            raise CoordinatorNotAvailable(f"the state of {self.key} is served no more, or anew; try again")

    # --- steps: each decides at once ----------------------------------------------------------------------------

    async def hold(
        self,
        member: str,
        generation: int,
        sequence: int,
        wanted: Sequence[Pair],
        *,
        terms: Terms,
        committed: GroupOffset | None = None,
    ) -> HoldAnswer:
        """As `CooperativePartition.hold`; it and what it follows are decided before the first await.

        committed: what the member says is committed for the group, where that is known to it alone.
        """
        now_ms = self._begin()
        self._adopt(committed, now_ms)
        decision = self.partition.hold(member, generation, sequence, wanted, now_ms, terms=terms)
        answer = decision.answer
        self.parked.rebalanced(generation)
        if answer.taken:
            self.parked.look()
        self._stats.blocked += len(answer.blocked)
        self._stats.overlaps += len(answer.taken)
        return await self._durable(decision)

    async def commit(self, member: str, reset_epoch: int, entries: Sequence[Entry]) -> CommitAnswer:
        """As `CooperativePartition.commit`."""
        now_ms = self._begin()
        end = self._end if self._ends_known else None
        decision = self.partition.commit(member, reset_epoch, entries, now_ms, log_end=end)
        self._stats.fenced += len(decision.answer.fenced)
        return await self._durable(decision)

    async def settle(
        self,
        member: str,
        reset_epoch: int,
        entries: Sequence[CommitEntry],
        outputs: Sequence[CheckedOutput],
        *,
        generation: int | None = None,
    ) -> SettleAnswer:
        """Commit with outputs, as `CooperativePartition.settle`. generation: not before all offsets before these are
        committed, and not if the group is in a newer one meanwhile (`parked_settles`); None: at once.

        Raises: as `commit`; OutputRefused, and where outputs are written apart, StorageError and NotLed, too.
        """
        now_ms = self._begin()
        until_ms = now_ms + SETTLE_WAIT_MS
        ranges = [pair for entry in entries for pair in entry.ranges]
        while generation is not None and self.partition.waits(member, reset_epoch, entries):
            self._stats.parked += 1
            await self.parked.turn(ranges, generation, until_ms)
            now_ms = self._begin()
        apart = self._apart if outputs else None
        number = None if apart is None else apart.next_number()
        end = self._end if self._ends_known else None
        decision = self.partition.settle(member, reset_epoch, entries, now_ms, log_end=end, apart=number)
        self._stats.fenced += len(decision.answer.fenced)
        if number is None or apart is None or not decision.answer.taken:
            return await self._durable(decision, outputs if decision.answer.taken else ())
        await apart.carry_out(number, decision, entries, reset_epoch, outputs)
        return decision.answer._replace(progress=self.partition.progress)

    def settled_apart(
        self, number: int, *, committed: bool, beside: Sequence[Write] = ()
    ) -> asyncio.Future[None] | None:
        """It is known what became of a settle's outputs; durable when what is returned is done (None: now)."""
        self.check_open()
        decision = self.partition.settled_apart(number, self._clock.steady_ms(), committed=committed)
        return self._add(decision, beside=beside)

    async def leave(self, member: str) -> Progress:
        """As `CooperativePartition.leave`."""
        decision = self.partition.leave(member, self._begin())
        self.parked.look()
        return await self._durable(decision)

    async def reset(self, offset: int) -> Progress:
        """As `CooperativePartition.reset`; what somebody else has committed for the group meanwhile counts no more."""
        now_ms = self._begin()
        decision = self.partition.reset(offset, now_ms)
        self._adoption = decision, self._there()
        return await self._durable(decision)

    async def read(self, *, ranges: bool) -> Read:
        """As `CooperativePartition.read`."""
        self.check_open()
        self._follow(self._clock.steady_ms())
        return await self._durable(self.partition.read(ranges=ranges))

    def lapse(self, now_ms: int) -> None:
        """End the leases that are over."""
        due_ms = self.partition.next_deadline_ms()
        if self.closed or due_ms is None or due_ms > now_ms:
            return
        claims = self.partition.claims.state
        gone = {name for name, one in claims.members.items() if one.deadline_ms <= now_ms}
        self._stats.lapsed += sum(1 for claim in claims.claims if claim.member in gone)
        self._keep(self.partition.lapse(now_ms))
        self.parked.look()

    def cut(self, end: int) -> None:
        """The log was cut at `end`: what was committed behind it is of records that are there no more."""
        if not self.closed and self.partition.offsets.furthest > end:
            logger.warning("the log was cut at offset %d, commits behind it are taken back: %s", end, self.key)
            self._keep(self.partition.truncate(end, self._clock.steady_ms()))
            self.parked.look()

    def close(self) -> None:
        """Serve it no more; what is under way fails, unless its write is."""
        self.closed = True
        if self._apart is not None:
            self._apart.close()
        self.parked.look()

    # --- its ordinary offset ------------------------------------------------------------------------------------

    def may_mirror(self, decisions: Container[Decision[Any]]) -> bool:
        """True if the group's ordinary offset may be written with these decisions. An offset that somebody else has set
        is left alone until one of the decisions begins anew there."""
        there = self._there()
        if there is None or there == self.mirrored or offset_of(self.key.topic_id, there).offset < 0:
            return True
        return self._adoption is not None and self._adoption[0] in decisions and self._adoption[1] == there

    def written(self, stable: GroupOffset) -> None:
        """This is the group's ordinary offset now."""
        self.mirrored = stable
        if self._adoption is not None and self._adoption[0].state is not DecisionState.UNDER_WAY:
            self._adoption = None

    def _there(self) -> GroupOffset | None:
        return self._beside.committed(self.key.group_id, self.topic, self.key.partition)

    def _adopt(self, said: GroupOffset | None, now_ms: int) -> None:
        """Begin anew where somebody else has set the group's offset, unless somebody holds something still."""
        beside = self._beside
        there = self._there() if beside.exact else said
        if there is None:
            return
        there = offset_of(self.key.topic_id, there)
        if not beside.exact and there.metadata.startswith(STABLE_METADATA):
            self.seen = True
            return
        if there.offset < 0 or there == self.mirrored or self._adopts(there) or self.partition.in_use:
            return
        logger.info("the group begins anew at offset %d, which was set for it: %s", there.offset, self.key)
        self._stats.resets += 1
        decision = self.partition.reset(there.offset, now_ms)
        self._adoption = decision, there
        self._keep(decision)
        self._follow(now_ms)

    def _adopts(self, there: GroupOffset) -> bool:
        """True if a decision under way begins anew at this offset."""
        found = self._adoption
        return found is not None and found[0].state is DecisionState.UNDER_WAY and found[1] == there

    # --- inside -------------------------------------------------------------------------------------------------

    def _begin(self) -> int:
        """Prepare a step and return its time in milliseconds. Raises: CoordinatorNotAvailable, StorageError."""
        self.check_open()
        self._writer.check_room()
        self.used_ms = now_ms = self._clock.steady_ms()
        self.lapse(now_ms)
        self._follow(now_ms)
        return now_ms

    def _follow(self, now_ms: int) -> None:
        """Pass over what the log has lost at its start, take back what it has lost at its end."""
        bounds = self.bounds()
        self._end = None if bounds is None else bounds.high_watermark
        if bounds is None:
            return
        offsets = self.partition.offsets
        if bounds.log_start > offsets.stable:
            decision = self.partition.move_log_start(bounds.log_start, now_ms)
            lost = decision.answer.lost
            if lost:
                self._stats.lost += lost
                logger.warning("%d records were deleted before anybody had finished them: %s", lost, self.key)
            self._keep(decision)
        if self._ends_known and offsets.furthest > bounds.high_watermark:
            self.cut(bounds.high_watermark)

    def _keep(self, decision: Decision[Any]) -> None:
        """Have a decision written that nobody waits for; when it cannot be, it is made again with the next step."""
        self._add(decision)

    async def _durable(self, decision: Decision[R], outputs: Sequence[CheckedOutput] = ()) -> R:
        future = self._add(decision, outputs)
        if future is not None:
            await future
        return decision.answer

    def _add(
        self, decision: Decision[Any], outputs: Sequence[CheckedOutput] = (), beside: Sequence[Write] = ()
    ) -> asyncio.Future[None] | None:
        """Have a decision written; what waits for it to be made looks on."""
        if self.parked:
            self.parked.release(self.partition.offsets.stable)
        return self._writer.add(self, decision, outputs=outputs, beside=beside)


def mirror(topic: Topic, stable: int, reset_epoch: int) -> GroupOffset:
    """A stable offset as the group's ordinary one."""
    return GroupOffset(stable, stable_metadata(reset_epoch, topic.topic_id))
