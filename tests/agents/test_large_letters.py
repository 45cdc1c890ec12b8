"""Records that are larger than Kafka's default limit: their dead letters, and their topics' limits."""

from __future__ import annotations

from typing import Any

import pytest

import flowshare as fs
from flowshare.agents.feed.setup import prepare
from flowshare.client.admin.admin import ShareAdmin
from flowshare.client.admin.sizes import HEADERS_BYTES, MESSAGE_BYTES
from flowshare.client.errors import ServerError
from flowshare.protocol.errors import ErrorCode
from flowshare.testing import Bus
from tests.agents.agents_kit import run_app

LIMIT = "max.message.bytes"
FIVE_MB = 5 << 20
LARGE = b"x" * (FIVE_MB - 1000)


def failing_app(**options: Any) -> fs.App:
    app = fs.App("t", producer_max_request_size=2 * FIVE_MB)

    @app.share_agent(app.topic("in", config={LIMIT: FIVE_MB}), name="agent", retry=fs.Retry(max_attempts=1), **options)
    async def bad(value: bytes) -> None:
        raise ValueError("no")

    return app


async def limit_of(bus: Bus, topic: str) -> int:
    entries = await bus.host.admin.topic_configs(topic)
    return int(next(entry.value for entry in entries if entry.name == LIMIT) or 0)


def test_a_dead_letter_topic_that_is_made_takes_the_largest_record_of_its_sources_with_headers():
    async def during(bus: Bus) -> None:
        assert await limit_of(bus, "t.agent.dlq") == FIVE_MB + HEADERS_BYTES
        await bus.send("in", LARGE)

    seen = run_app(failing_app(), [], during=during)

    assert seen.outcomes == ["dead_lettered"]
    assert seen.dead[0].value == LARGE


@pytest.mark.flowshare
async def test_the_producer_takes_dead_letters_as_large_as_what_is_read_whatever_its_own_limit():
    app = failing_app()
    app._default_options[1].pop("producer_max_request_size")

    async with fs.testing.harness(app) as bus:
        sent = bus.host.producer.send_nowait("t.agent.dlq", LARGE)
        await bus.advance(1)
        assert (await sent).offset == 0


def test_a_dead_letter_topic_that_is_smaller_is_widened_at_the_start():
    app = failing_app(dead_letter="old.dlq")

    async def main() -> int:
        async with fs.testing.harness(app) as bus:
            await bus.host.admin.alter_topic_configs("old.dlq", {LIMIT: "1000"})
            agent = app.share_agents["agent"]
            await prepare(agent, bus.host.admin, bus.host.backend.capabilities, bus.clock)
            return await limit_of(bus, "old.dlq")

    assert fs.testing.run(main()) == FIVE_MB + HEADERS_BYTES


def test_a_limit_that_the_app_gives_its_dead_letter_topic_is_left_and_warned_of(caplog: pytest.LogCaptureFixture):
    app = fs.App("t")

    @app.share_agent("in", name="agent", dead_letter=app.topic("small.dlq", config={LIMIT: 2000}))
    async def handler(value: bytes) -> None:
        return None

    async def main() -> int:
        async with fs.testing.harness(app) as bus:
            await prepare(app.share_agents["agent"], bus.host.admin, bus.host.backend.capabilities, bus.clock)
            return await limit_of(bus, "small.dlq")

    assert fs.testing.run(main()) == 2000
    [line] = [one.getMessage() for one in caplog.records if "small.dlq takes 2000 bytes" in one.getMessage()]
    assert f"up to {MESSAGE_BYTES + HEADERS_BYTES}" in line
    assert "the app gives it that limit" in line


def test_brokers_that_refuse_the_limit_get_a_dead_letter_topic_with_their_own(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    real = ShareAdmin.create_topic

    async def strict(self: ShareAdmin, name: str, **given: Any) -> None:
        if name == "t.agent.dlq" and LIMIT in given["configs"]:
            raise ServerError(ErrorCode.POLICY_VIOLATION, about="creating a topic")
        await real(self, name, **given)

    async def refused(self: ShareAdmin, name: str, configs: Any, **_: Any) -> None:
        raise ServerError(ErrorCode.POLICY_VIOLATION, about="altering a topic")

    monkeypatch.setattr(ShareAdmin, "create_topic", strict)
    monkeypatch.setattr(ShareAdmin, "alter_topic_configs", refused)

    async def during(bus: Bus) -> None:
        assert await limit_of(bus, "t.agent.dlq") == MESSAGE_BYTES
        await bus.send("in", b"small")

    seen = run_app(failing_app(), [], during=during)

    assert seen.outcomes == ["dead_lettered"]
    assert any("t.agent.dlq takes 1048588 bytes at once" in one.getMessage() for one in caplog.records)


def test_a_dead_letter_that_does_not_fit_goes_without_its_record_and_says_so(caplog: pytest.LogCaptureFixture):
    async def during(bus: Bus) -> None:
        await bus.host.admin.alter_topic_configs("t.agent.dlq", {LIMIT: "4000"})
        await bus.send("in", LARGE, headers={"mine": b"1"})

    seen = run_app(failing_app(), [], during=during)

    assert seen.outcomes == ["dead_lettered"]
    [letter] = seen.dead
    assert letter.value is None
    assert letter.headers["flowshare.dlq.offset"] == b"0"
    assert str(len(LARGE)) in letter.headers["flowshare.dlq.left_out"].decode()
    assert "mine" not in letter.headers
    assert any("goes to t.agent.dlq without the record" in one.getMessage() for one in caplog.records)
