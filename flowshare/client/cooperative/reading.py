"""What a plain Fetch brought, as a scan wants it: all records with the hashes of their keys, and up to where."""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING, Final, NamedTuple

from flowshare.cooperative.ranges import Pair, holes
from flowshare.protocol.decoding import PADDING, SIZE_MAX, LastBatch, RawRecord
from flowshare.protocol.headers import OFFSET_MAX, BatchHeader, DecodeError, frames
from flowshare.protocol.key_hash import slot_hash_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flowshare.protocol.messages.records import AbortedTransaction, Filtered

WANTED: Final = (0, OFFSET_MAX)


class Scanned(NamedTuple):
    """records: (offset, hash, record), ascending, from the asked offset on. end: all before it was looked at. damaged:
    (first, last, why) of batches that cannot be read."""

    records: list[tuple[int, int, RawRecord]]
    end: int
    damaged: list[tuple[int, int, str]]


def scan_log(
    data: bytes,
    offset: int,
    aborted: Sequence[AbortedTransaction] = (),
    *,
    until: int = OFFSET_MAX,
    last: LastBatch | None = None,
) -> Scanned:
    """The records of whole batches from `offset` on, without control records and those of aborted transactions.

    aborted: as of a fetch of committed records. until: no batch is read that begins there or behind. last: keeps the
    last batch read, for who reads a few records of it at a time.
    Raises: DecodeError when the bytes are no sequence of batches at all.
    """
    last = last or LastBatch()
    padded = data + PADDING
    found = Scanned([], offset, [])
    records, _, damaged = found
    end = offset
    transactions = _Aborted(aborted)
    headers = [one for one in frames(data, partial_tail=True) if one.base_offset < until]
    for header in headers:
        skipped = transactions.skips(header)
        if header.last_offset < end:
            continue
        try:
            final = header is headers[-1]
            batch = [] if skipped else last.read(padded, header, SIZE_MAX, WANTED, final=final).records
        except DecodeError as error:
            damaged.append((max(end, header.base_offset), header.last_offset, str(error)))
        else:
            records += [(one.offset, slot_hash_of(one), one) for one in batch if end <= one.offset < until]
        end = header.last_offset + 1
    return found._replace(end=end)


def voids_of(filtered: Filtered, records: Sequence[tuple[int, int, RawRecord]]) -> list[Pair]:
    """Where no record of any key is, as a server says that left out other keys' (`FetchedLog.filtered`), and as is seen
    in the records that it gave.

    In batches that it could not open it saw nothing, so that it gave them whole.
    """
    if not filtered.unopened:
        return list(filtered.voids)
    offsets = [offset for offset, _, _ in records]
    voids = list(filtered.voids)
    for first, end in filtered.unopened:
        inside = offsets[bisect_left(offsets, first) : bisect_left(offsets, end)]
        voids += holes(first, end, inside)
    return sorted(voids)


class _Aborted:
    """Which batches belong to aborted transactions: from where each begins up to the marker that ends it."""

    def __init__(self, aborted: Sequence[AbortedTransaction]) -> None:
        self._coming = sorted(aborted, key=lambda one: one.first_offset, reverse=True)
        self._open: set[int] = set()

    def skips(self, header: BatchHeader) -> bool:
        """Whether no record of this batch counts; batches come in their order."""
        while self._coming and self._coming[-1].first_offset <= header.last_offset:
            self._open.add(self._coming.pop().producer_id)
        if header.is_control:
            self._open.discard(header.producer_id)
            return True
        return header.is_transactional and header.producer_id in self._open
