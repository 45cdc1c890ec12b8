"""Accepts of committed batches on their way: whatever their answer is, no record gets into a second batch."""

from __future__ import annotations

import contextlib
import random
from concurrent.futures import Future

import pytest

from flowshare.client.errors import NotConnected
from flowshare.spark.accepts import Accepts
from flowshare.spark.ranges import Range


def of(first: int, last: int) -> Range:
    return Range("t", 0, first, last)


class Member:
    """What the group answers is told by the test, when it is asked for."""

    def __init__(self) -> None:
        self.asked: list[tuple[list[Range], Future]] = []

    def begin_accept(self, ranges):
        self.asked.append((list(ranges), Future()))
        return self.asked[-1][1]

    def answer(self, refused=()):
        self.asked[-1][1].set_result(list(refused))


@pytest.fixture
def member():
    return Member()


@pytest.fixture
def accepts(member):
    return Accepts(member, [], group="g")


def test_a_committed_batch_is_done_until_its_accept_has_come_back(member, accepts):
    accepts.owe([of(0, 9)])
    accepts.begin()

    assert accepts.ranges() == (of(0, 9),)
    member.answer()
    accepts.settle()
    assert accepts.ranges() == ()
    assert [asked for asked, _ in member.asked] == [[of(0, 9)]]


def test_what_is_refused_stays_done_and_is_sent_again_only_when_it_comes_again(member, accepts):
    accepts.owe([of(0, 9)])
    accepts.begin()
    member.answer([of(4, 5)])
    accepts.settle()
    assert accepts.ranges() == (of(4, 5),)
    assert len(member.asked) == 1

    assert accepts.swallow([of(3, 7)]) == [of(3, 3), of(6, 7)]
    accepts.begin()
    assert member.asked[-1][0] == [of(4, 5)]
    member.answer()
    accepts.settle()
    assert accepts.ranges() == ()


def test_an_accept_that_did_not_reach_the_group_is_owed_again(member, accepts):
    accepts.owe([of(0, 9)])
    accepts.begin()
    member.asked[-1][1].set_exception(NotConnected("away"))

    with pytest.raises(NotConnected):
        accepts.settle()
    assert accepts.ranges() == (of(0, 9),)

    accepts.owe([of(20, 29)])
    accepts.begin()
    assert member.asked[-1][0] == [of(0, 9), of(20, 29)]


def test_what_comes_again_while_it_is_owed_is_sent_once(member, accepts):
    accepts.owe([of(0, 9)])

    assert accepts.swallow([of(5, 9)._replace(delivery=2), of(10, 12)]) == [of(10, 12)]
    accepts.begin()

    assert member.asked[-1][0] == [of(0, 9)]


def test_one_accept_at_a_time_is_on_its_way(member, accepts):
    accepts.owe([of(0, 9)])
    accepts.begin()
    accepts.owe([of(10, 19)])
    first = member.asked[0][1]
    first.set_result([])

    accepts.begin()

    assert [asked for asked, _ in member.asked] == [[of(0, 9)], [of(10, 19)]]


def test_what_the_start_offset_has_passed_is_neither_done_nor_sent(member, accepts):
    accepts.owe([of(0, 9), of(20, 29)])
    accepts.prune({("t", 0): 5})
    accepts.begin()

    assert accepts.ranges() == (of(5, 9), of(20, 29))
    assert member.asked[-1][0] == [of(5, 9), of(20, 29)]


@pytest.mark.parametrize("seed", range(20))
def test_no_offset_is_in_two_batches_whatever_is_refused_lost_and_delivered_again(seed):
    """A group of 200 offsets, one member, batches of what is not swallowed; restarts from the last offset written."""
    chance = random.Random(seed)
    free, held, finished, batches = set(range(200)), set(), set(), []

    class Group(Member):
        def begin_accept(self, ranges):
            future = super().begin_accept(ranges)
            if chance.random() < 0.2:
                future.set_exception(NotConnected("away"))
            else:
                offsets = [number for one in ranges for number in range(one.first, one.last + 1)]
                refused = [of(number, number) for number in offsets if number not in held]
                finished.update(held.intersection(offsets))
                held.difference_update(offsets)
                future.set_result(refused)
            return future

    group = Group()
    accepts, written = Accepts(group, [], group="g"), ((), ())
    for _ in range(2000):
        lapsed = {number for number in held if chance.random() < 0.05}
        held, free = held - lapsed, free | lapsed
        got = sorted(free)[: chance.randrange(1, 20)]
        free.difference_update(got)
        held.update(got)
        fresh = accepts.swallow([of(number, number) for number in got])
        with contextlib.suppress(NotConnected):
            if chance.random() < 0.5:
                accepts.begin()
            else:
                accepts.settle()
        if fresh:
            written = (tuple(fresh), accepts.ranges())
            batches.append([one.first for one in fresh])
            if chance.random() < 0.2:  # a restart: the batch runs again, what was on its way or owed is forgotten
                accepts = Accepts(group, written[1], group="g")
            accepts.owe(written[0])
        if len(finished) == 200:
            break

    once = [number for batch in batches for number in batch]
    assert len(finished) == 200, f"seed {seed}"
    assert sorted(once) == list(range(200)), f"seed {seed}"
    accepts.prune({("t", 0): 200})
    assert accepts.ranges() == (), f"seed {seed}"
