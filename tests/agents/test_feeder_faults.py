"""A fault of our own in fetching is told and tried again; it never ends an agent in silence."""

from __future__ import annotations

from typing import Any

import pytest

import flowshare as fs
from flowshare.client.producer.message import Message
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


@pytest.mark.flowshare
@pytest.mark.parametrize("options", [{}, {"order": "key"}, {"at_most_once": True}], ids=str)
async def test_a_damaged_batch_of_more_records_than_are_told_of_at_once_is_told_of_in_parts(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    app = fs.App("large", broker="embedded:///nowhere/large")
    seen: list[bytes] = []

    @app.share_agent("words", concurrency=20, **options)
    async def read(word: bytes) -> None:
        seen.append(word)

    fetch, widest = ShareMember.take_fetched, 0

    def damaged(self: ShareMember) -> list[Fetched]:
        nonlocal widest
        fetched = [part._replace(records=part.records.replace(b"bad", b"BAD")) for part in fetch(self)]
        widest = max([widest, *(one.last - one.first + 1 for part in fetched for one in part.acquired)])
        return fetched

    monkeypatch.setattr(ShareMember, "take_fetched", damaged)
    monkeypatch.setattr("flowshare.agents.feed.reader.UNREADABLE_MAX", 3)
    async with fs.testing.harness(app) as bus:
        await app.host.producer.send_many("words", [Message(b"bad", b"%d" % number) for number in range(10)])
        await bus.send("words", b"good")
        await bus.run_until_idle(limit=60)
        letters = bus.dead_letters(read)

    assert widest > 3
    assert seen == [b"good"]
    assert sorted(letter.origin[2] for letter in letters) == list(range(10))
    assert {letter.attempts for letter in letters} == {1}


@pytest.mark.flowshare
async def test_an_agent_goes_on_fetching_after_more_records_were_finished_at_once_than_may_have_no_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("flowshare.agents.feed.prefetch.UNCONFIRMED_MAX", 10)
    app = fs.App("t")
    sizes: list[int] = []

    @app.share_agent("in", name="agent", batch=fs.Batch(size=10, within=0.05), concurrency=1)
    async def read(records: fs.Records[bytes]) -> None:
        sizes.append(len(records))
        await app.host.clock.sleep(1)

    async with fs.testing.harness(app) as bus:
        app.host.runtimes["agent"].pause()
        for _ in range(25):
            await bus.send("in", b"x")
        app.host.runtimes["agent"].resume()
        await bus.run_until_idle(limit=60)

    assert sizes == [10, 10, 5]
