"""Consumer groups at the socket, and requests about groups of any kind.

This one server coordinates everything; FindCoordinator still checks its keys. Rights: DESCRIBE on the thing looked for,
CLUSTER_ACTION for share-partitions; DESCRIBE on the cluster or on a group to list it, on a group to look at it; DELETE
on a group to delete it; READ for its members. READ on group and topics to commit offsets, WRITE on a transactional id;
DESCRIBE on both to fetch them; DELETE on the group and READ on topics to delete them. Refusals for topics are told
partition by partition.
"""

from __future__ import annotations

import base64
import binascii
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import compress
from typing import TYPE_CHECKING, Any, Final, TypeVar

from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.messages.classic import (
    DESCRIBE_GROUPS,
    JOIN_GROUP,
    LEAVE_GROUP,
    OFFSET_COMMIT,
    OFFSET_DELETE,
    OFFSET_FETCH,
    SYNC_GROUP,
    TXN_OFFSET_COMMIT,
    DescribeGroupRequest,
    DescribeGroupResponse,
    FetchedOffset,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
    OffsetResult,
    OffsetToCommit,
    SyncGroupRequest,
    SyncGroupResponse,
    TxnOffsetCommitRequest,
)
from flowshare.protocol.messages.consumer import (
    CONSUMER_GROUP_DESCRIBE,
    CONSUMER_GROUP_HEARTBEAT,
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescription,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from flowshare.protocol.messages.groups import (
    DELETE_GROUPS,
    FIND_COORDINATOR,
    LIST_GROUPS,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    GroupResult,
    ListGroupsRequest,
    ListGroupsResponse,
)
from flowshare.protocol.rights import Operation, ResourceType
from flowshare.server.edge.base import authorized_operations, denied, may_cluster, may_group, may_topic
from flowshare.server.edge.derived import derived
from flowshare.server.runtime.failures import Refused

if TYPE_CHECKING:
    from flowshare.server.edge.base import Peer, SocketCall

SHARE_FROM: Final = 6
"""Version of FindCoordinator from which on share-partitions have coordinators (KIP-932)."""
MANY_LEAVE_FROM: Final = 3
"""Version of LeaveGroup from which on several members leave, each with its own result."""
UNKNOWN_FROM: Final = 6
"""Version of DescribeGroups from which on an unknown group is an error; before, such a group was Dead."""
OWN_ID_FROM: Final = 1
"""Version of ConsumerGroupHeartbeat from which on a member makes its id itself (KIP-1082)."""
BY_ID_FROM: Final = 10
"""Version of OffsetCommit and OffsetFetch from which on topics have their ids, and no names (KIP-848)."""
OF_WHOLE_FROM: Final = 2
"""First version of OffsetFetch with a place for an error of the whole; before, every partition has the error."""
Place = tuple[str, int]
Row = TypeVar("Row", bound=tuple[Any, ...])

# --- groups of any kind -----------------------------------------------------------------------------------------------


async def find(call: SocketCall, request: FindCoordinatorRequest) -> FindCoordinatorResponse:
    """Find the coordinator of a group, a transactional id or a share-partition: here, unless the server knows
    another."""
    _check(call, request)
    answer = await call.peer.connection.send(request)
    if answer.error is not ErrorCode.NONE or answer.node_id >= 0:
        return answer
    node = call.peer.node
    return FindCoordinatorResponse(node_id=node.node_id, host=node.host, port=node.port)


async def listed(call: SocketCall, request: ListGroupsRequest) -> ListGroupsResponse:
    """List groups by state and type."""
    peer, answer = call.peer, await call.peer.connection.send(request)
    if may_cluster(peer, Operation.DESCRIBE):
        return answer
    may = await peer.turns.each(lambda group: may_group(peer, Operation.DESCRIBE, group.group_id), answer.groups)
    return replace(answer, groups=tuple(compress(answer.groups, may)))


async def delete(call: SocketCall, request: DeleteGroupsRequest) -> DeleteGroupsResponse:
    """Delete empty groups."""
    peer, names = call.peer, tuple(dict.fromkeys(request.group_ids))
    may = await peer.turns.each(lambda name: may_group(peer, Operation.DELETE, name), names)
    answer = await peer.connection.send(DeleteGroupsRequest(group_ids=tuple(compress(names, may))))
    error = ErrorCode.GROUP_AUTHORIZATION_FAILED
    refused = [GroupResult(group_id=name, error=error) for name in denied(names, may)]
    return DeleteGroupsResponse(groups=(*answer.groups, *refused))


def _check(call: SocketCall, request: FindCoordinatorRequest) -> None:
    """Check. Raises: Refused."""
    peer, key = call.peer, request.key
    match request.kind:
        case "group":
            peer.need(Operation.DESCRIBE, ResourceType.GROUP, key)
        case "transaction":
            peer.need(Operation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, key)
        case "share" if call.version >= SHARE_FROM:
            peer.need(Operation.CLUSTER_ACTION, ResourceType.CLUSTER)
            check_share_key(key)
        case _:
            raise Refused(ErrorCode.INVALID_REQUEST, f"the type of the key is unknown in version {call.version}")


def check_share_key(key: str) -> None:
    """Check `group:topic id:partition`; the group id may hold colons, so the key is read from the right. Raises:
    Refused."""
    group_id, topic_id, partition = ("", "", *key.rsplit(":", 2))[-3:]
    try:
        decoded = base64.b64decode(topic_id + "==", altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        decoded = b""
    if not group_id or len(decoded) != 16 or not (partition.isascii() and partition.isdigit()):
        raise Refused(
            ErrorCode.INVALID_REQUEST, f"{key!r} is no share-partition; group id:topic id in base64:partition is"
        )


# --- members of consumer groups ---------------------------------------------------------------------------------------


async def join(call: SocketCall, request: JoinGroupRequest) -> JoinGroupResponse:
    """Join; that may take minutes, so rights are checked again."""
    call.peer.need(Operation.READ, ResourceType.GROUP, request.group_id)
    protocols = tuple({one.name: one for one in request.protocols}.values())
    client_id = call.client_id or ""
    request = replace(request, protocols=protocols, client_id=client_id, version=call.version)
    answer = await call.peer.connection.send(request)
    call.peer.need(Operation.READ, ResourceType.GROUP, request.group_id)
    return answer


async def sync(call: SocketCall, request: SyncGroupRequest) -> SyncGroupResponse:
    """Get an assignment; that waits for the group's leader, so rights are checked again."""
    call.peer.need(Operation.READ, ResourceType.GROUP, request.group_id)
    answer = await call.peer.connection.send(request)
    call.peer.need(Operation.READ, ResourceType.GROUP, request.group_id)
    return answer


async def leave(call: SocketCall, request: LeaveGroupRequest) -> LeaveGroupResponse:
    """Let members leave."""
    call.peer.need(Operation.READ, ResourceType.GROUP, request.group_id)
    answer = await call.peer.connection.send(replace(request, members=tuple(dict.fromkeys(request.members))))
    if call.version < MANY_LEAVE_FROM and answer.error is ErrorCode.NONE:
        return replace(answer, error=answer.members[0].error)
    return answer


async def describe(call: SocketCall, request: DescribeGroupRequest) -> DescribeGroupResponse:
    """Describe a group; one of another kind is Dead."""
    call.peer.need(Operation.DESCRIBE, ResourceType.GROUP, request.group_id)
    answer = await call.peer.connection.send(request)
    if request.authorized:
        answer = replace(answer, authorized=authorized_operations(call.peer, ResourceType.GROUP, request.group_id))
    if call.version < UNKNOWN_FROM and answer.error is ErrorCode.GROUP_ID_NOT_FOUND:
        return replace(answer, error=ErrorCode.NONE)
    return answer


async def heartbeat(call: SocketCall, request: ConsumerGroupHeartbeatRequest) -> ConsumerGroupHeartbeatResponse:
    """Join, go on or leave, in the consumer protocol. A pattern matches topics that may be described, see
    `Patterns`."""
    peer, named = call.peer, request.subscribed_topics
    topics = None if named is None else tuple(dict.fromkeys(named))
    peer.need(Operation.READ, ResourceType.GROUP, request.group_id)
    closed = [name for name in topics or () if not may_topic(peer, Operation.DESCRIBE, name)]
    if closed:
        text = f"describing these topics is not allowed: {', '.join(closed)}"
        raise Refused(ErrorCode.TOPIC_AUTHORIZATION_FAILED, text)
    member_id = request.member_id
    if call.version < OWN_ID_FROM and not member_id and request.member_epoch == 0:
        member_id = str(uuid.uuid4())
    answer = await peer.connection.send(replace(request, member_id=member_id, subscribed_topics=topics))
    return answer if answer.error is ErrorCode.NONE else replace(answer, member_id=None)


async def describe_consumer(call: SocketCall, request: ConsumerGroupDescribeRequest) -> ConsumerGroupDescription:
    """Describe a group of the consumer protocol; its members are shown only if all their topics may be described."""
    peer, group_id = call.peer, request.group_id
    peer.need(Operation.DESCRIBE, ResourceType.GROUP, group_id)
    group = await peer.connection.send(request)
    topics = {
        name
        for member in group.members
        for name in (*member.subscribed_topics, *(one.topic for one in (*member.assigned, *member.target)))
    }
    if not all(may_topic(peer, Operation.DESCRIBE, name) for name in topics):
        raise Refused(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "the group has topics that may not be described")
    if request.authorized and group.error is ErrorCode.NONE:
        return replace(group, authorized=authorized_operations(peer, ResourceType.GROUP, group_id))
    return group


# --- committed offsets ------------------------------------------------------------------------------------------------


async def commit(call: SocketCall, request: OffsetCommitRequest | TxnOffsetCommitRequest) -> OffsetCommitResponse:
    """Commit the permitted offsets, in a transaction or at once; of a partition that is named twice the last counts."""
    if call.version < BY_ID_FROM:
        return await _commit(call, request)
    offsets, unknown, ids = await _by_name(call.peer, request.offsets)
    answer = await _commit(call, replace(request, offsets=offsets))
    error = ErrorCode.UNKNOWN_TOPIC_ID
    lost = [OffsetResult(one.topic, one.partition, error) for one in unknown]
    return replace(answer, partitions=(*await _by_id(call.peer, answer.partitions, ids), *lost))


async def _commit(call: SocketCall, request: OffsetCommitRequest | TxnOffsetCommitRequest) -> OffsetCommitResponse:
    transactional_id = None
    if isinstance(request, TxnOffsetCommitRequest):
        transactional_id = request.transactional_id
    else:
        request = replace(request, version=call.version)
    peer, turns = call.peer, call.peer.turns
    latest: dict[Place, OffsetToCommit] = {}
    async for some in turns.few(request.offsets):
        latest.update(((one.topic, one.partition), one) for one in some)
    may = await turns.each(_rights(peer, Operation.READ), latest)
    error = ErrorCode.NONE
    if transactional_id is not None and not peer.may(Operation.WRITE, ResourceType.TRANSACTIONAL_ID, transactional_id):
        error = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    elif not may_group(peer, Operation.READ, request.group_id):
        error = ErrorCode.GROUP_AUTHORIZATION_FAILED
    if error is not ErrorCode.NONE:
        return OffsetCommitResponse(partitions=await turns.each(lambda at: OffsetResult(*at, error), latest))
    allowed = tuple(compress(latest.values(), may))
    answer = OffsetCommitResponse()
    if allowed:
        answer = await peer.connection.send(replace(request, offsets=allowed))
    return replace(answer, partitions=(*_refused(latest, may), *answer.partitions))


async def delete_offsets(call: SocketCall, request: OffsetDeleteRequest) -> OffsetDeleteResponse:
    """Delete offsets of a group."""
    peer, places = call.peer, tuple(dict.fromkeys(request.partitions))
    may = await peer.turns.each(_rights(peer, Operation.READ), places)
    peer.need(Operation.DELETE, ResourceType.GROUP, request.group_id)
    answer = await peer.connection.send(replace(request, partitions=tuple(compress(places, may))))
    if answer.error is not ErrorCode.NONE:
        return OffsetDeleteResponse(error=answer.error)
    return replace(answer, partitions=(*_refused(places, may), *answer.partitions))


async def fetch_offsets(call: SocketCall, request: OffsetFetchRequest) -> OffsetFetchResponse:
    """Fetch one group's offsets; topics hidden from the peer are left out, unless the peer names them."""
    if call.version < BY_ID_FROM:
        return await _fetch_offsets(call, request)
    unknown: Sequence[Any] = ()
    if request.partitions is None:
        ids = {topic.name: topic.topic_id for topic in call.peer.server.topics.values()}
    else:
        wanted, unknown, ids = await _by_name(call.peer, request.partitions)
        request = replace(request, partitions=wanted)
    answer = await _fetch_offsets(call, request)
    error = ErrorCode.UNKNOWN_TOPIC_ID
    lost = [FetchedOffset(topic, number, error=error) for topic, number in unknown]
    return replace(answer, partitions=(*await _by_id(call.peer, answer.partitions, ids), *lost))


async def _fetch_offsets(call: SocketCall, request: OffsetFetchRequest) -> OffsetFetchResponse:
    peer, turns = call.peer, call.peer.turns
    places = None if request.partitions is None else tuple(dict.fromkeys(request.partitions))
    if not may_group(peer, Operation.DESCRIBE, request.group_id):
        answer = OffsetFetchResponse(error=ErrorCode.GROUP_AUTHORIZATION_FAILED)
    elif places is None:
        answer = await peer.connection.send(request)
        seen = await turns.each(_rights(peer, Operation.DESCRIBE), answer.partitions)
        answer = replace(answer, partitions=tuple(compress(answer.partitions, seen)))
    else:
        may = await turns.each(_rights(peer, Operation.DESCRIBE), places)
        answer = await peer.connection.send(replace(request, partitions=tuple(compress(places, may))))
        hidden = [FetchedOffset(*one[:2], error=one.error) for one in _refused(places, may)]
        answer = replace(answer, partitions=(*answer.partitions, *hidden))
    if call.version < OF_WHOLE_FROM and answer.error is not ErrorCode.NONE:
        told = await turns.each(lambda at: FetchedOffset(*at, error=answer.error), places or ())
        return replace(answer, partitions=told)
    return answer


async def _by_name(peer: Peer, rows: Sequence[Row]) -> tuple[tuple[Row, ...], list[Row], dict[str, uuid.UUID]]:
    """Return rows with their topics' names for their ids, the rows of missing topics, and the ids by name."""
    found: list[Row] = []
    unknown: list[Row] = []
    ids: dict[str, uuid.UUID] = {}
    async for some in peer.turns.few(rows):
        for one in some:
            topic_id: Any = one[0]
            topic = peer.server.topics.by_id(topic_id) if topic_id is not None else None
            if topic is None:
                unknown.append(one)
            else:
                found.append(_renamed(one, topic.name))
                ids[topic.name] = topic.topic_id
    return tuple(found), unknown, ids


async def _by_id(peer: Peer, rows: Sequence[Row], ids: Mapping[str, uuid.UUID]) -> tuple[Row, ...]:
    """Return rows with their topics' ids for their names; ids: as they were before the request, as a topic that was
    made anew meanwhile has nothing to do with it."""
    named = [(one, ids[one[0]]) for one in rows if one[0] in ids]
    return await peer.turns.each(lambda pair: _renamed(*pair), named)


def _renamed(row: Any, topic: Any) -> Any:
    return row._replace(topic=topic) if hasattr(row, "_replace") else (topic, *row[1:])


def _rights(peer: Peer, operation: Operation) -> Callable[[Sequence[Any]], bool]:
    """Return a function that is True if the operation is allowed on a place's topic; each topic is checked once."""

    @cache
    def may(topic: str) -> bool:
        return may_topic(peer, operation, topic)

    return lambda place: may(place[0])


def _refused(places: Iterable[Place], may: Iterable[bool]) -> tuple[OffsetResult, ...]:
    """Return the refusals for the places that may not be used."""
    return tuple([OffsetResult(*place, ErrorCode.TOPIC_AUTHORIZATION_FAILED) for place in denied(places, may)])


ENDPOINTS: Final = (
    derived(FIND_COORDINATOR, find),
    derived(LIST_GROUPS, listed),
    derived(DELETE_GROUPS, delete),
    derived(JOIN_GROUP, join),
    derived(SYNC_GROUP, sync),
    derived(LEAVE_GROUP, leave),
    derived(DESCRIBE_GROUPS, describe),
    derived(CONSUMER_GROUP_HEARTBEAT, heartbeat),
    derived(CONSUMER_GROUP_DESCRIBE, describe_consumer),
    derived(OFFSET_COMMIT, commit),
    derived(OFFSET_FETCH, fetch_offsets, joined=True),
    derived(OFFSET_DELETE, delete_offsets),
    derived(TXN_OFFSET_COMMIT, commit),
)
