"""Offsets committed for a group: decided, written, then applied; those of a transaction wait for its end.

A decision is a tuple of `Change`s, which the caller writes and then hands to `apply`. Decisions of one group are made,
written and applied one after another.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple
from uuid import UUID

from flowshare.groups.errors import GroupStateCorrupt, InvalidProducerEpoch
from flowshare.groups.stored import seal, unseal


class Partition(NamedTuple):
    """A partition of a topic."""

    topic: str
    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Committed:
    """A committed offset: the next record to read, and what came with it."""

    offset: int
    leader_epoch: int = -1
    metadata: str = ""
    commit_ms: int
    expire_ms: int | None = None
    """When it expires by the commit's own wish (OffsetCommit v2 to v4); None: as the server's retention says."""
    topic_id: UUID
    """Of the topic as it was: a topic that is made again begins without offsets."""
    order: int = 0
    """Rises with each commit of the group: a transaction's offset does not replace one that was committed later."""


class Producer(NamedTuple):
    """A transactional producer."""

    producer_id: int
    epoch: int


class Change(NamedTuple):
    """One entry that is put (`value`) or removed (None), among the committed ones or a transaction's."""

    partition: Partition
    value: Committed | None
    producer: Producer | None = None


@dataclass(slots=True)
class Pending:
    """What a transaction has committed so far."""

    epoch: int
    offsets: dict[Partition, Committed] = field(default_factory=dict[Partition, Committed])


class Offsets:
    """The committed offsets of one group."""

    def __init__(self) -> None:
        self._committed: dict[Partition, Committed] = {}
        self._pending: dict[int, Pending] = {}
        self._order = 0

    def __bool__(self) -> bool:
        return bool(self._committed or self._pending)

    @property
    def committed(self) -> Mapping[Partition, Committed]:
        """Offsets by partition, without those of open transactions."""
        return self._committed

    def unstable(self, partition: Partition) -> bool:
        """Whether an open transaction has an offset for the partition."""
        return any(partition in pending.offsets for pending in self._pending.values())

    def next_order(self) -> int:
        """The `order` of the next commit."""
        self._order += 1
        return self._order

    def commit(self, values: Mapping[Partition, Committed], producer: Producer | None = None) -> tuple[Change, ...]:
        """Decide a commit, of a transaction if `producer` is given. Raises InvalidProducerEpoch."""
        if producer is not None:
            pending = self._pending.get(producer.producer_id)
            if pending is not None and producer.epoch < pending.epoch:
                raise InvalidProducerEpoch(
                    f"producer {producer.producer_id} is at epoch {pending.epoch}, not {producer.epoch}: "
                    "another process took over its transactional.id"
                )
        return tuple(Change(partition, value, producer) for partition, value in values.items())

    def complete(self, producer: Producer, *, committed: bool) -> tuple[Change, ...]:
        """Decide the end of a transaction: its offsets count from now on, or never did."""
        pending = self._pending.get(producer.producer_id)
        if pending is None or pending.epoch > producer.epoch:
            return ()
        ended = Producer(producer.producer_id, pending.epoch)
        changes: list[Change] = []
        for partition, value in pending.offsets.items():
            before = self._committed.get(partition)
            if committed and (before is None or before.order < value.order):
                changes.append(Change(partition, value))
            changes.append(Change(partition, None, ended))
        return tuple(changes)

    def delete(self, partitions: Iterable[Partition]) -> tuple[Change, ...]:
        """Decide to remove committed offsets; an open transaction's for these partitions go with them."""
        gone = set(partitions)
        return self._removal(lambda partition, _: partition in gone)

    def forget_topics(self, exists: Callable[[UUID], bool]) -> tuple[Change, ...]:
        """Decide to remove what belongs to topics that do not exist any more."""
        return self._removal(lambda _, value: not exists(value.topic_id))

    def clear(self) -> tuple[Change, ...]:
        """Decide to remove everything."""
        return self._removal(lambda _partition, _value: True)

    def expire(self, partitions: Iterable[Partition]) -> tuple[Change, ...]:
        """Decide to remove offsets that expired; open transactions are left alone."""
        return tuple(Change(partition, None) for partition in partitions)

    def apply(self, changes: Iterable[Change]) -> None:
        """Do what was decided and written, or read from the store."""
        for partition, value, producer in changes:
            if producer is None:
                _put(self._committed, partition, value)
            else:
                self._apply_pending(partition, value, producer)
            if value is not None:
                self._order = max(self._order, value.order)

    def _apply_pending(self, partition: Partition, value: Committed | None, producer: Producer) -> None:
        pending = self._pending.setdefault(producer.producer_id, Pending(producer.epoch))
        pending.epoch = max(pending.epoch, producer.epoch)
        _put(pending.offsets, partition, value)
        if not pending.offsets:
            del self._pending[producer.producer_id]

    def _removal(self, goes: Callable[[Partition, Committed], bool]) -> tuple[Change, ...]:
        changes = [Change(partition, None) for partition, value in self._committed.items() if goes(partition, value)]
        for producer_id, pending in self._pending.items():
            producer = Producer(producer_id, pending.epoch)
            changes += [
                Change(partition, None, producer) for partition, v in pending.offsets.items() if goes(partition, v)
            ]
        return tuple(changes)


def _put(offsets: dict[Partition, Committed], partition: Partition, value: Committed | None) -> None:
    if value is None:
        offsets.pop(partition, None)
    else:
        offsets[partition] = value


def encode_offset(value: Committed) -> bytes:
    """A committed offset as it is stored."""
    fields = (
        value.offset,
        value.leader_epoch,
        value.metadata,
        value.commit_ms,
        value.expire_ms,
        value.topic_id.hex,
        value.order,
    )
    return seal(json.dumps(fields, separators=(",", ":")).encode())


def decode_offset(data: bytes) -> Committed:
    """What `encode_offset` wrote. Raises GroupStateCorrupt."""
    body = unseal(data)
    try:
        offset, leader_epoch, metadata, commit_ms, expire_ms, topic_id, order = json.loads(body)
        return Committed(
            offset=offset,
            leader_epoch=leader_epoch,
            metadata=metadata,
            commit_ms=commit_ms,
            expire_ms=expire_ms,
            topic_id=UUID(hex=topic_id),
            order=order,
        )
    except (ValueError, TypeError, AttributeError) as error:
        raise GroupStateCorrupt(f"a stored offset cannot be read: {error!r}") from error
