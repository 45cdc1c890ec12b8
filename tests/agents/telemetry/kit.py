"""Apps with telemetry into memory: providers of a test's own, in place of the process's, which can be set once only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_ON, Sampler

from flowshare.agents.telemetry import active

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = f"00-{TRACE}-b7ad6b7169203331-01"


@dataclass
class Told:
    """Recorded telemetry: spans, in the order of their ends, and metrics."""

    exporter: InMemorySpanExporter = field(default_factory=InMemorySpanExporter)
    reader: InMemoryMetricReader = field(default_factory=InMemoryMetricReader)
    providers: tuple[TracerProvider, MeterProvider] = field(init=False)

    @property
    def spans(self) -> Sequence[ReadableSpan]:
        return self.exporter.get_finished_spans()

    def of(self, operation: str, topic: str | None = None) -> list[ReadableSpan]:
        """Spans of an operation, in the order of their starts."""
        wanted = operation if topic is None else f"{operation} {topic}"
        found = [
            one for one in self.spans if one.name == wanted or (topic is None and one.name.startswith(f"{wanted} "))
        ]
        return sorted(found, key=lambda one: one.start_time or 0)

    def metrics(self) -> dict[str, list[tuple[dict[str, Any], Any]]]:
        """Attributes and value (count of a histogram) of each series, by metric."""
        found: dict[str, list[tuple[dict[str, Any], Any]]] = {}
        data = self.reader.get_metrics_data()
        for resource in data.resource_metrics if data is not None else ():
            for scope in resource.scope_metrics:
                for metric in scope.metrics:
                    points = metric.data.data_points
                    found[metric.name] = [
                        (dict(point.attributes), point.count if hasattr(point, "count") else point.value)
                        for point in points
                    ]
        return found


def telling(monkeypatch: Any, *, sampler: Sampler = ALWAYS_ON, processor: SpanProcessor | None = None) -> Told:
    """From now on apps tell what this returns."""
    told = Told()
    tracers = TracerProvider(sampler=sampler, shutdown_on_exit=False)
    tracers.add_span_processor(processor or SimpleSpanProcessor(told.exporter))
    told.providers = tracers, MeterProvider([told.reader], shutdown_on_exit=False)
    monkeypatch.setattr(active, "providers", lambda: told.providers)
    return told


def parent_of(span: ReadableSpan) -> int | None:
    """The id of a span's parent."""
    return None if span.parent is None else span.parent.span_id


def linked(span: ReadableSpan) -> list[int]:
    """The ids of the spans that it links to."""
    return [link.context.span_id for link in span.links]


def id_of(span: ReadableSpan) -> int:
    assert span.context is not None
    return span.context.span_id
