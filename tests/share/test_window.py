from __future__ import annotations

import random

from flowshare.share.boundaries import CachedBatches
from flowshare.share.types import ACKNOWLEDGED, ACQUIRED, AVAILABLE, RecordState
from flowshare.share.window import Window, merged
from tests.share.builders import (
    ACCEPT,
    RELEASE,
    acquire,
    partition,
    run,
    settle,
    states,
)


def filled(first: int, last: int) -> Window:
    window = Window(first)
    window.place(first, last)
    window.cached.add(first, last)
    return window


def test_runs_join_what_is_alike_and_cut_what_differs():
    window = filled(10, 29)
    window.set_count(15, 19, 2)
    window.put(25, 29, AVAILABLE, ACKNOWLEDGED)

    found = [tuple(one[:4]) for one in window.runs(10, 29)]

    assert found == [
        (10, 14, AVAILABLE, 0),
        (15, 19, AVAILABLE, 2),
        (20, 24, AVAILABLE, 0),
        (25, 29, ACKNOWLEDGED, 0),
    ]


def test_the_first_available_offset_is_found_again_after_it_moved_back():
    window = filled(0, 99)
    window.put(0, 99, AVAILABLE, ACQUIRED)
    window.put(50, 59, ACQUIRED, AVAILABLE)
    assert window.next_available(0, 99) == 50

    window.put(20, 20, ACQUIRED, AVAILABLE)

    assert window.next_available(0, 99) == 20
    assert window.next_available(21, 99) == 50
    assert window.next_available(0, 19) == -1
    assert window.next_available(0, 99) == 20
    assert window.next_available(60, 99) == -1


def test_a_search_without_result_is_not_made_twice():
    window = filled(0, 99)
    window.put(0, 89, AVAILABLE, ACQUIRED)

    assert window.next_available(0, 49) == -1
    assert window._available_from == 50
    assert window.next_available(0, 99) == 90


def test_a_long_range_of_many_holds_is_cut_where_they_change():
    window = filled(0, 999)
    window.put(0, 999, AVAILABLE, ACQUIRED)
    pieces = [(0, 0), (1, 3), (4, 70), (71, 400), (401, 401), (402, 999)]
    for hold_id, (first, last) in enumerate(pieces, 1):
        window.hold(first, last, hold_id)

    assert list(window.held(0, 999)) == [(first, last, at) for at, (first, last) in enumerate(pieces, 1)]


def test_delivery_counts_do_not_stop_at_a_byte():
    window = filled(0, 9)

    window.set_count(0, 9, 254)
    window.set_count(3, 4, 255)
    window.set_count(5, 5, 1_000_000)

    assert [window.count(offset) for offset in (2, 3, 4, 5, 6)] == [254, 255, 255, 1_000_000, 254]
    assert list(window.counted(0, 9)) == [(0, 2, 254), (3, 3, 255), (4, 4, 255), (5, 5, 1_000_000), (6, 9, 254)]
    window.set_count(5, 5, 7)
    assert window.count(5) == 7
    window.put(0, 3, AVAILABLE, ACKNOWLEDGED)
    window.advance()
    assert window.high == {4: 255}


def test_a_record_may_be_delivered_more_often_than_a_byte_counts():
    target = partition(delivery_count_max=1_000_000)

    for count in range(1, 300):
        acquired = acquire(target, (0, 0))
        assert acquired == [(0, 0, count)]
        settle(target, 0, 0, RELEASE)

    assert states(target) == [(0, 0, RecordState.AVAILABLE, 299)]


def test_a_batch_that_is_covered_in_part_is_tracked_by_offset():
    cached = CachedBatches()
    for first in (0, 10, 20):
        cached.add(first, first + 9)

    cached.explode(5, 24)
    assert cached.exploded == {0, 20}
    cached.explode_one(12)

    assert cached.exploded == {0, 10, 20}


def test_a_batch_that_is_covered_whole_is_not_tracked_by_offset():
    cached = CachedBatches()
    cached.add(10, 19)
    cached.add(30, 30)

    cached.explode(0, 40)
    cached.explode(25, 26)
    cached.explode_one(30)

    assert not cached.exploded


def test_a_long_run_of_acknowledgements_does_not_keep_what_is_finished(monkeypatch):
    monkeypatch.setattr("flowshare.share.window._COMPACT", 20)
    monkeypatch.setattr("flowshare.share.boundaries._COMPACT", 20)
    target = partition(record_locks_max=100)
    window = target._window
    for first in range(0, 300, 10):
        acquire(target, *((offset, offset) for offset in range(first, first + 10)), batch_size=1)
        if first:
            settle(target, first - 10, first - 1, ACCEPT)

    assert target.start_offset == 290
    assert len(window.states) < 60
    assert len(window.counts) == len(window.hold_ids) == len(window.states)
    assert len(window.cached.firsts) == len(window.cached.lasts) < 60


def test_offsets_acknowledged_in_any_order_leave_an_empty_window():
    target = partition()
    acquire(target, (0, 499))
    offsets = list(range(500))
    random.Random(3).shuffle(offsets)

    for offset in offsets:
        assert target.start_offset <= offset
        settle(target, offset, offset, ACCEPT)

    assert (target.start_offset, target.end_offset) == (500, 500)
    assert target.state() == ()
    assert target.next_deadline_ms() is None


def test_merging_sorts_cuts_and_joins():
    available = RecordState.AVAILABLE
    runs = [run(20, 24, available, 2), run(5, 9, available), run(10, 14, available), run(0, 3, available)]

    assert merged(runs, 7) == (run(7, 14, available), run(20, 24, available, 2))
