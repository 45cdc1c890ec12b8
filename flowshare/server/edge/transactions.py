"""Producers and transactions at the socket: InitProducerId, AddPartitionsToTxn, AddOffsetsToTxn, EndTxn, and
descriptions.

Transactions are of version 1 (KIP-890's version 2 is not offered): the highest versions of AddPartitionsToTxn and
EndTxn here are the last ones before it, so that no client expects more.

Rights: WRITE on the transactional id, on the topics that are added, READ on the group; DESCRIBE to look. A producer
without transactions needs WRITE on some topic, or IDEMPOTENT_WRITE on the cluster (KIP-679).
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache, partial
from itertools import compress
from typing import Final, NamedTuple, TypeVar

from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.messages.base import Response
from flowshare.protocol.messages.transactions import (
    ADD_OFFSETS_TO_TXN,
    ADD_PARTITIONS_TO_TXN,
    DESCRIBE_TRANSACTIONS,
    END_TXN,
    INIT_PRODUCER_ID,
    LIST_TRANSACTIONS,
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    DescribeTransactionRequest,
    DescribeTransactionResponse,
    EndTxnRequest,
    InitProducerIdRequest,
    InitProducerIdResponse,
    ListTransactionsRequest,
    ListTransactionsResponse,
)
from flowshare.protocol.rights import Operation, ResourceType
from flowshare.server.edge.base import Peer, SocketCall, may_topic
from flowshare.server.edge.derived import derived

INIT_FENCED_FROM: Final = 4
"""First version of InitProducerId that knows PRODUCER_FENCED. Before: INVALID_PRODUCER_EPOCH."""
FENCED_FROM: Final = 2
"""First such version of the other APIs."""
Place = tuple[str, int]
R = TypeVar("R", InitProducerIdResponse, Response)


class Added(NamedTuple):
    """The outcome for partitions to add: (topic, partition, error)."""

    results: tuple[tuple[str, int, ErrorCode], ...]


async def add_partitions(call: SocketCall, request: AddPartitionsToTxnRequest) -> Added:
    """Add all partitions, or none."""
    turns, places = call.peer.turns, tuple(dict.fromkeys(request.partitions))
    there = cache(partial(_partitions, call.peer))
    errors = await turns.each(lambda place: _error(place[1], there(place[0])), places)
    if not call.peer.may(Operation.WRITE, ResourceType.TRANSACTIONAL_ID, request.transactional_id):
        errors = (ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,) * len(places)
    elif any(errors):
        errors = tuple([error or ErrorCode.OPERATION_NOT_ATTEMPTED for error in errors])
    else:
        answer = await call.peer.connection.send(replace(request, partitions=places))
        errors = (_told(call, answer).error,) * len(places)
    return Added(tuple([(*place, error) for place, error in zip(places, errors, strict=True)]))


def _partitions(peer: Peer, topic: str) -> int | None:
    """Return the partition count of a topic that the peer may write to; None: it may not. A topic deleted afterwards is
    passed over when the transaction ends."""
    known = peer.server.topics.by_name(topic)
    there = 0 if known is None else known.partitions
    return there if may_topic(peer, Operation.WRITE, topic) else None


def _error(number: int, there: int | None) -> ErrorCode:
    """Return a partition's error, or NONE. there: partitions of the topic; None: writing is not allowed."""
    if there is None:
        return ErrorCode.TOPIC_AUTHORIZATION_FAILED
    return ErrorCode.NONE if 0 <= number < there else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def init(call: SocketCall, request: InitProducerIdRequest) -> InitProducerIdResponse:
    """Return a producer's id and epoch."""
    peer, transactional_id = call.peer, request.transactional_id
    if transactional_id is not None:
        peer.need(Operation.WRITE, ResourceType.TRANSACTIONAL_ID, transactional_id)
    elif not peer.may_somewhere(Operation.WRITE, ResourceType.TOPIC):
        peer.need(Operation.IDEMPOTENT_WRITE, ResourceType.CLUSTER)
    return _told(call, await peer.connection.send(request), INIT_FENCED_FROM)


async def add_offsets(call: SocketCall, request: AddOffsetsToTxnRequest) -> Response:
    """Announce that a group's offsets will be committed."""
    call.peer.need(Operation.WRITE, ResourceType.TRANSACTIONAL_ID, request.transactional_id)
    call.peer.need(Operation.READ, ResourceType.GROUP, request.group_id)
    return _told(call, await call.peer.connection.send(request))


async def end(call: SocketCall, request: EndTxnRequest) -> Response:
    """Commit or abort."""
    async with call.peer.producing:
        pass  # records that were sent before belong to the transaction
    call.peer.need(Operation.WRITE, ResourceType.TRANSACTIONAL_ID, request.transactional_id)
    return _told(call, await call.peer.connection.send(request))


async def describe(call: SocketCall, request: DescribeTransactionRequest) -> DescribeTransactionResponse:
    """Describe a transactional id, with the partitions of its transaction that the peer may see."""
    call.peer.need(Operation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, request.transactional_id)
    found = await call.peer.connection.send(request)
    seen = tuple([place for place in found.partitions if may_topic(call.peer, Operation.DESCRIBE, place[0])])
    return replace(found, partitions=seen)


async def listed(call: SocketCall, request: ListTransactionsRequest) -> ListTransactionsResponse:
    """List the transactional ids that the peer may describe."""
    found = await call.peer.connection.send(request)
    may = await call.peer.turns.each(
        lambda one: call.peer.may(Operation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, one.transactional_id),
        found.transactions,
    )
    return replace(found, transactions=tuple(compress(found.transactions, may)))


def _told(call: SocketCall, answer: R, fenced_from: int = FENCED_FROM) -> R:
    """Return the answer with an error that the client's version knows."""
    if answer.error is ErrorCode.PRODUCER_FENCED and call.version < fenced_from:
        return replace(answer, error=ErrorCode.INVALID_PRODUCER_EPOCH)
    return answer


ENDPOINTS: Final = (
    derived(INIT_PRODUCER_ID, init),
    derived(ADD_PARTITIONS_TO_TXN, add_partitions),
    derived(ADD_OFFSETS_TO_TXN, add_offsets),
    derived(END_TXN, end),
    derived(DESCRIBE_TRANSACTIONS, describe),
    derived(LIST_TRANSACTIONS, listed),
)
