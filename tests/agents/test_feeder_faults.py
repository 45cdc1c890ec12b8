"""A fault of our own in fetching is told and tried again; it never ends an agent in silence."""

from __future__ import annotations

import pytest

import flowshare as fs
from flowshare.client.member import ShareMember


@pytest.mark.flowshare
async def test_a_fetch_that_fails_unexpectedly_is_logged_and_tried_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    app = fs.App("faulty", broker="embedded:///nowhere/faulty")
    seen: list[str] = []

    @app.share_agent("words")
    async def read(word: str) -> None:
        seen.append(word)

    fetch, failing = ShareMember.fetch, 2

    async def sometimes(self: ShareMember, **wanted: object) -> object:
        nonlocal failing
        if failing:
            failing -= 1
            raise RuntimeError("a fault of ours")
        return await fetch(self, **wanted)

    monkeypatch.setattr(ShareMember, "fetch", sometimes)
    async with fs.testing.harness(app) as bus:
        await bus.send("words", "a")
        report = await bus.run_until_idle()

    assert seen == ["a"]
    assert report[read].accepted == 1
    assert "fetching failed unexpectedly: RuntimeError: a fault of ours" in caplog.text
