"""W3C trace context: taken from the headers of the record that is handled, put into the records produced for it.

No work is done per record: the context variable of the current record is read when something is produced. With
OpenTelemetry (`agents.telemetry`) the current span's context is used instead. Another tracing library sets its own
through `use`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final, NamedTuple

from flowshare.agents.handler.delivery import current
from flowshare.protocol.decoding import RawRecord

TRACEPARENT: Final = "traceparent"
TRACESTATE: Final = "tracestate"
_VALID = re.compile(rb"[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(-.*)?")


class Ambient(NamedTuple):
    """A source of the current context. headers: headers that carry it. ids: its trace and span, in hex. Both return
    None without a context, and never raise."""

    headers: Callable[[], tuple[tuple[str, bytes], ...] | None]
    ids: Callable[[], tuple[str, str] | None]


ambient: Final[list[Ambient]] = []
"""Sources that are asked for the current context: `agents.telemetry`, while an app runs with it."""
_override: ContextVar[tuple[tuple[str, bytes], ...] | None] = ContextVar("flowshare_trace", default=None)


def of_record(record: RawRecord) -> tuple[tuple[str, bytes], ...]:
    """Return the valid trace headers of a record; empty when the record has none."""
    if not record.headers:
        return ()
    found = {name.lower(): value for name, value in record.headers if value is not None}
    parent = found.get(TRACEPARENT)
    if parent is None or not _VALID.fullmatch(parent):
        return ()
    state = found.get(TRACESTATE)
    return ((TRACEPARENT, parent),) if state is None else ((TRACEPARENT, parent), (TRACESTATE, state))


def current_headers() -> tuple[tuple[str, bytes], ...]:
    """Return trace headers for a record produced now: those set with `use`, else the current span's, else those of the
    handled record."""
    override = _override.get()
    if override is not None:
        return override
    for one in ambient:
        if (found := one.headers()) is not None:
            return found
    held = current.get()
    return () if held is None else of_record(held[1])


def traceparent() -> str | None:
    """Return the W3C traceparent in force, as text; None without one."""
    return next((value.decode() for name, value in current_headers() if name == TRACEPARENT), None)


def ids() -> tuple[str, str] | None:
    """Return the ids of trace and span in force, in hex; None without any."""
    if _override.get() is None:
        for one in ambient:
            if (found := one.ids()) is not None:
                return found
    parent = traceparent()
    if parent is None:
        return None
    _, trace, span, *_ = parent.split("-")
    return trace, span


@contextmanager
def use(parent: str, state: str | None = None) -> Iterator[None]:
    """Put this trace context into records produced inside the block, e.g. the span that a library opened."""
    headers: tuple[tuple[str, bytes], ...] = ((TRACEPARENT, parent.encode()),)
    if state:
        headers += ((TRACESTATE, state.encode()),)
    token = _override.set(headers)
    try:
        yield
    finally:
        _override.reset(token)
