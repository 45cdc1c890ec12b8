"""How many records a trigger may take, where a query has a limit in time. Pure: the time comes in."""

from __future__ import annotations


class Rate:
    """`per_second` records on average, 0: no limit; never more than `most` at once."""

    def __init__(self, per_second: float, most: int) -> None:
        self._per_second = per_second
        self._most = most
        self._free_s: float | None = None
        """When everything taken so far is paid for."""

    def room(self, now_s: float) -> int:
        """How many may be taken now; what was not used for a second is lost."""
        if not self._per_second:
            return self._most
        # The little more: the time of one record, times the rate, may come out as a bit less than one.
        return max(0, min(self._most, int(self._saved_s(now_s) * self._per_second + 1e-9)))

    def took(self, records: int, now_s: float) -> None:
        """So many were taken: more than asked for where batches are not cut."""
        if self._per_second:
            self._free_s = now_s - self._saved_s(now_s) + records / self._per_second

    def _saved_s(self, now_s: float) -> float:
        """Time that was not used, a second of it at most, or as long as one record takes."""
        most_s = max(1.0, 1.0 / self._per_second)
        return most_s if self._free_s is None else min(most_s, now_s - self._free_s)
