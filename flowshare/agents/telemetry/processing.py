"""*process* spans: a handler at work on a record, or on a batch.

    begun     the handler is about to be called: the span is the current one of its context, in tasks and in threads
    ended     its outcome is known: its result is encoded by then, its error is sorted

One record: the span's parent is the context of its headers, and the span links to it. A batch: the span links to the
contexts of its records' headers. An outer span does not count: a worker is started once, and the span of its start is
long over.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from opentelemetry import context as contexts
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, Span, SpanContext, SpanKind, Status, StatusCode

from flowshare.agents.handler.outcomes import Outcome, OutcomeKind
from flowshare.agents.handler.texts import clip, kind_of, named, said
from flowshare.agents.handler.texts import trace as trace_of
from flowshare.agents.telemetry import conventions as names
from flowshare.agents.telemetry.context import creation_of, of_headers, span_of

if TYPE_CHECKING:
    from contextvars import Token

    from flowshare.agents.handler.agent import ShareAgent
    from flowshare.agents.handler.chunk import Chunk
    from flowshare.agents.telemetry.telemetry import Telemetry
    from flowshare.protocol.decoding import RawRecord

logger = logging.getLogger("flowshare.telemetry")

LINKS_MAX: Final = 128
"""Most links of a span, which is also an SDK's limit."""
KEY_MAX: Final = 128
OUTCOMES: Final = {
    OutcomeKind.ACCEPT: "accepted",
    OutcomeKind.RELEASE: "released",
    OutcomeKind.RETRY: "retried",
    OutcomeKind.DEAD: "rejected",
}
MIXED: Final = "mixed"
REJECT: Final = "flowshare.Reject"
"""`error.type` of a record that its handler rejected without an exception of its own."""
Held = tuple["Chunk", "RawRecord"]


class Handling:
    """One call of a handler, from its begin to its outcome."""

    __slots__ = ("began_ns", "context", "error", "left", "outcomes", "reason", "span", "token", "topic")

    def __init__(self, span: Span, context: Context, topic: str | None, records: int) -> None:
        self.span = span
        self.context: SpanContext = span.get_span_context()
        self.topic = topic
        self.left = records
        """Number of records whose outcome is unknown yet."""
        self.outcomes: Counter[str] = Counter()
        self.error: BaseException | None = None
        self.reason = ""
        self.began_ns = time.perf_counter_ns()
        self.token: Token[Context] | None = contexts.attach(trace.set_span_in_context(span, context))

    def leave(self) -> None:
        """End its span's time as the current one; in the context where it was begun."""
        token, self.token = self.token, None
        if token is not None:
            contexts.detach(token)


class ProcessSpans:
    """Process spans of one agent. All methods may be called on any thread, and none raises."""

    def __init__(self, telemetry: Telemetry, agent: ShareAgent) -> None:
        self._telemetry = telemetry
        self._tracer = telemetry.tracer
        self._agent = agent.name
        self._group = agent.group
        self._common = {
            names.SYSTEM: names.KAFKA,
            names.OPERATION_NAME: names.PROCESS,
            names.OPERATION_TYPE: names.PROCESS,
            names.GROUP: agent.group,
            names.CLIENT_ID: telemetry.client_id,
            names.AGENT: agent.name,
            names.BACKEND: telemetry.backend,
        }
        self._by_topic = {topic: {**self._common, names.DESTINATION: topic} for topic in agent.topics}
        self._measured: dict[tuple[str | None, str, str], dict[str, Any]] = {}

    def begin(self, chunk: Chunk, record: RawRecord) -> None:
        """Begin the span of a handler that is about to get a record."""
        try:
            context = of_headers(record.headers)
            created = span_of(context)
            span = self._tracer.start_span(
                f"{names.PROCESS} {chunk.topic}",
                context=context,
                kind=SpanKind.CONSUMER,
                attributes=self._by_topic.get(chunk.topic, self._common),
                links=None if created is None else [Link(created)],
            )
            if span.is_recording():
                span.set_attributes(_of_record(chunk, record))
            chunk.spans[record.offset] = Handling(span, context, chunk.topic, 1)
        except Exception as error:  # noqa: BLE001 - processors and samplers are the application's
            self._telemetry.trouble(error)

    def begin_batch(self, held: Sequence[Held]) -> Handling | None:
        """Begin the span of a handler that is about to get a batch."""
        try:
            topics = {chunk.topic for chunk, _ in held}
            topic = topics.pop() if len(topics) == 1 else None
            span = self._tracer.start_span(
                names.PROCESS if topic is None else f"{names.PROCESS} {topic}",
                context=Context(),
                kind=SpanKind.CONSUMER,
                attributes={**self._by_topic.get(topic or "", self._common), names.BATCH_COUNT: len(held)},
                links=_links(held),
            )
            if span.is_recording():
                span.set_attribute(names.ATTEMPT, max(chunk.attempt(record.offset) for chunk, record in held))
                partitions = {chunk.partition for chunk, _ in held}
                if topic is not None and len(partitions) == 1:
                    span.set_attribute(names.PARTITION, str(partitions.pop()))
            handling = Handling(span, Context(), topic, len(held))
            for chunk, record in held:
                chunk.spans[record.offset] = handling
        except Exception as error:  # noqa: BLE001 - as above
            self._telemetry.trouble(error)
            return None
        return handling

    def end_batch(self, handling: Handling) -> None:
        """End a batch's span: no more outcomes come, as some records may have been taken out of it."""
        handling.leave()
        if handling.left > 0:
            handling.left = 0
            try:
                self._end(handling)
            except Exception as error:  # noqa: BLE001 - as above
                self._telemetry.trouble(error)

    def refused(self, chunk: Chunk, record: RawRecord) -> None:
        """Begin the span of a record that is rejected before its handler: its value cannot be read."""
        if record.offset not in chunk.spans:
            self.begin(chunk, record)

    def accepted(self, chunk: Chunk, offset: int) -> None:
        """Note that a handler has ended well and sends nothing."""
        handling = chunk.spans.get(offset)
        if handling is not None:
            self._outcome(handling, OutcomeKind.ACCEPT, None, "")

    def ended(self, chunk: Chunk, offset: int, outcome: Outcome) -> None:
        """Note a record's outcome."""
        handling = chunk.spans.get(offset)
        if handling is not None:
            self._outcome(handling, outcome.kind, outcome.error, outcome.reason)

    def _outcome(self, handling: Handling, kind: OutcomeKind, error: BaseException | None, reason: str) -> None:
        if handling.left <= 0:
            return
        handling.left -= 1
        handling.outcomes[OUTCOMES[kind]] += 1
        if kind in (OutcomeKind.RETRY, OutcomeKind.DEAD) and not handling.reason:
            handling.error, handling.reason = error, reason
        if handling.left == 0:
            try:
                self._end(handling)
            except Exception as trouble:  # noqa: BLE001 - as above
                self._telemetry.trouble(trouble)

    def _end(self, handling: Handling) -> None:
        took_s = (time.perf_counter_ns() - handling.began_ns) / 1e9
        handling.leave()
        outcome = next(iter(handling.outcomes), MIXED) if len(handling.outcomes) < 2 else MIXED
        failed = handling.reason != ""
        error = handling.error
        kind = "" if not failed else REJECT if error is None else kind_of(error)
        instruments = self._telemetry.instruments
        measured = self._measured_as(handling.topic, outcome, instruments.errors.of(kind) if kind else "")
        instruments.process.record(took_s, measured)
        instruments.consumed.add(handling.outcomes.total(), self._measured_as(handling.topic, "", ""))
        span = handling.span
        if span.is_recording():
            at_ns = time.time_ns()
            self._telemetry.ender.put(partial(_close, span, at_ns, outcome, kind, error, handling.reason))
        handling.error, handling.span = None, trace.INVALID_SPAN  # its chunk may have thousands

    def _measured_as(self, topic: str | None, outcome: str, error: str) -> dict[str, Any]:
        found = self._measured.get((topic, outcome, error))
        if found is None:
            found = {names.SYSTEM: names.KAFKA, names.OPERATION_NAME: names.PROCESS, names.GROUP: self._group}
            more = {names.DESTINATION: topic, names.OUTCOME: outcome, names.ERROR_TYPE: error}
            found.update((name, value) for name, value in more.items() if value)
            self._measured[topic, outcome, error] = found
        return found


def _close(span: Span, at_ns: int, outcome: str, kind: str, error: BaseException | None, reason: str) -> None:
    span.set_attribute(names.OUTCOME, outcome)
    if kind:
        fail(span, at_ns, kind, error, reason)
    span.end(end_time=at_ns)


def fail(span: Span, at_ns: int, kind: str, error: BaseException | None, reason: str) -> None:
    """Mark a span as failed, with flowshare's usual bounds for texts of exceptions."""
    span.set_attribute(names.ERROR_TYPE, kind)
    span.set_status(Status(StatusCode.ERROR, clip(named(error) if error is not None else reason, 200)))
    if error is not None:
        told = {
            names.EXCEPTION_TYPE: kind_of(error),
            names.EXCEPTION_MESSAGE: said(error),
            names.EXCEPTION_TRACE: trace_of(error),
        }
        span.add_event(names.EXCEPTION, told, timestamp=at_ns)


def _of_record(chunk: Chunk, record: RawRecord) -> dict[str, Any]:
    found: dict[str, Any] = {
        names.PARTITION: str(chunk.partition),
        names.OFFSET: chunk.place(record.offset),
        names.ATTEMPT: chunk.attempt(record.offset),
    }
    if (key := key_text(record.key)) is not None:
        found[names.KEY] = key
    if record.value is None:
        found[names.TOMBSTONE] = True
    return found


def key_text(key: bytes | None) -> str | None:
    """Return a key as text, of a long one the beginning; None: no key, or no text."""
    if key is None:
        return None
    try:
        text = key[: 4 * KEY_MAX].decode("utf-8", "strict" if len(key) <= 4 * KEY_MAX else "ignore")
    except UnicodeDecodeError:
        return None
    return clip(text, KEY_MAX) if text.isprintable() else None


def _links(held: Sequence[Held]) -> list[Link]:
    links: list[Link] = []
    for chunk, record in held:
        created = creation_of(record.headers)
        if created is not None:
            place = chunk.place(record.offset)
            links.append(Link(created, {names.PARTITION: str(chunk.partition), names.OFFSET: place}))
            if len(links) == LINKS_MAX:
                break
    return links
