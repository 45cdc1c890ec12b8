"""Tests of the partitions that a member of a fleet holds: each transition, one by one."""

from __future__ import annotations

import pytest

from flowshare.client.net.topology import NOBODY
from flowshare.client.session.custody import NUMBERS_MAX, Custody, Generations
from flowshare.protocol import messages as m
from flowshare.share.types import AckRange, AcquiredRange
from tests.client.fakes import ORDERS

P0, P1 = m.TopicPartition(ORDERS, 0), m.TopicPartition(ORDERS, 1)
NONE = frozenset()


def ranges(*pairs):
    return tuple(AcquiredRange(first, last, 1) for first, last in pairs)


def acks(first, last, types=b"\x01"):
    return [AckRange(first, last, types)]


@pytest.fixture
def custody():
    """Home at node 1, where 0 to 9 were acquired."""
    custody = Custody(Generations())
    custody.found(P0, 1, 0.0)
    assert custody.took(1, P0, ranges((0, 9))) == custody.generation
    return custody


def moved(custody, *, kept, told=None):
    """To node 2, which says what it kept."""
    custody.found(P0, 2, 1.0)
    told = custody.tell(2) if told is None else told
    return custody.resumed(2, told, {P0: kept}, NONE)


def test_a_partition_is_at_home_where_it_is_led_first():
    custody = Custody(Generations())

    custody.found(P0, NOBODY, 0.0)
    assert custody.adrift[P0].bound == NOBODY
    custody.found(P0, 3, 0.0)

    assert (custody.homes, custody.adrift) == ({P0: 3}, {})


def test_what_came_before_the_next_leader_was_told_is_taken_and_told(custody):
    custody.found(P0, 2, 1.0)

    assert custody.took(1, P0, ranges((10, 12))) == custody.generation

    assert custody.tell(2) == (m.HeldRanges(*P0, ((0, 12),)),)


@pytest.mark.parametrize("home", [False, True], ids=["told", "home"])
def test_what_comes_after_it_was_told_is_left(custody, home):
    custody.found(P0, 2, 1.0)
    told = custody.tell(2)
    if home:
        custody.resumed(2, told, {P0: ((0, 9),)}, NONE)

    assert custody.took(1, P0, ranges((10, 12))) is None

    assert custody.holding.of(P0) == ((0, 9),)


def test_what_comes_from_a_home_before_the_last_is_left(custody):
    moved(custody, kept=((0, 9),))
    custody.found(P0, 3, 2.0)

    assert custody.took(1, P0, ranges((10, 12))) is None
    assert custody.took(2, P0, ranges((10, 12))) is not None


def test_an_answer_of_a_node_that_it_is_not_bound_for_any_more_is_void(custody):
    custody.found(P0, 2, 1.0)
    told = custody.tell(2)
    custody.found(P0, 3, 1.0)

    assert custody.resumed(2, told, {}, NONE) == []

    assert custody.holds(P0, custody.generation)
    assert custody.bound_for(3) == [P0]


def test_a_node_that_does_not_lead_it_is_asked_again_after_a_look_only(custody):
    custody.found(P0, 2, 1.0)
    custody.resumed(2, custody.tell(2), {}, frozenset({P0}))

    custody.found(P0, 2, 1.0)
    assert custody.bound_for(2) == []
    custody.looked({P0: 2}, 2.0)

    assert custody.bound_for(2) == [P0]


def test_a_home_that_says_it_does_not_lead_it_is_left(custody):
    custody.refused(P0, 5, 1.0)
    assert custody.homes == {P0: 1}, "what another one says is no news"

    custody.refused(P0, 1, 1.0)

    assert (custody.homes, custody.adrift[P0].bound) == ({}, NOBODY)


def test_what_the_next_leader_does_not_know_at_all_is_lost_for_good(custody):
    before = custody.generation

    assert moved(custody, kept=()) == [P0]

    assert not custody.holds(P0, before)
    assert custody.holds(P1, before), "of others nothing is lost"
    assert custody.gave(before)
    assert custody.took(2, P0, ranges((0, 3))) == custody.generation > before
    assert not custody.holds(P0, before)
    assert custody.losses == 1


def test_what_it_knows_in_part_is_held_in_part(custody):
    moved(custody, kept=((2, 3), (7, 7)))

    assert custody.holding.of(P0) == ((2, 3), (7, 7))
    assert custody.holds(P0, custody.generation)
    assert custody.losses == 0


def test_what_ends_records_was_not_written_when_some_of_them_are_the_members_still(custody):
    moved(custody, kept=((5, 9),))

    assert custody.unwritten(P0, acks(5, 6), custody.taken)
    assert custody.unwritten(P0, acks(4, 5), custody.taken), "the log may start at 5 by now"
    assert not custody.unwritten(P0, acks(0, 4), custody.taken)
    assert not custody.unwritten(P1, acks(5, 6), custody.taken)


@pytest.mark.parametrize("types", [b"\x02", b"\x04", b"\x01\x04"], ids=["release", "renew", "accept and renew"])
def test_what_leaves_records_to_come_again_was_not_written_when_all_of_them_are_the_members_still(custody, types):
    moved(custody, kept=((5, 9),))

    assert custody.unwritten(P0, acks(5, 6, types), custody.taken)
    assert not custody.unwritten(P0, acks(4, 5, types), custody.taken)


def test_a_release_in_doubt_was_written_when_the_records_were_given_again_since(custody):
    sent = custody.taken
    custody.took(1, P0, ranges((3, 3), (10, 12)))
    moved(custody, kept=((0, 12),))

    assert not custody.unwritten(P0, acks(2, 3), sent)
    assert custody.unwritten(P0, acks(2, 3), custody.taken), "sent after they came again"
    assert custody.unwritten(P0, acks(4, 12), sent)


def test_after_the_lock_time_without_a_leader_it_is_lost(custody):
    before = custody.generation
    custody.cut_off(1, 5.0)

    assert custody.overdue(34.9, 30.0) == []
    assert custody.holds(P0, before)
    assert custody.overdue(35.0, 30.0) == [P0]

    assert not custody.holds(P0, before)
    custody.found(P0, 2, 40.0)
    assert custody.tell(2) == (m.HeldRanges(*P0, (), lapsed=((0, 9),)),)

    custody.resumed(2, custody.tell(2), {}, NONE)
    custody.cut_off(2, 50.0)
    custody.found(P0, 3, 50.0)
    assert custody.tell(3) == (m.HeldRanges(*P0, ()),), "told once"


def test_what_was_lost_without_a_leader_is_told_to_the_next_one_though_it_was_not_assigned_meanwhile(custody):
    custody.cut_off(1, 5.0)
    custody.overdue(35.0, 30.0)
    custody.forget(NONE)
    assert not custody.partitions, "nobody is asked about what is not assigned"

    custody.found(P0, NOBODY, 40.0)
    custody.found(P0, 2, 41.0)

    assert custody.homes == {}, "the leader counts what it is not told of as never run"
    assert custody.tell(2) == (m.HeldRanges(*P0, (), lapsed=((0, 9),)),)


def test_what_was_lost_at_home_is_told_there_though_it_was_not_assigned_meanwhile(custody):
    custody.given_up()
    custody.forget(NONE)

    custody.found(P0, 1, 1.0)

    assert custody.tell(1) == (m.HeldRanges(*P0, (), lapsed=((0, 9),)),)


def test_what_is_held_is_followed_after_it_is_assigned_to_others(custody):
    custody.forget(frozenset())
    assert custody.homes == {P0: 1}

    custody.holding.ended(P0, 0, 9)
    custody.forget(frozenset())

    assert custody.homes == {}


def test_numbers_are_not_remembered_for_ever(custody):
    first = custody.generation
    for _ in range(NUMBERS_MAX + 5):
        custody.found(P1, 1, 0.0)
        custody.took(1, P1, ranges((0, 0)))
        custody.cut_off(1, 0.0)
        custody.overdue(30.0, 30.0)
        for tp in (P0, P1):
            custody.found(tp, 1, 0.0)
        custody.resumed(1, custody.tell(1), {}, NONE)

    assert not custody.gave(first)
    assert not custody.holds(P0, first)
    assert len(custody._numbers) <= NUMBERS_MAX


def test_who_takes_an_earlier_process_place_says_what_that_one_held_before_anything_else():
    custody = Custody(Generations())
    custody.found(P0, 1, 0.0)
    custody.found(P1, NOBODY, 0.0)

    custody.adopt({P0: [(0, 9)]}, 1.0)
    custody.found(P1, 1, 2.0)
    told = custody.tell(1)

    assert told == (m.HeldRanges(*P0, ((0, 9),)), m.HeldRanges(*P1))
    assert custody.resumed(1, told, {P0: ((0, 4),)}, NONE) == [P0, P1]
    assert custody.holding.of(P0) == ((0, 4),)
    assert custody.homes == {P0: 1, P1: 1}


def test_what_was_taken_over_and_is_not_the_members_any_more_is_lost():
    custody = Custody(Generations())
    custody.found(P0, 1, 0.0)
    number = custody.generation

    custody.adopt({P0: [(0, 9)]}, 1.0)
    custody.resumed(1, custody.tell(1), {}, NONE)

    assert not custody.holds(P0, number)
    assert custody.holds(P0, custody.generation)
