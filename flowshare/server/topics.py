"""The topic APIs: metadata, create, delete, add partitions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flowshare.log.base import LogError
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.messages import (
    CreatePartitionsRequest,
    CreateTopicRequest,
    DeleteTopicRequest,
    MetadataRequest,
    MetadataResponse,
    TopicMetadata,
    TopicResult,
)
from flowshare.server.failures import EXPECTED, failure

if TYPE_CHECKING:
    from flowshare.log.base import Log
    from flowshare.server.connection import Handlers, InProcess
    from flowshare.server.coordinator import Coordinator
    from flowshare.server.topic_index import TopicIndex


class TopicApis:
    """Answers the topic APIs."""

    def __init__(self, *, log: Log, topics: TopicIndex, coordinator: Coordinator) -> None:
        self._log = log
        self._topics = topics
        self._coordinator = coordinator

    def handlers(self) -> Handlers:
        """What this family answers."""
        return {
            MetadataRequest: self.metadata,
            CreateTopicRequest: self.create,
            DeleteTopicRequest: self.delete,
            CreatePartitionsRequest: self.add_partitions,
        }

    async def metadata(self, request: MetadataRequest, _: InProcess) -> MetadataResponse:
        """Ids and partition counts of all topics or of those asked for."""
        names = sorted(self._log.topics()) if request.topics is None else request.topics
        return MetadataResponse(topics=tuple(self._metadata(name) for name in names))

    async def create(self, request: CreateTopicRequest, _: InProcess) -> TopicResult:
        """Make a topic."""
        if request.partitions < 1:
            message = f"a topic has at least 1 partition, not {request.partitions}"
            return TopicResult(topic=request.name, error=ErrorCode.INVALID_PARTITIONS, message=message)
        try:
            topic = await self._log.create_topic(request.name, partitions=request.partitions, configs=request.configs)
        except LogError as error:
            code, message = failure(error)
            return TopicResult(topic=request.name, error=code, message=message)
        return TopicResult(topic=topic.name, topic_id=topic.topic_id)

    async def delete(self, request: DeleteTopicRequest, _: InProcess) -> TopicResult:
        """Delete a topic, its records and what groups remember of it."""
        topic = self._topics.by_name(request.name)
        try:
            await self._log.delete_topic(request.name)
            if topic is not None:
                await self._coordinator.topic_deleted(topic.topic_id)
        except EXPECTED as error:
            code, message = failure(error)
            return TopicResult(topic=request.name, error=code, message=message)
        return TopicResult(topic=request.name, topic_id=None if topic is None else topic.topic_id)

    async def add_partitions(self, request: CreatePartitionsRequest, _: InProcess) -> TopicResult:
        """Raise a topic's partition count; groups see it with their members' next heartbeats."""
        topic = self._topics.by_name(request.name)
        if topic is not None and request.total <= topic.partitions:
            message = f"{request.name} has {topic.partitions} partitions; {request.total} is not more"
            return TopicResult(topic=request.name, error=ErrorCode.INVALID_PARTITIONS, message=message)
        try:
            topic = await self._log.create_partitions(request.name, request.total)
        except LogError as error:
            code, message = failure(error)
            return TopicResult(topic=request.name, error=code, message=message)
        return TopicResult(topic=topic.name, topic_id=topic.topic_id)

    def _metadata(self, name: str) -> TopicMetadata:
        topic = self._topics.by_name(name)
        if topic is None:
            return TopicMetadata(name=name, error=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return TopicMetadata(name=name, topic_id=topic.topic_id, partitions=topic.partitions)
