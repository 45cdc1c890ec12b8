"""A record's handlings, what they send and how it is settled are in the trace of its sender, on every backend."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

import flowshare as fs
from flowshare.client.producer.producer import Message
from tests.agents.suite.places import Place, headers
from tests.agents.telemetry.kit import PARENT, TRACE, id_of, linked, parent_of, telling

pytestmark = pytest.mark.asyncio


async def test_a_retry_an_output_and_a_dead_letter_are_in_the_senders_trace(place: Place, monkeypatch: Any) -> None:
    told = telling(monkeypatch)
    out = place.unique("out")

    async def work(value: int, delivery: fs.Delivery) -> fs.Send:
        if value == 0 and delivery.attempt == 1:
            raise ConnectionError("down")
        if value == 1:
            raise fs.Reject("odd")
        return fs.Send(out, value)

    app = place.agent(work, retry=fs.Retry(max_attempts=3, delay=0.01))
    async with place.running(app) as [worker]:
        sent = [Message(b"%d" % n, headers=[("traceparent", PARENT.encode())]) for n in range(20)]
        await worker.send(place.topic, *sent)
        await worker.ended(20)
        outputs, letters = await worker.read(out), await worker.dead()

    handlings = told.of("process", place.topic)
    outcomes = Counter(one.attributes["flowshare.outcome"] for one in handlings)
    assert outcomes == {"accepted": 19, "rejected": 1, "retried": 1}
    assert {f"{one.context.trace_id:032x}" for one in handlings} == {TRACE}
    assert {one.attributes["flowshare.backend"] for one in handlings} == {place.name.replace("joined", "embedded")}
    sends = {f"{id_of(one):016x}": one for topic in (out, letters_of(app)) for one in told.of("send", topic)}
    told_by = {headers(record)["traceparent"].decode().split("-")[2] for record in (*outputs, *letters)}
    assert told_by == sends.keys()
    assert {parent_of(one) for one in sends.values()} <= {id_of(one) for one in handlings}
    settled = told.of("settle")
    named = [span for one in settled for span in (linked(one) or [parent_of(one)])]
    assert sorted(named) == sorted(map(id_of, handlings))
    assert sum(one.attributes["messaging.batch.message_count"] for one in settled) == 21
    assert all("error.type" not in one.attributes for one in settled)


def letters_of(app: fs.App) -> str:
    [agent] = app.share_agents.values()
    assert agent.dead_letter_topic is not None
    return agent.dead_letter_topic


async def test_what_is_settled_with_its_outputs_is_one_span(place: Place, monkeypatch: Any) -> None:
    if not place.capabilities.settling:
        pytest.skip("Kafka's brokers settle nothing")
    told = telling(monkeypatch)
    out = place.unique("out")

    async def work(value: int) -> fs.Send:
        return fs.Send(out, value)

    async with place.running(place.agent(work, exactly_once=True)) as [worker]:
        await worker.send(place.topic, *(b"%d" % n for n in range(20)))
        await worker.ended(20)
        outputs = await worker.read(out)

    handlings = {f"{id_of(one):016x}" for one in told.of("process", place.topic)}
    assert {headers(record)["traceparent"].decode().split("-")[2] for record in outputs} == handlings
    assert sum(one.attributes["flowshare.settle.outputs"] for one in told.of("settle")) == 20
    assert told.of("send") == []
