"""Model of the committed set of a partition, as plain as possible: a set of numbers."""

from __future__ import annotations

from collections.abc import Iterable

from flowshare.cooperative.offsets import CommittedOffsets


class CommittedSet:
    """All committed offsets below `end`, one by one."""

    def __init__(self, stable: int, offsets: Iterable[int] = (), end: int = 200) -> None:
        self.end = end
        self.offsets = set(range(stable)) | set(offsets)

    def commit(self, ranges: Iterable[tuple[int, int]]) -> None:
        """Commit offsets."""
        for first, end in ranges:
            self.offsets |= set(range(first, end))

    @property
    def stable(self) -> int:
        """The first offset that is not committed."""
        return next(offset for offset in range(self.end + 1) if offset not in self.offsets)

    def ranges(self) -> list[tuple[int, int]]:
        """The committed ranges behind the stable offset, as few as there can be."""
        found: list[tuple[int, int]] = []
        for offset in sorted(offset for offset in self.offsets if offset > self.stable):
            if found and found[-1][1] == offset:
                found[-1] = found[-1][0], offset + 1
            else:
                found.append((offset, offset + 1))
        return found


def members(offsets: CommittedOffsets, end: int = 200) -> set[int]:
    """The same set, as the core has it."""
    found = set(range(min(offsets.stable, end)))
    for first, last in offsets.ranges():
        found |= set(range(first, last))
    return found


def check_form(offsets: CommittedOffsets) -> None:
    """Ranges are ascending, disjoint, not adjacent, and behind the stable offset."""
    before = offsets.stable
    for first, end in offsets.ranges():
        assert before < first < end, (offsets.stable, offsets.ranges())
        before = end
    assert offsets.furthest == before
    assert offsets.count == len(offsets.ranges())
    assert offsets.span == before - offsets.stable
