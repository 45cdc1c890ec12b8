"""Requests of a coordinator to the leaders of its groups' share-partitions; a server by itself asks itself.

The writes that a block yields are made together with the group's own, in one piece. A leader elsewhere has made its own
writes durable before the block begins, and yields none.
"""

from __future__ import annotations

import asyncio
import contextlib
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final, Protocol

from flowshare.core_errors import StateCorrupt
from flowshare.log.base import StorageDamaged, UnknownTopic
from flowshare.server.runtime.settled import follow_settled
from flowshare.server.runtime.state import GENERATION, ShareKey, delete_state, initial_writes

if TYPE_CHECKING:
    import uuid
    from collections.abc import AsyncGenerator, Mapping, Sequence
    from contextlib import AbstractAsyncContextManager

    from flowshare.clock import Clock
    from flowshare.log.base import Storage
    from flowshare.protocol.messages import SharePartitionOffsets
    from flowshare.protocol.messages.browse import (
        ShareBrowseRequest,
        ShareBrowseResponse,
        ShareInterveneRequest,
        ShareInterveneResponse,
    )
    from flowshare.server.runtime.state import Write
    from flowshare.server.runtime.topic_index import TopicIndex
    from flowshare.server.share.browsing import StoredStates
    from flowshare.server.share.duties import Duties
    from flowshare.server.share.loader import Loader
    from flowshare.server.share.partitions import Partitions
    from flowshare.server.share.sessions import Sessions
    from flowshare.share.config import GroupConfig
    from flowshare.share.group import ShareGroup, ToInitialize
    from flowshare.share.parking import ParkedKey
    from flowshare.share.types import PartitionState

    ParkedRows = Sequence[tuple[bytes, ParkedKey]]
    """Parked keys of one share-partition."""

AT_ONCE: Final = 64
"""Share-partitions whose first states are found concurrently."""


class Leaders(Protocol):
    """The leaders of all share-partitions."""

    def known(self, group: ShareGroup) -> frozenset[ShareKey]:
        """Return the share-partitions of a group that have state."""
        ...

    def release_member(self, group_id: str, member_id: str, *, died: bool = False, gone: bool = False) -> None:
        """Release all records of a member. died: the member did not say that it leaves. gone: its process, one of this
        machine, has ended."""

    async def configure(self, group_id: str) -> None:
        """Tell leaders of a group's changed settings; leaders that can be reached in a bounded time act by them
        afterwards."""

    def idle(self, group_id: str) -> bool:
        """Return True if nobody holds or awaits records of the group, as far as is known here."""
        ...

    def beginning(
        self, group_id: str, config: GroupConfig, items: Sequence[ToInitialize]
    ) -> AbstractAsyncContextManager[Sequence[Write]]:
        """Give `items` their first state, unless they have one; nobody loads them until the block ends.

        Raises: LogError, Refused
        """
        ...

    def replacing(
        self, states: Mapping[ShareKey, PartitionState | None]
    ) -> AbstractAsyncContextManager[Sequence[Write]]:
        """Replace (None: delete) the stored state of share-partitions; nobody loads them until the block ends.

        Raises: LogError, Refused
        """
        ...

    def topic_ids(self) -> frozenset[uuid.UUID]:
        """Return the topics of the share-partitions that are known here."""
        ...

    def deleting(self, topic_id: uuid.UUID) -> AbstractAsyncContextManager[Sequence[Write]]:
        """Remove the stored state of a deleted topic's share-partitions here. Raises: LogError."""
        ...

    async def offsets(self, keys: Sequence[ShareKey]) -> list[SharePartitionOffsets]:
        """Return start offset, lag and counts of share-partitions, in order; −1 for one without state."""
        ...

    async def parked(self, keys: Sequence[ShareKey], act: str, key: bytes) -> list[ParkedRows]:
        """Carry out the act of a `ParkedKeysRequest` on each share-partition; return the rows in order. Raises:
        Refused, LogError."""
        ...

    async def browse(self, key: ShareKey, request: ShareBrowseRequest) -> ShareBrowseResponse:
        """Return a page of a share-partition's records. Raises: Refused, LogError, CoreError."""
        ...

    async def intervene(self, key: ShareKey, request: ShareInterveneRequest) -> ShareInterveneResponse:
        """Act on a share-partition's records; durable on return. Raises: Refused, LogError, CoreError."""
        ...


class LocalLeaders:
    """The leaders where this server leads all share-partitions."""

    def __init__(
        self,
        *,
        store: Storage,
        topics: TopicIndex,
        partitions: Partitions,
        sessions: Sessions,
        loader: Loader,
        duties: Duties,
        clock: Clock,
    ) -> None:
        self._clock = clock
        self._states: StoredStates | None = None
        self._store = store
        self._sessions = sessions
        self._topics = topics
        self._partitions = partitions
        self._loader = loader
        self._duties = duties
        self.topic_ids = partitions.topic_ids

    def known(self, group: ShareGroup) -> frozenset[ShareKey]:
        """Return known share-partitions, also those read by members that never joined."""
        return self._partitions.known(group.group_id)

    def release_member(self, group_id: str, member_id: str, *, died: bool = False, gone: bool = False) -> None:
        """Release at once; the share session of a member that died ends, as in Kafka."""
        if died:
            self._sessions.member_died(group_id, member_id)
        self._partitions.release_member(group_id, member_id, died=died, gone=gone)

    async def configure(self, group_id: str) -> None:
        """Apply at once."""
        self._partitions.configure(group_id)

    def idle(self, group_id: str) -> bool:
        """Return exact idleness."""
        return all(owner.idle for owner in self._partitions.owners(group_id))

    @asynccontextmanager
    async def beginning(
        self, group_id: str, config: GroupConfig, items: Sequence[ToInitialize]
    ) -> AsyncGenerator[Sequence[Write]]:
        """Give first states; a share-partition loaded or being loaded by a member that never joined keeps its state,
        too."""
        keys = {ShareKey(group_id, item.topic_id, item.partition): item for item in items}
        # A group of this name that is being deleted keeps its state until the deletion is written.
        await self._partitions.settled(keys)
        fresh = {key: item for key, item in keys.items() if not self._partitions.served(key)}
        with self._partitions.held(fresh):
            yield await self._first_states(config, fresh)
            for key in fresh:
                self._partitions.know(key)

    async def _first_states(self, config: GroupConfig, fresh: Mapping[ShareKey, ToInitialize]) -> list[Write]:
        writes: list[Write] = []
        items = list(fresh.items())
        for at in range(0, len(items), AT_ONCE):
            part = items[at : at + AT_ONCE]
            firsts = await asyncio.gather(*(self._first_state(config, key, item) for key, item in part))
            writes += [write for first in firsts for write in first]
        return writes

    async def _first_state(self, config: GroupConfig, key: ShareKey, item: ToInitialize) -> list[Write]:
        topic = self._topics.by_id(key.topic_id)
        if topic is None:
            return []  # deleted since the heartbeat; the group hears so at the next one
        try:
            return await self._loader.initialise(
                key, topic, config, state_epoch=item.state_epoch, from_start=item.start_offset >= 0
            )
        except UnknownTopic:
            return []

    @asynccontextmanager
    async def replacing(self, states: Mapping[ShareKey, PartitionState | None]) -> AsyncGenerator[Sequence[Write]]:
        """Replace states after dropping their owners: an owner's last write comes before the new state."""
        await self._partitions.settled(states)
        with self._partitions.held(states):
            await self._partitions.drop(states)
            for key in states:  # else later decisions would be taken for a part of the new state
                with contextlib.suppress(StateCorrupt, StorageDamaged):
                    await follow_settled(self._store, key)
            known = tuple(key for key in states if self._partitions.knows(key))
            writes = dict(await delete_state(self._store, known))
            for key, state in states.items():
                if state is not None:
                    writes.pop(key.prefix + GENERATION, None)
                    writes.update(initial_writes(key, state))
            yield list(writes.items())
            for key, state in states.items():
                if state is not None:
                    self._partitions.know(key)
            await self._partitions.forget([key for key, state in states.items() if state is None])

    @asynccontextmanager
    async def deleting(self, topic_id: uuid.UUID) -> AsyncGenerator[Sequence[Write]]:
        """Remove the state in all groups."""
        keys = self._partitions.of_topic(topic_id)
        await self._partitions.forget(keys)
        yield await delete_state(self._store, keys)

    async def offsets(self, keys: Sequence[ShareKey]) -> list[SharePartitionOffsets]:
        """Load each for its row."""
        from flowshare.server.share.offsets import offsets_of  # agents alone never call this: a start is shorter

        return [await offsets_of(key, self._store, self._topics, self._partitions) for key in keys]

    async def parked(self, keys: Sequence[ShareKey], act: str, key: bytes) -> list[ParkedRows]:
        """Load each for its rows. A deleted topic has no parked keys; a topic unknown here may still exist."""
        unknown = [one for one in {at.topic_id for at in keys} if self._topics.by_id(one) is None]
        there = await asyncio.gather(*map(self._duties.exists, unknown))
        gone = {topic_id for topic_id, known in zip(unknown, there, strict=True) if not known}
        return [() if one.topic_id in gone else await self._parked(one, act, key) for one in keys]

    async def browse(self, key: ShareKey, request: ShareBrowseRequest) -> ShareBrowseResponse:
        """Load nothing."""
        from flowshare.server.share.browsing import StoredStates, browsed  # as above

        if self._states is None:
            self._states = StoredStates(self._store, self._clock)
        if self._topics.by_id(key.topic_id) is None:
            await self._duties.exists(key.topic_id)
        return await browsed(
            key,
            request,
            store=self._store,
            topics=self._topics,
            partitions=self._partitions,
            clock=self._clock,
            states=self._states,
        )

    async def intervene(self, key: ShareKey, request: ShareInterveneRequest) -> ShareInterveneResponse:
        """Load the share-partition."""
        from flowshare.server.share.browsing import intervened

        return await intervened(key, request, partitions=self._partitions)

    async def _parked(self, at: ShareKey, act: str, key: bytes) -> ParkedRows:
        if not self._partitions.knows(at):
            return ()
        owner = await self._partitions.open(at)
        if owner.parked is None:
            return ()
        if act == "list":
            return owner.parked.parking.items()
        parked = await (owner.replay_key(key) if act == "replay" else owner.unpark_key(key))
        return () if parked is None else ((key, parked),)
