"""Transactions' requests as frames: flowshare's client has no use for them, scenarios over a socket do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from flowshare.client.wire.base import Codec, by_kio, code, timedelta_ms
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.kafka import ApiKey, module
from flowshare.protocol.messages import (
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    FindCoordinatorResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    ProducerIdentity,
    TransactionResponse,
)
from flowshare.protocol.messages.base import Request

TRANSACTION: Final = 1
"""Kafka's number of this kind of coordinator."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FindTransactionCoordinatorRequest(Request[FindCoordinatorResponse]):
    """Which node coordinates a producer's transactions; a broker makes its topic for them when it is first asked."""

    transactional_id: str


def _find(request: FindTransactionCoordinatorRequest, version: int) -> Any:
    return module("find_coordinator", version, "request").FindCoordinatorRequest(
        key_type=TRANSACTION, coordinator_keys=(request.transactional_id,)
    )


def _find_answer(answer: Any, _: FindTransactionCoordinatorRequest) -> FindCoordinatorResponse:
    (found,) = answer.coordinators
    return FindCoordinatorResponse(error=code(found.error_code), node_id=int(found.node_id))


def _init(request: InitProducerIdRequest, version: int) -> Any:
    return module("init_producer_id", version, "request").InitProducerIdRequest(
        transactional_id=request.transactional_id,
        transaction_timeout=timedelta_ms(request.timeout_ms),
        producer_id=request.known.producer_id,
        producer_epoch=request.known.epoch,
    )


def _init_answer(answer: Any, _: InitProducerIdRequest) -> InitProducerIdResponse:
    return InitProducerIdResponse(
        error=code(answer.error_code), producer=ProducerIdentity(int(answer.producer_id), int(answer.producer_epoch))
    )


def _add(request: AddPartitionsToTxnRequest, version: int) -> Any:
    m = module("add_partitions_to_txn", version, "request")
    return m.AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=request.transactional_id,
        v3_and_below_producer_id=request.producer.producer_id,
        v3_and_below_producer_epoch=request.producer.epoch,
        v3_and_below_topics=tuple(
            m.AddPartitionsToTxnTopic(name=topic, partitions=(partition,)) for topic, partition in request.partitions
        ),
    )


def _add_answer(answer: Any, _: AddPartitionsToTxnRequest) -> TransactionResponse:
    errors = [
        code(part.partition_error_code)
        for topic in answer.results_by_topic_v3_and_below
        for part in topic.results_by_partition
    ]
    return TransactionResponse(error=next(filter(None, errors), ErrorCode.NONE))


def _end(request: EndTxnRequest, version: int) -> Any:
    return module("end_txn", version, "request").EndTxnRequest(
        transactional_id=request.transactional_id,
        producer_id=request.producer.producer_id,
        producer_epoch=request.producer.epoch,
        committed=request.committed,
    )


def _end_answer(answer: Any, _: EndTxnRequest) -> TransactionResponse:
    return TransactionResponse(error=code(answer.error_code))


CODECS: dict[type[Any], Codec] = {
    FindTransactionCoordinatorRequest: Codec(
        key=ApiKey.FIND_COORDINATOR,
        name="find_coordinator",
        lowest=4,
        highest=4,
        write=by_kio(_find),
        decode=_find_answer,
    ),
    InitProducerIdRequest: Codec(
        key=ApiKey.INIT_PRODUCER_ID,
        name="init_producer_id",
        lowest=3,
        highest=4,
        write=by_kio(_init),
        decode=_init_answer,
    ),
    AddPartitionsToTxnRequest: Codec(
        key=ApiKey.ADD_PARTITIONS_TO_TXN,
        name="add_partitions_to_txn",
        lowest=3,
        highest=3,
        write=by_kio(_add),
        decode=_add_answer,
    ),
    EndTxnRequest: Codec(
        key=ApiKey.END_TXN, name="end_txn", lowest=3, highest=3, write=by_kio(_end), decode=_end_answer
    ),
}
