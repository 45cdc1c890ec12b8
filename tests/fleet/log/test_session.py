"""A fetch session: a broker is told what has changed, and everything again when it has forgotten."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from contextlib import suppress

import pytest

from flowshare.fleet.log.settings import LogSettings
from flowshare.fleet.log.watch import EPOCH_MAX, FetchPosition, FetchSession
from flowshare.log.base import StorageError
from flowshare.protocol import messages as m
from flowshare.share.types import LogBatch
from flowshare.testing.virtual import run
from tests.fleet.kafka import FakeKafka
from tests.fleet.log.faulty import SessionKafka
from tests.fleet.log.worlds import scenario, world
from tests.sim.seeds import drawn

SMALL = LogSettings(ahead_bytes=2_000_000, ahead_partition_bytes=400_000, stretch_bytes=150_000)
A, B = FetchPosition(0, -1), FetchPosition(5, 2)


def asked(session, **news):
    session.tell(news)
    return session.ask()


def test_a_new_session_is_told_everything_and_then_what_changes():
    session = FetchSession()
    assert asked(session, one=A, two=A) == ((0, 0), {"one": A, "two": A}, ())
    assert session.answered(77) == []

    assert asked(session, one=A, two=B) == ((77, 1), {"two": B}, ())
    session.answered(77)
    assert asked(session, one=None, three=None) == ((77, 2), {}, ("one",))
    assert session.told == {"two": B}


def test_a_broker_that_keeps_no_session_is_told_everything_each_time():
    session = FetchSession()
    asked(session, one=A)

    assert session.answered(0) == ["one"]
    assert asked(session, one=A) == ((0, 0), {"one": A}, ())


def test_a_lost_session_begins_anew():
    session = FetchSession()
    asked(session, one=A)
    session.answered(77)
    asked(session, two=A)

    assert session.lost() == ["one", "two"]
    assert asked(session, two=B) == ((0, 0), {"two": B}, ())


def test_what_leaves_a_session_while_nothing_is_sent_leaves_it_with_the_next_request():
    session = FetchSession()
    asked(session, one=A)
    session.answered(77)

    session.tell({"one": None})
    session.tell({"two": A})
    assert session.ask() == ((77, 1), {"two": A}, ("one",))
    session.answered(77)
    session.tell({"two": None})
    session.tell({"two": B})
    assert session.ask() == ((77, 2), {"two": B}, ())


def test_the_epoch_begins_again_with_one():
    session = FetchSession()
    asked(session, one=A)
    session.answered(77)
    session._session = 77, EPOCH_MAX
    session.answered(77)

    assert session.ask().session == (77, 1)


def test_a_session_stands_for_what_is_wanted_whatever_happens():
    draw = random.Random(drawn())
    session, broker, number, wanted = FetchSession(), {}, 0, {}
    touched = set()
    for _ in range(2000):
        for key in draw.sample(range(10), draw.randrange(4)):
            wanted[key] = draw.choice([None, FetchPosition(draw.randrange(3), 0)])
            touched.add(key)
        session.tell({key: wanted.get(key) for key in touched})
        touched = set()
        if draw.random() < 0.3:
            continue
        request = session.ask()
        if request.session == (0, 0):
            broker, number = {}, number + 1
        broker.update(request.changed)
        for key in request.forgotten:
            broker.pop(key, None)
        assert broker == session.told == {key: place for key, place in wanted.items() if place is not None}
        fate = draw.random()
        touched.update(session.lost() if fate < 0.1 else session.answered(0 if fate < 0.2 else number))


@scenario
async def test_many_partitions_are_told_to_the_broker_once():
    async with world(kafka=SessionKafka) as w:
        await w.topic(partitions=100)
        await asyncio.gather(*(w.log.follow("orders", number) for number in range(100)))
        await w.passes(3)
        w.kafka.told.clear()

        for number in range(50):
            await w.produce(b"x", partition=number % 3)
            await w.passes(0.01)
            partition = w.log.offsets("orders", number % 3)
            assert partition.high_watermark == number // 3 + 1
        await w.passes(5)

        assert set(w.kafka.told) == {0, 1, 2}, "only those that moved are told again"
        assert w.kafka.told.total() == 50
        assert await w.read_all(partition=2) == [LogBatch(n, n) for n in range(16)]


@scenario
async def test_a_session_that_the_broker_has_dropped_is_begun_anew():
    async with world(kafka=SessionKafka) as w:
        await w.topic(partitions=10)
        for number in range(10):
            await w.log.follow("orders", number)
        await w.passes(2)
        for number in range(10):
            w.kafka.sessions.clear()
            await w.produce(b"x", partition=number)
            await w.until(lambda: w.log.offsets("orders", number).high_watermark == 1, limit_s=1)  # noqa: B023


@scenario
async def test_news_are_told_in_a_session_too_after_connections_broke():
    async with world(kafka=SessionKafka) as w:
        await w.topic(partitions=10)
        for number in range(10):
            await w.log.follow("orders", number)
        for number in range(10):
            await w.kafka.cut()
            await w.produce(b"x", partition=number)
            await w.until(lambda: w.log.offsets("orders", number).high_watermark == 1, limit_s=3)  # noqa: B023
        assert w.kafka.told.total() < 500


@scenario
async def test_what_comes_to_be_followed_while_a_fetch_is_parked_is_watched_at_once():
    async with world(kafka=SessionKafka) as w:
        await w.topic(partitions=5)
        await w.log.follow("orders", 0)
        for number in range(1, 5):
            await w.passes(0.503)
            await w.log.follow("orders", number)
            await w.passes(0.01)
            w.moves.clear()
            await w.produce(b"x", partition=number)
            await w.passes(0.025)
            assert w.moves == [("orders", number)]
        await w.passes(2)
        assert len(w.kafka.sessions) == 1
        (session,) = w.kafka.sessions.values()
        assert {place[1] for place in session.places} == set(range(5))


@scenario
async def test_paused_and_forgotten_partitions_leave_the_session():
    async with world(kafka=SessionKafka) as w:
        await w.topic(partitions=3)
        for number in range(3):
            await w.log.follow("orders", number)
        await w.passes(1)
        w.log.unfollow("orders", 1)
        for _ in range(6):
            await w.produce(b"x", partition=2, size=1_000_000)
            await w.passes(0.01)
        await w.passes(1)

        (session,) = w.kafka.sessions.values()
        assert {place[1] for place in session.places} == {0}
        assert len(await w.read_all(partition=2)) == 6
        await w.passes(1)
        assert {place[1] for place in session.places} == {0, 2}


class Traffic:
    """Random things that happen to a world, and what was produced in it by them."""

    def __init__(self, w, draw):
        self.w = w
        self.draw = draw
        self.counts = Counter()

    async def step(self):
        deeds = [self.produce] * 8 + [self.let_pass, self.w.kafka.cut, self.drop, self.evict, self.again, self.read]
        with suppress(StorageError):
            await self.draw.choice(deeds)()

    async def produce(self):
        number = self.draw.randrange(8)
        self.counts[number] += 1
        await self.w.produce(b"x", partition=number, size=self.draw.choice([10, 100_000]))

    async def let_pass(self):
        await self.w.passes(self.draw.random())

    async def drop(self):
        self.w.kafka.drop_answers(m.FetchRequest)

    async def evict(self):
        self.w.kafka.sessions.clear()

    async def again(self):
        number = self.draw.randrange(8)
        self.w.log.unfollow("orders", number)
        await self.let_pass()
        for _ in range(5):
            with suppress(StorageError):
                return await self.w.log.follow("orders", number, committed=self.draw.random() < 0.5)
        raise AssertionError("the partition cannot be followed")

    async def read(self):
        number, committed = self.draw.randrange(8), self.draw.random() < 0.5
        end = self.w.log.offsets("orders", number).high_watermark
        if end:
            offset = self.draw.randrange(end)
            read = await self.w.log.read("orders", number, offset, max_bytes=300_000, committed=committed)
            assert read.batches[0].first == offset


@pytest.mark.parametrize("kafka", [SessionKafka, FakeKafka])
def test_random_traffic_is_told_and_read_whole(kafka):
    run(random_traffic(kafka, random.Random(drawn())))


async def random_traffic(kafka, draw):
    async with world(SMALL, kafka=kafka) as w:
        w.kafka.sessions = {}
        await w.topic(partitions=8)
        for number in range(8):
            await w.log.follow("orders", number, committed=number % 2 == 1)
        traffic = Traffic(w, draw)
        for _ in range(150):
            await traffic.step()
        w.kafka.drop_no_more(m.FetchRequest)  # three in a row are an error by right
        for number in range(8):
            count = traffic.counts[number]
            await w.until(lambda: w.log.offsets("orders", number).high_watermark == count)  # noqa: B023
            expected = [LogBatch(at, at) for at in range(count)]
            assert await w.read_all(partition=number, committed=draw.random() < 0.5) == expected
        memory = w.log._registry.memory
        buffers = [buffer for one in w.log._registry.by_place.values() for buffer in one.buffers.values()]
        runs = [run for buffer in buffers for run in (*buffer.cold, buffer.tail) if run is not None]
        assert memory.size == sum(run.size for run in runs) <= SMALL.ahead_bytes
        assert memory.buffers == len(buffers)
