"""Sends a task's rows: Arrow batches become record batches, which an idempotent producer sends.

The task's thread encodes, the thread of `OpenBroker` sends. `BatchQueue` bounds the batches between the two and keeps
each partition's batches in order. Its `finish` returns when all batches are confirmed; no batch is given up silently.
"""

from __future__ import annotations

import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Final

from flowshare.client.errors import ClientError, DeliveryTimeout
from flowshare.client.producer.message import partition_for
from flowshare.clock import LoopClock
from flowshare.protocol.batches import BatchBuilder
from flowshare.spark.sink.broker import SinkError

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    import pyarrow as pa

    from flowshare.client.producer.producer import Producer
    from flowshare.spark.sink.broker import OpenBroker
    from flowshare.spark.sink.columns import Header, Layout

BUFFER_BYTES: Final = 32 << 20
"""The most bytes of encoded records that are not confirmed yet; above it the task waits."""
BATCH_HEADER: Final = "flowshare.batch"

Place = tuple[str, int]
"""Topic and partition."""


class BatchQueue:
    """Record batches on their way to one producer. The task's thread calls `put` and `finish`."""

    def __init__(self, broker: OpenBroker, producer: Producer) -> None:
        self._broker = broker
        self._producer = producer
        self._timeout_s = broker.options.delivery_timeout
        self._changed = threading.Condition()
        self._bytes = 0
        self._open = 0
        self._confirmed = 0
        self._error: ClientError | None = None
        self._places: set[Place] = set()

    @property
    def places(self) -> list[Place]:
        """The topics and partitions to which batches were sent."""
        return sorted(self._places)

    def partitions(self, topic: str) -> int:
        """Return the number of partitions of a topic; call it before the topic's first batch. Raises: SinkError,
        ClientError."""
        return self._broker.call(self._broker.partitions_of(topic, self._producer))

    def new_batch(self) -> BatchBuilder:
        """Return an empty batch, to be filled and put."""
        options = self._broker.options
        return BatchBuilder(
            size_max=options.batch_size, compression=options.compression, transactional=self._producer.transactional
        )

    def put(self, place: Place, batch: BatchBuilder) -> None:
        """Send a batch after the earlier ones of its partition; wait while too much is on its way.

        Raises: ClientError (a batch could not be sent).
        """
        size = batch.size
        with self._changed:
            self._wait(lambda: self._bytes == 0 or self._bytes + size <= BUFFER_BYTES)
            self._bytes += size
            self._open += 1
        self._places.add(place)
        self._broker.loop.call_soon_threadsafe(self._send, place, batch, size)

    def finish(self) -> None:
        """Wait until all batches are confirmed. Raises: ClientError (a batch is not)."""
        with self._changed:
            self._wait(lambda: self._open == 0)

    def _wait(self, ready: Callable[[], bool]) -> None:
        """Wait, with the lock held, until `ready`; the time limit begins anew with each confirmation."""
        confirmed, deadline_s = -1, 0.0
        while True:
            if self._error is not None:
                raise self._error
            if ready():
                return
            if confirmed != self._confirmed:
                confirmed, deadline_s = self._confirmed, time.monotonic() + self._timeout_s
            if not self._changed.wait(deadline_s - time.monotonic()) and time.monotonic() >= deadline_s:
                raise DeliveryTimeout(
                    f"{self._broker.about} confirmed nothing for {self._timeout_s:g} s (option delivery_timeout), and "
                    f"{self._open} batches wait for it: see whether it is well"
                )

    # --- on the sending loop -------------------------------------------------------------------------------------

    def _send(self, place: Place, batch: BatchBuilder, size: int) -> None:
        try:
            sent = self._producer.send_batch(*place, batch)
        except ClientError as error:
            self._fail(error)
        else:
            sent.add_done_callback(partial(self._settle, size))

    def _settle(self, size: int, sent: asyncio.Future[None]) -> None:
        error = sent.exception()
        if error is not None:
            self._fail(error)
            return
        with self._changed:
            self._bytes -= size
            self._open -= 1
            self._confirmed += 1
            self._changed.notify_all()

    def _fail(self, error: BaseException) -> None:
        with self._changed:
            if self._error is None:
                self._error = error if isinstance(error, ClientError) else ClientError(str(error))
            self._changed.notify_all()


class TopicBatches:
    """One topic: its number of partitions, their open batches, and the present partition of rows without key."""

    __slots__ = ("batches", "count", "name", "sticky")

    def __init__(self, name: str, count: int) -> None:
        self.name = name
        self.count = count
        self.batches: dict[int, BatchBuilder] = {}
        self.sticky = 0


class Encoder:
    """Turns a task's rows into record batches, in order. rows: their number so far.

    origin: the part of `flowshare.batch` before the row's number; None: records get no such header.
    """

    def __init__(self, layout: Layout, queue: BatchQueue, origin: str | None = None) -> None:
        self._layout = layout
        self._queue = queue
        self._origin = origin
        self._targets: dict[str, TopicBatches] = {}
        self._clock = LoopClock()
        self.rows = 0

    def add(self, batch: pa.RecordBatch) -> None:
        """Encode an Arrow batch. Raises: SinkError (a row cannot be sent), ClientError."""
        try:
            found = self._layout.rows(batch)
        except ValueError as error:
            raise SinkError(str(error)) from error
        if self._layout.values_only and self._origin is None:
            self._add_values(self._target(self._layout.topic), found.values)
            self.rows += batch.num_rows
            return
        target: TopicBatches | None = None
        now_ms = self._clock.now_ms()
        for topic, partition, key, value, headers, timestamp in zip(*found, strict=False):
            if target is None or topic != target.name:
                target = self._target(topic)
            marked = headers if self._origin is None else [*headers, self._mark()]
            self._add(
                target, _place(target, partition, key), key, value, marked, now_ms if timestamp is None else timestamp
            )
            self.rows += 1

    def close(self) -> None:
        """Send the open batches. Raises: ClientError."""
        for target in self._targets.values():
            for partition in list(target.batches):
                self._put(target, partition)

    def _target(self, topic: str) -> TopicBatches:
        target = self._targets.get(topic)
        if target is None:
            target = self._targets[topic] = TopicBatches(topic, self._queue.partitions(topic))
        return target

    def _mark(self) -> Header:
        return BATCH_HEADER, f"{self._origin}/{self.rows}".encode()

    def _add_values(self, target: TopicBatches, values: list[bytes | None]) -> None:
        """Add records without key: a batch of one partition, then one of the next."""
        now_ms, start = self._clock.now_ms(), 0
        while start < len(values):
            start += self._open(target, target.sticky).add_values(values, start, timestamp_ms=now_ms)
            if start < len(values):
                self._put(target, target.sticky)

    def _add(
        self,
        target: TopicBatches,
        partition: int,
        key: bytes | None,
        value: bytes | None,
        headers: list[Header],
        timestamp_ms: int,
    ) -> None:
        if not self._open(target, partition).add(key, value, headers, timestamp_ms=timestamp_ms):
            self._put(target, partition)
            self._open(target, partition).add(key, value, headers, timestamp_ms=timestamp_ms)

    def _open(self, target: TopicBatches, partition: int) -> BatchBuilder:
        batch = target.batches.get(partition)
        if batch is None:
            batch = target.batches[partition] = self._queue.new_batch()
        return batch

    def _put(self, target: TopicBatches, partition: int) -> None:
        self._queue.put((target.name, partition), target.batches.pop(partition))
        if partition == target.sticky:
            target.sticky = (partition + 1) % target.count


def _place(target: TopicBatches, partition: int | None, key: bytes | None) -> int:
    """Return a row's partition. Raises: SinkError."""
    if partition is None:
        return target.sticky if key is None else partition_for(key, target.count)
    if 0 <= partition < target.count:
        return partition
    raise SinkError(f"a row is for partition {partition} of topic {target.name!r}, which has {target.count}")
