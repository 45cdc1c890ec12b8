"""How long handlers took, as a histogram: filled once a handler call or once a run of short ones."""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

BOUNDS_S: Final = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
"""Upper bounds of the buckets, inclusive; the last bucket has none."""


class HandlerTimes:
    """Counts by bucket. Written by one thread, read from anywhere."""

    __slots__ = ("_counts", "sum_s")

    def __init__(self) -> None:
        self._counts = [0] * (len(BOUNDS_S) + 1)
        self.sum_s = 0.0
        """Seconds in all."""

    def add(self, seconds: float, records: int = 1) -> None:
        """`records` handler calls, one after another, took `seconds` together."""
        if records == 1:  # every call of a handler that waits
            self._counts[bisect_left(BOUNDS_S, seconds)] += 1
        elif records > 0:
            self._counts[bisect_left(BOUNDS_S, seconds / records)] += records
        else:
            return
        self.sum_s += seconds

    def cumulative(self) -> list[tuple[str, float]]:
        """Prometheus buckets: upper bound as text, calls up to it."""
        total = 0
        found: list[tuple[str, float]] = []
        for bound, count in zip((*BOUNDS_S, float("inf")), list(self._counts), strict=True):
            total += count
            found.append(("+Inf" if bound == float("inf") else str(bound), float(total)))
        return found
