"""Share consumers of one group share a partition, die, come and go; on a server in memory, on virtual time."""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from flowshare.client.consumer.consumer import ShareConsumer
from flowshare.client.consumer.inflight import ShareRecord
from flowshare.client.settings import ConsumerSettings
from flowshare.share.types import AcquireMode
from flowshare.testing import run
from flowshare.testing.clock import LoopTimeClock
from tests.client.worlds import World, world_on
from tests.waiting import until

EXPLICIT = ConsumerSettings(acknowledgement_mode="explicit", acquire_mode=AcquireMode.RECORD_LIMIT)
LOCK_S = 30.0
Handler = Callable[[ShareRecord[Any, Any]], Awaitable[object]]


class Line:
    """A connection of a process that may stand still: then nothing arrives in either direction."""

    is_flowshare = True

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self.keeps_time = connection.keeps_time
        self.dead = False

    async def send(self, request: Any) -> Any:
        if not self.dead:
            answer = await self._connection.send(request)
            if not self.dead:
                return answer
        return await asyncio.Event().wait()

    def begin(self, request: Any, told: Callable[[Any], object]) -> None:
        if not self.dead:
            self._connection.begin(request, lambda done: None if self.dead else told(done))

    def on_closed(self, listener: Callable[[str], object]) -> None:
        self._connection.on_closed(listener)

    async def close(self) -> None:
        if not self.dead:
            await self._connection.close()


@dataclass
class Run:
    """One handler's run."""

    member: str
    offset: int
    attempt: int
    ended: bool = False


@dataclass
class Worker:
    """A consumer with a loop around it: it polls, handles all that came at once, and polls again."""

    sharing: Sharing
    name: str
    consumer: ShareConsumer[bytes | None, bytes | None]
    handler: Handler
    lines: list[Line]
    task: asyncio.Task[None] | None = None

    async def run(self) -> None:
        while True:
            await asyncio.gather(*map(self.handle, await self.consumer.poll(1.0)))

    async def handle(self, record: ShareRecord[Any, Any]) -> None:
        one = Run(self.name, record.offset, record.attempt)
        self.sharing.runs.append(one)
        await self.handler(record)
        one.ended = True
        self.consumer.acknowledge(record)

    async def stop(self) -> None:
        """In order: what is handled ends, and is accepted."""
        assert self.task is not None
        self.task.cancel()
        await asyncio.wait({self.task})
        await self.consumer.close()

    async def kill(self) -> None:
        """As by SIGKILL: nothing is said to anybody any more."""
        assert self.task is not None
        for line in self.lines:
            line.dead = True
        if self.task is not asyncio.current_task():
            self.task.cancel()
            await asyncio.wait({self.task})
        if self.consumer._overdue is not None:
            self.consumer._overdue.cancel()
        await self.consumer.member.abandon()
        self.sharing.workers.remove(self)


@dataclass
class Sharing:
    """A server, and the workers of one group."""

    world: World
    runs: list[Run] = field(default_factory=list)
    workers: list[Worker] = field(default_factory=list)

    def consumer(self, name: str, settings: ConsumerSettings = EXPLICIT, lines: list[Line] | None = None) -> Any:
        async def connect() -> Any:
            line = Line(await self.world.connect())
            if lines is not None:
                lines.append(line)
            return line

        consumer: Any = ShareConsumer(connect, group_id="g", clock=self.world.clock, settings=settings, member_id=name)
        consumer.subscribe(["orders"])
        return consumer

    def worker(self, name: str, handler: Handler, *, concurrency: int = 4) -> Worker:
        lines: list[Line] = []
        consumer = self.consumer(name, replace(EXPLICIT, max_poll_records=concurrency), lines)
        worker = Worker(self, name, consumer, handler, lines)
        worker.task = asyncio.create_task(worker.run(), name=name)
        self.workers.append(worker)
        return worker

    async def send(self, count: int) -> None:
        for first in range(0, count, 1_000):
            await self.world.send(*(b"%d" % number for number in range(first, min(count, first + 1_000))))

    def handled(self) -> dict[int, list[Run]]:
        found: dict[int, list[Run]] = defaultdict(list)
        for one in self.runs:
            found[one.offset].append(one)
        return found

    async def until(self, condition: Callable[[], bool], limit_s: float = 600.0) -> None:
        end_s = self.world.clock.monotonic() + limit_s
        while not condition():
            assert self.world.clock.monotonic() < end_s, [one.consumer.member.trouble for one in self.workers]
            await asyncio.sleep(0.02)

    async def finished(self, count: int) -> None:
        """Until so many records were handled, and all of them are finished."""
        await self.until(lambda: sum(any(one.ended for one in runs) for runs in self.handled().values()) == count)
        await until(self.world.lag, good=lambda lag: not lag)


@asynccontextmanager
async def sharing(partitions: int = 1) -> AsyncIterator[Sharing]:
    async with world_on(LoopTimeClock(), partitions=partitions) as world:
        found = Sharing(world)
        try:
            yield found
        finally:
            for worker in found.workers:
                await worker.stop()


def lasting(seconds: float) -> Handler:
    async def handler(record: object) -> None:
        await asyncio.sleep(seconds)

    return handler


def test_members_take_parts_of_one_partition_and_every_record_is_handled_once() -> None:
    async def story() -> None:
        async with sharing() as group:
            await group.send(300)
            for name in "abc":
                group.worker(name, lasting(0.01))
            await group.finished(300)
            assert all(len(runs) == 1 for runs in group.handled().values())
            shares = [sum(one.member == name for one in group.runs) for name in "abc"]
            assert min(shares) > 50, f"nobody holds anybody up here: {shares}"

    run(story())


def test_what_a_member_had_that_dies_comes_again_when_its_locks_are_over() -> None:
    async def story() -> None:
        async with sharing() as group:
            await group.send(60)
            a = group.worker("a", lasting(1.0), concurrency=3)
            group.worker("b", lasting(1.0), concurrency=3)
            await group.until(lambda: sum(one.member == "a" for one in group.runs) > 3)
            await a.kill()
            died_s = group.world.clock.monotonic()
            await group.finished(60)
            again = {offset for offset, runs in group.handled().items() if len(runs) > 1}
            assert again
            assert again <= {one.offset for one in group.runs if one.member == "a"}
            assert {one.offset for one in group.runs if one.member == "a" and not one.ended} <= again
            assert group.world.clock.monotonic() < died_s + 2 * LOCK_S

    run(story())


def test_however_much_is_in_hand_when_a_consumer_closes_all_of_it_counts_and_is_free_at_once() -> None:
    """As of an application that closes it because a record made it fail."""

    async def story() -> None:
        async with sharing() as group:
            await group.world.admin.alter_group_configs("g", {"share.partition.max.record.locks": "10000"})
            await group.send(6_000)
            settings = replace(EXPLICIT, max_poll_records=6_000)
            for attempt in (1, 2):
                given: set[int] = set()
                async with group.consumer(f"m{attempt}", settings) as consumer:
                    while len(given) < 6_000:
                        began_s = group.world.clock.monotonic()
                        records = await consumer.poll(5.0)
                        assert {one.attempt for one in records} == {attempt}
                        assert group.world.clock.monotonic() < began_s + 1.0, "nothing waits for a lock"
                        given |= {one.offset for one in records}
                        if len(given) < 6_000:
                            for one in records:
                                consumer.acknowledge(one, 4)
                            await consumer.commit_sync()

    run(story())


def test_a_record_that_ends_its_members_counts_all_of_them() -> None:
    async def story() -> None:
        async with sharing() as group:
            # Longer than a session, so that the records are taken back from members that are known to be dead.
            await group.world.admin.alter_group_configs("g", {"share.record.lock.duration.ms": "60000"})
            await group.send(60)
            beside: list[int] = []

            def member(name: str) -> Worker:
                async def handler(record: ShareRecord[Any, Any]) -> None:
                    if record.offset == 17:
                        beside.append(sum(not one.ended for one in group.runs if one.member == name) - 1)
                        if record.attempt <= 4:
                            killed.set()
                            await asyncio.Event().wait()
                    await asyncio.sleep(0.1)

                return group.worker(name, handler, concurrency=3)

            for number in range(4):
                killed = asyncio.Event()
                worker = member(f"m{number}")
                await killed.wait()
                await worker.kill()
            member("last")
            await group.finished(60)

            assert [one.attempt for one in group.handled()[17]] == [1, 2, 3, 4, 5]
            assert beside[2:] == [0, 0, 0], "two died with it: it runs alone"
            attempts = [runs[-1].attempt for offset, runs in group.handled().items() if offset != 17]
            assert max(attempts) <= 3, "what was in flight beside it at most: the first two times"

    run(story())


def test_what_is_accepted_before_it_is_handled_is_handled_once_at_most() -> None:
    async def story() -> None:
        async with sharing() as group:
            await group.send(60)
            ran: list[int] = []

            async def work(consumer: Any) -> None:
                while True:
                    for record in await consumer.poll(1.0):
                        consumer.acknowledge(record)
                        await consumer.commit_sync()
                        ran.append(record.offset)
                        await asyncio.sleep(0.1)

            for number in range(4):
                worker = group.worker(f"m{number}", lasting(0.0), concurrency=1)
                assert worker.task is not None
                worker.task.cancel()
                worker.task = asyncio.create_task(work(worker.consumer))
                if number < 3:
                    await group.until(lambda number=number: len(ran) >= 10 * (number + 1))
                    await worker.kill()
            await until(group.world.lag, good=lambda lag: not lag)
            assert len(ran) == len(set(ran)) >= 60 - 3

    run(story())


@pytest.mark.parametrize("seed", range(3))
def test_members_that_come_and_go_all_the_time_lose_nothing(seed: int) -> None:
    async def story() -> None:
        rng = random.Random(seed)
        async with sharing(partitions=2) as group:

            async def handler(record: object) -> None:
                await asyncio.sleep(rng.random() * 0.2)

            group.worker("stays", handler)
            await group.send(1_000)
            guests: list[Worker] = []
            for number in range(30):
                await asyncio.sleep(rng.random() * 0.5)
                if guests and rng.random() < 0.5:
                    guest = guests.pop(rng.randrange(len(guests)))
                    group.workers.remove(guest)
                    await guest.stop()
                else:
                    guests.append(group.worker(f"guest {number}", handler))
            await group.finished(1_000)

    run(story())


@pytest.mark.parametrize("seed", range(2))
def test_whoever_dies_or_leaves_no_record_is_given_out_under_an_attempt_that_it_had_before(seed: int) -> None:
    async def story() -> None:
        rng = random.Random(seed)
        async with sharing() as group:

            async def handler(record: object) -> None:
                await asyncio.sleep(rng.random())

            await group.world.admin.alter_group_configs("g", {"share.delivery.count.limit": "10"})
            await group.send(600)
            here = [group.worker("stays", handler)]
            for number in range(12):
                await asyncio.sleep(rng.random() * 2)
                here.append(group.worker(f"guest {number}", handler))
                if len(here) > 3:
                    gone = here.pop(rng.randrange(1, len(here)))
                    if rng.random() < 0.6:
                        await gone.kill()
                    else:
                        group.workers.remove(gone)
                        await gone.stop()
            await group.finished(600)
        for offset, runs in group.handled().items():
            attempts = [one.attempt for one in runs]
            assert attempts == sorted(set(attempts)), f"{offset} was given out as {attempts}"
        assert any(len(runs) > 1 for runs in group.handled().values())

    run(story())
