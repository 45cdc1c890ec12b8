"""Questions to the leaders of partitions that are answered at once: records at an offset, bounds, times.

They use connections of their own, so that none of them waits behind a parked fetch.

Bounds are asked of each broker for all of its logs at once (`LogBounds`): a thousand partitions that fifty groups begin
to read would be 150,000 questions otherwise. A caller that asks while a question is under way waits for the next one,
with all others; a log missing from its broker's answer is asked about by itself, of its leader then.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from typing import TYPE_CHECKING, Any, Final, TypeVar

from flowshare.client import errors
from flowshare.client.errors import ClientError, Unsupported
from flowshare.client.net.topology import NOBODY
from flowshare.fleet.log.chunk import Parsed, parse
from flowshare.fleet.log.watch import BrokerConnection, Where
from flowshare.log.base import (
    CorruptBatches,
    InvalidRecord,
    InvalidTopic,
    LogError,
    LogOffsets,
    OffsetOutOfRange,
    RecordsTooLarge,
    StorageError,
    TooFewBrokers,
    TopicExists,
    UnknownTopic,
)
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.messages import (
    FetchPartition,
    FetchRequest,
    ListOffsetsRequest,
    ManyOffsetsRequest,
    OffsetForLeaderEpochRequest,
)
from flowshare.protocol.messages.records import EARLIEST, LATEST
from flowshare.tasks import cancelled

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from flowshare.client.net.cluster import Cluster
    from flowshare.protocol.messages import FetchedLog, Request

R = TypeVar("R")
T = TypeVar("T")

EMPTY_WAIT_MS: Final = 100
"""Time, in ms, that a broker waits for records that should be there: a new leader may know less than the old one."""
TRIES: Final = 3
"""The most tries of a repeatable question: a connection that was unused for a while may be gone."""

ERRORS: Final[dict[ErrorCode, type[LogError]]] = {
    ErrorCode.OFFSET_OUT_OF_RANGE: OffsetOutOfRange,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: UnknownTopic,
    ErrorCode.UNKNOWN_TOPIC_ID: UnknownTopic,
    ErrorCode.CORRUPT_MESSAGE: CorruptBatches,
    ErrorCode.MESSAGE_TOO_LARGE: RecordsTooLarge,
    ErrorCode.RECORD_LIST_TOO_LARGE: RecordsTooLarge,
    ErrorCode.INVALID_RECORD: InvalidRecord,
    ErrorCode.TOPIC_ALREADY_EXISTS: TopicExists,
    ErrorCode.INVALID_TOPIC_EXCEPTION: InvalidTopic,
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: LogError,
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: LogError,
    ErrorCode.POLICY_VIOLATION: LogError,
    ErrorCode.INVALID_CONFIG: LogError,
    ErrorCode.INVALID_REPLICATION_FACTOR: TooFewBrokers,
}
"""Errors of brokers as errors of the log; all others are StorageError, which may pass by itself."""
_BY_HAND: Final = "make the topic by hand, as the brokers want it"
ADVICE: Final[dict[ErrorCode, str]] = {
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: "grant the workers' user READ and DESCRIBE on the topic (and WRITE on a "
    "dead-letter topic); `flowshare check` prints the rules",
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: "grant the workers' user CREATE on the topic, or make it by hand",
    ErrorCode.POLICY_VIOLATION: _BY_HAND,
    ErrorCode.INVALID_CONFIG: _BY_HAND,
    ErrorCode.INVALID_REPLICATION_FACTOR: errors.ADVICE[ErrorCode.INVALID_REPLICATION_FACTOR],
}


class Lookups:
    """Client of the partitions' leaders. Every method raises LogError, StorageError when the brokers cannot answer
    now."""

    def __init__(self, cluster: Cluster, client_id: str) -> None:
        self._connection = cluster.connect(client_id)
        self._bounds = LogBounds(cluster, client_id, self._bounds_alone)

    async def close(self) -> None:
        """Cancel all questions."""
        await self._bounds.close()
        await self._connection.close()

    async def send(self, request: Request[R], *, tries: int = TRIES) -> R:
        """Return an answer, its error included; tries: 1 for requests that must not be repeated. Raises
        StorageError."""
        cluster = self._connection.cluster
        for left in reversed(range(tries)):
            try:
                return await self._connection.send(request)
            except (OSError, ClientError) as error:
                if not left or not isinstance(error, OSError):
                    raise StorageError(f"Kafka does not answer now: {error}") from error
            await cluster.clock.sleep(cluster.settings.backoff.first)
        raise AssertionError("there is a last try")

    async def records(
        self, topic: str, partition: int, offset: int, *, max_bytes: int, committed: bool
    ) -> tuple[FetchedLog, Parsed]:
        """Read the records at an offset, at least one batch if one exists."""
        asked = FetchPartition(topic, partition, offset, max_bytes)
        request = FetchRequest(partitions=(asked,), max_wait_ms=EMPTY_WAIT_MS, max_bytes=max_bytes, committed=committed)
        answer = await self.send(request)
        check(answer.error, answer.message, f"reading {topic}-{partition} at offset {offset}")
        (part,) = answer.partitions
        check(part.error, part.message, f"reading {topic}-{partition} at offset {offset}")
        return part, parse(part.records, offset, part.aborted)

    async def bounds(self, topic: str, partition: int) -> LogOffsets:
        """Return the present bounds of a partition's log."""
        return await self._bounds.of(topic, partition)

    async def _bounds_alone(self, topic: str, partition: int) -> LogOffsets:
        start, stable, high = await asyncio.gather(
            self._offset(topic, partition, EARLIEST),
            self._offset(topic, partition, LATEST, committed=True),
            self._offset(topic, partition, LATEST),
        )
        # Asked one after the other on one connection, so the log may only have grown in between.
        return LogOffsets(log_start=min(start, stable), high_watermark=max(high, stable), last_stable=stable)

    async def at_time(self, topic: str, partition: int, timestamp_ms: int) -> tuple[int, int] | None:
        """Return the first (offset, timestamp) with timestamp ≥ `timestamp_ms`, or None."""
        answer = await self.send(ListOffsetsRequest(topic=topic, partition=partition, timestamp_ms=timestamp_ms))
        check(answer.error, answer.message, f"finding the time {timestamp_ms} in {topic}-{partition}")
        return None if answer.offset < 0 else (answer.offset, answer.timestamp_ms)

    async def divergence(self, topic: str, partition: int, epoch: int) -> tuple[int, int]:
        """Return the highest leader epoch up to `epoch` in the log, and the end of its records; (−1, −1): none."""
        try:
            answer = await self.send(OffsetForLeaderEpochRequest(topic=topic, partition=partition, leader_epoch=epoch))
        except StorageError as error:
            if isinstance(error.__cause__, Unsupported):
                return -1, -1  # a service that speaks Kafka's protocol, but keeps no epochs
            raise
        check(answer.error, answer.message, f"finding the end of leader epoch {epoch} in {topic}-{partition}")
        return answer.leader_epoch, answer.end_offset

    async def _offset(self, topic: str, partition: int, which: int, *, committed: bool = False) -> int:
        request = ListOffsetsRequest(topic=topic, partition=partition, timestamp_ms=which, committed=committed)
        answer = await self.send(request)
        check(answer.error, answer.message, f"finding the ends of {topic}-{partition}")
        return answer.offset


def check(code: ErrorCode, message: str | None, about: str) -> None:
    """Check an error code. Raises LogError, of the class that stands for the code, unless it is NONE."""
    if code is ErrorCode.NONE:
        return
    kind: Any = ERRORS.get(code, StorageError)
    text = f"{about}: Kafka says {code.name}" + (f": {message}" if message else "")
    advice = ADVICE.get(code)
    raise kind(f"{text}; {advice}" if advice else text)


async def joined(task: asyncio.Task[T]) -> T:
    """Wait for a task and return its result. Many may wait for one task; cancelling a waiter does not cancel the task.

    Raises: StorageError when the task was cancelled; and the task's own errors.
    """
    await asyncio.wait([task])
    if task.cancelled():
        raise StorageError("the log is closed; ask another worker")
    return task.result()


AT_ONCE: Final = 1_000
"""The most logs in one question."""
ALONE_AT_ONCE: Final = 64
"""The most logs that are asked about by themselves at a time."""

Answers = dict[Where, "asyncio.Future[LogOffsets | None]"]

logger = logging.getLogger(__name__)


class LogBounds:
    """Asks brokers for the bounds of many logs at once. alone: asks a log's leader about one log; raises LogError."""

    def __init__(self, cluster: Cluster, client_id: str, alone: Callable[[str, int], Awaitable[LogOffsets]]) -> None:
        self._cluster = cluster
        self._client_id = client_id
        self._alone = alone
        self._turns = asyncio.Semaphore(ALONE_AT_ONCE)
        self._coming: dict[int, Answers] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._lines: dict[int, BrokerConnection] = {}

    async def close(self) -> None:
        """Stop asking."""
        await cancelled(*self._tasks.values())
        for line in self._lines.values():
            await line.close()

    async def of(self, topic: str, partition: int) -> LogOffsets:
        """Return a log's bounds as they are after the call. Raises LogError."""
        node = self._cluster.topology.leader(topic, partition)
        found = None if node == NOBODY else await asyncio.shield(self._answer(node, (topic, partition)))
        if found is not None:
            return found
        async with self._turns:
            return await self._alone(topic, partition)

    def _answer(self, node: int, where: Where) -> asyncio.Future[LogOffsets | None]:
        """Return the bounds that the next request to a broker will bring, as a future; result None: it brought none."""
        coming = self._coming.setdefault(node, {})
        answer = coming.get(where)
        if answer is None:
            answer = coming[where] = asyncio.get_running_loop().create_future()
        if node not in self._tasks:
            self._tasks[node] = asyncio.create_task(self._run(node), name=f"bounds of logs at {node}")
        return answer

    async def _run(self, node: int) -> None:
        """Ask a broker until no caller waits."""
        asked: Answers = {}
        try:
            while coming := self._coming.pop(node, None):
                asked = dict(itertools.islice(coming.items(), AT_ONCE))
                rest = dict(itertools.islice(coming.items(), AT_ONCE, None))
                if rest:
                    self._coming[node] = rest
                found = await self._ask(node, tuple(asked)) if len(asked) > 1 else (None,)
                for answer, bounds in zip(asked.values(), found, strict=True):
                    answer.set_result(bounds)
        finally:
            del self._tasks[node]
            for answer in (*asked.values(), *self._coming.pop(node, {}).values()):
                if not answer.done():
                    answer.set_result(None)

    async def _ask(self, node: int, wheres: Sequence[Where]) -> Sequence[LogOffsets | None]:
        """Ask for the bounds one after the other, so that a log may only have grown in between."""
        line = self._lines.get(node)
        if line is None:
            line = self._lines[node] = BrokerConnection(self._cluster, node, self._client_id)
        told: list[list[int | None]] = []
        try:
            for which, committed in ((EARLIEST, False), (LATEST, True), (LATEST, False)):
                request = ManyOffsetsRequest(partitions=tuple(wheres), timestamp_ms=which, committed=committed)
                answer = await line.send(request)
                told.append([one.offset if one.error is ErrorCode.NONE else None for one in answer.offsets])
        except (OSError, ClientError) as error:
            logger.info("the bounds of %d logs are asked for one by one: %s", len(wheres), error)
            return [None] * len(wheres)
        return [_bounds(*three) for three in zip(*told, strict=True)]


def _bounds(start: int | None, stable: int | None, high: int | None) -> LogOffsets | None:
    if start is None or stable is None or high is None:
        return None
    return LogOffsets(log_start=min(start, stable), high_watermark=max(high, stable), last_stable=stable)
