"""Topics: metadata, create, delete, add partitions."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field

from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.messages.base import Request


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataRequest(Request["MetadataResponse"]):
    topics: tuple[str, ...] | None = None
    """None: all, unless `topic_ids` names some."""
    topic_ids: tuple[uuid.UUID, ...] = ()
    """Topics by id; one that does not exist comes back with an empty name and UNKNOWN_TOPIC_ID."""
    authorized: bool = False
    """Ask what the asker may do with the topics."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicMetadata:
    name: str
    error: ErrorCode = ErrorCode.NONE
    topic_id: uuid.UUID | None = None
    partitions: int = 0
    leaders: tuple[int, ...] = ()
    """Leading node of each partition, −1 when there is none. Empty in process, where there are no nodes."""
    leader_epochs: tuple[int, ...] = ()
    """Leader epoch of each partition, −1 when it is not told."""
    replicas: int = -1
    """Replicas of the partition that has fewest, −1 when it is not told."""
    authorized: int | None = None
    """What the asker may do: a bit for each number of an operation; None: not told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataResponse:
    topics: tuple[TopicMetadata, ...] = ()
    nodes: Mapping[int, tuple[str, int]] = field(default_factory=dict[int, tuple[str, int]])
    """Host and port of each node; empty in process."""
    controller: int = -1
    """Node that the topic admin APIs are for; −1: not told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicResult:
    topic: str
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None
    topic_id: uuid.UUID | None = None
    throttle_ms: int = 0
    """With THROTTLING_QUOTA_EXCEEDED: when to ask again."""


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
    name: str
    total: int
    validate_only: bool = False
