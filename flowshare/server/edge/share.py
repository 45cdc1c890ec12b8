"""Share groups at the socket: requests of members and administrators, and the state APIs (KIP-932).

Rights of members (SG-16.1): READ on the group; DESCRIBE on each subscribed topic for a heartbeat; READ on each topic
for records and acknowledgements, told partition by partition; to settle, WRITE on each topic that is written to, as for
Produce, or nothing is done. A parked fetch needs the rights again for the records that it gets (`server.share.fetch`).
Of administrators (SG-16.2): DESCRIBE on the group and its topics to describe; READ on both to alter offsets; DELETE on
the group and READ on the topics to delete offsets. A topic that may not be described is left out where nobody named it.
The state APIs need CLUSTER_ACTION on the cluster (SG-16.3).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from itertools import compress
from typing import Final, TypeVar

from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.messages import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsResponse,
    DeleteShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsResponse,
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsResponse,
    GroupDescription,
    InitializeShareGroupStateRequest,
    PartitionResult,
    RefusedOutput,
    ShareAcknowledgeResponse,
    ShareFetchResponse,
    ShareGroupDescribeRequest,
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
    ShareGroupStateRequest,
    ShareGroupStateResponse,
    SharePartitionOffsets,
    ShareSettleRequest,
    ShareSettleResponse,
    TopicResult,
    WriteShareGroupStateRequest,
)
from flowshare.protocol.messages.share import (
    SHARE_ACKNOWLEDGE,
    SHARE_FETCH,
    SHARE_GROUP_DESCRIBE,
    SHARE_GROUP_HEARTBEAT,
    SHARE_SETTLE,
)
from flowshare.protocol.messages.state import (
    ALTER_SHARE_GROUP_OFFSETS,
    DELETE_SHARE_GROUP_OFFSETS,
    DELETE_SHARE_GROUP_STATE,
    DESCRIBE_SHARE_GROUP_OFFSETS,
    INITIALIZE_SHARE_GROUP_STATE,
    NO_TOPIC,
    READ_SHARE_GROUP_STATE,
    READ_SHARE_GROUP_STATE_SUMMARY,
    WRITE_SHARE_GROUP_STATE,
)
from flowshare.protocol.rights import Operation, ResourceType
from flowshare.protocol.settle_codec import decode_settle, encode_settled
from flowshare.protocol.share_codec import decode_acknowledge, decode_fetch, encode_acknowledged, encode_fetched
from flowshare.server.edge.base import Endpoint, SocketCall, authorized_operations, denied, may_topic
from flowshare.server.edge.derived import derived
from flowshare.server.runtime.failures import Refused, refusal
from flowshare.share.types import RecordState, StateRun

R = TypeVar("R")
TOPIC_REFUSED: Final = "{} topic {} is not allowed"
STORED_STATES: Final = frozenset(RecordState) - {RecordState.ACQUIRED}

# --- members ----------------------------------------------------------------------------------------------------------


async def heartbeat(call: SocketCall, request: ShareGroupHeartbeatRequest) -> ShareGroupHeartbeatResponse:
    """Join, go on or leave."""
    peer, named = call.peer, request.subscribed_topics
    topics = None if named is None else tuple(dict.fromkeys(named))
    closed = [name for name in topics or () if not may_topic(peer, Operation.DESCRIBE, name)]
    peer.need(Operation.READ, ResourceType.GROUP, request.group_id)
    if closed:
        text = f"describing these topics is not allowed: {', '.join(closed)}"
        raise Refused(ErrorCode.TOPIC_AUTHORIZATION_FAILED, text)
    return await peer.connection.send(replace(request, subscribed_topics=topics))


async def fetch(call: SocketCall) -> ShareFetchResponse:
    """Acknowledge and fetch. Request and answer are plain messages: `protocol.share_codec` reads and writes them."""
    refused = _refused(call, ShareFetchResponse)
    return await call.peer.connection.send(call.request) if refused is None else refused


async def acknowledge(call: SocketCall) -> ShareAcknowledgeResponse:
    """Acknowledge alone. Plain messages, too."""
    refused = _refused(call, ShareAcknowledgeResponse)
    return await call.peer.connection.send(call.request) if refused is None else refused


async def settle(call: SocketCall) -> ShareSettleResponse:
    """Accept and reject records and write outputs in one step. Plain: `protocol.settle_codec` reads and writes it.

    The server checks the right to read the records' topic, as for acknowledgements.
    """
    peer, request = call.peer, call.request
    refused = _refused(call, ShareSettleResponse)
    if refused is not None:
        return refused
    closed = await closed_outputs(call)
    if closed:
        text = f"{len(closed)} of {len(request.outputs)} outputs are to topics that may not be written to"
        return ShareSettleResponse(error=ErrorCode.TOPIC_AUTHORIZATION_FAILED, message=text, outputs=closed)
    if not peer.connection.answers(ShareSettleRequest):
        text = "this server cannot settle records and write outputs in one step"
        return ShareSettleResponse(error=ErrorCode.UNSUPPORTED_VERSION, message=text)
    return await peer.connection.send(request)


async def closed_outputs(call: SocketCall) -> tuple[RefusedOutput, ...]:
    """Return the outputs that the peer may not write. The refusal is the same for missing topics, as in Produce."""
    names = tuple(dict.fromkeys(output.topic for output in call.request.outputs))
    may = await call.peer.turns.each(lambda name: may_topic(call.peer, Operation.WRITE, name), names)
    closed = frozenset(denied(names, may))
    error = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    return tuple(
        RefusedOutput(place, error, TOPIC_REFUSED.format("writing to", output.topic))
        for place, output in enumerate(call.request.outputs)
        if output.topic in closed
    )


def _refused(call: SocketCall, make: Callable[..., R]) -> R | None:
    """Return a refusal if the group is closed to the peer; a missing group id is refused by the server. Topics are
    checked later."""
    try:
        if call.request.group_id:
            call.peer.need(Operation.READ, ResourceType.GROUP, call.request.group_id)
    except Refused as error:
        return refusal(make, error)
    return None


# --- administrators ---------------------------------------------------------------------------------------------------


async def describe(call: SocketCall, request: ShareGroupDescribeRequest) -> GroupDescription:
    """Describe a group; its members are shown only if all their topics may be described."""
    peer, group_id = call.peer, request.group_id
    peer.need(Operation.DESCRIBE, ResourceType.GROUP, group_id)
    group = await peer.connection.send(request)
    topics = {name for member in group.members for name in (*member.subscribed_topics, *member.assignment)}
    if not all(may_topic(peer, Operation.DESCRIBE, name) for name in topics):
        raise Refused(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "the group has topics that may not be described")
    if request.authorized and group.error is ErrorCode.NONE:
        return replace(group, authorized=authorized_operations(peer, ResourceType.GROUP, group_id))
    return group


async def describe_offsets(
    call: SocketCall, request: DescribeShareGroupOffsetsRequest
) -> DescribeShareGroupOffsetsResponse:
    """Describe start offsets and lag of a group."""
    peer, topics = call.peer, request.topics
    peer.need(Operation.DESCRIBE, ResourceType.GROUP, request.group_id)
    if topics is None:
        answer = await peer.connection.send(request)
        may = await peer.turns.each(lambda part: may_topic(peer, Operation.DESCRIBE, part.topic), answer.partitions)
        return replace(answer, partitions=tuple(compress(answer.partitions, may)))
    may = await peer.turns.each(lambda name: may_topic(peer, Operation.DESCRIBE, name), topics)
    named = {name: tuple(dict.fromkeys(numbers)) for name, numbers in topics.items()}
    answer = await peer.connection.send(replace(request, topics=dict(compress(named.items(), may))))
    if answer.error is not ErrorCode.NONE:
        return answer
    error = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    refused = [
        SharePartitionOffsets(
            topic=name, topic_id=None, partition=number, error=error, message=TOPIC_REFUSED.format("describing", name)
        )
        for name, numbers in denied(named.items(), may)
        for number in numbers
    ]
    return replace(answer, partitions=(*answer.partitions, *refused))


async def alter_offsets(call: SocketCall, request: AlterShareGroupOffsetsRequest) -> AlterShareGroupOffsetsResponse:
    """Let an empty group start anew at given offsets."""
    peer, places = call.peer, tuple(request.offsets)
    readable = cache(partial(may_topic, peer, Operation.READ))
    may = await peer.turns.each(lambda place: readable(place[0]), places)
    peer.need(Operation.READ, ResourceType.GROUP, request.group_id)
    allowed = dict(compress(request.offsets.items(), may))
    answer = await peer.connection.send(replace(request, offsets=allowed))
    if answer.error is not ErrorCode.NONE:
        return answer
    error = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    refused = [
        PartitionResult(topic=name, partition=number, error=error, message=TOPIC_REFUSED.format("reading", name))
        for name, number in denied(places, may)
    ]
    known = cache(peer.server.topics.by_name)
    results = await peer.turns.each(
        lambda one: replace(one, topic_id=getattr(known(one.topic), "topic_id", None)), (*answer.partitions, *refused)
    )
    return replace(answer, partitions=results)


async def delete_offsets(call: SocketCall, request: DeleteShareGroupOffsetsRequest) -> DeleteShareGroupOffsetsResponse:
    """Delete an empty group's state on topics."""
    peer, names = call.peer, tuple(dict.fromkeys(request.topics))
    may = await peer.turns.each(lambda name: may_topic(peer, Operation.READ, name), names)
    peer.need(Operation.DELETE, ResourceType.GROUP, request.group_id)
    answer = await peer.connection.send(replace(request, topics=tuple(compress(names, may))))
    if answer.error is not ErrorCode.NONE:
        return answer
    error = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    refused = [
        TopicResult(topic=name, error=error, message=TOPIC_REFUSED.format("reading", name))
        for name in denied(names, may)
    ]
    return replace(answer, topics=(*answer.topics, *refused))


# --- the state APIs ---------------------------------------------------------------------------------------------------


async def ask_state(call: SocketCall, request: ShareGroupStateRequest) -> ShareGroupStateResponse:
    """Read, change or delete one share-partition's state. Raises: Refused: rights are checked first, then the
    contents."""
    call.peer.need(Operation.CLUSTER_ACTION, ResourceType.CLUSTER)
    if request.topic_id == NO_TOPIC:
        raise Refused(ErrorCode.INVALID_REQUEST, "the topic id is missing")
    if isinstance(request, InitializeShareGroupStateRequest) and (request.state_epoch < 0 or request.start_offset < -1):
        text = f"state epoch {request.state_epoch} or start offset {request.start_offset} is negative"
        raise Refused(ErrorCode.INVALID_REQUEST, text)
    if isinstance(request, WriteShareGroupStateRequest):
        request = replace(request, runs=tuple(map(_run, request.runs)))
    return await call.peer.connection.send(request)


def _run(run: StateRun) -> StateRun:
    """Convert a leader's change, whose state may be any number. Raises: Refused."""
    first, last, state, count, *_ = run
    if 0 <= first <= last and count >= 0 and state in STORED_STATES:
        return StateRun(first, last, RecordState(state), count)
    text = f"state batch {first}-{last} with state {int(state)} and delivery count {count} cannot be stored"
    raise Refused(ErrorCode.INVALID_REQUEST, text)


ENDPOINTS: Final = (
    derived(SHARE_GROUP_HEARTBEAT, heartbeat),
    Endpoint(SHARE_FETCH, fetch, decode=decode_fetch, encode=encode_fetched),
    Endpoint(SHARE_ACKNOWLEDGE, acknowledge, decode=decode_acknowledge, encode=encode_acknowledged),
    Endpoint(SHARE_SETTLE, settle, decode=decode_settle, encode=encode_settled),
    derived(SHARE_GROUP_DESCRIBE, describe),
    derived(DESCRIBE_SHARE_GROUP_OFFSETS, describe_offsets, joined=True),
    derived(ALTER_SHARE_GROUP_OFFSETS, alter_offsets),
    derived(DELETE_SHARE_GROUP_OFFSETS, delete_offsets),
    derived(INITIALIZE_SHARE_GROUP_STATE, ask_state),
    derived(READ_SHARE_GROUP_STATE, ask_state),
    derived(WRITE_SHARE_GROUP_STATE, ask_state),
    derived(DELETE_SHARE_GROUP_STATE, ask_state),
    derived(READ_SHARE_GROUP_STATE_SUMMARY, ask_state),
)
