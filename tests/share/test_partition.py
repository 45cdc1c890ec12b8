from __future__ import annotations

import pytest

from flowshare.core_errors import StateCorrupt
from flowshare.share.types import PENDING, StateRun
from tests.share.builders import (
    ACCEPT,
    ACKNOWLEDGED,
    ACQUIRED,
    ARCHIVED,
    ARCHIVING,
    AVAILABLE,
    RELEASE,
    acquire,
    decide,
    partition,
    run,
    settle,
    states,
)


def test_an_empty_share_partition_fetches_from_its_start():
    target = partition(7)

    assert (target.start_offset, target.end_offset, target.next_fetch_offset()) == (7, 7, 7)
    assert target.can_acquire()
    assert (target.state(), target.in_flight(), target.archiving()) == ((), (), ())
    assert target.next_deadline_ms() is None


def test_a_reload_keeps_counts_and_finished_records():
    target = partition(5, [run(5, 10, AVAILABLE, 2), run(11, 15, ARCHIVED, 3)])

    assert (target.start_offset, target.next_fetch_offset(), target.delivery_complete_count) == (5, 5, 5)
    assert acquire(target, (5, 20)) == [(5, 10, 3), (16, 20, 1)]


def test_a_reload_passes_a_finished_head():
    target = partition(233, [run(233, 733, ACKNOWLEDGED)])

    assert (target.start_offset, target.end_offset, target.state()) == (734, 734, ())


def test_a_reload_counts_finished_records_behind_a_hole():
    target = partition(10, [run(15, 20, ACKNOWLEDGED), run(21, 30, ARCHIVED)])

    assert (target.start_offset, target.delivery_complete_count, target.next_fetch_offset()) == (10, 16, 10)


def test_records_of_an_owner_that_is_gone_are_available_with_their_count():
    target = partition(0, [run(0, 4, ACQUIRED, 2, "m1")])

    assert states(target) == [(0, 4, AVAILABLE, 2)]


def test_an_attempt_that_ended_with_its_process_is_used_up():
    runs = [run(0, 4, ACQUIRED, 5, "m1"), run(5, 9, ACQUIRED, 4, "m1")]

    assert partition(0, runs).start_offset == 5
    assert states(partition(0, runs, dead_letter_on_limit=True))[0] == (0, 4, ARCHIVING, 5)


def test_locks_of_living_members_outlive_a_reload():
    runs = [run(0, 4, ACQUIRED, 2, "m1"), run(5, 9, ACQUIRED, 1), run(10, 12, ACQUIRED, 1, "m2")]
    target = partition(0, runs, living={"m1"}, now=100, lock_duration_ms=30)

    assert states(target) == [(0, 4, ACQUIRED, 2), (5, 12, AVAILABLE, 1)]
    assert target.next_deadline_ms() == 130
    settle(target, 0, 4, ACCEPT)


def test_a_delay_outlives_a_reload():
    runs = [run(0, 4, AVAILABLE, 2, None, 500), run(5, 9, AVAILABLE, 2, None, 50)]
    target = partition(0, runs, now=100)

    assert (target.delayed_count, target.next_fetch_offset(), target.next_deadline_ms()) == (5, 5, 500)
    target.lapse(500)
    assert target.next_fetch_offset() == 0


def test_a_dead_letter_to_be_written_outlives_a_reload():
    target = partition(0, [run(0, 4, ARCHIVING, 2), run(5, 9, ARCHIVING, 5)], delivery_count_max=5)

    assert [tuple(one[:4]) for one in target.archiving()] == [(0, 4, 2, False), (5, 9, 5, True)]


@pytest.mark.parametrize(
    "runs",
    [
        [run(4, 9, AVAILABLE)],
        [run(9, 8, AVAILABLE)],
        [run(5, 9, AVAILABLE), run(9, 12, AVAILABLE)],
        [run(10, 12, AVAILABLE), run(5, 9, AVAILABLE)],
        [run(5, 1 << 60, AVAILABLE)],
    ],
    ids=["below start", "backwards", "overlap", "unsorted", "absurd"],
)
def test_state_that_contradicts_itself_is_not_served(runs):
    with pytest.raises(StateCorrupt):
        partition(5, runs)


def test_the_state_reloads_to_itself():
    target = partition(window_max=1000)
    acquire(target, (0, 9), (10, 19), (25, 29), most=25, record_limit=True)
    settle(target, 3, 5, ACCEPT)
    settle(target, 6, 8, RELEASE, not_before=70)
    decide(target, 12, 13, ACCEPT)

    again = partition(target.start_offset, target.state(), living={"m1"}, window_max=1000)

    assert again.state() == target.state()
    assert again.delivery_complete_count == target.delivery_complete_count
    assert (again.end_offset, again.acquired_count) == (target.end_offset, target.acquired_count)


def test_what_is_in_flight_names_member_count_and_deadline():
    target = partition(lock_duration_ms=30)
    acquire(target, (0, 4), now=10)
    acquire(target, (5, 9), member="m2", now=20)
    decide(target, 2, 2, ACCEPT)

    assert [tuple(one) for one in target.in_flight()] == [
        (0, 1, "m1", 1, 40),
        (2, 2, "m1", 1, 40),
        (3, 4, "m1", 1, 40),
        (5, 9, "m2", 1, 50),
    ]


def test_a_snapshot_shows_an_acknowledgement_that_is_being_written_as_acquired():
    target = partition()
    acquire(target, (0, 9))
    decide(target, 2, 4, ACCEPT)

    assert target.state() == (StateRun(0, 9, ACQUIRED, 1, "m1"),)
    assert target._window.tally[PENDING] == 3


def test_the_start_offset_stays_before_a_hole_of_a_reload():
    target = partition(0, [run(0, 4, AVAILABLE), run(8, 9, ACKNOWLEDGED), run(12, 14, ACKNOWLEDGED)])
    acquire(target, (0, 4), most=5)

    settle(target, 0, 4, ACCEPT)
    assert target.start_offset == 5
    assert acquire(target, (5, 14), most=3) == [(5, 7, 1)]
    settle(target, 5, 7, ACCEPT)

    assert (target.start_offset, target.next_fetch_offset()) == (10, 10)
