"""The choice of offsets for a member: docs/share-groups.md, SG-5 and the throttling of SG-6.

One `_Walk` is one acquire. It goes from one acquirable offset to the next, batch by batch: a batch in the window is
taken again, whole or offset by offset; holes that a reload left, and offsets past the window, are taken new. Batches
without an acquirable offset are skipped without being looked at, so a long window costs a scan of memory only (and,
unlike in Kafka, a batch that another member holds never throttles).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from flowshare.share.state import Event, step
from flowshare.share.types import (
    ACQUIRED,
    ARCHIVED,
    AVAILABLE,
    DELAYED,
    AcquiredRange,
    AcquireMode,
    Limits,
    LogBatch,
    PartitionUpdate,
    RecordState,
    StateRun,
)
from flowshare.share.window import Window

HOLE_MAX: Final = 1 << 20
"""The most offsets that may be missing in the log between two acquires; past more, an acquire waits until the window is
empty, because the window holds bytes for them."""

BATCH_MAX: Final = 200_000
"""The size, in offsets, of the largest log batch that an acquire takes whole past its limits. A larger batch is handed
out in parts, as far as the limits go (SG-4.5): its header is not trusted."""


class Acquisition(NamedTuple):
    """The result of an acquire: `ranges` for the member, ascending; `update` to be stored (None: nothing changed)."""

    ranges: tuple[AcquiredRange, ...]
    update: PartitionUpdate | None


NOTHING: Final = Acquisition((), None)


class Budget(NamedTuple):
    """The limits of one acquire: `records` in all, `room` of them past the window, and none past offset `last`."""

    records: int
    room: int
    last: int


class Read(NamedTuple):
    """The batches that were read of the log, and the offset at which reading began. only_new: acquire only records that
    were never delivered."""

    fetch_offset: int
    batches: Sequence[LogBatch]
    aborted: Sequence[LogBatch]
    only_new: bool


def acquire(
    window: Window,
    limits: Limits,
    member_id: str,
    read: Read,
    *,
    mode: AcquireMode,
    records_max: int,
    batch_size: int,
    now_ms: int,
) -> Acquisition:
    """Hand offsets of the read batches to a member; see `SharePartition.acquire`. NOTHING by SG-5.1."""
    fetch_offset, batches, aborted, only_new = read
    if records_max <= 0 or not batches or batches[-1].last < window.start:
        return NOTHING
    budget = _budget(window, limits, records_max, fetch_offset, batches[-1].last)
    if budget.records <= 0:
        return NOTHING
    stored = _archive_missing(window, limits, fetch_offset, batches[0].first)
    walk = _Walk(window, limits, budget, batches, batch_size, record_limit=mode is AcquireMode.RECORD_LIMIT)
    if only_new:
        walk.run_new()
    else:
        walk.run()
    if walk.ranges:
        window.close_gap(walk.ranges[-1].last + 1)
    ranges = _archive_aborted(window, limits, walk.ranges, aborted, stored) if aborted else walk.ranges
    if ranges:
        due_ms = now_ms + limits.lock_duration_ms
        size = sum(taken.last - taken.first + 1 for taken in ranges)
        lock = window.holds.open(member_id, due_ms, ranges[0].first, ranges[-1].last, size)
        for first, last, count in ranges:
            window.hold(first, last, lock.hold_id)
            stored.append(StateRun(first, last, RecordState.ACQUIRED, count, member_id))
    stored += walk.surplus
    window.advance()
    if not stored:
        return NOTHING
    return Acquisition(tuple(ranges), window.update(stored))


def _budget(window: Window, limits: Limits, records_max: int, fetch_offset: int, log_last: int) -> Budget:
    span = window.end - window.start
    if limits.window_max is None:
        records = min(records_max, limits.record_locks_max - span)
        if records > 0 or fetch_offset >= window.end:
            return Budget(records, records, log_last)
        # At capacity, offsets inside the window may still be delivered again (SG-4.4).
        return Budget(min(records_max, window.end - fetch_offset), 0, min(log_last, window.end - 1))
    room = limits.window_max - span
    # What may be acquired at once is the business of `allowance`, which has been asked.
    return Budget(records_max, room, log_last if room > 0 else min(log_last, window.end - 1))


def _archive_missing(window: Window, limits: Limits, fetch_offset: int, log_first: int) -> list[StateRun]:
    """Archive fetchable offsets between the fetch offset and the first batch: compaction removed them (SG-5.2)."""
    first, last = max(fetch_offset, window.start), min(log_first, window.end) - 1
    if first > last:
        return []
    archived = [
        vanish(window, limits, run.first, run.last, run.state, run.delivery_count)
        for run in list(window.runs(first, last))
        if run.state in (AVAILABLE, DELAYED)
    ]
    if window.gap_start >= fetch_offset:
        window.close_gap(log_first)
    return archived


def _archive_aborted(
    window: Window,
    limits: Limits,
    ranges: Sequence[AcquiredRange],
    aborted: Sequence[LogBatch],
    stored: list[StateRun],
) -> list[AcquiredRange]:
    """Archive the acquired offsets of aborted transactions and return the rest (SG-5.7)."""
    kept: list[AcquiredRange] = []
    batches = sorted(aborted)
    at = 0
    for taken in ranges:
        first = taken.first
        while at < len(batches) and batches[at].first <= taken.last:
            batch = batches[at]
            since, until = max(batch.first, first), min(batch.last, taken.last)
            if since <= until:
                if since > first:
                    kept.append(AcquiredRange(first, since - 1, taken.delivery_count))
                stored.append(vanish(window, limits, since, until, ACQUIRED, taken.delivery_count))
                first = until + 1
            if batch.last > taken.last:
                break
            at += 1
        if first <= taken.last:
            kept.append(AcquiredRange(first, taken.last, taken.delivery_count))
    return kept


def vanish(window: Window, limits: Limits, first: int, last: int, state: int, count: int) -> StateRun:
    """Archive offsets that hold no record any more; return the run to be stored."""
    before = RecordState.ACQUIRED if state == ACQUIRED else RecordState.AVAILABLE
    after = step(before, Event.VANISH, count, limits)
    window.let_go(first, last)
    window.put(first, last, state, ARCHIVED)
    window.cached.explode(first, last)
    return StateRun(first, last, after, count)


class _Walk:
    """One acquire on its way through the window."""

    def __init__(
        self,
        window: Window,
        limits: Limits,
        budget: Budget,
        batches: Sequence[LogBatch],
        batch_size: int,
        *,
        record_limit: bool,
    ) -> None:
        self.window = window
        self.limits = limits
        self.budget = budget
        self.batches = batches
        self.batch_size = batch_size
        self.record_limit = record_limit
        self.throttle_at = max(2, (limits.delivery_count_max + 1) // 2)
        self.ranges: list[AcquiredRange] = []
        self.surplus: list[StateRun] = []
        self.taken = 0

    def run(self) -> None:
        """Acquire until the budget is used, the log data ends or throttling stops it."""
        window, last = self.window, self.budget.last
        at = max(self.batches[0].first, window.start)
        inside = min(last, window.end - 1)
        while at <= inside and self.taken < self.budget.records:
            offset = window.next_available(at, inside)
            gap = window.next_gap(at, inside if offset < 0 else offset)
            if gap >= 0:
                until = window.same_until(gap, inside)
                self.take_new(gap, until, self.budget.records - self.taken)
                at = until + 1
            elif offset >= 0:
                index = window.cached.floor(offset)
                if self.take_again(window.cached.firsts[index], window.cached.lasts[index]):
                    return
                at = window.cached.lasts[index] + 1
            else:
                break
        self.take_past_window(max(at, self.batches[0].first, window.end))

    def run_new(self) -> None:
        """Acquire never delivered offsets: first those that a record-limit acquire left of a batch, then those past the
        window.

        The window has no holes that a reload left open.
        """
        window, last = self.window, self.budget.last
        inside = min(last, window.end - 1)
        offset = window.next_new(max(self.batches[0].first, window.start), inside)
        while offset >= 0 and self.taken < self.budget.records:
            until = next(window.counted(offset, window.same_until(offset, inside)))[1]
            until = min(until, offset + self.budget.records - self.taken - 1)
            window.cached.explode(offset, until)
            self.take_run(offset, until, 1)
            offset = window.next_new(until + 1, inside)
        if offset < 0:
            self.take_past_window(max(self.batches[0].first, window.end))

    def take_past_window(self, first: int) -> None:
        window = self.window
        if first - window.end > HOLE_MAX and window.end > window.start:
            return
        left = min(self.budget.records - self.taken, self.budget.room)
        if left > 0 and first <= self.budget.last:
            # A hole between the window and data of the same read is acquired with the data (SG-5.6).
            self.take_new(first, self.budget.last, left)

    def take_new(self, first: int, last: int, left: int) -> None:
        """Acquire offsets never acquired before: whole log batches (SG-5.4); by record limit, the budget (SG-5.5)."""
        window = self.window
        if left < last - first + 1:
            last = min(last, self.batch_end(first + left - 1))
        window.place(first, last)
        until = min(last, first + left - 1) if self.record_limit else last
        splits = [first] if self.record_limit else self.splits(first, last)
        for low, high in zip(splits, [*(split - 1 for split in splits[1:]), until], strict=True):
            window.set_count(low, high, 1)
            window.put(low, high, AVAILABLE, ACQUIRED)
            window.cached.add(low, high if high < until else last)
            self.ranges.append(AcquiredRange(low, high, 1))
        if until < last:
            window.cached.exploded.add(first)
            self.surplus.append(StateRun(until + 1, last, RecordState.AVAILABLE, 0))
        self.taken += until - first + 1

    def batch_end(self, offset: int) -> int:
        """Return the last offset of the log batch that holds `offset`, or `offset` if none does or it is too large."""
        batch = next(batch for batch in self.batches if batch.last >= offset)
        return batch.last if batch.first <= offset and batch.last - batch.first < BATCH_MAX else offset

    def splits(self, first: int, last: int) -> list[int]:
        """Return the starts of ranges: at log batches only, each range with at least `batch_size` offsets but the
        last."""
        splits = [first]
        if last - first + 1 > self.batch_size:
            for batch in self.batches:
                if batch.first > last:
                    break
                if batch.first - splits[-1] >= self.batch_size:
                    splits.append(batch.first)
        return splits

    def take_again(self, first: int, last: int) -> bool:
        """Acquire the AVAILABLE offsets of a batch of the window; True ends the acquire (SG-5.3, SG-6.1)."""
        window, left = self.window, self.budget.records - self.taken
        low = max(first, self.batches[0].first, window.start)
        high = min(last, self.budget.last)
        exploded = first < window.start or first in window.cached.exploded
        throttled = self.highest_count(low, high) >= self.throttle_at
        if throttled and self.taken:
            return True
        fits = not (self.record_limit and last - first + 1 > left)
        if not exploded and not throttled and fits and low == first and high == last:
            count = window.count(first) + 1
            window.set_count(first, last, count)
            window.put(first, last, AVAILABLE, ACQUIRED)
            self.ranges.append(AcquiredRange(first, last, count))
            self.taken += last - first + 1
            return False
        window.cached.exploded.add(first)
        before = self.taken
        self.take_offsets(low, high, last - first + 1, left)
        return throttled and self.taken > before

    def highest_count(self, first: int, last: int) -> int:
        return max((count for _, _, count in self.available(first, last)), default=0)

    def available(self, first: int, last: int) -> list[tuple[int, int, int]]:
        """Return the AVAILABLE offsets of `first`..`last` as runs with equal delivery count."""
        runs: list[tuple[int, int, int]] = []
        offset = self.window.next_available(first, last)
        while offset >= 0:
            until = self.window.same_until(offset, last)
            runs += self.window.counted(offset, until)
            offset = self.window.next_available(until + 1, last) if until < last else -1
        return runs

    def take_offsets(self, first: int, last: int, size: int, left: int) -> None:
        """Acquire offset by offset; `size` is the cached batch's, where throttling starts (SG-6.2)."""
        limit = self.limits.delivery_count_max
        allowed = left if self.record_limit else last - first + 1
        throttled = False
        taken = 0
        for low, high, count in self.available(first, last):
            alone = limit > 2 and count == limit - 1  # SG-6.3
            if count >= self.throttle_at and not throttled:
                throttled = True
                allowed = min(allowed, max(1, size >> (count - self.throttle_at + 1)))
            if taken >= allowed or (alone and taken):
                return
            until = low if alone else min(high, low + allowed - taken - 1)
            self.take_run(low, until, count + 1)
            taken += until - low + 1
            if alone:
                return

    def take_run(self, first: int, last: int, count: int) -> None:
        """Acquire offsets of one delivery count; they join the range before them if possible (SG-5.8)."""
        self.window.set_count(first, last, count)
        self.window.put(first, last, AVAILABLE, ACQUIRED)
        self.taken += last - first + 1
        previous = self.ranges[-1] if self.ranges else None
        if previous is not None and previous.last + 1 == first and previous.delivery_count == count:
            self.ranges[-1] = AcquiredRange(previous.first, last, count)
        else:
            self.ranges.append(AcquiredRange(first, last, count))
