"""Telemetry that fails, or does not get on, costs no record anything; and what is told is bounded."""

from __future__ import annotations

import logging
import threading
from typing import Any, ClassVar

import pytest
from opentelemetry import propagate, trace
from opentelemetry.propagators.textmap import TextMapPropagator
from opentelemetry.sdk.trace import SpanProcessor
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, Sampler

import flowshare as fs
from flowshare.agents.telemetry import active, ender, instruments
from flowshare.agents.telemetry.ender import Ender
from flowshare.agents.telemetry.instruments import KINDS_MAX, OTHER, Few
from flowshare.agents.telemetry.processing import KEY_MAX, key_text
from tests.agents.agents_kit import run_agent
from tests.agents.telemetry.kit import Told, telling
from tests.agents.test_threads import app_of, threaded
from tests.waiting import blocking_until


class Blocks(SpanExporter):
    """An exporter whose first export does not return until it is told to."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.entered = threading.Event()

    def export(self, spans: Any) -> SpanExportResult:
        self.entered.set()
        self.go.wait()
        return SpanExportResult.SUCCESS


class Raises(SpanExporter):
    def export(self, spans: Any) -> SpanExportResult:
        raise RuntimeError("no collector")


class RaisesAt(SpanProcessor):
    def __init__(self, moment: str) -> None:
        self._moment = moment

    def on_start(self, span: Any, parent_context: Any = None) -> None:
        if self._moment == "start":
            raise RuntimeError("at the start")

    def on_end(self, span: Any) -> None:
        if self._moment == "end":
            raise RuntimeError("at the end")


class NoSampler(Sampler):
    def should_sample(self, *_: Any, **__: Any) -> Any:
        raise RuntimeError("no decision")

    def get_description(self) -> str:
        return "broken"


@pytest.mark.parametrize("blocked_at", ["process", "send"])
def test_an_exporter_that_does_not_return_holds_up_no_record_and_no_end(monkeypatch, blocked_at):
    monkeypatch.setattr(ender, "END_S", 0.01)
    exporter = Blocks()
    telling(monkeypatch, processor=SimpleSpanProcessor(exporter))

    def handler(value: int) -> Any:
        return None if blocked_at == "process" else fs.Send("out", value)

    try:
        _, stats = threaded(app_of(handler, concurrency=2), range(50), lambda stats: stats["accepted"] == 50)
        assert exporter.entered.is_set()
        assert not exporter.go.is_set()
        assert stats["accepted"] == 50
    finally:
        exporter.go.set()


@pytest.mark.parametrize(
    "processor", [SimpleSpanProcessor(Raises()), RaisesAt("start"), RaisesAt("end")], ids=["export", "start", "end"]
)
@pytest.mark.parametrize("batch", [None, fs.Batch(5, within=0.1)], ids=["single", "batches"])
def test_what_exporters_and_processors_raise_touches_no_record(monkeypatch, caplog, processor, batch):
    telling(monkeypatch, processor=processor)
    seen: list[int] = []

    async def one(value: int) -> fs.Send:
        seen.append(value)
        return fs.Send("out", value)

    async def many(rows: fs.Records[int]) -> None:
        for row in rows:
            seen.append(row.value)
            row.delivery.send("out", row.value)

    result = run_agent(one if batch is None else many, range(20), batch=batch)

    assert sorted(seen) == list(range(20))
    assert result.report.accepted == 20
    assert sorted(record.value for record in result.out) == list(range(20))
    own = [line for line in caplog.records if line.name == "flowshare.telemetry"]
    assert len(own) <= 1  # said once


def test_a_sampler_that_raises_touches_no_record(monkeypatch, caplog):
    telling(monkeypatch, sampler=NoSampler())

    async def handler(value: int, delivery: fs.Delivery) -> None:
        if delivery.attempt == 1:
            raise ConnectionError("down")

    result = run_agent(handler, range(3), exactly_once=True)

    assert result.report.accepted == 3
    assert [line.getMessage() for line in caplog.records if line.name == "flowshare.telemetry"] == [
        "telemetry failed, records are handled without it: RuntimeError: no decision (this is said once)"
    ]


class NoPropagator(TextMapPropagator):
    fields: ClassVar[set[str]] = set()

    def extract(self, *_: Any, **__: Any) -> Any:
        raise RuntimeError("cannot be read")

    def inject(self, *_: Any, **__: Any) -> None:
        raise RuntimeError("cannot be told")


@pytest.mark.parametrize(
    "options", [{}, {"at_most_once": True}, {"exactly_once": True}, {"batch": fs.Batch(3, within=1)}]
)
def test_a_propagator_that_raises_touches_no_record(monkeypatch, options):
    telling(monkeypatch)
    monkeypatch.setattr(propagate, "get_global_textmap", NoPropagator)

    async def one(value: int) -> fs.Send:
        logging.getLogger("shop").warning("working")
        return fs.Send("out", value)

    async def many(rows: fs.Records[int]) -> None:
        for row in rows:
            row.delivery.send("out", row.value)

    result = run_agent(many if "batch" in options else one, range(3), **options)

    assert sorted(record.value for record in result.out) == [0, 1, 2]
    assert result.report.accepted == 3


def test_providers_that_are_none_are_left_alone(monkeypatch, caplog):
    monkeypatch.setattr(active, "providers", lambda: (object(), object()))

    async def handler(value: int) -> None: ...

    assert run_agent(handler, [1]).report.accepted == 1
    assert "cannot be used with the providers" in caplog.text


def test_what_an_exception_says_is_told_in_bounds(monkeypatch):
    told = telling(monkeypatch)

    class Mute(Exception):
        def __str__(self) -> str:
            raise ValueError("cannot say")

    async def handler(value: int) -> None:
        raise Mute if value else ValueError("x" * 100_000)

    run_agent(handler, [0, 1], retry=None)

    for span in told.of("process"):
        assert len(span.events[0].attributes["exception.message"]) <= 1_000
        assert len(span.events[0].attributes["exception.stacktrace"]) <= 8_001
        assert len(span.status.description) <= 200


def test_spans_that_find_no_room_are_dropped_and_counted(caplog):
    go, done = threading.Event(), []
    one = Ender(waiting_max=3)
    one.put(go.wait)
    blocking_until(lambda: len(one._waiting), good=lambda waiting: waiting == 0)

    for number in range(10):
        one.put(lambda number=number: done.append(number))

    assert one.dropped == 7
    assert not one.flush(0)
    go.set()
    assert one.flush(60)
    assert done == [0, 1, 2]
    assert [line.levelno for line in caplog.records] == [logging.WARNING]
    one.close()


def test_what_ending_a_span_raises_ends_no_other(caplog):
    done: list[int] = []
    one = Ender()

    def bad() -> None:
        raise SystemExit(1)

    for step in (bad, lambda: done.append(1), bad, lambda: done.append(2)):
        one.put(step)

    assert one.flush(60)
    assert done == [1, 2]
    assert len(caplog.records) == 1
    one.close()


def test_topics_of_metrics_are_bounded(monkeypatch):
    monkeypatch.setattr(instruments, "TOPICS_MAX", 3)
    told = telling(monkeypatch)

    async def handler(value: int) -> fs.Send:
        return fs.Send(f"out-{value}", value)

    run_agent(handler, range(5))

    sent = {
        about["messaging.destination.name"]: count for about, count in told.metrics()["messaging.client.sent.messages"]
    }
    assert sent.pop(OTHER) == 3
    assert len(sent) == 3
    assert len({one.name for one in told.of("send")}) == 6


def test_kinds_of_errors_are_bounded():
    kinds = Few(KINDS_MAX)

    found = [kinds.of(f"shop.Error{n}") for n in range(KINDS_MAX + 5)]

    assert found[KINDS_MAX:] == [OTHER] * 5
    assert kinds.of("shop.Error0") == "shop.Error0"


@pytest.mark.parametrize(
    ("key", "text"),
    [
        (None, None),
        (b"c-1", "c-1"),
        ("Müller".encode(), "Müller"),
        (b"\xff\xfe", None),
        (b"a\nb", None),
        (b"x" * 1_000, "x" * (KEY_MAX - 1) + "…"),
        ("ü".encode() * 10_000, "ü" * (KEY_MAX - 1) + "…"),
    ],
)
def test_a_key_is_told_where_it_is_text(key, text):
    assert key_text(key) == text


def test_metrics_are_those_of_the_conventions_with_few_attributes(monkeypatch):
    told = telling(monkeypatch)

    async def handler(value: int, delivery: fs.Delivery) -> Any:
        if value == 0 and delivery.attempt == 1:
            raise ConnectionError("down")
        return fs.Send("out", value)

    run_agent(handler, range(5))

    found = told.metrics()
    assert found.keys() == {
        "messaging.process.duration",
        "messaging.client.consumed.messages",
        "messaging.client.sent.messages",
        "messaging.client.operation.duration",
    }
    handled = {about["flowshare.outcome"]: (about, count) for about, count in found["messaging.process.duration"]}
    assert {outcome: count for outcome, (_, count) in handled.items()} == {"accepted": 5, "retried": 1}
    assert handled["retried"][0] == {
        "messaging.system": "kafka",
        "messaging.operation.name": "process",
        "messaging.consumer.group.name": "t.agent",
        "messaging.destination.name": "in",
        "flowshare.outcome": "retried",
        "error.type": "builtins.ConnectionError",
    }
    [(_, consumed)] = found["messaging.client.consumed.messages"]
    assert consumed == 6
    sent = {about["messaging.destination.name"]: count for about, count in found["messaging.client.sent.messages"]}
    assert sent == {"in": 5, "out": 5}
    kinds = {about["messaging.operation.name"] for about, _ in found["messaging.client.operation.duration"]}
    assert kinds == {"send", "settle"}


def test_lines_of_a_handler_carry_the_span_it_runs_in(monkeypatch, caplog):
    told: Told = telling(monkeypatch)

    async def handler(value: int) -> None:
        logging.getLogger("shop").warning("working")

    run_agent(handler, [1])

    [span] = told.of("process")
    [line] = [one for one in caplog.records if one.name == "shop"]
    assert line.flowshare_trace_id == f"{span.context.trace_id:032x}"
    assert line.flowshare_span_id == f"{span.context.span_id:016x}"


def test_without_opentelemetry_lines_carry_what_the_record_tells(caplog):
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    app = fs.App("t")

    @app.share_agent("in")
    async def agent(value: int, delivery: fs.Delivery) -> None:
        logging.getLogger("shop").warning("working")
        if value == 1 and delivery.attempt == 1:
            raise ConnectionError("down")

    async def story() -> None:
        async with fs.testing.harness(app) as bus:
            await bus.send("in", 1, headers={"traceparent": parent})
            await bus.send("in", 2)
            await bus.run_until_idle()

    fs.testing.run(story())
    sender, nobody = ("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"), ("", "")
    lines = [one for one in caplog.records if one.name == "shop"]
    assert [(one.flowshare_trace_id, one.flowshare_span_id) for one in lines] == [sender, nobody, sender]
    [again] = [one for one in caplog.records if "tried again in" in one.getMessage()]
    assert (again.flowshare_trace_id, again.flowshare_span_id) == sender
    assert (again.flowshare_agent, again.flowshare_record, again.flowshare_attempt) == ("agent", "in-0@0", 1)
    assert again.flowshare == ""  # its text names the record already


@pytest.mark.parametrize("options", [{}, {"at_most_once": True, "retry": None}])
def test_metrics_of_acknowledgements_say_the_topic_of_what_is_not_sampled_too(monkeypatch, options):
    told = telling(monkeypatch, sampler=ALWAYS_OFF)

    async def handler(value: int) -> None: ...

    run_agent(handler, range(3), **options)

    about = [about for about, _ in told.metrics()["messaging.client.operation.duration"]]
    settled = [one for one in about if one["messaging.operation.name"] == "settle"]
    assert [one.get("messaging.destination.name") for one in settled] == ["in"]


def test_with_a_provider_of_meters_only_there_are_metrics_and_contexts_go_on_as_without(monkeypatch):
    told = telling(monkeypatch)
    told.providers = trace.NoOpTracerProvider(), told.providers[1]
    parent = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    app = fs.App("t")

    @app.share_agent("in", name="agent")
    async def agent(value: int) -> fs.Send:
        return fs.Send("out", value)

    async def story() -> list[Any]:
        async with fs.testing.harness(app) as bus:
            await bus.send("in", 1, headers={"traceparent": parent})
            await bus.send("in", 2)
            await bus.run_until_idle()
            return bus.records("out")

    records = fs.testing.run(story())
    assert [record.headers for record in records] == [{"traceparent": parent}, {}]
    [(_, handled)] = told.metrics()["messaging.process.duration"]
    assert handled == 2


def test_nothing_is_found_where_nobody_has_set_a_provider():
    assert active.providers() is None
    assert active.find(client_id="t", backend="memory") is None


@pytest.mark.parametrize(
    ("environment", "asks"),
    [
        ({}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://localhost:4318"}, True),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": " "}, False),
        ({"OTEL_TRACES_EXPORTER": "console"}, True),
        ({"OTEL_TRACES_EXPORTER": "console", "OTEL_SDK_DISABLED": "TRUE"}, False),
        ({"OTEL_SERVICE_NAME": "shop"}, False),
    ],
)
def test_the_environment_asks_by_an_endpoint_or_an_exporter(environment, asks):
    assert active.asked(environment) is asks
