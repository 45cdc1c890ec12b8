"""The state of share-partitions as a share coordinator keeps it (share-groups.md §5.3): one share-partition each."""

from __future__ import annotations

import uuid
from dataclasses import dataclass

from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.messages.base import Request
from flowshare.share.types import PartitionState, StateRun


@dataclass(frozen=True, slots=True, kw_only=True)
class InitializeShareGroupStateRequest(Request["ShareGroupStateResponse"]):
    group_id: str
    topic_id: uuid.UUID
    partition: int
    state_epoch: int
    start_offset: int
    """−1: found by share.auto.offset.reset at the first fetch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadShareGroupStateRequest(Request["ShareGroupStateResponse"]):
    """Read for a new leader: leaders with a lower epoch can no longer write."""

    group_id: str
    topic_id: uuid.UUID
    partition: int
    leader_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadShareGroupStateSummaryRequest(Request["ShareGroupStateResponse"]):
    """Read without consequences, and without runs."""

    group_id: str
    topic_id: uuid.UUID
    partition: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteShareGroupStateRequest(Request["ShareGroupStateResponse"]):
    group_id: str
    topic_id: uuid.UUID
    partition: int
    state_epoch: int
    leader_epoch: int
    start_offset: int
    delivery_complete_count: int
    runs: tuple[StateRun, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteShareGroupStateRequest(Request["ShareGroupStateResponse"]):
    group_id: str
    topic_id: uuid.UUID
    partition: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareGroupStateResponse:
    """`state` is what was read; None where nothing was asked for, and for a share-partition that has none."""

    error: ErrorCode = ErrorCode.NONE
    message: str | None = None
    state: PartitionState | None = None
