"""The embedded storage: log, topics and state in one RocksDB, written by one thread (`Storage` of `base.py`).

An append gets its offsets on the loop at once and is visible when it is durable. With `fsync=False` durable means
that it survives the death of the process; with `fsync=True` also that of the machine. Store calls happen in the
writer thread (`writer.py`) and a few reader threads, never on the loop; batches appended lately are read from memory
(`tail.py`). After a write error everything unconfirmed fails, reading goes on, and the store is opened again in the
background until writes work.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, TypeVar

from flowshare.clock import Clock, TimerHandle
from flowshare.log import keys
from flowshare.log.base import (
    Appended,
    AppendListener,
    LogOffsets,
    ReadResult,
    StorageError,
    Topic,
    UnknownTopic,
)
from flowshare.log.owner import Owner, OwnerLock
from flowshare.log.partition import (
    Partition,
    cut_blocking,
    kept_from_blocking,
    load_blocking,
    offset_at_blocking,
    read_blocking,
)
from flowshare.log.retention import RetentionTask
from flowshare.log.rules import check_cut, check_offset, check_produced, nth_partition
from flowshare.log.store import Step, Store, Write
from flowshare.log.tail import TailBudget
from flowshare.log.topics import TopicRegistry, decode_topic, encode_topic
from flowshare.log.writer import REQUEST_BYTES, Gate, Request, Writer
from flowshare.protocol.batches import rebase
from flowshare.share.types import LogBatch

T = TypeVar("T")
NO_CONFIGS: Final[Mapping[str, str]] = {}
TAIL_BYTES: Final = 32 * 1024 * 1024
READERS: Final = 2
RESUME_FIRST_S: Final = 0.5
RESUME_MAX_S: Final = 5.0
logger = logging.getLogger(__name__)


class EmbeddedStorage:
    """Log, topics and state under one path; made by `open`, one at a time for a path."""

    def __init__(self, lock: OwnerLock, store: Store, pool: ThreadPoolExecutor, clock: Clock, tail_bytes: int) -> None:
        """Use `open`."""
        self._lock = lock
        self._store = store
        self._pool = pool
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._registry = TopicRegistry()
        self._partitions: dict[str, list[Partition]] = {}
        self._listeners: list[AppendListener] = []
        self._budget = TailBudget(tail_bytes)
        self._gate = Gate()
        self._admin = asyncio.Lock()
        self._retention = RetentionTask(clock, self._sweep)
        self._resume_timer: TimerHandle | None = None
        self._resume_delay_s = RESUME_FIRST_S
        self._closed = False
        self._writer = Writer(store, self._loop, self._committed)

    @classmethod
    async def open(
        cls,
        path: Path | str,
        *,
        clock: Clock,
        fsync: bool = False,
        host_address: str | None = None,
        tail_bytes: int = TAIL_BYTES,
    ) -> EmbeddedStorage:
        """Open the storage at `path`, or make one there.

        Raises: StorageHeld (another process has it, or this one twice), StorageDamaged, StorageError.
        """
        pool = ThreadPoolExecutor(READERS, thread_name_prefix="flowshare-reader")
        loop = asyncio.get_running_loop()
        now_ms = clock.now_ms()

        def start() -> tuple[OwnerLock, Store, list[tuple[Topic, list[Partition]]]]:
            lock = OwnerLock(Path(path), now_ms=now_ms, address=host_address)
            try:
                store = Store(Path(path), fsync=fsync)
                try:
                    return lock, store, _load(store)
                except BaseException:
                    store.close()
                    raise
            except BaseException:
                lock.release()
                raise

        try:
            lock, store, topics = await loop.run_in_executor(pool, start)
        except BaseException:
            pool.shutdown(wait=False)
            raise
        storage = cls(lock, store, pool, clock, tail_bytes)
        for topic, partitions in topics:
            storage._partitions[topic.name] = partitions
            storage._put(topic)
        return storage

    @property
    def owner(self) -> Owner:
        """What `owner.json` says."""
        return self._lock.owner

    async def set_address(self, address: str | None) -> None:
        """Say in `owner.json` where this process serves. Raises: OSError."""
        await self._blocking(lambda: self._lock.set_address(address))

    # --- topics ---------------------------------------------------------------------------------------------

    def topics(self) -> Mapping[str, Topic]:
        """All topics by name."""
        return self._registry.view

    async def create_topic(
        self, name: str, *, partitions: int = 1, configs: Mapping[str, str] = NO_CONFIGS, internal: bool = False
    ) -> Topic:
        """Make a topic; `internal` allows reserved names. Raises: TopicExists, InvalidTopic, StorageError."""
        async with self._admin:
            topic = self._registry.plan_create(name, partitions, configs, internal=internal)
            await self._save_topic(topic)
            self._partitions[name] = [Partition(topic_id=topic.topic_id, number=n) for n in range(partitions)]
            self._put(topic)
        return topic

    async def delete_topic(self, name: str) -> None:
        """Remove a topic and its records. Raises: UnknownTopic, StorageError."""
        async with self._admin:
            topic = self._registry.get(name)
            step = Step([(keys.TOPIC + name.encode(), None)], keys.topic_ranges(topic.topic_id))

            def forget() -> None:
                self._registry.remove(name)
                del self._partitions[name]

            await self._submit(step, REQUEST_BYTES, forget)

    async def create_partitions(self, name: str, total: int) -> Topic:
        """Raise the number of partitions to `total`. Raises: UnknownTopic, InvalidTopic, StorageError."""
        async with self._admin:
            topic = self._registry.plan_partitions(name, total)
            await self._save_topic(topic)
            partitions = self._partitions[name]
            partitions.extend(Partition(topic_id=topic.topic_id, number=n) for n in range(len(partitions), total))
            self._put(topic)
        return topic

    async def alter_topic(self, name: str, configs: Mapping[str, str | None]) -> Topic:
        """Set (None: unset) topic settings. Raises: UnknownTopic, InvalidTopic, StorageError."""
        async with self._admin:
            topic = self._registry.plan_alter(name, configs)
            await self._save_topic(topic)
            self._put(topic)
        return topic

    async def _save_topic(self, topic: Topic) -> None:
        await self._submit(Step([(keys.TOPIC + topic.name.encode(), encode_topic(topic))]), REQUEST_BYTES)

    def _put(self, topic: Topic) -> None:
        self._registry.put(topic)
        if self._registry.settings(topic.name).expires:
            self._retention.ensure()

    # --- records --------------------------------------------------------------------------------------------

    async def append(self, topic: str, partition: int, records: bytes) -> Appended:
        """Check, place and confirm record batches.

        Raises: UnknownTopic, CorruptRecords, RecordsTooLarge, StorageError.
        """
        self._partition(topic, partition)
        headers = check_produced(records, self._registry.settings(topic))
        size = len(records) + REQUEST_BYTES * len(headers)
        await self._gate.enter(size)
        try:
            # The topic may have gone while this waited. From here to the queue nothing is awaited: offsets are
            # given in the order in which they are written.
            self._writer.check()
            log = self._partition(topic, partition)
            append_time = self._registry.settings(topic).append_time
            base = log.next_offset
            placed = rebase(records, headers, base, now_ms=self._clock.now_ms() if append_time else None)
            if append_time:
                headers = tuple(header._replace(max_timestamp=self._clock.now_ms()) for header in headers)
            writes, batches = log.place(placed, headers)
            end, position = log.next_offset, log.position

            def applied() -> None:
                log.confirm(end, position)

            future = self._queue(Step(writes), size, applied, (topic, partition))
        except BaseException:
            self._gate.leave(1, size)
            raise
        for batch in batches:
            self._budget.append(log.tail, batch)
        await future
        return Appended(base_offset=base, last_offset=end - 1, log_start=log.log_start)

    async def read(self, topic: str, partition: int, offset: int, *, max_bytes: int) -> ReadResult:
        """Batches from `offset` on, at least one if there is one.

        Raises: UnknownTopic, OffsetOutOfRange, CorruptRecords, StorageDamaged, StorageError.
        """
        log = self._partition(topic, partition)
        offsets = log.offsets()
        check_offset(offset, offsets)
        if offset == log.end:
            found = []
        elif log.tail.covers(offset):
            found = log.tail.read(offset, log.end, max_bytes)
        else:
            args = (self._store, log.topic_id, log.number, offset, log.end, max_bytes)
            found = await self._blocking(lambda: read_blocking(*args))
            # Meanwhile the topic may have gone, or the log start passed the offset.
            offsets = self._partition(topic, partition).offsets()
            check_offset(offset, offsets)
        batches = tuple(LogBatch(batch.first, batch.last) for batch in found)
        return ReadResult(records=b"".join([batch.records for batch in found]), batches=batches, offsets=offsets)

    def offsets(self, topic: str, partition: int) -> LogOffsets:
        """Bounds of the partition. Raises: UnknownTopic."""
        return self._partition(topic, partition).offsets()

    async def offset_for_timestamp(self, topic: str, partition: int, timestamp_ms: int) -> tuple[int, int] | None:
        """First (offset, timestamp) with timestamp ≥ `timestamp_ms`, or None.

        Raises: UnknownTopic, CorruptRecords, StorageDamaged, StorageError.
        """
        log = self._partition(topic, partition)
        args = (self._store, log.topic_id, log.number, timestamp_ms, log.log_start, log.end)
        return await self._blocking(lambda: offset_at_blocking(*args))

    async def delete_records(self, topic: str, partition: int, before: int) -> int:
        """Move the log start up to `before` (−1: the end).

        Raises: UnknownTopic, OffsetOutOfRange, StorageDamaged, StorageError.
        """
        async with self._admin:
            log = self._partition(topic, partition)
            before = check_cut(before, log.offsets())
            if before > log.log_start:
                args = (self._store, log.topic_id, log.number, before, log.end_position)
                cut = await self._blocking(lambda: cut_blocking(*args))

                def applied() -> None:
                    log.log_start, log.start_position = cut.log_start, cut.start_position

                await self._submit(Step(cut.writes, cut.ranges), REQUEST_BYTES, applied, (topic, partition))
            return log.log_start

    def on_append(self, listener: AppendListener) -> None:
        """Call `listener(topic, partition)` after each confirmed append and each log start move."""
        self._listeners.append(listener)

    async def _sweep(self) -> None:
        """One step of retention for every topic that has one."""
        for topic in self._registry:
            settings = self._registry.settings(topic.name)
            for number in range(topic.partitions if settings.expires else 0):
                try:
                    log = self._partition(topic.name, number)
                    args = (
                        self._store,
                        log.topic_id,
                        number,
                        settings,
                        log.end_position,
                        log.end,
                        self._clock.now_ms(),
                    )
                    start = await self._blocking(lambda args=args: kept_from_blocking(*args))  # type: ignore[misc]
                    if start > log.log_start:
                        await self.delete_records(topic.name, number, start)
                except UnknownTopic:
                    break

    # --- state ----------------------------------------------------------------------------------------------

    async def write(self, writes: Sequence[tuple[bytes, bytes | None]]) -> None:
        """Put (None: delete) all or none, in order of calls; returns when durable. Raises: StorageError."""
        stored: list[Write] = [(keys.STATE + key, value) for key, value in writes]
        size = REQUEST_BYTES + sum(len(key) + len(value or b"") for key, value in writes)
        await self._submit(Step(stored), size)

    async def scan(self, prefix: bytes) -> list[tuple[bytes, bytes]]:
        """All entries under a prefix, in key order. Raises: StorageDamaged, StorageError."""
        first = keys.STATE + prefix
        entries = await self._blocking(lambda: list(self._store.scan(first, keys.after(first))))
        return [(key[len(keys.STATE) :], value) for key, value in entries]

    async def close(self) -> None:
        """Write what is queued, confirm it, let go of the path. Safe to call twice."""
        if self._closed:
            return
        self._closed = True
        if self._resume_timer is not None:
            self._resume_timer.cancel()
        await self._retention.close()

        def finish() -> None:
            self._writer.close()
            self._store.close()
            self._lock.release()

        await self._loop.run_in_executor(self._pool, finish)
        self._pool.shutdown(wait=False)

    # --- writing --------------------------------------------------------------------------------------------

    async def _submit(
        self,
        step: Step,
        size: int,
        applied: Callable[[], None] | None = None,
        changed: tuple[str, int] | None = None,
    ) -> None:
        await self._gate.enter(size)
        try:
            future = self._queue(step, size, applied, changed)
        except BaseException:
            self._gate.leave(1, size)
            raise
        await future

    def _queue(
        self,
        step: Step,
        size: int,
        applied: Callable[[], None] | None = None,
        changed: tuple[str, int] | None = None,
    ) -> asyncio.Future[None]:
        future: asyncio.Future[None] = self._loop.create_future()
        self._writer.submit(Request(step, size=size, future=future, applied=applied, changed=changed))
        return future

    def _committed(self, requests: list[Request], error: StorageError | None) -> None:
        """On the loop, after each commit in turn: let everybody know."""
        self._gate.leave(len(requests), sum(request.size for request in requests))
        if error is None:
            self._apply(requests)
        for request in requests:
            if request.future.done():
                continue
            if error is None:
                request.future.set_result(None)
            else:
                request.future.set_exception(StorageError(str(error)))
        if error is not None:
            logger.error("writing failed, nothing is confirmed until the storage is open again: %s", error)
            self._resume_later()

    def _apply(self, requests: list[Request]) -> None:
        changed = dict[tuple[str, int], None]()
        for request in requests:
            if request.applied is not None:
                request.applied()
            if request.changed is not None:
                changed[request.changed] = None
        for topic, partition in changed:
            for listener in self._listeners:
                listener(topic, partition)

    def _resume_later(self) -> None:
        def resume() -> None:
            self._writer.resume(self._resumed)

        if not self._closed:
            self._resume_timer = self._clock.call_later(self._resume_delay_s, resume)
            self._resume_delay_s = min(RESUME_MAX_S, self._resume_delay_s * 2)

    def _resumed(self, survived: list[Request], error: StorageError | None) -> None:
        """On the loop: the store is open again, or not yet. `survived` was reported as failed, but is stored."""
        if error is not None:
            logger.warning("the storage cannot be written yet: %s", error)
            self._resume_later()
            return
        self._resume_delay_s = RESUME_FIRST_S
        self._budget.clear()
        self._apply(survived)
        for partitions in self._partitions.values():
            for partition in partitions:
                partition.roll_back()
        self._writer.accept()
        logger.warning("the storage takes writes again")

    def _partition(self, topic: str, partition: int) -> Partition:
        return nth_partition(self._partitions.get(topic), topic, partition)

    async def _blocking(self, call: Callable[[], T]) -> T:
        if self._closed:
            raise StorageError("the storage is closed")
        return await self._loop.run_in_executor(self._pool, call)


def _load(store: Store) -> list[tuple[Topic, list[Partition]]]:
    """All topics with their partitions as stored. Raises: StorageDamaged, StorageError."""
    topics = [decode_topic(value) for _, value in store.scan(keys.TOPIC, keys.after(keys.TOPIC))]
    return [(topic, [load_blocking(store, topic.topic_id, n) for n in range(topic.partitions)]) for topic in topics]
