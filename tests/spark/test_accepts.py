"""Accepts of committed batches on their way: whatever their answer is, no record gets into a second batch."""

from __future__ import annotations

import contextlib
import random
from concurrent.futures import Future
from dataclasses import replace

import pytest

from flowshare.client.errors import NotConnected
from flowshare.spark.source.accepts import Accepts
from flowshare.spark.source.ranges import Offset, Range

TOPICS = {"t": "id-of-t"}
PLACE = ("t", 0)
LEADER = "broker 5"


def of(first: int, last: int) -> Range:
    return Range(*PLACE, first, last)


def batch(*ranges: Range, leader: str = LEADER, **fields) -> Offset:
    return Offset(**{"ranges": ranges, "topics": TOPICS, "leaders": {PLACE: leader}, **fields})


class Member:
    """Stand-in for a member: the test gives the group's answers."""

    topics = TOPICS

    def __init__(self) -> None:
        self.asked: list[tuple[list[Range], Future]] = []
        self.leader = LEADER

    def leaders_now(self):
        return {PLACE: self.leader}

    def begin_accept(self, ranges, batch):
        self.asked.append((list(ranges), Future()))
        return self.asked[-1][1]

    def answer(self, refused=()):
        self.asked[-1][1].set_result(list(refused))


@pytest.fixture
def member():
    return Member()


@pytest.fixture
def accepts(member):
    return Accepts(member, group="g")


def test_a_committed_batch_is_done_until_its_accept_has_come_back(member, accepts):
    accepts.owe(batch(of(0, 9)))
    accepts.begin()

    assert accepts.ranges() == (of(0, 9),)
    member.answer()
    accepts.settle()
    assert accepts.ranges() == ()
    assert [asked for asked, _ in member.asked] == [[of(0, 9)]]


def test_what_is_refused_stays_done_and_is_sent_again_only_when_it_comes_again(member, accepts):
    accepts.owe(batch(of(0, 9)))
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
    accepts.owe(batch(of(0, 9)))
    accepts.begin()
    member.asked[-1][1].set_exception(NotConnected("away"))

    with pytest.raises(NotConnected):
        accepts.settle()
    assert accepts.ranges() == (of(0, 9),)

    accepts.owe(batch(of(20, 29)))
    accepts.begin()
    assert member.asked[-1][0] == [of(0, 9), of(20, 29)]


def test_what_comes_again_while_it_is_owed_is_sent_once(member, accepts):
    accepts.owe(batch(of(0, 9)))

    assert accepts.swallow([of(5, 9)._replace(delivery=2), of(10, 12)]) == [of(10, 12)]
    accepts.begin()

    assert member.asked[-1][0] == [of(0, 9)]


def test_one_accept_at_a_time_is_on_its_way(member, accepts):
    accepts.owe(batch(of(0, 9)))
    accepts.begin()
    accepts.owe(batch(of(10, 19)))
    first = member.asked[0][1]
    first.set_result([])

    accepts.begin()

    assert [asked for asked, _ in member.asked] == [[of(0, 9)], [of(10, 19)]]


def test_what_the_start_offset_has_passed_is_neither_done_nor_sent(member, accepts):
    accepts.owe(batch(of(0, 9), of(20, 29)))
    accepts.prune({("t", 0): 5})
    accepts.begin()

    assert accepts.ranges() == (of(5, 9), of(20, 29))
    assert member.asked[-1][0] == [of(5, 9), of(20, 29)]


def test_what_an_earlier_process_committed_is_left_out_when_it_comes_again(accepts):
    accepts.restore(batch(of(0, 9)), {})

    assert accepts.swallow([of(5, 12)._replace(delivery=2)]) == [of(10, 12)._replace(delivery=2)]
    assert accepts.ranges() == (of(0, 9),)


@pytest.mark.parametrize(("restored", "warned"), [(True, []), (False, ["10 records of a committed batch"])])
def test_what_an_earlier_process_accepted_itself_is_refused_without_an_alarm(member, accepts, restored, warned, caplog):
    """Brokers refuse a second accept, and their start offset lags behind: so it is at nearly every clean restart."""
    if restored:
        accepts.restore(batch(of(0, 9)), {})
    else:
        accepts.owe(batch(of(0, 9)))
    accepts.begin()
    member.answer(refused=[of(0, 9)])
    accepts.begin()

    found = [one.message for one in caplog.records if one.levelname == "WARNING"]
    assert [any(part in one for one in found) for part in warned] == [True] * len(found)
    assert len(found) == len(warned)
    assert accepts.ranges() == (of(0, 9),), "what of it comes again is left out all the same"


def test_what_an_earlier_process_committed_is_read_when_it_comes_for_the_first_time(accepts):
    accepts.restore(batch(of(0, 9)), {})

    assert accepts.swallow([of(5, 12)]) == [of(10, 12), of(5, 9)]
    assert accepts.ranges() == (of(0, 4),)


def test_a_first_delivery_by_another_leader_may_be_a_later_one(member, accepts):
    """Kafka's brokers forget deliveries with the broker that counted them."""
    accepts.restore(batch(of(0, 9)), {})
    member.leader = "broker 6"

    assert accepts.swallow([of(5, 12)]) == [of(10, 12)]
    assert accepts.ranges() == (of(0, 9),)


@pytest.mark.parametrize("why", ["it was not known when the batch was acquired", "nobody tells it now"])
def test_a_first_delivery_by_a_leader_that_is_not_known_may_be_a_later_one(member, accepts, why, monkeypatch):
    accepts.restore(batch(of(0, 9), **({"leaders": {}} if "batch" in why else {})), {})

    def away():
        raise NotConnected("away")

    monkeypatch.setattr(member, "leaders_now", away if "now" in why else dict)
    assert accepts.swallow([of(5, 12)]) == [of(10, 12)]


def test_what_is_done_keeps_the_leader_that_it_came_from_until_it_is_accepted(member, accepts):
    accepts.owe(batch(of(0, 9)))
    accepts.begin()
    accepts.owe(batch(of(10, 19), leader="broker 6"))

    assert accepts.leaders({PLACE: "broker 6", ("t", 1): "broker 1"}) == {PLACE: LEADER, ("t", 1): "broker 1"}
    member.answer()
    accepts.begin()
    member.answer()
    accepts.settle()
    accepts.owe(batch(of(20, 29), leader="broker 6"))
    assert accepts.leaders({}) == {PLACE: "broker 6"}


def test_what_this_process_committed_is_left_out_whatever_the_server_counts(accepts):
    accepts.owe(batch(of(0, 9)))

    assert accepts.swallow([of(0, 9)]) == []


def test_what_a_checkpoint_says_does_not_count_where_the_start_offset_went_back(accepts):
    known = batch(of(40, 49), Range("t", 1, 5, 6), starts={PLACE: 30, ("t", 1): 5})
    accepts.restore(known, {PLACE: 0, ("t", 1): 5})

    assert accepts.ranges() == (Range("t", 1, 5, 6),)


def test_what_a_checkpoint_says_does_not_count_for_a_topic_that_was_made_anew(accepts):
    accepts.restore(batch(of(0, 9), topics={"t": "another id"}), {})

    assert accepts.ranges() == ()
    assert not accepts.pending


def test_a_topic_that_is_made_anew_while_the_query_runs_is_read_from_its_beginning(accepts):
    accepts.owe(batch(of(0, 9)))

    assert accepts.meet({"t": "another id"}) == ["t"]
    assert accepts.swallow([of(0, 4)]) == [of(0, 4)]
    accepts.owe(batch(of(0, 9)))  # a batch of the topic that is gone was under way
    assert accepts.ranges() == ()


def test_a_stop_that_does_not_wait_any_longer_leaves_the_accept_on_its_way(member, accepts):
    accepts.owe(batch(of(0, 9)))

    with pytest.raises(TimeoutError):
        accepts.settle(0.0)
    member.answer()
    accepts.settle()

    assert accepts.ranges() == ()
    assert len(member.asked) == 1


@pytest.mark.parametrize("seed", range(20))
def test_no_offset_is_in_two_batches_whatever_is_refused_lost_and_delivered_again(seed):
    """A group of 200 offsets, one member, batches of what is not swallowed; restarts from the last offset written;
    brokers that die and forget who holds what, and how often it was delivered."""
    chance = random.Random(seed)
    free, held, finished, batches = set(range(200)), set(), set(), []
    deliveries = [0] * 200

    class Group(Member):
        def begin_accept(self, ranges, batch):
            future = super().begin_accept(ranges, batch)
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
    accepts, written, epoch = Accepts(group, group="g"), batch(), 0
    for _ in range(2000):
        known = f"broker {epoch}"  # looked up before the acquire
        if chance.random() < 0.1:
            epoch += 1
            group.leader = f"broker {epoch}"
            held, free = set(), free | held
            deliveries = [0] * 200
        lapsed = {number for number in held if chance.random() < 0.05}
        held, free = held - lapsed, free | lapsed
        got = sorted(free)[: chance.randrange(1, 20)]
        free.difference_update(got)
        held.update(got)
        for number in got:
            deliveries[number] += 1
        fresh = accepts.swallow([of(number, number)._replace(delivery=deliveries[number]) for number in got])
        with contextlib.suppress(NotConnected):
            if chance.random() < 0.5:
                accepts.begin()
            else:
                accepts.settle()
        if fresh:
            leaders = accepts.leaders({PLACE: known})
            written = batch(*fresh, done=accepts.ranges(), leaders=leaders)
            batches.append([one.first for one in fresh])
            if chance.random() < 0.2:  # a restart: the batch runs again, what was on its way or owed is forgotten
                accepts = Accepts(group, group="g")
                accepts.restore(replace(written, ranges=written.done), {})
                accepts.restore(written, {})
            else:
                accepts.owe(written)
        if len(finished) == 200:
            break

    once = [number for batch in batches for number in batch]
    assert len(finished) == 200, f"seed {seed}"
    assert sorted(once) == list(range(200)), f"seed {seed}"
    accepts.prune({("t", 0): 200})
    assert accepts.ranges() == (), f"seed {seed}"
