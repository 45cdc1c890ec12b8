"""A process that stood still begins nothing before it knows what is still its own."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from typing import Any

import pytest

import flowshare as fs
from flowshare.agents.feed.standstill import ANSWER_S, LIMIT_S, PULSE_S, Standstill
from flowshare.agents.run.pool import StartPermit
from flowshare.client.errors import ClientError
from flowshare.testing import ManualClock
from flowshare.testing.clock import settle
from tests.agents.agents_kit import one_agent
from tests.agents.test_threads import app_of, threaded
from tests.waiting import until

LOCK_S = 10.0


def stand_still(clock: ManualClock, seconds: float) -> None:
    """Time passes and nothing runs meanwhile."""
    clock._elapsed_s += seconds


# --- a whole agent ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["single", "plain", "many"])
@pytest.mark.flowshare
async def test_what_waits_is_not_begun_before_the_group_has_answered(kind: str) -> None:
    begun: Counter[int] = Counter()

    asked, go = asyncio.Event(), asyncio.Event()

    async def confirm() -> None:
        asked.set()
        await go.wait()

    def begin(value: int) -> None:
        begun[value] += 1
        if value == 20:
            loop: Any = asyncio.get_running_loop()
            loop._virtual.now_s += 2 * LIMIT_S

    async def single(value: int) -> None:
        begin(value)
        await asyncio.sleep(0.001)

    def plain(value: int) -> None:
        begin(value)

    async def many(values: fs.Records[int]) -> None:
        begin(values[0].value)
        await asyncio.sleep(0.001)

    fun: Any = {"single": single, "plain": plain, "many": many}[kind]
    app = one_agent(fun, concurrency=1, **({"batch": fs.Batch(1, within=0.01)} if kind == "many" else {}))
    async with fs.testing.harness(app) as bus:
        assert app.host is not None
        runtime: Any = app.host.runtimes["agent"]
        runtime._feeder._member.confirm = confirm
        runtime._feeder._standstill.start(runtime._feeder._member)  # the kit does without: its time stands still
        for value in range(60):
            await bus.send("in", value)
        running = asyncio.ensure_future(bus.run_until_idle(limit=3600))
        async with asyncio.timeout(100):
            await asked.wait()
        before = dict(begun)
        await asyncio.sleep(3)
        assert begun == before == dict.fromkeys(range(21), 1)
        go.set()
        await running

    assert begun == dict.fromkeys(range(60), 1)


@pytest.mark.slow
def test_handlers_in_threads_wait_as_well_and_go_on() -> None:
    begun, asked, go = list[int](), threading.Event(), threading.Event()

    def handler(value: int) -> None:
        begun.append(value)

    async def confirm() -> None:
        asked.set()
        await asyncio.to_thread(go.wait)

    async def stood_still(runtime: Any) -> None:
        feeder = runtime._feeder
        feeder._member.confirm = confirm
        feeder._standstill._pulsed_s -= 2 * LIMIT_S
        await asyncio.to_thread(asked.wait)

    async def look(runtime: Any) -> list[int]:
        await stood_still(runtime)
        await runtime._feeder.agent.app.topic("in").send(value=7)
        await until(lambda: runtime._feeder.buffered == 1)
        before = list(begun)
        problems = runtime.problems()
        go.set()
        await until(lambda: 7 in begun)
        assert "stood still" in problems[0]
        return before

    before, _ = threaded(app_of(handler), [1], lambda stats: stats["accepted"] == 1, look)

    assert before == [1]


# --- asking -------------------------------------------------------------------------------------------------------


def broken(function: Any) -> Any:
    """Fails the first time."""
    calls: list[int] = []

    async def call() -> bool:
        calls.append(1)
        if len(calls) == 1:
            raise RuntimeError("a fault")
        return bool(await function())

    return call


class World:
    """A standstill watch over stand-ins: a group that answers when told, locks of which something becomes known."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.permit = StartPermit()
        self.woken = 0
        self.confirmed: list[asyncio.Future[None]] = []
        self.known = [True]
        self.steps: list[str] = []
        self.watch = Standstill(
            "agent",
            permit=self.permit,
            wake=self.wake,
            held=self,  # type: ignore[arg-type]
            locks=self,  # type: ignore[arg-type]
            clock=self.clock,
        )

    def wake(self) -> None:
        self.woken += 1

    async def confirm(self) -> None:
        self.confirmed.append(asyncio.get_running_loop().create_future())
        await self.confirmed[-1]
        self.steps.append("confirmed")

    def look(self, member: Any) -> None:
        self.steps.append("looked")

    async def renew_all(self) -> bool:
        self.steps.append("renewed")
        return self.known.pop() if len(self.known) > 1 else self.known[0]

    def open(self) -> bool:
        return self.clock.monotonic() <= self.permit.until_s

    async def begin(self) -> None:
        self.watch.start(self)  # type: ignore[arg-type]
        await self.clock.advance(5)
        assert self.open()

    async def stood_still(self) -> None:
        """It did, and its pulse has noticed."""
        stand_still(self.clock, LIMIT_S + 1)
        assert not self.open(), "handlers begin nothing even before it is noticed"
        await self.clock.advance(PULSE_S)


@pytest.mark.asyncio
async def test_a_pulse_that_comes_a_little_late_stops_nothing() -> None:
    world = World()
    await world.begin()

    stand_still(world.clock, LIMIT_S - PULSE_S)

    assert world.open()
    await world.clock.advance(1)
    assert world.open()
    assert world.confirmed == []
    await world.watch.stop()


@pytest.mark.asyncio
async def test_handlers_begin_again_when_the_group_has_answered_and_the_locks_are_renewed() -> None:
    world = World()
    await world.begin()
    await world.stood_still()
    world.permit.wanted = True

    await world.clock.advance(2)
    assert not world.open()
    assert "stood still" in str(world.watch.trouble)
    world.confirmed[0].set_result(None)
    await settle()

    assert world.open()
    assert world.steps == ["confirmed", "looked", "renewed", "looked"]
    assert (world.woken, world.permit.wanted) == (1, False)
    await world.watch.stop()


@pytest.mark.asyncio
@pytest.mark.parametrize("why", ["no answer", "refused", "a lock in doubt", "stood still again"])
async def test_it_asks_anew_until_all_is_known(why: str) -> None:
    world = World()
    await world.begin()
    await world.stood_still()

    if why == "no answer":
        await world.clock.advance(ANSWER_S)
    elif why == "refused":
        world.confirmed[0].set_exception(ClientError("refused"))
    else:
        if why == "a lock in doubt":
            world.known = [True, False]
        else:
            await world.stood_still()
        world.confirmed[0].set_result(None)
    await settle()
    assert not world.open()
    await world.clock.advance(0.5)
    assert not world.open()
    world.confirmed[-1].set_result(None)
    await settle()

    assert len(world.confirmed) == 2
    assert world.open()
    await world.watch.stop()


@pytest.mark.asyncio
async def test_a_fault_while_it_asks_is_told_and_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    await world.begin()
    world.renew_all = broken(world.renew_all)  # type: ignore[method-assign]
    await world.stood_still()

    for _ in range(2):
        world.confirmed[-1].set_result(None)
        await world.clock.advance(0.5)

    assert world.open()
    assert "tried again" in caplog.text
    await world.watch.stop()


@pytest.mark.asyncio
async def test_an_agent_that_ends_while_it_asks_ends() -> None:
    world = World()
    await world.begin()
    await world.stood_still()

    await world.watch.stop()

    assert not world.open()
    assert world.clock.next_due_s() is None
