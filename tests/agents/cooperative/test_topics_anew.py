"""A cooperative agent whose topic is deleted, and made anew or not, while it runs in the test kit, as a whole app."""

from __future__ import annotations

from typing import Any

import pytest

import flowshare as fs

MODES = pytest.mark.parametrize("options", [{}, {"at_most_once": True}, {"exactly_once": True}], ids=str)


def agent_of(app: fs.App, seen: list[str], options: dict[str, Any]) -> Any:
    @app.cooperative_agent(["orders", "other"], group="ledger", sink=["paid"], **options)
    async def book(value: dict[str, str]) -> dict[str, str]:
        seen.append(value["n"])
        return value

    return book


async def send(bus: Any, topic: str, name: str, count: int) -> list[str]:
    names = [f"{name} {number}" for number in range(count)]
    for number, one in enumerate(names):
        await bus.send(topic, {"n": one}, key=f"c{number % 4}")
    return names


@MODES
def test_records_of_a_topic_made_anew_run_from_its_start(options: dict[str, Any]) -> None:
    app = fs.App("shop")
    seen: list[str] = []
    agent_of(app, seen, options)

    async def story() -> None:
        async with fs.testing.harness(app) as bus:
            old = await send(bus, "orders", "old", 20)
            await bus.run_until_idle()
            partitions = (await bus.host.admin.describe_topic("orders")).partitions
            await bus.host.admin.delete_topic("orders")
            await bus.host.admin.create_topic("orders", partitions=partitions)
            new = await send(bus, "orders", "new", 40)
            await bus.advance(60.0)
            await bus.run_until_idle()
            assert set(seen) == {*old, *new}
            if "at_most_once" in options:
                assert len(seen) == len(old) + len(new)
            if "exactly_once" in options:
                paid = [record.value["n"] for record in bus.records("paid")]
                assert sorted(paid) == sorted([*old, *new]), "outputs are there once"

    fs.testing.run(story())


@MODES
def test_the_others_go_on_while_a_topic_is_gone_and_what_is_wrong_is_said_once(
    options: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    app = fs.App("shop")
    seen: list[str] = []
    book = agent_of(app, seen, options)

    async def story() -> None:
        async with fs.testing.harness(app) as bus:
            await send(bus, "orders", "old", 20)
            await bus.run_until_idle()
            await bus.host.admin.delete_topic("orders")
            for number in range(10):
                more = await send(bus, "other", f"other {number}", 5)
                await bus.advance(5.0)
                assert set(more) <= set(seen)
            assert book.group == "ledger"
            said = caplog.text.count("was deleted, and is gone")
            assert said >= 1
            await bus.advance(120.0)
            assert caplog.text.count("was deleted, and is gone") == said

    fs.testing.run(story())
