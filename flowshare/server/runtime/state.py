"""Keys of share-partition state in the `StateStore`, and the numbering of its writes.

A share-partition has one snapshot and the updates made after it, each under its own key in the order of writing:

    s/ <length of group id, 2 bytes> <group id> <topic id, 16 bytes> <partition, 4 bytes> 0x00                snapshot
    s/ …                                                                                  0x01 <number, 8 bytes> update
    s/ …                                                                                  0x02             generation
    s/ …                                                                 0x03 <SHA-256 of a key, 16 bytes> parked key
    s/ …                                                                 0x04 …      a settle (`slots.prepared`)

Every 500 updates (share.coordinator.snapshot.update.records.per.snapshot) a snapshot is written and the updates it
replaces are deleted in the same atomic write, so that a reader never sees one without the other.
"""

from __future__ import annotations

import hashlib
import struct
import uuid
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple

from flowshare.core_errors import StateCorrupt
from flowshare.share.parking import ParkedKey
from flowshare.share.records import decode_state, decode_update, encode_state, encode_update, replay
from flowshare.share.types import PartitionState, PartitionUpdate

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from flowshare.log.base import StateStore
    from flowshare.share.parking import Change
    from flowshare.share.partition import SharePartition

PREFIX: Final = b"s/"
SNAPSHOT: Final = b"\x00"
UPDATE: Final = b"\x01"
GENERATION: Final = b"\x02"
"""Key of the generation of an ordered group: the number of the last load, 8 bytes. It outlives a reset of the
offsets."""
PARKED: Final = b"\x03"
FOREIGN: Final = b"\x04"
"""Key of entries that a storage that settles apart keeps beside the state; they go with the state."""
_PARKED: Final = struct.Struct(">B7q")
"""Format version and the fields of `ParkedKey`; the key follows."""
GROUP_ID_BYTES_MAX: Final = 1_024
"""Longest group id, in bytes; group ids are part of the keys."""
_LENGTH: Final = struct.Struct(">H")
_PARTITION: Final = struct.Struct(">i")
_NUMBER: Final = struct.Struct(">Q")

Write = tuple[bytes, bytes | None]


class ShareKey(NamedTuple):
    """Key of a share-partition: group, topic id, partition."""

    group_id: str
    topic_id: uuid.UUID
    partition: int

    def __str__(self) -> str:
        return f"{self.group_id}:{self.topic_id}:{self.partition}"

    @property
    def prefix(self) -> bytes:
        """Start of all store keys of this share-partition."""
        return partition_head(PREFIX, *self)


def group_prefix(group_id: str) -> bytes:
    """Return the start of all store keys of a group's share-partitions."""
    return group_head(PREFIX, group_id)


def key_of(stored: bytes) -> ShareKey:
    """Return the share-partition that a store key belongs to. Raises: StateCorrupt."""
    return ShareKey(*partition_of(PREFIX, stored))


def group_head(kind: bytes, group_id: str) -> bytes:
    """Return the start of all store keys of this kind of a group's partitions."""
    name = group_id.encode()
    return kind + _LENGTH.pack(len(name)) + name


def partition_head(kind: bytes, group_id: str, topic_id: uuid.UUID, partition: int) -> bytes:
    """Return the start of all store keys of this kind of a group's partition."""
    return group_head(kind, group_id) + topic_id.bytes + _PARTITION.pack(partition)


def partition_of(kind: bytes, stored: bytes) -> tuple[str, uuid.UUID, int]:
    """Return the group id, topic id and partition in a store key of this kind. Raises: StateCorrupt."""
    try:
        (length,) = _LENGTH.unpack_from(stored, len(kind))
        start = len(kind) + _LENGTH.size
        group_id = stored[start : start + length].decode()
        topic_id = uuid.UUID(bytes=stored[start + length : start + length + 16])
        (partition,) = _PARTITION.unpack_from(stored, start + length + 16)
    except (struct.error, ValueError) as error:
        raise StateCorrupt(f"a state key cannot be read: {stored!r}") from error
    return group_id, topic_id, partition


class StoredState(NamedTuple):
    """The stored state of one share-partition: the state with all updates applied, and the updates' numbers.
    generation: number of the last load (0: never loaded in an order). parked: the parked keys."""

    state: PartitionState
    first_number: int
    next_number: int
    generation: int = 0
    parked: Mapping[bytes, ParkedKey] = MappingProxyType({})


async def read_state(store: StateStore, key: ShareKey) -> StoredState | None:
    """Read the state of a share-partition; None if it was never initialised. Raises: StateCorrupt."""
    return stored_in(await store.scan(key.prefix), key)


def stored_in(entries: Sequence[tuple[bytes, bytes]], key: ShareKey) -> StoredState | None:
    """Return a share-partition's state from all entries under its prefix, in the order of their keys. Raises:
    StateCorrupt."""
    prefix = key.prefix
    entries = [entry for entry in entries if not entry[0].startswith(prefix + FOREIGN)]
    if not entries:
        return None
    if entries[0][0] != prefix + SNAPSHOT:
        raise StateCorrupt(f"state of {key} has updates but no snapshot")
    parked = dict(_read_parked(value) for name, value in entries if name.startswith(prefix + PARKED))
    generation = next((_NUMBER.unpack(value)[0] for name, value in entries if name == prefix + GENERATION), 0)
    entries = [entry for entry in entries if entry[0] < prefix + GENERATION]
    numbers = [_NUMBER.unpack(name[len(prefix) + 1 :])[0] for name, _ in entries[1:]]
    state = replay(decode_state(entries[0][1]), [decode_update(value) for _, value in entries[1:]])
    return StoredState(state, numbers[0] if numbers else 0, numbers[-1] + 1 if numbers else 0, generation, parked)


def parked_write(key: ShareKey, change: Change) -> Write:
    """Return the write that stores a change of a parked key."""
    name, parked = change
    at = key.prefix + PARKED + hashlib.sha256(name).digest()[:16]
    return at, None if parked is None else _PARKED.pack(1, *parked) + name


def _read_parked(value: bytes) -> tuple[bytes, ParkedKey]:
    """Decode a parked key. Raises: StateCorrupt."""
    try:
        version, *fields = _PARKED.unpack_from(value)
    except struct.error as error:
        raise StateCorrupt(f"a parked key cannot be read: {error}") from error
    if version != 1:
        raise StateCorrupt(f"a parked key is of version {version}, which this release does not know")
    return value[_PARKED.size :], ParkedKey(*fields)


def generation_write(key: ShareKey, generation: int) -> Write:
    """Return the write that stores `generation` as the last one given out."""
    return key.prefix + GENERATION, _NUMBER.pack(generation)


async def delete_state(store: StateStore, keys: Sequence[ShareKey]) -> list[Write]:
    """Return the writes that remove everything stored of `keys`."""
    return [(name, None) for key in keys for name, _ in await store.scan(key.prefix)]


def outlives(key: ShareKey, name: bytes, *, anew: bool) -> bool:
    """Return True if an entry stays when the state is replaced. The generation always stays, since no fence may come
    again. Parked keys stay unless the state begins anew."""
    kept = (GENERATION,) if anew else (GENERATION, PARKED)
    return name.startswith(tuple(key.prefix + kind for kind in kept))


def initial_writes(key: ShareKey, state: PartitionState) -> list[Write]:
    """Return the writes that make `state` the first state of a share-partition without any."""
    return [(key.prefix + SNAPSHOT, encode_state(state))]


class Journal:
    """Turns the updates of one share-partition into store writes, one write at a time.

    `plan` returns the writes, `done` notes that they are durable; a failed plan is replaced by planning again.
    `snapshot_due` may be set from outside: the next plan then carries the whole state, which repairs the gaps of an
    earlier failed write, and removes the state of records lost by a cut log. updates_max: updates between two
    snapshots.
    """

    def __init__(self, key: ShareKey, stored: StoredState, *, updates_max: int) -> None:
        self.prefix = self._prefix = key.prefix
        """Start of all store keys of the share-partition."""
        self._state_epoch = stored.state.state_epoch
        self.leader_epoch = stored.state.leader_epoch
        self._first = stored.first_number
        self._next = stored.next_number
        self._updates_max = updates_max
        self._planned_first = self._first
        self._planned_snapshot = False
        self.snapshot_due = False

    @staticmethod
    def following(key: ShareKey, stored: StoredState, update: PartitionUpdate) -> list[Write]:
        """Return the writes of one more update of a share-partition that is not loaded."""
        return [(key.prefix + UPDATE + _NUMBER.pack(stored.next_number), encode_update(update))]

    def plan(self, update: PartitionUpdate | None, partition: SharePartition) -> list[Write]:
        """Return the writes for `update`, whose steps must not be applied yet to the state that a snapshot shows."""
        writes: list[Write] = []
        self._planned_first = self._first
        self._planned_snapshot = self.snapshot_due or self._next - self._first >= self._updates_max
        if self._planned_snapshot:
            self.snapshot_due = False  # a snapshot may be due again before this one is written
            writes.append((self._prefix + SNAPSHOT, encode_state(self._whole(partition))))
            # One more than was confirmed: a failed write may be in the store all the same.
            writes.extend((self._update_key(number), None) for number in range(self._first, self._next + 1))
            self._planned_first = self._next
        if update is not None:
            writes.append((self._update_key(self._next), encode_update(update)))
        return writes

    def undone(self) -> None:
        """Note that the last planned writes were refused before anything was stored."""
        self.snapshot_due |= self._planned_snapshot

    def done(self, update: PartitionUpdate | None) -> None:
        """Note that the last planned writes are durable."""
        if self._planned_snapshot:
            self._first = self._planned_first
        if update is not None:
            self._next += 1

    def _update_key(self, number: int) -> bytes:
        return self._prefix + UPDATE + _NUMBER.pack(number)

    def _whole(self, partition: SharePartition) -> PartitionState:
        return PartitionState(
            state_epoch=self._state_epoch,
            leader_epoch=self.leader_epoch,
            log_epoch=partition.log_epoch,
            start_offset=partition.start_offset,
            delivery_complete_count=partition.delivery_complete_count,
            runs=partition.state(),
        )


def merge(updates: Sequence[PartitionUpdate]) -> PartitionUpdate:
    """Merge several updates of one share-partition, in the order of their steps, into one."""
    if len(updates) == 1:
        return updates[0]
    furthest = max(updates, key=lambda update: update.start_offset)
    return PartitionUpdate(
        start_offset=furthest.start_offset,
        delivery_complete_count=furthest.delivery_complete_count,
        runs=tuple(run for update in updates for run in update.runs),
        log_epoch=max(update.log_epoch for update in updates),
    )


def cut(update: PartitionUpdate, end: int) -> PartitionUpdate:
    """Return the part of an unwritten update that still holds after the log was cut at `end`."""
    return PartitionUpdate(
        start_offset=min(update.start_offset, end),
        delivery_complete_count=update.delivery_complete_count if update.start_offset < end else 0,
        runs=tuple(run._replace(last=min(run.last, end - 1)) for run in update.runs if run.first < end),
    )
