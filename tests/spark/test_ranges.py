"""Ranges, what is done of them, and the offsets JSON: each held against a model that counts single offsets."""

from __future__ import annotations

import itertools
import json
import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from flowshare.spark.source.ranges import Offset, Range, RangeSet, by_place, merged, records_in, share_out

PLACES = [("a", 0), ("a", 1), ("b", 0)]


def each(ranges) -> list[tuple[str, int, int, int]]:
    """Topic, partition, offset, delivery of every single record, in the order of the ranges."""
    return [
        (one.topic, one.partition, offset, one.delivery) for one in ranges for offset in range(one.first, one.last + 1)
    ]


@st.composite
def acquired(draw) -> list[Range]:
    """Draw the acquired ranges of a trigger: several partitions, without overlap, in any order."""
    found: list[Range] = []
    for topic, partition in draw(st.lists(st.sampled_from(PLACES), unique=True)):
        at = 0
        for gap, length, delivery in draw(
            st.lists(st.tuples(st.integers(0, 2), st.integers(1, 9), st.integers(1, 2)), max_size=6)
        ):
            found.append(Range(topic, partition, at + gap, at + gap + length - 1, delivery))
            at += gap + length
    return draw(st.permutations(found))


# --- merging ------------------------------------------------------------------------------------------------------


def test_neighbours_become_one_range_wherever_they_stood():
    ranges = [Range("b", 0, 4, 5), Range("a", 1, 3, 4), Range("b", 0, 0, 3), Range("a", 1, 6, 6)]

    assert merged(ranges) == [Range("a", 1, 3, 4), Range("a", 1, 6, 6), Range("b", 0, 0, 5)]


def test_records_of_different_deliveries_stay_apart():
    ranges = [Range("a", 0, 0, 3, 1), Range("a", 0, 4, 5, 2), Range("a", 0, 6, 7, 2)]

    assert merged(ranges) == [Range("a", 0, 0, 3, 1), Range("a", 0, 4, 7, 2)]


def test_the_same_offsets_of_two_partitions_are_not_confused():
    ranges = [Range("a", 1, 0, 1), Range("a", 0, 2, 3), Range("b", 0, 2, 2)]

    assert by_place(ranges) == {
        ("a", 0): [Range("a", 0, 2, 3)],
        ("a", 1): [Range("a", 1, 0, 1)],
        ("b", 0): [Range("b", 0, 2, 2)],
    }
    assert Range("a", 1, 0, 1).place == ("a", 1)


def test_nothing_is_merged_to_nothing():
    assert (merged([]), by_place([]), records_in([]), share_out([], 4)) == ([], {}, 0, [])


@settings(max_examples=50, deadline=None)
@given(acquired())
def test_merging_keeps_every_offset_in_as_few_ranges_as_there_can_be(ranges):
    found = merged(ranges)

    assert each(found) == sorted(each(ranges))
    assert records_in(found) == len(each(ranges))
    for before, after in itertools.pairwise(found):
        assert before.place != after.place or before.last + 1 < after.first or before.delivery != after.delivery


# --- sharing out --------------------------------------------------------------------------------------------------


def test_one_large_range_is_cut_for_all_tasks():
    assert share_out([Range("a", 0, 0, 9, 3)], 3) == [
        [Range("a", 0, 0, 3, 3)],
        [Range("a", 0, 4, 6, 3)],
        [Range("a", 0, 7, 9, 3)],
    ]


def test_a_task_reads_the_end_of_one_partition_and_the_beginning_of_the_next():
    assert share_out([Range("b", 0, 5, 9), Range("a", 0, 0, 2)], 2) == [
        [Range("a", 0, 0, 2), Range("b", 0, 5, 5)],
        [Range("b", 0, 6, 9)],
    ]


def test_fewer_records_than_tasks_make_a_task_each_and_none_without_a_record():
    assert share_out([Range("a", 0, 7, 9)], 8) == [[Range("a", 0, at, at)] for at in (7, 8, 9)]


@settings(max_examples=80, deadline=None)
@given(acquired(), st.integers(1, 12))
def test_every_offset_is_in_one_part_and_the_parts_are_of_one_size(ranges, tasks):
    parts = share_out(ranges, tasks)

    assert [record for part in parts for record in each(part)] == sorted(each(ranges))
    sizes = [records_in(part) for part in parts]
    assert len(parts) == min(tasks, len(each(ranges)))
    assert not sizes or max(sizes) - min(sizes) <= 1
    assert all(one.first <= one.last for part in parts for one in part)


@settings(max_examples=50, deadline=None)
@given(acquired(), st.integers(1, 12))
def test_the_order_in_which_ranges_came_does_not_matter(ranges, tasks):
    shuffled = random.Random(7).sample(ranges, len(ranges))

    assert share_out(shuffled, tasks) == share_out(ranges, tasks)


# --- what is done -------------------------------------------------------------------------------------------------


def of(first: int, last: int, *, topic: str = "a", partition: int = 0, delivery: int = 1) -> Range:
    return Range(topic, partition, first, last, delivery)


def test_what_is_done_is_told_from_what_is_new():
    done = RangeSet([of(3, 5), of(8, 8)])

    assert done.split(of(0, 10, delivery=2)) == (
        [of(3, 5, delivery=2), of(8, 8, delivery=2)],
        [of(0, 2, delivery=2), of(6, 7, delivery=2), of(9, 10, delivery=2)],
    )
    assert done.split(of(4, 4)) == ([of(4, 4)], [])
    assert done.split(of(6, 7)) == ([], [of(6, 7)])
    assert done.split(of(3, 5, partition=1)) == ([], [of(3, 5, partition=1)])


def test_what_is_nowhere_done_is_removed_without_harm():
    done = RangeSet([of(3, 5)])

    done.remove(of(0, 2))
    done.remove(of(6, 99))
    done.remove(of(3, 5, topic="b"))

    assert list(done.ranges()) == [of(3, 5)]


def test_a_hole_is_cut_into_what_is_done():
    done = RangeSet([of(0, 9)])

    done.remove(of(4, 6))

    assert list(done.ranges()) == [of(0, 3), of(7, 9)]
    assert len(done) == 7


def test_what_lies_before_the_groups_start_is_forgotten():
    done = RangeSet([of(0, 3), of(5, 9), of(0, 3, partition=1)])

    done.prune({("a", 0): 7, ("c", 0): 100})
    assert list(done.ranges()) == [of(7, 9), of(0, 3, partition=1)]

    done.prune({("a", 0): 9, ("a", 1): 4})
    assert list(done.ranges()) == [of(9, 9)]


def test_an_empty_one_is_false():
    done = RangeSet([of(3, 5)])
    assert done

    done.prune({("a", 0): 6})

    assert not done
    assert list(done.ranges()) == []


OFFSETS = st.integers(0, 24)


@st.composite
def spans(draw) -> Range:
    """A range of a few offsets that meets others often."""
    first, last = sorted((draw(OFFSETS), draw(OFFSETS)))
    return Range(*draw(st.sampled_from(PLACES[:2])), first, min(last, first + 8), draw(st.integers(1, 3)))


def single(one: Range) -> set[tuple[str, int, int]]:
    return {(topic, partition, offset) for topic, partition, offset, _ in each([one])}


class DoneModel(RuleBasedStateMachine):
    """`RangeSet` beside a plain set of offsets."""

    def __init__(self) -> None:
        super().__init__()
        self.done = RangeSet()
        self.model: set[tuple[str, int, int]] = set()

    @rule(one=spans())
    def add(self, one):
        self.done.add(one)
        self.model |= single(one)

    @rule(one=spans())
    def remove(self, one):
        self.done.remove(one)
        self.model -= single(one)

    @rule(start=OFFSETS, place=st.sampled_from(PLACES))
    def prune(self, start, place):
        self.done.prune({place: start})
        self.model = {(*at, offset) for *at, offset in self.model if tuple(at) != place or offset >= start}

    @rule(one=spans())
    def split(self, one):
        inside, outside = self.done.split(one)
        assert each(sorted([*inside, *outside])) == each([one])
        assert {at for part in inside for at in single(part)} == single(one) & self.model

    @rule()
    def restart(self):
        self.done = RangeSet(self.done.ranges())

    @invariant()
    def same(self):
        runs = list(self.done.ranges())
        assert [record[:3] for record in each(runs)] == sorted(self.model)
        assert runs == merged(runs)
        assert len(self.done) == len(self.model)


DoneModel.TestCase.settings = settings(max_examples=40, stateful_step_count=20, deadline=None)
TestDone = DoneModel.TestCase
TestDone.__doc__ = "What is done is the same as a set of single offsets, whatever is added and taken away."


# --- offsets ------------------------------------------------------------------------------------------------------

OFFSET = Offset(
    number=7,
    member="a-member",
    ranges=(Range("a", 0, 3, 9, 2), Range("b", 1, 0, 0, 1)),
    done=(Range("a", 0, 1, 2),),
    topics={"b": "id-b", "a": "id-a"},
    starts={("b", 1): 0, ("a", 0): 1},
    leaders={("b", 1): "broker 4", ("a", 0): "broker 2"},
)


def text(offset: Offset) -> str:
    """Return an offset as Spark writes it: Spark compares offsets by this text."""
    return json.dumps(offset.to_json())


def test_an_offset_comes_back_from_the_checkpoint_as_it_was():
    assert Offset.from_json(json.loads(text(OFFSET))) == OFFSET


def test_the_same_offset_is_the_same_text():
    other = replace(
        OFFSET,
        topics={"a": "id-a", "b": "id-b"},
        starts=dict(sorted(OFFSET.starts.items())),
        leaders=dict(sorted(OFFSET.leaders.items())),
    )

    assert text(other) == text(OFFSET) == text(Offset.from_json(json.loads(text(OFFSET))))


def test_the_offset_before_the_first_one_is_of_nothing():
    assert Offset.from_json(Offset().to_json()) == Offset(number=0, member="", ranges=(), done=(), topics={})


def test_what_is_done_is_written_without_deliveries():
    assert OFFSET.to_json()["done"] == [["a", 0, 1, 2]]


@settings(max_examples=50, deadline=None)
@given(
    st.integers(0, 2**40), acquired(), st.lists(spans(), max_size=4), st.dictionaries(st.text(), st.text(), max_size=3)
)
def test_any_offset_is_the_same_text_after_a_restart(number, ranges, done, topics):
    offset = Offset(number=number, member="m", ranges=tuple(ranges), done=tuple(RangeSet(done).ranges()), topics=topics)

    again = Offset.from_json(json.loads(text(offset)))

    assert again == offset
    assert text(again) == text(offset)


@pytest.mark.parametrize(
    "found",
    [
        {},
        {"number": 1, "member": "m", "topics": {}, "ranges": []},
        {"number": 1, "member": "m", "topics": {}, "ranges": 3, "done": []},
        {"number": 1, "member": "m", "topics": {}, "ranges": [["a"]], "done": []},
        {"number": 1, "member": "m", "topics": {}, "ranges": [["a", 0, 0, 0, 1, 1]], "done": []},
    ],
)
def test_what_another_source_wrote_is_refused(found):
    with pytest.raises((KeyError, TypeError)):
        Offset.from_json(found)
