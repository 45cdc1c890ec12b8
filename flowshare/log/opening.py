"""Opening the embedded storage: the path's lock, the store, and what it holds, in a worker thread."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from flowshare.log import keys
from flowshare.log.base import StorageError, Topic
from flowshare.log.owner import DOUBT_S, NO_LOCKS, OwnerLock
from flowshare.log.partition import Partition, load_blocking
from flowshare.log.store import STORE_DIRECTORY, Store
from flowshare.log.topics import decode_topic

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from flowshare.clock import Clock

logger = logging.getLogger(__name__)


class Opened(NamedTuple):
    """What an opening gives: both to be let go of, and all topics with their partitions."""

    lock: OwnerLock
    store: Store
    topics: list[tuple[Topic, list[Partition]]]


def lock_blocking(path: Path, now_ms: int) -> OwnerLock:
    """Lock the path; where that is doubtful, it is to be claimed yet. Raises: StorageHeld, StorageError."""
    return OwnerLock(path, now_ms=now_ms, doubt=True)


async def claim(lock: OwnerLock, clock: Clock, pool: Executor) -> None:
    """See that the holder of before does not live on another machine, to which locks may not reach.

    Raises: StorageError (it lives, or it cannot be seen).
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
            await loop.run_in_executor(pool, lock.claim)
    except OSError as error:
        raise StorageError(f"{lock.path} cannot be used as a storage: {error}") from error
    if lives:
        raise StorageError(
            f"{lock.path} is led by {lock.before}, which lives: its locks do not reach this machine, and two leaders "
            f"would ruin it; {NO_LOCKS}, or stop that process"
        )


def open_blocking(lock: OwnerLock, *, fsync: bool) -> Opened:
    """Open the store of a locked path and read what is needed of it.

    Raises: StorageDamaged, StorageError; the store is closed then.
    """
    lock.folder.below(STORE_DIRECTORY).close()
    store = Store(lock.path, fsync=fsync)
    try:
        return Opened(lock, store, _load(store))
    except BaseException:
        store.close()
        raise


def let_lock_go(locking: asyncio.Future[OwnerLock]) -> None:
    """Release what was locked for a caller that gave up."""
    if not locking.cancelled() and locking.exception() is None:
        locking.result().release()


def let_go(opening: asyncio.Future[Opened]) -> None:
    """Close what was opened for a caller that gave up."""
    if not opening.cancelled() and opening.exception() is None:
        lock, store, _ = opening.result()
        store.close()
        lock.release()


def _load(store: Store) -> list[tuple[Topic, list[Partition]]]:
    topics = [decode_topic(value) for _, value in store.scan(keys.TOPIC, keys.after(keys.TOPIC))]
    return [(topic, [load_blocking(store, topic.topic_id, n) for n in range(topic.partitions)]) for topic in topics]
