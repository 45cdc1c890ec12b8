"""Which groups a fleet has, read from its state topic: no worker is asked, and none has to run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from flowshare.client.errors import ServerError
from flowshare.fleet.names import PREFIX, state_topic
from flowshare.fleet.slot_reading import SlotReading
from flowshare.fleet.slot_replay import SlotReplay
from flowshare.fleet.slot_settings import SlotSettings
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.messages import MetadataRequest
from flowshare.server.coordinator import PREFIX as GROUP_PREFIX
from flowshare.slots.places import group_slot

if TYPE_CHECKING:
    from collections.abc import Collection

    from flowshare.client.routing import ClusterConnection
    from flowshare.clock import Clock

THERE: Final = (ErrorCode.NONE, ErrorCode.LEADER_NOT_AVAILABLE)
SETTINGS: Final = SlotSettings(deadline_s=10.0)


async def slots_of(kafka: ClusterConnection, fleet: str) -> int:
    """How many slots a fleet has; 0: it has no state topic. Raises: ClientError (no such name), OSError."""
    (topic,) = (await kafka.send(MetadataRequest(topics=(state_topic(fleet),)))).topics
    if topic.error is ErrorCode.TOPIC_AUTHORIZATION_FAILED:
        raise ServerError(topic.error, about=f"looking for {topic.name}")
    return topic.partitions if topic.error in THERE else 0


async def fleets_of(kafka: ClusterConnection) -> list[str]:
    """The fleets that have state on the cluster, as far as this login is told. Raises: ClientError, OSError."""
    answer = await kafka.send(MetadataRequest(topics=None))
    return sorted(topic.name.removeprefix(PREFIX) for topic in answer.topics if topic.name.startswith(PREFIX))


async def known_groups(
    kafka: ClusterConnection, fleet: str, groups: Collection[str] | None, *, clock: Clock
) -> frozenset[str]:
    """Those of the groups that the fleet has; None: all that it has.

    Only the slots in which they would lie are read. Raises: StorageError (it cannot be read), StorageDamaged,
    ClientError, OSError.
    """
    slots = await slots_of(kafka, fleet)
    if not slots:
        return frozenset()
    wanted = range(slots) if groups is None else sorted({group_slot(group, slots) for group in groups})
    found: set[str] = set()
    for slot in wanted:
        reading = SlotReading(kafka, topic=state_topic(fleet), slot=slot, clock=clock, settings=SETTINGS)
        replay = SlotReplay(reading, clock=clock, cache=None)
        await replay.load()
        found |= {key.removeprefix(GROUP_PREFIX).decode() for key, _ in replay.reader.table.scan(GROUP_PREFIX)}
    return frozenset(found if groups is None else found & set(groups))
