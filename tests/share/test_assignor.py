"""The assignor: shares are even, complete, and stay where they are as far as balance allows (G18 to G21)."""

from __future__ import annotations

import sys
from collections import Counter
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowshare.share.assignor import assign, spread

T1, T2, T3 = (UUID(int=number) for number in (1, 2, 3))


def check(partition_count, chosen):
    """Every partition has the same number of members, members differ by one at most, nobody has one twice."""
    holders = Counter(p for mine in chosen for p in mine)
    sharing = -(-len(chosen) // partition_count)
    assert holders == dict.fromkeys(range(partition_count), sharing)
    assert all(len(set(mine)) == len(mine) for mine in chosen)
    sizes = {len(mine) for mine in chosen}
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize(
    ("members", "partitions", "sizes"),
    [
        (2, 5, [3, 2]),
        (3, 1, [1, 1, 1]),
        (4, 3, [2, 1, 2, 1]),
        (5, 4, [2, 2, 1, 2, 1]),
        (1, 4, [4]),
        (3, 3, [1, 1, 1]),
    ],
)
def test_numbers_of_partitions_are_those_of_the_formula(members, partitions, sizes):
    assert [len(mine) for mine in spread(partitions, [()] * members)] == sizes


def test_without_partitions_or_members_there_is_nothing_to_share():
    assert spread(0, [(), ()]) == [[], []]
    assert spread(3, []) == []
    assert assign({}, {T1: [0]}, {}) == {}
    assert assign({"a": [T1]}, {}, {}) == {"a": ()}


def test_g18_g19_shares_stay_complete_and_even_while_members_come_and_go():
    topic = {T1: range(24)}
    current = {}
    counts = [*range(1, 102), *range(100, 0, -1)]

    for count in counts:
        current = assign({f"m{i}": [T1] for i in range(count)}, topic, current)
        check(24, [[p for _, p in keys] for keys in current.values()])
        if count == 101:
            assert {len(keys) for keys in current.values()} == {1, 2}
            assert sum(len(keys) for keys in current.values()) == 120


def test_g20_every_topic_is_shared_among_its_own_subscribers():
    subscriptions = {"A": [T1, T2], "B": [T3], "C": [T2, T3]}
    partitions = {T1: range(3), T2: range(3), T3: range(2)}

    target = assign(subscriptions, partitions, {})

    assert {key for keys in target.values() for key in keys} == {(t, p) for t, ps in partitions.items() for p in ps}
    for member, keys in target.items():
        assert {topic for topic, _ in keys} <= set(subscriptions[member])
    assert {p for t, p in target["A"] if t == T1} == {0, 1, 2}


def test_g21_only_assignable_partitions_are_assigned():
    target = assign({"a": [T1], "b": [T1]}, {T1: [0, 2]}, {"a": [(T1, 1), (T1, 2)]})

    assert {key for keys in target.values() for key in keys} == {(T1, 0), (T1, 2)}
    assert target["a"] == ((T1, 2),)


def test_a_topic_that_does_not_exist_is_no_topic():
    target = assign({"a": [T1, T2], "b": [T1]}, {T1: [0, 1]}, {})

    assert [len(keys) for keys in target.values()] == [1, 1]


def test_nothing_moves_when_nothing_changed():
    subscriptions = {f"m{i}": [T1] for i in range(7)}
    first = assign(subscriptions, {T1: range(5)}, {})

    assert assign(subscriptions, {T1: range(5)}, first) == first


def test_a_new_member_takes_no_more_than_its_share():
    before = assign({"a": [T1], "b": [T1]}, {T1: range(10)}, {})

    after = assign({"new": [T1], "a": [T1], "b": [T1]}, {T1: range(10)}, before)

    kept = sum(len(set(before[m]) & set(after[m])) for m in before)
    assert sorted(len(keys) for keys in after.values()) == [3, 3, 4]
    assert kept == 10 - len(after["new"])


def test_members_that_stay_keep_all_when_one_goes():
    before = assign({m: [T1] for m in "abc"}, {T1: range(10)}, {})

    after = assign({m: [T1] for m in "bc"}, {T1: range(10)}, before)

    assert all(set(before[m]) <= set(after[m]) for m in "bc")


def test_a_member_left_with_a_partition_it_has_swaps_with_another():
    chosen = spread(2, [[0], [1], [1]])

    check(2, chosen)


@given(st.data())
def test_any_former_assignment_leads_to_an_even_one(data):
    partitions = data.draw(st.integers(1, 8))
    kept = data.draw(st.lists(st.lists(st.integers(0, partitions - 1), unique=True), min_size=1, max_size=12))

    chosen = spread(partitions, kept)

    check(partitions, chosen)
    assert spread(partitions, chosen) == chosen


def steps(topics, partitions, members):
    """How many lines of the assignor run when what was assigned is assigned again."""
    ids = frozenset(UUID(int=number) for number in range(topics))
    subscriptions = {f"m{i}": ids for i in range(members)}
    sizes = {topic: range(partitions) for topic in ids}
    first = assign(subscriptions, sizes, {})
    count = 0

    def line(_frame, event, _arg):
        nonlocal count
        count += event == "line"
        return line

    traced = sys.gettrace()
    sys.settrace(line)
    try:
        again = assign(subscriptions, sizes, first)
    finally:
        sys.settrace(traced)
    assert again == first
    return count


@pytest.mark.slow
@pytest.mark.parametrize(("topics", "partitions"), [(1, 100), (100, 1)])
def test_ten_times_as_many_members_and_partitions_take_about_ten_times_as_many_steps(topics, partitions):
    few = steps(topics, partitions, 100)
    many = steps(topics if topics == 1 else 10 * topics, partitions if partitions == 1 else 10 * partitions, 1000)

    assert 1000 < few < many < 12 * few


@pytest.mark.slow
def test_ten_thousand_partitions_of_a_thousand_topics_stay_put_whatever_each_of_a_thousand_members_subscribes_to():
    topics = [UUID(int=number) for number in range(1000)]
    subscriptions = {f"m{i}": [topics[(i + k) % 1000] for k in range(20)] for i in range(1000)}
    sizes = {topic: range(10) for topic in topics}
    first = assign(subscriptions, sizes, {})

    assert assign(subscriptions, sizes, first) == first
    holders = Counter(key for keys in first.values() for key in keys)
    assert holders == dict.fromkeys(((topic, p) for topic in topics for p in range(10)), 2)
