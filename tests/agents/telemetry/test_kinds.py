"""Spans of the other kinds of agents: with an order, in a cooperative group, of a KMQ queue; on an embedded path."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest
from opentelemetry.trace import StatusCode

import flowshare as fs
from flowshare.agents.host.host import Host
from tests.agents.agents_kit import one_agent
from tests.agents.telemetry.kit import PARENT, TRACE, Told, id_of, linked, parent_of, telling
from tests.waiting import until


@pytest.fixture
def told(monkeypatch) -> Told:
    return telling(monkeypatch)


def sent_to(app: fs.App, topic: str, values: Any, out: str = "out") -> list[Any]:
    """Send the values, let the app end them all; what lies in `out` then."""

    async def story() -> list[Any]:
        async with fs.testing.harness(app) as bus:
            for value in values:
                await bus.send(topic, value, key=f"k{value % 3}", headers={"traceparent": PARENT})
            await bus.run_until_idle()
            return bus.records(out)

    return fs.testing.run(story())


def check(told: Told, topic: str, count: int) -> None:
    """Each of the records was handled, in the sender's trace, and settled by a span that names its handling."""
    handlings = told.of("process", topic)
    assert len(handlings) == count
    assert {f"{one.context.trace_id:032x}" for one in handlings} == {TRACE}
    named = [span for one in told.of("settle", topic) for span in (linked(one) or [parent_of(one)])]
    assert sorted(named) == sorted(map(id_of, handlings))


@pytest.mark.parametrize("batch", [None, fs.Batch(4, within=0.1)], ids=["single", "batches"])
@pytest.mark.parametrize("is_async", [True, False])
def test_in_an_order(told, batch, is_async):
    seen: list[int] = []

    async def one(value: int) -> None:
        seen.append(value)

    def plain(value: int) -> None:
        seen.append(value)

    async def many(rows: fs.Records[int]) -> None:
        seen.extend(row.value for row in rows)

    def plain_many(rows: fs.Records[int]) -> None:
        seen.extend(row.value for row in rows)

    handler = (one if is_async else plain) if batch is None else (many if is_async else plain_many)
    sent_to(one_agent(handler, order="key", batch=batch), "in", range(12))

    assert sorted(seen) == list(range(12))
    handlings = told.of("process", "in")
    counted = sum(span.attributes.get("messaging.batch.message_count", 1) for span in handlings)
    assert counted == 12
    assert sum(span.attributes["messaging.batch.message_count"] for span in told.of("settle", "in")) == 12


def test_in_an_order_what_was_taken_out_of_a_batch_is_in_its_span_and_comes_again_in_another(told):
    async def handler(rows: fs.Records[int]) -> None:
        for row in rows:
            if row.value == 0 and row.delivery.attempt == 1:
                rows.release(row, delay=1)

    sent_to(one_agent(handler, order="key", batch=fs.Batch(6, within=0.1)), "in", [0, 3, 6, 9])

    outcomes = [span.attributes["flowshare.outcome"] for span in told.of("process", "in")]
    assert outcomes[0] in ("released", "mixed")
    assert set(outcomes[1:]) == {"accepted"}


def test_in_a_cooperative_group(told):
    app = fs.App("t")

    @app.cooperative_agent("in", retry=fs.Retry(max_attempts=3, delay=1))
    async def agent(value: int, delivery: fs.Delivery) -> fs.Send:
        if value == 0 and delivery.attempt == 1:
            raise ConnectionError("down")
        return fs.Send("out", value)

    records = sent_to(app, "in", range(9))

    check(told, "in", 10)
    assert Counter(one.attributes["flowshare.outcome"] for one in told.of("process")) == {"accepted": 9, "retried": 1}
    sends = {f"{id_of(one):016x}": one for one in told.of("send", "out")}
    assert {one.headers["traceparent"].decode().split("-")[2] for one in records} == sends.keys()


@pytest.mark.parametrize("order", ["key", "partition"])
def test_in_a_cooperative_group_exactly_once(told, order):
    app = fs.App("t")

    @app.cooperative_agent("in", exactly_once=True, output_order=order)
    async def agent(value: int) -> fs.Send:
        return fs.Send("out", value)

    records = sent_to(app, "in", range(9))

    check(told, "in", 9)
    handlings = {f"{id_of(one):016x}" for one in told.of("process")}
    assert {one.headers["traceparent"].decode().split("-")[2] for one in records} == handlings
    assert sum(one.attributes["flowshare.settle.outputs"] for one in told.of("settle")) == 9


def test_of_a_kmq_queue(told):
    app = fs.App("t")

    @app.kmq_agent("q", markers="m", redeliver_after=5)
    async def agent(value: int, delivery: fs.Delivery) -> fs.Send:
        if value == 0 and delivery.attempt == 1:
            raise ConnectionError("down")
        return fs.Send("out", value)

    records = sent_to(app, "q", range(6))

    handlings = told.of("process", "q")
    assert Counter(one.attributes["flowshare.outcome"] for one in handlings) == {"accepted": 6, "retried": 1}
    accepted = [id_of(one) for one in handlings if one.attributes["flowshare.outcome"] == "accepted"]
    named = [span for one in told.of("settle", "q") for span in (linked(one) or [parent_of(one)])]
    assert sorted(named) == sorted(accepted)  # of the others nobody is told: the tracker sends them again
    sends = {f"{id_of(one):016x}" for one in told.of("send", "out")}
    assert {one.headers["traceparent"].decode().split("-")[2] for one in records} == sends
    assert told.of("send", "m") == []


@pytest.mark.slow
def test_on_an_embedded_path_with_threads_of_its_own(told, tmp_path):
    app = fs.App("t", broker=f"embedded://{tmp_path / 'log'}")

    @app.share_agent("in", name="agent", sink="out", retry=fs.Retry(delay=0))
    async def agent(value: int, delivery: fs.Delivery) -> int:
        if delivery.attempt == 1 and value % 5 == 0:
            raise ConnectionError("down")
        return value

    async def main() -> None:
        host = Host(app)
        await host.start()
        try:
            await asyncio.gather(*(app.topic("in").send(value=n) for n in range(50)))
            await until(host.runtimes["agent"].stats, good=lambda stats: stats["accepted"] == 50)
        finally:
            await host.drain(5)
            await host.stop()

    asyncio.run(main())
    handlings = told.of("process", "in")
    assert len(handlings) == 60
    assert Counter(one.status.status_code for one in handlings) == {StatusCode.UNSET: 50, StatusCode.ERROR: 10}
    sends = {id_of(one) for one in told.of("send", "in")}
    assert {parent_of(one) for one in handlings} == sends
    assert {parent_of(one) for one in told.of("send", "out")} <= {id_of(one) for one in handlings}
    named = [span for one in told.of("settle") for span in (linked(one) or [parent_of(one)])]
    assert sorted(named) == sorted(map(id_of, handlings))
    assert {one.attributes["flowshare.backend"] for one in told.spans} == {"embedded"}
