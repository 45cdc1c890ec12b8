"""The state APIs of a share coordinator: what is stored of share-partitions, for those who keep or mend it elsewhere.

They work on the same entries that the server's own share-partitions are loaded from, by the rules of `share.shard`.
What changes an entry takes the share-partition from whoever serves it here, as a change of its leader would: it is
loaded anew, with what is then stored, at the next fetch (share-groups.md §2.17).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from flowshare.protocol.messages import (
    DeleteShareGroupStateRequest,
    InitializeShareGroupStateRequest,
    ReadShareGroupStateRequest,
    ReadShareGroupStateSummaryRequest,
    ShareGroupStateResponse,
    WriteShareGroupStateRequest,
)
from flowshare.server.failures import EXPECTED, failure
from flowshare.server.state import GROUP_ID_BYTES_MAX, ShareKey, delete_state, initial_writes, read_state
from flowshare.share.errors import InvalidRequest
from flowshare.share.shard import ShardKey, ShardRecord, StateShard

if TYPE_CHECKING:
    from collections.abc import Callable

    from flowshare.log.base import StateStore
    from flowshare.server.connection import Handlers, InProcess
    from flowshare.server.partitions import Partitions
    from flowshare.server.topic_index import TopicIndex
    from flowshare.share.types import PartitionState

    StateRequest = (
        InitializeShareGroupStateRequest
        | ReadShareGroupStateRequest
        | ReadShareGroupStateSummaryRequest
        | WriteShareGroupStateRequest
        | DeleteShareGroupStateRequest
    )
    Step = Callable[[StateShard, ShardKey], ShardRecord | None]


class ShareStateApis:
    """Answers the state APIs."""

    def __init__(self, *, store: StateStore, topics: TopicIndex, partitions: Partitions) -> None:
        self._store = store
        self._topics = topics
        self._partitions = partitions

    def handlers(self) -> Handlers:
        """What this family answers."""
        return {
            InitializeShareGroupStateRequest: self.initialize,
            ReadShareGroupStateRequest: self.read,
            ReadShareGroupStateSummaryRequest: self.summary,
            WriteShareGroupStateRequest: self.write,
            DeleteShareGroupStateRequest: self.delete,
        }

    async def initialize(self, request: InitializeShareGroupStateRequest, _: InProcess) -> ShareGroupStateResponse:
        """Start a share-partition anew at an offset."""
        return await self._change(
            request,
            lambda shard, key: shard.initialize(
                key, state_epoch=request.state_epoch, start_offset=request.start_offset
            ),
        )

    async def read(self, request: ReadShareGroupStateRequest, _: InProcess) -> ShareGroupStateResponse:
        """The state for a new leader; it is fenced off from older ones."""
        return await self._change(
            request, lambda shard, key: shard.read(key, leader_epoch=request.leader_epoch)[1], tell=True
        )

    async def summary(self, request: ReadShareGroupStateSummaryRequest, _: InProcess) -> ShareGroupStateResponse:
        """The state as it is, whoever leads; nothing for a share-partition that has none."""
        try:
            key = _key(request)
            state = await self._stored(key)
            owner = self._partitions.get(key)
            if state is not None and owner is not None:
                live = owner.partition  # a start offset that moved is stored with the next write only
                complete = live.delivery_complete_count
                state = replace(state, start_offset=live.start_offset, delivery_complete_count=complete)
        except EXPECTED as error:
            code, message = failure(error)
            return ShareGroupStateResponse(error=code, message=message)
        return ShareGroupStateResponse(state=state)

    async def write(self, request: WriteShareGroupStateRequest, _: InProcess) -> ShareGroupStateResponse:
        """Take a leader's changes."""
        return await self._change(
            request,
            lambda shard, key: shard.write(
                key,
                state_epoch=request.state_epoch,
                leader_epoch=request.leader_epoch,
                start_offset=request.start_offset,
                delivery_complete_count=request.delivery_complete_count,
                runs=request.runs,
            ),
        )

    async def delete(self, request: DeleteShareGroupStateRequest, _: InProcess) -> ShareGroupStateResponse:
        """Forget a share-partition; one that has no state is forgotten already."""
        return await self._change(request, lambda shard, key: shard.delete(key))

    async def _change(self, request: StateRequest, step: Step, *, tell: bool = False) -> ShareGroupStateResponse:
        try:
            state = await self._apply(_key(request), step)
        except EXPECTED as error:
            code, message = failure(error)
            return ShareGroupStateResponse(error=code, message=message)
        return ShareGroupStateResponse(state=state if tell else None)

    async def _apply(self, key: ShareKey, step: Step) -> PartitionState | None:
        """Decide on what is stored and store what comes of it; nobody loads the share-partition meanwhile."""
        await self._partitions.settled((key,))
        record, state = self._decide(key, await self._stored(key), step)
        if record is None:
            return state  # what changes nothing, or is refused, disturbs nobody
        await self._partitions.settled((key,))  # another change may have begun while this one read
        with self._partitions.held((key,)):
            # Whoever served it writes its last when it is dropped; what is decided comes after that.
            await self._partitions.drop((key,))
            _, state = self._decide(key, await self._stored(key), step)
            writes = dict(await delete_state(self._store, (key,)))
            if state is not None:
                writes.update(initial_writes(key, state))
            await self._store.write(list(writes.items()))
            if state is None:
                await self._partitions.forget((key,))
            else:
                self._partitions.know(key)
            return state

    def _decide(
        self, key: ShareKey, state: PartitionState | None, step: Step
    ) -> tuple[ShardRecord | None, PartitionState | None]:
        """The record that `step` writes, and the state with it."""
        topics = {topic.topic_id: topic.partitions for topic in (self._topics.by_id(key.topic_id),) if topic}
        shard = StateShard(topics=topics)
        at = ShardKey(*key)
        if state is not None:
            shard.apply(ShardRecord(at, state, leader_epoch=state.leader_epoch))
        record = step(shard, at)
        if record is not None:
            shard.apply(record)
        return record, shard.state(at)

    async def _stored(self, key: ShareKey) -> PartitionState | None:
        stored = await read_state(self._store, key)
        return None if stored is None else stored.state


def _key(request: StateRequest) -> ShareKey:
    """Raises: InvalidRequest."""
    if not 0 < len(request.group_id.encode()) <= GROUP_ID_BYTES_MAX:
        raise InvalidRequest(f"a group id has 1 to {GROUP_ID_BYTES_MAX} bytes")
    if not 0 <= request.partition < 2**31:
        raise InvalidRequest(f"partition {request.partition} is negative")
    return ShareKey(request.group_id, request.topic_id, request.partition)
