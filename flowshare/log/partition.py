"""One partition of the embedded log: its bounds on the loop, its producers, and the reads of its stored batches.

The `…_blocking` functions, here, in `retention.py` and `cleaner.py`, read the store and run in worker threads; they
change nothing. A partition's fields may change while they read: bounds that must not change are arguments.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from flowshare.core_errors import CoreError, TransactionStateCorrupt
from flowshare.log import keys
from flowshare.log.base import (
    CorruptBatches,
    LogOffsets,
    OffsetOutOfRange,
    ProducerRefused,
    StorageDamaged,
    StorageError,
    Topic,
    UnknownTopic,
)
from flowshare.log.recent import Tail, TailBatch
from flowshare.log.store import Store, Write
from flowshare.protocol.batches import BatchHeader, DecodeError, batch_headers
from flowshare.protocol.decoding import PADDING, RawReader, plain
from flowshare.protocol.headers import frames
from flowshare.share.types import LogBatch
from flowshare.transactions.aborted import AbortedSpans
from flowshare.transactions.partition import PartitionProducers, ProducerChange
from flowshare.transactions.producers import ProducerBatch, Written
from flowshare.transactions.stored import decode_aborted, decode_producer, encode_aborted, encode_producer

INDEX_BYTES: Final = 64 * 1024
"""Appended bytes between two entries of the time index."""
NO_TIMESTAMP: Final = -1
STEP_RECORDS: Final = 4_096
"""Records of a large batch that are in memory at a time."""


@dataclass(slots=True, kw_only=True)
class StoredPartition:
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
        """Return the bounds as readers see them."""
        stable = self.producers.last_stable(self.log_start, self.end)
        size = max(0, self.end_position - self.start_position)
        return LogOffsets(log_start=self.log_start, high_watermark=self.end, last_stable=stable, size=size)

    def place(self, placed: bytes, headers: tuple[BatchHeader, ...]) -> tuple[list[Write], list[TailBatch]]:
        """Note placed batches as being written; return the writes to make and the batches."""
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

    def confirm(self, end: int, position: int, change: ProducerChange | None) -> None:
        """Note that the writes up to `end` are durable, together with `change` of their producers."""
        self.end, self.end_position = end, position
        if change is not None:
            self.producers.confirm(change)

    def cut(self, log_start: int, start_position: int) -> None:
        """Move the log's start. Producers stay known (KIP-360)."""
        self.log_start, self.start_position = log_start, start_position
        self.producers.aborted.cut(log_start)

    def roll_back(self) -> None:
        """Forget the writes that failed."""
        self.producers.roll_back()
        if self.next_offset != self.end:
            self.next_offset, self.position = self.end, self.end_position
            # The last index entry may be gone with them; one too many does no harm.
            self.indexed = self.position - INDEX_BYTES


class TopicPartitions:
    """The partitions of one topic. An empty partition is made at its first use: a request may want thousands."""

    def __init__(self, topic: Topic, loaded: Iterable[StoredPartition] = ()) -> None:
        """loaded: the partitions with records."""
        self.count = topic.partitions
        """Number of partitions, made or not."""
        self._topic = topic
        self._made = {one.number: one for one in loaded}

    def at(self, number: int) -> StoredPartition:
        """Return the partition of a number. Raises: UnknownTopic."""
        found = self._made.get(number)
        if found is None:
            if not 0 <= number < self.count:
                raise UnknownTopic(f"topic {self._topic.name!r} has {self.count} partitions, none is {number}")
            found = self._made[number] = StoredPartition(topic_id=self._topic.topic_id, number=number)
        return found

    def made(self) -> tuple[tuple[int, StoredPartition], ...]:
        """Return the partitions made so far, by number; all others are empty."""
        return tuple(self._made.items())


def load_blocking(store: Store, topic_id: uuid.UUID, number: int) -> StoredPartition:
    """Load a partition from the store. Raises: StorageDamaged, StorageError."""
    producers = _load_producers(store, topic_id, number)
    partition = StoredPartition(topic_id=topic_id, number=number, producers=producers)
    bounds = store.get(keys.bounds(topic_id, number))
    if bounds is not None:
        partition.log_start, partition.start_position = keys.unpack_all(bounds)
    compacted = store.get(keys.compacted(topic_id, number))
    if compacted is not None:
        partition.cleaned, partition.cleaned_position, partition.holes_to = keys.unpack_all(compacted)
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
    except CorruptBatches as error:
        raise StorageDamaged(str(error)) from error
    partition.next_offset, partition.end_position = partition.end, partition.position
    return partition


def walk(store: Store, log: StoredPartition, from_offset: int) -> Iterator[tuple[BatchHeader, bytes]]:
    """Yield batches whose base offset is `from_offset` or more, in order. Raises: CorruptBatches, StorageDamaged."""
    prefix = keys.batches(log.topic_id, log.number)
    following: int | None = None
    for key, records in store.scan(keys.at(prefix, from_offset), keys.after(prefix)):
        base = keys.offset_of(key)
        header = header_of(log.number, base, records)
        # Checked when the hole is met: its maker has raised `holes_to` before.
        missing = following is not None and base != following and (base < following or base > log.holes_to)
        if header.base_offset != base or missing:
            raise CorruptBatches(f"partition {log.number}: offsets {following}-{base - 1} are missing in the log")
        following = header.last_offset + 1
        yield header, records


@contextlib.contextmanager
def damage() -> Iterator[None]:
    """Turn DecodeError into CorruptBatches: a stored batch cannot be decoded."""
    try:
        yield
    except DecodeError as error:
        raise CorruptBatches(str(error)) from error


def header_of(number: int, base: int, records: bytes) -> BatchHeader:
    """Return the header of a stored batch. Raises: CorruptBatches."""
    try:
        (header,) = batch_headers(records)
    except (DecodeError, ValueError) as error:
        raise CorruptBatches(f"partition {number}: the batch stored at offset {base} is damaged: {error}") from error
    return header


def read_blocking(store: Store, log: StoredPartition, offset: int, end: int, max_bytes: int) -> list[TailBatch]:
    """Read batches from the one that holds `offset` (or the next one, if none does) on, up to `end` or to damage; at
    least one.

    Raises: CorruptBatches, StorageDamaged, StorageError; OffsetOutOfRange when the log start has passed the offset.
    """
    prefix = keys.batches(log.topic_id, log.number)
    holder = store.last_before(prefix, keys.at(prefix, offset + 1))
    if holder is None and offset >= log.holes_to:
        raise OffsetOutOfRange(f"offset {offset} is not in the log any more")
    found, size = list[TailBatch](), 0
    try:
        for header, records in walk(store, log, offset if holder is None else keys.offset_of(holder[0])):
            size += len(records) if header.last_offset >= offset else 0
            if header.last_offset >= end or (found and size > max_bytes):
                break
            if header.last_offset >= offset:
                found.append(TailBatch(header.base_offset, header.last_offset, records))
    except (CorruptBatches, StorageDamaged):
        if not found:
            raise  # else who reads on from behind what was found meets the damage
    if not found:
        raise CorruptBatches(f"partition {log.number}: offset {offset} is missing in the log")
    return found


def offset_at_blocking(
    store: Store, log: StoredPartition, timestamp_ms: int, log_start: int, end: int, go_on: Callable[[], object]
) -> tuple[int, int] | None:
    """Find the first (offset, timestamp in ms) with timestamp ≥ `timestamp_ms` in the log; go_on: called before each
    batch, may raise.

    Raises: CorruptBatches, StorageDamaged, StorageError.
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


def first_at(records: bytes, timestamp_ms: int, log_start: int) -> tuple[int, int] | None:
    """Find a batch's first (offset, timestamp) from the log start on with timestamp ≥ `timestamp_ms`. A batch may be
    large: few of its records are in memory at a time.

    Raises: CorruptBatches, StorageError (no memory).
    """
    try:
        with damage():
            header = next(frames(records))
            if header.is_control:
                return None
            reader = RawReader(plain(records + PADDING, header), header)
            full = True
            while full:
                step = reader.take(STEP_RECORDS)
                full = len(step) == STEP_RECORDS
                for record in step:
                    if record.offset >= log_start and record.timestamp >= timestamp_ms:
                        return record.offset, record.timestamp
    except MemoryError as error:
        raise StorageError("there is no memory to look for a time in a record batch: ask again") from error
    return None


Decide = Callable[[PartitionProducers, int, int], ProducerChange | Written]
"""(producers, base offset, now in ms) -> the append's change of producers, or its old place. Raises: CoreError."""


def produced(headers: Sequence[BatchHeader]) -> ProducerBatch | None:
    """Return the producer fields of a checked append; None if it names no producer. Raises: CorruptBatches."""
    header = headers[0]
    if len(headers) > 1:
        if any(header.producer_id >= 0 or header.is_transactional for header in headers):
            raise CorruptBatches("a batch with a producer id comes alone in its request")
        return None
    if header.producer_id < 0:
        if header.is_transactional:
            raise CorruptBatches("a transactional batch needs a producer id")
        return None
    if header.producer_epoch < 0 or header.base_sequence < 0:
        raise CorruptBatches("a batch with a producer id needs an epoch and a sequence")
    return ProducerBatch(
        header.producer_id, header.producer_epoch, header.base_sequence, header.record_count, header.is_transactional
    )


def decide_batch(batch: ProducerBatch, admit: Callable[[], None] | None, expiry_ms: int) -> Decide:
    """Return the decision about a producer's batch."""

    def decide(producers: PartitionProducers, base_offset: int, now_ms: int) -> ProducerChange | Written:
        written = producers.duplicate(batch)
        if written is not None:
            return written
        if admit is not None:
            admit()
        return producers.place(batch, base_offset, now_ms, expiry_ms=expiry_ms)

    return decide


def decided(decide: Decide, producers: PartitionProducers, base_offset: int, now_ms: int) -> ProducerChange | Written:
    """Return the result of `decide`. Raises: ProducerRefused."""
    try:
        return decide(producers, base_offset, now_ms)
    except CoreError as error:
        raise ProducerRefused(error) from error


def producer_writes(topic_id: uuid.UUID, partition: int, change: ProducerChange) -> list[Write]:
    """Return the producers' entries to be stored with the batch or marker."""
    prefix = keys.producers(topic_id, partition)
    stored: list[Write] = [
        (keys.at(prefix, producer_id), None if after is None else encode_producer(after))
        for producer_id, _, after in change.steps
    ]
    if change.aborted is not None:
        entry = keys.at(keys.aborted(topic_id, partition), change.aborted.last)
        stored.append((entry, encode_aborted(change.aborted)))
    return stored


def _load_producers(store: Store, topic_id: uuid.UUID, partition: int) -> PartitionProducers:
    """Load a partition's producers from the store. Raises: StorageDamaged, StorageError."""
    producers, aborted = keys.producers(topic_id, partition), keys.aborted(topic_id, partition)
    try:
        return PartitionProducers(
            [
                (keys.offset_of(key), decode_producer(value))
                for key, value in store.scan(producers, keys.after(producers))
            ],
            [decode_aborted(keys.offset_of(key), value) for key, value in store.scan(aborted, keys.after(aborted))],
        )
    except TransactionStateCorrupt as error:
        raise StorageDamaged(str(error)) from error


def aborted_among(producers: PartitionProducers, found: Sequence[TailBatch]) -> tuple[LogBatch, ...]:
    """Return those of consecutive batches that belong to aborted transactions."""
    if not found:
        return ()
    entries = producers.aborted.between(found[0].first, found[-1].last + 1)
    if not entries:
        return ()
    spans, among = AbortedSpans(entries), list[LogBatch]()
    for batch in found:
        header = next(frames(batch.records))
        if header.is_transactional and not header.is_control and spans.holds(header.producer_id, batch.first):
            among.append(LogBatch(batch.first, batch.last))
    return tuple(among)
