"""Batches of records that wait to be sent, the receivers of their outcomes, and the bounded buffer."""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple

from flowshare.client.errors import ClientError, Closed
from flowshare.protocol.batches import BatchBuilder, decode_all, renumber

if TYPE_CHECKING:
    from flowshare.client.settings import ProducerSettings

RECORD_OVERHEAD: Final = 24
"""An upper estimate of the bytes that a record takes besides its key, value and headers."""


class RecordMetadata(NamedTuple):
    """The place of a confirmed record in the log."""

    topic: str
    partition: int
    offset: int


class Bulk:
    """Outcomes of the records of one `send_many`, by their position in the call."""

    __slots__ = ("_open", "done", "results")

    def __init__(self) -> None:
        self.results: list[RecordMetadata | ClientError | None] = []
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._open = 1

    def expect(self, count: int) -> int:
        """Add room for `count` more records; return the position of the first."""
        position = len(self.results)
        self.results.extend([None] * count)
        self._open += count
        return position

    def confirm(self, run: BulkRun, topic: str, partition: int, offset: int) -> None:
        """Set the outcome of a run of records that are in the log from `offset` on (−1: the offset is not known)."""
        if run.length == 1:
            self.results[run.position] = RecordMetadata(topic, partition, offset)
            self.finish()
            return
        offsets = range(offset, offset + run.length) if offset >= 0 else itertools.repeat(offset, run.length)
        self.results[run.position : run.position + run.length] = map(
            RecordMetadata._make, zip(itertools.repeat(topic), itertools.repeat(partition), offsets, strict=False)
        )
        self.finish(run.length)

    def fail(self, position: int, count: int, error: ClientError) -> None:
        """Set the outcome of records that failed."""
        self.results[position : position + count] = [error] * count
        self.finish(count)

    def finish(self, count: int = 1) -> None:
        """Count `count` records as done; called once more when no record will be added."""
        self._open -= count
        if not self._open and not self.done.done():
            self.done.set_result(None)


class Whole(Bulk):
    """One outcome for many records: `done` when all are confirmed, or with the first error."""

    __slots__ = ("_error",)

    def __init__(self, count: int) -> None:
        super().__init__()
        self._open = count
        self._error: ClientError | None = None

    def confirm(self, run: BulkRun, topic: str, partition: int, offset: int) -> None:
        """Count the records of a run as confirmed."""
        self.finish(run.length)

    def fail(self, position: int, count: int, error: ClientError) -> None:
        """Count records as failed, and keep the first error."""
        self._error = self._error or error
        self.finish(count)

    def finish(self, count: int = 1) -> None:
        """Count `count` records as done."""
        self._open -= count
        if not self._open and not self.done.done():
            if self._error is None:
                self.done.set_result(None)
            else:
                self.done.set_exception(self._error)


class BulkRun(NamedTuple):
    """Records that are neighbours in a `Bulk` and in a batch."""

    bulk: Bulk
    position: int
    length: int


Receipt = asyncio.Future[RecordMetadata] | BulkRun
"""The receiver of the outcome of a record, or of a run of records."""


def fail(receipt: Receipt, error: ClientError) -> None:
    """Report a failure to the receiver."""
    if isinstance(receipt, BulkRun):
        receipt.bulk.fail(receipt.position, receipt.length, error)
    elif not receipt.done():
        receipt.set_exception(error)


class PendingBatch:
    """Records of one partition that are sent and confirmed together."""

    __slots__ = ("_built", "_numbers", "builder", "created_s", "done", "receipts", "reserved")

    def __init__(self, builder: BatchBuilder, created_s: float) -> None:
        self.builder = builder
        self.created_s = created_s
        self.receipts: list[Receipt] = []
        self.reserved = 0
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._built: bytes | None = None
        self._numbers: tuple[int, int, int] | None = None

    def expect(self, receipt: Receipt) -> None:
        """Add the receiver of the record that was added last; neighbours of one bulk become one run."""
        receipts = self.receipts
        if receipts and isinstance(receipt, BulkRun) and isinstance(last := receipts[-1], BulkRun):
            bulk, position, length = last
            if bulk is receipt.bulk and position + length == receipt.position:
                receipts[-1] = BulkRun(bulk, position, length + receipt.length)
                return
        receipts.append(receipt)

    def build(self, numbers: tuple[int, int, int]) -> bytes:
        """Return the record batch with its producer id, epoch and first sequence; built anew only when they change."""
        if self._built is None:
            self._built = self.builder.build(numbers)
        elif numbers != self._numbers:
            self._built = renumber(self._built, numbers)
        self._numbers = numbers
        return self._built

    def settle(self, topic: str, partition: int, base_offset: int) -> None:
        """Report all records as confirmed. base_offset −1: the log has the records, but their offsets are not known."""
        offset, step = base_offset, base_offset >= 0
        for receipt in self.receipts:
            if isinstance(receipt, BulkRun):
                receipt.bulk.confirm(receipt, topic, partition, offset)
                offset += receipt.length * step
                continue
            if not receipt.done():
                receipt.set_result(RecordMetadata(topic, partition, offset))
            offset += step
        self.done.set_result(None)

    def fail(self, error: ClientError) -> None:
        """Report all records as failed."""
        for receipt in self.receipts:
            fail(receipt, error)
        self.done.set_result(None)

    def halves(self, settings: ProducerSettings, *, transactional: bool) -> tuple[PendingBatch, PendingBatch]:
        """Return the same records in two batches, which report the outcomes then, for a topic that takes smaller
        batches only.

        The two batches share the room that is reserved in the buffer.
        """
        assert self._built is not None, "it was sent"
        records = decode_all(self._built)
        receipts = [single for receipt in self.receipts for single in _singles(receipt)]
        middle = len(records) // 2
        parts: list[PendingBatch] = []
        for first, last in ((0, middle), (middle, len(records))):
            builder = BatchBuilder(
                size_max=max(1, self.builder.size_max), compression=settings.compression, transactional=transactional
            )
            part = PendingBatch(builder, self.created_s)
            part.receipts = receipts[first:last]
            for record in records[first:last]:
                builder.add(record.key, record.value, record.headers, timestamp_ms=record.timestamp_ms)
            if builder.count != last - first:
                raise RuntimeError(f"{last - first} records do not fit into the batch that they came from")
            parts.append(part)
        parts[0].reserved = self.reserved // 2
        parts[1].reserved = self.reserved - parts[0].reserved
        self.receipts = []
        for part in parts:
            part.done.add_done_callback(lambda _: self._finish(parts))
        return parts[0], parts[1]

    def _finish(self, parts: list[PendingBatch]) -> None:
        if all(part.done.done() for part in parts) and not self.done.done():
            self.done.set_result(None)


def _singles(receipt: Receipt) -> list[Receipt]:
    if not isinstance(receipt, BulkRun):
        return [receipt]
    return [BulkRun(receipt.bulk, receipt.position + index, 1) for index in range(receipt.length)]


class Buffer:
    """A bound on bytes; waiting callers are served in order."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    def take(self, size: int) -> bool:
        """Reserve without waiting; False if there is no room or others wait. An oversized request is admitted when the
        buffer is empty."""
        if self._waiting or (self.used and self.used + size > self.limit):
            return False
        self.used += size
        return True

    async def wait(self, size: int) -> None:
        """Wait for room and reserve it. Raises: Closed."""
        ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        entry = (size, ready)
        self._waiting.append(entry)
        try:
            await ready
        except asyncio.CancelledError:
            if entry in self._waiting:
                self._waiting.remove(entry)
            elif ready.done() and not ready.cancelled() and ready.exception() is None:
                self.give(size)
            raise

    def give(self, size: int) -> None:
        """Release room, and admit waiting callers."""
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
        """Refuse all waiting callers."""
        while self._waiting:
            _, ready = self._waiting.popleft()
            if not ready.done():
                ready.set_exception(Closed("the producer was closed"))
