"""Compacting the embedded log: one pass after the other, each in pieces between which everybody else gets a turn.

Reading and thinning out run in a reader thread, the write goes through the writer like all others. Each piece is a
change of its own in the storage's order of changes, so that neither the topic goes nor the log start moves under it.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Awaitable, Callable, Coroutine
from typing import Final, Protocol, TypeVar

from flowshare.clock import Clock
from flowshare.log import keys
from flowshare.log.base import CorruptRecords, StorageDamaged, UnknownTopic
from flowshare.log.cleaning import Piece, Plan, Work, keys_blocking, piece_blocking, plan_blocking, spot_blocking
from flowshare.log.commits import Commits
from flowshare.log.compaction import KEYS_MAX, NewestOffsets, Pass
from flowshare.log.partition import Partition
from flowshare.log.readahead import ReadAhead
from flowshare.log.store import Step, Store
from flowshare.log.tail import TailBudget
from flowshare.log.topics import CompactionSettings
from flowshare.log.writer import REQUEST_BYTES

PASSES_MAX: Final = 100
"""Passes over one partition before the others' turn."""
REST: Final = 1.0
"""Rest after each piece, as a part of the time it took: compaction leaves half of the interpreter to everybody else."""
T = TypeVar("T")
logger = logging.getLogger(__name__)


class Surroundings(Protocol):
    """What compaction needs of the storage it is part of."""

    async def blocking(self, call: Callable[[], T]) -> T:
        """Run in a reader thread."""
        ...

    async def alone(self, change: Callable[[], Coroutine[None, None, T]]) -> T:
        """Run in turn with other changes of topics and log starts."""
        ...


class Compactor:
    """Compacts partitions of one storage, one at a time: there is one map of keys."""

    def __init__(
        self,
        store: Store,
        commits: Commits,
        clock: Clock,
        around: Surroundings,
        *,
        budget: TailBudget,
        ahead: ReadAhead,
        find: Callable[[str, int], Partition],
        keys_max: int = KEYS_MAX,
    ) -> None:
        """`find` raises UnknownTopic."""
        self._store = store
        self._commits = commits
        self._clock = clock
        self._around = around
        self._budget = budget
        self._ahead = ahead
        self._find = find
        self._keys_max = keys_max
        self._damaged: set[tuple[uuid.UUID, int]] = set()

    async def compact(self, topic: str, number: int, settings: CompactionSettings) -> None:
        """Compact the partition for as long as its turn comes. Raises: UnknownTopic, StorageError.

        A partition with damaged batches is left alone from then on, as Kafka does.
        """
        log = self._find(topic, number)
        key = (log.topic_id, log.number)
        if key in self._damaged:
            return
        try:
            for _ in range(PASSES_MAX):
                if not await self._pass((topic, number), settings, log):
                    break
        except (CorruptRecords, StorageDamaged) as error:
            self._damaged.add(key)
            logger.error("partition %d of topic %s is not compacted any more: %s", number, topic, error)  # noqa: TRY400

    async def _pass(self, place: tuple[str, int], settings: CompactionSettings, log: Partition) -> bool:
        now_ms, offsets = self._clock.now_ms(), log.offsets()
        end, stable = offsets.high_watermark, offsets.last_stable
        plan = await self._around.blocking(
            lambda: plan_blocking(self._store, log, settings, end=end, stable=stable, now_ms=now_ms)
        )
        if plan is None:
            return False
        core = Pass(
            NewestOffsets(self._keys_max),
            log.producers.aborted.between(log.log_start, plan.until),
            now_ms=now_ms,
            delete_retention_ms=settings.delete_retention_ms,
        )
        until = await self._read_keys(log, core, plan)
        spot = await self._around.blocking(lambda: spot_blocking(self._store, log, until))
        work = Work(core=core, until=until, spot=spot, index_from=keys.times(log.topic_id, log.number))
        log.holes_to = max(log.holes_to, until)
        self._budget.forget(log.tail, until)
        size, removed, at = 0, 0, log.log_start
        while at < until:
            piece = await self._rested(lambda at=at: self._around.alone(lambda: self._piece(place, log, work, at)))  # type: ignore[misc]
            at, removed = piece.next_offset, removed + piece.removed_bytes
            size = log.end_position - log.start_position
        logger.info("topic %s partition %d is compacted up to %d: -%d bytes, %d left", *place, until, removed, size)
        return True

    async def _read_keys(self, log: Partition, core: Pass, plan: Plan) -> int:
        """Note the keys of what was never compacted; where the pass ends."""
        at, full = plan.first, False
        while at < plan.until and not full:
            at, full = await self._rested(
                lambda at=at: self._around.blocking(lambda: keys_blocking(self._store, log, core, at, plan.until))  # type: ignore[misc]
            )
        return at

    async def _piece(self, place: tuple[str, int], log: Partition, work: Work, at: int) -> Piece:
        if self._find(*place) is not log:
            raise UnknownTopic(f"topic {place[0]!r} was made anew")
        first = max(at, log.log_start)
        piece = await self._around.blocking(lambda: piece_blocking(self._store, log, work, first))

        def applied() -> None:
            log.start_position += piece.removed_bytes
            log.changes += 1
            if piece.next_offset >= work.until:
                log.cleaned, log.cleaned_position = work.until, work.spot.position
            log.forgotten += log.producers.aborted.remove(piece.markers_alone)
            self._ahead.forget((log.topic_id, log.number))

        await self._commits.submit(Step(piece.writes, piece.ranges), piece.size + REQUEST_BYTES, applied)
        return piece

    async def _rested(self, call: Callable[[], Awaitable[T]]) -> T:
        started = self._clock.monotonic()
        done = await call()
        await self._clock.sleep(REST * (self._clock.monotonic() - started))
        return done
