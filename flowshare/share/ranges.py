"""Arithmetic on ranges of offsets: pairs `first`, `last`, both inclusive."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

Range = tuple[int, int]


def merged(ranges: Iterable[Range]) -> list[Range]:
    """Return the same offsets in as few ranges as possible, ascending."""
    joined: list[Range] = []
    for first, last in sorted(ranges):
        if joined and first <= joined[-1][1] + 1:
            joined[-1] = joined[-1][0], max(joined[-1][1], last)
        else:
            joined.append((first, last))
    return joined


def check_order(ranges: Sequence[Range]) -> None:
    """Check that ranges are ascending, disjoint and not reversed. Raises: ValueError."""
    if any(not 0 <= first <= last for first, last in ranges) or any(b[0] <= a[1] for a, b in pairwise(ranges)):
        raise ValueError("ranges are to be ascending and disjoint, each from its first to its last offset")


def minus(ranges: Sequence[Range], taken: Sequence[Range]) -> list[Range]:
    """Return the parts of `ranges` that are in none of `taken`; both are ascending and disjoint."""
    left: list[Range] = []
    at = 0
    for first, last in ranges:
        while at < len(taken) and taken[at][1] < first:
            at += 1
        look = at
        while look < len(taken) and taken[look][0] <= last:
            if taken[look][0] > first:
                left.append((first, taken[look][0] - 1))
            first = max(first, taken[look][1] + 1)
            look += 1
        if first <= last:
            left.append((first, last))
    return left
