"""The plain form of every operation: what the in-process client and server exchange.

Field for field these are Kafka's messages (KIP-932 for the share APIs) with ranges and bytes as they are; kio's
generated messages are translated to and from them at the socket only. Flowshare's own additions are marked; other
clients never set them. Every request class names its response class by its type parameter.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, Protocol, TypeVar

from flowshare.protocol.errors import ErrorCode
from flowshare.share.types import AcquiredRange

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)


class Request(Generic[R_co]):
    """Base of all requests; the parameter is the response's class."""

    __slots__ = ()


class Connection(Protocol):
    """One connection to a server: in process, or a socket. Share sessions end with it.

    Requests may overlap; each is accepted in the order of the calls to `send` (before the first await).
    """

    async def send(self, request: Request[R]) -> R:
        """Answer of the server. Raises ConnectionError when the connection is or gets closed."""
        ...

    async def close(self) -> None:
        """Close; the server releases what this connection's share sessions hold."""


class TopicPartition(NamedTuple):
    """A topic's id and one of its partitions."""

    topic_id: uuid.UUID
    partition: int


# --- share groups ---------------------------------------------------------------------------------------------


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
    """One AcknowledgementBatch. `delay_ms` and `unrun` are flowshare's own and act on RELEASE only."""

    first: int
    last: int
    types: bytes
    delay_ms: int = 0
    unrun: bool = False


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


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareFetchResponse:
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None
    lock_timeout_ms: int = 0
    partitions: tuple[FetchedPartition, ...] = ()


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


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareAcknowledgeResponse:
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None
    lock_timeout_ms: int = 0
    partitions: tuple[AcknowledgedPartition, ...] = ()


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


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeShareGroupOffsetsRequest(Request["DescribeShareGroupOffsetsResponse"]):
    group_id: str
    topics: Mapping[str, tuple[int, ...]] | None = None
    """None: every partition the group has state for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SharePartitionOffsets:
    topic: str
    topic_id: uuid.UUID | None
    partition: int
    start_offset: int = -1
    leader_epoch: int = 0
    lag: int = -1
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None
    in_flight: int = 0
    """Acquired records (flowshare's own)."""
    delayed: int = 0
    """Available records whose not-before has not come (flowshare's own)."""
    redeliveries: int = 0
    """Deliveries after the first since the share-partition was loaded (flowshare's own)."""
    oldest_ms: int = -1
    """Timestamp of the first unfinished record, −1 when unknown or none (flowshare's own)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeShareGroupOffsetsResponse:
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None
    partitions: tuple[SharePartitionOffsets, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterShareGroupOffsetsRequest(Request["AlterShareGroupOffsetsResponse"]):
    group_id: str
    offsets: Mapping[tuple[str, int], int]


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionResult:
    topic: str
    partition: int
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterShareGroupOffsetsResponse:
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None
    partitions: tuple[PartitionResult, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteShareGroupOffsetsRequest(Request["DeleteShareGroupOffsetsResponse"]):
    group_id: str
    topics: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicResult:
    topic: str
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None
    topic_id: uuid.UUID | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteShareGroupOffsetsResponse:
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None
    topics: tuple[TopicResult, ...] = ()


# --- groups and configs -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ListGroupsRequest(Request["ListGroupsResponse"]):
    states: tuple[str, ...] = ()
    types: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedGroup:
    group_id: str
    state: str
    type: str = "share"
    protocol_type: str = "share"


@dataclass(frozen=True, slots=True, kw_only=True)
class ListGroupsResponse:
    error: ErrorCode = ErrorCode.NONE
    groups: tuple[ListedGroup, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteGroupsRequest(Request["DeleteGroupsResponse"]):
    group_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupResult:
    group_id: str
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteGroupsResponse:
    groups: tuple[GroupResult, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigEntry:
    name: str
    value: str
    is_default: bool
    documentation: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeConfigsRequest(Request["DescribeConfigsResponse"]):
    resource_type: str
    """`group` or `topic`."""
    resource: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeConfigsResponse:
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None
    entries: tuple[ConfigEntry, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class IncrementalAlterConfigsRequest(Request["IncrementalAlterConfigsResponse"]):
    resource_type: str
    resource: str
    configs: Mapping[str, str | None]
    """None removes the setting."""
    validate_only: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class IncrementalAlterConfigsResponse:
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None


# --- topics and records -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataRequest(Request["MetadataResponse"]):
    topics: tuple[str, ...] | None = None
    """None: all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicMetadata:
    name: str
    error: ErrorCode = ErrorCode.NONE
    topic_id: uuid.UUID | None = None
    partitions: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataResponse:
    topics: tuple[TopicMetadata, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateTopicRequest(Request["TopicResult"]):
    name: str
    partitions: int = 1
    configs: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteTopicRequest(Request["TopicResult"]):
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CreatePartitionsRequest(Request["TopicResult"]):
    name: str
    total: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ProduceRequest(Request["ProduceResponse"]):
    """Record batches (v2) for one partition; answered when confirmed."""

    topic: str
    partition: int
    records: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ProduceResponse:
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None
    base_offset: int = -1
    log_start: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchRequest(Request["FetchResponse"]):
    """Plain read of one partition, no group (dlq show, counts)."""

    topic: str
    partition: int
    offset: int
    max_bytes: int = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchResponse:
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None
    records: bytes = b""
    log_start: int = -1
    high_watermark: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class ListOffsetsRequest(Request["ListOffsetsResponse"]):
    """`timestamp_ms`: −1 latest, −2 earliest, else the first offset with a timestamp at or after it."""

    topic: str
    partition: int
    timestamp_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ListOffsetsResponse:
    error: ErrorCode = ErrorCode.NONE
    offset: int = -1
    timestamp_ms: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteRecordsRequest(Request["DeleteRecordsResponse"]):
    topic: str
    partition: int
    before: int
    """−1: all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteRecordsResponse:
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None
    log_start: int = -1
