"""The assignor: disjoint and covering for any number of members and partitions, balanced, and sticky."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowshare.cooperative.assignor import Subscriber, TopicPartition, assign, shares
from flowshare.cooperative.types import HASHES, WHOLE, KeyRange

no_deadline = settings(deadline=None, max_examples=60)
names = st.sets(st.integers(0, 14).map("m{}".format), min_size=1, max_size=12)


def subscribers(members, topics=("t",), **how):
    return {member: Subscriber(topics=frozenset(topics), **how) for member in members}


def by_partition(assignment):
    found = {}
    for member, parts in assignment.items():
        for place, keys in parts.items():
            found.setdefault(place, []).extend((*one, member) for one in keys)
    return {place: sorted(parts) for place, parts in found.items()}


def check(assignment, partitions):
    """Every hash of every partition has one owner."""
    found = by_partition(assignment)
    assert sorted(found) == [TopicPartition("t", number) for number in range(partitions)]
    for parts in found.values():
        at = 0
        for first, end, _ in parts:
            assert first == at
            at = end
        assert at == HASHES


@no_deadline
@given(names, st.integers(1, 15), names, names)
def test_every_hash_has_one_owner_whatever_was_before(first, partitions, second, third):
    owned = {}
    for members in (first, second, third):
        owned = assign(subscribers(members), {"t": partitions}, owned)
        check(owned, partitions)
        counts = [len(parts) for parts in by_partition(owned).values()]
        if len(members) > partitions:
            assert max(counts) - min(counts) <= 1
            assert all(len(parts) == 1 for parts in owned.values())
        else:
            assert counts == [1] * partitions


@no_deadline
@given(names, st.integers(1, 15), names)
def test_the_same_members_get_the_same_again(before, partitions, members):
    owned = assign(subscribers(before), {"t": partitions}, {})
    once = assign(subscribers(members), {"t": partitions}, owned)

    assert assign(subscribers(members), {"t": partitions}, once) == once


@no_deadline
@given(names, st.integers(1, 12), st.data())
def test_a_leave_that_leaves_the_balance_changes_the_leavers_partition_only(members, partitions, data):
    before = assign(subscribers(members), {"t": partitions}, {})
    leaver = data.draw(st.sampled_from(sorted(members)))
    rest = members - {leaver}
    places = by_partition(before)
    if len(rest) <= partitions or not before[leaver]:
        return
    (left,) = before[leaver]
    if len(places[left]) - 1 < len(rest) // partitions:
        return

    after = by_partition(assign(subscribers(rest), {"t": partitions}, before))

    assert {place for place in places if places[place] != after[place]} == {left}
    assert [name for *_, name in after[left]] == [name for *_, name in places[left] if name != leaver]


@pytest.mark.parametrize("count", [1, 2, 3, 5, 7, 100, 1_000])
def test_shares_are_equal_to_one_hash_and_leave_none_out(count):
    parts = list(shares([str(place) for place in range(count)]).values())

    assert (parts[0].first, parts[-1].end) == (0, HASHES)
    assert all(before.end == behind.first for before, behind in itertools.pairwise(parts))
    sizes = {part.end - part.first for part in parts}
    assert max(sizes) - min(sizes) <= 1


def test_a_topic_is_split_only_if_all_its_members_are_willing():
    members = {
        "a": Subscriber(topics=frozenset("tu")),
        "b": Subscriber(topics=frozenset("tu"), unshared=frozenset("u")),
        "c": Subscriber(topics=frozenset("v"), shares=False),
        "d": Subscriber(topics=frozenset("v")),
        "e": Subscriber(topics=frozenset()),
    }

    assignment = assign(members, {"t": 1, "u": 1, "v": 1, "w": 3, "x": 0}, {})

    assert assignment == {
        "a": {TopicPartition("t", 0): ((0, HASHES // 2),), TopicPartition("u", 0): WHOLE},
        "b": {TopicPartition("t", 0): ((HASHES // 2, HASHES),)},
        "c": {TopicPartition("v", 0): WHOLE},
        "d": {},
        "e": {},
    }


def test_what_is_said_to_be_owned_is_a_hint_that_may_be_wrong():
    members = subscribers(["a", "b", "c"])
    wrong = {
        "a": {TopicPartition("t", 7): WHOLE, TopicPartition("other", 0): WHOLE},
        "b": {TopicPartition("t", 1): WHOLE, TopicPartition("t", 0): (KeyRange(5, 9),)},
        "gone": {TopicPartition("t", 0): WHOLE},
    }

    assignment = assign(members, {"t": 2}, wrong)

    check(assignment, 2)
    assert TopicPartition("t", 1) in assignment["b"]
