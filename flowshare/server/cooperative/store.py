"""Where the state of cooperative groups lies in the `StateStore`. In a fleet all of a group is in the group's slot.

    k/ <length of group id, 2 bytes> <group id> <topic id, 16 bytes> <partition, 4 bytes> <entry>

What an entry is, and its bytes, says `flowshare.cooperative.stored`. An entry 0x10 is this server's own: the group's
ordinary committed offset was seen to be one that members of it had committed (in a fleet, see `beside`).
"""

from __future__ import annotations

import struct
import uuid
from typing import TYPE_CHECKING, Final, NamedTuple

from flowshare.cooperative import stored
from flowshare.core_errors import StateCorrupt

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from flowshare.cooperative.types import Mutation
    from flowshare.log.base import StateStore
    from flowshare.server.runtime.state import Write

PREFIX: Final = b"k/"
SEEN_KEY: Final = b"\x10"
_LENGTH: Final = struct.Struct(">H")
_PARTITION: Final = struct.Struct(">i")


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
        return group_prefix(self.group_id) + self.topic_id.bytes + _PARTITION.pack(self.partition)


class Stored(NamedTuple):
    """All entries of one partition, without its prefix; seen: see the head of the module."""

    entries: Sequence[tuple[bytes, bytes]]
    seen: bool


def group_prefix(group_id: str) -> bytes:
    """Start of all store keys of a group."""
    name = group_id.encode()
    return PREFIX + _LENGTH.pack(len(name)) + name


def key_of(name: bytes) -> PartitionKey:
    """The partition that a store key belongs to. Raises: StateCorrupt."""
    try:
        (length,) = _LENGTH.unpack_from(name, len(PREFIX))
        start = len(PREFIX) + _LENGTH.size
        group_id = name[start : start + length].decode()
        topic_id = uuid.UUID(bytes=name[start + length : start + length + 16])
        (partition,) = _PARTITION.unpack_from(name, start + length + 16)
    except (struct.error, ValueError) as error:
        raise StateCorrupt(f"a state key cannot be read: {name!r}") from error
    return PartitionKey(group_id, topic_id, partition)


async def read(store: StateStore, key: PartitionKey) -> Stored:
    """What is stored of a partition. Raises: LogError."""
    prefix = key.prefix
    found = [(name[len(prefix) :], value) for name, value in await store.scan(prefix)]
    entries = [entry for entry in found if entry[0] != SEEN_KEY]
    return Stored(entries, len(entries) < len(found))


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
