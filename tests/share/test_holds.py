from __future__ import annotations

from flowshare.share.holds import Holds


def test_the_earliest_hold_is_due_first():
    holds = Holds()
    holds.open("m", 30, 0, 9, 10)
    early = holds.open("m", 20, 10, 19, 10)

    assert holds.next_due_ms() == 20
    assert holds.take_due(19) == []
    assert holds.take_due(20) == [early]
    assert holds.next_due_ms() == 30


def test_a_hold_ends_with_its_last_offset():
    holds = Holds()
    hold = holds.open("m", 20, 0, 1, 2)

    holds.let_go(hold.hold_id, 1)
    assert holds.next_due_ms() == 20
    holds.let_go(hold.hold_id, 1)

    assert holds.next_due_ms() is None
    assert holds.take_due(100) == []


def test_a_hold_that_ended_is_not_due():
    holds = Holds()
    hold = holds.open("m", 20, 0, 0, 1)
    holds.let_go(hold.hold_id, 1)

    assert holds.take_due(20) == []


def test_renewing_again_and_again_does_not_grow_the_deadlines():
    holds = Holds()
    hold = holds.open("m", 0, 0, 0, 1)
    for now in range(10_000):
        holds.let_go(hold.hold_id, 1)
        hold = holds.open("m", now, 0, 0, 1)

    assert len(holds._heap) < 200
    assert holds.take_due(10_000) == [hold]


def test_locks_that_are_put_off_are_due_then_and_delays_are_not_put_off():
    holds = Holds()
    lock = holds.open("m", 20, 0, 0, 1)
    delay = holds.open(None, 20, 1, 1, 1)
    later = holds.open("m", 90, 2, 2, 1)

    holds.put_off(30, 10)

    assert holds.take_due(30) == [delay]
    assert holds.next_due_ms() == 40
    assert holds.take_due(40) == [lock]
    assert holds.take_due(90) == [later]
