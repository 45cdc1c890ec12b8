"""The log of a share-partition ordered by key: its batches opened, and thinned to the picked records.

A leader without an order reads batch headers only. Here each batch is opened once to learn the keys of its records, and
kept for a while, because its free records are handed out soon. A member is sent the picked records of a batch and not
the batch: else each pick would send the whole batch.
"""

from __future__ import annotations

import asyncio
import logging
from bisect import bisect_left, bisect_right, insort
from collections import OrderedDict
from typing import TYPE_CHECKING, Final, Generic, NamedTuple, Protocol, TypeVar, cast

from flowshare.garbage import collector_paused
from flowshare.log.base import LogError, StorageError
from flowshare.protocol.headers import BatchHeader, DecodeError, frames
from flowshare.protocol.private import REPLAY_HEADER
from flowshare.protocol.thinning import STEP_RECORDS, OpenedBatch, batched
from flowshare.share.heads import KeyedBatch

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator, Sequence

    from flowshare.log.base import ReadResult
    from flowshare.protocol.decoding import RawRecord
    from flowshare.protocol.key_hash import KeyOrder
    from flowshare.server.share.partition_log import PartitionLog
    from flowshare.share.types import AcquiredRange

logger = logging.getLogger(__name__)

KEPT_BYTES_MAX: Final = 64 << 20
"""Bytes of all opened batches of a process, about, without compression."""
RECORD_BYTES: Final = 240
"""Bytes of memory that a read record takes beside its own bytes, about."""
PLACE_RECORDS: Final = 2_000
"""Records whose keys are learnt at once, about: a millisecond's work."""
PLACE_BYTES: Final = 1 << 20
"""Bytes that are read at once to learn keys."""
READ_TRIES: Final = 8
"""Reads tried while the log is reported as changed during each."""
OPENED_BYTES: Final = 16 << 20
"""Bytes opened at once, without compression: an opened batch may be a thousand times as large as a stored one."""

_REPLAY: Final = REPLAY_HEADER.encode()


class NotReadYet(LogError):
    """The log gives nothing from an offset on that it had: a new Kafka leader knows less for a while, or the records
    are not committed."""


class Kept(NamedTuple):
    """A batch of the log, opened. batch: None: the batch cannot be opened, and goes out whole. offsets: of its records,
    rising. hashes: of the records' ordering keys. marked: True if a record may be a replayed one (`share.parking`).
    epoch: `ReadResult.leader_epoch`."""

    raw: bytes
    header: BatchHeader
    batch: OpenedBatch | None
    offsets: list[int]
    hashes: list[int]
    marked: bool = False
    epoch: int = -1

    def holds(self, offset: int) -> bool:
        """Return True if an offset lies within the batch."""
        return self.header.base_offset <= offset <= self.header.last_offset

    def record(self, offset: int) -> RawRecord | None:
        """Return the record at an offset; None if the batch has none there."""
        if self.batch is None:
            return None
        at = bisect_left(self.offsets, offset)
        return self.batch.records[at] if at < len(self.offsets) and self.offsets[at] == offset else None

    @property
    def size(self) -> int:
        """Bytes of memory that the batch takes, about."""
        plain = 0 if self.batch is None else self.batch.size
        return len(self.raw) + plain + RECORD_BYTES * len(self.offsets)


class Sized(Protocol):
    """An opened batch. size: bytes of memory that the batch takes, about."""

    @property
    def header(self) -> BatchHeader: ...
    @property
    def size(self) -> int: ...


B = TypeVar("B", bound=Sized)
R = TypeVar("R")


def ended(steps: Generator[None, None, R]) -> R:
    """Run all steps now and return their result."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return cast("R", end.value)


class OpenedBatches(Generic[B]):
    """The most recently used opened batches of several logs."""

    def __init__(self, bytes_max: int = KEPT_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._kept: OrderedDict[tuple[object, int], B] = OrderedDict()
        self._bases: dict[object, list[int]] = {}
        self._large = asyncio.Lock()

    async def opened(self, header: BatchHeader, steps: Generator[None, None, R]) -> R:
        """Open a batch by its steps and return their result. Large batches are opened one at a time, one step in each
        round of the loop: a few kilobytes may hold a hundred thousand records."""
        if header.record_count <= STEP_RECORDS:
            with collector_paused():
                return ended(steps)
        async with self._large:
            while True:
                with collector_paused():
                    try:
                        next(steps)
                    except StopIteration as end:
                        return cast("R", end.value)
                await asyncio.sleep(0)

    def add(self, log: object, kept: B) -> None:
        """Keep a batch of a log, dropping the least recently used batches for its room."""
        key = (log, kept.header.base_offset)
        if key in self._kept:
            self._drop(key)
        self._kept[key] = kept
        self._bytes += kept.size
        insort(self._bases.setdefault(log, []), kept.header.base_offset)
        while self._bytes > self._bytes_max and len(self._kept) > 1:
            self._drop(next(iter(self._kept)))

    def find(self, log: object, offset: int) -> B | None:
        """Return the kept batch that holds an offset, or None."""
        bases = self._bases.get(log, [])
        at = bisect_right(bases, offset) - 1
        if at < 0:
            return None
        key = (log, bases[at])
        kept = self._kept[key]
        if kept.header.last_offset < offset:
            return None
        self._kept.move_to_end(key)
        return kept

    def forget(self, log: object) -> None:
        """Drop all batches of a log: the log was cut, or is not served here any more."""
        for base in self._bases.pop(log, ()):
            self._bytes -= self._kept.pop((log, base)).size

    def _drop(self, key: tuple[object, int]) -> None:
        self._bytes -= self._kept.pop(key).size
        bases = self._bases[key[0]]
        del bases[bisect_left(bases, key[1])]
        if not bases:
            del self._bases[key[0]]


class Thinned(NamedTuple):
    """The picked records as they were read. end: first offset left for later, as its bytes had no room or cannot be
    read now; −1: all were read. missing: offsets that are not in the log any more, rising. marked: offsets in batches
    that may hold marks of replays. epoch: the highest leader epoch of all batches. batches: the batches that were read,
    as they lie in the log."""

    records: bytes
    missing: list[int]
    end: int
    marked: Sequence[int] = ()
    epoch: int = -1
    batches: Sequence[Kept] = ()

    def within(self, ranges: Iterable[tuple[int, int]]) -> Iterator[tuple[RawRecord, bool]]:
        """Yield the records of rising ranges (first, last), each with True if it may be a replayed record."""
        batches = iter(self.batches)
        kept = next(batches, None)
        for first, last in ranges:
            while kept is not None:
                if kept.batch is not None:
                    begin = bisect_left(kept.offsets, first)
                    for record in kept.batch.records[begin : bisect_right(kept.offsets, last, begin)]:
                        yield record, kept.marked
                if kept.header.last_offset >= last:
                    break
                kept = next(batches, None)


class OpenedLog:
    """The opened log of one share-partition. owner: its name among all logs with kept batches."""

    def __init__(self, log: PartitionLog, order: KeyOrder, batches: OpenedBatches[Kept], owner: object) -> None:
        self._log = log
        self.order = order
        self._batches = batches
        self._owner = owner
        self._told = False
        self._life = 0
        self._closed = False

    @property
    def log_start(self) -> int:
        """The log's first offset."""
        return self._log.bounds().log_start

    def end(self) -> int:
        """Return the offset after the last record that members may get."""
        return self._log.end()

    def forget(self) -> None:
        """Forget the opened batches, those being read included: the log may have changed."""
        self._life += 1
        self._batches.forget(self._owner)

    def close(self) -> None:
        """Keep no batches from now on: the next owner of the share-partition uses the same name."""
        self._closed = True
        self.forget()

    async def keys(self, offset: int) -> tuple[list[KeyedBatch], int]:
        """Return the keys of the records from `offset` on, about `PLACE_RECORDS`, and the log's leader epoch there.

        Transaction markers, and aborted batches where only committed records count, have no records. Raises: as
        `PartitionLog.read`.
        """
        opened, read = await self._read(offset, PLACE_RECORDS)
        aborted = sorted(read.aborted)
        found: list[KeyedBatch] = []
        records = 0
        for kept in opened:
            if found and records >= PLACE_RECORDS:
                break
            found.append(self._keyed(kept, aborted, offset))
            records += len(found[-1].offsets or ())
        return found, read.leader_epoch

    async def _read(self, offset: int, records_max: int) -> tuple[list[Kept], ReadResult]:
        """Read and open batches. Raises: as `PartitionLog.read`; StorageError: the batches were forgotten `READ_TRIES`
        times."""
        for _ in range(READ_TRIES):
            life = self._life
            read = await self._log.read(offset, records_max=records_max, bytes_max=PLACE_BYTES)
            opened = await self._open(read, life) if life == self._life else None
            if opened is not None:
                return opened, read
        raise StorageError(f"the log of {self._log.topic}-{self._log.partition} changed while it was read; read again")

    def _keyed(self, kept: Kept, aborted: Sequence[tuple[int, int]], offset: int) -> KeyedBatch:
        """Return a batch's keys; of a large batch those from `offset` on, at most `PLACE_RECORDS`."""
        first, last = kept.header.base_offset, kept.header.last_offset
        at = bisect_right(aborted, (first, 1 << 63)) - 1
        if kept.header.is_control or (at >= 0 and aborted[at][0] <= first <= aborted[at][1]):
            return KeyedBatch(first, last, ())
        if kept.batch is None:
            return KeyedBatch(first, last, None)
        if len(kept.offsets) <= PLACE_RECORDS:
            return KeyedBatch(first, last, kept.offsets, kept.hashes)
        begin = bisect_left(kept.offsets, offset)
        end = begin + PLACE_RECORDS
        first = max(first, min(offset, last))
        last = kept.offsets[end] - 1 if end < len(kept.offsets) else last
        return KeyedBatch(first, last, kept.offsets[begin:end], kept.hashes[begin:end])

    async def records(self, ranges: Sequence[AcquiredRange], *, bytes_max: int) -> Thinned:
        """Return the records of picked ranges, in batches thinned to them; one batch at least, of any size.

        Raises: as `PartitionLog.read`, if the first of them cannot be read.
        """
        wanted = [offset for first, last, _ in ranges for offset in range(first, last + 1)]
        pieces: list[bytes] = []
        missing: list[int] = []
        marked: list[int] = []
        batches: list[Kept] = []
        size = at = 0
        epoch = -1
        while at < len(wanted):
            try:
                kept = await self._find(wanted[at])
            except LogError as error:
                if at or isinstance(error, NotReadYet):
                    return Thinned(b"".join(pieces), missing, wanted[at], marked, epoch, batches)
                raise
            if kept is None:
                missing.append(wanted[at])
                at += 1
                continue
            until = bisect_right(wanted, kept.header.last_offset, at)
            piece = self._thinned(kept, wanted[at:until], missing)
            if pieces and size + len(piece) > bytes_max:
                return Thinned(b"".join(pieces), missing, wanted[at], marked, epoch, batches)
            pieces.append(piece)
            batches.append(kept)
            epoch = max(epoch, kept.epoch)
            if kept.marked:
                marked += wanted[at:until]
            size += len(piece)
            at = until
        return Thinned(b"".join(pieces), missing, -1, marked, epoch, batches)

    async def record(self, offset: int) -> RawRecord | None:
        """Return a record; None: the record is not in the log any more, or cannot be opened. Raises: as
        `PartitionLog.read`, NotReadYet."""
        kept = await self._find(offset)
        return None if kept is None else kept.record(offset)

    async def _find(self, offset: int) -> Kept | None:
        """Return the batch that holds an offset; None: the log goes on behind it without one. Raises: NotReadYet,
        LogError."""
        kept = self._batches.find(self._owner, offset)
        if kept is not None:
            return kept
        opened, _ = await self._read(offset, 1)
        # Not from the kept batches: batches opened behind this one may have taken its room.
        found = next((one for one in opened if one.header.last_offset >= offset), None)
        if found is None:
            raise NotReadYet(f"nothing can be read of {self._log.topic}-{self._log.partition} from offset {offset} on")
        return found if found.holds(offset) else None

    async def _open(self, read: ReadResult, life: int) -> list[Kept] | None:
        """Open the batches of a read, up to OPENED_BYTES and one at least, and keep them; None: they were forgotten
        meanwhile."""
        opened: list[Kept] = []
        records = read.records
        size = 0
        for header in frames(records, partial_tail=True):
            if size > OPENED_BYTES:
                break
            kept = self._known(header)
            if kept is None:
                raw = records[header.position : header.position + header.size]
                kept = (await self._opened(raw, header))._replace(epoch=read.leader_epoch)
                if life != self._life:
                    return None
                if not self._closed:
                    self._batches.add(self._owner, kept)
            opened.append(kept)
            size += kept.size
        return opened

    def _known(self, header: BatchHeader) -> Kept | None:
        """Return the kept batch with this header, or None."""
        kept = self._batches.find(self._owner, header.base_offset)
        known = kept is not None and kept.header.base_offset == header.base_offset and kept.header.crc == header.crc
        return kept if known else None

    async def _opened(self, raw: bytes, header: BatchHeader) -> Kept:
        header = header._replace(position=0)
        try:
            return await self._batches.opened(header, self._steps(raw, header))
        except (DecodeError, MemoryError) as error:
            self._tell(header, error)
            return Kept(raw, header, None, [], [])

    def _steps(self, raw: bytes, header: BatchHeader) -> Generator[None, None, Kept]:
        """Open a batch and learn its keys, a step at a time. Raises: DecodeError, MemoryError"""
        known = self._known(header)
        if known is not None:
            return known  # another task opened it during the wait
        batch = yield from OpenedBatch.in_steps(raw, header)
        hashes: list[int] = []
        for some in batched(batch.records):
            hashes += self.order.hashes_of(some)
            yield
        marked = batch.contains(_REPLAY)
        return Kept(raw, header, batch, [record.offset for record in batch.records], hashes, marked)

    def _tell(self, header: BatchHeader, error: BaseException) -> None:
        if self._told:
            return
        self._told = True
        logger.error(
            "topic=%s partition=%d: the batch at offsets %d..%d cannot be opened, so nobody knows its keys: it is "
            "handed out when all before it is settled, and nothing passes it until it is: %s",
            self._log.topic,
            self._log.partition,
            header.base_offset,
            header.last_offset,
            str(error) or "out of memory",
        )

    def _thinned(self, kept: Kept, wanted: list[int], missing: list[int]) -> bytes:
        offsets = kept.offsets
        if kept.batch is None or (len(wanted) == len(offsets) and wanted == offsets):
            return kept.raw
        first = bisect_left(offsets, wanted[0])
        if offsets[first : first + len(wanted)] == wanted:
            return kept.batch.keep(range(first, first + len(wanted)))
        indexes: list[int] = []
        for offset in wanted:
            at = bisect_left(offsets, offset)
            if at < len(offsets) and offsets[at] == offset:
                indexes.append(at)
            else:
                missing.append(offset)
        return kept.batch.keep(indexes) if indexes else b""
