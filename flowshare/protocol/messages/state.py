"""State of share-partitions at a share coordinator (SG-14.5), and offsets of share groups for administration
(KIP-932)."""

from __future__ import annotations

import base64
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Annotated, Any, Final, NamedTuple

from msgspec import Meta

from flowshare.protocol.declaration import (
    OF_GROUP,
    Api,
    Array,
    Each,
    One,
    Route,
    Shape,
    To,
    Via,
    of_partitions,
    rows_of_partitions,
)
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.kafka import ApiKey
from flowshare.protocol.messages.base import Request, Response
from flowshare.protocol.messages.topics import TopicResult
from flowshare.protocol.private import (
    LIST_MAX,
    PAIRS,
    Form,
    May,
    Number,
    NumberOrNone,
    OwnCall,
    Pair,
    Right,
    Text,
    on_group,
    on_group_and_topic,
)
from flowshare.protocol.rights import Operation, ResourceType
from flowshare.share.parking import ParkedKey
from flowshare.share.ranges import check_order
from flowshare.share.types import BlockedKey, PartitionState, RecordState, StateRun

Place = tuple[Text, Number]
Topics = Annotated[Mapping[Text, Annotated[tuple[Number, ...], Meta(max_length=LIST_MAX)]], Meta(max_length=LIST_MAX)]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareGroupStateRequest(Request["ShareGroupStateResponse"]):
    """Base of the requests about share-group state: each names one share-partition."""

    group_id: str
    topic_id: uuid.UUID
    partition: int


@dataclass(frozen=True, slots=True, kw_only=True)
class InitializeShareGroupStateRequest(ShareGroupStateRequest):
    state_epoch: int
    start_offset: int
    """The start offset; −1: found by share.auto.offset.reset at the first fetch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadShareGroupStateRequest(ShareGroupStateRequest):
    """Read for a new leader: leaders with a lower epoch can no longer write."""

    leader_epoch: int


class ReadShareGroupStateSummaryRequest(ShareGroupStateRequest):
    """Ask for the start offset and epochs only, without states of records; changes nothing."""

    __slots__ = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteShareGroupStateRequest(ShareGroupStateRequest):
    state_epoch: int
    leader_epoch: int
    start_offset: int
    delivery_complete_count: int = -1
    runs: tuple[StateRun, ...]


class DeleteShareGroupStateRequest(ShareGroupStateRequest):
    """Delete the state of a share-partition."""

    __slots__ = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareGroupStateResponse(Response):
    """The state of a share-partition. state: None if the request does not read, or if there is no state."""

    state: PartitionState | None = None

    @property
    def told(self) -> PartitionState:
        """The state, or `NO_STATE`."""
        return self.state or NO_STATE


NO_TOPIC: Final = uuid.UUID(int=0)
"""The topic id of a request without a topic."""
NO_STATE: Final = PartitionState(delivery_complete_count=-1)
DELIVERIES_MAX: Final = 2**15 - 1


def _state_key(request: ReadShareGroupStateRequest) -> str:
    """Return the key by which Kafka finds the coordinator of a share-partition's state."""
    topic_id = base64.urlsafe_b64encode(request.topic_id.bytes).decode().rstrip("=")
    return f"{request.group_id}:{topic_id}:{request.partition}"


def _read_state(error: ErrorCode, message: str | None, **told: Any) -> ShareGroupStateResponse:
    if error:
        return ShareGroupStateResponse(error=error, message=message)
    return ShareGroupStateResponse(state=PartitionState(**{name.removeprefix("told."): told[name] for name in told}))


def _stored(state: RecordState) -> int:
    """Return the code of a record's state: acquired records are available in Kafka's state, for a new leader to hand
    out."""
    return int(RecordState.AVAILABLE if state is RecordState.ACQUIRED else state)


def _asked(**fields: Any) -> Shape:
    """Return the shape of a request about share-partitions."""
    topic_id = Via("topic_id", lambda topic_id: topic_id, lambda topic_id: topic_id or NO_TOPIC)
    return {"topics": One({"topic_id": topic_id, "partitions": One(fields)})}


def _told(*names: str, **fields: Any) -> Shape:
    """Return the shape of an answer with these fields of each share-partition's state."""
    return of_partitions("results", {**{name: f"told.{name}" for name in names}, **fields})


INITIALIZE_SHARE_GROUP_STATE: Final = Api(
    ApiKey.INITIALIZE_SHARE_GROUP_STATE,
    InitializeShareGroupStateRequest,
    ShareGroupStateResponse,
    server=(0, 0),
    request_shape=_asked(),
    response_shape=_told(),
)
READ_SHARE_GROUP_STATE: Final = Api(
    ApiKey.READ_SHARE_GROUP_STATE,
    ReadShareGroupStateRequest,
    _read_state,
    server=(0, 0),
    client=(0, 0),
    route=Route(To.COORDINATOR, _state_key, "share"),
    request_shape=_asked(),
    response_shape=_told(
        "state_epoch",
        "start_offset",
        error_code="error",
        error_message="message",
        state_batches=Array(
            "told.runs",
            StateRun,
            {
                "first_offset": "first",
                "last_offset": "last",
                "delivery_state": Via("state", _stored, RecordState),
                "delivery_count": Via("delivery_count", lambda count: min(count, DELIVERIES_MAX), int),
            },
        ),
    ),
)
WRITE_SHARE_GROUP_STATE: Final = Api(
    ApiKey.WRITE_SHARE_GROUP_STATE,
    WriteShareGroupStateRequest,
    ShareGroupStateResponse,
    server=(0, 1),
    request_shape=_asked(
        state_batches=Array(
            "runs", StateRun, {"first_offset": "first", "last_offset": "last", "delivery_state": "state"}
        )
    ),
    response_shape=_told(),
)
DELETE_SHARE_GROUP_STATE: Final = Api(
    ApiKey.DELETE_SHARE_GROUP_STATE,
    DeleteShareGroupStateRequest,
    ShareGroupStateResponse,
    server=(0, 0),
    request_shape=_asked(),
    response_shape=_told(),
)
READ_SHARE_GROUP_STATE_SUMMARY: Final = Api(
    ApiKey.READ_SHARE_GROUP_STATE_SUMMARY,
    ReadShareGroupStateSummaryRequest,
    ShareGroupStateResponse,
    server=(0, 1),
    request_shape=_asked(),
    response_shape=_told("state_epoch", "leader_epoch", "start_offset", "delivery_complete_count"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeShareGroupOffsetsRequest(Request["DescribeShareGroupOffsetsResponse"]):
    group_id: Text
    topics: Topics | None = None
    """The wanted partitions by topic; None: all with state."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SharePartitionOffsets(Response):
    topic: str
    topic_id: uuid.UUID | None
    partition: int
    start_offset: int = -1
    leader_epoch: int = 0
    lag: int = -1
    in_flight: int = 0
    """The number of acquired records, −1: unknown (flowshare's own, as are the following)."""
    delayed: int = 0
    """The number of available records that are delayed, −1: unknown."""
    redeliveries: int = 0
    """The number of deliveries after the first since the share-partition was loaded, −1: unknown."""
    oldest_ms: int = -1
    """The timestamp of the first unfinished record, −1: unknown or none."""
    blocked: int = 0
    """The number of records that wait for another record of their key, −1: unknown."""
    stuck: tuple[BlockedKey, ...] = ()
    """The keys for which most of them wait."""
    archiving: int = 0
    """The number of records whose dead letters are being written; reported within a process and between workers."""
    parked: int = 0
    """The number of parked keys (SG-18.11), −1: unknown."""


class ParkedKeyTold(NamedTuple):
    """A parked key of a share-partition. parked: as stored."""

    topic: str
    topic_id: uuid.UUID
    partition: int
    key: bytes
    parked: ParkedKey


@dataclass(frozen=True, slots=True, kw_only=True)
class ParkedKeysRequest(Request["ParkedKeysResponse"]):
    """Ask for the parked keys of a group, or change one (flowshare's own).

    act: `list` (of all partitions), `replay` (begin one: the answer has the version that its records carry), `unpark`
    (the key goes on; its dead letters stay).
    """

    group_id: Text
    act: Text = "list"
    topic: Text = ""
    partition: NumberOrNone = -1
    key: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParkedKeysResponse(Response):
    """The parked keys. keys: all, or the changed one; empty if it is not parked. order: share.key.order of the
    group."""

    keys: tuple[ParkedKeyTold, ...] = ()
    order: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeShareGroupOffsetsResponse(Response):
    partitions: tuple[SharePartitionOffsets, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterShareGroupOffsetsRequest(Request["AlterShareGroupOffsetsResponse"]):
    group_id: Text
    offsets: Mapping[tuple[str, int], int]
    finished: Mapping[tuple[str, int], tuple[tuple[int, int], ...]] = field(
        default_factory=dict[tuple[str, int], tuple[tuple[int, int], ...]]
    )
    """Ranges behind the offset that count as processed: (first, last), ascending and disjoint (flowshare's own)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionResult(Response):
    topic: str
    partition: int
    topic_id: uuid.UUID | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterShareGroupOffsetsResponse(Response):
    partitions: tuple[PartitionResult, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteShareGroupOffsetsRequest(Request["DeleteShareGroupOffsetsResponse"]):
    group_id: str
    topics: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteShareGroupOffsetsResponse(Response):
    topics: tuple[TopicResult, ...] = ()


def _keys_shown(answer: ParkedKeysResponse, may: May) -> ParkedKeysResponse:
    """Leave out keys, which are a part of records, of topics that the peer may not read."""
    return replace(answer, keys=tuple(one for one in answer.keys if may(Operation.READ, ResourceType.TOPIC, one.topic)))


def _rights_to_place(request: AlterShareGroupOffsetsRequest) -> list[Right]:
    topics = dict.fromkeys(topic for topic, _ in request.offsets)
    return [
        (Operation.READ, ResourceType.GROUP, request.group_id),
        *((Operation.READ, ResourceType.TOPIC, topic) for topic in topics),
    ]


def _check_placed(request: AlterShareGroupOffsetsRequest) -> None:
    for ranges in request.finished.values():
        check_order(ranges)


SHARE_PARKED: Final = OwnCall(
    "share_parked",
    ParkedKeysRequest,
    ParkedKeysResponse,
    route=OF_GROUP,
    rights=on_group_and_topic(Operation.READ),
    shown=_keys_shown,
)
SHARE_OFFSETS: Final = OwnCall(
    "share_offsets",
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsResponse,
    rights=on_group(Operation.DESCRIBE),
    falls_back=True,
)
"""Kafka's figures, and flowshare's own beside them."""
SHARE_PLACE: Final = OwnCall(
    "share_place",
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsResponse,
    rights=_rights_to_place,
    check=_check_placed,
    when=lambda request: bool(request.finished),
    forms={
        "offsets": Form(Annotated[tuple[tuple[Place, NumberOrNone], ...], Meta(max_length=LIST_MAX)], *PAIRS),
        "finished": Form(Annotated[tuple[tuple[Place, tuple[Pair, ...]], ...], Meta(max_length=LIST_MAX)], *PAIRS),
    },
)
"""All or nothing: a topic that may not be read refuses the call."""
DESCRIBE_SHARE_GROUP_OFFSETS: Final = Api(
    ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS,
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsResponse,
    server=(0, 1),
    client=(0, 1),
    route=OF_GROUP,
    request_shape={"groups": One({"topics": Array("topics", dict, {"topic_name": 0, "partitions": 1})})},
    response_shape={
        "groups": One(
            {
                "topics": rows_of_partitions(
                    "partitions",
                    partial(SharePartitionOffsets, in_flight=-1, delayed=-1, redeliveries=-1, blocked=-1, parked=-1),
                )
            }
        )
    },
)
ALTER_SHARE_GROUP_OFFSETS: Final = Api(
    ApiKey.ALTER_SHARE_GROUP_OFFSETS,
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsResponse,
    server=(0, 0),
    client=(0, 0),
    route=OF_GROUP,
    request_shape={
        "topics": Array(
            "offsets", dict, {"topic_name": (0, 0), "partitions": Each({"partition_index": (0, 1), "start_offset": 1})}
        )
    },
    response_shape={"responses": rows_of_partitions("partitions", PartitionResult)},
)
DELETE_SHARE_GROUP_OFFSETS: Final = Api(
    ApiKey.DELETE_SHARE_GROUP_OFFSETS,
    DeleteShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsResponse,
    server=(0, 0),
    client=(0, 0),
    route=OF_GROUP,
    request_shape={"topics": Array("topics", str, {"topic_name": ()})},
    response_shape={"responses": Array("topics", TopicResult)},
)
