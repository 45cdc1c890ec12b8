"""First states of share-partitions that a heartbeat or an admin makes, written in one piece with their group.

While they are being written nobody may load these share-partitions: a loader that finds no state would make one.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from flowshare.log.base import UnknownTopic
from flowshare.server.state import ShareKey, delete_state

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterable, Sequence

    from flowshare.log.base import StateStore
    from flowshare.server.loader import Loader
    from flowshare.server.partitions import Partitions
    from flowshare.server.state import Write
    from flowshare.server.topic_index import TopicIndex
    from flowshare.share.group import ShareGroup, ToInitialize


class Initializer:
    """Plans the writes; `Coordinator` makes them."""

    def __init__(self, *, store: StateStore, topics: TopicIndex, partitions: Partitions, loader: Loader) -> None:
        self._store = store
        self._topics = topics
        self._partitions = partitions
        self._loader = loader

    @asynccontextmanager
    async def first_states(self, group: ShareGroup, items: Sequence[ToInitialize]) -> AsyncGenerator[list[Write]]:
        """The writes that initialise `items`; their share-partitions cannot be loaded until the block ends.

        One that has state, or is loaded or being loaded by a member that never joined, keeps what it has.
        """
        keys = {ShareKey(group.group_id, item.topic_id, item.partition): item for item in items}
        # A group of this name that is being deleted still has its state until that is written.
        await self._partitions.settled(keys)
        fresh = {key: item for key, item in keys.items() if not self._partitions.served(key)}
        with self._partitions.held(fresh):
            writes: list[Write] = []
            for key, item in fresh.items():
                topic = self._topics.by_id(key.topic_id)
                if topic is None:
                    continue  # deleted since the heartbeat; the group hears of it at the next one
                try:
                    writes.extend(
                        await self._loader.initialise(
                            key,
                            topic,
                            group.config,
                            state_epoch=item.state_epoch,
                            from_start=item.start_offset >= 0,
                        )
                    )
                except UnknownTopic:
                    continue
            yield writes
            for key in fresh:
                self._partitions.know(key)

    async def deletions(self, keys: Iterable[ShareKey]) -> list[Write]:
        """The writes that delete everything stored of share-partitions. Raises: LogError."""
        return await delete_state(self._store, tuple(keys))
