"""The embedded storage: log, topics and state in one RocksDB, written by one thread (`Storage` of `base.py`).

An append gets its offsets on the loop at once and is visible when it is durable. With `fsync=False` durable means
that it survives the death of the process; with `fsync=True` also that of the machine. Store calls happen in the
writer thread (`writer.py`) and a few reader threads, never on the loop; batches appended lately are read from memory
(`tail.py`). After a write error everything unconfirmed fails, reading goes on, and the store is opened again in the
background until writes work. A storage whose disk is full is opened so, too.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Hashable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

from flowshare.clock import Clock
from flowshare.log import keys
from flowshare.log.appender import Appender
from flowshare.log.base import (
    Admission,
    Appended,
    AppendListener,
    LogOffsets,
    ReadResult,
    StorageError,
    Topic,
    UnknownTopic,
)
from flowshare.log.commits import Commits
from flowshare.log.compactor import Compactor
from flowshare.log.cutting import cut_blocking, kept_from_blocking
from flowshare.log.folder import OwnFolder
from flowshare.log.inspection import Inspector
from flowshare.log.opening import Opened, claim, let_go, let_lock_go, lock_blocking, open_blocking
from flowshare.log.owner import BEAT_S, NO_LOCKS, Owner, OwnerLock
from flowshare.log.partition import Partition, offset_at_blocking
from flowshare.log.producing import decide_batch, decide_marker, produced
from flowshare.log.readahead import ReadAhead
from flowshare.log.reader import Reader
from flowshare.log.retention import SweepTask
from flowshare.log.rules import TopicPartitions, check_cut, nth_partition
from flowshare.log.store import Step, Store, Write
from flowshare.log.tail import TailBudget
from flowshare.log.topics import TopicRegistry, TopicSettings, encode_topic
from flowshare.log.writer import REQUEST_BYTES
from flowshare.protocol.batches import batch_headers
from flowshare.protocol.control import marker
from flowshare.transactions.partition import EXPIRY_MS
from flowshare.transactions.producers import Producer

T = TypeVar("T")
NO_CONFIGS: Final[Mapping[str, str]] = {}
TAIL_BYTES: Final = 32 * 1024 * 1024
READERS: Final = 2
TIMESTAMP_MAX: Final = 2**63 - 1
logger = logging.getLogger(__name__)


class EmbeddedStorage:
    """Log, topics and state under one path; made by `open`, one at a time for a path."""

    def __init__(self, lock: OwnerLock, store: Store, pool: ThreadPoolExecutor, clock: Clock, tail_bytes: int) -> None:
        """Use `open`."""
        self.producer_expiry_ms = EXPIRY_MS
        self._lock = lock
        self._store = store
        self._pool = pool
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._registry = TopicRegistry()
        self._partitions: dict[str, TopicPartitions[Partition]] = {}
        self._listeners: list[AppendListener] = []
        self._inspector = Inspector()
        self._seeker = ThreadPoolExecutor(1, thread_name_prefix="flowshare-seeker")
        self._budget = TailBudget(tail_bytes)
        self._ahead = ReadAhead(tail_bytes)
        self._admin = asyncio.Lock()
        self._changes: set[asyncio.Task[Any]] = set()
        self._retention = SweepTask(clock, self._sweep, "old records could not be deleted")
        self._compaction = SweepTask(clock, self._compact, "compaction was cut short")
        self._closed = False
        self.lost = asyncio.Event()
        """Another process leads the path, too: nothing is written any more."""
        self._keeping = asyncio.create_task(self._keep_name(), name="flowshare-storage-owner")
        self._commits = Commits(store, clock, changed=self._tell, roll_back=self._roll_back)
        self._appender = Appender(
            self._commits, self._budget, clock, find=self._partition, settings=self._registry.settings
        )
        self._reader = Reader(store, self._ahead, find=self._partition, blocking=self.blocking)
        self._compactor = Compactor(
            store, self._commits, clock, self, budget=self._budget, ahead=self._ahead, find=self._partition
        )

    @classmethod
    async def open(
        cls,
        path: Path | str,
        *,
        clock: Clock,
        fsync: bool = False,
        tail_bytes: int = TAIL_BYTES,
    ) -> EmbeddedStorage:
        """Open the storage at `path`, or make one there.

        Raises: StorageHeld (another process has it, or this one twice), StorageDamaged, StorageError.
        """
        pool = ThreadPoolExecutor(READERS, thread_name_prefix="flowshare-reader")
        loop = asyncio.get_running_loop()
        now_ms = clock.now_ms()

        try:
            lock = await _or_else(loop.run_in_executor(pool, lock_blocking, Path(path), now_ms), let_lock_go)
            try:
                await claim(lock, clock, pool)
                opening: asyncio.Future[Opened] = loop.run_in_executor(pool, lambda: open_blocking(lock, fsync=fsync))
            except BaseException:
                lock.release()
                raise
            try:
                opened = await _or_else(opening, let_go)
            except Exception:
                lock.release()
                raise
        except BaseException:
            pool.shutdown(wait=False)
            raise
        storage = cls(lock, opened.store, pool, clock, tail_bytes)
        for topic, partitions in opened.topics:
            storage._partitions[topic.name] = _partitions(topic, partitions)
            storage._put(topic)
        return storage

    @property
    def owner(self) -> Owner:
        """What `owner.json` says."""
        return self._lock.owner

    @property
    def owner_before(self) -> Owner | None:
        """Who held the path before and did not let go of it in order: a process that was killed."""
        return self._lock.before

    async def _keep_name(self) -> None:
        """Say that this holder lives; write nothing more when the path is another's."""
        while True:
            await self._clock.sleep(BEAT_S)
            try:
                other = await self.blocking(self._lock.beat)
            except (OSError, StorageError) as error:
                logger.debug("%s: %s", self._lock.path, error)
                continue
            if other is not None:
                refusal = StorageError(
                    f"{self._lock.path} was taken by {other}, though this process has its lock; {NO_LOCKS}"
                )
                logger.critical("%s. Nothing more is written from here", refusal)
                self._commits.refuse(refusal)
                self.lost.set()
                return

    @property
    def folder(self) -> OwnFolder:
        """The directory; open as long as the storage is."""
        return self._lock.folder

    async def set_listener(self, listener: str | None, *, secret: bool = False) -> None:
        """Say in `owner.json` where this process listens, and whether for the path's secret. Raises: OSError."""
        await self.blocking(lambda: self._lock.set_listener(listener, secret=secret))

    # --- topics ---------------------------------------------------------------------------------------------

    def topics(self) -> Mapping[str, Topic]:
        """All topics by name."""
        return self._registry.view

    async def create_topic(
        self, name: str, *, partitions: int = 1, configs: Mapping[str, str] = NO_CONFIGS, internal: bool = False
    ) -> Topic:
        """Make a topic; `internal` allows reserved names. Raises: TopicExists, InvalidTopic, StorageError."""

        async def change() -> Topic:
            topic = self._registry.plan_create(name, partitions, configs, internal=internal)
            return await self._save_topic(topic)

        return await self.alone(change)

    async def delete_topic(self, name: str) -> None:
        """Remove a topic and its records. Raises: UnknownTopic, StorageError."""

        def forget() -> None:
            self._registry.remove(name)
            self._partitions.pop(name, None)

        async def change() -> None:
            topic = self._registry.get(name)
            step = Step([(keys.TOPIC + name.encode(), None)], keys.topic_ranges(topic.topic_id))
            # Nothing may be appended behind the deletion.
            partitions = self._partitions.pop(name)
            try:
                await self._commits.submit(step, REQUEST_BYTES, forget)
            except StorageError:
                self._partitions[name] = partitions
                raise

        await self.alone(change)

    async def create_partitions(self, name: str, total: int) -> Topic:
        """Raise the number of partitions to `total`. Raises: UnknownTopic, InvalidTopic, StorageError."""

        async def change() -> Topic:
            return await self._save_topic(self._registry.plan_partitions(name, total))

        return await self.alone(change)

    async def alter_topic(self, name: str, configs: Mapping[str, str | None]) -> Topic:
        """Set (None: unset) topic settings. Raises: UnknownTopic, InvalidTopic, StorageError."""

        async def change() -> Topic:
            return await self._save_topic(self._registry.plan_alter(name, configs))

        return await self.alone(change)

    async def _save_topic(self, topic: Topic) -> Topic:
        def applied() -> None:
            self._partitions.setdefault(topic.name, _partitions(topic)).count = topic.partitions
            self._put(topic)

        step = Step([(keys.TOPIC + topic.name.encode(), encode_topic(topic))])
        await self._commits.submit(step, REQUEST_BYTES, applied)
        return topic

    def _put(self, topic: Topic) -> None:
        self._registry.put(topic)
        settings = self._registry.settings(topic.name)
        if settings.expires:
            self._retention.ensure()
        if settings.compaction is not None:
            self._compaction.ensure()

    # --- records --------------------------------------------------------------------------------------------

    async def append(
        self,
        topic: str,
        partition: int,
        records: bytes,
        *,
        admit: Admission | None = None,
        source: Hashable | None = None,
    ) -> Appended:
        """Check, place and confirm record batches; see `Log.append`.

        Raises: UnknownTopic, CorruptRecords, RecordsTooLarge, InvalidRecord, InvalidTimestamp, ProducerRefused,
            StorageError.
        """
        self._partition(topic, partition)
        settings, now_ms = self._registry.settings(topic), self._clock.now_ms()
        headers = await self._inspector.checked((topic, partition), records, settings, source=source, now_ms=now_ms)
        batch = produced(headers)
        decide = None if batch is None else decide_batch(batch, admit, self.producer_expiry_ms)
        return await self._appender.place((topic, partition), records, headers, decide)

    async def append_control(
        self, topic: str, partition: int, producer_id: int, epoch: int, *, committed: bool
    ) -> Appended:
        """End a producer's transaction on the partition by a marker.

        Raises: UnknownTopic, ProducerRefused, StorageError.
        """
        self._partition(topic, partition)
        records = marker(producer_id, epoch, committed=committed, timestamp_ms=self._clock.now_ms())
        decide = decide_marker(producer_id, epoch, committed=committed)
        return await self._appender.place((topic, partition), records, batch_headers(records), decide)

    async def read(
        self, topic: str, partition: int, offset: int, *, max_bytes: int, committed: bool = False
    ) -> ReadResult:
        """Batches from `offset` on, at least one if there is one; `committed`: none past the last stable offset.

        Raises: UnknownTopic, OffsetOutOfRange, CorruptRecords, StorageDamaged, StorageError.
        """
        return await self._reader.read((topic, partition), offset, max_bytes=max_bytes, committed=committed)

    def producers(self, topic: str, partition: int) -> Mapping[int, Producer]:
        """Idempotent producers of the partition by id. Raises: UnknownTopic."""
        return self._partition(topic, partition).producers.view

    def offsets(self, topic: str, partition: int) -> LogOffsets:
        """Bounds of the partition. Raises: UnknownTopic."""
        return self._partition(topic, partition).offsets()

    def dense(self, topic: str, partition: int, offset: int, end: int) -> bool:
        """Whether nothing is missing or aborted there. Raises: UnknownTopic."""
        log = self._partition(topic, partition)
        return offset >= log.holes_to and not log.producers.aborted.between(offset, end)

    async def bounds(self, topic: str, partition: int) -> LogOffsets:
        """As `offsets`: they lie here."""
        return self.offsets(topic, partition)

    async def offset_for_timestamp(self, topic: str, partition: int, timestamp_ms: int) -> tuple[int, int] | None:
        """First (offset, timestamp) with timestamp ≥ `timestamp_ms`, or None.

        Raises: UnknownTopic, CorruptRecords, StorageDamaged, StorageError.
        """
        log = self._partition(topic, partition)
        timestamp_ms = min(max(timestamp_ms, -TIMESTAMP_MAX), TIMESTAMP_MAX)
        args = (self._store, log, timestamp_ms, log.log_start, log.end, self._check_open)
        self._check_open()
        # Apart from the readers: batches are decompressed for it, and whoever asks for times keeps only others waiting
        # who do.
        return await self._loop.run_in_executor(self._seeker, lambda: offset_at_blocking(*args))

    async def delete_records(self, topic: str, partition: int, before: int) -> int:
        """Move the log start up to `before` (−1: the end).

        Raises: UnknownTopic, OffsetOutOfRange, StorageDamaged, StorageError.
        """

        return await self.alone(lambda: self._cut(topic, partition, before))

    async def _cut(self, topic: str, partition: int, before: int) -> int:
        """As `delete_records`, for who is `alone`."""
        log = self._partition(topic, partition)
        cut_at = check_cut(before, log.offsets())
        if cut_at > log.log_start:
            cut = await self.blocking(lambda: cut_blocking(self._store, log, cut_at))

            def applied() -> None:
                log.cut(cut.log_start, cut.start_position)

            await self._commits.submit(Step(cut.writes, cut.ranges), REQUEST_BYTES, applied, (topic, partition))
        return log.log_start

    def on_append(self, listener: AppendListener) -> None:
        """Call `listener(topic, partition)` after each confirmed append and each log start move."""
        self._listeners.append(listener)

    async def _sweep(self) -> None:
        """One step of retention for every topic that has one."""
        for topic in self._registry:
            settings = self._registry.settings(topic.name)
            for number in self._holding(topic.name) if settings.expires else ():
                try:
                    await self.alone(partial(self._keep, topic.name, number, settings))
                except UnknownTopic:
                    break

    async def _keep(self, topic: str, partition: int, settings: TopicSettings) -> None:
        """Delete what the partition is not to keep, for who is `alone`: its start must not move meanwhile."""
        log = self._partition(topic, partition)
        args = (self._store, log, settings, log.end_position, log.end, self._clock.now_ms())
        start = await self.blocking(lambda: kept_from_blocking(*args))
        if start > log.log_start:
            await self._cut(topic, partition, start)

    async def _compact(self) -> None:
        """Compaction of every partition whose turn has come."""
        for topic in self._registry:
            for number in self._holding(topic.name):
                try:
                    settings = self._registry.settings(topic.name).compaction
                    if settings is not None:
                        await self._compactor.compact(topic.name, number, settings)
                except UnknownTopic:
                    break

    # --- state ----------------------------------------------------------------------------------------------

    async def write(self, writes: Sequence[tuple[bytes, bytes | None]]) -> None:
        """Put (None: delete) all or none, in order of calls; returns when durable. Raises: StorageError."""
        stored: list[Write] = [(keys.STATE + key, value) for key, value in writes]
        size = REQUEST_BYTES + sum(len(key) + len(value or b"") for key, value in writes)
        await self._commits.submit(Step(stored), size)

    async def scan(self, prefix: bytes) -> list[tuple[bytes, bytes]]:
        """All entries under a prefix, in key order. Raises: StorageDamaged, StorageError."""
        first = keys.STATE + prefix
        entries = await self.blocking(lambda: list(self._store.scan(first, keys.after(first))))
        return [(key[len(keys.STATE) :], value) for key, value in entries]

    async def close(self) -> None:
        """Write what is queued, confirm it, let go of the path. Safe to call twice."""
        if self._closed:
            return
        self._closed = True
        self._commits.stop()
        self._keeping.cancel()
        await self._retention.close()
        await self._compaction.close()
        await self._inspector.close()

        def finish() -> None:
            self._seeker.shutdown()
            self._commits.close_blocking()
            self._store.close()
            self._lock.release()

        await self._loop.run_in_executor(self._pool, finish)
        while self._changes:  # of callers that gave up; each ends with its write, or is refused now
            await asyncio.wait(self._changes)
        self._pool.shutdown(wait=False)

    # --- inside ---------------------------------------------------------------------------------------------

    async def alone(self, change: Callable[[], Coroutine[None, None, T]]) -> T:
        """Make one change of topics or log starts after the other, to its end even if the caller gives up."""

        async def locked() -> T:
            async with self._admin:
                return await change()

        task = self._loop.create_task(locked(), name="flowshare-storage-change")
        self._changes.add(task)
        task.add_done_callback(self._changed_alone)
        return await asyncio.shield(task)

    def _changed_alone(self, task: asyncio.Task[Any]) -> None:
        self._changes.discard(task)
        if not task.cancelled():
            # A caller that gave up does not ask for the error.
            task.exception()

    def _tell(self, topic: str, partition: int) -> None:
        for listener in self._listeners:
            listener(topic, partition)

    def _roll_back(self) -> None:
        if self._lock.untold:
            self._loop.run_in_executor(self._pool, self._lock.tell)
        self._budget.clear()
        self._ahead.clear()
        for partitions in self._partitions.values():
            for _, partition in partitions.made():
                partition.roll_back()

    def _holding(self, topic: str) -> list[int]:
        """Partitions that have records."""
        partitions = self._partitions.get(topic)
        return [] if partitions is None else [number for number, log in partitions.made() if log.log_start < log.end]

    def _partition(self, topic: str, partition: int) -> Partition:
        return nth_partition(self._partitions.get(topic), topic, partition)

    async def blocking(self, call: Callable[[], T]) -> T:
        """Call in a reader thread. Raises: StorageError, what `call` raises."""
        self._check_open()
        return await self._loop.run_in_executor(self._pool, call)

    def _check_open(self) -> None:
        """Any thread. Raises: StorageError."""
        if self._closed:
            raise StorageError("the storage is closed")


def _partitions(topic: Topic, loaded: Iterable[Partition] = ()) -> TopicPartitions[Partition]:
    """A topic's partitions; those that were not loaded are empty."""

    def empty(number: int) -> Partition:
        return Partition(topic_id=topic.topic_id, number=number)

    return TopicPartitions(topic.partitions, empty, ((one.number, one) for one in loaded))


async def _or_else(work: asyncio.Future[T], undo: Callable[[asyncio.Future[T]], None]) -> T:
    """The result of work in a thread; `undo` has it when the caller gives up before it is there."""
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        work.add_done_callback(undo)
        raise
