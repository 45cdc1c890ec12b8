"""Dead letters of cooperative agents are as large as what they are of: as `tests/agents/test_large_letters.py`."""

from __future__ import annotations

from typing import Any

import pytest

import flowshare as fs
from flowshare.agents.cooperative.feeder import prepare
from flowshare.client.admin.sizes import HEADERS_BYTES
from tests.agents.test_large_letters import FIVE_MB, LARGE, LIMIT, limit_of


def failing_app(**options: Any) -> fs.App:
    app = fs.App("t")

    @app.cooperative_agent(
        app.topic("in", config={LIMIT: FIVE_MB}), name="agent", retry=fs.Retry(max_attempts=1), **options
    )
    async def bad(value: bytes) -> None:
        raise ValueError("no")

    return app


@pytest.mark.parametrize("options", [{}, {"exactly_once": True}, {"at_most_once": True}], ids=str)
def test_a_dead_letter_of_the_largest_record_is_written_whole(options: dict[str, Any]) -> None:
    app = failing_app(**options)

    async def story() -> None:
        async with fs.testing.harness(app) as bus:
            assert await limit_of(bus, "t.agent.dlq") == FIVE_MB + HEADERS_BYTES
            await bus.send("in", LARGE, key="k")
            report = await bus.run_until_idle()
            assert [one.outcome for one in report["agent"].settled] == ["dead_lettered"]
            (letter,) = bus.dead_letters("agent")
            assert (letter.value, letter.key) == (LARGE, b"k")

    fs.testing.run(story())


def test_a_dead_letter_topic_that_is_smaller_is_widened_at_the_start() -> None:
    app = failing_app(dead_letter="old.dlq")

    async def story() -> int:
        async with fs.testing.harness(app) as bus:
            await bus.host.admin.alter_topic_configs("old.dlq", {LIMIT: "1000"})
            agent = app.cooperative_agents["agent"]
            await prepare(agent, bus.host.admin, bus.host.backend.capabilities, bus.clock)
            return await limit_of(bus, "old.dlq")

    assert fs.testing.run(story()) == FIVE_MB + HEADERS_BYTES
