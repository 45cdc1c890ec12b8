"""Tests of a member's own account of the offsets that it holds, against a set of offsets."""

from __future__ import annotations

import itertools
import uuid

from hypothesis import given
from hypothesis import strategies as st

from flowshare.client.session import custody
from flowshare.client.session.custody import Holding, Ranges
from flowshare.protocol.messages import TopicPartition

AT = TopicPartition(uuid.UUID(int=1), 0)
STEPS = st.lists(st.tuples(st.booleans(), st.integers(0, 40), st.integers(0, 8)), max_size=40)
KEPT = st.lists(st.tuples(st.integers(0, 48), st.integers(0, 12)), max_size=4)


@given(STEPS, KEPT)
def test_ranges_hold_what_a_set_of_offsets_would(
    steps: list[tuple[bool, int, int]], kept: list[tuple[int, int]]
) -> None:
    ranges, offsets = Ranges(), set[int]()
    for adds, first, length in steps:
        run = range(first, first + length + 1)
        (ranges.add if adds else ranges.remove)(run[0], run[-1])
        offsets = offsets.union(run) if adds else offsets.difference(run)
    ranges.keep((first, first + length) for first, length in kept)
    offsets &= {offset for first, length in kept for offset in range(first, first + length + 1)}

    found = ranges.all()
    assert [offset for first, last in found for offset in range(first, last + 1)] == sorted(offsets)
    assert all(last + 1 < first for (_, last), (first, _) in itertools.pairwise(found))
    assert bool(ranges) == bool(offsets)


def test_more_ranges_than_are_kept_push_out_the_lowest(monkeypatch) -> None:
    monkeypatch.setattr(custody, "RANGES_MAX", 3)
    ranges = Ranges()
    for first in range(0, 10, 2):
        ranges.add(first, first)

    assert ranges.all() == ((4, 4), (6, 6), (8, 8))


def test_a_partition_of_which_all_has_ended_is_not_told() -> None:
    held = Holding()
    held.acquired(AT, 0, 9)
    held.ended(AT, 0, 3)
    assert held.of(AT) == ((4, 9),)

    held.ended(AT, 4, 9)
    assert not held.has(AT)
