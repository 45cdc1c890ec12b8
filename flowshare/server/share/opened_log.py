"""The log of a share-partition whose records come in the order of their keys: opened, and thinned to what was picked.

A leader without an order reads batch headers only. Here each batch is opened once to learn the keys of its records, and
kept for a while, because what is free of it is handed out soon. A member is sent the picked records of a batch and not
the batch: else each pick would send it whole.
"""

from __future__ import annotations

import logging
from bisect import bisect_left, bisect_right, insort
from collections import OrderedDict
from typing import TYPE_CHECKING, Final, Generic, NamedTuple, Protocol, TypeVar

from flowshare.garbage import collector_paused
from flowshare.log.base import LogError, StorageError
from flowshare.protocol.headers import BatchHeader, DecodeError, frames
from flowshare.protocol.private import REPLAY_HEADER
from flowshare.protocol.thinning import OpenedBatch
from flowshare.share.heads import KeyedBatch

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from flowshare.log.base import ReadResult
    from flowshare.protocol.decoding import RawRecord
    from flowshare.protocol.key_hash import KeyOrder
    from flowshare.server.share.partition_log import PartitionLog
    from flowshare.share.types import AcquiredRange

logger = logging.getLogger(__name__)

KEPT_BYTES_MAX: Final = 64 << 20
"""Of all opened batches of a process, about, without compression."""
RECORD_BYTES: Final = 200
"""What a record that was read takes beside its bytes, about."""
PLACE_RECORDS: Final = 2_000
"""Records whose keys are learnt at once, about: a millisecond's work."""
PLACE_BYTES: Final = 1 << 20
"""Bytes that are read at once to learn keys."""
READ_TRIES: Final = 8
"""How often the log is read again because it was said to have changed meanwhile."""
OPENED_BYTES: Final = 16 << 20
"""Of what was read so much is opened at once, without compression: batches may be a thousand times what they take."""

_REPLAY: Final = REPLAY_HEADER.encode()


class NotReadYet(LogError):
    """The log gives nothing from an offset on that it had: a new leader of Kafka's knows less for a while, or what is
    there is not committed."""


class Kept(NamedTuple):
    """A batch as it lies in the log, opened. batch: None: it cannot be opened, and goes out whole. offsets: of its
    records, rising. marked: one of them may be a replayed one (`share.parking`). epoch: `ReadResult.leader_epoch`."""

    raw: bytes
    header: BatchHeader
    batch: OpenedBatch | None
    offsets: list[int]
    marked: bool = False
    epoch: int = -1

    def holds(self, offset: int) -> bool:
        """Whether an offset lies within it."""
        return self.header.base_offset <= offset <= self.header.last_offset

    def record(self, offset: int) -> RawRecord | None:
        """One record, None if there is none at that offset."""
        if self.batch is None:
            return None
        at = bisect_left(self.offsets, offset)
        return self.batch.records[at] if at < len(self.offsets) and self.offsets[at] == offset else None

    @property
    def size(self) -> int:
        """Bytes that it takes, about."""
        plain = 0 if self.batch is None else self.batch.size
        return len(self.raw) + plain + RECORD_BYTES * len(self.offsets)


class Sized(Protocol):
    """A batch that was opened. size: bytes that it takes, about."""

    @property
    def header(self) -> BatchHeader: ...
    @property
    def size(self) -> int: ...


B = TypeVar("B", bound=Sized)


class OpenedBatches(Generic[B]):
    """The batches of several logs that were opened last."""

    def __init__(self, bytes_max: int = KEPT_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._kept: OrderedDict[tuple[object, int], B] = OrderedDict()
        self._bases: dict[object, list[int]] = {}

    def add(self, log: object, kept: B) -> None:
        """Keep a batch of a log; what was not used for longest makes room."""
        key = (log, kept.header.base_offset)
        if key in self._kept:
            self._drop(key)
        self._kept[key] = kept
        self._bytes += kept.size
        insort(self._bases.setdefault(log, []), kept.header.base_offset)
        while self._bytes > self._bytes_max and len(self._kept) > 1:
            self._drop(next(iter(self._kept)))

    def find(self, log: object, offset: int) -> B | None:
        """The batch that holds an offset."""
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
        """Keep nothing of a log: it was cut, or is served here no more."""
        for base in self._bases.pop(log, ()):
            self._bytes -= self._kept.pop((log, base)).size

    def _drop(self, key: tuple[object, int]) -> None:
        self._bytes -= self._kept.pop(key).size
        bases = self._bases[key[0]]
        del bases[bisect_left(bases, key[1])]
        if not bases:
            del self._bases[key[0]]


class Thinned(NamedTuple):
    """What was read of picked records. end: those from this offset on are for later, there was no room for their bytes,
    or they cannot be read now; −1: all were read. missing: not in the log any more, rising. marked: those of batches in
    which there may be marks of replays. epoch: the log's highest leader epoch among all. batches: that were read, as
    they lie in the log."""

    records: bytes
    missing: list[int]
    end: int
    marked: Sequence[int] = ()
    epoch: int = -1
    batches: Sequence[Kept] = ()

    def within(self, ranges: Iterable[tuple[int, int]]) -> Iterator[tuple[RawRecord, bool]]:
        """The records of rising ranges (first, last), each with whether it may be a replayed one."""
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
    """One share-partition's. owner: what names it among all whose batches are kept."""

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
        """What is before it was deleted."""
        return self._log.bounds().log_start

    def end(self) -> int:
        """The offset after the last record that members may get."""
        return self._log.end()

    def forget(self) -> None:
        """What was read, or is being read, may be something else by now."""
        self._life += 1
        self._batches.forget(self._owner)

    def close(self) -> None:
        """Keep nothing any more: the next one to serve the share-partition has the same name."""
        self._closed = True
        self.forget()

    async def keys(self, offset: int) -> tuple[list[KeyedBatch], int]:
        """The keys of the records from `offset` on, about `PLACE_RECORDS`, and the log's leader epoch there.

        Transaction markers, and what was aborted if only what is committed counts, have no records. Raises: as
        `PartitionLog.read`.
        """
        opened, read = await self._read(offset, PLACE_RECORDS)
        aborted = sorted(read.aborted)
        return [self._keyed(kept, aborted) for kept in opened], read.leader_epoch

    async def _read(self, offset: int, records_max: int) -> tuple[list[Kept], ReadResult]:
        """Read and open batches. Raises: as `PartitionLog.read`; StorageError: all was forgotten again and again."""
        for _ in range(READ_TRIES):
            life = self._life
            read = await self._log.read(offset, records_max=records_max, bytes_max=PLACE_BYTES)
            if life == self._life:
                return self._open(read), read
        raise StorageError(f"the log of {self._log.topic}-{self._log.partition} changed while it was read; read again")

    def _keyed(self, kept: Kept, aborted: Sequence[tuple[int, int]]) -> KeyedBatch:
        first, last = kept.header.base_offset, kept.header.last_offset
        at = bisect_right(aborted, (first, 1 << 63)) - 1
        if kept.header.is_control or (at >= 0 and aborted[at][0] <= first <= aborted[at][1]):
            return KeyedBatch(first, last, ())
        if kept.batch is None:
            return KeyedBatch(first, last, None)
        return KeyedBatch(first, last, kept.offsets, self.order.hashes_of(kept.batch.records))

    async def records(self, ranges: Sequence[AcquiredRange], *, bytes_max: int) -> Thinned:
        """The records of picked ranges, in batches thinned to them; one batch at least, whatever its size.

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
        """One record; None: it is not in the log any more, or cannot be opened. Raises: as `PartitionLog.read`,
        NotReadYet."""
        kept = await self._find(offset)
        return None if kept is None else kept.record(offset)

    async def _find(self, offset: int) -> Kept | None:
        """The batch that holds an offset; None: the log goes on behind it without one. Raises: NotReadYet, LogError."""
        kept = self._batches.find(self._owner, offset)
        if kept is not None:
            return kept
        opened, _ = await self._read(offset, 1)
        # Not out of those that are kept: what was opened behind it may have taken its room.
        found = next((one for one in opened if one.header.last_offset >= offset), None)
        if found is None:
            raise NotReadYet(f"nothing can be read of {self._log.topic}-{self._log.partition} from offset {offset} on")
        return found if found.holds(offset) else None

    def _open(self, read: ReadResult) -> list[Kept]:
        """Open what was read, up to OPENED_BYTES and one batch at least, and keep it."""
        opened: list[Kept] = []
        records = read.records
        size = 0
        with collector_paused():
            for header in frames(records, partial_tail=True):
                if size > OPENED_BYTES:
                    break
                kept = self._batches.find(self._owner, header.base_offset)
                if kept is None or kept.header.base_offset != header.base_offset or kept.header.crc != header.crc:
                    raw = records[header.position : header.position + header.size]
                    kept = self._opened(raw, header)._replace(epoch=read.leader_epoch)
                    if not self._closed:
                        self._batches.add(self._owner, kept)
                opened.append(kept)
                size += kept.size
        return opened

    def _opened(self, raw: bytes, header: BatchHeader) -> Kept:
        header = header._replace(position=0)
        try:
            batch = OpenedBatch(raw, header)
        except (DecodeError, MemoryError) as error:
            self._tell(header, error)
            return Kept(raw, header, None, [])
        marked = batch.contains(_REPLAY)
        return Kept(raw, header, batch, [record.offset for record in batch.records], marked)

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
