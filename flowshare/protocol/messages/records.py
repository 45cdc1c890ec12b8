"""Records of partitions: produce, fetch, list offsets, delete."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.messages.base import Request

LATEST: Final = -1
"""Timestamp that stands for the log's end; readers of committed records: for the last stable offset."""
EARLIEST: Final = -2
"""Timestamp that stands for the log's start."""
MAX_TIMESTAMP: Final = -3
"""Timestamp that stands for the highest one there is (KIP-734)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProduceRequest(Request["ProduceResponse"]):
    """Record batches (v2) for one partition; answered when confirmed."""

    topic: str
    partition: int
    records: bytes
    transactional_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProduceResponse:
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None
    base_offset: int = -1
    log_start: int = -1
    append_time_ms: int = -1
    """When the log stamped the records (message.timestamp.type=LogAppendTime), −1: they keep the producer's time."""


class FetchPartition(NamedTuple):
    """One partition to read; its first batch is given even if it is larger than `max_bytes`."""

    topic: str
    partition: int
    offset: int
    max_bytes: int = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchRequest(Request["FetchResponse"]):
    """Plain read of partitions, no group. Waits up to `max_wait_ms` until there are `min_bytes`.

    `max_bytes` bounds all partitions together; the first batch found is given even if it is larger.
    """

    partitions: tuple[FetchPartition, ...]
    max_wait_ms: int = 0
    min_bytes: int = 1
    max_bytes: int = 50 << 20
    committed: bool = False
    """Read no further than the last stable offset, and say which transactions were aborted."""


class AbortedTransaction(NamedTuple):
    """A transaction of which records among those read do not count: the producer's, from this offset on."""

    producer_id: int
    first_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchedLog:
    """What was read of one partition: whole batches; the first may begin before the offset asked for."""

    topic: str
    partition: int
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None
    records: bytes = b""
    log_start: int = -1
    high_watermark: int = -1
    last_stable: int = -1
    aborted: tuple[AbortedTransaction, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchResponse:
    """`partitions` are in the order in which they were asked for."""

    error: ErrorCode = ErrorCode.NONE
    message: str | None = None
    partitions: tuple[FetchedLog, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ListOffsetsRequest(Request["ListOffsetsResponse"]):
    """`timestamp_ms`: `LATEST`, `EARLIEST`, `MAX_TIMESTAMP`, else the first offset with a timestamp at or after it."""

    topic: str
    partition: int
    timestamp_ms: int
    committed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ListOffsetsResponse:
    """Offset −1: there is no such record."""

    error: ErrorCode = ErrorCode.NONE
    message: str | None = None
    offset: int = -1
    timestamp_ms: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteRecordsRequest(Request["DeleteRecordsResponse"]):
    topic: str
    partition: int
    before: int
    """−1: all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteRecordsResponse:
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None
    log_start: int = -1
