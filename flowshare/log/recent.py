"""Recently appended batches of a storage, kept in memory so that readers at the log's end never wait for the store.

One budget for all partitions: the batches appended longest ago go first, whichever partition they are of.
"""

from __future__ import annotations

import bisect
from collections import deque
from typing import Final, NamedTuple

ENTRY_BYTES: Final = 200
"""What an entry takes besides its batch."""
COMPACT_AT: Final = 1024


class TailBatch(NamedTuple):
    """One batch with its offsets."""

    first: int
    last: int
    records: bytes


class Tail:
    """The last batches of one partition, without holes between them."""

    __slots__ = ("_batches", "_firsts", "_head")

    def __init__(self) -> None:
        self._batches: list[TailBatch] = []
        self._firsts: list[int] = []
        self._head = 0

    def covers(self, offset: int) -> bool:
        """Whether the batch that holds `offset` is here, given that it is in the log."""
        return self._head < len(self._firsts) and self._firsts[self._head] <= offset

    def read(self, offset: int, end: int, max_bytes: int) -> list[TailBatch]:
        """Batches from the one that holds `offset` on that end before `end`; at least one if there is one."""
        index = bisect.bisect_right(self._firsts, offset, lo=self._head) - 1
        found, size = list[TailBatch](), 0
        while index < len(self._batches):
            batch = self._batches[index]
            size += len(batch.records)
            if batch.last >= end or (found and size > max_bytes):
                break
            found.append(batch)
            index += 1
        return found

    def append(self, batch: TailBatch) -> None:
        """Add the next batch."""
        self._batches.append(batch)
        self._firsts.append(batch.first)

    def drop_first(self) -> int:
        """Forget the oldest batch; returns its size, 0 when there is none."""
        if self._head == len(self._batches):
            return 0
        size = len(self._batches[self._head].records) + ENTRY_BYTES
        self._batches[self._head] = TailBatch(0, 0, b"")
        self._head += 1
        if self._head >= COMPACT_AT and 2 * self._head >= len(self._batches):
            del self._batches[: self._head], self._firsts[: self._head]
            self._head = 0
        return size

    def forget(self, before: int) -> tuple[int, int]:
        """Forget batches that begin before an offset; how many, and their size."""
        end = bisect.bisect_left(self._firsts, before, lo=self._head)
        gone = self._batches[self._head : end]
        del self._batches[:end], self._firsts[:end]
        self._head = 0
        return len(gone), sum([len(batch.records) + ENTRY_BYTES for batch in gone])

    def clear(self) -> None:
        """Forget everything."""
        self._batches.clear()
        self._firsts.clear()
        self._head = 0


class TailBudget:
    """The bytes that all tails of a storage may hold together."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._order: deque[Tail] = deque()

    def append(self, tail: Tail, batch: TailBatch) -> None:
        """Add a batch to a tail and make room."""
        tail.append(batch)
        self._order.append(tail)
        self._bytes += len(batch.records) + ENTRY_BYTES
        while self._bytes > self._bytes_max and self._order:
            self._bytes -= self._order.popleft().drop_first()

    def forget(self, tail: Tail, before: int) -> None:
        """Forget the batches of a tail that begin before this offset: they are about to change."""
        count, size = tail.forget(before)
        if count:
            self._bytes -= size
            skipped = iter(range(count))
            self._order = deque([entry for entry in self._order if entry is not tail or next(skipped, None) is None])

    def clear(self) -> None:
        """Forget the batches of all tails."""
        for tail in self._order:
            tail.clear()
        self._order.clear()
        self._bytes = 0


def up_to(batches: list[TailBatch], max_bytes: int) -> list[TailBatch]:
    """The first batches that fit into `max_bytes`, at least one."""
    size = 0
    for index, batch in enumerate(batches):
        size += len(batch.records)
        if index and size > max_bytes:
            return batches[:index]
    return batches
