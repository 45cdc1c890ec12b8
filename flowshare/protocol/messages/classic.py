"""Classic consumer groups and committed offsets; only foreign clients use them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from flowshare.groups.types import JoinedMember, MemberView, Supported
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.messages.base import Request


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinGroupRequest(Request["JoinGroupResponse"]):
    """Answered when the group's join phase is over."""

    group_id: str
    member_id: str = ""
    instance_id: str | None = None
    client_id: str = ""
    protocol_type: str
    protocols: tuple[Supported, ...]
    session_timeout_ms: int
    rebalance_timeout_ms: int = -1
    """−1: the session timeout (version 0)."""
    version: int = 9


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinGroupResponse:
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None
    member_id: str = ""
    generation: int = -1
    protocol_type: str | None = None
    protocol_name: str | None = None
    leader: str = ""
    skip_assignment: bool = False
    members: tuple[JoinedMember, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncGroupRequest(Request["SyncGroupResponse"]):
    """Answered when the leader's assignments are durable."""

    group_id: str
    member_id: str
    instance_id: str | None = None
    generation: int
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignments: tuple[tuple[str, bytes], ...] = ()
    """(member id, assignment), from the leader only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncGroupResponse:
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignment: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatRequest(Request["HeartbeatResponse"]):
    group_id: str
    member_id: str
    instance_id: str | None = None
    generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatResponse:
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None


class LeavingMember(NamedTuple):
    """Named by its id, or by its group.instance.id with an empty id."""

    member_id: str
    instance_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaveGroupRequest(Request["LeaveGroupResponse"]):
    group_id: str
    members: tuple[LeavingMember, ...]


class LeftMember(NamedTuple):
    """What became of one member."""

    member_id: str
    instance_id: str | None
    error: ErrorCode = ErrorCode.NONE


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaveGroupResponse:
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None
    members: tuple[LeftMember, ...] = ()


class OffsetToCommit(NamedTuple):
    """An offset of one partition."""

    topic: str
    partition: int
    offset: int
    leader_epoch: int = -1
    metadata: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetCommitRequest(Request["OffsetCommitResponse"]):
    """A simple consumer commits with no member id and generation −1."""

    group_id: str
    member_id: str = ""
    instance_id: str | None = None
    generation: int = -1
    retention_ms: int = -1
    """−1: as the server's retention says (version 5 on)."""
    offsets: tuple[OffsetToCommit, ...]
    version: int = 9


@dataclass(frozen=True, slots=True, kw_only=True)
class TxnOffsetCommitRequest(Request["OffsetCommitResponse"]):
    """The offsets count when the transaction is committed."""

    transactional_id: str
    group_id: str
    producer_id: int
    producer_epoch: int
    member_id: str = ""
    instance_id: str | None = None
    generation: int = -1
    offsets: tuple[OffsetToCommit, ...]


class OffsetResult(NamedTuple):
    """What became of one partition's offset."""

    topic: str
    partition: int
    error: ErrorCode = ErrorCode.NONE


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetCommitResponse:
    """A request that is refused as a whole has its error at every partition."""

    message: str | None = None
    partitions: tuple[OffsetResult, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetFetchRequest(Request["OffsetFetchResponse"]):
    group_id: str
    partitions: tuple[tuple[str, int], ...] | None = None
    """None: all that the group has."""
    require_stable: bool = False


class FetchedOffset(NamedTuple):
    """A committed offset; −1: none."""

    topic: str
    partition: int
    offset: int = -1
    leader_epoch: int = -1
    metadata: str = ""
    error: ErrorCode = ErrorCode.NONE


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetFetchResponse:
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None
    partitions: tuple[FetchedOffset, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetDeleteRequest(Request["OffsetDeleteResponse"]):
    group_id: str
    partitions: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetDeleteResponse:
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None
    partitions: tuple[OffsetResult, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeGroupRequest(Request["DescribeGroupResponse"]):
    group_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeGroupResponse:
    """A classic group; one that does not exist, or is of another kind, is Dead."""

    error: ErrorCode = ErrorCode.NONE
    message: str | None = None
    state: str = "Dead"
    protocol_type: str = ""
    protocol_name: str = ""
    members: tuple[MemberView, ...] = ()
