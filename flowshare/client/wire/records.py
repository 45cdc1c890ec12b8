"""Records of partitions: produce, fetch, list offsets, delete."""

from __future__ import annotations

from typing import Any, Final

from flowshare.client.wire.base import Codec, by_kio, code, epoch_ms, grouped, text, timedelta_ms
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.kafka import ApiKey, module
from flowshare.protocol.messages import (
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    FetchRequest,
    FetchResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ProduceRequest,
    ProduceResponse,
)
from flowshare.protocol.messages.records import AbortedTransaction, FetchedLog

CONFIRMED: Final = -1
"""acks=all: answered when every replica that must have the records has them."""
NO_REPLICA: Final = -1
WAIT_MS: Final = 15_000
"""How long the broker may wait for replicas; below request_timeout_s, so that its answer still comes."""
LEFT_OUT: Final = "the answer leaves out the partition"


def _produce(request: ProduceRequest, version: int) -> Any:
    m = module("produce", version, "request")
    part = m.PartitionProduceData(index=request.partition, records=request.records)
    return m.ProduceRequest(
        transactional_id=request.transactional_id,
        acks=CONFIRMED,
        timeout=timedelta_ms(WAIT_MS),
        topic_data=(m.TopicProduceData(name=request.topic, partition_data=(part,)),),
    )


def _produce_answer(answer: Any, request: ProduceRequest) -> ProduceResponse:
    for topic in answer.responses:
        for part in topic.partition_responses:
            if topic.name == request.topic and part.index == request.partition:
                return ProduceResponse(
                    error=code(part.error_code),
                    message=text(part.error_message),
                    base_offset=int(part.base_offset),
                    log_start=int(part.log_start_offset),
                    append_time_ms=-1 if part.log_append_time is None else epoch_ms(part.log_append_time),
                )
    return ProduceResponse(error=ErrorCode.UNKNOWN_SERVER_ERROR, message=LEFT_OUT)


def _fetch(request: FetchRequest, version: int) -> Any:
    m = module("fetch", version, "request")
    return m.FetchRequest(
        cluster_id=None,
        replica_id=NO_REPLICA,
        max_wait=timedelta_ms(request.max_wait_ms),
        min_bytes=request.min_bytes,
        max_bytes=request.max_bytes,
        isolation_level=int(request.committed),
        topics=tuple(
            m.FetchTopic(
                topic=topic,
                partitions=tuple(
                    m.FetchPartition(
                        partition=part.partition, fetch_offset=part.offset, partition_max_bytes=part.max_bytes
                    )
                    for part in parts
                ),
            )
            for topic, parts in grouped((part.topic, part) for part in request.partitions).items()
        ),
        forgotten_topics_data=(),
    )


def _fetch_answer(answer: Any, request: FetchRequest) -> FetchResponse:
    error = code(answer.error_code)
    if error is not ErrorCode.NONE:
        return FetchResponse(error=error)
    found = {
        (str(topic.topic), int(part.partition_index)): part for topic in answer.responses for part in topic.partitions
    }
    return FetchResponse(
        partitions=tuple(_log(part.topic, part.partition, found.get(part[:2])) for part in request.partitions)
    )


def _log(topic: str, partition: int, part: Any) -> FetchedLog:
    if part is None:
        return FetchedLog(topic=topic, partition=partition, error=ErrorCode.UNKNOWN_SERVER_ERROR, message=LEFT_OUT)
    return FetchedLog(
        topic=topic,
        partition=partition,
        error=code(part.error_code),
        records=b"" if part.records is None else bytes(part.records),
        log_start=int(part.log_start_offset),
        high_watermark=int(part.high_watermark),
        last_stable=int(part.last_stable_offset),
        aborted=tuple(
            AbortedTransaction(int(one.producer_id), int(one.first_offset)) for one in part.aborted_transactions or ()
        ),
    )


def _offsets(request: ListOffsetsRequest, version: int) -> Any:
    m = module("list_offsets", version, "request")
    part = m.ListOffsetsPartition(partition_index=request.partition, timestamp=request.timestamp_ms)
    return m.ListOffsetsRequest(
        replica_id=NO_REPLICA,
        isolation_level=int(request.committed),
        topics=(m.ListOffsetsTopic(name=request.topic, partitions=(part,)),),
    )


def _offsets_answer(answer: Any, request: ListOffsetsRequest) -> ListOffsetsResponse:
    for topic in answer.topics:
        for part in topic.partitions:
            if topic.name == request.topic and part.partition_index == request.partition:
                return ListOffsetsResponse(
                    error=code(part.error_code), offset=int(part.offset), timestamp_ms=int(part.timestamp)
                )
    return ListOffsetsResponse(error=ErrorCode.UNKNOWN_SERVER_ERROR, message=LEFT_OUT)


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
    ProduceRequest: Codec(
        key=ApiKey.PRODUCE, name="produce", lowest=9, highest=12, write=by_kio(_produce), decode=_produce_answer
    ),
    FetchRequest: Codec(
        key=ApiKey.FETCH,
        name="fetch",
        lowest=12,
        highest=12,
        write=by_kio(_fetch),
        decode=_fetch_answer,
        wait_ms=lambda request: request.max_wait_ms,
    ),
    ListOffsetsRequest: Codec(
        key=ApiKey.LIST_OFFSETS,
        name="list_offsets",
        lowest=7,
        highest=9,
        write=by_kio(_offsets),
        decode=_offsets_answer,
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
