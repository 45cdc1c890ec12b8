"""Recent batches of a storage, kept in memory: those appended lately, and those read lately.

Readers at the log's end never wait for the store (`Tail`). One budget for all partitions (`TailBudget`): the batches
appended longest ago go first, of any partition.

Further back, share groups read a partition in small steps, often several members from one batch and groups from the
same place. Each read of the store brings a stretch of the log into memory (`ReadAhead`); the least used stretches go
first. Only compaction changes batches and calls `forget`; else a stretch is right for as long as its partition exists.
"""

from __future__ import annotations

import uuid
from bisect import bisect_left, bisect_right
from collections import OrderedDict, deque
from typing import Final, NamedTuple

ENTRY_BYTES: Final = 200
"""Bytes that an entry takes besides its batch."""
COMPACT_AT: Final = 1024
STRETCH_BYTES: Final = 1 << 20
"""Least bytes that one read of the store brings in, if the log has as many."""
STRETCHES_MAX: Final = 4
"""Stretches of one partition: for members at different places."""


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
        """Return True if the batch that holds `offset` is in this tail, given that it is in the log."""
        return self._head < len(self._firsts) and self._firsts[self._head] <= offset

    def read(self, offset: int, end: int, max_bytes: int) -> list[TailBatch]:
        """Return batches from the one that holds `offset` on that end before `end`; at least one if there is one."""
        index = bisect_right(self._firsts, offset, lo=self._head) - 1
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
        """Forget the oldest batch; return its size in bytes, 0 when there is none."""
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
        """Forget batches that begin before an offset; return their number and size in bytes."""
        end = bisect_left(self._firsts, before, lo=self._head)
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
        """Forget a tail's batches that begin before this offset: they are about to change."""
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
    """Return the first batches that fit into `max_bytes`, at least one."""
    size = 0
    for index, batch in enumerate(batches):
        size += len(batch.records)
        if index and size > max_bytes:
            return batches[:index]
    return batches


class Stretch:
    """Batches of one partition that follow each other; offsets between them are missing in the log."""

    __slots__ = ("_batches", "_firsts", "size")

    def __init__(self, batches: list[TailBatch]) -> None:
        self._batches = batches
        self._firsts = [batch.first for batch in batches]
        self.size = sum(len(batch.records) + ENTRY_BYTES for batch in batches)

    def read(self, offset: int, max_bytes: int) -> list[TailBatch]:
        """Return batches from the one that holds `offset`, or the next one, on; empty if `offset` is not in the
        stretch."""
        index = bisect_right(self._firsts, offset) - 1
        if index < 0 or offset > self._batches[-1].last:
            return []
        index += self._batches[index].last < offset
        return up_to(self._batches[index:], max_bytes)


class ReadAhead:
    """The stretches of all partitions of a storage, within `bytes_max`."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._stretches: dict[tuple[uuid.UUID, int], list[Stretch]] = {}
        self._by_use: OrderedDict[Stretch, tuple[uuid.UUID, int]] = OrderedDict()

    def read(self, key: tuple[uuid.UUID, int], offset: int, max_bytes: int) -> list[TailBatch]:
        """Return kept batches from the one that holds `offset` on; empty if that one is not kept."""
        for stretch in self._stretches.get(key, ()):
            if found := stretch.read(offset, max_bytes):
                self._by_use.move_to_end(stretch)
                return found
        return []

    def add(self, key: tuple[uuid.UUID, int], batches: list[TailBatch]) -> None:
        """Keep read batches, and make room."""
        stretch = Stretch(batches)
        if not batches or stretch.size > self._bytes_max:
            return
        if len(self._stretches.get(key, ())) >= STRETCHES_MAX:
            self._drop(next(old for old, owner in self._by_use.items() if owner == key))
        self._stretches.setdefault(key, []).insert(0, stretch)
        self._by_use[stretch] = key
        self._bytes += stretch.size
        while self._bytes > self._bytes_max:
            self._drop(next(iter(self._by_use)))

    def forget(self, key: tuple[uuid.UUID, int]) -> None:
        """Forget a partition's stretches."""
        for stretch in tuple(self._stretches.get(key, ())):
            self._drop(stretch)

    def clear(self) -> None:
        """Forget everything."""
        self._stretches.clear()
        self._by_use.clear()
        self._bytes = 0

    def _drop(self, stretch: Stretch) -> None:
        key = self._by_use.pop(stretch)
        self._bytes -= stretch.size
        self._stretches[key].remove(stretch)
        if not self._stretches[key]:
            del self._stretches[key]
