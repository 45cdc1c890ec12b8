"""Tests of a member's held ranges: parts of ranges, after any takes, settles and losses."""

from __future__ import annotations

import random

from flowshare.spark.source.locks import UNKNOWN_S, Locks
from flowshare.spark.source.ranges import Range
from tests.sim.seeds import drawn


def of(first, last, delivery=1, topic="t", partition=0):
    return Range(topic, partition, first, last, delivery)


def test_a_part_that_is_let_go_leaves_what_is_beside_it():
    holds = Locks()
    holds.take([of(0, 9, 2)], 30.0, 1)

    holds.let_go(of(3, 5))

    assert holds.parts(of(2, 7)) == [(of(2, 2, 2), 1), (of(6, 7, 2), 1)]
    assert holds.ranges() == [of(0, 2, 2), of(6, 9, 2)]


def test_what_is_acquired_anew_is_held_as_that_alone():
    holds = Locks()
    holds.take([of(0, 9)], 30.0, 1)

    holds.take([of(4, 6, 2)], 60.0, 2)

    assert holds.parts(of(0, 9)) == [(of(0, 3), 1), (of(4, 6, 2), 2), (of(7, 9), 1)]
    assert holds.due(30.0) == [of(0, 3), of(7, 9)]


def test_only_the_range_itself_is_renewed_or_lost():
    holds = Locks()
    holds.take([of(0, 4), of(5, 9)], 30.0, 1)

    holds.renewed(of(0, 4), 60.0)
    holds.renewed(of(0, 9), 90.0)

    assert holds.due(30.0) == [of(5, 9)]
    assert not holds.lost(of(0, 9))
    assert holds.lost(of(5, 9))
    assert not holds.lost(of(5, 9))
    assert holds.ranges() == [of(0, 4)]


def test_what_an_earlier_process_had_lost_is_not_a_lock_that_this_one_lost():
    holds = Locks()
    holds.take([of(0, 4), of(5, 9)], UNKNOWN_S, None)

    assert holds.due(30.0) == [of(0, 4), of(5, 9)]
    holds.renewed(of(5, 9), 60.0)

    assert not holds.lost(of(0, 4))
    assert holds.ranges() == [of(5, 9)]
    assert holds.lost(of(5, 9))


def test_nothing_is_held_of_a_topic_that_is_forgotten():
    holds = Locks()
    holds.take([of(0, 4), of(0, 4, topic="u"), of(0, 4, partition=1)], 30.0, 1)

    holds.forget("t")

    assert holds.ranges() == [of(0, 4, topic="u")]


def test_any_order_of_taking_and_letting_go_holds_what_a_table_of_offsets_holds():
    rng = random.Random(drawn())
    holds, known = Locks(), {}
    for turn in range(300):
        first = rng.randrange(60)
        one = of(first, first + rng.randrange(12), delivery=turn)
        if rng.random() < 0.5:
            holds.take([one], 30.0, turn)
            known |= dict.fromkeys(range(one.first, one.last + 1), turn)
        else:
            holds.let_go(one)
            for offset in range(one.first, one.last + 1):
                known.pop(offset, None)
        found = {
            offset: (part.delivery, generation)
            for part, generation in holds.parts(of(0, 99))
            for offset in range(part.first, part.last + 1)
        }
        assert found == {offset: (at, at) for offset, at in known.items()}
