"""The storage of a server that is the broker itself: topics, records and state, written in one order.

The `Store` keeps the data, on a disk (`embedded.py`) or in memory only (`memory.py`); the `CommitQueue` makes the data
durable. An append gets its offsets at once and is visible when it is durable; batches appended lately are read from
memory (`recent.py`).
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Hashable, Mapping, Sequence
from functools import partial
from typing import Final, TypeVar

from flowshare.clock import Clock
from flowshare.log import keys
from flowshare.log.base import (
    Admission,
    Appended,
    AppendListener,
    CheckedOutput,
    CorruptBatches,
    InvalidRecord,
    InvalidTimestamp,
    InvalidTopic,
    LogError,
    LogOffsets,
    Output,
    OutputRefused,
    ReadResult,
    RecordsTooLarge,
    Storage,
    StorageDamaged,
    StorageError,
    Topic,
    UnknownTopic,
    check_offset,
)
from flowshare.log.cleaner import Compactor
from flowshare.log.commits import REQUEST_BYTES, CommitQueue
from flowshare.log.inspection import TIMESTAMP_MAX, Inspector
from flowshare.log.partition import (
    Decide,
    StoredPartition,
    TopicPartitions,
    aborted_among,
    decide_batch,
    decided,
    offset_at_blocking,
    produced,
    producer_writes,
    read_blocking,
)
from flowshare.log.recent import STRETCH_BYTES, ReadAhead, TailBatch, TailBudget, up_to
from flowshare.log.retention import INTERVAL_S, SweepTask, check_cut, cut_blocking, kept_from_blocking
from flowshare.log.store import Store, StoreStep, Write
from flowshare.log.topics import TopicRegistry, TopicSettings, check_output, encode_topic
from flowshare.protocol.batches import BatchHeader, batch_headers, marker, rebase
from flowshare.share.types import LogBatch
from flowshare.transactions.partition import EXPIRY_MS
from flowshare.transactions.producers import ProducerState, Written

T = TypeVar("T")
logger = logging.getLogger(__name__)
Ready = tuple[StoredPartition, bytes, tuple[BatchHeader, ...]]
"""Batches that have their offsets, and headers that hold once the batches are placed."""
NO_CONFIGS: Final[Mapping[str, str]] = {}
TAIL_BYTES: Final = 32 * 1024 * 1024
READ_TRIES: Final = 5
"""Reads tried while compaction forgets aborted transactions of the part being read; forgetting takes longer than a
read."""
REFUSALS: Final = (InvalidTopic, UnknownTopic, CorruptBatches, RecordsTooLarge, InvalidRecord, InvalidTimestamp)
"""The errors that refuse an output for its own faults."""


class BrokerStorage(Storage):
    """Log, topics and state in one place, opened and closed together; nobody else may change the stored data.

    producer_expiry_ms: idempotent producers are forgotten after so many idle milliseconds (producer.id.expiration.ms).
    """

    def __init__(self, store: Store, commits: CommitQueue, clock: Clock, *, tail_bytes: int = TAIL_BYTES) -> None:
        self.producer_expiry_ms = EXPIRY_MS
        self._store = store
        self._commits = commits
        self._clock = clock
        self._registry = TopicRegistry()
        self._partitions: dict[str, TopicPartitions] = {}
        self._listeners: list[AppendListener] = []
        self._inspector = Inspector()
        self._budget = TailBudget(tail_bytes)
        self._ahead = ReadAhead(tail_bytes)
        self._admin = asyncio.Lock()
        self._retention = SweepTask(clock, self._sweep, "old records could not be deleted")
        self._compaction = SweepTask(clock, self._compact, "compaction was cut short")
        self._damaged: set[tuple[uuid.UUID, int]] = set()
        """Partitions whose damage retention has logged."""
        self._closed = False
        commits.changed, commits.roll_back = self._tell, self._roll_back
        self._compactor = Compactor(
            store=store,
            commits=commits,
            clock=clock,
            storage=self,
            budget=self._budget,
            ahead=self._ahead,
            find=self._partition,
        )

    # --- topics ---------------------------------------------------------------------------------------------

    def topics(self) -> Mapping[str, Topic]:
        """Return all topics by name."""
        return self._registry.view

    async def create_topic(
        self, name: str, *, partitions: int = 1, configs: Mapping[str, str] = NO_CONFIGS, internal: bool = False
    ) -> Topic:
        """Make a topic; `internal` allows reserved names. Raises: TopicExists, InvalidTopic, StorageError."""
        plan = partial(self._registry.plan_create, name, partitions, configs, internal=internal)
        return await self._change_topic(plan)

    async def delete_topic(self, name: str) -> None:
        """Remove a topic and its records. Raises: UnknownTopic, StorageError."""

        def forget() -> None:
            self._registry.remove(name)
            self._partitions.pop(name, None)

        async def change() -> None:
            topic = self._registry.get(name)
            gone = [(keys.TOPIC + name.encode(), None)]
            step = StoreStep(gone, keys.topic_ranges(topic.topic_id), REQUEST_BYTES, forget)
            # No append may be queued behind the deletion.
            partitions = self._partitions.pop(name)
            try:
                await self._commits.submit(step)
            except BaseException:
                self._partitions[name] = partitions
                raise

        await self.alone(change)

    async def create_partitions(self, name: str, total: int) -> Topic:
        """Raise the number of partitions to `total`. Raises: UnknownTopic, InvalidTopic, StorageError."""
        return await self._change_topic(partial(self._registry.plan_partitions, name, total))

    async def alter_topic(self, name: str, configs: Mapping[str, str | None]) -> Topic:
        """Set (None: unset) topic settings. Raises: UnknownTopic, InvalidTopic, StorageError."""
        return await self._change_topic(partial(self._registry.plan_alter, name, configs))

    async def _change_topic(self, plan: Callable[[], Topic]) -> Topic:
        """Store and apply `plan`'s result; `plan` sees the topics as they are when this change has its turn."""

        async def change() -> Topic:
            topic = plan()

            def applied() -> None:
                self._partitions.setdefault(topic.name, TopicPartitions(topic)).count = topic.partitions
                self._put(topic)

            entry = (keys.TOPIC + topic.name.encode(), encode_topic(topic))
            await self._commits.submit(StoreStep([entry], size=REQUEST_BYTES, applied=applied))
            return topic

        return await self.alone(change)

    def _put(self, topic: Topic) -> None:
        self._registry.put(topic)
        settings = self._registry.settings(topic.name)
        if settings.expires:
            self._retention.ensure()
        if settings.compaction is not None:
            self._compaction.ensure()

    # --- records --------------------------------------------------------------------------------------------

    async def append(
        self,
        topic: str,
        partition: int,
        records: bytes,
        *,
        admit: Admission | None = None,
        source: Hashable | None = None,
    ) -> Appended:
        """Check, place and confirm record batches.

        source: the sender of the batches over a socket, whose headers are believed only once the records were read
        (`log.inspection`); None: the batches were made in this process.

        A batch with a producer id comes alone and is checked against the producer's epoch and sequence; a batch that is
        stored already is answered with its old place. `admit` is called once, after all other checks.

        Raises: UnknownTopic, CorruptBatches, RecordsTooLarge, InvalidRecord, InvalidTimestamp, ProducerRefused,
            StorageError, errors that `admit` raises.
        """
        self._partition(topic, partition)
        settings, now_ms = self._registry.settings(topic), self._clock.now_ms()
        headers = await self._inspector.checked((topic, partition), records, settings, source=source, now_ms=now_ms)
        batch = produced(headers)
        decide = None if batch is None else decide_batch(batch, admit, self.producer_expiry_ms)
        return await self._place(topic, partition, records, headers, decide)

    async def append_control(
        self, topic: str, partition: int, producer_id: int, epoch: int, *, committed: bool
    ) -> Appended:
        """End a producer's transaction on the partition by a marker (KIP-98), written even if the producer wrote
        nothing there.

        Raises: UnknownTopic, ProducerRefused (a higher epoch is known), StorageError.
        """
        self._partition(topic, partition)
        records = marker(producer_id, epoch, committed=committed, timestamp_ms=self._clock.now_ms())
        return await self._place(
            topic,
            partition,
            records,
            batch_headers(records),
            lambda producers, base, now_ms: producers.mark(producer_id, epoch, base, now_ms, committed=committed),
        )

    async def _place(
        self, topic: str, partition: int, records: bytes, headers: tuple[BatchHeader, ...], decide: Decide | None
    ) -> Appended:
        """Give the batches offsets and return when they are durable; `decide`: a producer batch's change of producer
        state."""
        size = len(records) + REQUEST_BYTES * len(headers)
        await self._commits.enter(size)
        try:
            # The topic may have gone during the wait. From here to the queue nothing is awaited: offsets are given in
            # the order in which they are written.
            self._commits.check()
            log = self._partition(topic, partition)
            append_time = self._registry.settings(topic).append_time
            base, now_ms = log.next_offset, self._clock.now_ms()
            placed = rebase(records, headers, base, now_ms=now_ms if append_time else None)
            change = None if decide is None else decided(decide, log.producers, base, self._clock.steady_ms())
            if isinstance(change, Written):
                # Behind the first one in the queue: the outcome of that is the outcome of this.
                future = self._commits.queue(StoreStep((), size=size))
                base, end = change.base_offset, change.last_offset + 1
                batches = list[TailBatch]()
            else:
                if append_time:
                    headers = tuple(header._replace(max_timestamp=now_ms) for header in headers)
                stored, batches = log.place(placed, headers)
                if change is not None:
                    stored += producer_writes(log.topic_id, partition, change)
                end, position = log.next_offset, log.position

                def applied() -> None:
                    log.confirm(end, position, change)

                future = self._commits.queue(StoreStep(stored, (), size, applied, ((topic, partition),)))
        except BaseException:
            self._commits.leave(size)
            raise
        for batch in batches:
            self._budget.append(log.tail, batch)
        await future
        stamp_ms = now_ms if append_time else -1
        return Appended(base_offset=base, last_offset=end - 1, log_start=log.log_start, append_time_ms=stamp_ms)

    async def read(
        self, topic: str, partition: int, offset: int, *, max_bytes: int, committed: bool = False
    ) -> ReadResult:
        """Read batches from `offset` on, at least one if the log has one; `committed`: none past the last stable
        offset.

        Raises: UnknownTopic, OffsetOutOfRange, CorruptBatches, StorageDamaged, StorageError.
        """
        log = self._partition(topic, partition)
        offsets = log.offsets()
        check_offset(offset, offsets)
        end = offsets.last_stable if committed else log.end
        if offset >= end:
            found = list[TailBatch]()
        elif log.tail.covers(offset):
            found = log.tail.read(offset, end, max_bytes)
        elif not (found := self._ahead.read((log.topic_id, log.number), offset, max_bytes)):
            found = up_to(await self._stretch(log, offset, max_bytes), max_bytes)
            # Meanwhile the topic may have gone, or the log start passed the offset.
            offsets = self._partition(topic, partition).offsets()
            check_offset(offset, offsets)
        aborted: tuple[LogBatch, ...] = ()
        if committed:
            found = [batch for batch in found if batch.last < end]
            aborted = aborted_among(log.producers, found)
        return ReadResult(
            pieces=[batch.records for batch in found],
            batches=tuple(LogBatch(batch.first, batch.last) for batch in found),
            offsets=offsets,
            aborted=aborted,
        )

    async def _stretch(self, log: StoredPartition, offset: int, max_bytes: int) -> list[TailBatch]:
        """Read batches from the store, as they were at some moment of the call. Raises: StorageError."""
        for _ in range(READ_TRIES):
            changes, forgotten = log.changes, log.forgotten
            args = (self._store, log, offset, log.end, max(max_bytes, STRETCH_BYTES))
            stretch = await self.blocking(lambda: read_blocking(*args))  # noqa: B023
            if log.changes == changes:
                self._ahead.add((log.topic_id, log.number), stretch)
            # Else the stretch may hold aborted records that can no longer be told from others.
            if log.forgotten == forgotten:
                return stretch
        raise StorageError(f"aborted transactions went {READ_TRIES} times while they may have been read; read again")

    def producers(self, topic: str, partition: int) -> Mapping[int, ProducerState]:
        """Return the partition's idempotent producers by id: a view to read, not to keep. Raises: UnknownTopic."""
        return self._partition(topic, partition).producers.view

    def offsets(self, topic: str, partition: int) -> LogOffsets:
        """Return the partition's bounds. Raises: UnknownTopic."""
        return self._partition(topic, partition).offsets()

    def dense(self, topic: str, partition: int, offset: int, end: int) -> bool:
        """Return True if no record from `offset` to before `end` was compacted away or aborted. Raises:
        UnknownTopic."""
        log = self._partition(topic, partition)
        return offset >= log.holes_to and not log.producers.aborted.between(offset, end)

    async def bounds(self, topic: str, partition: int) -> LogOffsets:
        """Return `offsets`: the partition lies here."""
        return self.offsets(topic, partition)

    async def offset_for_timestamp(self, topic: str, partition: int, timestamp_ms: int) -> tuple[int, int] | None:
        """Return the first (offset, timestamp in ms) with timestamp ≥ `timestamp_ms`, or None.

        Raises: UnknownTopic, CorruptBatches, StorageDamaged, StorageError.
        """
        log = self._partition(topic, partition)
        timestamp_ms = min(max(timestamp_ms, -TIMESTAMP_MAX), TIMESTAMP_MAX)
        args = (self._store, log, timestamp_ms, log.log_start, log.end, self._check_open)
        return await self.seeking(lambda: offset_at_blocking(*args))

    async def delete_records(self, topic: str, partition: int, before: int) -> int:
        """Move the log start up to `before` (−1: the end); return the new log start.

        Raises: UnknownTopic, OffsetOutOfRange, StorageDamaged, StorageError.
        """

        return await self.alone(lambda: self._cut(topic, partition, before))

    async def _cut(self, topic: str, partition: int, before: int) -> int:
        """Do `delete_records`; the caller runs in `alone`."""
        log = self._partition(topic, partition)
        cut_at = check_cut(before, log.offsets())
        if cut_at > log.log_start:
            cut = await self.blocking(lambda: cut_blocking(self._store, log, cut_at))

            def applied() -> None:
                log.cut(cut.log_start, cut.start_position)

            place = topic, partition
            await self._commits.submit(StoreStep(cut.writes, cut.ranges, REQUEST_BYTES, applied, (place,)))
        return log.log_start

    def on_append(self, listener: AppendListener) -> None:
        """Call `listener(topic, partition)` after each confirmed append and each log start move."""
        self._listeners.append(listener)

    async def _sweep(self) -> None:
        """Run one step of retention for every topic that has retention.

        A damaged partition is tried again each time, as its log start may be moved by hand; the error is logged once.
        """

        async def kept(topic: Topic, number: int) -> None:
            settings = self._registry.settings(topic.name)
            if not settings.expires:
                return
            try:
                await self.alone(partial(self._keep, topic.name, number, settings))
            except (CorruptBatches, StorageDamaged) as error:
                if (topic.topic_id, number) not in self._damaged:
                    self._damaged.add((topic.topic_id, number))
                    text = "old records of partition %d of topic %s stay: %s"
                    logger.error(text, number, topic.name, error)  # noqa: TRY400  the text says it

        await self._at_each(kept, "old records of partition %d of topic %s could not be deleted; next try in %g s")

    async def _keep(self, topic: str, partition: int, settings: TopicSettings) -> None:
        """Delete records past their retention; the caller runs in `alone`, as the log start must not move meanwhile."""
        log = self._partition(topic, partition)
        args = (self._store, log, settings, log.end_position, log.end, self._clock.now_ms())
        start = await self.blocking(lambda: kept_from_blocking(*args))
        if start > log.log_start:
            await self._cut(topic, partition, start)

    async def _compact(self) -> None:
        """Compact every partition that is due."""

        async def compacted(topic: Topic, number: int) -> None:
            settings = self._registry.settings(topic.name).compaction
            if settings is not None:
                await self._compactor.compact(topic.name, number, settings)

        await self._at_each(compacted, "partition %d of topic %s could not be compacted; next try in %g s")

    async def _at_each(self, work: Callable[[Topic, int], Awaitable[None]], failed: str) -> None:
        """Do `work` for each partition that has records; `failed`: the log's text for one that fails, which costs no
        other one its turn. Raises: StorageError."""
        for topic in self._registry:
            for number in self._holding(topic.name):
                try:
                    await work(topic, number)
                except UnknownTopic:
                    break
                except StorageError:  # it is all partitions' fault, or none's
                    raise
                except Exception:
                    logger.exception(failed, number, topic.name, INTERVAL_S)

    # --- records with state ---------------------------------------------------------------------------------

    async def checked(
        self, outputs: Sequence[Output | CheckedOutput], *, source: Hashable | None = None
    ) -> list[CheckedOutput]:
        """Return outputs checked as `append` checks batches, so that `settle` takes them at once. Checked ones stay as
        they are.

        Raises: OutputRefused (all that are refused: InvalidTopic, UnknownTopic, CorruptBatches, RecordsTooLarge,
            InvalidRecord, InvalidTimestamp), StorageError.
        """
        found, refused = list[CheckedOutput](), dict[int, LogError]()
        for index, output in enumerate(outputs):
            try:
                check_output(output.topic)
                self._output_log(output)
                found.append(output if isinstance(output, CheckedOutput) else await self._looked_into(output, source))
            except REFUSALS as error:
                refused[index] = error
        if refused:
            raise OutputRefused(refused)
        return found

    async def _looked_into(self, output: Output, source: Hashable | None) -> CheckedOutput:
        """Check an output's batches. Raises: UnknownTopic, CorruptBatches, RecordsTooLarge, InvalidRecord,
        InvalidTimestamp, StorageError."""
        place, records = (output.topic, output.partition), output.records
        settings, now_ms = self._registry.settings(output.topic), self._clock.now_ms()
        headers = await self._inspector.checked(place, records, settings, source=source, now_ms=now_ms)
        if any(header.producer_id >= 0 or header.is_transactional for header in headers):
            raise CorruptBatches("an output of a settle has no producer id and is in no transaction")
        return CheckedOutput(*output, headers)

    async def settle(
        self, outputs: Sequence[Output | CheckedOutput], writes: Sequence[tuple[bytes, bytes | None]]
    ) -> None:
        """Place outputs and put (None: delete) state, all or none, in order of calls; return when durable.

        A call takes queue room for all its bytes, and `REQUEST_BYTES` for the state and each batch; a call larger than
        the queue waits until the queue is empty. At most the calls of one commit are in doubt.

        Raises: OutputRefused, StorageError: nothing of it is stored, now or later. InDoubt: the storage ended before
            it was known whether a write that failed is stored all the same.
        """
        checked = await self.checked(outputs)
        state = _state_step(writes)
        size = state.size + sum(len(output.records) + REQUEST_BYTES * len(output.headers) for output in checked)
        await self._commits.enter(size)
        try:
            # As in `_place`: nothing is awaited from here to the queue.
            self._commits.check()
            # One refused output must find none placed, so all are made ready before the first is placed.
            ready = self._ready(checked)
            stored, placed = list[Write](), list[tuple[StoredPartition, list[TailBatch], int, int]]()
            for log, records, headers in ready:
                entries, batches = log.place(records, headers)
                stored += entries
                placed.append((log, batches, log.next_offset, log.position))

            def applied() -> None:
                for log, _, end, position in placed:
                    log.confirm(end, position, None)

            changed = tuple(dict.fromkeys((output.topic, output.partition) for output in checked))
            step = StoreStep((*stored, *state.writes), (), size, applied, changed, certain=True)
            future = self._commits.queue(step)
        except BaseException:
            self._commits.leave(size)
            raise
        for log, batches, _, _ in placed:
            for batch in batches:
                self._budget.append(log.tail, batch)
        await future

    def _ready(self, checked: Sequence[CheckedOutput]) -> list[Ready]:
        """Return the outputs with their offsets, one after the other, with nothing placed between.

        Raises: OutputRefused: their topics may have gone since they were checked.
        """
        ready, refused, nexts = list[Ready](), dict[int, LogError](), dict[tuple[str, int], int]()
        now_ms = self._clock.now_ms()
        for index, output in enumerate(checked):
            try:
                log = self._output_log(output)
            except UnknownTopic as error:
                refused[index] = error
                continue
            place, headers = (output.topic, output.partition), output.headers
            append_time = self._registry.settings(output.topic).append_time
            base = nexts.get(place, log.next_offset)
            records = rebase(output.records, headers, base, now_ms=now_ms if append_time else None)
            nexts[place] = base + sum(header.last_offset - header.base_offset + 1 for header in headers)
            if append_time:
                headers = tuple(header._replace(max_timestamp=now_ms) for header in headers)
            ready.append((log, records, headers))
        if refused:
            raise OutputRefused(refused)
        return ready

    def _output_log(self, output: Output | CheckedOutput) -> StoredPartition:
        """Return an output's partition. Raises: UnknownTopic, also when the topic was deleted and made again."""
        log = self._partition(output.topic, output.partition)
        if log.topic_id != output.topic_id:
            raise UnknownTopic(f"the topic {output.topic!r} of this output is gone; there is another one of its name")
        return log

    # --- state ----------------------------------------------------------------------------------------------

    async def write(self, writes: Sequence[tuple[bytes, bytes | None]]) -> None:
        """Put (None: delete) all or none, in order of calls; returns when durable. Raises: StorageError."""
        await self._commits.submit(_state_step(writes))

    async def scan(self, prefix: bytes) -> list[tuple[bytes, bytes]]:
        """Return all entries under a prefix, in key order. Raises: StorageDamaged, StorageError."""
        first = keys.STATE + prefix
        entries = await self.blocking(lambda: list(self._store.scan(first, keys.after(first))))
        return [(key[len(keys.STATE) :], value) for key, value in entries]

    def prepare_close(self) -> None:
        """Stop waiting for a disk to take writes again. Call it before the storage's writers are closed."""

    async def close(self) -> None:
        """Write and confirm all queued steps, then release the place. Safe to call twice."""
        self._closed = True
        await self._retention.close()
        await self._compaction.close()
        await self._inspector.close()

    # --- inside ---------------------------------------------------------------------------------------------

    async def alone(self, change: Callable[[], Coroutine[None, None, T]]) -> T:
        """Run a change of topics or log starts after those begun before."""
        async with self._admin:
            return await change()

    def _tell(self, topic: str, partition: int) -> None:
        for listener in self._listeners:
            listener(topic, partition)

    def _roll_back(self) -> None:
        self._budget.clear()
        self._ahead.clear()
        for partitions in self._partitions.values():
            for _, partition in partitions.made():
                partition.roll_back()

    def _holding(self, topic: str) -> list[int]:
        """Return the partitions that have records."""
        partitions = self._partitions.get(topic)
        return [] if partitions is None else [number for number, log in partitions.made() if log.log_start < log.end]

    def _partition(self, topic: str, partition: int) -> StoredPartition:
        partitions = self._partitions.get(topic)
        if partitions is None:
            raise UnknownTopic(f"there is no topic {topic!r}")
        return partitions.at(partition)

    async def blocking(self, call: Callable[[], T]) -> T:
        """Read the store. Raises: StorageError, errors that `call` raises."""
        return call()

    async def seeking(self, call: Callable[[], T]) -> T:
        """Read the store for a search by timestamp, which decompresses batches."""
        return call()

    def _check_open(self) -> None:
        """Check for open; on any thread. Raises: StorageError."""
        if self._closed:
            raise StorageError("the storage is closed")


def _state_step(writes: Sequence[tuple[bytes, bytes | None]]) -> StoreStep:
    """Return the step that puts state entries; a value of None deletes an entry."""
    stored: list[Write] = [(keys.STATE + key, value) for key, value in writes]
    return StoreStep(stored, size=REQUEST_BYTES + sum(len(key) + len(value or b"") for key, value in writes))
