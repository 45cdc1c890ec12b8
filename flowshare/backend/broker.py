"""`Broker`: producers, consumers and administration at one broker URL, without agents.

    async with Broker("kafka://localhost:9092") as broker:
        producer = broker.producer()
        await producer.send("orders", b"...")

Everything made here is closed with the broker, last made first.
"""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any, Self, TypeVar, overload

from flowshare.backend import make_producer, open_backend
from flowshare.clock import LoopClock

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

    from flowshare.backend.url import BrokerUrl
    from flowshare.client.admin import ShareAdmin
    from flowshare.client.consumer import ShareConsumer
    from flowshare.client.producing import RecordProducer
    from flowshare.client.settings import ConsumerSettings, ProducerSettings
    from flowshare.client.unpacking import Decoder
    from flowshare.protocol.messages import Connection

K = TypeVar("K")
V = TypeVar("V")


class Broker:
    """A broker URL, opened by `async with`; see `docs/backends.md` for the URLs. Used on one event loop."""

    def __init__(self, url: str | BrokerUrl, *, client_id: str = "flowshare") -> None:
        """client_id: what the broker sees of this program. Raises: BadBrokerUrl."""
        self._clock = LoopClock()
        self._client_id = client_id
        self._backend = open_backend(url, clock=self._clock)
        self._made = AsyncExitStack()

    async def __aenter__(self) -> Self:
        """Open it. Raises: BackendError, LogError, ClientError with what to do."""
        await self._backend.start()
        self._made.push_async_callback(self._backend.close)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._made.aclose()

    def producer(self, *, linger_s: float | None = None, settings: ProducerSettings | None = None) -> RecordProducer:
        """A producer: batched, idempotent on Kafka; what was handed over is sent before the broker closes.

        linger_s: how long a record may wait for others to share its batch. settings: all others, the largest record
        (`fs.ProducerSettings(request_bytes_max=…)`) among them.
        """
        producer = make_producer(
            self._backend,
            self._connect,
            clock=self._clock,
            linger_s=linger_s,
            settings=settings,
            client_id=self._client_id,
        )
        self._made.push_async_callback(producer.close)
        return producer

    @overload
    def consumer(
        self, group_id: str, topics: Sequence[str], *, settings: ConsumerSettings | None = None
    ) -> ShareConsumer[bytes | None, bytes | None]: ...
    @overload
    def consumer(
        self,
        group_id: str,
        topics: Sequence[str],
        *,
        settings: ConsumerSettings | None = None,
        key_decoder: Decoder[K],
        value_decoder: Decoder[V],
    ) -> ShareConsumer[K, V]: ...
    def consumer(
        self,
        group_id: str,
        topics: Sequence[str],
        *,
        settings: ConsumerSettings | None = None,
        **decoders: Any,
    ) -> ShareConsumer[Any, Any]:
        """A member of a share group; it joins at its first poll. A new group starts at its `share.auto.offset.reset`.

        Decoders turn bytes (or None) into keys and values. Raises: ValueError (no group, no topic); the first poll
        BackendError, when the group lives in another place of the cluster.
        """
        from flowshare.client.consumer import ShareConsumer

        known = False

        async def connect() -> Connection:
            nonlocal known
            if not known:
                await self._backend.check_groups([group_id])
                known = True
            return await self._connect()

        made: ShareConsumer[Any, Any] = ShareConsumer(
            connect, group_id=group_id, clock=self._clock, settings=settings, **decoders
        )
        made.subscribe(topics)
        self._made.push_async_callback(made.close)
        return made

    def admin(self) -> ShareAdmin:
        """Topics, groups, offsets and settings."""
        from flowshare.client.admin import ShareAdmin

        admin = ShareAdmin(self._connect, clock=self._clock, client_id=self._client_id)
        self._made.push_async_callback(admin.close)
        return admin

    async def _connect(self) -> Connection:
        return await self._backend.connect(self._client_id)
