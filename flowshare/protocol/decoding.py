"""Record batches to records: what a member does with the bytes and the acquired ranges that it was sent.

The records themselves are read by aiokafka's compiled reader. It trusts lengths a few bytes beyond the end of a
buffer, hence the padding (`PADDING`); it gets no compressed bytes, since it would decompress without a limit.

Every acquired offset ends in exactly one place: a record, a gap (nothing is there: compaction, control batch), a
corrupt run (something is there that cannot be read), or missing (behind the last whole batch: not sent).
"""

from __future__ import annotations

import bisect
import functools
import itertools
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Final, NamedTuple, Protocol, cast

from flowshare.protocol.codecs import decompress
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
"""Bytes without compression after which no further batch of an answer is read: what follows is for later."""
WHOLE_RECORDS_MAX: Final = 1 << 20
"""Of a batch of more records only those that were asked for are kept."""
STEP_RECORDS: Final = 1 << 16
KEPT_BYTES_MAX: Final = 4 << 20
Headers = tuple[tuple[str, bytes | None], ...]
Wanted = tuple[int, int]
"""First and last offset that somebody wants."""


class DecodedRecord(NamedTuple):
    """One record with the number of its delivery (0 when it was read without acquiring)."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Headers
    delivery_count: int


class RawRecord(Protocol):
    """A record as aiokafka's reader gives it: its fields become Python objects when they are asked for."""

    offset: int
    timestamp: int
    """Milliseconds since 1970."""
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]
    """Pairs of name and value."""


@dataclass(slots=True)
class Decoded:
    """What became of the acquired offsets, each list in offset order; runs are inclusive.

    records: to be handled. gaps: to be acknowledged as GAP. corrupt: (first, last, reason), to be rejected.
    missing: acquired but not in the bytes: to be released.
    """

    records: list[DecodedRecord] = field(default_factory=list[DecodedRecord])
    gaps: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    corrupt: list[tuple[int, int, str]] = field(default_factory=list[tuple[int, int, str]])
    missing: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])


@dataclass(slots=True)
class RawDecoded:
    """As `Decoded`, with the records as the reader made them, in runs of one delivery count each.

    batch_records: offsets of the longest batch. later: acquired, and not read, because there would be too much at once.
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
    """Records of one batch and their offsets, rising; size: bytes without compression."""

    records: list[RawRecord]
    offsets: list[int]
    size: int


class _Enough(Exception):
    """No further batch is to be read now."""


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
    """The last batch of the last answer, kept read: a member that was given a part of it is sent it whole again."""

    __slots__ = ("_batch", "_first", "_raw")

    def __init__(self) -> None:
        self._first = -1
        self._raw: bytes = b""
        self._batch = ReadBatch([], [], 0)

    def read(self, padded: bytes, header: BatchHeader, size_max: int, wanted: Wanted, *, final: bool) -> ReadBatch:
        """The batch, read now or before; the same bytes are the same batch. Raises: DecodeError, MemoryError."""
        known = header.base_offset == self._first
        if (not known and not final) or header.record_count > WHOLE_RECORDS_MAX:
            return _read_batch(padded, header, size_max, wanted)
        raw = padded[header.position : header.position + header.size]
        if known and raw == self._raw:
            return self._batch
        batch = _read_batch(padded, header, size_max, wanted)
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
    """Import what reads records now, instead of at the first of them."""
    _reader()


def decode(records: bytes, acquired: Sequence[AcquiredRange], *, size_max: int = SIZE_MAX) -> Decoded:
    """The records inside the acquired ranges, which must not overlap.

    `size_max` is the limit for one batch when decompressed. CRCs are checked; a batch that fails is reported as
    corrupt and the others are read on. What would be too much at once counts as missing.

    Raises: DecodeError when the bytes are no sequence of batches at all; MemoryError.
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
    """As `decode`, and three times as fast: for callers that look at a few fields of each record only.

    bytes_max: no batch is begun when so many bytes without compression were read; also where memory ends behind the
    first one, the rest is for later. last: of the answer before, for who reads one answer after the other.
    """
    last = last or LastBatch()
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


def decode_all(records: bytes, *, size_max: int = SIZE_MAX) -> list[DecodedRecord]:
    """Every record of whole batches, control batches left out, with delivery count 0.

    Raises: DecodeError at the first damage.
    """
    padded, found = records + PADDING, list[DecodedRecord]()
    for header in frames(records, partial_tail=True):
        found += whole(read_batch(padded, header, size_max).records, 0)
    return found


def whole(raws: Iterable[RawRecord], delivery_count: int) -> list[DecodedRecord]:
    """Raw records with all their fields."""
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
    """Share out the offsets from this batch's base up to `extent_last`; returns the last one that is settled.

    Raises: MemoryError.
    """
    try:
        batch = read(header, final)
    except DecodeError as error:
        # The header of a damaged batch is not to be trusted: its extent ends where the next batch begins.
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
    position = first
    for offset in batch.offsets[low:high]:
        if offset > position:
            _add_run(decoded.gaps, position, offset - 1)
        position = offset + 1
    if position <= last:
        _add_run(decoded.gaps, position, last)


def plain(padded: bytes, header: BatchHeader, size_max: int = SIZE_MAX) -> memoryview:
    """A checked batch as it would be without compression; `padded` has `PADDING` behind its batches.

    Raises: DecodeError
    """
    check_crc(padded, header)
    return unpacked(memoryview(padded)[header.position : header.position + header.size], header, size_max)


def unpacked(view: memoryview, header: BatchHeader, size_max: int = SIZE_MAX) -> memoryview:
    """As `plain`, of the batch alone (`PADDING` is behind it), without a look at the checksum. Raises: DecodeError"""
    check_header(header)
    if header.attributes & CODEC_MASK:
        head = bytearray(view[:HEADER_BYTES])
        fields = list(HEADER.unpack(head))
        fields[5] = header.attributes & ~CODEC_MASK
        HEADER.pack_into(head, 0, *fields)
        return decompress(header.codec, view[HEADER_BYTES:], head=bytes(head), tail=len(PADDING), size_max=size_max)
    return view


class RawReader:
    """The records of what `plain` gave, some at a time; nothing is known yet of their offsets."""

    __slots__ = ("_errors", "_records")

    def __init__(self, view: memoryview) -> None:
        reader, self._errors = _reader()
        # The reader may be asked for its iterator once only; a slice of it would ask each time.
        self._records = itertools.chain(cast("Iterable[RawRecord]", reader(view)))

    def take(self, count: int) -> list[RawRecord]:
        """The next ones: `count`, or fewer if they are the last; then it is used up. Raises: DecodeError."""
        try:
            return list(itertools.islice(self._records, count))
        except self._errors as error:
            raise DecodeError(str(error)) from error


def read_plain(view: memoryview, header: BatchHeader) -> list[RawRecord]:
    """The records of what `plain` gave, control records too. Raises: DecodeError, MemoryError."""
    return _read_plain(view, header, (0, OFFSET_MAX)).records


def _read_plain(view: memoryview, header: BatchHeader, wanted: Wanted) -> ReadBatch:
    if header.record_count > WHOLE_RECORDS_MAX:
        return _read_part(view, header, wanted)
    reader, errors = _reader()
    try:
        records = list(cast("Iterable[RawRecord]", reader(view)))
    except errors as error:
        raise DecodeError(f"records of the batch at offset {header.base_offset} cannot be read: {error}") from error
    offsets = list(map(_offset, records))
    _check_offsets(header, offsets)
    return ReadBatch(records, offsets, len(view))


def _read_part(view: memoryview, header: BatchHeader, wanted: Wanted) -> ReadBatch:
    """What is wanted of a batch that should not lie in memory with all its records."""
    reader, records, before = RawReader(view), list[RawRecord](), header.base_offset - 1
    full = True
    while full:
        step = reader.take(STEP_RECORDS)
        full = len(step) == STEP_RECORDS
        offsets = [before, *map(_offset, step)]
        if any(a >= b for a, b in itertools.pairwise(offsets)) or offsets[-1] > header.last_offset:
            raise DecodeError(f"offsets inside the batch at {header.base_offset} are out of order or out of bounds")
        before = offsets[-1]
        records += [record for record in step if wanted[0] <= record.offset <= wanted[1]]
    return ReadBatch(records, list(map(_offset, records)), len(view))


def read_batch(padded: bytes, header: BatchHeader, size_max: int) -> ReadBatch:
    """A batch's records, none of a control batch; `padded` has `PADDING` behind its batches.

    Raises: DecodeError, MemoryError.
    """
    return _read_batch(padded, header, size_max, (0, OFFSET_MAX))


def _read_batch(padded: bytes, header: BatchHeader, size_max: int, wanted: Wanted) -> ReadBatch:
    view = plain(padded, header, size_max)
    return ReadBatch([], [], len(view)) if header.is_control else _read_plain(view, header, wanted)


def _check_offsets(header: BatchHeader, offsets: list[int]) -> None:
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
