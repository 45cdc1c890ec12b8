"""The assignors of Kafka's consumer protocol: everything is given to one, evenly, and little moves."""

from __future__ import annotations

import random
import uuid

import pytest

from flowshare.groups.assignors import ASSIGNORS, Reader, assign_range, assign_uniform
from tests.sim.seeds import seeds

T, U = uuid.UUID(int=1), uuid.UUID(int=2)


def readers(count, *topics, before=None, static=()):
    had = before or {}
    return [
        Reader(f"m{n}", frozenset(topics), had.get(f"m{n}", frozenset()), f"i{n}" if n in static else None)
        for n in range(count)
    ]


def sizes(assignment):
    return sorted(map(len, assignment.values()))


def test_uniform_gives_everybody_as_many() -> None:
    assert sizes(assign_uniform(readers(3, T), {T: 7})) == [2, 2, 3]
    assert sizes(assign_uniform(readers(3, T), {T: 2})) == [0, 1, 1]
    assert sizes(assign_uniform(readers(2, T, U), {T: 1, U: 3})) == [2, 2]


def test_uniform_moves_no_more_than_it_must_when_one_comes() -> None:
    before = assign_uniform(readers(3, T), {T: 9})
    after = assign_uniform(readers(4, T, before=before), {T: 9})
    assert sizes(after) == [2, 2, 2, 3]
    assert all(after[name] <= before[name] for name in before)


def test_uniform_gives_only_what_is_free_when_one_goes() -> None:
    before = assign_uniform(readers(4, T), {T: 8})
    after = assign_uniform(readers(3, T, before=before), {T: 8})
    assert all(before[name] <= after[name] for name in after)
    assert sizes(after) == [2, 3, 3]


def test_uniform_evens_loads_out_where_members_read_different_topics() -> None:
    some = [Reader("a", frozenset({T, U})), Reader("b", frozenset({U})), Reader("c", frozenset({T}))]
    assert sizes(assign_uniform(some, {T: 4, U: 2})) == [2, 2, 2]
    had = frozenset((T, number) for number in range(4))
    again = [Reader("a", frozenset({T, U}), had), Reader("b", frozenset({U})), Reader("c", frozenset({T}))]
    after = assign_uniform(again, {T: 4, U: 2})
    assert sizes(after) == [2, 2, 2]


def test_uniform_looks_at_very_many_partitions_once() -> None:
    some = [Reader("a", frozenset({T, U})), Reader("b", frozenset({U})), Reader("c", frozenset({T}))]
    found = assign_uniform(some, {T: 150_000, U: 60_000})
    assert sum(sizes(found)) == 210_000


def test_nobody_and_nothing_are_assigned_too() -> None:
    for assign in ASSIGNORS.values():
        assert assign([], {T: 3}) == {}
        assert assign(readers(1, T), {}) == {"m0": frozenset()}
        assert assign([Reader("a", frozenset()), Reader("b", frozenset({T}))], {T: 1, U: 1})["a"] == frozenset()


def test_range_gives_neighbours_and_the_same_numbers_of_topics_alike() -> None:
    found = assign_range(readers(2, T, U), {T: 3, U: 3})
    assert found["m0"] == {(T, 0), (T, 1), (U, 0), (U, 1)}
    assert found["m1"] == {(T, 2), (U, 2)}


def test_range_puts_static_members_first() -> None:
    found = assign_range(readers(3, T, static=(2,)), {T: 3})
    assert found["m2"] == {(T, 0)}


@pytest.mark.parametrize("name", ASSIGNORS)
@pytest.mark.parametrize("seed", seeds(30))
def test_each_partition_that_is_read_is_given_to_one_who_reads_it(name, seed) -> None:
    chance = random.Random(seed)
    topics = {uuid.UUID(int=number): chance.randint(1, 12) for number in range(1, chance.randint(2, 7))}
    before: dict = {}
    for _ in range(5):
        some = [
            Reader(
                f"m{n}",
                frozenset(chance.sample(list(topics), chance.randint(0, len(topics)))),
                before.get(f"m{n}", frozenset()),
            )
            for n in range(chance.randint(1, 8))
        ]
        found = ASSIGNORS[name](some, topics)
        reads = {reader.member_id: reader.topics for reader in some}
        given = [key for keys in found.values() for key in keys]
        read = {topic for topics_of in reads.values() for topic in topics_of}
        assert sorted(given) == sorted((topic, n) for topic in read for n in range(topics[topic]))
        assert all(key[0] in reads[member] for member, keys in found.items() for key in keys)
        assert ASSIGNORS[name](some, topics) == found
        if name == "uniform":
            check_balance(found, reads)
        before = found
        topics[uuid.UUID(int=1)] = chance.randint(1, 12)


def check_balance(found, reads):
    """Nobody could give one to somebody who reads it and has two fewer."""
    for keys in found.values():
        for topic in {key[0] for key in keys}:
            least = min(len(found[other]) for other, topics in reads.items() if topic in topics)
            assert len(keys) <= least + 1
