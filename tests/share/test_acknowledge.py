from __future__ import annotations

import pytest

from flowshare.core_errors import InvalidRecordState, InvalidRequest
from flowshare.share.types import DELAY_MS_MAX, PENDING, AckRange, Limits, PartitionUpdate
from tests.share.builders import (
    ACCEPT,
    ACKNOWLEDGED,
    ACQUIRED,
    ARCHIVED,
    ARCHIVING,
    AVAILABLE,
    GAP,
    REJECT,
    RELEASE,
    RENEW,
    acquire,
    decide,
    partition,
    run,
    settle,
    states,
)


def batch(first: int, last: int, *types: int) -> AckRange:
    return AckRange(first, last, bytes(types))


# What a request may look like


@pytest.mark.parametrize(
    "batches",
    [
        [batch(5, 3, ACCEPT)],
        [batch(5, 9, ACCEPT), batch(0, 4, ACCEPT)],
        [batch(0, 9, ACCEPT), batch(0, 9, ACCEPT)],
        [batch(0, 9)],
        [batch(0, 9, ACCEPT, ACCEPT, ACCEPT)],
        [batch(0, 9, 5)],
        [batch(0, 9, 255)],
        [batch(-1, 9, ACCEPT)],
        [batch(-5, -1, ACCEPT)],
    ],
    ids=["backwards", "descending", "twice", "no type", "three types", "type 5", "type -1", "from -1", "negative"],
)
def test_a_request_that_contradicts_itself_is_invalid_and_changes_nothing(batches):
    target = partition()
    acquire(target, (0, 9))

    with pytest.raises(InvalidRequest):
        target.acknowledge("m1", batches, now_ms=0)

    assert states(target) == [(0, 9, ACQUIRED, 1)]
    assert target._window.tally[PENDING] == 0


def test_the_second_of_two_batches_that_share_an_offset_finds_it_pending():
    target = partition()
    acquire(target, (0, 9))

    with pytest.raises(InvalidRecordState):
        target.acknowledge("m1", [batch(0, 5, ACCEPT), batch(5, 9, ACCEPT)], now_ms=0)

    assert states(target) == [(0, 9, ACQUIRED, 1)]


# Accept, release, reject, gap


def test_accepted_records_move_the_start_offset():
    target = partition()
    acquire(target, (0, 9))

    settle(target, 0, 9, ACCEPT)

    assert (target.start_offset, target.end_offset, target.acquired_count) == (10, 10, 0)


def test_released_records_come_back_with_their_count():
    target = partition()
    acquire(target, (0, 9))

    settle(target, 0, 9, RELEASE)

    assert acquire(target, (0, 9), member="m2") == [(0, 9, 2)]


def test_rejected_records_do_not_come_back():
    target = partition()
    acquire(target, (0, 9))

    settle(target, 0, 9, REJECT)

    assert target.start_offset == 10


def test_each_offset_may_have_its_own_type():
    target = partition()
    acquire(target, (10, 18))

    settle(target, 10, 18, *[RELEASE] * 5, *[GAP] * 3, ACCEPT)

    assert states(target) == [(10, 14, AVAILABLE, 1), (15, 17, ARCHIVED, 1), (18, 18, ACKNOWLEDGED, 1)]
    assert target.delivery_complete_count == 4


def test_offsets_released_one_by_one_come_back_as_single_ranges():
    target = partition()
    acquire(target, (0, 9))

    settle(target, 0, 9, *[ACCEPT, RELEASE] * 5)

    assert acquire(target, (0, 9)) == [(offset, offset, 2) for offset in (1, 3, 5, 7, 9)]


def test_a_range_may_span_batches_and_begin_inside_one():
    target = partition()
    acquire(target, (5, 9), (10, 18), batch_size=5)

    settle(target, 6, 18, ACCEPT)

    assert states(target) == [(5, 5, ACQUIRED, 1), (6, 18, ACKNOWLEDGED, 1)]


def test_a_range_may_span_a_natural_hole():
    target = partition()
    acquire(target, (0, 4))
    acquire(target, (8, 10))

    settle(target, 0, 10, ACCEPT)

    assert target.start_offset == 11


def test_types_are_counted_from_the_first_offset_across_a_hole():
    target = partition()
    acquire(target, (0, 1))
    acquire(target, (4, 5))

    settle(target, 0, 5, RELEASE, ACCEPT, GAP, GAP, REJECT, RELEASE)

    assert states(target) == [
        (0, 0, AVAILABLE, 1),
        (1, 1, ACKNOWLEDGED, 1),
        (4, 4, ARCHIVED, 1),
        (5, 5, AVAILABLE, 1),
    ]


def test_released_offsets_of_several_batches_keep_the_boundaries():
    target = partition()
    acquire(target, (0, 9), (10, 19), (20, 29), (30, 39), batch_size=10)
    settle(target, 5, 34, RELEASE)

    assert acquire(target, (0, 9), (10, 19)) == [(5, 9, 2), (10, 19, 2)]
    assert acquire(target, (20, 29)) == [(20, 29, 2)]
    assert acquire(target, (30, 39)) == [(30, 34, 2)]


def test_a_record_at_the_delivery_limit_is_archived_when_released():
    target = partition(delivery_count_max=2)
    for _ in range(2):
        acquire(target, (10, 14))
        settle(target, 10, 14, RELEASE)

    assert (target.start_offset, target.state()) == (15, ())


def test_a_new_delivery_limit_counts_from_the_next_release_on():
    target = partition(delivery_count_max=5)
    acquire(target, (0, 0))
    settle(target, 0, 0, RELEASE)
    acquire(target, (0, 0))
    target.limits = Limits(delivery_count_max=2, window_max=None)

    settle(target, 0, 0, RELEASE)

    assert target.start_offset == 1


# Errors


def test_nothing_cached_is_an_invalid_state_and_past_the_window_an_invalid_request():
    target = partition()
    with pytest.raises(InvalidRecordState):
        decide(target, 0, 4, ACCEPT)
    acquire(target, (5, 9))

    with pytest.raises(InvalidRequest):
        decide(target, 20, 25, ACCEPT)
    with pytest.raises(InvalidRequest):
        decide(target, 5, 10, ACCEPT)
    settle(target, 5, 9, ACCEPT)


def test_a_range_that_ends_in_a_natural_hole_is_an_invalid_request():
    target = partition()
    acquire(target, (0, 4))
    acquire(target, (8, 10))

    with pytest.raises(InvalidRequest):
        decide(target, 0, 6, ACCEPT)


def test_another_member_cannot_acknowledge():
    target = partition()
    acquire(target, (0, 9))

    with pytest.raises(InvalidRecordState):
        decide(target, 0, 9, ACCEPT, member="m2")
    with pytest.raises(InvalidRecordState):
        decide(target, 3, 3, ACCEPT, member="m2")
    settle(target, 0, 9, ACCEPT)


def test_a_range_that_belongs_to_two_members_is_refused_to_both():
    target = partition()
    acquire(target, (0, 4))
    acquire(target, (5, 9), member="m2")

    for member in ("m1", "m2"):
        with pytest.raises(InvalidRecordState):
            decide(target, 0, 9, ACCEPT, member=member)


def test_what_is_finished_behind_the_head_cannot_be_acknowledged_again():
    target = partition()
    acquire(target, (0, 9))
    settle(target, 5, 9, ACCEPT)

    with pytest.raises(InvalidRecordState):
        decide(target, 5, 9, ACCEPT)
    with pytest.raises(InvalidRecordState):
        decide(target, 7, 7, ACCEPT)


@pytest.mark.parametrize("kind", [ACCEPT, RELEASE, RENEW])
def test_below_the_start_offset_an_acknowledgement_succeeds_and_does_nothing(kind):
    target = partition()
    acquire(target, (0, 9))
    settle(target, 0, 4, ACCEPT)

    decision = decide(target, 0, 4, kind, member="anyone")
    single = decide(target, 4, 4, kind, member="anyone")

    assert (decision.update, single.update) == (None, None)
    assert states(target) == [(5, 9, ACQUIRED, 1)]
    target.commit(decision)


def test_of_a_range_around_the_start_offset_only_the_rest_counts():
    target = partition()
    acquire(target, (0, 9))
    target.move_log_start(5)

    assert settle(target, 0, 9, ACCEPT).update == PartitionUpdate(start_offset=10, delivery_complete_count=0)
    assert target.start_offset == 10


def test_one_bad_batch_undoes_the_whole_request():
    target = partition()
    acquire(target, (5, 9), (10, 14), batch_size=5)

    with pytest.raises(InvalidRequest):
        target.acknowledge("m1", [batch(5, 9, ACCEPT), batch(10, 14, RELEASE), batch(30, 34, ACCEPT)], now_ms=0)

    assert target._window.tally[PENDING] == 0
    settle(target, 5, 14, ACCEPT)


def test_an_offset_named_twice_is_an_invalid_state_and_undone():
    target = partition()
    acquire(target, (0, 9))

    with pytest.raises(InvalidRecordState):
        target.acknowledge("m1", [batch(0, 5, ACCEPT), batch(5, 9, ACCEPT)], now_ms=0)

    assert states(target) == [(0, 9, ACQUIRED, 1)]
    settle(target, 0, 9, ACCEPT)


# Decide, then commit or abort


def test_pending_records_are_neither_given_out_nor_acknowledged_again():
    target = partition()
    acquire(target, (0, 9))
    decide(target, 0, 9, RELEASE)

    assert acquire(target, (0, 9), fetch=0, member="m2") == []
    with pytest.raises(InvalidRecordState):
        decide(target, 0, 9, RELEASE)
    with pytest.raises(InvalidRecordState):
        decide(target, 3, 3, RELEASE)
    assert (target.acquired_count, target._window.tally[PENDING], target.start_offset) == (10, 10, 0)


def test_after_a_failed_write_the_records_are_the_members_again():
    target = partition()
    acquire(target, (0, 9))

    assert target.abort(decide(target, 0, 9, ACCEPT), now_ms=5) is None

    assert states(target) == [(0, 9, ACQUIRED, 1)]
    settle(target, 0, 9, ACCEPT)


def test_after_a_failed_write_a_lapsed_lock_frees_the_records():
    target = partition(lock_duration_ms=30)
    acquire(target, (0, 9))
    decision = decide(target, 0, 4, ACCEPT)
    target.lapse(30)
    assert states(target) == [(0, 4, ACQUIRED, 1), (5, 9, AVAILABLE, 1)]

    update = target.abort(decision, now_ms=31)

    assert update is not None
    assert update.runs == (run(0, 4, AVAILABLE),)
    assert target.next_fetch_offset() == 0


def test_after_a_failed_write_a_lock_that_lapsed_unseen_frees_the_records():
    target = partition(lock_duration_ms=30, delivery_count_max=1)
    acquire(target, (0, 9))

    target.abort(decide(target, 0, 9, RELEASE), now_ms=30)

    assert target.start_offset == 10


def test_a_write_that_succeeds_after_the_lock_lapsed_counts():
    target = partition(lock_duration_ms=30)
    acquire(target, (0, 9))
    decision = decide(target, 0, 9, ACCEPT)
    assert target.lapse(30) is None

    target.commit(decision)

    assert target.start_offset == 10
    assert target.next_deadline_ms() is None


def test_decisions_over_different_offsets_are_settled_in_any_order():
    target = partition()
    acquire(target, (0, 9))
    first, second, third = (decide(target, low, low + 2, ACCEPT) for low in (0, 3, 6))

    target.commit(third)
    assert target.start_offset == 0
    target.abort(second, now_ms=0)
    target.commit(first)

    assert target.start_offset == 3
    assert states(target) == [(3, 5, ACQUIRED, 1), (6, 8, ACKNOWLEDGED, 1), (9, 9, ACQUIRED, 1)]


def test_a_decision_is_settled_once():
    target = partition()
    acquire(target, (0, 9))
    decision = settle(target, 0, 9, ACCEPT)

    with pytest.raises(RuntimeError, match="once"):
        target.commit(decision)
    with pytest.raises(RuntimeError, match="once"):
        target.abort(decision, now_ms=0)


def test_the_log_start_may_pass_a_decision_that_is_open():
    target = partition()
    acquire(target, (0, 19))
    early, late, single = decide(target, 0, 9, ACCEPT), decide(target, 10, 17, RELEASE), decide(target, 18, 18, ACCEPT)
    target.move_log_start(15)

    target.commit(early)
    assert target.abort(late, now_ms=0) is None
    target.commit(single)

    assert states(target) == [(15, 17, ACQUIRED, 1), (18, 18, ACKNOWLEDGED, 1), (19, 19, ACQUIRED, 1)]


def test_the_log_start_may_pass_a_single_offset_that_is_being_written():
    target = partition()
    acquire(target, (0, 9))
    decision = decide(target, 3, 3, ACCEPT)
    target.move_log_start(5)

    target.commit(decision)

    assert states(target) == [(5, 9, ACQUIRED, 1)]


# What is stored


def test_the_update_holds_the_start_offset_as_it_will_be():
    target = partition()
    acquire(target, (0, 9))
    settle(target, 2, 4, ACCEPT)

    decision = target.acknowledge("m1", [batch(0, 1, ACCEPT), batch(6, 7, REJECT)], now_ms=0)

    assert decision.update == PartitionUpdate(start_offset=5, delivery_complete_count=2, runs=(run(6, 7, ARCHIVED),))
    target.commit(decision)
    assert (target.start_offset, target.delivery_complete_count) == (5, 2)


def test_the_update_of_the_last_offset_passes_all_that_is_finished():
    target = partition()
    acquire(target, (0, 9))
    settle(target, 1, 9, ACCEPT)

    assert decide(target, 0, 0, ACCEPT).update == PartitionUpdate(start_offset=10, delivery_complete_count=0)


def test_the_update_does_not_count_on_other_writes():
    target = partition()
    acquire(target, (0, 9))
    decide(target, 0, 0, ACCEPT)

    update = decide(target, 1, 9, ACCEPT).update

    assert update == PartitionUpdate(start_offset=0, delivery_complete_count=9, runs=(run(1, 9, ACKNOWLEDGED),))


def test_the_update_joins_neighbours():
    target = partition()
    acquire(target, (0, 4), (5, 9), batch_size=5)

    decision = target.acknowledge("m1", [batch(1, 4, RELEASE), batch(5, 9, *[RELEASE] * 5)], now_ms=0)

    assert decision.update is not None
    assert decision.update.runs == (run(1, 9, AVAILABLE),)


# Renew


def test_renew_restarts_the_lock_and_stores_nothing():
    target = partition(lock_duration_ms=30)
    acquire(target, (0, 9))

    assert decide(target, 0, 9, RENEW, now=29).update is None

    assert target.lapse(58) is None
    assert target.next_deadline_ms() == 59
    target.lapse(59)
    assert acquire(target, (0, 9)) == [(0, 9, 2)]


def test_a_part_of_the_records_may_be_renewed():
    target = partition(lock_duration_ms=30)
    acquire(target, (0, 2))

    settle(target, 0, 1, RENEW, ACCEPT, now=10)
    settle(target, 2, 2, RENEW, now=20)

    assert [(one.first, one.deadline_ms) for one in target.in_flight()] == [(0, 40), (2, 50)]
    assert states(target) == [(0, 0, ACQUIRED, 1), (1, 1, ACKNOWLEDGED, 1), (2, 2, ACQUIRED, 1)]


def test_renewing_what_is_not_held_is_an_invalid_state():
    target = partition(lock_duration_ms=30)
    acquire(target, (0, 9))
    target.lapse(30)

    with pytest.raises(InvalidRecordState):
        decide(target, 0, 9, RENEW)


def test_renew_can_be_turned_off():
    target = partition(renew_enabled=False)
    acquire(target, (0, 9))

    with pytest.raises(InvalidRecordState, match="turned off"):
        target.acknowledge("m1", [batch(0, 3, ACCEPT), batch(4, 9, RENEW)], now_ms=0)

    assert states(target) == [(0, 9, ACQUIRED, 1)]


def test_an_error_leaves_the_locks_as_they_were():
    target = partition(lock_duration_ms=30)
    acquire(target, (0, 9))

    with pytest.raises(InvalidRequest):
        target.acknowledge("m1", [batch(0, 9, RENEW), batch(20, 20, ACCEPT)], now_ms=10)

    assert target.next_deadline_ms() == 30


# Delay and unrun


def test_a_delayed_release_is_not_fetchable_before_its_time():
    target = partition(lock_duration_ms=1000)
    acquire(target, (0, 9))

    update = settle(target, 2, 4, RELEASE, now=10, not_before=50).update

    assert update is not None
    assert update.runs == (run(2, 4, AVAILABLE, 1, None, 50),)
    assert (target.delayed_count, target.next_fetch_offset(), target.next_deadline_ms()) == (3, 10, 50)
    assert target.state()[1] == run(2, 4, AVAILABLE, 1, None, 50)
    assert target.lapse(49) is None
    assert acquire(target, (0, 9), fetch=2) == []
    assert target.lapse(50) is None
    assert target.next_fetch_offset() == 2
    assert acquire(target, (0, 9), fetch=2) == [(2, 4, 2)]


def test_a_delay_is_cut_to_thirty_days():
    target = partition()
    acquire(target, (0, 2))

    settle(target, 0, 2, RELEASE, now=20, not_before=21 + DELAY_MS_MAX)

    assert target.next_deadline_ms() == 20 + DELAY_MS_MAX


def test_each_delay_ends_by_itself():
    target = partition(lock_duration_ms=1000)
    acquire(target, (0, 9))
    batches = [
        AckRange(0, 1, bytes([RELEASE]), 30),
        AckRange(2, 3, bytes([RELEASE]), 20),
        AckRange(4, 5, bytes([RELEASE]), 30),
    ]
    target.commit(target.acknowledge("m1", batches, now_ms=0))

    target.lapse(20)
    assert (target.delayed_count, target.next_fetch_offset()) == (4, 2)
    target.lapse(30)

    assert (target.delayed_count, target.next_fetch_offset()) == (0, 0)


def test_a_delay_that_is_over_is_none():
    target = partition()
    acquire(target, (0, 9))

    settle(target, 0, 9, RELEASE, now=50, not_before=50)

    assert (target.delayed_count, target.next_fetch_offset()) == (0, 0)


def test_a_delay_is_ignored_for_other_types_and_at_the_limit():
    target = partition(delivery_count_max=2)
    acquire(target, (0, 1))
    settle(target, 0, 1, RELEASE)
    acquire(target, (0, 1))

    settle(target, 0, 1, REJECT, RELEASE, not_before=100)

    assert (target.start_offset, target.next_deadline_ms()) == (2, None)


def test_an_unrun_release_does_not_count_as_a_delivery():
    target = partition(delivery_count_max=2)
    acquire(target, (0, 9))
    settle(target, 0, 9, RELEASE)
    acquire(target, (0, 9))

    update = settle(target, 0, 8, RELEASE, unrun=True).update
    settle(target, 9, 9, RELEASE, unrun=True)

    assert update is not None
    assert update.runs == (run(0, 8, AVAILABLE, 1),)
    assert states(target) == [(0, 9, AVAILABLE, 1)]


def test_unrun_means_nothing_for_other_types():
    target = partition()
    acquire(target, (0, 9))

    settle(target, 1, 1, ACCEPT, unrun=True)
    settle(target, 3, 4, REJECT, unrun=True)

    assert states(target)[1:4] == [(1, 1, ACKNOWLEDGED, 1), (2, 2, ACQUIRED, 1), (3, 4, ARCHIVED, 1)]


# Dead letters


def test_a_rejected_record_waits_for_its_dead_letter():
    target = partition(dead_letter_on_reject=True)
    acquire(target, (0, 9))

    settle(target, 0, 4, REJECT)

    assert states(target)[0] == (0, 4, ARCHIVING, 1)
    assert (target.start_offset, target.delivery_complete_count, target.next_fetch_offset()) == (0, 0, 10)
    assert [tuple(one[:4]) for one in target.archiving()] == [(0, 4, 1, False)]
    with pytest.raises(InvalidRecordState):
        decide(target, 0, 4, ACCEPT)


def test_a_written_dead_letter_finishes_the_record():
    target = partition(dead_letter_on_limit=True, delivery_count_max=1)
    acquire(target, (0, 9))
    settle(target, 0, 4, RELEASE)
    assert [tuple(one[:4]) for one in target.archiving()] == [(0, 4, 1, True)]

    update = target.finish_archiving(1, 20)

    assert update is not None
    assert update.runs == (run(1, 4, ARCHIVED),)
    update = target.finish_archiving(0, 4)
    assert update == PartitionUpdate(start_offset=5, delivery_complete_count=0)
    assert target.finish_archiving(0, 9) is None
    assert target.archiving() == ()
