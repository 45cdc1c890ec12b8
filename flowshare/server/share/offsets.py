"""The share-group offsets APIs: describe (with lag, KIP-1226), alter, delete (KIP-932).

`offsets_of` returns a share-partition's figures. Lag is log end − start offset − delivery-complete count: all
unfinished records, those in flight included (SG-13.1).
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Final

from flowshare.core_errors import NonEmptyGroup, UnknownTopicOrPartition
from flowshare.log.base import LogError
from flowshare.protocol.batches import DecodeError, batch_headers
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.messages import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsResponse,
    DeleteShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsResponse,
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsResponse,
    ParkedKeysRequest,
    ParkedKeysResponse,
    ParkedKeyTold,
    PartitionResult,
    SharePartitionOffsets,
    TopicResult,
)
from flowshare.server.runtime import answers
from flowshare.server.runtime.connection import Family, InProcess, handles
from flowshare.server.runtime.failures import EXPECTED, Refused, refusal
from flowshare.server.runtime.state import ShareKey
from flowshare.share.types import PartitionState, RecordState, StateRun

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
    from uuid import UUID

    from flowshare.log.base import Log, LogOffsets
    from flowshare.server.runtime.topic_index import TopicIndex
    from flowshare.server.share.owner import PartitionOwner
    from flowshare.server.share.partitions import Partitions
    from flowshare.server.share.service import ShareService
    from flowshare.share.group import ShareGroup, TopicInfo

    Look = Callable[[Collection[str]], Awaitable[object]]


class ShareOffsetApis(Family):
    """Answers the share-group offsets APIs."""

    def __init__(self, service: ShareService, log: Log, look: Look | None = None) -> None:
        """look: finds topics that are not known here yet, where such topics exist."""
        self._look = look
        self._log = log
        self._topics = service.topics
        self._leaders = service.leaders
        self._coordinator = service.coordinator
        self._clock = service.clock
        self._duties = service.duties
        self._config_of = service.duties.config_of

    # --- describe -------------------------------------------------------------------------------------------------

    @handles(DescribeShareGroupOffsetsRequest, DescribeShareGroupOffsetsResponse)
    async def describe(
        self, request: DescribeShareGroupOffsetsRequest, _: InProcess
    ) -> DescribeShareGroupOffsetsResponse:
        """Return start offset, lag and counts of share-partitions; −1 for one that was never initialised."""
        group = self._coordinator.find(request.group_id)
        asked = self._all(group) if request.topics is None else request.topics
        await self._find(asked)
        return DescribeShareGroupOffsetsResponse(partitions=tuple(await self._describe(group, asked)))

    async def _find(self, names: Iterable[str]) -> None:
        """Look for topics that are not known yet. Raises: LogError."""
        unknown = [name for name in names if self._topics.by_name(name) is None]
        if unknown and self._look is not None:
            await self._look(unknown)

    def _all(self, group: ShareGroup) -> Mapping[str, tuple[int, ...]]:
        found: dict[str, list[int]] = {}
        for key in self._leaders.known(group):
            topic = self._topics.by_id(key.topic_id)
            if topic is not None:
                found.setdefault(topic.name, []).append(key.partition)
        return {name: tuple(sorted(partitions)) for name, partitions in found.items()}

    async def _describe(self, group: ShareGroup, asked: Mapping[str, tuple[int, ...]]) -> list[SharePartitionOffsets]:
        known = self._leaders.known(group)
        described: list[SharePartitionOffsets] = []
        keys: dict[int, ShareKey] = {}
        for name, partitions in sorted(asked.items()):
            topic = self._topics.by_name(name)
            topic_id = None if topic is None else topic.topic_id
            for partition in partitions:
                if topic_id is not None and (key := ShareKey(group.group_id, topic_id, partition)) in known:
                    keys[len(described)] = key
                described.append(SharePartitionOffsets(topic=name, topic_id=topic_id, partition=partition))
        for at, offsets in zip(keys, await self._leaders.offsets(list(keys.values())), strict=True):
            described[at] = offsets
        return described

    # --- alter ----------------------------------------------------------------------------------------------------

    @handles(AlterShareGroupOffsetsRequest, AlterShareGroupOffsetsResponse)
    async def alter(
        self, request: AlterShareGroupOffsetsRequest, connection: InProcess
    ) -> AlterShareGroupOffsetsResponse:
        """Let an empty group (made if it does not exist) start anew at given offsets."""
        await self._find({name for name, _ in request.offsets})
        group_id = request.group_id
        made = group_id not in self._coordinator.groups
        group = self._coordinator.ensure(group_id, connection.counts_as())
        group.require_empty()
        results: list[PartitionResult] = []
        states: dict[ShareKey, PartitionState] = {}
        chosen: list[tuple[TopicInfo, int]] = []
        turns = answers.turns(self._clock)
        for (name, partition), offset in request.offsets.items():
            await turns.take()
            topic = self._topics.get(name)
            try:
                if topic is None:
                    raise UnknownTopicOrPartition(f"there is no topic {name!r}")
                epoch = group.prepare_reset(topic, partition)
            except UnknownTopicOrPartition as error:
                results.append(refusal(PartitionResult, error, topic=name, partition=partition))
                continue
            bounds = await self._log.bounds(name, partition)
            key = ShareKey(group.group_id, topic.topic_id, partition)
            states[key] = _beginning(epoch, offset, request.finished.get((name, partition), ()), bounds)
            chosen.append((topic, partition))
            results.append(PartitionResult(topic=name, partition=partition))
        if states:
            async with self._leaders.replacing(states) as writes:
                group.require_empty()
                # Not before: whatever else writes the group meanwhile must not store them as begun without a state.
                fresh = group.reset(chosen, now_ms=self._clock.steady_ms())
                try:
                    await self._coordinator.write(group, writes)
                except BaseException:
                    group.initialize_failed(fresh)
                    raise
            gone = await self._forget_gone(group, states)
            names = {topic.name for topic, _ in chosen if topic.topic_id in gone}
            results = [_deleted(one) if one.topic in names else one for one in results]
        elif made and not group.members and self._coordinator.groups.get(group_id) is group:
            self._coordinator.groups.pop(group_id)
        return AlterShareGroupOffsetsResponse(partitions=tuple(results))

    async def _forget_gone(self, group: ShareGroup, keys: Collection[ShareKey]) -> set[UUID]:
        """Forget those of a group's share-partitions whose topic was deleted while their states were written, as the
        deletion may not have met them; return these topics."""
        unknown = {key.topic_id for key in keys if self._topics.by_id(key.topic_id) is None}
        gone = {topic_id for topic_id in unknown if not await self._duties.exists(topic_id)}
        if gone:
            async with self._leaders.replacing({key: None for key in keys if key.topic_id in gone}) as writes:
                for topic_id in gone:
                    group.topic_deleted(topic_id)
                await self._coordinator.write(group, writes)
        return gone

    # --- parked keys ----------------------------------------------------------------------------------------------

    @handles(ParkedKeysRequest, ParkedKeysResponse)
    async def parked(self, request: ParkedKeysRequest, _: InProcess) -> ParkedKeysResponse:
        """List a group's parked keys, or begin a replay of one, or let it go on."""
        group = self._coordinator.find(request.group_id)
        known = self._leaders.known(group)
        if request.act == "list":
            asked = sorted(known)
        elif request.act in ("replay", "unpark"):
            named = self._topics.get(request.topic)
            asked = [key for key in known if named is not None and key[1:] == (named.topic_id, request.partition)]
        else:
            raise Refused(ErrorCode.INVALID_REQUEST, f"parked keys take list, replay or unpark, not {request.act!r}")
        told: list[ParkedKeyTold] = []
        for at, rows in zip(asked, await self._leaders.parked(asked, request.act, request.key), strict=True):
            if rows:
                topic = await self._topic_of(at)
                told += [ParkedKeyTold(topic, at.topic_id, at.partition, name, parked) for name, parked in rows]
        return ParkedKeysResponse(order=self._config_of(request.group_id).key_order, keys=tuple(told))

    async def _topic_of(self, key: ShareKey) -> str:
        """Return the topic's name, asked of the leader if need be. Raises: UnknownTopicId, LogError."""
        if self._topics.by_id(key.topic_id) is None:
            await self._duties.exists(key.topic_id)
        return self._topics.find(key.topic_id, key.partition).name

    # --- delete ---------------------------------------------------------------------------------------------------

    @handles(DeleteShareGroupOffsetsRequest, DeleteShareGroupOffsetsResponse)
    async def delete(self, request: DeleteShareGroupOffsetsRequest, _: InProcess) -> DeleteShareGroupOffsetsResponse:
        """Delete an empty group's state on topics; the group then starts by share.auto.offset.reset."""
        group = self._coordinator.find(request.group_id)
        group.require_empty()
        results: list[TopicResult] = []
        turns = answers.turns(self._clock)
        for name in dict.fromkeys(request.topics):
            await turns.take()
            try:
                await self._find((name,))
                results.append(await self._delete(group, name))
            except EXPECTED as error:
                results.append(refusal(TopicResult, error, topic=name))
        return DeleteShareGroupOffsetsResponse(topics=tuple(results))

    async def _delete(self, group: ShareGroup, name: str) -> TopicResult:
        topic = self._topics.by_name(name)
        if topic is None:
            raise UnknownTopicOrPartition(f"there is no topic {name!r}")
        topic_id = topic.topic_id
        keys = [key for key in self._leaders.known(group) if key.topic_id == topic_id]
        if not keys:
            raise UnknownTopicOrPartition(f"group {group.group_id} has no offset information for topic {name!r}")
        async with self._leaders.replacing(dict.fromkeys(keys)) as writes:
            if group.members:
                raise NonEmptyGroup(f"group {group.group_id} got members meanwhile; stop them first, then try again")
            group.topic_deleted(topic_id)
            await self._coordinator.write(group, writes)
        return TopicResult(topic=name, error=ErrorCode.NONE, topic_id=topic_id)


def _deleted(result: PartitionResult) -> PartitionResult:
    """Return the refusal of a share-partition whose topic was deleted meanwhile."""
    if result.error is not ErrorCode.NONE:
        return result
    error = UnknownTopicOrPartition(f"topic {result.topic!r} was deleted meanwhile")
    return refusal(PartitionResult, error, topic=result.topic, partition=result.partition)


def _beginning(epoch: int, offset: int, finished: Sequence[tuple[int, int]], bounds: LogOffsets) -> PartitionState:
    """Return the state of a share-partition that begins at `offset`, or the log's nearer end, with `finished` records.

    finished: ascending and disjoint. Records outside of the log are left out; the start passes finished records that it
    meets.
    """
    start = min(max(offset, bounds.log_start), bounds.high_watermark)
    runs: list[StateRun] = []
    for first, last in finished:
        low, high = max(first, start), min(last, bounds.high_watermark - 1)
        if low > high:
            continue
        if low == start:
            start = high + 1
        else:
            runs.append(StateRun(low, high, RecordState.ACKNOWLEDGED, 1))
    complete = sum(run.last - run.first + 1 for run in runs)
    return PartitionState(state_epoch=epoch, start_offset=start, delivery_complete_count=complete, runs=tuple(runs))


logger = logging.getLogger(__name__)

PEEK_BYTES: Final = 1
"""Bytes to read for the age of one record: the log gives a whole batch."""


async def offsets_of(key: ShareKey, log: Log, topics: TopicIndex, partitions: Partitions) -> SharePartitionOffsets:
    """Return the figures of a share-partition that this server leads; −1 if it was never initialised."""
    topic = topics.by_id(key.topic_id)
    told = partial(
        SharePartitionOffsets, topic="" if topic is None else topic.name, topic_id=key.topic_id, partition=key.partition
    )
    if topic is None or not partitions.knows(key):
        return told()
    try:
        owner = await partitions.open(key)
        owner.follow_log_start()
        state, start = owner.partition, owner.partition.start_offset
        lag = max(0, owner.log.bounds().high_watermark - start - state.delivery_complete_count)
        return told(
            start_offset=start,
            leader_epoch=owner.leader_epoch,
            lag=lag,
            in_flight=state.acquired_count,
            delayed=state.delayed_count,
            redeliveries=owner.redeliveries,
            blocked=state.blocked_count,
            stuck=owner.stuck(),
            archiving=state.archiving_count,
            parked=0 if owner.parked is None else len(owner.parked),
            oldest_ms=await _timestamp(log, owner, start) if lag > 0 else -1,
        )
    except EXPECTED as error:
        return refusal(told, error)


async def _timestamp(log: Log, owner: PartitionOwner, offset: int) -> int:
    """Return the timestamp, in ms, of the batch that holds `offset`: its first record's, or its newest one's if
    compaction put the time of deletion there; when stamped by the log, all records'."""
    try:
        read = await log.read(owner.log.topic, owner.log.partition, offset, max_bytes=PEEK_BYTES)
        headers = batch_headers(read.records)
    except (LogError, DecodeError) as error:
        logger.warning("age of the oldest record is not known: %s key=%s", error, owner.key)
        return -1
    if not headers:
        return -1
    header = headers[0]
    return header.first_timestamp if header.delete_horizon_ms is None else header.max_timestamp
