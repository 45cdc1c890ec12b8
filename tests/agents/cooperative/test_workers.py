"""Several workers with one cooperative agent, on a server in memory and virtual time. The numbers are those of the
reference's scenarios (queue-systems, §5.6)."""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Any, NamedTuple

import pytest

import flowshare as fs
from flowshare.agents.host.host import Host, HostSettings
from flowshare.backend.memory import MemoryBackend
from flowshare.client.cooperative.scan import KeyScan
from flowshare.client.producer.producer import Message
from flowshare.testing import run
from flowshare.testing.clock import LoopTimeClock

SETTINGS = HostSettings(threads=False, inline_threads=True, linger=0, streams=False)
Body = Callable[[fs.Delivery], Awaitable[object]]


class Ended(NamedTuple):
    """A handler's run that ended well."""

    worker: str
    key: bytes
    offset: int
    began_s: float
    ended_s: float


class Cut:
    """A connection that may be cut. drops: whether the answer to a request is lost."""

    def __init__(self, connection: Any, is_cut: Callable[[], bool], drops: Callable[[Any], bool]) -> None:
        self._connection, self._is_cut, self._drops = connection, is_cut, drops

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    async def send(self, request: Any) -> Any:
        if self._is_cut():
            raise ConnectionResetError("cut off")
        answer = await self._connection.send(request)
        if self._is_cut() or self._drops(request):
            raise ConnectionResetError("cut off")
        return answer


class Workers:
    """Workers of one group."""

    def __init__(self, backend: MemoryBackend, clock: LoopTimeClock, body: Body, options: dict[str, Any]) -> None:
        self.backend, self._clock, self._body, self._options = backend, clock, body, options
        self.hosts: dict[str, Host] = {}
        self.cut: set[str] = set()
        """Who reaches nobody any more."""
        self.drops: Callable[[Any], bool] = lambda _: False
        self.began: list[tuple[bytes, int, float]] = []
        self.ended: list[Ended] = []

    async def start(self, name: str) -> Host:
        app = fs.App("bank")

        @app.cooperative_agent("orders", group="g", lease=5, **self._options)
        async def book(value: Any, delivery: fs.Delivery) -> None:
            began_s = self._clock.monotonic()
            self.began.append((delivery.key, delivery.offset, began_s))
            await self._body(delivery)
            self.ended.append(Ended(name, delivery.key, delivery.offset, began_s, self._clock.monotonic()))

        host = Host(
            app,
            backend=self.backend,
            clock=self._clock,
            settings=SETTINGS,
            random=random.Random(0),
        )
        connect = host._connect

        async def connected() -> Any:
            if name in self.cut:
                raise ConnectionRefusedError("cut off")
            return Cut(await connect(), lambda: name in self.cut, lambda request: self.drops(request))

        host._connect = connected  # type: ignore[method-assign]
        await host.start()
        self.hosts[name] = host
        return host

    def now_s(self) -> float:
        return self._clock.monotonic()

    async def send(self, keys: list[str]) -> None:
        host = next(iter(self.hosts.values()))
        await host.producer.send_many("orders", [Message(b"1", key=key.encode(), partition=0) for key in keys])

    async def until(self, condition: Callable[[], bool], limit_s: float = 600.0) -> None:
        end_s = self._clock.monotonic() + limit_s
        while not condition():
            assert self._clock.monotonic() < end_s, {name: host.ready() for name, host in self.hosts.items()}
            await asyncio.sleep(0.05)

    def check_order(self) -> None:
        """Of each key what ended did so in the order of the log, once, and nothing ran beside it."""
        by_key: dict[bytes, list[Ended]] = defaultdict(list)
        for one in self.ended:
            by_key[one.key].append(one)
        for runs in by_key.values():
            assert [one.offset for one in runs] == sorted({one.offset for one in runs})
            for before, after in pairwise(runs):
                assert after.began_s >= before.ended_s


@asynccontextmanager
async def workers(body: Body, **options: Any) -> AsyncIterator[Workers]:
    clock = LoopTimeClock()
    backend = MemoryBackend(clock=clock)
    await backend.start()
    found = Workers(backend, clock, body, options)
    try:
        yield found
    finally:
        for host in found.hosts.values():
            await host.stop()
        await backend.close()


def test_workers_share_one_partition_and_what_one_leaves_goes_to_the_others() -> None:
    async def body(delivery: fs.Delivery) -> None:
        await asyncio.sleep(0.2)

    async def story() -> None:
        async with workers(body, concurrency=4) as group:
            for name in "abc":
                await group.start(name)
            await asyncio.sleep(5)
            await group.send([f"k{number % 40}" for number in range(400)])
            await group.until(lambda: len(group.ended) > 100)
            await group.hosts.pop("a").finish()
            await group.until(lambda: len(group.ended) == 400)
            group.check_order()
            assert {one.worker for one in group.ended} == {"a", "b", "c"}

    run(story())


def test_33_a_key_that_takes_half_of_the_records_holds_up_its_own_worker_only() -> None:
    async def body(delivery: fs.Delivery) -> None:
        await asyncio.sleep(0.1)

    async def story() -> None:
        async with workers(body, concurrency=4) as group:
            for name in "abc":
                await group.start(name)
            await asyncio.sleep(5)
            await group.send(["hot" if number % 2 else f"k{number % 40}" for number in range(200)])
            await group.until(lambda: len(group.ended) == 200)
            group.check_order()
            hot = next(one.worker for one in group.ended if one.key == b"hot")
            others = [one.ended_s for one in group.ended if one.worker != hot]
            assert max(others) < max(one.ended_s for one in group.ended if one.key == b"hot") - 5

    run(story())


def test_36_a_slow_handler_keeps_its_key_and_the_other_keys_move_at_once() -> None:
    async def body(delivery: fs.Delivery) -> None:
        await asyncio.sleep(60.0 if delivery.offset == 7 else 0.05)

    async def story() -> None:
        async with workers(body, concurrency=8) as group:
            await group.start("a")
            await asyncio.sleep(5)
            await group.send([f"k{number}" for number in range(40)])
            await group.until(lambda: len(group.ended) == 39)
            await group.start("b")
            await asyncio.sleep(10)
            await group.send([f"k{number}" for number in range(40)])
            await group.until(lambda: len(group.ended) == 78, limit_s=20)
            assert {one.worker for one in group.ended if one.offset >= 40} == {"a", "b"}
            await group.until(lambda: len(group.ended) == 80)
            group.check_order()

    run(story())


def test_40_the_back_off_of_a_record_is_kept_while_its_range_moves_and_nothing_overtakes_it() -> None:
    tried: dict[int, list[float]] = defaultdict(list)

    async def body(delivery: fs.Delivery) -> None:
        tried[delivery.offset].append(asyncio.get_running_loop().time())
        if delivery.offset < 16 and len(tried[delivery.offset]) < 3:
            raise TimeoutError("not yet")

    async def story() -> None:
        async with workers(body, retry=fs.Retry(max_attempts=5, delay=8.0)) as group:
            await group.start("a")
            await asyncio.sleep(5)
            await group.send([f"k{number % 16}" for number in range(64)])
            await group.until(lambda: len(tried) == 16)
            await group.start("b")
            await asyncio.sleep(3)
            await group.start("c")
            await group.until(lambda: len(group.ended) == 64)
            group.check_order()
            for offset in range(16):
                first, second, third = tried[offset]
                assert min(second - first, third - second) >= 6.0, "the back-off is kept, its jitter apart"

    run(story())


def test_a_worker_that_reaches_nobody_stops_when_its_lease_is_over_and_then_others_go_on() -> None:
    async def body(delivery: fs.Delivery) -> None:
        await asyncio.sleep(1.0)

    async def story() -> None:
        async with workers(body, concurrency=2) as group:
            await group.start("a")
            await group.start("b")
            await asyncio.sleep(5)
            await group.send([f"k{number}" for number in range(30)])
            await group.until(lambda: len(group.ended) > 4)
            group.cut.add("a")
            died_s = group.now_s()
            await group.until(lambda: len({one.offset for one in group.ended if one.worker == "b"}) >= 15)
            await group.until(lambda: len({one.offset for one in group.ended}) == 30)
            assert all(one.ended_s < died_s + 5 for one in group.ended if one.worker == "a")

    run(story())


def test_nothing_of_a_worker_that_reaches_nobody_lives_on_when_it_is_stopped() -> None:
    async def body(delivery: fs.Delivery) -> None:
        await asyncio.sleep(0.1)

    async def story() -> None:
        async with workers(body, concurrency=2) as group:
            await group.start("b")
            before = asyncio.all_tasks()
            host = await group.start("a")
            await group.send([f"k{number}" for number in range(30)])
            await group.until(lambda: any(one.worker == "a" for one in group.ended))
            group.cut.add("a")
            await host.stop()
            assert {one.get_name() for one in asyncio.all_tasks() - before if "member" in one.get_name()} == set()

    run(story())


def test_a_record_that_kills_its_worker_each_time_ends_as_a_dead_letter_and_its_key_goes_on() -> None:
    poison, told = 5, list[tuple[str, int]]()

    async def story() -> None:
        async def body(delivery: fs.Delivery) -> None:
            if delivery.offset == poison:
                name = next(name for name in group.hosts if name not in group.cut)
                told.append((name, delivery.attempt))
                group.cut.add(name)  # nobody hears of this worker any more: it is dead
                await asyncio.sleep(1e6)
            await asyncio.sleep(0.5)

        async with workers(body, concurrency=4, retry=fs.Retry(max_attempts=3, delay=1.0)) as group:
            for name in "abcd":
                host = await group.start(name)
                if name == "a":
                    await asyncio.sleep(5)
                    await group.send([f"k{number % 8}" for number in range(40)])
                if name != "d":
                    await group.until(lambda name=name: name in group.cut)
            await group.until(lambda: len({one.offset for one in group.ended}) == 39)

            assert told == [("a", 1), ("b", 2), ("c", 3)]
            (agent,) = (runtime.agent for runtime in host.runtimes.values())
            letters = await host.admin.read(str(agent.dead_letter_topic), 0)
            assert [dict(letter.headers)["flowshare.dlq.offset"] for letter in letters] == [b"5"]
            behind = [one.worker for one in group.ended if one.offset > poison and one.key == b"k5"]
            assert set(behind) == {"d"}, "its key went on, and not before"

    run(story())


def test_attempts_are_exact_over_a_hand_over_in_order() -> None:
    told: list[int] = []

    async def story() -> None:
        async def body(delivery: fs.Delivery) -> None:
            if delivery.offset == 0:
                told.append(delivery.attempt)
                raise TimeoutError("not yet")

        async with workers(body, retry=fs.Retry(max_attempts=4, delay=100.0)) as group:
            for name in "abcd":
                await group.start(name)
                if name == "a":
                    await asyncio.sleep(5)
                    await group.send(["k"])
                await group.until(lambda: len(told) == len(group.hosts))
                if name != "d":
                    await group.hosts[name].finish()
            assert told == [1, 2, 3, 4]

    run(story())


def test_with_one_attempt_a_death_costs_only_what_was_in_flight() -> None:
    async def story() -> None:
        async def body(delivery: fs.Delivery) -> None:
            if delivery.offset == 3:
                group.cut.add("a")
                await asyncio.sleep(1e6)
            await asyncio.sleep(0.5)

        async with workers(body, concurrency=2, retry=None) as group:
            await group.start("a")
            await asyncio.sleep(5)
            await group.send([f"k{number}" for number in range(200)])
            await group.until(lambda: "a" in group.cut)
            host = await group.start("b")
            await group.until(lambda: len({one.offset for one in group.ended}) >= 150)
            await asyncio.sleep(60)
            (agent,) = (runtime.agent for runtime in host.runtimes.values())
            letters = await host.admin.read(str(agent.dead_letter_topic), 0)
            offsets = {int(dict(letter.headers)["flowshare.dlq.offset"]) for letter in letters}
            assert 3 in offsets
            assert len(offsets) < 40, "those that the dead worker had in hand, and no more of the 200"

    run(story())


def test_a_stable_offset_that_stands_still_is_looked_at_ever_more_rarely(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[float] = []
    monkeypatch.setattr(KeyScan, "look_back", lambda scan: looked.append(asyncio.get_running_loop().time()))

    async def body(delivery: fs.Delivery) -> None:
        await asyncio.sleep(1_000.0)

    async def story() -> None:
        async with workers(body) as group:
            await group.start("a")
            await group.send(["k"])
            await group.until(lambda: bool(group.ended), limit_s=1_100)

    run(story())
    assert len(looked) == 6, "each time when it has stood for twice as long"
