"""*settle* spans: an acknowledgement on its way to the partition's leader, until it is answered.

Each request and partition has one span if it settles a record which ran here in a span that is kept: records released
unrun have none. With a single record the span is a child of the record's *process* span, with several it links to
theirs. With at_most_once, records are accepted before they run: then the contexts of their headers are used.

With `exactly_once` the outputs are written in the same step, and the span covers them, too: they carry the context of
their *process* span.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from opentelemetry.context import Context
from opentelemetry.trace import Link, Span, SpanContext, SpanKind

from flowshare.agents.telemetry import conventions as names
from flowshare.agents.telemetry.context import caused_by, creation_of, within
from flowshare.agents.telemetry.processing import LINKS_MAX, fail

if TYPE_CHECKING:
    from flowshare.agents.handler.agent import ShareAgent
    from flowshare.agents.handler.chunk import Chunk
    from flowshare.agents.handler.send import ProducerRecord
    from flowshare.agents.telemetry.telemetry import Telemetry
    from flowshare.protocol.decoding import RawRecord
    from flowshare.protocol.messages import TopicPartition

NOTED_MAX: Final = 100_000
"""Most records of one partition that wait for their acknowledgement."""
Counts = dict[str, int]
"""Number of records by the attribute that counts them."""


class Settling:
    """One acknowledgement on its way."""

    __slots__ = ("began_ns", "span", "topic")

    def __init__(self, span: Span | None, topic: str) -> None:
        self.span = span
        self.topic = topic
        self.began_ns = time.perf_counter_ns()


class SettleSpans:
    """Settle spans of one agent; on the service loop. No method raises."""

    def __init__(self, telemetry: Telemetry, agent: ShareAgent, retry_topic: str) -> None:
        self._telemetry = telemetry
        self._group = agent.group
        self._retry_topic = retry_topic
        self._common = {
            names.SYSTEM: names.KAFKA,
            names.OPERATION_NAME: names.SETTLE,
            names.OPERATION_TYPE: names.SETTLE,
            names.GROUP: agent.group,
            names.CLIENT_ID: telemetry.client_id,
            names.AGENT: agent.name,
            names.BACKEND: telemetry.backend,
        }
        self._noted: dict[TopicPartition, dict[int, SpanContext]] = {}
        self._topics: dict[TopicPartition, str] = {}

    # --- what is settled ----------------------------------------------------------------------------------------

    def note(self, chunk: Chunk, offsets: Iterable[int]) -> None:
        """Note records that are about to be acknowledged."""
        for offset in offsets:
            self._know(chunk, offset)
            handling = chunk.spans.pop(offset, None)
            if handling is not None and handling.context.trace_flags.sampled:
                self._note(chunk, offset, handling.context)

    def note_created(self, chunk: Chunk, records: Iterable[RawRecord]) -> None:
        """Note records that are about to be accepted, before they run."""
        try:
            for record in records:
                self._know(chunk, record.offset)
                created = creation_of(record.headers)
                if created is not None and created.trace_flags.sampled:
                    self._note(chunk, record.offset, created)
        except Exception as error:  # noqa: BLE001 - propagators are the application's
            self._telemetry.trouble(error)

    def _note(self, chunk: Chunk, offset: int, span: SpanContext) -> None:
        found = self._noted.setdefault(chunk.tp, {})
        if len(found) >= NOTED_MAX:  # their outcomes were never noted
            found.clear()
        found[offset] = span

    def _know(self, chunk: Chunk, offset: int) -> None:
        """Remember the partition's topic: metrics name it also for records without a span."""
        if chunk.tp not in self._topics:
            self._topics[chunk.tp] = chunk.topic if chunk.origin(offset) is None else self._retry_topic

    def noted(self, tp: TopicPartition, offsets: Iterable[int]) -> list[SpanContext]:
        """Return the noted spans of these offsets, as many as a span links to."""
        found = self._noted.get(tp)
        if not found:
            return []
        kept = {(one.trace_id, one.span_id): one for offset in offsets if (one := found.get(offset)) is not None}
        return list(islice(kept.values(), LINKS_MAX))

    def handled(self, records: Iterable[tuple[Chunk, Any]]) -> list[SpanContext]:
        """Return the kept spans of handlings, a batch's once, as many as a span links to."""
        found: dict[int, SpanContext] = {}
        for chunk, record in records:
            handling = chunk.spans.get(record.offset)
            if handling is not None and handling.context.trace_flags.sampled:
                found[id(handling)] = handling.context
                if len(found) == LINKS_MAX:
                    break
        return list(found.values())

    def forget(self, tp: TopicPartition, first: int, last: int) -> None:
        """Forget the spans of these records: their acknowledgement is answered, or never will be."""
        noted = self._noted.get(tp)
        if noted is None:
            return
        for offset in range(first, last + 1):
            noted.pop(offset, None)
        if not noted:
            del self._noted[tp]

    def caused_by(self, chunk: Chunk, offset: int, record: ProducerRecord) -> ProducerRecord:
        """Return a dead letter, or a retry, of a record, as sent by the record's handling."""
        handling = chunk.spans.get(offset)
        try:
            return caused_by(record, None if handling is None else handling.context)
        except Exception as error:  # noqa: BLE001 - propagators are the application's
            self._telemetry.trouble(error)
            return record

    # --- the spans ----------------------------------------------------------------------------------------------

    def begin(
        self, tp: TopicPartition, spans: Sequence[SpanContext], counts: Counts, *, topic: str = "", outputs: int = 0
    ) -> Settling:
        """Begin the span of a request. spans: of its records. counts: records by outcome."""
        topic = topic or self._topics.get(tp, "")
        span = None
        if spans:
            try:
                span = self._start(tp, spans, counts, topic, outputs)
            except Exception as error:  # noqa: BLE001 - processors and samplers are the application's
                self._telemetry.trouble(error)
        return Settling(span, topic)

    def _start(
        self, tp: TopicPartition, spans: Sequence[SpanContext], counts: Counts, topic: str, outputs: int
    ) -> Span:
        total = sum(counts.values())
        alone = len(spans) == 1 and total == 1
        attributes: dict[str, Any] = {
            **self._common,
            names.DESTINATION: topic,
            names.PARTITION: str(tp.partition),
            names.BATCH_COUNT: total,
            **{name: count for name, count in counts.items() if count},
        }
        if outputs:
            attributes[names.OUTPUTS] = outputs
        return self._telemetry.tracer.start_span(
            f"{names.SETTLE} {topic}",
            context=within(spans[0]) if alone else Context(),
            kind=SpanKind.CLIENT,
            attributes=attributes,
            links=None if alone else [Link(span) for span in spans],
        )

    def end(self, settling: Settling, error: str, message: str = "") -> None:
        """End the span at the answer. error: its code or class; empty: no error."""
        took_s = (time.perf_counter_ns() - settling.began_ns) / 1e9
        try:
            measured = {
                names.SYSTEM: names.KAFKA,
                names.OPERATION_NAME: names.SETTLE,
                names.OPERATION_TYPE: names.SETTLE,
                names.GROUP: self._group,
            }
            if settling.topic:
                measured[names.DESTINATION] = settling.topic
            instruments = self._telemetry.instruments
            if error:
                measured[names.ERROR_TYPE] = instruments.errors.of(error)
            instruments.operation.record(took_s, measured)
            span = settling.span
            if span is not None and span.is_recording():
                self._telemetry.ender.put(partial(_close, span, time.time_ns(), error, message))
        except Exception as trouble:  # noqa: BLE001 - as above
            self._telemetry.trouble(trouble)


def _close(span: Span, at_ns: int, error: str, message: str) -> None:
    if error:
        fail(span, at_ns, error, None, f"{error}: {message}" if message else error)
    span.end(end_time=at_ns)
