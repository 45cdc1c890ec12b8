"""An app that never comes to rest: the kit gives up after a real time, on virtual loops and on ordinary ones."""

from __future__ import annotations

import asyncio
import importlib

import pytest

import flowshare as fs

kit = importlib.import_module("flowshare.testing.harness")


@pytest.fixture
def endless(monkeypatch: pytest.MonkeyPatch) -> fs.App:
    """An app whose agent sends each record to its own topic again; a kit and a loop that give up early."""
    monkeypatch.setattr(kit, "REAL_LIMIT_S", 0.05)
    monkeypatch.setattr("flowshare.testing.clock.SETTLE_ROUNDS_MAX", 100)
    app = fs.App("endless", broker="embedded:///nowhere/endless")
    topic = app.topic("a", value_type=int)

    @app.share_agent(topic, sink=[topic])
    async def again(value: int) -> int:
        return value

    return app


async def gives_up(app: fs.App) -> None:
    async with fs.testing.harness(app) as bus:
        await bus.send("a", 1)
        with pytest.raises(fs.testing.NotIdle, match=r"s of real time: unfinished .*'topic': 'a'"):
            await bus.run_until_idle()


@pytest.mark.slow
def test_an_agent_that_feeds_itself_ends_a_test_on_virtual_time(endless: fs.App) -> None:
    fs.testing.run(gives_up(endless))


@pytest.mark.slow
def test_an_agent_that_feeds_itself_ends_a_test_on_an_ordinary_loop(endless: fs.App) -> None:
    asyncio.run(gives_up(endless))


@pytest.mark.slow
def test_time_that_cannot_be_moved_past_an_agent_that_feeds_itself_is_an_error(endless: fs.App) -> None:
    async def main() -> None:
        async with fs.testing.harness(endless) as bus:
            await bus.send("a", 1)
            with pytest.raises(fs.testing.NotIdle, match="s of real time"):
                await bus.advance(60)

    fs.testing.run(main())
