"""Groups of any kind: where they are coordinated, listing, deleting."""

from __future__ import annotations

from typing import Any, Final

from flowshare.client.wire.base import Codec, by_kio, code, text
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.kafka import ApiKey, module
from flowshare.protocol.messages import (
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    GroupResult,
    ListedGroup,
    ListGroupsRequest,
    ListGroupsResponse,
)

KEY_TYPES: Final = {"group": 0, "transaction": 1, "share": 2}
"""Kafka's numbers of what has a coordinator; share groups are groups (key type 2 is for their state)."""
SHARE_FROM: Final = 6
"""The version from which the state of share-partitions has coordinators."""
MANY_KEYS_FROM: Final = 4
"""The version from which one request may ask for several keys."""
TYPES_FROM: Final = 5
"""The version of ListGroups that knows types of groups; before it all are classic."""


def _find(request: FindCoordinatorRequest, version: int) -> Any:
    m = module("find_coordinator", version, "request")
    keys: dict[str, Any] = {"key": request.key} if version < MANY_KEYS_FROM else {"coordinator_keys": (request.key,)}
    return m.FindCoordinatorRequest(key_type=KEY_TYPES[request.kind], **keys)


def _find_answer(answer: Any, request: FindCoordinatorRequest) -> FindCoordinatorResponse:
    found = answer
    if answer.__version__ >= MANY_KEYS_FROM:
        found = next((one for one in answer.coordinators if one.key == request.key), None)
    if found is None:
        return FindCoordinatorResponse(
            error=ErrorCode.UNKNOWN_SERVER_ERROR, message=f"the answer leaves out the {request.kind} {request.key!r}"
        )
    return FindCoordinatorResponse(
        error=code(found.error_code),
        message=text(found.error_message),
        node_id=int(found.node_id),
        host=found.host,
        port=int(found.port),
    )


def _list(request: ListGroupsRequest, version: int) -> Any:
    m = module("list_groups", version, "request")
    types: dict[str, Any] = {"types_filter": request.types} if version >= TYPES_FROM else {}
    return m.ListGroupsRequest(states_filter=request.states, **types)


def _list_answer(answer: Any, _: ListGroupsRequest) -> ListGroupsResponse:
    return ListGroupsResponse(
        error=code(answer.error_code),
        groups=tuple(
            ListedGroup(
                group_id=str(group.group_id),
                state=group.group_state,
                type=getattr(group, "group_type", "classic"),
                protocol_type=group.protocol_type,
            )
            for group in answer.groups
        ),
    )


def _delete(request: DeleteGroupsRequest, version: int) -> Any:
    m = module("delete_groups", version, "request")
    return m.DeleteGroupsRequest(groups_names=request.group_ids)


def _delete_answer(answer: Any, _: DeleteGroupsRequest) -> DeleteGroupsResponse:
    return DeleteGroupsResponse(
        groups=tuple(
            GroupResult(group_id=str(result.group_id), error=code(result.error_code)) for result in answer.results
        )
    )


CODECS: Final[dict[type[Any], Codec]] = {
    FindCoordinatorRequest: Codec(
        key=ApiKey.FIND_COORDINATOR,
        name="find_coordinator",
        lowest=3,
        highest=6,
        write=by_kio(_find),
        decode=_find_answer,
        needs=lambda request: SHARE_FROM if request.kind == "share" else 0,
    ),
    ListGroupsRequest: Codec(
        key=ApiKey.LIST_GROUPS,
        name="list_groups",
        lowest=4,
        highest=5,
        write=by_kio(_list),
        decode=_list_answer,
        needs=lambda request: TYPES_FROM if request.types else 0,
    ),
    DeleteGroupsRequest: Codec(
        key=ApiKey.DELETE_GROUPS,
        name="delete_groups",
        lowest=2,
        highest=2,
        write=by_kio(_delete),
        decode=_delete_answer,
    ),
}
