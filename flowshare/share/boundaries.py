"""The boundaries of the batches in a window as they were first acquired, as Kafka's in-flight map keeps them.

Rules about a batch need them: acquiring it again as a whole (SG-5.3), halving it (SG-6.2), the reach of an
acknowledgement (SG-7.3).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import Final

_COMPACT: Final = 4096


class CachedBatches:
    """First and last offsets of the batches in the window, ascending, and which of them are tracked by offset."""

    def __init__(self) -> None:
        self.firsts: list[int] = []
        self.lasts: list[int] = []
        self.exploded: set[int] = set()
        self.head = 0  # entries before it are finished; they are cut off when they outweigh the rest

    def floor(self, offset: int) -> int:
        """Return the index of the last batch that starts at or before `offset`, −1 if there is none."""
        index = bisect_right(self.firsts, offset, self.head) - 1
        return index if index >= self.head else -1

    def add(self, first: int, last: int) -> None:
        """Add a batch that overlaps no other."""
        index = bisect_left(self.firsts, first, self.head)
        self.firsts.insert(index, first)
        self.lasts.insert(index, last)

    def explode(self, first: int, last: int) -> None:
        """Track by offset those batches that `first`..`last` covers in part."""
        for offset in (first, last):
            index = self.floor(offset)
            if (
                index >= 0
                and first <= self.lasts[index]
                and not (first <= self.firsts[index] and self.lasts[index] <= last)
            ):
                self.exploded.add(self.firsts[index])

    def explode_one(self, offset: int) -> None:
        """Track by offset the batch that holds `offset`, unless the batch is this offset alone."""
        index = bisect_right(self.firsts, offset, self.head) - 1
        first = self.firsts[index]
        if first not in self.exploded and self.lasts[index] != first:
            self.exploded.add(first)

    def trim(self, start: int) -> None:
        """Forget the batches that end below `start`."""
        lasts, head, size = self.lasts, self.head, len(self.lasts)
        while head < size and lasts[head] < start:
            self.exploded.discard(self.firsts[head])
            head += 1
        if head > _COMPACT and 2 * head > size:
            del self.firsts[:head]
            del self.lasts[:head]
            head = 0
        self.head = head

    def cut(self, end: int) -> None:
        """Forget the offsets from `end` on; a batch that reaches past `end` ends there."""
        keep = bisect_left(self.firsts, end, self.head)
        self.exploded.difference_update(self.firsts[keep:])
        del self.firsts[keep:]
        del self.lasts[keep:]
        if keep > self.head and self.lasts[-1] >= end:
            self.lasts[-1] = end - 1

    def clear(self) -> None:
        """Forget all batches."""
        self.firsts.clear()
        self.lasts.clear()
        self.exploded.clear()
        self.head = 0
