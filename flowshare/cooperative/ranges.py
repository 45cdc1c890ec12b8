"""Arithmetic on half-open ranges, of offsets and of hashes alike: pairs (first, end)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from flowshare.cooperative.types import HASHES, WHOLE, KeyRange, KeyRanges
from flowshare.core_errors import InvalidRequest

KEY_RANGES_MAX: Final = 4_096
"""Ranges of hashes that a member may ask for in one partition. Who has more asks for what lies between, too."""

Pair = tuple[int, int]


def merged(ranges: Iterable[Pair]) -> list[Pair]:
    """The same numbers in as few ranges as there can be, ascending; the ranges may overlap, in any order."""
    joined: list[Pair] = []
    for first, end in sorted(ranges):
        if joined and first <= joined[-1][1]:
            if end > joined[-1][1]:
                joined[-1] = joined[-1][0], end
        else:
            joined.append((first, end))
    return joined


def minus(ranges: Iterable[Pair], taken: Sequence[Pair]) -> list[Pair]:
    """Return the parts of `ranges` that are in none of `taken`; both are ascending and disjoint."""
    left: list[Pair] = []
    at = 0
    for first, end in ranges:
        while at < len(taken) and taken[at][1] <= first:
            at += 1
        look = at
        while look < len(taken) and taken[look][0] < end:
            if taken[look][0] > first:
                left.append((first, taken[look][0]))
            first = max(first, taken[look][1])
            look += 1
        if first < end:
            left.append((first, end))
    return left


class Overlap(NamedTuple):
    """Numbers that lie in two ranges, and the places of these two in their rows."""

    first: int
    end: int
    left: int
    right: int


def overlaps(ranges: Sequence[Pair], others: Sequence[Pair]) -> list[Overlap]:
    """Where the two rows overlap, ascending; both are ascending and disjoint."""
    found: list[Overlap] = []
    at = 0
    for place, (first, end) in enumerate(ranges):
        while at < len(others) and others[at][1] <= first:
            at += 1
        look = at
        while look < len(others) and others[look][0] < end:
            found.append(Overlap(max(first, others[look][0]), min(end, others[look][1]), place, look))
            look += 1
    return found


def holes(first: int, end: int, inside: Sequence[int]) -> list[Pair]:
    """The numbers of a range that are not among `inside`, which lie in it and rise."""
    if len(inside) == end - first:
        return []
    edges = zip([first - 1, *inside], [*inside, end], strict=True)
    return [(before + 1, after) for before, after in edges if before + 1 < after]


def total(ranges: Iterable[Pair]) -> int:
    """How many numbers."""
    return sum(end - first for first, end in ranges)


def checked(given: Sequence[Pair]) -> KeyRanges:
    """Ranges of keys as they come from outside, ascending and joined; none are none.

    Raises: InvalidRequest if ranges overlap, are empty, lie outside of the hashes, or are more than KEY_RANGES_MAX.
    """
    if len(given) > KEY_RANGES_MAX:
        raise InvalidRequest(f"{len(given)} ranges of keys in one partition; at most {KEY_RANGES_MAX}: join neighbours")
    ordered = sorted(given)
    before = 0
    for first, end in ordered:
        if not 0 <= first < end <= HASHES:
            raise InvalidRequest(f"[{first}, {end}) is no range of keys: 0 <= first < end <= {HASHES}")
        if first < before:
            raise InvalidRequest(f"ranges of keys overlap at {first}: give each hash once")
        before = end
    return tuple(KeyRange(first, end) for first, end in merged(ordered))


def assigned(given: Sequence[Pair]) -> KeyRanges:
    """Return the keys of a partition that an assignment gives, by the leader or by hand; no ranges are the whole
    partition. Keys outside of the ranges belong to others, or to nobody (`Claims.unowned`). Raises: InvalidRequest, as
    `checked`."""
    return checked(given) or WHOLE
