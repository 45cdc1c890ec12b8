"""`Latencies`: durations, as a histogram of a few integers."""

from __future__ import annotations

from bisect import bisect_left
from typing import Final, NamedTuple

BOUNDS_S: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Upper bounds of the buckets in seconds, inclusive; the last bucket has none."""


class Histogram(NamedTuple):
    """A copy: number of durations up to each bound, the last one without (`inf`), and their sum."""

    cumulative: tuple[tuple[float, int], ...]
    sum_s: float


class Latencies:
    """Durations, written on one loop."""

    __slots__ = ("_counts", "_sum_s")

    def __init__(self) -> None:
        self._counts = [0] * (len(BOUNDS_S) + 1)
        self._sum_s = 0.0

    def add(self, seconds: float) -> None:
        """Add a duration."""
        self._counts[bisect_left(BOUNDS_S, seconds)] += 1
        self._sum_s += seconds

    def copy(self) -> Histogram:
        """Return a copy."""
        total = 0
        found: list[tuple[float, int]] = []
        for bound, count in zip((*BOUNDS_S, float("inf")), self._counts, strict=True):
            total += count
            found.append((bound, total))
        return Histogram(tuple(found), self._sum_s)
