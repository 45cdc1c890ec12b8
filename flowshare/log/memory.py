"""A storage that lives as long as the process: for the test kit and for apps that need no durability.

Same contract as `embedded.py`; every write is confirmed when it is applied. `before_write` lets a test hold or fail
writes: it is awaited before each one and what it raises is what the caller gets.
"""

from __future__ import annotations

import asyncio
import bisect
from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from typing import Final

from flowshare.clock import Clock
from flowshare.log import keys
from flowshare.log.base import (
    Admission,
    Appended,
    AppendListener,
    LogOffsets,
    ReadResult,
    Topic,
    UnknownTopic,
)
from flowshare.log.inspection import Inspector
from flowshare.log.memory_partition import MemoryPartition, Stored
from flowshare.log.producing import Decide, aborted_among, decide_batch, decide_marker, decided, produced
from flowshare.log.retention import SweepTask
from flowshare.log.rules import TopicPartitions, check_cut, check_offset, first_at, nth_partition
from flowshare.log.tail import TailBatch
from flowshare.log.topics import TopicRegistry
from flowshare.protocol.batches import BatchHeader, batch_headers, rebase
from flowshare.protocol.control import marker
from flowshare.share.types import LogBatch
from flowshare.transactions.partition import EXPIRY_MS
from flowshare.transactions.producers import Producer, Written

NO_CONFIGS: Final[Mapping[str, str]] = {}


class MemoryStorage:
    """`Storage` in dictionaries. `clock` times retention and stamps LogAppendTime."""

    def __init__(self, clock: Clock) -> None:
        self.before_write: Callable[[], Awaitable[None]] | None = None
        self.producer_expiry_ms = EXPIRY_MS
        self._clock = clock
        self._registry = TopicRegistry()
        self._partitions: dict[str, TopicPartitions[MemoryPartition]] = {}
        self._state: dict[bytes, bytes] = {}
        self._state_keys: list[bytes] = []  # in order
        self._listeners: list[AppendListener] = []
        self._inspector = Inspector()
        self._turn = asyncio.Lock()
        self._retention = SweepTask(clock, self._sweep, "old records could not be deleted")
        self._compaction = SweepTask(clock, self._compact, "compaction was cut short")

    def topics(self) -> Mapping[str, Topic]:
        """All topics by name."""
        return self._registry.view

    async def create_topic(
        self, name: str, *, partitions: int = 1, configs: Mapping[str, str] = NO_CONFIGS, internal: bool = False
    ) -> Topic:
        """Make a topic; `internal` allows reserved names. Raises: TopicExists, InvalidTopic, StorageError."""
        self._registry.plan_create(name, partitions, configs, internal=internal)
        async with self._turn:
            await self._pass()
            topic = self._registry.plan_create(name, partitions, configs, internal=internal)
            self._partitions[name] = TopicPartitions(partitions, lambda _: MemoryPartition())
            self._put(topic)
        return topic

    async def delete_topic(self, name: str) -> None:
        """Remove a topic and its records. Raises: UnknownTopic, StorageError."""
        self._registry.get(name)
        async with self._turn:
            await self._pass()
            self._registry.get(name)
            self._registry.remove(name)
            del self._partitions[name]

    async def create_partitions(self, name: str, total: int) -> Topic:
        """Raise the number of partitions to `total`. Raises: UnknownTopic, InvalidTopic, StorageError."""
        self._registry.plan_partitions(name, total)
        async with self._turn:
            await self._pass()
            topic = self._registry.plan_partitions(name, total)
            self._partitions[name].count = total
            self._put(topic)
        return topic

    async def alter_topic(self, name: str, configs: Mapping[str, str | None]) -> Topic:
        """Set (None: unset) topic settings. Raises: UnknownTopic, InvalidTopic, StorageError."""
        self._registry.plan_alter(name, configs)
        async with self._turn:
            await self._pass()
            topic = self._registry.plan_alter(name, configs)
            self._put(topic)
        return topic

    async def append(
        self,
        topic: str,
        partition: int,
        records: bytes,
        *,
        admit: Admission | None = None,
        source: Hashable | None = None,
    ) -> Appended:
        """Check, place and keep record batches; see `Log.append`.

        Raises: UnknownTopic, CorruptRecords, RecordsTooLarge, InvalidRecord, InvalidTimestamp, ProducerRefused,
            StorageError.
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
        """End a producer's transaction on the partition by a marker.

        Raises: UnknownTopic, ProducerRefused, StorageError.
        """
        self._partition(topic, partition)
        records = marker(producer_id, epoch, committed=committed, timestamp_ms=self._clock.now_ms())
        decide = decide_marker(producer_id, epoch, committed=committed)
        return await self._place(topic, partition, records, batch_headers(records), decide)

    async def _place(
        self, topic: str, partition: int, records: bytes, headers: tuple[BatchHeader, ...], decide: Decide | None
    ) -> Appended:
        async with self._turn:
            await self._pass()
            log = self._partition(topic, partition)
            append_time = self._registry.settings(topic).append_time
            base, now_ms = log.end, self._clock.now_ms()
            placed = rebase(records, headers, base, now_ms=now_ms if append_time else None)
            change = None if decide is None else decided(decide, log.producers, base, self._clock.steady_ms())
            if isinstance(change, Written):
                return Appended(base_offset=change.base_offset, last_offset=change.last_offset, log_start=log.log_start)
            for header in batch_headers(placed):
                bounds = slice(header.position, header.position + header.size)
                log.append(Stored(header.base_offset, header.last_offset, header.max_timestamp, placed[bounds]))
            if change is not None:
                log.producers.confirm(change)
        self._notify(topic, partition)
        stamp_ms = now_ms if append_time else -1
        return Appended(base_offset=base, last_offset=log.end - 1, log_start=log.log_start, append_time_ms=stamp_ms)

    async def read(
        self, topic: str, partition: int, offset: int, *, max_bytes: int, committed: bool = False
    ) -> ReadResult:
        """Batches from `offset` on, at least one if there is one; `committed`: none past the last stable offset.

        Raises: UnknownTopic, OffsetOutOfRange.
        """
        log = self._partition(topic, partition)
        offsets = log.offsets()
        check_offset(offset, offsets)
        end = offsets.last_stable if committed else offsets.high_watermark
        index, size, found = log.index_of(offset), 0, list[TailBatch]()
        while index < len(log.batches) and log.batches[index].last < end:
            batch = log.batches[index]
            size += len(batch.records)
            if found and size > max_bytes:
                break
            found.append(TailBatch(batch.first, batch.last, batch.records))
            index += 1
        return ReadResult(
            pieces=[batch.records for batch in found],
            batches=tuple(LogBatch(batch.first, batch.last) for batch in found),
            offsets=offsets,
            aborted=aborted_among(log.producers, found) if committed else (),
        )

    def producers(self, topic: str, partition: int) -> Mapping[int, Producer]:
        """Idempotent producers of the partition by id. Raises: UnknownTopic."""
        return self._partition(topic, partition).producers.view

    def offsets(self, topic: str, partition: int) -> LogOffsets:
        """Bounds of the partition. Raises: UnknownTopic."""
        return self._partition(topic, partition).offsets()

    def dense(self, topic: str, partition: int, offset: int, end: int) -> bool:
        """False: it costs nothing to read what lies in memory."""
        del topic, partition, offset, end
        return False

    async def bounds(self, topic: str, partition: int) -> LogOffsets:
        """As `offsets`: they lie here."""
        return self.offsets(topic, partition)

    async def offset_for_timestamp(self, topic: str, partition: int, timestamp_ms: int) -> tuple[int, int] | None:
        """First (offset, timestamp) with timestamp ≥ `timestamp_ms`, or None. Raises: UnknownTopic."""
        log = self._partition(topic, partition)
        for batch in log.batches:
            if batch.max_timestamp >= timestamp_ms:
                found = first_at(batch.records, timestamp_ms, log.log_start)
                if found is not None:
                    return found
        return None

    async def delete_records(self, topic: str, partition: int, before: int) -> int:
        """Move the log start up to `before` (−1: the end). Raises: UnknownTopic, OffsetOutOfRange, StorageError."""
        self._partition(topic, partition)
        async with self._turn:
            await self._pass()
            log = self._partition(topic, partition)
            before = check_cut(before, log.offsets())
            moved = before > log.log_start
            if moved:
                log.cut(before)
        if moved:
            self._notify(topic, partition)
        return log.log_start

    def on_append(self, listener: AppendListener) -> None:
        """Call `listener(topic, partition)` after each append and each log start move."""
        self._listeners.append(listener)

    async def write(self, writes: Sequence[tuple[bytes, bytes | None]]) -> None:
        """Put (None: delete) all or none, in order of calls. Raises: StorageError."""
        async with self._turn:
            await self._pass()
            for key, value in writes:
                if value is None:
                    if self._state.pop(key, None) is not None:
                        del self._state_keys[bisect.bisect_left(self._state_keys, key)]
                else:
                    if key not in self._state:
                        bisect.insort(self._state_keys, key)
                    self._state[key] = value

    async def scan(self, prefix: bytes) -> list[tuple[bytes, bytes]]:
        """All entries under a prefix, in key order."""
        names = self._state_keys
        end = bisect.bisect_left(names, keys.after(prefix)) if prefix else None
        return [(key, self._state[key]) for key in names[bisect.bisect_left(names, prefix) : end]]

    async def close(self) -> None:
        """Stop retention and compaction."""
        await self._inspector.close()
        await self._retention.close()
        await self._compaction.close()

    async def _pass(self) -> None:
        if self.before_write is not None:
            await self.before_write()

    def _put(self, topic: Topic) -> None:
        self._registry.put(topic)
        settings = self._registry.settings(topic.name)
        if settings.expires:
            self._retention.ensure()
        if settings.compaction is not None:
            self._compaction.ensure()

    def _partition(self, topic: str, partition: int) -> MemoryPartition:
        return nth_partition(self._partitions.get(topic), topic, partition)

    def _notify(self, topic: str, partition: int) -> None:
        for listener in self._listeners:
            listener(topic, partition)

    async def _sweep(self) -> None:
        now_ms = self._clock.now_ms()
        for topic in self._registry:
            settings = self._registry.settings(topic.name)
            for number, log in self._partitions[topic.name].made():
                start = log.kept_from(settings, now_ms)
                if start > log.log_start:
                    log.cut(start)
                    self._notify(topic.name, number)

    async def _compact(self) -> None:
        for topic in self._registry:
            there = self._partitions.get(topic.name)
            for number, _ in () if there is None else there.made():
                try:
                    settings = self._registry.settings(topic.name).compaction
                    if settings is not None:
                        await self._partition(topic.name, number).compact(settings, self._clock.now_ms())
                except UnknownTopic:
                    break
