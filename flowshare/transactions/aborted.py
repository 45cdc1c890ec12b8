"""The aborted transactions of one partition, in the order of their markers: readers of committed records skip them.

Kept as four columns of numbers, 32 bytes a transaction, a fraction of its marker's size in the log; transactions before
the log start are forgotten.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Iterator
from operator import itemgetter
from typing import NamedTuple


class Aborted(NamedTuple):
    """One aborted transaction: its producer, its first offset, and that of its marker.

    stable: the last stable offset behind it. Transactions aborted later began there or behind, so a search may stop.
    """

    producer_id: int
    first: int
    last: int
    stable: int


class AbortedSpans:
    """A few aborted transactions by producer, to tell which batches belong to them."""

    __slots__ = ("_spans",)

    def __init__(self, aborted: Iterable[Aborted]) -> None:
        """aborted: in the order of their markers."""
        self._spans: dict[int, list[tuple[int, int]]] = {}
        for entry in aborted:
            self._spans.setdefault(entry.producer_id, []).append((entry.first, entry.last))

    def holds(self, producer_id: int, offset: int) -> bool:
        """True if the producer's transactional batch at this offset belongs to one of these aborted transactions."""
        spans = self._spans.get(producer_id)
        if spans is None:
            return False
        at = bisect_right(spans, offset, key=itemgetter(0)) - 1
        return at >= 0 and offset <= spans[at][1]


class AbortedIndex:
    """All aborted transactions of a partition whose markers are in the log."""

    __slots__ = ("_firsts", "_lasts", "_producers", "_stables")

    def __init__(self) -> None:
        self._producers = array("q")
        self._firsts = array("q")
        self._lasts = array("q")
        self._stables = array("q")

    def add(self, aborted: Aborted) -> None:
        """Take in the next one; markers come in the order of their offsets."""
        assert not self._lasts or aborted.last > self._lasts[-1], "markers are added in the log's order"
        self._producers.append(aborted.producer_id)
        self._firsts.append(aborted.first)
        self._lasts.append(aborted.last)
        self._stables.append(aborted.stable)

    def between(self, first: int, end: int) -> tuple[Aborted, ...]:
        """Return the transactions with offsets in `first` ≤ offset < `end`."""
        return tuple(found for found in self._behind(first, end) if found.first < end)

    def remove(self, lasts: Collection[int]) -> int:
        """Forget the transactions with a marker at these offsets and no records in the log any more; return their
        number."""
        stay = [index for index, last in enumerate(self._lasts) if last not in lasts]
        gone = len(self._lasts) - len(stay)
        if gone:
            for column in (self._producers, self._firsts, self._lasts, self._stables):
                column[:] = array("q", (column[index] for index in stay))
        return gone

    def _behind(self, first: int, end: int) -> Iterator[Aborted]:
        for index in range(bisect_left(self._lasts, first), len(self._lasts)):
            found = Aborted(self._producers[index], self._firsts[index], self._lasts[index], self._stables[index])
            yield found
            if found.stable >= end:
                return

    def cut(self, log_start: int) -> None:
        """Forget the transactions that lie before the log start, markers included."""
        count = bisect_left(self._lasts, log_start)
        for column in (self._producers, self._firsts, self._lasts, self._stables):
            del column[:count]
