"""Order by key beside everything else that an agent or a group can be told: it holds, and nothing stands still."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import Any

import pytest

import flowshare as fs
from flowshare.testing import Bus
from tests.agents.agents_kit import one_agent
from tests.agents.test_order_end_to_end import Journal

# --- locks that cannot be renewed ---------------------------------------------------------------------------------

LOCK_S = 5.0


def cannot_renew(bus: Bus) -> None:
    """From now on nobody answers when locks are renewed."""

    async def no_answer(key: Any, ranges: Any) -> tuple[list[tuple[int, int]], float]:
        return [], 0.0

    bus.host.runtimes["agent"]._feeder._acks.renew = no_answer  # type: ignore[method-assign]


@pytest.mark.parametrize("renew", [True, False])
@pytest.mark.parametrize("batch", [False, True])
@pytest.mark.flowshare
async def test_a_member_that_cannot_renew_cancels_its_handlers_and_begins_nothing_before_its_locks_lapse(
    renew: bool, batch: bool
):
    began: list[tuple[int, int, float]] = []
    cancelled: list[float] = []
    running = 0

    async def work(value: int, delivery: fs.Delivery) -> None:
        nonlocal running
        assert not running
        running += 1
        began.append((value, delivery.attempt, asyncio.get_running_loop().time()))
        try:
            await asyncio.sleep(20 if delivery.attempt == 1 and value == 0 else 0)
        except asyncio.CancelledError:
            cancelled.append(asyncio.get_running_loop().time())
            raise
        finally:
            running -= 1

    async def many(rows: fs.Records[int]) -> None:
        for row in rows:
            await work(row.value, row.delivery)

    timeout = None if renew else 4.9
    options: dict[str, Any] = {"lock_duration": LOCK_S, "renew": renew, "timeout": timeout, "order": "key"}
    app = one_agent(many if batch else work, **options, **({"batch": fs.Batch(1, within=0)} if batch else {}))
    async with fs.testing.harness(app) as bus:
        cannot_renew(bus)
        for value in range(3):
            await bus.send("in", value, key="a")
        report = await bus.run_until_idle()

    started = began[0][2]
    assert [LOCK_S * 0.9 <= at - started < LOCK_S for at in cancelled] == [True]
    assert [value for value, _, _ in began] == [0, 0, 1, 2]
    assert began[1][1] == 2
    assert began[1][2] - started >= LOCK_S
    assert report["agent"].accepted == 3


@pytest.mark.flowshare
async def test_what_waits_for_a_runner_is_not_begun_when_its_lock_may_be_gone():
    began: dict[int, list[float]] = defaultdict(list)

    async def handler(value: int) -> None:
        began[value].append(asyncio.get_running_loop().time())
        if value == 0 and len(began[0]) == 1:
            feeder = bus.host.runtimes["agent"]._feeder
            for chunk in feeder._held.live:
                chunk.deadline = 0.0  # as if nothing had looked at it in time

    async with fs.testing.harness(one_agent(handler, order="key", concurrency=1)) as bus:
        bus.host.runtimes["agent"].pause()
        await bus.advance(1)
        for key, value in [("a", 0), ("a", 1), ("b", 2)]:
            await bus.send("in", value, key=key)
        await bus.advance(1)
        bus.host.runtimes["agent"].resume()
        report = await bus.run_until_idle()

    attempts = [(one.offset, one.attempt) for one in report["agent"].settled if one.outcome == "accepted"]
    assert {value: len(times) for value, times in began.items()} == {0: 1, 1: 1, 2: 1}
    assert dict(attempts)[0] == 1
    assert dict(attempts)[1] == 2


@pytest.mark.flowshare
async def test_what_is_lost_at_its_last_attempt_is_no_dead_letter_before_it_has_come_again():
    async def handler(value: int) -> None:
        await asyncio.sleep(20)

    options: dict[str, Any] = {"lock_duration": LOCK_S, "timeout": None, "retry": fs.Retry(max_attempts=1)}
    async with fs.testing.harness(one_agent(handler, order="key", **options)) as bus:
        cannot_renew(bus)
        await bus.send("in", 0, key="a")
        await bus.run_until_idle()
        letters = bus.dead_letters("agent")

    assert ["without an outcome" in letter.reason for letter in letters] == [True]


@pytest.mark.flowshare
async def test_a_handler_that_does_not_end_when_its_time_is_over_keeps_its_key():
    journal = Journal()
    stubborn = asyncio.Event()

    async def handler(value: int, delivery: fs.Delivery) -> None:
        journal.begin(delivery)
        while value == 0 and not stubborn.is_set():
            try:
                await stubborn.wait()
            except asyncio.CancelledError:
                continue
        journal.leave(delivery, done=True)

    options: dict[str, Any] = {"lock_duration": LOCK_S, "timeout": 2.0}
    async with fs.testing.harness(one_agent(handler, order="key", **options)) as bus:
        for value, key in enumerate("aab"):
            await bus.send("in", value, key=key)
        await bus.advance(60)
        before = {key: [offset for offset, _ in began] for key, began in journal.began.items()}
        assert bus.host.runtimes["agent"].problems()
        stubborn.set()
        report = await bus.run_until_idle()

    assert before == {"a": [0], "b": [2]}
    assert journal.in_order()
    assert report["agent"].accepted == 3
