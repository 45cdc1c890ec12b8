"""The state of one slot: the last value of each key, and the offset of its write.

Keys of a share-partition lie together, so that reading one of them (a snapshot and a few hundred updates among many
thousand keys) looks at nothing else. Keys are also kept in the order of their last writes: the oldest one tells how
much of the log is still needed (`pruning.py`).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from operator import attrgetter
from typing import Final, NamedTuple

from flowshare.slots.placement import SHARE_PREFIX, partition_head
from flowshare.slots.records import Entry

HEAD_BYTES: Final = 2
"""Length of the prefix by which other keys lie together."""


class Kept(NamedTuple):
    """A key with its value and the offset at which its last write began."""

    key: bytes
    value: bytes
    offset: int


class SlotTable:
    """The table of one slot, made by replaying its log. `size_bytes`: keys and values."""

    __slots__ = ("_heaps", "_offsets", "size_bytes")

    def __init__(self, kept: Iterable[Kept] = ()) -> None:
        """Start with entries kept elsewhere, in any order; each key once."""
        self._heaps: dict[bytes, dict[bytes, bytes]] = {}
        self._offsets: OrderedDict[bytes, int] = OrderedDict()
        self.size_bytes = 0
        for key, value, offset in sorted(kept, key=_offset):
            self._heaps.setdefault(_head(key), {})[key] = value
            self._offsets[key] = offset
            self.size_bytes += len(key) + len(value)

    def apply(self, entries: Iterable[Entry], offset: int) -> None:
        """Take in a write that began at `offset`, which is above all before it."""
        heaps, offsets = self._heaps, self._offsets
        for key, value in entries:
            head = _head(key)
            heap = heaps.get(head)
            if heap is None:
                heap = heaps[head] = {}
            if key in offsets:
                self.size_bytes -= len(key) + len(heap[key])
            if value is None:
                if offsets.pop(key, None) is not None:
                    del heap[key]
                if not heap:
                    del heaps[head]
            else:
                heap[key] = value
                offsets[key] = offset
                offsets.move_to_end(key)
                self.size_bytes += len(key) + len(value)

    def scan(self, prefix: bytes) -> list[tuple[bytes, bytes]]:
        """Return all entries under a prefix, in key order."""
        head = _head(prefix)
        if head == _head(prefix + b"\xff"):  # a whole partition: no key outside of the heap begins so
            return sorted(item for item in self._heaps.get(head, {}).items() if item[0].startswith(prefix))
        return sorted(
            item
            for head, heap in self._heaps.items()
            if head.startswith(prefix) or prefix.startswith(head)
            for item in heap.items()
            if item[0].startswith(prefix)
        )

    def oldest(self) -> int | None:
        """Return the offset of the oldest last write of a key; None without keys."""
        return next(iter(self._offsets.values()), None)

    def older(self, before: int) -> Iterator[Kept]:
        """Yield the keys whose last write began below `before`, oldest first; the table must not change meanwhile."""
        for key, offset in self._offsets.items():
            if offset >= before:
                return
            yield Kept(key, self._heaps[_head(key)][key], offset)


_offset = attrgetter("offset")


def _head(key: bytes) -> bytes:
    return partition_head(key) if key.startswith(SHARE_PREFIX) else key[:HEAD_BYTES]
