"""Reload of a share-partition: stored runs become its window again, with locks of living members, delays, holes,
suspects (SG-2.4, SG-2.5)."""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import Final

from flowshare.core_errors import StateCorrupt
from flowshare.share.quarantine import SUSPECT_AT, Quarantine
from flowshare.share.state import Event, step
from flowshare.share.types import AVAILABLE, DELAY_MS_MAX, DELAYED, HOLE, Limits, RecordState, StateRun
from flowshare.share.window import Window

SPAN_MAX: Final = 1 << 28
"""The most offsets that a stored state may span from start to end; a wider one counts as corrupt, as the window holds
bytes for each."""


def reload(
    window: Window,
    quarantine: Quarantine,
    limits: Limits,
    runs: Sequence[StateRun],
    *,
    living: Container[str],
    gone: Container[str],
    now_ms: int,
) -> None:
    """Put stored runs into an empty window; see `SharePartition` for the arguments. Raises StateCorrupt (SG-2.6)."""
    end, gap_start = window.start, -1
    for run in runs:
        if run.first < end or run.last < run.first:
            raise StateCorrupt(f"stored run {run.first}-{run.last} starts below {end} or ends before it starts")
        if run.last - window.start >= SPAN_MAX:
            raise StateCorrupt(f"stored run {run.first}-{run.last} is too far from the start offset {window.start}")
        if run.first > end and gap_start < 0:
            gap_start = end
        _place(window, quarantine, limits, run, living=living, gone=gone, now_ms=now_ms)
        end = run.last + 1
    window.gap_start = gap_start
    window.advance()


def _place(
    window: Window,
    quarantine: Quarantine,
    limits: Limits,
    run: StateRun,
    *,
    living: Container[str],
    gone: Container[str],
    now_ms: int,
) -> None:
    first, last, size = run.first, run.last, run.last - run.first + 1
    window.grow(last)
    window.cached.add(first, last)
    window.set_count(first, last, run.delivery_count)
    state = int(run.state)
    member_id = run.member_id
    lives = member_id is not None and member_id in living
    may_live = lives or (window.heads is not None and member_id is not None and member_id not in gone)
    if run.state is RecordState.ACQUIRED and member_id is not None and may_live:
        # With an order, a member that is out of its group may still be at work: its keys wait for its lock.
        hold = window.holds.open(member_id, now_ms + limits.lock_duration_ms, first, last, size)
        hold.orphan = not lives
        window.hold(first, last, hold.hold_id)
    elif run.state is RecordState.ACQUIRED:
        state = int(step(RecordState.ACQUIRED, Event.LAPSE, run.delivery_count, limits))
        if state == AVAILABLE and run.delivery_count >= SUSPECT_AT and limits.deliveries_end:
            quarantine.suspect(first, last)
    elif run.state is RecordState.AVAILABLE and run.not_before_ms > now_ms:
        state = DELAYED
        due_ms = min(run.not_before_ms, now_ms + DELAY_MS_MAX)  # by a clock that may have been set since
        window.hold(first, last, window.holds.open(None, due_ms, first, last, size).hold_id)
    window.put(first, last, HOLE, state)
