"""Redeliveries or new records first: `share.delivery.priority`."""

from __future__ import annotations

import pytest

from flowshare.share.partition import SharePartition
from flowshare.share.types import Priority, RecordState
from tests.share.builders import ACCEPT, RELEASE, acquire, partition, run, settle


def released(priority: Priority, *, window: int | None = 1_000, count: int = 4, **limits: object) -> SharePartition:
    """A share-partition whose first `count` records were delivered and released."""
    target = partition(window_max=window, priority=priority, **limits)
    acquire(target, (0, count - 1))
    settle(target, 0, count - 1, RELEASE)
    return target


def one_by_one(target: SharePartition, log_end: int, times: int) -> list[int]:
    """Offsets of `times` acquires of one record each, from a log of one-record batches."""
    got: list[int] = []
    for _ in range(times):
        at = target.next_fetch_offset(log_end)
        batches = [(offset, offset) for offset in range(at, min(at + 3, log_end))]
        got += [first for first, _, _ in acquire(target, *batches, most=1, record_limit=True, fetch=at)]
    return got


@pytest.mark.parametrize(
    ("priority", "order"),
    [
        (Priority.REDELIVERIES, [0, 1, 2, 3, 4, 5, 6]),
        (Priority.NEW, [4, 5, 6, 7, 0, 1, 2]),
        (Priority.MIXED, [4, 0, 5, 1, 6, 2, 7]),
    ],
)
def test_the_order_of_redeliveries_and_new_records(priority: Priority, order: list[int]) -> None:
    target = released(priority)

    assert one_by_one(target, 8, 7) == order


def test_new_records_are_first_only_when_there_are_some() -> None:
    target = released(Priority.NEW)

    assert target.next_fetch_offset(4) == 0
    assert target.next_fetch_offset(5) == 4


@pytest.mark.parametrize("window", [6, None])
def test_redeliveries_come_when_the_window_has_no_room_for_new_ones(window: int | None) -> None:
    target = released(Priority.NEW, window=window, record_locks_max=6)

    assert one_by_one(target, 100, 4) == [4, 5, 0, 1]


def test_what_a_record_limit_left_of_a_batch_is_new() -> None:
    target = released(Priority.NEW, count=2)
    acquire(target, (2, 9), most=3, record_limit=True, fetch=2)
    settle(target, 2, 3, RELEASE)

    assert target.next_fetch_offset(10) == 5
    assert acquire(target, (2, 9), most=4, record_limit=True, fetch=5) == [(5, 8, 1)]
    assert acquire(target, (2, 9), most=4, record_limit=True, fetch=target.next_fetch_offset(10)) == [(9, 9, 1)]
    assert acquire(target, (0, 1), (2, 9), fetch=target.next_fetch_offset(10)) == [(0, 3, 2)]


def test_a_release_that_did_not_count_is_new_again() -> None:
    target = released(Priority.NEW, count=2)
    acquire(target, (2, 3), fetch=2)
    settle(target, 2, 3, RELEASE, unrun=True)

    assert target.next_fetch_offset(4) == 2
    assert acquire(target, (2, 3), fetch=2) == [(2, 3, 1)]


def test_holes_of_a_reload_come_before_new_records() -> None:
    runs = [run(0, 1, RecordState.AVAILABLE), run(4, 5, RecordState.AVAILABLE)]
    target = partition(runs=runs, window_max=1_000, priority=Priority.NEW)

    assert target.next_fetch_offset(10) == 0
    assert acquire(target, (0, 9), fetch=0) == [(0, 1, 2), (2, 3, 1), (4, 5, 2), (6, 9, 1)]


def test_suspects_of_a_death_come_before_new_records() -> None:
    runs = [run(0, 1, RecordState.ACQUIRED, 2, "dead")]
    target = partition(runs=runs, window_max=1_000, priority=Priority.NEW)

    assert acquire(target, (0, 9), fetch=target.next_fetch_offset(10)) == [(0, 0, 3)]


def test_new_records_behind_a_gap_too_wide_for_the_window_do_not_keep_redeliveries_waiting() -> None:
    target = released(Priority.NEW, window=1 << 30)
    far = 1 << 22

    assert acquire(target, (far, far), fetch=target.next_fetch_offset(far + 1)) == []
    assert target.next_fetch_offset(far + 1) == 0
    assert acquire(target, (0, 3), fetch=0) == [(0, 3, 2)]
    settle(target, 0, 3, ACCEPT)
    assert acquire(target, (far, far), fetch=target.next_fetch_offset(far + 1)) == [(far, far, 1)]


def test_aborted_transactions_are_no_new_records() -> None:
    target = released(Priority.NEW)

    assert acquire(target, (4, 5), fetch=4, aborted=[(4, 5)]) == []
    assert target.next_fetch_offset(6) == 0


def test_the_priority_can_change_at_any_time() -> None:
    target = released(Priority.REDELIVERIES)
    target.limits = partition(window_max=1_000, priority=Priority.NEW).limits
    assert target.next_fetch_offset(8) == 4

    target.limits = partition(window_max=1_000).limits

    assert target.next_fetch_offset(8) == 0
