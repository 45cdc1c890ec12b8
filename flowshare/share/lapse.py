"""Steps that take offsets back without a member's request: lapsed locks, members that left, delays that are over, and a
log start that moved.

Offsets with a pending acknowledgement are left alone: their hold is marked lapsed, and the write decides. If the write
succeeds, the acknowledgement counts; if it fails, `abort` takes the offsets back (SG-8.3).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from flowshare.share.heads import Heads
from flowshare.share.holds import Hold
from flowshare.share.state import Event, step
from flowshare.share.types import (
    ACQUIRED,
    ARCHIVED,
    ARCHIVING,
    AVAILABLE,
    BLOCKED,
    DELAYED,
    PENDING,
    Limits,
    PartitionUpdate,
    RecordState,
    StateRun,
)
from flowshare.share.window import Window


class Lapsed(NamedTuple):
    """The result of a lapse: the update to be stored; `orphaned`: its runs that members held which are gone."""

    update: PartitionUpdate | None
    orphaned: list[StateRun]


def lapse(window: Window, limits: Limits, now_ms: int) -> Lapsed:
    """Take back the locks whose time has come (SG-8.1) and free delayed records that are due (SG-7.10)."""
    due = window.holds.take_due(now_ms)
    for hold in due:
        if hold.member_id is None:
            for first, last in list(_held_in(window, hold, DELAYED)):
                window.let_go(first, last)
                window.put(first, last, DELAYED, AVAILABLE)
    orphaned: list[StateRun] = []
    update = _take_holds_back(window, limits, [hold for hold in due if hold.member_id is not None], orphaned)
    return Lapsed(update, orphaned)


def release_member(window: Window, limits: Limits, member_id: str) -> PartitionUpdate | None:
    """Take back all offsets of a member."""
    return _take_holds_back(window, limits, window.holds.take_member(member_id))


def leave_to_locks(window: Window, member_id: str) -> None:
    """Leave the offsets of a member that is gone without leaving locked until their locks lapse, as its process may
    live."""
    for hold in window.holds.take_member(member_id):
        hold.orphan = True


def take_back(window: Window, limits: Limits, pieces: Iterable[tuple[int, int]], state: int) -> list[StateRun]:
    """Free pieces, all in `state` (ACQUIRED or PENDING), after their lock lapsed or their member left: AVAILABLE again,
    or finished at the delivery limit."""
    runs: list[StateRun] = []
    for piece_first, piece_last in pieces:
        window.let_go(piece_first, piece_last)
        for first, last, count in list(window.counted(piece_first, piece_last)):
            after = step(RecordState.ACQUIRED, Event.LAPSE, count, limits)
            window.put(first, last, state, after)
            runs.append(StateRun(first, last, after, count))
    return runs


def untake(window: Window, pieces: Iterable[tuple[int, int]]) -> None:
    """Free pieces, all ACQUIRED, that no member has seen: nothing was written of them, and no delivery is counted."""
    for piece_first, piece_last in pieces:
        window.let_go(piece_first, piece_last)
        for first, last, count in list(window.counted(piece_first, piece_last)):
            window.set_count(first, last, count - 1)
            window.put(first, last, ACQUIRED, AVAILABLE)


def move_log_start(window: Window, log_start: int) -> PartitionUpdate | None:
    """Forget the offsets that the log no longer has; members may still acknowledge the ones they hold, without
    effect."""
    if log_start <= window.start:
        return None
    if window.heads is not None:
        return _move_ordered(window, window.heads, log_start)
    window.drop_below(log_start)
    window.advance()
    return window.update(())


def _move_ordered(window: Window, heads: Heads, log_start: int) -> PartitionUpdate | None:
    """Follow the log start in an order by key: a held record blocks its key, so it stays until it is settled or
    lapses."""
    stored: list[StateRun] = []
    at, last = window.start, min(log_start, window.end) - 1
    while at <= last:  # run by run: archiving one may free another behind it
        state = window.states[at - window.base]
        until = at if state == BLOCKED else window.same_until(at, last)
        if state in (ACQUIRED, PENDING):
            if until >= heads.known_end:
                heads.barrier = until
        elif state in (AVAILABLE, DELAYED, BLOCKED, ARCHIVING):
            for first, high, count in list(window.counted(at, until)):
                window.let_go(first, high)
                window.put(first, high, state, ARCHIVED)
                stored.append(StateRun(first, high, RecordState.ARCHIVED, count))
        at = until + 1
    heads.known_end = max(heads.known_end, log_start)
    if window.gap_start >= 0:
        window.close_gap(log_start)
    before = window.start
    window.advance()
    if window.start == window.end < log_start:
        window.clear(log_start)
    return window.update(stored) if stored or window.start != before else None


def _take_holds_back(
    window: Window, limits: Limits, holds: Iterable[Hold], orphaned: list[StateRun] | None = None
) -> PartitionUpdate | None:
    runs: list[StateRun] = []
    for hold in holds:
        hold.lapsed = True
        if hold.unconfirmed:
            untake(window, list(_held_in(window, hold, ACQUIRED)))
            continue
        taken = take_back(window, limits, list(_held_in(window, hold, ACQUIRED)), ACQUIRED)
        if hold.orphan and orphaned is not None:
            orphaned += taken
        runs += taken
    if not runs:
        return None
    window.advance()
    return window.update(runs)


def _held_in(window: Window, hold: Hold, state: int) -> Iterator[tuple[int, int]]:
    """Yield the pieces of a hold that are in `state`, as (first, last)."""
    at, last = max(hold.first, window.start), hold.last
    while (at := window.states.find(state, at - window.base, last + 1 - window.base) + window.base) >= window.base:
        until = window.same_until(at, last)
        for first, piece_last, hold_id in window.held(at, until):
            if hold_id == hold.hold_id:
                yield first, piece_last
        at = until + 1
