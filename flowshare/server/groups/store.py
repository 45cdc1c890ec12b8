"""Where classic groups and their offsets lie in the `StateStore`: one entry a group, one a committed offset.

cg/ <group id>                                                                                   the group
co/ <length of group id, 2 bytes> <group id> <partition, 4 bytes> <topic>                        committed offset
cp/ <length of group id, 2 bytes> <group id> <producer id, 8 bytes> <partition, 4 bytes> <topic> a transaction's
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from flowshare.core_errors import StateCorrupt
from flowshare.groups.offsets import (
    OffsetChange,
    OffsetPartition,
    Offsets,
    TransactionalProducer,
    decode_offset,
    encode_offset,
)
from flowshare.groups.stored import ClassicGroupState, decode_group

if TYPE_CHECKING:
    from flowshare.log.base import StateStore
    from flowshare.server.runtime.coordinator import Damage
    from flowshare.server.runtime.state import Write

GROUPS: Final = b"cg/"
OFFSETS: Final = b"co/"
PENDING: Final = b"cp/"
_LENGTH: Final = struct.Struct(">H")
_PARTITION: Final = struct.Struct(">i")
_PRODUCER: Final = struct.Struct(">q")
_EPOCH: Final = struct.Struct(">h")


@dataclass(slots=True)
class StoredGroup:
    """What is stored of one group."""

    state: ClassicGroupState | None = None
    """None: it never had members, or none that the leader assigned anything to."""
    offsets: Offsets = field(default_factory=Offsets)


def group_key(group_id: str) -> bytes:
    """Where a group lies."""
    return GROUPS + group_id.encode()


def offset_write(group_id: str, change: OffsetChange) -> Write:
    """The write for a change of a group's offsets."""
    partition, value, producer = change
    key = OFFSETS if producer is None else PENDING
    key += _name(group_id)
    if producer is not None:
        key += _PRODUCER.pack(producer.producer_id)
    key += _PARTITION.pack(partition.number) + partition.topic.encode()
    data = None if value is None else encode_offset(value)
    if data is not None and producer is not None:
        data = _EPOCH.pack(producer.epoch) + data
    return key, data


async def load(store: StateStore, damage: Damage) -> dict[str, StoredGroup]:
    """Everything that is stored, by group; groups of which something cannot be read are added to `damage` instead."""
    found: dict[str, StoredGroup] = {}
    for key, value in await store.scan(GROUPS):
        group_id = key[len(GROUPS) :].decode(errors="backslashreplace")
        try:
            found.setdefault(group_id, StoredGroup()).state = decode_group(value)
        except StateCorrupt as error:
            damage.add(group_id, key, f"its members and generation: {error}")
    for prefix in (OFFSETS, PENDING):
        for key, value in await store.scan(prefix):
            group_id, rest = _split(key, prefix)
            try:
                change = _change(rest, value, pending=prefix == PENDING)
            except (StateCorrupt, UnicodeDecodeError, struct.error) as error:
                damage.add(group_id, key, f"a committed offset: {error}")
                continue
            found.setdefault(group_id, StoredGroup()).offsets.apply([change])
    return {group_id: loaded for group_id, loaded in found.items() if group_id not in damage}


async def everything_of(store: StateStore, group_id: str) -> list[Write]:
    """The writes that remove all that is stored of a group."""
    keys = [group_key(group_id)]
    for prefix in (OFFSETS, PENDING):
        keys += [key for key, _ in await store.scan(prefix + _name(group_id))]
    return [(key, None) for key in keys]


def _name(group_id: str) -> bytes:
    name = group_id.encode()
    return _LENGTH.pack(len(name)) + name


def _split(key: bytes, prefix: bytes) -> tuple[str, bytes]:
    """Group id, and what follows it in the key."""
    start = len(prefix) + _LENGTH.size
    end = start + int.from_bytes(key[len(prefix) : start], "big")
    return key[start:end].decode(errors="backslashreplace"), key[end:]


def _change(rest: bytes, value: bytes, *, pending: bool) -> OffsetChange:
    producer = None
    if pending:
        (producer_id,) = _PRODUCER.unpack_from(rest)
        (epoch,) = _EPOCH.unpack_from(value)
        producer = TransactionalProducer(producer_id, epoch)
        rest, value = rest[_PRODUCER.size :], value[_EPOCH.size :]
    (number,) = _PARTITION.unpack_from(rest)
    return OffsetChange(OffsetPartition(rest[_PARTITION.size :].decode(), number), decode_offset(value), producer)
