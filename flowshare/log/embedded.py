"""The storage on a disk: one RocksDB under a path, written by one thread (`BrokerStorage` of `storage.py`).

With `fsync=False` a durable write survives the death of the process; with `fsync=True` also that of the machine. Store
calls happen in the writer thread (`commits.py`) and a few reader threads, never on the loop. After a write error
everything unconfirmed fails, reading goes on, and the store is opened again in the background until writes work. A
storage whose disk is full is opened the same way.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

from flowshare.clock import Clock
from flowshare.log import keys
from flowshare.log.base import StorageDamaged, StorageError, Topic
from flowshare.log.commits import WriterQueue
from flowshare.log.owner import BEAT_S, DOUBT_S, GONE, NO_LOCKS, STORE_DIRECTORY, OwnerLock, still_there
from flowshare.log.partition import StoredPartition, TopicPartitions, load_blocking
from flowshare.log.storage import TAIL_BYTES, BrokerStorage
from flowshare.log.store import RocksStore
from flowshare.log.topics import decode_topic

T = TypeVar("T")
READERS: Final = 2
logger = logging.getLogger(__name__)


class EmbeddedStorage(BrokerStorage):
    """Log, topics and state under one path; made by `open`, one at a time for a path."""

    def __init__(
        self, lock: OwnerLock, store: RocksStore, pool: ThreadPoolExecutor, clock: Clock, tail_bytes: int
    ) -> None:
        """Use `open`."""
        self._writing = WriterQueue(store, clock)
        super().__init__(store, self._writing, clock, tail_bytes=tail_bytes)
        self._disk = store
        self._lock = lock
        self._pool = pool
        self._loop = asyncio.get_running_loop()
        self._changes: set[asyncio.Task[Any]] = set()
        self._seeker = ThreadPoolExecutor(1, thread_name_prefix="flowshare-seeker")
        self.lost = asyncio.Event()
        """Set when another process leads the path, too, or the path is gone: nothing is written any more."""
        self.why_lost = ""
        """The reason in words, with a remedy; empty before."""
        self.folder = lock.folder
        """The directory; open as long as the storage."""
        self.owner_before = lock.before
        """The holder before, if it did not release the path in order: a process that was killed."""
        self._keeping = asyncio.create_task(self._keep_name(), name="flowshare-storage-owner")

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

        Raises: StorageHeld (another process has it, or this one has it already), StorageDamaged, StorageError.
        """
        pool = ThreadPoolExecutor(READERS, thread_name_prefix="flowshare-reader")
        loop = asyncio.get_running_loop()
        now_ms = clock.now_ms()

        try:
            locking = loop.run_in_executor(pool, lambda: OwnerLock(Path(path), now_ms=now_ms, doubt=True))
            lock = await _or_else(locking, OwnerLock.release)
            try:
                await claim(lock, clock, pool)
                opening: asyncio.Future[Opened] = loop.run_in_executor(pool, lambda: open_blocking(lock, fsync=fsync))
            except BaseException:
                lock.release()
                raise
            opened = await _or_else(opening, Opened.let_go)
        except BaseException:
            pool.shutdown(wait=False)
            raise
        storage = cls(lock, opened.store, pool, clock, tail_bytes)
        for topic, partitions in opened.topics:
            storage._partitions[topic.name] = TopicPartitions(topic, partitions)
            storage._put(topic)
        return storage

    async def _keep_name(self) -> None:
        """Say every `BEAT_S` that this holder lives; stop writing when the path is another's, or gone."""
        while True:
            await self._clock.sleep(BEAT_S)
            try:
                why = await self.blocking(self._why_lost)
            except (OSError, StorageError) as error:
                logger.debug("%s: %s", self._lock.path, error)
                continue
            if why is not None:
                refusal = StorageError(f"{self._lock.path} {why}")
                self.why_lost = str(refusal)
                logger.critical("%s. Nothing more is written from here", refusal)
                self._writing.refuse(refusal)
                self.lost.set()
                return

    def _why_lost(self) -> str | None:
        """Say that this holder lives; return the path's fate if it is lost, else None. Raises: OSError, NotPrivate."""
        if not still_there(self.folder):
            return GONE
        other = self._lock.beat()
        return None if other is None else f"was taken by {other}, though this process has its lock; {NO_LOCKS}"

    async def set_listener(self, listener: str | None, *, secret: bool = False, alone: bool = False) -> None:
        """Write this process's address, and who may join it there, to `owner.json`. Raises: OSError."""
        await self.blocking(lambda: self._lock.set_listener(listener, secret=secret, alone=alone))

    def prepare_close(self) -> None:
        """Stop trying to write after an error. Writes in doubt stay in doubt until the storage is opened again."""
        self._writing.stop()

    async def close(self) -> None:
        """Write and confirm all queued steps, then release the path. Safe to call twice."""
        if self._closed:
            return
        self._writing.stop()
        self._keeping.cancel()
        await super().close()

        def finish() -> None:
            self._seeker.shutdown()
            self._writing.close_blocking()
            self._disk.close()
            self._lock.release()

        await self._loop.run_in_executor(self._pool, finish)
        while self._changes:  # changes of callers that gave up; each ends with its write, or is refused now
            await asyncio.wait(self._changes)
        self._pool.shutdown(wait=False)

    async def blocking(self, call: Callable[[], T]) -> T:
        """Call in a reader thread. Raises: StorageError, errors that `call` raises."""
        self._check_open()
        return await self._loop.run_in_executor(self._pool, call)

    async def seeking(self, call: Callable[[], T]) -> T:
        """Call in a thread apart from the readers: searches by timestamp delay only each other."""
        self._check_open()
        return await self._loop.run_in_executor(self._seeker, call)

    async def alone(self, change: Callable[[], Coroutine[None, None, T]]) -> T:
        """Run a change of topics or log starts after those begun before, to its end even if the caller gives up."""
        task = self._loop.create_task(super().alone(change), name="flowshare-storage-change")
        self._changes.add(task)
        task.add_done_callback(self._changed_alone)
        return await asyncio.shield(task)

    def _changed_alone(self, task: asyncio.Task[Any]) -> None:
        self._changes.discard(task)
        if not task.cancelled():
            # A caller that gave up does not ask for the error.
            task.exception()

    def _roll_back(self) -> None:
        if self._lock.untold:
            self._loop.run_in_executor(self._pool, self._lock.tell)
        super()._roll_back()


class Opened(NamedTuple):
    """The result of an opening: the lock and the store, both to be released, and all topics with their partitions."""

    lock: OwnerLock
    store: RocksStore
    topics: list[tuple[Topic, list[StoredPartition]]]

    def let_go(self) -> None:
        """Release both for a caller that gave up."""
        self.store.close()
        self.lock.release()


async def claim(lock: OwnerLock, clock: Clock, pool: Executor) -> None:
    """Check that the holder before does not live on another machine, to which locks may not reach.

    Raises: StorageError (it lives, or that cannot be seen).
    """
    if not lock.doubtful:
        return
    loop = asyncio.get_running_loop()
    logger.warning(
        "%s was not let go of by %s: waiting %g s for it to say that it lives", lock.path, lock.before, DOUBT_S
    )
    try:
        found = await loop.run_in_executor(pool, lock.pulse)
        await clock.sleep(DOUBT_S)
        lives = await loop.run_in_executor(pool, lock.pulse) != found
        if not lives:
            await loop.run_in_executor(pool, lock.tell)
    except OSError as error:
        raise StorageError(f"{lock.path} cannot be used as a storage: {error}") from error
    if lives:
        raise StorageError(
            f"{lock.path} is led by {lock.before}, which lives: its locks do not reach this machine, and two leaders "
            f"would ruin it; {NO_LOCKS}, or stop that process"
        )


def open_blocking(lock: OwnerLock, *, fsync: bool) -> Opened:
    """Open the store of a locked path and read topics and partitions.

    Raises: StorageDamaged, StorageError; the store is closed and the lock released then: the caller may have given up.
    """
    try:
        return _open_locked(lock, fsync=fsync)
    except BaseException:
        lock.release()
        raise


def _open_locked(lock: OwnerLock, *, fsync: bool) -> Opened:
    directory = lock.path / STORE_DIRECTORY
    made = not directory.exists()
    lock.folder.below(STORE_DIRECTORY).close()
    try:
        store = RocksStore(lock.path, fsync=fsync)
    except StorageDamaged:
        if made:  # else the lost one would be moved back into this one
            directory.rmdir()
        raise
    try:
        return Opened(lock, store, _load(store))
    except BaseException:
        store.close()
        raise


def _load(store: RocksStore) -> list[tuple[Topic, list[StoredPartition]]]:
    topics = [decode_topic(value) for _, value in store.scan(keys.TOPIC, keys.after(keys.TOPIC))]
    return [(topic, [load_blocking(store, topic.topic_id, n) for n in range(topic.partitions)]) for topic in topics]


async def _or_else(work: asyncio.Future[T], undo: Callable[[T], None]) -> T:
    """Return the result of work in a thread; `undo` is called with it when the caller has given up before."""

    def given_up(done: asyncio.Future[T]) -> None:
        if not done.cancelled() and done.exception() is None:
            undo(done.result())

    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        work.add_done_callback(given_up)
        raise
