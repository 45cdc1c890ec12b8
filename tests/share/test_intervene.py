"""Tests of an operator's acts on records that others hold, or that wait: the table of `share.intervene`, row by row."""

from __future__ import annotations

import pytest

from flowshare.core_errors import InvalidRecordState
from flowshare.share.browse import together
from flowshare.share.intervene import OPERATOR, Act, Intervened
from flowshare.share.records import decode_state, encode_state
from flowshare.share.types import Limits, PartitionState, StateRun
from tests.share.builders import (
    ACCEPT,
    ACKNOWLEDGED,
    ACQUIRED,
    ARCHIVED,
    ARCHIVING,
    AVAILABLE,
    REJECT,
    RELEASE,
    acquire,
    decide,
    partition,
    run,
    settle,
    states,
)
from tests.share.test_order import ACCEPT as SAID_ACCEPT
from tests.share.test_order import LOCK_MS, Group, decided
from tests.share.test_order import RELEASE as SAID_RELEASE

DONE = dict.fromkeys(Act, (1, 0, 0, 0, 0))
NOT_HELD, GONE, BUSY, BLOCKED = (0, 1, 0, 0, 0), (0, 0, 1, 0, 0), (0, 0, 0, 1, 0), (0, 0, 0, 0, 1)


def act(target, what, first, last=None, **more):
    """Do an act on one range, and return its result and the update."""
    done = target.intervene(what, [(first, first if last is None else last)], **more)
    return tuple(done.found[0][2:]), done.update


def held(**limits):
    """A share-partition whose first ten records are held by `m1`."""
    target = partition(window_max=100, **limits)
    acquire(target, (0, 9))
    return target


@pytest.mark.parametrize(
    ("what", "after"),
    [(Act.RELEASE, AVAILABLE), (Act.REJECT, ARCHIVED), (Act.DEAD_LETTER, ARCHIVING)],
)
def test_what_is_held_is_taken_from_its_member(what, after):
    target = held()

    found, update = act(target, what, 3)

    assert found == DONE[what]
    assert states(target)[1] == (3, 3, after, 1)
    assert update.runs == (StateRun(3, 3, after, 1, OPERATOR if after is ARCHIVING else None),)
    with pytest.raises(InvalidRecordState):
        decide(target, 3, 3, ACCEPT)
    settle(target, 2, 2, ACCEPT)
    assert target.acquired_count == 8


def test_what_is_held_waits_for_nothing_that_could_come_sooner():
    target = held()

    assert act(target, Act.NOW, 3) == (NOT_HELD, None)


def test_a_released_record_goes_to_the_next_member_and_its_delivery_counts():
    target = held()
    act(target, Act.RELEASE, 0, 9)

    assert acquire(target, (0, 9), member="m2") == [(0, 9, 2)]


def test_a_released_record_without_deliveries_left_ends_as_when_its_lock_lapses():
    target = held(delivery_count_max=1)
    act(target, Act.RELEASE, 3)
    with_letter = held(delivery_count_max=1, dead_letter_on_limit=True)
    act(with_letter, Act.RELEASE, 3)

    assert states(target)[1] == (3, 3, ARCHIVED, 1)
    assert [tuple(one) for one in with_letter.archiving()] == [(3, 3, 1, True, False)]


@pytest.mark.parametrize(
    ("what", "expected", "after"),
    [
        (Act.RELEASE, NOT_HELD, "delayed"),
        (Act.REJECT, DONE[Act.REJECT], "archived"),
        (Act.DEAD_LETTER, DONE[Act.DEAD_LETTER], "archiving"),
        (Act.NOW, DONE[Act.NOW], "available"),
    ],
)
def test_what_is_delayed_is_done_with_or_comes_now(what, expected, after):
    target = held()
    settle(target, 3, 3, RELEASE, not_before=500)

    found, _ = act(target, what, 3)

    assert found == expected
    told = together(target.look(3).runs(("delayed", "archived", "archiving", "available")))
    assert [one.state for one in told.runs] == [after]
    assert target.delayed_count == (1 if after == "delayed" else 0)
    assert target.next_deadline_ms() == 30_000 or after == "delayed"


@pytest.mark.parametrize(
    ("what", "expected"),
    [(Act.RELEASE, NOT_HELD), (Act.REJECT, DONE[Act.REJECT]), (Act.DEAD_LETTER, DONE[Act.NOW]), (Act.NOW, NOT_HELD)],
)
def test_what_waits_for_a_member_can_be_ended(what, expected):
    target = held()
    settle(target, 3, 3, RELEASE)

    assert act(target, what, 3)[0] == expected


@pytest.mark.parametrize("what", Act)
def test_what_is_being_acknowledged_is_left_to_its_member(what):
    target = held()
    decision = decide(target, 3, 3, ACCEPT)

    assert act(target, what, 3) == (BUSY, None)
    target.commit(decision)
    assert states(target)[1] == (3, 3, ACKNOWLEDGED, 1)


@pytest.mark.parametrize("what", Act)
def test_what_is_finished_or_was_never_handed_out_stays_so(what):
    target = partition(5, [run(7, 7, ACKNOWLEDGED), run(8, 8, ARCHIVING, 2)], window_max=100)

    assert [act(target, what, offset)[0] for offset in (4, 5, 7, 8, 9)] == [GONE, GONE, GONE, GONE, NOT_HELD]
    assert act(target, what, 0, 19) == ((0, 11, 9, 0, 0), None)


def test_each_range_is_answered_for():
    target = held()
    settle(target, 5, 5, ACCEPT)
    done = target.intervene(Act.REJECT, [(0, 1), (4, 6), (9, 12)])

    assert done.found == (Intervened(0, 1, 2), Intervened(4, 6, 2, gone=1), Intervened(9, 12, 1, not_held=3))
    assert (target.start_offset, done.update.start_offset, done.update.delivery_complete_count) == (2, 2, 4)


def test_a_dry_run_changes_nothing():
    target = held()
    before = target.state()

    assert act(target, Act.REJECT, 0, 99, dry_run=True) == ((10, 90, 0, 0, 0), None)
    assert target.state() == before


def test_a_rejected_record_has_no_dead_letter_whatever_the_group_says():
    target = held(dead_letter_on_reject=True, dead_letter_on_limit=True)
    act(target, Act.REJECT, 3)

    assert not target.has_archiving


def test_that_an_operator_gave_it_up_outlives_a_reload():
    target = held(dead_letter_on_limit=True, delivery_count_max=2)
    act(target, Act.DEAD_LETTER, 3, 4)
    stored = decode_state(encode_state(PartitionState(start_offset=0, runs=target.state())))
    again = partition(0, [*stored.runs[:2], run(5, 5, ARCHIVING, 2)], window_max=100, delivery_count_max=2)

    assert [tuple(one) for one in again.archiving()] == [(3, 4, 1, False, True), (5, 5, 2, True, False)]
    again.finish_archiving(3, 3)
    assert [tuple(one) for one in again.archiving()] == [(4, 4, 1, False, True), (5, 5, 2, True, False)]
    assert [one.member_id for one in again.state() if one.state is ARCHIVING] == [OPERATOR, None]


def test_what_comes_in_place_of_a_cut_off_record_was_not_given_up():
    target = held(dead_letter_on_reject=True)
    act(target, Act.DEAD_LETTER, 3)
    target.cut(2)
    acquire(target, (2, 9), fetch=2)
    settle(target, 3, 3, REJECT)

    assert [tuple(one) for one in target.archiving()] == [(3, 3, 1, False, False)]


# -- in the order of keys


def found(group: Group, what: Act, first: int, last: int | None = None) -> tuple[int, ...]:
    return act(group.partition, what, first, last)[0]


@pytest.mark.parametrize("what", Act)
def test_what_waits_for_another_of_its_key_is_not_touched(what):
    group = Group("aa")
    group.take()

    assert found(group, what, 1) == BLOCKED


def test_a_rejected_head_lets_the_next_of_its_key_go():
    group = Group("aab")
    group.take()
    found(group, Act.REJECT, 0)

    assert group.take("n") == [1]


def test_a_released_head_comes_before_the_next_of_its_key():
    group = Group("aab")
    group.take()
    found(group, Act.RELEASE, 0)

    assert group.take("n") == [0]


def test_a_dead_letter_under_way_holds_up_its_key():
    group = Group("aa")
    group.take()
    found(group, Act.DEAD_LETTER, 0)
    before = group.take("n")
    group.partition.finish_archiving(0, 0)

    assert (before, group.take("n")) == ([], [1])


@pytest.mark.parametrize("what", [Act.RELEASE, Act.DEAD_LETTER])
def test_what_is_held_behind_it_in_its_chain_comes_back_with_it(what):
    group = Group("aaab")
    assert group.take(chain=3) == [0, 1, 2, 3]

    assert found(group, what, 0) == (1, 0, 0, 0, 0)

    assert (group.partition.acquired_count, group.partition.blocked_count) == (1, 2)
    with pytest.raises(InvalidRecordState):
        group.say([1], SAID_ACCEPT)


def test_behind_a_rejected_record_its_member_goes_on_with_the_chain():
    group = Group("aaab")
    group.take(chain=3)
    found(group, Act.REJECT, 0)
    group.say([1, 2, 3], SAID_ACCEPT)

    assert group.partition.start_offset == 4


@pytest.mark.parametrize("what", [Act.REJECT, Act.DEAD_LETTER])
def test_within_a_chain_nothing_ends_before_its_turn(what):
    group = Group("aa")
    group.take(chain=2)

    assert found(group, what, 0, 1) == (1, 0, 0, 0, 1)


def test_within_a_chain_a_record_can_be_released():
    group = Group("aa")
    group.take(chain=2)

    assert found(group, Act.RELEASE, 1) == (1, 0, 0, 0, 0)
    assert group.partition.blocked_count == 1


def test_what_is_being_read_for_its_member_is_left_alone():
    group = Group("ab")
    picked = group.partition.pick("m", records_max=1, now_ms=0)

    assert found(group, Act.RELEASE, 0) == BUSY
    group.partition.put_back(picked)
    assert found(group, Act.REJECT, 0) == DONE[Act.REJECT]


def test_what_is_free_by_a_write_under_way_becomes_no_dead_letter_yet():
    group = Group("aa")
    group.take()
    decision = decided(group, 0)

    assert found(group, Act.DEAD_LETTER, 1) == BUSY
    assert act(group.partition, Act.DEAD_LETTER, 0, 1, dry_run=True)[0] == (0, 0, 0, 2, 0)
    group.partition.abort(decision, now_ms=0)
    assert found(group, Act.DEAD_LETTER, 1) == BLOCKED


def test_what_is_free_besides_that_becomes_a_dead_letter():
    group = Group("aba")
    group.take(records=1)
    decided(group, 0)

    assert found(group, Act.DEAD_LETTER, 1, 2) == (1, 0, 0, 1, 0)


def test_what_was_rejected_though_the_one_before_it_comes_back_is_passed_over():
    group = Group("aaa")
    group.take()
    decision = decided(group, 0)
    assert found(group, Act.REJECT, 1) == DONE[Act.REJECT]
    group.partition.abort(decision, now_ms=0)
    group.say([0], SAID_ACCEPT)

    assert group.take("n") == [2]


@pytest.mark.parametrize(
    ("what", "expected"),
    [(Act.RELEASE, BUSY), (Act.REJECT, DONE[Act.REJECT]), (Act.DEAD_LETTER, BUSY), (Act.NOW, NOT_HELD)],
)
def test_of_what_a_reload_holds_nothing_is_taken_before_its_key_is_known(what, expected):
    group = Group("", runs=[run(0, 1, ACQUIRED, 1, "m")], living=("m",))
    group.keys = "aa"

    assert found(group, what, 0) == expected


def test_a_delayed_head_that_comes_now_is_handed_out():
    group = Group("aa", limits=Limits(lock_duration_ms=LOCK_MS))
    group.take()
    group.say([0], SAID_RELEASE, delay_ms=500)
    found(group, Act.NOW, 0)

    assert group.take("n", now=1) == [0]
