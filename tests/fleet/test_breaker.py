"""A group's circuit breaker over all workers of a fleet, also when they die while it is open."""

from __future__ import annotations

import asyncio

import pytest

from flowshare.client.errors import ClientError
from flowshare.testing.clock import LoopTimeClock
from flowshare.testing.virtual import run
from tests.fleet.test_limits import ranges
from tests.fleet.world import EARLIEST, Fleet

ON = {
    "share.breaker.failure.percent": "50",
    "share.breaker.window.size": "10",
    "share.breaker.open.ms": "8000",
    "share.breaker.open.max.ms": "16000",
    "share.record.lock.duration.ms": "3000",
}
pytestmark = pytest.mark.slow


class Broken:
    """A fleet, a group on six partitions whose breaker opens, and what its member has got and said."""

    def __init__(self, fleet, clock):
        self.fleet, self.clock = fleet, clock
        self.admin = fleet.admin()
        self.counted = (0, 0, 0, 0)
        self.got = 0
        self.member = None

    async def begin(self, partitions):
        await self.fleet.topic("orders", partitions)
        for partition in range(partitions):
            await self.fleet.produce("orders", *[b"v"] * 50, partition=partition)
        await self.fleet.configure(**EARLIEST, **ON)
        self.member = self.fleet.member("orders")
        await self.member.start()
        await self.fetch(3)
        await self.say()
        assert (await self.say(failed=10)).state == "open"
        await self.fetch(1)  # what left before

    async def fetch(self, seconds):
        """Fetch for so many seconds, and return the number of records; the member goes on to say that it is there."""
        until_s, got = self.clock.monotonic() + seconds, 0
        while self.clock.monotonic() < until_s:
            found = ranges(await self.member.fetch(records_max=1, max_wait_s=0.2))
            got += sum(run_.last - run_.first + 1 for _, run_ in found)
            await self.say()
        return got

    async def say(self, failed=0, tried_succeeded=0, tried_failed=0):
        add = (0, failed, tried_succeeded, tried_failed)
        self.counted = tuple(a + b for a, b in zip(self.counted, add, strict=True))
        for _ in range(200):
            try:
                return await self.admin.report_outcomes("g", self.member.member_id, self.counted)
            except ClientError:
                await self.clock.sleep(0.1)
        raise AssertionError("nobody coordinates the group")


async def at_a_leader_of_orders(broken, name):
    await broken.fleet.topic(name)
    return broken.fleet.leader(name, 0) in {broken.fleet.leader("orders", partition) for partition in range(2)}


def lives(story, partitions=6):
    async def scenario(clock):
        async with Fleet(clock, workers=3, slots=6) as fleet:
            broken = Broken(fleet, clock)
            async with asyncio.timeout(300):
                await broken.begin(partitions)
                await story(broken)
            await broken.admin.close()

    run(scenario(LoopTimeClock()))


def test_while_it_is_open_no_leader_hands_out_and_then_one_of_them_one_record():
    async def story(broken):
        assert await broken.fetch(6) == 0
        assert await broken.fetch(2.5) == 1
        assert (await broken.say(tried_succeeded=1)).state == "closed"
        assert await broken.fetch(2) > 10

    lives(story)


def test_a_try_that_fails_opens_it_for_twice_as_long():
    async def story(broken):
        assert await broken.fetch(9) == 1
        assert (await broken.say(tried_failed=1)).left_ms == 16_000
        assert await broken.fetch(14) == 0
        assert await broken.fetch(3) == 1

    lives(story)


@pytest.mark.parametrize("who", ["coordinator", "leader"])
def test_it_stays_open_when_a_worker_dies(who):
    async def story(broken):
        coordinator = broken.fleet.coordinator("g")
        others = [one for one in broken.fleet.living if one is not coordinator]
        await (coordinator if who == "coordinator" else others[0]).kill()
        got = await broken.fetch(30)
        assert 1 <= got <= 30 / 3 + 1, "one to try each lock duration"
        assert (await broken.say()).state == "half-open"
        assert (await broken.say(tried_succeeded=1)).state == "closed"
        assert await broken.fetch(10) > 10

    lives(story)


def test_closed_by_hand_all_leaders_hand_out_again():
    async def story(broken):
        await broken.admin.close_breaker("g")
        assert await broken.fetch(2) > 10

    lives(story)


@pytest.mark.parametrize("more", [{}, {"share.max.rate": "6/m"}, {"share.max.in.flight": "1"}], ids=str)
def test_a_leader_whose_members_take_nothing_does_not_keep_the_try_from_the_others(more):
    async def story(broken):
        for number in range(40):
            if not await at_a_leader_of_orders(broken, elsewhere := f"t{number}"):
                break
        await broken.fleet.produce(elsewhere, *[b"v"] * 50)
        idle = broken.fleet.member(elsewhere)
        await idle.start()
        await broken.fleet.configure(**more)
        for _ in range(15):
            await idle.fetch(records_max=1, max_wait_s=0.2)  # held up by the breaker, and it never comes again
            await broken.say()
        assert await broken.fetch(25) >= 1

    lives(story, partitions=2)
