"""The state APIs of a share coordinator: the stored state of share-partitions, for systems that keep or mend it
elsewhere.

They work on the same entries that the server's own share-partitions are loaded from, by the rules of `share.shard`. A
change of an entry takes the share-partition from its owner here, as a change of its leader would: it is loaded anew,
from the changed entry, at the next fetch (SG-14.5).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias

from flowshare.core_errors import InvalidRequest
from flowshare.protocol.messages import (
    DeleteShareGroupStateRequest,
    InitializeShareGroupStateRequest,
    ReadShareGroupStateRequest,
    ReadShareGroupStateSummaryRequest,
    ShareGroupStateResponse,
    WriteShareGroupStateRequest,
)
from flowshare.server.runtime.connection import Family, InProcess, handles
from flowshare.server.runtime.failures import refusing
from flowshare.server.runtime.settled import follow_settled
from flowshare.server.runtime.state import (
    GROUP_ID_BYTES_MAX,
    ShareKey,
    delete_state,
    initial_writes,
    outlives,
    read_state,
)
from flowshare.share.shard import StateEntry

if TYPE_CHECKING:
    from collections.abc import Callable

    from flowshare.log.base import StateStore
    from flowshare.server.share.service import ShareService
    from flowshare.share.types import PartitionState

    StateRequest: TypeAlias = (
        InitializeShareGroupStateRequest
        | ReadShareGroupStateRequest
        | ReadShareGroupStateSummaryRequest
        | WriteShareGroupStateRequest
        | DeleteShareGroupStateRequest
    )
    Step = Callable[[StateEntry], PartitionState | None]


class ShareStateApis(Family):
    """Answers the state APIs."""

    def __init__(self, service: ShareService, store: StateStore) -> None:
        self._store = store
        self._topics = service.topics
        self._partitions = service.partitions

    @handles(InitializeShareGroupStateRequest)
    async def initialize(self, request: InitializeShareGroupStateRequest, _: InProcess) -> ShareGroupStateResponse:
        """Start a share-partition anew at an offset."""
        return await self._change(
            request,
            lambda entry: entry.initialize(state_epoch=request.state_epoch, start_offset=request.start_offset),
        )

    @handles(ReadShareGroupStateRequest)
    async def read(self, request: ReadShareGroupStateRequest, _: InProcess) -> ShareGroupStateResponse:
        """Return the state for a new leader, and fence off older leaders."""
        return await self._change(request, lambda entry: entry.read(leader_epoch=request.leader_epoch), tell=True)

    @handles(ReadShareGroupStateSummaryRequest, ShareGroupStateResponse)
    async def summary(self, request: ReadShareGroupStateSummaryRequest, _: InProcess) -> ShareGroupStateResponse:
        """Return the state as it is, for any leader; none for a share-partition without state."""
        key = _key(request)
        state = await self._stored(key)
        owner = self._partitions.get(key)
        if state is not None and owner is not None:
            live = owner.partition  # a start offset that moved is stored with the next write only
            complete = live.delivery_complete_count
            state = replace(state, start_offset=live.start_offset, delivery_complete_count=complete)
        return ShareGroupStateResponse(state=state)

    @handles(WriteShareGroupStateRequest)
    async def write(self, request: WriteShareGroupStateRequest, _: InProcess) -> ShareGroupStateResponse:
        """Store a leader's changes."""
        return await self._change(
            request,
            lambda entry: entry.write(
                state_epoch=request.state_epoch,
                leader_epoch=request.leader_epoch,
                start_offset=request.start_offset,
                delivery_complete_count=request.delivery_complete_count,
                runs=request.runs,
            ),
        )

    @handles(DeleteShareGroupStateRequest)
    async def delete(self, request: DeleteShareGroupStateRequest, _: InProcess) -> ShareGroupStateResponse:
        """Delete a share-partition's state; one without state is deleted already."""
        return await self._change(request, lambda _: None)

    @refusing(ShareGroupStateResponse)
    async def _change(self, request: StateRequest, step: Step, *, tell: bool = False) -> ShareGroupStateResponse:
        state = await self._apply(_key(request), step)
        return ShareGroupStateResponse(state=state if tell else None)

    async def _apply(self, key: ShareKey, step: Step) -> PartitionState | None:
        """Decide on the stored state and store the result; nobody loads the share-partition meanwhile."""
        await self._partitions.settled((key,))
        entry = await self._entry(key)
        if step(entry) is entry.state:
            return entry.state  # a step without a change, or refused, disturbs nobody
        await self._partitions.settled((key,))  # another change may have begun while this one read
        with self._partitions.held((key,)):
            # The owner writes its last when it is dropped; the decision comes after that.
            await self._partitions.drop((key,))
            await follow_settled(self._store, key)
            entry = await self._entry(key)
            state = step(entry)
            writes = dict(await delete_state(self._store, (key,)))
            if state is not None:
                anew = entry.state is None or entry.state.state_epoch != state.state_epoch
                writes = {name: gone for name, gone in writes.items() if not outlives(key, name, anew=anew)}
                writes.update(initial_writes(key, state))
            await self._store.write(list(writes.items()))
            if state is None:
                await self._partitions.forget((key,))
            else:
                self._partitions.know(key)
            return state

    async def _entry(self, key: ShareKey) -> StateEntry:
        state = await self._stored(key)
        topic = self._topics.by_id(key.topic_id)
        return StateEntry(*key, state, exists=topic is not None and key.partition < topic.partitions)

    async def _stored(self, key: ShareKey) -> PartitionState | None:
        stored = await read_state(self._store, key)
        return None if stored is None else stored.state


def _key(request: StateRequest) -> ShareKey:
    """Check ids. Raises: InvalidRequest."""
    if not 0 < len(request.group_id.encode()) <= GROUP_ID_BYTES_MAX:
        raise InvalidRequest(f"a group id has 1 to {GROUP_ID_BYTES_MAX} bytes")
    if not 0 <= request.partition < 2**31:
        raise InvalidRequest(f"partition {request.partition} is negative")
    return ShareKey(request.group_id, request.topic_id, request.partition)
