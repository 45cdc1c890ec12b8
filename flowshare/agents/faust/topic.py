"""A topic of an app: a Faust topic whose records go through flowshare's producer, from any loop and any thread."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

import faust

from flowshare.agents.faust.models import decoder_for, encode_for
from flowshare.agents.handler.codec import Codec, CodecDecoder, Encoded, Missing, encode_by
from flowshare.agents.handler.delivery import EventualResult, refuse_outside
from flowshare.agents.handler.errors import UsageError
from flowshare.agents.handler.send import Headers, ProducerRecord, encode_headers, produce
from flowshare.agents.handler.tracing import ambient, current_headers

if TYPE_CHECKING:
    from flowshare.agents.faust.app import FaustApp
    from flowshare.agents.handler.values import Decoder
    from flowshare.client.producer.producer import RecordMetadata

V = TypeVar("V")
_LOOKUPS_MAX: Final = 10


class Topic(faust.Topic, Generic[V]):
    """A topic as `app.topic(…)` returns it; V is its `value_type`, Any without one."""

    app: FaustApp
    key_codec: Codec | None = None
    value_codec: Codec | None = None

    def decoder(self, what: str, annotation: Any) -> Decoder | None:
        """Return the decoder of its keys or values (`what`: "key", "value") for an annotation. Raises:
        AnnotationError."""
        codec: Codec | None = getattr(self, f"{what}_codec")
        if codec is not None:
            return CodecDecoder(codec, annotation)
        return decoder_for(annotation, getattr(self, f"{what}_serializer"))

    def encode(self, what: str, given: Any, serializer: Any = None) -> Encoded | None:
        """Encode a key or value. serializer: in place of the topic's. Raises: Unencodable, OptionError."""
        codec: Codec | None = getattr(self, f"{what}_codec")
        if codec is None or serializer is not None:
            return encode_for(self, what, given, serializer)
        return None if given is None else encode_by(codec, given, f"topic {self.get_topic_name()!r}: its {what}")

    def missing_to_send(self) -> Missing | None:
        """Return the look-up that the topic's codecs need before a record is sent to it; None: they need none."""
        asked = (getattr(codec, "missing_to_encode", None) for codec in (self.key_codec, self.value_codec))
        found = (ask() for ask in asked if ask is not None)
        return next((one for one in found if one is not None), None)

    async def prepare(self) -> None:
        """Make the look-ups (a schema's id) of its codecs, so that no later send waits: `send_soon` and
        `delivery.send`, which do not wait, ask the registry where they are called. Raises: the codec's errors."""
        for _ in range(_LOOKUPS_MAX):
            if (missing := self.missing_to_send()) is None:
                return
            await asyncio.to_thread(missing.fetch)

    async def send(  # type: ignore[override]
        self,
        *,
        key: Any = None,
        value: V | None = None,
        partition: int | None = None,
        timestamp: float | None = None,
        headers: Headers | None = None,
        callback: Callable[[Any], object] | None = None,
        **faust_only: Any,
    ) -> asyncio.Future[RecordMetadata]:
        """Produce one record and return when it is confirmed; the returned future is done and has the place.

        Faust's `send` returns before the record is safe; inside Faust's own agents and streams this is Faust's `send`
        (`Streams.publishes`). `send_soon` does not wait. Raises: Unencodable, and the producer's errors.
        """
        if self.app.streams.publishes(self):
            if self.app.has_codecs:
                await self.prepare()
            sent: Any = await super().send(
                partition=partition,
                timestamp=timestamp,
                callback=callback,  # type: ignore[arg-type]  # what it returns is not looked at
                **self._for_faust(key, value, headers, faust_only),
            )
            return sent  # type: ignore[no-any-return]
        if self.app.has_codecs:
            await self.prepare()
        made = self._made(key, value, partition, timestamp, headers, faust_only)
        future = await self.app.running_host().outbox.enqueue(made)
        await future
        if callback is not None:
            callback(future)
        return future

    def send_soon(  # type: ignore[override]
        self,
        *,
        key: Any = None,
        value: V | None = None,
        partition: int | None = None,
        timestamp: float | None = None,
        headers: Headers | None = None,
        **faust_only: Any,
    ) -> EventualResult[RecordMetadata]:
        """Produce one record without waiting; from coroutines, from `def` handlers, from any thread.

        Inside Faust's own agents and streams this is Faust's `send_soon`, and returns a `faust.types.FutureMessage`.
        """
        if self.app.streams.publishes(self):
            sent: Any = super().send_soon(
                partition=partition, timestamp=timestamp, **self._for_faust(key, value, headers, faust_only)
            )
            return sent  # type: ignore[no-any-return]
        made = self._made(key, value, partition, timestamp, headers, faust_only)
        host = self.app.running_host()
        return EventualResult(host.service.submit(lambda: made.send_by(host.sender.send)))

    def send_sync(
        self,
        *,
        key: Any = None,
        value: V | None = None,
        partition: int | None = None,
        timestamp: float | None = None,
        headers: Headers | None = None,
        timeout: float = 30.0,
    ) -> RecordMetadata:
        """Produce one record and return its place when it is confirmed: for code without an event loop.

        From any thread, whether the app runs in this process or not. timeout: seconds, the start of the producer
        included. Raises: UsageError on an event loop; TimeoutError; Unencodable, and the producer's errors.
        """
        deadline_s = time.monotonic() + timeout
        first = self.app.host is None
        made = self._made(key, value, partition, timestamp, headers, {})
        host = self.app.sending_thread.host(timeout)
        if first and ambient:  # telemetry since the host's start: now the current span is known
            made = self._made(key, value, partition, timestamp, headers, {})
        sent = host.service.submit(lambda: made.send_by(host.sender.send))
        try:
            return sent.result(max(0.0, deadline_s - time.monotonic()))
        except TimeoutError:
            raise TimeoutError(
                f"a record for {made.topic} was not confirmed within {timeout:g} s; it may still be written"
            ) from None

    async def publish_message(self, fut: Any, wait: bool = True) -> Any:
        """Send a message whose key and value are bytes already (Faust's inner way)."""
        if self.app.streams.running:
            return await super().publish_message(fut, wait)
        message = fut.message
        future = await self.send(
            key=message.key,
            value=message.value,
            partition=message.partition,
            timestamp=message.timestamp,
            headers=message.headers,
        )
        fut.set_result(future.result())
        return fut

    async def declare(self) -> None:
        """Make the topic if it is missing."""
        if self.internal and self.app.streams.running:
            await super().declare()
            return
        for name in self.topics:
            await self.app.make_topic(name, self.partitions or self.app.conf.topic_partitions, self.config)

    def _for_faust(self, key: Any, value: Any, headers: Headers | None, faust_only: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments for Faust's producer; a key or value that has a codec is encoded to bytes already."""
        if self.key_codec is None and self.value_codec is None:
            return {"key": key, "value": value, "headers": _in_bytes(headers), **faust_only}
        made = produce(self, value, key, headers=headers)
        found = {"key": made.key, "value": made.value, "headers": list(made.headers), **faust_only}
        return {**found, "key_serializer": "raw", "value_serializer": "raw"}

    def _made(
        self,
        key: Any,
        value: Any,
        partition: int | None,
        timestamp: float | None,
        headers: Headers | None,
        faust_only: dict[str, Any],
    ) -> ProducerRecord:
        refuse_outside(self.get_topic_name())
        for name, given in faust_only.items():
            if given is not None and name not in ("force", "schema", "key_serializer", "value_serializer"):
                raise UsageError(f"topic {self.get_topic_name()}: send has no option {name!r}")
        return produce(
            self,
            value,
            key,
            headers=headers,
            partition=partition,
            timestamp=timestamp,
            extra_headers=current_headers(),
            key_serializer=faust_only.get("key_serializer"),
            value_serializer=faust_only.get("value_serializer"),
        )


def _in_bytes(headers: Headers | None) -> Any:
    return None if headers is None else list(encode_headers(headers))
