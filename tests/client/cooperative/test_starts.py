"""Tests of starts: which records a member begins, given the starts that the server knows, and which starts it tells
first."""

from __future__ import annotations

from flowshare.client.cooperative import starts as starts_module
from flowshare.client.cooperative.dispatch import SUSPECT_AT
from flowshare.client.cooperative.scan import KeyScan, Progress
from flowshare.cooperative.attempts import Begun
from flowshare.cooperative.types import HASHES, HORIZON_STEP, KeyRange, Reach

START = Progress(0, 1, 0, 0)
HALF = HASHES // 2


def holding(
    *, horizon: int = HORIZON_STEP, reaches: tuple[Reach, ...] = (), exact: bool = False, **starts: int
) -> KeyScan[str]:
    """A member that holds all keys of a partition with ten records, each of its own key."""
    scan: KeyScan[str] = KeyScan(exact_starts=exact)
    scan.set_target([(0, HASHES)])
    scan.held([(0, HASHES, 7)], START, ())
    scan.starts.hold(horizon, Begun(reaches, tuple((int(at[1:]), count) for at, count in starts.items())))
    scan.scanned(0, 10, [(at, at, f"r{at}") for at in range(10)])
    return scan


def begun(scan: KeyScan[str], count: int = 100, *, alone: bool = False) -> list[tuple[int, int]]:
    """Offsets that are begun now, with the attempt."""
    return [(one.offset, one.attempt) for one in scan.take(count, 0.0, alone=alone)]


def answered(scan: KeyScan[str], *refused: int) -> list[tuple[int, int]]:
    """Tell the due starts, answer them as the server does (but for refused parts), and return them."""
    telling = scan.telling()
    assert telling is not None
    scan.told(telling, refused)
    return [one for part in telling.parts for one in part.starts]


def test_a_first_start_below_the_horizon_needs_no_word():
    scan = holding()
    assert begun(scan) == [(at, 1) for at in range(10)]
    assert scan.telling() is None


def test_at_the_horizon_nothing_is_begun_until_it_was_moved():
    scan = holding(horizon=4)
    assert [at for at, _ in begun(scan)] == [0, 1, 2, 3]
    telling = scan.telling()
    assert telling is not None
    assert [(part.starts, part.horizon) for part in telling.parts] == [([], 9 + HORIZON_STEP)]
    assert scan.telling() is None, "one at a time"
    assert begun(scan) == []
    scan.told(telling, ())
    assert [at for at, _ in begun(scan)] == [4, 5, 6, 7, 8, 9]


def test_the_horizon_is_moved_on_before_it_is_reached():
    scan = holding(horizon=HORIZON_STEP // 2 + 5)
    assert len(begun(scan)) == 10
    assert answered(scan) == []
    assert scan.starts.horizon == 9 + HORIZON_STEP


def test_a_record_that_others_may_have_begun_is_told_of_before_each_start():
    scan = holding(reaches=(Reach(0, HALF, 2),), o5=4)
    assert [at for at, _ in begun(scan)] == [2, 3, 4, 6, 7, 8, 9]
    assert sorted(answered(scan)) == [(0, 2), (1, 2)]
    assert begun(scan, alone=False) == [(0, 2), (1, 2)], "5 may have ended four members: it waits to be alone"


def test_a_retry_is_told_of_before_it_is_begun():
    scan = holding()
    (first, *_) = scan.take(1, 0.0)
    scan.give_back(first)
    assert (0, 2) not in begun(scan, 3)
    assert answered(scan) == [(0, 2)]
    assert (0, 2) in begun(scan)


def test_what_the_server_refused_is_told_again():
    scan = holding(reaches=(Reach(0, HALF, 1),))
    begun(scan)
    assert answered(scan, 0) == [(0, 2)]
    assert begun(scan) == []
    assert answered(scan) == [(0, 2)]
    assert begun(scan) == [(0, 2)]


def test_suspects_run_alone_one_after_the_other_and_are_told_of_when_it_is_their_turn():
    scan = holding(o3=2, o6=2)
    others = [one.offset for one in scan.take(100, 0.0)]
    assert others == [0, 1, 2, 4, 5, 7, 8, 9]
    assert scan.starts.suspects_wait
    assert scan.telling() is None
    assert begun(scan, 1, alone=True) == []
    assert answered(scan) == [(3, 3)]
    (suspect,) = scan.take(1, 0.0, alone=True)
    assert (suspect.offset, suspect.attempt) == (3, 3)
    assert scan.starts.suspect_in_flight
    scan.finish(suspect)
    assert not scan.starts.suspect_in_flight
    begun(scan, 1, alone=True)
    assert answered(scan) == [(6, 3)]


def test_a_suspect_whose_keys_are_to_go_holds_up_nobody():
    scan = holding(o3=2)
    begun(scan)
    assert scan.starts.suspects_wait
    scan.set_target([(HALF, HASHES)])
    assert not scan.starts.suspects_wait
    scan.set_target([(0, HASHES)])
    begun(scan)
    assert scan.starts.suspects_wait


def test_what_is_given_back_unfinished_is_owed_exactly_and_what_is_in_flight_then_too():
    scan = holding(o9=1)
    flights = scan.take(8, 0.0)
    for one in flights[:2]:
        scan.give_back(one)
    scan.give_back(flights[2], unrun=True)
    begun(scan)
    answered(scan)  # told ahead: 0 and 1 and 9 for their second starts
    telling = scan.telling(owed=True)
    assert telling is not None
    assert {(part.keys, part.epoch) for part in telling.parts} == {(KeyRange(0, HASHES), 7)}
    starts = sorted(one for part in telling.parts for one in part.starts)
    assert starts == [(at, 1) for at in range(10)]


def test_keys_that_drain_keep_a_record_until_it_was_told_how_often_it_was_begun():
    scan = holding()
    (first, *_) = scan.take(1, 0.0)
    scan.give_back(first)
    scan.set_target([(HALF, HASHES)])
    assert scan.asked()[0].first == 0, "its slot is kept"
    begun(scan)
    answered(scan)
    (again,) = scan.take(100, 0.0)
    assert (again.offset, again.attempt) == (0, 2)


def test_who_lost_all_knows_of_nothing_until_the_next_grant():
    scan = holding(horizon=4)
    begun(scan)
    telling = scan.telling()
    scan.lose()
    assert telling is not None
    scan.told(telling, ())
    scan.held([(0, HASHES, 8)], START, ())
    scan.starts.hold(3, Begun((), ((2, 1),)))
    scan.scanned(0, 10, [(at, at, f"r{at}") for at in range(10)])
    assert [at for at, _ in begun(scan)] == [0, 1]
    assert answered(scan) == [(2, 2)]


def test_with_exact_starts_each_first_one_is_told_and_what_was_told_and_not_begun_is_taken_back():
    scan = holding(horizon=0, exact=True)
    assert begun(scan) == []
    assert sorted(answered(scan)) == [(at, 1) for at in range(10)]
    assert begun(scan, 3) == [(0, 1), (1, 1), (2, 1)]
    assert scan.telling() is None, "there is no horizon to be moved"
    telling = scan.telling(owed=True)
    assert telling is not None
    assert sorted(one for part in telling.parts for one in part.starts) == [(at, 0) for at in range(3, 10)]


def test_what_the_server_counts_already_is_told_apart_and_goes_on_when_there_is_no_room_for_more():
    scan = holding(reaches=(Reach(0, HALF, 2),), o5=1)
    begun(scan)
    telling = scan.telling()
    assert telling is not None
    assert [sorted(part.starts) for part in telling.parts] == [[(5, 2)], [(0, 2), (1, 2)]]
    scan.told(telling, {1})
    assert begun(scan) == [(5, 2)]
    assert sorted(answered(scan)) == [(0, 2), (1, 2)]


def test_a_suspect_waits_for_no_record_that_is_settled_in_order_and_none_waits_for_it_then():
    """Else they would wait for each other: what is settled in the order of the partition waits for the suspect."""
    scan = holding(o0=SUSPECT_AT, horizon=HORIZON_STEP)
    later = scan.take(100, 0.0)
    assert [one.offset for one in later] == list(range(1, 10))
    assert (scan.starts.suspects_wait, scan.dispatcher.at_work) == (True, 9)
    for one in later:
        scan.dispatcher.handled(one)
    assert (scan.dispatcher.in_flight, scan.dispatcher.at_work) == (9, 0)

    scan.take(1, 0.0, alone=True)
    answered(scan)
    (suspect,) = scan.take(1, 0.0, alone=True)
    assert (suspect.offset, scan.starts.suspect_in_flight) == (0, True)
    scan.dispatcher.handled(suspect)
    assert not scan.starts.suspect_in_flight
    for one in (suspect, *later):
        assert scan.finish(one)
    assert scan.dispatcher.at_work == 0


def test_no_more_is_told_at_once_of_a_partition_than_servers_take_of_four(monkeypatch):
    monkeypatch.setattr(starts_module, "STARTS_AT_ONCE", 3)
    one = holding(exact=True)
    assert begun(one) == []
    assert len(answered(one)) == 3
    assert len(begun(one)) == 3
    assert len(answered(one)) == 3


def test_what_was_told_before_the_lease_ended_counts_no_more():
    scan = holding(o5=1)
    begun(scan)
    telling = scan.telling()
    assert telling is not None
    scan.lose()
    scan.told(telling, ())
    assert scan.telling() is None
    scan.held([(0, HASHES, 9)], START, ())
    scan.starts.hold(HORIZON_STEP, Begun((), ((5, 2),)))
    scan.scanned(0, 10, [(at, at, "r") for at in range(10)])
    assert [at for at, _ in begun(scan)] == [0, 1, 2, 3, 4, 6, 7, 8, 9]
    assert scan.starts.suspects_wait
