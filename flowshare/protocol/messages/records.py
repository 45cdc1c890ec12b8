"""Records of one partition: produce, fetch, list offsets, delete."""

from __future__ import annotations

from dataclasses import dataclass

from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.messages.base import Request


@dataclass(frozen=True, slots=True, kw_only=True)
class ProduceRequest(Request["ProduceResponse"]):
    """Record batches (v2) for one partition; answered when confirmed."""

    topic: str
    partition: int
    records: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ProduceResponse:
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None
    base_offset: int = -1
    log_start: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchRequest(Request["FetchResponse"]):
    """Plain read of one partition, no group (dlq show, counts)."""

    topic: str
    partition: int
    offset: int
    max_bytes: int = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchResponse:
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None
    records: bytes = b""
    log_start: int = -1
    high_watermark: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class ListOffsetsRequest(Request["ListOffsetsResponse"]):
    """`timestamp_ms`: −1 latest, −2 earliest, else the first offset with a timestamp at or after it."""

    topic: str
    partition: int
    timestamp_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ListOffsetsResponse:
    error: ErrorCode = ErrorCode.NONE
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
