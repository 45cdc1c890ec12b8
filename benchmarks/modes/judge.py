"""Judge a trial: decide if it counts and compute figures from its events. Nothing here waits or measures."""

from __future__ import annotations

import statistics
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from benchmarks.modes.arms import AT_MOST, EXACTLY
from benchmarks.modes.journal import Event, Kind

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from benchmarks.modes.arms import Arm

RATE_BACK = 0.95
STEP_S = 0.05
GRACE_S = 0.1
"""A record that is due gets so long before it counts as missing."""


def complaints(arm: Arm, events: Sequence[Event], records: int, keys: int, *, crashed: bool = False) -> list[str]:
    """Return the promises that the arm broke; an empty list means that the trial counts.

    events: sorted by time. crashed: a process was killed, which may cost an at-most-once arm records.
    """
    begun = Counter(one.record for one in events if one.kind == Kind.BEGUN)
    ended = Counter(one.record for one in events if one.kind == Kind.ENDED)
    seen = begun or ended
    found = []
    strange = [record for record in seen if not 0 <= record < records]
    if strange:
        found.append(f"{len(strange)} records that nobody sent, {strange[0]} for one")
    if arm.delivery == AT_MOST:
        again = sum(count > 1 for count in seen.values())
        if again:
            found.append(f"{again} records ran twice")
        missing = 0 if crashed else records - len(seen)
    else:
        missing = sum(record not in ended for record in range(records))
    if missing:
        found.append(f"{missing} of {records} records never ended")
    if arm.ordered and not (crashed and arm.delivery == AT_MOST):
        early = out_of_order(events, keys, begun_is_enough=arm.delivery == AT_MOST)
        if early:
            found.append(f"{early} records began before the one before them of their key had ended")
    return found


def out_of_order(events: Sequence[Event], keys: int, *, begun_is_enough: bool = False) -> int:
    """How many records began, the first time, when the one before of their key had not ended.

    The key of a record is its number modulo `keys`. begun_is_enough: a record that failed is not tried again.
    """
    over: set[int] = set()
    begun: set[int] = set()
    early = 0
    for one in events:
        if one.record not in begun and one.kind in (Kind.BEGUN, Kind.ENDED):
            begun.add(one.record)
            before = one.record - keys
            if before >= 0 and before not in over:
                early += 1
        if one.kind == Kind.ENDED or (begun_is_enough and one.kind == Kind.BEGUN):
            over.add(one.record)
    return early


def output_complaints(arm: Arm, outputs: Mapping[int, int], records: int) -> list[str]:
    """Of an arm that sends: lost or repeated outputs."""
    lost = sum(outputs.get(record, 0) == 0 for record in range(records))
    again = sum(count > 1 for count in outputs.values())
    found = [f"{lost} outputs of {records} are missing"] if lost else []
    if again and arm.delivery == EXACTLY:
        found.append(f"{again} outputs are there twice")
    return found


# --- figures ------------------------------------------------------------------------------------------------------


class Spread(NamedTuple):
    """Of a cell's samples."""

    median: float
    low: float
    high: float
    count: int


def spread(values: Sequence[float]) -> Spread:
    """Raises: statistics.StatisticsError when there are none."""
    return Spread(statistics.median(values), min(values), max(values), len(values))


def quantile(ordered: Sequence[float], part: float) -> float:
    """The value that so much of them is at or below; `ordered` is sorted and not empty.

    >>> quantile([1.0, 2.0, 3.0, 4.0], 0.5), quantile([1.0, 2.0], 0.99)
    (2.0, 2.0)
    """
    place = -(-len(ordered) * part // 1) - 1
    return ordered[min(len(ordered) - 1, max(0, int(place)))]


def first_ends(events: Sequence[Event]) -> dict[int, float]:
    """When each record ended for the first time."""
    found: dict[int, float] = {}
    for one in events:
        if one.kind == Kind.ENDED:
            found.setdefault(one.record, one.at)
    return found


def rate_within(events: Sequence[Event], begin: float, end: float) -> float:
    """Records a second that ended between two times."""
    return sum(one.kind == Kind.ENDED and begin <= one.at < end for one in events) / (end - begin)


def rate_after(events: Sequence[Event], part: float) -> float:
    """Records a second when the first `part` of the events is left out, as warm-up."""
    ends = [one.at for one in events if one.kind == Kind.ENDED]
    warm = int(len(ends) * part)
    return (len(ends) - 1 - warm) / (ends[-1] - ends[warm])


def duplicates(events: Sequence[Event]) -> int:
    """How many handlers began beyond one a record."""
    begun = [one.record for one in events if one.kind == Kind.BEGUN]
    return len(begun) - len(set(begun))


def redeliveries(events: Sequence[Event]) -> list[float]:
    """Seconds from each failure to the next attempt at the record."""
    failed: dict[int, float] = {}
    found = []
    for one in events:
        if one.kind == Kind.FAILED:
            failed[one.record] = one.at
        elif one.kind == Kind.BEGUN and one.record in failed:
            found.append(one.at - failed.pop(one.record))
    return sorted(found)


def back_after(ends: Mapping[int, float], due: Callable[[int], float], records: range, killed_at: float) -> float:
    """Seconds after a kill from which on 95 % of the records that have become due since are done at any time.

    ends: when records ended first. records: those that come after the kill, by number, due one after the other.
    """
    after = [one for one in records if due(one) >= killed_at]
    back = 0.0
    at = killed_at + 2 * GRACE_S
    while after and at < due(after[-1]):
        ready = [one for one in after if due(one) <= at - GRACE_S]
        done = sum(ends.get(one, at + 1) <= at for one in ready)
        if done < RATE_BACK * len(ready):
            back = at + STEP_S - killed_at
        at += STEP_S
    return back
