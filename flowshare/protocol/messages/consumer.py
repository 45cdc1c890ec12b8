"""Consumer groups of the consumer protocol (KIP-848); only foreign clients use them."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import Final, NamedTuple

from flowshare.protocol.declaration import OF_GROUP, Api, Array, Each, Fixed, Inside, Key, One, Shape
from flowshare.protocol.kafka import ApiKey
from flowshare.protocol.messages.base import NOT_ASKED, Request, Response, TopicPartition


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerGroupHeartbeatRequest(Request["ConsumerGroupHeartbeatResponse"]):
    """A member's heartbeat; None, and −1 for the timeout, mean unchanged."""

    group_id: str
    member_id: str
    member_epoch: int
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: int = -1
    subscribed_topics: tuple[str, ...] | None = None
    subscribed_pattern: str | None = None
    """A pattern of topics, from version 1 on."""
    assignor: str | None = None
    owned: tuple[TopicPartition, ...] | None = None
    """The partitions that the member uses."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerGroupHeartbeatResponse(Response):
    member_id: str | None = None
    member_epoch: int = 0
    heartbeat_interval_ms: int = 0
    assignment: tuple[TopicPartition, ...] | None = None
    """The partitions that the member may use; None: unchanged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerGroupDescribeRequest(Request["ConsumerGroupDescription"]):
    group_id: str
    authorized: bool = False
    """True: report the operations that the caller may do with the group."""


class DescribedTopic(NamedTuple):
    """Partitions of a topic that a member has, or should have."""

    topic_id: uuid.UUID
    topic: str
    partitions: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerMemberDescription:
    member_id: str
    instance_id: str | None = None
    rack_id: str | None = None
    member_epoch: int
    client_id: str
    client_host: str
    subscribed_topics: tuple[str, ...] = ()
    subscribed_pattern: str | None = None
    assigned: tuple[DescribedTopic, ...] = ()
    target: tuple[DescribedTopic, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerGroupDescription(Response):
    group_id: str = ""
    state: str = ""
    group_epoch: int = 0
    assignment_epoch: int = 0
    assignor: str = ""
    members: tuple[ConsumerMemberDescription, ...] = ()
    authorized: int = NOT_ASKED
    """The operations that the caller may do, as bits: the bit of each operation's number."""


CONSUMER_MEMBER: Final = 1
"""The type of a member that uses the consumer protocol."""
_OWNED: Final = {"partitions": Each("partition")}

CONSUMER_GROUP_HEARTBEAT: Final = Api(
    ApiKey.CONSUMER_GROUP_HEARTBEAT,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    server=(0, 1),
    client=(1, 1),
    route=OF_GROUP,
    request_shape={
        "subscribed_topic_names": "subscribed_topics",
        "subscribed_topic_regex": "subscribed_pattern",
        "server_assignor": "assignor",
        "topic_partitions": Array("owned", TopicPartition, _OWNED),
    },
    response_shape={
        "assignment": Inside(
            {"topic_partitions": Array("assignment", TopicPartition, _OWNED)}, null_without="assignment"
        )
    },
)


def _described(path: str) -> Inside:
    return Inside({"topic_partitions": Array(path, DescribedTopic)})


_MEMBER: Final[Shape] = {
    "subscribed_topic_names": "subscribed_topics",
    "subscribed_topic_regex": "subscribed_pattern",
    "assignment": _described("assigned"),
    "target_assignment": _described("target"),
    "member_type": Fixed(CONSUMER_MEMBER),
}
CONSUMER_GROUP_DESCRIBE: Final = Api(
    ApiKey.CONSUMER_GROUP_DESCRIBE,
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescription,
    server=(0, 1),
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
                "members": Array("members", ConsumerMemberDescription, _MEMBER),
            }
        )
    },
)
