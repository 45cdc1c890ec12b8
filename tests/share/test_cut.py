"""A log that lost its end with a leader: what a share-partition forgets, and what it keeps."""

from __future__ import annotations

import pytest

from flowshare.core_errors import InvalidRecordState, InvalidRequest
from flowshare.share.acquire import Acquisition
from flowshare.share.types import AcquireMode, LogBatch, PartitionUpdate
from flowshare.share.window import Fence
from tests.share.builders import (
    ACCEPT,
    ACKNOWLEDGED,
    ACQUIRED,
    ARCHIVING,
    AVAILABLE,
    REJECT,
    RELEASE,
    acquire,
    decide,
    partition,
    run,
    settle,
)


def read_of(target, first, last, epoch, member="m1") -> Acquisition:
    """Acquire one batch that was written under a leader epoch."""
    return target.acquire(
        member,
        mode=AcquireMode.BATCH_OPTIMIZED,
        records_max=500,
        batch_size=500,
        fetch_offset=target.next_fetch_offset(),
        batches=[LogBatch(first, last)],
        now_ms=0,
        log_epoch=epoch,
    )


def test_what_lies_behind_the_cut_is_forgotten_and_the_rest_is_as_it_was():
    target = partition()
    acquire(target, (0, 9), (10, 19), batch_size=1)
    settle(target, 5, 5, ACCEPT)

    update = target.cut(12)

    assert update == PartitionUpdate(start_offset=0, delivery_complete_count=1)
    assert (target.start_offset, target.end_offset, target.acquired_count) == (0, 12, 11)
    assert target.state() == (
        run(0, 4, ACQUIRED, member="m1"),
        run(5, 5, ACKNOWLEDGED),
        run(6, 11, ACQUIRED, member="m1"),
    )
    assert target.next_fetch_offset() == 12


def test_a_start_offset_behind_the_cut_goes_back_to_it():
    target = partition(100)
    acquire(target, (100, 109))
    settle(target, 100, 109, ACCEPT)

    update = target.cut(40)

    assert update == PartitionUpdate(start_offset=40, delivery_complete_count=0)
    assert (target.start_offset, target.end_offset, target.next_fetch_offset()) == (40, 40, 40)
    assert acquire(target, (40, 44)) == [(40, 44, 1)]


@pytest.mark.parametrize("end", [10, 11])
def test_a_cut_behind_everything_that_was_acquired_changes_nothing(end):
    target = partition()
    acquire(target, (0, 9))
    before = target.state()

    assert target.cut(end) is None
    assert target.state() == before
    settle(target, 0, 9, ACCEPT)
    assert target.start_offset == 10


def test_members_are_told_that_what_they_acknowledge_was_lost():
    target = partition()
    acquire(target, (0, 9))
    acquire(target, (10, 19), member="m2")
    target.cut(10)

    with pytest.raises(InvalidRecordState, match="10-19 were lost with the log's end"):
        decide(target, 10, 19, ACCEPT, member="m2")
    with pytest.raises(InvalidRecordState):
        decide(target, 5, 14, ACCEPT)
    with pytest.raises(InvalidRequest):
        decide(target, 20, 20, ACCEPT, member="m2")
    settle(target, 0, 9, ACCEPT)
    assert target.start_offset == 10


def test_what_comes_in_the_place_of_lost_records_was_never_delivered():
    target = partition()
    acquire(target, (0, 9))
    target.release_member("m1")
    acquire(target, (0, 9))

    target.cut(5)

    assert acquire(target, (5, 9), member="m2") == [(5, 9, 1)]


def test_a_decision_counts_for_what_is_still_there_and_says_that_some_was_lost():
    target = partition()
    acquire(target, (0, 9))
    decision = decide(target, 3, 7, ACCEPT)

    target.cut(5)
    acquire(target, (5, 9), member="m2")
    target.commit(decision)

    assert decision.lost
    assert target.state() == (
        run(0, 2, ACQUIRED, member="m1"),
        run(3, 4, ACKNOWLEDGED),
        run(5, 9, ACQUIRED, member="m2"),
    )


def test_a_decision_over_lost_records_that_fails_gives_nothing_back():
    target = partition()
    acquire(target, (0, 9))
    decision = decide(target, 5, 9, RELEASE)

    target.cut(5)
    acquire(target, (5, 9), member="m2")

    assert target.abort(decision, now_ms=10**9) is None
    assert target.in_flight()[1][:3] == (5, 9, "m2")


def test_a_decision_over_what_stays_is_not_lost():
    target = partition()
    acquire(target, (0, 9))
    decision = decide(target, 0, 4, ACCEPT)

    target.cut(5)
    target.commit(decision)

    assert not decision.lost
    assert target.start_offset == 5


def test_locks_and_delays_of_lost_records_come_to_nothing():
    target = partition(lock_duration_ms=100)
    acquire(target, (0, 9))
    settle(target, 6, 7, RELEASE, not_before=50)

    target.cut(5)

    assert target.delayed_count == 0
    assert target.next_deadline_ms() == 100
    assert target.lapse(100).runs == (run(0, 4, AVAILABLE),)


def test_dead_letters_of_lost_records_are_not_due_any_more():
    target = partition(dead_letter_on_reject=True)
    acquire(target, (0, 9))
    settle(target, 4, 5, REJECT)

    target.cut(5)

    assert [(one.first, one.last) for one in target.archiving()] == [(4, 4)]
    assert target.finish_archiving(4, 5).runs[0].first == 4
    assert target.state()[-1].last == 4
    assert target.state()[-1].state is not ARCHIVING


def test_holes_of_a_reload_that_lie_behind_the_cut_are_not_looked_for():
    target = partition(runs=[run(0, 4, AVAILABLE), run(10, 14, AVAILABLE)])

    target.cut(7)

    assert target.end_offset == 7
    assert acquire(target, (0, 9), member="m2") == [(0, 4, 2), (5, 6, 1), (7, 9, 1)]


def test_suspects_that_were_lost_keep_nobody_waiting():
    target = partition(runs=[run(0, 9, ACQUIRED, 2, "dead")])
    assert target.choosy

    target.cut(0)

    assert acquire(target, (0, 9)) == [(0, 9, 1)]


def test_the_leader_epoch_of_the_log_only_rises_and_is_stored_when_it_does():
    target = partition()

    first, same, later, older = (
        read_of(target, 0, 4, 3),
        read_of(target, 5, 9, 3),
        read_of(target, 10, 14, 5),
        read_of(target, 15, 19, 4),
    )

    assert [one.update.log_epoch for one in (first, same, later, older)] == [3, -1, 5, -1]
    assert target.log_epoch == 5


def test_a_fence_tells_the_lowest_cut_since_it_was_put_up():
    first = Fence()
    second = first.fall(50)
    third = second.fall(70)

    assert (first.lowest(), second.lowest(), third.lowest()) == (50, 70, None)
