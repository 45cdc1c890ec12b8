"""The share-group offsets APIs: describe (with lag, KIP-1226), alter, delete (KIP-932).

Lag is log end − start offset − delivery-complete count: everything not finished, records in flight included.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

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
    PartitionResult,
    SharePartitionOffsets,
    TopicResult,
)
from flowshare.server.failures import EXPECTED, failure
from flowshare.server.state import ShareKey, initial_writes
from flowshare.share.errors import NonEmptyGroup, ShareError, UnknownTopicOrPartition
from flowshare.share.types import PartitionState

if TYPE_CHECKING:
    from collections.abc import Mapping

    from flowshare.clock import Clock
    from flowshare.log.base import Log, Topic
    from flowshare.server.connection import Handlers, InProcess
    from flowshare.server.coordinator import Coordinator
    from flowshare.server.initializer import Initializer
    from flowshare.server.owner import Owner
    from flowshare.server.partitions import Partitions
    from flowshare.server.topic_index import TopicIndex
    from flowshare.share.group import ShareGroup

logger = logging.getLogger(__name__)

PEEK_BYTES: Final = 1
"""Asked of the log to learn the age of one record: it gives a whole batch."""


class ShareOffsetApis:
    """Answers the share-group offsets APIs."""

    def __init__(
        self,
        *,
        log: Log,
        topics: TopicIndex,
        partitions: Partitions,
        coordinator: Coordinator,
        initializer: Initializer,
        clock: Clock,
    ) -> None:
        self._log = log
        self._topics = topics
        self._partitions = partitions
        self._coordinator = coordinator
        self._initializer = initializer
        self._clock = clock

    def handlers(self) -> Handlers:
        """What this family answers."""
        return {
            DescribeShareGroupOffsetsRequest: self.describe,
            AlterShareGroupOffsetsRequest: self.alter,
            DeleteShareGroupOffsetsRequest: self.delete,
        }

    # --- describe -------------------------------------------------------------------------------------------------

    async def describe(
        self, request: DescribeShareGroupOffsetsRequest, _: InProcess
    ) -> DescribeShareGroupOffsetsResponse:
        """Start offset, lag and counts of share-partitions; −1 for one that was never initialised."""
        try:
            self._coordinator.find(request.group_id)
        except ShareError as error:
            code, message = failure(error)
            return DescribeShareGroupOffsetsResponse(error=code, message=message)
        asked = self._all(request.group_id) if request.topics is None else request.topics
        described = [
            await self._describe(request.group_id, name, partition)
            for name, partitions in sorted(asked.items())
            for partition in partitions
        ]
        return DescribeShareGroupOffsetsResponse(partitions=tuple(described))

    def _all(self, group_id: str) -> Mapping[str, tuple[int, ...]]:
        found: dict[str, list[int]] = {}
        for key in self._partitions.known(group_id):
            topic = self._topics.by_id(key.topic_id)
            if topic is not None:
                found.setdefault(topic.name, []).append(key.partition)
        return {name: tuple(sorted(partitions)) for name, partitions in found.items()}

    async def _describe(self, group_id: str, name: str, partition: int) -> SharePartitionOffsets:
        topic = self._topics.by_name(name)
        if topic is None:
            return SharePartitionOffsets(topic=name, topic_id=None, partition=partition)
        key = ShareKey(group_id, topic.topic_id, partition)
        if not self._partitions.knows(key):
            return SharePartitionOffsets(topic=name, topic_id=topic.topic_id, partition=partition)
        try:
            owner = await self._partitions.open(key)
            owner.follow_log_start()
            return await self._offsets(owner, topic)
        except EXPECTED as error:
            code, message = failure(error)
            return SharePartitionOffsets(
                topic=name, topic_id=topic.topic_id, partition=partition, error=code, message=message
            )

    async def _offsets(self, owner: Owner, topic: Topic) -> SharePartitionOffsets:
        state = owner.partition
        start = state.start_offset
        end = owner.log.bounds().high_watermark
        lag = max(0, end - start - state.delivery_complete_count)
        return SharePartitionOffsets(
            topic=topic.name,
            topic_id=topic.topic_id,
            partition=owner.key.partition,
            start_offset=start,
            leader_epoch=owner.leader_epoch,
            lag=lag,
            in_flight=state.acquired_count,
            delayed=state.delayed_count,
            redeliveries=owner.redeliveries,
            oldest_ms=await self._timestamp(owner, start) if lag > 0 else -1,
        )

    async def _timestamp(self, owner: Owner, offset: int) -> int:
        """Timestamp of the batch that holds `offset`: its first record's, or its newest one's if compaction put the
        time of deletion there; when stamped by the log, all records'."""
        try:
            read = await self._log.read(owner.log.topic, owner.log.partition, offset, max_bytes=PEEK_BYTES)
            headers = batch_headers(read.records)
        except (LogError, DecodeError) as error:
            logger.warning("age of the oldest record is not known: %s key=%s", error, owner.key)
            return -1
        if not headers:
            return -1
        header = headers[0]
        return header.first_timestamp if header.delete_horizon_ms is None else header.max_timestamp

    # --- alter ----------------------------------------------------------------------------------------------------

    async def alter(self, request: AlterShareGroupOffsetsRequest, _: InProcess) -> AlterShareGroupOffsetsResponse:
        """Let an empty group (made if there is none) start anew at given offsets."""
        try:
            results = await self._alter(request.group_id, request.offsets)
        except EXPECTED as error:
            code, message = failure(error)
            return AlterShareGroupOffsetsResponse(error=code, message=message)
        return AlterShareGroupOffsetsResponse(partitions=tuple(results))

    async def _alter(self, group_id: str, offsets: Mapping[tuple[str, int], int]) -> list[PartitionResult]:
        made = group_id not in self._coordinator.groups
        group = self._coordinator.ensure(group_id)
        group.require_empty()
        results: list[PartitionResult] = []
        states: dict[ShareKey, PartitionState] = {}
        for (name, partition), offset in offsets.items():
            topic = self._topics.get(name)
            try:
                if topic is None:
                    raise UnknownTopicOrPartition(f"there is no topic {name!r}")
                epoch = group.reset(topic, [partition], now_ms=self._clock.now_ms())
            except UnknownTopicOrPartition as error:
                code, message = failure(error)
                results.append(PartitionResult(topic=name, partition=partition, error=code, message=message))
                continue
            start = self._within_log(name, partition, offset)
            key = ShareKey(group.group_id, topic.topic_id, partition)
            states[key] = PartitionState(state_epoch=epoch, start_offset=start)
            results.append(PartitionResult(topic=name, partition=partition))
        if states:
            await self._replace(group, states)
        elif made:
            self._coordinator.groups.pop(group_id)  # nothing awaited since: nobody has joined it
        return results

    def _within_log(self, name: str, partition: int, offset: int) -> int:
        bounds = self._log.offsets(name, partition)
        return min(max(offset, bounds.log_start), bounds.high_watermark)

    async def _replace(self, group: ShareGroup, states: Mapping[ShareKey, PartitionState]) -> None:
        with self._partitions.held(states):
            # Whoever still owned them has written its last when they are dropped; the new state comes after it.
            await self._partitions.drop(states)
            writes = await self._initializer.deletions(states)
            group.require_empty()
            replaced = dict(writes)
            for key, state in states.items():
                replaced.update(initial_writes(key, state))
            await self._coordinator.write(group, list(replaced.items()))
            for key in states:
                self._partitions.know(key)

    # --- delete ---------------------------------------------------------------------------------------------------

    async def delete(self, request: DeleteShareGroupOffsetsRequest, _: InProcess) -> DeleteShareGroupOffsetsResponse:
        """Forget what an empty group read of topics; it then starts where share.auto.offset.reset says."""
        try:
            group = self._coordinator.find(request.group_id)
            group.require_empty()
        except ShareError as error:
            code, message = failure(error)
            return DeleteShareGroupOffsetsResponse(error=code, message=message)
        results: list[TopicResult] = []
        for name in dict.fromkeys(request.topics):
            try:
                results.append(await self._delete(group, name))
            except EXPECTED as error:
                code, message = failure(error)
                results.append(TopicResult(topic=name, error=code, message=message))
        return DeleteShareGroupOffsetsResponse(topics=tuple(results))

    async def _delete(self, group: ShareGroup, name: str) -> TopicResult:
        topic = self._topics.by_name(name)
        if topic is None:
            raise UnknownTopicOrPartition(f"there is no topic {name!r}")
        topic_id = topic.topic_id
        keys = [key for key in self._partitions.known(group.group_id) if key.topic_id == topic_id]
        if not keys:
            raise UnknownTopicOrPartition(f"group {group.group_id} has no offset information for topic {name!r}")
        with self._partitions.held(keys):
            await self._partitions.drop(keys)
            writes = await self._initializer.deletions(keys)
            if group.members:
                raise NonEmptyGroup(f"group {group.group_id} got members meanwhile; stop them first, then try again")
            group.topic_deleted(topic_id)
            await self._coordinator.write(group, writes)
            await self._partitions.forget(keys)
        return TopicResult(topic=name, error=ErrorCode.NONE, topic_id=topic_id)
