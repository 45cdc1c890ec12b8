"""Groups of any kind, and settings of groups and topics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.messages.base import Request

CoordinatorKind = Literal["group", "transaction", "share"]
"""What has a coordinator; `share`: the state of a share-partition, asked by its leader."""
"""What has a coordinator; those of both kinds may be different nodes under the same name."""


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
class FindCoordinatorRequest(Request["FindCoordinatorResponse"]):
    """Which node coordinates a group, or a transactional id. Asked of sockets only: in process there is one server."""

    key: str
    """The group's id, or the transactional id."""
    kind: CoordinatorKind = "group"


@dataclass(frozen=True, slots=True, kw_only=True)
class FindCoordinatorResponse:
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None
    node_id: int = -1
    host: str = ""
    port: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigEntry:
    name: str
    value: str
    is_default: bool
    documentation: str = ""
    read_only: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeConfigsRequest(Request["DescribeConfigsResponse"]):
    resource_type: str
    """`group`, `topic`, or `broker`: the server's own settings."""
    resource: str
    """Its name; of a broker the node id, or nothing: what is set for all brokers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeConfigsResponse:
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None
    entries: tuple[ConfigEntry, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfiguredGroupsRequest(Request["ConfiguredGroupsResponse"]):
    """Which groups have settings of their own; a group that does not exist yet may have some (KIP-1142)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfiguredGroupsResponse:
    group_ids: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class IncrementalAlterConfigsRequest(Request["IncrementalAlterConfigsResponse"]):
    resource_type: str
    resource: str
    configs: Mapping[str, str | None]
    """None removes the setting."""
    validate_only: bool = False
    by: tuple[str, str] | None = None
    """Principal and host of who asks at a socket, said by the server itself; None: its own process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IncrementalAlterConfigsResponse:
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None
