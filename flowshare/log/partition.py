"""One partition of the embedded log: its bounds on the loop, and what is read from the store for it.

The `…_blocking` functions read the store and run in worker threads; they get everything they need as arguments and
change nothing.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from flowshare.log import keys, producing
from flowshare.log.base import CorruptRecords, LogOffsets, OffsetOutOfRange, StorageDamaged
from flowshare.log.retention import expired
from flowshare.log.rules import first_at
from flowshare.log.store import Range, Store, Write
from flowshare.log.tail import Tail, TailBatch
from flowshare.log.topics import TopicSettings
from flowshare.protocol.batches import BatchHeader, DecodeError, batch_headers
from flowshare.transactions.partition import Change, PartitionProducers

INDEX_BYTES: Final = 64 * 1024
"""A time index entry is written each time this many bytes were appended."""
INDEX_ENTRIES_MAX: Final = 20_000
"""Index entries one retention step looks at: more than 1 GiB of records."""
NO_TIMESTAMP: Final = -1


@dataclass(slots=True, kw_only=True)
class Partition:
    """Bounds of one partition. Offsets from `end` (confirmed) up to `next_offset` are being written.

    `position` counts all bytes ever appended, `end_position` is its value at `end`, `start_position` at the log start
    (to within `INDEX_BYTES`), `indexed` at the last time index entry.
    """

    topic_id: uuid.UUID
    number: int
    log_start: int = 0
    end: int = 0
    next_offset: int = 0
    position: int = 0
    end_position: int = 0
    start_position: int = 0
    indexed: int = -INDEX_BYTES
    max_timestamp: int = NO_TIMESTAMP
    tail: Tail = field(default_factory=Tail)
    producers: PartitionProducers = field(default_factory=PartitionProducers)

    def offsets(self) -> LogOffsets:
        """Bounds as readers see them."""
        stable = self.producers.last_stable(self.log_start, self.end)
        return LogOffsets(log_start=self.log_start, high_watermark=self.end, last_stable=stable)

    def place(self, placed: bytes, headers: tuple[BatchHeader, ...]) -> tuple[list[Write], list[TailBatch]]:
        """Take placed batches in as being written; returns what is to be written and the batches."""
        prefix = keys.batches(self.topic_id, self.number)
        writes, batches = list[Write](), list[TailBatch]()
        for header in headers:
            whole = len(headers) == 1
            records = placed if whole else placed[header.position : header.position + header.size]
            self.max_timestamp = max(self.max_timestamp, header.max_timestamp)
            first, last = self.next_offset, self.next_offset + header.last_offset - header.base_offset
            writes.append((keys.at(prefix, first), records))
            if self.position - self.indexed >= INDEX_BYTES:
                entry = keys.time_at(keys.times(self.topic_id, self.number), self.max_timestamp, first)
                writes.append((entry, keys.pack(self.position)))
                self.indexed = self.position
            batches.append(TailBatch(first, last, records))
            self.position += len(records)
            self.next_offset = last + 1
        return writes, batches

    def confirm(self, end: int, position: int, change: Change | None) -> None:
        """What was being written up to `end` is durable, `change` of its producers with it."""
        self.end, self.end_position = end, position
        if change is not None:
            self.producers.confirm(change)

    def cut(self, log_start: int, start_position: int) -> None:
        """The log starts here now. Producers stay known (KIP-360)."""
        self.log_start, self.start_position = log_start, start_position
        self.producers.aborted.cut(log_start)

    def roll_back(self) -> None:
        """Forget what was being written and failed."""
        self.producers.roll_back()
        if self.next_offset != self.end:
            self.next_offset, self.position = self.end, self.end_position
            # The last index entry may be gone with it; one too many does no harm.
            self.indexed = self.position - INDEX_BYTES


class Cut(NamedTuple):
    """A move of the log start: what to delete and the new bounds."""

    log_start: int
    start_position: int
    ranges: list[Range]
    writes: list[Write]


def load_blocking(store: Store, topic_id: uuid.UUID, number: int) -> Partition:
    """A partition as it is stored. Raises: StorageDamaged, StorageError."""
    producers = producing.load_blocking(store, topic_id, number)
    partition = Partition(topic_id=topic_id, number=number, producers=producers)
    bounds = store.get(keys.bounds(topic_id, number))
    if bounds is not None:
        partition.log_start, partition.start_position = keys.unpack_pair(bounds)
    partition.end = partition.log_start
    partition.position = partition.start_position
    prefix = keys.times(topic_id, number)
    from_offset = 0
    last_entry = store.last_before(prefix, keys.after(prefix))
    if last_entry is not None:
        partition.max_timestamp, from_offset = keys.time_of(last_entry[0])
        partition.position = partition.indexed = keys.unpack(last_entry[1])
    try:
        for header, _ in _walk(store, topic_id, number, from_offset):
            partition.max_timestamp = max(partition.max_timestamp, header.max_timestamp)
            partition.position += header.size
            partition.end = header.last_offset + 1
    except CorruptRecords as error:
        raise StorageDamaged(str(error)) from error
    partition.next_offset, partition.end_position = partition.end, partition.position
    return partition


def _walk(store: Store, topic_id: uuid.UUID, number: int, from_offset: int) -> Iterator[tuple[BatchHeader, bytes]]:
    """Batches whose base offset is `from_offset` or more, in order. Raises: CorruptRecords, StorageDamaged."""
    prefix = keys.batches(topic_id, number)
    following: int | None = None
    for key, records in store.scan(keys.at(prefix, from_offset), keys.after(prefix)):
        base = keys.offset_of(key)
        try:
            (header,) = batch_headers(records)
        except (DecodeError, ValueError) as error:
            raise CorruptRecords(
                f"partition {number}: the batch stored at offset {base} is damaged: {error}"
            ) from error
        if header.base_offset != base or (following is not None and base != following):
            raise CorruptRecords(f"partition {number}: offsets {following}-{base - 1} are missing in the log")
        following = header.last_offset + 1
        yield header, records


def _header(number: int, base: int, records: bytes) -> BatchHeader:
    try:
        (header,) = batch_headers(records)
    except (DecodeError, ValueError) as error:
        raise CorruptRecords(f"partition {number}: the batch stored at offset {base} is damaged: {error}") from error
    return header


def read_blocking(
    store: Store, topic_id: uuid.UUID, number: int, offset: int, end: int, max_bytes: int
) -> list[TailBatch]:
    """Batches from the one that holds `offset` on, up to `end`; at least one.

    Raises: CorruptRecords, StorageDamaged, StorageError; OffsetOutOfRange when the log start has passed it.
    """
    prefix = keys.batches(topic_id, number)
    holder = store.last_before(prefix, keys.at(prefix, offset + 1))
    if holder is None:
        raise OffsetOutOfRange(f"offset {offset} is not in the log any more")
    found, size = list[TailBatch](), 0
    for header, records in _walk(store, topic_id, number, keys.offset_of(holder[0])):
        size += len(records)
        if header.last_offset >= end or (found and size > max_bytes):
            break
        if header.last_offset >= offset:
            found.append(TailBatch(header.base_offset, header.last_offset, records))
    if not found:
        raise CorruptRecords(f"partition {number}: offset {offset} is missing in the log")
    return found


def offset_at_blocking(
    store: Store, topic_id: uuid.UUID, number: int, timestamp_ms: int, log_start: int, end: int
) -> tuple[int, int] | None:
    """First (offset, timestamp) with timestamp ≥ `timestamp_ms` in the log. Raises: CorruptRecords, StorageDamaged."""
    prefix = keys.times(topic_id, number)
    entry = store.last_before(prefix, keys.time_at(prefix, timestamp_ms, 0))
    from_offset = keys.time_of(entry[0])[1] if entry is not None else 0
    for header, records in _walk(store, topic_id, number, from_offset):
        if header.base_offset >= end:
            return None
        if header.max_timestamp >= timestamp_ms and header.last_offset >= log_start:
            found = first_at(records, timestamp_ms, log_start)
            if found is not None:
                return found
    return None


def cut_blocking(store: Store, topic_id: uuid.UUID, number: int, before: int, position: int) -> Cut:
    """What to do so that the log starts at `before`; `position` is the log's end in bytes.

    Raises: CorruptRecords, StorageDamaged, StorageError.
    """
    prefix, times = keys.batches(topic_id, number), keys.times(topic_id, number)
    holder = store.last_before(prefix, keys.at(prefix, before + 1))
    keep = before
    if holder is not None:
        base = keys.offset_of(holder[0])
        keep = base if _header(number, base, holder[1]).last_offset >= before else before
    last_cut, start_position = times, position
    for key, value in store.scan(times, keys.after(times)):
        if keys.time_of(key)[1] >= keep:
            start_position = keys.unpack(value)
            break
        last_cut = key + b"\0"
    aborted = keys.aborted(topic_id, number)
    ranges = [(prefix, keys.at(prefix, keep)), (times, last_cut), (aborted, keys.at(aborted, before))]
    bounds = (keys.bounds(topic_id, number), keys.pack_pair(before, start_position))
    return Cut(before, start_position, [span for span in ranges if span[0] < span[1]], [bounds])


def kept_from_blocking(
    store: Store, topic_id: uuid.UUID, number: int, settings: TopicSettings, position: int, end: int, now_ms: int
) -> int:
    """The log start that retention asks for; by size the last batch always stays.

    Raises: CorruptRecords, StorageDamaged, StorageError.
    """

    def over(at: int, last: int) -> bool:
        return 0 <= settings.retention_bytes <= position - at and last + 1 < end

    def old(timestamp: int) -> bool:
        return expired(timestamp, now_ms=now_ms, retention_ms=settings.retention_ms)

    times = keys.times(topic_id, number)
    start, at = 0, 0
    for count, (key, value) in enumerate(store.scan(times, keys.after(times))):
        timestamp, offset = keys.time_of(key)
        # The entry stands for everything before its batch: that may go when the batch itself is old or over.
        if count and not (over(keys.unpack(value), offset - 1) or old(timestamp)):
            break
        start, at = offset, keys.unpack(value)
        if count == INDEX_ENTRIES_MAX:
            return start
    for header, _ in _walk(store, topic_id, number, start):
        at += header.size
        if header.base_offset >= end or not (over(at, header.last_offset) or old(header.max_timestamp)):
            break
        start = header.last_offset + 1
    return start
