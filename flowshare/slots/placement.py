"""The slot of each thing. All workers of a fleet agree on it, so nothing here may ever change.

- A share-partition: by topic and partition alone, so that all groups of a partition have one leader, as in Kafka, where
  metadata names one leader and knows no group. Neighbouring partitions lie in neighbouring slots.
- A group and its settings: by the group's id. So is all state of a cooperative group, its partitions' included: its
  coordinator decides about all of them.
- A leader's notes on the slot itself: the key has the slot.
- Everything else is the fleet's own and lies in the registry slot.
"""

from __future__ import annotations

import uuid
import zlib
from typing import Final

SLOTS_DEFAULT: Final = 32
"""Partitions of a fleet's state topic, unless it was made with another number."""
REGISTRY_SLOT: Final = 0
SHARE_PREFIX: Final = b"s/"
GROUP_PREFIXES: Final = (b"g/", b"c/")
COOPERATIVE_PREFIX: Final = b"k/"
SHARE_SETTLES: Final = b"\x04"
COOPERATIVE_SETTLES: Final = b"\x11"
"""The byte that follows a partition's key prefix in the key of a prepared settle (`prepared`)."""
LANES_PREFIX: Final = b"y/"
SLOT_BYTES: Final = 4
LENGTH_BYTES: Final = 2
TOPIC_BYTES: Final = 16
PARTITION_BYTES: Final = 4


def share_slot(topic_id: uuid.UUID, partition: int, slots: int) -> int:
    """Return the slot of all share-partitions of a topic's partition."""
    return (zlib.crc32(topic_id.bytes) + partition) % slots


def group_slot(group_id: str, slots: int) -> int:
    """Return the slot whose owner coordinates the group."""
    return zlib.crc32(group_id.encode()) % slots


def partition_head(key: bytes) -> bytes:
    """Return the start of all state keys of the partition, of a share or cooperative group, that a key belongs to.

    s/ or k/ <length of group id, 2 bytes> <group id> <topic id, 16 bytes> <partition, 4 bytes>
    """
    start = len(SHARE_PREFIX) + LENGTH_BYTES
    return key[: start + int.from_bytes(key[len(SHARE_PREFIX) : start], "big") + TOPIC_BYTES + PARTITION_BYTES]


def cooperative_group(key: bytes) -> bytes:
    """Return the id of the group that a `COOPERATIVE_PREFIX` key belongs to, as far as the key has it.

    k/ <length of group id, 2 bytes> <group id> …
    """
    start = len(COOPERATIVE_PREFIX) + LENGTH_BYTES
    return key[start : start + int.from_bytes(key[len(COOPERATIVE_PREFIX) : start], "big")]


def is_whole(prefix: bytes) -> bool:
    """True if all state keys with this prefix belong to one partition of a share group, or to one cooperative group."""
    if prefix.startswith(COOPERATIVE_PREFIX):
        return cooperative_group(prefix) == cooperative_group(prefix + b"\xff\xff\xff")
    return prefix.startswith(SHARE_PREFIX) and partition_head(prefix) == partition_head(prefix + b"\xff")


def slot_of_key(key: bytes, slots: int) -> int:
    """Return the slot in whose log a state key is written. Raises ValueError for a share-partition's key that is cut
    short."""
    if key.startswith(LANES_PREFIX):
        return int.from_bytes(key[len(LANES_PREFIX) : len(LANES_PREFIX) + SLOT_BYTES], "big") % slots
    if key.startswith(SHARE_PREFIX):
        head = partition_head(key)
        end = len(head) - PARTITION_BYTES
        begin = len(SHARE_PREFIX) + LENGTH_BYTES + int.from_bytes(key[2:4], "big")
        if end - begin != TOPIC_BYTES:
            raise ValueError(f"{key!r} is no key of a share-partition")
        topic_id = uuid.UUID(bytes=head[begin:end])
        return share_slot(topic_id, int.from_bytes(head[end:], "big", signed=True), slots)
    if key.startswith(COOPERATIVE_PREFIX):
        return zlib.crc32(cooperative_group(key)) % slots
    if key.startswith(GROUP_PREFIXES):
        return zlib.crc32(key[2:]) % slots
    return REGISTRY_SLOT
