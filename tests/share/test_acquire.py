from __future__ import annotations

import pytest

from flowshare.share.acquire import HOLE_MAX
from flowshare.share.types import AcquireMode, LogBatch
from tests.share.builders import (
    ACCEPT,
    ACKNOWLEDGED,
    ACQUIRED,
    ARCHIVED,
    AVAILABLE,
    REJECT,
    RELEASE,
    acquire,
    partition,
    run,
    settle,
    states,
)


def released_sizes(count: int, *, limit: int, fetches: int) -> list[int]:
    """Release one batch of `count` records again and again; how many each fetch gave."""
    target = partition(delivery_count_max=limit)
    sizes: list[int] = []
    for _ in range(fetches):
        taken = acquire(target, (0, count - 1))
        sizes.append(sum(last - first + 1 for first, last, _ in taken))
        for first, last, _ in taken:
            settle(target, first, last, RELEASE)
    return sizes


# New records


def test_a_first_fetch_takes_the_log_batch_and_counts_one_delivery():
    target = partition()

    assert acquire(target, (0, 9)) == [(0, 9, 1)]
    assert (target.start_offset, target.end_offset, target.acquired_count) == (0, 10, 10)


def test_batch_optimized_goes_on_to_the_end_of_a_log_batch():
    assert acquire(partition(), (10, 14), (15, 29), (30, 44), most=10) == [(10, 29, 1)]


def test_record_limit_stops_inside_a_log_batch_and_the_rest_is_fetched_next():
    target = partition()

    assert acquire(target, (10, 14), (15, 29), (30, 44), most=10, record_limit=True) == [(10, 19, 1)]
    assert target.next_fetch_offset() == 20
    assert states(target) == [(10, 19, ACQUIRED, 1), (20, 29, AVAILABLE, 0)]
    assert acquire(target, (15, 29), member="m2", most=5, record_limit=True) == [(20, 24, 1)]


def test_record_limit_gives_one_range_of_new_records():
    assert acquire(partition(), (10, 14), (15, 19), (20, 24), most=20, batch_size=2, record_limit=True) == [(10, 24, 1)]


def test_record_limit_finishes_what_is_left_before_it_takes_new_records():
    target = partition()
    acquire(target, (0, 4), most=3, record_limit=True)

    assert acquire(target, (0, 4), (5, 9), most=3, record_limit=True) == [(3, 4, 1), (5, 5, 1)]


def test_ranges_are_cut_at_log_batches_once_they_hold_the_batch_size():
    taken = acquire(partition(), (2, 6), (10, 14), (15, 21), (22, 27), batch_size=5)

    assert taken == [(2, 9, 1), (10, 14, 1), (15, 21, 1), (22, 27, 1)]


def test_ranges_are_cut_only_as_far_as_was_acquired():
    assert acquire(partition(), (0, 4), (5, 19), (20, 34), batch_size=2, most=10) == [(0, 4, 1), (5, 19, 1)]


def test_one_log_batch_is_never_cut():
    assert acquire(partition(), (0, 4), batch_size=2) == [(0, 4, 1)]


def test_the_budget_ends_at_a_missing_offset_when_no_log_batch_holds_it():
    assert acquire(partition(), (0, 4), (20, 24), most=10) == [(0, 9, 1)]


def test_an_empty_window_starts_where_the_log_has_data():
    target = partition(3)

    assert acquire(target, (7, 9)) == [(7, 9, 1)]
    assert target.start_offset == 7


def test_a_log_batch_around_the_start_offset_is_taken_from_there_on():
    assert acquire(partition(5), (0, 9)) == [(5, 9, 1)]


@pytest.mark.parametrize("batches", [[], [(0, 4)]])
def test_nothing_is_taken_without_data_at_or_past_the_start_offset(batches):
    assert acquire(partition(5), *batches) == []


def test_nothing_is_taken_when_no_records_are_asked_for():
    assert acquire(partition(), (0, 4), most=0) == []


# The window


def test_records_that_are_held_are_not_given_again():
    target = partition()
    acquire(target, (0, 4))

    assert acquire(target, (0, 24), fetch=0, member="m2") == [(5, 24, 1)]
    assert acquire(target, (0, 24), fetch=0, member="m3") == []


def test_released_records_come_before_new_ones_and_keep_their_batches():
    target = partition()
    acquire(target, (0, 4), (5, 9), batch_size=5)
    settle(target, 0, 9, RELEASE)

    assert target.next_fetch_offset() == 0
    assert acquire(target, (0, 4), (5, 9), (10, 19)) == [(0, 4, 2), (5, 9, 2), (10, 19, 1)]


def test_neighbours_taken_offset_by_offset_are_one_range():
    target = partition()
    acquire(target, (0, 9))
    settle(target, 0, 9, *[RELEASE] * 10)

    assert acquire(target, (0, 9)) == [(0, 9, 2)]


def test_neighbours_taken_offset_by_offset_are_one_range_across_batches():
    target = partition()
    acquire(target, (0, 4), (5, 9), batch_size=5)
    settle(target, 0, 9, *[RELEASE] * 10)

    assert acquire(target, (0, 4), (5, 9)) == [(0, 9, 2)]


def test_a_fetch_from_inside_a_batch_takes_only_what_was_read():
    target = partition()
    acquire(target, (0, 9))
    settle(target, 0, 9, RELEASE)

    assert acquire(target, (4, 6), fetch=4) == [(4, 6, 2)]
    assert states(target) == [(0, 3, AVAILABLE, 1), (4, 6, ACQUIRED, 2), (7, 9, AVAILABLE, 1)]


def test_record_limit_takes_a_part_of_a_released_batch():
    target = partition()
    acquire(target, (0, 9))
    settle(target, 0, 9, RELEASE)

    assert acquire(target, (0, 9), most=4, record_limit=True) == [(0, 3, 2)]
    assert target.next_fetch_offset() == 4


def test_natural_holes_are_not_acquired_and_let_the_start_offset_pass():
    target = partition()
    for first, last in ((16, 20), (31, 40), (51, 60)):
        acquire(target, (first, last))

    settle(target, 16, 20, ACCEPT)

    assert target.start_offset == 31
    assert target.next_fetch_offset() == 61


def test_what_compaction_removed_is_archived():
    target = partition()
    acquire(target, (0, 4), (5, 9), batch_size=5)
    settle(target, 5, 9, RELEASE)

    acquisition = target.acquire(
        "m1",
        mode=AcquireMode.BATCH_OPTIMIZED,
        records_max=500,
        batch_size=500,
        fetch_offset=5,
        batches=[LogBatch(15, 19)],
        now_ms=0,
    )

    assert acquisition.update is not None
    assert acquisition.update.runs == (run(5, 9, ARCHIVED), run(15, 19, ACQUIRED, 1, "m1"))
    settle(target, 0, 4, ACCEPT)
    assert target.start_offset == 15


def test_what_compaction_removed_at_the_head_moves_the_start_offset_at_once():
    target = partition()
    acquire(target, (0, 4))
    settle(target, 0, 4, RELEASE, not_before=50)

    assert acquire(target, (15, 19), fetch=0) == [(15, 19, 1)]
    assert (target.start_offset, target.delayed_count) == (15, 0)


def test_a_hole_too_wide_to_keep_waits_until_the_window_is_empty():
    target = partition(record_locks_max=10 * HOLE_MAX)
    acquire(target, (0, 4))
    far = 5 + 2 * HOLE_MAX

    assert acquire(target, (far, far + 4)) == []
    settle(target, 0, 4, ACCEPT)

    assert acquire(target, (far, far + 4)) == [(far, far + 4, 1)]
    assert len(target._window.states) == 5


# Capacity


def test_kafkas_limit_counts_the_span_and_may_be_overshot_by_one_log_batch():
    target = partition(record_locks_max=20)
    acquire(target, (0, 9))
    assert target.can_acquire()

    assert acquire(target, (10, 14), (15, 24), (25, 34)) == [(10, 24, 1)]
    assert not target.can_acquire()
    assert acquire(target, (25, 34)) == []


def test_kafkas_limit_lets_released_records_through_but_nothing_new():
    target = partition(record_locks_max=20)
    acquire(target, (0, 24))
    settle(target, 15, 19, RELEASE)

    assert target.can_acquire()
    assert acquire(target, (15, 40)) == [(15, 19, 2)]


def test_kafkas_limit_counts_finished_records_behind_the_head():
    target = partition(record_locks_max=20)
    acquire(target, (0, 19))
    settle(target, 10, 14, REJECT)
    assert not target.can_acquire()

    settle(target, 0, 4, ACCEPT)

    assert target.can_acquire()
    assert acquire(target, (20, 24)) == [(20, 24, 1)]


def test_finished_records_behind_a_slow_one_do_not_count_against_the_lock_limit():
    target = partition(record_locks_max=20, window_max=100)
    acquire(target, (0, 19))
    assert not target.can_acquire()

    settle(target, 1, 19, ACCEPT)

    assert target.can_acquire()
    assert acquire(target, *((offset, offset) for offset in range(20, 60))) == [(20, 38, 1)]
    assert target.acquired_count == 20


def test_the_lock_limit_holds_back_released_records_too():
    target = partition(record_locks_max=10, window_max=100)
    acquire(target, (0, 9))
    settle(target, 0, 4, RELEASE)
    acquire(target, (0, 4), member="m2")

    assert target.acquired_count == 10
    assert not target.can_acquire()
    assert acquire(target, (10, 19)) == []


def test_the_window_limit_lets_released_records_through_but_nothing_new():
    target = partition(record_locks_max=100, window_max=20)
    acquire(target, (0, 19))
    settle(target, 1, 19, ACCEPT)
    assert not target.can_acquire()
    assert acquire(target, (20, 29)) == []

    settle(target, 0, 0, RELEASE)

    assert target.can_acquire()
    assert acquire(target, (0, 29)) == [(0, 0, 2)]


def test_the_window_limit_may_be_overshot_by_one_log_batch():
    target = partition(record_locks_max=100, window_max=20)
    acquire(target, (0, 14))

    assert acquire(target, (15, 24), (25, 34)) == [(15, 24, 1)]
    assert not target.can_acquire()


@pytest.mark.parametrize("window_max", [100, None])
def test_a_log_batch_that_says_more_than_anybody_should_hold_is_taken_in_parts_that_fit(window_max):
    target = partition(record_locks_max=100, window_max=window_max)

    taken = acquire(target, (0, 2**31 - 2), most=60)
    assert taken == [(0, 59, 1)]
    assert acquire(target, (0, 2**31 - 2), most=1_000) == [(60, 99, 1)]
    assert acquire(target, (0, 2**31 - 2), most=1_000) == []
    assert target.end_offset == 100

    settle(target, 0, 99, ACCEPT)
    assert acquire(target, (0, 2**31 - 2), most=1_000, record_limit=True) == [(100, 199, 1)]
    assert target.end_offset == 200


# Throttling


def test_poison_throttling_halves_then_singles():
    assert released_sizes(512, limit=10, fetches=11) == [512] * 5 + [256, 128, 64, 32, 1, 1]
    assert released_sizes(500, limit=10, fetches=11) == [500] * 5 + [250, 125, 62, 31, 1, 1]


def test_the_second_half_of_a_throttled_batch_waits_for_the_first():
    assert released_sizes(100, limit=5, fetches=56) == [100, 100, 100, 50, *[1] * 50, 50, 1]


def test_a_limit_of_two_is_never_throttled():
    target = partition(delivery_count_max=2)
    acquire(target, (0, 9))
    settle(target, 0, 9, RELEASE)

    assert acquire(target, (0, 9), (10, 19)) == [(0, 9, 2), (10, 19, 1)]


def test_a_throttled_batch_is_not_delivered_with_others():
    runs = [run(15, 19, AVAILABLE, 2), run(20, 22, ARCHIVED), run(26, 30, AVAILABLE, 3)]
    target = partition(5, runs)

    assert acquire(target, (7, 27)) == [(7, 14, 1), (15, 19, 3), (23, 25, 1)]
    assert acquire(target, (7, 27)) == [(26, 27, 4)]


def test_throttling_halves_a_reloaded_run():
    target = partition(15, [run(15, 34, AVAILABLE, 4)], delivery_count_max=7)
    sizes = []
    for _ in range(3):
        taken = acquire(target, (15, 34))
        sizes.append(sum(last - first + 1 for first, last, _ in taken))
        settle(target, taken[0][0], taken[0][1], RELEASE)

    assert sizes == [10, 5, 1]


def test_a_high_count_that_another_member_holds_does_not_throttle():
    target = partition(0, [run(0, 0, AVAILABLE, 4), run(1, 9, AVAILABLE, 1)])
    acquire(target, (0, 0), member="m2")

    assert acquire(target, (0, 9), (10, 14), fetch=1) == [(1, 9, 2), (10, 14, 1)]


def test_a_record_on_its_last_attempt_is_delivered_alone():
    target = partition(0, [run(0, 9, AVAILABLE, 1)], delivery_count_max=4)
    acquire(target, (0, 9))
    settle(target, 0, 9, *[RELEASE] * 10)
    acquire(target, (5, 5), fetch=5)
    settle(target, 5, 5, RELEASE)

    assert acquire(target, (0, 9), fetch=0) == [(0, 4, 3)]
    assert acquire(target, (5, 9), fetch=5) == [(5, 5, 4)]


# After a reload


def test_holes_of_a_reload_are_fetched_again_one_after_the_other():
    runs = [run(15, 18, AVAILABLE, 2), run(20, 22, ARCHIVED), run(26, 30, AVAILABLE, 1)]
    target = partition(10, runs)

    assert target.next_fetch_offset() == 10
    assert acquire(target, (10, 49), most=1) == [(10, 14, 1)]
    assert acquire(target, (10, 49), most=10) == [(15, 18, 3), (19, 19, 1), (23, 25, 1), (26, 30, 2)]
    assert acquire(target, (10, 49), most=1) == [(31, 49, 1)]


def test_a_hole_of_a_reload_follows_log_batches():
    target = partition(10, [run(15, 18, AVAILABLE, 2)])

    assert acquire(target, (10, 11), (12, 14), (15, 18), most=1) == [(10, 11, 1)]
    assert target.next_fetch_offset() == 12


def test_a_hole_of_a_reload_that_the_log_does_not_have_is_passed():
    target = partition(5, [run(15, 20, AVAILABLE)])

    assert acquire(target, (6, 21)) == [(6, 14, 1), (15, 20, 2), (21, 21, 1)]
    assert target.start_offset == 6


def test_a_hole_of_a_reload_ends_at_the_last_offset_read():
    runs = [run(11, 20, AVAILABLE, 2), run(31, 40, ACKNOWLEDGED)]

    assert acquire(partition(11, runs), (11, 25), most=8) == [(11, 20, 3)]
    target = partition(11, runs)
    assert acquire(target, (11, 25)) == [(11, 20, 3), (21, 25, 1)]
    assert target.next_fetch_offset() == 26


def test_a_hole_without_data_does_not_stop_a_reloaded_partition():
    target = partition(10, [run(15, 20, ACKNOWLEDGED), run(25, 29, AVAILABLE)])
    assert target.next_fetch_offset() == 10

    assert acquire(target, (15, 20)) == []

    assert target.next_fetch_offset() == 21
    assert target.start_offset == 21


# Aborted transactions


def test_aborted_records_are_archived_and_not_handed_out():
    aborted = [(10, 14), (58, 67), (70, 74)]
    target = partition(10)

    taken = acquire(target, (10, 14), (15, 19), (20, 34), (50, 57), (58, 67), (70, 74), batch_size=10, aborted=aborted)

    assert taken == [(15, 19, 1), (20, 49, 1), (50, 57, 1), (68, 69, 1)]
    assert target.next_fetch_offset() == 75
    assert (target.start_offset, target.acquired_count) == (15, 45)
    assert target.delivery_complete_count == 15


def test_an_aborted_range_may_span_several_acquired_ones():
    target = partition()

    taken = acquire(target, (0, 4), (5, 9), (10, 14), batch_size=5, aborted=[(3, 11), (13, 13), (40, 50)])

    assert taken == [(0, 2, 1), (12, 12, 1), (14, 14, 1)]
    assert states(target)[1] == (3, 11, ARCHIVED, 1)


def test_what_follows_the_last_aborted_range_is_handed_out():
    target = partition()

    taken = acquire(target, (0, 4), (5, 9), (10, 14), batch_size=5, aborted=[(0, 1)])

    assert taken == [(2, 4, 1), (5, 9, 1), (10, 14, 1)]


def test_aborted_records_that_were_not_acquired_are_left_alone():
    target = partition()
    acquire(target, (0, 4))

    assert acquire(target, (0, 4), (5, 9), fetch=0, aborted=[(0, 4), (9, 9)]) == [(5, 8, 1)]
    assert target.limits.window_max is None
    assert states(target)[0] == (0, 8, ACQUIRED, 1)


def test_aborted_records_alone_leave_nothing_behind():
    target = partition()

    assert acquire(target, (0, 4), aborted=[(0, 4)]) == []
    assert (target.start_offset, target.end_offset) == (5, 5)
    assert target.next_deadline_ms() is None


def test_released_records_of_an_aborted_transaction_are_not_redelivered():
    target = partition()
    acquire(target, (0, 9))
    settle(target, 0, 9, RELEASE)

    assert acquire(target, (0, 4), (5, 9), aborted=[(0, 4)]) == [(5, 9, 2)]
    assert target.start_offset == 5


# What is stored


def test_an_acquire_stores_merged_runs_with_member_and_count():
    target = partition()

    acquisition = target.acquire(
        "m1",
        mode=AcquireMode.BATCH_OPTIMIZED,
        records_max=10,
        batch_size=1,
        fetch_offset=0,
        batches=[LogBatch(offset, offset) for offset in range(10)],
        now_ms=0,
    )

    assert len(acquisition.ranges) == 10
    assert acquisition.update is not None
    assert acquisition.update.runs == (run(0, 9, ACQUIRED, 1, "m1"),)


def test_an_acquire_that_gave_nothing_stores_nothing():
    target = partition()
    acquire(target, (0, 4))

    acquisition = target.acquire(
        "m2",
        mode=AcquireMode.BATCH_OPTIMIZED,
        records_max=10,
        batch_size=1,
        fetch_offset=0,
        batches=[LogBatch(0, 4)],
        now_ms=0,
    )

    assert acquisition == ((), None)
