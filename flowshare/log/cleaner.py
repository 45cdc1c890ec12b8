"""Compacting the embedded log (Kafka's log cleaner): reads and writes, in pieces.

A pass first reads the part that was never compacted and notes its keys, then goes over the whole log up to there and
writes the rest that `compaction.py` leaves of each batch. Every piece is one write of the store and right by itself:
the records that make others needless lie further behind and are durable. So a pass that is cut short costs only its
time.

Sizes stay right in this way: positions count from the end of the log. The bytes that a piece removes are added to the
position of the log start, and an entry of the time index at the offset where the pass ends keeps that place's position;
it is written with the first piece, since the entries before it stop being right. Index entries of removed batches are
thinned out; those that stay tell times that are too high at worst, which makes a search start earlier.

All functions run in worker threads and raise CorruptBatches, StorageDamaged or StorageError. `Compactor` makes one pass
after the other: reading and thinning out run in a reader thread, the write goes through the writer like all others, and
between two pieces everybody else gets a turn. Each piece is a change of its own in the storage's order of changes, so
that neither the topic goes nor the log start moves under it.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from flowshare.clock import Clock
from flowshare.log import keys
from flowshare.log.base import CorruptBatches, StorageDamaged, UnknownTopic
from flowshare.log.commits import REQUEST_BYTES, CommitQueue
from flowshare.log.compaction import KEYS_MAX, PIECE_BATCHES, PIECE_BYTES, NewestOffsets, Pass, due, young
from flowshare.log.partition import INDEX_BYTES, NO_TIMESTAMP, StoredPartition, damage, walk
from flowshare.log.recent import ReadAhead, TailBudget
from flowshare.log.store import Range, Store, StoreStep, Write
from flowshare.log.topics import CompactionSettings

if TYPE_CHECKING:
    from flowshare.log.storage import BrokerStorage

RANGE_KEYS_MIN: Final = 64
"""Batches in a row from which on one range is deleted instead of each key: ranges slow readers down."""


class DuePass(NamedTuple):
    """A pass that is due: no batch from `first` on was compacted, no batch from `until` on may be."""

    first: int
    until: int


class Spot(NamedTuple):
    """A batch in the log: bytes before it, and the newest timestamp up to and with it, in ms."""

    position: int
    max_timestamp: int


@dataclass(slots=True, kw_only=True)
class Work:
    """A pass under way; `spot` is that of the batch at `until`. Used by one thread at a time."""

    core: Pass
    until: int
    spot: Spot
    index_from: bytes
    since_entry: int = INDEX_BYTES


class Piece(NamedTuple):
    """The result of compacting one piece: the writes to make, and the partition's new values."""

    next_offset: int
    writes: list[Write]
    ranges: list[Range]
    removed_bytes: int
    size: int
    markers_alone: frozenset[int]


@dataclass(slots=True)
class _Thinned:
    """The batches of a piece: (base offset, bytes left) of each, the writes to make, the run of removed ones."""

    left: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    writes: list[Write] = field(default_factory=list[Write])
    ranges: list[Range] = field(default_factory=list[Range])
    run: list[bytes] = field(default_factory=list[bytes])

    def end_run(self) -> None:
        """Delete the batches of the run."""
        if len(self.run) >= RANGE_KEYS_MIN:
            self.ranges.append((self.run[0], self.run[-1] + b"\0"))
        else:
            self.writes += ((key, None) for key in self.run)
        self.run.clear()


def dirty_from(log: StoredPartition) -> tuple[int, int]:
    """Return where the part that was never compacted begins: an offset to walk from, and the first batch's position.

    The batch that holds the log start begins before it, and is the first one that the store has.
    """
    return log.cleaned, max(log.cleaned_position, log.start_position)


def plan_blocking(
    store: Store, log: StoredPartition, settings: CompactionSettings, *, end: int, stable: int, now_ms: int
) -> DuePass | None:
    """Return the due pass, if any; `end` is the log's end, `stable` the base offset of its first unstable batch, or
    `end`."""
    prefix = keys.batches(log.topic_id, log.number)
    final = store.last_before(prefix, keys.at(prefix, end))
    first, position = dirty_from(log)
    oldest = next(walk(store, log, first), None)
    if final is None or oldest is None:
        return None
    first = oldest[0].base_offset
    until = min(stable, keys.offset_of(final[0]))
    if settings.lag_ms_min > 0 and until > first:
        until = _old_until(store, log, settings, first, until, now_ms)
    if until <= first:
        return None
    reached = spot_blocking(store, log, until).position
    turn = due(
        settings,
        dirty_bytes=reached - position,
        total_bytes=reached - log.start_position,
        first_dirty_ms=oldest[0].max_timestamp,
        now_ms=now_ms,
    )
    return DuePass(first, until) if turn else None


def _old_until(
    store: Store, log: StoredPartition, settings: CompactionSettings, first: int, until: int, now_ms: int
) -> int:
    """Return the base offset of the first batch from `first` on that is too young, or `until`."""
    times, start = keys.times(log.topic_id, log.number), first
    for key, _ in store.scan(times, keys.after(times), reverse=True):
        timestamp, offset = keys.time_of(key)
        if offset <= first:
            break
        if offset <= until and not young(settings, timestamp, now_ms):
            start = offset
            break
    for header, _ in walk(store, log, start):
        if header.base_offset >= until or young(settings, header.max_timestamp, now_ms):
            return min(header.base_offset, until)
    return until


def spot_blocking(store: Store, log: StoredPartition, offset: int) -> Spot:
    """Return the place of the batch at `offset`, which was never compacted."""
    times = keys.times(log.topic_id, log.number)
    start, position = dirty_from(log)
    newest = NO_TIMESTAMP
    for key, value in store.scan(times, keys.after(times), reverse=True):
        timestamp, at = keys.time_of(key)
        if at <= offset:
            newest = timestamp
            if at > start:
                start, position = at, keys.unpack(value)
            break
    for header, _ in walk(store, log, start):
        if header.base_offset > offset:
            break
        newest = max(newest, header.max_timestamp)
        position += header.size if header.base_offset < offset else 0
    return Spot(position, newest)


def keys_blocking(store: Store, log: StoredPartition, core: Pass, first: int, until: int) -> tuple[int, bool]:
    """Note the keys of a piece from `first` on; return its end, and True if the pass must end there."""
    size = 0
    for count, (header, records) in enumerate(walk(store, log, first)):
        if header.base_offset >= until:
            break
        if count and (size + header.size > PIECE_BYTES or count == PIECE_BATCHES):
            return header.base_offset, False
        with damage():
            if not core.take(header, records):
                return header.base_offset, True
        size += header.size
    return until, False


def piece_blocking(store: Store, log: StoredPartition, work: Work, first: int) -> Piece:
    """Thin out a piece from `first` on, the last one up to `work.until`."""
    prefix = keys.batches(log.topic_id, log.number)
    thinned, next_offset, size, removed = _Thinned(), work.until, 0, 0
    for count, (header, records) in enumerate(walk(store, log, first)):
        if header.base_offset >= work.until:
            break
        if count and (size + header.size > PIECE_BYTES or count == PIECE_BATCHES):
            next_offset = header.base_offset
            break
        size += header.size
        with damage():
            left = work.core.thin(header, records)
        removed += header.size - len(left or b"")
        key = keys.at(prefix, header.base_offset)
        thinned.left.append((header.base_offset, len(left or b"")))
        if left is None:
            thinned.run.append(key)
            continue
        thinned.end_run()
        if left is not records:
            thinned.writes.append((key, left))
    thinned.end_run()
    alone = frozenset(work.core.markers_alone)
    work.core.markers_alone.clear()
    aborted = keys.aborted(log.topic_id, log.number)
    thinned.writes += [(keys.at(aborted, offset), None) for offset in alone]
    thinned.writes += _thin_index(store, log, work, thinned.left, next_offset)
    thinned.writes += _progress(log, work, next_offset, removed)
    written = sum(len(key) + len(value or b"") for key, value in thinned.writes)
    return Piece(next_offset, thinned.writes, thinned.ranges, removed, written, alone)


def _thin_index(
    store: Store, log: StoredPartition, work: Work, left: Sequence[tuple[int, int]], next_offset: int
) -> list[Write]:
    """Delete index entries before `next_offset` that have too few bytes between them now."""
    times, gone, index = keys.times(log.topic_id, log.number), list[Write](), 0
    for key, _ in store.scan(work.index_from, keys.after(times)):
        offset = keys.time_of(key)[1]
        if offset >= next_offset:
            break
        while index < len(left) and left[index][0] < offset:
            work.since_entry += left[index][1]
            index += 1
        if work.since_entry >= INDEX_BYTES:
            work.since_entry = 0
        else:
            gone.append((key, None))
        work.index_from = key + b"\0"
    work.since_entry += sum(size for _, size in left[index:])
    return gone


def _progress(log: StoredPartition, work: Work, next_offset: int, removed: int) -> list[Write]:
    start_position = log.start_position + removed
    done = next_offset >= work.until
    cleaned, position = (work.until, work.spot.position) if done else (log.cleaned, log.cleaned_position)
    writes: list[Write] = [
        (keys.bounds(log.topic_id, log.number), keys.pack(log.log_start, start_position)),
        (keys.compacted(log.topic_id, log.number), keys.pack(cleaned, position, log.holes_to)),
    ]
    # When the log start has passed the goal meanwhile, the entry would count removed bytes.
    if log.log_start < work.until:
        mark = keys.time_at(keys.times(log.topic_id, log.number), work.spot.max_timestamp, work.until)
        writes.append((mark, keys.pack(work.spot.position)))
    return writes


PASSES_MAX: Final = 100
"""Passes over one partition before other partitions have their turn."""
REST: Final = 1.0
"""Rest after each piece, as a part of its time: compaction leaves half of the interpreter to everybody else."""
T = TypeVar("T")
logger = logging.getLogger(__name__)


@dataclass(eq=False, kw_only=True)
class Compactor:
    """Compacts partitions of one storage, one at a time: there is one map of keys. `find` raises UnknownTopic."""

    store: Store
    commits: CommitQueue
    clock: Clock
    storage: BrokerStorage
    budget: TailBudget
    ahead: ReadAhead
    find: Callable[[str, int], StoredPartition]
    keys_max: int = KEYS_MAX

    def __post_init__(self) -> None:
        self._damaged: set[tuple[uuid.UUID, int]] = set()

    async def compact(self, topic: str, number: int, settings: CompactionSettings) -> None:
        """Compact the partition while a pass is due. Raises: UnknownTopic, StorageError.

        A partition with damaged batches is left alone from then on, as in Kafka.
        """
        log = self.find(topic, number)
        key = (log.topic_id, log.number)
        if key in self._damaged:
            return
        try:
            for _ in range(PASSES_MAX):
                if not await self._pass((topic, number), settings, log):
                    break
        except (CorruptBatches, StorageDamaged) as error:
            self._damaged.add(key)
            logger.error("partition %d of topic %s is not compacted any more: %s", number, topic, error)  # noqa: TRY400

    async def _pass(self, place: tuple[str, int], settings: CompactionSettings, log: StoredPartition) -> bool:
        # The last stable offset as readers see it may lie inside the batch that holds the log start.
        now_ms, end, stable = self.clock.now_ms(), log.end, log.producers.last_stable(0, log.end)
        plan = await self.storage.blocking(
            lambda: plan_blocking(self.store, log, settings, end=end, stable=stable, now_ms=now_ms)
        )
        if plan is None:
            return False
        core = Pass(
            NewestOffsets(self.keys_max),
            log.producers.aborted.between(log.log_start, plan.until),
            now_ms=now_ms,
            delete_retention_ms=settings.delete_retention_ms,
        )
        until = await self._read_keys(log, core, plan)
        spot = await self.storage.blocking(lambda: spot_blocking(self.store, log, until))
        work = Work(core=core, until=until, spot=spot, index_from=keys.times(log.topic_id, log.number))
        log.holes_to = max(log.holes_to, until)
        self.budget.forget(log.tail, until)
        # Not from the log start: the batch that holds it begins before, and is the first one that the store has.
        size, removed, at = 0, 0, 0
        while at < until:
            piece = await self._rested(lambda at=at: self.storage.alone(lambda: self._piece(place, log, work, at)))  # type: ignore[misc]
            at, removed = piece.next_offset, removed + piece.removed_bytes
            size = log.end_position - log.start_position
        logger.info("topic %s partition %d is compacted up to %d: -%d bytes, %d left", *place, until, removed, size)
        return True

    async def _read_keys(self, log: StoredPartition, core: Pass, plan: DuePass) -> int:
        """Note the keys of the part that was never compacted; return the pass's end."""
        at, full = plan.first, False
        while at < plan.until and not full:
            at, full = await self._rested(
                lambda at=at: self.storage.blocking(lambda: keys_blocking(self.store, log, core, at, plan.until))  # type: ignore[misc]
            )
        return at

    async def _piece(self, place: tuple[str, int], log: StoredPartition, work: Work, at: int) -> Piece:
        if self.find(*place) is not log:
            raise UnknownTopic(f"topic {place[0]!r} was made anew")
        piece = await self.storage.blocking(lambda: piece_blocking(self.store, log, work, at))

        def applied() -> None:
            log.start_position += piece.removed_bytes
            log.changes += 1
            if piece.next_offset >= work.until:
                log.cleaned, log.cleaned_position = work.until, work.spot.position
            log.forgotten += log.producers.aborted.remove(piece.markers_alone)
            self.ahead.forget((log.topic_id, log.number))

        await self.commits.submit(StoreStep(piece.writes, piece.ranges, piece.size + REQUEST_BYTES, applied))
        return piece

    async def _rested(self, call: Callable[[], Awaitable[T]]) -> T:
        started = self.clock.monotonic()
        done = await call()
        await self.clock.sleep(REST * (self.clock.monotonic() - started))
        return done
