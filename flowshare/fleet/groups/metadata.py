"""Locations in a fleet: the leaders of share-partitions, and the coordinators of groups. The topics are Kafka's.

Produce and Fetch are advertised, because librdkafka's share consumer reads only from servers with them, and refused
(`NoRecords`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from flowshare.client.errors import ClientError, ServerError
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.messages import (
    FetchedLog,
    FetchRequest,
    FetchResponse,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    MetadataRequest,
    MetadataResponse,
    ProduceRequest,
    ProduceResponse,
    TopicMetadata,
)
from flowshare.server.runtime.failures import Refused

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flowshare.fleet.directory import Directory, WorkerAddress
    from flowshare.fleet.log.kafka_log import KafkaLog
    from flowshare.log.base import Topic
    from flowshare.protocol.messages import Connection
    from flowshare.server.runtime.connection import Handlers, InProcess
    from flowshare.server.runtime.topic_index import TopicIndex


class FleetMetadata:
    """Answers Metadata and FindCoordinator, and passes ListOffsets on to Kafka."""

    def __init__(self, *, log: KafkaLog, topics: TopicIndex, directory: Directory, kafka: Connection) -> None:
        self._log = log
        self._topics = topics
        self._directory = directory
        self._kafka = kafka

    def handlers(self) -> Handlers:
        """Return the handlers of this family's requests."""
        return {
            MetadataRequest: self.metadata,
            FindCoordinatorRequest: self.find,
            ListOffsetsRequest: self.list_offsets,
        }

    async def find(self, request: FindCoordinatorRequest, _: InProcess) -> FindCoordinatorResponse:
        """Return the worker that coordinates a share group."""
        try:
            node_id, host, port = self.coordinator(request.kind, request.key)
        except Refused as error:
            return FindCoordinatorResponse(error=error.code, message=str(error))
        return FindCoordinatorResponse(node_id=node_id, host=host, port=port)

    def coordinator(self, kind: str, key: str) -> WorkerAddress:
        """Return the coordinator of a group. Raises Refused."""
        if kind != "group":
            raise Refused(
                ErrorCode.COORDINATOR_NOT_AVAILABLE,
                "workers coordinate share groups only: use the Kafka brokers' own address for everything else",
            )
        place = self._directory.coordinator(key)
        if place is None:
            raise Refused(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"nobody coordinates group {key} at the moment")
        return place

    async def metadata(self, request: MetadataRequest, _: InProcess) -> MetadataResponse:
        """Return the workers, and the leaders of topics; a topic that is not known yet is looked up at Kafka."""
        names: Sequence[str] = request.topics or ()
        if request.topics is None and not request.topic_ids:
            names = sorted(self._log.topics())
        await self._look(names, request)
        ids = [TopicMetadata(name="", error=ErrorCode.UNKNOWN_TOPIC_ID, topic_id=one) for one in request.topic_ids]
        found = [self._topics.by_id(one) for one in request.topic_ids]
        nodes = self._directory.nodes
        return MetadataResponse(
            topics=(
                *(self._named(name) for name in names),
                *(none if topic is None else self._told(topic) for topic, none in zip(found, ids, strict=True)),
            ),
            nodes={place.node_id: (place.host, place.port) for place in nodes.values()},
            controller=min(nodes, default=-1),
        )

    async def _look(self, names: Sequence[str], request: MetadataRequest) -> None:
        unknown = [name for name in names if self._topics.by_name(name) is None]
        ids = [one for one in request.topic_ids if self._topics.by_id(one) is None]
        if unknown or ids:
            await self._log.refresh(unknown, ids)

    def _named(self, name: str) -> TopicMetadata:
        topic = self._topics.by_name(name)
        if topic is None:
            return TopicMetadata(name=name, error=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return self._told(topic)

    def _told(self, topic: Topic) -> TopicMetadata:
        leaders = [self._directory.leader_of(topic.topic_id, number) for number in range(topic.partitions)]
        return TopicMetadata(
            name=topic.name,
            topic_id=topic.topic_id,
            partitions=topic.partitions,
            leaders=tuple(node for node, _ in leaders),
            leader_epochs=tuple(epoch for _, epoch in leaders),
        )

    async def list_offsets(self, request: ListOffsetsRequest, _: InProcess) -> ListOffsetsResponse:
        """Return Kafka's answer."""
        try:
            return await self._kafka.send(request)
        except ServerError as error:
            return ListOffsetsResponse(error=error.code, message=str(error))
        except (OSError, ClientError) as error:
            return ListOffsetsResponse(error=ErrorCode.LEADER_NOT_AVAILABLE, message=str(error))


REFUSED: Final = ErrorCode.UNSUPPORTED_VERSION
WHY: Final = "workers keep no records: produce to the Kafka brokers' own address, and read with a share consumer here"


class NoRecords:
    """Refuses Produce and Fetch: records are the brokers'.

    librdkafka takes a server that serves neither Produce 3 nor Fetch 4 for one without record batches, and sends it no
    ShareFetch.
    """

    def handlers(self) -> Handlers:
        """Return the handlers of this family's requests."""
        return {ProduceRequest: self.produce, FetchRequest: self.fetch}

    async def produce(self, _: ProduceRequest, __: InProcess) -> ProduceResponse:
        """Refuse: nothing is appended."""
        return ProduceResponse(error=REFUSED, message=WHY)

    async def fetch(self, request: FetchRequest, _: InProcess) -> FetchResponse:
        """Refuse: nothing is read."""
        logs = (
            FetchedLog(topic=part.topic, partition=part.partition, error=REFUSED, message=WHY)
            for part in request.partitions
        )
        return FetchResponse(partitions=tuple(logs))
