"""Spans of share agents: what is told of a record's handling, of what is sent for it, and of its settlement."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from opentelemetry import baggage, trace
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ParentBased, TraceIdRatioBased
from opentelemetry.trace import SpanKind, StatusCode

import flowshare as fs
from flowshare.agents.telemetry import conventions as names
from flowshare.backend.base import Capabilities, Feature, Leader
from flowshare.backend.memory import MemoryBackend
from flowshare.testing import Bus
from tests.agents.agents_kit import one_agent, run_agent, run_app
from tests.agents.telemetry.kit import PARENT, TRACE, Told, id_of, linked, parent_of, telling
from tests.agents.test_threads import app_of, threaded

SPAN = int(PARENT.split("-")[2], 16)


@pytest.fixture
def told(monkeypatch) -> Told:
    return telling(monkeypatch)


def run_with_headers(app: fs.App, *sent: tuple[Any, dict[str, Any]]) -> None:
    async def story() -> None:
        async with fs.testing.harness(app) as bus:
            for value, headers in sent:
                await bus.send("in", value, headers=headers, key="k")
            await bus.run_until_idle()

    fs.testing.run(story())


# --- process ----------------------------------------------------------------------------------------------------------


def test_a_handling_is_a_child_of_the_span_that_sent_its_record(told):
    async def handler(value: int) -> None: ...

    run_with_headers(one_agent(handler), (1, {"traceparent": PARENT, "tracestate": "a=b"}))

    [span] = told.of("process")
    assert span.name == "process in"
    assert span.kind is SpanKind.CONSUMER
    assert span.parent is not None
    assert (f"{span.parent.trace_id:032x}", span.parent.span_id) == (TRACE, SPAN)
    assert linked(span) == [SPAN]
    assert span.context.trace_state["a"] == "b"
    assert span.status.status_code is StatusCode.UNSET
    assert span.attributes == {
        "messaging.system": "kafka",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.consumer.group.name": "t.agent",
        "messaging.client.id": "t",
        "messaging.destination.name": "in",
        "messaging.destination.partition.id": "0",
        "messaging.kafka.offset": 0,
        "messaging.kafka.message.key": "k",
        "flowshare.agent": "agent",
        "flowshare.backend": "memory",
        "flowshare.attempt": 1,
        "flowshare.outcome": "accepted",
    }
    assert span.instrumentation_scope.schema_url == names.SCHEMA_URL


def test_each_attempt_is_a_span_with_its_outcome_and_what_was_raised(told):
    async def handler(value: int, delivery: fs.Delivery) -> None:
        if delivery.attempt < 3:
            raise ConnectionError("down")

    run_with_headers(one_agent(handler, retry=fs.Retry(max_attempts=3, delay=1)), (1, {"traceparent": PARENT}))

    spans = told.of("process")
    assert [one.attributes["flowshare.attempt"] for one in spans] == [1, 2, 3]
    assert [one.attributes["flowshare.outcome"] for one in spans] == ["retried", "retried", "accepted"]
    assert [one.status.status_code for one in spans] == [StatusCode.ERROR, StatusCode.ERROR, StatusCode.UNSET]
    assert [parent_of(one) for one in spans] == [SPAN] * 3
    assert spans[0].attributes["error.type"] == "builtins.ConnectionError"
    [event] = spans[0].events
    assert event.name == "exception"
    assert event.attributes["exception.message"] == "down"
    assert "in handler" in event.attributes["exception.stacktrace"]


@pytest.mark.parametrize(
    ("raised", "outcome", "error"),
    [
        (fs.Release(), "released", None),
        (fs.Reject("no"), "rejected", "flowshare.Reject"),
        (KeyError("a"), "rejected", "builtins.KeyError"),
        (SystemExit(3), "retried", "builtins.SystemExit"),
    ],
)
def test_what_a_handler_raises_is_its_spans_outcome(told, raised, outcome, error):
    async def handler(value: int, delivery: fs.Delivery) -> None:
        if delivery.attempt == 1:
            raise raised

    run_agent(handler, [1], reject=(KeyError,))

    span = told.of("process")[0]
    assert span.attributes["flowshare.outcome"] == outcome
    assert span.attributes.get("error.type") == error


def test_a_value_that_cannot_be_read_has_a_span_that_failed(told):
    async def handler(value: int) -> None: ...

    run_agent(handler, ["text"])

    [span] = told.of("process")
    assert span.attributes["flowshare.outcome"] == "rejected"
    assert span.attributes["error.type"].endswith("UndecodableValue")


def test_a_handler_past_its_timeout_is_told_as_such(told):
    async def handler(value: int, delivery: fs.Delivery) -> None:
        if delivery.attempt == 1:
            await asyncio.sleep(60)

    run_agent(handler, [1], timeout=5)

    assert told.of("process")[0].attributes["error.type"] == "builtins.TimeoutError"


def test_what_was_only_fetched_ahead_and_given_back_has_no_span(told):
    async def handler(value: int) -> None:
        await asyncio.sleep(20)

    async def during(bus: Bus) -> None:
        await bus.advance(10)
        assert bus.host.runtimes["agent"].stats()["unrun"] >= 1
        assert (told.of("process"), told.of("settle")) == ([], [])

    run_agent(handler, [1, 2, 3], concurrency=1, during=during)

    assert [one.attributes["messaging.kafka.offset"] for one in told.of("process")] == [0, 1, 2]
    assert sum(one.attributes["messaging.batch.message_count"] for one in told.of("settle")) == 3


def test_spans_of_a_handler_and_of_its_tasks_are_children_of_its_handling(told):
    tracer = told.providers[0].get_tracer("shop")

    async def further() -> None:
        with tracer.start_as_current_span("query"):
            await asyncio.sleep(0)

    async def handler(value: int) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(further())
            group.create_task(further())
        await asyncio.to_thread(lambda: tracer.start_span("in a thread").end())

    run_agent(handler, range(5), concurrency=3)

    handlings = {id_of(one) for one in told.of("process")}
    inner = [one for one in told.spans if one.name in ("query", "in a thread")]
    assert len(inner) == 15
    assert {parent_of(one) for one in inner} == handlings


def test_spans_of_a_handler_in_a_thread_are_children_of_its_handling(told):
    tracer = told.providers[0].get_tracer("shop")
    seen: list[str | None] = []

    def handler(value: int, delivery: fs.Delivery) -> None:
        with tracer.start_as_current_span("query"):
            seen.append(fs.tracing.traceparent())
        if delivery.attempt == 1 and value == 0:
            raise ConnectionError("down")

    threaded(app_of(handler, concurrency=3, retry=fs.Retry(delay=0)), range(9), lambda stats: stats["accepted"] == 9)

    handlings = told.of("process")
    assert len(handlings) == 10
    assert sorted(parent_of(one) for one in told.spans if one.name == "query") == sorted(map(id_of, handlings))
    assert {text.split("-")[2] for text in seen} == {f"{id_of(one):016x}" for one in told.spans if one.name == "query"}


@pytest.mark.parametrize("is_async", [True, False])
def test_middleware_runs_inside_of_the_handlings_span(told, is_async):
    tracer = told.providers[0].get_tracer("shop")

    def work(value: int) -> None:
        tracer.start_span("inner").end()

    async def work_async(value: int) -> None:
        work(value)

    app = app_of(work_async if is_async else work)

    @app.middleware
    async def around(delivery: fs.Delivery, call_next: Any) -> Any:
        with tracer.start_as_current_span("around"):
            return await call_next()

    threaded(app, [1], lambda stats: stats["accepted"] == 1)

    [handling], [around_it] = told.of("process"), [one for one in told.spans if one.name == "around"]
    [inner] = [one for one in told.spans if one.name == "inner"]
    assert parent_of(around_it) == id_of(handling)
    assert parent_of(inner) == id_of(around_it)


def test_baggage_of_a_record_is_there_in_its_handler_and_goes_on(told):
    seen: list[object] = []

    async def handler(value: int) -> fs.Send:
        seen.append(baggage.get_baggage("customer"))
        return fs.Send("out", value)

    app = one_agent(handler)

    async def story() -> list[Any]:
        async with fs.testing.harness(app) as bus:
            await bus.send("in", 1, headers={"traceparent": PARENT, "baggage": "customer=c1"})
            await bus.run_until_idle()
            return bus.records("out")

    [record] = fs.testing.run(story())
    assert seen == ["c1"]
    assert record.headers["baggage"] == b"customer=c1"


def test_a_handler_leaves_no_span_behind_for_the_next_one(told):
    current: list[int] = []

    async def handler(value: int) -> None:
        current.append(trace.get_current_span().get_span_context().span_id)
        if value % 2:
            raise fs.Reject("odd")

    run_agent(handler, range(6), concurrency=1)

    spans = told.of("process")
    assert current == [id_of(one) for one in spans]
    assert [parent_of(one) for one in spans] == [id_of(one) for one in told.of("send", "in")]


# --- batches ----------------------------------------------------------------------------------------------------------


def test_a_batch_is_one_span_that_links_to_what_sent_its_records(told):
    async def handler(rows: fs.Records[int]) -> None: ...

    parents = [f"00-{n:032x}-{n:016x}-01" for n in range(1, 4)]
    app = one_agent(handler, batch=fs.Batch(10, within=1))
    run_with_headers(app, *((n, {"traceparent": parent}) for n, parent in enumerate(parents)))

    [span] = told.of("process")
    assert span.parent is None
    assert linked(span) == [1, 2, 3]
    assert [link.attributes["messaging.kafka.offset"] for link in span.links] == [0, 1, 2]
    assert span.attributes["messaging.batch.message_count"] == 3
    assert span.attributes["messaging.destination.partition.id"] == "0"
    assert "messaging.kafka.offset" not in span.attributes
    assert span.attributes["flowshare.outcome"] == "accepted"


def test_a_batch_links_to_no_more_than_an_sdk_keeps(told):
    async def handler(rows: fs.Records[int]) -> None: ...

    app = one_agent(handler, batch=fs.Batch(300, within=1))
    run_with_headers(app, *((n, {"traceparent": f"00-{n + 1:032x}-{n + 1:016x}-01"}) for n in range(300)))

    [span] = told.of("process")
    assert len(span.links) == 128
    assert span.attributes["messaging.batch.message_count"] == 300


def test_a_batch_whose_records_differ_says_so(told):
    async def handler(rows: fs.Records[int]) -> None:
        rows.reject(rows[0], "bad")

    run_agent(handler, range(3), batch=fs.Batch(3, within=1))

    [span] = told.of("process")
    assert span.attributes["flowshare.outcome"] == "mixed"
    assert span.status.status_code is StatusCode.ERROR


def test_a_batch_in_a_thread_has_its_span_there(told):
    tracer = told.providers[0].get_tracer("shop")

    def handler(rows: fs.Records[int]) -> None:
        tracer.start_span("inner").end()

    threaded(app_of(handler, batch=fs.Batch(5, within=0.05)), range(5), lambda stats: stats["accepted"] == 5)

    inner = [one for one in told.spans if one.name == "inner"]
    assert {parent_of(one) for one in inner} == {id_of(one) for one in told.of("process")}


# --- send -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["returned", "sink", "delivery", "topic"])
def test_what_a_handler_sends_is_a_child_of_its_handling_and_carries_the_span(told, way):
    async def handler(value: int, delivery: fs.Delivery) -> Any:
        if way == "delivery":
            delivery.send("out", value, key="k")
        elif way == "topic":
            await app.topic("out").send(value=value, key="k")
        else:
            return value if way == "sink" else fs.Send("out", value, key="k")
        return None

    app = one_agent(handler, sink=["out"] if way == "sink" else [])

    async def story() -> list[Any]:
        async with fs.testing.harness(app) as bus:
            await bus.send("in", 1, headers={"traceparent": PARENT})
            await bus.run_until_idle()
            return bus.records("out")

    [record] = fs.testing.run(story())
    [handling], [sent] = told.of("process"), told.of("send", "out")
    assert sent.kind is SpanKind.PRODUCER
    assert parent_of(sent) == id_of(handling)
    assert record.headers["traceparent"].decode() == f"00-{TRACE}-{id_of(sent):016x}-01"
    assert sent.attributes["messaging.destination.name"] == "out"
    assert sent.attributes["messaging.destination.partition.id"] == "0"
    assert sent.attributes["messaging.kafka.offset"] == 0
    assert sent.attributes.get("messaging.kafka.message.key") == (None if way == "sink" else "k")
    assert "messaging.consumer.group.name" not in sent.attributes


def test_what_is_sent_inside_a_span_of_the_application_is_its_child(told):
    tracer = told.providers[0].get_tracer("shop")

    async def handler(value: int, delivery: fs.Delivery) -> None:
        with tracer.start_as_current_span("inner"):
            delivery.send("out", value)

    run_agent(handler, [1])

    [inner] = [one for one in told.spans if one.name == "inner"]
    assert parent_of(told.of("send", "out")[0]) == id_of(inner)


@pytest.mark.parametrize("way", ["header", "use"])
def test_a_context_that_the_application_puts_there_stays_and_is_linked(told, way):
    async def handler(value: int) -> Any:
        if way == "header":
            return fs.Send("out", value, headers={"traceparent": PARENT})
        with fs.tracing.use(PARENT):
            await app.topic("out").send(value=value)
        return None

    app = one_agent(handler)

    async def story() -> list[Any]:
        async with fs.testing.harness(app) as bus:
            await bus.send("in", 1)
            await bus.run_until_idle()
            return bus.records("out")

    [record] = fs.testing.run(story())
    [sent] = told.of("send", "out")
    assert record.headers == {"traceparent": PARENT.encode()}
    assert (sent.kind, parent_of(sent), linked(sent)) == (SpanKind.CLIENT, SPAN, [SPAN])


def test_a_dead_letter_is_sent_by_the_handling_that_failed(told):
    async def handler(value: int) -> None:
        raise fs.Reject("no")

    app = one_agent(handler)

    async def story() -> list[Any]:
        async with fs.testing.harness(app) as bus:
            await bus.send("in", 1, headers={"traceparent": PARENT, "mine": "x"})
            await bus.run_until_idle()
            return bus.records("t.agent.dlq")

    [letter] = fs.testing.run(story())
    [handling], [sent] = told.of("process"), told.of("send", "t.agent.dlq")
    assert parent_of(sent) == id_of(handling)
    assert letter.headers["traceparent"].decode() == f"00-{TRACE}-{id_of(sent):016x}-01"
    assert letter.headers["mine"] == b"x"


class Poor(Capabilities):
    """As Kafka's brokers, but for limits that an app may set."""

    own_limits = Feature(*Leader)


def test_a_retry_that_waits_in_its_topic_is_between_the_two_handlings(told, monkeypatch):
    monkeypatch.setattr(MemoryBackend, "capabilities", property(lambda _: Poor(leader=Leader.BROKERS, settling=False)))

    async def handler(value: int, delivery: fs.Delivery) -> None:
        if delivery.attempt == 1:
            raise ConnectionError("down")

    run_agent(handler, [1], retry=fs.Retry(max_attempts=3, delay=20.0))

    first, second = told.of("process")
    [waits] = told.of("send", "t.agent.retry")
    assert parent_of(waits) == id_of(first)
    assert parent_of(second) == id_of(waits)
    assert [one.name for one in told.of("settle")] == ["settle in", "settle t.agent.retry"]


def test_an_output_that_cannot_be_sent_is_told(told):
    async def handler(value: int, delivery: fs.Delivery) -> Any:
        return fs.Send("out", b"x" * 2_000_000) if delivery.attempt == 1 else None

    run_agent(handler, [1])

    [sent] = told.of("send", "out")
    assert sent.status.status_code is StatusCode.ERROR
    assert sent.attributes["error.type"].endswith("RecordTooLarge")


def test_nothing_is_told_of_what_a_failed_handler_would_have_sent(told):
    async def handler(value: int, delivery: fs.Delivery) -> None:
        delivery.send("out", value)
        raise fs.Reject("no")

    run_agent(handler, [1])

    assert told.of("send", "out") == []


# --- settle -----------------------------------------------------------------------------------------------------------


def test_the_acknowledgement_of_a_single_record_is_a_child_of_its_handling(told):
    async def handler(value: int) -> None: ...

    run_agent(handler, [1])

    [handling], [settled] = told.of("process"), told.of("settle")
    assert (settled.name, settled.kind, parent_of(settled)) == ("settle in", SpanKind.CLIENT, id_of(handling))
    assert settled.attributes["messaging.batch.message_count"] == 1
    assert settled.attributes["flowshare.settle.accepted"] == 1
    assert settled.attributes["messaging.consumer.group.name"] == "t.agent"


def test_an_acknowledgement_of_many_links_to_their_handlings_and_counts_what_it_says(told):
    async def handler(value: int, delivery: fs.Delivery) -> None:
        if value == 0:
            raise fs.Reject("no")
        if value == 1 and delivery.attempt == 1:
            raise fs.Release(delay=10)

    run_agent(handler, range(50), concurrency=50, dead_letter=None)

    settled = told.of("settle")
    assert sum(one.attributes.get("flowshare.settle.accepted", 0) for one in settled) == 49
    assert sum(one.attributes.get("flowshare.settle.released", 0) for one in settled) == 1
    assert sum(one.attributes.get("flowshare.settle.rejected", 0) for one in settled) == 1
    named = [span for one in settled for span in (linked(one) or [parent_of(one)])]
    assert sorted(named) == sorted(id_of(one) for one in told.of("process"))


def test_an_acknowledgement_of_a_batch_links_to_it_once(told):
    async def handler(rows: fs.Records[int]) -> None: ...

    run_agent(handler, range(10), batch=fs.Batch(10, within=1))

    [handling], [settled] = told.of("process"), told.of("settle")
    assert linked(settled) == [id_of(handling)]
    assert settled.attributes["messaging.batch.message_count"] == 10


def test_a_settle_covers_the_outputs_that_are_written_with_it(told):
    async def handler(value: int) -> Any:
        return [fs.Send("out", value), fs.Send("out", value)]

    app = one_agent(handler, exactly_once=True)

    async def story() -> list[Any]:
        async with fs.testing.harness(app) as bus:
            await bus.send("in", 1, headers={"traceparent": PARENT})
            await bus.run_until_idle()
            return bus.records("out")

    records = fs.testing.run(story())
    [handling], [settled] = told.of("process"), told.of("settle")
    assert parent_of(settled) == id_of(handling)
    assert settled.attributes["flowshare.settle.outputs"] == 2
    assert told.of("send") == [one for one in told.of("send") if one.name == "send in"]
    assert [one.headers["traceparent"].decode() for one in records] == [f"00-{TRACE}-{id_of(handling):016x}-01"] * 2


def test_a_rejected_record_and_its_letter_are_one_settle_exactly_once(told):
    async def handler(value: int) -> None:
        raise fs.Reject("no")

    app = one_agent(handler, exactly_once=True)
    seen = run_app(app, [1])

    [handling], [settled] = told.of("process"), told.of("settle")
    assert settled.attributes["flowshare.settle.rejected"] == 1
    assert settled.attributes["flowshare.settle.outputs"] == 1
    assert seen.dead[0].headers["traceparent"].decode().split("-")[2] == f"{id_of(handling):016x}"


def test_at_most_once_the_accept_comes_before_the_handling_and_belongs_to_what_sent_the_record(told):
    async def handler(value: int) -> None: ...

    run_with_headers(one_agent(handler, at_most_once=True), (1, {"traceparent": PARENT}))

    [handling], [settled] = told.of("process"), told.of("settle")
    assert parent_of(settled) == parent_of(handling) == SPAN
    assert settled.end_time <= handling.start_time


def test_an_acknowledgement_that_is_refused_is_told_as_failed(told):
    gate = asyncio.Event()

    async def handler(value: int, delivery: fs.Delivery) -> None:
        if delivery.attempt == 1:
            await gate.wait()

    app = one_agent(handler, renew=False, timeout=9, lock_duration=10)

    async def story() -> None:
        async with fs.testing.harness(app) as bus:
            await bus.send("in", 1)
            await bus.advance(1)
            runtime = app.host.runtimes["agent"]
            [chunk] = [chunk for runner in runtime._pool.running() for chunk, _ in runner.records()]
            backend = app.host.backend
            del backend
            chunk.generation += 1  # as after a connection was lost: nothing of before is held
            gate.set()
            await bus.run_until_idle()

    fs.testing.run(story())
    first = told.of("settle")[0]
    assert first.status.status_code is StatusCode.ERROR
    assert first.attributes["error.type"]


# --- sampling, and nothing at all -------------------------------------------------------------------------------------


def test_what_is_not_sampled_is_told_nowhere_and_passed_on_as_not_sampled(monkeypatch):
    told = telling(monkeypatch, sampler=ParentBased(ALWAYS_OFF))

    async def handler(value: int) -> fs.Send:
        return fs.Send("out", value)

    seen = run_agent(handler, [1])

    assert told.spans == ()
    assert int(seen.out[0].headers["traceparent"].split(b"-")[3], 16) & 1 == 0
    assert told.metrics()["messaging.process.duration"][0][1] == 1


def test_the_senders_decision_on_sampling_is_kept(monkeypatch):
    told = telling(monkeypatch, sampler=ParentBased(TraceIdRatioBased(0.0)))

    async def handler(value: int) -> None: ...

    run_with_headers(one_agent(handler), (1, {"traceparent": PARENT}), (2, {"traceparent": PARENT[:-1] + "0"}))

    assert [one.attributes["messaging.kafka.offset"] for one in told.of("process")] == [0]


def test_without_a_provider_there_is_nothing_of_it_in_a_pool():
    async def handler(value: int) -> None: ...

    app = one_agent(handler)

    async def story() -> Any:
        async with fs.testing.harness(app) as bus:
            await bus.send("in", 1)
            await bus.run_until_idle()
            runtime = app.host.runtimes["agent"]
            return runtime._pool.spans, runtime._feeder._spans, runtime._feeder._acks._spans, app.host.sender

    *spans, sender = fs.testing.run(story())
    assert spans == [None] * 3
    assert type(sender).__name__ == "Producer"
    assert fs.tracing.ambient == []


# --- sent without agents, and headers of strangers --------------------------------------------------------------------


@pytest.mark.asyncio
async def test_a_sender_without_agents_has_send_spans_below_its_own(told):
    tracer = told.providers[0].get_tracer("web")
    app = fs.App("t", broker="memory://")

    async with app.sending():
        with tracer.start_as_current_span("request"):
            await app.topic("out").send(value=1)
            await app.topic("out").send_soon(value=2)

    [request] = [one for one in told.spans if one.name == "request"]
    sends = told.of("send", "out")
    assert [parent_of(one) for one in sends] == [id_of(request)] * 2
    assert [one.attributes["messaging.kafka.offset"] for one in sends] == [0, 1]


def test_a_sender_on_a_thread_has_send_spans_below_its_own(told, tmp_path):
    tracer = told.providers[0].get_tracer("web")
    app = fs.App("t", broker=f"embedded://{tmp_path / 'log'}")

    with tracer.start_as_current_span("request"):
        app.topic("out").send_sync(value=1)
    asyncio.run(app.sending_thread.give_way())

    [request], [sent] = [one for one in told.spans if one.name == "request"], told.of("send", "out")
    assert parent_of(sent) == id_of(request)


@pytest.mark.parametrize(
    "headers",
    [
        [("traceparent", b"nonsense")],
        [("traceparent", b"\xff" * 55)],
        [("traceparent", None)],
        [("traceparent", PARENT.encode() + b"-" + b"x" * 100_000)],
        [("traceparent", b"00-" + b"0" * 32 + b"-" + b"0" * 16 + b"-01")],
        [("TraceParent", b"nonsense"), ("tracestate", b"=" * 9_000), ("baggage", b",=;" * 3_000)],
        [(f"h{n}", b"x") for n in range(5_000)],
        [("baggage", b"a=" + b"x" * 100_000)],
    ],
    ids=["text", "bytes", "null", "long", "zeros", "state and baggage", "many", "large baggage"],
)
def test_headers_of_strangers_cost_a_record_no_more_than_its_parent(told, caplog, headers):
    async def handler(value: int) -> fs.Send:
        return fs.Send("out", value)

    app = one_agent(handler)

    async def story() -> list[Any]:
        async with fs.testing.harness(app) as bus:
            await app.host.producer.send("in", b"1", headers=headers)
            await bus.run_until_idle()
            return bus.records("out")

    [record] = fs.testing.run(story())
    [handling] = told.of("process")
    assert handling.attributes["flowshare.outcome"] == "accepted"
    assert handling.parent is None
    assert sum(len(name) + len(value) for name, value in record.headers.items()) < 9_000
    assert [line for line in caplog.records if line.name == "flowshare.telemetry"] == []
