"""Long work in turns: what one connection may do in a round of the loop, and who goes on in the next."""

from __future__ import annotations

import asyncio

import pytest

from flowshare.server.runtime.turns import TURN, TURN_S, Places, TurnLine, Turns
from flowshare.testing.clock import ManualClock

pytestmark = pytest.mark.asyncio


class SlowClock(ManualClock):
    """Every look at it takes a while, as work does."""

    def __init__(self, step_s: float) -> None:
        super().__init__()
        self._step_s = step_s
        self._looks = 0

    def monotonic(self) -> float:
        self._looks += 1
        return self._looks * self._step_s


async def work(turns: Turns, steps: int, done: list[int], things: int = TURN) -> None:
    for _ in range(steps):
        await turns.take(things)
        done.append(things)


async def rounds_of(*tasks: asyncio.Task[None], done: list[int]) -> list[int]:
    """How many steps were done in each round of the loop."""
    counts = []
    while not all(task.done() for task in tasks):
        before = len(done)
        await asyncio.sleep(0)
        counts.append(len(done) - before)
    return counts


async def test_however_many_connections_do_long_work_one_goes_on_in_a_round():
    line, done = TurnLine(), []
    tasks = [asyncio.ensure_future(work(Turns(ManualClock(), line), 5, done)) for _ in range(20)]
    first, *rest = await rounds_of(*tasks, done=done)
    assert first == 20  # each connection's first turn of its own
    assert max(rest) == 1
    assert len(done) == 100
    assert not line._line._waiting


async def test_connections_go_on_one_after_the_other():
    line, done = TurnLine(), []

    async def named(name: str) -> None:
        turns = Turns(ManualClock(), line)
        for _ in range(4):
            await turns.take(TURN)
            done.append(name)

    await asyncio.gather(named("a"), named("b"), named("c"))
    assert "".join(done) == "abcabcabcabc"


async def test_the_requests_of_one_connection_share_its_turn():
    turns, done = Turns(ManualClock(), TurnLine()), []
    tasks = [asyncio.ensure_future(work(turns, 4, done, TURN // 2)) for _ in range(8)]
    counts = await rounds_of(*tasks, done=done)
    assert max(counts) <= 2
    assert len(done) == 32


async def test_few_things_that_take_long_give_way_too():
    turns, done = Turns(SlowClock(TURN_S / 2), TurnLine()), []
    counts = await rounds_of(asyncio.ensure_future(work(turns, 20, done, 1)), done=done)
    assert max(counts) <= 3
    assert len(done) == 20


async def test_short_work_does_not_wait():
    turns, done = Turns(ManualClock(), TurnLine()), []
    assert await rounds_of(asyncio.ensure_future(work(turns, TURN, done, 1)), done=done) == [TURN]


async def test_a_request_that_is_cancelled_in_line_does_not_stop_it():
    line, done = TurnLine(), []
    tasks = [asyncio.ensure_future(work(Turns(ManualClock(), line), 3, done)) for _ in range(3)]
    await asyncio.sleep(0)
    tasks[0].cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert len(done) == 1 + 3 + 3
    assert not line._line._waiting


async def test_nothing_new_begins_while_a_request_waits_for_its_turn():
    line, done, begun = TurnLine(), [], []
    turns = Turns(ManualClock(), line)
    working = asyncio.ensure_future(work(turns, 6, done))
    await asyncio.sleep(0)
    assert turns.over
    turns.call_next(lambda: begun.append(len(done)))
    await working
    await asyncio.sleep(0)
    assert begun == [6]


async def test_places_go_to_the_parties_one_after_the_other():
    places, had = Places(1), []

    async def work_of(party: str) -> None:
        await places.take(party)
        had.append(party)
        await asyncio.sleep(0)
        places.give()

    await asyncio.gather(*(work_of(party) for party in ("many", "many", "many", "many", "one")))
    assert had == ["many", "many", "one", "many", "many"]
    assert places.free == 1


async def test_who_is_cancelled_takes_no_place():
    places = Places(1)
    await places.take("a")
    waiting, given = (asyncio.ensure_future(places.take("b")) for _ in range(2))
    await asyncio.sleep(0)
    waiting.cancel()
    places.give()
    given.cancel()  # it has its place, and does not know it yet
    await asyncio.wait([waiting, given])
    assert places.free == 1
