"""The group APIs: ShareGroupHeartbeat, ShareGroupDescribe, ListGroups, DeleteGroups, and ShareBreaker."""

from __future__ import annotations

from itertools import compress
from typing import TYPE_CHECKING

from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.messages import (
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    GroupDescription,
    GroupResult,
    ListedGroup,
    ListGroupsRequest,
    ListGroupsResponse,
    MemberDescription,
    ShareBreakerRequest,
    ShareBreakerResponse,
    ShareGroupDescribeRequest,
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
    TopicPartition,
)
from flowshare.protocol.messages.groups import COOPERATIVE
from flowshare.protocol.messages.share import AssignedTopic
from flowshare.server.runtime import answers
from flowshare.server.runtime.connection import Family, InProcess, handles
from flowshare.server.runtime.failures import EXPECTED, Refused, refusal
from flowshare.share.breaker import Outcomes, Told

if TYPE_CHECKING:
    import uuid
    from collections.abc import Awaitable, Callable, Collection

    from flowshare.server.groups.coordinator import ConsumerGroups
    from flowshare.server.share.service import ShareService
    from flowshare.share.group import Member


class GroupApis(Family):
    """Answers the group APIs."""

    def __init__(
        self,
        service: ShareService,
        classic: ConsumerGroups | None = None,
        *,
        cooperative: Callable[[], Awaitable[Collection[str]]],
    ) -> None:
        """classic: the consumer groups; None where there are none. cooperative: returns the ids of cooperative
        groups."""
        self._named = cooperative
        self._coordinator = service.coordinator
        self._classic = classic
        self._clock = service.clock
        self._topics = service.topics
        self._service = service

    @handles(ShareBreakerRequest, ShareBreakerResponse)
    async def breaker(self, request: ShareBreakerRequest, _: InProcess) -> ShareBreakerResponse:
        """Tell of a group's breaker, add a member's outcomes, or close the breaker."""
        group = self._coordinator.find(request.group_id)
        kept = None if self._service.breakers is None else self._service.breakers.breaker(request.group_id)
        if kept is None:
            return ShareBreakerResponse()
        now_ms = self._clock.steady_ms()
        before = kept.breaker.told(now_ms).state
        if request.act == "close":
            kept.breaker.close()
        elif request.act == "report":
            if request.member_id not in group.members:
                raise Refused(ErrorCode.UNKNOWN_MEMBER_ID, f"group {request.group_id} has no such member")
            state, left_ms, open_ms = request.known
            known = Told(state, "", left_ms, open_ms)
            kept.breaker.report(request.member_id, Outcomes(*request.outcomes), kept.rule, now_ms, known)
        told = kept.breaker.told(now_ms)
        if told.state is not before and self._service.pacing is not None:
            self._service.pacing.look()
        return ShareBreakerResponse(**told._asdict())

    @handles(ShareGroupHeartbeatRequest)
    async def heartbeat(
        self, request: ShareGroupHeartbeatRequest, connection: InProcess
    ) -> ShareGroupHeartbeatResponse:
        """Join, go on or leave."""
        try:
            beat = await self._coordinator.heartbeat(request, connection)
        except EXPECTED as error:
            return refusal(ShareGroupHeartbeatResponse, error, member_id=request.member_id)
        assignment = beat.assignment
        return ShareGroupHeartbeatResponse(
            member_id=request.member_id,
            member_epoch=beat.member_epoch,
            heartbeat_interval_ms=self._coordinator.interval_ms(request.group_id, own=connection.own),
            assignment=None if assignment is None else tuple(TopicPartition(*key) for key in assignment),
        )

    @handles(ShareGroupDescribeRequest)
    async def describe(self, request: ShareGroupDescribeRequest, _: InProcess) -> GroupDescription:
        """Describe a group with its members."""
        group_id = request.group_id
        try:
            view = self._coordinator.find(group_id).describe()
        except EXPECTED as error:
            return refusal(GroupDescription, error, group_id=group_id)
        return GroupDescription(
            group_id=group_id,
            state=view.state,
            group_epoch=view.group_epoch,
            assignment_epoch=view.assignment_epoch,
            assignor=view.assignor,
            members=tuple(self._member(member) for member in view.members),
        )

    @handles(ListGroupsRequest)
    async def list(self, request: ListGroupsRequest, _: InProcess) -> ListGroupsResponse:
        """List groups of all kinds by state and type; no filter means all.

        Cooperative groups are listed, without a state, only for a request of that type alone: else they are consumer
        groups.
        """
        states = {state.lower() for state in request.states}
        types = {kind.lower() for kind in request.types}
        if types == {COOPERATIVE}:
            return ListGroupsResponse(groups=await self._cooperative())
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

    async def _cooperative(self) -> tuple[ListedGroup, ...]:
        names = sorted(await self._named())
        return tuple(ListedGroup(group_id=name, state="", type=COOPERATIVE, protocol_type="consumer") for name in names)

    @handles(DeleteGroupsRequest)
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
                results.append(refusal(GroupResult, error, group_id=group_id))
            else:
                results.append(GroupResult(group_id=group_id))
        return DeleteGroupsResponse(groups=tuple(results))

    def _member(self, member: Member) -> MemberDescription:
        assigned: dict[uuid.UUID, list[int]] = {}
        for topic_id, partition in sorted(member.assignment):
            assigned.setdefault(topic_id, []).append(partition)
        topics = [(self._topics.by_id(topic_id), tuple(partitions)) for topic_id, partitions in assigned.items()]
        return MemberDescription(
            member_id=member.member_id,
            member_epoch=member.epoch,
            client_id=member.client_id,
            client_host=member.client_host,
            rack_id=member.rack_id,
            subscribed_topics=member.subscribed,
            assigned=tuple(AssignedTopic(topic.topic_id, topic.name, numbers) for topic, numbers in topics if topic),
        )
