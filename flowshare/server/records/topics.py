"""The topic APIs: metadata, create, delete, add partitions."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from flowshare.log.topics import PARTITIONS_MAX, check_new
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
from flowshare.server import answers
from flowshare.server.failures import EXPECTED, Refused, failure
from flowshare.server.mutations import MutationQuota, Throttled

if TYPE_CHECKING:
    import uuid
    from collections.abc import Generator, Iterable

    from flowshare.log.base import Log
    from flowshare.server.classic import ClassicGroups
    from flowshare.server.connection import Handlers, InProcess
    from flowshare.server.coordinator import Coordinator
    from flowshare.server.topic_index import TopicIndex


class TopicApis:
    """Answers the topic APIs."""

    def __init__(
        self,
        *,
        log: Log,
        topics: TopicIndex,
        coordinator: Coordinator,
        classic: ClassicGroups,
        partitions_max: int,
        quota: MutationQuota,
    ) -> None:
        """partitions_max: of all topics together. quota: what each party may make and remove."""
        self._partitions_max = partitions_max
        self._quota = quota
        self._making = 0
        """Partitions that are being made."""
        self._counted: tuple[int, int] | None = None
        self._log = log
        self._topics = topics
        self._coordinator = coordinator
        self._classic = classic

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
        names: Iterable[str] = request.topics or ()
        if request.topics is None and not request.topic_ids:
            names = sorted(self._log.topics())
        turns = answers.turns(self._classic.clock)
        by_name = await turns.each(self._metadata, names)
        return MetadataResponse(topics=(*by_name, *await turns.each(self._by_id, request.topic_ids)))

    async def create(self, request: CreateTopicRequest, connection: InProcess) -> TopicResult:
        """Make a topic, or only see whether it could be made."""
        if not 1 <= request.partitions <= PARTITIONS_MAX:
            message = f"a topic has 1 to {PARTITIONS_MAX} partitions, not {request.partitions}"
            return TopicResult(topic=request.name, error=ErrorCode.INVALID_PARTITIONS, message=message)
        try:
            check_new(request.name, request.configs, self._log.topics())
            with self._room_for(request.partitions):
                if request.validate_only:
                    return TopicResult(topic=request.name)
                self._count(connection, request.partitions)
                topic = await self._log.create_topic(
                    request.name, partitions=request.partitions, configs=request.configs
                )
        except EXPECTED as error:
            return _refused(request.name, error)
        return TopicResult(topic=topic.name, topic_id=topic.topic_id)

    async def delete(self, request: DeleteTopicRequest, connection: InProcess) -> TopicResult:
        """Delete a topic, its records and what groups remember of it."""
        topic = self._topics.by_name(request.name)
        try:
            if topic is not None:
                self._count(connection, topic.partitions)
            try:
                await self._log.delete_topic(request.name)
            finally:
                self._counted = None  # another one may have been made by the time it is gone
            if topic is not None:
                await self._coordinator.topic_deleted(topic.topic_id)
                await self._classic.topic_deleted(topic.topic_id)
        except EXPECTED as error:
            return _refused(request.name, error)
        return TopicResult(topic=request.name, topic_id=None if topic is None else topic.topic_id)

    async def add_partitions(self, request: CreatePartitionsRequest, connection: InProcess) -> TopicResult:
        """Raise a topic's partition count; groups see it with their members' next heartbeats."""
        topic = self._topics.by_name(request.name)
        if topic is None:
            code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            return TopicResult(topic=request.name, error=code, message=f"there is no topic {request.name!r}")
        if not topic.partitions < request.total <= PARTITIONS_MAX:
            message = (
                f"{request.name} has {topic.partitions} partitions and may have up to {PARTITIONS_MAX}; "
                f"{request.total} is not more than it has, or too many"
            )
            return TopicResult(topic=request.name, error=ErrorCode.INVALID_PARTITIONS, message=message)
        try:
            with self._room_for(request.total - topic.partitions, grows=True):
                if request.validate_only:
                    return TopicResult(topic=topic.name, topic_id=topic.topic_id)
                self._count(connection, request.total - topic.partitions)
                topic = await self._log.create_partitions(request.name, request.total)
        except EXPECTED as error:
            return _refused(request.name, error)
        return TopicResult(topic=topic.name, topic_id=topic.topic_id)

    def _count(self, connection: InProcess, partitions: int) -> None:
        """Partitions are made or removed. Raises: Throttled."""
        self._quota.take(connection.counts_as(), partitions, self._classic.clock.monotonic())

    @contextmanager
    def _room_for(self, count: int, *, grows: bool = False) -> Generator[None]:
        """While so many partitions are made, of a topic that `grows` or a new one.

        Raises: Refused (there would be too many).
        """
        there = self._there()
        if there + self._making + count > self._partitions_max:
            raise Refused(
                ErrorCode.POLICY_VIOLATION,
                f"there are {there + self._making} partitions; {count} more would be more than {self._partitions_max} "
                "(max.partitions); delete topics first",
            )
        self._making += count
        try:
            yield
        finally:
            self._making -= count
            if grows:
                self._counted = None

    def _there(self) -> int:
        """Partitions there are; counted anew only when topics came or went: there may be as many topics."""
        topics = self._log.topics()
        if self._counted is None or self._counted[0] != len(topics):
            self._counted = len(topics), sum(topic.partitions for topic in topics.values())
        return self._counted[1]

    def _metadata(self, name: str) -> TopicMetadata:
        topic = self._topics.by_name(name)
        if topic is None:
            return TopicMetadata(name=name, error=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return TopicMetadata(name=name, topic_id=topic.topic_id, partitions=topic.partitions)

    def _by_id(self, topic_id: uuid.UUID) -> TopicMetadata:
        topic = self._topics.by_id(topic_id)
        if topic is None:
            return TopicMetadata(name="", error=ErrorCode.UNKNOWN_TOPIC_ID, topic_id=topic_id)
        return self._metadata(topic.name)


def _refused(topic: str, error: Exception) -> TopicResult:
    code, message = failure(error)
    throttle_ms = error.throttle_ms if isinstance(error, Throttled) else 0
    return TopicResult(topic=topic, error=code, message=message, throttle_ms=throttle_ms)
