"""`PartitionSender`: sends one partition's batches, from the first record to the answer.

`sequence.py` decides which batch is sent and when; this module has the linger, the tasks that carry requests, and the
reactions to answers. Records that are added in one turn of the loop share a batch. The batch leaves at once (after the
linger, if there is one) while fewer than five are under way, and else grows until one is answered. After each failure
the pause grows, until the batch's delivery_timeout is over.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import TYPE_CHECKING, Final, cast

from flowshare.client.errors import (
    ClientError,
    Closed,
    ConnectionLost,
    DeliveryTimeout,
    NotConnected,
    RecordTooLarge,
    ServerError,
)
from flowshare.client.producer.batching import RECORD_OVERHEAD, Bulk, BulkRun, PendingBatch, Receipt, Whole
from flowshare.client.producer.sequence import PartitionSequence
from flowshare.protocol import messages
from flowshare.protocol.batches import BatchBuilder
from flowshare.protocol.errors import ErrorCode
from flowshare.tasks import cancelled

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from flowshare.client.producer.channel import Channel
    from flowshare.client.producer.sequence import NumberedBatch
    from flowshare.client.producer.transaction import ProducerTransactions
    from flowshare.clock import TimerHandle

OUT_OF_STEP: Final = (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.UNKNOWN_PRODUCER_ID)
FENCED: Final = (
    ErrorCode.INVALID_PRODUCER_EPOCH,
    ErrorCode.PRODUCER_FENCED,
    ErrorCode.INVALID_PRODUCER_ID_MAPPING,
)
TOO_LARGE: Final = (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE)

logger = logging.getLogger(__name__)


class _Final(ServerError):
    """A refusal that was looked into: a retry does not help."""


class PartitionSender:
    """Batches of one partition; tasks send them while there are any."""

    def __init__(
        self,
        topic: str,
        partition: int,
        *,
        channel: Channel,
        transactions: ProducerTransactions | None,
        resize: Callable[[str, int], None],
    ) -> None:
        """resize(topic, partitions): called when a topic turns out to have another number of partitions."""
        self.topic = topic
        self.partition = partition
        self._channel = channel
        self._clock = channel.clock
        self._settings = channel.settings
        self._transactions = transactions
        self._resize = resize
        self._batch_bytes = channel.settings.batch_size
        self._open: PendingBatch | None = None
        self._waiting: deque[PendingBatch] = deque()
        self._sequence: PartitionSequence[PendingBatch] = PartitionSequence(transactional=transactions is not None)
        self._hurry = False
        self._starting = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._naming = False
        self._timer: TimerHandle | None = None
        self._timer_at_s = 0.0
        self._tries = 0
        self._troubled = False
        self._paused_until_s = 0.0
        self._problem: ClientError | None = None

    # --- adding -------------------------------------------------------------------------------------------------

    def append(
        self,
        key: bytes | None,
        value: bytes | None,
        headers: Sequence[tuple[str, bytes | None]],
        timestamp_ms: int,
        receipt: Receipt,
        size: int,
    ) -> None:
        """Add a record whose `size` bytes are reserved in the buffer already."""
        batch = self._open
        if batch is None or not batch.builder.add(key, value, headers, timestamp_ms=timestamp_ms):
            batch = self._new_batch()
            added = batch.builder.add(key, value, headers, timestamp_ms=timestamp_ms)
            if not added:
                raise RuntimeError("an empty batch takes any record")
        batch.expect(receipt)
        batch.reserved += size

    def append_values(self, values: Sequence[bytes], start: int, timestamp_ms: int, bulk: Bulk, position: int) -> int:
        """Add records without key and headers from `values[start]` on until a batch is full; return the number added.

        For each value its length and `RECORD_OVERHEAD` are reserved in the buffer already. position: that of
        `values[0]`.
        """
        batch, count = self._open, 0
        if batch is not None:
            count = batch.builder.add_values(values, start, timestamp_ms=timestamp_ms)
        if batch is None or not count:
            batch = self._new_batch()
            count = batch.builder.add_values(values, start, timestamp_ms=timestamp_ms)
        batch.receipts.append(BulkRun(bulk, position + start, count))
        batch.reserved += sum(map(len, values[start : start + count])) + RECORD_OVERHEAD * count
        return count

    def append_batch(self, builder: BatchBuilder) -> asyncio.Future[None]:
        """Send a batch that the caller has filled, behind all queued ones; the future has the outcome."""
        batch, outcome = PendingBatch(builder, self._clock.monotonic()), Whole(builder.count)
        batch.receipts.append(BulkRun(outcome, 0, builder.count))
        self._open = None
        self._waiting.append(batch)
        self._go_on()
        return outcome.done

    def has_room(self, size: int) -> bool:
        """Tell if about `size` more bytes fit into the open batch."""
        return self._open is not None and self._open.builder.size + size <= self._batch_bytes

    def hurry(self) -> list[asyncio.Future[None]]:
        """Send all queued batches without lingering; return their futures."""
        self._hurry = bool(self._waiting)
        self._go_on()
        return [batch.done for batch in self._batches()]

    async def abandon(self, error: ClientError) -> None:
        """Stop sending and fail all batches."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None  # else the next linger would count on it
        await cancelled(*self._tasks)
        self._tasks.clear()
        self._starting = False
        self._fail_all(error)
        self._sequence = PartitionSequence(transactional=self._transactions is not None)

    def _batches(self) -> list[PendingBatch]:
        return [*(entry.batch for entry in self._sequence.entries), *self._waiting]

    def _new_batch(self) -> PendingBatch:
        """Open a new batch at the end; the batch before it is full, so it need not linger."""
        builder = BatchBuilder(
            size_max=self._batch_bytes,
            compression=self._settings.compression,
            transactional=self._transactions is not None,
        )
        self._open = batch = PendingBatch(builder, self._clock.monotonic())
        self._waiting.append(batch)
        self._go_on()
        return batch

    # --- sending ------------------------------------------------------------------------------------------------

    def _go_on(self) -> None:
        """Start a task if a batch may be sent now; a task that has not begun yet will see the batch."""
        if not self._starting and self._may_send():
            self._starting = True
            task = asyncio.create_task(self._work(), name=f"produce {self.topic}-{self.partition}")
            self._tasks.add(task)

    def _may_send(self) -> bool:
        sequence = self._sequence
        if sequence.under_way and not sequence.has_room:
            return False
        if self._tries and (left_s := self._paused_until_s - self._clock.monotonic()) > 0:
            return self._later(left_s)
        if sequence.identity is None or sequence.failed:
            return bool(self._waiting or sequence.entries) and not self._naming and not sequence.under_way
        if sequence.again is not None:
            return True
        if not self._waiting or not sequence.has_room:
            return False
        batch = self._waiting[0]
        if batch is not self._open:
            return True
        if self._hurry or self._settings.linger <= 0:
            return True
        left_s = batch.created_s + self._settings.linger - self._clock.monotonic()
        return left_s <= 0 or self._later(left_s)

    def _later(self, delay_s: float) -> bool:
        """Set the timer to look again after the delay; returns False."""
        at_s = self._clock.monotonic() + delay_s
        if self._timer is None or at_s < self._timer_at_s:
            if self._timer is not None:
                self._timer.cancel()
            self._timer, self._timer_at_s = self._clock.call_later(delay_s, self._look_again), at_s
        return False

    def _look_again(self) -> None:
        self._timer = None
        self._go_on()

    async def _work(self) -> None:
        try:
            await self._let_grow()
            self._starting = False
            while self._may_send():
                if self._sequence.identity is None and not self._sequence.failed:
                    await self._get_identity()
                    continue
                entry = self._take()
                if entry is not None:
                    if self._waiting:
                        self._go_on()  # another task may send beside this one
                    await self._carry(entry)
        finally:
            self._tasks.discard(cast("asyncio.Task[None]", asyncio.current_task()))

    async def _let_grow(self) -> None:
        """Wait while another batch is under way and each turn of the loop adds records to the open batch.

        A lone record leaves at once, and a loop that adds one record in every turn does not pay for a request with
        each.
        """
        batch, count = self._open, 0
        while batch is not None and batch is self._open and self._sequence.under_way and batch.builder.count > count:
            count = batch.builder.count
            await asyncio.sleep(0)

    def _take(self) -> NumberedBatch[PendingBatch] | None:
        """Take the batch to send now; None: its delivery timeout is over, or its transaction has failed."""
        sequence = self._sequence
        if sequence.failed:  # nothing more is written in this transaction
            assert self._transactions is not None, "only a transaction fails as a whole"
            self._fail_all(self._transactions.problem or Closed("the transaction has failed"))
            return None
        again = sequence.again
        batch = self._waiting[0] if again is None else again.batch
        if batch.created_s + self._settings.delivery_timeout <= self._clock.monotonic():
            if again is None:
                self._pop()
            else:
                sequence.give_up(again)
            self._fail(batch, self._too_late())
            return None
        return sequence.take_again() if again is not None else sequence.take_new(self._pop(), batch.builder.count)

    def _pop(self) -> PendingBatch:
        batch = self._waiting.popleft()
        if batch is self._open:
            self._open = None
        if not self._waiting:
            self._hurry = False
        return batch

    def _too_late(self) -> DeliveryTimeout:
        where, limit_s = f"{self.topic}-{self.partition}", self._settings.delivery_timeout
        return DeliveryTimeout(f"not confirmed within {limit_s:g} s for {where}: {self._problem}")

    async def _get_identity(self) -> None:
        """Get a producer id. Without one the first batch fails, after a lost connection when its delivery timeout is
        over."""
        batch = self._batches()[0]
        left_s = batch.created_s + self._settings.delivery_timeout - self._clock.monotonic()
        self._naming = True
        try:
            if self._transactions is not None:
                self._transactions.check_sending()
                identity = self._transactions.identity
                assert identity is not None, "a transaction that is open has a producer"
            else:
                identity = await self._channel.identity(max(0.0, left_s))
        except (NotConnected, ConnectionLost) as error:
            self._problem = error
            self._drop_first(batch, self._too_late())
        except ClientError as error:
            self._drop_first(batch, error)
        except Exception as error:
            logger.exception("no producer id for %s-%d", self.topic, self.partition)
            self._drop_first(batch, ClientError(f"producer id for {self.topic}: {error!r}"))
        else:
            self._sequence.begin(identity)
        finally:
            self._naming = False

    def _drop_first(self, batch: PendingBatch, error: ClientError) -> None:
        entries = self._sequence.entries
        if entries and entries[0].batch is batch:
            self._sequence.give_up(entries[0])
        elif self._waiting and self._waiting[0] is batch:
            self._pop()
        self._fail(batch, error)

    # --- answers ------------------------------------------------------------------------------------------------

    async def _carry(self, entry: NumberedBatch[PendingBatch]) -> None:
        """Send a batch, and react to the answer."""
        try:
            problem = await self._produce(entry)
        except Exception as error:
            logger.exception("producing to %s-%d failed", self.topic, self.partition)
            problem = ClientError(f"producing to {self.topic}-{self.partition} failed: {error!r}")
        if problem is not None:
            self._refused(entry, problem)
            if self._troubled and not self._sequence.under_way and self._sequence.entries:
                self._pause()

    async def _produce(self, entry: NumberedBatch[PendingBatch]) -> ClientError | None:
        batch, where = entry.batch, f"producing to {self.topic}-{self.partition}"
        left_s = batch.created_s + self._settings.delivery_timeout - self._clock.monotonic()
        transactional_id = None
        try:
            if self._transactions is not None:
                await self._transactions.join(self.topic, self.partition)
                transactional_id = self._transactions.transactional_id
            request = messages.ProduceRequest(
                topic=self.topic,
                partition=self.partition,
                records=batch.build((*entry.identity, entry.sequence)),
                transactional_id=transactional_id,
            )
            answer = await self._channel.ask(request, left_s)
        except ClientError as error:
            return error
        if answer.error is ErrorCode.NONE or answer.error is ErrorCode.DUPLICATE_SEQUENCE_NUMBER:
            self._tries = 0
            self._sequence.confirmed(entry)
            self._channel.buffer.give(batch.reserved)
            batch.settle(self.topic, self.partition, answer.base_offset)
            return None
        problem = ServerError(answer.error, answer.message, about=where)
        if problem.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            return await self._topic_gone(problem, left_s)
        return problem

    def _refused(self, entry: NumberedBatch[PendingBatch], problem: ClientError) -> None:
        sequence, batch = self._sequence, entry.batch
        code = problem.code if isinstance(problem, ServerError) else None
        if code in OUT_OF_STEP:
            sequence.out_of_step(entry)
        elif code in FENCED and self._transactions is None and not entry.in_doubt:
            self._channel.forget(entry.identity)
            sequence.fenced(entry)
        elif code in TOO_LARGE and batch.builder.count > 1 and not entry.in_doubt:
            self._batch_bytes = max(1, min(self._batch_bytes, batch.builder.size // 2))
            halves = batch.halves(self._settings, transactional=self._transactions is not None)
            sequence.split(entry, tuple((half, half.builder.count) for half in halves))
        elif self._passing(problem):
            self._troubled, self._problem = True, problem
            sequence.lost(entry, sent=not isinstance(problem, NotConnected))
        else:
            sequence.refused(entry)
            self._fail(batch, RecordTooLarge(str(problem)) if code in TOO_LARGE else problem)
        if sequence.failed and self._transactions is not None:
            self._transactions.failed(problem)

    def _passing(self, problem: ClientError) -> bool:
        if isinstance(problem, ServerError):
            if problem.code is ErrorCode.KAFKA_STORAGE_ERROR:
                return self._channel.to_cluster
            return problem.retriable and not isinstance(problem, _Final)
        return isinstance(problem, NotConnected | ConnectionLost)

    def _pause(self) -> None:
        """Set the pause before the next try, no longer than the first batch may wait."""
        self._troubled = False
        self._tries += 1
        logger.info("producing to %s-%d, try %d: %s", self.topic, self.partition, self._tries, self._problem)
        now_s = self._clock.monotonic()
        deadline_s = self._sequence.entries[0].batch.created_s + self._settings.delivery_timeout
        self._paused_until_s = min(now_s + self._channel.pause_s(self._tries), max(now_s, deadline_s))

    async def _topic_gone(self, problem: ServerError, left_s: float) -> ClientError:
        """Look up a missing topic again, which creates it with `auto_create_topics`; return the error for the batch."""
        self._channel.forget_size(self.topic)
        try:
            count = await self._channel.size(self.topic, max(0.0, left_s))
        except ServerError as error:
            return _Final(error.code, error.message, about=f"producing to {self.topic}")
        except (NotConnected, ConnectionLost) as error:
            return error
        self._resize(self.topic, count)
        if self.partition < count:
            return problem
        return _Final(problem.code, f"now it has {count} partitions", about=f"{self.topic}-{self.partition}")

    def _fail(self, batch: PendingBatch, error: ClientError) -> None:
        if self._transactions is not None:
            self._transactions.failed(error)
        self._channel.buffer.give(batch.reserved)
        batch.fail(error)

    def _fail_all(self, error: ClientError) -> None:
        for batch in self._batches():
            self._fail(batch, error)
        self._sequence.entries.clear()
        self._waiting.clear()
        self._open = None
