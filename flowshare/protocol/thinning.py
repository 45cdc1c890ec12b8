"""Takes records out of a batch, as a log's compaction does (Kafka: MemoryRecords.filterTo).

The batch keeps its base and last offset, producer, sequence, codec and the bytes of the remaining records; removed
records leave holes. Offsets inside a batch are relative to its base, so no record has to be written anew, except its
timestamp when the batch gets a delete horizon: the horizon takes the place of the first timestamp, to which the
records' times are relative (KIP-534).
"""

from __future__ import annotations

import struct
from array import array
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from typing import Final, Self

from flowshare.protocol.codecs import compress
from flowshare.protocol.compact import varint
from flowshare.protocol.decoding import PADDING, RawRecord, plain, read_in_steps
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
STEP_RECORDS: Final = 2_000
"""Records that are read at once: some milliseconds of work."""
OPENED_RECORDS_MAX: Final = 1 << 16
"""The most records of a batch that is opened: each takes hundreds of bytes, but may have seven in the log, or none."""
HEADERS_MAX: Final = 1 << 14
"""The most headers in a step of a batch that the compiled reader gives up: each takes a microsecond."""
_crc = struct.Struct(">I")


class PlainBatch:
    """One decompressed batch; its records are read some at a time, and not kept."""

    __slots__ = ("_plain", "_starts", "header")

    def __init__(self, batch: bytes, header: BatchHeader) -> None:
        """header: of `batch`. Raises: DecodeError."""
        self.header = header
        self._plain = plain(batch + PADDING, header)
        self._starts: array[int] | None = None

    @property
    def size(self) -> int:
        """The size in bytes without compression."""
        return len(self._plain)

    def steps(self) -> Iterator[list[RawRecord]]:
        """Yield the records, STEP_RECORDS at a time. Raises: DecodeError."""
        return read_in_steps(self._plain, self.header, STEP_RECORDS)

    def find(self, count: int) -> Iterator[None]:
        """Find the positions of the batch's `count` records, a step at a time. Raises: DecodeError."""
        starts, at = array("q"), HEADER_BYTES
        while len(starts) < count:
            for _ in range(min(STEP_RECORDS, count - len(starts))):
                size, begin = _varint(self._plain, at)
                if size < 1 or begin + size > len(self._plain):
                    raise DecodeError(f"the record at byte {at} says {size} bytes, {len(self._plain) - begin} are left")
                starts.append(at)
                at = begin + size
            yield
        starts.append(at)
        self._starts = starts

    def thinned(
        self, indexes: Sequence[int], *, count: int, newest_ms: int | None, horizon_ms: int | None = None
    ) -> bytes:
        """Return the batch with only the records of these indexes, of the `count` that it has.

        newest_ms: the newest time of the remaining records; None: as in the batch. horizon_ms: a delete horizon to set.
        Raises: DecodeError
        """
        header = self.header
        base = header.first_timestamp if horizon_ms is None else horizon_ms
        attributes = header.attributes if horizon_ms is None else header.attributes | HORIZON_MASK
        newest = header.max_timestamp if newest_ms is None or header.is_append_time else newest_ms
        if self._starts is None:
            deque(self.find(count), maxlen=0)
        body = self._body(indexes, header.first_timestamp - base)
        if attributes & CODEC_MASK:
            body = compress(header.codec, body)
        head = list(HEADER.unpack_from(self._plain))
        head[1] = HEADER_BYTES - LOG_OVERHEAD + len(body)
        head[5], head[7], head[8], head[12] = attributes, base, newest, len(indexes)
        batch = bytearray(HEADER.pack(*head) + body)
        _crc.pack_into(batch, CRC_AT, crc32c(memoryview(batch)[ATTRIBUTES_AT:]))
        return bytes(batch)

    def _body(self, indexes: Sequence[int], shift: int) -> bytes:
        """Return the bytes of these records, their relative times raised by `shift`. Raises: DecodeError"""
        view, starts = self._plain, self._starts
        assert starts is not None, "where they lie was found out"
        if shift:
            begins = ((_varint(view, starts[index])[1], starts[index + 1]) for index in indexes)
            return b"".join([_shifted(view[begin:end], shift) for begin, end in begins])
        in_one = indexes and indexes[-1] - indexes[0] + 1 == len(indexes)
        rows = [(indexes[0], indexes[-1])] if in_one else _rows(indexes)
        return b"".join([view[starts[first] : starts[last + 1]] for first, last in rows])


class OpenedBatch(PlainBatch):
    """One batch, decompressed and decoded."""

    __slots__ = ("records",)

    def __init__(self, batch: bytes, header: BatchHeader, *, read: bool = True) -> None:
        """header: of `batch`. read: decode now; else call `read`. Raises: DecodeError."""
        if header.record_count > OPENED_RECORDS_MAX:
            raise DecodeError(f"the batch at offset {header.base_offset} has {header.record_count} records: too many")
        super().__init__(batch, header)
        self.records: list[RawRecord] = []
        if read:
            deque(self.read(), maxlen=0)

    @classmethod
    def in_steps(cls, batch: bytes, header: BatchHeader) -> Generator[None, None, Self]:
        """Open a batch a step at a time, each some milliseconds long. Raises: DecodeError."""
        made = cls(batch, header, read=False)
        yield from made.read()
        if header.record_count > STEP_RECORDS:
            yield from made.find(len(made.records))
        return made

    def read(self) -> Iterator[None]:
        """Decode the records, a step at a time. Raises: DecodeError."""
        for step in read_in_steps(self._plain, self.header, STEP_RECORDS, headers_max=HEADERS_MAX):
            self.records += step
            yield

    def contains(self, text: bytes) -> bool:
        """True if these bytes occur anywhere in the batch's records."""
        return text in bytes(self._plain)

    def keep(self, indexes: Sequence[int], *, horizon_ms: int | None = None) -> bytes:
        """Return the batch with only the records of these indexes. horizon_ms: a delete horizon to set.

        Raises: DecodeError
        """
        newest_ms = max((self.records[index].timestamp for index in indexes), default=None)
        return self.thinned(indexes, count=len(self.records), newest_ms=newest_ms, horizon_ms=horizon_ms)


def batched(records: list[RawRecord]) -> Iterator[list[RawRecord]]:
    """Yield the records in lists of one step each."""
    for at in range(0, len(records), STEP_RECORDS):
        yield records[at : at + STEP_RECORDS]


def _rows(indexes: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield rising indexes as ranges without a gap, both ends inclusive."""
    first = last = -1
    for index in indexes:
        if index != last + 1 or first < 0:
            if first >= 0:
                yield first, last
            first = index
        last = index
    if first >= 0:
        yield first, last


def _shifted(record: memoryview, shift: int) -> bytes:
    """Return a record (given without its length) with its length, its relative time raised by `shift`. Raises:
    DecodeError."""
    delta, behind = _varint(record, 1)
    changed = b"".join((record[:1], _encoded(delta + shift), record[behind:]))
    return _encoded(len(changed)) + changed


def _varint(view: memoryview, at: int) -> tuple[int, int]:
    """Read a zigzag number; return it and the position behind. Raises: DecodeError."""
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
