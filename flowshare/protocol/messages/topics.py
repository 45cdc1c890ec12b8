"""Topics: metadata, create, delete, add partitions."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from flowshare.protocol.declaration import CONTROLLER, Api, Array, Fixed, Key, One, Shape, of_partitions
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.kafka import ApiKey
from flowshare.protocol.messages.base import Request, Response
from flowshare.protocol.private import Number, OwnCall, Text
from flowshare.protocol.rights import NeededRight, Operation, ResourceType

TOPIC_IDS_FROM: Final = 12
"""The version of Metadata from which topics can be asked for by id (KIP-516)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataRequest(Request["MetadataResponse"]):
    topics: tuple[str, ...] | None = None
    """The wanted topics; None: all, unless `topic_ids` names some."""
    topic_ids: tuple[uuid.UUID, ...] = ()
    """Topics by id; a topic that does not exist is returned with an empty name and UNKNOWN_TOPIC_ID."""
    authorized: bool = False
    """True: report the operations that the caller may do with the topics."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicMetadata:
    name: str
    error: ErrorCode = ErrorCode.NONE
    topic_id: uuid.UUID | None = None
    partitions: int = 0
    leaders: tuple[int, ...] = ()
    """The leading node of each partition, −1: none. Empty in process, where there are no nodes."""
    leader_epochs: tuple[int, ...] = ()
    """The leader epoch of each partition, −1: not reported."""
    replicas: int = -1
    """The least number of replicas of a partition, −1: not reported."""
    replica_nodes: tuple[tuple[int, ...], ...] = ()
    """The nodes that have each partition; empty: not reported."""
    in_sync: tuple[tuple[int, ...], ...] = ()
    """The nodes that have all of each partition."""
    authorized: int | None = None
    """The operations that the caller may do, as bits: the bit of each operation's number; None: not reported."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataResponse:
    topics: tuple[TopicMetadata, ...] = ()
    nodes: Mapping[int, tuple[str, int]] = field(default_factory=dict[int, tuple[str, int]])
    """Host and port of each node; empty in process."""
    controller: int = -1
    """The node that the topic admin APIs are sent to; −1: not reported."""
    cluster_id: str | None = None
    """The cluster's id; None in process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicResult(Response):
    topic: str = ""
    topic_id: uuid.UUID | None = None
    throttle_ms: int = 0
    """With THROTTLING_QUOTA_EXCEEDED: the milliseconds until the next try."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateTopicRequest(Request[TopicResult]):
    name: str
    partitions: int = 1
    configs: Mapping[str, str] = field(default_factory=dict[str, str])
    validate_only: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteTopicRequest(Request[TopicResult]):
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CreatePartitionsRequest(Request[TopicResult]):
    """Raise a topic's number of partitions. breaks_order: also where a group reads it in key order (flowshare's own API
    only)."""

    name: Text
    total: Number
    validate_only: bool = False
    breaks_order: bool = False


_TIMEOUT: Final = Fixed(15_000)
"""The longest time, in milliseconds, that a broker may work on a change; below request_timeout, so that its answer
comes."""
_TOLD: Final[Shape] = {"name": Key("name", "topic")}

TOPIC_GROW: Final = OwnCall(
    "topic_grow",
    CreatePartitionsRequest,
    TopicResult,
    rights=lambda request: [(Operation.ALTER, ResourceType.TOPIC, request.name)],
    when=lambda request: bool(request.breaks_order),
    falls_back=True,
)
METADATA: Final = Api(
    ApiKey.METADATA,
    MetadataRequest,
    MetadataResponse,
    server=(0, 13),
    client=(10, 13),
    needs=lambda request: TOPIC_IDS_FROM if request.topic_ids else 0,
)
CREATE_TOPICS: Final = Api(
    ApiKey.CREATE_TOPICS,
    CreateTopicRequest,
    TopicResult,
    server=(2, 7),
    client=(7, 7),
    route=CONTROLLER,
    request_shape={
        "topics": One(
            {
                "num_partitions": "partitions",
                "replication_factor": Fixed(-1),
                "assignments": Fixed(()),
                "configs": Array("configs", dict, {"name": 0, "value": 1}),
            }
        ),
        "timeout": _TIMEOUT,
    },
    response_shape={"topics": One(_TOLD)},
)
DELETE_TOPICS: Final = Api(
    ApiKey.DELETE_TOPICS,
    DeleteTopicRequest,
    TopicResult,
    server=(1, 6),
    client=(6, 6),
    route=CONTROLLER,
    request_shape={"topics": One({"topic_id": Fixed(None)}), "timeout": _TIMEOUT},
    response_shape={"responses": One(_TOLD)},
)
CREATE_PARTITIONS: Final = Api(
    ApiKey.CREATE_PARTITIONS,
    CreatePartitionsRequest,
    TopicResult,
    server=(0, 3),
    client=(3, 3),
    route=CONTROLLER,
    request_shape={"topics": One({"count": "total", "assignments": Fixed(None)}), "timeout": _TIMEOUT},
    response_shape={"results": One({"name": Key("name", "topic")})},
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ElectLeaderRequest(Request[Response]):
    """Make a partition's preferred replica its leader (KIP-183); where every partition has one replica, it leads
    already."""

    topic: str
    partition: int


ELECT_LEADERS: Final = Api(
    ApiKey.ELECT_LEADERS,
    ElectLeaderRequest,
    Response,
    server=(0, 2),
    client=(1, 2),
    route=CONTROLLER,
    right=NeededRight(Operation.ALTER, ResourceType.CLUSTER),
    request_shape={
        "election_type": Fixed(0),
        "topic_partitions": One({"partitions": One("partition")}),
        "timeout": _TIMEOUT,
    },
    response_shape={
        "error_code": Fixed(ErrorCode.NONE),
        **of_partitions("replica_election_results", {"partition_id": Key("partition")}, "partition_result"),
    },
)
