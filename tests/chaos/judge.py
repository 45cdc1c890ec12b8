"""The judgement of a run, from the journals and the list of faults alone.

lost       an id whose handler never ended
late       a handler that began after that record's accept was confirmed to a member
unexcused  a handler that began once more, although no fault excuses the run before it: one is excused by a fault
           that gave up its worker (kill -9, or apart from the others for longer than a session) while the record
           was begun and not confirmed, before the next run; a worker that was given up may still begin what it held
recounted  a handler that began with an attempt that another one had before: an acquire was lost
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from tests.chaos.journal import ACCEPTED, BEGUN, ENDED, OTHER, Line


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault that was caused. gives_up: processes that the others may have given up because of it. until: its end.

    killed: processes that it ended. still: processes that stood still for all of its time.
    """

    kind: str
    at: float
    until: float
    pids: tuple[int, ...] = ()
    gives_up: tuple[int, ...] = ()
    killed: tuple[int, ...] = ()
    still: tuple[int, ...] = ()


@dataclass
class Met:
    """Counts for the faults of one kind: the faults, records in a handler when hit, records with the accept on its way,
    and slots claimed."""

    faults: int = 0
    held: int = 0
    unconfirmed: int = 0
    claims: int = 0


@dataclass
class Verdict:
    """Violations as texts, and figures."""

    lost: list[int] = field(default_factory=list)
    late: list[str] = field(default_factory=list)
    unexcused: list[str] = field(default_factory=list)
    recounted: list[str] = field(default_factory=list)
    run_again: int = 0
    thawed: int = 0
    """Begun by a worker that had been given up, after another one had begun the record."""
    other: int = 0
    """Deliveries that ran and were settled otherwise than by an accept; those never run have no attempt."""

    @property
    def violations(self) -> int:
        """How many."""
        return len(self.lost) + len(self.late) + len(self.unexcused) + len(self.recounted)


def judge(lines: Iterable[Line], records: int, faults: Sequence[Fault]) -> Verdict:
    """Judge a run of records with the ids 0 to `records` - 1."""
    verdict = Verdict()
    by_place: dict[tuple[int, int], list[Line]] = defaultdict(list)
    ended: set[int] = set()
    for line in lines:
        by_place[line.place].append(line)
        if line.what == ENDED:
            ended.add(line.number)
        verdict.other += line.what == OTHER and line.attempt > 0
    verdict.lost = [number for number in range(records) if number not in ended]
    given_up: dict[int, list[Fault]] = defaultdict(list)
    for fault in sorted(faults, key=lambda one: one.at):
        for pid in fault.gives_up:
            given_up[pid].append(fault)
    for found in by_place.values():
        begun = sorted((line for line in found if line.what == BEGUN), key=lambda line: line.at)
        if len(begun) > 1 or any(line.what != ACCEPTED for line in found[3:]):
            _judge_record(begun, found, given_up, verdict)
    return verdict


def _judge_record(begun: list[Line], found: list[Line], given_up: dict[int, list[Fault]], verdict: Verdict) -> None:
    accepted = [line for line in found if line.what == ACCEPTED]
    first_accept = min((line.at for line in accepted), default=float("inf"))
    story = "; ".join(
        f"{line.what.decode()} attempt {line.attempt} of {line.pid} at {line.at:.3f}"
        for line in sorted(found, key=lambda line: line.at)
    )
    where = f"id {begun[0].number} at {begun[0].partition}-{begun[0].offset}: {story}"
    attempts: set[int] = {begun[0].attempt}
    for before, after in pairwise(begun):
        verdict.run_again += 1
        if after.at > first_accept:
            verdict.late.append(where)
        thawed = after.attempt < before.attempt
        if thawed:
            verdict.thawed += 1
            excused = any(fault.at <= after.at for fault in given_up[after.pid])
        else:
            confirmed = min((line.at for line in accepted if line.pid == before.pid), default=float("inf"))
            excused = any(
                fault.until >= before.at and fault.at < confirmed and fault.at < after.at
                for fault in given_up[before.pid]
            )
        if not excused:
            verdict.unexcused.append(where)
        if after.attempt in attempts:
            verdict.recounted.append(where)
        attempts.add(after.attempt)


def met(lines: Iterable[Line], claims: Sequence[float], faults: Sequence[Fault]) -> dict[str, Met]:
    """Return the counts for the faults, by kind. claims: times of claims of slots, sorted (monotonic seconds)."""
    runs: dict[tuple[int, int, int], list[float]] = {}
    for line in lines:
        times = runs.setdefault((line.partition, line.offset, line.attempt), [float("inf")] * 4)
        if line.what == BEGUN:
            times[0], times[3] = line.at, line.pid
        elif line.what == ENDED:
            times[1] = line.at
        elif line.what == ACCEPTED:
            times[2] = line.at
    figures: dict[str, Met] = defaultdict(Met)
    for fault in faults:
        mine = figures[fault.kind]
        mine.faults += 1
        mine.claims += bisect_right(claims, fault.until + 12.0) - bisect_right(claims, fault.at)
        for begun, ended, accepted, pid in runs.values():
            # What was never confirmed is what an earlier fault cut short.
            open_still = accepted < float("inf") or pid in fault.gives_up
            if begun < fault.at < accepted and open_still and (not fault.pids or pid in fault.pids):
                mine.held += ended > fault.at
                mine.unconfirmed += ended <= fault.at
    return figures
