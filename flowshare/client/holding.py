"""What one member holds by its own account: what it was given and has not heard the end of.

Needed once in a while only: when another process has taken over a path, the member says what it holds, and what the
new leader believes to be this member's beyond that (an answer that died with the old leader) goes back at once.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from flowshare.protocol.messages import TopicPartition

RANGES_MAX: Final = 10_000
"""Ranges kept of a partition; beyond that the lowest are forgotten: locks that lapsed are never heard of again."""


class Ranges:
    """Offsets as sorted ranges that neither overlap nor touch."""

    __slots__ = ("_firsts", "_lasts")

    def __init__(self) -> None:
        self._firsts: list[int] = []
        self._lasts: list[int] = []

    def __bool__(self) -> bool:
        return bool(self._firsts)

    def add(self, first: int, last: int) -> None:
        """Hold `first`..`last`, both inclusive."""
        firsts, lasts = self._firsts, self._lasts
        if not lasts or first > lasts[-1] + 1:
            firsts.append(first)
            lasts.append(last)
        else:
            low = bisect_left(lasts, first - 1)
            high = bisect_right(firsts, last + 1)
            if low < high:
                first, last = min(first, firsts[low]), max(last, lasts[high - 1])
            firsts[low:high] = [first]
            lasts[low:high] = [last]
        if len(firsts) > RANGES_MAX:
            del firsts[0], lasts[0]

    def remove(self, first: int, last: int) -> None:
        """Hold `first`..`last` no more, as far as it is held."""
        firsts, lasts = self._firsts, self._lasts
        low = bisect_left(lasts, first)
        high = bisect_right(firsts, last)
        if low >= high:
            return
        kept: list[tuple[int, int]] = []
        if firsts[low] < first:
            kept.append((firsts[low], first - 1))
        if lasts[high - 1] > last:
            kept.append((last + 1, lasts[high - 1]))
        firsts[low:high] = [one for one, _ in kept]
        lasts[low:high] = [one for _, one in kept]

    def keep(self, ranges: Iterable[tuple[int, int]]) -> None:
        """Hold no more what is in none of `ranges`."""
        if not self:
            return
        at, end = self._firsts[0], self._lasts[-1]
        for first, last in sorted(ranges):
            if at < first:
                self.remove(at, first - 1)
            at = max(at, last + 1)
        if at <= end:
            self.remove(at, end)

    def all(self) -> tuple[tuple[int, int], ...]:
        """All ranges, ascending."""
        return tuple(zip(self._firsts, self._lasts, strict=True))


class Holding:
    """What a member holds, by partition."""

    def __init__(self) -> None:
        self._partitions: dict[TopicPartition, Ranges] = {}

    def acquired(self, tp: TopicPartition, first: int, last: int) -> None:
        """It came into hand."""
        held = self._partitions.get(tp)
        if held is None:
            held = self._partitions[tp] = Ranges()
        held.add(first, last)

    def ended(self, tp: TopicPartition, first: int, last: int) -> None:
        """The server said what became of it."""
        held = self._partitions.get(tp)
        if held is not None:
            held.remove(first, last)
            if not held:
                del self._partitions[tp]

    def keep(self, tp: TopicPartition, ranges: Iterable[tuple[int, int]]) -> None:
        """The leader says that no more than this is still in hand."""
        held = self._partitions.get(tp)
        if held is not None:
            held.keep(ranges)
            if not held:
                del self._partitions[tp]

    def drop(self, tp: TopicPartition) -> None:
        """All of a partition's is given to others."""
        self._partitions.pop(tp, None)

    def clear(self) -> None:
        """All of it is given to others."""
        self._partitions.clear()

    def has(self, tp: TopicPartition) -> bool:
        """Whether anything of a partition is in hand."""
        return tp in self._partitions

    def of(self, tp: TopicPartition) -> tuple[tuple[int, int], ...]:
        """What is in hand of one partition."""
        held = self._partitions.get(tp)
        return () if held is None else held.all()

    def all(self) -> Mapping[TopicPartition, tuple[tuple[int, int], ...]]:
        """What is in hand."""
        return {tp: held.all() for tp, held in self._partitions.items()}
