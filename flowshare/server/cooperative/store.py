"""Where the state of cooperative groups lies in the `StateStore`. In a fleet all of a group is in the group's slot.

    k/ <length of group id, 2 bytes> <group id> <topic id, 16 bytes> <partition, 4 bytes> <entry>

What an entry is, and its bytes, says `flowshare.cooperative.stored`. An entry 0x10 is this server's own: the group's
ordinary committed offset was seen to be one that members of it had committed (in a fleet, see `beside`). An entry 0x11
is a settle that may not be in the state yet (in a fleet, `slots.prepared`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from flowshare.cooperative import stored
from flowshare.server.runtime.state import group_head, partition_head, partition_of
from flowshare.slots.placement import COOPERATIVE_PREFIX, COOPERATIVE_SETTLES

if TYPE_CHECKING:
    import uuid
    from collections.abc import Collection, Iterable, Sequence

    from flowshare.cooperative.types import Mutation
    from flowshare.log.base import StateStore
    from flowshare.server.runtime.state import Write

SEEN_KEY: Final = b"\x10"


class PartitionKey(NamedTuple):
    """Which partition of which group."""

    group_id: str
    topic_id: uuid.UUID
    partition: int

    def __str__(self) -> str:
        return f"group={self.group_id} topic_id={self.topic_id} partition={self.partition}"

    @property
    def prefix(self) -> bytes:
        """Start of all store keys of the partition."""
        return partition_head(COOPERATIVE_PREFIX, *self)


class Stored(NamedTuple):
    """All entries of one partition, without its prefix; seen: see the head of the module."""

    entries: Sequence[tuple[bytes, bytes]]
    seen: bool


def group_prefix(group_id: str) -> bytes:
    """Start of all store keys of a group."""
    return group_head(COOPERATIVE_PREFIX, group_id)


def key_of(name: bytes) -> PartitionKey:
    """The partition that a store key belongs to. Raises: StateCorrupt."""
    return PartitionKey(*partition_of(COOPERATIVE_PREFIX, name))


async def group_ids(store: StateStore) -> set[str]:
    """The groups that there is state of. Raises: LogError, StateCorrupt."""
    return {key_of(name).group_id for name, _ in await store.scan(COOPERATIVE_PREFIX)}


async def read(store: StateStore, key: PartitionKey) -> Stored:
    """Read the stored entries of a partition. Raises: LogError."""
    return entries_of(key.prefix, await store.scan(key.prefix))


def entries_of(prefix: bytes, found: Iterable[tuple[bytes, bytes]]) -> Stored:
    """Return the entries under a partition's prefix, with the prefix removed and this server's own entries left out."""
    named = [(name[len(prefix) :], value) for name, value in found]
    own = [entry for entry in named if entry[0][:1] not in (SEEN_KEY, COOPERATIVE_SETTLES)]
    return Stored(own, any(name == SEEN_KEY for name, _ in named))


def writes_of(prefix: bytes, mutations: Iterable[Mutation]) -> list[Write]:
    """The writes of mutations of the partition with this prefix, in their order."""
    return [(prefix + name, value) for name, value in map(stored.encode, mutations)]


def deletes_of(prefix: bytes, found: Stored) -> list[Write]:
    """The writes that remove what is stored of a partition."""
    own: list[Write] = [(prefix + SEEN_KEY, None)] if found.seen else []
    return [*((prefix + name, None) for name, _ in found.entries), *own]


async def removal(
    store: StateStore, group_id: str, partitions: Collection[tuple[uuid.UUID, int]] | None = None
) -> list[Write]:
    """The writes that remove all that is stored of a group, or of these partitions of it. Raises: LogError."""
    entries = await store.scan(group_prefix(group_id))
    if partitions is None:
        return [(name, None) for name, _ in entries]
    prefixes = tuple(PartitionKey(group_id, *one).prefix for one in partitions)
    return [(name, None) for name, _ in entries if name.startswith(prefixes)]
