"""An SDK by the `OTEL_*` variables: `flowshare worker` exports where the extra is there and an endpoint is named."""

from __future__ import annotations

import http.server
import json
import signal
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from flowshare.agents.telemetry import active, sdk
from tests.agents.processes import Processes
from tests.waiting import LIMIT_S, blocking_until

APP = """
import logging, os
import flowshare as fs

app = fs.App("shop", broker=os.environ["URL"])

@app.share_agent("orders", sink=["paid"])
async def bill(value: bytes) -> bytes:
    logging.getLogger("shop").warning("billing")
    return value
"""


class Collector(http.server.BaseHTTPRequestHandler):
    """Takes OTLP over HTTP and keeps it."""

    got: list[tuple[str, bytes]]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Content-Encoding") == "gzip":
            import gzip

            body = gzip.decompress(body)
        self.got.append((self.path, body))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: Any) -> None: ...


@pytest.fixture
def collector() -> Iterator[tuple[str, list[tuple[str, bytes]]]]:
    got: list[tuple[str, bytes]] = []
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), type("Mine", (Collector,), {"got": got}))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}", got
    server.shutdown()
    server.server_close()


def attributes_of(resource: Any) -> dict[str, str]:
    return {one.key: one.value.string_value for one in resource.attributes}


@pytest.mark.slow
def test_a_worker_exports_spans_and_metrics_to_the_endpoint_that_it_is_told(tmp_path, collector):
    endpoint, got = collector
    (tmp_path / "shop.py").write_text(APP)
    processes = Processes(tmp_path, f"embedded://{tmp_path / 'log'}", OTEL_EXPORTER_OTLP_ENDPOINT=endpoint)
    processes.send("orders", b"1", b"2")
    worker = processes.cli("worker", "shop:app", "--log-format", "json")
    try:
        blocking_until(
            lambda: processes.log().count('"message": "billing"'), "both are handled", good=lambda count: count == 2
        )
    finally:
        worker.send_signal(signal.SIGTERM)
        code = worker.wait(LIMIT_S)

    assert code == 0
    spans: dict[str, set[str]] = {}
    for path, body in got:
        if path == "/v1/traces":
            for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                about = attributes_of(resource.resource)
                assert about["service.name"] == "shop"
                assert about["service.instance.id"]
                for scope in resource.scope_spans:
                    for span in scope.spans:
                        spans.setdefault(span.name, set()).add(span.trace_id.hex())
    assert spans.keys() == {"process orders", "send paid", "settle orders"}
    metrics = {
        metric.name
        for path, body in got
        if path == "/v1/metrics"
        for resource in ExportMetricsServiceRequest.FromString(body).resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
    }
    assert "messaging.process.duration" in metrics
    lines = [json.loads(line) for line in processes.log().splitlines() if '"billing"' in line]
    assert {line["trace_id"] for line in lines} == spans["process orders"]


OWN = """
import os
import flowshare as fs
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor

app = fs.App("shop", broker=os.environ["URL"])

@app.on_start
async def trace_it() -> None:
    provider = TracerProvider()
    exporter = ConsoleSpanExporter(out=open(os.environ["JOURNAL"], "a"), formatter=lambda span: span.name + "\\n")
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)

@app.share_agent("orders")
async def bill(value: bytes) -> None:
    await app.topic("paid").send(value=value)
"""


@pytest.mark.slow
def test_providers_that_an_on_start_function_sets_are_those_that_are_told(tmp_path):
    (tmp_path / "shop.py").write_text(OWN)
    url = f"embedded://{tmp_path / 'log'}"
    processes = Processes(tmp_path, url, OTEL_EXPORTER_OTLP_ENDPOINT="http://127.0.0.1:1")
    processes.send("orders", b"1")
    worker = processes.cli("worker", "shop:app")
    wanted = [["process", "orders"], ["send", "paid"], ["settle", "orders"]]
    try:
        blocking_until(processes.notes, "spans are told", good=lambda found: sorted(found) == wanted)
    finally:
        worker.send_signal(signal.SIGTERM)

    assert worker.wait(LIMIT_S) == 0
    assert "Overriding" not in processes.log()


@pytest.mark.slow
def test_an_endpoint_that_nobody_answers_at_costs_a_worker_neither_records_nor_its_exit_code(tmp_path):
    (tmp_path / "shop.py").write_text(APP)
    url = f"embedded://{tmp_path / 'log'}"
    processes = Processes(tmp_path, url, OTEL_EXPORTER_OTLP_ENDPOINT="http://127.0.0.1:1")
    processes.send("orders", b"1")
    worker = processes.cli("worker", "shop:app")
    try:
        blocking_until(processes.log, "it is handled", good=lambda log: "billing" in log)
    finally:
        worker.send_signal(signal.SIGTERM)

    assert worker.wait(LIMIT_S) == 0


def test_nothing_is_set_up_where_nothing_is_asked_for():
    assert sdk.set_up("shop", {}) is None


def test_a_worker_without_the_extra_says_what_to_install(monkeypatch, caplog):
    monkeypatch.setattr(sdk, "installed", lambda: False)

    assert sdk.set_up("shop", {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://localhost:4318"}) is None
    assert "pip install flowshare[otel]" in caplog.text


def test_providers_of_the_application_are_left_alone(monkeypatch):
    monkeypatch.setattr(sdk, "providers", lambda: (object(), object()))

    assert sdk.set_up("shop", {"OTEL_TRACES_EXPORTER": "console"}) is None


def test_an_exporter_that_is_not_installed_is_a_warning_and_no_more(caplog):
    environment = {"OTEL_TRACES_EXPORTER": "zipkin", "OTEL_METRICS_EXPORTER": "none"}

    assert sdk.set_up("shop", environment) is None
    assert "'zipkin'" in caplog.text
    assert active.providers() is None


@pytest.mark.parametrize(
    ("environment", "traces", "metrics"),
    [
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c"}, ["otlp_proto_http"], ["otlp_proto_http"]),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://c"}, ["otlp_proto_http"], []),
        (
            {"OTEL_TRACES_EXPORTER": "console,otlp", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"},
            ["console", "otlp_proto_grpc"],
            [],
        ),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c", "OTEL_METRICS_EXPORTER": "none"}, ["otlp_proto_http"], []),
    ],
)
def test_exporters_are_chosen_by_the_variables_of_their_signal(environment, traces, metrics):
    assert list(sdk._wanted("traces", environment)) == traces
    assert list(sdk._wanted("metrics", environment)) == metrics


def test_service_and_instance_have_defaults_and_no_more():
    assert sdk._own_attributes("shop", {}).keys() == {"service.name", "service.instance.id"}
    said = {"OTEL_SERVICE_NAME": "mine", "OTEL_RESOURCE_ATTRIBUTES": "service.instance.id=1"}
    assert sdk._own_attributes("shop", said) == {}
