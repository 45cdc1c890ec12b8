"""The committed set of one partition: what is finished, record by record.

State: S (`stable`): all offsets before it are committed. R: committed ranges behind S, ascending, disjoint, not
adjacent, each beginning after S. M (`furthest`): the end of the last one, S without any. E (`reset_epoch`).

Invariant: the set of committed offsets never shrinks while E stays; every change of E is told to whoever commits, and a
commit of an older E is refused by the caller. A commit is a union: order, splitting and repetition do not matter.

    commit(ranges)        the union; while the first range begins at S or before, S is its end
    sequential(offset)    all before `offset` is committed; below S: nothing happens, S never goes back
    move_log_start(o)     as sequential; how many offsets nobody had finished is told
    truncate(end)         the log was cut: S and R go back to its end, E grows, for the offsets will be other records
    reset(offset)         S is `offset`, R is empty, E grows

Each makes a `Change` and counts at once. The change's mutations are in the order in which they may be written one by
one: merged ranges, S, ranges that went into others. Whatever prefix of a commit's mutations is stored, `load` makes a
set of it that is between the one before and the one after. (Ranges are stored by their first offset, so a range that
grows at its end is overwritten.) Where E changes S comes first: a prefix may then lose commits, so that records come
again, and never has too many. `undo` takes back the newest change, if it was not to be written.

Bounds: a commit that leaves more than RANGES_MAX ranges, and more than there were, is refused; so is one that leaves
more than SPAN_MAX offsets between S and M, and more than there were. What fills gaps always goes, the record at S is
always one of those, so S comes forward. A union costs O(log n) and what it touches, and moving what lies behind it in
two arrays of numbers.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from flowshare.cooperative.ranges import Pair, merged, total
from flowshare.cooperative.types import DropRange, Mutation, OffsetColumns, OffsetRange, PutRange, PutStable
from flowshare.core_errors import BoundReached, InvalidRequest, OffsetOutOfRange

RANGES_MAX: Final = 60_000
"""Of 16 bytes each they stay below Kafka's largest record of 1 MiB."""
SPAN_MAX: Final = 200_000


class _Window(NamedTuple):
    """Ranges from index `at` on, before or after a change."""

    at: int
    firsts: array[int]
    ends: array[int]


class Change(NamedTuple):
    """The effect of a step on the committed set. puts: ranges that are new or longer. stable: None: as before. drops:
    keys of ranges. lost: offsets that count as committed and were not finished. Empty: `not change.mutations`."""

    puts: tuple[OffsetRange, ...]
    stable: int | None
    drops: tuple[int, ...]
    reset_epoch: int
    reset: bool
    lost: int
    before: tuple[int, int, _Window, int]
    """For `undo`: S, E, the ranges that were touched, and how many are there instead."""

    @property
    def mutations(self) -> tuple[Mutation, ...]:
        """The mutations to write, in this order."""
        puts = [PutRange(first, end, self.reset_epoch) for first, end in self.puts]
        stable = [] if self.stable is None else [PutStable(self.stable, self.reset_epoch)]
        drops = map(DropRange, self.drops)
        return (*stable, *puts, *drops) if self.reset else (*puts, *stable, *drops)


class CommittedOffsets:
    """The committed set. Raises StateCorrupt never: what was stored is `load`ed, whatever prefix of it there is."""

    __slots__ = ("_ends", "_firsts", "ranges_max", "reset_epoch", "span_max", "stable")

    def __init__(
        self,
        stable: int = 0,
        ranges: Iterable[Pair] = (),
        reset_epoch: int = 0,
        *,
        ranges_max: int = RANGES_MAX,
        span_max: int = SPAN_MAX,
    ) -> None:
        """Start from a stable offset and any ranges, which may overlap, touch or lie before it."""
        self.reset_epoch, self.ranges_max, self.span_max = reset_epoch, ranges_max, span_max
        joined = merged(((-1, stable), *ranges))
        self.stable = joined[0][1]
        self._firsts = array("q", [first for first, _ in joined[1:]])
        self._ends = array("q", [end for _, end in joined[1:]])

    # -- what is committed

    @property
    def furthest(self) -> int:
        """M: nothing at it or behind it is committed."""
        return self._ends[-1] if self._ends else self.stable

    @property
    def span(self) -> int:
        """How far M is from S."""
        return self.furthest - self.stable

    @property
    def count(self) -> int:
        """How many ranges there are behind S."""
        return len(self._firsts)

    @property
    def ahead(self) -> int:
        """How many offsets behind S are committed."""
        return sum(self._ends) - sum(self._firsts)

    @property
    def columns(self) -> OffsetColumns:
        """The ranges behind S, as they are now."""
        return OffsetColumns(self._firsts[:], self._ends[:])

    def ranges(self) -> list[OffsetRange]:
        """The ranges behind S, one by one."""
        return list(map(OffsetRange, self._firsts, self._ends))

    def is_committed(self, offset: int) -> bool:
        """True if the offset is committed."""
        return offset < self.stable or self.committed_end(offset) > offset

    def committed_end(self, offset: int) -> int:
        """The first offset at `offset` or behind that is not committed; `offset` is not before S."""
        at = bisect_right(self._firsts, offset) - 1
        return max(offset, self._ends[at]) if at >= 0 else offset

    def committed_next(self, offset: int) -> int | None:
        """The first offset behind `offset`, which is not committed, that is; None: there is none."""
        at = bisect_right(self._firsts, offset)
        return self._firsts[at] if at < len(self._firsts) else None

    def uncommitted(self, first: int, end: int) -> list[OffsetRange]:
        """List the offsets from `first` to before `end` that are not committed."""
        found: list[OffsetRange] = []
        at = bisect_right(self._ends, first)
        first = max(first, self.stable)
        for place in range(at, bisect_left(self._firsts, end)):
            if first < self._firsts[place]:
                found.append(OffsetRange(first, self._firsts[place]))
            first = max(first, self._ends[place])
        if first < end:
            found.append(OffsetRange(first, end))
        return found

    # -- changes

    def commit(self, ranges: Sequence[Pair], *, log_end: int | None = None, bounded: bool = True) -> Change:
        """Commit these offsets, in any order. log_end: the first offset that is not in the log yet, if it is known.
        bounded: False for what cannot be refused any more, as its transaction was committed.

        Raises: InvalidRequest for a range that is empty or negative, OffsetOutOfRange behind `log_end`, BoundReached;
        nothing is changed then.
        """
        for first, end in ranges:
            if not 0 <= first < end:
                raise InvalidRequest(f"[{first}, {end}) is no range of offsets: 0 <= first < end")
            if log_end is not None and end > log_end:
                raise OffsetOutOfRange(f"offset {end - 1} cannot be committed: the log ends at {log_end}")
        return self._unite(ranges, bounded=bounded)

    def sequential(self, offset: int, *, log_end: int | None = None) -> Change:
        """Commit everything before `offset`. Raises: InvalidRequest, OffsetOutOfRange."""
        if offset < 0:
            raise InvalidRequest(f"offset {offset} is negative")
        if log_end is not None and offset > log_end:
            raise OffsetOutOfRange(f"offset {offset} cannot be committed: the log ends at {log_end}")
        return self.move_log_start(offset)

    def move_log_start(self, log_start: int) -> Change:
        """Follow a log that begins at `log_start` now: what is before it cannot be read any more."""
        if log_start <= self.stable:
            return self._unite((), bounded=False)
        lost = total(self.uncommitted(self.stable, log_start))
        return self._unite(((self.stable, log_start),), bounded=False)._replace(lost=lost)

    def truncate(self, end: int) -> Change:
        """Follow a log that was cut at `end`, where other records come in place of what was there."""
        kept = [OffsetRange(first, min(stop, end)) for first, stop in self.ranges() if first < end]
        return self._renew(min(self.stable, end), kept)

    def reset(self, offset: int) -> Change:
        """Begin anew at `offset`, back or forth. Raises: InvalidRequest."""
        if offset < 0:
            raise InvalidRequest(f"offset {offset} is negative")
        return self._renew(offset, [])

    def undo(self, change: Change) -> None:
        """Take back the newest change that is not taken back yet."""
        self.stable, self.reset_epoch, window, length = change.before
        behind = window.at + length
        self._firsts[window.at : behind] = window.firsts
        self._ends[window.at : behind] = window.ends

    def _unite(self, ranges: Sequence[Pair], *, bounded: bool) -> Change:
        union = _Union(self._firsts, self._ends, self.stable)
        for first, end in ranges if len(ranges) < 2 else merged(ranges):
            if end > union.stable:
                union.add(max(first, union.stable), end)
        union.close()
        behind = union.at
        if bounded:
            self._check(union)
        before = self.stable, self.reset_epoch, self._window(union.start, behind), len(union.firsts)
        moved = None if union.stable == self.stable else union.stable
        self._firsts[union.start : behind] = union.firsts
        self._ends[union.start : behind] = union.ends
        self.stable = union.stable
        return Change(tuple(union.puts), moved, tuple(union.drops), self.reset_epoch, False, 0, before)

    def _check(self, union: _Union) -> None:
        count = self.count - (union.at - union.start) + len(union.firsts)
        if count > self.ranges_max and count > self.count:
            raise BoundReached(
                f"{count} committed ranges behind offset {self.stable}, at most {self.ranges_max} are kept: commit "
                "what lies between them first"
            )
        furthest = max(self.furthest, union.furthest)
        if furthest - union.stable > self.span_max and furthest > self.furthest:
            raise BoundReached(
                f"offset {furthest - 1} is more than {self.span_max} behind {union.stable}, which is not committed: "
                "commit what lies between them first"
            )

    def _renew(self, stable: int, ranges: list[OffsetRange]) -> Change:
        before = self.stable, self.reset_epoch, self._window(0, self.count), len(ranges)
        kept = {first for first, _ in ranges}
        drops = tuple(first for first in self._firsts if first not in kept)
        self.stable = stable
        self.reset_epoch += 1
        self._firsts = array("q", [first for first, _ in ranges])
        self._ends = array("q", [end for _, end in ranges])
        return Change(tuple(ranges), stable, drops, self.reset_epoch, True, 0, before)

    def _window(self, start: int, end: int) -> _Window:
        return _Window(start, self._firsts[start:end], self._ends[start:end])


class _Union:
    """A union as it is made, from left to right: what comes in place of the ranges from `start` to `at`."""

    __slots__ = ("_end", "_first", "_old_ends", "_old_firsts", "_open", "at", "drops", "ends", "firsts", "furthest",
                 "puts", "stable", "start")  # fmt: skip

    def __init__(self, firsts: array[int], ends: array[int], stable: int) -> None:
        self._old_firsts, self._old_ends = firsts, ends
        self.stable = self.furthest = stable
        self.start = self.at = self._open = -1
        self._first = self._end = 0
        self.firsts, self.ends = array("q"), array("q")
        self.puts: list[OffsetRange] = []
        self.drops: list[int] = []

    def add(self, first: int, end: int) -> None:
        """Add a range that begins behind those before."""
        firsts, ends = self._old_firsts, self._old_ends
        at = self.at
        if at < 0:
            self.start = at = bisect_left(ends, first)
        elif first > self._end:
            self._put()
            behind = bisect_left(ends, first, at)
            self.firsts += firsts[at:behind]
            self.ends += ends[at:behind]
            at = behind
        else:
            first = self._first
            at = self._open
        last = bisect_right(firsts, end, at)
        if last > at:
            first = min(first, firsts[at])
            end = max(end, ends[last - 1])
        self._open, self.at, self._first, self._end = at, last, first, end

    def close(self) -> None:
        """All are added."""
        if self.at < 0:
            self.start = self.at = 0
        else:
            self._put()

    def _put(self) -> None:
        first, end, opened, at = self._first, self._end, self._open, self.at
        self.furthest = end
        if first <= self.stable:
            self.stable = end
            self.drops += self._old_firsts[opened:at]
            return
        self.firsts.append(first)
        self.ends.append(end)
        if at == opened + 1 and self._old_firsts[opened] == first and self._old_ends[opened] == end:
            return
        self.puts.append(OffsetRange(first, end))
        if at > opened:
            self.drops += [key for key in self._old_firsts[opened:at] if key != first]
