"""The window of offsets between start offset and end offset: one byte of state an offset, and the columns beside it.

Find, count and slice on a `bytearray` run at C speed, so no step costs more than a scan of memory; ranges exist only at
the edges, for the wire and for the store. Rules that keep it so:

- `states`, `counts` and `hold_ids` have the same length; index 0 is offset `base`. `base` may lag behind `start`: the
  dead head is cut off only when it outweighs the rest, so that trimming is amortised.
- the offset at `start` is never finished, unless the window is empty (`start == end`);
- every change of a state goes through `put`, which keeps `tally`, the number of offsets in each state;
- deliveries of 255 and more stand in `high`, their byte is 255;
- a log that was cut takes the window's tail with it (`drop_behind`): offsets below `lost_end` were in the window, or
  are not in the log any more. An open decision from before finds its lost offsets by its `fence`.

Four states exist only here: HOLE (no batch was ever acquired there), DELAYED (AVAILABLE, but not before a time),
PENDING (ACQUIRED, with an acknowledgement being written: SG-1.5) and BLOCKED (AVAILABLE, but not before another one of
its key: `heads`, which a window has if its group has an order).

The gap window is left by a reload: holes from `gap_start` on may hold records that were delivered but never settled,
and are fetched again (SG-2.5).
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Final, NamedTuple

from flowshare.share.boundaries import CachedBatches
from flowshare.share.heads import Heads
from flowshare.share.holds import Holds
from flowshare.share.types import (
    ACKNOWLEDGED,
    ACQUIRED,
    ARCHIVED,
    ARCHIVING,
    AVAILABLE,
    BLOCKED,
    DELAYED,
    HOLE,
    PENDING,
    STATES,
    PartitionUpdate,
    RecordState,
    StateRun,
)

COUNT_HIGH: Final = 255
_COMPACT: Final = 4096
_FINISHED = re.compile(rb"[\x02\x04\x05]*")
_PASSED: Final = (ACKNOWLEDGED, ARCHIVED, HOLE)
_DURABLE: Final = {
    AVAILABLE: RecordState.AVAILABLE,
    ACQUIRED: RecordState.ACQUIRED,
    ACKNOWLEDGED: RecordState.ACKNOWLEDGED,
    ARCHIVING: RecordState.ARCHIVING,
    ARCHIVED: RecordState.ARCHIVED,
    DELAYED: RecordState.AVAILABLE,
    PENDING: RecordState.ACQUIRED,
    BLOCKED: RecordState.AVAILABLE,
}


@cache
def same(byte: int) -> re.Pattern[bytes]:
    """Return the pattern that matches a run of one byte."""
    return re.compile(b"[" + re.escape(bytes((byte,))) + b"]*")


class Run(NamedTuple):
    """Offsets `first`..`last` with the same state byte, delivery count and hold."""

    first: int
    last: int
    state: int
    delivery_count: int
    hold_id: int


class Fence:
    """The time between two cuts of a log: tells an acknowledgement that is settled late which offsets were cut
    (SG-9.2).

    A decision keeps the fence that stood at its making. A cut lets that fence fall, at the offset of the cut, and puts
    up the next fence. So a decision that is settled later sees how much of it was cut, and fences that no decision
    keeps are freed. Offsets behind a cut come again as other records: a decision must not touch them.
    """

    __slots__ = ("_fell_at", "_next")

    def __init__(self) -> None:
        self._fell_at = 0
        self._next: Fence | None = None

    def fall(self, end: int) -> Fence:
        """Note that the log was cut at `end`; return the fence that stands from now on."""
        assert self._next is None, "a fence falls once"
        self._fell_at, self._next = end, Fence()
        return self._next

    def lowest(self) -> int | None:
        """Return the lowest offset of all cuts since this fence was put up; None: no cut."""
        lowest: int | None = None
        fence = self
        while fence._next is not None:
            lowest = fence._fell_at if lowest is None else min(lowest, fence._fell_at)
            fence = fence._next
        return lowest


class Window:
    """State of the offsets from `start` (inclusive) to `end` (exclusive)."""

    def __init__(self, start: int, *, ordered: bool = False) -> None:
        self.start = start
        self.base = start
        self.states = bytearray()
        self.counts = bytearray()
        self.hold_ids = array("q")
        self.high: dict[int, int] = {}
        self.tally = [0] * STATES
        self.cached = CachedBatches()
        self.holds = Holds()
        self.heads = Heads(self, start) if ordered else None
        self.fence = Fence()
        self.gap_start = -1
        self.lost_end = start
        self._available_from = start

    @property
    def end(self) -> int:
        """The first offset never put into the window."""
        return self.base + len(self.states)

    @property
    def finished(self) -> int:
        """Offsets in a terminal state that the start offset has not passed (KIP-1226: delivery complete count)."""
        return self.tally[ACKNOWLEDGED] + self.tally[ARCHIVED]

    @property
    def acquired(self) -> int:
        """The number of offsets that members hold, those with an acknowledgement being written included."""
        return self.tally[ACQUIRED] + self.tally[PENDING]

    def finished_between(self, first: int, last: int) -> int:
        """Return how many offsets of `first`..`last` are in a terminal state."""
        at, until = first - self.base, last + 1 - self.base
        return self.states.count(ACKNOWLEDGED, at, until) + self.states.count(ARCHIVED, at, until)

    # -- reading

    def next_available(self, first: int, last: int) -> int:
        """Return the first fetchable offset in `first`..`last`, −1 if there is none."""
        if not self.tally[AVAILABLE]:
            return -1
        at = self.states.find(AVAILABLE, max(first, self._available_from) - self.base, last + 1 - self.base)
        if at < 0:
            if first <= self._available_from <= last:
                self._available_from = last + 1
            return -1
        if first <= self._available_from:
            self._available_from = at + self.base
        return at + self.base

    def next_new(self, first: int, last: int) -> int:
        """Return the first fetchable offset in `first`..`last` that was never delivered, −1 if there is none."""
        if not self.tally[AVAILABLE]:
            return -1
        at, end = max(first, self._available_from) - self.base, last + 1 - self.base
        while (at := self.counts.find(0, at, end)) >= 0:
            if self.states[at] == AVAILABLE:
                return at + self.base
            at = self.same_until(at + self.base, last) + 1 - self.base  # removed by compaction, or a hole
        return -1

    def next_gap(self, first: int, last: int) -> int:
        """Return the first offset in `first`..`last` that a reload left open, −1 if there is none."""
        if self.gap_start < 0:
            return -1
        first = max(first, self.gap_start, self.start)
        at = self.states.find(HOLE, first - self.base, max(last + 1, first) - self.base)
        return at + self.base if at >= 0 else -1

    def same_until(self, offset: int, last: int) -> int:
        """Return the last offset up to `last` in one piece with `offset` whose state is the same."""
        at = offset - self.base
        match = same(self.states[at]).match(self.states, at, last + 1 - self.base)
        assert match is not None
        return match.end() - 1 + self.base

    def count(self, offset: int) -> int:
        """Return the delivery count of an offset."""
        count = self.counts[offset - self.base]
        return count if count < COUNT_HIGH else self.high[offset]

    def counted(self, first: int, last: int) -> Iterator[tuple[int, int, int]]:
        """Cut `first`..`last` into (first, last, delivery count)."""
        counts, at, end = self.counts, first - self.base, last + 1 - self.base
        while at < end:
            low, until = counts[at], at + 1
            if low < COUNT_HIGH:
                match = same(low).match(counts, at, end)
                assert match is not None
                until = match.end()
            yield at + self.base, until - 1 + self.base, low if low < COUNT_HIGH else self.high[at + self.base]
            at = until

    def held(self, first: int, last: int) -> Iterator[tuple[int, int, int]]:
        """Cut `first`..`last` into (first, last, hold id)."""
        ids, at, end = self.hold_ids, first - self.base, last + 1 - self.base
        while at < end:
            hold_id, until, size = ids[at], at + 1, 64
            while until < end and ids[until] == hold_id:
                # Compare in slices that grow as long as they are equal and shrink towards the end of the run.
                stop = min(end, until + size)
                if ids[until:stop] == array("q", (hold_id,)) * (stop - until):
                    until, size = stop, 4 * size
                else:
                    size //= 4
            yield at + self.base, until - 1 + self.base, hold_id
            at = until

    def runs(self, first: int, last: int) -> Iterator[Run]:
        """Cut `first`..`last` into runs of equal state, count and hold; holes are left out."""
        while first <= last:
            until = self.same_until(first, last)
            state = self.states[first - self.base]
            if state != HOLE:
                for low, high, count in self.counted(first, until):
                    for held_first, held_last, hold_id in self.held(low, high):
                        yield Run(held_first, held_last, state, count, hold_id)
            first = until + 1

    def durable(self, run: Run) -> StateRun:
        """Return a run as it is stored: an acknowledgement that is being written does not count yet, nor does an
        acquire whose records are being read."""
        hold = self.holds.by_id[run.hold_id] if run.hold_id else None
        if hold is not None and hold.unconfirmed:
            return StateRun(run.first, run.last, RecordState.AVAILABLE, run.delivery_count - 1)
        return StateRun(
            run.first,
            run.last,
            _DURABLE[run.state],
            run.delivery_count,
            hold.member_id if hold is not None else None,
            hold.due_ms if hold is not None and run.state == DELAYED else 0,
        )

    def finished_until(self, offset: int) -> int:
        """Return the first offset from `offset` on that is not finished; holes are passed, except a reload's."""
        at = offset - self.base
        if at >= len(self.states) or self.states[at] not in _PASSED:
            return offset
        match = _FINISHED.match(self.states, at)
        assert match is not None
        until = match.end() + self.base
        gap = self.next_gap(offset, until - 1)
        return until if gap < 0 else gap

    def update(self, runs: Iterable[StateRun]) -> PartitionUpdate:
        """Return `runs`, as they stand in the window, as an update to be stored."""
        return PartitionUpdate(
            start_offset=self.start, delivery_complete_count=self.finished, runs=merged(runs, self.start)
        )

    def in_state(self, state: int) -> Iterator[tuple[int, int, int]]:
        """Yield the runs of a state with one delivery count, as (first, last, count); costs a search of the window."""
        left, at = self.tally[state], self.start
        while left and (at := self.states.find(state, at - self.base) + self.base) >= self.base:
            until = self.same_until(at, self.end - 1)
            yield from self.counted(at, until)
            left -= until + 1 - at
            at = until + 1

    # -- changing

    def put(self, first: int, last: int, old: int, new: int) -> None:
        """Move `first`..`last`, all in state `old`, to state `new`."""
        size = last - first + 1
        at = first - self.base
        if size == 1:
            self.states[at] = new
        else:
            self.states[at : at + size] = bytes((new,)) * size
        self.tally[old] -= size
        self.tally[new] += size
        if new == AVAILABLE:
            self.offer(first)
        if self.heads is not None:
            self.heads.moved(first, last, old, new)

    def acquire(self, first: int, last: int) -> None:
        """Turn the AVAILABLE offsets of `first`..`last` into ACQUIRED; all must be AVAILABLE or ACQUIRED."""
        at, until = first - self.base, last + 1 - self.base
        free = self.states.count(AVAILABLE, at, until)
        self.states[at:until] = bytes((ACQUIRED,)) * (until - at)
        self.tally[AVAILABLE] -= free
        self.tally[ACQUIRED] += free

    def offer(self, offset: int) -> None:
        """Note that `offset` is AVAILABLE, so that the next search does not start behind it."""
        if offset < self._available_from:
            self._available_from = offset

    def set_count(self, first: int, last: int, count: int) -> None:
        """Set the delivery count of `first`..`last`."""
        size = last - first + 1
        at = first - self.base
        self.counts[at : at + size] = bytes((min(count, COUNT_HIGH),)) * size
        if count >= COUNT_HIGH:
            self.high.update(dict.fromkeys(range(first, last + 1), count))
        elif self.high:
            for offset in range(first, last + 1):
                self.high.pop(offset, None)

    def hold(self, first: int, last: int, hold_id: int) -> None:
        """Note a hold, 0 for none, beside `first`..`last`."""
        size = last - first + 1
        at = first - self.base
        self.hold_ids[at : at + size] = array("q", (hold_id,)) * size

    def let_go(self, first: int, last: int) -> None:
        """End the holds of `first`..`last`."""
        for held_first, held_last, hold_id in self.held(first, last):
            if hold_id:
                self.holds.let_go(hold_id, held_last - held_first + 1)
        self.hold(first, last, 0)

    def place(self, first: int, last: int) -> None:
        """Make room for `first`..`last`, at the end or in a hole, as AVAILABLE and never delivered."""
        if self.start == self.end:
            self.clear(max(first, self.start))
        if last >= self.end:
            self.grow(last)
            self.gap_start = -1
        self.put(first, last, HOLE, AVAILABLE)

    def grow(self, last: int) -> None:
        """Extend the window by a hole up to `last`."""
        size = last + 1 - self.end
        self.states += bytes((HOLE,)) * size
        self.counts += bytes(size)
        self.hold_ids.frombytes(bytes(self.hold_ids.itemsize * size))
        self.tally[HOLE] += size
        if self.heads is not None:
            self.heads.grow(size)

    def placed(self, size: int, available: int, first_available: int) -> None:
        """Note that `size` HOLEs are AVAILABLE now (`available` of them, the first at `first_available`; −1: none) or
        BLOCKED."""
        self.tally[HOLE] -= size
        self.tally[AVAILABLE] += available
        self.tally[BLOCKED] += size - available
        if available:
            self.offer(first_available)

    def advance(self) -> None:
        """Move the start offset past finished offsets (SG-1.6)."""
        at, states = self.start - self.base, self.states
        if at >= len(states) or states[at] not in _PASSED:
            return
        if states[at] != HOLE and at + 1 < len(states) and states[at + 1] not in _PASSED and not self.high:
            # The common case, one offset: without a search for the end of the finished ones.
            self.tally[states[at]] -= 1
            self._move_start(self.start + 1)
        else:
            self._forget(self.finished_until(self.start))

    def drop_below(self, start: int) -> None:
        """Forget everything below `start`, whatever its state."""
        if start < self.end:
            self.let_go(self.start, start - 1)
        self._forget(start)

    def drop_behind(self, end: int) -> None:
        """Forget everything from `end` on, whatever its state; a start offset behind `end` goes back to `end`."""
        self.lost_end = max(self.lost_end, self.end)
        self.fence = self.fence.fall(end)
        if end <= self.start:
            self.clear(end)
            if self.heads is not None:
                self.heads.known_end = end
                self.heads.barrier = min(self.heads.barrier, end - 1)
            return
        self.let_go(end, self.end - 1)
        at = end - self.base
        for state in range(STATES):
            if self.tally[state]:
                self.tally[state] -= self.states.count(state, at)
        self.high = {offset: count for offset, count in self.high.items() if offset < end}
        del self.states[at:]
        del self.counts[at:]
        del self.hold_ids[at:]
        self.cached.cut(end)
        if self.heads is not None:
            self.heads.cut(end)
        self._available_from = min(self._available_from, end)
        if self.next_gap(self.start, end - 1) < 0:
            self.gap_start = -1

    def _forget(self, start: int) -> None:
        if start >= self.end:
            self.clear(start)
            return
        at, until = self.start - self.base, start - self.base
        for state in range(STATES):
            if self.tally[state]:
                self.tally[state] -= self.states.count(state, at, until)
        if self.high:
            for offset in range(self.start, start):
                self.high.pop(offset, None)
        self._move_start(start)

    def _move_start(self, start: int) -> None:
        self.start = start
        self.cached.trim(start)
        until = start - self.base
        if until > _COMPACT and 2 * until > len(self.states):
            del self.states[:until]
            del self.counts[:until]
            del self.hold_ids[:until]
            if self.heads is not None:
                self.heads.trim(until)
            self.base = start

    def clear(self, start: int) -> None:
        """Forget everything; the empty window stands at `start`."""
        self.start = self.base = self._available_from = start
        self.states.clear()
        self.counts.clear()
        del self.hold_ids[:]
        self.high.clear()
        self.tally = [0] * STATES
        if self.heads is not None:
            self.heads.clear(start)
        self.cached.clear()
        self.holds.clear()
        self.gap_start = -1

    def close_gap(self, offset: int) -> None:
        """Note that holes below `offset` were looked at: the log has nothing there."""
        if self.gap_start >= 0:
            self.gap_start = max(self.gap_start, offset)
            if self.next_gap(self.gap_start, self.end - 1) < 0:
                self.gap_start = -1


def merged(runs: Iterable[StateRun], start: int) -> tuple[StateRun, ...]:
    """Sort runs that do not overlap, drop the parts below `start` and join equal neighbours."""
    result: list[StateRun] = []
    for run in sorted(runs):
        if run.last < start:
            continue
        if run.first < start:
            run = run._replace(first=start)
        if result and result[-1].last + 1 == run.first and result[-1][2:] == run[2:]:
            result[-1] = result[-1]._replace(last=run.last)
        else:
            result.append(run)
    return tuple(result)
