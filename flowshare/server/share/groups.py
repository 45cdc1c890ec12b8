"""The group APIs: ShareGroupHeartbeat, ShareGroupDescribe, ListGroups, DeleteGroups."""

from __future__ import annotations

from itertools import compress
from typing import TYPE_CHECKING

from flowshare.protocol.messages import (
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    GroupDescription,
    GroupResult,
    ListedGroup,
    ListGroupsRequest,
    ListGroupsResponse,
    MemberDescription,
    ShareGroupDescribeRequest,
    ShareGroupDescribeResponse,
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
    TopicPartition,
)
from flowshare.server import answers
from flowshare.server.failures import EXPECTED, failure

if TYPE_CHECKING:
    from flowshare.clock import Clock
    from flowshare.server.classic import ClassicGroups
    from flowshare.server.connection import Handlers, InProcess
    from flowshare.server.coordinator import Coordinator
    from flowshare.server.topic_index import TopicIndex
    from flowshare.share.group import Member


class GroupApis:
    """Answers the group APIs."""

    def __init__(
        self, *, coordinator: Coordinator, topics: TopicIndex, clock: Clock, classic: ClassicGroups | None = None
    ) -> None:
        """classic: the consumer groups, None where there are none."""
        self._coordinator = coordinator
        self._classic = classic
        self._clock = clock
        self._topics = topics

    def handlers(self) -> Handlers:
        """What this family answers."""
        return {
            ShareGroupHeartbeatRequest: self.heartbeat,
            ShareGroupDescribeRequest: self.describe,
            ListGroupsRequest: self.list,
            DeleteGroupsRequest: self.delete,
        }

    async def heartbeat(
        self, request: ShareGroupHeartbeatRequest, connection: InProcess
    ) -> ShareGroupHeartbeatResponse:
        """Join, go on or leave."""
        try:
            beat = await self._coordinator.heartbeat(request, connection)
        except EXPECTED as error:
            code, message = failure(error)
            return ShareGroupHeartbeatResponse(error=code, message=message, member_id=request.member_id)
        assignment = beat.assignment
        return ShareGroupHeartbeatResponse(
            member_id=request.member_id,
            member_epoch=beat.member_epoch,
            heartbeat_interval_ms=self._coordinator.interval_ms(request.group_id, own=connection.own),
            assignment=None if assignment is None else tuple(TopicPartition(*key) for key in assignment),
        )

    async def describe(self, request: ShareGroupDescribeRequest, _: InProcess) -> ShareGroupDescribeResponse:
        """Groups with their members; one that does not exist is Dead."""
        return ShareGroupDescribeResponse(
            groups=await answers.turns(self._clock).each(self._describe, request.group_ids)
        )

    async def list(self, request: ListGroupsRequest, _: InProcess) -> ListGroupsResponse:
        """Groups of all kinds by state and type; no filter means all."""
        states = {state.lower() for state in request.states}
        types = {kind.lower() for kind in request.types}
        turns = answers.turns(self._clock)
        share = await turns.each(
            lambda group: ListedGroup(group_id=group.group_id, state=group.state),
            tuple(self._coordinator.groups.values()),
        )
        classic = () if self._classic is None else await self._classic.listed(turns)
        groups = [*share, *classic]
        if states or types:
            wanted = await turns.each(
                lambda group: (not states or group.state.lower() in states) and (not types or group.type in types),
                groups,
            )
            groups = list(compress(groups, wanted))
        return ListGroupsResponse(groups=tuple(sorted(groups, key=lambda group: group.group_id)))

    async def delete(self, request: DeleteGroupsRequest, _: InProcess) -> DeleteGroupsResponse:
        """Delete empty groups with their offsets or the state of their share-partitions; their settings stay."""
        turns = answers.turns(self._clock)
        results: list[GroupResult] = []
        for group_id in dict.fromkeys(request.group_ids):
            await turns.take()
            try:
                if self._classic is not None and group_id in self._classic:
                    await self._classic.delete(group_id)
                else:
                    await self._coordinator.delete(group_id)
            except EXPECTED as error:
                code, message = failure(error)
                results.append(GroupResult(group_id=group_id, error=code, message=message))
            else:
                results.append(GroupResult(group_id=group_id))
        return DeleteGroupsResponse(groups=tuple(results))

    def _describe(self, group_id: str) -> GroupDescription:
        try:
            view = self._coordinator.find(group_id).describe()
        except EXPECTED as error:
            code, message = failure(error)
            return GroupDescription(group_id=group_id, error=code, message=message)
        return GroupDescription(
            group_id=group_id,
            state=view.state,
            group_epoch=view.group_epoch,
            assignment_epoch=view.assignment_epoch,
            assignor=view.assignor,
            members=tuple(self._member(member) for member in view.members),
        )

    def _member(self, member: Member) -> MemberDescription:
        assignment: dict[str, list[int]] = {}
        for topic_id, partition in member.assignment:
            topic = self._topics.by_id(topic_id)
            if topic is not None:
                assignment.setdefault(topic.name, []).append(partition)
        return MemberDescription(
            member_id=member.member_id,
            member_epoch=member.epoch,
            client_id=member.client_id,
            client_host=member.client_host,
            rack_id=member.rack_id,
            subscribed_topics=member.subscribed,
            assignment={name: tuple(sorted(partitions)) for name, partitions in assignment.items()},
        )
