"""Loading a share-partition from the store, and the first state of one that has none.

A share-partition without state starts by share.auto.offset.reset; the offset found is written at once, so that a group
that reads but never acknowledges does not start anew after a restart (SG-2.2). Records acquired by members that are
gone are available again, with their delivery count; members that are still expected keep theirs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from flowshare.protocol.key_hash import name_hash
from flowshare.server.runtime.settled import follow_settled
from flowshare.server.runtime.state import (
    Journal,
    ShareKey,
    StoredState,
    Write,
    generation_write,
    initial_writes,
    parked_write,
    read_state,
)
from flowshare.server.share.partition_log import cut, kept
from flowshare.share.parking import Parking
from flowshare.share.partition import SharePartition
from flowshare.share.types import PartitionState

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Mapping

    from flowshare.clock import Clock
    from flowshare.log.base import Storage, Topic
    from flowshare.server.share.partition_log import CuttableLog
    from flowshare.server.share.stats import Stats
    from flowshare.share.config import GroupConfig
    from flowshare.share.parking import ParkedKey

UNRESOLVED = -1
"""A start offset still to be found by share.auto.offset.reset."""


class LoadedPartition(NamedTuple):
    """A share-partition with the journal that goes on writing its state.

    generation: in an ordered group: higher than that of any load before, and durable; 0: no order. parked: the parked
    keys.
    """

    partition: SharePartition
    journal: Journal
    generation: int
    parked: Mapping[bytes, ParkedKey]


class Loader:
    """Reads and initialises share-partition state."""

    def __init__(
        self, storage: Storage, clock: Clock, *, updates_max: int, stats: Stats, kafka: CuttableLog | None = None
    ) -> None:
        self._storage = storage
        self._clock = clock
        self._updates_max = updates_max
        self._stats = stats
        self._kafka = kafka

    async def load(
        self,
        key: ShareKey,
        topic: Topic,
        config: GroupConfig,
        *,
        living: Callable[[], Container[str]],
        gone: Container[str] = (),
    ) -> LoadedPartition:
        """Load a share-partition; one without state, or with an unresolved start, is initialised first.

        living: called when the state is read; returns the members that keep their acquired records. gone: members whose
        processes are known to have ended. Records that the log has lost with one of Kafka's leaders are forgotten.

        Raises: StateCorrupt, LogError
        """
        await follow_settled(self._storage, key)
        stored = await read_state(self._storage, key)
        if stored is None or stored.state.start_offset == UNRESOLVED:
            epoch = 0 if stored is None else stored.state.state_epoch
            stored = StoredState(await self.first_state(topic, key.partition, config, state_epoch=epoch), 0, 0)
            await self._storage.write(initial_writes(key, stored.state))
        end, log_epoch = await self._kept(topic, key.partition, stored.state)
        partition = SharePartition(
            start_offset=stored.state.start_offset,
            limits=config.limits(has_parked=bool(stored.parked)),
            runs=stored.state.runs,
            living=living(),
            gone=gone,
            now_ms=self._clock.steady_ms(),
            log_epoch=stored.state.log_epoch,
            ordered=bool(config.key_order),
        )
        journal = Journal(key, stored, updates_max=self._updates_max)
        where = f"group={key.group_id} topic={topic.name} partition={key.partition}"
        parked = stored.parked
        if cut(partition, end, log_epoch, stats=self._stats, where=where) is not None:
            parked = await self._replays_cut(key, parked, end)
            journal.snapshot_due = True  # nothing less tells it; until it is written, the next one finds it out again
        log_start = self._storage.offsets(topic.name, key.partition).log_start
        if log_start > partition.start_offset:
            partition.move_log_start(log_start)
        generation = await self._generation(key, stored.generation) if config.key_order else 0
        return LoadedPartition(partition, journal, generation, parked)

    async def _replays_cut(
        self, key: ShareKey, parked: Mapping[bytes, ParkedKey], end: int
    ) -> Mapping[bytes, ParkedKey]:
        """Return parked keys without replays whose record was lost with the log's end; written before the cut is."""
        changes = Parking(name_hash, parked).cut(end)
        if not changes:
            return parked
        await self._storage.write([parked_write(key, change) for change in changes])
        return {name: one for name, one in {**parked, **dict(changes)}.items() if one is not None}

    async def _generation(self, key: ShareKey, last: int) -> int:
        """Return the next generation: the time in ms, so that it rises even without the stored one, but above the
        last."""
        generation = max(last + 1, self._clock.now_ms())
        await self._storage.write([generation_write(key, generation)])
        return generation

    async def _kept(self, topic: Topic, partition: int, state: PartitionState) -> tuple[int, int]:
        """Return the offset up to which acquired records are still in the log, and its leader epoch. Raises:
        LogError."""
        end = max(state.start_offset, state.runs[-1].last + 1 if state.runs else 0)
        if self._kafka is None or state.log_epoch < 0:
            return end, state.log_epoch
        return await kept(self._kafka, topic.name, partition, end=end, epoch=state.log_epoch)

    async def first_state(
        self, topic: Topic, partition: int, config: GroupConfig, *, state_epoch: int, from_start: bool = False
    ) -> PartitionState:
        """Return the state of a share-partition that begins now.

        `from_start`: at the log's start for any config, for partitions added to a topic that the group reads already
        (SG-2.3). Raises: UnknownTopic
        """
        start = await self._start(topic, partition, config, from_start=from_start)
        return PartitionState(state_epoch=state_epoch, start_offset=start)

    async def initialise(
        self, key: ShareKey, topic: Topic, config: GroupConfig, *, state_epoch: int, from_start: bool
    ) -> list[Write]:
        """Return the writes that give a share-partition its first state; none if it has one. Writes nothing itself."""
        if await read_state(self._storage, key) is not None:
            return []
        state = await self.first_state(topic, key.partition, config, state_epoch=state_epoch, from_start=from_start)
        return initial_writes(key, state)

    async def _start(self, topic: Topic, partition: int, config: GroupConfig, *, from_start: bool) -> int:
        bounds = await self._storage.bounds(topic.name, partition)
        if from_start or config.auto_offset_reset == "earliest":
            return bounds.log_start
        duration_ms = config.reset_duration_ms
        if duration_ms is None:
            return bounds.high_watermark
        found = await self._storage.offset_for_timestamp(topic.name, partition, self._clock.now_ms() - duration_ms)
        # No record that young: brokers refuse to fetch until there is one; the next one is young enough.
        return bounds.high_watermark if found is None else found[0]
