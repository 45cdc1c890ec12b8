"""A share coordinator's shard: the durable states of many share-partitions, fenced by epochs (share-groups.md §5.3).

Every operation decides and returns the record to write; `apply` puts a written record into effect, and a shard is
rebuilt by applying all its records in order. Updates are combined as Kafka does it (`records.combine`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple
from uuid import UUID

from flowshare.share.errors import FencedLeaderEpoch, FencedStateEpoch, InvalidRequest, UnknownTopicOrPartition
from flowshare.share.records import combine
from flowshare.share.types import PartitionState, PartitionUpdate, StateRun


class ShardKey(NamedTuple):
    """A share-partition."""

    group_id: str
    topic_id: UUID | None
    partition: int


class ShardRecord(NamedTuple):
    """What is written: a snapshot, an update, or a tombstone (None)."""

    key: ShardKey
    value: PartitionState | PartitionUpdate | None
    snapshot_epoch: int = 0
    """Rises with every snapshot of the key; an update carries that of the snapshot it is based on."""
    leader_epoch: int = 0
    written_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entry:
    state: PartitionState
    snapshot_epoch: int
    updates: int
    """Since the last snapshot."""
    written_ms: int


class StateShard:
    """States by key. `topics`: topic id -> number of partitions of the topics that exist; None: not checked.

    updates_max: updates after which the next write is a snapshot (0: every write).
    cold_ms: a key not written for this long gets a snapshot from `snapshot_cold`.
    """

    def __init__(
        self, *, updates_max: int = 500, cold_ms: int = 300_000, topics: Mapping[UUID, int] | None = None
    ) -> None:
        self.updates_max = updates_max
        self.cold_ms = cold_ms
        self.topics = topics
        self._entries: dict[ShardKey, _Entry] = {}
        self._leader_epochs: dict[ShardKey, int] = {}

    def initialize(self, key: ShardKey, *, state_epoch: int, start_offset: int, now_ms: int = 0) -> ShardRecord:
        """Start a key anew at an offset (−1: not resolved yet), whatever it held.

        Raises InvalidRequest, FencedStateEpoch, UnknownTopicOrPartition.
        """
        _check_key(key)
        entry = self._entries.get(key)
        if entry is not None and state_epoch < entry.state.state_epoch:
            raise FencedStateEpoch(f"state epoch {state_epoch} is below {entry.state.state_epoch}")
        self._check_topic(key)
        state = PartitionState(
            state_epoch=state_epoch, leader_epoch=self._leader_epochs.get(key, 0), start_offset=start_offset
        )
        return ShardRecord(key, state, 0 if entry is None else entry.snapshot_epoch + 1, state.leader_epoch, now_ms)

    def read(self, key: ShardKey, *, leader_epoch: int, now_ms: int = 0) -> tuple[PartitionState, ShardRecord | None]:
        """The state for a new leader, and the record that fences the leaders before it (None: nothing new).

        Raises InvalidRequest, FencedLeaderEpoch, UnknownTopicOrPartition.
        """
        entry = self._find(key)
        self._check_leader(key, leader_epoch)
        self._check_topic(key)
        if leader_epoch == self._leader_epochs.get(key):
            return entry.state, None
        mark = PartitionUpdate(start_offset=-1, delivery_complete_count=entry.state.delivery_complete_count)
        state = replace(entry.state, leader_epoch=leader_epoch)
        return state, ShardRecord(key, mark, entry.snapshot_epoch, leader_epoch, now_ms)

    def write(
        self,
        key: ShardKey,
        *,
        state_epoch: int,
        leader_epoch: int,
        start_offset: int,
        delivery_complete_count: int,
        runs: Sequence[StateRun],
        now_ms: int = 0,
    ) -> ShardRecord:
        """Take a leader's changes: an update, or a snapshot when it is time for one.

        The start offset never goes back. Raises InvalidRequest, FencedLeaderEpoch, FencedStateEpoch,
        UnknownTopicOrPartition.
        """
        entry = self._find(key)
        if state_epoch < 0:
            raise InvalidRequest(f"state epoch {state_epoch} is negative")
        self._check_leader(key, leader_epoch)
        if state_epoch < entry.state.state_epoch:
            raise FencedStateEpoch(f"state epoch {state_epoch} is below {entry.state.state_epoch}")
        self._check_topic(key)
        update = PartitionUpdate(
            start_offset=start_offset, delivery_complete_count=delivery_complete_count, runs=tuple(runs)
        )
        if entry.updates < self.updates_max:
            return ShardRecord(key, update, entry.snapshot_epoch, leader_epoch, now_ms)
        state = replace(_updated(entry.state, update), leader_epoch=leader_epoch)
        return ShardRecord(key, state, entry.snapshot_epoch + 1, leader_epoch, now_ms)

    def state(self, key: ShardKey) -> PartitionState | None:
        """What a key holds, whoever asks; None for one never initialised."""
        entry = self._entries.get(key)
        return None if entry is None else entry.state

    def summary(self, key: ShardKey) -> tuple[int, int]:
        """Start offset and delivery-complete count, −1 and −1 for a key never initialised. Raises InvalidRequest."""
        _check_key(key)
        entry = self._entries.get(key)
        return (-1, -1) if entry is None else (entry.state.start_offset, entry.state.delivery_complete_count)

    def delete(self, key: ShardKey) -> ShardRecord | None:
        """The tombstone; None, which is success, for a key never initialised. Raises InvalidRequest."""
        _check_key(key)
        return ShardRecord(key, None) if key in self._entries else None

    def topic_deleted(self, topic_id: UUID) -> tuple[ShardRecord, ...]:
        """Tombstones for all keys of a topic."""
        return tuple(ShardRecord(key, None) for key in self._entries if key.topic_id == topic_id)

    def snapshot_cold(self, now_ms: int) -> tuple[ShardRecord, ...]:
        """Snapshots of keys with updates that are not written any more, so that the log before them can go.

        None while no key is active: then nothing grows.
        """
        border = now_ms - self.cold_ms
        if all(entry.written_ms <= border for entry in self._entries.values()):
            return ()
        return tuple(
            ShardRecord(key, entry.state, entry.snapshot_epoch + 1, entry.state.leader_epoch, entry.written_ms)
            for key, entry in self._entries.items()
            if entry.updates and entry.written_ms <= border
        )

    def apply(self, record: ShardRecord) -> None:
        """Put a written record into effect. An update of a key without snapshot is what is left of a deleted one."""
        key, value = record.key, record.value
        if value is None:
            self._entries.pop(key, None)
            self._leader_epochs.pop(key, None)
            return
        entry = self._entries.get(key)
        if isinstance(value, PartitionState):
            updates = 0
        elif entry is None:
            return
        else:
            updates = entry.updates + 1
            value = _updated(entry.state, value)
        leader_epoch = max(record.leader_epoch, self._leader_epochs.get(key, 0))
        self._leader_epochs[key] = leader_epoch
        self._entries[key] = _Entry(
            state=replace(value, leader_epoch=leader_epoch),
            snapshot_epoch=record.snapshot_epoch,
            updates=updates,
            written_ms=record.written_ms,
        )

    def _find(self, key: ShardKey) -> _Entry:
        _check_key(key)
        entry = self._entries.get(key)
        if entry is None:
            raise InvalidRequest(
                f"share-partition {key.topic_id}-{key.partition} of {key.group_id} was not initialised"
            )
        return entry

    def _check_leader(self, key: ShardKey, leader_epoch: int) -> None:
        if leader_epoch < 0:
            raise InvalidRequest(f"leader epoch {leader_epoch} is negative")
        known = self._leader_epochs.get(key, 0)
        if leader_epoch < known:
            raise FencedLeaderEpoch(f"leader epoch {leader_epoch} is below {known}")

    def _check_topic(self, key: ShardKey) -> None:
        if self.topics is None:
            return
        assert key.topic_id is not None
        if key.partition >= self.topics.get(key.topic_id, 0):
            raise UnknownTopicOrPartition(f"there is no partition {key.partition} of topic {key.topic_id}")


def _check_key(key: ShardKey) -> None:
    if key.topic_id is None or key.partition < 0 or not key.group_id:
        raise InvalidRequest("group id, topic id and partition must be given")


def _updated(state: PartitionState, update: PartitionUpdate) -> PartitionState:
    """The state after an update; one whose start offset is behind changes neither start offset nor count."""
    start = max(state.start_offset, update.start_offset)
    complete = state.delivery_complete_count
    if update.start_offset > state.start_offset:
        complete = update.delivery_complete_count
    elif update.start_offset == state.start_offset or update.start_offset == -1:
        complete = max(complete, update.delivery_complete_count)
    runs = combine(state.runs, update.runs, max(start, 0))
    return replace(state, start_offset=start, delivery_complete_count=complete, runs=runs)
