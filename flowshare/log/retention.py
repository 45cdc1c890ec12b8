"""Retention: a log's due start, the deletions for it, and the tasks that check it.

The tasks, one of them for compaction, run every `INTERVAL_S` on the storage's clock; the storage decides on the work. A
task starts with the first topic that has a setting for it, so that a storage without such topics has no timer.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from itertools import islice
from typing import Final, NamedTuple

from flowshare.clock import Clock
from flowshare.log import keys
from flowshare.log.base import LogOffsets, OffsetOutOfRange
from flowshare.log.partition import StoredPartition, header_of, walk
from flowshare.log.store import Range, Store, Write
from flowshare.log.topics import TopicSettings
from flowshare.tasks import cancelled

INTERVAL_S: Final = 30.0
logger = logging.getLogger(__name__)


class SweepTask:
    """Calls `sweep` at each interval until closed; a failed sweep is logged and tried again at the next."""

    def __init__(self, clock: Clock, sweep: Callable[[], Awaitable[None]], failed: str) -> None:
        """`failed`: the log's text for a failed sweep."""
        self._clock = clock
        self._failed = failed
        self._sweep = sweep
        self._task: asyncio.Task[None] | None = None

    def ensure(self) -> None:
        """Start the task unless it runs."""
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run(), name="flowshare-sweep")

    async def close(self) -> None:
        """Stop; a sweep under way is cut short."""
        task, self._task = self._task, None
        await cancelled(task)

    async def _run(self) -> None:
        while True:
            await self._clock.sleep(INTERVAL_S)
            try:
                await self._sweep()
            except Exception:
                logger.exception("%s; next try in %g s", self._failed, INTERVAL_S)


INDEX_ENTRIES_MAX: Final = 20_000
"""Index entries that one retention step looks at: more than 1 GiB of records."""
STEP_BYTES: Final = 64 * 1024 * 1024
"""Bytes that a step walks through where the index does not help: a compacted log, or times far ahead."""


class Cut(NamedTuple):
    """A move of the log start: the deletions and the new bounds."""

    log_start: int
    start_position: int
    ranges: list[Range]
    writes: list[Write]


def check_cut(before: int, offsets: LogOffsets) -> int:
    """Return the new log start when records before `before` (−1: all) are deleted. Raises: OffsetOutOfRange."""
    if before == -1:
        return offsets.high_watermark
    if not 0 <= before <= offsets.high_watermark:
        raise OffsetOutOfRange(f"records before {before} cannot be deleted: the log ends at {offsets.high_watermark}")
    return max(before, offsets.log_start)


def cut_blocking(store: Store, log: StoredPartition, before: int) -> Cut:
    """Return the changes that make the log start at `before`.

    Raises: CorruptBatches, StorageDamaged, StorageError.
    """
    prefix, times = keys.batches(log.topic_id, log.number), keys.times(log.topic_id, log.number)
    holder = store.last_before(prefix, keys.at(prefix, before + 1))
    keep = before
    if holder is not None:
        base = keys.offset_of(holder[0])
        keep = base if header_of(log.number, base, holder[1]).last_offset >= before else before
    known_at, known, last_cut = 0, log.start_position, times
    for key, value in store.scan(times, keys.after(times)):
        offset = keys.time_of(key)[1]
        if offset > keep:
            break
        if offset >= log.holes_to:  # bytes compacted before it are not counted in its position
            known_at, known = offset, keys.unpack(value)
        if offset < keep:
            last_cut = key + b"\0"
    start_position = known + _bytes_between(store, log, known_at, keep)
    aborted = keys.aborted(log.topic_id, log.number)
    ranges = [(prefix, keys.at(prefix, keep)), (times, last_cut), (aborted, keys.at(aborted, before))]
    bounds = (keys.bounds(log.topic_id, log.number), keys.pack(before, start_position))
    return Cut(before, start_position, [span for span in ranges if span[0] < span[1]], [bounds])


def _bytes_between(store: Store, log: StoredPartition, from_offset: int, keep: int) -> int:
    size = 0
    for header, _ in walk(store, log, from_offset):
        if header.base_offset >= keep:
            break
        size += header.size
    return size


def kept_from_blocking(
    store: Store, log: StoredPartition, settings: TopicSettings, position: int, end: int, now_ms: int
) -> int:
    """Return the log start that retention asks for; by size the last batch always stays.

    Raises: CorruptBatches, StorageDamaged, StorageError.
    """

    def over(at: int, last: int) -> bool:
        return 0 <= settings.retention_bytes <= position - at and last + 1 < end

    def old(timestamp: int) -> bool:  # batches without timestamps never are
        return settings.retention_ms >= 0 and 0 <= timestamp < now_ms - settings.retention_ms

    start, at, left = 0, log.start_position, STEP_BYTES
    if log.log_start >= log.holes_to:  # else it is walked through: the index does not know the size of the rest
        for timestamp, offset, place in _index(store, log):
            # It stands for everything before its batch: that may go when the batch itself is old or over.
            if offset > log.log_start and not (over(place, offset - 1) or old(timestamp)):
                break
            start, at = offset, place
    for header, _ in walk(store, log, start):
        if header.base_offset >= end or left < 0:
            break
        at, left = at + header.size, left - header.size
        if over(at, header.last_offset) or old(header.max_timestamp):
            start = header.last_offset + 1
        elif header.max_timestamp <= now_ms + settings.timestamp_after_max_ms:
            break
        # Else the batch is older than the check of timestamps: it says nothing of its age, and goes with the batches
        # behind it.
    return start


def _index(store: Store, log: StoredPartition) -> Iterator[tuple[int, int, int]]:
    """Yield largest timestamp so far, offset and position of the first entries of the index."""
    times = keys.times(log.topic_id, log.number)
    for key, value in islice(store.scan(times, keys.after(times)), INDEX_ENTRIES_MAX):
        yield (*keys.time_of(key), keys.unpack(value))
