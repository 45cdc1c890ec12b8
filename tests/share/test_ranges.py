"""Arithmetic on ranges of offsets, against sets of them."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from flowshare.share.ranges import Range, merged, minus

RANGES = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 6)).map(lambda pair: (pair[0], sum(pair))), max_size=8)


def offsets(ranges: list[Range]) -> set[int]:
    return {offset for first, last in ranges for offset in range(first, last + 1)}


@given(RANGES)
def test_merged_ranges_are_the_same_offsets_in_as_few_as_there_can_be(ranges: list[Range]) -> None:
    found = merged(ranges)
    assert offsets(found) == offsets(ranges)
    assert all(before[1] + 1 < after[0] for before, after in pairwise(found))


@given(RANGES, RANGES)
def test_minus_leaves_the_offsets_that_are_not_taken(ranges: list[Range], taken: list[Range]) -> None:
    left = minus(merged(ranges), merged(taken))
    assert offsets(left) == offsets(ranges) - offsets(taken)
    assert left == sorted(left)
