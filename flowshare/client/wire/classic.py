"""Classic groups: membership as a member and from outside, and the offsets that they committed.

The versions reach down to Kafka 2.8 and to services that stopped there.
"""

from __future__ import annotations

from typing import Any, Final

from flowshare.client.wire.base import Codec, by_kio, code, grouped, text, timedelta_ms
from flowshare.groups.types import JoinedMember, MemberView
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.kafka import ApiKey, module
from flowshare.protocol.messages import (
    DescribeGroupRequest,
    DescribeGroupResponse,
    FetchedOffset,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    LeftMember,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
    OffsetResult,
    OffsetToCommit,
    SyncGroupRequest,
    SyncGroupResponse,
)

NAMED_PROTOCOL_FROM: Final = 5
"""SyncGroup's version from which the member says which protocol it means."""
SYNC_WAIT_MS: Final = 10_000
"""A SyncGroup is answered when the group's leader has sent its own; the request does not say how long that may take."""
MANY_GROUPS_FROM: Final = 8
"""OffsetFetch's version from which one request may ask for several groups."""


def _join(request: JoinGroupRequest, version: int) -> Any:
    m = module("join_group", version, "request")
    return m.JoinGroupRequest(
        group_id=request.group_id,
        session_timeout=timedelta_ms(request.session_timeout_ms),
        rebalance_timeout=timedelta_ms(request.rebalance_timeout_ms),
        member_id=request.member_id,
        group_instance_id=request.instance_id,
        protocol_type=request.protocol_type,
        protocols=tuple(m.JoinGroupRequestProtocol(name=one.name, metadata=one.metadata) for one in request.protocols),
    )


def _join_answer(answer: Any, _: JoinGroupRequest) -> JoinGroupResponse:
    return JoinGroupResponse(
        error=code(answer.error_code),
        member_id=answer.member_id,
        generation=int(answer.generation_id),
        protocol_type=getattr(answer, "protocol_type", None),
        protocol_name=answer.protocol_name,
        leader=answer.leader,
        skip_assignment=getattr(answer, "skip_assignment", False),
        members=tuple(
            JoinedMember(one.member_id, one.group_instance_id, bytes(one.metadata)) for one in answer.members
        ),
    )


def _sync(request: SyncGroupRequest, version: int) -> Any:
    m = module("sync_group", version, "request")
    named: dict[str, Any] = {}
    if version >= NAMED_PROTOCOL_FROM:
        named = {"protocol_type": request.protocol_type, "protocol_name": request.protocol_name}
    return m.SyncGroupRequest(
        group_id=request.group_id,
        generation_id=request.generation,
        member_id=request.member_id,
        group_instance_id=request.instance_id,
        assignments=tuple(
            m.SyncGroupRequestAssignment(member_id=member_id, assignment=assignment)
            for member_id, assignment in request.assignments
        ),
        **named,
    )


def _sync_answer(answer: Any, _: SyncGroupRequest) -> SyncGroupResponse:
    return SyncGroupResponse(
        error=code(answer.error_code),
        protocol_type=getattr(answer, "protocol_type", None),
        protocol_name=getattr(answer, "protocol_name", None),
        assignment=bytes(answer.assignment),
    )


def _beat(request: HeartbeatRequest, version: int) -> Any:
    return module("heartbeat", version, "request").HeartbeatRequest(
        group_id=request.group_id,
        generation_id=request.generation,
        member_id=request.member_id,
        group_instance_id=request.instance_id,
    )


def _beat_answer(answer: Any, _: HeartbeatRequest) -> HeartbeatResponse:
    return HeartbeatResponse(error=code(answer.error_code))


def _leave(request: LeaveGroupRequest, version: int) -> Any:
    m = module("leave_group", version, "request")
    return m.LeaveGroupRequest(
        group_id=request.group_id,
        members=tuple(
            m.MemberIdentity(member_id=one.member_id, group_instance_id=one.instance_id) for one in request.members
        ),
    )


def _leave_answer(answer: Any, _: LeaveGroupRequest) -> LeaveGroupResponse:
    return LeaveGroupResponse(
        error=code(answer.error_code),
        members=tuple(LeftMember(one.member_id, one.group_instance_id, code(one.error_code)) for one in answer.members),
    )


def _describe(request: DescribeGroupRequest, version: int) -> Any:
    m = module("describe_groups", version, "request")
    return m.DescribeGroupsRequest(groups=(request.group_id,), include_authorized_operations=False)


def _describe_answer(answer: Any, request: DescribeGroupRequest) -> DescribeGroupResponse:
    group = next((one for one in answer.groups if one.group_id == request.group_id), None)
    if group is None:
        message = f"the answer leaves out the group {request.group_id!r}"
        return DescribeGroupResponse(error=ErrorCode.UNKNOWN_SERVER_ERROR, message=message)
    return DescribeGroupResponse(
        error=code(group.error_code),
        message=text(getattr(group, "error_message", None)),
        state=group.group_state,
        protocol_type=group.protocol_type,
        protocol_name=group.protocol_data,
        members=tuple(
            MemberView(
                one.member_id,
                one.group_instance_id,
                one.client_id,
                one.client_host,
                bytes(one.member_metadata),
                bytes(one.member_assignment),
            )
            for one in group.members
        ),
    )


def _commit(request: OffsetCommitRequest, version: int) -> Any:
    m = module("offset_commit", version, "request")
    of_topic: dict[str, list[OffsetToCommit]] = {}
    for one in request.offsets:
        of_topic.setdefault(one.topic, []).append(one)
    topics = tuple(
        m.OffsetCommitRequestTopic(
            name=name,
            partitions=tuple(
                m.OffsetCommitRequestPartition(
                    partition_index=one.partition,
                    committed_offset=one.offset,
                    committed_leader_epoch=one.leader_epoch,
                    committed_metadata=one.metadata,
                )
                for one in parts
            ),
        )
        for name, parts in of_topic.items()
    )
    return m.OffsetCommitRequest(
        group_id=request.group_id,
        generation_id_or_member_epoch=request.generation,
        member_id=request.member_id,
        group_instance_id=request.instance_id,
        topics=topics,
    )


def _commit_answer(answer: Any, _: OffsetCommitRequest) -> OffsetCommitResponse:
    return OffsetCommitResponse(
        partitions=tuple(
            OffsetResult(str(topic.name), int(part.partition_index), code(part.error_code))
            for topic in answer.topics
            for part in topic.partitions
        )
    )


def _offsets(request: OffsetFetchRequest, version: int) -> Any:
    m = module("offset_fetch", version, "request")
    many = version >= MANY_GROUPS_FROM
    topics = None
    if request.partitions is not None:
        of_topic = m.OffsetFetchRequestTopics if many else m.OffsetFetchRequestTopic
        topics = tuple(
            of_topic(name=name, partition_indexes=tuple(partitions))
            for name, partitions in grouped(request.partitions).items()
        )
    if not many:
        return m.OffsetFetchRequest(group_id=request.group_id, topics=topics, require_stable=request.require_stable)
    group = m.OffsetFetchRequestGroup(group_id=request.group_id, topics=topics)
    return m.OffsetFetchRequest(groups=(group,), require_stable=request.require_stable)


def _offsets_answer(answer: Any, request: OffsetFetchRequest) -> OffsetFetchResponse:
    group = answer
    if answer.__version__ >= MANY_GROUPS_FROM:
        group = next((one for one in answer.groups if one.group_id == request.group_id), None)
    if group is None:
        message = f"the answer leaves out the group {request.group_id!r}"
        return OffsetFetchResponse(error=ErrorCode.UNKNOWN_SERVER_ERROR, message=message)
    return OffsetFetchResponse(
        error=code(group.error_code),
        partitions=tuple(
            FetchedOffset(
                str(topic.name),
                int(part.partition_index),
                int(part.committed_offset),
                int(part.committed_leader_epoch),
                part.metadata or "",
                code(part.error_code),
            )
            for topic in group.topics
            for part in topic.partitions
        ),
    )


CODECS: Final[dict[type[Any], Codec]] = {
    JoinGroupRequest: Codec(
        key=ApiKey.JOIN_GROUP,
        name="join_group",
        lowest=5,
        highest=9,
        write=by_kio(_join),
        decode=_join_answer,
        wait_ms=lambda request: max(request.rebalance_timeout_ms, request.session_timeout_ms),
    ),
    SyncGroupRequest: Codec(
        key=ApiKey.SYNC_GROUP,
        name="sync_group",
        lowest=3,
        highest=5,
        write=by_kio(_sync),
        decode=_sync_answer,
        wait_ms=lambda _: SYNC_WAIT_MS,
    ),
    HeartbeatRequest: Codec(
        key=ApiKey.HEARTBEAT, name="heartbeat", lowest=3, highest=4, write=by_kio(_beat), decode=_beat_answer
    ),
    LeaveGroupRequest: Codec(
        key=ApiKey.LEAVE_GROUP, name="leave_group", lowest=3, highest=5, write=by_kio(_leave), decode=_leave_answer
    ),
    DescribeGroupRequest: Codec(
        key=ApiKey.DESCRIBE_GROUPS,
        name="describe_groups",
        lowest=5,
        highest=6,
        write=by_kio(_describe),
        decode=_describe_answer,
    ),
    OffsetCommitRequest: Codec(
        key=ApiKey.OFFSET_COMMIT,
        name="offset_commit",
        lowest=8,
        highest=9,
        write=by_kio(_commit),
        decode=_commit_answer,
    ),
    OffsetFetchRequest: Codec(
        key=ApiKey.OFFSET_FETCH,
        name="offset_fetch",
        lowest=7,
        highest=9,
        write=by_kio(_offsets),
        decode=_offsets_answer,
    ),
}
