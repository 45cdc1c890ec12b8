"""One partition of the embedded log: its bounds on the loop, and what is read from the store for it.

The `…_blocking` functions, here and in `cutting.py` and `cleaning.py`, read the store and run in worker threads; they
change nothing. What a partition says of itself may change while they read: the bounds that must not are arguments.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

from flowshare.log import keys, producing
from flowshare.log.base import CorruptRecords, LogOffsets, OffsetOutOfRange, StorageDamaged
from flowshare.log.rules import first_at
from flowshare.log.store import Store, Write
from flowshare.log.tail import Tail, TailBatch
from flowshare.protocol.batches import BatchHeader, DecodeError, batch_headers
from flowshare.transactions.partition import Change, PartitionProducers

INDEX_BYTES: Final = 64 * 1024
"""A time index entry is written each time this many bytes were appended."""
NO_TIMESTAMP: Final = -1


@dataclass(slots=True, kw_only=True)
class Partition:
    """Bounds of one partition. Offsets from `end` (confirmed) up to `next_offset` are being written.

    `position` counts all bytes ever appended, `end_position` is its value at `end`, `start_position` at the log start's
    batch, `indexed` at the last time index entry.
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
    cleaned: int = 0
    cleaned_position: int = 0
    holes_to: int = 0
    changes: int = 0
    forgotten: int = 0
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


def load_blocking(store: Store, topic_id: uuid.UUID, number: int) -> Partition:
    """A partition as it is stored. Raises: StorageDamaged, StorageError."""
    producers = producing.load_blocking(store, topic_id, number)
    partition = Partition(topic_id=topic_id, number=number, producers=producers)
    bounds = store.get(keys.bounds(topic_id, number))
    if bounds is not None:
        partition.log_start, partition.start_position = keys.unpack_pair(bounds)
    compacted = store.get(keys.compacted(topic_id, number))
    if compacted is not None:
        partition.cleaned, partition.cleaned_position, partition.holes_to = keys.unpack_triple(compacted)
    partition.end = partition.log_start
    partition.position = partition.start_position
    prefix = keys.times(topic_id, number)
    from_offset = 0
    last_entry = store.last_before(prefix, keys.after(prefix))
    if last_entry is not None:
        partition.max_timestamp, from_offset = keys.time_of(last_entry[0])
        partition.position = partition.indexed = keys.unpack(last_entry[1])
    try:
        for header, _ in walk(store, partition, from_offset):
            partition.max_timestamp = max(partition.max_timestamp, header.max_timestamp)
            partition.position += header.size
            partition.end = header.last_offset + 1
    except CorruptRecords as error:
        raise StorageDamaged(str(error)) from error
    partition.next_offset, partition.end_position = partition.end, partition.position
    return partition


def walk(store: Store, log: Partition, from_offset: int) -> Iterator[tuple[BatchHeader, bytes]]:
    """Batches whose base offset is `from_offset` or more, in order. Raises: CorruptRecords, StorageDamaged."""
    prefix = keys.batches(log.topic_id, log.number)
    following: int | None = None
    for key, records in store.scan(keys.at(prefix, from_offset), keys.after(prefix)):
        base = keys.offset_of(key)
        header = header_of(log.number, base, records)
        # Asked when the hole is met: whoever makes one has raised `holes_to` before.
        missing = following is not None and base != following and (base < following or base > log.holes_to)
        if header.base_offset != base or missing:
            raise CorruptRecords(f"partition {log.number}: offsets {following}-{base - 1} are missing in the log")
        following = header.last_offset + 1
        yield header, records


def header_of(number: int, base: int, records: bytes) -> BatchHeader:
    """The header of a stored batch. Raises: CorruptRecords."""
    try:
        (header,) = batch_headers(records)
    except (DecodeError, ValueError) as error:
        raise CorruptRecords(f"partition {number}: the batch stored at offset {base} is damaged: {error}") from error
    return header


def read_blocking(store: Store, log: Partition, offset: int, end: int, max_bytes: int) -> list[TailBatch]:
    """Batches from the one that holds `offset` (or the next one, if none does) on, up to `end`; at least one.

    Raises: CorruptRecords, StorageDamaged, StorageError; OffsetOutOfRange when the log start has passed it.
    """
    prefix = keys.batches(log.topic_id, log.number)
    holder = store.last_before(prefix, keys.at(prefix, offset + 1))
    if holder is None and offset >= log.holes_to:
        raise OffsetOutOfRange(f"offset {offset} is not in the log any more")
    found, size = list[TailBatch](), 0
    for header, records in walk(store, log, offset if holder is None else keys.offset_of(holder[0])):
        size += len(records) if header.last_offset >= offset else 0
        if header.last_offset >= end or (found and size > max_bytes):
            break
        if header.last_offset >= offset:
            found.append(TailBatch(header.base_offset, header.last_offset, records))
    if not found:
        raise CorruptRecords(f"partition {log.number}: offset {offset} is missing in the log")
    return found


def offset_at_blocking(
    store: Store, log: Partition, timestamp_ms: int, log_start: int, end: int, go_on: Callable[[], object]
) -> tuple[int, int] | None:
    """First (offset, timestamp) with timestamp ≥ `timestamp_ms` in the log; go_on: called before each batch, may raise.

    Raises: CorruptRecords, StorageDamaged, StorageError.
    """
    prefix = keys.times(log.topic_id, log.number)
    entry = store.last_before(prefix, keys.time_at(prefix, timestamp_ms, 0))
    from_offset = keys.time_of(entry[0])[1] if entry is not None else 0
    for header, records in walk(store, log, from_offset):
        if header.base_offset >= end:
            return None
        go_on()
        if header.max_timestamp >= timestamp_ms and header.last_offset >= log_start:
            found = first_at(records, timestamp_ms, log_start)
            if found is not None:
                return found
    return None
