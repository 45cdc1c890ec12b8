"""The acquisition locks of one member: ranges, their ends, and the connections over which they were acquired. Pure."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from flowshare.spark.source.ranges import Place, Range

UNKNOWN_S: Final = 0.0
"""The end of an earlier process's lock: due at once, because the first renewal tells if it still holds."""


class Lock(NamedTuple):
    """A locked range. lapses_s: end of the lock in monotonic seconds, UNKNOWN_S: an earlier process's, not renewed yet.
    generation: number of the connection; None: an earlier process's, with any connection."""

    range: Range
    lapses_s: float
    generation: int | None


class Locks:
    """The ranges that one member holds; they do not overlap.

    They are kept by partition and ascending: outcomes let go of a batch record by record, and must not search all each
    time.
    """

    def __init__(self) -> None:
        self._holds: dict[Place, list[Lock]] = {}

    def __iter__(self) -> Iterator[Lock]:
        return (hold for holds in self._holds.values() for hold in holds)

    def take(self, ranges: Iterable[Range], lapses_s: float, generation: int | None) -> None:
        """Add ranges that are held from now on, in place of earlier holds of them."""
        for one in ranges:
            self._replace(one, [Lock(one, lapses_s, generation)])

    def ranges(self) -> list[Range]:
        """Return all held ranges."""
        return [hold.range for hold in self]

    def parts(self, one: Range) -> list[tuple[Range, int | None]]:
        """Return the held parts of a range, each with its delivery and its generation."""
        begin, end = self._window(one)
        return [
            (
                hold.range._replace(first=max(hold.range.first, one.first), last=min(hold.range.last, one.last)),
                hold.generation,
            )
            for hold in self._holds.get(one.place, [])[begin:end]
        ]

    def let_go(self, one: Range) -> None:
        """Remove a range; the rest of the same hold stays."""
        self._replace(one, [])

    def forget(self, topic: str) -> None:
        """Remove all ranges of a topic."""
        self._holds = {place: holds for place, holds in self._holds.items() if place[0] != topic}

    def due(self, by_s: float) -> list[Range]:
        """Return the ranges whose locks lapse by this time."""
        return [hold.range for hold in self if hold.lapses_s <= by_s]

    def renewed(self, one: Range, lapses_s: float) -> None:
        """Set the new end of a renewed lock; ignored if the range is not held any more."""
        found = self._find(one)
        if found is not None:
            self._replace(one, [found._replace(lapses_s=lapses_s)])

    def lost(self, one: Range) -> bool:
        """Remove a range whose lock was lost; True: this process held it, not only the one before."""
        found = self._find(one)
        if found is None:
            return False
        self._replace(one, [])
        return found.lapses_s != UNKNOWN_S

    def _find(self, one: Range) -> Lock | None:
        """Return the hold of exactly this range."""
        begin, end = self._window(one)
        return next((hold for hold in self._holds.get(one.place, [])[begin:end] if hold.range == one), None)

    def _window(self, one: Range) -> tuple[int, int]:
        """Return the bounds, from and behind, of the partition's holds that have a part in a range."""
        holds = self._holds.get(one.place, [])
        return (
            bisect_left(holds, one.first, key=lambda hold: hold.range.last),
            bisect_right(holds, one.last, key=lambda hold: hold.range.first),
        )

    def _replace(self, one: Range, by: list[Lock]) -> None:
        """Replace the holds of a range by others."""
        begin, end = self._window(one)
        holds = self._holds.setdefault(one.place, [])
        old = holds[begin:end]
        before = [
            hold._replace(range=hold.range._replace(last=one.first - 1))
            for hold in old[:1]
            if hold.range.first < one.first
        ]
        behind = [
            hold._replace(range=hold.range._replace(first=one.last + 1))
            for hold in old[-1:]
            if hold.range.last > one.last
        ]
        holds[begin:end] = [*before, *by, *behind]
        if not holds:
            del self._holds[one.place]
