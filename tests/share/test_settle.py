"""Records that are settled in one step with their outputs: all of them or none, each once (SG-19)."""

from __future__ import annotations

import pytest

from flowshare.core_errors import InvalidRecordState, InvalidRequest
from flowshare.share.types import PENDING, AckRange
from tests.share.builders import (
    ACCEPT,
    ACKNOWLEDGED,
    ACQUIRED,
    ARCHIVED,
    AVAILABLE,
    REJECT,
    RELEASE,
    RENEW,
    acquire,
    partition,
    settle,
    states,
)


def batch(first: int, last: int, *types: int, attempt: int = 0) -> AckRange:
    return AckRange(first, last, bytes(types), attempt=attempt)


def refused(target, *batches: AckRange, member: str = "m1") -> tuple[tuple[int, int], ...]:
    """The ranges that a settle is refused for; nothing else may have changed."""
    before = states(target)
    with pytest.raises(InvalidRecordState) as error:
        target.settle(member, batches, now_ms=0)
    assert states(target) == before
    assert target._window.tally[PENDING] == 0
    return error.value.ranges


def test_accepts_and_rejects_are_decided_together():
    target = partition()
    acquire(target, (0, 9))

    decision = target.settle("m1", [batch(0, 2, ACCEPT), batch(3, 3, REJECT), batch(4, 5, ACCEPT)], now_ms=0)
    target.commit(decision)

    assert states(target) == [(6, 9, ACQUIRED, 1)]
    assert target.start_offset == 6


def test_a_type_for_each_record_of_a_batch_is_taken():
    target = partition()
    acquire(target, (0, 9))

    target.commit(target.settle("m1", [batch(1, 3, ACCEPT, REJECT, ACCEPT)], now_ms=0))

    assert states(target) == [
        (0, 0, ACQUIRED, 1),
        (1, 1, ACKNOWLEDGED, 1),
        (2, 2, ARCHIVED, 1),
        (3, 3, ACKNOWLEDGED, 1),
        (4, 9, ACQUIRED, 1),
    ]


@pytest.mark.parametrize("kind", [RELEASE, RENEW, 0])
def test_nothing_but_accept_and_reject_goes_with_outputs(kind):
    target = partition()
    acquire(target, (0, 9))

    with pytest.raises(InvalidRequest, match="accepts and rejects"):
        target.settle("m1", [batch(0, 0, ACCEPT), batch(1, 1, kind)], now_ms=0)

    assert states(target) == [(0, 9, ACQUIRED, 1)]


def test_what_was_settled_before_is_refused_and_not_passed_over_as_by_an_acknowledgement():
    target = partition()
    acquire(target, (0, 9))
    settle(target, 0, 4, ACCEPT)

    assert target.acknowledge("m1", [batch(0, 4, ACCEPT)], now_ms=0).update is None
    assert refused(target, batch(3, 6, ACCEPT)) == ((3, 4),)


def test_a_record_finished_within_the_window_is_named_alone():
    target = partition()
    acquire(target, (0, 9))
    settle(target, 4, 5, ACCEPT)

    assert refused(target, batch(2, 6, ACCEPT), batch(8, 8, REJECT)) == ((4, 5),)


def test_what_is_being_settled_is_refused_a_second_time():
    target = partition()
    acquire(target, (0, 9))
    first = target.settle("m1", [batch(0, 3, ACCEPT)], now_ms=0)

    with pytest.raises(InvalidRecordState) as error:
        target.settle("m1", [batch(2, 5, ACCEPT)], now_ms=0)
    target.commit(first)

    assert error.value.ranges == ((2, 3),)
    assert states(target) == [(4, 9, ACQUIRED, 1)]


def test_records_of_another_member_are_refused():
    target = partition()
    acquire(target, (0, 4), member="m1")
    acquire(target, (5, 9), member="m2")

    assert refused(target, batch(3, 6, ACCEPT)) == ((5, 6),)


def test_a_record_that_came_again_is_not_settled_for_the_delivery_before():
    target = partition()
    acquire(target, (0, 3))
    settle(target, 1, 1, RELEASE)
    acquire(target, (0, 3))

    assert refused(target, batch(0, 3, ACCEPT, attempt=1)) == ((1, 1),)
    target.commit(target.settle("m1", [batch(0, 0, ACCEPT, attempt=1), batch(1, 1, ACCEPT, attempt=2)], now_ms=0))
    assert target.start_offset == 2


def test_a_hole_of_the_log_is_no_record_and_has_no_output():
    target = partition()
    acquire(target, (0, 3))
    acquire(target, (6, 9))

    assert refused(target, batch(2, 7, ACCEPT)) == ((4, 5),)


def test_a_settle_that_could_not_be_written_leaves_its_records_with_their_member():
    target = partition()
    acquire(target, (0, 9))
    decision = target.settle("m1", [batch(0, 3, ACCEPT)], now_ms=0)

    assert target.abort(decision, now_ms=0) is None
    assert states(target) == [(0, 9, ACQUIRED, 1)]


def test_a_lock_does_not_lapse_under_a_settle_and_a_failed_one_frees_what_lapsed_meanwhile():
    target = partition(lock_duration_ms=1_000)
    acquire(target, (0, 3))
    decision = target.settle("m1", [batch(0, 3, ACCEPT)], now_ms=0)

    target.lapse(5_000)
    assert states(target) == [(0, 3, ACQUIRED, 1)]
    assert target.acquired_count == 4
    assert target.abort(decision, now_ms=5_000) is not None
    assert states(target) == [(0, 3, AVAILABLE, 1)]


def test_what_reaches_past_what_was_acquired_is_refused_as_a_whole():
    target = partition()
    acquire(target, (0, 3))

    assert refused(target, batch(2, 9, ACCEPT)) == ((4, 9),)


def test_whether_a_settle_waits_for_the_records_before_its_own_is_told_and_changes_nothing():
    target = partition()
    acquire(target, (0, 9))
    before = states(target)

    assert target.waits("m1", [batch(5, 7, ACCEPT)], now_ms=0)
    assert not target.waits("m1", [batch(0, 7, ACCEPT)], now_ms=0), "it is the first"
    assert not target.waits("m2", [batch(5, 7, ACCEPT)], now_ms=0), "it is refused"
    assert not target.waits("m1", [batch(5, 7, ACCEPT, attempt=2)], now_ms=0), "it is refused"
    with pytest.raises(InvalidRequest):
        target.waits("m1", [batch(5, 7, RELEASE)], now_ms=0)
    assert (states(target), target._window.tally[PENDING]) == (before, 0)

    target.commit(target.settle("m1", [batch(0, 4, ACCEPT)], now_ms=0))
    assert not target.waits("m1", [batch(5, 7, ACCEPT)], now_ms=0)
