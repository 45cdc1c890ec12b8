"""Tests of the parts that all coordinators share: work that outlives its caller, and one task that does due work."""

from __future__ import annotations

import asyncio
import logging

import pytest

from flowshare.server.runtime.budget import StateBudget
from flowshare.server.runtime.coordinator import RETRY_MS, CoordinatorRuntime
from flowshare.server.runtime.failures import Refused
from flowshare.testing.clock import ManualClock

pytestmark = pytest.mark.asyncio


class Coordinator:
    """Things that are their size; `dues`: when something is to be carried out, by the clock's milliseconds."""

    def __init__(self, state_bytes: int = 1_000) -> None:
        self.clock = ManualClock()
        self.begun_ms = self.clock.steady_ms()
        self.runtime = CoordinatorRuntime[int](
            "things", limit="things.max", clock=self.clock, budget=StateBudget(state_bytes), size_of=lambda one: one
        )
        self.dues: list[int] = []
        self.done: list[tuple[int, int]] = []
        """Runs of the task: the lateness that the task was told, and the time of the run, in ms."""
        self.fails = 0
        self.takes_s = 0.0
        self.runtime.start(self.expire, self.next_ms)

    @property
    def now_ms(self) -> int:
        return self.clock.steady_ms() - self.begun_ms

    async def expire(self, late_ms: int) -> None:
        self.done.append((late_ms, self.now_ms))
        if self.fails:
            self.fails -= 1
            raise RuntimeError("no")
        self.dues = [due for due in self.dues if due > self.clock.steady_ms()]
        if self.takes_s:
            await self.clock.sleep(self.takes_s)

    def next_ms(self) -> int | None:
        return min(self.dues, default=None)

    def due_in(self, ms: int) -> None:
        self.dues.append(self.clock.steady_ms() + ms)
        self.runtime.expect(self.dues[-1])

    async def passes(self, ms: int) -> None:
        await self.clock.advance(ms / 1000)


async def watching() -> Coordinator:
    """One that has looked once, and sleeps."""
    one = Coordinator()
    await turns()
    one.done.clear()
    return one


async def turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_what_is_due_is_carried_out_when_it_is_due_and_not_before():
    one = await watching()
    one.due_in(500)
    await turns()  # it looks whether that is due
    one.done.clear()
    await one.passes(499)
    assert one.done == []
    await one.passes(1)
    assert one.done == [(0, 500)]
    await one.runtime.close()


async def test_something_due_earlier_than_what_is_waited_for_is_carried_out_in_time():
    one = await watching()
    one.due_in(500)
    await turns()
    one.due_in(200)
    await one.passes(200)
    assert one.done[-1] == (0, 200)
    await one.runtime.close()


async def test_something_due_later_than_what_is_waited_for_wakes_nobody():
    one = await watching()
    one.due_in(500)
    await turns()
    looked = len(one.done)
    one.due_in(900)
    one.runtime.expect(None)
    await turns()
    assert len(one.done) == looked
    await one.runtime.close()


async def test_a_process_that_stood_still_is_told_for_how_long():
    one = await watching()
    one.due_in(100)
    await turns()
    one.clock._elapsed_s += 4.1  # no timer has run on the way
    await one.passes(0)
    assert one.done[-1] == (4_000, 4_100)
    await one.runtime.close()


async def test_the_time_that_due_work_takes_is_no_standstill():
    one = await watching()
    one.takes_s = 4.0
    one.due_in(100)
    one.due_in(200)
    await turns()
    await one.passes(100)
    one.done.clear()
    await one.passes(4_100)
    assert [late_ms for late_ms, _ in one.done] == [1]
    one.takes_s = 0
    await one.passes(5_000)
    await one.runtime.close()


async def test_what_fails_is_tried_again_after_a_pause_and_the_watch_goes_on(caplog):
    one = await watching()
    one.due_in(100)
    await turns()
    one.fails = 1
    with caplog.at_level(logging.ERROR):
        await one.passes(100)
    assert "what is due of the things failed" in caplog.text
    await one.passes(RETRY_MS)
    await one.passes(1)
    assert one.done[-1][1] == 100 + RETRY_MS + 1
    assert one.dues == []
    await one.runtime.close()


async def test_work_goes_on_when_whoever_asked_for_it_is_gone_and_close_waits_for_it():
    one = Coordinator()
    go, steps = asyncio.Event(), []

    async def work() -> None:
        await go.wait()
        steps.append("written")

    async def ask() -> None:
        await one.runtime.run(work())

    asking = asyncio.create_task(ask())
    await turns()
    asking.cancel()
    closing = asyncio.create_task(one.runtime.close())
    await turns()
    assert not closing.done()
    go.set()
    await closing
    assert steps == ["written"]


async def test_close_gives_up_what_would_not_end_by_itself_also_what_begins_meanwhile():
    one = Coordinator()
    endless: list[asyncio.Task[bool]] = []

    async def begin() -> None:
        endless.append(one.runtime.spawn(asyncio.Event().wait()))

    first = one.runtime.run(begin())
    await one.runtime.close(lambda: [task.cancel() for task in endless])
    assert first.done()
    assert endless[0].cancelled()


async def test_who_asked_hears_how_work_ended():
    one = Coordinator()

    async def fails() -> None:
        raise ValueError("refused")

    with pytest.raises(ValueError, match="refused"):
        await one.runtime.run(fails())
    await one.runtime.close()


async def test_a_party_makes_no_more_than_it_leaves_to_others_in_number_and_bytes():
    one = Coordinator(state_bytes=100)
    one.runtime.make("a", lambda: 40, "alice", 3)
    one.runtime.make("b", lambda: 0, "bob", 3)
    with pytest.raises(Refused, match=r"things\.max"):
        one.runtime.make("c", lambda: 0, "alice", 3)
    one.runtime.loaded()
    with pytest.raises(Refused, match=r"coordinator\.state\.max\.bytes"):
        one.runtime.take("alice", 20)
    one.runtime.take("bob", 20)
    one.runtime.take(None, 1_000)
    await one.runtime.close()
