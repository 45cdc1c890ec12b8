"""Opening the embedded storage: the path's lock, the store, and what it holds, in a worker thread."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import NamedTuple

from flowshare.log import keys
from flowshare.log.base import Topic
from flowshare.log.owner import OwnerLock
from flowshare.log.partition import Partition, load_blocking
from flowshare.log.store import STORE_DIRECTORY, Store
from flowshare.log.topics import decode_topic


class Opened(NamedTuple):
    """What an opening gives: both to be let go of, and all topics with their partitions."""

    lock: OwnerLock
    store: Store
    topics: list[tuple[Topic, list[Partition]]]


def open_blocking(path: Path, now_ms: int, *, fsync: bool) -> Opened:
    """Lock the path, open the store and read what is needed of it.

    Raises: StorageHeld, StorageDamaged, StorageError; nothing stays open then.
    """
    lock = OwnerLock(path, now_ms=now_ms)
    try:
        lock.folder.below(STORE_DIRECTORY).close()
        store = Store(lock.path, fsync=fsync)
        try:
            return Opened(lock, store, _load(store))
        except BaseException:
            store.close()
            raise
    except BaseException:
        lock.release()
        raise


def let_go(opening: asyncio.Future[Opened]) -> None:
    """Close what was opened for a caller that gave up."""
    if not opening.cancelled() and opening.exception() is None:
        lock, store, _ = opening.result()
        store.close()
        lock.release()


def _load(store: Store) -> list[tuple[Topic, list[Partition]]]:
    topics = [decode_topic(value) for _, value in store.scan(keys.TOPIC, keys.after(keys.TOPIC))]
    return [(topic, [load_blocking(store, topic.topic_id, n) for n in range(topic.partitions)]) for topic in topics]
