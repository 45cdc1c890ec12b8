"""Answers that are computed from more than one field of the wire: metadata, settings, offsets of many partitions,
transactions."""

from __future__ import annotations

import struct
from typing import Any, Final

from flowshare.client.wire.base import LEFT_OUT, Codecs, Write, by_kio, endpoints, text
from flowshare.protocol.compact import I32, FrameReader, grouped
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.kafka import module, write_request
from flowshare.protocol.messages import (
    ConfigEntry,
    DescribeConfigsRequest,
    DescribeConfigsResponse,
    DescribeTransactionRequest,
    DescribeTransactionResponse,
    ListOffsetsResponse,
    ManyOffsetsRequest,
    ManyOffsetsResponse,
    MetadataRequest,
    MetadataResponse,
    TopicMetadata,
)
from flowshare.protocol.messages.base import NOT_ASKED
from flowshare.protocol.messages.transactions import ProducerIdentity
from flowshare.protocol.translation import known_error

OWN: Final = {"topic": {1}, "broker": {2, 3, 4}, "group": {8}}
"""The sources of settings that mean "set on this very thing"; all others are defaults to it."""
_I16: Final = struct.Struct(">h")
_TRANSACTION: Final = struct.Struct(">iqqh")
_DESCRIBED_BYTES_MIN: Final = _I16.size + _TRANSACTION.size
NO_REPLICA: Final = -1
CLUSTER_APART_FROM: Final = 11
"""The version of Metadata from which it does not report the rights on the cluster."""


def _by_kio(encode: Any) -> Write:
    return lambda number, client_id, request, version: write_request(number, client_id, encode(request, version))


# --- metadata ---------------------------------------------------------------------------------------------------------


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
                error=known_error(topic.error_code),
                topic_id=topic.topic_id,
                partitions=len(topic.partitions),
                leaders=_each(topic.partitions, "leader_id"),
                leader_epochs=_each(topic.partitions, "leader_epoch"),
                replicas=min((len(part.replica_nodes) for part in topic.partitions), default=-1),
                replica_nodes=_nodes(topic.partitions, "replica_nodes"),
                in_sync=_nodes(topic.partitions, "isr_nodes"),
                authorized=_operations(topic) if request.authorized else None,
            )
            for topic in answer.topics
        ),
        nodes=endpoints(answer.brokers),
        controller=int(answer.controller_id),
        cluster_id=getattr(answer, "cluster_id", None),
    )


def _operations(topic: Any) -> int | None:
    told = int(topic.topic_authorized_operations)
    return None if told == NOT_ASKED else told


def _each(partitions: tuple[Any, ...], field: str) -> tuple[int, ...]:
    by_index = {int(part.partition_index): int(getattr(part, field, -1)) for part in partitions}
    return tuple(by_index.get(index, -1) for index in range(len(by_index)))


def _nodes(partitions: tuple[Any, ...], field: str) -> tuple[tuple[int, ...], ...]:
    by_index = {int(part.partition_index): tuple(map(int, getattr(part, field))) for part in partitions}
    return tuple(by_index.get(index, ()) for index in range(len(by_index)))


# --- settings ---------------------------------------------------------------------------------------------------------


def _settings(answer: Any, request: DescribeConfigsRequest) -> DescribeConfigsResponse:
    if len(answer.results) != 1:
        message = f"the answer has {len(answer.results)} results for one question"
        return DescribeConfigsResponse(error=ErrorCode.UNKNOWN_SERVER_ERROR, message=message)
    (result,) = answer.results
    return DescribeConfigsResponse(
        error=known_error(result.error_code),
        message=text(result.error_message),
        entries=tuple(
            ConfigEntry(
                name=entry.name,
                value=entry.value or "",
                is_default=int(entry.config_source) not in OWN[request.resource_type],
                documentation=entry.documentation or "",
                read_only=entry.read_only,
            )
            for entry in result.configs
        ),
    )


# --- offsets of many partitions ---------------------------------------------------------------------------------------


def _many(request: ManyOffsetsRequest, version: int) -> Any:
    m = module("list_offsets", version, "request")
    parts = grouped(
        (topic, m.ListOffsetsPartition(partition_index=partition, timestamp=request.timestamp_ms))
        for topic, partition in request.partitions
    )
    return m.ListOffsetsRequest(
        replica_id=NO_REPLICA,
        isolation_level=int(request.committed),
        topics=tuple(m.ListOffsetsTopic(name=topic, partitions=tuple(some)) for topic, some in parts.items()),
    )


def _many_answer(answer: Any, request: ManyOffsetsRequest) -> ManyOffsetsResponse:
    told = {
        (topic.name, part.partition_index): ListOffsetsResponse(
            error=known_error(part.error_code),
            offset=int(part.offset),
            timestamp_ms=int(part.timestamp),
            leader_epoch=int(part.leader_epoch),
        )
        for topic in answer.topics
        for part in topic.partitions
    }
    missing = ListOffsetsResponse(error=ErrorCode.UNKNOWN_SERVER_ERROR, message=LEFT_OUT)
    return ManyOffsetsResponse(offsets=tuple(told.get(at, missing) for at in request.partitions))


# --- transactions -----------------------------------------------------------------------------------------------------


def _transaction(frame: bytes, request: DescribeTransactionRequest, _version: int) -> DescribeTransactionResponse:
    """Read an answer of version 0, by hand: brokers give −1 as the start of a transaction that is not open, which kio
    refuses."""
    reader = FrameReader(frame, I32.size)
    reader.tags()
    reader.unpack(I32)
    found = [_described(reader) for _ in range(reader.count(_DESCRIBED_BYTES_MIN))]
    reader.tags()
    answer = next((one for name, one in found if name == request.transactional_id), None)
    return answer or DescribeTransactionResponse(error=ErrorCode.UNKNOWN_SERVER_ERROR, message=LEFT_OUT)


def _described(reader: FrameReader) -> tuple[str | None, DescribeTransactionResponse]:
    (error,) = reader.unpack(_I16)
    name, state = reader.text(), reader.text()
    timeout_ms, started_ms, producer_id, epoch = reader.unpack(_TRANSACTION)
    places: list[tuple[str, int]] = []
    for _ in range(reader.count(1)):
        topic = reader.text() or ""
        partitions = reader.count(I32.size)
        places += ((topic, partition) for (partition,) in I32.iter_unpack(reader.take(partitions * I32.size)))
        reader.tags()
    reader.tags()
    return name, DescribeTransactionResponse(
        error=ErrorCode.known(error),
        state=state or "",
        timeout_ms=timeout_ms,
        started_ms=started_ms,
        producer=ProducerIdentity(producer_id, epoch),
        partitions=tuple(places),
    )


CODECS: Final[Codecs] = {
    DescribeTransactionRequest: (None, _transaction),
    MetadataRequest: (_by_kio(_metadata), by_kio("metadata", _metadata_answer)),
    DescribeConfigsRequest: (None, by_kio("describe_configs", _settings)),
    ManyOffsetsRequest: (_by_kio(_many), by_kio("list_offsets", _many_answer)),
}
