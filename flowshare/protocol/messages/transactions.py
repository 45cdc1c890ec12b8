"""Producer ids and transactions (KIP-98)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from flowshare.protocol.declaration import LEADER, OF_TRANSACTION, Api, Array, Each, Fixed, One, Parts, of_partitions
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.kafka import ApiKey
from flowshare.protocol.messages.base import Request, Response
from flowshare.protocol.rights import NeededRight, Operation, ResourceType


class ProducerIdentity(NamedTuple):
    """A producer's id and epoch; −1, −1: not known yet."""

    producer_id: int = -1
    epoch: int = -1


NOBODY: Final = ProducerIdentity()
"""A producer whose id is not known yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InitProducerIdRequest(Request["InitProducerIdResponse"]):
    """Ask for a producer's id and epoch. With a transactional id, a higher epoch fences its older producers.

    timeout_ms: time after which the server aborts a transaction. known: the producer's present identity, to go on with
    (KIP-360).
    """

    transactional_id: str | None = None
    timeout_ms: int = 60_000
    known: ProducerIdentity = NOBODY


@dataclass(frozen=True, slots=True, kw_only=True)
class InitProducerIdResponse(Response):
    producer: ProducerIdentity = NOBODY


@dataclass(frozen=True, slots=True, kw_only=True)
class AddPartitionsToTxnRequest(Request[Response]):
    """Add partitions that a transaction will write to; all are added, or none."""

    transactional_id: str
    producer: ProducerIdentity
    partitions: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AddOffsetsToTxnRequest(Request[Response]):
    """Add a group whose offsets a transaction will commit."""

    transactional_id: str
    producer: ProducerIdentity
    group_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EndTxnRequest(Request[Response]):
    """Commit or abort; answered when the decision is durable and, unless the disk fails, carried out everywhere."""

    transactional_id: str
    producer: ProducerIdentity
    committed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeTransactionRequest(Request["DescribeTransactionResponse"]):
    """Ask for the state of a transactional id."""

    transactional_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeTransactionResponse(Response):
    """The state of a transactional id. state: Kafka's name (Empty, Ongoing, …). started_ms: −1: no open transaction, 0:
    error."""

    state: str = ""
    timeout_ms: int = 0
    started_ms: int = 0
    producer: ProducerIdentity = NOBODY
    partitions: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ListTransactionsRequest(Request["ListTransactionsResponse"]):
    """Ask for transactional ids; empty filters accept all.

    running_ms: only those with a transaction open for longer; −1: all.
    """

    states: tuple[str, ...] = ()
    producer_ids: tuple[int, ...] = ()
    running_ms: int = -1


class ListedTransaction(NamedTuple):
    """One transactional id."""

    transactional_id: str
    producer_id: int
    state: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ListTransactionsResponse:
    """The listed transactions. unknown_states: names of the filter that are no states."""

    unknown_states: tuple[str, ...] = ()
    transactions: tuple[ListedTransaction, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeProducersRequest(Request["DescribeProducersResponse"]):
    """Ask for the idempotent producers that a partition knows."""

    topic: str
    partition: int


class ActiveProducer(NamedTuple):
    """An idempotent producer; last_sequence −1: none in this epoch. open_since: first offset of its open transaction,
    or −1."""

    producer_id: int
    epoch: int
    last_sequence: int
    touched_ms: int
    open_since: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeProducersResponse(Response):
    producers: tuple[ActiveProducer, ...] = ()


_PRODUCER: Final = {("producer_id", "producer_epoch"): Parts("producer", ProducerIdentity)}


def _first_error(results: tuple[tuple[Any, ...], ...]) -> Response:
    """Answer with the first error of a partition: partitions are added all or none, so the others were only not
    attempted."""
    nothing = (ErrorCode.NONE, ErrorCode.OPERATION_NOT_ATTEMPTED)
    return Response(error=next((error for *_, error in results if error not in nothing), ErrorCode.NONE))


INIT_PRODUCER_ID: Final = Api(
    ApiKey.INIT_PRODUCER_ID,
    InitProducerIdRequest,
    InitProducerIdResponse,
    server=(0, 5),
    client=(2, 5),
    route=OF_TRANSACTION,
    needs=lambda request: 0 if request.known == NOBODY else 3,  # KIP-360
    request_shape={
        "transaction_timeout": "timeout_ms",
        ("producer_id", "producer_epoch"): Parts("known", ProducerIdentity),
    },
    response_shape=_PRODUCER,
)
ADD_PARTITIONS_TO_TXN: Final = Api(
    ApiKey.ADD_PARTITIONS_TO_TXN,
    AddPartitionsToTxnRequest,
    _first_error,
    server=(0, 3),
    client=(3, 3),
    route=OF_TRANSACTION,
    request_shape={
        "v3_and_below_transactional_id": "transactional_id",
        ("v3_and_below_producer_id", "v3_and_below_producer_epoch"): Parts("producer", ProducerIdentity),
        "v3_and_below_topics": Array("partitions", tuple, {"name": 0, "partitions": Each(1)}),
    },
    response_shape={
        "results_by_topic_v3_and_below": Array(
            "results",
            tuple,
            {"name": 0, "results_by_partition": Each({"partition_index": 1, "partition_error_code": 2})},
        )
    },
)
ADD_OFFSETS_TO_TXN: Final = Api(
    ApiKey.ADD_OFFSETS_TO_TXN,
    AddOffsetsToTxnRequest,
    Response,
    server=(0, 4),
    client=(3, 4),
    route=OF_TRANSACTION,
    request_shape=_PRODUCER,
    response_shape={},
)
END_TXN: Final = Api(
    ApiKey.END_TXN,
    EndTxnRequest,
    Response,
    server=(0, 4),
    client=(3, 4),
    route=OF_TRANSACTION,
    request_shape=_PRODUCER,
    response_shape={},
)
DESCRIBE_PRODUCERS: Final = Api(
    ApiKey.DESCRIBE_PRODUCERS,
    DescribeProducersRequest,
    DescribeProducersResponse,
    server=(0, 0),
    client=(0, 0),
    route=LEADER,
    right=NeededRight(Operation.READ, ResourceType.TOPIC, "topic"),
    request_shape={"topics": One({"partition_indexes": One("partition")})},
    response_shape={
        **of_partitions(
            "topics",
            {
                "active_producers": Array(
                    "producers",
                    ActiveProducer,
                    {
                        "producer_epoch": "epoch",
                        "last_timestamp": "touched_ms",
                        "coordinator_epoch": Fixed(0),
                        "current_txn_start_offset": "open_since",
                    },
                )
            },
        )
    },
)
DESCRIBE_TRANSACTIONS: Final = Api(
    ApiKey.DESCRIBE_TRANSACTIONS,
    DescribeTransactionRequest,
    DescribeTransactionResponse,
    server=(0, 0),
    client=(0, 0),
    route=OF_TRANSACTION,
    request_shape={"transactional_ids": One("transactional_id")},
    response_shape={
        "transaction_states": One(
            {
                **_PRODUCER,
                "transaction_state": "state",
                "transaction_timeout": "timeout_ms",
                "transaction_start_time": "started_ms",
                "topics": Array("partitions", tuple, {"topic": 0, "partitions": Each(1)}),
            }
        )
    },
)
LIST_TRANSACTIONS: Final = Api(
    ApiKey.LIST_TRANSACTIONS,
    ListTransactionsRequest,
    ListTransactionsResponse,
    server=(0, 1),
    request_shape={"state_filters": "states", "producer_id_filters": "producer_ids", "duration_filter": "running_ms"},
    response_shape={
        "error_code": Fixed(ErrorCode.NONE),
        "unknown_state_filters": "unknown_states",
        "transaction_states": Array("transactions", ListedTransaction, {"transaction_state": "state"}),
    },
)
