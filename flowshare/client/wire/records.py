"""Offsets of partitions, and deleting their records."""

from __future__ import annotations

from typing import Any, Final

from flowshare.client.wire.base import LEFT_OUT, Codec, by_kio, code, timedelta_ms
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.kafka import ApiKey, module
from flowshare.protocol.messages import (
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ManyOffsetsRequest,
    ManyOffsetsResponse,
)
from flowshare.protocol.messages.records import MAX_TIMESTAMP

NO_REPLICA: Final = -1
WAIT_MS: Final = 15_000
"""How long the broker may wait for replicas; below request_timeout_s, so that its answer still comes."""
MAX_TIMESTAMP_FROM: Final = 7
"""The version of ListOffsets from which the highest timestamp can be asked for (KIP-734)."""
NOT_TOLD: Final = ListOffsetsResponse(error=ErrorCode.UNKNOWN_SERVER_ERROR, message=LEFT_OUT)


def _offsets(request: ListOffsetsRequest, version: int) -> Any:
    at = (request.topic, request.partition)
    return _many(
        ManyOffsetsRequest(partitions=(at,), timestamp_ms=request.timestamp_ms, committed=request.committed), version
    )


def _offsets_answer(answer: Any, request: ListOffsetsRequest) -> ListOffsetsResponse:
    return _offsets_told(answer).get((request.topic, request.partition), NOT_TOLD)


def _many(request: ManyOffsetsRequest, version: int) -> Any:
    m = module("list_offsets", version, "request")
    by_topic: dict[str, list[Any]] = {}
    for topic, partition in request.partitions:
        part = m.ListOffsetsPartition(partition_index=partition, timestamp=request.timestamp_ms)
        by_topic.setdefault(topic, []).append(part)
    return m.ListOffsetsRequest(
        replica_id=NO_REPLICA,
        isolation_level=int(request.committed),
        topics=tuple(m.ListOffsetsTopic(name=topic, partitions=tuple(parts)) for topic, parts in by_topic.items()),
    )


def _many_answer(answer: Any, request: ManyOffsetsRequest) -> ManyOffsetsResponse:
    told = _offsets_told(answer)
    return ManyOffsetsResponse(offsets=tuple(told.get(at, NOT_TOLD) for at in request.partitions))


def _offsets_told(answer: Any) -> dict[tuple[str, int], ListOffsetsResponse]:
    return {
        (topic.name, part.partition_index): ListOffsetsResponse(
            error=code(part.error_code), offset=int(part.offset), timestamp_ms=int(part.timestamp)
        )
        for topic in answer.topics
        for part in topic.partitions
    }


def _delete(request: DeleteRecordsRequest, version: int) -> Any:
    m = module("delete_records", version, "request")
    part = m.DeleteRecordsPartition(partition_index=request.partition, offset=request.before)
    return m.DeleteRecordsRequest(
        topics=(m.DeleteRecordsTopic(name=request.topic, partitions=(part,)),), timeout=timedelta_ms(WAIT_MS)
    )


def _delete_answer(answer: Any, request: DeleteRecordsRequest) -> DeleteRecordsResponse:
    for topic in answer.topics:
        for part in topic.partitions:
            if topic.name == request.topic and part.partition_index == request.partition:
                return DeleteRecordsResponse(error=code(part.error_code), log_start=int(part.low_watermark))
    return DeleteRecordsResponse(error=ErrorCode.UNKNOWN_SERVER_ERROR, message=LEFT_OUT)


CODECS: Final[dict[type[Any], Codec]] = {
    ListOffsetsRequest: Codec(
        key=ApiKey.LIST_OFFSETS,
        name="list_offsets",
        lowest=6,
        highest=9,
        write=by_kio(_offsets),
        decode=_offsets_answer,
        needs=lambda request: MAX_TIMESTAMP_FROM if request.timestamp_ms == MAX_TIMESTAMP else 0,
    ),
    ManyOffsetsRequest: Codec(
        key=ApiKey.LIST_OFFSETS,
        name="list_offsets",
        lowest=6,
        highest=9,
        write=by_kio(_many),
        decode=_many_answer,
    ),
    DeleteRecordsRequest: Codec(
        key=ApiKey.DELETE_RECORDS,
        name="delete_records",
        lowest=2,
        highest=2,
        write=by_kio(_delete),
        decode=_delete_answer,
    ),
}
