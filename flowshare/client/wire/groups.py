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

GROUP: Final = 0
"""Key type of groups; share groups have no other (key type 2 is for brokers)."""


def _find(request: FindCoordinatorRequest, version: int) -> Any:
    m = module("find_coordinator", version, "request")
    return m.FindCoordinatorRequest(key_type=GROUP, coordinator_keys=(request.group_id,))


def _find_answer(answer: Any, request: FindCoordinatorRequest) -> FindCoordinatorResponse:
    found = next((one for one in answer.coordinators if one.key == request.group_id), None)
    if found is None:
        return FindCoordinatorResponse(
            error=ErrorCode.UNKNOWN_SERVER_ERROR, message=f"the answer leaves out the group {request.group_id!r}"
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
    return m.ListGroupsRequest(states_filter=request.states, types_filter=request.types)


def _list_answer(answer: Any, _: ListGroupsRequest) -> ListGroupsResponse:
    return ListGroupsResponse(
        error=code(answer.error_code),
        groups=tuple(
            ListedGroup(
                group_id=str(group.group_id),
                state=group.group_state,
                type=group.group_type,
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
        lowest=4,
        highest=6,
        write=by_kio(_find),
        decode=_find_answer,
    ),
    ListGroupsRequest: Codec(
        key=ApiKey.LIST_GROUPS, name="list_groups", lowest=5, highest=5, write=by_kio(_list), decode=_list_answer
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
