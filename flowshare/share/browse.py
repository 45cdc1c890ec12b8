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
"""Offsets that one look copies: a longer window is looked at in several."""
STEP: Final = 2_048
"""Offsets that are gone through before others have a turn."""
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

_VANISHED: Final = STATES
"""Beside the states: archived and never delivered."""
_HELD: Final = frozenset((ACQUIRED, PENDING, DELAYED))
_LAST: Final = attrgetter("last")
_ONLY_BLOCKED: Final = bytes(state == BLOCKED for state in range(256))
_ONLY_HIGH: Final = bytes(count == COUNT_HIGH for count in range(256))
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


class SeenRuns(Sequence[SeenRun]):
    """Runs, ascending, kept as columns: each is made when somebody asks for it. Equal to any sequence of the same."""

    __slots__ = ("columns",)

    def __init__(self, *columns: Sequence[Any]) -> None:
        """columns: one for each field of `SeenRun`, all equally long; none: no runs. Raises: ValueError."""
        if columns and (len(columns) != len(SeenRun._fields) or len(set(map(len, columns))) > 1):
            raise ValueError(f"runs are {len(SeenRun._fields)} columns of one length")
        self.columns = columns or ((),) * len(SeenRun._fields)

    @classmethod
    def of(cls, runs: Iterable[SeenRun]) -> SeenRuns:
        """These runs."""
        return cls(*zip(*runs, strict=True))

    @property
    def firsts(self) -> Sequence[int]:
        """Where they begin."""
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
    """Offsets, both inclusive, where no record stands, and `why`."""

    first: int
    last: int
    why: str


class Seen(NamedTuple):
    """What stands at some offsets."""

    runs: SeenRuns = SeenRuns()
    holes: Sequence[Hole] = ()

    @property
    def size(self) -> int:
        """Runs and holes."""
        return len(self.runs) + len(self.holes)

    def cut(self, size: int) -> tuple[Seen, int]:
        """So many of the first runs and holes, and where the next one begins; −1: that was all."""
        if self.size <= size:
            return self, -1
        end = sorted([*self.runs.firsts, *(hole.first for hole in self.holes)])[size]
        return Seen(
            self.runs[: bisect_left(self.runs.firsts, end)], [hole for hole in self.holes if hole.first < end]
        ), end


def together(parts: Iterable[Seen]) -> Seen:
    """All that was told a few offsets at a time."""
    parts = tuple(parts)
    columns = zip(*(part.runs.columns for part in parts), strict=True)
    runs = SeenRuns(*([*chain.from_iterable(column)] for column in columns))
    return Seen(runs, [hole for part in parts for hole in part.holes])


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
        self._hashes: array[int] | None = None
        """Where something is blocked."""
        self._heads = _Heads(0, b"", array("I"))
        if window.heads is not None and window.tally[BLOCKED]:
            begin = window.start - window.base
            known = window.heads.hashes[begin:until]
            self._heads = _Heads(window.start, bytes(window.states[begin:until]), known)
            self._hashes = known[at - begin :]

    def runs(self, states: Collection[str]) -> Iterator[Seen]:
        """All that is in one of the states, ascending, what stands at a few offsets at a time; see `wanted_states`."""
        wanted = frozenset(state for state in range(STATES) if NAMES[state] in states)
        size, begun = len(self._states), 0
        for begin in range(0, size, STEP):
            end = min(begin + STEP, size)
            if self._hashes is not None and BLOCKED in wanted:
                blocked = self._states[begin:end].translate(_ONLY_BLOCKED)
                yield from self._heads.find(set(compress(self._hashes[begin:end], blocked)), self.first + end)
            edges = [begun, *self._edges(max(begin, 1), end)]
            begun = edges[-1]
            if end == size:
                edges.append(size)
            yield self._told(edges, wanted)

    def _edges(self, begin: int, end: int) -> Iterator[int]:
        """Where in `begin`..`end` (exclusive) something else stands than at the offset before."""
        differ = _differ(self._states, begin, end) | _differ(self._counts, begin, end) | _differ(self._ids, begin, end)
        if self._high:
            differ |= _number(self._counts[begin:end].translate(_ONLY_HIGH))
        if self._hashes is not None:
            blocked = _number(self._states[begin:end].translate(_ONLY_BLOCKED))
            differ |= blocked and blocked & _differ(self._hashes, begin, end)
        return compress(range(begin, end), differ.to_bytes(end - begin, "little"))

    def _told(self, edges: Sequence[int], wanted: Collection[int]) -> Seen:
        """What stands between each two edges, if it is wanted."""
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
        """A column at a time: one run at a time takes twice as long, and there may be 200,000."""
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
            known, hashes = self._heads.known, self._hashes
            heads = [
                known.get(hashes[at], -1) if kind == BLOCKED else -1 for at, kind in zip(starts, kinds, strict=True)
            ]
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
    """Of keys' hashes the first offsets that are not settled, looked for only as far as it takes to know those that are
    asked for: mostly a few thousand offsets behind the window's start, wherever a page begins."""

    def __init__(self, start: int, states: bytes, hashes: array[int]) -> None:
        """start: offset of what the others begin with."""
        self.known: dict[int, int] = {}
        self._start = start
        self._states = states
        self._hashes = hashes
        self._looked = 0

    def find(self, hashes: set[int], end: int) -> Iterator[Seen]:
        """Know the first of each of these if it is before offset `end`, a few offsets at a time."""
        while self._looked < end - self._start and hashes.difference(self.known):
            at, self._looked = self._looked, self._looked + STEP
            mask = self._states[at : at + STEP].translate(_OPEN_HEADS)
            offsets = compress(range(self._start + at, self._start + self._looked), mask)
            deque(map(self.known.setdefault, compress(self._hashes[at : at + STEP], mask), offsets), maxlen=0)
            yield Seen()


def _differ(column: bytes | array[int], begin: int, end: int) -> int:
    """A number with a byte for each of `begin`..`end` (exclusive): 1 where it is not as the one before."""
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
    """The same of what is stored, from offset `first` on. now_ms: by which delays are reckoned; ahead_ms: as `Look`."""
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
    member_id = run.member_id if run.state is RecordState.ACQUIRED else None  # else it says why it was given up
    return SeenRun(first, run.last, state, run.delivery_count, member_id or "", due_ms)
