"""What was lately read from the store, kept for the readers that come next.

Share groups read a partition in small steps, often several members from one batch and groups from the same place. Each
read of the store brings a stretch of the log into memory; the least used stretches go first. Only compaction changes
batches and says so (`forget`); else a stretch is right for as long as its partition exists. Who may read what is
checked before.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from typing import TYPE_CHECKING, Final

from flowshare.log.tail import ENTRY_BYTES, TailBatch

if TYPE_CHECKING:
    import uuid

STRETCH_BYTES: Final = 1 << 20
"""What one read of the store brings in at least, when there is as much."""
STRETCHES_MAX: Final = 4
"""Stretches of one partition: members that are at different places of it."""


class Stretch:
    """Batches of one partition that follow each other; offsets between them are missing in the log."""

    __slots__ = ("_batches", "_firsts", "size")

    def __init__(self, batches: list[TailBatch]) -> None:
        self._batches = batches
        self._firsts = [batch.first for batch in batches]
        self.size = sum(len(batch.records) + ENTRY_BYTES for batch in batches)

    def read(self, offset: int, max_bytes: int) -> list[TailBatch]:
        """Batches from the one that holds `offset`, or the next one, on; empty if it is not in the stretch."""
        index = bisect_right(self._firsts, offset) - 1
        if index < 0 or offset > self._batches[-1].last:
            return []
        found, size = list[TailBatch](), 0
        index += self._batches[index].last < offset
        for batch in self._batches[index:]:
            size += len(batch.records)
            if found and size > max_bytes:
                break
            found.append(batch)
        return found


class ReadAhead:
    """The stretches of all partitions of a storage, within `bytes_max`."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._stretches: dict[tuple[uuid.UUID, int], list[Stretch]] = {}
        self._by_use: OrderedDict[Stretch, tuple[uuid.UUID, int]] = OrderedDict()

    def read(self, key: tuple[uuid.UUID, int], offset: int, max_bytes: int) -> list[TailBatch]:
        """Batches from the one that holds `offset` on, as far as they are here; empty if it is not."""
        for stretch in self._stretches.get(key, ()):
            if found := stretch.read(offset, max_bytes):
                self._by_use.move_to_end(stretch)
                return found
        return []

    def add(self, key: tuple[uuid.UUID, int], batches: list[TailBatch]) -> None:
        """Keep what was read, and make room."""
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
