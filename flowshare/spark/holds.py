"""What a member holds: ranges, when their locks lapse, and over which connection they came. Pure: the time comes in."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from flowshare.spark.ranges import Range


class Hold(NamedTuple):
    """One range. generation: number of the connection, None: an earlier process's, whatever connection is there now."""

    lapses_s: float
    generation: int | None


class Holds:
    """The ranges that one member holds; they do not overlap."""

    def __init__(self) -> None:
        self._holds: dict[Range, Hold] = {}

    def take(self, ranges: Iterable[Range], lapses_s: float, generation: int | None) -> None:
        """They are held from now on."""
        self._holds.update(dict.fromkeys(ranges, Hold(lapses_s, generation)))

    def ranges(self) -> list[Range]:
        """All of them."""
        return list(self._holds)

    def parts(self, one: Range) -> list[tuple[Range, int | None]]:
        """The held parts of a range, each with its delivery and its generation."""
        return [
            (held._replace(first=max(held.first, one.first), last=min(held.last, one.last)), hold.generation)
            for held, hold in list(self._holds.items())
            if held.place == one.place and held.first <= one.last and held.last >= one.first
        ]

    def let_go(self, one: Range) -> None:
        """Hold a range no more; what is beside it within the same hold stays."""
        for part, _ in self.parts(one):
            held = next(
                held for held in self._holds if held.place == part.place and held.first <= part.first <= held.last
            )
            hold = self._holds.pop(held)
            if held.first < part.first:
                self._holds[held._replace(last=part.first - 1)] = hold
            if held.last > part.last:
                self._holds[held._replace(first=part.last + 1)] = hold

    def forget(self, topic: str) -> None:
        """Hold nothing of a topic any more."""
        for one in [one for one in self._holds if one.topic == topic]:
            del self._holds[one]

    def due(self, by_s: float) -> list[Range]:
        """What lapses by then."""
        return [one for one, hold in self._holds.items() if hold.lapses_s <= by_s]

    def renewed(self, one: Range, lapses_s: float) -> None:
        """Its lock was renewed; harmless when it is not held any more."""
        if one in self._holds:
            self._holds[one] = self._holds[one]._replace(lapses_s=lapses_s)

    def lost(self, one: Range) -> bool:
        """Its lock was lost; whether it was held."""
        return self._holds.pop(one, None) is not None
