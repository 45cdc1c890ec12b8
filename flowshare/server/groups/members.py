"""The APIs of classic groups' members: JoinGroup, SyncGroup, Heartbeat, LeaveGroup; and DescribeGroups."""

from __future__ import annotations

import uuid
from functools import partial
from typing import TYPE_CHECKING, Final

from flowshare.core_errors import CoreError, GroupIdNotFound, InvalidRequest, MemberIdRequired
from flowshare.groups.consumer_group import ConsumerGroup
from flowshare.groups.types import Join, JoinAnswer, SyncAnswer
from flowshare.protocol.errors import ErrorCode, error_code
from flowshare.protocol.messages import (
    DescribeGroupRequest,
    DescribeGroupResponse,
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    LeavingMember,
    LeftMember,
    SyncGroupRequest,
    SyncGroupResponse,
)
from flowshare.protocol.messages.base import Response
from flowshare.server.runtime import answers
from flowshare.server.runtime.connection import Family, InProcess, handles
from flowshare.server.runtime.failures import EXPECTED, Refused, refusal

if TYPE_CHECKING:
    import asyncio

    from flowshare.server.groups.coordinator import ConsumerGroups
    from flowshare.server.groups.entry import GroupEntry

MEMBER_BYTES_MAX: Final = 256 * 1024
"""Most bytes of names and metadata of one member's protocols."""


class ClassicMemberApis(Family):
    """Answers the requests of members."""

    def __init__(self, groups: ConsumerGroups) -> None:
        self._groups = groups

    @handles(JoinGroupRequest)
    async def join(self, request: JoinGroupRequest, connection: InProcess) -> JoinGroupResponse:
        """Join or rejoin; answered when the join phase is over."""
        try:
            answer = await self._join(request, connection)
        except MemberIdRequired as error:
            return JoinGroupResponse(error=error_code(error), message=str(error), member_id=error.member_id)
        except EXPECTED as error:
            return refusal(JoinGroupResponse, error, member_id=request.member_id)
        if answer.error is not None:
            member_id = answer.member_id or request.member_id
            return JoinGroupResponse(error=error_code(answer.error), message=str(answer.error), member_id=member_id)
        return JoinGroupResponse(
            member_id=answer.member_id,
            generation=answer.generation,
            protocol_type=answer.protocol_type,
            protocol_name=answer.protocol_name,
            leader=answer.leader,
            skip_assignment=answer.skip_assignment,
            members=answer.members,
        )

    async def _join(self, request: JoinGroupRequest, connection: InProcess) -> JoinAnswer:
        size = sum(len(name.encode()) + len(metadata) for name, metadata in request.protocols)
        if size > MEMBER_BYTES_MAX:
            raise InvalidRequest(f"a member's protocols take {size} bytes; the server takes {MEMBER_BYTES_MAX}")
        groups = self._groups
        group_id, party = request.group_id, connection.counts_as()
        entry, group = groups.join_classic(group_id, party, known=bool(request.member_id))
        asked = Join(
            member_id=request.member_id,
            instance_id=request.instance_id,
            client_id=request.client_id or connection.client_id,
            client_host=connection.host,
            protocol_type=request.protocol_type,
            protocols=request.protocols,
            session_timeout_ms=request.session_timeout_ms,
            rebalance_timeout_ms=request.rebalance_timeout_ms,
            known_id_required=request.version >= 4,
            can_skip_assignment=request.version >= 9,
        )
        with groups.waiting.place(connection) as place:
            try:
                groups.take(party, group.join_growth(asked))
                step = group.join(asked, ticket=place.number, new_id=str(uuid.uuid4()), now_ms=groups.time_of(entry))
            except (CoreError, Refused):
                groups.discard_void(entry)
                groups.watch(entry)
                raise
            groups.settle(entry, step)
            if step.refusal is not None:
                raise step.refusal
            return await place.answered(JoinAnswer)

    @handles(SyncGroupRequest, SyncGroupResponse)
    async def sync(self, request: SyncGroupRequest, connection: InProcess) -> SyncGroupResponse:
        """Return a member's assignment, or store the leader's assignments of all; answered when they are durable."""
        groups = self._groups
        entry, group = groups.find_classic(request.group_id)
        assignments = dict(request.assignments)
        groups.take(connection.counts_as(), group.sync_growth(request.member_id, assignments))
        with groups.waiting.place(connection) as place:
            step = group.sync(
                member_id=request.member_id,
                instance_id=request.instance_id,
                generation=request.generation,
                protocol_type=request.protocol_type,
                protocol_name=request.protocol_name,
                assignments=assignments,
                ticket=place.number,
                now_ms=groups.time_of(entry),
            )
            groups.settle(entry, step)
            answer = await place.answered(SyncAnswer)
        if answer.error is not None:
            return SyncGroupResponse(error=error_code(answer.error), message=str(answer.error))
        return SyncGroupResponse(
            protocol_type=answer.protocol_type, protocol_name=answer.protocol_name, assignment=answer.assignment
        )

    @handles(HeartbeatRequest, Response)
    async def heartbeat(self, request: HeartbeatRequest, _: InProcess) -> Response:
        """Keep a member alive, and tell it of a rebalance."""
        entry, group = self._groups.find_classic(request.group_id)
        group.heartbeat(
            member_id=request.member_id,
            instance_id=request.instance_id,
            generation=request.generation,
            now_ms=self._groups.time_of(entry),
        )
        return Response()

    @handles(LeaveGroupRequest, LeaveGroupResponse)
    async def leave(self, request: LeaveGroupRequest, _: InProcess) -> LeaveGroupResponse:
        """Remove members."""
        entry = self._groups.find_classic(request.group_id)[0]
        writes: list[asyncio.Future[bool]] = []
        members = await answers.turns(self._groups.clock).each(
            lambda member: self._leave(entry, member, writes), request.members
        )
        if not all([await write for write in writes]):
            return LeaveGroupResponse(
                error=ErrorCode.COORDINATOR_NOT_AVAILABLE, message="the group could not be written", members=members
            )
        return LeaveGroupResponse(members=members)

    def _leave(self, entry: GroupEntry, member: LeavingMember, writes: list[asyncio.Future[bool]]) -> LeftMember:
        try:
            step = entry.classic().leave(
                member_id=member.member_id, instance_id=member.instance_id, now_ms=self._groups.time_of(entry)
            )
        except CoreError as error:
            return LeftMember(member.member_id, member.instance_id, error_code(error))
        written = self._groups.settle(entry, step)
        if written is not None:
            writes.append(written)
        return LeftMember(member.member_id, member.instance_id)

    @handles(DescribeGroupRequest, partial(DescribeGroupResponse, state="Dead"))
    async def describe(self, request: DescribeGroupRequest, _: InProcess) -> DescribeGroupResponse:
        """Describe a group with its members."""
        group = self._groups.find(request.group_id).group
        if isinstance(group, ConsumerGroup):
            raise GroupIdNotFound(f"group {request.group_id} is one of group.protocol=consumer, no classic group")
        view = group.describe()
        return DescribeGroupResponse(
            state=view.state, protocol_type=view.protocol_type, protocol_name=view.protocol_name, members=view.members
        )
