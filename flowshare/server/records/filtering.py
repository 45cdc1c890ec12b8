"""What a fetch gives of a partition of which only some keys are wanted (`FetchPartition.only`).

Members of a cooperative group that share a partition each want a part of its keys. Each batch is opened once for all
of them, kept for a while, and each is sent the batch thinned to its records: so the log is unpacked once, not once a
member. Where nothing of a batch is wanted nothing is sent of it; how far was looked is said beside the records.

A member that sees no other's records cannot tell them from holes in the log, so the holes (*voids*) are told to whoever
asked for hash 0, which is who commits them: control batches, batches of aborted transactions for readers of committed
records, and what compaction took. A batch that cannot be opened is sent whole to everybody, who then sees what the
server did not: whether it is damaged, or just larger than what is opened here.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from flowshare.cooperative.ranges import holes
from flowshare.garbage import collector_paused
from flowshare.protocol.headers import BatchHeader, DecodeError, frames
from flowshare.protocol.key_hash import slot_hash_of
from flowshare.protocol.messages.records import Filtered
from flowshare.protocol.thinning import OpenedBatch
from flowshare.server.share.opened_log import RECORD_BYTES, OpenedBatches

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flowshare.log.base import ReadResult
    from flowshare.protocol.messages.records import KeyFilter
    from flowshare.server.runtime.turns import Turns
    from flowshare.share.types import LogBatch

SCAN_BYTES: Final = 4 << 20
"""Of a partition's log one fetch looks at about so much, however little of it is wanted."""
READ_BYTES: Final = 1 << 20
"""Of which so much is read at a time."""
ALL_SCANS_BYTES: Final = 16 << 20
"""So much it looks at of all partitions together, about."""
VOIDS_MAX: Final = 10_000
"""Voids that are told at once; with so many nothing more is looked at."""
HASH_BYTES: Final = 80
"""What a record takes in the order of hashes."""


class Hashed(NamedTuple):
    """A batch that was opened: the offsets of its records, rising, and their hashes, rising, each with its record's
    place. batch None: it cannot be opened."""

    header: BatchHeader
    batch: OpenedBatch | None
    offsets: list[int]
    hashes: list[int]
    places: list[int]

    @property
    def size(self) -> int:
        """Bytes that it takes, about."""
        plain = 0 if self.batch is None else self.batch.size
        return plain + (RECORD_BYTES + HASH_BYTES) * len(self.offsets)

    def wanted(self, keys: Sequence[tuple[int, int]], offset: int) -> list[int]:
        """The places of records with these hashes from an offset on, rising."""
        least = bisect_left(self.offsets, offset)
        if len(keys) > len(self.hashes):
            firsts = [first for first, _ in keys]
            inside = (bisect_right(firsts, hash_) - 1 for hash_ in self.hashes)
            found = [
                place
                for place, hash_, at in zip(self.places, self.hashes, inside, strict=True)
                if at >= 0 and hash_ < keys[at][1]
            ]
        else:
            found = list[int]()
            for first, end in keys:
                low = bisect_left(self.hashes, first)
                found += self.places[low : bisect_left(self.hashes, end, low)]
        found.sort()
        return found[bisect_left(found, least) :] if least else found

    def holes(self, offset: int) -> list[tuple[int, int]]:
        """Where it has no records, from an offset on: half-open ranges."""
        least = bisect_left(self.offsets, offset)
        return holes(offset, self.header.last_offset + 1, self.offsets[least:] if least else self.offsets)


@dataclass(slots=True)
class Scan:
    """How far a fetch has looked at a partition, and what it found. position: everything before it was looked at."""

    only: KeyFilter
    position: int
    looked: int = 0
    """Bytes of batches."""
    voids: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    unopened: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])

    @property
    def over(self) -> bool:
        """Whether it is to look no further."""
        return self.looked >= SCAN_BYTES or self.position >= self.only.until or len(self.voids) >= VOIDS_MAX

    @property
    def answer(self) -> Filtered:
        """What is told beside the records."""
        return Filtered(self.position, tuple(self.voids), tuple(self.unopened))

    def void(self, first: int, end: int) -> None:
        """There is no record from `first` up to, without, `end`."""
        if first >= end or self.only.keys[0][0] > 0:
            return
        if self.voids and self.voids[-1][1] == first:
            self.voids[-1] = self.voids[-1][0], end
        else:
            self.voids.append((first, end))


class BatchFilter:
    """Opens batches and thins them, for all fetches of a server."""

    def __init__(self) -> None:
        self._batches: OpenedBatches[Hashed] = OpenedBatches()

    async def thin(self, log: tuple[str, int], read: ReadResult, scan: Scan, turns: Turns, *, room: int) -> list[bytes]:
        """What is wanted of what was read of a log, in batches; about `room` bytes, one batch at least."""
        pieces: list[bytes] = []
        size = 0
        aborted = sorted(read.aborted)
        for raw, batch in zip(read.pieces, read.batches, strict=True):
            if scan.over or (pieces and size >= room):
                break
            await turns.take()
            piece = self._piece(log, raw, batch, scan, aborted)
            if piece:
                pieces.append(piece)
                size += len(piece)
        return pieces

    def _piece(
        self, log: tuple[str, int], raw: bytes, batch: LogBatch, scan: Scan, aborted: Sequence[tuple[int, int]]
    ) -> bytes:
        """What is wanted of a batch; empty: nothing."""
        first, position = max(batch.first, scan.position), batch.last + 1
        scan.void(scan.position, batch.first)
        scan.position, scan.looked = position, scan.looked + len(raw)
        try:
            header = next(frames(raw))
        except DecodeError:
            scan.unopened.append((first, position))
            return raw
        if header.is_control or _within(aborted, header.base_offset):
            scan.void(first, position)
            return b""
        kept = self._opened(log, raw, header)
        if kept.batch is None:
            scan.unopened.append((first, position))
            return raw
        for hole in kept.holes(first):
            scan.void(*hole)
        wanted = kept.wanted(scan.only.keys, first)
        if not wanted:
            return b""
        return raw if len(wanted) == len(kept.offsets) else kept.batch.keep(wanted)

    def _opened(self, log: tuple[str, int], raw: bytes, header: BatchHeader) -> Hashed:
        """The batch, opened now or before; the same checksum at the same place is the same batch."""
        kept = self._batches.find(log, header.base_offset)
        if kept is not None and kept.header == header:
            return kept
        try:
            with collector_paused():
                batch = OpenedBatch(raw, header)
        except (DecodeError, MemoryError):
            return Hashed(header, None, [], [], [])
        offsets = [record.offset for record in batch.records]
        by_hash = sorted(zip(map(slot_hash_of, batch.records), range(len(offsets)), strict=True))
        kept = Hashed(header, batch, offsets, [one[0] for one in by_hash], [one[1] for one in by_hash])
        self._batches.add(log, kept)
        return kept


def _within(batches: Sequence[tuple[int, int]], offset: int) -> bool:
    at = bisect_right(batches, (offset, 1 << 63)) - 1
    return at >= 0 and batches[at][0] <= offset <= batches[at][1]
