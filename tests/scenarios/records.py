"""Record batches for scenarios, and the places in a `MemoryStorage` that no client can reach: holes, markers."""

from __future__ import annotations

import struct
from collections.abc import Iterator

from flowshare.log import keys
from flowshare.log.memory import MemoryStorage
from flowshare.log.partition import StoredPartition
from flowshare.log.store import StoreStep
from flowshare.protocol.batches import NO_PRODUCER, BatchBuilder, batch_headers, decode_all
from flowshare.protocol.headers import ATTRIBUTES_AT, CONTROL_MASK, CRC_AT, TRANSACTIONAL_MASK, crc32c
from tests.scenarios.words import ABSENT, Batch, Place

PRODUCER_AT = 43


def build(batch: Batch, *, timestamp_ms: int, size: int = 0) -> bytes:
    """A batch with one record an offset; values are the offsets, padded to `size` bytes."""
    builder = BatchBuilder(size_max=1 << 24)
    for number, offset in enumerate(range(batch.first, batch.last + 1)):
        value = str(offset).encode().ljust(size, b".")
        key = batch.keys[number] if batch.keys else f"k{offset}"
        headers = [("origin", b"scenario")]
        if batch.headers and batch.headers[number] != ABSENT:
            headers.append(("h", batch.headers[number].encode()))
        sent = None if key == ABSENT else key.encode()
        assert builder.add(sent, value, headers, timestamp_ms=timestamp_ms)
    return builder.build()


def build_values(values: list[bytes], *, timestamp_ms: int) -> bytes:
    """A batch of these values, without keys."""
    builder = BatchBuilder(size_max=1 << 24)
    for value in values:
        assert builder.add(None, value, timestamp_ms=timestamp_ms)
    return builder.build()


def build_output(count: int, kind: str, *, timestamp_ms: int, size: int = 0) -> bytes:
    """A batch that a member made of its records; `kind` as in `words.Sent`."""
    producer = {"p": (7, 0, 0), "t": (7, 0, 0)}.get(kind, NO_PRODUCER)
    builder = BatchBuilder(size_max=1 << 24, producer=producer, transactional=kind == "t")
    for number in range(count):
        assert builder.add(b"k", str(number).encode().ljust(size, b"."), timestamp_ms=timestamp_ms)
    built = builder.build()
    return built[:-1] + bytes((built[-1] ^ 1,)) if kind == "c" else built


def leave_hole(storage: MemoryStorage, where: Place, first: int) -> None:
    """Let the next batch begin at `first`, as after compaction."""
    log = storage._partitions[where.topic].at(where.partition)
    log.end = log.next_offset = log.holes_to = first
    _forget_read(storage)


def make_control(storage: MemoryStorage, where: Place) -> None:
    """Turn the last batch into a control batch: what the end of a transaction leaves in the log."""
    log = storage._partitions[where.topic].at(where.partition)
    ((key, stored),) = list(_batches(storage, log))[-1:]
    records = bytearray(stored)
    (attributes,) = struct.unpack_from(">h", records, ATTRIBUTES_AT)
    struct.pack_into(">h", records, ATTRIBUTES_AT, attributes | CONTROL_MASK | TRANSACTIONAL_MASK)
    struct.pack_into(">I", records, CRC_AT, crc32c(memoryview(records)[ATTRIBUTES_AT:]))
    storage._store.commit([StoreStep([(key, bytes(records))])])
    _forget_read(storage)


def transactional(records: bytes, producer_id: int, epoch: int) -> bytes:
    """The batch as the first one of a transactional producer."""
    made = bytearray(records)
    (attributes,) = struct.unpack_from(">h", made, ATTRIBUTES_AT)
    struct.pack_into(">h", made, ATTRIBUTES_AT, attributes | TRANSACTIONAL_MASK)
    struct.pack_into(">qhi", made, PRODUCER_AT, producer_id, epoch, 0)
    struct.pack_into(">I", made, CRC_AT, crc32c(memoryview(made)[ATTRIBUTES_AT:]))
    return bytes(made)


def end_in_place(storage: MemoryStorage, where: Place, producer_id: int, *, committed: bool) -> None:
    """End the producer's transaction at its last batch, without a marker: the catalogue's logs have none there."""
    log = storage._partitions[where.topic].at(where.partition)
    change = log.producers.mark(producer_id, 0, log.end - 1, 0, committed=committed)
    log.producers.confirm(change)


def compact(storage: MemoryStorage, where: Place, gone: Batch) -> None:
    """Take batches out of the log."""
    log = storage._partitions[where.topic].at(where.partition)
    found = [key for key, _ in _batches(storage, log) if gone.first <= keys.offset_of(key) <= gone.last]
    storage._store.commit([StoreStep([(key, None) for key in found])])
    log.holes_to = log.end
    _forget_read(storage)


def _batches(storage: MemoryStorage, log: StoredPartition) -> Iterator[tuple[bytes, bytes]]:
    prefix = keys.batches(log.topic_id, log.number)
    return storage._store.scan(prefix, keys.after(prefix))


def _forget_read(storage: MemoryStorage) -> None:
    storage._budget.clear()
    storage._ahead.clear()


def offsets_of_records(records: bytes) -> list[int]:
    """Offsets of the records in these bytes."""
    return [record.offset for record in decode_all(records)]


def offsets_in(records: bytes) -> list[int]:
    """Offsets that the batches in these bytes span."""
    return [offset for header in batch_headers(records) for offset in range(header.base_offset, header.last_offset + 1)]
