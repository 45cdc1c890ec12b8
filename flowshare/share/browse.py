"""What stands in a share-partition's window, run by run, for who only looks: docs/share-groups.md, SG-13.6.

A `Look` is a copy of the window's bytes, made at once; its runs are cut afterwards, a few at a time, while the window
goes on changing. So a page is one moment's, and nobody waits for it. `stored_runs` says the same of what is stored of a
share-partition that is not loaded; what only the loaded one knows (who is blocked, until when locks hold) is not there.

| state | |
|---|---|
| available | waits for a member |
| delayed | the same, but not before `due_ms` |
| blocked | in an order by key: waits for the one at `head`, the first of its key that is not settled |
| acquired | `member_id` holds it, until `due_ms` |
| pending | the same, and an acknowledgement of it is being written |
| archiving | its dead letter is being written |
| acknowledged, archived | finished, and the start offset has not passed it |

Where no record stands there is a `Hole`.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import compress, groupby, islice
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from flowshare.share.types import (
    ACQUIRED,
    ARCHIVED,
    AVAILABLE,
    BLOCKED,
    DELAYED,
    HOLE,
    PENDING,
    STATES,
    RecordState,
    StateRun,
)
from flowshare.share.window import COUNT_HIGH, Window, same

if TYPE_CHECKING:
    from flowshare.share.holds import Hold

SPAN_MAX: Final = 1 << 18
"""Offsets that one look copies: a longer window is looked at in several."""
STEP: Final = 4_096
"""Offsets whose keys are gone through before others have a turn."""
NAMES: Final = (
    "available", "acquired", "acknowledged", "archiving", "archived", "hole", "delayed", "pending", "blocked",
)  # fmt: skip
"""What the states are called, by their bytes."""
SEEN_STATES: Final = frozenset(NAMES) - {"hole"}
"""States that a run may be in."""
HOLES: Final = "hole"
"""Asked for beside states: where no record stands."""
RETENTION: Final = "retention"
"""Why a hole is there: it is below the log's start."""
LOG: Final = "log"
"""The log has no record there: compaction took it, or it is a transaction's marker."""
VANISHED: Final = "vanished"
"""It was archived and had never been delivered: compaction, retention or an abort took it first."""
UNREAD: Final = "unread"
"""A reload knows nothing of it: it is read again, and what is there is delivered."""

_HELD: Final = frozenset((ACQUIRED, PENDING, DELAYED))
_LAST: Final = attrgetter("last")
_NO_HASHES: Final = array("I")
_OPEN_HEADS: Final = bytes(
    state in (AVAILABLE, ACQUIRED, DELAYED, PENDING, RecordState.ARCHIVING) for state in range(256)
)


class SeenRun(NamedTuple):
    """Offsets, both inclusive, that are alike. due_ms: of the machine's clock; 0: there is none, or it is not known.

    head: of what is blocked: the offset that it waits for; −1: of nothing else.
    """

    first: int
    last: int
    state: str
    delivery_count: int = 0
    member_id: str = ""
    due_ms: int = 0
    head: int = -1


_new: Callable[[type[SeenRun], tuple[int, int, str, int, str, int, int]], SeenRun]
_new = tuple.__new__  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
"""Instead of the class's own: half the time."""


class Hole(NamedTuple):
    """Offsets, both inclusive, where no record stands, and `why`."""

    first: int
    last: int
    why: str


Seen = SeenRun | Hole | None
"""None: something was passed over that is not asked for."""


def wanted_states(states: Collection[str]) -> frozenset[str]:
    """States by their names, all for none. Raises: ValueError (there is no such state)."""
    if unknown := sorted(set(states) - SEEN_STATES - {HOLES}):
        raise ValueError(f"there is no state {unknown[0]!r}; there are {', '.join(sorted(SEEN_STATES | {HOLES}))}")
    return frozenset(states) or SEEN_STATES | {HOLES}


class Look:
    """The offsets `first`..`end` (exclusive) of a window as they were when it was made."""

    def __init__(self, window: Window, first: int, *, ahead_ms: int = 0) -> None:
        """first: where to begin, moved into the window. ahead_ms: the machine's clock before the one of deadlines."""
        self.first = first = min(max(first, window.start), window.end)
        self.end = min(window.end, first + SPAN_MAX)
        at, until = first - window.base, self.end - window.base
        self._ahead_ms = ahead_ms
        self._states = bytes(window.states[at:until])
        self._counts = bytes(window.counts[at:until])
        self._ids = window.hold_ids[at:until]
        self._high = dict(window.high)
        self._holds: Mapping[int, Hold] = dict(window.holds.by_id)
        self._gap_start = window.gap_start
        self._heads: dict[int, int] = {}
        """Of each key's hash the first offset that is not settled."""
        self._behind: tuple[int, bytes, array[int]] | None = None
        """Where something is blocked: the window's start, and from there on states and hashes."""
        self._hashes: array[int] = _NO_HASHES
        if window.heads is not None and window.tally[BLOCKED]:
            begin = window.start - window.base
            known = window.heads.hashes[begin:until]
            self._behind = window.start, bytes(window.states[begin:until]), known
            self._hashes = known[at - begin :]

    def runs(self, states: Collection[str]) -> Iterator[Seen]:
        """All that is in one of the states, ascending; see `wanted_states`."""
        wanted = bytes(state for state in range(STATES) if NAMES[state] in states)
        holes = HOLES in states
        if self._behind is not None and BLOCKED in wanted:
            yield from self._find_heads(*self._behind)
        of_states, size, until = self._states, len(self._states), 0
        while (at := until) < size:
            state = of_states[at]
            until = at + 1
            if until < size and of_states[until] == state:
                found = same(state).match(of_states, at)
                assert found is not None
                until = found.end()
            if state == HOLE:
                yield from self._hole(at, until) if holes else (None,)
            elif not (state in wanted or (state == ARCHIVED and holes)):
                yield None
            elif until - at == 1:
                yield self._run(at, until, state, states)
            else:
                for low, high in self._pieces(at, until, state):
                    yield self._run(low, high, state, states)

    def _find_heads(self, start: int, states: bytes, hashes: array[int]) -> Iterator[None]:
        """Find the first of each key, a few offsets at a time: of two of one key, a chain's, the later one goes first,
        and gives way."""
        for end in range(len(states), 0, -STEP):
            begin = max(0, end - STEP)
            mask = states[begin:end].translate(_OPEN_HEADS)[::-1]
            offsets = range(start + end - 1, start + begin - 1, -1)
            found = compress(reversed(hashes[begin:end]), mask), compress(offsets, mask)
            self._heads.update(zip(*found, strict=True))
            yield None

    def _run(self, at: int, until: int, state: int, states: Collection[str]) -> Seen:
        first, last = self.first + at, self.first + until - 1
        count = self._counts[at]
        if count == COUNT_HIGH:
            count = self._high.get(first, count)
        if state in _HELD:
            hold = self._holds[self._ids[at]]
            due_ms = hold.due_ms + self._ahead_ms
            return _new(SeenRun, (first, last, NAMES[state], count, hold.member_id or "", due_ms, -1))
        if state == BLOCKED:
            head = self._heads.get(self._hashes[at], -1)
            return _new(SeenRun, (first, last, NAMES[state], count, "", 0, head))
        if state == ARCHIVED and (not count or NAMES[state] not in states):
            return Hole(first, last, VANISHED) if not count and HOLES in states else None
        return _new(SeenRun, (first, last, NAMES[state], count, "", 0, -1))

    def _hole(self, at: int, until: int) -> Iterator[Hole]:
        first, last = self.first + at, self.first + until - 1
        unread = last + 1 if self._gap_start < 0 else max(first, self._gap_start)
        if first < unread:
            yield Hole(first, min(last, unread - 1), LOG)
        if unread <= last:
            yield Hole(unread, last, UNREAD)

    def _pieces(self, at: int, until: int, state: int) -> Iterator[tuple[int, int]]:
        """Cut offsets of one state where counts, holds or keys differ, as (from, to: exclusive)."""
        marks: Any = self._ids if state in _HELD else self._hashes if state == BLOCKED else None
        while at < until:
            count, end = self._counts[at], at + 1
            if count < COUNT_HIGH:
                found = same(count).match(self._counts, at, until)
                assert found is not None
                end = found.end()
            if marks is None or end - at == 1:
                yield at, end
            else:
                yield from _alike(marks[at:end], at)
            at = end


def _alike(marks: Any, at: int) -> Iterator[tuple[int, int]]:
    """Cut what begins at `at` where its marks differ, as (from, to: exclusive)."""
    if marks.count(marks[0]) == len(marks):
        yield at, at + len(marks)
        return
    for _, group in groupby(marks):
        size = len(tuple(group))
        yield at, at + size
        at += size


def stored_runs(
    start_offset: int,
    runs: Sequence[StateRun],
    states: Collection[str],
    *,
    first: int,
    now_ms: int,
    ahead_ms: int = 0,
) -> Iterator[Seen]:
    """The same of what is stored, from offset `first` on. now_ms: by which delays are reckoned; ahead_ms: as `Look`."""
    at = bisect_left(runs, first, key=_LAST)
    end = runs[at - 1].last + 1 if at else start_offset
    for run in islice(runs, at, None):
        if run.first > end and HOLES in states:
            yield Hole(max(end, first), run.first - 1, UNREAD)
        end = run.last + 1
        yield _stored_run(run._replace(first=max(run.first, first)), states, now_ms, ahead_ms)


def _stored_run(run: StateRun, states: Collection[str], now_ms: int, ahead_ms: int) -> Seen:
    if run.state is RecordState.ARCHIVED and not run.delivery_count:
        return Hole(run.first, run.last, VANISHED) if HOLES in states else None
    state, due_ms = NAMES[run.state], 0
    if run.state is RecordState.AVAILABLE and run.not_before_ms > now_ms:
        state, due_ms = NAMES[DELAYED], run.not_before_ms + ahead_ms
    if state not in states:
        return None
    member_id = run.member_id if run.state is RecordState.ACQUIRED else None  # else it says why it was given up
    return SeenRun(run.first, run.last, state, run.delivery_count, member_id or "", due_ms)
