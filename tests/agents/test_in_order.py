"""Pools of agents with an order: what runs one after the other, and what ends a chain.

The group itself has no order here, so that a fetch brings chains whatever leaders hand out of a key: these tests are of
what happens in one process with what came in one answer.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import pytest

import flowshare as fs
from flowshare.agents.feed import feeder, setup
from flowshare.agents.handler.agent import ShareAgent
from flowshare.agents.host.host import Host, HostSettings
from flowshare.server.share.owner import PartitionOwner
from flowshare.server.share.waiters import Taken
from flowshare.testing import Bus
from tests.agents.agents_kit import Seen, one_agent, run_app
from tests.waiting import LIMIT_S, until

Records = Sequence[tuple[str | None, Any]]
"""Keys and values."""


@pytest.fixture(autouse=True)
def without_order(monkeypatch: pytest.MonkeyPatch) -> None:
    real = setup.group_settings

    def settings(agent: ShareAgent) -> Mapping[str, str | None]:
        return {name: value for name, value in real(agent).items() if name != "share.key.order"}

    async def kept(*_: Any) -> None:
        """As if the group had it."""

    monkeypatch.setattr(setup, "group_settings", settings)
    monkeypatch.setattr(feeder, "check_order_kept", kept)
    # An agent with an order runs nothing of a group without one, and knows it by its fences.
    handed = PartitionOwner.handed

    def fenced(self: PartitionOwner, *args: Any, **options: Any) -> Taken:
        taken = handed(self, *args, **options)
        return taken._replace(fence=(1, 0)) if taken.ranges else taken

    monkeypatch.setattr(PartitionOwner, "handed", fenced)


async def together(bus: Bus, records: Records) -> None:
    """Have them come in one answer."""
    bus.host.runtimes["agent"].pause()
    await bus.advance(1)  # until no fetch waits for the first of them
    for key, value in records:
        await bus.send("in", value, key=key)
    await bus.advance(1)
    bus.host.runtimes["agent"].resume()


def run(fun: Any, records: Records, *, during: Callable[[Bus], Awaitable[None]] | None = None, **options: Any) -> Seen:
    async def begin(bus: Bus) -> None:
        await together(bus, records)
        if during is not None:
            await during(bus)

    return run_app(one_agent(fun, **{"order": "key", **options}), [], during=begin)


def firsts(seen: Seen) -> list[tuple[int, str]]:
    """Return the outcome of each record's first delivery, sorted by offset."""
    outcomes: dict[int, str] = {}
    for one in seen.report.settled:
        outcomes.setdefault(one.offset, one.outcome)
    return sorted(outcomes.items())


# --- tasks ------------------------------------------------------------------------------------------------------


def test_records_of_one_key_never_overlap_and_keys_run_beside_each_other():
    running: dict[str, int] = {}
    most, order = 0, list[int]()

    async def handler(value: int, delivery: fs.Delivery) -> None:
        nonlocal most
        assert delivery.key not in running
        running[delivery.key] = value
        most = max(most, len(running))
        await asyncio.sleep((7 * value) % 5)
        del running[delivery.key]
        order.append(value)

    seen = run(handler, [("abc"[n % 3], n) for n in range(30)])

    assert most == 3
    assert [[n for n in order if n % 3 == key] for key in range(3)] == [list(range(key, 30, 3)) for key in range(3)]
    assert seen.outcomes == ["accepted"] * 30


def test_the_next_record_of_a_key_runs_at_once_before_what_came_with_it():
    order: list[int] = []

    async def handler(value: int) -> None:
        order.append(value)

    run(handler, [("a", 0), ("b", 1), ("a", 2), ("a", 3), ("b", 4)], concurrency=1)

    assert order == [0, 2, 3, 1, 4]


def test_records_without_a_key_wait_for_nothing():
    running = most = 0

    async def handler(value: int) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(1)
        running -= 1

    run(handler, [(None, n) for n in range(8)])

    assert most == 8


def test_a_header_orders_as_a_key_does():
    order: list[str] = []

    async def handler(value: str) -> None:
        await asyncio.sleep(5 if value == "a0" else 1)
        order.append(value)

    async def send(bus: Bus) -> None:
        bus.host.runtimes["agent"].pause()
        await bus.advance(1)
        for value in ("a0", "b0", "a1"):
            await bus.send("in", value, headers={"customer": value[:1].encode()})
        await bus.advance(1)
        bus.host.runtimes["agent"].resume()

    run_app(one_agent(handler, order=fs.Header("customer")), [], during=send)

    assert order == ["b0", "a0", "a1"]


async def _raises(delivery: fs.Delivery) -> Any:
    raise ConnectionError("down")


async def _takes_long(delivery: fs.Delivery) -> Any:
    await asyncio.sleep(100)


async def _cancels(delivery: fs.Delivery) -> Any:
    raise asyncio.CancelledError


async def _rejects(delivery: fs.Delivery) -> Any:
    return fs.Reject("no")


async def _releases(delivery: fs.Delivery) -> Any:
    return fs.Release(delay=3)


async def _sends(delivery: fs.Delivery) -> Any:
    return fs.Send("out", 1)


@pytest.mark.parametrize(
    ("ends", "outcome"),
    [
        (_raises, "retried"),
        (_takes_long, "retried"),
        (_cancels, "retried"),
        (_rejects, "dead_lettered"),
        (_releases, "released"),
        (_sends, "accepted"),
    ],
)
def test_what_is_behind_a_record_that_ends_in_anything_but_a_plain_accept_goes_back_unrun(ends: Any, outcome: str):
    async def handler(value: int, delivery: fs.Delivery) -> Any:
        return await ends(delivery) if value == 1 and delivery.attempt == 1 else None

    seen = run(handler, [("a", 0), ("a", 1), ("a", 2), ("b", 3), ("a", 4)], timeout=10)

    assert firsts(seen) == [(0, "accepted"), (1, outcome), (2, "unrun"), (3, "accepted"), (4, "unrun")]
    assert seen.stats["unrun"] == 2
    assert [one.attempt for one in seen.report.settled if one.offset in (2, 4) and one.outcome == "accepted"] == [1, 1]


def test_what_is_behind_a_value_that_cannot_be_read_goes_back_unrun():
    async def handler(value: int) -> None: ...

    seen = run(handler, [("a", 0), ("a", "text"), ("a", 2)])

    assert firsts(seen) == [(0, "accepted"), (1, "dead_lettered"), (2, "unrun")]


def test_what_goes_back_is_acknowledged_with_the_record_before_it_and_not_earlier(monkeypatch: pytest.MonkeyPatch):
    held: list[int] = []

    async def handler(value: int, delivery: fs.Delivery) -> None:
        if value == 0:
            raise fs.Reject("no")

    async def during(bus: Bus) -> None:
        real, waits = bus.host.producer.send_nowait, asyncio.get_running_loop().create_future()
        monkeypatch.setattr(bus.host.producer, "send_nowait", lambda *_, **__: waits)
        await bus.advance(5)
        held.extend(one.offset for one in bus.report["agent"].settled)
        monkeypatch.setattr(bus.host.producer, "send_nowait", real)
        waits.set_result(None)

    seen = run(handler, [("a", 0), ("a", 1)], during=during)

    assert held == []
    assert [(one.offset, one.outcome) for one in seen.report.settled][:2] == [(0, "dead_lettered"), (1, "unrun")]


@pytest.mark.flowshare
async def test_a_drain_gives_back_what_waits_behind_the_records_that_run():
    ended: list[int] = []

    async def handler(value: int) -> None:
        await asyncio.sleep(5)
        ended.append(value)

    async with fs.testing.harness(one_agent(handler, order="key", concurrency=2)) as bus:
        await together(bus, [("abc"[n % 3], n) for n in range(9)])
        await bus.advance(0.5)
        runtime = bus.host.runtimes["agent"]
        assert runtime.stats()["buffered"] == 7
        assert await runtime.drain(20)
        [part] = await bus.host.admin.group_offsets("t.agent")
        assert (sorted(ended), part.lag, part.in_flight, runtime.stats()["unrun"]) == ([0, 1], 7, 0, 7)


@pytest.mark.flowshare
async def test_what_waits_for_a_slow_record_of_its_key_is_not_taken_for_stuck_while_runners_are_free():
    async def handler(value: int) -> None:
        await asyncio.sleep(20)

    async with fs.testing.harness(one_agent(handler, order="key", concurrency=2)) as bus:
        await together(bus, [("a", 0), ("a", 1)])
        await bus.advance(10)
        stats = bus.host.runtimes["agent"].stats()
        assert (stats["running"], stats["buffered"], stats["unrun"]) == (1, 1, 0)


def test_locks_of_records_that_wait_are_renewed_with_the_others():
    attempts: list[int] = []

    async def handler(value: int, delivery: fs.Delivery) -> None:
        attempts.append(delivery.attempt)
        await asyncio.sleep(12)

    seen = run(handler, [("a", 0), ("a", 1), ("a", 2)], lock_duration=5)

    assert (attempts, seen.outcomes) == ([1, 1, 1], ["accepted"] * 3)


# --- batches ----------------------------------------------------------------------------------------------------


def batches(size: int) -> dict[str, Any]:
    return {"batch": fs.Batch(size, within=0.5), "concurrency": 1}


def test_a_batch_has_the_records_of_a_key_in_a_row_and_the_rest_comes_in_the_next_one():
    got: list[list[int]] = []

    async def load(rows: fs.Records[int]) -> None:
        got.append(rows.values())

    seen = run(load, [("a", 0), ("b", 1), ("a", 2), ("a", 3), ("b", 4), ("a", 5)], **batches(3))

    assert got == [[0, 2, 3], [5, 1, 4]]
    assert seen.report.accepted == 6


def test_two_batches_at_once_have_no_key_in_common():
    running: set[str] = set()
    got: list[int] = []

    async def load(rows: fs.Records[int]) -> None:
        keys = {row.key for row in rows}
        assert not keys & running
        running.update(keys)
        await asyncio.sleep(1)
        running.difference_update(keys)
        got.extend(rows.values())

    run(load, [("ab"[n % 2], n) for n in range(20)], batch=fs.Batch(3, within=0.5), concurrency=4)

    assert [n for n in got if n % 2] == list(range(1, 20, 2))
    assert [n for n in got if not n % 2] == list(range(0, 20, 2))


def test_a_retried_record_takes_the_later_ones_of_its_key_out_of_the_batch_whatever_was_said_of_them():
    async def load(rows: fs.Records[int]) -> None:
        for row in rows:
            if row.delivery.attempt == 1 and row.value == 2:
                rows.retry(row, ConnectionError("down"))
            if row.delivery.attempt == 1 and row.value == 3:
                rows.reject(row, "no")

    seen = run(load, [("a", 0), ("b", 1), ("a", 2), ("a", 3), ("b", 4), ("a", 5)], **batches(5))

    assert firsts(seen) == [
        (0, "accepted"),
        (1, "accepted"),
        (2, "retried"),
        (3, "unrun"),
        (4, "accepted"),
        (5, "unrun"),
    ]


def test_a_batch_that_raises_retries_the_first_record_of_each_key_only():
    calls = 0

    async def load(rows: fs.Records[int]) -> None:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise ConnectionError("down")

    seen = run(load, [("a", 0), ("b", 1), ("a", 2), ("b", 3), (None, 4)], **batches(5))

    assert firsts(seen) == [(0, "retried"), (1, "retried"), (2, "unrun"), (3, "unrun"), (4, "retried")]


def test_what_is_behind_an_unreadable_value_is_not_in_the_batch():
    got: list[list[int]] = []

    async def load(rows: fs.Records[int]) -> None:
        got.append(rows.values())

    seen = run(load, [("a", 0), ("a", "text"), ("a", 2), ("b", 3)], **batches(4))

    assert got[0] == [0, 3]
    assert firsts(seen) == [(0, "accepted"), (1, "dead_lettered"), (2, "unrun"), (3, "accepted")]


def test_outputs_of_a_batch_are_of_all_its_records_and_end_its_chains():
    async def load(rows: fs.Records[int]) -> Any:
        return [fs.Send("out", value) for value in rows.values()]

    seen = run(load, [("a", 0), ("a", 1), ("a", 2)], **batches(2))

    assert firsts(seen) == [(0, "accepted"), (1, "accepted"), (2, "unrun")]
    assert sorted(record.value for record in seen.out) == [0, 1, 2]


# --- threads ----------------------------------------------------------------------------------------------------


def threaded(fun: Any, records: Records, done: Callable[[dict[str, float]], bool], **options: Any) -> dict[str, float]:
    """Run on two loops until the counters satisfy `done`; records of one key come in one batch, so in one answer."""

    async def main() -> dict[str, float]:
        app = fs.App("t", broker="memory://")
        app.share_agent("in", name="agent", order="key", **options)(fun)
        host = Host(app, settings=HostSettings(linger=0.2))
        await host.start()
        try:
            await asyncio.gather(*(app.topic("in").send(key=key, value=value) for key, value in records))
            return await until(host.runtimes["agent"].stats, good=done)
        finally:
            await host.drain(5)
            await host.stop()

    return asyncio.run(main())


def test_threads_run_the_records_of_a_key_one_after_the_other():
    running: set[str] = set()
    order: list[int] = []
    both = threading.Barrier(2, timeout=LIMIT_S)

    def handler(value: int, delivery: fs.Delivery) -> None:
        assert delivery.key not in running
        running.add(delivery.key)
        if value < 2:
            both.wait()  # different keys run at the same time
        order.append(value)
        running.remove(delivery.key)

    stats = threaded(
        handler, [("ab"[n % 2], n) for n in range(60)], lambda stats: stats["accepted"] == 60, concurrency=4
    )

    assert [n for n in order if n % 2] == list(range(1, 60, 2))
    assert [n for n in order if not n % 2] == list(range(0, 60, 2))
    assert stats["handler_errors"] == 0


def test_what_is_behind_a_record_that_fails_in_a_thread_goes_back():
    runs: list[tuple[int, int]] = []

    def handler(value: int, delivery: fs.Delivery) -> None:
        runs.append((value, delivery.attempt))
        if value == 0 and delivery.attempt == 1:
            raise ConnectionError("down")

    stats = threaded(
        handler,
        [("a", 0), ("a", 1), ("a", 2)],
        lambda stats: stats["accepted"] == 3,
        retry=fs.Retry(delay=0.01),
    )

    assert runs[0] == (0, 1)
    assert sorted(runs) == [(0, 1), (0, 2), (1, 1), (2, 1)]
    assert stats["unrun"] == 2


@pytest.mark.parametrize("threads", [False, True], ids=["tasks", "threads"])
def test_handlers_on_their_own_loop_run_in_order_too(threads: bool):
    order: list[int] = []

    async def task(value: int) -> None:
        await asyncio.sleep(0)
        order.append(value)

    def thread(value: int) -> None:
        order.append(value)

    threaded(thread if threads else task, [("a", n) for n in range(100)], lambda stats: stats["accepted"] == 100)

    assert order == list(range(100))
