"""What is seen of a window, and that looking leaves it as it is."""

from __future__ import annotations

import random

import pytest

from flowshare.share.browse import LOG, SEEN_STATES, SPAN_MAX, UNREAD, VANISHED, Hole, Look, stored_runs, wanted_states
from flowshare.share.types import RecordState, StateRun
from flowshare.share.window import Window
from tests.share.builders import (
    ACCEPT,
    ACKNOWLEDGED,
    ACQUIRED,
    ARCHIVED,
    AVAILABLE,
    RELEASE,
    acquire,
    decide,
    partition,
    run,
    settle,
)
from tests.share.test_order import Group

ALL = wanted_states(())


def seen(target, first=0, states=ALL, **more):
    return [one for one in target.look(first, **more).runs(states) if one is not None]


def runs(target, *args):
    return [(one.first, one.last, one.state, one.delivery_count) for one in seen(target, *args)]


def test_each_state_has_its_name():
    target = partition(window_max=100)
    acquire(target, (0, 9))
    settle(target, 1, 1, ACCEPT)
    settle(target, 2, 2, RELEASE)
    settle(target, 3, 3, RELEASE, not_before=500)
    decide(target, 4, 4, ACCEPT)

    assert runs(target) == [
        (0, 0, "acquired", 1),
        (1, 1, "acknowledged", 1),
        (2, 2, "available", 1),
        (3, 3, "delayed", 1),
        (4, 4, "pending", 1),
        (5, 9, "acquired", 1),
    ]


def test_who_holds_it_and_until_when_is_told_by_the_clock_of_who_asks():
    target = partition(lock_duration_ms=100)
    acquire(target, (0, 4), member="a", now=7)
    acquire(target, (5, 9), member="b", now=8)
    settle(target, 2, 2, RELEASE, member="a", not_before=70)

    told = [(one.first, one.last, one.member_id, one.due_ms) for one in seen(target, 0, ALL, ahead_ms=1_000)]

    assert told == [(0, 1, "a", 1_107), (2, 2, "", 1_070), (3, 4, "a", 1_107), (5, 9, "b", 1_108)]


def test_holds_beside_each_other_are_told_apart_and_equal_ones_are_not():
    target = partition()
    for first in range(0, 40, 4):
        acquire(target, (first, first + 3), member=f"m{first}")

    assert [(one.first, one.last, one.member_id) for one in seen(target)] == [
        (first, first + 3, f"m{first}") for first in range(0, 40, 4)
    ]


def test_a_look_shows_the_moment_in_which_it_was_made():
    target = partition()
    acquire(target, (0, 4))
    look = target.look(0)
    settle(target, 0, 4, ACCEPT)

    assert [(one.first, one.last, one.state) for one in look.runs(ALL)] == [(0, 4, "acquired")]
    assert runs(target) == []


def test_only_what_is_asked_for_is_told():
    target = partition(window_max=100)
    acquire(target, (0, 9))
    settle(target, 3, 4, ACCEPT)

    assert runs(target, 0, wanted_states(("acknowledged",))) == [(3, 4, "acknowledged", 1)]
    assert [(one.first, one.last) for one in seen(target, 4)] == [(4, 4), (5, 9)]
    assert seen(target, 99) == []


def test_a_state_that_there_is_not_is_refused():
    with pytest.raises(ValueError, match=r"there is no state 'gone'; there are acknowledged, .*hole"):
        wanted_states(("acquired", "gone"))


def test_where_the_log_has_no_record_there_is_a_hole():
    target = partition(window_max=100)
    acquire(target, (0, 4))
    acquire(target, (8, 9), fetch=8)

    assert [(one.first, one.last) for one in seen(target)] == [(0, 4), (5, 7), (8, 9)]
    assert seen(target)[1] == Hole(5, 7, LOG)
    assert seen(target, 0, wanted_states(("acquired",))) == [seen(target)[0], seen(target)[2]]


def test_holes_that_a_reload_left_may_hold_records():
    target = partition(0, [run(2, 4, ACQUIRED, 1, "m"), run(8, 9, ACKNOWLEDGED)], living=("m",), window_max=100)

    assert seen(target)[0] == Hole(0, 1, UNREAD)
    assert Hole(5, 7, UNREAD) in seen(target)


def test_what_was_archived_before_anybody_had_it_is_a_hole():
    target = partition(0, [run(0, 4, AVAILABLE), run(5, 9, ARCHIVED, 0), run(10, 12, ARCHIVED, 3)], window_max=100)

    assert [tuple(one)[:3] for one in seen(target)] == [
        (0, 4, "available"),
        (5, 9, VANISHED),
        (10, 12, "archived"),
    ]
    assert runs(target, 0, wanted_states(("archived",))) == [(10, 12, "archived", 3)]


def test_delivery_counts_that_do_not_fit_into_a_byte_are_told_whole():
    target = partition(0, [run(0, 4, AVAILABLE, 254), run(5, 9, AVAILABLE, 300), run(10, 12, AVAILABLE, 301)])

    assert [(one.first, one.last, one.delivery_count) for one in seen(target)] == [
        (0, 4, 254),
        *((offset, offset, 300) for offset in range(5, 10)),
        *((offset, offset, 301) for offset in range(10, 13)),
    ]


def test_blocked_records_name_the_first_of_their_key():
    group = Group("abaab")
    group.take()

    told = [(one.first, one.last, one.state, one.head) for one in seen(group.partition)]

    assert told == [
        (0, 1, "acquired", -1),
        (2, 3, "blocked", 0),
        (4, 4, "blocked", 1),
    ]


def test_in_a_chain_the_first_one_is_named():
    group = Group("aaaa")
    group.take(records=2, chain=2)

    assert [(one.first, one.last, one.head) for one in seen(group.partition)] == [(0, 1, -1), (2, 3, 0)]


def test_a_long_window_is_seen_in_pieces():
    window = Window(0)
    window.grow(SPAN_MAX + 9)
    look = Look(window, 0)

    assert (look.first, look.end) == (0, SPAN_MAX)
    assert list(look.runs(ALL)) == [Hole(0, SPAN_MAX - 1, LOG)]
    assert Look(window, SPAN_MAX).end == SPAN_MAX + 10


@pytest.mark.parametrize("seed", range(20))
def test_runs_and_holes_are_what_stands_at_each_offset(seed):
    dice = random.Random(seed)
    window = Window(10)
    window.grow(10 + 299)
    at = 10
    while at < 310:
        last = min(309, at + dice.randint(0, 9))
        state, count = dice.choice((0, 1, 2, 3, 4, 5, 6)), dice.randint(0, 2)
        window.put(at, last, 5, state)
        window.set_count(at, last, count)
        if state in (1, 6):
            window.hold(at, last, window.holds.open("m" if state == 1 else None, 9, at, last, last - at + 1).hold_id)
        at = last + 1
    found = [one for one in Look(window, 10).runs(ALL) if one is not None]

    offsets = [offset for one in found for offset in range(one.first, one.last + 1)]
    assert offsets == list(range(10, 310))
    for one in found:
        for offset in range(one.first, one.last + 1):
            state, count = window.states[offset - 10], window.counts[offset - 10]
            if isinstance(one, Hole):
                assert (one.why, state) in ((LOG, 5), (VANISHED, 4))
            else:
                assert one.delivery_count == count
                assert one.state in SEEN_STATES


def test_what_is_stored_is_told_in_the_same_words():
    stored = [
        StateRun(2, 3, RecordState.ACQUIRED, 1, "m"),
        StateRun(6, 6, RecordState.AVAILABLE, 2, None, 500),
        StateRun(7, 7, RecordState.AVAILABLE, 2, None, 50),
        StateRun(8, 9, RecordState.ARCHIVED, 0),
        StateRun(10, 12, RecordState.ACKNOWLEDGED, 1),
        StateRun(13, 13, RecordState.ARCHIVING, 1, "operator"),
    ]
    found = [one for one in stored_runs(0, stored, ALL, first=0, now_ms=100, ahead_ms=1_000) if one is not None]

    assert [tuple(one) for one in found] == [
        (0, 1, UNREAD),
        (2, 3, "acquired", 1, "m", 0, -1),
        (4, 5, UNREAD),
        (6, 6, "delayed", 2, "", 1_500, -1),
        (7, 7, "available", 2, "", 0, -1),
        (8, 9, VANISHED),
        (10, 12, "acknowledged", 1, "", 0, -1),
        (13, 13, "archiving", 1, "", 0, -1),
    ]
    late = [one for one in stored_runs(0, stored, ALL, first=11, now_ms=100) if one is not None]
    assert [(one.first, one.last) for one in late] == [(11, 12), (13, 13)]
    assert [one for one in stored_runs(0, stored, wanted_states(("blocked",)), first=0, now_ms=0) if one] == []


def test_looking_changes_nothing_that_is_stored():
    target = partition()
    acquire(target, (0, 9))
    before = target.state()
    seen(target)

    assert target.state() == before
