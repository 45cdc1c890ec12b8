"""Limits of records in flight, and how they are divided among members that want more."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from flowshare.share.allotment import GRACE_MS, HUNGRY_MS, Allotment
from flowshare.share.partition import SharePartition
from tests.share.builders import ACCEPT, RELEASE, acquire, partition, settle


def locked(locks: int, **limits: object) -> SharePartition:
    """A share-partition whose members may hold `locks` records at once."""
    return partition(record_locks_max=locks, window_max=100_000, **limits)


def take(target: SharePartition, member: str, most: int, *, now: int = 0) -> int:
    """How many of an endless log's records a member gets when it asks for `most`."""
    start = target.next_fetch_offset()
    ranges = acquire(target, (start, start + most - 1), member=member, most=most, record_limit=True, now=now)
    return sum(last - first + 1 for first, last, _ in ranges)


def accept_one(target: SharePartition, member: str, *, now: int = 0) -> None:
    """Accept the first record that a member holds."""
    first = next(flight.first for flight in target.in_flight() if flight.member_id == member)
    settle(target, first, first, ACCEPT, member=member, now=now)


# --- record locks ----------------------------------------------------------------------------------------------------


def test_one_member_may_take_all_locks_while_nobody_else_wants_any():
    target = locked(100)

    assert take(target, "slow", 100) == 100


def test_what_becomes_free_goes_to_the_member_that_holds_less():
    target = locked(4)
    take(target, "slow", 4)
    assert target.may_acquire("quick", 4, 0) == 0

    accept_one(target, "slow")

    assert take(target, "slow", 4) == 0
    assert take(target, "quick", 4) == 1


def test_a_member_gets_more_again_when_the_others_have_their_fair_share():
    target = locked(4)
    take(target, "slow", 4)
    for _ in range(2):
        assert take(target, "quick", 4) == 0
        accept_one(target, "slow")
        assert take(target, "quick", 4) == 1
    accept_one(target, "slow")

    assert take(target, "slow", 4) == 1


def test_a_member_below_its_share_does_not_take_what_others_lack():
    target = locked(10)
    take(target, "a", 10)
    assert [take(target, member, 10) for member in "bc"] == [0, 0]
    for _ in range(6):
        accept_one(target, "a")

    assert [take(target, member, 10) for member in "bca"] == [4, 2, 0]


@pytest.mark.parametrize(("leaves", "until"), [(True, GRACE_MS), (False, HUNGRY_MS)])
def test_nothing_is_kept_for_a_member_that_does_not_come_back(leaves: bool, until: int) -> None:
    target = locked(2)
    take(target, "slow", 2)
    take(target, "gone", 2)
    if leaves:
        target.allowance.leave("gone", 0)
    accept_one(target, "slow")

    assert take(target, "slow", 1, now=until - 1) == 0
    due = target.next_deadline_ms()
    assert due == until
    target.lapse(until)
    assert target.next_deadline_ms() != until
    assert take(target, "slow", 1, now=until) == 1


def test_a_member_that_comes_back_at_once_has_its_place():
    target = locked(2)
    take(target, "slow", 2)
    take(target, "quick", 2)
    target.allowance.leave("quick", 0)
    accept_one(target, "slow")

    assert take(target, "quick", 1, now=GRACE_MS - 1) == 1


def test_nothing_is_kept_for_a_member_that_comes_back_where_no_records_are_left():
    one, two, quota = locked(100), locked(100), Allotment(2)
    one.allowance.quota = two.allowance.quota = quota
    take(one, "slow", 2)
    take(two, "back", 2)
    two.allowance.leave("back", 0)
    accept_one(one, "slow")
    two.allowance.dry("other")
    assert take(one, "slow", 1) == 0

    two.allowance.dry("back")

    assert take(one, "slow", 1) == 1


def test_nothing_is_kept_for_a_member_that_waits_where_no_records_are_left():
    one, two, quota = locked(100), locked(100), Allotment(2)
    one.allowance.quota = two.allowance.quota = quota
    take(one, "slow", 2)
    take(two, "waits", 2)
    accept_one(one, "slow")
    assert take(one, "slow", 1) == 0

    two.allowance.dry()

    assert take(one, "slow", 1) == 1


def test_a_member_is_hungry_as_long_as_it_waits_somewhere():
    parts, quota = [locked(100) for _ in range(3)], Allotment(2)
    for part in parts:
        part.allowance.quota = quota
    take(parts[0], "slow", 2)
    for part in parts[1:]:
        take(part, "waits", 2)
    accept_one(parts[0], "slow")

    parts[1].allowance.dry()
    assert take(parts[0], "slow", 1) == 0
    parts[2].allowance.quota = None

    assert take(parts[0], "slow", 1) == 1


def test_nothing_is_kept_for_a_member_whose_session_ended():
    target = locked(2)
    take(target, "slow", 2)
    take(target, "gone", 2)
    accept_one(target, "slow")

    target.release_member("gone")

    assert take(target, "slow", 1) == 1


def test_nothing_is_kept_for_a_member_that_got_all_there_was():
    target = locked(10)
    assert acquire(target, (0, 1), member="content", most=10, record_limit=True) == [(0, 1, 1)]

    assert take(target, "greedy", 8) == 8


def test_a_group_that_counts_as_kafka_does_divides_nothing():
    target = partition(record_locks_max=4, window_max=None)
    take(target, "slow", 4)
    take(target, "quick", 4)
    settle(target, 0, 0, ACCEPT, member="slow")

    assert take(target, "slow", 4) == 1


def test_members_wait_in_the_order_in_which_they_are_served():
    target = locked(3)
    take(target, "slow", 3)
    assert target.first_served(0) is None
    take(target, "b", 1)
    take(target, "c", 1)
    accept_one(target, "slow")
    take(target, "b", 1)
    settle(target, 3, 3, ACCEPT, member="b")

    place = target.first_served(0)

    assert place is not None
    assert sorted(("slow", "b", "c"), key=place) == ["c", "b", "slow"]


# --- the group's limit -----------------------------------------------------------------------------------------------


def test_the_limit_of_a_group_counts_over_its_share_partitions():
    quota = Allotment(5)
    one, two = locked(100), locked(100)
    one.allowance.quota = two.allowance.quota = quota

    assert (take(one, "m1", 3), take(two, "m2", 3)) == (3, 2)
    assert not one.can_acquire()
    settle(two, 0, 0, ACCEPT, member="m2")
    assert one.can_acquire()
    assert take(one, "m3", 3) == 1


def test_the_limit_of_a_group_is_kept_to_the_record_within_a_batch():
    target = locked(100)
    target.allowance.quota = Allotment(3)

    assert acquire(target, (0, 49), most=50) == [(0, 2, 1)]
    assert acquire(target, (0, 49), most=50) == []


def test_the_limit_can_change_at_any_time():
    target = locked(100)
    target.allowance.quota = Allotment(4)
    take(target, "m1", 4)

    target.allowance.quota.limit = 2
    settle(target, 0, 1, ACCEPT)
    assert take(target, "m1", 4) == 0
    target.allowance.quota.limit = 0
    assert not target.can_acquire()
    target.allowance.quota.limit = 5
    assert take(target, "m1", 4) == 3
    target.allowance.quota.limit = None
    assert take(target, "m1", 4) == 4


def test_what_is_held_counts_from_when_the_limit_is_set_until_it_is_taken_away():
    target, quota = locked(100), Allotment(4)
    take(target, "m1", 3)

    target.allowance.quota = quota
    assert quota.tally.held == {"m1": 3}
    assert take(target, "m1", 4) == 1
    target.allowance.quota = None

    assert (quota.tally.held, quota.tally.total) == ({}, 0)
    assert take(target, "m1", 4) == 4


def test_a_limit_of_one_goes_round_the_members():
    target = locked(100)
    target.allowance.quota = Allotment(1)
    served = []
    take(target, "a", 1)
    for _ in range(9):
        for member in "abc":
            take(target, member, 1)
        [holder] = {flight.member_id for flight in target.in_flight()}
        served.append(holder)
        accept_one(target, holder)
        take(target, holder, 1)  # it asks first, as it brings its acknowledgement

    assert Counter(served) == {"a": 3, "b": 3, "c": 3}


def test_released_and_lapsed_records_are_not_in_flight():
    target, quota = locked(100, lock_duration_ms=50), Allotment(10)
    target.allowance.quota = quota
    take(target, "m1", 4)

    settle(target, 0, 0, RELEASE, not_before=1_000)
    settle(target, 1, 1, RELEASE)
    assert quota.tally.held == {"m1": 2}
    target.lapse(50)

    assert quota.tally.total == 0


# --- pausing ---------------------------------------------------------------------------------------------------------


def test_a_paused_group_acquires_nothing_and_settles_what_is_in_flight():
    target = locked(10)
    take(target, "m1", 2)
    running = target.limits

    target.limits = locked(10, paused=True).limits
    assert not target.can_acquire()
    assert target.may_acquire("m2", 5, 0) == 0
    assert take(target, "m2", 5) == 0
    settle(target, 0, 0, ACCEPT)
    settle(target, 1, 1, RELEASE)
    target.limits = running

    assert acquire(target, (1, 3), member="m2") == [(1, 1, 2), (2, 3, 1)]


# --- a slow member and a quick one -----------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(5))
def test_a_slow_member_does_not_starve_quick_ones(seed: int) -> None:
    """All ask for as much as they can get, in random order; the slow one finishes a record in 20 turns, the quick ones
    all of theirs in each."""
    rng = random.Random(seed)
    target = locked(12)
    done = Counter[str]()
    take(target, "slow", 12)
    for turn in range(1, 301):
        for member in rng.sample(("slow", "q1", "q2"), 3):
            held = [flight for flight in target.in_flight() if flight.member_id == member]
            if member == "slow":
                held = held[:1] if turn % 20 == 0 else []
            for flight in held:
                last = flight.first if member == "slow" else flight.last
                settle(target, flight.first, last, ACCEPT, member=member, now=turn)
                done[member] += last - flight.first + 1
            take(target, member, 12, now=turn)

    held_by_slow = sum(flight.last - flight.first + 1 for flight in target.in_flight() if flight.member_id == "slow")
    assert held_by_slow == 4, f"seed {seed}"
    assert min(done["q1"], done["q2"]) >= 600, f"seed {seed}: {done}"
