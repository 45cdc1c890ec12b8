"""Exactly once for each batch of a streaming query: two phases, decided by the driver.

A task writes its rows in a transaction of its own (transactional.id `flowshare-spark-<query>-<task>`), waits until all
of it is confirmed, and leaves it open. When all tasks have done so, the driver (`settle`)

1. checks that none of these transactions has ended meanwhile,
2. decides: notes the batch and its transactions in the query's ledger, in one write,
3. commits each of them, with as many retries as needed: a decided batch is never aborted.

| crash | what a restart finds | what becomes of the batch that Spark runs again |
|---|---|---|
| before 2 | the ledger is at an older batch | its transactions are aborted as their ids are taken up; written anew |
| between 2 and the end of 3 | the ledger is at this batch | tasks write nothing; the driver goes on with 3 |
| after 3, not in Spark's commit log | the same | the same; committing again changes nothing |

So the batch may come again with other rows, in another order or in another number of tasks. The ledger is the committed
offset of a consumer group without members (`flowshare-spark-<query>`): the offset is the batch, the metadata names
task, producer id and epoch of each transaction.

One failure remains, and is reported: a driver that dies in 3 and is away until transaction_timeout is over finds the
rest aborted by the broker (`TornBatch`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from flowshare.client.errors import DeliveryTimeout, ServerError, check
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.messages import (
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    OffsetCommitRequest,
    OffsetFetchRequest,
    OffsetToCommit,
    ProducerIdentity,
)
from flowshare.spark.sink.broker import CLOSE_S, SinkError

if TYPE_CHECKING:
    from flowshare.protocol.messages import Request
    from flowshare.spark.sink.broker import OpenBroker

PREFIX: Final = "flowshare-spark"
METADATA_BYTES_MAX: Final = 4096
"""The bytes of metadata that brokers store with an offset, by default (offset.metadata.max.bytes)."""
NOTHING: Final = -1
ABORT_S: Final = 5.0
OVER: Final = (
    ErrorCode.INVALID_PRODUCER_EPOCH,
    ErrorCode.PRODUCER_FENCED,
    ErrorCode.INVALID_TXN_STATE,
    ErrorCode.INVALID_PRODUCER_ID_MAPPING,
)
"""Errors that say that a transaction has ended in another way."""
R = TypeVar("R")

logger = logging.getLogger("flowshare.spark")


class TornBatch(SinkError):
    """A part of a batch is in its topics and the rest cannot be; the text says what can be done."""


class TaskOrigin(NamedTuple):
    """The origin of a task's rows: query id, batch id, the task's number."""

    query: str
    batch: int
    task: int

    def __str__(self) -> str:
        return f"{self.query}/{self.batch}/{self.task}"


@dataclass(frozen=True, slots=True)
class Prepared:
    """A transaction that waits for the driver's decision. topic, partition: one that the transaction wrote to."""

    task: int
    producer_id: int
    epoch: int
    topic: str = ""
    partition: int = 0

    @property
    def producer(self) -> ProducerIdentity:
        """The producer identity that may end the transaction."""
        return ProducerIdentity(self.producer_id, self.epoch)


class Decided(NamedTuple):
    """The content of a ledger: the last decided batch (NOTHING: none), and its transactions."""

    batch: int
    transactions: tuple[Prepared, ...]


def ledger_group(query: str) -> str:
    """Return the consumer group whose offset tells which batches of a query are finished."""
    return f"{PREFIX}-{query}"


def transactional_id(query: str, task: int) -> str:
    """Return the transactional id of a task; a new attempt fences earlier ones."""
    return f"{PREFIX}-{query}-{task}"


# --- a task -------------------------------------------------------------------------------------------------------


class TaskTransaction:
    """A task's transaction, from `begin` until it is prepared or aborted."""

    def __init__(self, broker: OpenBroker, origin: TaskOrigin) -> None:
        self._broker = broker
        self._origin = origin
        self.producer = broker.new_producer(transactional_id(origin.query, origin.task))

    async def begin(self) -> None:
        """Fence older attempts, whose open transactions are aborted, and begin. Raises: SinkError, ClientError."""
        try:
            await self.producer.begin()
        except ServerError as error:
            if error.code is not ErrorCode.INVALID_TRANSACTION_TIMEOUT:
                raise
            limit_s = self._broker.options.transaction_timeout
            raise SinkError(
                f"{self._broker.about} allows no transactions of {limit_s:g} s: lower the option transaction_timeout, "
                "or raise the brokers' transaction.max.timeout.ms"
            ) from error

    async def prepared(self, place: tuple[str, int]) -> Prepared:
        """Leave the transaction, in which everything is confirmed, open for the driver. place: one that was written
        to."""
        identity = self.producer.identity
        assert identity is not None, "it has begun"
        await self.producer.close(CLOSE_S)
        return Prepared(self._origin.task, *identity, *place)

    async def abort(self) -> None:
        """Abort the transaction; if the broker cannot be reached, the next attempt or the timeout does it."""
        if self.producer.identity is not None:
            try:
                await asyncio.wait_for(self.producer.abort(), ABORT_S)
            except Exception as error:  # noqa: BLE001 - the error that led here is the one to raise
                logger.info("transaction of %s was not aborted at once: %s", self._origin, error)
        await self.producer.close(CLOSE_S)


# --- the driver ---------------------------------------------------------------------------------------------------


async def decided(broker: OpenBroker, query: str) -> Decided:
    """Read the query's ledger. Raises: ClientError."""
    topic, group = broker.options.ledger_topic, ledger_group(query)
    request = OffsetFetchRequest(group_id=group, partitions=((topic, 0),))
    answer = await _ask(broker, f"group {group}", request, lambda answer: (answer, *answer.partitions))
    for found in answer.partitions:
        if found.offset != NOTHING:
            return Decided(found.offset, _from_text(found.metadata))
    return Decided(NOTHING, ())


async def settle(broker: OpenBroker, query: str, batch: int, mine: Sequence[Prepared]) -> None:
    """Commit a batch's transactions, or go on with an earlier decision.

    Raises: TornBatch, SinkError, ClientError.
    """
    before = await decided(broker, query)
    if before.batch >= batch and not await _finished(broker, query, batch, before, mine):
        return
    if not mine:
        return
    await _check_open(broker, query, mine)
    await _decide(broker, query, batch, mine)
    lost = await end(broker, query, mine, commit=True)
    if lost:
        raise _torn(broker, query, batch, mine, lost)
    last = max(one.task for one in mine)
    await _shut_out(broker, query, [one.task for one in before.transactions if one.task > last])


async def _finished(broker: OpenBroker, query: str, batch: int, before: Decided, mine: Sequence[Prepared]) -> bool:
    """Carry out an earlier decision about a batch; True: nothing of the batch was left, so it must be written.

    Raises: TornBatch, ClientError.
    """
    lost = []
    if before.batch == batch:
        lost = await end(broker, query, before.transactions, commit=True)
    if not lost:
        await end(broker, query, mine, commit=False)
        return False
    if len(lost) < len(before.transactions) or not mine:
        raise _torn(broker, query, batch, before.transactions, lost)
    logger.warning("batch %d of query %s was decided, and nothing of it is left: it is decided anew", batch, query)
    return True


async def end(broker: OpenBroker, query: str, transactions: Iterable[Prepared], *, commit: bool) -> list[Prepared]:
    """Commit or abort transactions, with retries; return those that had ended in another way. Raises: ClientError."""
    known = list(transactions)
    ended = await asyncio.gather(*(_end(broker, query, one, commit=commit) for one in known))
    return [one for one, done in zip(known, ended, strict=True) if not done]


async def _end(broker: OpenBroker, query: str, one: Prepared, *, commit: bool) -> bool:
    name = transactional_id(query, one.task)
    return await _is_ours(broker, name, EndTxnRequest(transactional_id=name, producer=one.producer, committed=commit))


async def _is_ours(broker: OpenBroker, name: str, request: AddPartitionsToTxnRequest | EndTxnRequest) -> bool:
    """Send a request about a transaction; False if the transaction has already ended in another way. Raises:
    ClientError."""
    try:
        await _ask(broker, name, request)
    except ServerError as error:
        if error.code in OVER:
            return False
        raise
    return True


async def _shut_out(broker: OpenBroker, query: str, tasks: Iterable[int]) -> None:
    """Abort transactions that dead tasks may have left open: readers wait for them. Raises: ClientError."""
    limit_ms = round(broker.options.transaction_timeout * 1000)
    names = [transactional_id(query, task) for task in tasks]
    requests = [InitProducerIdRequest(transactional_id=name, timeout_ms=limit_ms) for name in names]
    await asyncio.gather(*(_ask(broker, name, request) for name, request in zip(names, requests, strict=True)))


async def _check_open(broker: OpenBroker, query: str, transactions: Sequence[Prepared]) -> None:
    """Check that no transaction has ended, by adding a partition that it has already. Raises: SinkError."""
    found = await asyncio.gather(*(_is_open(broker, query, one) for one in transactions))
    gone = [one for one, is_open in zip(transactions, found, strict=True) if not is_open]
    if gone:
        await end(broker, query, transactions, commit=False)
        raise SinkError(
            f"{len(gone)} of {len(transactions)} transactions of query {query} ended before their batch was complete: "
            f"it took longer than {broker.options.transaction_timeout:g} s, or the query runs twice. Nothing of it is "
            "committed. Take smaller batches, or raise the option transaction_timeout (and the brokers' "
            "transaction.max.timeout.ms), and run one query for one checkpoint"
        )


async def _is_open(broker: OpenBroker, query: str, one: Prepared) -> bool:
    name, partitions = transactional_id(query, one.task), ((one.topic, one.partition),)
    request = AddPartitionsToTxnRequest(transactional_id=name, producer=one.producer, partitions=partitions)
    return await _is_ours(broker, name, request)


async def _decide(broker: OpenBroker, query: str, batch: int, transactions: Sequence[Prepared]) -> None:
    """Note the batch in the ledger. Raises: SinkError (too many transactions), ClientError."""
    text = _to_text(transactions)
    if len(text) > METADATA_BYTES_MAX:
        await end(broker, query, transactions, commit=False)
        raise SinkError(
            f"{len(transactions)} tasks wrote to the batch, and exactly_once can note about 300: put coalesce(200) "
            "before the sink. Nothing of the batch is committed"
        )
    topic, group = broker.options.ledger_topic, ledger_group(query)
    request = OffsetCommitRequest(group_id=group, offsets=(OffsetToCommit(topic, 0, batch, metadata=text),))
    await _ask(broker, f"group {group}", request, lambda answer: answer.partitions)


def _torn(
    broker: OpenBroker, query: str, batch: int, transactions: Sequence[Prepared], lost: Sequence[Prepared]
) -> TornBatch:
    tasks = ", ".join(str(one.task) for one in lost)
    return TornBatch(
        f"batch {batch} of query {query}: the rows of {len(lost)} of its {len(transactions)} tasks ({tasks}) are lost, "
        "those of the others are in their topics. The query was away for longer than the option transaction_timeout "
        f"({broker.options.transaction_timeout:g} s) between two steps of committing. To write the whole batch again, "
        f"so that the others' rows are there twice, run `flowshare groups delete {ledger_group(query)}` and start the "
        "query again"
    )


def _to_text(transactions: Iterable[Prepared]) -> str:
    return ",".join(f"{one.task}:{one.producer_id}:{one.epoch}" for one in transactions)


def _from_text(text: str) -> tuple[Prepared, ...]:
    parts = [[int(number) for number in part.split(":")] for part in text.split(",") if part]
    return tuple(Prepared(task, producer_id, epoch) for task, producer_id, epoch in parts)


# --- asking coordinators ------------------------------------------------------------------------------------------


async def _ask(
    broker: OpenBroker, who: str, request: Request[R], told: Callable[[R], Iterable[Any]] = lambda answer: (answer,)
) -> R:
    """Ask a coordinator, with retries for delivery_timeout, until the parts of the answer that `told` selects have no
    error.

    Raises: ServerError, DeliveryTimeout.
    """
    channel = broker.channel

    async def once(left_s: float) -> R:
        answer = await channel.ask(request, left_s)
        for part in told(answer):
            check(part.error, getattr(part, "message", None), f"{broker.about}, coordinator of {who}")
        return answer

    try:
        return await channel.until_answered(once, broker.options.delivery_timeout, _passes)
    except OSError as error:
        raise DeliveryTimeout(f"{broker.about}, coordinator of {who}: {error}") from error


def _passes(error: ServerError) -> bool:
    """True if the same request may succeed in a moment."""
    return error.retriable or error.code is ErrorCode.CONCURRENT_TRANSACTIONS
