"""Trace contexts: read from records' headers, written into those of produced records. Uses the propagators that
OpenTelemetry is set to (`OTEL_PROPAGATORS`; by default W3C's trace context and baggage)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from opentelemetry import propagate, trace
from opentelemetry.context import Context
from opentelemetry.propagators.textmap import Getter, Setter
from opentelemetry.trace import NonRecordingSpan, SpanContext

from flowshare.agents.handler.send import ProducerRecord
from flowshare.agents.handler.tracing import Ambient

Headers = Sequence[tuple[str, bytes | None]]
VALUE_MAX: Final = 8_192
"""Most bytes of a header that is read (baggage may have as many)."""


_OURS: Final[dict[str, str]] = {}
"""Names of headers that flowshare writes, as objects of their own: a header with such an object gets the context of the
send span. A name from the application is another object: a creation context, which stays."""


def ours(name: str) -> str:
    """Return the object that is this name in flowshare's headers. (No type of its own: builders of batches take
    str.)"""
    found = _OURS.get(name)
    if found is None:
        found = _OURS[name] = "".join(tuple(name))
    return found


class _Getter(Getter[Headers]):
    def get(self, carrier: Headers, key: str) -> list[str] | None:
        wanted = key.lower()
        found = [
            value.decode("ascii", "replace")
            for name, value in carrier
            if value is not None and len(value) <= VALUE_MAX and name.lower() == wanted
        ]
        return found[-1:] or None  # as `tracing.of_record`: the last one counts

    def keys(self, carrier: Headers) -> list[str]:
        return [name for name, _ in carrier]


class _Setter(Setter[list[tuple[str, bytes]]]):
    def set(self, carrier: list[tuple[str, bytes]], key: str, value: str) -> None:
        carrier.append((ours(key), value.encode()))


_GETTER: Final = _Getter()
_SETTER: Final = _Setter()
_NOTHING: Final = Context()


def of_headers(headers: Headers) -> Context:
    """Return the context in headers; an empty one without any."""
    return propagate.get_global_textmap().extract(headers, _NOTHING, _GETTER) if headers else _NOTHING


def creation_of(headers: Headers) -> SpanContext | None:
    """Return the span that headers name."""
    return span_of(of_headers(headers)) if headers else None


def span_of(context: Context) -> SpanContext | None:
    """Return the span of a context; None: no span."""
    found = trace.get_current_span(context).get_span_context()
    return found if found.is_valid else None


def within(span: SpanContext) -> Context:
    """Return a context in which this span is current."""
    return trace.set_span_in_context(NonRecordingSpan(span), _NOTHING)


def to_headers(context: Context | None = None) -> tuple[tuple[str, bytes], ...]:
    """Return headers with a context; None: the current one."""
    found: list[tuple[str, bytes]] = []
    propagate.get_global_textmap().inject(found, context, _SETTER)
    return tuple(found)


def current_headers() -> tuple[tuple[str, bytes], ...] | None:
    """Return headers with the current context; None: no current span, or a propagator of the application fails."""
    if not trace.get_current_span().get_span_context().is_valid:
        return None
    try:
        return to_headers()
    except Exception:  # noqa: BLE001 - what is produced goes on without
        return None


def current_ids() -> tuple[str, str] | None:
    """Return ids of the current trace and span, in hex; None: no current span."""
    found = trace.get_current_span().get_span_context()
    return (f"{found.trace_id:032x}", f"{found.span_id:016x}") if found.is_valid else None


AMBIENT: Final = Ambient(current_headers, current_ids)


def is_ours(headers: Iterable[tuple[str, Any]]) -> bool:
    """Tell if the headers hold a context that flowshare wrote."""
    return any(_OURS.get(name) is name for name, _ in headers)


def caused_by(record: ProducerRecord, span: SpanContext | None) -> ProducerRecord:
    """Return a copy of a record (a dead letter, a retry) as sent by this span.

    span: None: as sent by the span that its own headers name.
    """
    fields = propagate.get_global_textmap().fields
    if span is None:
        told = tuple((ours(name) if name.lower() in fields else name, value) for name, value in record.headers)
        return record._replace(headers=told)
    others = tuple(pair for pair in record.headers if pair[0].lower() not in fields)
    kept = of_headers(record.headers)
    return record._replace(headers=others + to_headers(trace.set_span_in_context(NonRecordingSpan(span), kept)))
