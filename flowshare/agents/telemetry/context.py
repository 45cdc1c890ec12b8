"""Trace contexts: out of records' headers, into those of what is produced. By the propagators that OpenTelemetry is set
to (`OTEL_PROPAGATORS`; W3C's trace context and baggage when nothing else is said)."""

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
"""Bytes of a header that is looked at (baggage may have as many)."""


_OURS: Final[dict[str, str]] = {}
"""Names of headers that flowshare puts there, as objects of their own: what has one of these is to be replaced by the
context of the send span. Where the application put the name it is another object: a creation context, which stays."""


def ours(name: str) -> str:
    """The object that is this name in a header of flowshare's. (No type of its own: builders of batches take str.)"""
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
    """The context that is told in headers; an empty one where there is none."""
    return propagate.get_global_textmap().extract(headers, _NOTHING, _GETTER) if headers else _NOTHING


def creation_of(headers: Headers) -> SpanContext | None:
    """The span that is told in headers."""
    return span_of(of_headers(headers)) if headers else None


def span_of(context: Context) -> SpanContext | None:
    """The span of a context; None: it has none."""
    found = trace.get_current_span(context).get_span_context()
    return found if found.is_valid else None


def within(span: SpanContext) -> Context:
    """A context in which this span is the current one."""
    return trace.set_span_in_context(NonRecordingSpan(span), _NOTHING)


def to_headers(context: Context | None = None) -> tuple[tuple[str, bytes], ...]:
    """Headers that tell a context; None: the current one."""
    found: list[tuple[str, bytes]] = []
    propagate.get_global_textmap().inject(found, context, _SETTER)
    return tuple(found)


def current_headers() -> tuple[tuple[str, bytes], ...] | None:
    """Headers that tell the current context; None: no span is current, or a propagator of the application's fails."""
    if not trace.get_current_span().get_span_context().is_valid:
        return None
    try:
        return to_headers()
    except Exception:  # noqa: BLE001 - what is produced goes on without
        return None


def current_ids() -> tuple[str, str] | None:
    """Ids of the current trace and span, in hex; None: no span is current."""
    found = trace.get_current_span().get_span_context()
    return (f"{found.trace_id:032x}", f"{found.span_id:016x}") if found.is_valid else None


AMBIENT: Final = Ambient(current_headers, current_ids)


def is_ours(headers: Iterable[tuple[str, Any]]) -> bool:
    """Whether flowshare put a context there."""
    return any(_OURS.get(name) is name for name, _ in headers)


def caused_by(record: ProducerRecord, span: SpanContext | None) -> ProducerRecord:
    """A copy of another record (a dead letter, a retry) as something that this span sends.

    None: as what its own headers tell sends.
    """
    fields = propagate.get_global_textmap().fields
    if span is None:
        told = tuple((ours(name) if name.lower() in fields else name, value) for name, value in record.headers)
        return record._replace(headers=told)
    others = tuple(pair for pair in record.headers if pair[0].lower() not in fields)
    kept = of_headers(record.headers)
    return record._replace(headers=others + to_headers(trace.set_span_in_context(NonRecordingSpan(span), kept)))
