from __future__ import annotations

import pytest

from flowshare.core_errors import InvalidRecordState
from flowshare.share.types import Limits
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


def test_a_lock_lapses_at_its_deadline_and_not_before():
    target = partition(lock_duration_ms=30)
    acquire(target, (0, 9), now=100)
    assert target.next_deadline_ms() == 130
    assert target.lapse(129) is None

    update = target.lapse(130)

    assert update is not None
    assert update.runs == (run(0, 9, AVAILABLE),)
    assert target.next_deadline_ms() is None
    assert acquire(target, (0, 9), member="m2") == [(0, 9, 2)]
    with pytest.raises(InvalidRecordState):
        decide(target, 0, 9, ACCEPT)


def test_only_what_is_still_held_lapses():
    target = partition(lock_duration_ms=30)
    acquire(target, (0, 9))
    settle(target, 0, 4, ACCEPT)
    settle(target, 7, 7, ACCEPT)

    target.lapse(30)

    assert states(target) == [(5, 6, AVAILABLE, 1), (7, 7, ACKNOWLEDGED, 1), (8, 9, AVAILABLE, 1)]


def test_a_lapsed_lock_at_the_limit_finishes_the_record():
    target = partition(lock_duration_ms=30, delivery_count_max=2)
    acquire(target, (0, 9), now=0)
    target.lapse(30)
    acquire(target, (0, 9), now=40)

    update = target.lapse(70)

    assert update is not None
    assert (update.start_offset, update.runs) == (10, ())
    assert target.start_offset == 10


def test_a_lapsed_lock_at_the_limit_may_leave_a_dead_letter_to_write():
    target = partition(lock_duration_ms=30, delivery_count_max=1, dead_letter_on_limit=True)
    acquire(target, (0, 9))

    target.lapse(30)

    assert states(target) == [(0, 9, ARCHIVING, 1)]


def test_each_acquire_has_its_own_deadline():
    target = partition(lock_duration_ms=30)
    acquire(target, (0, 4), now=0)
    target.limits = Limits(lock_duration_ms=5, window_max=None)
    acquire(target, (5, 9), now=10)

    assert target.next_deadline_ms() == 15
    target.lapse(15)

    assert states(target) == [(0, 4, ACQUIRED, 1), (5, 9, AVAILABLE, 1)]
    assert target.next_deadline_ms() == 30


def test_a_released_record_that_another_member_took_has_the_new_deadline():
    target = partition(lock_duration_ms=30)
    acquire(target, (0, 9), now=0)
    settle(target, 4, 4, RELEASE, now=5)
    acquire(target, (0, 9), member="m2", fetch=4, now=10)

    target.lapse(30)

    assert states(target) == [(0, 3, AVAILABLE, 1), (4, 4, ACQUIRED, 2), (5, 9, AVAILABLE, 1)]
    assert [tuple(one) for one in target.in_flight()] == [(4, 4, "m2", 2, 40)]


def test_records_of_a_member_that_left_are_free_at_once():
    target = partition()
    acquire(target, (0, 4), now=0)
    acquire(target, (5, 9), member="m2")
    acquire(target, (10, 14))

    update = target.release_member("m1")

    assert update is not None
    assert update.runs == (run(0, 4, AVAILABLE), run(10, 14, AVAILABLE))
    assert states(target)[1] == (5, 9, ACQUIRED, 1)
    assert target.release_member("m1") is None
    assert target.release_member("m3") is None


def test_an_acknowledgement_of_a_member_that_left_still_counts():
    target = partition()
    acquire(target, (0, 9))
    accepted, rejected = decide(target, 0, 4, ACCEPT), decide(target, 5, 6, ACCEPT)
    target.release_member("m1")
    assert states(target) == [(0, 6, ACQUIRED, 1), (7, 9, AVAILABLE, 1)]

    target.commit(accepted)
    target.abort(rejected, now_ms=2)

    assert states(target) == [(5, 9, AVAILABLE, 1)]


def test_the_start_offset_follows_the_log_start():
    target = partition()
    acquire(target, (0, 9), (10, 19), (20, 34), batch_size=10)
    settle(target, 0, 9, RELEASE)

    update = target.move_log_start(15)

    assert update is not None
    assert (update.start_offset, update.runs) == (15, ())
    assert (target.start_offset, target.acquired_count, target.next_fetch_offset()) == (15, 20, 35)
    assert decide(target, 0, 14, ACCEPT).update is None
    settle(target, 10, 34, ACCEPT)
    assert target.start_offset == 35


def test_the_log_start_may_pass_the_whole_window():
    target = partition()
    acquire(target, (0, 9))

    target.move_log_start(14)

    assert (target.start_offset, target.end_offset, target.next_fetch_offset()) == (14, 14, 14)
    assert (target.acquired_count, target.next_deadline_ms()) == (0, None)
    assert acquire(target, (10, 19)) == [(14, 19, 1)]


def test_a_log_start_at_or_below_the_start_offset_changes_nothing():
    target = partition(10)

    assert target.move_log_start(10) is None
    assert target.move_log_start(3) is None
    assert target.start_offset == 10


def test_what_the_log_start_passed_does_not_come_back():
    target = partition(lock_duration_ms=30)
    acquire(target, (10, 14))
    target.move_log_start(11)

    target.lapse(30)

    assert states(target) == [(11, 14, AVAILABLE, 1)]
    assert acquire(target, (10, 14)) == [(11, 14, 2)]


def test_a_log_start_on_finished_records_passes_them():
    target = partition(lock_duration_ms=30)
    acquire(target, (0, 24))
    settle(target, 5, 9, ACCEPT)
    settle(target, 15, 19, ACCEPT)

    target.move_log_start(12)
    assert target.start_offset == 12
    target.move_log_start(16)

    assert (target.start_offset, target.delivery_complete_count) == (20, 0)
    target.lapse(30)
    assert states(target) == [(20, 24, AVAILABLE, 1)]


def test_the_log_start_ends_delays_and_dead_letters_below_it():
    target = partition(dead_letter_on_reject=True, lock_duration_ms=1000)
    acquire(target, (0, 9))
    settle(target, 0, 2, RELEASE, not_before=50)

    target.move_log_start(2)
    assert (target.delayed_count, target.next_deadline_ms()) == (1, 50)
    target.move_log_start(3)

    assert (target.delayed_count, target.next_deadline_ms()) == (0, 1000)


def test_an_archived_record_in_front_is_stored_with_the_start_offset():
    target = partition(lock_duration_ms=30)
    acquire(target, (0, 4), now=0)
    target.move_log_start(2)
    target.limits = Limits(lock_duration_ms=30, delivery_count_max=1, window_max=None)
    acquire(target, (5, 9), now=10)

    update = target.lapse(30)

    assert update is not None
    assert (update.start_offset, update.runs) == (5, ())
    assert ARCHIVED not in {one[2] for one in states(target)}
