"""`Producer`: sends records, one per process, for `topic.send`, sinks and dead letters.

Idempotent: a record is in the log at most once, even if answers are lost, and confirmed when the server has made it
durable; a record that failed with DeliveryTimeout may be in the log. Order within a partition is kept. With a
transactional id the records sent between `begin` and `commit` count as a whole. A record that a flowshare server cannot
write to its disk fails at once (KAFKA_STORAGE_ERROR is not retried: the caller knows better which records can wait).
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, cast, overload

from flowshare.client.arguments import check_argument, settings_of
from flowshare.client.errors import (
    BufferFull,
    ClientError,
    Closed,
    ConnectionLost,
    DeliveryTimeout,
    IllegalState,
    NotConnected,
    RecordTooLarge,
    ServerError,
)
from flowshare.client.producer.batching import RECORD_OVERHEAD, Bulk, BulkRun, Receipt, RecordMetadata, fail
from flowshare.client.producer.channel import Channel, out_of_time
from flowshare.client.producer.message import Headers, Message, items_of, partition_for, size_of
from flowshare.client.producer.sender import PartitionSender
from flowshare.client.settings import Compression, ProducerSettings
from flowshare.core_errors import FlowshareError
from flowshare.protocol.errors import ErrorCode
from flowshare.tasks import cancelled

if TYPE_CHECKING:
    from flowshare.client.net.link import Connect
    from flowshare.client.producer.channel import Declared, TopicPlace
    from flowshare.client.producer.sequence import Identity
    from flowshare.client.producer.transaction import ProducerTransactions
    from flowshare.clock import Clock
    from flowshare.protocol.batches import BatchBuilder

__all__ = ["Message", "Producer", "RecordMetadata"]

ROUND: Final = 500
"""The number of records that `send_many` adds before it lets other tasks run."""

logger = logging.getLogger(__name__)


class _EarlyRecord(NamedTuple):
    """A record that waits for its topic's partition count, since `created_s` (monotonic)."""

    message: Message
    receipt: Receipt
    size: int
    created_s: float


class _TopicQueues:
    """One topic's queues, and the records that wait for its partition count.

    count: the topic's number of partitions; a topic that was created anew with fewer leaves more queues than that.
    """

    __slots__ = ("count", "early", "name", "queues", "resolving", "sticky")

    def __init__(self, name: str) -> None:
        self.name = name
        self.count = 0
        self.queues: list[PartitionSender] = []
        self.sticky = 0
        self.early: list[_EarlyRecord] = []
        self.resolving: asyncio.Task[ClientError | None] | None = None

    def lacks(self, message: Message) -> bool:
        """True if the record is for a partition that did not exist when the topic was looked up; it may exist by
        now."""
        return message.partition is not None and message.partition >= self.count


class Producer:
    """Sends records in batches. Call all methods on one event loop."""

    def __init__(
        self,
        connect: Connect,
        *,
        clock: Clock,
        linger: float | None = None,
        batch_size: int | None = None,
        compression: Compression | None = None,
        buffer_memory: int | None = None,
        settings: ProducerSettings | None = None,
        client_id: str = "producer",
        transactional_id: str | None = None,
        transaction_timeout: float = 60.0,
        declared: Declared = lambda _: None,
    ) -> None:
        """Store the settings; the connection is opened at the first record. The short arguments override those of
        `settings`.

        declared: finds partitions and settings of a missing topic; None: the topic is created with one partition.
        transactional_id: the identity that successors of this producer share; records are then sent between `begin` and
        `commit`. transaction_timeout: the longest time, in seconds, that the server leaves a transaction open
        (transaction.timeout.ms).
        """
        given = {
            "linger": linger,
            "batch_size": batch_size,
            "compression": compression,
            "buffer_memory": buffer_memory,
        }
        chosen = {name: value for name, value in given.items() if value is not None}
        self._settings = replace(settings_of(settings, ProducerSettings), **chosen)  # type: ignore[arg-type]  # names as above
        self._clock = clock
        self._channel = Channel(connect, clock=clock, settings=self._settings, client_id=client_id, declared=declared)
        self._buffer = self._channel.buffer
        self._transactions: ProducerTransactions | None = None
        if transactional_id is not None:
            from flowshare.client.producer.transaction import ProducerTransactions

            self._transactions = ProducerTransactions(self._channel, transactional_id, timeout_s=transaction_timeout)
        self._targets: dict[str, _TopicQueues] = {}
        self._closed = False
        self._abandoned: ClientError = Closed("the look-up of the topic was cancelled")
        """The error of the last `_abandon`."""

    @property
    def buffered_bytes(self) -> int:
        """The bytes of records that are not confirmed yet."""
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
        timestamp: float | None = None,
    ) -> RecordMetadata:
        """Send one record and return when it is confirmed; wait while the buffer is full.

        Raises: RecordTooLarge and TypeError (at once), DeliveryTimeout, ServerError, Closed.
        """
        message = Message(value, key, headers, timestamp, partition)
        size = self._size(topic, message)
        if not self._buffer.take(size):
            await self._room(size)
        return await self._add(topic, message, size)

    def send_nowait(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Headers = (),
        partition: int | None = None,
        timestamp: float | None = None,
    ) -> asyncio.Future[RecordMetadata]:
        """Queue one record; the future is done when the record is confirmed or failed.

        Raises: BufferFull, RecordTooLarge, TypeError, Closed (now); the future: DeliveryTimeout, ServerError.
        """
        message = Message(value, key, headers, timestamp, partition)
        size = self._size(topic, message)
        if not self._buffer.take(size):
            raise BufferFull(
                f"{self._buffer.used} of {self._buffer.limit} bytes wait to be confirmed; await send(), "
                "or raise buffer_memory"
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
        """Send many records of one topic, and return their outcomes in order when all are known: the fast way.

        An item is a value or a `Message`. return_exceptions: return a failed record's error in its place.
        Raises: the first error otherwise (the other records may be in the log); Closed; TypeError: the first item that
        is no record, the items before it may be in the log; IllegalState: the transaction is ended meanwhile, the text
        says how many items it has taken.
        """
        rest = items_of(items, topic)
        self._check()
        number = self._transaction_number
        try:
            target = await self._resolved(topic)
        except ClientError as error:
            if number == self._transaction_number:  # else its transaction has ended
                self._failed(error)
            raise
        bulk = Bulk()
        try:
            await self._add_all(target, rest, bulk, number)
        except IllegalState as error:
            if isinstance(error, Closed):
                raise
            raise IllegalState(f"{error}; the first {len(bulk.results)} items of this send_many were taken") from None
        finally:
            bulk.finish()
        await bulk.done
        outcomes = cast("list[RecordMetadata | ClientError]", bulk.results)
        if not return_exceptions:
            for outcome in outcomes:
                if isinstance(outcome, ClientError):
                    raise outcome
        return outcomes

    async def partitions(self, topic: str, *, at_least: int = 0) -> int:
        """Return the number of partitions of a topic, looked up anew if fewer than `at_least` are known. Raises:
        ServerError, DeliveryTimeout, Closed."""
        target = await self._resolved(topic)
        if target.count < at_least:
            target = await self._looked_up(topic)
        return target.count

    def known_topic(self, topic: str) -> TopicPlace | None:
        """Return a topic's number of partitions and its id; None: not known, or known too long ago."""
        return self._channel.known_topic(topic)

    async def topic(self, topic: str) -> TopicPlace:
        """Return a topic's number of partitions and its id; a missing topic is created with `auto_create_topics`.
        Raises: ServerError, NotConnected, ConnectionLost, Closed."""
        self._check_closed()
        return await self._channel.topic(topic, self._settings.delivery_timeout)

    def forget_topic(self, topic: str) -> None:
        """Forget all facts about a topic, which turned out to be wrong."""
        self._channel.forget_size(topic)

    @property
    def settings(self) -> ProducerSettings:
        """The current settings (`allow` raises `max_request_size`)."""
        return self._settings

    def send_batch(self, topic: str, partition: int, batch: BatchBuilder) -> asyncio.Future[None]:
        """Send a batch that the caller has filled; the caller bounds the bytes on the way, and calls `partitions`
        first.

        The future is done when the whole batch is confirmed. Raises: Closed, IllegalState (now); the future: as `send`.
        """
        self._check()
        return self._targets[topic].queues[partition].append_batch(batch)

    # --- transactions -------------------------------------------------------------------------------------------

    @property
    def transactional(self) -> bool:
        """True if records are sent in transactions."""
        return self._transactions is not None

    @property
    def identity(self) -> Identity | None:
        """Producer id and epoch of the transactional id; None before the first `begin`."""
        return None if self._transactions is None else self._transactions.identity

    async def begin(self) -> None:
        """Begin a transaction. Older producers of the transactional id are fenced, and their open transactions aborted.

        Raises: IllegalState, ServerError, NotConnected, ConnectionLost.
        """
        await self._transactional.begin()

    async def commit(self) -> None:
        """Send all queued records, and commit the transaction. After an error abort, but for those below.

        Raises: the error that failed the transaction. After NotConnected, ConnectionLost or a ServerError that is
        `retriable` the outcome is unknown: commit again.
        """
        transactions = self._transactional
        if transactions.in_doubt:
            await transactions.end(commit=True)
            return
        transactions.check_open()
        with transactions.ending():
            await self._flush()
            transactions.check_problem()
            await transactions.end(commit=True)

    async def abort(self) -> None:
        """Abort the transaction; records that are not confirmed fail. Raises: as `begin`."""
        transactions = self._transactional
        if not transactions.open:
            raise IllegalState(f"transaction {transactions.transactional_id} is not open: there is nothing to abort")
        transactions.check_known()
        with transactions.ending():
            await self._abandon(IllegalState("the transaction was aborted before the record was confirmed"))
            await transactions.end(commit=False)

    @property
    def _transactional(self) -> ProducerTransactions:
        self._check_closed()
        if self._transactions is None:
            raise IllegalState("the producer has no transactional_id: give it one to write in transactions")
        return self._transactions

    def allow(self, record_bytes: int) -> None:
        """Raise `max_request_size` to `record_bytes` if it is less."""
        if record_bytes > self._settings.max_request_size:
            self._settings = replace(self._settings, max_request_size=record_bytes)

    async def flush(self, timeout: float | None = None) -> None:
        """Send all queued records without lingering, and wait for their outcomes. timeout: seconds, None: no limit.
        Raises: TimeoutError, TypeError.
        """
        check_argument("flush: timeout", timeout, float | None)
        await self._clock.wait_for(self._flush(), timeout)

    async def close(self, timeout: float = 10.0) -> None:
        """Flush for up to `timeout` seconds, fail the remaining records, close the connection."""
        if self._closed:
            return
        self._closed = True
        self._buffer.close()
        try:
            await self._clock.wait_for(self._flush(), timeout)
        except TimeoutError:
            logger.warning("the producer was closed with records that are not confirmed")
        finally:  # also for a caller who waits no longer: nothing may be sent on
            try:
                await self._abandon(Closed("the producer was closed before the record was confirmed"))
            finally:
                await self._channel.close()

    # --- adding -------------------------------------------------------------------------------------------------

    def _size(self, topic: str, message: Message) -> int:
        """Return an upper estimate of the record's bytes. Raises: RecordTooLarge, TypeError, Closed."""
        self._check()
        try:
            return size_of(message, topic, self._settings.max_request_size)
        except RecordTooLarge as error:
            self._failed(error)
            raise

    async def _room(self, size: int) -> None:
        """Wait for room in the buffer. Raises: Closed; IllegalState: the transaction has ended meanwhile."""
        number = self._transaction_number
        await self._buffer.wait(size)
        try:
            self._check_number(number)
        except BaseException:
            self._buffer.give(size)
            raise

    @property
    def _transaction_number(self) -> int:
        return 0 if self._transactions is None else self._transactions.number

    def _check_number(self, number: int) -> None:
        """Check that the transaction in which a record was given is still open. Raises: Closed, IllegalState."""
        self._check()
        if number != self._transaction_number:
            raise IllegalState("the transaction ended before the record was sent: send it in the next one")

    def _check(self) -> None:
        """Check that records can be sent. Raises: Closed; IllegalState: the transaction is not open."""
        self._check_closed()
        if self._transactions is not None:
            self._transactions.check_open()

    def _failed(self, error: ClientError) -> None:
        """Fail the open transaction, if the producer has one, with the error of a record."""
        if self._transactions is not None:
            self._transactions.failed(error)

    def _fail(self, receipt: Receipt, error: ClientError) -> None:
        """Report a record as failed, which fails its transaction, too."""
        self._failed(error)
        fail(receipt, error)

    def _check_closed(self) -> None:
        if self._closed:
            raise Closed("the producer is closed")

    def _add(self, topic: str, message: Message, size: int) -> asyncio.Future[RecordMetadata]:
        future: asyncio.Future[RecordMetadata] = asyncio.get_running_loop().create_future()
        target = self._target(topic)
        if self._channel.known_size(topic) is None or not target.queues:  # `topic` may have been asked for it alone
            self._resolve(target)
        if target.queues and not target.lacks(message):  # an old partition count does until the new one is known
            self._route(target, message, future, size, self._clock.now_ms())
        else:
            self._put_early(target, message, future, size)
        return future

    def _put_early(self, target: _TopicQueues, message: Message, receipt: Receipt, size: int) -> None:
        """Keep a record until the topic's partitions are known, or are looked up anew."""
        target.early.append(_EarlyRecord(message, receipt, size, self._clock.monotonic()))
        self._resolve(target)

    async def _add_all(
        self, target: _TopicQueues, rest: Iterator[Message | bytes | None], bulk: Bulk, number: int
    ) -> None:
        while chunk := list(itertools.islice(rest, ROUND)):
            self._check_number(number)
            position = bulk.expect(len(chunk))
            if not self._add_values(target, chunk, bulk, position):
                await self._add_each(target, chunk, bulk, position)
            await self._clock.sleep(0)

    async def _add_each(
        self, target: _TopicQueues, chunk: Sequence[Message | bytes | None], bulk: Bulk, position: int
    ) -> None:
        now_ms = self._clock.now_ms()
        for number, item in enumerate(chunk):
            message = item if isinstance(item, Message) else Message(item)
            receipt = BulkRun(bulk, position + number, 1)
            try:
                size = self._size(target.name, message)
                if not self._buffer.take(size):
                    await self._room(size)
            except RecordTooLarge as error:
                self._fail(receipt, error)
                continue
            except BaseException:
                bulk.finish(len(chunk) - number)
                del bulk.results[position + number :]
                raise
            if target.lacks(message):
                self._put_early(target, message, receipt, size)
            else:
                self._route(target, message, receipt, size, now_ms)

    def _add_values(
        self, target: _TopicQueues, chunk: Sequence[Message | bytes | None], bulk: Bulk, position: int
    ) -> bool:
        """Add all items at once if they are plain values of ordinary size and the buffer has room; else return
        False."""
        if set(map(type, chunk)) != {bytes}:
            return False
        values = cast("Sequence[bytes]", chunk)
        size = sum(map(len, values)) + RECORD_OVERHEAD * len(values)
        if max(map(len, values)) > self._settings.batch_size or not self._buffer.take(size):
            return False
        now_ms, start = self._clock.now_ms(), 0
        while start < len(values):
            queue = target.queues[self._spread(target, RECORD_OVERHEAD + len(values[start]))]
            start += queue.append_values(values, start, now_ms, bulk, position)
        return True

    def _route(self, target: _TopicQueues, message: Message, receipt: Receipt, size: int, now_ms: int) -> None:
        """Choose the partition and queue the record there; errors go to the receipt, and no room stays taken."""
        value, key, headers, timestamp, partition = message
        count = target.count
        if partition is not None and not 0 <= partition < count:
            self._buffer.give(size)
            text = f"there is no partition {partition}, the topic has {count}"
            self._fail(receipt, ServerError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, text, about=f"topic {target.name}"))
            return
        try:
            if partition is None:
                partition = self._spread(target, size) if key is None else partition_for(key, count)
            moment_ms = now_ms if timestamp is None else round(timestamp * 1000)
            target.queues[partition].append(key, value, headers, moment_ms, receipt, size)
        except BaseException:
            self._buffer.give(size)
            raise

    @staticmethod
    def _spread(target: _TopicQueues, size: int) -> int:
        """Return the partition for a record without a key: the same until its batch is full or sent, then the next."""
        if target.count > 1 and not target.queues[target.sticky].has_room(size):
            target.sticky = (target.sticky + 1) % target.count
        return target.sticky

    # --- topics -------------------------------------------------------------------------------------------------

    def _target(self, topic: str) -> _TopicQueues:
        target = self._targets.get(topic)
        if target is None:
            target = self._targets[topic] = _TopicQueues(topic)
        return target

    async def _resolved(self, topic: str) -> _TopicQueues:
        """Return the topic with its queues. Raises: ServerError, DeliveryTimeout, Closed."""
        self._check_closed()
        target = self._target(topic)
        if self._channel.known_size(topic) is None or not target.queues:
            if not target.queues:
                return await self._looked_up(topic)
            self._resolve(target)
        return target

    async def _looked_up(self, topic: str) -> _TopicQueues:
        """Look up the topic, or wait for the look-up that is under way. Raises: as `_resolved`; the error of
        `_abandon`."""
        problem: ClientError | None = None
        began_s = self._clock.monotonic()
        deadline_s = began_s + self._settings.delivery_timeout
        while True:
            target = self._target(topic)
            resolving = self._resolve(target, began_s)
            left_s = None if problem is None else deadline_s - self._clock.monotonic()
            try:  # a caller that is cancelled does not cancel the look-up
                await self._clock.wait_for(asyncio.wait({resolving}), left_s)
            except TimeoutError:  # the look-up goes on for younger records
                assert problem is not None, "the first wait has no limit"
                raise problem from None
            problem = self._abandoned if resolving.cancelled() else resolving.result()
            if problem is None:
                return target
            if not out_of_time(problem) or self._channel.is_near(deadline_s):
                raise problem

    def _resolve(self, target: _TopicQueues, since_s: float | None = None) -> asyncio.Task[ClientError | None]:
        """Begin to look up a topic, unless that is under way. since_s: when the delivery_timeout of the look-up began;
        None: now."""
        if target.resolving is None:
            since_s = self._clock.monotonic() if since_s is None else since_s
            target.resolving = asyncio.create_task(self._resolve_early(target, since_s), name=f"topic {target.name}")
        return target.resolving

    async def _resolve_early(self, target: _TopicQueues, since_s: float) -> ClientError | None:
        """Look up the partitions, then queue (or fail) the records that waited for them, in order; return the error.

        When the time is over, younger records do not fail: the topic is looked up anew for the time that is left to
        them.
        """
        problem: ClientError | None = None
        limit_s = self._settings.delivery_timeout
        try:
            left_s = max(0.0, since_s + limit_s - self._clock.monotonic())
            self._resize(target, await self._channel.size(target.name, left_s))
        except (NotConnected, ConnectionLost) as error:
            problem = DeliveryTimeout(f"topic {target.name} could not be looked up: {error}")
            problem.__cause__ = error
        except ClientError as error:
            problem = error
        except FlowshareError as error:  # the broker is not open: the text says what to do
            problem = ClientError(f"topic {target.name} could not be looked up: {error}")
            problem.__cause__ = error
        except Exception as error:
            logger.exception("topic %s could not be looked up", target.name)
            problem = ClientError(f"topic {target.name} could not be looked up: {error!r}")
        target.resolving = None
        early, target.early = target.early, []
        if problem is not None and out_of_time(problem):
            target.early = [
                one for one in early if one.created_s > since_s and not self._channel.is_near(one.created_s + limit_s)
            ]
            early = early[: len(early) - len(target.early)]
        if target.early:
            self._resolve(target, target.early[0].created_s)
        elif problem is not None and not target.queues:
            self._targets.pop(target.name, None)  # names that never were topics must not pile up
        now_ms = self._clock.now_ms()
        for message, receipt, size, _ in early:
            if problem is None:
                self._route_early(target, message, receipt, size, now_ms)
            else:
                self._buffer.give(size)
                self._fail(receipt, problem)
        return problem

    def _route_early(self, target: _TopicQueues, message: Message, receipt: Receipt, size: int, now_ms: int) -> None:
        """Call `_route`, and report its exceptions to the receipt: else the records behind this one would never be
        sent."""
        try:
            self._route(target, message, receipt, size, now_ms)
        except Exception as error:
            logger.exception("a record for topic %s could not be queued", target.name)
            self._fail(receipt, ClientError(f"the record for topic {target.name} could not be queued: {error!r}"))

    def _resize(self, target: _TopicQueues, count: int) -> None:
        for partition in range(len(target.queues), count):
            target.queues.append(
                PartitionSender(
                    target.name,
                    partition,
                    channel=self._channel,
                    transactions=self._transactions,
                    resize=lambda topic, found: self._resize(self._target(topic), found),
                )
            )
        target.count = count
        target.sticky %= count
        # Records that wait for new partitions go before those sent from now on, whichever caller found the partitions.
        early, target.early = target.early, []
        now_ms = self._clock.now_ms()
        for one in early:
            if target.lacks(one.message):
                target.early.append(one)
            else:
                self._route_early(target, one.message, one.receipt, one.size, now_ms)

    # --- ending -------------------------------------------------------------------------------------------------

    async def _flush(self) -> None:
        while resolving := [
            one.resolving for one in self._targets.values() if one.resolving and not one.resolving.done()
        ]:
            await asyncio.wait(resolving)  # a look-up may begin anew for younger records
        waited = [done for target in self._targets.values() for queue in target.queues for done in queue.hurry()]
        if waited:
            await asyncio.wait(waited)

    async def _abandon(self, error: ClientError) -> None:
        """Stop sending, and fail all records that are not confirmed."""
        self._abandoned = error
        for target in tuple(self._targets.values()):
            await cancelled(target.resolving)
            target.resolving = None
            for _, receipt, size, _ in target.early:
                self._buffer.give(size)
                self._fail(receipt, error)
            target.early = []
            for queue in target.queues:
                await queue.abandon(error)
