"""Fetches that want only some keys of a partition (`FetchPartition.only`).

Members of a cooperative group that share a partition each want a part of its keys. Each batch is opened once for all of
them and kept for a while; each member is sent the batch thinned to its own records. So the log is unpacked once, not
once for each member. A batch without wanted records is not sent; the answer says beside the records how far the server
has looked.

A member that sees no other's records cannot tell those records from holes in the log. So the holes (*voids*) are told
to the member that asked for hash 0, which commits them: control batches, batches of aborted transactions for readers of
committed records, and records removed by compaction. A batch that cannot be opened is sent whole to every member, which
then finds out: damaged, or just larger than the server opens.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from flowshare.cooperative.ranges import holes
from flowshare.protocol.headers import BatchHeader, DecodeError, frames
from flowshare.protocol.key_hash import slot_hash_of
from flowshare.protocol.messages.records import Filtered
from flowshare.protocol.thinning import OPENED_RECORDS_MAX, OpenedBatch, batched
from flowshare.server.share.opened_log import RECORD_BYTES, OpenedBatches

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from flowshare.log.base import ReadResult
    from flowshare.protocol.messages.records import KeyFilter
    from flowshare.server.runtime.turns import Turns
    from flowshare.share.types import LogBatch

SCAN_BYTES: Final = 4 << 20
"""Bytes of a partition's log that one fetch looks at, about, however few are wanted."""
READ_BYTES: Final = 1 << 20
"""Bytes read at a time."""
ALL_SCANS_BYTES: Final = 16 << 20
"""Bytes that one fetch looks at on all partitions together, about."""
VOIDS_MAX: Final = 10_000
"""Most voids told at once; with so many, looking stops."""
PLACE_BITS: Final = OPENED_RECORDS_MAX.bit_length()
PLACE_MASK: Final = (1 << PLACE_BITS) - 1
"""Mask of a record's place in its batch, which stands below its hash while both are sorted: numbers sort fast."""
HASH_BYTES: Final = 80
"""Bytes of memory that a record takes in the order of hashes, about."""


class Hashed(NamedTuple):
    """A batch that was opened: the offsets of its records, rising, and their hashes, rising, each with its record's
    place. batch None: the batch cannot be opened."""

    header: BatchHeader
    batch: OpenedBatch | None
    offsets: list[int]
    hashes: list[int]
    places: list[int]

    @property
    def size(self) -> int:
        """Bytes of memory that the batch takes, about."""
        plain = 0 if self.batch is None else self.batch.size
        return plain + (RECORD_BYTES + HASH_BYTES) * len(self.offsets)

    def wanted(self, keys: Sequence[tuple[int, int]], offset: int) -> list[int]:
        """Return the places of records with these hashes from an offset on, rising."""
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
        """Return the batch's holes from an offset on: half-open ranges."""
        least = bisect_left(self.offsets, offset)
        return holes(offset, self.header.last_offset + 1, self.offsets[least:] if least else self.offsets)


@dataclass(slots=True)
class Scan:
    """Progress and findings of a fetch on a partition. position: everything before it was looked at."""

    only: KeyFilter
    position: int
    looked: int = 0
    """Bytes of batches looked at."""
    voids: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    unopened: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])

    @property
    def over(self) -> bool:
        """True if the scan has to stop: enough was looked at, the end is reached, or there are too many voids."""
        return self.looked >= SCAN_BYTES or self.position >= self.only.until or len(self.voids) >= VOIDS_MAX

    @property
    def answer(self) -> Filtered:
        """The part of the answer beside the records: position, voids and unopened ranges."""
        return Filtered(self.position, tuple(self.voids), tuple(self.unopened))

    def void(self, first: int, end: int) -> None:
        """Note that there is no record from `first` up to, without, `end`."""
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
        """Thin a read's batches to the wanted records; about `room` bytes, one batch at least."""
        pieces: list[bytes] = []
        size = 0
        aborted = sorted(read.aborted)
        for raw, batch in zip(read.pieces, read.batches, strict=True):
            if scan.over or (pieces and size >= room):
                break
            await turns.take()
            piece = await self._piece(log, raw, batch, scan, aborted)
            if piece:
                pieces.append(piece)
                size += len(piece)
        return pieces

    async def _piece(
        self, log: tuple[str, int], raw: bytes, batch: LogBatch, scan: Scan, aborted: Sequence[tuple[int, int]]
    ) -> bytes:
        """Thin one batch to the wanted records; return no bytes if there are none."""
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
        kept = await self._opened(log, raw, header)
        if kept.batch is None:
            scan.unopened.append((first, position))
            return raw
        for hole in kept.holes(first):
            scan.void(*hole)
        wanted = kept.wanted(scan.only.keys, first)
        if not wanted:
            return b""
        return raw if len(wanted) == len(kept.offsets) else kept.batch.keep(wanted)

    async def _opened(self, log: tuple[str, int], raw: bytes, header: BatchHeader) -> Hashed:
        """Return the batch, opened now or before; the same checksum at the same place is the same batch."""
        kept = self._known(log, header)
        if kept is None:
            try:
                kept = await self._batches.opened(header, self._steps(log, raw, header))
            except (DecodeError, MemoryError):
                return Hashed(header, None, [], [], [])
            self._batches.add(log, kept)
        return kept

    def _known(self, log: tuple[str, int], header: BatchHeader) -> Hashed | None:
        """Return the kept batch with this header, or None."""
        kept = self._batches.find(log, header.base_offset)
        return kept if kept is not None and kept.header == header else None

    def _steps(self, log: tuple[str, int], raw: bytes, header: BatchHeader) -> Generator[None, None, Hashed]:
        """Open a batch and sort its records by their hashes, a step at a time. Raises: DecodeError, MemoryError"""
        known = self._known(log, header)
        if known is not None:
            return known  # another fetch did during the wait
        batch = yield from OpenedBatch.in_steps(raw, header)
        offsets: list[int] = []
        sorted_by: list[int] = []
        for some in batched(batch.records):
            sorted_by += [slot_hash_of(one) << PLACE_BITS | at for at, one in enumerate(some, len(offsets))]
            offsets += [one.offset for one in some]
            yield
        sorted_by.sort()
        hashes, places = [one >> PLACE_BITS for one in sorted_by], [one & PLACE_MASK for one in sorted_by]
        return Hashed(header, batch, offsets, hashes, places)


def _within(batches: Sequence[tuple[int, int]], offset: int) -> bool:
    at = bisect_right(batches, (offset, 1 << 63)) - 1
    return at >= 0 and batches[at][0] <= offset <= batches[at][1]
