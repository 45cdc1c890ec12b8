"""`Delivery`: takes batches to the server until they are confirmed, or until there is no use in going on.

A request whose answer was lost is sent again. Several batches that were refused together are sent one by one, one that
is too large in halves.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from flowshare.client.errors import (
    ClientError,
    Closed,
    ConnectionLost,
    DeliveryTimeout,
    NotConnected,
    RecordTooLarge,
    ServerError,
)
from flowshare.protocol import messages
from flowshare.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Callable

    from flowshare.client.batching import Batch, Buffer, PartitionQueue
    from flowshare.client.link import Link
    from flowshare.client.settings import ProducerSettings
    from flowshare.client.topics import TopicSizes
    from flowshare.clock import Clock

logger = logging.getLogger(__name__)


class _Final(ServerError):
    """A refusal that was looked into: trying again is of no use."""


class Delivery:
    """The way of one producer's batches."""

    def __init__(
        self,
        link: Link,
        *,
        sizes: TopicSizes,
        buffer: Buffer,
        clock: Clock,
        settings: ProducerSettings,
        resize: Callable[[str, int], None],
    ) -> None:
        """`resize`(topic, partitions): it was found that a topic has so many."""
        self._link = link
        self._sizes = sizes
        self._buffer = buffer
        self._clock = clock
        self._settings = settings
        self._resize = resize

    async def deliver(self, queue: PartitionQueue, batches: list[Batch]) -> None:
        """Send batches until they are confirmed or failed; never raises for either."""
        try:
            await self._settle(queue, batches)
        except Exception as error:
            logger.exception("producing to %s-%d failed", queue.topic, queue.partition)
            for batch in batches:
                if not batch.done.done():
                    batch.fail(ClientError(f"producing to {queue.topic}-{queue.partition} failed: {error!r}"))
        finally:
            self._buffer.give(sum(batch.reserved for batch in batches if batch.done.done()))

    async def _settle(self, queue: PartitionQueue, batches: list[Batch]) -> None:
        problem = await self._produce(queue, batches)
        if problem is None:
            return
        if isinstance(problem, ServerError) and len(batches) > 1:
            for batch in batches:  # which of them it was is not known
                await self._settle(queue, [batch])
            return
        batch = batches[0]
        too_large = isinstance(problem, ServerError) and problem.code is ErrorCode.MESSAGE_TOO_LARGE
        if too_large and batch.builder.count > 1:
            await self._settle_halves(queue, batch.halves(self._settings.compression))
            batch.done.set_result(None)
            return
        for failed in batches:
            failed.fail(RecordTooLarge(str(problem)) if too_large else problem)

    async def _settle_halves(self, queue: PartitionQueue, halves: tuple[Batch, Batch]) -> None:
        try:
            for part in halves:
                await self._settle(queue, [part])
        finally:
            for part in halves:
                if not part.done.done():  # the producer closes
                    part.fail(Closed("the producer was closed before the record was confirmed"))

    async def _produce(self, queue: PartitionQueue, batches: list[Batch]) -> ClientError | None:
        """Send until confirmed (None) or until there is no use in going on (why)."""
        records = b"".join([batch.build() for batch in batches])
        deadline_s = batches[0].created_s + self._settings.delivery_timeout_s
        tries = 0
        problem: ClientError | None = None
        while True:
            left_s = deadline_s - self._clock.monotonic()
            if left_s <= 0:
                where = f"{queue.topic}-{queue.partition}"
                return DeliveryTimeout(
                    f"not confirmed within {self._settings.delivery_timeout_s:g} s for {where}: {problem}"
                )
            problem = await self._produce_once(queue, batches, records, left_s)
            if problem is None or not self._passing(problem):
                return problem
            tries += 1
            logger.info("producing to %s-%d, try %d: %s", queue.topic, queue.partition, tries, problem)
            await self._clock.sleep(min(self._link.pause_s(tries), max(0.0, deadline_s - self._clock.monotonic())))

    async def _produce_once(
        self, queue: PartitionQueue, batches: list[Batch], records: bytes, left_s: float
    ) -> ClientError | None:
        request = messages.ProduceRequest(topic=queue.topic, partition=queue.partition, records=records)
        limit_s = min(left_s, self._settings.link.connect_timeout_s)
        try:
            answer = await self._link.send(request, connect_timeout_s=limit_s)
        except (NotConnected, ConnectionLost) as error:
            return error
        if answer.error is not ErrorCode.NONE:
            problem = ServerError(answer.error, answer.message, about=f"producing to {queue.topic}-{queue.partition}")
            if problem.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                return await self._topic_gone(queue, problem, left_s)
            return problem
        offset = answer.base_offset
        for batch in batches:
            batch.settle(queue.topic, queue.partition, offset)
            offset += batch.builder.count
        return None

    async def _topic_gone(self, queue: PartitionQueue, problem: ServerError, left_s: float) -> ClientError:
        """The topic is not there (any more): look again, which creates it if that is wanted."""
        self._sizes.forget(queue.topic)
        try:
            count = await self._sizes.ask(queue.topic, timeout_s=left_s)
        except ServerError as error:
            return _Final(error.code, error.message, about=f"producing to {queue.topic}")
        except (NotConnected, ConnectionLost) as error:
            return error
        self._resize(queue.topic, count)
        if queue.partition < count:
            return problem
        return _Final(problem.code, f"now it has {count} partitions", about=f"{queue.topic}-{queue.partition}")

    @staticmethod
    def _passing(problem: ClientError) -> bool:
        if isinstance(problem, ServerError):
            final = isinstance(problem, _Final) or problem.code is ErrorCode.KAFKA_STORAGE_ERROR
            return problem.retriable and not final
        return isinstance(problem, NotConnected | ConnectionLost)
