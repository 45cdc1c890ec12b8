"""Share groups: membership, fetching, acknowledging (KIP-932)."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.messages.base import Request, TopicPartition
from flowshare.share.types import AcquiredRange

NO_LEADER: Final = (-1, -1)
"""The current leader of a partition when it is not told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareGroupHeartbeatRequest(Request["ShareGroupHeartbeatResponse"]):
    group_id: str
    member_id: str
    member_epoch: int
    rack_id: str | None = None
    subscribed_topics: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareGroupHeartbeatResponse:
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None
    member_id: str | None = None
    member_epoch: int = 0
    heartbeat_interval_ms: int = 5000
    assignment: tuple[TopicPartition, ...] | None = None
    """None: unchanged."""


class AckBatch(NamedTuple):
    """One AcknowledgementBatch. `delay_ms` and `unrun` are flowshare's own and act on RELEASE only.

    `joined`: read off a socket as one batch of this type an offset; see `share.types.AcknowledgeBatch`. Never sent.
    """

    first: int
    last: int
    types: bytes
    delay_ms: int = 0
    unrun: bool = False
    joined: bool = False


class SharePartitionRequest(NamedTuple):
    """A partition added to the session and/or acknowledged."""

    topic_id: uuid.UUID
    partition: int
    acks: tuple[AckBatch, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareFetchRequest(Request["ShareFetchResponse"]):
    group_id: str | None
    member_id: str | None
    session_epoch: int
    max_wait_ms: int = 500
    min_bytes: int = 1
    max_bytes: int = 0x7FFFFFFF
    """0 with max_records > 0: acquire without record bytes (flowshare's own)."""
    max_records: int = 500
    batch_size: int = 500
    acquire_mode: int = 0
    is_renew_ack: bool = False
    partitions: tuple[SharePartitionRequest, ...] = ()
    forgotten: tuple[TopicPartition, ...] = ()
    version: int = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchedPartition:
    topic_id: uuid.UUID
    partition: int
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None
    ack_error: ErrorCode = ErrorCode.NONE
    ack_message: str | None = None
    records: bytes = b""
    acquired: tuple[AcquiredRange, ...] = ()
    current_leader: tuple[int, int] = NO_LEADER
    """Node and leader epoch, told when the partition is led elsewhere."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareFetchResponse:
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None
    lock_timeout_ms: int = 0
    partitions: tuple[FetchedPartition, ...] = ()
    node_endpoints: Mapping[int, tuple[str, int]] = field(default_factory=dict[int, tuple[str, int]])
    """Host and port of the leaders named in `current_leader`."""
    throttle_ms: int = 0
    """For how long a quota held it back; what was acquired for it is not in it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareAcknowledgeRequest(Request["ShareAcknowledgeResponse"]):
    group_id: str | None
    member_id: str | None
    session_epoch: int
    is_renew_ack: bool = False
    partitions: tuple[SharePartitionRequest, ...] = ()
    version: int = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class AcknowledgedPartition:
    topic_id: uuid.UUID
    partition: int
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None
    current_leader: tuple[int, int] = NO_LEADER


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareAcknowledgeResponse:
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None
    lock_timeout_ms: int = 0
    partitions: tuple[AcknowledgedPartition, ...] = ()
    node_endpoints: Mapping[int, tuple[str, int]] = field(default_factory=dict[int, tuple[str, int]])


class HeldRanges(NamedTuple):
    """Ranges (first, last: inclusive) that a member holds of a partition.

    lapsed: what it held until no leader was heard of for the lock's time; that was run, or may have been.
    """

    topic_id: uuid.UUID
    partition: int
    ranges: tuple[tuple[int, int], ...] = ()
    lapsed: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareResumeRequest(Request["ShareResumeResponse"]):
    """A member whose connection ended says what it holds; it sends nothing else before the answer (flowshare's own).

    partitions: all that it fetches from or holds something of. In a fleet: those of them that a worker leads that did
    not lead them before, or whose connection ended; the rest goes on meanwhile.
    """

    group_id: str
    member_id: str
    partitions: tuple[HeldRanges, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareResumeResponse:
    """What of it is still the member's. Whatever else was locked for it went back: without costing an attempt, unless
    the member said that it had lapsed.

    elsewhere: what this worker of a fleet does not lead (yet, or any more): nothing is said of that, and nothing done.
    """

    error: ErrorCode = ErrorCode.NONE
    message: str | None = None
    partitions: tuple[HeldRanges, ...] = ()
    elsewhere: tuple[TopicPartition, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareGroupDescribeRequest(Request["ShareGroupDescribeResponse"]):
    group_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberDescription:
    member_id: str
    member_epoch: int
    client_id: str
    client_host: str
    rack_id: str | None
    subscribed_topics: tuple[str, ...]
    assignment: Mapping[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupDescription:
    group_id: str
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None
    state: str = "Dead"
    group_epoch: int = 0
    assignment_epoch: int = 0
    assignor: str = ""
    members: tuple[MemberDescription, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareGroupDescribeResponse:
    groups: tuple[GroupDescription, ...] = ()
