"""Producer ids and transactions (KIP-98)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.messages.base import Request


class ProducerIdentity(NamedTuple):
    """Who a producer is; −1, −1: it does not know yet."""

    producer_id: int = -1
    epoch: int = -1


NOBODY: Final = ProducerIdentity()
"""A producer that does not know yet who it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InitProducerIdRequest(Request["InitProducerIdResponse"]):
    """A producer's id and epoch. With a transactional id older producers of it are shut out by a higher epoch.

    timeout_ms: after this long the server aborts a transaction. known: what the producer has, to go on with (KIP-360).
    """

    transactional_id: str | None = None
    timeout_ms: int = 60_000
    known: ProducerIdentity = NOBODY


@dataclass(frozen=True, slots=True, kw_only=True)
class InitProducerIdResponse:
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None
    producer: ProducerIdentity = NOBODY


@dataclass(frozen=True, slots=True, kw_only=True)
class AddPartitionsToTxnRequest(Request["TransactionResponse"]):
    """Partitions that the transaction is going to write to; all are added, or none."""

    transactional_id: str
    producer: ProducerIdentity
    partitions: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AddOffsetsToTxnRequest(Request["TransactionResponse"]):
    """A group whose offsets the transaction is going to commit."""

    transactional_id: str
    producer: ProducerIdentity
    group_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EndTxnRequest(Request["TransactionResponse"]):
    """Commit or abort; answered when that is decided durably and, unless the disk fails, carried out everywhere."""

    transactional_id: str
    producer: ProducerIdentity
    committed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionResponse:
    """What became of a request about a transaction."""

    error: ErrorCode = ErrorCode.NONE
    message: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeTransactionRequest(Request["DescribeTransactionResponse"]):
    """What is known of a transactional id."""

    transactional_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeTransactionResponse:
    """`state` is Kafka's word (Empty, Ongoing, …); started_ms is −1 without an open transaction."""

    error: ErrorCode = ErrorCode.NONE
    message: str | None = None
    state: str = ""
    timeout_ms: int = -1
    started_ms: int = -1
    producer: ProducerIdentity = NOBODY
    partitions: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ListTransactionsRequest(Request["ListTransactionsResponse"]):
    """Transactional ids; empty filters let everything pass.

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
    """`unknown_states`: words of the filter that are no states."""

    unknown_states: tuple[str, ...] = ()
    transactions: tuple[ListedTransaction, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeProducersRequest(Request["DescribeProducersResponse"]):
    """Which idempotent producers a partition knows."""

    topic: str
    partition: int


class ActiveProducer(NamedTuple):
    """One of them; last_sequence −1: nothing in this epoch. open_since: first offset of its open transaction, or −1."""

    producer_id: int
    epoch: int
    last_sequence: int
    touched_ms: int
    open_since: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeProducersResponse:
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None
    producers: tuple[ActiveProducer, ...] = ()
