"""Questions to the leaders of partitions that are answered at once: records at an offset, bounds, times.

They go over connections of their own, so that none of them waits behind a parked fetch.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, TypeVar

from flowshare.client.errors import ClientError, Unsupported
from flowshare.fleet.log.bounds import Bounds
from flowshare.fleet.log.chunk import Parsed, parse
from flowshare.log.base import (
    CorruptRecords,
    InvalidRecord,
    InvalidTopic,
    LogError,
    LogOffsets,
    OffsetOutOfRange,
    RecordsTooLarge,
    StorageError,
    TopicExists,
    UnknownTopic,
)
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.messages import (
    FetchPartition,
    FetchRequest,
    ListOffsetsRequest,
    OffsetForLeaderEpochRequest,
)
from flowshare.protocol.messages.records import EARLIEST, LATEST

if TYPE_CHECKING:
    from flowshare.client.cluster import Cluster
    from flowshare.protocol.messages import FetchedLog, Request

R = TypeVar("R")
T = TypeVar("T")

EMPTY_WAIT_MS: Final = 100
"""How long a broker waits for records that are said to be there: a new leader may know less than the old one."""
TRIES: Final = 3
"""How often is asked what may be asked twice: a connection that nobody used for a while may be gone."""

ERRORS: Final[dict[ErrorCode, type[LogError]]] = {
    ErrorCode.OFFSET_OUT_OF_RANGE: OffsetOutOfRange,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: UnknownTopic,
    ErrorCode.UNKNOWN_TOPIC_ID: UnknownTopic,
    ErrorCode.CORRUPT_MESSAGE: CorruptRecords,
    ErrorCode.MESSAGE_TOO_LARGE: RecordsTooLarge,
    ErrorCode.RECORD_LIST_TOO_LARGE: RecordsTooLarge,
    ErrorCode.INVALID_RECORD: InvalidRecord,
    ErrorCode.TOPIC_ALREADY_EXISTS: TopicExists,
    ErrorCode.INVALID_TOPIC_EXCEPTION: InvalidTopic,
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: LogError,
}
"""What brokers say in the log's own words; StorageError is what may go by itself."""
ADVICE: Final[dict[ErrorCode, str]] = {
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: "grant the workers' user READ and DESCRIBE on the topic (and WRITE on a "
    "dead-letter topic); `flowshare check` prints the rules",
}


class Asking:
    """Asks the leaders. Every method raises LogError, StorageError when the brokers cannot answer now."""

    def __init__(self, cluster: Cluster, client_id: str) -> None:
        self._connection = cluster.connect(client_id)
        self._bounds = Bounds(cluster, client_id, self._bounds_alone)

    async def close(self) -> None:
        """End what is under way."""
        await self._bounds.close()
        await self._connection.close()

    async def send(self, request: Request[R], *, tries: int = TRIES) -> R:
        """An answer, with whatever error is in it; 1 try for what is not to be done twice. Raises: StorageError."""
        clock, settings = self._connection.cluster.clock, self._connection.cluster.settings
        for left in reversed(range(tries)):
            try:
                return await self._connection.send(request)
            except (OSError, ClientError) as error:
                if not left or not isinstance(error, OSError):
                    raise StorageError(f"Kafka does not answer now: {error}") from error
            await clock.sleep(settings.backoff_min_s)
        raise AssertionError("there is a last try")

    async def records(
        self, topic: str, partition: int, offset: int, *, max_bytes: int, committed: bool
    ) -> tuple[FetchedLog, Parsed]:
        """What lies at an offset, at least one batch if there is one."""
        asked = FetchPartition(topic, partition, offset, max_bytes)
        request = FetchRequest(partitions=(asked,), max_wait_ms=EMPTY_WAIT_MS, max_bytes=max_bytes, committed=committed)
        answer = await self.send(request)
        check(answer.error, answer.message, f"reading {topic}-{partition} at offset {offset}")
        (part,) = answer.partitions
        check(part.error, part.message, f"reading {topic}-{partition} at offset {offset}")
        return part, parse(part.records, offset, part.aborted)

    async def bounds(self, topic: str, partition: int) -> LogOffsets:
        """Where a partition's log begins and ends now."""
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
        """First (offset, timestamp) with timestamp ≥ `timestamp_ms`, or None."""
        answer = await self.send(ListOffsetsRequest(topic=topic, partition=partition, timestamp_ms=timestamp_ms))
        check(answer.error, answer.message, f"finding the time {timestamp_ms} in {topic}-{partition}")
        return None if answer.offset < 0 else (answer.offset, answer.timestamp_ms)

    async def divergence(self, topic: str, partition: int, epoch: int) -> tuple[int, int]:
        """The highest leader epoch up to `epoch` that is in the log, and where its records end; (−1, −1): none."""
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
    """Nothing for NONE. Raises: LogError, of the class that stands for the code."""
    if code is ErrorCode.NONE:
        return
    kind: Any = ERRORS.get(code, StorageError)
    text = f"{about}: Kafka says {code.name}" + (f": {message}" if message else "")
    advice = ADVICE.get(code)
    raise kind(f"{text}; {advice}" if advice else text)


async def joined(task: asyncio.Task[T]) -> T:
    """What a task gives to all who wait for it; whoever goes away does not end it.

    Raises: StorageError when somebody else has ended it, and whatever it raises.
    """
    await asyncio.wait([task])
    if task.cancelled():
        raise StorageError("the log is closed; ask another worker")
    return task.result()
