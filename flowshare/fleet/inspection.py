"""A fleet as seen from outside: for commands, and for workers that lead nothing.

`describe_fleet` asks the brokers for the leaders of the fleet's slots, `known_groups` reads the fleet's groups from the
state topic. No worker is asked, and none has to run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from flowshare.client.errors import ServerError
from flowshare.fleet.state.reading import SlotReading, SlotReplay, SlotSettings
from flowshare.fleet.state.topic import PREFIX, slot_group, state_topic
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.messages import DescribeGroupRequest, MetadataRequest
from flowshare.server.share.coordinator import PREFIX as GROUP_PREFIX
from flowshare.slots.membership import SlotGroupMember
from flowshare.slots.placement import group_slot
from flowshare.slots.planning import assembled

if TYPE_CHECKING:
    from collections.abc import Collection

    from flowshare.client.net.routing import ClusterConnection
    from flowshare.clock import Clock
    from flowshare.slots.membership import SlotMap

THERE: Final = (ErrorCode.NONE, ErrorCode.LEADER_NOT_AVAILABLE)
SETTINGS: Final = SlotSettings(deadline_s=10.0)


async def slots_of(kafka: ClusterConnection, fleet: str) -> int:
    """Return the number of a fleet's slots; 0: it has no state topic. Raises ClientError (name not allowed),
    OSError."""
    (topic,) = (await kafka.send(MetadataRequest(topics=(state_topic(fleet),)))).topics
    if topic.error is ErrorCode.TOPIC_AUTHORIZATION_FAILED:
        raise ServerError(topic.error, about=f"looking for {topic.name}")
    return topic.partitions if topic.error in THERE else 0


async def fleets_of(kafka: ClusterConnection) -> list[str]:
    """Return the fleets with state on the cluster, as far as this login may see them. Raises ClientError, OSError."""
    answer = await kafka.send(MetadataRequest(topics=None))
    return sorted(topic.name.removeprefix(PREFIX) for topic in answer.topics if topic.name.startswith(PREFIX))


async def known_groups(
    kafka: ClusterConnection, fleet: str, groups: Collection[str] | None, *, clock: Clock
) -> frozenset[str]:
    """Return the groups that the fleet has, of the given ones; None: of all.

    Only the slots that would hold them are read. Raises: StorageError (a slot cannot be read), StorageDamaged,
    ClientError, OSError.
    """
    slots = await slots_of(kafka, fleet)
    if not slots:
        return frozenset()
    wanted = range(slots) if groups is None else sorted({group_slot(group, slots) for group in groups})
    found: set[str] = set()
    for slot in wanted:
        reading = SlotReading(kafka, topic=state_topic(fleet), slot=slot, clock=clock, settings=SETTINGS)
        replay = SlotReplay(reading, cache=None)
        await replay.load()
        found |= {key.removeprefix(GROUP_PREFIX).decode() for key, _ in replay.reader.table.scan(GROUP_PREFIX)}
    return frozenset(found if groups is None else found & set(groups))


async def describe_fleet(kafka: ClusterConnection, fleet: str) -> SlotMap | None:
    """Return the fleet's present map; None: it has no workers, or they are just sharing the slots out: ask again.

    Raises: ServerError (DESCRIBE on the group is needed), NotConnected, ConnectionLost, ClientError (name not allowed).
    """
    return await described(kafka, slot_group(fleet))


async def described(kafka: ClusterConnection, group_id: str) -> SlotMap | None:
    """Return the map as `describe_fleet`, by the id of the slot group."""
    answer = await kafka.send(DescribeGroupRequest(group_id=group_id))
    if answer.error is ErrorCode.GROUP_ID_NOT_FOUND:
        return None  # brokers before 4.0 say that it is dead (KIP-1043)
    if answer.error is not ErrorCode.NONE:
        raise ServerError(answer.error, answer.message, about=f"slot group {group_id}")
    return assembled(SlotGroupMember(one.member_id, one.metadata, one.assignment) for one in answer.members)
