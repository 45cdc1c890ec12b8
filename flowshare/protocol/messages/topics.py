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


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicMetadata:
    name: str
    error: ErrorCode = ErrorCode.NONE
    topic_id: uuid.UUID | None = None
    partitions: int = 0
    leaders: tuple[int, ...] = ()
    """Leading node of each partition, −1 when there is none. Empty in process, where there are no nodes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataResponse:
    topics: tuple[TopicMetadata, ...] = ()
    nodes: Mapping[int, tuple[str, int]] = field(default_factory=dict[int, tuple[str, int]])
    """Host and port of each node; empty in process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicResult:
    topic: str
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None
    topic_id: uuid.UUID | None = None


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
