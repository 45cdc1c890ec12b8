"""A group's limit is shared out between its leaders, and never given twice."""

from __future__ import annotations

import random

import pytest

from flowshare.share.leases import FORGET_MS, LEASE_MS, Leases, Report

LATER = 10_000
"""Long after the coordinator began."""


def wants(in_flight=0, leased=0):
    return Report(in_flight, True, leased)


def rests(in_flight=0, leased=0):
    return Report(in_flight, False, leased)


def test_a_leader_that_wants_alone_gets_all():
    assert Leases(0).grant(1, wants(), 10, LATER) == 10


def test_a_leader_that_wants_nothing_keeps_what_it_has_in_flight():
    leases = Leases(0)
    leases.grant(1, wants(), 10, LATER)

    assert leases.grant(1, rests(3), 10, LATER + 100) == 3
    assert leases.grant(2, wants(), 10, LATER + 100) == 7


def test_two_that_want_get_equal_parts_once_the_first_gave_back():
    leases = Leases(0)
    leases.grant(1, wants(), 10, LATER)

    assert leases.grant(2, wants(), 10, LATER + 50) == 0
    assert leases.grant(1, wants(2), 10, LATER + 100) == 5
    assert leases.grant(2, wants(), 10, LATER + 150) == 5


def test_what_is_in_flight_is_never_taken_back():
    leases = Leases(0)
    leases.grant(1, wants(), 10, LATER)
    leases.grant(2, wants(), 10, LATER)

    assert leases.grant(1, wants(9), 10, LATER + 100) == 9
    assert leases.grant(2, wants(), 10, LATER + 100) == 1


def test_a_lowered_limit_lets_nothing_new_out_until_it_is_met():
    leases = Leases(0)
    leases.grant(1, wants(), 10, LATER)

    assert leases.grant(1, wants(8), 4, LATER + 100) == 4
    assert leases.grant(2, wants(), 4, LATER + 100) == 0


def test_the_lease_of_a_leader_that_is_gone_is_given_to_others_after_it_became_void():
    leases = Leases(0)
    leases.grant(1, wants(), 10, LATER)

    assert leases.grant(2, wants(), 10, LATER + LEASE_MS) == 0
    assert leases.grant(2, wants(), 10, LATER + FORGET_MS) == 10


def test_a_new_coordinator_gives_nothing_new_while_leases_of_before_may_be_used():
    leases = Leases(begun_ms=LATER)

    assert leases.grant(2, wants(), 10, LATER) == 0
    assert leases.grant(1, wants(3, leased=8), 10, LATER + 100) == 8
    assert leases.grant(2, wants(), 10, LATER + FORGET_MS - 1) == 0
    assert leases.grant(2, wants(), 10, LATER + 100 + FORGET_MS) == 10


def test_a_limit_below_the_number_of_leaders_goes_round():
    leases = Leases(0)
    got, now = [], LATER
    for _ in range(6):
        for node in (1, 2, 3):
            now += 50
            if leases.grant(node, wants(0), 1, now):
                got.append(node)
                assert leases.grant(node, wants(1, leased=1), 1, now + 1) == 1

    assert sorted(set(got)) == [1, 2, 3]
    assert max(got.count(node) for node in (1, 2, 3)) - min(got.count(node) for node in (1, 2, 3)) <= 1


@pytest.mark.parametrize("seed", range(20))
def test_leases_are_together_never_more_than_the_limit_and_nobody_starves(seed):
    choose = random.Random(seed)
    limit, now = choose.randint(1, 30), LATER
    leases = Leases(0)
    held = dict.fromkeys(range(1, choose.randint(2, 6)), 0)
    leased = dict.fromkeys(held, 0)
    starving = dict.fromkeys(held, 0)
    for _ in range(600):
        now += choose.randint(1, 40)
        node = choose.choice(list(held))
        held[node] -= choose.randint(0, held[node])
        leased[node] = leases.grant(node, wants(held[node], leased[node]), limit, now)
        held[node] = max(held[node], choose.randint(held[node], max(held[node], leased[node])))
        assert sum(held.values()) <= limit
        starving[node] = 0 if leased[node] else starving[node] + 1
        assert starving[node] < 200
