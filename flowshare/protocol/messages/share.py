"""Share groups: membership, fetching, acknowledging (KIP-932)."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Final, Literal, NamedTuple

from msgspec import Meta

from flowshare.protocol.declaration import (
    OF_GROUP,
    Api,
    Array,
    Each,
    Fixed,
    Inside,
    Key,
    One,
    Parts,
    Route,
    To,
    rows_of_partitions,
)
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.kafka import ApiKey
from flowshare.protocol.messages.base import NOT_ASKED, Request, Response, TopicPartition
from flowshare.protocol.private import Number, OwnCall, Pair, Text, on_group
from flowshare.protocol.rights import Operation, ResourceType
from flowshare.share.breaker import COUNT_MAX, BreakerState
from flowshare.share.ranges import check_order
from flowshare.share.types import AcknowledgeType, AckRange, AcquiredRange

NO_LEADER: Final = (-1, -1)
"""The current leader of a partition when it is not reported."""
MOVED: Final = frozenset({ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH})
"""Errors that come with the current leader; with others brokers send 0 without meaning."""
BREAKER_ACTS: Final[Mapping[str, Operation]] = {
    "tell": Operation.DESCRIBE,
    "report": Operation.READ,
    "close": Operation.ALTER_CONFIGS,
}
"""The acts on a breaker, each with the right on the group that it needs."""
Count = Annotated[int, Meta(ge=0, le=COUNT_MAX)]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareGroupHeartbeatRequest(Request["ShareGroupHeartbeatResponse"]):
    group_id: str
    member_id: str
    member_epoch: int
    rack_id: str | None = None
    subscribed_topics: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareGroupHeartbeatResponse(Response):
    member_id: str | None = None
    member_epoch: int = 0
    heartbeat_interval_ms: int = 5000
    assignment: tuple[TopicPartition, ...] | None = None
    """The assigned partitions; None: unchanged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareBreakerRequest(Request["ShareBreakerResponse"]):
    """Ask about a group's circuit breaker (flowshare's own).

    act: `tell` (its state), `report` (a member's outcomes since its start, in the order of `share.breaker.Outcomes`),
    `close` (by hand). known: in a report, the last answer to the member: state, left_ms and open_ms.
    """

    group_id: Text
    act: Literal["tell", "report", "close"] = "tell"
    member_id: Text = ""
    outcomes: tuple[Count, Count, Count, Count] = (0, 0, 0, 0)
    known: tuple[BreakerState, Count, Count] = (BreakerState.CLOSED, 0, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareBreakerResponse(Response):
    """The fields of `share.breaker.Told`; `closed` also if the group has no breaker."""

    state: str = "closed"
    why: str = ""
    left_ms: int = 0
    open_ms: int = 0


class SharePartitionRequest(NamedTuple):
    """A partition that is added to the session, acknowledged, or both."""

    topic_id: uuid.UUID
    partition: int
    acks: tuple[AckRange, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareFetchRequest(Request["ShareFetchResponse"]):
    group_id: str | None
    member_id: str | None
    session_epoch: int
    max_wait_ms: int = 500
    min_bytes: int = 1
    max_bytes: int = 0x7FFFFFFF
    """The most bytes; 0 with max_records > 0: acquire without record bytes (flowshare's own)."""
    max_records: int = 500
    batch_size: int = 500
    acquire_mode: int = 0
    is_renew_ack: bool = False
    partitions: tuple[SharePartitionRequest, ...] = ()
    forgotten: tuple[TopicPartition, ...] = ()
    version: int = 2
    heads: int = 0
    """In a group with an order: the most of max_records that begin a key; 0: max_records (flowshare's own)."""
    chain: int = 1
    """The most records of one key in a row (flowshare's own)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchedPartition(Response):
    topic_id: uuid.UUID
    partition: int
    ack_error: ErrorCode = ErrorCode.NONE
    ack_message: str | None = None
    ack_refused: tuple[tuple[int, int], ...] = ()
    """Refused ranges, as in `AcknowledgedPartition.refused`."""
    records: bytes = b""
    acquired: tuple[AcquiredRange, ...] = ()
    current_leader: tuple[int, int] = NO_LEADER
    """Node and leader epoch, sent if the partition is led elsewhere."""
    fence: tuple[int, int] | None = None
    """In a group with an order: generation of the load, and serial number of the first acquired record; a record n
    offsets behind it has a number n higher. Numbers are never used again (flowshare's own)."""
    following: tuple[tuple[int, int], ...] = ()
    """Acquired records of parked keys, which shall become dead letters unrun, and the record that their key was parked
    for (flowshare's own)."""
    locked_after_ms: int | None = None
    """With a fence: milliseconds from the request's arrival until its locks began, rounded down. So a member that stood
    still and reads the answer late does not take the locks for new (flowshare's own)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareFetchResponse(Response):
    lock_timeout_ms: int = 0
    partitions: tuple[FetchedPartition, ...] = ()
    node_endpoints: Mapping[int, tuple[str, int]] = field(default_factory=dict[int, tuple[str, int]])
    """Host and port of the leaders named in `current_leader`."""
    throttle_ms: int = 0
    """How long a quota held the answer back, in milliseconds; the answer lacks the records acquired for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareAcknowledgeRequest(Request["ShareAcknowledgeResponse"]):
    group_id: str | None
    member_id: str | None
    session_epoch: int
    is_renew_ack: bool = False
    partitions: tuple[SharePartitionRequest, ...] = ()
    version: int = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class AcknowledgedPartition(Response):
    topic_id: uuid.UUID
    partition: int
    current_leader: tuple[int, int] = NO_LEADER
    refused: tuple[tuple[int, int], ...] = ()
    """Without an error: ranges that do not hold though the others do; `message` gives the reason (flowshare's own, if a
    member names the deliveries)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareAcknowledgeResponse(Response):
    lock_timeout_ms: int = 0
    partitions: tuple[AcknowledgedPartition, ...] = ()
    node_endpoints: Mapping[int, tuple[str, int]] = field(default_factory=dict[int, tuple[str, int]])


class SettleOutput(NamedTuple):
    """Record batches for one partition of a topic. topic_id: of the topic that they were made for."""

    topic: str
    topic_id: uuid.UUID
    partition: int
    records: bytes


class RefusedOutput(NamedTuple):
    """An output of a settle that cannot be written, by its position, and the error."""

    place: int
    error: ErrorCode
    message: str | None = None


SETTLE_WAIT_MS: Final = 5_000
"""Longest time for which a server keeps an ordered settle, of share and of cooperative groups, waiting for its turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareSettleRequest(Request["ShareSettleResponse"]):
    """Accept and reject records of one share-partition and write outputs, in one step or not at all (flowshare's own).

    acks: ascending, ACCEPT and REJECT only, each with its attempt. outputs: not transactional, without producer ids.
    ordered: written only when all records before these are finished; these are one run of offsets then.
    """

    group_id: str
    member_id: str
    topic_id: uuid.UUID
    partition: int
    acks: tuple[AckRange, ...]
    outputs: tuple[SettleOutput, ...]
    ordered: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareSettleResponse(Response):
    """The outcome of a settle. Without an error all of it is durable; with an error nothing is, and nothing will be.

    refused: with INVALID_RECORD_STATE: ranges of records that are not the member's (any more), or were settled already.
    outputs: the outputs that were the reason, if any.
    """

    lock_timeout_ms: int = 0
    refused: tuple[tuple[int, int], ...] = ()
    outputs: tuple[RefusedOutput, ...] = ()
    current_leader: tuple[int, int] = NO_LEADER
    node_endpoints: Mapping[int, tuple[str, int]] = field(default_factory=dict[int, tuple[str, int]])


class HeldRanges(NamedTuple):
    """Ranges (first, last: inclusive) of a partition that a member holds.

    lapsed: ranges held until no leader was known for the lock time; they ran, or may have run.
    """

    topic_id: uuid.UUID
    partition: Number
    ranges: tuple[Pair, ...] = ()
    lapsed: tuple[Pair, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareResumeRequest(Request["ShareResumeResponse"]):
    """Report the records that a member holds after its connection ended; it sends nothing else before the answer
    (flowshare's own).

    partitions: all that the member fetches from or holds records of. In a fleet: only those of a worker that is their
    new leader, or whose connection ended; all others go on meanwhile.
    """

    group_id: Text
    member_id: Text
    partitions: tuple[HeldRanges, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareResumeResponse(Response):
    """The records that the member still holds. All other records locked for it were released: without costing an
    attempt, unless the member reported the lock as lapsed.

    elsewhere: partitions that this worker of a fleet does not lead (yet, or any more): nothing was done with them.
    """

    partitions: tuple[HeldRanges, ...] = ()
    elsewhere: tuple[TopicPartition, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareGroupDescribeRequest(Request["GroupDescription"]):
    group_id: str
    authorized: bool = False
    """True: report the operations that the caller may do with the group."""


class AssignedTopic(NamedTuple):
    """The partitions of one topic that a member is assigned."""

    topic_id: uuid.UUID
    topic: str
    partitions: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberDescription:
    member_id: str
    member_epoch: int
    client_id: str
    client_host: str
    rack_id: str | None
    subscribed_topics: tuple[str, ...]
    assigned: tuple[AssignedTopic, ...] = ()

    @property
    def assignment(self) -> dict[str, tuple[int, ...]]:
        """The assigned partitions, by topic."""
        return {one.topic: one.partitions for one in self.assigned}


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupDescription(Response):
    group_id: str = ""
    state: str = "Dead"
    group_epoch: int = 0
    assignment_epoch: int = 0
    assignor: str = ""
    members: tuple[MemberDescription, ...] = ()
    authorized: int = NOT_ASKED
    """The operations that the caller may do, as bits: the bit of each operation's number."""


def _check_held(request: ShareResumeRequest) -> None:
    """Check that ranges are ascending and each partition is named once. Raises: ValueError."""
    for part in request.partitions:
        for ranges in (part.ranges, part.lapsed):
            check_order(ranges)
    if len({part[:2] for part in request.partitions}) < len(request.partitions):
        raise ValueError("a partition is named twice")


def _pair(*two: int) -> tuple[int, ...]:
    return two


def _renews(request: ShareFetchRequest | ShareAcknowledgeRequest) -> bool:
    return request.is_renew_ack or any(
        AcknowledgeType.RENEW in ack.types for part in request.partitions for ack in part.acks
    )


SHARE_BREAKER: Final = OwnCall(
    "share_breaker",
    ShareBreakerRequest,
    ShareBreakerResponse,
    route=OF_GROUP,
    rights=lambda request: [(BREAKER_ACTS[request.act], ResourceType.GROUP, request.group_id)],
)
SHARE_RESUME: Final = OwnCall(
    "share_resume", ShareResumeRequest, ShareResumeResponse, rights=on_group(Operation.READ), check=_check_held
)
SHARE_GROUP_HEARTBEAT: Final = Api(
    ApiKey.SHARE_GROUP_HEARTBEAT,
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
    server=(1, 1),
    client=(1, 1),
    route=OF_GROUP,
    request_shape={"subscribed_topic_names": "subscribed_topics"},
    response_shape={
        "assignment": Inside(
            {"topic_partitions": Array("assignment", TopicPartition, {"partitions": Each("partition")})},
            null_without="assignment",
        )
    },
)
SHARE_FETCH: Final = Api(
    ApiKey.SHARE_FETCH,
    ShareFetchRequest,
    ShareFetchResponse,
    server=(1, 2),
    client=(1, 2),
    route=Route(To.SESSION),
    needs=lambda request: 2 if request.acquire_mode != 0 or _renews(request) else 1,
    wait_ms=lambda request: request.max_wait_ms,
)
SHARE_ACKNOWLEDGE: Final = Api(
    ApiKey.SHARE_ACKNOWLEDGE,
    ShareAcknowledgeRequest,
    ShareAcknowledgeResponse,
    server=(1, 2),
    client=(1, 2),
    route=Route(To.SESSION),
    needs=lambda request: 2 if _renews(request) else 1,
    response_shape={
        "acquisition_lock_timeout": "lock_timeout_ms",
        "responses": rows_of_partitions(
            "partitions",
            AcknowledgedPartition,
            {"current_leader": Inside({("leader_id", "leader_epoch"): Parts("current_leader", _pair)})},
        ),
        "node_endpoints": Array(
            "node_endpoints", dict, {"node_id": 0, "host": (1, 0), "port": (1, 1), "rack": Fixed(None)}
        ),
    },
)
SHARE_SETTLE: Final = Api(
    ApiKey.FLOWSHARE_SETTLE,
    ShareSettleRequest,
    ShareSettleResponse,
    server=(0, 0),
    client=(0, 0),
    route=Route(To.SESSION),
    wait_ms=lambda request: SETTLE_WAIT_MS if request.ordered else 0,
)
SHARE_GROUP_DESCRIBE: Final = Api(
    ApiKey.SHARE_GROUP_DESCRIBE,
    ShareGroupDescribeRequest,
    GroupDescription,
    server=(1, 1),
    client=(1, 1),
    route=OF_GROUP,
    request_shape={"group_ids": One("group_id"), "include_authorized_operations": "authorized"},
    response_shape={
        "groups": One(
            {
                "group_id": Key("group_id", "group_id"),
                "group_state": "state",
                "assignor_name": "assignor",
                "authorized_operations": "authorized",
                "members": Array(
                    "members",
                    MemberDescription,
                    {
                        "subscribed_topic_names": "subscribed_topics",
                        "assignment": Inside({"topic_partitions": Array("assigned", AssignedTopic)}),
                    },
                ),
            }
        )
    },
)
