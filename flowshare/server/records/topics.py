"""The topic APIs: metadata, create, delete, add partitions."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from flowshare.log.base import UnknownTopic
from flowshare.log.topics import PARTITIONS_MAX, check_new
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.messages import (
    CreatePartitionsRequest,
    CreateTopicRequest,
    DeleteTopicRequest,
    ElectLeaderRequest,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    MetadataRequest,
    MetadataResponse,
    TopicMetadata,
    TopicResult,
)
from flowshare.protocol.messages.base import Response
from flowshare.server.records.mutations import MutationQuota, Throttled
from flowshare.server.runtime import answers
from flowshare.server.runtime.connection import Family, InProcess, handles
from flowshare.server.runtime.failures import EXPECTED, Refused, refusal

if TYPE_CHECKING:
    import uuid
    from collections.abc import Generator, Iterable, Sequence

    from flowshare.log.base import Topic
    from flowshare.log.storage import BrokerStorage
    from flowshare.server.groups.coordinator import ConsumerGroups
    from flowshare.server.share.service import ShareService


class TopicApis(Family):
    """Answers the topic APIs."""

    def __init__(self, service: ShareService, log: BrokerStorage, classic: ConsumerGroups) -> None:
        config = service.config
        self._partitions_max = config.partitions_max
        self._quota = MutationQuota(config.mutation_rate, config.mutation_windows * config.mutation_window_s)
        self._making = 0
        """Partitions that are being made."""
        self._counted: tuple[int, int] | None = None
        self._log = log
        self._topics = service.topics
        self._coordinator = service.coordinator
        self._partitions = service.partitions
        self._acting = service.configs.acting
        self._classic = classic

    @handles(MetadataRequest)
    async def metadata(self, request: MetadataRequest, _: InProcess) -> MetadataResponse:
        """Return ids and partition counts of all topics or of the named ones."""
        names: Iterable[str] = request.topics or ()
        if request.topics is None and not request.topic_ids:
            names = sorted(self._log.topics())
        turns = answers.turns(self._classic.clock)
        by_name = await turns.each(self._metadata, names)
        return MetadataResponse(topics=(*by_name, *await turns.each(self._by_id, request.topic_ids)))

    @handles(ElectLeaderRequest)
    async def elect(self, request: ElectLeaderRequest, _: InProcess) -> Response:
        """Refuse an election: there is one node, which leads every partition."""
        topic = self._topics.by_name(request.topic)
        there = range(0 if topic is None else topic.partitions)
        error = ErrorCode.ELECTION_NOT_NEEDED if request.partition in there else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return Response(error=error)

    @handles(FindCoordinatorRequest)
    async def find(self, _: FindCoordinatorRequest, __: InProcess) -> FindCoordinatorResponse:
        """Answer that this server coordinates everything; the caller knows its address."""
        return FindCoordinatorResponse()

    @handles(CreateTopicRequest)
    async def create(self, request: CreateTopicRequest, connection: InProcess) -> TopicResult:
        """Make a topic, or only check that it could be made."""
        try:
            if not 1 <= request.partitions <= PARTITIONS_MAX:
                text = f"a topic has 1 to {PARTITIONS_MAX} partitions, not {request.partitions}"
                raise Refused(ErrorCode.INVALID_PARTITIONS, text)
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

    @handles(DeleteTopicRequest)
    async def delete(self, request: DeleteTopicRequest, connection: InProcess) -> TopicResult:
        """Delete a topic, its records and its state in groups; all of it, even if the caller gives up."""
        return await self._classic.run(self._delete(request.name, connection))

    async def _delete(self, name: str, connection: InProcess) -> TopicResult:
        topic = self._topics.by_name(name)
        try:
            if topic is not None:
                self._count(connection, topic.partitions)
            try:
                await self._log.delete_topic(name)
            finally:
                self._counted = None  # another topic may have been made by the time this one is gone
            if topic is not None:
                try:
                    await self._coordinator.topic_deleted(topic.topic_id)
                finally:
                    await self._classic.topic_deleted(topic.topic_id)
        except EXPECTED as error:
            return _refused(name, error)
        return TopicResult(topic=name, topic_id=None if topic is None else topic.topic_id)

    @handles(CreatePartitionsRequest)
    async def add_partitions(self, request: CreatePartitionsRequest, connection: InProcess) -> TopicResult:
        """Raise a topic's partition count; groups see it with their members' next heartbeats."""
        try:
            topic = self._topics.by_name(request.name)
            if topic is None:
                raise UnknownTopic(f"there is no topic {request.name!r}")
            if not topic.partitions < request.total <= PARTITIONS_MAX:
                raise Refused(
                    ErrorCode.INVALID_PARTITIONS,
                    f"{request.name} has {topic.partitions} partitions and may have up to {PARTITIONS_MAX}; "
                    f"{request.total} is not more than it has, or too many",
                )
            if not request.breaks_order and (groups := self._ordered_groups(topic)):
                raise Refused(ErrorCode.POLICY_VIOLATION, breaks_order(request.name, request.total, groups))
            with self._room_for(request.total - topic.partitions, grows=True):
                if request.validate_only:
                    return TopicResult(topic=topic.name, topic_id=topic.topic_id)
                self._count(connection, request.total - topic.partitions)
                topic = await self._log.create_partitions(request.name, request.total)
        except EXPECTED as error:
            return _refused(request.name, error)
        return TopicResult(topic=topic.name, topic_id=topic.topic_id)

    def _ordered_groups(self, topic: Topic) -> list[str]:
        """Return the groups with an order by key that have read the topic, or whose members subscribe to it."""
        groups = {key.group_id for key in self._partitions.of_topic(topic.topic_id)}
        groups |= {name for name, group in self._coordinator.groups.items() if topic.name in group.subscribed}
        return sorted(name for name in groups if self._acting(name).key_order)

    def _count(self, connection: InProcess, partitions: int) -> None:
        """Count changed partitions. Raises: Throttled."""
        self._quota.take(connection.counts_as(), partitions, self._classic.clock.monotonic())

    @contextmanager
    def _room_for(self, count: int, *, grows: bool = False) -> Generator[None]:
        """Reserve room while `count` partitions are made, of a topic that `grows` or a new one.

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
        """Return the number of partitions; counted anew only when topics came or went: there may be as many topics."""
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


def breaks_order(topic: str, total: int, groups: Sequence[str]) -> str:
    """Return the text that refuses to add partitions to an ordered topic, with a remedy (SG-18.8)."""
    return (
        f"topic {topic} is read in the order of keys by {', '.join(groups)} (share.key.order, or a cooperative group), "
        "and with other partitions the next records of a key may go to another one and run beside the earlier ones: "
        "stop what sends to it, wait until these groups have handled all of it, and add them then with "
        f"`flowshare topics grow {topic} --partitions {total} --breaks-order`"
    )


def _refused(topic: str, error: Exception) -> TopicResult:
    return refusal(
        TopicResult, error, topic=topic, throttle_ms=error.throttle_ms if isinstance(error, Throttled) else 0
    )
