"""Whether a member may join a classic group: its session timeout, its protocols, and room for it."""

from __future__ import annotations

from flowshare.groups.errors import InconsistentGroupProtocol, InvalidSessionTimeout
from flowshare.groups.phases import Phases
from flowshare.groups.states import State
from flowshare.groups.types import Join


def check_join(group_id: str, phases: Phases, request: Join) -> None:
    """Check a join against the server's bounds and the other members.

    Raises InvalidSessionTimeout, InconsistentGroupProtocol.
    """
    low, high = phases.config.session_timeout_min_ms, phases.config.session_timeout_max_ms
    if not low <= request.session_timeout_ms <= high:
        raise InvalidSessionTimeout(
            f"session.timeout.ms is {request.session_timeout_ms}; the server takes {low} to {high} "
            "(group.min.session.timeout.ms, group.max.session.timeout.ms)"
        )
    if not request.protocol_type or not request.protocols:
        raise InconsistentGroupProtocol("a join needs a protocol type and at least one protocol")
    members = phases.members
    rejoining = members.get(request.member_id)
    if rejoining is None and request.instance_id is not None:
        rejoining = members.of_instance(request.instance_id)
    if not len(members):
        return
    if request.protocol_type != phases.protocol_type:
        raise InconsistentGroupProtocol(
            f"the members of group {group_id} are of type {phases.protocol_type}, not {request.protocol_type}"
        )
    others = members.candidates(without=rejoining)
    if len(members) > (rejoining is not None) and not others & {one.name for one in request.protocols}:
        raise InconsistentGroupProtocol(
            f"group {group_id} uses {', '.join(sorted(others))}; the joining member supports none of these "
            "(partition.assignment.strategy)"
        )


def has_room(phases: Phases, member_id: str) -> bool:
    """Whether a member may come in, or stay, under group.max.size; members that are awaited are bounded alike."""
    size_max = phases.config.size_max
    member = phases.members.get(member_id)
    if member is None and member_id not in phases.pending and len(phases.pending) >= size_max:
        return False
    if phases.state is State.PREPARING:
        joined = sum(one.joining is not None for one in phases.members)
        return (member is not None and member.joining is not None) or joined < size_max
    return member is not None or len(phases.members) < size_max
