"""The APIs of producers and transactions: from plain requests to `TransactionCoordinator` and the log."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flowshare.clock import ahead_ms
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.messages import (
    ActiveProducer,
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    DescribeProducersRequest,
    DescribeProducersResponse,
    DescribeTransactionRequest,
    DescribeTransactionResponse,
    EndTxnRequest,
    InitProducerIdRequest,
    InitProducerIdResponse,
    ListedTransaction,
    ListTransactionsRequest,
    ListTransactionsResponse,
    ProducerIdentity,
)
from flowshare.protocol.messages.base import Response
from flowshare.server.runtime import answers
from flowshare.server.runtime.connection import Family, InProcess, handles
from flowshare.server.runtime.failures import Refused
from flowshare.server.runtime.state import GROUP_ID_BYTES_MAX
from flowshare.transactions.coordinator import AskingProducer
from flowshare.transactions.transaction import TransactionState

if TYPE_CHECKING:
    from flowshare.clock import Clock
    from flowshare.log.storage import BrokerStorage
    from flowshare.server.transactions.coordinator import TransactionCoordinator
    from flowshare.transactions.transaction import Transaction


class TransactionApis(Family):
    """Answers requests about producers and transactions."""

    def __init__(self, *, transactions: TransactionCoordinator, log: BrokerStorage, clock: Clock) -> None:
        self._transactions = transactions
        self._log = log
        self._clock = clock

    @handles(InitProducerIdRequest, InitProducerIdResponse)
    async def init(self, request: InitProducerIdRequest, connection: InProcess) -> InitProducerIdResponse:
        """Give a producer its id and epoch."""
        if request.transactional_id is None:
            made = await self._transactions.new_producer()
        else:
            known = AskingProducer(*request.known)
            party = connection.counts_as()
            made = await self._transactions.init(request.transactional_id, request.timeout_ms, known, party)
        return InitProducerIdResponse(producer=ProducerIdentity(*made))

    @handles(AddPartitionsToTxnRequest, Response)
    async def add_partitions(self, request: AddPartitionsToTxnRequest, connection: InProcess) -> Response:
        """Add partitions to the transaction."""
        asker, party = AskingProducer(*request.producer), connection.counts_as()
        await self._transactions.add(request.transactional_id, asker, partitions=request.partitions, party=party)
        return Response(error=ErrorCode.NONE)

    @handles(AddOffsetsToTxnRequest, Response)
    async def add_offsets(self, request: AddOffsetsToTxnRequest, connection: InProcess) -> Response:
        """Add a group's offsets to the transaction."""
        group_id = request.group_id
        if not 0 < len(group_id.encode()) <= GROUP_ID_BYTES_MAX:
            raise Refused(ErrorCode.INVALID_GROUP_ID, f"a group id has 1 to {GROUP_ID_BYTES_MAX} bytes")
        asker, party = AskingProducer(*request.producer), connection.counts_as()
        await self._transactions.add(request.transactional_id, asker, groups=(group_id,), party=party)
        return Response(error=ErrorCode.NONE)

    @handles(EndTxnRequest, Response)
    async def end(self, request: EndTxnRequest, _: InProcess) -> Response:
        """Commit or abort."""
        asker = AskingProducer(*request.producer)
        await self._transactions.end(request.transactional_id, asker, committed=request.committed)
        return Response(error=ErrorCode.NONE)

    @handles(DescribeTransactionRequest, DescribeTransactionResponse)
    async def describe(self, request: DescribeTransactionRequest, _: InProcess) -> DescribeTransactionResponse:
        """Describe the transaction of a transactional id."""
        found = self._transactions.get(request.transactional_id)
        return DescribeTransactionResponse(
            state=found.state.value,
            timeout_ms=found.timeout_ms,
            started_ms=found.shifted(ahead_ms(self._clock)).started_ms,
            producer=ProducerIdentity(found.producer_id, found.epoch),
            partitions=tuple(sorted(found.partitions)),
        )

    @handles(ListTransactionsRequest)
    async def list(self, request: ListTransactionsRequest, _: InProcess) -> ListTransactionsResponse:
        """List all transactional ids that pass the filters."""
        words = {state.value for state in TransactionState}
        states, producer_ids = frozenset(request.states), frozenset(request.producer_ids)

        def wanted(one: Transaction) -> bool:
            return (
                (not states or one.state.value in states)
                and (not producer_ids or one.producer_id in producer_ids)
                and self._runs_longer(one, request.running_ms)
            )

        found: list[ListedTransaction] = []
        async for some in answers.turns(self._clock).few(self._transactions.all()):
            found += (
                ListedTransaction(one.transactional_id, one.producer_id, one.state.value)
                for one in filter(wanted, some)
            )
        unknown = tuple(word for word in dict.fromkeys(request.states) if word not in words)
        return ListTransactionsResponse(unknown_states=unknown, transactions=tuple(sorted(found)))

    def _runs_longer(self, one: Transaction, running_ms: int) -> bool:
        """Return True if the transaction has been open for longer than `running_ms`; with a negative limit always
        True."""
        return running_ms < 0 or (one.started_ms >= 0 and self._clock.steady_ms() - one.started_ms > running_ms)

    @handles(DescribeProducersRequest, DescribeProducersResponse)
    async def describe_producers(self, request: DescribeProducersRequest, _: InProcess) -> DescribeProducersResponse:
        """Describe the idempotent producers that a partition knows."""
        known = self._log.producers(request.topic, request.partition)
        ahead = ahead_ms(self._clock)
        return DescribeProducersResponse(
            producers=tuple(
                ActiveProducer(number, one.epoch, one.last_sequence, one.touched_ms + ahead, one.open_since)
                for number, one in sorted(known.items())
            )
        )
