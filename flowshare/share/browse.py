"""Read-only view of a share-partition's window, run by run: docs/share-groups.md, SG-13.6.

A `Look` is a copy of the window's bytes, made at once. Its runs are cut afterwards, a few at a time, while the window
goes on changing. So a page shows one moment, and no caller waits for it. `stored_runs` gives the same view of the
stored state of a share-partition that is not loaded, without the facts that only a loaded one knows: which records are
blocked, and until when locks hold.

| state | |
|---|---|
| available | waits for a member |
| delayed | the same, but not before `due_ms` |
| blocked | in an order by key: waits for the offset `head`, the first of its key that is not settled |
| acquired | `member_id` holds it, until `due_ms`; in a chain behind an unfinished one of its key, which is at `head` |
| pending | the same, and an acknowledgement of it is being written |
| archiving | its dead letter is being written |
| acknowledged, archived | finished, and the start offset has not passed it |

Offsets without a record are a `Hole`.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain, compress
from operator import attrgetter, ne
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast, overload

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
from flowshare.share.window import COUNT_HIGH, Window

if TYPE_CHECKING:
    from flowshare.share.holds import Hold

SPAN_MAX: Final = 1 << 18
"""Offsets that one look copies; a longer window takes several looks."""
STEP: Final = 2_048
"""Offsets that are gone through before other work has a turn."""
NAMES: Final = (
    "available", "acquired", "acknowledged", "archiving", "archived", "hole", "delayed", "pending", "blocked",
)  # fmt: skip
"""The names of the states, by their bytes."""
SEEN_STATES: Final = frozenset(NAMES) - {"hole"}
"""States that a run may be in."""
HOLES: Final = "hole"
"""A choice beside the states: offsets without a record."""
RETENTION: Final = "retention"
"""Reason of a hole: it is below the log's start."""
LOG: Final = "log"
"""Reason of a hole: the log has no record there; compaction took it, or it is a transaction's marker."""
VANISHED: Final = "vanished"
"""Reason of a hole: archived and never delivered; compaction, retention or an abort took the record first."""
UNREAD: Final = "unread"
"""Reason of a hole: unknown after a reload; the log is read again, and its records are delivered."""

_VANISHED: Final = STATES
"""A kind beside the states: archived and never delivered."""
_HELD: Final = frozenset((ACQUIRED, PENDING, DELAYED))
_WAITING: Final = frozenset((ACQUIRED, PENDING, BLOCKED))
"""States in which an offset may wait for another one of its key."""
_LAST: Final = attrgetter("last")
_ONLY_BLOCKED: Final = bytes(state == BLOCKED for state in range(256))
_ONLY_HIGH: Final = bytes(count == COUNT_HIGH for count in range(256))
_OPEN_HEADS: Final = bytes(
    state in (AVAILABLE, ACQUIRED, DELAYED, PENDING, RecordState.ARCHIVING) for state in range(256)
)


class SeenRun(NamedTuple):
    """Equal offsets `first`..`last`. due_ms: by the machine's clock; 0: none, or not known.

    head: the offset that these wait for, in an order by key; −1: none.
    """

    first: int
    last: int
    state: str
    delivery_count: int = 0
    member_id: str = ""
    due_ms: int = 0
    head: int = -1


class SeenRuns(Sequence[SeenRun]):
    """Runs, ascending, kept as columns: each run is made on access. Equal to any sequence of the same runs."""

    __slots__ = ("columns",)

    def __init__(self, *columns: Sequence[Any]) -> None:
        """columns: one for each field of `SeenRun`, all equally long; none: no runs. Raises ValueError."""
        if columns and (len(columns) != len(SeenRun._fields) or len(set(map(len, columns))) > 1):
            raise ValueError(f"runs are {len(SeenRun._fields)} columns of one length")
        self.columns = columns or ((),) * len(SeenRun._fields)

    @classmethod
    def of(cls, runs: Iterable[SeenRun]) -> SeenRuns:
        """Return these as columns."""
        return cls(*zip(*runs, strict=True))

    @property
    def firsts(self) -> Sequence[int]:
        """The first offsets of the runs."""
        return self.columns[0]

    def __len__(self) -> int:
        return len(self.firsts)

    def __iter__(self) -> Iterator[SeenRun]:
        return map(SeenRun._make, zip(*self.columns, strict=True))

    @overload
    def __getitem__(self, at: int) -> SeenRun: ...
    @overload
    def __getitem__(self, at: slice) -> SeenRuns: ...
    def __getitem__(self, at: int | slice) -> SeenRun | SeenRuns:
        found = [column[at] for column in self.columns]
        return SeenRuns(*found) if isinstance(at, slice) else SeenRun._make(found)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and tuple(self) == tuple(cast("Sequence[object]", other))

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return f"SeenRuns.of({list(self)})"


class Hole(NamedTuple):
    """Offsets `first`..`last` without a record, and the reason `why`."""

    first: int
    last: int
    why: str


class Seen(NamedTuple):
    """The runs and holes of some offsets."""

    runs: SeenRuns = SeenRuns()
    holes: Sequence[Hole] = ()

    @property
    def size(self) -> int:
        """The number of runs and holes."""
        return len(self.runs) + len(self.holes)

    def cut(self, size: int) -> tuple[Seen, int]:
        """Return the first `size` runs and holes, and the offset of the next one; −1: none is left."""
        if self.size <= size:
            return self, -1
        end = sorted([*self.runs.firsts, *(hole.first for hole in self.holes)])[size]
        return Seen(
            self.runs[: bisect_left(self.runs.firsts, end)], [hole for hole in self.holes if hole.first < end]
        ), end


def together(parts: Iterable[Seen]) -> Seen:
    """Join parts that were read a few offsets at a time."""
    parts = tuple(parts)
    columns = zip(*(part.runs.columns for part in parts), strict=True)
    runs = SeenRuns(*([*chain.from_iterable(column)] for column in columns))
    return Seen(runs, [hole for part in parts for hole in part.holes])


def wanted_states(states: Collection[str]) -> frozenset[str]:
    """Return the named states, all states for no names. Raises ValueError for an unknown state."""
    if unknown := sorted(set(states) - SEEN_STATES - {HOLES}):
        raise ValueError(f"there is no state {unknown[0]!r}; there are {', '.join(sorted(SEEN_STATES | {HOLES}))}")
    return frozenset(states) or SEEN_STATES | {HOLES}


class Look:
    """The offsets `first`..`end` (exclusive) of a window as they were when the look was made."""

    def __init__(self, window: Window, first: int, *, ahead_ms: int = 0) -> None:
        """first: the offset to begin at, moved into the window. ahead_ms: how far the machine's clock is ahead of the
        deadlines' clock."""
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
        self._hashes: array[int] | None = None
        """Key hashes, None if no offset waits for another one of its key."""
        self._behind = b""
        """By offset: 1 if it waits for another one of its key."""
        self._heads = _Heads(0, b"", array("I"))
        if window.heads is not None and (window.tally[BLOCKED] or window.heads.chained):
            begin = window.start - window.base
            known = window.heads.hashes[begin:until]
            self._heads = _Heads(window.start, bytes(window.states[begin:until]), known)
            self._hashes = known[at - begin :]
            behind = bytearray(self._states.translate(_ONLY_BLOCKED))
            for offset in window.heads.waiting():
                if first <= offset < self.end:
                    behind[offset - first] = True
            self._behind = bytes(behind)

    def runs(self, states: Collection[str]) -> Iterator[Seen]:
        """Yield the runs and holes of the states, ascending, a few offsets at a time; see `wanted_states`."""
        wanted = frozenset(state for state in range(STATES) if NAMES[state] in states)
        size, begun = len(self._states), 0
        for begin in range(0, size, STEP):
            end = min(begin + STEP, size)
            if self._hashes is not None and not _WAITING.isdisjoint(wanted):
                behind = self._behind[begin:end]
                yield from self._heads.find(set(compress(self._hashes[begin:end], behind)), self.first + end)
            edges = [begun, *self._edges(max(begin, 1), end)]
            begun = edges[-1]
            if end == size:
                edges.append(size)
            yield self._told(edges, wanted)

    def _edges(self, begin: int, end: int) -> Iterator[int]:
        """Yield the offsets in `begin`..`end` (exclusive) that differ from the offset before."""
        differ = _differ(self._states, begin, end) | _differ(self._counts, begin, end) | _differ(self._ids, begin, end)
        if self._high:
            differ |= _number(self._counts[begin:end].translate(_ONLY_HIGH))
        if self._hashes is not None:
            differ |= _differ(self._behind, begin, end)
            behind = _number(self._behind[begin:end])
            differ |= behind and behind & _differ(self._hashes, begin, end)
        return compress(range(begin, end), differ.to_bytes(end - begin, "little"))

    def _told(self, edges: Sequence[int], wanted: Collection[int]) -> Seen:
        """Return the wanted runs and holes, one between each two edges."""
        starts, ends = edges[:-1], edges[1:]
        kinds = bytes(map(self._states.__getitem__, starts))
        if ARCHIVED in kinds:
            kinds = bytes(
                _VANISHED if kind == ARCHIVED and not self._counts[at] else kind
                for at, kind in zip(starts, kinds, strict=True)
            )
        holes: list[Hole] = []
        if HOLE in wanted and (HOLE in kinds or _VANISHED in kinds):
            for at, until, kind in zip(starts, ends, kinds, strict=True):
                if kind in (HOLE, _VANISHED):
                    holes += self._holes(self.first + at, self.first + until - 1, vanished=kind == _VANISHED)
        mask = [kind != HOLE and kind in wanted for kind in kinds]
        if not all(mask):
            starts, ends = [*compress(starts, mask)], [*compress(ends, mask)]
            kinds = bytes(compress(kinds, mask))
        return Seen(self._runs(starts, ends, kinds), holes)

    def _runs(self, starts: Sequence[int], ends: Sequence[int], kinds: bytes) -> SeenRuns:
        """Build runs column by column: run by run takes twice as long, and there may be 200,000."""
        first, counts = self.first, [*map(self._counts.__getitem__, starts)]
        if self._high:
            counts = [self._high.get(first + at, count) for at, count in zip(starts, counts, strict=True)]
        members, due_ms, heads = [""] * len(starts), [0] * len(starts), [-1] * len(starts)
        if not _HELD.isdisjoint(kinds):
            for place, (at, kind) in enumerate(zip(starts, kinds, strict=True)):
                if kind in _HELD:
                    hold = self._holds[self._ids[at]]
                    members[place], due_ms[place] = hold.member_id or "", hold.due_ms + self._ahead_ms
        if self._hashes is not None:
            known, hashes, behind = self._heads.known, self._hashes, self._behind
            heads = [known.get(hashes[at], -1) if behind[at] else -1 for at in starts]
        return SeenRuns(
            [first + at for at in starts],
            [first + until - 1 for until in ends],
            [*map(NAMES.__getitem__, kinds)],
            counts,
            members,
            due_ms,
            heads,
        )

    def _holes(self, first: int, last: int, *, vanished: bool) -> Iterator[Hole]:
        if vanished:
            yield Hole(first, last, VANISHED)
            return
        unread = last + 1 if self._gap_start < 0 else max(first, self._gap_start)
        if first < unread:
            yield Hole(first, min(last, unread - 1), LOG)
        if unread <= last:
            yield Hole(unread, last, UNREAD)


class _Heads:
    """The first unsettled offsets of key hashes, found only as far as needed: mostly a few thousand offsets behind the
    window's start, wherever a page begins."""

    def __init__(self, start: int, states: bytes, hashes: array[int]) -> None:
        """start: the offset of the first entry of `states` and `hashes`."""
        self.known: dict[int, int] = {}
        self._start = start
        self._states = states
        self._hashes = hashes
        self._looked = 0

    def find(self, hashes: set[int], end: int) -> Iterator[Seen]:
        """Find the first offset of each hash if it is before `end`, a few offsets at a time."""
        while self._looked < end - self._start and hashes.difference(self.known):
            at, self._looked = self._looked, self._looked + STEP
            mask = self._states[at : at + STEP].translate(_OPEN_HEADS)
            offsets = compress(range(self._start + at, self._start + self._looked), mask)
            deque(map(self.known.setdefault, compress(self._hashes[at : at + STEP], mask), offsets), maxlen=0)
            yield Seen()


def _differ(column: bytes | array[int], begin: int, end: int) -> int:
    """Return a number with one byte for each of `begin`..`end` (exclusive): 1 where it differs from the one before."""
    here, before = column[begin:end], column[begin - 1 : end - 1]
    return 0 if here == before else _number(bytes(map(ne, here, before)))


def _number(marks: bytes) -> int:
    return int.from_bytes(marks, "little")


def stored_runs(
    start_offset: int,
    runs: Sequence[StateRun],
    states: Collection[str],
    *,
    first: int,
    now_ms: int,
    ahead_ms: int = 0,
) -> Iterator[Seen]:
    """Yield the stored runs and holes from offset `first` on. now_ms: decides which delays are over; ahead_ms: as in
    `Look`."""
    at = bisect_left(runs, first, key=_LAST)
    end = runs[at - 1].last + 1 if at else start_offset
    for begin in range(at, len(runs), STEP):
        found: list[SeenRun] = []
        holes: list[Hole] = []
        for run in runs[begin : begin + STEP]:
            if run.first > end and HOLES in states:
                holes.append(Hole(max(end, first), run.first - 1, UNREAD))
            end = run.last + 1
            seen = _stored_run(run, max(run.first, first), now_ms, ahead_ms)
            if isinstance(seen, Hole):
                holes += [seen] if HOLES in states else []
            elif seen.state in states:
                found.append(seen)
        yield Seen(SeenRuns.of(found), holes)


def _stored_run(run: StateRun, first: int, now_ms: int, ahead_ms: int) -> SeenRun | Hole:
    if run.state is RecordState.ARCHIVED and not run.delivery_count:
        return Hole(first, run.last, VANISHED)
    state, due_ms = NAMES[run.state], 0
    if run.state is RecordState.AVAILABLE and run.not_before_ms > now_ms:
        state, due_ms = NAMES[DELAYED], run.not_before_ms + ahead_ms
    member_id = run.member_id if run.state is RecordState.ACQUIRED else None  # else it tells why the run was given up
    return SeenRun(first, run.last, state, run.delivery_count, member_id or "", due_ms)
