"""The APIs of producers and transactions: from plain requests to `Transactions` and the log."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from flowshare.clock import ahead_ms
from flowshare.log.base import LogError
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
    TransactionResponse,
)
from flowshare.server import answers
from flowshare.server.failures import EXPECTED, failure
from flowshare.server.state import GROUP_ID_BYTES_MAX
from flowshare.transactions.coordinator import Asker
from flowshare.transactions.transaction import State

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from flowshare.clock import Clock
    from flowshare.log.base import Log
    from flowshare.server.connection import Handlers, InProcess
    from flowshare.server.transactions import Transactions
    from flowshare.transactions.transaction import Transaction

T = TypeVar("T")


class TransactionApis:
    """Answers requests about producers and transactions."""

    def __init__(self, *, transactions: Transactions, log: Log, clock: Clock) -> None:
        self._transactions = transactions
        self._log = log
        self._clock = clock

    def handlers(self) -> Handlers:
        """What this family answers."""
        return {
            InitProducerIdRequest: self.init,
            AddPartitionsToTxnRequest: self.add_partitions,
            AddOffsetsToTxnRequest: self.add_offsets,
            EndTxnRequest: self.end,
            DescribeTransactionRequest: self.describe,
            ListTransactionsRequest: self.list,
            DescribeProducersRequest: self.describe_producers,
        }

    async def init(self, request: InitProducerIdRequest, connection: InProcess) -> InitProducerIdResponse:
        """Give a producer its id and epoch."""
        try:
            if request.transactional_id is None:
                made = await self._transactions.new_producer()
            else:
                known = Asker(*request.known)
                party = connection.counts_as()
                made = await self._transactions.init(request.transactional_id, request.timeout_ms, known, party)
        except EXPECTED as error:
            code, message = failure(error)
            return InitProducerIdResponse(error=code, message=message)
        return InitProducerIdResponse(producer=ProducerIdentity(*made))

    async def add_partitions(self, request: AddPartitionsToTxnRequest, connection: InProcess) -> TransactionResponse:
        """Take partitions into the transaction."""
        asker, party = Asker(*request.producer), connection.counts_as()
        adding = self._transactions.add(request.transactional_id, asker, partitions=request.partitions, party=party)
        return await _answer(adding)

    async def add_offsets(self, request: AddOffsetsToTxnRequest, connection: InProcess) -> TransactionResponse:
        """Take a group's offsets into the transaction."""
        group_id = request.group_id
        if not 0 < len(group_id.encode()) <= GROUP_ID_BYTES_MAX:
            text = f"a group id has 1 to {GROUP_ID_BYTES_MAX} bytes"
            return TransactionResponse(error=ErrorCode.INVALID_GROUP_ID, message=text)
        asker, party = Asker(*request.producer), connection.counts_as()
        return await _answer(self._transactions.add(request.transactional_id, asker, groups=(group_id,), party=party))

    async def end(self, request: EndTxnRequest, _: InProcess) -> TransactionResponse:
        """Commit or abort."""
        asker = Asker(*request.producer)
        return await _answer(self._transactions.end(request.transactional_id, asker, committed=request.committed))

    async def describe(self, request: DescribeTransactionRequest, _: InProcess) -> DescribeTransactionResponse:
        """What is known of a transactional id."""
        try:
            found = self._transactions.get(request.transactional_id)
        except EXPECTED as error:
            code, message = failure(error)
            return DescribeTransactionResponse(error=code, message=message)
        return DescribeTransactionResponse(
            state=found.state.value,
            timeout_ms=found.timeout_ms,
            started_ms=found.shifted(ahead_ms(self._clock)).started_ms,
            producer=ProducerIdentity(found.producer_id, found.epoch),
            partitions=tuple(sorted(found.partitions)),
        )

    async def list(self, request: ListTransactionsRequest, _: InProcess) -> ListTransactionsResponse:
        """All transactional ids that pass the filters."""
        words = {state.value for state in State}
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
        """Whether it has been open for longer; any is with a negative limit."""
        return running_ms < 0 or (one.started_ms >= 0 and self._clock.steady_ms() - one.started_ms > running_ms)

    async def describe_producers(self, request: DescribeProducersRequest, _: InProcess) -> DescribeProducersResponse:
        """The idempotent producers that a partition knows."""
        try:
            known = self._log.producers(request.topic, request.partition)
        except LogError as error:
            code, message = failure(error)
            return DescribeProducersResponse(error=code, message=message)
        ahead = ahead_ms(self._clock)
        return DescribeProducersResponse(
            producers=tuple(
                ActiveProducer(number, one.epoch, one.last_sequence, one.touched_ms + ahead, one.open_since)
                for number, one in sorted(known.items())
            )
        )


async def _answer(work: Awaitable[None]) -> TransactionResponse:
    try:
        await work
    except EXPECTED as error:
        code, message = failure(error)
        return TransactionResponse(error=code, message=message)
    return TransactionResponse(error=ErrorCode.NONE)
