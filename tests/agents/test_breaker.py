"""An agent's breaker: its options, which outcomes count as failures, and what a member does while it is not closed."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import flowshare as fs
from flowshare.agents.handler.errors import OptionError, UndecodableValue
from flowshare.agents.handler.outcomes import of_exception
from flowshare.share.breaker import BreakerState


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"failures": 0}, "takes a part of all outcomes, from 0.01 to 1"),
        ({"failures": 50}, "takes a part of all outcomes"),
        ({"failures": True}, "takes a part of all outcomes"),
        ({"of": 0}, r"fs.Breaker\(of=…\) takes a number from 1"),
        ({"pause": 0.5}, r"fs.Breaker\(pause=…\) takes 1 to 86400 seconds"),
        ({"pause": "30"}, "takes seconds as a number"),
        ({"pause": 60, "pause_max": 30}, "must not be more than pause_max"),
    ],
)
def test_values_that_make_no_sense_are_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(OptionError, match=said):
        fs.Breaker(**given)


def test_it_is_settings_of_the_group() -> None:
    assert fs.Breaker(0.75, of=40, pause=5).settings() == {
        "share.breaker.failure.percent": "75",
        "share.breaker.window.size": "40",
        "share.breaker.open.ms": "5000",
        "share.breaker.open.max.ms": "300000",
    }


class Declined(Exception):
    pass


@pytest.mark.parametrize(
    ("error", "attempt", "failed"),
    [
        (ValueError(), 1, True),
        (TimeoutError(), 1, True),
        (ValueError(), 5, True),
        (SystemExit(), 1, True),
        (fs.Reject("never"), 1, False),
        (Declined(), 1, False),
        (fs.Release(), 1, False),
        (fs.Release(), 5, False),
        (UndecodableValue("no number"), 1, False),
    ],
)
def test_failures_are_what_the_handler_did_not_mean(error: BaseException, attempt: int, failed: bool) -> None:
    app = fs.App("shop")

    @app.share_agent("orders", reject=(Declined,))
    async def bill(value: bytes) -> None: ...

    assert of_exception(bill, error, attempt).failed is failed


class Downstream:
    """Dependency of a handler, which can be broken."""

    def __init__(self) -> None:
        self.broken = False
        self.calls = 0

    async def call(self) -> None:
        self.calls += 1
        await asyncio.sleep(0.01)
        if self.broken:
            raise ConnectionError("it does not answer")


def lives(story: Any, handler: Any = None, **options: Any) -> None:
    """Run `story(bus, downstream)` beside an agent with a breaker, in virtual time."""
    app, downstream = fs.App("shop"), Downstream()
    given = {"breaker": fs.Breaker(0.5, of=20, pause=5, pause_max=20), "retry": fs.Retry(max_attempts=3, delay=1)}

    @app.share_agent("orders", concurrency=4, **{**given, **options})
    async def bill(value: bytes, delivery: fs.Delivery) -> None:
        if handler is not None:
            handler(value, delivery)
        await downstream.call()

    async def main() -> None:
        async with fs.testing.harness(app) as bus:
            await story(bus, downstream)

    fs.testing.run(main())


async def state(bus: Any) -> str:
    return (await bus.host.admin.breaker("shop.bill")).state


async def send(bus: Any, count: int) -> None:
    for number in range(count):
        await bus.send("orders", b"%d" % number)


def test_while_it_is_open_one_record_is_tried_and_no_attempt_is_lost_and_all_go_on_after() -> None:
    attempts: list[int] = []

    async def story(bus: Any, downstream: Downstream) -> None:
        downstream.broken = True
        await send(bus, 300)
        await bus.advance(1)
        assert await state(bus) == "open"
        before = downstream.calls
        await bus.advance(30)
        assert 2 <= downstream.calls - before <= 4
        downstream.broken = False
        await bus.advance(25)
        assert await state(bus) == "closed"
        report = await bus.run_until_idle()
        assert report["bill"].accepted == 300
        assert report["bill"].dead_lettered == 0
        assert max(attempts) <= 2

    lives(story, lambda _, delivery: attempts.append(delivery.attempt))


def test_one_record_that_always_fails_does_not_keep_a_group_from_the_others() -> None:
    def poison(value: bytes, _: fs.Delivery) -> None:
        if value == b"0":
            raise ValueError("never")

    async def story(bus: Any, downstream: Downstream) -> None:
        downstream.broken = True
        await send(bus, 100)
        await bus.advance(2)
        assert await state(bus) != "closed"
        downstream.broken = False
        await bus.advance(120)
        assert await state(bus) == "closed"
        report = await bus.run_until_idle()
        assert (report["bill"].accepted, report["bill"].dead_lettered) == (99, 1)

    lives(story, poison)


def test_what_was_fetched_ahead_goes_back_unrun() -> None:
    async def story(bus: Any, downstream: Downstream) -> None:
        await send(bus, 100)
        await bus.advance(0.1)
        downstream.broken = True
        await bus.advance(0.5)
        assert await state(bus) == "open"
        [runtime] = bus.host.runtimes.values()
        assert runtime._feeder.outstanding == 0
        downstream.broken = False

    lives(story)


def test_what_a_try_came_to_is_told_by_a_member_that_stops() -> None:
    async def story(bus: Any, downstream: Downstream) -> None:
        await send(bus, 100)
        downstream.broken = True
        await bus.advance(1)
        assert await state(bus) == "open"
        await bus.advance(6)
        [runtime] = bus.host.runtimes.values()
        watch = runtime._feeder._breaker
        while await state(bus) != "half-open":
            watch._tries.clear()  # nothing is heard of what was tried
            await bus.advance(0.1)
        watch._counts[2] += 1  # its handler has ended at this moment
        await watch.stop()
        assert await state(bus) == "closed"

    lives(story)


def test_a_stall_says_that_the_breaker_is_open(caplog: pytest.LogCaptureFixture) -> None:
    async def story(bus: Any, downstream: Downstream) -> None:
        downstream.broken = True
        await send(bus, 50)
        await bus.advance(40)
        downstream.broken = False

    lives(story)
    assert "the group's breaker is open, as" in caplog.text
    assert "`flowshare groups resume shop.bill` closes it by hand" in caplog.text


def test_how_often_it_opened_is_heard() -> None:
    async def story(bus: Any, downstream: Downstream) -> None:
        [runtime] = bus.host.runtimes.values()
        assert runtime.breaker == (BreakerState.CLOSED, 0)
        downstream.broken = True
        await send(bus, 50)
        await bus.advance(4)
        assert runtime.breaker == (BreakerState.OPEN, 1)
        await bus.advance(4)
        assert runtime.breaker == (BreakerState.OPEN, 2), "after a try that failed"
        downstream.broken = False
        await bus.advance(60)
        assert runtime.breaker == (BreakerState.CLOSED, 2)

    lives(story)


def test_rejects_and_releases_open_nothing() -> None:
    def says(value: bytes, delivery: fs.Delivery) -> None:
        if delivery.attempt == 1 and int(value) % 2:
            raise fs.Release
        raise fs.Reject("not ours")

    async def story(bus: Any, _: Downstream) -> None:
        await send(bus, 100)
        await bus.advance(5)
        assert await state(bus) == "closed"

    lives(story, says)


def test_in_an_order_by_key_a_broken_downstream_costs_no_attempt_either() -> None:
    attempts: list[int] = []

    async def story(bus: Any, downstream: Downstream) -> None:
        downstream.broken = True
        for number in range(100):
            await bus.send("orders", b"%d" % number, key=b"%d" % (number % 30))
        await bus.advance(20)
        assert await state(bus) != "closed"
        downstream.broken = False
        await bus.advance(60)
        report = await bus.run_until_idle()
        assert (report["bill"].accepted, report["bill"].dead_lettered) == (100, 0)
        assert max(attempts) <= 2

    lives(story, lambda _, delivery: attempts.append(delivery.attempt), order="key")


def test_at_most_once_is_held_back_too() -> None:
    async def story(bus: Any, downstream: Downstream) -> None:
        downstream.broken = True
        await send(bus, 300)
        await bus.advance(2)
        before = downstream.calls
        await bus.advance(10)
        assert before < 300
        assert downstream.calls - before <= 2
        downstream.broken = False

    lives(story, at_most_once=True, retry=None)


def test_without_a_breaker_nothing_is_counted_or_told() -> None:
    async def story(bus: Any, downstream: Downstream) -> None:
        await send(bus, 5)
        await bus.run_until_idle()
        [runtime] = bus.host.runtimes.values()
        assert runtime.breaker is None
        assert downstream.calls == 5

    lives(story, breaker=None)
