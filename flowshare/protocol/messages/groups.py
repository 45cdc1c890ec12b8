"""Groups of any kind, and settings of groups and topics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final

from flowshare.protocol.declaration import Api, Array, Coded, CoordinatorKind, Fixed, Key, One, Route, To, Via
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.kafka import ApiKey
from flowshare.protocol.messages.base import Request, Response

COOPERATIVE: Final = "cooperative"
"""The type by which flowshare's servers report cooperative groups, which Kafka does not have."""


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
class GroupResult(Response):
    group_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteGroupsResponse:
    groups: tuple[GroupResult, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class FindCoordinatorRequest(Request["FindCoordinatorResponse"]):
    """Ask for the node that coordinates a group, or a transactional id. −1: the asked server."""

    key: str
    """The group's id, or the transactional id."""
    kind: CoordinatorKind = "group"


@dataclass(frozen=True, slots=True, kw_only=True)
class FindCoordinatorResponse(Response):
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
    """The resource's name; of a broker the node id, or empty: the settings for all brokers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeConfigsResponse(Response):
    entries: tuple[ConfigEntry, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfiguredGroupsRequest(Request["ConfiguredGroupsResponse"]):
    """Ask for the groups with their own settings; a group that does not exist yet may have some (KIP-1142)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfiguredGroupsResponse:
    group_ids: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class IncrementalAlterConfigsRequest(Request[Response]):
    resource_type: str
    resource: str
    configs: Mapping[str, str | None]
    """Settings to set by name; None removes the setting."""
    validate_only: bool = False
    by: tuple[str, str] | None = None
    """Principal and host of the caller at a socket, set by the server itself; None: the server's own process."""


_RESOURCES: Final = {"topic": 2, "broker": 4, "group": 32}
_RESOURCE: Final = Coded("resource_type", _RESOURCES)


def _operation(value: str | None) -> int:
    """Return the operation's code: 0 to set the value, 1 to remove it."""
    return 1 if value is None else 0


def _broker(request: DescribeConfigsRequest | IncrementalAlterConfigsRequest) -> int | None:
    """Return the node id of the broker whose own settings are meant; None: any broker."""
    return int(request.resource) if request.resource_type == "broker" and request.resource else None


FIND_COORDINATOR: Final = Api(
    ApiKey.FIND_COORDINATOR,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    server=(0, 6),
    client=(3, 6),
    needs=lambda request: 6 if request.kind == "share" else 0,
    request_shape={
        "coordinator_keys": One("key"),
        "key_type": Coded("kind", {"group": 0, "transaction": 1, "share": 2}, other=""),
    },
    response_shape={"coordinators": One({})},
)
LIST_GROUPS: Final = Api(
    ApiKey.LIST_GROUPS,
    ListGroupsRequest,
    ListGroupsResponse,
    server=(0, 5),
    client=(4, 5),
    route=Route(To.ALL),
    needs=lambda request: 5 if request.types else 0,
    request_shape={"states_filter": "states", "types_filter": "types"},
    response_shape={
        "groups": Array(
            "groups",
            partial(ListedGroup, type="classic"),  # before version 5 there were no others
            {"group_state": "state", "group_type": "type"},
        )
    },
)
DELETE_GROUPS: Final = Api(
    ApiKey.DELETE_GROUPS,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    server=(0, 2),
    client=(2, 2),
    route=Route(To.COORDINATORS),
    request_shape={"groups_names": "group_ids"},
    response_shape={"results": Array("groups", GroupResult)},
)
DESCRIBE_CONFIGS: Final = Api(
    ApiKey.DESCRIBE_CONFIGS,
    DescribeConfigsRequest,
    DescribeConfigsResponse,
    server=(1, 4),
    client=(4, 4),
    route=Route(To.BROKER, _broker),
    request_shape={
        "resources": One({"resource_type": _RESOURCE, "resource_name": "resource", "configuration_keys": Fixed(None)}),
        "include_synonyms": Fixed(False),
        "include_documentation": Fixed(True),
    },
)
INCREMENTAL_ALTER_CONFIGS: Final = Api(
    ApiKey.INCREMENTAL_ALTER_CONFIGS,
    IncrementalAlterConfigsRequest,
    Response,
    server=(0, 1),
    client=(1, 1),
    route=Route(To.BROKER, _broker),
    request_shape={
        "resources": One(
            {
                "resource_type": _RESOURCE,
                "resource_name": "resource",
                "configs": Array("configs", dict, {"name": 0, "config_operation": Via(1, _operation, int), "value": 1}),
            }
        )
    },
    response_shape={
        "responses": One({"resource_type": Key("resource_type", codes=_RESOURCES), "resource_name": Key("resource")})
    },
)
