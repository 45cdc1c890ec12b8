"""Exactly once for each batch of a streaming query: two phases, decided by the driver.

A task writes its rows in a transaction of its own (transactional.id `flowshare-spark-<query>-<task>`), waits until all
of it is confirmed, and leaves it open. When all tasks have done so, the driver (`settle`)

1. sees that none of these transactions has ended meanwhile,
2. decides: notes the batch and its transactions in the query's ledger, in one write,
3. commits each of them, and does so again as often as need be: a decided batch is never aborted.

| crash | what a restart finds | what becomes of the batch that Spark runs again |
|---|---|---|
| before 2 | the ledger is at an older batch | its transactions are aborted as their ids are taken up; written anew |
| between 2 and the end of 3 | the ledger is at this batch | tasks write nothing; the driver goes on with 3 |
| after 3, not in Spark's commit log | the same | the same; committing again changes nothing |

So it does not matter whether the batch comes again with the same rows, in the same order or in as many tasks. The
ledger is the committed offset of a consumer group that nobody is in (`flowshare-spark-<query>`): the offset is the
batch, the metadata names task, producer id and epoch of each transaction.

What can go wrong, and is said: a driver that dies in 3 and is away until transaction_timeout is over finds the rest
aborted by the broker (`TornBatch`).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from flowshare.client.errors import ServerError
from flowshare.client.kafka_errors import problem_of
from flowshare.protocol.errors import ErrorCode
from flowshare.spark.sink_line import RETRY_S, SinkError, stop

if TYPE_CHECKING:
    from aiokafka.client import AIOKafkaClient

    from flowshare.spark.sink_line import Line

PREFIX: Final = "flowshare-spark"
METADATA_BYTES_MAX: Final = 4096
"""What brokers keep with an offset unless offset.metadata.max.bytes says more."""
NOTHING: Final = -1
ABORT_S: Final = 5.0

logger = logging.getLogger("flowshare.spark")


class TornBatch(SinkError):
    """A part of a batch is in its topics and the rest cannot be; the text says what can be done."""


class Origin(NamedTuple):
    """What a task writes: query id, batch id, the task's number."""

    query: str
    batch: int
    task: int

    def __str__(self) -> str:
        return f"{self.query}/{self.batch}/{self.task}"


@dataclass(frozen=True, slots=True)
class Prepared:
    """A transaction that waits for the driver's decision. topic, partition: one that it wrote to."""

    task: int
    producer_id: int
    epoch: int
    topic: str = ""
    partition: int = 0


class Decided(NamedTuple):
    """What a ledger says: the last batch that was decided (NOTHING: none), and its transactions."""

    batch: int
    transactions: tuple[Prepared, ...]


def ledger_group(query: str) -> str:
    """The consumer group whose offset says which batches of a query are finished."""
    return f"{PREFIX}-{query}"


def transactional_id(query: str, task: int) -> str:
    """Of a task; a new attempt shuts out those before it."""
    return f"{PREFIX}-{query}-{task}"


# --- a task -------------------------------------------------------------------------------------------------------


class Transaction:
    """A task's transaction, from `begin` until it is prepared or aborted."""

    def __init__(self, line: Line, origin: Origin) -> None:
        self._line = line
        self._origin = origin
        self.producer: Any = None

    async def begin(self) -> None:
        """Shut older attempts out, whose open transactions are aborted, and begin. Raises: SinkError, ClientError."""
        limit_s = self._line.options.transaction_timeout
        name = transactional_id(self._origin.query, self._origin.task)
        identity = {"transactional_id": name, "transaction_timeout_ms": round(limit_s * 1000)}
        try:
            self.producer = await self._line.start_producer(identity)
        except ServerError as error:
            if error.code is not ErrorCode.INVALID_TRANSACTION_TIMEOUT:
                raise
            raise SinkError(
                f"{self._line.about} allows no transactions of {limit_s:g} s: lower the option transaction_timeout, or "
                "raise the brokers' transaction.max.timeout.ms"
            ) from error
        await self.producer.begin_transaction()

    async def prepared(self, place: tuple[str, int]) -> Prepared:
        """Leave it open for the driver; everything in it is confirmed. place: one that was written to."""
        manager = self.producer._txn_manager  # noqa: SLF001 - aiokafka tells nobody else who it is
        found = Prepared(self._origin.task, manager.producer_id, manager.producer_epoch, *place)
        await stop(self.producer)
        return found

    async def abort(self) -> None:
        """Give it up; if the broker cannot be told, the next attempt or the timeout does it."""
        if self.producer is None:
            return
        try:
            await asyncio.wait_for(self.producer.abort_transaction(), ABORT_S)
        except Exception as error:  # noqa: BLE001 - the error that led here is the one to raise
            logger.info("transaction of %s was not aborted at once: %s", self._origin, error)
        await stop(self.producer)


# --- the driver ---------------------------------------------------------------------------------------------------


async def decided(line: Line, query: str) -> Decided:
    """What the query's ledger says. Raises: ClientError."""
    from aiokafka.protocol.commit import OffsetFetchRequest

    topic, group = line.options.ledger_topic, ledger_group(query)
    answer = await _ask(line, "GROUP", group, OffsetFetchRequest(group, [(topic, [0])]), _fetch_codes)
    for _, partitions in answer.topics:
        for _, offset, metadata, _ in partitions:
            if offset != NOTHING:
                return Decided(offset, _from_text(metadata))
    return Decided(NOTHING, ())


async def settle(line: Line, query: str, batch: int, mine: Sequence[Prepared]) -> None:
    """Commit a batch's transactions, or go on with what was decided before.

    Raises: TornBatch, SinkError, ClientError.
    """
    before = await decided(line, query)
    if before.batch >= batch and not await _finished(line, query, batch, before, mine):
        return
    if not mine:
        return
    await _check_open(line, query, mine)
    await _decide(line, query, batch, mine)
    lost = await end(line, query, mine, commit=True)
    if lost:
        raise _torn(line, query, batch, mine, lost)
    last = max(one.task for one in mine)
    await _shut_out(line, query, [one.task for one in before.transactions if one.task > last])


async def _finished(line: Line, query: str, batch: int, before: Decided, mine: Sequence[Prepared]) -> bool:
    """Carry out what was decided about a batch before; whether nothing of it was left, so that it is to be written.

    Raises: TornBatch, ClientError.
    """
    lost = []
    if before.batch == batch:
        lost = await end(line, query, before.transactions, commit=True)
    if not lost:
        await end(line, query, mine, commit=False)
        return False
    if len(lost) < len(before.transactions) or not mine:
        raise _torn(line, query, batch, before.transactions, lost)
    logger.warning("batch %d of query %s was decided, and nothing of it is left: it is decided anew", batch, query)
    return True


async def end(line: Line, query: str, transactions: Iterable[Prepared], *, commit: bool) -> list[Prepared]:
    """Commit or abort transactions, again if need be; returns those that had ended otherwise. Raises: ClientError."""
    known = list(transactions)
    ended = await asyncio.gather(*(_end(line, query, one, commit=commit) for one in known))
    return [one for one, done in zip(known, ended, strict=True) if not done]


async def _end(line: Line, query: str, one: Prepared, *, commit: bool) -> bool:
    from aiokafka.protocol.transaction import EndTxnRequest

    name = transactional_id(query, one.task)
    request = EndTxnRequest(name, one.producer_id, one.epoch, commit)
    try:
        await _ask(line, "TRANSACTION", name, request, lambda answer: [answer.error_code], over=_over())
    except _over():
        return False
    return True


async def _shut_out(line: Line, query: str, tasks: Iterable[int]) -> None:
    """Abort what tasks that are no more may have left open when they died: readers wait for it. Raises: ClientError."""
    from aiokafka.protocol.transaction import InitProducerIdRequest

    limit_ms = round(line.options.transaction_timeout * 1000)
    names = [transactional_id(query, task) for task in tasks]
    requests = [InitProducerIdRequest(name, limit_ms) for name in names]
    await asyncio.gather(
        *(
            _ask(line, "TRANSACTION", name, request, lambda answer: [answer.error_code])
            for name, request in zip(names, requests, strict=True)
        )
    )


async def _check_open(line: Line, query: str, transactions: Sequence[Prepared]) -> None:
    """See that none has ended: adding a partition that a transaction has changes nothing. Raises: SinkError."""
    found = await asyncio.gather(*(_is_open(line, query, one) for one in transactions))
    gone = [one for one, is_open in zip(transactions, found, strict=True) if not is_open]
    if gone:
        await end(line, query, transactions, commit=False)
        raise SinkError(
            f"{len(gone)} of {len(transactions)} transactions of query {query} ended before their batch was complete: "
            f"it took longer than {line.options.transaction_timeout:g} s, or the query runs twice. Nothing of it is "
            "committed. Take smaller batches, or raise the option transaction_timeout (and the brokers' "
            "transaction.max.timeout.ms), and run one query for one checkpoint"
        )


async def _is_open(line: Line, query: str, one: Prepared) -> bool:
    from aiokafka.protocol.transaction import AddPartitionsToTxnRequest

    name = transactional_id(query, one.task)
    request = AddPartitionsToTxnRequest(name, one.producer_id, one.epoch, [(one.topic, [one.partition])])
    try:
        await _ask(line, "TRANSACTION", name, request, _partition_codes, over=_over())
    except _over():
        return False
    return True


async def _decide(line: Line, query: str, batch: int, transactions: Sequence[Prepared]) -> None:
    """Note the batch in the ledger. Raises: SinkError (too many transactions), ClientError."""
    from aiokafka.protocol.commit import OffsetCommitRequest

    text = _to_text(transactions)
    if len(text) > METADATA_BYTES_MAX:
        await end(line, query, transactions, commit=False)
        raise SinkError(
            f"{len(transactions)} tasks wrote to the batch, and exactly_once can note about 300: put coalesce(200) "
            "before the sink. Nothing of the batch is committed"
        )
    topic, group = line.options.ledger_topic, ledger_group(query)
    request = OffsetCommitRequest(group, NOTHING, "", NOTHING, [(topic, [(0, batch, text)])])
    await _ask(line, "GROUP", group, request, _partition_codes)


def _torn(line: Line, query: str, batch: int, transactions: Sequence[Prepared], lost: Sequence[Prepared]) -> TornBatch:
    tasks = ", ".join(str(one.task) for one in lost)
    return TornBatch(
        f"batch {batch} of query {query}: the rows of {len(lost)} of its {len(transactions)} tasks ({tasks}) are lost, "
        "those of the others are in their topics. The query was away for longer than the option transaction_timeout "
        f"({line.options.transaction_timeout:g} s) between two steps of committing. To write the whole batch again, so "
        f"that the others' rows are there twice, run `flowshare groups delete {ledger_group(query)}` and start the "
        "query again"
    )


def _to_text(transactions: Iterable[Prepared]) -> str:
    return ",".join(f"{one.task}:{one.producer_id}:{one.epoch}" for one in transactions)


def _from_text(text: str) -> tuple[Prepared, ...]:
    parts = [[int(number) for number in part.split(":")] for part in text.split(",") if part]
    return tuple(Prepared(task, producer_id, epoch) for task, producer_id, epoch in parts)


# --- asking coordinators ------------------------------------------------------------------------------------------


def _over() -> tuple[type[Exception], ...]:
    """Answers that say that a transaction has ended otherwise."""
    from aiokafka import errors

    return errors.InvalidProducerEpoch, errors.InvalidTxnState, errors.InvalidProducerIdMapping


async def _ask(
    line: Line,
    kind: str,
    key: str,
    request: Any,
    codes: Callable[[Any], Iterable[int]],
    over: tuple[type[Exception], ...] = (),
) -> Any:
    """The coordinator's answer, asked for until there is one, for delivery_timeout. Raises: ClientError, `over`."""
    client = await line.coordinators()
    deadline_s = time.monotonic() + line.options.delivery_timeout
    while True:
        try:
            return await _ask_once(client, kind, key, request, codes)
        except over:
            raise
        except Exception as error:
            if not _passing(error) or time.monotonic() >= deadline_s:
                raise problem_of(error, f"{line.about}, coordinator of {key}") from error
            logger.debug("coordinator of %s, asked again: %r", key, error)
        await asyncio.sleep(RETRY_S)
        await client.force_metadata_update()


async def _ask_once(
    client: AIOKafkaClient, kind: str, key: str, request: Any, codes: Callable[[Any], Iterable[int]]
) -> Any:
    from aiokafka import errors
    from aiokafka.client import ConnectionGroup, CoordinationType

    node = await client.coordinator_lookup(CoordinationType[kind], key)
    answer = await client.send(node, request, group=ConnectionGroup.COORDINATION)
    for code in codes(answer):
        if code:
            raise errors.for_code(code)()
    return answer


def _passing(error: Exception) -> bool:
    """Whether the same question can be answered in a moment."""
    from aiokafka import errors

    return getattr(error, "retriable", False) or isinstance(
        error, errors.ConcurrentTransactions | errors.KafkaConnectionError | OSError
    )


def _fetch_codes(answer: Any) -> list[int]:
    of_group = [getattr(answer, "error_code", 0)]
    return of_group + [partition[-1] for _, partitions in answer.topics for partition in partitions]


def _partition_codes(answer: Any) -> list[int]:
    """Of answers that are topics with partitions, each with its code last."""
    topics = getattr(answer, "topics", None) or getattr(answer, "errors", None) or []
    return [partition[-1] for _, partitions in topics for partition in partitions]
