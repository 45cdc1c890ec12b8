"""Offsets committed for a group: decided, written, then applied; those of a transaction wait for its end.

A decision is `OffsetChange`s, which the caller writes and then hands to `apply`. They may be many and are made on
iteration, by a caller that gives way now and then: an objection to a decision is raised at once, and nothing is applied
before the iteration is over. Decisions of one group are made, written and applied one after another.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from sys import getsizeof
from typing import Final, NamedTuple, cast
from uuid import UUID

from flowshare.core_errors import InvalidProducerEpoch, StateCorrupt
from flowshare.groups.stored import VERSION
from flowshare.sealing import seal, unseal

OFFSET_BYTES: Final = 300
"""The memory of an offset beside its metadata, in bytes, about."""


class OffsetPartition(NamedTuple):
    """A partition of a topic."""

    topic: str
    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Committed:
    """A committed offset: the next record to read, and the commit's other fields."""

    offset: int
    leader_epoch: int = -1
    metadata: str = ""
    commit_ms: int
    expire_ms: int | None = None
    """The time of expiry that the commit asked for (OffsetCommit v2 to v4); None: by the server's retention."""
    topic_id: UUID
    """Id of the topic at the commit: a topic that is made again begins without offsets."""
    order: int = 0
    """Rises with each commit of the group: a transaction's offset does not replace one that was committed later."""


class TransactionalProducer(NamedTuple):
    """A transactional producer."""

    producer_id: int
    epoch: int


class OffsetChange(NamedTuple):
    """One entry that is put (`value`) or removed (None), among the committed ones or a transaction's."""

    partition: OffsetPartition
    value: Committed | None
    producer: TransactionalProducer | None = None


Found = tuple[tuple[str, int], Committed | None, bool]
"""Partition, its committed offset, and True if an open transaction has an offset for it."""


@dataclass(slots=True)
class TransactionOffsets:
    """The offsets that an open transaction has committed so far."""

    epoch: int
    offsets: dict[OffsetPartition, Committed] = field(default_factory=dict[OffsetPartition, Committed])
    doubtful: dict[OffsetPartition, Committed] = field(default_factory=dict[OffsetPartition, Committed])
    """Offsets whose write failed: they count for nothing, but may be stored all the same."""


class Offsets:
    """The committed offsets of one group."""

    def __init__(self) -> None:
        self._committed: dict[OffsetPartition, Committed] = {}
        self._pending: dict[int, TransactionOffsets] = {}
        self._open: dict[OffsetPartition, int] = {}  # transactions with an offset for a partition
        self._order = 0

    def __bool__(self) -> bool:
        return bool(self._committed or self._pending)

    @property
    def committed(self) -> Mapping[OffsetPartition, Committed]:
        """Offsets by partition, without those of open transactions."""
        return self._committed

    @property
    def size(self) -> int:
        """The memory of the offsets in bytes, about."""
        size = _size(self._committed) if self._committed else 0
        for pending in self._pending.values():
            size += _size(pending.offsets) + _size(pending.doubtful)
        return size

    @property
    def producers(self) -> tuple[TransactionalProducer, ...]:
        """The producers whose transactions have offsets here."""
        return tuple(TransactionalProducer(producer_id, one.epoch) for producer_id, one in self._pending.items())

    def growth(
        self, partition: OffsetPartition, value: Committed, producer: TransactionalProducer | None = None
    ) -> int:
        """Return about how many more bytes the offsets take after this commit."""
        there: Mapping[OffsetPartition, Committed] = self._committed
        if producer is not None:
            pending = self._pending.get(producer.producer_id)
            there = {} if pending is None else pending.offsets
        before = there.get(partition)
        held = 0 if before is None else OFFSET_BYTES + getsizeof(before.metadata)
        return OFFSET_BYTES + getsizeof(value.metadata) - held

    def unstable(self, partition: tuple[str, int]) -> bool:
        """True if an open transaction has an offset for the partition."""
        return partition in self._open

    def of(self, partitions: Collection[tuple[str, int]] | None) -> Sequence[Found]:
        """Return the committed offsets of these partitions, or (None) of all partitions that have something committed.
        All are read at one moment, so the call is quick."""
        if partitions is None:
            partitions = self._committed
        committed = cast("Mapping[tuple[str, int], Committed]", self._committed)
        return list(
            zip(partitions, map(committed.get, partitions), map(self._open.__contains__, partitions), strict=True)
        )

    def next_order(self) -> int:
        """Return the `order` of the next commit."""
        self._order += 1
        return self._order

    def commit(
        self, values: Mapping[OffsetPartition, Committed], producer: TransactionalProducer | None = None
    ) -> Iterable[OffsetChange]:
        """Decide a commit, of a transaction if `producer` is given. Raises InvalidProducerEpoch."""
        if producer is not None:
            pending = self._pending.get(producer.producer_id)
            if pending is not None and producer.epoch < pending.epoch:
                raise InvalidProducerEpoch(
                    f"producer {producer.producer_id} is at epoch {pending.epoch}, not {producer.epoch}: "
                    "another process took over its transactional.id"
                )
        return (OffsetChange(partition, value, producer) for partition, value in values.items())

    def complete(
        self,
        producer: TransactionalProducer,
        *,
        committed: bool,
        counts: Callable[[tuple[str, int], Committed], bool] = lambda _partition, _value: True,
    ) -> Iterable[OffsetChange]:
        """Decide the end of a transaction: its offsets count from now on, or are dropped.

        counts: returns False for an offset of a topic that is gone, which is dropped.
        """
        pending = self._pending.get(producer.producer_id)
        if pending is None or pending.epoch > producer.epoch:
            return ()
        ended = TransactionalProducer(producer.producer_id, pending.epoch)
        return self._ended(ended, pending, counts if committed else lambda _partition, _value: False)

    def _ended(
        self,
        producer: TransactionalProducer,
        pending: TransactionOffsets,
        counts: Callable[[tuple[str, int], Committed], bool],
    ) -> Iterator[OffsetChange]:
        for partition, value in pending.offsets.items():
            before = self._committed.get(partition)
            if (before is None or before.order < value.order) and counts(partition, value):
                yield OffsetChange(partition, value)
            yield OffsetChange(partition, None, producer)
        for partition in pending.doubtful.keys() - pending.offsets.keys():
            yield OffsetChange(partition, None, producer)

    def delete(self, partitions: Iterable[OffsetPartition]) -> Iterable[OffsetChange]:
        """Decide to remove committed offsets; an open transaction's for these partitions go with them."""
        gone = set(partitions)
        return self._removal(lambda partition, _: partition in gone)

    def forget_topics(self, exists: Callable[[UUID], bool]) -> Iterable[OffsetChange]:
        """Decide to remove offsets of topics that do not exist any more."""
        return self._removal(lambda _, value: not exists(value.topic_id))

    def clear(self) -> Iterable[OffsetChange]:
        """Decide to remove everything."""
        return self._removal(lambda _partition, _value: True)

    def expire(self, partitions: Iterable[OffsetPartition]) -> Iterable[OffsetChange]:
        """Decide to remove offsets that expired; open transactions are left alone."""
        return (OffsetChange(partition, None) for partition in partitions)

    def apply(self, changes: Iterable[OffsetChange]) -> None:
        """Apply changes that were decided and written, or read from the store."""
        committed, order = self._committed, self._order
        for partition, value, producer in tuple(changes):
            if producer is not None:
                self._apply_pending(partition, value, producer)
            elif value is None:
                committed.pop(partition, None)
            else:
                committed[partition] = value
            if value is not None and value.order > order:
                order = value.order
        self._order = order

    def doubt(self, changes: Iterable[OffsetChange]) -> None:
        """Note that the write of decided changes failed. An open transaction's offsets may be stored all the same, and
        would come back with a restart: the end of the transaction removes them, too."""
        for partition, value, producer in changes:
            if producer is not None and value is not None:
                self._pending_of(producer).doubtful[partition] = value

    def _pending_of(self, producer: TransactionalProducer) -> TransactionOffsets:
        pending = self._pending.get(producer.producer_id)
        if pending is None:
            pending = self._pending[producer.producer_id] = TransactionOffsets(producer.epoch)
        pending.epoch = max(pending.epoch, producer.epoch)
        return pending

    def _apply_pending(
        self, partition: OffsetPartition, value: Committed | None, producer: TransactionalProducer
    ) -> None:
        pending = self._pending_of(producer)
        pending.doubtful.pop(partition, None)
        offsets = pending.offsets
        if value is None:
            if offsets.pop(partition, None) is not None:
                self._close(partition)
        else:
            if partition not in offsets:
                self._open[partition] = self._open.get(partition, 0) + 1
            offsets[partition] = value
        if not offsets and not pending.doubtful:
            del self._pending[producer.producer_id]

    def _close(self, partition: OffsetPartition) -> None:
        left = self._open[partition] - 1
        if left:
            self._open[partition] = left
        else:
            del self._open[partition]

    def _removal(self, goes: Callable[[OffsetPartition, Committed], bool]) -> Iterator[OffsetChange]:
        for partition, value in self._committed.items():
            if goes(partition, value):
                yield OffsetChange(partition, None)
        for producer_id, pending in self._pending.items():
            producer = TransactionalProducer(producer_id, pending.epoch)
            for partition, value in (pending.doubtful | pending.offsets).items():
                if goes(partition, value):
                    yield OffsetChange(partition, None, producer)


def _size(offsets: Mapping[OffsetPartition, Committed]) -> int:
    return OFFSET_BYTES * len(offsets) + sum([getsizeof(value.metadata) for value in offsets.values()])


def encode_offset(value: Committed) -> bytes:
    """Return a committed offset in its stored form."""
    fields = (
        value.offset,
        value.leader_epoch,
        value.metadata,
        value.commit_ms,
        value.expire_ms,
        value.topic_id.hex,
        value.order,
    )
    return seal(json.dumps(fields, separators=(",", ":")).encode(), VERSION)


def decode_offset(data: bytes) -> Committed:
    """Decode a committed offset that `encode_offset` wrote. Raises: StateCorrupt."""
    body = unseal(data, VERSION)
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
        raise StateCorrupt(f"a stored offset cannot be read: {error!r}") from error
