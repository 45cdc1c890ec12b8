"""Decodes record batches to records: a member's bytes and the ranges that it acquired.

The records are read by aiokafka's compiled reader. It trusts lengths a few bytes beyond the end of a buffer, hence the
padding (`PADDING`); it gets no compressed bytes, since it would decompress without a limit.

Every acquired offset ends in exactly one place: a record, a gap (no record: compaction, control batch), a corrupt run
(bytes that cannot be read), or missing (behind the last whole batch: not sent). Where the compiled reader gives up at a
record, `each_record` reads those around it: one bad record costs none of its neighbours.
"""

from __future__ import annotations

import bisect
import functools
import itertools
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from operator import attrgetter, ge
from typing import Final, NamedTuple, Protocol, cast

from flowshare.protocol.codecs import decompress
from flowshare.protocol.each_record import Begin, PlainRecord, Room, Unreadable, each_record
from flowshare.protocol.headers import (
    CODEC_MASK,
    HEADER,
    HEADER_BYTES,
    OFFSET_MAX,
    BatchHeader,
    DecodeError,
    check_crc,
    check_header,
    frames,
)
from flowshare.share.types import AcquiredRange

PADDING: Final = bytes(64)
SIZE_MAX: Final = 64 * 1024 * 1024
ANSWER_BYTES_MAX: Final = 128 << 20
"""The bytes without compression after which no further batch of an answer is read; the rest is `later`."""
WHOLE_RECORDS_MAX: Final = 1 << 20
"""The most records of a batch that is kept for a second reading."""
AT_ONCE_RECORDS: Final = 1 << 13
"""The most records of a batch that are read at a time: no other thread runs meanwhile."""
KEPT_BYTES_MAX: Final = 4 << 20
Headers = tuple[tuple[str, bytes | None], ...]
Wanted = tuple[int, int]
"""The first and last wanted offset."""


class DecodedRecord(NamedTuple):
    """One record with the number of its delivery (0: read without acquiring)."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Headers
    delivery_count: int


class RawRecord(Protocol):
    """A record from aiokafka's reader: its fields become Python objects at their first use."""

    offset: int
    timestamp: int
    """The timestamp, in milliseconds since 1970."""
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]
    """Pairs of name and value."""


@dataclass(slots=True)
class Decoded:
    """The outcome for the acquired offsets. Each list is in offset order; runs are inclusive.

    records: to handle. gaps: to acknowledge as GAP. corrupt: (first, last, reason), to reject. missing: acquired but
    not in the bytes, to release.
    """

    records: list[DecodedRecord] = field(default_factory=list[DecodedRecord])
    gaps: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    corrupt: list[tuple[int, int, str]] = field(default_factory=list[tuple[int, int, str]])
    missing: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])


@dataclass(slots=True)
class RawDecoded:
    """The outcome as in `Decoded`, with the reader's own records, in runs of one delivery count each.

    batch_records: offsets of the longest batch. later: acquired but not read, because it would be too much at once.
    size: bytes without compression.
    """

    runs: list[tuple[list[RawRecord], int]] = field(default_factory=list[tuple[list[RawRecord], int]])
    gaps: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    corrupt: list[tuple[int, int, str]] = field(default_factory=list[tuple[int, int, str]])
    missing: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    later: list[AcquiredRange] = field(default_factory=list[AcquiredRange])
    batch_records: int = 0
    size: int = 0

    @property
    def records(self) -> list[RawRecord]:
        """All records, in offset order."""
        return [raw for raws, _ in self.runs for raw in raws]


class ReadBatch(NamedTuple):
    """Records of one batch and their offsets, rising. size: bytes without compression. damaged: unreadable bytes
    between them, rising."""

    records: list[RawRecord]
    offsets: list[int]
    size: int
    damaged: Sequence[Unreadable] = ()

    def whole(self) -> list[RawRecord]:
        """Return the records if none is damaged. Raises: DecodeError."""
        if self.damaged:
            raise DecodeError(self.damaged[0].reason)
        return self.records


NOTHING: Final = ReadBatch([], [], 0)


class _Enough(Exception):
    """No further batch should be read now."""


@contextmanager
def _enough(size: int, bytes_max: int) -> Generator[None]:
    """Read one more batch, unless enough was read or there is no memory for it. Raises: _Enough."""
    if size >= bytes_max:
        raise _Enough
    try:
        yield
    except MemoryError as error:
        raise (_Enough if size else error) from error


class LastBatch:
    """The last batch of the last answer, kept decoded: a member that got a part of it is sent the whole batch again."""

    __slots__ = ("_batch", "_first", "_raw")

    def __init__(self) -> None:
        self._first = -1
        self._raw: bytes = b""
        self._batch = ReadBatch([], [], 0)

    def read(self, padded: bytes, header: BatchHeader, size_max: int, wanted: Wanted, *, final: bool) -> ReadBatch:
        """Return the batch, decoded now or before; the same bytes are the same batch. Raises: DecodeError,
        MemoryError."""
        known = header.base_offset == self._first
        if (not known and not final) or header.record_count > WHOLE_RECORDS_MAX:
            return _read_batch(padded, header, size_max, wanted)
        raw = padded[header.position : header.position + header.size]
        if known and raw == self._raw:
            return self._batch
        batch = read_batch(padded, header, size_max)
        if final and header.size <= KEPT_BYTES_MAX:
            self._first, self._raw, self._batch = header.base_offset, raw, batch
        return batch


_offset: Callable[[RawRecord], int] = attrgetter("offset")
_new: Callable[[type[DecodedRecord], tuple[int, int, bytes | None, bytes | None, Headers, int]], DecodedRecord]
_new = tuple.__new__  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]


@functools.cache
def _reader() -> tuple[type, tuple[type[Exception], ...]]:
    from aiokafka.errors import CorruptRecordException
    from aiokafka.record.default_records import DefaultRecordBatch

    return DefaultRecordBatch, (CorruptRecordException, ValueError, OverflowError, SystemError)


def load_reader() -> None:
    """Import the record reader now, instead of at the first record."""
    _reader()


def decode(records: bytes, acquired: Sequence[AcquiredRange], *, size_max: int = SIZE_MAX) -> Decoded:
    """Decode the records inside the acquired ranges, which must not overlap.

    size_max: limit of one decompressed batch, in bytes. CRCs are checked; a batch that fails is reported as corrupt and
    the others are read. Records beyond the answer's limit count as missing.
    Raises: DecodeError (the bytes are no sequence of batches at all), MemoryError.
    """
    raw = decode_raw(records, acquired, size_max=size_max)
    raw.missing += [(one.first, one.last) for one in raw.later]
    found: list[DecodedRecord] = []
    for raws, delivery_count in raw.runs:
        found += whole(raws, delivery_count)
    return Decoded(found, raw.gaps, raw.corrupt, raw.missing)


def decode_raw(
    records: bytes,
    acquired: Sequence[AcquiredRange],
    *,
    size_max: int = SIZE_MAX,
    bytes_max: int = ANSWER_BYTES_MAX,
    last: LastBatch | None = None,
) -> RawDecoded:
    """Decode as `decode`, three times as fast: for callers that read only a few fields of each record.

    bytes_max: no batch is begun after so many bytes without compression; the rest is `later`, also where memory ends
    behind the first batch. last: of the answer before, for callers that read one answer after the other.
    """
    decoded = RawDecoded()
    batches = tuple(frames(records, partial_tail=True))
    _check_order(batches)
    ranges = sorted(acquired)
    if not ranges:
        return decoded
    if batches:
        decoded.batch_records = max(header.last_offset - header.base_offset for header in batches) + 1
        _add_runs(decoded.gaps, ranges, ranges[0].first, batches[0].base_offset - 1)
    padded, wanted = records + PADDING, (ranges[0].first, ranges[-1].last)

    def read(header: BatchHeader, final: bool) -> ReadBatch:
        with _enough(decoded.size, bytes_max):
            if last is None:
                return _read_batch(padded, header, size_max, wanted)
            return last.read(padded, header, size_max, wanted, final=final)

    begin, settled = 0, -1
    for index, header in enumerate(batches):
        final = index + 1 == len(batches)
        while begin < len(ranges) and ranges[begin].last < header.base_offset:
            begin += 1
        if begin == len(ranges):
            return decoded
        settled = ranges[-1].last if final else batches[index + 1].base_offset - 1
        if final or ranges[begin].first <= settled:
            settled = _decode_batch(decoded, read, header, ranges[begin:], settled, final)
            if decoded.later:
                return decoded
    _add_runs(decoded.missing, ranges, settled + 1, ranges[-1].last)
    return decoded


def decode_all(
    records: bytes, *, size_max: int = SIZE_MAX, damaged: list[Unreadable] | None = None
) -> list[DecodedRecord]:
    """Decode every record of whole batches, without control batches, with delivery count 0.

    damaged: gets the unreadable ranges.
    Raises: DecodeError (the first damage, without `damaged`; the bytes are no batches).
    """
    padded, found = records + PADDING, list[DecodedRecord]()
    for header in frames(records, partial_tail=True):
        try:
            batch = read_batch(padded, header, size_max)
        except DecodeError as error:
            if damaged is None:
                raise
            damaged.append(Unreadable(header.base_offset, header.last_offset, str(error)))
            continue
        found += whole(batch.records if damaged is not None else batch.whole(), 0)
        if damaged is not None:
            damaged += batch.damaged
    return found


def decode_within(
    records: bytes,
    first: int,
    last: int = OFFSET_MAX,
    *,
    limit: int | None = None,
    size_max: int = SIZE_MAX,
    damaged: list[Unreadable] | None = None,
) -> list[DecodedRecord]:
    """Decode as `decode_all`, only records from `first` to `last`, at most `limit`; few others of a batch are in
    memory.

    Raises: DecodeError (the first damage of a batch that has some of them, without `damaged`).
    """
    padded, found = records + PADDING, list[DecodedRecord]()
    for header in frames(records, partial_tail=True):
        if header.is_control or header.last_offset < first or header.base_offset > last:
            continue
        known = len(found)
        try:
            for step in read_in_steps(plain(padded, header, size_max), header, AT_ONCE_RECORDS):
                found += whole((raw for raw in step if first <= raw.offset <= last), 0)
                if limit is not None and len(found) >= limit:
                    return found[:limit]
        except DecodeError:
            if damaged is None:
                raise
            del found[known:]
            found += whole(_good_of(padded, header, size_max, (first, last), damaged), 0)
    return found if limit is None else found[:limit]


def _good_of(
    padded: bytes, header: BatchHeader, size_max: int, wanted: Wanted, damaged: list[Unreadable]
) -> list[RawRecord]:
    """Return the readable records of a damaged batch; add the unreadable offsets to `damaged`."""
    try:
        batch = _read_each(plain(padded, header, size_max), header, wanted)
    except DecodeError as error:
        damaged.append(Unreadable(header.base_offset, header.last_offset, str(error)))
        return []
    damaged += batch.damaged
    return batch.records


def with_unreadable(records: list[RawRecord], damaged: Sequence[Unreadable]) -> list[RawRecord]:
    """Return the records of batches, in order, with a record that stands for each unreadable offset."""
    if not damaged:
        return records
    unreadable: list[RawRecord] = [stands for one in damaged for stands in one.records]
    return sorted(records + unreadable, key=_offset)


def whole(raws: Iterable[RawRecord], delivery_count: int) -> list[DecodedRecord]:
    """Convert raw records to records with all their fields."""
    # tuple.__new__ instead of the class's own: half the time.
    return [
        _new(
            DecodedRecord,
            (r.offset, r.timestamp, r.key, r.value, tuple(h) if (h := r.headers) else (), delivery_count),
        )
        for r in raws
    ]


def _check_order(batches: Sequence[BatchHeader]) -> None:
    before = -1
    for header in batches:
        if header.base_offset <= before:
            raise DecodeError(f"the batch at offset {header.base_offset} comes after one at {before}")
        before = header.base_offset


def _decode_batch(
    decoded: RawDecoded,
    read: Callable[[BatchHeader, bool], ReadBatch],
    header: BatchHeader,
    ranges: Sequence[AcquiredRange],
    extent_last: int,
    final: bool,
) -> int:
    """Sort the offsets from this batch's base up to `extent_last` into `decoded`; return the last offset that is
    settled.

    Raises: MemoryError.
    """
    try:
        batch = read(header, final)
    except DecodeError as error:
        # The header of a damaged batch cannot be trusted: its extent ends where the next batch begins.
        for first, last in _pieces(ranges, header.base_offset, extent_last):
            decoded.corrupt.append((first, last, str(error)))
        return extent_last
    except _Enough:
        decoded.later = [one._replace(first=max(one.first, header.base_offset)) for one in ranges]
        return extent_last
    decoded.size += batch.size
    if final:
        extent_last = min(extent_last, header.last_offset)
    for acquired in ranges:
        if acquired.first > extent_last:
            break
        first, last = max(acquired.first, header.base_offset), min(acquired.last, extent_last)
        if first <= last:
            _take(decoded, batch, first, last, acquired.delivery_count)
    return extent_last


def _take(decoded: RawDecoded, batch: ReadBatch, first: int, last: int, delivery_count: int) -> None:
    low, high = bisect.bisect_left(batch.offsets, first), bisect.bisect_right(batch.offsets, last)
    records = batch.records if high - low == len(batch.records) else batch.records[low:high]
    if records:
        decoded.runs.append((records, delivery_count))
    if high - low == last - first + 1:
        return
    damaged = [one for one in batch.damaged if one.first <= last and one.last >= first]
    decoded.corrupt += [(max(first, one.first), min(last, one.last), one.reason) for one in damaged]
    taken = [(offset, offset) for offset in batch.offsets[low:high]]
    position = first
    for begin, end in sorted([*taken, *((one.first, one.last) for one in damaged)]) if damaged else taken:
        if begin > position:
            _add_run(decoded.gaps, position, begin - 1)
        position = end + 1
    if position <= last:
        _add_run(decoded.gaps, position, last)


def plain(padded: bytes, header: BatchHeader, size_max: int = SIZE_MAX) -> memoryview:
    """Return a checked batch without compression; `padded` has `PADDING` behind its batches.

    Raises: DecodeError
    """
    check_crc(padded, header)
    return unpacked(memoryview(padded)[header.position : header.position + header.size], header, size_max)


def unpacked(view: memoryview, header: BatchHeader, size_max: int = SIZE_MAX) -> memoryview:
    """Return a single batch (with `PADDING` behind it) without compression, its checksum not checked. Raises:
    DecodeError"""
    check_header(header)
    if header.attributes & CODEC_MASK:
        head = bytearray(view[:HEADER_BYTES])
        fields = list(HEADER.unpack(head))
        fields[5] = header.attributes & ~CODEC_MASK
        HEADER.pack_into(head, 0, *fields)
        return decompress(header.codec, view[HEADER_BYTES:], head=bytes(head), tail=len(PADDING), size_max=size_max)
    return view


class RawReader:
    """Reads the records of a `plain` batch, some at a time; their offsets are not checked.

    No record is skipped: behind an unreadable record nothing is read.
    """

    __slots__ = ("_begin", "_errors", "_header", "_headers_max", "_records", "_room", "_view")

    def __init__(self, view: memoryview, header: BatchHeader, *, headers_max: int | None = None) -> None:
        """headers_max: the most headers of one `take`, after the compiled reader has given up."""
        reader, self._errors = _reader()
        self._view, self._header = view, header
        self._headers_max = len(view) if headers_max is None else headers_max
        self._room = Room(self._headers_max)
        self._begin = Begin(0, header.base_offset)
        # The reader may be asked for its iterator once only; a slice of it would ask each time.
        self._records: Iterator[RawRecord] = itertools.chain(cast("Iterable[RawRecord]", reader(view)))

    def all(self, header: BatchHeader) -> list[RawRecord]:
        """Return all remaining records of the batch with this header. Raises: DecodeError."""
        try:
            return list(self._records)
        except self._errors as error:
            raise DecodeError(f"records of the batch at offset {header.base_offset} cannot be read: {error}") from error

    def take(self, count: int) -> list[RawRecord]:
        """Return the next `count` records, or fewer: then they are the last. Raises: DecodeError."""
        self._room.headers = self._headers_max
        try:
            found = list(itertools.islice(self._records, count))
        except self._errors:
            each = each_record(self._view, self._header, begin=self._begin, room=self._room)
            self._records = map(_readable, each)
            found = list(itertools.islice(self._records, count))
        if found:
            self._begin = Begin(self._begin.records + len(found), found[-1].offset + 1)
        return found


def _readable(one: PlainRecord | Unreadable) -> RawRecord:
    """Return a readable record. Raises: DecodeError."""
    if isinstance(one, Unreadable):
        raise DecodeError(one.reason)
    return one


def read_plain(view: memoryview, header: BatchHeader) -> list[RawRecord]:
    """Decode a `plain` batch, control records, too. Raises: DecodeError, MemoryError."""
    return _read_plain(view, header, (0, OFFSET_MAX)).whole()


def _read_plain(view: memoryview, header: BatchHeader, wanted: Wanted) -> ReadBatch:
    """Decode a `plain` batch; of a batch of many records only the wanted ones, and others are in memory only
    briefly."""
    try:
        return _read_good(view, header, wanted)
    except DecodeError:
        return _read_each(view, header, wanted)


def _read_good(view: memoryview, header: BatchHeader, wanted: Wanted) -> ReadBatch:
    """Read a batch without damage. Raises: DecodeError."""
    if header.record_count <= AT_ONCE_RECORDS:
        found = RawReader(view, header).all(header)
        offsets = list(map(_offset, found))
        _check_offsets(header, offsets)
        return ReadBatch(found, offsets, len(view))
    records = list[RawRecord]()
    for step in read_in_steps(view, header, AT_ONCE_RECORDS):
        if step and not wanted[0] <= step[0].offset <= step[-1].offset <= wanted[1]:
            step = [record for record in step if wanted[0] <= record.offset <= wanted[1]]
        records += step
    return ReadBatch(records, list(map(_offset, records)), len(view))


def _read_each(view: memoryview, header: BatchHeader, wanted: Wanted) -> ReadBatch:
    """Read the wanted records of a damaged batch one by one."""
    records: list[RawRecord] = []
    damaged: list[Unreadable] = []
    for one in each_record(view, header):
        if isinstance(one, Unreadable):
            if one.first <= wanted[1] and one.last >= wanted[0]:
                damaged.append(one)
        elif wanted[0] <= one.offset <= wanted[1]:
            records.append(one)
    return ReadBatch(records, list(map(_offset, records)), len(view), damaged)


def read_in_steps(
    view: memoryview, header: BatchHeader, count: int, *, headers_max: int | None = None
) -> Iterator[list[RawRecord]]:
    """Yield the records of a `plain` batch, `count` at a time; between two steps other threads may run. headers_max: as
    of `RawReader`. Raises: DecodeError."""
    reader, before, full = RawReader(view, header, headers_max=headers_max), header.base_offset - 1, True
    while full:
        step = reader.take(count)
        full = len(step) == count
        offsets = [before, *map(_offset, step)]
        if any(map(ge, offsets, itertools.islice(offsets, 1, None))) or offsets[-1] > header.last_offset:
            raise DecodeError(f"offsets inside the batch at {header.base_offset} are out of order or out of bounds")
        before = offsets[-1]
        yield step


def read_batch(padded: bytes, header: BatchHeader, size_max: int) -> ReadBatch:
    """Decode a batch, to no records for a control batch; `padded` has `PADDING` behind its batches.

    Raises: DecodeError, MemoryError.
    """
    return _read_batch(padded, header, size_max, (0, OFFSET_MAX))


def _read_batch(padded: bytes, header: BatchHeader, size_max: int, wanted: Wanted) -> ReadBatch:
    view = plain(padded, header, size_max)
    return ReadBatch([], [], len(view)) if header.is_control else _read_plain(view, header, wanted)


def _check_offsets(header: BatchHeader, offsets: list[int]) -> None:
    """Check that offsets rise within the batch. Raises: DecodeError."""
    span = header.last_offset - header.base_offset + 1
    if not offsets or (len(offsets) == span and offsets == list(range(header.base_offset, header.last_offset + 1))):
        return
    rising = all(a < b for a, b in itertools.pairwise(offsets))
    if not rising or offsets[0] < header.base_offset or offsets[-1] > header.last_offset:
        raise DecodeError(f"offsets inside the batch at {header.base_offset} are out of order or out of bounds")


def _pieces(ranges: Iterable[AcquiredRange], first: int, last: int) -> Iterable[tuple[int, int]]:
    for acquired in ranges:
        if acquired.first <= last and acquired.last >= first:
            yield max(acquired.first, first), min(acquired.last, last)


def _add_runs(runs: list[tuple[int, int]], ranges: Iterable[AcquiredRange], first: int, last: int) -> None:
    for piece in _pieces(ranges, first, last):
        _add_run(runs, *piece)


def _add_run(runs: list[tuple[int, int]], first: int, last: int) -> None:
    if runs and runs[-1][1] + 1 == first:
        runs[-1] = (runs[-1][0], last)
    else:
        runs.append((first, last))
