"""`@app.cooperative_agent` in the test kit: what share agents do, with records of one key one after the other."""

from __future__ import annotations

from typing import Any

import pytest

import flowshare as fs
from flowshare.agents.handler.errors import OptionError


def test_records_are_handled_and_committed() -> None:
    app = fs.App("shop")
    seen: list[Any] = []

    @app.cooperative_agent("orders")
    async def bill(value: dict[str, Any]) -> None:
        seen.append(value["n"])

    async def story() -> None:
        async with fs.testing.harness(app) as bus:
            for number in range(20):
                await bus.send("orders", {"n": number}, key=f"c{number % 4}")
            report = await bus.run_until_idle()
            assert report[bill].accepted == 20
            report[bill].assert_in_order()

    fs.testing.run(story())
    assert sorted(seen) == list(range(20))


def test_a_record_that_fails_is_tried_again_and_nothing_of_its_key_overtakes_it() -> None:
    app = fs.App("shop")
    seen: list[tuple[str, int]] = []

    @app.cooperative_agent("orders", retry=fs.Retry(max_attempts=3, delay=10.0), concurrency=4)
    async def bill(value: dict[str, Any], delivery: fs.Delivery) -> None:
        if value["n"] == 0 and delivery.attempt < 3:
            raise TimeoutError
        seen.append((value["key"], value["n"]))

    async def story() -> None:
        async with fs.testing.harness(app) as bus:
            for number in range(12):
                await bus.send("orders", {"n": number, "key": f"c{number % 3}"}, key=f"c{number % 3}")
            report = await bus.run_until_idle()
            assert report[bill].retried == 2
            assert report[bill].accepted == 12
            report[bill].assert_in_order()

    fs.testing.run(story())
    assert [number for key, number in seen if key == "c0"] == [0, 3, 6, 9]
    assert [key for key, _ in seen].index("c0") >= 8, "the other keys go on meanwhile"


def test_a_record_that_goes_on_failing_becomes_a_dead_letter_and_its_key_goes_on() -> None:
    app = fs.App("shop")

    @app.cooperative_agent("orders", retry=fs.Retry(max_attempts=2, delay=1.0))
    async def bill(value: dict[str, Any]) -> None:
        if value["n"] == 1:
            raise ValueError("no such customer")

    async def story() -> None:
        async with fs.testing.harness(app) as bus:
            for number in range(4):
                await bus.send("orders", {"n": number}, key="c")
            report = await bus.run_until_idle()
            assert report[bill].accepted == 3
            assert report[bill].dead_lettered == 1
            (letter,) = bus.dead_letters(bill)
            assert letter.origin == ("orders", 0, 1)
            assert letter.attempts == 2

    fs.testing.run(story())


def test_batches_sinks_and_time_outs_are_those_of_share_agents() -> None:
    app = fs.App("shop")
    sizes: list[int] = []

    @app.cooperative_agent("orders", batch=fs.Batch(5, within=1.0), sink="billed")
    async def bill(records: fs.Records[dict[str, Any]]) -> None:
        sizes.append(len(records))

    @app.cooperative_agent("slow", timeout=2.0, retry=None)
    async def slow(value: dict[str, Any]) -> None:
        import asyncio

        await asyncio.sleep(60)

    async def story() -> None:
        async with fs.testing.harness(app) as bus:
            for number in range(12):
                await bus.send("orders", {"n": number}, key=f"{number}")
            await bus.send("slow", {"n": 1}, key="a")
            report = await bus.run_until_idle()
            assert report[bill].accepted == 12
            assert report[slow].dead_lettered == 1

    fs.testing.run(story())
    assert max(sizes) > 1


def test_a_paused_agent_begins_nothing_until_it_is_resumed() -> None:
    app = fs.App("shop")

    @app.cooperative_agent("orders")
    async def bill(value: dict[str, Any]) -> None: ...

    async def story() -> None:
        async with fs.testing.harness(app) as bus:
            bill.pause()
            await bus.send("orders", {"n": 1}, key="a")
            await bus.advance(30)
            assert bus.report[bill].accepted == 0
            bill.resume()
            report = await bus.run_until_idle()
            assert report[bill].accepted == 1

    fs.testing.run(story())


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("order", "key"),
        ("lock_duration", 5),
        ("after_dead_letter", "park"),
        ("max_in_flight", 3),
        ("max_rate", "10/m"),
        ("breaker", fs.Breaker()),
        ("priority", "new"),
        ("renew", False),
    ],
)
def test_options_that_say_nothing_there_are_refused_with_why(option: str, value: Any) -> None:
    app = fs.App("shop")
    with pytest.raises(OptionError, match=f"{option} says nothing in a cooperative group: .{{20}}"):
        app.cooperative_agent("orders", **{option: value})(handler)


async def handler(value: dict[str, Any]) -> None: ...


@pytest.mark.parametrize(("option", "value"), [("lease", 0.5), ("lease", 601), ("shares", 1), ("start", 60)])
def test_values_that_cannot_be_are_refused(option: str, value: Any) -> None:
    app = fs.App("shop")
    with pytest.raises(OptionError, match=option):
        app.cooperative_agent("orders", **{option: value})(handler)


def test_a_worker_introduces_its_cooperative_agents(caplog: pytest.LogCaptureFixture) -> None:
    from flowshare.agents.app import summary
    from flowshare.cli.worker import introduce

    app = fs.App("shop", broker="memory://")
    agent = app.cooperative_agent("orders", lease=5, overlap_after=60)(handler)
    with caplog.at_level("INFO"):
        introduce(app, 3)
    line = summary.cooperative_line(agent)
    assert line in caplog.text
    assert "cooperative group shop.handler · concurrency 3" in line
    assert "lease 5 s" in line
    assert "overlap after 60 s" in line
    assert agent.describe()["lease"] == 5


def test_agents_of_one_group_are_refused() -> None:
    app = fs.App("shop")
    app.cooperative_agent("orders", group="g")(handler)
    with pytest.raises(fs.errors.UsageError, match="share group 'g'"):
        app.cooperative_agent("other", group="g", name="second")(handler)
    with pytest.raises(fs.errors.UsageError, match="share group 'g'"):
        app.share_agent("other", group="g", name="third")(handler)
