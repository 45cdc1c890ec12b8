"""The owner of a share-partition: makes all its changes, and runs the task that writes the changes.

A command decides at once, in the order of the calls, because deciding takes microseconds and awaits nothing; the
decision joins the queue. The owner's task writes all queued decisions in one store write. While that write becomes
durable, further commands (over other records: the core refuses pending ones) are decided and queued for the next. When
a write is durable its decisions are committed, when it failed they are aborted; nobody is answered before. With nothing
to write the task sleeps until the next command or the share-partition's next deadline. No locks.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from flowshare.core_errors import CoreError, UnknownTopicOrPartition
from flowshare.log.base import LogError, NotLed, OffsetOutOfRange, StorageError
from flowshare.protocol.messages.share import SETTLE_WAIT_MS
from flowshare.server.runtime.parked_settles import ParkedSettles
from flowshare.server.runtime.waiting import Alarm
from flowshare.server.share.ordered_fetch import OrderedFetch
from flowshare.server.share.parked_keys import ParkedKeys
from flowshare.server.share.partition_log import LogGuard, cut, overlapping
from flowshare.server.share.returning_members import THREE_BEATS_MS
from flowshare.server.share.waiters import NOTHING, READ_TRIES, Taken, Waiters
from flowshare.server.share.writing import QUEUE_MAX, StateWriter
from flowshare.share.config import PARK
from flowshare.share.types import AcknowledgeType, AckRange

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from flowshare.clock import Clock
    from flowshare.log.base import CheckedOutput, ReadResult, Storage
    from flowshare.server.runtime.state import Journal, ShareKey, Write
    from flowshare.server.share.opened_log import OpenedLog
    from flowshare.server.share.partition_log import CuttableLog, PartitionLog
    from flowshare.server.share.stats import Stats
    from flowshare.server.share.waiters import Want
    from flowshare.share.acknowledge import Refusal
    from flowshare.share.acquire import Acquisition
    from flowshare.share.config import GroupConfig
    from flowshare.share.intervene import Act, Intervened
    from flowshare.share.parking import ParkedKey
    from flowshare.share.partition import Decision, SharePartition
    from flowshare.share.types import AcquiredRange, BlockedKey, PartitionUpdate


logger = logging.getLogger(__name__)

LATE_MS: Final = 500
"""Lateness of a wake-up, in ms, after which the process is taken to have stood still and not read its sockets
either."""


class Acknowledged(NamedTuple):
    """The outcome of acknowledgements. durable: to be awaited; None: the decision holds already. refused: ranges that
    do not hold, and the reason for the first."""

    durable: asyncio.Future[None] | None
    refused: Refusal | None


class PartitionOwner:
    """Owns one loaded share-partition. Made by `Partitions`, which keeps one owner a share-partition."""

    def __init__(
        self,
        key: ShareKey,
        *,
        partition: SharePartition,
        journal: Journal,
        log: PartitionLog,
        store: Storage,
        clock: Clock,
        stats: Stats,
        config: GroupConfig,
        durable_acquire: bool,
        on_archiving: Callable[[PartitionOwner], None],
        on_idle: Callable[[PartitionOwner], None] = lambda _: None,
        kafka: CuttableLog | None = None,
        opened: OpenedLog | None = None,
        generation: int = 0,
        parked: Mapping[bytes, ParkedKey] | None = None,
    ) -> None:
        """on_idle: called when a write has left it so that it `may_leave`. opened: for a group ordered by key.
        generation: number of this load, see `Taken.fence`. parked: the parked keys."""
        self.key = key
        self.partition = partition
        self.log = log
        self.config = config
        self._set_level()
        self.closed = False
        self._laid_down = False
        self.lock_timeouts = 0
        self.redeliveries = 0
        self._followed = -1
        """The log start that was followed last: records held below it stay, and are not looked through again."""
        self.leader_epoch = journal.leader_epoch
        self._clock = clock
        self._stats = stats
        self._durable_acquire = durable_acquire
        self._on_archiving = on_archiving
        self._on_idle = on_idle
        self._alarm = Alarm(clock)
        self._where = f"group={key.group_id} topic={log.topic} partition={key.partition}"
        self._writer = StateWriter(
            partition,
            journal=journal,
            store=store,
            clock=clock,
            stats=stats,
            where=self._where,
            changed=self._settled_apart,
        )
        self._turns = ParkedSettles(clock)
        """Settles that wait for the records before theirs."""
        self._task: asyncio.Task[None] | None = None
        self.guard = LogGuard(
            kafka,
            log=log,
            partition=partition,
            clock=clock,
            on_cut=self._cut,
            on_doubt=self._forget_read,
            on_sure=self._sure,
        )
        self.parked: ParkedKeys | None = None
        """Parked keys; None without an order."""
        if opened is not None:
            self.parked = ParkedKeys(
                key,
                partition,
                opened,
                clock,
                parked or {},
                generation,
                self._where,
                writer=self._writer,
                changed=self._set_limits,
            )
        self.waiting = Waiters(
            partition,
            log=log,
            guard=self.guard,
            parked=self.parked,
            writer=self._writer,
            clock=clock,
            alarm=self._alarm,
        )
        self._ordered = None if opened is None else self._fetch_of(opened, generation)

    def _fetch_of(self, opened: OpenedLog, generation: int) -> OrderedFetch:
        assert self.parked is not None
        return OrderedFetch(
            self,
            self.key,
            partition=self.partition,
            opened=opened,
            parked=self.parked,
            guard=self.guard,
            waiting=self.waiting,
            clock=self._clock,
            generation=generation,
            where=self._where,
        )

    def start(self) -> None:
        """Start the task that writes and keeps deadlines."""
        self._task = asyncio.get_running_loop().create_task(self._run(), name=f"owner {self.key}")
        if self.partition.has_archiving:
            self._on_archiving(self)

    def stop(self) -> None:
        """Refuse further commands; the task ends when the queue is written. Waiting fetches look elsewhere."""
        self.closed = True
        if self._ordered is not None:
            self._ordered.close()
        self.guard.close()
        self.waiting.close()
        self._turns.look()
        self._alarm.ring()

    def lay_down(self) -> None:
        """Stop because another server leads the share-partition from now on; callers and waiting fetches get NotLed."""
        self._laid_down = True
        self.stop()

    async def close(self) -> None:
        """Stop, and wait until everything is written."""
        self.stop()
        if self._task is not None:
            await asyncio.wait([self._task])

    @property
    def idle(self) -> bool:
        """True if no member holds or waits for records, and nothing is left to write."""
        partition = self.partition
        unused = not partition.acquired_count and len(self.waiting.queue) == 0 and not partition.has_archiving
        return unused and self._writer.idle

    @property
    def may_leave(self) -> bool:
        """True if it may leave memory: it is idle, and has no records that are to come alone, as only memory knows."""
        return self.idle and not self.partition.has_suspects

    def stuck(self) -> tuple[BlockedKey, ...]:
        """Return the keys that hold up most records, as they were a moment ago."""
        return () if self._ordered is None else self._ordered.stuck()

    # --- commands: decided at once ------------------------------------------------------------------------------

    def acknowledge(self, member_id: str, batches: Sequence[AckRange]) -> Acknowledged:
        """Decide acknowledgements.

        Raises: InvalidRequest, InvalidRecordState; UnknownTopicOrPartition, NotLed when no longer served here;
        StorageError when too much waits to be written. `Acknowledged.durable` raises StorageError: the records then
        stay acquired.
        """
        self.check_open()
        if self._writer.full:
            raise StorageError(f"{QUEUE_MAX} steps wait to be written for share-partition {self.key}; try again later")
        decision = self.partition.acknowledge(member_id, batches, now_ms=self._clock.steady_ms())
        if decision.update is None:
            self._stats.count_acks(batches)
            return Acknowledged(None, decision.refused)
        return Acknowledged(self._decided(decision, batches), decision.refused)

    def settle(
        self, member_id: str, batches: Sequence[AckRange], outputs: Sequence[CheckedOutput]
    ) -> asyncio.Future[None]:
        """Decide accepts and rejects that are durable with their outputs, in one step, or not at all.

        Raises: as `acknowledge`. The returned future raises OutputRefused, too: the records then stay acquired, and
        nothing is written.
        """
        self.check_open()
        if self._writer.full:
            raise StorageError(f"{QUEUE_MAX} steps wait to be written for share-partition {self.key}; try again later")
        decision = self.partition.settle(member_id, batches, now_ms=self._clock.steady_ms())
        return self._decided(decision, batches, outputs)

    async def turn(self, member_id: str, batches: Sequence[AckRange]) -> None:
        """Wait until all records before these are finished, or `settle` refuses these; call `settle` at once after it
        (SG-19.8).

        Raises: InvalidRequest, BoundReached (too many wait), Refused (not their turn within SETTLE_WAIT_MS);
        UnknownTopicOrPartition, NotLed when no longer served here.
        """
        until_ms = self._clock.steady_ms() + SETTLE_WAIT_MS
        ranges = [(batch.first, batch.last + 1) for batch in batches]
        while True:
            self.check_open()
            if not self.partition.waits(member_id, batches, now_ms=self._clock.steady_ms()):
                return
            await self._turns.turn(ranges, 0, until_ms)

    def _decided(
        self, decision: Decision, batches: Sequence[AckRange], outputs: Sequence[CheckedOutput] = ()
    ) -> asyncio.Future[None]:
        """Queue a decision for writing, together with its changes of parked keys."""
        if self.parked is not None:
            self.parked.came_back_unrun(batches, decision)
        if self.parked and (changes := self.parked.settled_by(decision)):
            durable = self._writer.add(
                decision.update,
                decision=decision,
                batches=batches,
                beside=self.parked.writes(changes),
                done=partial(self.parked.follow, decision, changes),
                outputs=outputs,
            )
        else:
            durable = self._writer.add(decision.update, decision=decision, batches=batches, outputs=outputs)
        self._alarm.ring()
        if self._ordered is not None:
            self.waiting.look()  # the next records of its keys are free, to leave with the same write
        return durable

    async def all_known(self) -> None:
        """Wait until the outcome of all acknowledgements and settles so far is known: durable or not.

        Raises: NotDecided.
        """
        await self._writer.all_known()

    async def take(self, want: Want) -> Taken:
        """Acquire available records for a member, within `want`'s limits, without waiting for more.

        The records may leave when `Taken.durable` is done (SG-3.5).

        Raises: UnknownTopicId, LogError, UnknownTopicOrPartition when no longer served here.
        """
        if self._ordered is not None:
            return await self._ordered.take(want)
        for _ in range(READ_TRIES):
            if not self.waiting.has_work():
                return NOTHING
            records_max = self.partition.may_acquire(want.member_id, want.records_max, self._clock.steady_ms())
            if records_max <= 0:
                self.waiting.turned_away()
                return NOTHING
            end = self.log.end()
            offset = self.partition.next_fetch_offset(end)
            try:
                read = await self.log.read(
                    offset,
                    records_max=records_max,
                    bytes_max=want.bytes_max,
                    with_records=want.with_records,
                )
            except OffsetOutOfRange:
                if not self.out_of_range():
                    return NOTHING
                continue
            self.check_open()
            if want.waiter.abandoned or not self.guard.trusts(read.leader_epoch):
                return NOTHING
            if offset != self.partition.next_fetch_offset(end):
                continue
            taken = self._acquire(want, offset, read)
            if taken.ranges or offset == self.partition.next_fetch_offset(end):
                return taken
        return NOTHING

    async def fetchable_bytes(self, enough: int) -> int:
        """Return the bytes that a fetch would get now, at most `enough`; redelivered records always count as enough.

        Raises: UnknownTopicId
        """
        partition = self.partition
        if partition.ordered:
            return enough
        offset = partition.next_fetch_offset(self.log.end())
        if offset < partition.end_offset:
            return enough
        try:
            read = await self.log.read(
                offset,
                records_max=partition.limits.record_locks_max,
                bytes_max=enough,
            )
        except LogError:
            return enough  # the fetch will meet the error
        # A log gives whole batches up to `enough`: if the log has more than it gave, that is enough.
        end = read.offsets.last_stable if self.log.committed else read.offsets.high_watermark
        more = bool(read.batches) and read.batches[-1].last + 1 < end
        return enough if more else read.size

    def release_member(self, member_id: str, *, died: bool = False, gone: bool = False) -> None:
        """Release all records of a member: its session was closed, or it left the group (SG-8.4, SG-8.5)."""
        if not self.closed:
            self._keep(self.partition.release_member(member_id, died=died, gone=gone))

    def follow_log_start(self) -> bool:
        """Move the start offset up to the log's start; return True if the log's start had passed it (SG-5.9,
        SG-9.1)."""
        log_start = self.log.bounds().log_start
        if self.closed or log_start <= self.partition.start_offset:
            return False
        if log_start > self._followed or self.partition.has_free_below(log_start):
            self._followed = log_start
            self._keep(self.partition.move_log_start(log_start))
        return True

    def hand_back(
        self, member_id: str, ranges: Sequence[AcquiredRange], *, unrun: bool = True
    ) -> asyncio.Future[None] | None:
        """Release records that a member acquired but will not settle; unrun: the member never saw them, so that no
        attempt counts.

        The returned future is done when that is durable; None: nothing is to be written.
        """
        release = bytes([AcknowledgeType.RELEASE])
        batches = [AckRange(taken.first, taken.last, release, unrun=unrun) for taken in ranges]
        if batches and not self.closed:
            with contextlib.suppress(CoreError, LogError):  # the lock has lapsed, or the session has released them
                return self.acknowledge(member_id, batches).durable
        return None

    def give_back(self, member_id: str, ranges: Sequence[AcquiredRange]) -> None:
        """Undo an acquire that could not be made durable: the store does not know the acquire, so nothing is
        written."""
        unrun = bytes([AcknowledgeType.RELEASE])
        for taken in ranges:
            batch = AckRange(taken.first, taken.last, unrun, unrun=True, attempt=taken.delivery_count)
            try:
                decision = self.partition.acknowledge(member_id, [batch], now_ms=self._clock.steady_ms())
            except CoreError:
                continue  # the lock has lapsed meanwhile, or the session was closed
            if decision.update is not None:
                self.partition.commit(decision)

    def finish_archiving(self, first: int, last: int) -> None:
        """Finish archiving records: their dead letters are written, or given up."""
        if not self.closed:
            self._keep(self.partition.finish_archiving(first, last))

    @property
    def parks(self) -> bool:
        """True if rejected records may park their keys, or belong to parked keys."""
        return self.parked is not None and (self.config.after_dead_letter == PARK or len(self.parked) > 0)

    async def park_keys(self, first: int, last: int) -> list[int]:
        """Park the keys of records whose dead letters are written, and finish the records; return the offsets that have
        to wait.

        Raises: LogError.
        """
        assert self.parked is not None
        waiting: list[int] = []
        for offset in range(first, last + 1):
            changes = await self.parked.rejected(offset, parks=self.config.after_dead_letter == PARK)
            if self.closed:
                return waiting
            if changes is None:
                waiting.append(offset)
            elif (update := self.partition.finish_archiving(offset, offset)) is not None:
                self._keep(update, self.parked.apply(changes))
        self._set_limits()
        return waiting

    async def replay_key(self, key: bytes) -> ParkedKey | None:
        """Begin a replay of a parked key; return its new state, None if it is not parked. Raises: StorageError."""
        if self.parked is None or (key := self.parked.name(key)) not in self.parked:
            return None
        _, begun = self.parked.parking.replay(key)
        return await self._change_parked(key, begun)

    async def unpark_key(self, key: bytes) -> ParkedKey | None:
        """Let a parked key go on; its dead letters stay as they are. Returns and raises as `replay_key`."""
        return await self._change_parked(key, None)

    async def intervene(
        self, act: Act, ranges: Sequence[tuple[int, int]], *, dry_run: bool = False
    ) -> tuple[Intervened, ...]:
        """Apply an operator's act to records, also to acquired ones; return when the act is durable.

        The act holds at once, and stays if the write fails: the write is tried again, and StorageError is raised.

        Raises: UnknownTopicOrPartition, NotLed when no longer served here; LogError.
        """
        self.check_open()
        if self._ordered is not None:
            await self._ordered.learn()
            self.check_open()
        if self._writer.full:
            raise StorageError(f"{QUEUE_MAX} steps wait to be written for share-partition {self.key}; try again later")
        done = self.partition.intervene(act, ranges, dry_run=dry_run)
        if done.update is None:
            return done.found
        beside: Sequence[Write] = ()
        if self.parked:
            ended = [run for run in done.changes if run.state.terminal]
            beside = self.parked.apply(
                [change for run in ended for change in self.parked.parking.settled(run.first, run.last)]
            )
            self._set_limits()
        durable = self._writer.add(done.update, beside=beside, stays=True)
        self._alarm.ring()
        self.waiting.nudge()
        self._turns.look()
        await durable
        return done.found

    async def _change_parked(self, key: bytes, changed: ParkedKey | None) -> ParkedKey | None:
        """Change a parked key and wait until the change is durable; a failed write undoes it."""
        self.check_open()
        if self.parked is None or (known := self.parked.parking.get(key := self.parked.name(key))) is None:
            return None
        durable = self.parked.change(key, changed)
        self._alarm.ring()
        await durable
        self.waiting.nudge()
        return changed or known

    def _set_limits(self) -> None:
        self.partition.limits = self.config.limits(has_parked=bool(self.parked))

    def _set_level(self) -> None:
        self.log.committed = self.config.isolation_level == "read_committed"

    def placed_otherwise(self, config: GroupConfig) -> bool:
        """Return True if the learnt order of keys does not fit this config: another isolation level adds records or
        leaves some out."""
        return self.partition.ordered and config.isolation_level != self.config.isolation_level

    def configure(self, config: GroupConfig) -> None:
        """Follow a changed group config from the next step on."""
        self.config = config
        self._set_level()
        self._set_limits()
        if self.partition.has_archiving:
            self._on_archiving(self)
        self.waiting.nudge()

    def appended(self) -> None:
        """Follow the log after it grew or its start moved."""
        try:
            self.follow_log_start()
        except (CoreError, LogError):
            self.waiting.queue.wake_all()
        self.waiting.nudge()

    # --- called by fetches (`ordered_fetch.Served`) -------------------------------------------------------------------

    def check_open(self) -> None:
        """Check that the share-partition is served here. Raises: UnknownTopicOrPartition, NotLed."""
        if self._laid_down:
            raise NotLed(f"share-partition {self.key} is led elsewhere by now")
        if self.closed:
            raise UnknownTopicOrPartition(f"share-partition {self.key} is not loaded")

    def out_of_range(self) -> bool:
        """Handle an offset that the log does not have: follow the log's start and return True, or have the guard find
        the reason and return False."""
        if self.follow_log_start():
            return True
        self.guard.out_of_range()
        return False

    def queue(self, update: PartitionUpdate | None) -> None:
        """Queue the write of an update that holds already, if there is one; wake the task for a new deadline."""
        if update is not None:
            self._writer.keep(update)
        self._alarm.ring()

    def handed(
        self,
        acquisition: Acquisition,
        records: bytes,
        now_ms: int,
        *,
        beside: Sequence[Write] = (),
        durable: bool = False,
    ) -> Taken:
        """Count acquired records, and queue the write where one is needed; durable: before the records leave.

        beside: writes to make in the same step.
        """
        ranges = acquisition.ranges
        for taken in ranges:
            count = taken.last - taken.first + 1
            self._stats.records_acquired += count
            if taken.delivery_count > 1:
                self._stats.redeliveries += count
                self.redeliveries += count
        written = None
        update = acquisition.update
        if update is not None and (durable or self._durable_acquire or update.log_epoch >= 0):
            written = self._writer.add(update, beside=beside)
        self._alarm.ring()  # the task has something to write, or a new deadline
        return Taken(ranges, records, written if ranges else None, locked_ms=now_ms)

    # --- inside ---------------------------------------------------------------------------------------------------

    def _acquire(self, want: Want, offset: int, read: ReadResult) -> Taken:
        now_ms = self._clock.steady_ms()
        acquisition = self.partition.acquire(
            want.member_id,
            mode=want.mode,
            records_max=want.records_max,
            batch_size=want.batch_size,
            fetch_offset=offset,
            batches=read.batches,
            aborted=read.aborted,
            log_epoch=read.leader_epoch,
            now_ms=now_ms,
        )
        ranges = acquisition.ranges
        records = overlapping(read.records, read.batches, ranges) if want.with_records and ranges else b""
        return self.handed(acquisition, records, now_ms)

    def _cut(self, end: int, epoch: int) -> None:
        if self.closed:
            return
        self._forget_read()
        update = cut(self.partition, end, epoch, stats=self._stats, where=self._where)
        if update is not None:
            self._writer.cut(end, update)
            self._turns.look()
            if self.parked is not None:
                self.parked.forget_held(end)
            if self.parked and (changes := self.parked.parking.cut(end)):
                self._writer.keep(None, self.parked.apply(changes))
            self._alarm.ring()

    def _sure(self) -> None:
        self.waiting.nudge()

    def _forget_read(self) -> None:
        if self._ordered is not None:
            self._ordered.forget()

    def _keep(self, update: PartitionUpdate | None, beside: Sequence[Write] = ()) -> None:
        if update is not None:
            self._writer.keep(update, beside)
            self._turns.look()
        self._alarm.ring()
        self.waiting.nudge()

    async def _run(self) -> None:
        try:
            while True:
                self._expire()
                if self._turns:
                    self._turns.release(self.partition.start_offset)
                if self._writer.due(closing=self.closed):
                    await self._write()
                elif self.closed and self._writer.idle:
                    return
                elif self.closed:
                    await self._writer.decided()
                else:
                    await self._sleep()
        except Exception as error:
            logger.exception("share-partition stopped, it is loaded again at the next fetch %s", self._where)
            self.closed = True
            self._writer.give_up(error)
            self.waiting.close()
            self._turns.look()

    def _settled_apart(self) -> None:
        """Wake the task and the fetches after a settle outside the queue: there is something to write, or free."""
        self._alarm.ring()
        self.waiting.nudge()

    async def _write(self) -> None:
        begun_ms = self._clock.steady_ms()
        durable = await self._writer.write(closing=self.closed)
        now_ms = self._clock.steady_ms()
        if now_ms - begun_ms > LATE_MS:  # records acquired meanwhile leave only now, and their locks may be over
            self.partition.put_off(now_ms, THREE_BEATS_MS)
        self.waiting.nudge()
        if durable and self.partition.has_archiving:
            self._on_archiving(self)
        if self.may_leave:
            self._on_idle(self)

    def _due_ms(self) -> int | None:
        deadlines = [due for due in (self.partition.next_deadline_ms(), self._writer.retry_at_ms) if due is not None]
        return min(deadlines, default=None)

    async def _sleep(self) -> None:
        """Sleep until a deadline or an event. Waking much too late, the process stood still and heard of no renewal:
        locks get more time."""
        due_ms = self._due_ms()
        await self._alarm.sleep_until(due_ms)
        now_ms = self._clock.steady_ms()
        if due_ms is not None and now_ms - due_ms > LATE_MS:
            self.partition.put_off(now_ms, THREE_BEATS_MS)

    def _expire(self) -> None:
        deadline_ms = self.partition.next_deadline_ms()
        now_ms = self._clock.steady_ms()
        if deadline_ms is None or deadline_ms > now_ms:
            return
        update = self.partition.lapse(now_ms)
        if update is not None:
            lapsed = sum(run.last - run.first + 1 for run in update.runs)
            self.lock_timeouts += lapsed
            self._stats.lock_timeouts += lapsed
        self._keep(update)
