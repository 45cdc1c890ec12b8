"""*send* spans: a record from its sending, by the application or by flowshare, until its confirmation.

| headers of the record | the span's parent | what the record carries |
|---|---|---|
| flowshare put the current context there | that | the span |
| the application put one there, or said `fs.tracing.use` | that, and a link to it | what the application said |
| none | none | the span |

So a dead letter, and a retry that waits in a topic, are children of their record's handling.
"""

from __future__ import annotations

import asyncio
import time
from functools import partial
from typing import TYPE_CHECKING, Any

from opentelemetry import trace
from opentelemetry.trace import Link, Span, SpanKind

from flowshare.agents.handler.texts import kind_of, named
from flowshare.agents.telemetry import conventions as names
from flowshare.agents.telemetry.context import Headers, is_ours, of_headers, span_of, to_headers
from flowshare.agents.telemetry.processing import fail, key_text
from flowshare.client.errors import BufferFull, ServerError

if TYPE_CHECKING:
    from flowshare.agents.telemetry.telemetry import Telemetry
    from flowshare.client.producer.batching import RecordMetadata
    from flowshare.client.producer.producer import Producer


class Sending:
    """One record on its way."""

    __slots__ = ("began_ns", "headers", "span", "topic")

    def __init__(self, span: Span, topic: str, headers: Headers) -> None:
        self.span = span
        self.topic = topic
        self.headers = headers
        self.began_ns = time.perf_counter_ns()


class TracedProducer:
    """A producer's `send` and `send_nowait` with spans; on its loop."""

    def __init__(self, telemetry: Telemetry, producer: Producer) -> None:
        self._telemetry = telemetry
        self._producer = producer
        self._common = {
            names.SYSTEM: names.KAFKA,
            names.OPERATION_NAME: names.SEND,
            names.OPERATION_TYPE: names.SEND,
            names.CLIENT_ID: telemetry.client_id,
            names.BACKEND: telemetry.backend,
        }

    async def send(self, topic: str, value: bytes | None, *, headers: Headers = (), **about: Any) -> RecordMetadata:
        """Send as `Producer.send`."""
        sending = self._begin(topic, value, headers, about.get("key"))
        if sending is None:
            return await self._producer.send(topic, value, headers=headers, **about)
        try:
            sent = await self._producer.send(topic, value, headers=sending.headers, **about)
        except BaseException as error:
            self._end(sending, None, error)
            raise
        self._end(sending, sent, None)
        return sent

    def send_nowait(
        self, topic: str, value: bytes | None, *, headers: Headers = (), **about: Any
    ) -> asyncio.Future[RecordMetadata]:
        """Send as `Producer.send_nowait`."""
        sending = self._begin(topic, value, headers, about.get("key"))
        if sending is None:
            return self._producer.send_nowait(topic, value, headers=headers, **about)
        try:
            future = self._producer.send_nowait(topic, value, headers=sending.headers, **about)
        except BufferFull:  # the record is sent again, with a span of that try
            raise
        except BaseException as error:
            self._end(sending, None, error)
            raise
        future.add_done_callback(partial(self._confirmed, sending))
        return future

    def _begin(self, topic: str, value: bytes | None, headers: Headers, key: bytes | None) -> Sending | None:
        try:
            context = of_headers(headers)
            told = span_of(context)
            custom = told is not None and not is_ours(headers)
            span = self._telemetry.tracer.start_span(
                f"{names.SEND} {topic}",
                context=context,
                kind=SpanKind.CLIENT if custom else SpanKind.PRODUCER,
                attributes={**self._common, names.DESTINATION: topic},
                links=[Link(told)] if custom and told is not None else None,
            )
            if span.is_recording():
                if (text := key_text(key)) is not None:
                    span.set_attribute(names.KEY, text)
                if value is None:
                    span.set_attribute(names.TOMBSTONE, True)
            if not custom and span.get_span_context().is_valid:
                told_by = to_headers(trace.set_span_in_context(span, context))
                replaced = {name for name, _ in told_by}
                headers = (*(pair for pair in headers if pair[0] not in replaced), *told_by)
        except Exception as error:  # noqa: BLE001 - processors and samplers are the application's
            self._telemetry.trouble(error)
            return None
        return Sending(span, topic, headers)

    def _confirmed(self, sending: Sending, future: asyncio.Future[RecordMetadata]) -> None:
        if future.cancelled():
            self._end(sending, None, asyncio.CancelledError("the producer was closed"))
        elif (error := future.exception()) is not None:
            self._end(sending, None, error)
        else:
            self._end(sending, future.result(), None)

    def _end(self, sending: Sending, sent: RecordMetadata | None, error: BaseException | None) -> None:
        took_s = (time.perf_counter_ns() - sending.began_ns) / 1e9
        try:
            instruments = self._telemetry.instruments
            kind = "" if error is None else instruments.errors.of(error_type(error))
            topic = instruments.topics.of(sending.topic)
            measured = {names.SYSTEM: names.KAFKA, names.OPERATION_NAME: names.SEND, names.DESTINATION: topic}
            if kind:
                measured[names.ERROR_TYPE] = kind
            instruments.sent.add(1, measured)
            instruments.operation.record(took_s, {**measured, names.OPERATION_TYPE: names.SEND})
            if sending.span.is_recording():
                self._telemetry.ender.put(partial(_close, sending.span, time.time_ns(), sent, error))
        except Exception as trouble:  # noqa: BLE001 - as above
            self._telemetry.trouble(trouble)


def _close(span: Span, at_ns: int, sent: RecordMetadata | None, error: BaseException | None) -> None:
    if sent is not None:
        span.set_attributes({names.PARTITION: str(sent.partition), names.OFFSET: sent.offset})
    if error is not None:
        fail(span, at_ns, error_type(error), error, named(error))
    span.end(end_time=at_ns)


def error_type(error: BaseException) -> str:
    """Return the broker's error code, else the exception's class."""
    return error.code.name if isinstance(error, ServerError) else kind_of(error)
