"""Reads the records of one batch one by one, where the compiled reader gives up at one of them.

A record begins with its length, so an unreadable one does not hide those behind it. A header's name that is no UTF-8
gets replacement characters, as in Java's clients. In a batch of as many records as offsets, the place of a record is
its offset, whatever the record says. Slower than the compiled reader, and used only where that fails.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from flowshare.protocol.headers import HEADER_BYTES, BatchHeader, DecodeError

VARINT_BYTES_MAX: Final = 10
_INT64: Final = 1 << 64
UNREADABLE_MAX: Final = 10_000
"""The most offsets in a row that are reported one by one."""


@dataclass(slots=True)
class Room:
    """The number of headers that may still be read; callers that read in steps set it anew for each step."""

    headers: int


class Begin(NamedTuple):
    """Records that were read already: their number, and the first offset behind them."""

    records: int
    due: int


@dataclass(slots=True)
class PlainRecord:
    """A record whose fields are Python objects already."""

    offset: int
    timestamp: int
    key: bytes | None = None
    value: bytes | None = None
    headers: list[tuple[str, bytes | None]] = field(default_factory=list[tuple[str, bytes | None]])


@dataclass(slots=True)
class UnreadableRecord(PlainRecord):
    """Stands in the place of bytes that are no record, so that handlers meet the damage at its place."""

    reason: str = ""


class Unreadable(NamedTuple):
    """Offsets, both inclusive, whose bytes are no record, and the reason. Without any offset `last` is before
    `first`."""

    first: int
    last: int
    reason: str

    @property
    def records(self) -> list[UnreadableRecord]:
        """One record for each offset; empty where so many offsets can only come from a damaged header."""
        if self.last - self.first >= UNREADABLE_MAX:
            return []
        return [UnreadableRecord(offset, -1, reason=self.reason) for offset in range(self.first, self.last + 1)]


class _TooMany(Exception):
    """A record has more headers than may be read."""


def each_record(
    view: memoryview, header: BatchHeader, *, begin: Begin | None = None, room: Room | None = None
) -> Iterator[PlainRecord | Unreadable]:
    """Yield the records and unreadable ranges of an uncompressed batch, in offset order, within the offsets of
    `header`.

    Unreadable bytes behind the record of the last offset are reported as a range without an offset. begin: skip these
    good records by their lengths. room: a record with more headers, and all records behind it, cannot be read.
    """
    dense = header.record_count == header.last_offset - header.base_offset + 1
    begin = begin or Begin(0, header.base_offset)
    due, wrong, reason = begin.due, "", ""
    """due: the next expected offset. wrong: the reason why the bytes before it cannot be read. reason: the last such
    reason."""
    for one in _each(view, header, begin.records, room or Room(len(view))):
        if isinstance(one, str):
            wrong = wrong or one
        elif not due <= one.offset <= header.last_offset or (dense and one.offset != due):
            wrong = wrong or f"a record says offset {one.offset}, which is not its place"
        else:
            if wrong and due < one.offset:
                yield Unreadable(due, one.offset - 1, wrong)
            yield one
            due, wrong = one.offset + 1, ""
            continue
        reason = wrong
        if dense and due <= header.last_offset:
            yield Unreadable(due, due, wrong)
            due, wrong = due + 1, ""
    if wrong or (dense and due <= header.last_offset):
        yield Unreadable(due, header.last_offset, reason)


def _each(view: memoryview, header: BatchHeader, skipped: int, room: Room) -> Iterator[PlainRecord | str]:
    """Yield the records, or the reason why one cannot be read; at the end the reason why the rest cannot be read."""
    position, end = _behind(view, skipped), len(view)
    for index in range(skipped, header.record_count):
        try:
            length, begin = _number(view, position, end)
            if length < 1 or length > end - begin:
                raise DecodeError(f"record {index} says {length} bytes, {end - begin} are left")
        except DecodeError as error:
            yield str(error)
            return
        position = begin + length
        try:
            record: PlainRecord | str = _record(view, begin, position, header, room)
        except _TooMany as error:
            yield str(error)
            return
        except DecodeError as error:
            record = str(error)
        yield record
    if position != end:
        yield f"{end - position} unconsumed bytes are left behind {header.record_count} records"


def _behind(view: memoryview, count: int) -> int:
    """Return the position behind the first `count` records, which are good: tens of thousands take some
    milliseconds."""
    at = HEADER_BYTES
    for _ in range(count):
        number, shift = view[at], 7
        at += 1
        if number > 0x7F:
            number &= 0x7F
            while (byte := view[at]) > 0x7F:
                number |= (byte & 0x7F) << shift
                shift, at = shift + 7, at + 1
            number |= byte << shift
            at += 1
        at += number >> 1
    return at


def _record(view: memoryview, at: int, end: int, header: BatchHeader, room: Room) -> PlainRecord:
    """Read the record between two positions. Raises: DecodeError, _TooMany."""
    if at == end:
        raise DecodeError("a record has no bytes")
    delta_ms, at = _number(view, at + 1, end)
    delta, at = _number(view, at, end)
    key, at = _bytes(view, at, end, "key")
    value, at = _bytes(view, at, end, "value")
    count, at = _number(view, at, end)
    if not 0 <= count <= (end - at) // 2:
        raise DecodeError(f"a record says {count} headers, {end - at} bytes are left")
    if count > room.headers:
        raise _TooMany(f"a record has {count} headers, and {room.headers} more are read")
    room.headers -= count
    headers: list[tuple[str, bytes | None]] = []
    for _ in range(count):
        name, at = _bytes(view, at, end, "header's name")
        if name is None:
            raise DecodeError("a header of a record has no name")
        content, at = _bytes(view, at, end, "header")
        headers.append((name.decode("utf-8", "replace"), content))
    if at != end:
        raise DecodeError(f"{end - at} bytes are left in a record behind its headers")
    timestamp = header.max_timestamp if header.is_append_time else _int64(header.first_timestamp + delta_ms)
    return PlainRecord(header.base_offset + delta, timestamp, key, value, headers)


def _bytes(view: memoryview, at: int, end: int, what: str) -> tuple[bytes | None, int]:
    """Read bytes with their length (None: negative length); return them and the position behind. Raises:
    DecodeError."""
    length, at = _number(view, at, end)
    if length < 0:
        return None, at
    if length > end - at:
        raise DecodeError(f"the {what} of a record says {length} bytes, {end - at} are left")
    return bytes(view[at : at + length]), at + length


def _number(view: memoryview, at: int, end: int) -> tuple[int, int]:
    """Read a zigzag number; return it and the position behind. Raises: DecodeError."""
    number = shift = 0
    stop = min(end, at + VARINT_BYTES_MAX)
    while at < stop:
        byte = view[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            number %= _INT64
            return (number >> 1) ^ -(number & 1), at
        shift += 7
    raise DecodeError("a number in a record has no end")


def _int64(number: int) -> int:
    """Wrap a sum to 64 signed bits, as other clients do."""
    return (number + _INT64 // 2) % _INT64 - _INT64 // 2
