"""`KafkaProducer`: the `Producer` for Kafka clusters, over aiokafka's idempotent one.

aiokafka keeps connections, retries, producer id and sequence numbers, so a record whose answer was lost is in the log
once. Batches are made here: one queue a partition, and what comes while a batch waits to be sent goes into the next.

A batch that brokers refuse leaves a gap in aiokafka's sequence numbers, and they refuse all of its partition from then
on. So that producer is ended, and the next batch gets a new one with a producer id of its own:

| an accepted record's batch | becomes |
|---|---|
| too large for the topic, several records | batches of half its size, before what waits |
| too large for the topic, one record | RecordTooLarge |
| out of order, behind a refused one | sent again, before what waits |
| refused for another reason | that error |
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, cast, overload

from flowshare.client.arguments import check_argument, settings_of
from flowshare.client.batching import Buffer, RecordMetadata
from flowshare.client.errors import (
    BufferFull,
    ClientError,
    Closed,
    RecordTooLarge,
    ServerError,
)
from flowshare.client.kafka_errors import problem_of
from flowshare.client.link import Connect, Link
from flowshare.client.message import Message, items_of, size_of
from flowshare.client.partitioner import partition_for
from flowshare.client.settings import Compression, ProducerSettings
from flowshare.client.topics import TopicSizes
from flowshare.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from flowshare.client.security import Security
    from flowshare.clock import Clock

ROUND: Final = 500
"""Records that `send_many` adds before it lets others run."""

OUT_OF_ORDER: Final = (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.UNKNOWN_PRODUCER_ID)

logger = logging.getLogger(__name__)


class _Letter(NamedTuple):
    message: Message
    size: int
    outcome: asyncio.Future[RecordMetadata]


class _Queue:
    """Records of one partition that wait for a batch. sending: its task; again: refused, and to be sent before them;
    bytes_max: of a batch that the topic takes, as far as known."""

    __slots__ = ("again", "bytes_max", "letters", "sending")

    def __init__(self, bytes_max: int) -> None:
        self.letters: deque[_Letter] = deque()
        self.again: list[_Letter] = []
        self.sending: asyncio.Task[None] | None = None
        self.bytes_max = bytes_max


class _Topic:
    """One topic: its partitions once they are known, and the records that wait for that."""

    __slots__ = ("count", "early", "queues", "resolving", "sticky")

    def __init__(self) -> None:
        self.count = 0
        self.early: list[_Letter] = []
        self.queues: dict[int, _Queue] = {}
        self.resolving: asyncio.Task[None] | None = None
        self.sticky = 0


class KafkaProducer:
    """Sends records in batches. All methods are called on one event loop."""

    def __init__(
        self,
        bootstrap: Sequence[str],
        connect: Connect,
        *,
        clock: Clock,
        linger_s: float | None = None,
        compression: Compression | None = None,
        settings: ProducerSettings | None = None,
        security: Security | None = None,
        client_id: str = "producer",
    ) -> None:
        """Connects at the first record; `connect` opens a connection to the same cluster, where topics are looked up.

        The short arguments override the same ones of `settings`.
        """
        chosen: dict[str, Any] = {"linger_s": linger_s, "compression": compression}
        self._settings = replace(
            settings_of(settings, ProducerSettings),
            **{name: value for name, value in chosen.items() if value is not None},
        )
        self._bootstrap = tuple(bootstrap)
        self._clock = clock
        self._security = security
        self._client_id = client_id
        self._link = Link(connect, clock=clock, settings=self._settings.link, name=client_id)
        self._sizes = TopicSizes(
            self._link,
            clock=clock,
            age_max_s=self._settings.metadata_age_max_s,
            create=self._settings.auto_create_topics,
        )
        self._kafka: Any = None
        self._starting: asyncio.Task[Any] | None = None
        self._buffer = Buffer(self._settings.buffer_bytes)
        self._topics: dict[str, _Topic] = {}
        self._open: set[asyncio.Future[RecordMetadata]] = set()
        self._retired: Any = None
        self._closed = False
        self._closed_for_good = False

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
        headers: Sequence[tuple[str, bytes | None]] = (),
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
        headers: Sequence[tuple[str, bytes | None]] = (),
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
        """Send many records of one topic and return when all are settled, in order.

        An item is a value or a `Message`. With `return_exceptions` a failed record's error stands in its place.
        Raises: the first error otherwise (the other records may be in the log); Closed; TypeError.
        """
        outcomes: list[asyncio.Future[RecordMetadata]] = []
        for number, item in enumerate(items_of(items, topic)):
            message = item if isinstance(item, Message) else Message(item)
            try:
                size = self._size(topic, message)
            except RecordTooLarge as error:
                refused: asyncio.Future[RecordMetadata] = asyncio.get_running_loop().create_future()
                refused.set_exception(error)
                outcomes.append(refused)
                continue
            if not self._buffer.take(size):
                await self._buffer.wait(size)
            outcomes.append(self._add(topic, message, size))
            if number % ROUND == ROUND - 1:
                await self._clock.sleep(0)
        settled = await asyncio.gather(*outcomes, return_exceptions=True)
        if not return_exceptions:
            for outcome in settled:
                if isinstance(outcome, BaseException):
                    raise outcome
        return cast("list[RecordMetadata | ClientError]", settled)

    def allow(self, record_bytes: int) -> None:
        """Take records of up to so many bytes from now on, where `request_bytes_max` is less."""
        if record_bytes > self._settings.request_bytes_max:
            self._settings = replace(self._settings, request_bytes_max=record_bytes)

    async def flush(self, timeout_s: float | None = None) -> None:
        """Wait until what is queued is settled. Raises: TimeoutError, TypeError."""
        check_argument("flush: timeout_s", timeout_s, float | None)
        if self._open:
            await self._clock.wait_for(asyncio.wait(tuple(self._open)), timeout_s)

    async def close(self, timeout_s: float = 10.0) -> None:
        """Flush for up to `timeout_s` seconds, fail what is left, close the connections."""
        if self._closed:
            return
        self._closed = True
        self._buffer.close()
        try:
            await self.flush(timeout_s)
        except TimeoutError:
            logger.warning("the producer was closed with records that are not confirmed")
        await self._end()

    async def _end(self) -> None:
        self._closed_for_good = True
        queues = [queue for topic in self._topics.values() for queue in topic.queues.values()]
        tasks = [task for task in (queue.sending for queue in queues) if task is not None]
        tasks += [topic.resolving for topic in self._topics.values() if topic.resolving is not None]
        if self._starting is not None:
            tasks.append(self._starting)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for outcome in tuple(self._open):
            _fail(outcome, Closed("the producer was closed before the record was confirmed"))
        for kafka in (self._retired, self._kafka):
            if kafka is not None:
                await kafka.stop()
        await self._link.close()

    # --- queues -------------------------------------------------------------------------------------------------

    def _size(self, topic: str, message: Message) -> int:
        """Bytes the record takes, about, and from above. Raises: RecordTooLarge, Closed."""
        if self._closed:
            raise Closed("the producer is closed")
        return size_of(message, topic, self._settings.request_bytes_max)

    def _add(self, name: str, message: Message, size: int) -> asyncio.Future[RecordMetadata]:
        outcome: asyncio.Future[RecordMetadata] = asyncio.get_running_loop().create_future()
        self._open.add(outcome)
        outcome.add_done_callback(self._settled(size))
        topic = self._topics.setdefault(name, _Topic())
        letter = _Letter(message, size, outcome)
        if self._sizes.get(name) is None and topic.resolving is None:
            topic.resolving = asyncio.create_task(self._resolve(name, topic), name=f"topic {name}")
        if topic.count:  # an old partition count does until the new one is known
            self._route(name, topic, letter)
        else:
            topic.early.append(letter)
        return outcome

    def _settled(self, size: int) -> Any:
        def settled(outcome: asyncio.Future[RecordMetadata]) -> None:
            self._open.discard(outcome)
            self._buffer.give(size)

        return settled

    def _route(self, name: str, topic: _Topic, letter: _Letter) -> None:
        message = letter.message
        partition = message.partition
        if partition is None:
            partition = topic.sticky if message.key is None else partition_for(message.key, topic.count)
        elif not 0 <= partition < topic.count:
            text = f"there is no partition {partition}, the topic has {topic.count}"
            _fail(letter.outcome, ServerError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, text, about=f"topic {name}"))
            return
        queue = topic.queues.get(partition)
        if queue is None:
            queue = topic.queues[partition] = _Queue(self._settings.batch_bytes)
        queue.letters.append(letter)
        self._go_on(name, topic, partition, queue)

    def _go_on(self, name: str, topic: _Topic, partition: int, queue: _Queue) -> None:
        if queue.sending is None and not self._closed_for_good:
            queue.sending = asyncio.create_task(
                self._send_all(name, topic, partition, queue), name=f"{name}-{partition}"
            )

    async def _resolve(self, name: str, topic: _Topic) -> None:
        """Learn how many partitions there are, then route (or fail) what waited for it, in order."""
        problem: ClientError | None = None
        try:
            topic.count = await self._sizes.ask(name, timeout_s=self._settings.delivery_timeout_s)
        except Exception as error:  # noqa: BLE001 - goes to the senders
            problem = problem_of(error, f"topic {name}")
        topic.resolving = None
        early, topic.early = topic.early, []
        if problem is not None and not topic.queues:
            self._topics.pop(name, None)  # names that never were topics must not pile up
        for letter in early:
            if problem is None:
                self._route(name, topic, letter)
            else:
                _fail(letter.outcome, problem)

    # --- aiokafka -----------------------------------------------------------------------------------------------

    async def _started(self) -> Any:
        if self._kafka is not None:
            return self._kafka
        if self._starting is None or self._starting.done():  # one that failed is tried again for the next record
            self._starting = asyncio.create_task(self._start(), name="kafka producer")
        return await asyncio.shield(self._starting)

    def _retire(self, kafka: Any) -> None:
        """Send nothing more over a producer of which a batch was refused; the next one waits until it is done."""
        if self._kafka is kafka:
            self._kafka, self._retired = None, kafka

    async def _start(self) -> Any:
        from aiokafka import AIOKafkaProducer

        if self._retired is not None:
            await self._retired.stop()  # settles all that it has; else what comes now could overtake that
            self._retired = None
        settings = self._settings
        secured = {} if self._security is None else self._security.for_aiokafka()
        kafka: Any = AIOKafkaProducer(
            bootstrap_servers=",".join(self._bootstrap),
            client_id=self._client_id,
            acks="all",
            enable_idempotence=True,
            compression_type=None if settings.compression == "none" else settings.compression,
            max_batch_size=settings.batch_bytes,
            max_request_size=settings.request_bytes_max,
            linger_ms=round(settings.linger_s * 1000),
            request_timeout_ms=round(settings.delivery_timeout_s * 1000),
            metadata_max_age_ms=round(settings.metadata_age_max_s * 1000),
            **secured,
        )
        try:
            await kafka.start()
        except BaseException:
            await kafka.stop()
            raise
        self._kafka = kafka
        return kafka

    async def _send_all(self, name: str, topic: _Topic, partition: int, queue: _Queue) -> None:
        """Make batches of what waits until nothing does; a batch waits until the one before it is on its way."""
        while queue.letters or queue.again:
            batch: list[_Letter] = []
            kafka: Any = None
            try:
                kafka = await self._started()
                await kafka.client.add_topic(name)  # else it may forget a topic that it happens to know
                builder = kafka.create_batch()
                self._fill(builder, queue, batch)
                topic.sticky = (partition + 1) % topic.count if queue.letters else topic.sticky
                builder.close()
                sent = await kafka.send_batch(builder, name, partition=partition)
            except Exception as error:  # noqa: BLE001 - goes to the senders
                if kafka is not None and kafka is not self._kafka:  # it was retired meanwhile
                    queue.letters.extendleft(reversed(batch))
                    continue
                problem = problem_of(error, f"producing to {name}-{partition}")
                for letter in batch or [queue.letters.popleft()]:
                    _fail(letter.outcome, problem)
                continue
            except asyncio.CancelledError:
                for letter in batch:
                    _fail(letter.outcome, Closed("the producer was closed before the record was confirmed"))
                raise
            sent.add_done_callback(self._confirm(name, topic, partition, queue, batch, kafka))
            await self._clock.sleep(0)
        queue.sending = None

    @staticmethod
    def _fill(builder: Any, queue: _Queue, batch: list[_Letter]) -> None:
        """Move letters from the queue into a batch, as many as it takes."""
        if queue.again:
            again, queue.again = queue.again, []
            queue.letters.extendleft(reversed(again))
        size = 0
        while queue.letters and (not batch or size + queue.letters[0].size <= queue.bytes_max):
            if not _append(builder, queue.letters[0].message):
                break
            size += queue.letters[0].size
            batch.append(queue.letters.popleft())

    def _confirm(
        self, name: str, topic: _Topic, partition: int, queue: _Queue, batch: list[_Letter], kafka: Any
    ) -> Callable[[asyncio.Future[Any]], None]:
        def confirm(sent: asyncio.Future[Any]) -> None:
            error = Closed("the producer was closed") if sent.cancelled() else sent.exception()
            if error is None:
                offset = sent.result().offset
                for index, letter in enumerate(batch):
                    if not letter.outcome.done():
                        letter.outcome.set_result(RecordMetadata(name, partition, offset + index))
                return
            behind = kafka is not self._kafka
            if not isinstance(error, Closed):
                self._retire(kafka)
            problem = problem_of(error, f"producing to {name}-{partition}")
            if isinstance(problem, RecordTooLarge) and len(batch) > 1:
                queue.bytes_max = max(1, sum(letter.size for letter in batch) // 2)
            elif not (behind and isinstance(problem, ServerError) and problem.code in OUT_OF_ORDER):
                for letter in batch:
                    _fail(letter.outcome, problem)
                return
            queue.again += batch
            self._go_on(name, topic, partition, queue)

        return confirm


def _append(builder: Any, message: Message) -> bool:
    headers = [(name, content) for name, content in message.headers]
    added = builder.append(timestamp=message.timestamp_ms, key=message.key, value=message.value, headers=headers)
    return added is not None


def _fail(outcome: asyncio.Future[RecordMetadata], error: BaseException) -> None:
    if not outcome.done():
        outcome.set_exception(error)
