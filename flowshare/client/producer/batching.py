"""The producer's records on their way: receipts, batches, the bounded buffer, and one queue a partition.

A queue sends one request at a time, so the order of a partition's records is kept through every retry; a request
takes along all batches that are ready. Records per second are decided in `PartitionQueue.append` and `Batch.settle`.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple

from flowshare.client.errors import ClientError, Closed
from flowshare.protocol.batches import BatchBuilder, decode_all

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from flowshare.client.settings import ProducerSettings
    from flowshare.clock import Clock


RECORD_OVERHEAD: Final = 24
"""Bytes that a record takes beside its key, value and headers, about, and from above."""


class RecordMetadata(NamedTuple):
    """Where a confirmed record is."""

    topic: str
    partition: int
    offset: int


class Bulk:
    """Outcomes of the records of one `send_many`, by their position in it."""

    __slots__ = ("_open", "done", "results")

    def __init__(self) -> None:
        self.results: list[RecordMetadata | ClientError | None] = []
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._open = 1

    def expect(self, count: int) -> int:
        """Room for more records; returns the first one's position."""
        position = len(self.results)
        self.results.extend([None] * count)
        self._open += count
        return position

    def confirm(self, run: BulkRun, topic: str, partition: int, offset: int) -> None:
        """The records of a run are in the log from `offset` on."""
        if run.length == 1:
            self.results[run.position] = RecordMetadata(topic, partition, offset)
            self.finish()
            return
        self.results[run.position : run.position + run.length] = map(
            RecordMetadata._make,
            zip(itertools.repeat(topic), itertools.repeat(partition), range(offset, offset + run.length), strict=False),
        )
        self.finish(run.length)

    def fail(self, position: int, count: int, error: ClientError) -> None:
        """Records that failed."""
        self.results[position : position + count] = [error] * count
        self.finish(count)

    def finish(self, count: int = 1) -> None:
        """So many records less to wait for; called once more when no record will be added."""
        self._open -= count
        if not self._open and not self.done.done():
            self.done.set_result(None)


class BulkRun(NamedTuple):
    """Neighbours in a `Bulk` that are neighbours in a batch too."""

    bulk: Bulk
    position: int
    length: int


Receipt = asyncio.Future[RecordMetadata] | BulkRun
"""Who is told of a record's outcome, or of the outcomes of a run of records."""


def fail(receipt: Receipt, error: ClientError) -> None:
    """Tell of a failure."""
    if isinstance(receipt, BulkRun):
        receipt.bulk.fail(receipt.position, receipt.length, error)
    elif not receipt.done():
        receipt.set_exception(error)


class Batch:
    """Records of one partition that are sent and confirmed together."""

    __slots__ = ("_built", "builder", "created_s", "done", "receipts", "reserved")

    def __init__(self, builder: BatchBuilder, created_s: float) -> None:
        self.builder = builder
        self.created_s = created_s
        self.receipts: list[Receipt] = []
        self.reserved = 0
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._built: bytes | None = None

    def expect(self, receipt: Receipt) -> None:
        """Whom to tell of the record that was added last; neighbours of one bulk become one run."""
        receipts = self.receipts
        if receipts and isinstance(receipt, BulkRun) and isinstance(last := receipts[-1], BulkRun):
            bulk, position, length = last
            if bulk is receipt.bulk and position + length == receipt.position:
                receipts[-1] = BulkRun(bulk, position, length + receipt.length)
                return
        receipts.append(receipt)

    def build(self) -> bytes:
        """The record batch; made once."""
        if self._built is None:
            self._built = self.builder.build()
        return self._built

    def settle(self, topic: str, partition: int, base_offset: int) -> None:
        """Confirmed: tell everybody."""
        offset = base_offset
        for receipt in self.receipts:
            if isinstance(receipt, BulkRun):
                receipt.bulk.confirm(receipt, topic, partition, offset)
                offset += receipt.length
                continue
            if not receipt.done():
                receipt.set_result(RecordMetadata(topic, partition, offset))
            offset += 1
        self.done.set_result(None)

    def fail(self, error: ClientError) -> None:
        """Not confirmed: tell everybody."""
        for receipt in self.receipts:
            fail(receipt, error)
        self.done.set_result(None)

    def halves(self, compression: str) -> tuple[Batch, Batch]:
        """The same records in two batches, for a topic that takes smaller ones only; they tell everybody then."""
        records = decode_all(self.build())
        receipts = [single for receipt in self.receipts for single in _singles(receipt)]
        middle = len(records) // 2
        parts: list[Batch] = []
        for first, last in ((0, middle), (middle, len(records))):
            size_max = max(1, self.builder.size_max)
            part = Batch(BatchBuilder(size_max=size_max, compression=compression), self.created_s)
            part.receipts = receipts[first:last]
            for record in records[first:last]:
                part.builder.add(record.key, record.value, record.headers, timestamp_ms=record.timestamp_ms)
            if part.builder.count != last - first:
                raise RuntimeError(f"{last - first} records do not fit into the batch that they came from")
            parts.append(part)
        self.receipts = []
        return parts[0], parts[1]


def _singles(receipt: Receipt) -> list[Receipt]:
    if not isinstance(receipt, BulkRun):
        return [receipt]
    return [BulkRun(receipt.bulk, receipt.position + index, 1) for index in range(receipt.length)]


class Buffer:
    """A bound on bytes; those who wait for room are served in order."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    def take(self, size: int) -> bool:
        """Take room if there is some now and nobody waits. Alone, even too large a size is let in."""
        if self._waiting or (self.used and self.used + size > self.limit):
            return False
        self.used += size
        return True

    async def wait(self, size: int) -> None:
        """Take room as soon as there is. Raises: Closed."""
        ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        entry = (size, ready)
        self._waiting.append(entry)
        try:
            await ready
        except asyncio.CancelledError:
            if entry in self._waiting:
                self._waiting.remove(entry)
            elif ready.done() and not ready.cancelled():
                self.give(size)
            raise

    def give(self, size: int) -> None:
        """Give room back and let in who waits."""
        self.used -= size
        while self._waiting:
            wanted, ready = self._waiting[0]
            if self.used and self.used + wanted > self.limit:
                return
            self._waiting.popleft()
            if not ready.done():
                self.used += wanted
                ready.set_result(None)

    def close(self) -> None:
        """Refuse all who wait."""
        while self._waiting:
            _, ready = self._waiting.popleft()
            if not ready.done():
                ready.set_exception(Closed("the producer was closed"))


class PartitionQueue:
    """Batches of one partition; a task sends them while there are any."""

    def __init__(
        self,
        topic: str,
        partition: int,
        *,
        clock: Clock,
        settings: ProducerSettings,
        deliver: Callable[[PartitionQueue, list[Batch]], Awaitable[None]],
    ) -> None:
        self.topic = topic
        self.partition = partition
        self._clock = clock
        self._settings = settings
        self._deliver = deliver
        self._open: Batch | None = None
        self._waiting: deque[Batch] = deque()
        self._sending: list[Batch] = []
        self._hurry = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def append(
        self,
        key: bytes | None,
        value: bytes | None,
        headers: Sequence[tuple[str, bytes | None]],
        timestamp_ms: int,
        receipt: Receipt,
        size: int,
    ) -> None:
        """Add a record whose `size` bytes of buffer were taken already."""
        batch = self._open
        if batch is None or not batch.builder.add(key, value, headers, timestamp_ms=timestamp_ms):
            batch = self._new_batch()
            added = batch.builder.add(key, value, headers, timestamp_ms=timestamp_ms)
            if not added:
                raise RuntimeError("an empty batch takes any record")
        batch.expect(receipt)
        batch.reserved += size

    def append_values(self, values: Sequence[bytes], start: int, timestamp_ms: int, bulk: Bulk, position: int) -> int:
        """Add records without key and headers from `values[start]` on until a batch is full; how many went in.

        `RECORD_OVERHEAD` and its length of buffer were taken for each. `position` is that of `values[0]`.
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

    def has_room(self, size: int) -> bool:
        """Whether the open batch would take about `size` bytes more."""
        return self._open is not None and self._open.builder.size + size <= self._settings.batch_bytes

    def hurry(self) -> list[asyncio.Future[None]]:
        """Send what is there without lingering; returns what to wait for."""
        if self._waiting:
            self._hurry.set()
        return [batch.done for batch in (*self._sending, *self._waiting)]

    async def abandon(self, error: ClientError) -> list[Batch]:
        """Stop sending and fail everything; returns the batches."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        left = [batch for batch in (*self._sending, *self._waiting) if not batch.done.done()]
        self._sending, self._open = [], None
        self._waiting.clear()
        for batch in left:
            batch.fail(error)
        return left

    def _new_batch(self) -> Batch:
        """A new open batch at the end; the one before it is full, so it need not linger."""
        builder = BatchBuilder(size_max=self._settings.batch_bytes, compression=self._settings.compression)
        self._open = batch = Batch(builder, self._clock.monotonic())
        self._waiting.append(batch)
        if len(self._waiting) > 1:
            self._hurry.set()
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name=f"produce {self.topic}-{self.partition}")
        return batch

    async def _run(self) -> None:
        while self._waiting:
            await self._linger(self._waiting[0])
            self._sending = self._ready()
            await self._deliver(self, self._sending)
            self._sending = []
        self._task = None

    async def _linger(self, batch: Batch) -> None:
        """Wait until the batch is full, old enough, or wanted."""
        if len(self._waiting) > 1 or self._hurry.is_set():
            return
        left_s = batch.created_s + self._settings.linger_s - self._clock.monotonic()
        if left_s <= 0:
            return
        try:
            await self._clock.wait_for(self._hurry.wait(), left_s)
        except TimeoutError:
            return

    def _ready(self) -> list[Batch]:
        """As many batches as fit one request, at least one."""
        taken: list[Batch] = []
        size = 0
        while self._waiting and (not taken or size + self._waiting[0].builder.size <= self._settings.request_bytes_max):
            batch = self._waiting.popleft()
            size += batch.builder.size
            taken.append(batch)
        if not self._waiting:
            self._open = None
            self._hurry.clear()
        return taken
