"""Acts of an operator on records of a share-partition that others hold, or that wait: docs/share-groups.md, SG-13.7.

Invariants, as for every other step: an offset is moved by `state.step` only. In an order, the first open record of a
key is not blocked; all others are blocked, or are held in a chain (`heads`). A member's acknowledgement of a record
that was taken away is refused, like any of a record that it does not hold (any more).

| the record is | release | reject | dead_letter | now |
|---|---|---|---|---|
| ACQUIRED | AVAILABLE; at the delivery limit as when its lock lapses | ARCHIVED | ARCHIVING | not held |
| ACQUIRED within a chain, the one before it open | the same, BLOCKED | blocked | blocked | not held |
| ACQUIRED in an order, its key not known yet (after a reload) | busy | ARCHIVED | busy | not held |
| ACQUIRED, its records being read for its member | busy | busy | busy | busy |
| PENDING: an acknowledgement is being written | busy | busy | busy | busy |
| DELAYED | not held | ARCHIVED | ARCHIVING | AVAILABLE |
| AVAILABLE | not held | ARCHIVED | ARCHIVING (in an order, its key not known yet: busy) | not held |
| one of these two, and free of the one before in its key by a write under way | as it is | as it is | busy | as it is |
| BLOCKED | blocked | blocked | blocked | blocked |
| ARCHIVING, finished, a hole | gone | gone | gone | gone |
| not in the window yet | not held | not held | not held | not held |

A record that is released or becomes a dead letter takes the records that are held behind it in its chain along, back to
BLOCKED: their member must not go on with the key while the record is not settled. A delivery that was begun counts, as
when a lock lapses. A rejected record has no dead letter, whatever the group's settings say, and parks no key. A record
that becomes a dead letter has one, and parks its key where dead letters do that. ARCHIVING is stored with `OPERATOR`
beside it, so that the reason outlives a restart.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterator, Sequence
from typing import Final, NamedTuple

from flowshare.share.heads import Heads
from flowshare.share.lapse import take_back
from flowshare.share.state import Event, step
from flowshare.share.types import (
    ACQUIRED,
    AVAILABLE,
    BLOCKED,
    DELAYED,
    PENDING,
    Limits,
    PartitionUpdate,
    RecordState,
    StateRun,
)
from flowshare.share.window import Run, Window

OPERATOR: Final = "operator"
"""Value in the place of a member's id, beside records that an operator gave up."""


class Act(enum.StrEnum):
    """The acts of an operator."""

    RELEASE = "release"
    REJECT = "reject"
    DEAD_LETTER = "dead_letter"
    NOW = "now"


class Outcome(enum.IntEnum):
    """The outcome for a record; the number is its place in `Intervened`, behind the range."""

    DONE = 2
    NOT_HELD = 3
    GONE = 4
    BUSY = 5
    BLOCKED = 6


class Intervened(NamedTuple):
    """The outcomes for the records of a range: counts that sum up to its size. See the table above."""

    first: int
    last: int
    done: int = 0
    not_held: int = 0
    gone: int = 0
    busy: int = 0
    blocked: int = 0


class Intervention(NamedTuple):
    """The result of an act: an outcome for each range, and the update to be stored; None: nothing was changed.

    changes: all changed records; the update leaves out those that the start offset has passed.
    """

    found: tuple[Intervened, ...]
    update: PartitionUpdate | None
    changes: Sequence[StateRun] = ()


_EVENTS: Final = {Act.REJECT: Event.DISCARD, Act.DEAD_LETTER: Event.GIVE_UP}


def intervene(
    window: Window, limits: Limits, act: Act, ranges: Sequence[tuple[int, int]], *, dry_run: bool
) -> Intervention:
    """Apply an act to the records of `ranges` (ascending, disjoint) that allow it; dry_run: only count the outcomes."""
    found: list[Intervened] = []
    pieces: list[tuple[int, int]] = []
    for first, last in ranges:
        counts = [first, last, 0, 0, 0, 0, 0]
        for low, high, outcome in _outcomes(window, act, first, last):
            counts[outcome] += high - low + 1
            if outcome is Outcome.DONE:
                pieces.append((low, high))
        found.append(Intervened(*counts))
    if dry_run or not pieces:
        return Intervention(tuple(found), None)
    runs: list[StateRun] = []
    if window.heads is not None and act in (Act.RELEASE, Act.DEAD_LETTER):
        pieces = sorted({*pieces, *((one, one) for one in _chained_behind(window, window.heads, pieces))})
    for low, high in pieces:
        runs += _done(window, limits, act, low, high)
    window.advance()
    return Intervention(tuple(found), window.update(runs), runs)


def _outcomes(window: Window, act: Act, first: int, last: int) -> Iterator[tuple[int, int, Outcome]]:
    """Cut a range by outcome; nothing is changed."""
    if first < window.start:
        yield first, min(last, window.start - 1), Outcome.GONE
    at = max(first, window.start)
    for run in window.runs(at, min(last, window.end - 1)):
        if at < run.first:
            yield at, run.first - 1, Outcome.GONE  # a hole
        yield from _of_run(window, act, run)
        at = run.last + 1
    until = min(last, window.end - 1)
    if at <= until:
        yield at, until, Outcome.GONE
    if last >= max(first, window.end):
        yield max(first, window.end), last, Outcome.NOT_HELD


def _of_run(window: Window, act: Act, run: Run) -> Iterator[tuple[int, int, Outcome]]:
    first, last, state = run.first, run.last, run.state
    if state == PENDING or (state == ACQUIRED and window.holds.by_id[run.hold_id].unconfirmed):
        yield first, last, Outcome.BUSY
    elif state == BLOCKED:
        yield first, last, Outcome.BLOCKED
    elif state not in (ACQUIRED, DELAYED, AVAILABLE):
        yield first, last, Outcome.GONE
    elif (act is Act.RELEASE and state != ACQUIRED) or (act is Act.NOW and state != DELAYED):
        yield first, last, Outcome.NOT_HELD
    elif window.heads is not None and act is not Act.NOW:
        yield from _in_order(window.heads, act, first, last)
    else:
        yield first, last, Outcome.DONE


def _in_order(heads: Heads, act: Act, first: int, last: int) -> Iterator[tuple[int, int, Outcome]]:
    """Cut a held or free range by outcome, in an order by key."""
    known = min(last, heads.known_end - 1)
    if first <= known:
        for low, high, waits in heads.pieces(first, known):
            if waits and act is not Act.RELEASE:
                yield low, high, Outcome.BLOCKED
            elif act is Act.DEAD_LETTER:
                yield from _sure(heads, low, high)
            else:
                yield low, high, Outcome.DONE
        first = known + 1
    if first <= last:
        yield first, last, Outcome.DONE if act is Act.REJECT else Outcome.BUSY


def _sure(heads: Heads, first: int, last: int) -> Iterator[tuple[int, int, Outcome]]:
    """Cut a range by outcome for DEAD_LETTER. A record that is first of its key only if a write under way succeeds is
    BUSY: it must stay able to be blocked again."""
    for offset in heads.unsure(first, last):
        if first < offset:
            yield first, offset - 1, Outcome.DONE
        yield offset, offset, Outcome.BUSY
        first = offset + 1
    if first <= last:
        yield first, last, Outcome.DONE


def _chained_behind(window: Window, heads: Heads, pieces: Sequence[tuple[int, int]]) -> Iterator[int]:
    """Yield the offsets that are held behind these pieces in their chains."""
    if not heads.chained:
        return
    taken: Collection[int] = {offset for first, last in pieces for offset in range(first, last + 1)}
    for offset in heads.chained:
        held = offset >= window.start and window.states[offset - window.base] == ACQUIRED
        if held and offset not in taken and any(before in taken for before in heads.chain_before(offset)):
            yield offset


def _done(window: Window, limits: Limits, act: Act, first: int, last: int) -> list[StateRun]:
    """Apply the act; return the runs to be stored. Records that an earlier step took along are left out."""
    window.cached.explode(first, last)
    runs: list[StateRun] = []
    for run in list(window.runs(first, last)):
        piece = (run.first, run.last)
        if run.state == ACQUIRED and (act is Act.RELEASE or _waits(window, run)):
            runs += take_back(window, limits, [piece], ACQUIRED)
            continue
        window.let_go(*piece)
        if act is Act.NOW:
            window.put(*piece, DELAYED, AVAILABLE)
            runs.append(StateRun(*piece, RecordState.AVAILABLE, run.delivery_count))
            continue
        before = RecordState.ACQUIRED if run.state == ACQUIRED else RecordState.AVAILABLE
        after = step(before, _EVENTS[act], run.delivery_count, limits)
        window.put(*piece, run.state, after)
        who = OPERATOR if after is RecordState.ARCHIVING else None
        runs.append(StateRun(*piece, after, run.delivery_count, who))
    return runs


def _waits(window: Window, run: Run) -> bool:
    """True if the run stands behind an open record in a chain, and so is taken along with it."""
    return window.heads is not None and run.first == run.last and window.heads.waits(run.first)
