"""Agents with an order on groups that keep it: of each key one at a time, whatever becomes of it, whoever runs it."""

from __future__ import annotations

import asyncio
import threading
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import pytest

import flowshare as fs
from flowshare.agents.host.host import Host, HostSettings
from flowshare.backend.memory import MemoryBackend
from flowshare.server.share.parked_keys import ParkedKeys
from flowshare.share.partition import Decision
from flowshare.share.types import AcknowledgeType, AckRange
from flowshare.testing import Bus
from tests.agents.agents_kit import Seen, one_agent, run_app
from tests.waiting import until

KEYS = "abcde"


class Journal:
    """Journal of the handlers' deliveries, by key."""

    def __init__(self) -> None:
        self.running: set[str] = set()
        self.most = self.overlaps = 0
        self.began: dict[str, list[tuple[int, int]]] = defaultdict(list)
        """Offset and attempt of each delivery."""
        self.ended: dict[str, list[int]] = defaultdict(list)
        """Offsets that were handled to the end."""

    def begin(self, delivery: fs.Delivery) -> None:
        key = delivery.key.decode()
        self.overlaps += key in self.running
        self.running.add(key)
        self.most = max(self.most, len(self.running))
        self.began[key].append((delivery.offset, delivery.attempt))

    def leave(self, delivery: fs.Delivery, *, done: bool) -> None:
        key = delivery.key.decode()
        self.running.discard(key)
        if done:
            self.ended[key].append(delivery.offset)

    def in_order(self) -> bool:
        return not self.overlaps and all(offsets == sorted(offsets) for offsets in self.ended.values())


def run(fun: Any, records: Sequence[tuple[str | None, Any]], **options: Any) -> Seen:
    async def send(bus: Bus) -> None:
        for number, (key, value) in enumerate(records):
            await bus.send("in", value, key=key)
            if number % 7 == 6:
                await bus.advance(0.01)  # some come later

    return run_app(one_agent(fun, **{"order": "key", **options}), [], during=send)


def of_keys(count: int) -> list[tuple[str, int]]:
    return [(KEYS[number % len(KEYS)], number) for number in range(count)]


def test_each_delivery_of_a_key_has_a_higher_fence_than_those_before():
    seen: dict[str, list[fs.Fence]] = defaultdict(list)

    def handler(value: int, delivery: fs.Delivery) -> None:
        assert delivery.fence is not None
        seen[delivery.key].append(delivery.fence)
        if value % 7 == delivery.attempt:
            raise ValueError("once more")

    run(handler, of_keys(60))

    told = [fence for fences in seen.values() for fence in fences]
    assert len(told) > 60
    assert len(set(told)) == len(told)
    assert all(fences == sorted(fences) for fences in seen.values())


def test_a_parked_key_goes_into_the_dead_letters_in_order_and_others_go_on():
    def handler(value: int, delivery: fs.Delivery) -> None:
        if value == 7:  # of key c
            raise fs.Reject("poison")

    seen = run(handler, of_keys(60), after_dead_letter="park", concurrency=4)

    dead = [letter.value for letter in seen.dead]
    assert dead == [value for value in range(60) if value % 5 == 2 and value >= 7]
    assert seen.report.accepted == 60 - len(dead)


def test_the_rejection_of_what_only_followed_a_parked_key_says_that_nobody_ran_it(monkeypatch):
    """Whoever leads by then has to know: of a key that was let go on meanwhile it parks nothing (SG-18.11)."""
    rejected: list[tuple[int, bool]] = []
    real = ParkedKeys.came_back_unrun

    def spy(self: ParkedKeys, batches: Sequence[AckRange], decision: Decision) -> None:
        rejected.extend((one.first, one.unrun) for one in batches if AcknowledgeType.REJECT in one.types)
        real(self, batches, decision)

    monkeypatch.setattr(ParkedKeys, "came_back_unrun", spy)

    def handler(value: int) -> None:
        if value == 0:
            raise fs.Reject("poison")

    run(handler, [("a", 0), ("a", 1), ("b", 2), ("a", 3)], after_dead_letter="park")

    assert rejected == [(0, False), (1, True), (3, True)]


def test_without_an_order_there_is_no_fence():
    seen: list[fs.Fence | None] = []

    def handler(value: int, delivery: fs.Delivery) -> None:
        seen.append(delivery.fence)

    run(handler, of_keys(1), order=None)

    assert seen == [None]


@pytest.mark.parametrize("concurrency", [1, 3, 16])
def test_records_of_each_key_run_one_after_the_other(concurrency: int):
    journal = Journal()

    async def handler(value: int, delivery: fs.Delivery) -> None:
        journal.begin(delivery)
        await asyncio.sleep(value % 3)
        journal.leave(delivery, done=True)

    seen = run(handler, of_keys(100), concurrency=concurrency)

    assert journal.in_order()
    assert journal.most == min(concurrency, len(KEYS))
    assert seen.report.accepted == 100
    assert set(seen.report.attempts) <= {0, 1}


def test_a_retry_delays_its_own_key_and_no_other():
    journal = Journal()
    clock: list[float] = []

    async def handler(value: int, delivery: fs.Delivery) -> None:
        journal.begin(delivery)
        failed = value == 5 and delivery.attempt < 3
        if delivery.key == b"b":
            clock.append(asyncio.get_running_loop().time())
        journal.leave(delivery, done=not failed)
        if failed:
            raise ConnectionError("down")

    seen = run(handler, of_keys(50), retry=fs.Retry(delay=60))

    assert journal.in_order()
    assert [attempt for offset, attempt in journal.began["a"] if offset == 5] == [1, 2, 3]
    assert all(attempt == 1 for offset, attempt in journal.began["a"] if offset != 5)
    assert clock[-1] - clock[0] < 60
    assert seen.report.accepted == 50


def test_a_key_goes_on_behind_its_dead_letter():
    journal = Journal()

    async def handler(value: int, delivery: fs.Delivery) -> None:
        journal.begin(delivery)
        journal.leave(delivery, done=True)
        if value == 5:
            raise fs.Reject("no")

    seen = run(handler, of_keys(30))

    assert journal.in_order()
    assert (seen.report.accepted, [letter.value for letter in seen.dead]) == (29, [5])
    assert journal.ended["a"] == [0, 5, 10, 15, 20, 25]


def test_outputs_are_in_order_of_key_too():
    async def handler(value: int) -> int:
        return value

    seen = run(handler, of_keys(50), sink=["out"])

    values = [record.value for record in seen.out]
    assert len(values) == 50
    assert all([n for n in values if n % 5 == key] == list(range(key, 50, 5)) for key in range(5))


def test_a_header_orders_as_a_key_does():
    order: list[int] = []

    async def handler(value: int) -> None:
        await asyncio.sleep(10 - value)
        order.append(value)

    async def send(bus: Bus) -> None:
        for value in range(10):
            await bus.send("in", value, headers={"customer": b"ab"[value % 2 : value % 2 + 1]})

    seen = run_app(one_agent(handler, order=fs.Header("customer")), [], during=send)

    assert [n for n in order if n % 2] == [1, 3, 5, 7, 9]
    assert [n for n in order if n % 2 == 0] == [0, 2, 4, 6, 8]
    assert seen.report.accepted == 10


def test_records_without_a_key_run_side_by_side():
    running = most = 0

    async def handler(value: int) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(1)
        running -= 1

    run(handler, [(None, n) for n in range(20)], concurrency=8)

    assert most == 8


def test_batches_have_each_key_in_order():
    got: dict[str, list[int]] = defaultdict(list)

    async def load(rows: fs.Records[int]) -> None:
        for row in rows:
            if row.value == 10 and row.delivery.attempt == 1:
                rows.retry(row, ConnectionError("down"))
        await asyncio.sleep(1)
        stopped: set[bytes] = set()
        for row in rows:
            if row.value == 10 and row.delivery.attempt == 1:
                stopped.add(row.key)
            if row.key not in stopped:
                got[row.key.decode()].append(row.value)

    seen = run(load, of_keys(100), batch=fs.Batch(20, within=0.5), concurrency=2)

    assert {key: values == sorted(values) for key, values in got.items()} == dict.fromkeys(KEYS, True)
    assert sum(map(len, got.values())) == seen.report.accepted == 100


@pytest.mark.flowshare
async def test_the_order_is_a_setting_of_the_group():
    async def handler(value: int) -> None: ...

    async with fs.testing.harness(one_agent(handler, order=fs.Header("customer"))) as bus:
        configs = {one.name: one.value for one in await bus.host.admin.group_configs("t.agent")}

    assert configs["share.key.order"] == "header:customer"


@pytest.mark.flowshare
async def test_an_agent_that_is_paused_and_resumed_goes_on_in_order():
    journal = Journal()

    async def handler(value: int, delivery: fs.Delivery) -> None:
        journal.begin(delivery)
        await asyncio.sleep(1)
        journal.leave(delivery, done=True)

    async with fs.testing.harness(one_agent(handler, order="key")) as bus:
        for key, value in of_keys(60):
            await bus.send("in", value, key=key)
        for _ in range(3):
            await bus.advance(2.5)
            bus.host.runtimes["agent"].pause()
            await bus.advance(3)
            bus.host.runtimes["agent"].resume()
        report = await bus.run_until_idle()

    assert journal.in_order()
    assert report["agent"].accepted == 60


@pytest.mark.parametrize("threads", [False, True], ids=["tasks", "threads"])
def test_members_that_come_and_go_run_one_record_of_a_key_at_a_time(threads: bool):
    journal = Journal()

    async def task(value: int, delivery: fs.Delivery) -> None:
        journal.begin(delivery)
        await asyncio.sleep(0)
        journal.leave(delivery, done=True)

    def thread(value: int, delivery: fs.Delivery) -> None:
        journal.begin(delivery)
        journal.leave(delivery, done=True)

    def app() -> fs.App:
        made = fs.App("t", broker="memory://")
        made.share_agent("in", name="agent", order="key", concurrency=4)(thread if threads else task)
        return made

    async def main() -> None:
        backend = MemoryBackend()
        await backend.start()
        settings = HostSettings(threads=False)
        apps = [app(), app(), app()]
        hosts = [Host(one, backend=backend, settings=settings) for one in apps]
        try:
            await hosts[0].start()
            await hosts[1].start()
            topic = apps[0].topic("in")
            for first in range(0, 400, 100):
                for number in range(first, first + 100):
                    await topic.send(key=KEYS[number % len(KEYS)], value=number)
                if first == 100:
                    await hosts[2].start()
                if first == 200:
                    await hosts[1].drain(5)
                    await hosts[1].stop()
            await until(lambda: sum(map(len, journal.ended.values())), good=lambda handled: handled == 400)
        finally:
            for host in (hosts[0], hosts[2]):
                await host.drain(5)
                await host.stop()
            await backend.close()

    asyncio.run(main())

    assert journal.in_order()
    assert {key: len(set(offsets)) for key, offsets in journal.ended.items()} == dict.fromkeys(KEYS, 80)


@pytest.mark.parametrize("batch", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["single", "batch"])
def test_a_handler_that_outlasts_the_end_of_its_agent_keeps_its_key_from_others(batch: bool):
    free, begun = threading.Event(), threading.Event()
    elsewhere: list[int] = []

    def block() -> None:
        begun.set()
        free.wait(30)

    def one_blocks(value: int) -> None:
        block()

    def one_runs(value: int) -> None:
        elsewhere.append(value)

    def all_block(records: fs.Records[int]) -> None:
        block()

    def all_run(records: fs.Records[int]) -> None:
        elsewhere.extend(records.values())

    def app(handler: Any) -> fs.App:
        made = fs.App("t", broker="memory://")
        batches: dict[str, Any] = {"batch": fs.Batch(2, within=0.01)} if batch else {}
        made.share_agent("in", name="agent", order="key", **batches)(handler)
        return made

    async def main() -> None:
        backend = MemoryBackend()
        await backend.start()
        apps = [app(all_block), app(all_run)] if batch else [app(one_blocks), app(one_runs)]
        hosts = [Host(one, backend=backend, settings=HostSettings(threads=False)) for one in apps]
        try:
            await hosts[0].start()
            for value in range(3):
                await apps[0].topic("in").send(key="a", value=value)
            assert await asyncio.to_thread(begun.wait, 30)
            await hosts[1].start()
            assert not await hosts[0].drain(0.1)
            await hosts[0].stop()
            await apps[1].topic("in").send(key="b", value=3)
            await until(lambda: len(elsewhere), good=lambda count: count >= 1)
            assert elsewhere == [3]
        finally:
            free.set()
            await hosts[1].drain(5)
            await hosts[1].stop()
            await backend.close()

    asyncio.run(main())
