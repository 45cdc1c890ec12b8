"""The group APIs that know no kind of group: FindCoordinator, ListGroups, DeleteGroups.

There is one server, so that it coordinates everything; FindCoordinator still checks what is asked for. Rights:
DESCRIBE on what is looked for, CLUSTER_ACTION for share-partitions; DESCRIBE on the cluster or on a group to list it;
DELETE on a group to delete it.
"""

from __future__ import annotations

import base64
import binascii
import enum
from collections.abc import Callable, Sequence
from itertools import compress
from typing import Any, Final

from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.kafka import ApiKey
from flowshare.protocol.messages import DeleteGroupsRequest, GroupResult, ListGroupsRequest
from flowshare.server.edge.base import Api, Call, Node, Operation, ResourceType
from flowshare.server.edge.forms import NO_TIME, form, may_cluster, may_group
from flowshare.server.failures import Refused

BATCHED: Final = 4
"""Version of FindCoordinator from which on it takes many keys (KIP-699)."""
WITH_SHARE: Final = 6
"""Version of FindCoordinator from which on share-partitions have coordinators (KIP-932)."""


class KeyType(enum.IntEnum):
    """What a coordinator is looked for."""

    GROUP = 0
    TRANSACTION = 1
    SHARE = 2


Place = tuple[int, str, int]
"""Node id, host, port."""


class GroupsEdge:
    """Answers what is asked about groups of any kind."""

    def __init__(self, place: Callable[[KeyType, str], Place] | None = None) -> None:
        """place: who coordinates what, raises Refused; None: this server everything."""
        self._place = place

    def apis(self) -> Sequence[Api]:
        """The three APIs."""
        return (
            Api(key=ApiKey.FIND_COORDINATOR, lowest=0, highest=6, answer=self.find),
            Api(key=ApiKey.LIST_GROUPS, lowest=0, highest=5, answer=self.listed),
            Api(key=ApiKey.DELETE_GROUPS, lowest=0, highest=2, answer=self.delete),
        )

    async def find(self, call: Call) -> Any:
        """Where the coordinator of groups, transactions or share-partitions is."""
        make = form("find_coordinator", call.version)
        asked = call.request
        kind = asked.key_type if call.version >= 1 else KeyType.GROUP
        if call.version < BATCHED:
            return make("FindCoordinatorResponse", throttle_time=NO_TIME, **self._told(call, kind, asked.key))
        return make(
            "FindCoordinatorResponse",
            throttle_time=NO_TIME,
            coordinators=await call.peer.turns.each(
                lambda key: make("Coordinator", key=key, **self._told(call, kind, key)),
                dict.fromkeys(asked.coordinator_keys),
            ),
        )

    def _told(self, call: Call, kind: int, key: str) -> dict[str, Any]:
        """The fields that say where the coordinator is, or why it is not told."""
        try:
            _check(call, kind, key)
            node_id, host, port = self._find(call.peer.node, KeyType(kind), key)
        except Refused as error:
            return {"error_code": error.code, "error_message": str(error), "node_id": -1, "host": "", "port": -1}
        return {"error_code": ErrorCode.NONE, "error_message": None, "node_id": node_id, "host": host, "port": port}

    def _find(self, here: Node, kind: KeyType, key: str) -> Place:
        """Raises: Refused."""
        if self._place is not None:
            return self._place(kind, key)
        return here.node_id, here.host, here.port

    async def listed(self, call: Call) -> Any:
        """Groups by state and type."""
        make, peer, asked = form("list_groups", call.version), call.peer, call.request
        answer = await peer.connection.send(
            ListGroupsRequest(
                states=asked.states_filter if call.version >= 4 else (),
                types=asked.types_filter if call.version >= 5 else (),
            )
        )
        groups = answer.groups
        if not may_cluster(peer, Operation.DESCRIBE):
            may = await peer.turns.each(lambda group: may_group(peer, Operation.DESCRIBE, group.group_id), groups)
            groups = tuple(compress(groups, may))
        return make(
            "ListGroupsResponse",
            throttle_time=NO_TIME,
            error_code=answer.error,
            groups=await peer.turns.each(
                lambda group: make(
                    "ListedGroup",
                    group_id=group.group_id,
                    protocol_type=group.protocol_type,
                    group_state=group.state,
                    group_type=group.type,
                ),
                groups,
            ),
        )

    async def delete(self, call: Call) -> Any:
        """Delete empty groups."""
        make, peer = form("delete_groups", call.version), call.peer
        names = tuple(dict.fromkeys(call.request.groups_names))
        turns = peer.turns
        may = dict(await turns.each(lambda name: (name, may_group(peer, Operation.DELETE, name)), names))
        answer = await peer.connection.send(DeleteGroupsRequest(group_ids=tuple(name for name in names if may[name])))
        refused = (
            GroupResult(group_id=name, error=ErrorCode.GROUP_AUTHORIZATION_FAILED) for name in names if not may[name]
        )
        return make(
            "DeleteGroupsResponse",
            throttle_time=NO_TIME,
            results=await turns.each(
                lambda result: make("DeletableGroupResult", group_id=result.group_id, error_code=result.error),
                (*answer.groups, *refused),
            ),
        )


def _check(call: Call, kind: int, key: str) -> None:
    """Raises: Refused."""
    peer = call.peer
    match kind:
        case KeyType.GROUP:
            if not may_group(peer, Operation.DESCRIBE, key):
                raise Refused(ErrorCode.GROUP_AUTHORIZATION_FAILED, f"describing group {key} is not allowed")
        case KeyType.TRANSACTION:
            if not peer.may(Operation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, key):
                raise Refused(
                    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, f"describing transactional id {key} is not allowed"
                )
        case KeyType.SHARE if call.version >= WITH_SHARE:
            if not may_cluster(peer, Operation.CLUSTER_ACTION):
                raise Refused(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "this needs CLUSTER_ACTION on the cluster")
            check_share_key(key)
        case _:
            raise Refused(ErrorCode.INVALID_REQUEST, f"key type {kind} is unknown in version {call.version}")


def check_share_key(key: str) -> None:
    """Check `group:topic id:partition`; the group id may hold colons, so it is read from the right. Raises: Refused."""
    group_id, topic_id, partition = ("", "", *key.rsplit(":", 2))[-3:]
    try:
        decoded = base64.b64decode(topic_id + "==", altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        decoded = b""
    if not group_id or len(decoded) != 16 or not (partition.isascii() and partition.isdigit()):
        raise Refused(
            ErrorCode.INVALID_REQUEST, f"{key!r} is no share-partition; group id:topic id in base64:partition is"
        )
