"""Tests of browsing: the view of a window, and that looking changes nothing."""

from __future__ import annotations

import random

import pytest

from flowshare.share import browse
from flowshare.share.browse import (
    LOG,
    NAMES,
    SPAN_MAX,
    UNREAD,
    VANISHED,
    Hole,
    Look,
    Seen,
    SeenRun,
    SeenRuns,
    stored_runs,
    together,
    wanted_states,
)
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


def in_order(parts):
    """Runs and holes as they stand beside each other."""
    told = together(parts)
    return sorted([*told.runs, *told.holes], key=lambda one: one.first)


def seen(target, first=0, states=ALL, **more):
    return in_order(target.look(first, **more).runs(states))


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

    assert [(one.first, one.last, one.state) for one in in_order(look.runs(ALL))] == [(0, 4, "acquired")]
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


def test_what_is_held_in_a_chain_waits_for_the_first_one_as_what_is_blocked_does():
    group = Group("aaaabb")
    group.take(records=5, chain=3)

    told = [(one.first, one.last, one.state, one.head) for one in seen(group.partition)]

    assert told == [(0, 0, "acquired", -1), (1, 2, "acquired", 0), (3, 3, "blocked", 0), (4, 4, "acquired", -1),
                    (5, 5, "acquired", 4)]  # fmt: skip
    assert [(one.first, one.head) for one in seen(group.partition, 2)] == [(2, 0), (3, 0), (4, -1), (5, 4)]


def test_in_a_chain_that_goes_on_the_next_one_waits_for_nothing():
    group = Group("aaaa")
    group.take(records=3, chain=3)
    group.say([0], (ACCEPT,))

    told = [(one.first, one.last, one.head) for one in seen(group.partition)]

    assert told == [(1, 1, -1), (2, 2, 1), (3, 3, 1)]


def test_a_long_window_is_seen_in_pieces():
    window = Window(0)
    window.grow(SPAN_MAX + 9)
    look = Look(window, 0)

    assert (look.first, look.end) == (0, SPAN_MAX)
    assert in_order(look.runs(ALL)) == [Hole(0, SPAN_MAX - 1, LOG)]
    assert Look(window, SPAN_MAX).end == SPAN_MAX + 10


START, END = 10, 310
OPEN = ("available", "acquired", "archiving", "delayed", "pending")


def made_up(dice, ordered):
    """A window of any states side by side; what is blocked has an open one of its key before it."""
    window = Window(START, ordered=ordered)
    window.grow(END - 1)
    at, begun = START, set()
    while at < END:
        last = min(END - 1, at + dice.choice((0, 0, 1, 9, 40)))
        state = NAMES[dice.randrange(9 if begun else 8)]
        window.set_count(at, last, 0 if state == "hole" else dice.choice((0, 1, 1, 2, 255, 300)))
        if state in ("acquired", "pending", "delayed"):
            member = None if state == "delayed" else dice.choice(("a", "b"))
            window.hold(at, last, window.holds.open(member, dice.choice((9, 99)), at, last, last - at + 1).hold_id)
        for offset in range(at, last + 1):
            window.states[offset - START] = NAMES.index(state)
            window.tally[NAMES.index(state)] += 1
            if ordered:
                key = dice.choice(sorted(begun)) if state == "blocked" else dice.randint(1, 9)
                window.heads.hashes[offset - START] = key
                begun |= {key} if state in OPEN else set()
        at = last + 1
    return window


def told_of(window, offset):
    """Return the expected view of one offset, by the window's own words."""
    state, count = NAMES[window.states[offset - START]], window.count(offset)
    if state == "hole" or (state == "archived" and not count):
        return LOG if state == "hole" else VANISHED
    hold = window.holds.by_id.get(window.hold_ids[offset - START])
    head = -1
    if state == "blocked":
        of_key = (
            at for at in range(START, END) if window.heads.hashes[at - START] == window.heads.hashes[offset - START]
        )
        head = next(at for at in of_key if NAMES[window.states[at - START]] in OPEN)
    return state, count, (hold.member_id or "") if hold else "", hold.due_ms if hold else 0, head


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("step", [1, 7, 2_048])
@pytest.mark.parametrize("seed", range(5))
def test_runs_and_holes_are_what_stands_at_each_offset_however_many_are_gone_through_at_once(
    seed, step, ordered, monkeypatch
):
    monkeypatch.setattr(browse, "STEP", step)
    window, first = made_up(random.Random(seed), ordered), START + 40 * seed
    for states in (ALL, frozenset(("acquired", "blocked", "archived")), frozenset(("hole", "available"))):
        found = in_order(Look(window, first).runs(states))

        wanted = {offset: told_of(window, offset) for offset in range(first, END)}
        assert {
            offset: one.why if isinstance(one, Hole) else tuple(one)[2:]
            for one in found
            for offset in range(one.first, one.last + 1)
        } == {at: one for at, one in wanted.items() if ("hole" if isinstance(one, str) else one[0]) in states}


@pytest.mark.parametrize("step", [1, 7, 2_048])
def test_runs_are_as_long_as_they_can_be_wherever_others_had_a_turn(step, monkeypatch):
    monkeypatch.setattr(browse, "STEP", step)
    target = partition(window_max=200)
    acquire(target, (0, 49))
    acquire(target, (50, 99), member="b")
    settle(target, 20, 29, ACCEPT)

    assert [(one.first, one.last) for one in seen(target)] == [(0, 19), (20, 29), (30, 49), (50, 99)]


def test_a_page_is_cut_behind_so_many_runs_and_holes():
    runs = SeenRuns.of([SeenRun(0, 4, "available"), SeenRun(7, 9, "acquired"), SeenRun(10, 10, "available")])
    part = Seen(runs, [Hole(5, 6, LOG)])

    assert part.cut(4) == (part, -1)
    assert part.cut(3) == (Seen(runs[:2], [Hole(5, 6, LOG)]), 10)
    assert part.cut(1) == (Seen(runs[:1], []), 5)
    assert part.cut(0) == (Seen(SeenRuns(), []), 0)


def test_runs_are_made_when_they_are_looked_at_and_are_a_sequence_all_the_same():
    alone = [SeenRun(0, 4, "available", 1), SeenRun(5, 9, "acquired", 2, "m", 99), SeenRun(10, 10, "available")]
    runs = SeenRuns.of(alone)

    assert list(runs) == alone
    assert (runs[1], runs[-1], len(runs), runs.index(alone[2])) == (alone[1], alone[2], 3, 2)
    assert runs == tuple(alone)
    assert hash(runs) == hash(tuple(alone))
    assert runs != SeenRuns()
    assert eval(repr(runs), {"SeenRuns": SeenRuns, "SeenRun": SeenRun}) == runs
    with pytest.raises(ValueError, match="7 columns of one length"):
        SeenRuns([1], [2])


def test_what_is_stored_is_told_in_the_same_words():
    stored = [
        StateRun(2, 3, RecordState.ACQUIRED, 1, "m"),
        StateRun(6, 6, RecordState.AVAILABLE, 2, None, 500),
        StateRun(7, 7, RecordState.AVAILABLE, 2, None, 50),
        StateRun(8, 9, RecordState.ARCHIVED, 0),
        StateRun(10, 12, RecordState.ACKNOWLEDGED, 1),
        StateRun(13, 13, RecordState.ARCHIVING, 1, "operator"),
    ]
    found = in_order(stored_runs(0, stored, ALL, first=0, now_ms=100, ahead_ms=1_000))

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
    late = in_order(stored_runs(0, stored, ALL, first=11, now_ms=100))
    assert [(one.first, one.last) for one in late] == [(11, 12), (13, 13)]
    assert in_order(stored_runs(0, stored, wanted_states(("blocked",)), first=0, now_ms=0)) == []


def test_looking_changes_nothing_that_is_stored():
    target = partition()
    acquire(target, (0, 9))
    before = target.state()
    seen(target)

    assert target.state() == before
