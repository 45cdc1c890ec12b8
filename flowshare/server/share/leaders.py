"""What a coordinator asks of those who lead the share-partitions of its groups: in a server by itself, of itself.

The writes that a block gives are made together with the group's own, in one piece; who leads elsewhere has made its
own durable before the block begins, and gives none.
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
"""Share-partitions whose first states are found side by side."""


class Leaders(Protocol):
    """The leaders of all share-partitions."""

    def known(self, group: ShareGroup) -> frozenset[ShareKey]:
        """Share-partitions of a group that have state."""
        ...

    def release_member(self, group_id: str, member_id: str, *, died: bool = False) -> None:
        """Take back whatever a member holds. died: it said nothing."""

    async def configure(self, group_id: str) -> None:
        """A group's settings have changed; leaders that can be reached in a bounded time act by them afterwards."""

    def idle(self, group_id: str) -> bool:
        """Whether nobody holds or awaits records of the group, as far as is known here."""
        ...

    def beginning(
        self, group_id: str, config: GroupConfig, items: Sequence[ToInitialize]
    ) -> AbstractAsyncContextManager[Sequence[Write]]:
        """Give `items` their first state, those that have one keep it; nobody loads them until the block ends.

        Raises: LogError, Refused
        """
        ...

    def replacing(
        self, states: Mapping[ShareKey, PartitionState | None]
    ) -> AbstractAsyncContextManager[Sequence[Write]]:
        """Replace (None: delete) what is stored of share-partitions; nobody loads them until the block ends.

        Raises: LogError, Refused
        """
        ...

    def topic_ids(self) -> frozenset[uuid.UUID]:
        """Topics of the share-partitions that are known here."""
        ...

    def deleting(self, topic_id: uuid.UUID) -> AbstractAsyncContextManager[Sequence[Write]]:
        """Forget what is stored here of the share-partitions of a topic that is gone. Raises: LogError."""
        ...

    async def offsets(self, keys: Sequence[ShareKey]) -> list[SharePartitionOffsets]:
        """Start offset, lag and counts of share-partitions, in order; −1 for one without state."""
        ...

    async def parked(self, keys: Sequence[ShareKey], act: str, key: bytes) -> list[ParkedRows]:
        """What `ParkedKeysRequest` asks of share-partitions, in order. Raises: Refused, LogError."""
        ...

    async def browse(self, key: ShareKey, request: ShareBrowseRequest) -> ShareBrowseResponse:
        """A page of a share-partition. Raises: Refused, LogError, CoreError."""
        ...

    async def intervene(self, key: ShareKey, request: ShareInterveneRequest) -> ShareInterveneResponse:
        """Act on its records; durable when it returns. Raises: Refused, LogError, CoreError."""
        ...


class LocalLeaders:
    """This server leads all of them."""

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
        """Also those that were read by members that never joined."""
        return self._partitions.known(group.group_id)

    def release_member(self, group_id: str, member_id: str, *, died: bool = False) -> None:
        """At once; the share session of one that died ends, as by Kafka."""
        if died:
            self._sessions.member_died(group_id, member_id)
        self._partitions.release_member(group_id, member_id, died=died)

    async def configure(self, group_id: str) -> None:
        """At once."""
        self._partitions.configure(group_id)

    def idle(self, group_id: str) -> bool:
        """Exactly so."""
        return all(owner.idle for owner in self._partitions.owners(group_id))

    @asynccontextmanager
    async def beginning(
        self, group_id: str, config: GroupConfig, items: Sequence[ToInitialize]
    ) -> AsyncGenerator[Sequence[Write]]:
        """One that is loaded or being loaded by a member that never joined keeps what it has, too."""
        keys = {ShareKey(group_id, item.topic_id, item.partition): item for item in items}
        # A group of this name that is being deleted still has its state until that is written.
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
            return []  # deleted since the heartbeat; the group hears of it at the next one
        try:
            return await self._loader.initialise(
                key, topic, config, state_epoch=item.state_epoch, from_start=item.start_offset >= 0
            )
        except UnknownTopic:
            return []

    @asynccontextmanager
    async def replacing(self, states: Mapping[ShareKey, PartitionState | None]) -> AsyncGenerator[Sequence[Write]]:
        """Whoever still owned them has written its last when they are dropped; the new state comes after it."""
        await self._partitions.settled(states)
        with self._partitions.held(states):
            await self._partitions.drop(states)
            for key in states:  # else what is decided later would be taken for a part of the new state
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
        """Those of all groups."""
        keys = self._partitions.of_topic(topic_id)
        await self._partitions.forget(keys)
        yield await delete_state(self._store, keys)

    async def offsets(self, keys: Sequence[ShareKey]) -> list[SharePartitionOffsets]:
        """Each is loaded for it."""
        from flowshare.server.share.offsets import offsets_of  # share agents alone never ask: a start is shorter

        return [await offsets_of(key, self._store, self._topics, self._partitions) for key in keys]

    async def parked(self, keys: Sequence[ShareKey], act: str, key: bytes) -> list[ParkedRows]:
        """Each is loaded for it. With a topic its parked keys are gone, but not with what is not known here yet."""
        unknown = [one for one in {at.topic_id for at in keys} if self._topics.by_id(one) is None]
        there = await asyncio.gather(*map(self._duties.exists, unknown))
        gone = {topic_id for topic_id, known in zip(unknown, there, strict=True) if not known}
        return [() if one.topic_id in gone else await self._parked(one, act, key) for one in keys]

    async def browse(self, key: ShareKey, request: ShareBrowseRequest) -> ShareBrowseResponse:
        """Nothing is loaded for it."""
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
        """It is loaded for it."""
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
