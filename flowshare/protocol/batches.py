"""Record batches: checks produced ones, sets their offsets, builds new ones, and re-exports the readers.

Reading is in `headers.py` (headers only) and `decoding.py` (records). Building is done by aiokafka's compiled builder,
which is loaded at its first use.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Sequence
from typing import Any, Final, cast

from flowshare.protocol.decoding import Decoded, DecodedRecord, Headers, decode, decode_all
from flowshare.protocol.headers import (
    APPEND_TIME_MASK,
    ATTRIBUTES_AT,
    CODEC_MASK,
    CODECS,
    CONTROL_MASK,
    CRC_AT,
    HEADER,
    HEADER_BYTES,
    LOG_OVERHEAD,
    TRANSACTIONAL_MASK,
    BatchHeader,
    DecodeError,
    batch_headers,
    check_crc,
    crc32c,
)

__all__ = [
    "CODECS",
    "BatchBuilder",
    "BatchHeader",
    "DecodeError",
    "Decoded",
    "DecodedRecord",
    "Headers",
    "batch_headers",
    "check",
    "decode",
    "decode_all",
    "marker",
    "rebase",
    "renumber",
]

MAX_TIMESTAMP_AT: Final = 35
PRODUCER_AT: Final = 43
ABORT: Final = 0
COMMIT: Final = 1
NO_PRODUCER: Final = (-1, -1, -1)
"""Id, epoch and sequence of a batch without an idempotent producer."""
_offset = struct.Struct(">q")
_epoch = struct.Struct(">i")
_attributes = struct.Struct(">h")
_crc = struct.Struct(">I")
_marker_key = struct.Struct(">hh")
_marker_value = struct.Struct(">hi")
_producer = struct.Struct(">qhi")


def check(records: bytes, *, checksums: bool = True) -> tuple[BatchHeader, ...]:
    """Check a producer's batches: whole, right checksums, no hole in the offsets, no control batch.

    checksums: False: another caller checks them.
    Raises: DecodeError
    """
    headers = batch_headers(records)
    if not headers:
        raise DecodeError("there is no record batch in the request")
    for header in headers:
        if checksums:
            check_crc(records, header)
        if header.is_control:
            raise DecodeError("control batches are written by the server only")
        if header.record_count == 0 or header.record_count != header.last_offset - header.base_offset + 1:
            raise DecodeError(f"a produced batch of {header.record_count} records says another number of offsets")
        if header.attributes & CODEC_MASK >= len(CODECS):
            raise DecodeError(f"compression {header.attributes & CODEC_MASK} is unknown")
    return headers


def rebase(records: bytes, headers: Sequence[BatchHeader], base_offset: int, *, now_ms: int | None = None) -> bytes:
    """Return checked batches with consecutive offsets from `base_offset` on.

    headers: of the batches; another newest timestamp in them is set. now_ms: stamp all records with this time
    (message.timestamp.type=LogAppendTime).
    """
    placed = bytearray(records)
    for header in headers:
        at = header.position
        _offset.pack_into(placed, at, base_offset)
        _epoch.pack_into(placed, at + 12, 0)
        if now_ms is not None:
            _attributes.pack_into(placed, at + ATTRIBUTES_AT, header.attributes | APPEND_TIME_MASK)
            _offset.pack_into(placed, at + MAX_TIMESTAMP_AT, now_ms)
        elif header.max_timestamp != _offset.unpack_from(placed, at + MAX_TIMESTAMP_AT)[0]:
            _offset.pack_into(placed, at + MAX_TIMESTAMP_AT, header.max_timestamp)
        else:
            base_offset += header.last_offset - header.base_offset + 1
            continue
        _crc.pack_into(placed, at + CRC_AT, crc32c(memoryview(placed)[at + ATTRIBUTES_AT : at + header.size]))
        base_offset += header.last_offset - header.base_offset + 1
    return bytes(placed)


def renumber(batch: bytes, producer: tuple[int, int, int], *, transactional: bool = False) -> bytes:
    """Return a finished batch with another producer id, epoch and first sequence.

    transactional: make the batch a part of a transaction, too.
    """
    changed = bytearray(batch)
    if transactional:
        (attributes,) = _attributes.unpack_from(changed, ATTRIBUTES_AT)
        _attributes.pack_into(changed, ATTRIBUTES_AT, attributes | TRANSACTIONAL_MASK)
    _producer.pack_into(changed, PRODUCER_AT, *producer)
    _crc.pack_into(changed, CRC_AT, crc32c(memoryview(changed)[ATTRIBUTES_AT:]))
    return bytes(changed)


def marker(producer_id: int, epoch: int, *, committed: bool, timestamp_ms: int) -> bytes:
    """Return the control batch that ends a producer's transaction (KIP-98); its offset is 0 until the log sets one.

    It has one record, which readers skip: the key says abort or commit, the value is the coordinator's epoch, here
    always 0, since there is one coordinator.
    """
    key = _marker_key.pack(0, COMMIT if committed else ABORT)
    value = _marker_value.pack(0, 0)
    # Attributes, timestamp delta and offset delta are 0; lengths are zigzag varints, one byte each.
    record = bytes((0, 0, 0, 2 * len(key))) + key + bytes((2 * len(value),)) + value + b"\0"
    body = bytes((2 * len(record),)) + record
    attributes = CONTROL_MASK | TRANSACTIONAL_MASK
    length = HEADER_BYTES - LOG_OVERHEAD + len(body)
    batch = bytearray(
        HEADER.pack(0, length, 0, 2, 0, attributes, 0, timestamp_ms, timestamp_ms, producer_id, epoch, -1, 1) + body
    )
    _crc.pack_into(batch, CRC_AT, crc32c(memoryview(batch)[ATTRIBUTES_AT:]))
    return bytes(batch)


@functools.cache
def _builder() -> Any:
    from aiokafka.record.default_records import DefaultRecordBatchBuilder

    return DefaultRecordBatchBuilder


class BatchBuilder:
    """A record batch under construction. Offsets start at 0; the log sets the real ones.

    size_max: bound on the bytes before compression, header included; the first record is always accepted.
    """

    __slots__ = ("_append", "_builder", "count", "size_max")

    def __init__(
        self,
        *,
        size_max: int = 1_000_000,
        compression: str = "none",
        producer: tuple[int, int, int] = NO_PRODUCER,
        transactional: bool = False,
    ) -> None:
        """producer: id, epoch and first sequence of an idempotent producer; `build` may set them, too."""
        if compression not in CODECS:
            raise ValueError(f"compression {compression!r} is none of {', '.join(CODECS)}")
        self.size_max = size_max
        self.count = 0
        self._builder = _builder()(2, CODECS.index(compression), transactional, *producer, size_max)
        self._append = self._builder.append

    @property
    def size(self) -> int:
        """The size so far, in bytes before compression."""
        return cast(int, self._builder.size()) if self.count else HEADER_BYTES

    def add(
        self,
        key: bytes | None,
        value: bytes | None,
        headers: Sequence[tuple[str, bytes | None]] = (),
        *,
        timestamp_ms: int,
    ) -> bool:
        """Add a record; False: the batch is full, nothing was changed."""
        if self._append(self.count, timestamp_ms, key, value, list(headers) if headers else []) is None:
            return False
        self.count += 1
        return True

    def add_values(self, values: Sequence[bytes | None], start: int, *, timestamp_ms: int) -> int:
        """Add records without key and headers from `values[start]` on until the batch is full; return the number
        added."""
        append, first, none = self._append, self.count, list[tuple[str, bytes | None]]()
        count = first
        for index in range(start, len(values)):
            if append(count, timestamp_ms, None, values[index], none) is None:
                break
            count += 1
        self.count = count
        return count - first

    def build(self, producer: tuple[int, int, int] | None = None) -> bytes:
        """Return the finished batch with this producer id, epoch and first sequence; the builder cannot be used
        again."""
        if not self.count:
            raise ValueError("a batch holds at least one record")
        if producer is not None:
            self._builder.set_producer_state(*producer)
        return bytes(self._builder.build())
