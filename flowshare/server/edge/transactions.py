"""Producers and transactions at the socket: InitProducerId, AddPartitionsToTxn, AddOffsetsToTxn, EndTxn, and looks.

Transactions are of version 1 (KIP-890's version 2 is not offered): the highest versions of AddPartitionsToTxn and
EndTxn here are the last ones before it, so that no client expects more.

Rights: WRITE on the transactional id, on the topics that are added, READ on the group; DESCRIBE to look. A producer
without transactions needs WRITE on some topic, or IDEMPOTENT_WRITE on the cluster (KIP-679).
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.kafka import ApiKey
from flowshare.protocol.messages import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    DescribeProducersRequest,
    DescribeProducersResponse,
    DescribeTransactionRequest,
    DescribeTransactionResponse,
    EndTxnRequest,
    InitProducerIdRequest,
    InitProducerIdResponse,
    ListTransactionsRequest,
    ProducerIdentity,
)
from flowshare.server.answers import fitting
from flowshare.server.edge.base import Api, Call, Operation, Peer, ResourceType
from flowshare.server.edge.forms import (
    NO_TIME,
    Form,
    by_topic,
    duration,
    form,
    may_cluster,
    may_group,
    may_topic,
    milliseconds,
    topics_of,
)

if TYPE_CHECKING:
    from flowshare.server.failures import Refused
    from flowshare.server.topic_index import TopicIndex
    from flowshare.server.turns import Turns

FENCED_SINCE: Final = {ApiKey.INIT_PRODUCER_ID: 4}
"""First version that knows PRODUCER_FENCED; the others do from version 2 on. Before: INVALID_PRODUCER_EPOCH."""
FENCED_SINCE_OTHERS: Final = 2
START: Final = datetime.datetime.fromtimestamp(0, datetime.UTC)


class TransactionsEdge:
    """Answers the APIs of producers and transactions."""

    def __init__(self, topics: TopicIndex) -> None:
        self._topics = topics

    def apis(self) -> Sequence[Api]:
        """The seven APIs."""
        return (
            Api(key=ApiKey.INIT_PRODUCER_ID, lowest=0, highest=5, answer=self.init),
            Api(key=ApiKey.ADD_PARTITIONS_TO_TXN, lowest=0, highest=3, answer=self.add_partitions),
            Api(key=ApiKey.ADD_OFFSETS_TO_TXN, lowest=0, highest=4, answer=self.add_offsets),
            Api(key=ApiKey.END_TXN, lowest=0, highest=4, answer=self.end),
            Api(key=ApiKey.DESCRIBE_PRODUCERS, lowest=0, highest=0, answer=self.describe_producers),
            Api(key=ApiKey.DESCRIBE_TRANSACTIONS, lowest=0, highest=0, answer=self.describe),
            Api(key=ApiKey.LIST_TRANSACTIONS, lowest=0, highest=1, answer=self.list),
        )

    async def init(self, call: Call) -> Any:
        """InitProducerId."""
        ask, make = call.request, form("init_producer_id", call.version)
        transactional_id = ask.transactional_id
        if transactional_id is None:
            error = ErrorCode.NONE if _may_produce(call.peer) else ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        else:
            error = _may(call.peer, Operation.WRITE, transactional_id)
        got = InitProducerIdResponse(error=error)
        if error is ErrorCode.NONE:
            got = await call.peer.connection.send(
                InitProducerIdRequest(
                    transactional_id=transactional_id,
                    timeout_ms=milliseconds(ask.transaction_timeout),
                    known=_producer(ask) if call.version >= 3 else ProducerIdentity(),
                )
            )
        return make(
            "InitProducerIdResponse",
            throttle_time=NO_TIME,
            error_code=_told(got.error, ApiKey.INIT_PRODUCER_ID, call.version),
            producer_id=got.producer.producer_id,
            producer_epoch=got.producer.epoch,
        )

    async def add_partitions(self, call: Call) -> Any:
        """AddPartitionsToTxn: all partitions, or none."""
        ask, make = call.request, form("add_partitions_to_txn", call.version)
        turns = call.peer.turns
        errors: dict[tuple[str, int], ErrorCode] = {}
        for topic in ask.v3_and_below_topics:
            partitions = self._addable(call.peer, topic.name)
            async for some in turns.few(topic.partitions):
                errors.update(((topic.name, number), partitions(number)) for number in some)
        places = tuple(errors)
        transactional_id = ask.v3_and_below_transactional_id
        error = _may(call.peer, Operation.WRITE, transactional_id)
        if error is not ErrorCode.NONE:
            return await _added(make, turns, ((place, error) for place in places))
        if not {ErrorCode.NONE}.issuperset(errors.values()):
            skipped = ErrorCode.OPERATION_NOT_ATTEMPTED
            return await _added(make, turns, ((place, error or skipped) for place, error in errors.items()))
        got = await call.peer.connection.send(
            AddPartitionsToTxnRequest(
                transactional_id=transactional_id,
                producer=ProducerIdentity(int(ask.v3_and_below_producer_id), int(ask.v3_and_below_producer_epoch)),
                partitions=places,
            )
        )
        told = _told(got.error, ApiKey.ADD_PARTITIONS_TO_TXN, call.version)
        return await _added(make, turns, ((place, told) for place in places))

    def _addable(self, peer: Peer, topic: str) -> Callable[[int], ErrorCode]:
        """What speaks against a partition of the topic, by its number.

        A topic that is deleted afterwards is passed over when the transaction ends.
        """
        if not may_topic(peer, Operation.WRITE, topic):
            return lambda _: ErrorCode.TOPIC_AUTHORIZATION_FAILED
        known = self._topics.by_name(topic)
        there = range(0 if known is None else known.partitions)
        return lambda number: ErrorCode.NONE if number in there else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    async def add_offsets(self, call: Call) -> Any:
        """AddOffsetsToTxn."""
        ask = call.request
        error = _may(call.peer, Operation.WRITE, ask.transactional_id)
        if error is ErrorCode.NONE and not may_group(call.peer, Operation.READ, ask.group_id):
            error = ErrorCode.GROUP_AUTHORIZATION_FAILED
        if error is ErrorCode.NONE:
            got = await call.peer.connection.send(
                AddOffsetsToTxnRequest(
                    transactional_id=ask.transactional_id, producer=_producer(ask), group_id=ask.group_id
                )
            )
            error = _told(got.error, ApiKey.ADD_OFFSETS_TO_TXN, call.version)
        make = form("add_offsets_to_txn", call.version)
        return make("AddOffsetsToTxnResponse", throttle_time=NO_TIME, error_code=error)

    async def end(self, call: Call) -> Any:
        """EndTxn."""
        ask = call.request
        async with call.peer.producing:
            pass  # records that were sent before are of the transaction
        error = _may(call.peer, Operation.WRITE, ask.transactional_id)
        if error is ErrorCode.NONE:
            got = await call.peer.connection.send(
                EndTxnRequest(transactional_id=ask.transactional_id, producer=_producer(ask), committed=ask.committed)
            )
            error = _told(got.error, ApiKey.END_TXN, call.version)
        return form("end_txn", call.version)("EndTxnResponse", throttle_time=NO_TIME, error_code=error)

    # --- looks ----------------------------------------------------------------------------------------------------

    async def describe_producers(self, call: Call) -> Any:
        """DescribeProducers."""
        make = form("describe_producers", call.version)
        topics: list[Any] = []
        asked = by_topic((topic.name, number) for topic in call.request.topics for number in topic.partition_indexes)
        for name, numbers in asked.items():
            allowed = may_topic(call.peer, Operation.READ, name)
            parts: list[Any] = []
            for number in dict.fromkeys(numbers):
                await call.peer.turns.take()
                got = DescribeProducersResponse(error=ErrorCode.TOPIC_AUTHORIZATION_FAILED)
                if allowed:
                    ask = DescribeProducersRequest(topic=name, partition=int(number))
                    got = await call.peer.connection.send(ask)
                parts.append(
                    fitting(
                        partial(_producers, make, number, got),
                        partial(_no_producers, make, number),
                    )
                )
            topics.append(make("TopicResponse", name=name, partitions=tuple(parts)))
        return make("DescribeProducersResponse", throttle_time=NO_TIME, topics=tuple(topics))

    async def describe(self, call: Call) -> Any:
        """DescribeTransactions."""
        make = form("describe_transactions", call.version)
        states: list[Any] = []
        for transactional_id in dict.fromkeys(call.request.transactional_ids):
            await call.peer.turns.take()
            got = DescribeTransactionResponse(error=_may(call.peer, Operation.DESCRIBE, transactional_id))
            if got.error is ErrorCode.NONE:
                got = await call.peer.connection.send(DescribeTransactionRequest(transactional_id=transactional_id))
            seen = [place for place in got.partitions if may_topic(call.peer, Operation.DESCRIBE, place[0])]
            states.append(
                fitting(
                    partial(_transaction, make, transactional_id, got, seen),
                    partial(_no_transaction, make, transactional_id),
                )
            )
        return make("DescribeTransactionsResponse", throttle_time=NO_TIME, transaction_states=tuple(states))

    async def list(self, call: Call) -> Any:
        """ListTransactions: those that the peer may describe."""
        ask, make = call.request, form("list_transactions", call.version)
        got = await call.peer.connection.send(
            ListTransactionsRequest(
                states=tuple(ask.state_filters),
                producer_ids=tuple(int(number) for number in ask.producer_id_filters),
                running_ms=int(ask.duration_filter) if call.version >= 1 else -1,
            )
        )
        states: list[Any] = []
        for one in got.transactions:
            await call.peer.turns.take()
            if _may(call.peer, Operation.DESCRIBE, one.transactional_id) is ErrorCode.NONE:
                states.append(
                    make(
                        "TransactionState",
                        transactional_id=one.transactional_id,
                        producer_id=one.producer_id,
                        transaction_state=one.state,
                    )
                )
        return make(
            "ListTransactionsResponse",
            throttle_time=NO_TIME,
            error_code=ErrorCode.NONE,
            unknown_state_filters=got.unknown_states,
            transaction_states=tuple(states),
        )


def _transaction(
    make: Form, transactional_id: str, got: DescribeTransactionResponse, seen: Iterable[tuple[str, int]]
) -> Any:
    return make(
        "TransactionState",
        error_code=got.error,
        transactional_id=transactional_id,
        transaction_state=got.state,
        transaction_timeout=duration(max(got.timeout_ms, 0)),
        transaction_start_time=START + datetime.timedelta(milliseconds=0 if got.error else got.started_ms),
        producer_id=got.producer.producer_id,
        producer_epoch=got.producer.epoch,
        topics=tuple(
            make("TopicData", topic=name, partitions=tuple(numbers)) for name, numbers in by_topic(seen).items()
        ),
    )


def _no_transaction(make: Form, transactional_id: str, error: Refused) -> Any:
    return _transaction(make, transactional_id, DescribeTransactionResponse(error=error.code), ())


def _may(peer: Peer, operation: Operation, transactional_id: str) -> ErrorCode:
    allowed = peer.may(operation, ResourceType.TRANSACTIONAL_ID, transactional_id)
    return ErrorCode.NONE if allowed else ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


def _may_produce(peer: Peer) -> bool:
    return may_cluster(peer, Operation.IDEMPOTENT_WRITE) or peer.may_somewhere(Operation.WRITE, ResourceType.TOPIC)


def _producer(ask: Any) -> ProducerIdentity:
    return ProducerIdentity(int(ask.producer_id), int(ask.producer_epoch))


def _told(error: ErrorCode, key: ApiKey, version: int) -> ErrorCode:
    """The error in words of the client's version."""
    if error is ErrorCode.PRODUCER_FENCED and version < FENCED_SINCE.get(key, FENCED_SINCE_OTHERS):
        return ErrorCode.INVALID_PRODUCER_EPOCH
    return error


async def _added(make: Form, turns: Turns, errors: Iterable[tuple[tuple[str, int], ErrorCode]]) -> Any:
    part = "AddPartitionsToTxnPartitionResult"
    results = await topics_of(
        turns,
        ((topic, make(part, partition_index=number, partition_error_code=error)) for (topic, number), error in errors),
        lambda name, parts: make("AddPartitionsToTxnTopicResult", name=name, results_by_partition=parts),
    )
    return make("AddPartitionsToTxnResponse", throttle_time=NO_TIME, results_by_topic_v3_and_below=results)


def _producers(make: Form, partition: int, got: DescribeProducersResponse) -> Any:
    active = tuple(
        make(
            "ProducerState",
            producer_id=one.producer_id,
            producer_epoch=one.epoch,
            last_sequence=one.last_sequence,
            last_timestamp=one.touched_ms,
            coordinator_epoch=0,
            current_txn_start_offset=one.open_since,
        )
        for one in got.producers
    )
    return make(
        "PartitionResponse",
        partition_index=partition,
        error_code=got.error,
        error_message=got.message,
        active_producers=active,
    )


def _no_producers(make: Form, partition: int, error: Refused) -> Any:
    return _producers(make, partition, DescribeProducersResponse(error=error.code, message=str(error)))
