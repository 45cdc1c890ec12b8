"""A group over time, on every backend: several members, pausing, stopping, locks, and where a group begins."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from typing import Any

import pytest

import flowshare as fs
from flowshare.agents.feed.outcome_watch import GAP_S, QUIET_S
from tests.agents.suite.places import LIMIT_S, Place
from tests.waiting import pause, until

pytestmark = pytest.mark.asyncio


@pytest.mark.slow
async def test_two_members_work_on_one_partition_at_once(place: Place) -> None:
    together = asyncio.Barrier(8)

    async def work(value: bytes) -> None:
        async with asyncio.timeout(LIMIT_S):
            await together.wait()

    apps = [place.agent(work, concurrency=4) for _ in range(2)]
    async with place.running(*apps) as [first, second]:
        await first.send(place.topic, *(b"%d" % n for n in range(8)))
        await until(lambda: first.stats()["accepted"] + second.stats()["accepted"] >= 8)
        outcomes = [first.outcomes(), second.outcomes()]

    assert [of_one.count("accepted") for of_one in outcomes] == [4, 4]


async def test_members_share_many_records_and_each_ends_once(place: Place) -> None:
    got: list[int] = []

    async def work(value: int) -> None:
        await asyncio.sleep(0)
        got.append(value)

    apps = [place.agent(work, concurrency=8) for _ in range(3)]
    async with place.running(*apps) as workers:
        await workers[0].send(place.topic, *(b"%d" % n for n in range(3000)))
        await until(lambda: len(got) >= 3000)
        await until(lambda: sum(worker.stats()["accepted"] for worker in workers) >= 3000)

    assert sorted(got) == list(range(3000))


async def test_members_of_a_limited_group_hold_no_more_than_its_limit_together(place: Place) -> None:
    if not place.capabilities.group_limit:
        pytest.skip("refused there: tests/agents/suite/test_refusals.py")
    running: set[bytes] = set()
    seen: list[int] = []

    async def work(value: bytes) -> None:
        running.add(value)
        seen.append(len(running))
        await asyncio.sleep(0)
        running.remove(value)

    apps = [place.agent(work, concurrency=8, max_in_flight=3) for _ in range(2)]
    async with place.running(*apps) as workers:
        await workers[0].send(place.topic, *(b"%d" % n for n in range(60)))
        await until(lambda: sum(worker.stats()["accepted"] for worker in workers) >= 60)

    assert max(seen) <= 3
    assert sum(worker.outcomes().count("accepted") for worker in workers) == 60


@pytest.mark.slow
async def test_a_rate_is_for_all_members_of_a_group_together(place: Place) -> None:
    if not place.capabilities.group_limit:
        pytest.skip("brokers have no limit for a whole group")

    async def work(value: bytes) -> None: ...

    apps = [place.agent(work, max_rate="40/s") for _ in range(2)]
    async with place.running(*apps) as workers:
        begun = time.monotonic()
        await workers[0].send(place.topic, *(b"%d" % n for n in range(60)))
        await until(lambda: sum(worker.stats()["accepted"] for worker in workers) >= 60)
        took_s = time.monotonic() - begun

    assert took_s >= (60 - 21) / 40, "no machine is too slow for that"
    assert sum(worker.outcomes().count("accepted") for worker in workers) == 60


@pytest.mark.slow
async def test_a_downstream_that_is_broken_for_a_while_costs_no_record_its_attempts(place: Place) -> None:
    if not place.capabilities.group_limit:
        pytest.skip("brokers cannot hold a group back")
    broken, calls, attempts = True, 0, [0]

    async def work(value: bytes, delivery: fs.Delivery) -> None:
        nonlocal calls
        calls += 1
        attempts.append(delivery.attempt)
        if broken:
            raise ConnectionError("the downstream does not answer")

    rule = fs.Breaker(0.5, of=10, pause=1, pause_max=2)
    options: dict[str, Any] = {"breaker": rule, "retry": fs.Retry(max_attempts=3, delay=3), "concurrency": 2}
    apps = [place.agent(work, **options) for _ in range(3)]
    async with place.running(*apps) as workers:

        async def state() -> str:
            return (await workers[0].ask(lambda admin: admin.breaker(place.group))).state

        await workers[0].send(place.topic, *(b"%d" % n for n in range(150)))
        await until(state, good=lambda found: found != "closed")
        await pause(2 * GAP_S + QUIET_S, "until all members have heard of it")
        begun, before = time.monotonic(), calls
        await until(lambda: calls >= before + 3)
        assert calls - before <= (time.monotonic() - begun) / 1 + 2, "one try a second, no machine is too slow for that"
        broken = False
        await until(lambda: sum(worker.stats()["accepted"] for worker in workers) >= 150)
        dead = await workers[0].dead()

    assert dead == []
    assert max(attempts) <= 3
    assert sum(worker.outcomes().count("accepted") for worker in workers) == 150


async def test_a_paused_group_takes_nothing_and_goes_on_when_resumed(place: Place) -> None:
    if not place.capabilities.pausing:
        pytest.skip("brokers cannot pause a group")
    got: list[bytes] = []

    async def work(value: bytes) -> None:
        got.append(value)

    async def other(value: bytes) -> None: ...

    app = place.agent(work)
    app.share_agent(place.topic, name="other")(other)
    async with place.running(app) as [worker]:
        await worker.send(place.topic, b"before")
        await worker.ended(1)
        await worker.ask(lambda admin: admin.pause_group(place.group))
        await worker.send(place.topic, b"while")
        await worker.ended(2, "other")
        while_paused = list(got)
        await worker.ask(lambda admin: admin.resume_group(place.group))
        await worker.ended(2)

    assert while_paused == [b"before"]
    assert got == [b"before", b"while"]


async def test_a_paused_agent_takes_nothing_and_goes_on_when_resumed(place: Place) -> None:
    got: list[bytes] = []

    async def work(value: bytes) -> None:
        got.append(value)

    async def other(value: bytes) -> None: ...

    app = place.agent(work)
    app.share_agent(place.topic, name="other")(other)
    agent = app.share_agents["work"]
    async with place.running(app) as [worker]:
        await worker.send(place.topic, b"before")
        await worker.ended(1)
        agent.pause()
        await until(lambda: worker.stats()["paused"] == 1)
        await worker.send(place.topic, b"while")
        await worker.ended(2, "other")
        while_paused = list(got)
        agent.resume()
        await worker.ended(2)

    if place.capabilities.unrun_release:  # else a fetch that was under way is finished, as giving back costs an attempt
        assert while_paused == [b"before"]
    assert got == [b"before", b"while"]


async def test_what_a_paused_agent_gives_back_goes_to_another_member(place: Place) -> None:
    go_on = asyncio.Event()
    attempts: dict[str, list[int]] = {"paused": [], "other": []}

    async def blocked(value: bytes, delivery: fs.Delivery) -> None:
        attempts["paused"].append(delivery.attempt)
        await go_on.wait()

    async def free(value: bytes, delivery: fs.Delivery) -> None:
        attempts["other"].append(delivery.attempt)

    pausing, other = place.agent(blocked, concurrency=1), place.agent(free, concurrency=4)
    async with place.running(pausing) as [first]:
        await first.send(place.topic, *(b"%d" % n for n in range(6)))
        await until(lambda: first.stats()["running"] == 1)
        pausing.share_agents["work"].pause()
        async with place.running(other) as [second]:
            await second.ended(5)
            go_on.set()
            await first.ended(1)

    assert attempts["paused"] == [1]
    _check_cost(place, attempts["other"])


async def test_a_worker_that_stops_finishes_what_runs_and_gives_back_the_rest(place: Place) -> None:
    go_on = asyncio.Event()
    attempts: dict[int, list[int]] = {n: [] for n in range(6)}

    async def work(value: int, delivery: fs.Delivery) -> None:
        attempts[value].append(delivery.attempt)
        await go_on.wait()

    first = await place.start(place.agent(work, concurrency=1))
    try:
        await first.send(place.topic, *(b"%d" % n for n in range(6)))
        await until(lambda: first.stats()["running"] == 1)
        stopping = asyncio.create_task(first.stop())
        await until(lambda: first.host.state == "draining")
        go_on.set()
        assert await stopping
    finally:
        await first.stop()
    ran = [value for value, of_one in attempts.items() if of_one]
    async with place.running(place.agent(work, concurrency=4)) as [second]:
        await second.ended(5)

    assert first.outcomes().count("accepted") == 1
    assert [attempts[value] for value in ran] == [[1]]
    _check_cost(place, [attempt for value, of_one in attempts.items() if value not in ran for attempt in of_one])


async def test_a_worker_that_drains_keeps_nothing_from_the_others(place: Place) -> None:
    go_on = asyncio.Event()
    attempts: list[int] = []

    async def blocked(value: bytes) -> None:
        await go_on.wait()

    async def free(value: bytes, delivery: fs.Delivery) -> None:
        attempts.append(delivery.attempt)

    first = await place.start(place.agent(blocked, concurrency=1))
    stopping: asyncio.Task[bool] | None = None
    try:
        await first.send(place.topic, *(b"%d" % n for n in range(6)))
        await until(lambda: first.stats()["running"] == 1)
        stopping = asyncio.create_task(first.stop(LIMIT_S))
        async with place.running(place.agent(free)) as [second]:
            await second.ended(5)
            go_on.set()
            finished = await stopping
    finally:
        go_on.set()
        await (stopping or first.stop())

    assert finished
    assert first.outcomes().count("accepted") == 1
    _check_cost(place, attempts)


async def test_a_handler_that_outlives_the_drain_is_cancelled_and_its_record_comes_again(place: Place) -> None:
    attempts: list[int] = []
    cancelled = asyncio.Event()

    async def work(value: bytes, delivery: fs.Delivery) -> None:
        attempts.append(delivery.attempt)
        if delivery.attempt == 1:
            try:
                await asyncio.Event().wait()
            finally:
                cancelled.set()

    first = await place.start(place.agent(work))
    try:
        await first.send(place.topic, b"x")
        await until(lambda: attempts == [1])
        finished = await first.stop(drain_s=0.2)
    finally:
        await first.stop()
    async with place.running(place.agent(work)) as [second]:
        await second.ended(1)

    assert not finished
    assert cancelled.is_set()
    assert attempts == [1, 2]


@pytest.mark.slow
async def test_a_handler_longer_than_its_lock_keeps_its_record(place: Place) -> None:
    runs: list[int] = []
    long_enough = asyncio.Event()

    async def work(value: bytes, delivery: fs.Delivery) -> None:
        runs.append(delivery.attempt)
        await long_enough.wait()

    apps = [place.agent(work, lock_duration=1) for _ in range(2)]
    async with place.running(*apps) as [first, second]:
        await first.send(place.topic, b"x")
        await until(lambda: first.stats()["renewed"] + second.stats()["renewed"] >= 4)  # 0.4 s apart: two locks' time
        long_enough.set()
        await until(lambda: first.stats()["accepted"] + second.stats()["accepted"] >= 1)
        outcomes = first.outcomes() + second.outcomes()

    assert (runs, outcomes) == ([1], ["accepted"])


@pytest.mark.slow
async def test_a_lock_that_is_not_renewed_lapses_and_the_record_goes_to_another_member(place: Place) -> None:
    attempts: list[int] = []
    stuck = asyncio.Event()

    async def work(value: bytes, delivery: fs.Delivery) -> None:
        attempts.append(delivery.attempt)
        if delivery.attempt == 1:
            with suppress(asyncio.CancelledError):
                await stuck.wait()
            await stuck.wait()  # it does not end when it is told to, so that its lock is let go

    apps = [place.agent(work, lock_duration=1, timeout=0.2, concurrency=1) for _ in range(2)]
    async with place.running(*apps) as [first, second]:
        await first.send(place.topic, b"x")
        await until(lambda: attempts == [1, 2])
        await until(lambda: first.stats()["accepted"] + second.stats()["accepted"] >= 1)
        stuck.set()
        await until(lambda: first.stats()["running"] + second.stats()["running"] == 0)
        outcomes = sorted(first.outcomes() + second.outcomes())

    assert outcomes[0] == "accepted"


async def test_a_handler_can_renew_its_lock_itself(place: Place) -> None:
    renewed: dict[bytes, bool] = {}

    async def work(value: bytes, delivery: fs.Delivery) -> None:
        renewed[value] = await delivery.renew()

    def in_thread(value: bytes, delivery: fs.Delivery) -> None:
        renewed[value + b" in a thread"] = delivery.renew().result()

    app = place.agent(work)
    app.share_agent(place.topic, name="threads")(in_thread)
    async with place.running(app) as [worker]:
        await worker.send(place.topic, b"x")
        await asyncio.gather(worker.ended(1), worker.ended(1, "threads"))

    assert renewed == {b"x": True, b"x in a thread": True}


@pytest.mark.parametrize(("start", "first"), [("earliest", b"old"), ("latest", b"new"), (3600, b"old")])
async def test_a_new_group_begins_where_it_is_told_to(place: Place, start: str | int, first: bytes) -> None:
    got: list[bytes] = []

    async def work(value: bytes) -> None:
        got.append(value)

    async with place.outside() as (_, _, producer):
        await producer.send(place.topic, b"old")
    async with place.running(place.agent(work, start=start, concurrency=1)) as [worker]:

        async def came() -> bool:  # "latest" is where the log ends when the group's first fetch comes to the server
            await worker.send(place.topic, b"new")
            return b"new" in got

        await until(came, look_s=0.05)

    assert got[0] == first


async def test_a_group_goes_on_where_it_was(place: Place) -> None:
    got: list[bytes] = []

    async def work(value: bytes) -> None:
        got.append(value)

    for value in (b"first", b"second"):
        async with place.running(place.agent(work)) as [worker]:
            await worker.send(place.topic, value)
            await worker.ended(1)

    assert got == [b"first", b"second"]


def _check_cost(place: Place, attempts: list[int]) -> None:
    """Five records that were given back before a handler had begun: did it cost them an attempt?"""
    assert len(attempts) == 5
    assert set(attempts) <= ({1} if place.capabilities.unrun_release else {1, 2})
