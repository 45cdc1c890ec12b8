"""Tests of one member's work on one partition: `KeyScan` and `Dispatcher`, step by step."""

from __future__ import annotations

from typing import Any

import pytest

from flowshare.client.cooperative.dispatch import Dispatcher, Found
from flowshare.client.cooperative.scan import SLOT, KeyScan, Progress
from flowshare.cooperative.offsets import RANGES_MAX, SPAN_MAX
from flowshare.cooperative.types import HASHES

WHOLE = [(0, HASHES)]
START = Progress(0, 1, 0, 0)


def holding(*claims: tuple[int, int, int], target: Any = None, progress: Progress = START) -> KeyScan[str]:
    scan: KeyScan[str] = KeyScan()
    scan.set_target([claim[:2] for claim in claims] if target is None else target)
    scan.ask()
    scan.held(claims, progress, ())
    return scan


def begun(scan: KeyScan[str], count: int = 100) -> list[int]:
    return [one.offset for one in scan.take(count, 0.0)]


def settle(scan: KeyScan[str], progress: Progress = START, *, fenced: tuple[int, ...] = ()) -> None:
    """Have all that is finished committed."""
    batch = scan.commit()
    assert batch is not None
    scan.committed(batch, progress, fenced)


def of_one_key(count: int = 4) -> KeyScan[str]:
    """Holding all, with so many records of one key and one of another."""
    scan = holding((0, HASHES, 1))
    scan.scanned(0, count + 1, [*((offset, 5, "x") for offset in range(count)), (count, 6, "y")])
    return scan


def test_the_next_of_a_key_is_begun_when_the_one_before_is_committed_and_others_at_once() -> None:
    scan = of_one_key()
    first, other = scan.take(10, 0.0)
    assert scan.finish(first)
    assert scan.finish(other)
    assert begun(scan) == []
    assert scan.idle is False
    settle(scan)
    assert begun(scan) == [1]


def test_a_chain_of_a_key_is_begun_at_once_and_the_next_when_all_of_it_is_committed() -> None:
    scan = of_one_key()
    chain = scan.take(10, 0.0, chain=3)
    assert [one.offset for one in chain] == [0, 1, 2, 4]
    assert scan.finish(chain[0])
    assert scan.finish(chain[1])
    settle(scan)
    assert begun(scan) == []
    assert scan.finish(chain[2])
    assert begun(scan) == []
    settle(scan)
    assert begun(scan) == [3]


def test_a_key_waits_on_while_nobody_knows_whether_a_commit_counts() -> None:
    scan = of_one_key()
    first, _ = scan.take(10, 0.0)
    scan.finish(first)
    batch = scan.commit()
    assert batch is not None
    scan.failed(batch)
    assert begun(scan) == []
    settle(scan, fenced=(0,))  # refused, and its keys are held: it is committed again
    assert begun(scan) == []
    settle(scan)
    assert begun(scan) == [1]


def test_a_key_that_comes_back_waits_for_nothing_that_was_lost_with_it() -> None:
    scan = of_one_key()
    first, other = scan.take(10, 0.0)
    scan.finish(first)
    late = scan.commit()
    scan.finish(other)
    assert late is not None
    scan.lose()
    assert not scan.committed(late, START)
    scan.held([(0, HASHES, 2)], START, ())
    scan.set_target(WHOLE)
    scan.scanned(0, 3, [(0, 5, "x"), (1, 5, "x"), (2, 6, "y")])
    assert begun(scan) == [0, 2]


def test_a_key_that_went_while_its_record_was_finished_waits_for_nothing_when_it_comes_back() -> None:
    scan = of_one_key()
    first, _ = scan.take(10, 0.0)
    scan.finish(first)
    scan.held([(6, HASHES, 1)], START, None)  # hash 5 is another member's, before the commit was sent
    scan.held([(0, 6, 2), (6, HASHES, 1)], START, ())
    scan.set_target(WHOLE)
    scan.scanned(0, 2, [(0, 5, "x"), (1, 5, "x")])
    assert begun(scan) == [0]


def test_only_records_of_held_and_wanted_keys_are_begun() -> None:
    scan = holding((0, 100, 1), (200, 300, 1), target=[(0, 50), (200, 300), (500, 600)])
    scan.scanned(0, 10, [(0, 10, "a"), (1, 60, "b"), (2, 150, "c"), (3, 299, "d"), (4, 550, "e")])
    assert begun(scan) == [0, 3]
    assert scan.missing
    assert [piece[:2] for piece in scan.pieces if not piece.wanted] == [(50, 100)]


def test_what_is_committed_already_is_passed_over_and_reading_begins_at_the_stable_offset() -> None:
    scan: KeyScan[str] = KeyScan()
    scan.set_target(WHOLE)
    scan.held([(0, HASHES, 1)], Progress(43, 1, 1, 51), [(45, 51)])
    assert scan.position() == 43
    scan.scanned(40, 60, [(offset, offset, "x") for offset in range(40, 60)])
    assert begun(scan) == [43, 44, *range(51, 60)]


def test_14_15_16_a_hole_is_void_and_whoever_holds_hash_0_commits_it() -> None:
    start = Progress(90, 1, 0, 90)
    low, high = holding((0, 100, 1), progress=start), holding((100, HASHES, 2), progress=start)
    records = [(99, 500, "x"), (200, 50, "y")]
    for scan in (low, high):
        scan.scanned(90, 210, records)
    batch = low.commit()
    assert batch is not None
    assert batch.voids == ((90, 99), (100, 200), (201, 210))
    assert high.commit() is None


def test_a_scan_that_did_not_see_what_is_before_it_commits_no_hole() -> None:
    scan = holding((0, HASHES, 1))
    scan.scanned(50, 60, [(55, 1, "x")])
    assert scan.commit() is None
    assert scan.position() == 0


def test_19_intake_stops_at_the_bounds_and_goes_on_below_what_is_committed_furthest() -> None:
    scan = holding((0, HASHES, 1))
    assert scan.scanned(0, SPAN_MAX + 10, [(SPAN_MAX - 1, 1, "a"), (SPAN_MAX, 2, "b")]) == 1
    assert scan.position() is None
    assert scan.at_bound
    scan.follow(Progress(5, 1, 0, 5))
    assert scan.position() == SPAN_MAX
    full = holding((0, HASHES, 1), progress=Progress(0, 1, RANGES_MAX, 70))
    assert full.scanned(0, 100, [(60, 1, "a"), (70, 2, "b")]) == 1
    assert full.position() is None
    full.follow(Progress(0, 1, RANGES_MAX - 1, 70))
    assert full.position() == 70


def test_what_was_finished_and_is_lost_without_an_answer_is_told_once() -> None:
    scan = holding((0, 100, 1), (100, 200, 2))
    scan.scanned(0, 10, [(0, 10, "a"), (1, 20, "b"), (2, 110, "c"), (3, 120, "d")])
    a, b, c, d = scan.take(4, 0.0)
    scan.finish(a)
    scan.finish(c)
    batch = scan.commit()
    assert batch is not None
    scan.finish(b)
    scan.held([(100, 200, 2)], START, None)
    assert scan.unanswered == [1], "what is sent may be answered"
    scan.committed(batch, START, [0])
    assert scan.unanswered == [1, 0]
    scan.finish(d)
    scan.lose()
    assert scan.unanswered == [1, 0, 3]


def test_what_is_under_way_when_all_is_lost_is_unanswered() -> None:
    scan = holding((0, 100, 1))
    scan.scanned(0, 10, [(0, 10, "a"), (1, 20, "b")])
    for one in scan.take(2, 0.0):
        scan.finish(one)
    batch = scan.commit()
    assert batch is not None
    scan.lose()
    assert sorted(scan.unanswered) == [0, 1]
    scan.committed(batch, START, ())
    assert sorted(scan.unanswered) == [0, 1]


def test_slots_drain_one_by_one_and_what_is_given_back_was_committed() -> None:
    scan = holding((0, 4 * SLOT, 1))
    scan.scanned(0, 4, [(number, number * SLOT, "x") for number in range(4)])
    flying = scan.take(3, 0.0)
    scan.set_target([])
    assert scan.asked() == ((0, 3 * SLOT),)
    assert scan.finish(flying[1])
    assert scan.asked() == ((0, 3 * SLOT),), "it is not committed yet"
    scan.ask()
    assert scan.take(10, 0.0) == []
    batch = scan.commit()
    assert batch is not None
    scan.committed(batch, Progress(0, 1, 1, 2))
    assert scan.asked() == ((0, SLOT), (2 * SLOT, 3 * SLOT))
    assert scan.give_back(flying[2], not_before_s=5.0)
    assert scan.asked() == ((0, SLOT), (2 * SLOT, 3 * SLOT)), "its back-off is kept here"
    assert [one.offset for one in scan.take(10, 6.0)] == [2]


def test_39_what_waits_is_begun_when_its_range_comes_back_before_it_was_given_back() -> None:
    scan = holding((0, SLOT, 1))
    scan.scanned(0, 3, [(0, 5, "a"), (1, 5, "b"), (2, 6, "c")])
    (first,) = scan.take(1, 0.0)
    scan.set_target([])
    scan.ask()
    assert scan.take(10, 0.0) == []
    scan.set_target([(0, SLOT)])
    assert begun(scan) == [2]
    assert scan.finish(first)
    settle(scan)
    assert begun(scan) == [1]


def test_38_what_was_lost_can_be_neither_finished_nor_committed_even_when_its_keys_come_back() -> None:
    scan = holding((0, 100, 1))
    scan.scanned(0, 2, [(0, 5, "a"), (1, 6, "b")])
    old, done = scan.take(2, 0.0)
    assert scan.finish(done)
    batch = scan.commit()
    assert batch is not None
    assert scan.lose() == [old]
    scan.held([(0, 100, 2)], START, ())
    assert scan.position() == 0
    scan.scanned(0, 2, [(0, 5, "a"), (1, 6, "b")])
    assert begun(scan) == [0, 1]
    assert not scan.finish(old)
    assert not scan.committed(batch, Progress(2, 1, 0, 2))
    assert scan.commit() is None


def test_a_new_epoch_of_the_same_keys_is_another_tenure_and_a_reset_begins_anew() -> None:
    scan = holding((0, 100, 1))
    scan.scanned(0, 2, [(0, 5, "a"), (1, 6, "b")])
    (one, other) = scan.take(2, 0.0)
    assert scan.held([(0, 6, 1), (6, 100, 2)], START, ()) == [other]
    assert scan.finish(one)
    assert scan.held([(0, 100, 3)], Progress(7, 2, 0, 7), ()) == []
    assert scan.position() == 7
    assert scan.commit() is None


def test_a_part_that_is_fenced_is_sent_again_if_its_keys_are_held_still() -> None:
    scan = holding((0, 100, 1), (100, 200, 2))
    scan.scanned(0, 2, [(0, 5, "a"), (1, 150, "b")])
    for one in scan.take(2, 0.0):
        scan.finish(one)
    batch = scan.commit()
    assert batch is not None
    assert [part.epoch for part in batch.parts] == [1, 2]
    assert not scan.committed(batch, Progress(1, 1, 0, 1), fenced=[1])
    again = scan.commit()
    assert again is not None
    assert [part[1:] for part in again.parts] == [(2, [(1, 2)])]
    scan.failed(again)
    scan.held([(0, 100, 1)], START, None)
    assert scan.commit() is None, "its keys are gone"


def test_what_a_dead_member_left_is_read_and_begun_in_order_though_as_much_waits_as_may() -> None:
    half = HASHES // 2
    scan: KeyScan[str] = KeyScan(buffer_max=4)
    scan.set_target([(0, half)])
    scan.held([(0, half, 1)], START, ())
    scan.scanned(0, 20, [(offset, 5, "own") for offset in range(10, 15)])
    assert scan.position() is None
    scan.set_target(WHOLE)
    scan.held([(0, half, 1), (half, HASHES, 2)], START, ())
    assert scan.position() == 0, "nothing waits before what is to be read"
    scan.scanned(0, 3, [(offset, half, "left") for offset in range(3)])
    assert [one.offset for one in scan.take(10, 0.0, chain=10, in_order=True)] == [0, 1, 2]
    assert scan.position() == 3


def test_what_is_read_before_records_that_wait_fills_the_room_once_more_at_most() -> None:
    half = HASHES // 2
    scan: KeyScan[str] = KeyScan(buffer_max=4)
    scan.set_target([(0, half)])
    scan.held([(0, half, 1)], START, ())
    scan.scanned(0, 20, [(offset, 5, "own") for offset in range(10, 14)])
    scan.set_target(WHOLE)
    scan.held([(0, half, 1), (half, HASHES, 2)], START, ())
    scan.scanned(0, 3, [(offset, half, "left") for offset in range(3)])
    assert scan.position() == 3
    scan.scanned(3, 4, [(3, half, "left")])
    assert scan.position() is None
    assert scan.dispatcher.buffered == 8


def test_a_look_back_reads_though_as_much_waits_as_may() -> None:
    scan: KeyScan[str] = KeyScan(buffer_max=4)
    scan.set_target(WHOLE)
    scan.held([(0, HASHES, 1)], START, ())
    scan.scanned(0, 20, [(offset, 5, "own") for offset in range(10, 14)], keys=WHOLE)
    assert scan.look_back()
    assert scan.position() == 0
    scan.scanned(0, 20, [(offset, 5, "own") for offset in range(10, 14)], keys=WHOLE)
    assert scan.position() is None


def test_nothing_before_the_stable_offset_is_read() -> None:
    half = HASHES // 2
    scan = holding((0, half, 1), (half, HASHES, 2), target=[(0, half)])
    scan.scanned(0, 20, ())
    scan.follow(Progress(15, 1, 0, 0))
    scan.set_target(WHOLE)
    assert scan.position() == 15
    scan.scanned(15, 17, [(15, half, "x"), (16, half, "y")])
    assert [one.offset for one in scan.take(10, 0.0, chain=2)] == [15, 16]


def test_an_answer_that_names_keys_nobody_knows_of_needs_the_committed_ranges() -> None:
    scan = holding((0, 100, 1))
    assert not scan.lacks_ranges([(0, 100, 1)], 1)
    assert not scan.lacks_ranges([(20, 30, 1)], 1)
    assert scan.lacks_ranges([(0, 101, 1)], 1)
    assert scan.lacks_ranges([(0, 100, 2)], 1)
    assert scan.lacks_ranges([(0, 100, 1)], 2)


def test_a_dispatcher_begins_of_each_key_the_oldest_and_one_at_a_time() -> None:
    dispatcher: Dispatcher[str] = Dispatcher()
    for offset, key in ((3, 1), (1, 1), (2, 2), (4, 2)):
        dispatcher.add(Found(offset, key, "x"))

    def take(now_s: float = 0.0, **more: Any) -> list[int]:
        return [one.offset for one in dispatcher.take(10, now_s, allows=lambda _: True, **more)]

    assert take() == [1, 2]
    assert take() == []
    first, second = sorted(dispatcher.flights(), key=lambda one: one.offset)
    assert dispatcher.give_back(first, not_before_s=9.0)
    assert dispatcher.finish(second)
    assert take() == [4]
    assert dispatcher.next_s() == 9.0
    assert take(8.9) == []
    assert take(9.0, chain=2) == [1, 3]
    assert first.attempt == 2
    assert first in dispatcher.drop(lambda found: found.hash == 2)
    assert not dispatcher.finish(first)
    assert dispatcher.in_flight == 1


@pytest.mark.parametrize("keys", [1, 2])
def test_a_dispatcher_begins_no_more_keys_than_are_asked_for(keys: int) -> None:
    dispatcher: Dispatcher[str] = Dispatcher()
    for offset in range(9):
        dispatcher.add(Found(offset, offset % 3, "x"))
    taken = dispatcher.take(100, 0.0, keys=keys, chain=2, allows=lambda _: True)
    assert [one.offset for one in taken] == [0, 3, 1, 4][: 2 * keys]
