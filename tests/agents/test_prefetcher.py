"""Fetches follow each other as soon as they are worth asking, and what happens calls: no task waits for one."""

from __future__ import annotations

import logging
from collections import deque
from types import SimpleNamespace

import pytest

from flowshare.agents.feed.prefetch import FAILED_WAIT_S, FEW, Asked, Prefetcher
from flowshare.agents.handler.rate_limit import RateLimit, TokenBucket
from flowshare.client.errors import Closed, NotConnected
from flowshare.client.session.ranges import Fetched, number_of
from flowshare.share.types import AcquiredRange, AcquireMode
from tests.agents.test_feeder_parts import TP


class Timers:
    """Time that is moved by hand, and what is due then."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.due: list[tuple[float, object]] = []

    def monotonic(self) -> float:
        return self.now_s

    def call_later(self, delay_s, callback):
        entry = (self.now_s + delay_s, callback)
        self.due.append(entry)
        return SimpleNamespace(cancel=lambda: self.due.remove(entry))

    def pass_s(self, seconds: float) -> None:
        self.now_s += seconds
        due, self.due = self.due, [entry for entry in self.due if entry[0] > self.now_s]
        for at_s, callback in due:
            if at_s <= self.now_s:
                callback()


class Member:
    """Answers when it is told to."""

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.order: list[str] = []
        """Fetches and acknowledgements, in the order of the calls."""
        self.answers: deque[list[Fetched] | Exception] = deque()
        self.refuses: Exception | None = None
        self.listener = None

    def on_fetched(self, listener) -> None:
        self.listener = listener

    def ask(self, plan) -> None:
        if self.refuses is not None:
            raise self.refuses
        self.asked.append(plan.records_max)
        self.order.append("fetch")
        self.bytes_max = plan.bytes_max
        self.mode = plan.mode
        self.keys = plan.heads, plan.chain

    def take_fetched(self):
        answer = self.answers.popleft()
        if isinstance(answer, Exception):
            raise answer
        return answer

    def answer(self, answer: list[Fetched] | Exception) -> None:
        self.answers.append(answer)
        self.listener()


class World:
    """A prefetcher, and what it looks at: `wanted` records are worth asking for."""

    def __init__(self, bucket: TokenBucket | None = None) -> None:
        self.wanted, self.more, self.takers_look = 20, 0, False
        self.heads, self.chain = 0, 1
        self.taken: list[int] = []
        self.told: list[str] = []
        self.fault: Exception | None = None
        self.clock, self.member = Timers(), Member()
        self.size = SimpleNamespace(
            wanted=lambda: self.wanted,
            asked=lambda count, allowed: Asked(
                count if allowed is None else min(count, allowed), self.heads, self.chain
            ),
            ahead=lambda unread: self.more if unread > FEW else 0,
            whole=lambda count: self.whole,
            group=None,
            paused=False,
        )
        self.whole = False
        self.order = self.member.order
        stall = SimpleNamespace(
            paused=lambda: self.told.append("paused"), rate_limited=lambda wait_s: self.told.append("limited")
        )
        agent = SimpleNamespace(name="a", group="g")
        self.prefetcher = Prefetcher(
            agent,
            self.size,
            bucket,
            stall,
            self.take,
            clock=self.clock,
            ride=lambda: self.order.append("acknowledge"),
        )

    def take(self, fetched) -> bool:
        self.taken.append(number_of(fetched))
        if self.fault is not None:
            raise self.fault
        return self.takers_look


def fetched(first: int, last: int, *, size: int = 0) -> list[Fetched]:
    return [Fetched("in", TP.topic_id, TP.partition, bytes(size), (AcquiredRange(first, last, 1),), 30.0, 0)]


@pytest.fixture
def world():
    world = World()
    world.prefetcher.start(world.member)
    return world


def test_the_next_fetch_leaves_when_one_has_ended_and_never_beside_it(world):
    world.prefetcher.look()
    assert world.member.asked == [20]

    world.member.answer(fetched(0, 4))

    assert (world.member.asked, world.taken) == ([20, 20], [5])


def test_what_nobody_asked_for_any_more_is_taken_all_the_same(world):
    world.wanted = 0
    world.member.answer(fetched(0, 4))
    world.member.answer(fetched(5, 6))

    assert (world.member.asked, world.taken) == ([20], [5, 2])


def test_acknowledgements_that_wait_ride_on_each_fetch_that_is_asked_for(world):
    world.member.answer(fetched(0, 4))
    world.wanted = 0
    world.member.answer(fetched(5, 9))
    world.wanted = 20
    world.prefetcher.look()

    assert world.order == ["acknowledge", "fetch"] * 3


def test_nothing_is_asked_until_it_is_worth_asking(world):
    world.wanted = 0
    world.member.answer([])
    assert world.member.asked == [20]

    world.wanted = 7
    world.prefetcher.look()

    assert world.member.asked == [20, 7]


def test_the_next_fetch_waits_for_the_handlers_turn_where_they_are_at_work(world):
    world.takers_look = True
    world.member.answer(fetched(0, 0))
    assert world.member.asked == [20]

    world.prefetcher.look()

    assert world.member.asked == [20, 20]


@pytest.mark.parametrize(("count", "order"), [(FEW + 1, ["asked", "taken"]), (FEW, ["taken", "asked"])])
def test_a_broker_works_while_much_is_read_and_few_are_read_first(world, count, order):
    seen = []
    world.size.group, world.more = object(), 9
    world.member.ask = lambda plan: seen.append("asked")
    world.take = world.prefetcher._take = lambda found: seen.append("taken")

    world.member.answer(fetched(1, count))

    assert seen == order


@pytest.mark.parametrize("error", [NotConnected("no broker"), KeyError("a fault of ours")])
def test_a_fetch_that_fails_is_told_and_the_next_one_leaves_after_a_pause(world, error, caplog):
    with caplog.at_level(logging.WARNING):
        world.member.answer(error)
    world.prefetcher.look()
    assert world.member.asked == [20]
    assert str(error) in world.prefetcher.trouble
    assert str(error) in caplog.text

    world.clock.pass_s(FAILED_WAIT_S)
    assert world.member.asked == [20, 20]
    world.member.answer([])

    assert world.prefetcher.trouble is None


def test_a_refused_request_and_a_fault_in_taking_pause_the_fetching_and_lose_nothing(world):
    world.fault = KeyError("a fault of ours")
    world.member.answer(fetched(0, 4))
    assert "a fault of ours" in world.prefetcher.trouble
    world.fault, world.member.refuses = None, NotConnected("no broker")

    world.clock.pass_s(FAILED_WAIT_S)
    assert world.prefetcher.trouble == "fetching fails: no broker"
    world.member.refuses = None
    world.clock.pass_s(FAILED_WAIT_S)

    assert world.member.asked == [20, 20]


def test_a_member_that_is_closed_is_asked_no_more(world):
    world.member.answer(Closed("gone"))
    world.clock.pass_s(FAILED_WAIT_S)

    assert world.member.asked == [20]
    assert not world.prefetcher.started


def test_a_prefetcher_that_is_stopped_leaves_what_comes_to_the_member(world):
    listener = world.member.listener
    world.prefetcher.stop()
    assert world.member.listener is None

    listener()
    world.prefetcher.look()

    assert (world.member.asked, world.taken) == ([20], [])


def test_the_rate_limit_lets_through_what_it_has_room_for_and_is_waited_for():
    bucket = TokenBucket(RateLimit(10.0, 10), 0.0)
    world = World(bucket)
    world.prefetcher.start(world.member)
    assert world.member.asked == [10]
    bucket.take(10)

    world.member.answer(fetched(0, 9))
    assert (world.member.asked, world.told) == ([10], ["limited"])
    world.clock.pass_s(1.0)

    assert len(world.member.asked) == 2


def test_a_paused_agent_is_told_of(world):
    world.wanted, world.size.paused = 0, True

    world.member.answer([])

    assert world.told == ["paused"]


def test_a_fetch_allows_the_bytes_that_its_records_need_within_bounds(world):
    allowed = [world.member.bytes_max]
    for size in (0, 10 * 100_000, 10 << 20):
        world.member.answer(fetched(0, 9, size=size))
        allowed.append(world.member.bytes_max)

    assert allowed == [1 << 20, 1 << 20, 40 * 100_000, 16 << 20]


@pytest.mark.parametrize(("whole", "mode"), [(True, AcquireMode.BATCH_OPTIMIZED), (False, AcquireMode.RECORD_LIMIT)])
def test_a_fetch_asks_for_whole_batches_when_they_may_come_whole(world, whole, mode):
    world.whole = whole

    world.member.answer([])

    assert world.member.mode is mode


def test_a_fetch_says_how_many_keys_to_begin_and_how_many_records_of_each():
    world = World()
    world.heads, world.chain = 5, 16
    world.prefetcher.start(world.member)

    assert (world.member.asked, world.member.keys) == ([20], (5, 16))
