"""Pending commits of transactions, and who waits for the stable offset."""

from __future__ import annotations

import random

import pytest

from flowshare.cooperative import pending as pending_module
from flowshare.cooperative.pending import Pending, StableWait
from flowshare.core_errors import BoundReached, InvalidProducerEpoch
from tests.sim.seeds import drawn


def test_ranges_of_one_transaction_are_united_and_those_of_all_are_told():
    pending = Pending()
    assert not pending
    assert not pending.unstable
    assert pending.ranges() == []
    pending.reserve(1, 0, [(5, 7)], [(0, 10)])
    pending.reserve(1, 0, [(7, 9), (20, 21)], [(5, 12)])
    pending.reserve(2, 3, [(9, 10)], [(8, 20)])

    assert pending.unstable
    assert pending.ranges() == [(5, 10), (20, 21)]
    assert [(one.keys, one.reason) for one in pending.reserved()] == [
        ((0, 12), "transaction of producer 1"),
        ((12, 20), "transaction of producer 2"),
    ]
    assert pending.complete(1, 0) == ((5, 9), (20, 21))
    assert pending.complete(1, 0) is None
    assert pending.ranges() == [(9, 10)]


def test_a_producer_that_took_over_drops_what_its_predecessor_had():
    pending = Pending()
    pending.reserve(1, 4, [(5, 7)])
    for step in (lambda: pending.reserve(1, 3, [(0, 1)]), lambda: pending.complete(1, 3)):
        with pytest.raises(InvalidProducerEpoch, match="is at epoch 4, not 3"):
            step()
    assert pending.ranges() == [(5, 7)]

    pending.reserve(1, 5, [(10, 11)])

    assert pending.ranges() == [(10, 11)]
    assert pending.complete(1, 6) == ((10, 11),)


def test_pending_offsets_are_bounded(monkeypatch):
    monkeypatch.setattr(pending_module, "PENDING_RANGES_MAX", 2)
    monkeypatch.setattr(pending_module, "PRODUCERS_MAX", 1)
    pending = Pending()
    with pytest.raises(BoundReached, match="at most 2 ranges"):
        pending.reserve(1, 0, [(0, 1), (2, 3), (4, 5)])
    pending.reserve(1, 0, [(0, 1)])
    with pytest.raises(BoundReached, match="1 transactions"):
        pending.reserve(2, 0, [(2, 3)])
    pending.reserve(1, 0, [(2, 3)])


def test_a_cut_of_the_log_cuts_what_is_pending():
    pending = Pending()
    pending.reserve(1, 0, [(0, 5), (8, 12)])
    pending.reserve(2, 0, [(5, 8)])

    assert pending.cut(10) == (1,)
    assert pending.ranges() == [(0, 10)]
    assert pending.cut(3) == (1, 2)
    assert pending.ranges() == [(0, 3)]


def test_waiters_are_released_in_the_order_of_their_offsets_whoever_came_first():
    firsts = list(range(1, 60))
    random.Random(drawn()).shuffle(firsts)
    wait = StableWait()
    for first in firsts:
        wait.park(first, [(first + 100, first + 101), (first, first + 1)], 1, 0)

    assert wait.release(0) == []
    assert wait.release(30) == list(range(1, 31))
    assert len(wait) == 29
    assert wait.release(59) == list(range(31, 60))
    assert wait.release(99) == []


def test_a_waiter_fails_by_time_by_an_abort_and_by_a_rebalance():
    wait = StableWait(wait_ms=100)
    assert wait.next_deadline_ms() is None
    for number, name in enumerate("abcd"):
        wait.park(name, [(number, number + 1)], number // 2, 10 * number)
    assert wait.next_deadline_ms() == 100

    assert wait.expire(99) == []
    assert wait.expire(100) == ["a"]
    assert wait.fail_older(1) == ["b"]
    assert wait.abort("c")
    assert not wait.abort("c")
    assert wait.release(10) == ["d"]


def test_only_so_many_wait():
    wait = StableWait(waiting_max=1)
    wait.park("a", [(5, 6)], 1, 0)
    with pytest.raises(BoundReached, match="1 settles wait for records before theirs: settle lower offsets first"):
        wait.park("b", [(7, 8)], 1, 0)
    wait.release(6)
    wait.park("b", [(7, 8)], 1, 0)
