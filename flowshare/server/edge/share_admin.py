"""The APIs of those who look after share groups: describe groups; describe, alter and delete their offsets.

Rights (share-groups.md F26): DESCRIBE on the group and its topics to describe; READ on both to alter offsets; DELETE on
the group and READ on the topics to delete offsets. A topic that may not be described is left out where nobody named it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from itertools import compress
from typing import TYPE_CHECKING, Any, Final

from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.kafka import ApiKey
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
    SharePartitionOffsets,
    TopicResult,
)
from flowshare.server import answers
from flowshare.server.answers import AnswerTooLarge, fitting
from flowshare.server.edge.base import Api, Call, Operation, Peer, ResourceType
from flowshare.server.edge.forms import (
    NO_TIME,
    NOT_ASKED,
    Form,
    authorized_operations,
    form,
    may_group,
    may_topic,
    topics_by_group,
    topics_of,
)

if TYPE_CHECKING:
    import uuid

    from flowshare.server.failures import Refused
    from flowshare.server.topic_index import TopicIndex

TOPIC_REFUSED: Final = "{} topic {} is not allowed"


class ShareAdminApis:
    """Answers administrators of share groups."""

    def __init__(self, topics: TopicIndex) -> None:
        self._topics = topics

    def apis(self) -> Sequence[Api]:
        """The four APIs."""
        return (
            Api(key=ApiKey.SHARE_GROUP_DESCRIBE, lowest=1, highest=1, answer=self.describe),
            Api(key=ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS, lowest=0, highest=1, answer=self.describe_offsets),
            Api(key=ApiKey.ALTER_SHARE_GROUP_OFFSETS, lowest=0, highest=0, answer=self.alter_offsets),
            Api(key=ApiKey.DELETE_SHARE_GROUP_OFFSETS, lowest=0, highest=0, answer=self.delete_offsets),
        )

    async def describe(self, call: Call) -> Any:
        """Groups with their members."""
        peer, asked = call.peer, call.request
        turns = peer.turns
        group_ids = tuple(dict.fromkeys(asked.group_ids))
        make = form("share_group_describe", call.version)
        with_operations = asked.include_authorized_operations
        groups: list[Any] = []
        for group_id in group_ids:
            await turns.take()
            found: tuple[GroupDescription, ...] = ()
            if may_group(
                peer, Operation.DESCRIBE, group_id
            ):  # one by one: all of them may be more than an answer takes
                found = (await peer.connection.send(ShareGroupDescribeRequest(group_ids=(group_id,)))).groups
            group = _visible(peer, group_id, found)
            groups.append(
                fitting(
                    partial(self._described, make, peer, group, with_operations),
                    partial(self._not_described, make, peer, group_id),
                )
            )
        return make("ShareGroupDescribeResponse", throttle_time=NO_TIME, groups=tuple(groups))

    def _described(self, make: Form, peer: Peer, group: GroupDescription, with_operations: bool) -> Any:
        operations = NOT_ASKED
        if with_operations and group.error is ErrorCode.NONE:
            operations = authorized_operations(peer, ResourceType.GROUP, group.group_id)
        return make(
            "DescribedGroup",
            error_code=group.error,
            error_message=group.message,
            group_id=group.group_id,
            group_state=group.state,
            group_epoch=group.group_epoch,
            assignment_epoch=group.assignment_epoch,
            assignor_name=group.assignor,
            members=tuple(self._member(make, member) for member in group.members),
            authorized_operations=operations,
        )

    def _not_described(self, make: Form, peer: Peer, group_id: str, error: Refused) -> Any:
        group = GroupDescription(group_id=group_id, error=error.code, message=str(error))
        return self._described(make, peer, group, False)

    def _member(self, make: Form, member: MemberDescription) -> Any:
        assigned = ((self._id(name), name, partitions) for name, partitions in member.assignment.items())
        return make(
            "Member",
            member_id=member.member_id,
            rack_id=member.rack_id,
            member_epoch=member.member_epoch,
            client_id=member.client_id,
            client_host=member.client_host,
            subscribed_topic_names=member.subscribed_topics,
            assignment=make(
                "Assignment",
                topic_partitions=tuple(
                    make("TopicPartitions", topic_id=topic_id, topic_name=name, partitions=partitions)
                    for topic_id, name, partitions in assigned
                    if topic_id is not None
                ),
            ),
        )

    async def describe_offsets(self, call: Call) -> Any:
        """Start offsets and lag of groups."""
        make = form("describe_share_group_offsets", call.version)
        return make(
            "DescribeShareGroupOffsetsResponse",
            throttle_time=NO_TIME,
            groups=tuple(
                [
                    await self._offsets(make, call.peer, group_id, topics)
                    for group_id, topics in topics_by_group(call.request.groups).items()
                ]
            ),
        )

    async def _offsets(self, make: Form, peer: Peer, group_id: str, asked: Sequence[Any] | None) -> Any:
        await peer.turns.take()
        if not may_group(peer, Operation.DESCRIBE, group_id):
            answer = DescribeShareGroupOffsetsResponse(
                error=ErrorCode.GROUP_AUTHORIZATION_FAILED, message=f"describing group {group_id} is not allowed"
            )
        else:
            answer = await self._ask_offsets(peer, group_id, asked)
        room = answers.room()
        before = room.built
        told = partial(make, "DescribeShareGroupOffsetsResponseGroup", group_id=group_id)
        try:
            topics = await _offsets_of(make, peer, answer)
            return told(topics=topics, error_code=answer.error, error_message=answer.message)
        except AnswerTooLarge as refusal:
            room.without(before)
            return room.freely(lambda error: told(topics=(), error_code=error.code, error_message=str(error)), refusal)

    async def _ask_offsets(
        self, peer: Peer, group_id: str, topics: Iterable[Any] | None
    ) -> DescribeShareGroupOffsetsResponse:
        if topics is None:
            answer = await peer.connection.send(DescribeShareGroupOffsetsRequest(group_id=group_id))
            may = await peer.turns.each(lambda part: may_topic(peer, Operation.DESCRIBE, part.topic), answer.partitions)
            visible = tuple(compress(answer.partitions, may))
            return DescribeShareGroupOffsetsResponse(error=answer.error, message=answer.message, partitions=visible)
        named: dict[str, dict[int, None]] = {}
        for topic in topics:
            numbers = named.setdefault(topic.topic_name, {})
            async for some in peer.turns.few(topic.partitions):
                numbers.update(dict.fromkeys(some))
        may = await peer.turns.each(lambda name: may_topic(peer, Operation.DESCRIBE, name), named)
        allowed = {name: tuple(named[name]) for name in compress(named, may)}
        answer = await peer.connection.send(DescribeShareGroupOffsetsRequest(group_id=group_id, topics=allowed))
        if answer.error is not ErrorCode.NONE:
            return answer
        refused = tuple(
            SharePartitionOffsets(
                topic=name,
                topic_id=None,
                partition=number,
                error=ErrorCode.TOPIC_AUTHORIZATION_FAILED,
                message=TOPIC_REFUSED.format("describing", name),
            )
            for name, numbers in named.items()
            if name not in allowed
            for number in numbers
        )
        return DescribeShareGroupOffsetsResponse(partitions=(*answer.partitions, *refused))

    async def alter_offsets(self, call: Call) -> Any:
        """Let an empty group start anew at given offsets."""
        peer, group_id = call.peer, call.request.group_id
        offsets: dict[tuple[str, int], int] = {}
        allowed: dict[tuple[str, int], int] = {}
        for topic in call.request.topics:
            may = may_topic(peer, Operation.READ, topic.topic_name)
            async for some in peer.turns.few(topic.partitions):
                named = {(topic.topic_name, part.partition_index): part.start_offset for part in some}
                offsets.update(named)
                if may:
                    allowed.update(named)
        if not may_group(peer, Operation.READ, group_id):
            answer = AlterShareGroupOffsetsResponse(
                error=ErrorCode.GROUP_AUTHORIZATION_FAILED, message=f"reading in group {group_id} is not allowed"
            )
        else:
            answer = await peer.connection.send(AlterShareGroupOffsetsRequest(group_id=group_id, offsets=allowed))
        results = list(answer.partitions)
        if answer.error is ErrorCode.NONE:
            results += [
                PartitionResult(
                    topic=name,
                    partition=number,
                    error=ErrorCode.TOPIC_AUTHORIZATION_FAILED,
                    message=TOPIC_REFUSED.format("reading", name),
                )
                for name, number in offsets
                if (name, number) not in allowed
            ]
        return await self._altered(form("alter_share_group_offsets", call.version), peer, answer, results)

    async def _altered(
        self, make: Form, peer: Peer, answer: AlterShareGroupOffsetsResponse, results: Iterable[PartitionResult]
    ) -> Any:
        parts = (
            (
                result.topic,
                make(
                    "AlterShareGroupOffsetsResponsePartition",
                    partition_index=result.partition,
                    error_code=result.error,
                    error_message=result.message,
                ),
            )
            for result in results
        )
        return make(
            "AlterShareGroupOffsetsResponse",
            throttle_time=NO_TIME,
            error_code=answer.error,
            error_message=answer.message,
            responses=await topics_of(
                peer.turns,
                parts,
                lambda name, found: make(
                    "AlterShareGroupOffsetsResponseTopic", topic_name=name, topic_id=self._id(name), partitions=found
                ),
            ),
        )

    async def delete_offsets(self, call: Call) -> Any:
        """Forget what an empty group read of topics."""
        peer, group_id = call.peer, call.request.group_id
        names = tuple(dict.fromkeys(topic.topic_name for topic in call.request.topics))
        may = await peer.turns.each(lambda name: may_topic(peer, Operation.READ, name), names)
        allowed = dict.fromkeys(compress(names, may))
        if not may_group(peer, Operation.DELETE, group_id):
            answer = DeleteShareGroupOffsetsResponse(
                error=ErrorCode.GROUP_AUTHORIZATION_FAILED, message=f"deleting group {group_id} is not allowed"
            )
        else:
            answer = await peer.connection.send(
                DeleteShareGroupOffsetsRequest(group_id=group_id, topics=tuple(allowed))
            )
        results = list(answer.topics)
        if answer.error is ErrorCode.NONE:
            results += [
                TopicResult(
                    topic=name,
                    error=ErrorCode.TOPIC_AUTHORIZATION_FAILED,
                    message=TOPIC_REFUSED.format("reading", name),
                )
                for name in names
                if name not in allowed
            ]
        make = form("delete_share_group_offsets", call.version)
        return make(
            "DeleteShareGroupOffsetsResponse",
            throttle_time=NO_TIME,
            error_code=answer.error,
            error_message=answer.message,
            responses=await peer.turns.each(
                lambda result: make(
                    "DeleteShareGroupOffsetsResponseTopic",
                    topic_name=result.topic,
                    topic_id=result.topic_id,
                    error_code=result.error,
                    error_message=result.message,
                ),
                results,
            ),
        )

    def _id(self, name: str) -> uuid.UUID | None:
        topic = self._topics.by_name(name)
        return None if topic is None else topic.topic_id


async def _offsets_of(make: Form, peer: Peer, answer: DescribeShareGroupOffsetsResponse) -> tuple[Any, ...]:
    parts = (
        (
            (part.topic, part.topic_id),
            make(
                "DescribeShareGroupOffsetsResponsePartition",
                partition_index=part.partition,
                start_offset=part.start_offset,
                leader_epoch=part.leader_epoch,
                lag=part.lag,
                error_code=part.error,
                error_message=part.message,
            ),
        )
        for part in answer.partitions
    )
    return await topics_of(
        peer.turns,
        parts,
        lambda topic, found: make(
            "DescribeShareGroupOffsetsResponseTopic", topic_name=topic[0], topic_id=topic[1], partitions=found
        ),
    )


def _visible(peer: Peer, group_id: str, found: Sequence[GroupDescription]) -> GroupDescription:
    """A group as the peer may see it: members are told of only if all their topics may be described."""
    group = next(iter(found), None)
    if group is None:
        return GroupDescription(
            group_id=group_id,
            error=ErrorCode.GROUP_AUTHORIZATION_FAILED,
            message=f"describing group {group_id} is not allowed",
        )
    topics = {name for member in group.members for name in (*member.subscribed_topics, *member.assignment)}
    hidden = sorted(name for name in topics if not may_topic(peer, Operation.DESCRIBE, name))
    if not hidden:
        return group
    return GroupDescription(
        group_id=group_id,
        error=ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        message="the group has topics that may not be described",
    )
