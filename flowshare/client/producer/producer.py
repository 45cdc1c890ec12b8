"""`Producer`: one per process, behind `topic.send`, sinks and dead letters.

At least once: a request whose answer was lost is sent again, so a record can be in the log twice; it is confirmed
when the server has made it durable. Order within a partition is kept. What a server cannot write to its disk fails
at once (KAFKA_STORAGE_ERROR is not tried again: the caller knows better what can wait).
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final, Literal, cast, overload

from flowshare.client.arguments import check_argument, settings_of
from flowshare.client.batching import (
    RECORD_OVERHEAD,
    Buffer,
    Bulk,
    BulkRun,
    PartitionQueue,
    Receipt,
    RecordMetadata,
    fail,
)
from flowshare.client.delivery import Delivery
from flowshare.client.errors import (
    BufferFull,
    ClientError,
    Closed,
    ConnectionLost,
    DeliveryTimeout,
    NotConnected,
    RecordTooLarge,
    ServerError,
)
from flowshare.client.link import Connect, Link
from flowshare.client.message import Headers, Message, items_of, size_of
from flowshare.client.partitioner import partition_for
from flowshare.client.settings import Compression, ProducerSettings
from flowshare.client.topics import TopicSizes
from flowshare.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from flowshare.clock import Clock

__all__ = ["Message", "Producer", "RecordMetadata"]

ROUND: Final = 500
"""Records that `send_many` adds before it lets others run."""

logger = logging.getLogger(__name__)


class _Target:
    """One topic's queues, and the records that wait for its partition count.

    `count`: partitions it has; a topic that was made anew with fewer leaves more queues than that.
    """

    __slots__ = ("count", "early", "name", "queues", "resolving", "sticky")

    def __init__(self, name: str) -> None:
        self.name = name
        self.count = 0
        self.queues: list[PartitionQueue] = []
        self.sticky = 0
        self.early: list[tuple[Message, Receipt, int]] = []
        self.resolving: asyncio.Task[ClientError | None] | None = None


class Producer:
    """Sends records in batches. All methods are called on one event loop."""

    def __init__(
        self,
        connect: Connect,
        *,
        clock: Clock,
        linger_s: float | None = None,
        batch_bytes: int | None = None,
        compression: Compression | None = None,
        buffer_bytes: int | None = None,
        settings: ProducerSettings | None = None,
        client_id: str = "producer",
    ) -> None:
        """Connects at the first record. The short arguments override the same ones of `settings`."""
        given = {
            "linger_s": linger_s,
            "batch_bytes": batch_bytes,
            "compression": compression,
            "buffer_bytes": buffer_bytes,
        }
        chosen = {name: value for name, value in given.items() if value is not None}
        self._settings = replace(settings_of(settings, ProducerSettings), **chosen)  # type: ignore[arg-type]  # names as above
        self._clock = clock
        self._link = Link(connect, clock=clock, settings=self._settings.link, name=client_id)
        self._sizes = TopicSizes(
            self._link,
            clock=clock,
            age_max_s=self._settings.metadata_age_max_s,
            create=self._settings.auto_create_topics,
        )
        self._buffer = Buffer(self._settings.buffer_bytes)
        self._targets: dict[str, _Target] = {}
        self._delivery = Delivery(
            self._link,
            sizes=self._sizes,
            buffer=self._buffer,
            clock=clock,
            settings=self._settings,
            resize=lambda topic, count: self._resize(self._target(topic), count),
        )
        self._closed = False

    @property
    def buffered_bytes(self) -> int:
        """Bytes of records that are not confirmed yet."""
        return self._buffer.used

    # --- sending ------------------------------------------------------------------------------------------------

    async def send(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Headers = (),
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> RecordMetadata:
        """Send one record and return when it is confirmed; waits while the buffer is full.

        Raises: RecordTooLarge and TypeError (at once), DeliveryTimeout, ServerError, Closed.
        """
        message = Message(value, key, headers, timestamp_ms, partition)
        size = self._size(topic, message)
        if not self._buffer.take(size):
            await self._buffer.wait(size)
        return await self._add(topic, message, size)

    def send_nowait(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Headers = (),
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> asyncio.Future[RecordMetadata]:
        """Queue one record; the future is done when it is confirmed or failed.

        Raises: BufferFull, RecordTooLarge, TypeError, Closed (now); the future: DeliveryTimeout, ServerError.
        """
        message = Message(value, key, headers, timestamp_ms, partition)
        size = self._size(topic, message)
        if not self._buffer.take(size):
            raise BufferFull(
                f"{self._buffer.used} of {self._buffer.limit} bytes wait to be confirmed; await send(), "
                "or raise buffer_bytes"
            )
        return self._add(topic, message, size)

    @overload
    async def send_many(
        self, topic: str, items: Iterable[Message | bytes | None], *, return_exceptions: Literal[False] = False
    ) -> list[RecordMetadata]: ...
    @overload
    async def send_many(
        self, topic: str, items: Iterable[Message | bytes | None], *, return_exceptions: Literal[True]
    ) -> list[RecordMetadata | ClientError]: ...
    async def send_many(
        self, topic: str, items: Iterable[Message | bytes | None], *, return_exceptions: bool = False
    ) -> list[RecordMetadata] | list[RecordMetadata | ClientError]:
        """Send many records of one topic and return when all are settled, in order: the fast way.

        An item is a value or a `Message`. With `return_exceptions` a failed record's error stands in its place.
        Raises: the first error otherwise (the other records may be in the log); Closed; TypeError: of the first item
        that is no record, those before it may be in the log.
        """
        rest = items_of(items, topic)
        target = await self._resolved(topic)
        bulk = Bulk()
        try:
            await self._add_all(target, rest, bulk)
        finally:
            bulk.finish()
        await bulk.done
        outcomes = cast("list[RecordMetadata | ClientError]", bulk.results)
        if not return_exceptions:
            for outcome in outcomes:
                if isinstance(outcome, ClientError):
                    raise outcome
        return outcomes

    def allow(self, record_bytes: int) -> None:
        """Take records of up to so many bytes from now on, where `request_bytes_max` is less."""
        if record_bytes > self._settings.request_bytes_max:
            self._settings = replace(self._settings, request_bytes_max=record_bytes)

    async def flush(self, timeout_s: float | None = None) -> None:
        """Send what is queued without lingering and wait until it is settled. Raises: TimeoutError, TypeError."""
        check_argument("flush: timeout_s", timeout_s, float | None)
        await self._clock.wait_for(self._flush(), timeout_s)

    async def close(self, timeout_s: float = 10.0) -> None:
        """Flush for up to `timeout_s` seconds, fail what is left, close the connection."""
        if self._closed:
            return
        self._closed = True
        self._buffer.close()
        try:
            await self._clock.wait_for(self._flush(), timeout_s)
        except TimeoutError:
            logger.warning("the producer was closed with records that are not confirmed")
        error = Closed("the producer was closed before the record was confirmed")
        for target in tuple(self._targets.values()):
            await self._abandon(target, error)
        await self._link.close()

    # --- adding -------------------------------------------------------------------------------------------------

    def _size(self, topic: str, message: Message) -> int:
        """Bytes the record takes, about, and from above. Raises: RecordTooLarge, TypeError, Closed."""
        if self._closed:
            raise Closed("the producer is closed")
        return size_of(message, topic, self._settings.request_bytes_max)

    def _add(self, topic: str, message: Message, size: int) -> asyncio.Future[RecordMetadata]:
        future: asyncio.Future[RecordMetadata] = asyncio.get_running_loop().create_future()
        target = self._target(topic)
        if self._sizes.get(topic) is None:
            self._resolve(target)
        if target.queues:  # an old partition count does until the new one is known
            self._route(target, message, future, size, self._clock.now_ms())
        else:
            target.early.append((message, future, size))
        return future

    async def _add_all(self, target: _Target, rest: Iterator[Message | bytes | None], bulk: Bulk) -> None:
        while chunk := list(itertools.islice(rest, ROUND)):
            position = bulk.expect(len(chunk))
            if not self._add_values(target, chunk, bulk, position):
                await self._add_each(target, chunk, bulk, position)
            await self._clock.sleep(0)

    async def _add_each(
        self, target: _Target, chunk: Sequence[Message | bytes | None], bulk: Bulk, position: int
    ) -> None:
        now_ms = self._clock.now_ms()
        for number, item in enumerate(chunk):
            message = item if isinstance(item, Message) else Message(item)
            receipt = BulkRun(bulk, position + number, 1)
            try:
                size = self._size(target.name, message)
                if not self._buffer.take(size):
                    await self._buffer.wait(size)
            except RecordTooLarge as error:
                fail(receipt, error)
                continue
            except BaseException:
                bulk.finish(len(chunk) - number)
                raise
            self._route(target, message, receipt, size, now_ms)

    def _add_values(self, target: _Target, chunk: Sequence[Message | bytes | None], bulk: Bulk, position: int) -> bool:
        """All at once, if they are plain values of ordinary size and there is room; else False."""
        if set(map(type, chunk)) != {bytes}:
            return False
        values = cast("Sequence[bytes]", chunk)
        size = sum(map(len, values)) + RECORD_OVERHEAD * len(values)
        if max(map(len, values)) > self._settings.batch_bytes or not self._buffer.take(size):
            return False
        now_ms, start = self._clock.now_ms(), 0
        while start < len(values):
            queue = target.queues[self._spread(target, RECORD_OVERHEAD + len(values[start]))]
            start += queue.append_values(values, start, now_ms, bulk, position)
        return True

    def _route(self, target: _Target, message: Message, receipt: Receipt, size: int, now_ms: int) -> None:
        """Choose the partition and queue the record there; errors go to the receipt."""
        value, key, headers, timestamp_ms, partition = message
        count = target.count
        if partition is None:
            partition = self._spread(target, size) if key is None else partition_for(key, count)
        elif not 0 <= partition < count:
            self._buffer.give(size)
            text = f"there is no partition {partition}, the topic has {count}"
            fail(receipt, ServerError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, text, about=f"topic {target.name}"))
            return
        moment_ms = now_ms if timestamp_ms is None else timestamp_ms
        target.queues[partition].append(key, value, headers, moment_ms, receipt, size)

    @staticmethod
    def _spread(target: _Target, size: int) -> int:
        """Partition for a record without key: the same until its batch is full or gone, then the next."""
        if target.count > 1 and not target.queues[target.sticky].has_room(size):
            target.sticky = (target.sticky + 1) % target.count
        return target.sticky

    # --- topics -------------------------------------------------------------------------------------------------

    def _target(self, topic: str) -> _Target:
        target = self._targets.get(topic)
        if target is None:
            target = self._targets[topic] = _Target(topic)
        return target

    async def _resolved(self, topic: str) -> _Target:
        """The topic with its queues. Raises: ServerError, DeliveryTimeout, Closed."""
        if self._closed:
            raise Closed("the producer is closed")
        target = self._target(topic)
        if self._sizes.get(topic) is None:
            resolving = self._resolve(target)
            problem = None if target.queues else await asyncio.shield(resolving)
            if problem is not None:
                raise problem
        return target

    def _resolve(self, target: _Target) -> asyncio.Task[ClientError | None]:
        if target.resolving is None:
            target.resolving = asyncio.create_task(self._resolve_early(target), name=f"topic {target.name}")
        return target.resolving

    async def _resolve_early(self, target: _Target) -> ClientError | None:
        """Ask for the partitions, then queue (or fail) the records that waited for them, in order; what went wrong."""
        problem: ClientError | None = None
        try:
            await self._ask(target)
        except ClientError as error:
            problem = error
        except Exception as error:
            logger.exception("topic %s could not be looked up", target.name)
            problem = ClientError(f"topic {target.name} could not be looked up: {error!r}")
        target.resolving = None
        if problem is not None and not target.queues:
            self._targets.pop(target.name, None)  # names that never were topics must not pile up
        early, target.early = target.early, []
        now_ms = self._clock.now_ms()
        for message, receipt, size in early:
            if problem is None:
                self._route_early(target, message, receipt, size, now_ms)
            else:
                self._buffer.give(size)
                fail(receipt, problem)
        return problem

    def _route_early(self, target: _Target, message: Message, receipt: Receipt, size: int, now_ms: int) -> None:
        """`_route`; nobody else would hear what it raises, and the records behind this one would never be sent."""
        try:
            self._route(target, message, receipt, size, now_ms)
        except Exception as error:
            logger.exception("a record for topic %s could not be queued", target.name)
            self._buffer.give(size)
            fail(receipt, ClientError(f"the record for topic {target.name} could not be queued: {error!r}"))

    async def _ask(self, target: _Target) -> None:
        try:
            count = await self._sizes.ask(target.name, timeout_s=self._settings.delivery_timeout_s)
        except (NotConnected, ConnectionLost) as error:
            raise DeliveryTimeout(f"topic {target.name} could not be looked up: {error}") from error
        self._resize(target, count)

    def _resize(self, target: _Target, count: int) -> None:
        for partition in range(len(target.queues), count):
            target.queues.append(
                PartitionQueue(
                    target.name, partition, clock=self._clock, settings=self._settings, deliver=self._delivery.deliver
                )
            )
        target.count = count
        target.sticky %= count

    # --- ending -------------------------------------------------------------------------------------------------

    async def _flush(self) -> None:
        resolving = [target.resolving for target in self._targets.values() if target.resolving is not None]
        if resolving:
            await asyncio.wait(resolving)
        waited = [done for target in self._targets.values() for queue in target.queues for done in queue.hurry()]
        if waited:
            await asyncio.wait(waited)

    async def _abandon(self, target: _Target, error: ClientError) -> None:
        if target.resolving is not None:
            target.resolving.cancel()
            await asyncio.gather(target.resolving, return_exceptions=True)
        for _, receipt, size in target.early:
            self._buffer.give(size)
            fail(receipt, error)
        target.early = []
        for queue in target.queues:
            for batch in await queue.abandon(error):
                self._buffer.give(batch.reserved)
