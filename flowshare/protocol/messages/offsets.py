"""Offsets of share groups, for those who look after them (KIP-932)."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field

from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.messages.base import Request
from flowshare.protocol.messages.topics import TopicResult


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeShareGroupOffsetsRequest(Request["DescribeShareGroupOffsetsResponse"]):
    group_id: str
    topics: Mapping[str, tuple[int, ...]] | None = None
    """None: every partition the group has state for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SharePartitionOffsets:
    topic: str
    topic_id: uuid.UUID | None
    partition: int
    start_offset: int = -1
    leader_epoch: int = 0
    lag: int = -1
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None
    in_flight: int = 0
    """Acquired records, −1 when unknown (flowshare's own, as are the following)."""
    delayed: int = 0
    """Available records whose not-before has not come, −1 when unknown."""
    redeliveries: int = 0
    """Deliveries after the first since the share-partition was loaded, −1 when unknown."""
    oldest_ms: int = -1
    """Timestamp of the first unfinished record, −1 when unknown or none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeShareGroupOffsetsResponse:
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None
    partitions: tuple[SharePartitionOffsets, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterShareGroupOffsetsRequest(Request["AlterShareGroupOffsetsResponse"]):
    group_id: str
    offsets: Mapping[tuple[str, int], int]
    finished: Mapping[tuple[str, int], tuple[tuple[int, int], ...]] = field(
        default_factory=dict[tuple[str, int], tuple[tuple[int, int], ...]]
    )
    """Offsets from there on that count as processed: (first, last), ascending and disjoint (flowshare's own)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionResult:
    topic: str
    partition: int
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterShareGroupOffsetsResponse:
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None
    partitions: tuple[PartitionResult, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteShareGroupOffsetsRequest(Request["DeleteShareGroupOffsetsResponse"]):
    group_id: str
    topics: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteShareGroupOffsetsResponse:
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None
    topics: tuple[TopicResult, ...] = ()
