"""Taking records out of a batch, as a log's compaction does (Kafka: MemoryRecords.filterTo).

The batch keeps its base and last offset, producer, sequence, codec and the bytes of the records that stay; what goes
leaves a hole. Offsets inside a batch are relative to its base, so nothing of a record has to be written anew, except
its timestamp when the batch gets a delete horizon: that takes the place of the first timestamp, to which the records'
times are relative (KIP-534).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from flowshare.protocol.codecs import compress
from flowshare.protocol.compact import varint
from flowshare.protocol.decoding import PADDING, WHOLE_RECORDS_MAX, RawRecord, plain, read_plain
from flowshare.protocol.headers import (
    ATTRIBUTES_AT,
    CODEC_MASK,
    CRC_AT,
    HEADER,
    HEADER_BYTES,
    HORIZON_MASK,
    LOG_OVERHEAD,
    BatchHeader,
    DecodeError,
    crc32c,
)

VARINT_BYTES_MAX: Final = 10
_crc = struct.Struct(">I")


class OpenedBatch:
    """One batch, decompressed and read."""

    __slots__ = ("_plain", "_where", "header", "records")

    def __init__(self, batch: bytes, header: BatchHeader) -> None:
        """`header` is that of `batch`. Raises: DecodeError."""
        if header.record_count > WHOLE_RECORDS_MAX:
            raise DecodeError(f"the batch at offset {header.base_offset} has {header.record_count} records: too many")
        self.header = header
        self._plain = plain(batch + PADDING, header)
        self.records: list[RawRecord] = read_plain(self._plain, header)
        self._where: list[_Span] | None = None

    @property
    def size(self) -> int:
        """Bytes without compression."""
        return len(self._plain)

    def contains(self, text: bytes) -> bool:
        """Whether these bytes stand anywhere in its records."""
        return text in bytes(self._plain)

    def keep(self, indexes: Sequence[int], *, horizon_ms: int | None = None) -> bytes:
        """The batch with the records of these indexes only; `horizon_ms`: the delete horizon it gets, if any.

        Raises: DecodeError
        """
        header = self.header
        base = header.first_timestamp if horizon_ms is None else horizon_ms
        attributes = header.attributes if horizon_ms is None else header.attributes | HORIZON_MASK
        newest = header.max_timestamp
        if indexes and not header.is_append_time:
            newest = max(self.records[index].timestamp for index in indexes)
        if self._where is None:
            self._where = list(_spans(self._plain, len(self.records)))
        spans = self._where
        shift = header.first_timestamp - base
        if shift:
            body = b"".join([_shifted(self._plain[spans[index].begin : spans[index].end], shift) for index in indexes])
        else:
            in_one = indexes and indexes[-1] - indexes[0] + 1 == len(indexes)
            rows = [(indexes[0], indexes[-1])] if in_one else _rows(indexes)
            body = b"".join([self._plain[spans[first].start : spans[last].end] for first, last in rows])
        if attributes & CODEC_MASK:
            body = compress(header.codec, body)
        head = list(HEADER.unpack_from(self._plain))
        head[1] = HEADER_BYTES - LOG_OVERHEAD + len(body)
        head[5], head[7], head[8], head[12] = attributes, base, newest, len(indexes)
        batch = bytearray(HEADER.pack(*head) + body)
        _crc.pack_into(batch, CRC_AT, crc32c(memoryview(batch)[ATTRIBUTES_AT:]))
        return bytes(batch)


def _rows(indexes: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Rising indexes as rows without a gap, both inclusive."""
    first = last = -1
    for index in indexes:
        if index != last + 1 or first < 0:
            if first >= 0:
                yield first, last
            first = index
        last = index
    if first >= 0:
        yield first, last


class _Span(NamedTuple):
    """Where a record lies: `start` is that of its length, `begin` is behind it."""

    start: int
    begin: int
    end: int


def _spans(view: memoryview, count: int) -> Iterator[_Span]:
    """Where each record lies. Raises: DecodeError."""
    at = HEADER_BYTES
    for _ in range(count):
        size, begin = _varint(view, at)
        end = begin + size
        if size < 1 or end > len(view):
            raise DecodeError(f"the record at byte {at} says {size} bytes, {len(view) - begin} are left")
        yield _Span(at, begin, end)
        at = end


def _shifted(record: memoryview, shift: int) -> bytes:
    """A record (without its length) with its relative time raised by `shift`, and its length. Raises: DecodeError."""
    delta, behind = _varint(record, 1)
    changed = b"".join((record[:1], _encoded(delta + shift), record[behind:]))
    return _encoded(len(changed)) + changed


def _varint(view: memoryview, at: int) -> tuple[int, int]:
    """A zigzag number and the position behind it. Raises: DecodeError."""
    number, bits = 0, 0
    try:
        while (byte := view[at]) & 0x80:
            number |= (byte & 0x7F) << bits
            bits, at = bits + 7, at + 1
            if bits >= 7 * VARINT_BYTES_MAX:
                raise DecodeError(f"the number at byte {at} has no end")
    except IndexError:
        raise DecodeError(f"the number at byte {at} is cut off") from None
    number |= byte << bits
    return (number >> 1) ^ -(number & 1), at + 1


def _encoded(number: int) -> bytes:
    return varint(((number << 1) ^ (number >> 63)) & 0xFFFF_FFFF_FFFF_FFFF)
