"""Records whose dead letter is to be written before they are finished (KIP-1191)."""

from __future__ import annotations

from typing import NamedTuple

from flowshare.share.state import Event, step
from flowshare.share.types import Limits, PartitionUpdate, RecordState, StateRun
from flowshare.share.window import ARCHIVED, ARCHIVING, Window


class Archiving(NamedTuple):
    """Records whose dead letter is to be written. `by_limit`: they used up their deliveries, else were rejected."""

    first: int
    last: int
    delivery_count: int
    by_limit: bool


def finish(window: Window, limits: Limits, first: int, last: int) -> PartitionUpdate | None:
    """Finish the ARCHIVING records within `first`..`last`: their dead letter is written, or given up."""
    runs: list[StateRun] = []
    for run in list(window.runs(max(first, window.start), min(last, window.end - 1))):
        if run.state == ARCHIVING:
            after = step(RecordState.ARCHIVING, Event.BURY, run.delivery_count, limits)
            window.put(run.first, run.last, ARCHIVING, ARCHIVED)
            runs.append(StateRun(run.first, run.last, after, run.delivery_count))
    if not runs:
        return None
    window.advance()
    return window.update(runs)
