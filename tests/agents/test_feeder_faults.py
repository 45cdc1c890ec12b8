"""A fault of our own in fetching is told and tried again; it never ends an agent in silence."""

from __future__ import annotations

import pytest

import flowshare as fs
from flowshare.client.session.member import Fetched, ShareMember


@pytest.mark.flowshare
async def test_a_fetch_that_fails_unexpectedly_is_logged_and_tried_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    app = fs.App("faulty", broker="embedded:///nowhere/faulty")
    seen: list[str] = []

    @app.share_agent("words")
    async def read(word: str) -> None:
        seen.append(word)

    fetch, failing = ShareMember.take_fetched, 2

    def sometimes(self: ShareMember) -> object:
        nonlocal failing
        if failing:
            failing -= 1
            raise RuntimeError("a fault of ours")
        return fetch(self)

    monkeypatch.setattr(ShareMember, "take_fetched", sometimes)
    async with fs.testing.harness(app) as bus:
        await bus.send("words", "a")
        report = await bus.run_until_idle()

    assert seen == ["a"]
    assert report[read].accepted == 1
    assert "fetching failed unexpectedly: RuntimeError: a fault of ours" in caplog.text


@pytest.mark.flowshare
async def test_an_answer_that_cannot_be_read_gives_its_records_back_instead_of_rejecting_them(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    app = fs.App("garbled", broker="embedded:///nowhere/garbled")
    seen: list[str] = []

    @app.share_agent("words")
    async def read(word: str) -> None:
        seen.append(word)

    fetch, garbled = ShareMember.take_fetched, 1

    def sometimes(self: ShareMember) -> list[Fetched]:
        nonlocal garbled
        fetched = fetch(self)
        if fetched and garbled:
            garbled -= 1
            return [part._replace(records=b"\x00" * 200) for part in fetched]
        return fetched

    monkeypatch.setattr(ShareMember, "take_fetched", sometimes)
    async with fs.testing.harness(app) as bus:
        await bus.send("words", "a")
        report = await bus.run_until_idle()

    assert seen == ["a"]
    assert [one.outcome for one in report[read].settled] == ["released", "accepted"]
    assert "an answer cannot be read, its records are given back" in caplog.text
