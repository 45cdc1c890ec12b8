"""Classic consumer groups at the socket: JoinGroup, SyncGroup, Heartbeat, LeaveGroup, DescribeGroups."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from flowshare.groups.types import Supported
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.kafka import ApiKey
from flowshare.protocol.messages import (
    DescribeGroupRequest,
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    LeavingMember,
    SyncGroupRequest,
)
from flowshare.server.answers import fitting
from flowshare.server.edge.base import Api, Operation, ResourceType
from flowshare.server.edge.forms import NO_TIME, NOT_ASKED, authorized_operations, form, may_group, milliseconds

if TYPE_CHECKING:
    from flowshare.protocol.messages import DescribeGroupResponse
    from flowshare.server.edge.base import Call
    from flowshare.server.edge.forms import Form
    from flowshare.server.failures import Refused


class ClassicGroupEdge:
    """What members of consumer groups ask for."""

    def apis(self) -> Sequence[Api]:
        """The APIs of this family."""
        return (
            Api(key=ApiKey.JOIN_GROUP, lowest=0, highest=9, answer=self.join),
            Api(key=ApiKey.SYNC_GROUP, lowest=0, highest=5, answer=self.sync),
            Api(key=ApiKey.HEARTBEAT, lowest=0, highest=4, answer=self.heartbeat),
            Api(key=ApiKey.LEAVE_GROUP, lowest=0, highest=5, answer=self.leave),
            Api(key=ApiKey.DESCRIBE_GROUPS, lowest=0, highest=6, answer=self.describe),
        )

    async def join(self, call: Call) -> Any:
        """JoinGroup."""
        ask = call.request
        make = form("join_group", call.version)
        if not may_group(call.peer, Operation.READ, ask.group_id):
            return _joined(make, call.version, error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED)
        got = await call.peer.connection.send(
            JoinGroupRequest(
                group_id=ask.group_id,
                member_id=ask.member_id,
                instance_id=_instance(ask),
                client_id=call.client_id or "",
                protocol_type=ask.protocol_type,
                protocols=tuple(
                    Supported(name, bytes(one.metadata))
                    for name, one in {one.name: one for one in ask.protocols}.items()
                ),
                session_timeout_ms=milliseconds(ask.session_timeout),
                rebalance_timeout_ms=milliseconds(ask.rebalance_timeout) if call.version >= 1 else -1,
                version=call.version,
            )
        )
        if not may_group(call.peer, Operation.READ, ask.group_id):  # it may have waited for minutes
            return _joined(make, call.version, error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED)
        return _joined(
            make,
            call.version,
            error_code=got.error,
            generation_id=got.generation,
            protocol_type=got.protocol_type,
            protocol_name=got.protocol_name,
            leader=got.leader,
            skip_assignment=got.skip_assignment,
            member_id=got.member_id,
            members=tuple(
                make(
                    "JoinGroupResponseMember",
                    member_id=one.member_id,
                    group_instance_id=one.instance_id,
                    metadata=one.metadata,
                )
                for one in got.members
            ),
        )

    async def sync(self, call: Call) -> Any:
        """SyncGroup."""
        ask = call.request
        make = form("sync_group", call.version)
        refused = make(
            "SyncGroupResponse",
            throttle_time=NO_TIME,
            error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED,
            assignment=b"",
        )
        if not may_group(call.peer, Operation.READ, ask.group_id):
            return refused
        got = await call.peer.connection.send(
            SyncGroupRequest(
                group_id=ask.group_id,
                member_id=ask.member_id,
                instance_id=_instance(ask),
                generation=int(ask.generation_id),
                protocol_type=getattr(ask, "protocol_type", None),
                protocol_name=getattr(ask, "protocol_name", None),
                assignments=tuple((one.member_id, bytes(one.assignment)) for one in ask.assignments),
            )
        )
        if not may_group(call.peer, Operation.READ, ask.group_id):  # it waited for the group's leader
            return refused
        return make(
            "SyncGroupResponse",
            throttle_time=NO_TIME,
            error_code=got.error,
            protocol_type=got.protocol_type,
            protocol_name=got.protocol_name,
            assignment=got.assignment,
        )

    async def heartbeat(self, call: Call) -> Any:
        """Heartbeat."""
        ask = call.request
        make = form("heartbeat", call.version)
        error = ErrorCode.GROUP_AUTHORIZATION_FAILED
        if may_group(call.peer, Operation.READ, ask.group_id):
            got = await call.peer.connection.send(
                HeartbeatRequest(
                    group_id=ask.group_id,
                    member_id=ask.member_id,
                    instance_id=_instance(ask),
                    generation=int(ask.generation_id),
                )
            )
            error = got.error
        return make("HeartbeatResponse", throttle_time=NO_TIME, error_code=error)

    async def leave(self, call: Call) -> Any:
        """LeaveGroup: one member, or since version 3 several, each with its own result."""
        ask = call.request
        make = form("leave_group", call.version)
        if not may_group(call.peer, Operation.READ, ask.group_id):
            return _left(make, ErrorCode.GROUP_AUTHORIZATION_FAILED)
        one_member = call.version < 3
        members = (
            (LeavingMember(ask.member_id),)
            if one_member
            else await call.peer.turns.each(
                lambda one: LeavingMember(one.member_id, one.group_instance_id), ask.members
            )
        )
        members = tuple(dict.fromkeys(members))
        got = await call.peer.connection.send(LeaveGroupRequest(group_id=ask.group_id, members=members))
        error = got.error
        if one_member and error is ErrorCode.NONE:
            error = got.members[0].error
        return _left(
            make,
            error,
            ()
            if one_member
            else await call.peer.turns.each(
                lambda one: make(
                    "MemberResponse", member_id=one.member_id, group_instance_id=one.instance_id, error_code=one.error
                ),
                got.members,
            ),
        )

    async def describe(self, call: Call) -> Any:
        """DescribeGroups: groups of other kinds are Dead, with an error since version 6."""
        make = form("describe_groups", call.version)
        asked = call.version >= 3 and call.request.include_authorized_operations
        groups: list[Any] = []
        for group_id in dict.fromkeys(call.request.groups):
            await call.peer.turns.take()
            if not may_group(call.peer, Operation.DESCRIBE, group_id):
                error = ErrorCode.GROUP_AUTHORIZATION_FAILED
                groups.append(_described(make, group_id, error_code=error, group_state=""))
                continue
            got = await call.peer.connection.send(DescribeGroupRequest(group_id=group_id))
            may = authorized_operations(call.peer, ResourceType.GROUP, group_id) if asked else NOT_ASKED
            groups.append(
                fitting(
                    partial(_group, make, call.version, group_id, got, may),
                    partial(_too_large, make, group_id),
                )
            )
        return make("DescribeGroupsResponse", throttle_time=NO_TIME, groups=tuple(groups))


def _instance(ask: Any) -> str | None:
    """The group.instance.id, which early versions do not have."""
    return getattr(ask, "group_instance_id", None)


def _joined(make: Form, version: int, **values: Any) -> Any:
    found: dict[str, Any] = {
        "throttle_time": NO_TIME,
        "generation_id": -1,
        "protocol_type": None,
        "protocol_name": None,
        "leader": "",
        "skip_assignment": False,
        "member_id": "",
        "members": (),
        **values,
    }
    if version < 7 and found["protocol_name"] is None:
        found["protocol_name"] = ""
    return make("JoinGroupResponse", **found)


def _left(make: Form, error: ErrorCode, members: tuple[Any, ...] = ()) -> Any:
    return make("LeaveGroupResponse", throttle_time=NO_TIME, error_code=error, members=members)


def _described(make: Form, group_id: str, **values: Any) -> Any:
    found: dict[str, Any] = {
        "error_message": None,
        "group_id": group_id,
        "protocol_type": "",
        "protocol_data": "",
        "members": (),
        "authorized_operations": NOT_ASKED,
        **values,
    }
    return make("DescribedGroup", **found)


def _too_large(make: Form, group_id: str, error: Refused) -> Any:
    return _described(make, group_id, error_code=error.code, error_message=str(error), group_state="")


def _group(make: Form, version: int, group_id: str, got: DescribeGroupResponse, authorized: int) -> Any:
    error = got.error
    if version < 6 and error is ErrorCode.GROUP_ID_NOT_FOUND:
        error = ErrorCode.NONE  # A group that does not exist is Dead, and that was all there was to say.
    return _described(
        make,
        group_id,
        error_code=error,
        error_message=got.message,
        group_state=got.state,
        protocol_type=got.protocol_type,
        protocol_data=got.protocol_name,
        members=tuple(
            make(
                "DescribedGroupMember",
                member_id=one.member_id,
                group_instance_id=one.instance_id,
                client_id=one.client_id,
                client_host=one.client_host,
                member_metadata=one.metadata,
                member_assignment=one.assignment,
            )
            for one in got.members
        ),
        authorized_operations=authorized,
    )
