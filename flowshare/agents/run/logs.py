"""Log lines of a handler name their record: agent, topic-partition@offset and attempt, and its trace.

A log record factory, installed once, looks at the context's current delivery and adds the attributes `flowshare_agent`,
`flowshare_record` (`topic-partition@offset`), `flowshare_attempt` and `flowshare` (all of them as one text in front of
the message's own, empty outside of handlers), `flowshare_trace_id` and `flowshare_span_id`: of the current span with
OpenTelemetry, else of the record's sender, by its W3C headers; empty without a trace.
"""

from __future__ import annotations

import logging
from typing import Any

from flowshare.agents.handler import tracing
from flowshare.agents.handler.delivery import current


class _Factory:
    """A log record factory that adds attributes to the records of the earlier factory."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __call__(self, *args: Any, **kwargs: Any) -> logging.LogRecord:
        made: logging.LogRecord = self.inner(*args, **kwargs)
        held = current.get()
        trace = tracing.ids() if held is not None or tracing.ambient else None
        made.flowshare_trace_id, made.flowshare_span_id = trace or ("", "")
        if held is None:
            made.flowshare_agent = made.flowshare_record = made.flowshare = ""
            made.flowshare_attempt = 0
        else:
            chunk, record = held
            at = chunk.at(record.offset)
            made.flowshare_agent = chunk.agent
            made.flowshare_record = at
            made.flowshare_attempt = attempt = chunk.attempt(record.offset)
            # flowshare's own lines name their record themselves.
            own = made.name.startswith("flowshare.")
            made.flowshare = "" if own else f"[{chunk.agent} {at} attempt {attempt}] "
        return made


def install() -> None:
    """Add the attributes to all log records from now on. Calling it again does nothing."""
    factory = logging.getLogRecordFactory()
    if not isinstance(factory, _Factory):
        logging.setLogRecordFactory(_Factory(factory))
