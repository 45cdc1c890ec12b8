"""Classic consumer groups and committed offsets; only foreign clients use them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from flowshare.groups.types import JoinedMember, MemberView, Supported
from flowshare.protocol.declaration import OF_GROUP, Api, Array, Each, One, Path, Shape, Via, rows_of_partitions
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.kafka import ApiKey
from flowshare.protocol.messages.base import NOT_ASKED, Request, Response
from flowshare.protocol.rights import NeededRight, Operation, ResourceType


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinGroupRequest(Request["JoinGroupResponse"]):
    """Join a group; answered when the group's join phase is over."""

    group_id: str
    member_id: str = ""
    instance_id: str | None = None
    client_id: str = ""
    protocol_type: str
    protocols: tuple[Supported, ...]
    session_timeout_ms: int
    rebalance_timeout_ms: int = -1
    """The rebalance timeout; −1: the session timeout (version 0)."""
    version: int = 9


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinGroupResponse(Response):
    member_id: str = ""
    generation: int = -1
    protocol_type: str | None = None
    protocol_name: str | None = None
    leader: str = ""
    skip_assignment: bool = False
    members: tuple[JoinedMember, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncGroupRequest(Request["SyncGroupResponse"]):
    """Ask for an assignment; answered when the leader's assignments are durable."""

    group_id: str
    member_id: str
    instance_id: str | None = None
    generation: int
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignments: tuple[tuple[str, bytes], ...] = ()
    """Pairs (member id, assignment), from the leader only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncGroupResponse(Response):
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignment: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatRequest(Request[Response]):
    group_id: str
    member_id: str
    instance_id: str | None = None
    generation: int


class LeavingMember(NamedTuple):
    """A member that leaves, named by its id, or by its group.instance.id with an empty id."""

    member_id: str
    instance_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaveGroupRequest(Request["LeaveGroupResponse"]):
    group_id: str
    members: tuple[LeavingMember, ...]


class LeftMember(NamedTuple):
    """The outcome for one leaving member."""

    member_id: str
    instance_id: str | None
    error: ErrorCode = ErrorCode.NONE


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaveGroupResponse(Response):
    members: tuple[LeftMember, ...] = ()


class OffsetToCommit(NamedTuple):
    """An offset of one partition to commit."""

    topic: str
    partition: int
    offset: int
    leader_epoch: int = -1
    metadata: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetCommitRequest(Request["OffsetCommitResponse"]):
    """Commit offsets; a simple consumer has no member id and generation −1."""

    group_id: str
    member_id: str = ""
    instance_id: str | None = None
    generation: int = -1
    retention_ms: int = -1
    """How long the server keeps the offsets; −1: its own retention (always from version 5 on)."""
    offsets: tuple[OffsetToCommit, ...]
    version: int = 9


@dataclass(frozen=True, slots=True, kw_only=True)
class TxnOffsetCommitRequest(Request["OffsetCommitResponse"]):
    """Commit offsets in a transaction; they count when the transaction is committed."""

    transactional_id: str
    group_id: str
    producer_id: int
    producer_epoch: int
    member_id: str = ""
    instance_id: str | None = None
    generation: int = -1
    offsets: tuple[OffsetToCommit, ...]


class OffsetResult(NamedTuple):
    """The outcome for one partition's offset."""

    topic: str
    partition: int
    error: ErrorCode = ErrorCode.NONE


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetCommitResponse:
    """The outcome for each partition; a request that is refused as a whole has its error at every partition."""

    message: str | None = None
    partitions: tuple[OffsetResult, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetFetchRequest(Request["OffsetFetchResponse"]):
    group_id: str
    partitions: tuple[tuple[str, int], ...] | None = None
    """The wanted partitions; None: all that the group has."""
    member_id: str | None = None
    member_epoch: int = -1
    """The epoch of the asking member, in a group of the consumer protocol; −1: no member asks (version 9 on)."""
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
class OffsetFetchResponse(Response):
    partitions: tuple[FetchedOffset, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetDeleteRequest(Request["OffsetDeleteResponse"]):
    group_id: str
    partitions: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetDeleteResponse(Response):
    partitions: tuple[OffsetResult, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeGroupRequest(Request["DescribeGroupResponse"]):
    group_id: str
    authorized: bool = False
    """True: report the operations that the caller may do with the group."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeGroupResponse(Response):
    """A classic group; a group that does not exist, or is of another kind, is Dead."""

    state: str = ""
    protocol_type: str = ""
    protocol_name: str = ""
    members: tuple[MemberView, ...] = ()
    authorized: int = NOT_ASKED
    """The operations that the caller may do, as bits: the bit of each operation's number."""


SYNC_WAIT_MS: Final = 10_000
"""The longest time, in milliseconds, that a SyncGroup may take: it waits for the group's leader."""

JOIN_GROUP: Final = Api(
    ApiKey.JOIN_GROUP,
    JoinGroupRequest,
    JoinGroupResponse,
    server=(0, 9),
    client=(5, 9),
    route=OF_GROUP,
    wait_ms=lambda request: max(request.rebalance_timeout_ms, request.session_timeout_ms),
    request_shape={"protocols": Array("protocols", Supported)},
    response_shape={"generation_id": "generation", "members": Array("members", JoinedMember)},
)
SYNC_GROUP: Final = Api(
    ApiKey.SYNC_GROUP,
    SyncGroupRequest,
    SyncGroupResponse,
    server=(0, 5),
    client=(3, 5),
    route=OF_GROUP,
    wait_ms=lambda _: SYNC_WAIT_MS,
    request_shape={
        "generation_id": "generation",
        "assignments": Array("assignments", tuple, {"member_id": 0, "assignment": 1}),
    },
    response_shape={},
)
HEARTBEAT: Final = Api(
    ApiKey.HEARTBEAT,
    HeartbeatRequest,
    Response,
    server=(0, 4),
    right=NeededRight(Operation.READ, ResourceType.GROUP, "group_id"),
    client=(3, 4),
    route=OF_GROUP,
    request_shape={"generation_id": "generation"},
    response_shape={},
)
LEAVE_GROUP: Final = Api(
    ApiKey.LEAVE_GROUP,
    LeaveGroupRequest,
    LeaveGroupResponse,
    server=(0, 5),
    client=(3, 5),
    route=OF_GROUP,
    request_shape={
        "member_id": Via("members", lambda members: members[0].member_id, lambda one: (LeavingMember(one),)),
        "members": Array("members", LeavingMember),
    },
    response_shape={"members": Array("members", LeftMember)},
)
DESCRIBE_GROUPS: Final = Api(
    ApiKey.DESCRIBE_GROUPS,
    DescribeGroupRequest,
    DescribeGroupResponse,
    server=(0, 6),
    client=(5, 6),
    route=OF_GROUP,
    request_shape={"groups": One("group_id"), "include_authorized_operations": "authorized"},
    response_shape={
        "groups": One(
            {
                "group_state": "state",
                "protocol_data": "protocol_name",
                "authorized_operations": "authorized",
                "members": Array(
                    "members", MemberView, {"member_metadata": "metadata", "member_assignment": "assignment"}
                ),
            }
        )
    },
)


_COMMITTED: Final[Shape] = {
    "committed_offset": "offset",
    "committed_leader_epoch": "leader_epoch",
    "committed_metadata": "metadata",
}
_RESULTS: Final = rows_of_partitions("partitions", OffsetResult)


def _by_id(rows: Array, topic: Path = "topic") -> Array:
    """Return rows with topic ids in place of names in some versions, which the server's edge translates."""
    return replace(rows, shape={**rows.shape, "topic_id": topic})


OFFSET_COMMIT: Final = Api(
    ApiKey.OFFSET_COMMIT,
    OffsetCommitRequest,
    OffsetCommitResponse,
    server=(2, 10),
    client=(8, 9),
    route=OF_GROUP,
    request_shape={
        "generation_id_or_member_epoch": "generation",
        "retention_time": "retention_ms",
        "topics": _by_id(rows_of_partitions("offsets", OffsetToCommit, _COMMITTED)),
    },
    response_shape={"topics": _by_id(_RESULTS)},
)
TXN_OFFSET_COMMIT: Final = Api(
    ApiKey.TXN_OFFSET_COMMIT,
    TxnOffsetCommitRequest,
    OffsetCommitResponse,
    server=(
        0,
        4,
    ),  # version 5 would add the group to the transaction by itself (KIP-890); so far AddOffsetsToTxn does that
    client=(3, 4),
    route=OF_GROUP,
    request_shape={"generation_id": "generation", "topics": rows_of_partitions("offsets", OffsetToCommit, _COMMITTED)},
    response_shape={"topics": _RESULTS},
)
_WANTED: Final = Array("partitions", tuple, {"name": 0, "partition_indexes": Each(1)})
_FOUND: Final = rows_of_partitions(
    "partitions",
    FetchedOffset,
    {
        "committed_offset": "offset",
        "committed_leader_epoch": "leader_epoch",
        "metadata": Via("metadata", str, lambda text: text or ""),
    },
)
OFFSET_FETCH: Final = Api(
    ApiKey.OFFSET_FETCH,
    OffsetFetchRequest,
    OffsetFetchResponse,
    server=(1, 10),
    client=(7, 9),
    route=OF_GROUP,
    request_shape={"topics": _WANTED, "groups": One({"topics": _by_id(_WANTED, 0)})},
    response_shape={"topics": _FOUND, "groups": One({"topics": _by_id(_FOUND)})},
)
OFFSET_DELETE: Final = Api(
    ApiKey.OFFSET_DELETE,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    server=(0, 0),
    client=(0, 0),
    route=OF_GROUP,
    request_shape={"topics": Array("partitions", tuple, {"name": 0, "partitions": Each({"partition_index": 1})})},
    response_shape={"topics": _RESULTS},
)
