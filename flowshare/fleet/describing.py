"""Who leads a fleet's slots, seen from outside: for commands, and for workers that lead nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flowshare.client.errors import ServerError
from flowshare.fleet.names import slot_group
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.messages import DescribeGroupRequest
from flowshare.slots.membership import Member
from flowshare.slots.planning import assembled

if TYPE_CHECKING:
    from flowshare.client.routing import ClusterConnection
    from flowshare.slots.membership import SlotMap


async def describe_fleet(kafka: ClusterConnection, fleet: str) -> SlotMap | None:
    """The fleet's present map; None: it has no workers, or they are just sharing the slots out: ask again.

    Raises: ServerError (DESCRIBE on the group is needed), NotConnected, ConnectionLost, ClientError (no such name).
    """
    return await described(kafka, slot_group(fleet))


async def described(kafka: ClusterConnection, group_id: str) -> SlotMap | None:
    """As `describe_fleet`, by the id of the slot group."""
    answer = await kafka.send(DescribeGroupRequest(group_id=group_id))
    if answer.error is ErrorCode.GROUP_ID_NOT_FOUND:
        return None  # brokers before 4.0 say that it is dead (KIP-1043)
    if answer.error is not ErrorCode.NONE:
        raise ServerError(answer.error, answer.message, about=f"slot group {group_id}")
    return assembled(Member(one.member_id, one.metadata, one.assignment) for one in answer.members)
