"""One owner a share-partition: the only one that changes it, and the task that writes what changed.

A command decides at once, in the order of the calls, because deciding takes microseconds and awaits nothing; what it
decided joins the queue. The owner's task writes everything that is queued in one store write, and while that is being
made durable further commands (over other records: the core refuses pending ones) are decided and queued for the next.
When a write is durable its decisions are committed, when it failed they are aborted; nobody is answered before.
With nothing to write the task sleeps until the next command or the share-partition's next deadline. No locks.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING, Final, NamedTuple

from flowshare.log.base import LogError, OffsetOutOfRange, StorageError
from flowshare.server.alarm import Alarm
from flowshare.server.log_view import overlapping
from flowshare.server.parking import Line
from flowshare.server.writing import QUEUE_MAX, StateWriter
from flowshare.share.errors import ShareError, UnknownTopicOrPartition
from flowshare.share.types import AcknowledgeBatch, AcknowledgeType

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from flowshare.clock import Clock
    from flowshare.log.base import ReadResult, StateStore
    from flowshare.server.log_view import PartitionLog
    from flowshare.server.parking import Waiter
    from flowshare.server.state import Journal, ShareKey
    from flowshare.server.stats import Stats
    from flowshare.share.config import GroupConfig
    from flowshare.share.partition import SharePartition
    from flowshare.share.types import AcquiredRange, AcquireMode, PartitionUpdate

logger = logging.getLogger(__name__)

READ_TRIES: Final = 8
"""How often a fetch reads again because another fetch moved on the cursor while it read."""
CHOOSY_WAKES: Final = 16
"""Fetches woken at once while it depends on the member what it may take: the first in line may be one that may not."""


class Want(NamedTuple):
    """What a fetch wants of one share-partition. `waiter.ended` stops it from acquiring any more."""

    member_id: str
    mode: AcquireMode
    records_max: int
    batch_size: int
    bytes_max: int
    with_records: bool
    waiter: Waiter


class Taken(NamedTuple):
    """What a fetch got. `durable`: to be awaited before the records leave; raises StorageError."""

    ranges: tuple[AcquiredRange, ...] = ()
    records: bytes = b""
    durable: asyncio.Future[None] | None = None


NOTHING: Final = Taken()


class Owner:
    """Owns one loaded share-partition. Made by `Partitions`, which keeps one a share-partition."""

    def __init__(
        self,
        key: ShareKey,
        *,
        partition: SharePartition,
        journal: Journal,
        log: PartitionLog,
        store: StateStore,
        clock: Clock,
        stats: Stats,
        config: GroupConfig,
        durable_acquire: bool,
        on_archiving: Callable[[Owner], None],
    ) -> None:
        self.key = key
        self.partition = partition
        self.log = log
        self.config = config
        self.closed = False
        self.lock_timeouts = 0
        self.redeliveries = 0
        self.leader_epoch = journal.leader_epoch
        self._clock = clock
        self._stats = stats
        self._durable_acquire = durable_acquire
        self._on_archiving = on_archiving
        self._line = Line()
        self._alarm = Alarm(clock)
        self._where = f"group={key.group_id} topic={log.topic} partition={key.partition}"
        self._writer = StateWriter(partition, journal=journal, store=store, clock=clock, stats=stats, where=self._where)
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to write and to keep deadlines."""
        self._task = asyncio.get_running_loop().create_task(self._run(), name=f"owner {self.key}")
        if self.partition.archiving():
            self._on_archiving(self)

    def stop(self) -> None:
        """Take no more commands; the task ends when what is queued is written. Parked fetches look elsewhere."""
        self.closed = True
        self._line.wake_all()
        self._alarm.ring()

    async def close(self) -> None:
        """`stop`, and wait until everything is written."""
        self.stop()
        if self._task is not None:
            await asyncio.wait([self._task])

    @property
    def idle(self) -> bool:
        """Whether nobody holds records, nobody waits and nothing is left to write."""
        partition = self.partition
        unused = not partition.acquired_count and len(self._line) == 0 and not partition.archiving()
        return unused and self._writer.idle

    # --- commands: decided at once ------------------------------------------------------------------------------

    def acknowledge(self, member_id: str, batches: Sequence[AcknowledgeBatch]) -> asyncio.Future[None] | None:
        """Decide acknowledgements; None when they hold already, else a future that is done when they are durable.

        Raises: InvalidRequest, InvalidRecordState; UnknownTopicOrPartition when no longer served here; StorageError
        when too much waits to be written. The future: StorageError, the records then stay acquired.
        """
        self._check_open()
        if self._writer.full:
            raise StorageError(f"{QUEUE_MAX} steps wait to be written for share-partition {self.key}; try again later")
        decision = self.partition.acknowledge(member_id, batches, now_ms=self._clock.now_ms())
        if decision.update is None:
            self._stats.count_acks(batches)
            return None
        durable = self._writer.add(decision.update, decision=decision, batches=batches)
        self._alarm.ring()
        return durable

    async def take(self, want: Want) -> Taken:
        """Acquire what there is for a member, at most `want`'s limits, without waiting for more.

        Raises: UnknownTopicId, LogError, UnknownTopicOrPartition when no longer served here.
        """
        for _ in range(READ_TRIES):
            if not self.has_work():
                return NOTHING
            offset = self.partition.next_fetch_offset()
            try:
                read = await self.log.read(
                    offset,
                    records_max=want.records_max,
                    bytes_max=want.bytes_max,
                    committed=self._committed,
                )
            except OffsetOutOfRange:
                if not self.follow_log_start():
                    return NOTHING
                continue
            self._check_open()
            if want.waiter.abandoned:
                return NOTHING
            if offset == self.partition.next_fetch_offset():
                return self._acquire(want, offset, read)
        return NOTHING

    async def fetchable_bytes(self, enough: int) -> int:
        """Bytes that a fetch would get now, at most `enough`; records that come again always count as enough.

        Raises: UnknownTopicId
        """
        partition = self.partition
        offset = partition.next_fetch_offset()
        if offset < partition.end_offset:
            return enough
        try:
            read = await self.log.read(
                offset,
                records_max=partition.limits.record_locks_max,
                bytes_max=enough,
                committed=self._committed,
            )
        except LogError:
            return enough  # the fetch will meet the error
        # A log gives whole batches up to `enough`: if there is more than it gave, there is enough.
        end = read.offsets.last_stable if self._committed else read.offsets.high_watermark
        more = bool(read.batches) and read.batches[-1].last + 1 < end
        return enough if more else len(read.records)

    def release_member(self, member_id: str, *, died: bool = False) -> None:
        """Take back what a member holds: its session was closed, or it left the group (share-groups.md §2.15)."""
        if not self.closed:
            self._keep(self.partition.release_member(member_id, now_ms=self._clock.now_ms(), died=died))

    def follow_log_start(self) -> bool:
        """Move the start offset up to the log's start if that has passed it (§2.16); whether it had."""
        log_start = self.log.bounds().log_start
        if self.closed or log_start <= self.partition.start_offset:
            return False
        self._keep(self.partition.move_log_start(log_start))
        return True

    def hand_back(self, member_id: str, ranges: Sequence[AcquiredRange]) -> None:
        """Take back what a member acquired but will never see, without costing an attempt."""
        unrun = bytes([AcknowledgeType.RELEASE])
        batches = [AcknowledgeBatch(taken.first, taken.last, unrun, unrun=True) for taken in ranges]
        if not self.closed:
            with contextlib.suppress(ShareError, LogError):  # lapsed meanwhile, or given back with its session
                self.acknowledge(member_id, batches)

    def give_back(self, member_id: str, ranges: Sequence[AcquiredRange]) -> None:
        """Undo an acquire that could not be made durable: the store never heard of it, so nothing is written."""
        unrun = bytes([AcknowledgeType.RELEASE])
        for taken in ranges:
            batch = AcknowledgeBatch(taken.first, taken.last, unrun, unrun=True)
            try:
                decision = self.partition.acknowledge(member_id, [batch], now_ms=self._clock.now_ms())
            except ShareError:
                continue  # its lock has lapsed meanwhile, or the session was closed
            if decision.update is not None:
                self.partition.commit(decision)

    def finish_archiving(self, first: int, last: int) -> None:
        """The dead letters of these records are written (or given up): they are finished."""
        if not self.closed:
            self._keep(self.partition.finish_archiving(first, last))

    def configure(self, config: GroupConfig) -> None:
        """Follow a changed group config from the next step on."""
        self.config = config
        self.partition.limits = config.limits()
        self.nudge()

    # --- waiting fetches ----------------------------------------------------------------------------------------

    def has_work(self) -> bool:
        """Whether a fetch would find something to acquire now, as far as can be told without reading."""
        partition = self.partition
        if self.closed or self._writer.full or not partition.can_acquire():
            return False
        bounds = self.log.bounds()
        end = bounds.last_stable if self._committed else bounds.high_watermark
        return partition.next_fetch_offset() < end

    def park(self, waiter: Waiter) -> None:
        """Wake `waiter` when there may be something for it."""
        self._line.park(waiter)

    def leave(self, waiter: Waiter) -> None:
        """Wake it no more."""
        self._line.leave(waiter)

    def nudge(self) -> None:
        """Wake the longest waiting fetch if there is something for it."""
        if len(self._line) == 0:
            return
        try:
            work = self.has_work()
        except (ShareError, LogError):
            work = True  # the fetch will meet the error and answer with it
        if not work:
            return
        if self.partition.choosy:
            self._line.wake_some(CHOOSY_WAKES)
        else:
            self._line.wake_first()

    def appended(self) -> None:
        """The log grew, or its start moved."""
        try:
            self.follow_log_start()
        except (ShareError, LogError):
            self._line.wake_all()
        self.nudge()

    # --- inside ---------------------------------------------------------------------------------------------------

    @property
    def _committed(self) -> bool:
        return self.config.isolation_level == "read_committed"

    def _check_open(self) -> None:
        if self.closed:
            raise UnknownTopicOrPartition(f"share-partition {self.key} is not loaded")

    def _acquire(self, want: Want, offset: int, read: ReadResult) -> Taken:
        acquisition = self.partition.acquire(
            want.member_id,
            mode=want.mode,
            records_max=want.records_max,
            batch_size=want.batch_size,
            fetch_offset=offset,
            batches=read.batches,
            aborted=read.aborted,
            now_ms=self._clock.now_ms(),
        )
        ranges = acquisition.ranges
        for taken in ranges:
            count = taken.last - taken.first + 1
            self._stats.records_acquired += count
            if taken.delivery_count > 1:
                self._stats.redeliveries += count
                self.redeliveries += count
        durable = None
        if acquisition.update is not None and self._durable_acquire:
            durable = self._writer.add(acquisition.update)
        self._alarm.ring()  # there is something to write, or a new deadline
        records = overlapping(read.records, read.batches, ranges) if want.with_records and ranges else b""
        return Taken(ranges, records, durable if ranges else None)

    def _keep(self, update: PartitionUpdate | None) -> None:
        if update is not None:
            self._writer.keep(update)
        self._alarm.ring()
        self.nudge()

    async def _run(self) -> None:
        try:
            while True:
                self._expire()
                if self._writer.due(closing=self.closed):
                    await self._write()
                elif self.closed:
                    return
                else:
                    await self._alarm.sleep_until(self._due_ms())
        except Exception as error:
            logger.exception("share-partition stopped, it is loaded again at the next fetch %s", self._where)
            self.closed = True
            self._writer.give_up(error)
            self._line.wake_all()

    async def _write(self) -> None:
        durable = await self._writer.write(closing=self.closed)
        self.nudge()
        if durable and self.config.dead_letter_topic and self.partition.archiving():
            self._on_archiving(self)

    def _due_ms(self) -> int | None:
        deadlines = [due for due in (self.partition.next_deadline_ms(), self._writer.retry_at_ms) if due is not None]
        return min(deadlines, default=None)

    def _expire(self) -> None:
        deadline_ms = self.partition.next_deadline_ms()
        now_ms = self._clock.now_ms()
        if deadline_ms is None or deadline_ms > now_ms:
            return
        update = self.partition.expire(now_ms)
        if update is not None:
            lapsed = sum(run.last - run.first + 1 for run in update.runs)
            self.lock_timeouts += lapsed
            self._stats.lock_timeouts += lapsed
        self._keep(update)
