"""Share groups from outside: description, offsets."""

from __future__ import annotations

from typing import Any, Final

from flowshare.client.wire.base import Codec, by_kio, code, grouped, text
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.kafka import ApiKey, module
from flowshare.protocol.messages import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsResponse,
    DeleteShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsResponse,
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsResponse,
    GroupDescription,
    MemberDescription,
    PartitionResult,
    ShareGroupDescribeRequest,
    ShareGroupDescribeResponse,
    SharePartitionOffsets,
    TopicResult,
)


def _describe(request: ShareGroupDescribeRequest, version: int) -> Any:
    m = module("share_group_describe", version, "request")
    return m.ShareGroupDescribeRequest(group_ids=request.group_ids, include_authorized_operations=False)


def _describe_answer(answer: Any, _: ShareGroupDescribeRequest) -> ShareGroupDescribeResponse:
    return ShareGroupDescribeResponse(
        groups=tuple(
            GroupDescription(
                group_id=str(group.group_id),
                error=code(group.error_code),
                message=text(group.error_message),
                state=group.group_state,
                group_epoch=int(group.group_epoch),
                assignment_epoch=int(group.assignment_epoch),
                assignor=group.assignor_name,
                members=tuple(_member(member) for member in group.members),
            )
            for group in answer.groups
        )
    )


def _member(member: Any) -> MemberDescription:
    return MemberDescription(
        member_id=member.member_id,
        member_epoch=int(member.member_epoch),
        client_id=member.client_id,
        client_host=member.client_host,
        rack_id=member.rack_id,
        subscribed_topics=tuple(str(name) for name in member.subscribed_topic_names),
        assignment={
            str(topic.topic_name): tuple(int(partition) for partition in topic.partitions)
            for topic in member.assignment.topic_partitions
        },
    )


def _offsets(request: DescribeShareGroupOffsetsRequest, version: int) -> Any:
    m = module("describe_share_group_offsets", version, "request")
    topics = None
    if request.topics is not None:
        topics = tuple(
            m.DescribeShareGroupOffsetsRequestTopic(topic_name=name, partitions=tuple(partitions))
            for name, partitions in request.topics.items()
        )
    group = m.DescribeShareGroupOffsetsRequestGroup(group_id=request.group_id, topics=topics)
    return m.DescribeShareGroupOffsetsRequest(groups=(group,))


def _offsets_answer(answer: Any, request: DescribeShareGroupOffsetsRequest) -> DescribeShareGroupOffsetsResponse:
    group = next((one for one in answer.groups if one.group_id == request.group_id), None)
    if group is None:
        return DescribeShareGroupOffsetsResponse(
            error=ErrorCode.UNKNOWN_SERVER_ERROR, message=f"the answer leaves out the group {request.group_id!r}"
        )
    return DescribeShareGroupOffsetsResponse(
        error=code(group.error_code),
        message=text(group.error_message),
        partitions=tuple(
            SharePartitionOffsets(
                topic=str(topic.topic_name),
                topic_id=topic.topic_id,
                partition=int(part.partition_index),
                start_offset=int(part.start_offset),
                leader_epoch=int(part.leader_epoch),
                lag=int(getattr(part, "lag", -1)),
                error=code(part.error_code),
                message=text(part.error_message),
                in_flight=-1,
                delayed=-1,
                redeliveries=-1,
            )
            for topic in group.topics
            for part in topic.partitions
        ),
    )


def _alter(request: AlterShareGroupOffsetsRequest, version: int) -> Any:
    m = module("alter_share_group_offsets", version, "request")
    by_topic = grouped((topic, (partition, offset)) for (topic, partition), offset in request.offsets.items())
    return m.AlterShareGroupOffsetsRequest(
        group_id=request.group_id,
        topics=tuple(
            m.AlterShareGroupOffsetsRequestTopic(
                topic_name=name,
                partitions=tuple(
                    m.AlterShareGroupOffsetsRequestPartition(partition_index=partition, start_offset=offset)
                    for partition, offset in wanted
                ),
            )
            for name, wanted in by_topic.items()
        ),
    )


def _alter_answer(answer: Any, _: AlterShareGroupOffsetsRequest) -> AlterShareGroupOffsetsResponse:
    return AlterShareGroupOffsetsResponse(
        error=code(answer.error_code),
        message=text(answer.error_message),
        partitions=tuple(
            PartitionResult(
                topic=str(topic.topic_name),
                partition=int(part.partition_index),
                error=code(part.error_code),
                message=text(part.error_message),
            )
            for topic in answer.responses
            for part in topic.partitions
        ),
    )


def _delete(request: DeleteShareGroupOffsetsRequest, version: int) -> Any:
    m = module("delete_share_group_offsets", version, "request")
    return m.DeleteShareGroupOffsetsRequest(
        group_id=request.group_id,
        topics=tuple(m.DeleteShareGroupOffsetsRequestTopic(topic_name=name) for name in request.topics),
    )


def _delete_answer(answer: Any, _: DeleteShareGroupOffsetsRequest) -> DeleteShareGroupOffsetsResponse:
    return DeleteShareGroupOffsetsResponse(
        error=code(answer.error_code),
        message=text(answer.error_message),
        topics=tuple(
            TopicResult(
                topic=str(topic.topic_name),
                error=code(topic.error_code),
                message=text(topic.error_message),
                topic_id=topic.topic_id,
            )
            for topic in answer.responses
        ),
    )


CODECS: Final[dict[type[Any], Codec]] = {
    ShareGroupDescribeRequest: Codec(
        key=ApiKey.SHARE_GROUP_DESCRIBE,
        name="share_group_describe",
        lowest=1,
        highest=1,
        write=by_kio(_describe),
        decode=_describe_answer,
    ),
    DescribeShareGroupOffsetsRequest: Codec(
        key=ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS,
        name="describe_share_group_offsets",
        lowest=0,
        highest=1,
        write=by_kio(_offsets),
        decode=_offsets_answer,
    ),
    AlterShareGroupOffsetsRequest: Codec(
        key=ApiKey.ALTER_SHARE_GROUP_OFFSETS,
        name="alter_share_group_offsets",
        lowest=0,
        highest=0,
        write=by_kio(_alter),
        decode=_alter_answer,
    ),
    DeleteShareGroupOffsetsRequest: Codec(
        key=ApiKey.DELETE_SHARE_GROUP_OFFSETS,
        name="delete_share_group_offsets",
        lowest=0,
        highest=0,
        write=by_kio(_delete),
        decode=_delete_answer,
    ),
}
