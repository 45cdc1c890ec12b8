"""What a task does with its rows: Arrow batches become record batches, which an idempotent producer sends.

The task's thread encodes, the line's thread sends. `Outbox` bounds what is between them, keeps each partition's
batches in order, and returns from `finish` when all are confirmed; nothing is given up silently.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from flowshare.client.errors import DeliveryTimeout
from flowshare.client.kafka_errors import problem_of
from flowshare.client.partitioner import partition_for
from flowshare.spark.sink_line import SinkError

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyarrow as pa

    from flowshare.spark.sink_columns import Header, Layout
    from flowshare.spark.sink_line import Line

BUFFER_BYTES: Final = 32 << 20
"""Encoded records that are not confirmed yet; above it the task waits."""
BATCH_HEADER: Final = "flowshare.batch"

Place = tuple[str, int]
"""Topic and partition."""


class Outbox:
    """Record batches on their way to one producer. `put` and `finish` are called by the task's thread."""

    def __init__(self, line: Line, producer: Any) -> None:
        self._line = line
        self._producer = producer
        self._timeout_s = line.options.delivery_timeout
        self._changed = threading.Condition()
        self._bytes = 0
        self._open = 0
        self._confirmed = 0
        self._error: Exception | None = None
        self._queues: dict[Place, deque[tuple[Any, int]]] = {}
        self._pumps: dict[Place, asyncio.Task[None]] = {}

    @property
    def places(self) -> list[Place]:
        """Where batches went."""
        return sorted(self._queues)

    def new_batch(self) -> Any:
        """An empty batch of aiokafka's, to be filled and put."""
        return self._producer.create_batch()

    def put(self, place: Place, batch: Any) -> None:
        """Send a batch after those of its partition that were put before; waits while too much is on its way.

        Raises: ClientError (one could not be sent).
        """
        size = batch.size()
        batch.close()
        with self._changed:
            self._wait(lambda: self._bytes == 0 or self._bytes + size <= BUFFER_BYTES)
            self._bytes += size
            self._open += 1
        self._line.loop.call_soon_threadsafe(self._take, place, batch, size)

    def finish(self) -> None:
        """Return when everything is confirmed. Raises: ClientError (something is not)."""
        with self._changed:
            self._wait(lambda: self._open == 0)

    def _wait(self, ready: Callable[[], bool]) -> None:
        """With the lock held; the time runs out only while nothing is confirmed."""
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
                    f"{self._line.about} confirmed nothing for {self._timeout_s:g} s (option delivery_timeout), and "
                    f"{self._open} batches wait for it: see whether it is well"
                )

    # --- on the line's loop -------------------------------------------------------------------------------------

    def _take(self, place: Place, batch: Any, size: int) -> None:
        self._queues.setdefault(place, deque()).append((batch, size))
        if place not in self._pumps:
            self._pumps[place] = asyncio.create_task(self._pump(place), name=f"{place[0]}-{place[1]}")

    async def _pump(self, place: Place) -> None:
        """Hand a partition's batches to the producer, which takes one while another is on its way."""
        topic, partition = place
        queue = self._queues[place]
        try:
            await self._producer.client.add_topic(topic)  # else it may forget a topic that it happens to know
            while queue:
                batch, size = queue.popleft()
                sent = await self._producer.send_batch(batch, topic, partition=partition)
                sent.add_done_callback(partial(self._settle, place, size))
        except Exception as error:  # noqa: BLE001 - it goes to the task
            self._fail(place, error)
        except asyncio.CancelledError:
            self._fail(place, TimeoutError("the line was closed"))
            raise
        finally:
            del self._pumps[place]

    def _settle(self, place: Place, size: int, sent: asyncio.Future[Any]) -> None:
        if sent.cancelled():
            self._fail(place, TimeoutError("the line was closed"))
            return
        error = sent.exception()
        if error is not None:
            self._fail(place, error)
            return
        with self._changed:
            self._bytes -= size
            self._open -= 1
            self._confirmed += 1
            self._changed.notify_all()

    def _fail(self, place: Place, error: BaseException) -> None:
        with self._changed:
            if self._error is None:
                self._error = problem_of(error, f"producing to {place[0]}-{place[1]}")
            self._changed.notify_all()


class _Target:
    """One topic: how many partitions it has, their open batches, and where rows without key go just now."""

    __slots__ = ("batches", "count", "name", "sticky")

    def __init__(self, name: str, count: int) -> None:
        self.name = name
        self.count = count
        self.batches: dict[int, Any] = {}
        self.sticky = 0


class Encoder:
    """Turns a task's rows into record batches, in order. `rows`: how many there were.

    origin: what `flowshare.batch` says before the row's number; None: records get no such header.
    """

    def __init__(self, line: Line, layout: Layout, outbox: Outbox, origin: str | None = None) -> None:
        self._line = line
        self._layout = layout
        self._outbox = outbox
        self._origin = origin
        self._targets: dict[str, _Target] = {}
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
        target: _Target | None = None
        for topic, partition, key, value, headers, timestamp in zip(*found, strict=False):
            if target is None or topic != target.name:
                target = self._target(topic)
            marked = headers if self._origin is None else [*headers, self._mark()]
            self._add(target, _place(target, partition, key), key, value, marked, timestamp)
            self.rows += 1

    def close(self) -> None:
        """Send what is left. Raises: ClientError."""
        for target in self._targets.values():
            for partition in list(target.batches):
                self._put(target, partition)

    def _target(self, topic: str) -> _Target:
        target = self._targets.get(topic)
        if target is None:
            target = self._targets[topic] = _Target(topic, self._line.call(self._line.partitions_of(topic)))
        return target

    def _mark(self) -> Header:
        return BATCH_HEADER, f"{self._origin}/{self.rows}".encode()

    def _add_values(self, target: _Target, values: list[bytes | None]) -> None:
        """Records without key: a batch of one partition, then one of the next."""
        append = self._open(target, target.sticky).append
        for value in values:
            if append(timestamp=None, key=None, value=value) is None:
                self._put(target, target.sticky)
                append = self._open(target, target.sticky).append
                append(timestamp=None, key=None, value=value)

    def _add(
        self,
        target: _Target,
        partition: int,
        key: bytes | None,
        value: bytes | None,
        headers: list[Header],
        timestamp_ms: int | None,
    ) -> None:
        batch = self._open(target, partition)
        if batch.append(timestamp=timestamp_ms, key=key, value=value, headers=headers) is None:
            self._put(target, partition)
            self._open(target, partition).append(timestamp=timestamp_ms, key=key, value=value, headers=headers)

    def _open(self, target: _Target, partition: int) -> Any:
        batch = target.batches.get(partition)
        if batch is None:
            batch = target.batches[partition] = self._outbox.new_batch()
        return batch

    def _put(self, target: _Target, partition: int) -> None:
        self._outbox.put((target.name, partition), target.batches.pop(partition))
        if partition == target.sticky:
            target.sticky = (partition + 1) % target.count


def _place(target: _Target, partition: int | None, key: bytes | None) -> int:
    """A row's partition. Raises: SinkError."""
    if partition is None:
        return target.sticky if key is None else partition_for(key, target.count)
    if 0 <= partition < target.count:
        return partition
    raise SinkError(f"a row is for partition {partition} of topic {target.name!r}, which has {target.count}")
