"""Keys of consumer groups and their offsets in the `StateStore`: one entry a group, one a committed offset; of
groups of the consumer protocol (KIP-848) one a member, too.

cg/ <group id>                                                                                   a classic group
kg/ <group id>                                                                                   its epochs
km/ <length of group id, 2 bytes> <group id> <member id>                                         one of its members
co/ <length of group id, 2 bytes> <group id> <partition, 4 bytes> <topic>                        committed offset
cp/ <length of group id, 2 bytes> <group id> <producer id, 8 bytes> <partition, 4 bytes> <topic> a transaction's
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from flowshare.core_errors import StateCorrupt
from flowshare.groups.consumer_group import EPOCHS
from flowshare.groups.consumer_stored import GroupEpochs, StoredConsumerGroup, decode_epochs, decode_member
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
    from collections.abc import Iterable, Mapping

    from flowshare.groups.consumer_member import ConsumerMember
    from flowshare.log.base import StateStore
    from flowshare.server.runtime.coordinator import Damage
    from flowshare.server.runtime.state import Write

GROUPS: Final = b"cg/"
CONSUMER_GROUPS: Final = b"kg/"
MEMBERS: Final = b"km/"
OFFSETS: Final = b"co/"
PENDING: Final = b"cp/"
_LENGTH: Final = struct.Struct(">H")
_PARTITION: Final = struct.Struct(">i")
_PRODUCER: Final = struct.Struct(">q")
_EPOCH: Final = struct.Struct(">h")


@dataclass(slots=True)
class StoredGroup:
    """The stored state of one group."""

    state: ClassicGroupState | None = None
    """None: not a classic group, one that never had members, or one whose leader assigned nothing."""
    epochs: GroupEpochs | None = None
    """Epochs of a group of the consumer protocol."""
    members: list[ConsumerMember] = field(default_factory=list["ConsumerMember"])
    offsets: Offsets = field(default_factory=Offsets)

    @property
    def consumer(self) -> StoredConsumerGroup | None:
        """The group, if it is one of the consumer protocol."""
        return None if self.epochs is None else StoredConsumerGroup(epochs=self.epochs, members=self.members)


def group_key(group_id: str) -> bytes:
    """Return a classic group's key."""
    return GROUPS + group_id.encode()


def consumer_key(group_id: str, name: str = EPOCHS) -> bytes:
    """Return the key of a group of the consumer protocol, or of its member of this name."""
    return CONSUMER_GROUPS + group_id.encode() if name == EPOCHS else MEMBERS + _name(group_id) + name.encode()


def consumer_writes(group_id: str, entries: Mapping[str, bytes | None]) -> list[Write]:
    """Return the writes of `ConsumerGroup.unwritten`."""
    return [(consumer_key(group_id, name), entry) for name, entry in entries.items()]


def group_removal(group_id: str, members: Iterable[str] = ()) -> list[Write]:
    """Return the writes that remove a group without members, of any protocol; entries of `members` may be left."""
    keys = (group_key(group_id), consumer_key(group_id), *(consumer_key(group_id, name) for name in members))
    return [(key, None) for key in dict.fromkeys(keys)]


def offset_write(group_id: str, change: OffsetChange) -> Write:
    """Return the write for a change of a group's offsets."""
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
    """Read everything stored, by group; groups with an unreadable entry are added to `damage` instead."""
    found: dict[str, StoredGroup] = {}
    for key, value in await store.scan(GROUPS):
        group_id = key[len(GROUPS) :].decode(errors="backslashreplace")
        try:
            found.setdefault(group_id, StoredGroup()).state = decode_group(value)
        except StateCorrupt as error:
            damage.add(group_id, key, f"its members and generation: {error}")
    await _load_consumer_groups(store, damage, found)
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


async def _load_consumer_groups(store: StateStore, damage: Damage, found: dict[str, StoredGroup]) -> None:
    for key, value in await store.scan(CONSUMER_GROUPS):
        group_id = key[len(CONSUMER_GROUPS) :].decode(errors="backslashreplace")
        try:
            found.setdefault(group_id, StoredGroup()).epochs = decode_epochs(value)
        except StateCorrupt as error:
            damage.add(group_id, key, f"its epochs: {error}")
    for key, value in await store.scan(MEMBERS):
        group_id, _ = _split(key, MEMBERS)
        try:
            found.setdefault(group_id, StoredGroup()).members.append(decode_member(value))
        except StateCorrupt as error:
            damage.add(group_id, key, f"a member: {error}")
    for group_id, loaded in found.items():
        if loaded.members and loaded.epochs is None and group_id not in damage:
            damage.add(group_id, consumer_key(group_id), "its epochs: they are not there, and members are")


async def everything_of(store: StateStore, group_id: str) -> list[Write]:
    """Return the writes that remove everything stored of a group."""
    keys = [group_key(group_id), consumer_key(group_id)]
    for prefix in (MEMBERS, OFFSETS, PENDING):
        keys += [key for key, _ in await store.scan(prefix + _name(group_id))]
    return [(key, None) for key in keys]


def _name(group_id: str) -> bytes:
    name = group_id.encode()
    return _LENGTH.pack(len(name)) + name


def _split(key: bytes, prefix: bytes) -> tuple[str, bytes]:
    """Return group id, and the rest of the key."""
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
