"""Reading a slot's log from Kafka: bytes to records, tries to a bound."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from flowshare.client.errors import ClientError, ServerError, check
from flowshare.log.base import OffsetOutOfRange, StorageDamaged, StorageError
from flowshare.protocol.decoding import PADDING, SIZE_MAX, read_batch
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.headers import DecodeError, frames
from flowshare.protocol.messages import FetchRequest, ListOffsetsRequest
from flowshare.protocol.messages.records import EARLIEST, FetchedLog, FetchPartition
from flowshare.slots.errors import SlotError
from flowshare.slots.records import Record, checksum_of, decode

if TYPE_CHECKING:
    from flowshare.clock import Clock
    from flowshare.fleet.slot_settings import SlotSettings
    from flowshare.protocol.messages import Request

R = TypeVar("R")
WAITING: Final = frozenset(
    {
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.BROKER_NOT_AVAILABLE,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.CORRUPT_MESSAGE,
    }
)
"""Errors that pass by themselves, beside those that are retriable for every client."""


class LogRecord(NamedTuple):
    """A record of a slot's log with its place and the checksum of its value."""

    offset: int
    record: Record
    checksum: int


class Found(NamedTuple):
    """What was read from `start` on: records, the offset behind all that was looked at, and the log's bounds."""

    start: int
    records: list[LogRecord]
    position: int
    log_start: int
    end: int


def passes(error: ServerError) -> bool:
    """Whether an error may be gone at the next try."""
    return error.retriable or error.code in WAITING


def found_in(log: FetchedLog, position: int) -> Found:
    """Records from `position` on in what a broker gave. Raises: ServerError, OffsetOutOfRange, StorageDamaged."""
    where = f"{log.topic}-{log.partition}"
    if log.error is ErrorCode.OFFSET_OUT_OF_RANGE:
        raise OffsetOutOfRange(f"{where} has no offset {position} any longer, or not yet")
    check(log.error, log.message, f"reading {where}")
    start, records = position, list[LogRecord]()
    padded = log.records + PADDING
    try:
        for header in frames(log.records, partial_tail=True):
            if header.last_offset < position:
                continue
            raws = read_batch(padded, header, SIZE_MAX).records
            records += [_record(where, raw) for raw in raws if raw.offset >= position]
            position = header.last_offset + 1
    except DecodeError as error:
        raise StorageDamaged(f"{where} cannot be read from offset {position} on: {error}") from error
    return Found(start, records, position, log.log_start, log.high_watermark)


def _record(where: str, raw: Any) -> LogRecord:
    value = raw.value
    try:
        return LogRecord(raw.offset, decode(raw.key, value), checksum_of(value))
    except SlotError as error:
        raise StorageDamaged(f"{where} has at offset {raw.offset} what this fleet cannot use: {error}") from error


class SlotReading:
    """The log of one slot. `kafka`: a connection to the cluster (`ClusterConnection`)."""

    def __init__(self, kafka: Any, *, topic: str, slot: int, clock: Clock, settings: SlotSettings) -> None:
        self._kafka = kafka
        self._clock = clock
        self._settings = settings
        self.topic = topic
        self.slot = slot

    async def read(self, position: int) -> Found:
        """What there is from `position` on. Raises: OffsetOutOfRange, StorageDamaged, StorageError."""
        part = FetchPartition(self.topic, self.slot, position, self._settings.fetch_bytes)

        async def once() -> Found:
            answer = await self._kafka.send(FetchRequest(partitions=(part,)))
            check(answer.error, answer.message, "reading")
            return found_in(answer.partitions[0], position)

        return await self._tried(once)

    async def log_start(self) -> int:
        """First offset of the log. Raises: StorageError."""

        async def once() -> int:
            request = ListOffsetsRequest(topic=self.topic, partition=self.slot, timestamp_ms=EARLIEST)
            answer = await self.ask(request)
            return max(0, int(answer.offset))

        return await self._tried(once)

    async def ask(self, request: Request[Any]) -> Any:
        """An answer without error. Raises: ServerError, OSError, ClientError."""
        answer = await self._kafka.send(request)
        check(answer.error, answer.message, f"{type(request).__name__} for {self.topic}-{self.slot}")
        return answer

    async def tried(self, request: Request[Any]) -> Any:
        """An answer without error, asked for again while that may help. Raises: StorageError."""
        return await self._tried(lambda: self.ask(request))

    async def _tried(self, once: Callable[[], Awaitable[R]]) -> R:
        clock, settings = self._clock, self._settings
        deadline_s = clock.monotonic() + settings.deadline_s
        pause_s = settings.backoff_min_s
        while True:
            try:
                return await clock.wait_for(once(), max(0.0, deadline_s - clock.monotonic()))
            except ServerError as error:
                problem: Exception = error
                if not passes(error):
                    raise StorageError(str(error)) from error
            except OSError as error:  # a TimeoutError too
                problem = error
            except ClientError as error:
                raise StorageError(str(error)) from error
            if clock.monotonic() + pause_s >= deadline_s:
                where = f"{self.topic}-{self.slot}"
                raise StorageError(f"{where}: no luck for {settings.deadline_s:g} s: {problem}") from problem
            await clock.sleep(pause_s)
            pause_s = min(2 * pause_s, settings.backoff_max_s)
