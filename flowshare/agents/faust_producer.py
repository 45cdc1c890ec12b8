"""`app.producer` as Faust knows it, over flowshare's one producer."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from mode import Service

from flowshare.agents.errors import UsageError
from flowshare.agents.send import encode_headers

if TYPE_CHECKING:
    from flowshare.agents.app import App


class FaustProducer(Service):
    """The part of Faust's producer that works without Kafka: send, flush, create_topic."""

    def __init__(self, app: App) -> None:
        self._app = app
        super().__init__()

    async def send(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        partition: int | None,
        timestamp: float | None,
        headers: Any,
        **_options: Any,
    ) -> asyncio.Future[Any]:
        """Hand a record over; the future has the outcome."""
        timestamp_ms = None if timestamp is None else int(timestamp * 1000)
        outbox = self._app.running_host().outbox
        future: asyncio.Future[Any] = await outbox.enqueue(
            topic, value, key=key, headers=encode_headers(headers), partition=partition, timestamp_ms=timestamp_ms
        )
        return future

    async def send_and_wait(self, *args: Any, **options: Any) -> Any:
        """Send and wait for the confirmation."""
        return await (await self.send(*args, **options))

    def send_soon(self, fut: Any) -> None:
        """Send a Faust `FutureMessage` without waiting."""
        message = fut.message
        self.add_future(message.channel.publish_message(fut))

    async def flush(self) -> None:
        """Wait until everything that was handed over is confirmed."""
        if self._app.host is not None:
            await self._app.host.outbox.flush()

    async def create_topic(self, topic: str, partitions: int, replication: int = 1, **options: Any) -> None:
        """Make a topic if it is missing."""
        del replication
        host = self._app.running_host()
        configs = {key: str(value) for key, value in (options.get("config") or {}).items()}
        await host.service.call(
            lambda: host.admin.create_topic(topic, partitions=partitions, configs=configs, exist_ok=True)
        )

    def supports_headers(self) -> bool:
        """Records have headers."""
        return True

    def key_partition(self, topic: str, key: bytes) -> Any:
        """Only the service loop knows how many partitions a topic has."""
        raise UsageError(f"the partition of a key of topic {topic!r} is not known in advance; send without it")
