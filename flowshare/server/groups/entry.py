"""One consumer group of a server: its members' group, its offsets, and its writes under way."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from flowshare.core_errors import UnknownMemberId
from flowshare.groups.consumer_group import ConsumerGroup
from flowshare.groups.group import ClassicGroup
from flowshare.groups.offsets import Offsets
from flowshare.groups.subscription import CONSUMER
from flowshare.protocol.messages import ListedGroup

if TYPE_CHECKING:
    import uuid
    from collections.abc import Iterable

    from flowshare.groups.offsets import OffsetChange
    from flowshare.server.runtime.connection import InProcess
    from flowshare.server.runtime.state import Write


@dataclass(slots=True)
class GroupEntry:
    """One group with its offsets."""

    group: ClassicGroup | ConsumerGroup
    offsets: Offsets = field(default_factory=Offsets)
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    unwritten: bytes | None = None
    """State of a classic group that is still to be stored."""
    writing: int = 0
    """Writes of a classic group under way."""
    members_lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held by the write of members under way, of a group of the consumer protocol."""
    heard: dict[str, InProcess] = field(default_factory=dict["str", "InProcess"])
    """Member of the consumer protocol -> the connection of its last answered heartbeat."""
    outdated: list[Write] = field(default_factory=list["Write"])
    """The writes that remove the group as it was under the other protocol; they go with the next write."""

    @property
    def size(self) -> int:
        """Bytes of memory that the group takes, about."""
        return self.group.size + self.offsets.size + len(self.unwritten or b"")

    @property
    def void(self) -> bool:
        """True if the group had no use after the request that made it: no members, offsets or history."""
        group = self.group
        if isinstance(group, ConsumerGroup):
            unused = group.empty and group.group_epoch == 0
        else:
            unused = group.empty and group.generation == 0 and not group.awaits_member
        return unused and not self.offsets and not self.lock.locked()

    @property
    def owes(self) -> bool:
        """True if members of the consumer protocol are still to be written, or are being written, which may fail."""
        return isinstance(self.group, ConsumerGroup) and (self.group.to_write or self.members_lock.locked())

    def classic(self) -> ClassicGroup:
        """Return the classic group, for a member. Raises: UnknownMemberId (it is none)."""
        group = self.group
        if not isinstance(group, ClassicGroup):
            raise UnknownMemberId(f"group {group.group_id} has no members of group.protocol=classic; join again")
        return group

    def listed(self) -> ListedGroup:
        """Return the group's row of ListGroups."""
        group = self.group
        if isinstance(group, ConsumerGroup):
            return ListedGroup(group_id=group.group_id, state=group.state, type="consumer", protocol_type=CONSUMER)
        kind = group.protocol_type or ""
        return ListedGroup(group_id=group.group_id, state=group.state.value, type="classic", protocol_type=kind)

    def gone(self, decided: Iterable[OffsetChange]) -> list[tuple[uuid.UUID, int]]:
        """Return partitions whose committed offset is to go, by the ids of their topics."""
        committed = self.offsets.committed
        found = [one.partition for one in decided if one.value is None and one.producer is None]
        return [(committed[partition].topic_id, partition.number) for partition in found if partition in committed]
