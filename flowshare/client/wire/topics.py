"""Topics: metadata with leaders and nodes, create, delete, add partitions."""

from __future__ import annotations

from typing import Any, Final

from flowshare.client.wire.base import Codec, by_kio, code, endpoints, text, timedelta_ms
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.kafka import ApiKey, module
from flowshare.protocol.messages import (
    CreatePartitionsRequest,
    CreateTopicRequest,
    DeleteTopicRequest,
    MetadataRequest,
    MetadataResponse,
    TopicMetadata,
    TopicResult,
)

WAIT_MS: Final = 15_000
"""How long the broker may work on a change; below request_timeout_s, so that its answer still comes."""
CLUSTER_APART_FROM: Final = 11
"""The version of Metadata from which what one may do with the cluster is no longer asked here."""
NOT_TOLD: Final = -(2**31)
"""What stands for operations when they are not told."""
BY_ID_FROM: Final = 12
"""The version of Metadata from which topics can be named by their ids; the answers have ids since version 10."""


def _metadata(request: MetadataRequest, version: int) -> Any:
    m = module("metadata", version, "request")
    topics = None
    if request.topics is not None or request.topic_ids:
        topics = tuple(m.MetadataRequestTopic(topic_id=None, name=name) for name in request.topics or ()) + tuple(
            m.MetadataRequestTopic(topic_id=topic_id, name=None) for topic_id in request.topic_ids
        )
    cluster: dict[str, Any] = {"include_cluster_authorized_operations": False} if version < CLUSTER_APART_FROM else {}
    return m.MetadataRequest(
        topics=topics,
        allow_auto_topic_creation=False,
        include_topic_authorized_operations=request.authorized,
        **cluster,
    )


def _metadata_answer(answer: Any, request: MetadataRequest) -> MetadataResponse:
    return MetadataResponse(
        topics=tuple(
            TopicMetadata(
                name="" if topic.name is None else str(topic.name),
                error=code(topic.error_code),
                topic_id=topic.topic_id,
                partitions=len(topic.partitions),
                leaders=_each(topic.partitions, "leader_id"),
                leader_epochs=_each(topic.partitions, "leader_epoch"),
                replicas=min((len(part.replica_nodes) for part in topic.partitions), default=-1),
                authorized=_operations(topic) if request.authorized else None,
            )
            for topic in answer.topics
        ),
        nodes=endpoints(answer.brokers),
        controller=int(answer.controller_id),
    )


def _operations(topic: Any) -> int | None:
    told = int(topic.topic_authorized_operations)
    return None if told == NOT_TOLD else told


def _each(partitions: tuple[Any, ...], field: str) -> tuple[int, ...]:
    by_index = {int(part.partition_index): int(getattr(part, field, -1)) for part in partitions}
    return tuple(by_index.get(index, -1) for index in range(len(by_index)))


def _create(request: CreateTopicRequest, version: int) -> Any:
    m = module("create_topics", version, "request")
    topic = m.CreatableTopic(
        name=request.name,
        num_partitions=request.partitions,
        replication_factor=-1,
        assignments=(),
        configs=tuple(m.CreatableTopicConfig(name=name, value=value) for name, value in request.configs.items()),
    )
    return m.CreateTopicsRequest(topics=(topic,), timeout=timedelta_ms(WAIT_MS), validate_only=request.validate_only)


def _create_answer(answer: Any, request: CreateTopicRequest) -> TopicResult:
    return _result(answer.topics, request.name)


def _delete(request: DeleteTopicRequest, version: int) -> Any:
    m = module("delete_topics", version, "request")
    topic = m.DeleteTopicState(name=request.name, topic_id=None)
    return m.DeleteTopicsRequest(topics=(topic,), timeout=timedelta_ms(WAIT_MS))


def _delete_answer(answer: Any, request: DeleteTopicRequest) -> TopicResult:
    return _result(answer.responses, request.name)


def _add(request: CreatePartitionsRequest, version: int) -> Any:
    m = module("create_partitions", version, "request")
    topic = m.CreatePartitionsTopic(name=request.name, count=request.total, assignments=None)
    return m.CreatePartitionsRequest(
        topics=(topic,), timeout=timedelta_ms(WAIT_MS), validate_only=request.validate_only
    )


def _add_answer(answer: Any, request: CreatePartitionsRequest) -> TopicResult:
    return _result(answer.results, request.name)


def _result(results: tuple[Any, ...], name: str) -> TopicResult:
    for result in results:
        if result.name == name:
            return TopicResult(
                topic=name,
                error=code(result.error_code),
                message=text(result.error_message),
                topic_id=getattr(result, "topic_id", None),
            )
    return TopicResult(topic=name, error=ErrorCode.UNKNOWN_SERVER_ERROR, message="the answer leaves out the topic")


CODECS: Final[dict[type[Any], Codec]] = {
    MetadataRequest: Codec(
        key=ApiKey.METADATA,
        name="metadata",
        lowest=10,
        highest=13,
        write=by_kio(_metadata),
        decode=_metadata_answer,
        needs=lambda request: BY_ID_FROM if request.topic_ids else 0,
    ),
    CreateTopicRequest: Codec(
        key=ApiKey.CREATE_TOPICS,
        name="create_topics",
        lowest=7,
        highest=7,
        write=by_kio(_create),
        decode=_create_answer,
    ),
    DeleteTopicRequest: Codec(
        key=ApiKey.DELETE_TOPICS,
        name="delete_topics",
        lowest=6,
        highest=6,
        write=by_kio(_delete),
        decode=_delete_answer,
    ),
    CreatePartitionsRequest: Codec(
        key=ApiKey.CREATE_PARTITIONS,
        name="create_partitions",
        lowest=3,
        highest=3,
        write=by_kio(_add),
        decode=_add_answer,
    ),
}
