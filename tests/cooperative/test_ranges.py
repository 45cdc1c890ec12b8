"""Arithmetic on half-open ranges against sets of numbers."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowshare.cooperative.ranges import KEY_RANGES_MAX, assigned, checked, merged, minus, overlaps, total
from flowshare.cooperative.types import HASHES, WHOLE
from flowshare.core_errors import InvalidRequest

one = st.tuples(st.integers(0, 40), st.integers(1, 9)).map(lambda pair: (pair[0], pair[0] + pair[1]))
rows = st.lists(one, max_size=8)


def numbers(ranges):
    return {at for first, end in ranges for at in range(first, end)}


@settings(deadline=None)
@given(rows, rows)
def test_rows_of_ranges_are_sets_of_numbers(left, right):
    left, right = merged(left), merged(right)

    assert total(left) == len(numbers(left))
    assert numbers(minus(left, right)) == numbers(left) - numbers(right)
    found = overlaps(left, right)
    assert numbers([one[:2] for one in found]) == numbers(left) & numbers(right)
    assert total([one[:2] for one in found]) == len(numbers(left) & numbers(right))
    for first, end, at, other in found:
        assert left[at][0] <= first < end <= left[at][1]
        assert right[other][0] <= first < end <= right[other][1]


@settings(deadline=None)
@given(rows)
def test_a_merged_row_is_as_short_as_can_be(ranges):
    row = merged(ranges)

    assert numbers(row) == numbers(ranges)
    assert all(before[1] < behind[0] for before, behind in itertools.pairwise(row))


def test_ranges_of_keys_from_outside_are_checked():
    assert checked([(5, 9), (0, 5), (20, HASHES)]) == ((0, 9), (20, HASHES))
    assert checked([]) == ()
    assert assigned([]) == WHOLE
    for wrong in ([(0, 5), (4, 6)], [(5, 5)], [(-1, 5)], [(0, HASHES + 1)]):
        with pytest.raises(InvalidRequest):
            checked(wrong)
    with pytest.raises(InvalidRequest, match="join neighbours"):
        checked([(2 * at, 2 * at + 1) for at in range(KEY_RANGES_MAX + 1)])
