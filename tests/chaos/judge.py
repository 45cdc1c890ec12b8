"""The judgement of a run, from the handlers' journals, the plan and the list of faults alone; one for all runs.

What a journal can prove. A handler writes that it begins after it began, and that it ends before it returned, each with
the time taken just before the write. So the stretch between the two lines lies within the time in which the handler
really ran: what overlaps in the journals did overlap, and what began too early did. What it cannot show is an overlap
of the microseconds outside of the two lines. A line that a kill prevented was prevented before the handler went on, so
nothing can have been built upon it: a handler without an end ended at the death of its process, with no outcome. That a
record is *settled* no handler can see; but a settled record never begins again, so who acted on one that does begin
again acted on what was not settled.

The rules of an order, for each key in each partition (a record without key is a key of its own), in the log's order:

lost        a record that was planned to be accepted and no handler of it ended so; one that was planned for the dead
            letters and is not in them; one that is and was not. What is there more than once is counted only
inversions  a handler began although, of a record before it in its key, the last handler that had begun
            - there was none, or it had not ended, or it had ended in a failure, a cancellation or a death; or
            - had ended in an accept or a rejection, but the record began again later, and this handler ran in another
              process, or behind a rejection: only behind an accept in its own process need it not wait for the
              settlement (a chain), and where there are no chains not there either
overlaps    two handlers of one key at the same time, in whatever processes. Counted apart (`stood`) when the one that
            began first is of a process that stood still for most of a lock's time, and the second began after that had
            begun; with fences the second must have the higher one
unexcused   a record began again after an accept or a rejection, although nothing gave up the process that ended it so:
            killed within 5 s of the end, or still, or without the broker for as long as the locks last, or (on a path)
            without a leader that gets on for half of that, since locks are renewed then. A few are no violation: that
            records come again is allowed, and not every reason is seen from outside (a take-over on a loaded machine)
recounted   two handlers of one record with the same attempt: a delivery was not counted
unfenced    a fence that is not above all that began before it in its key; handlers counted apart must be found by it

A handler whose begin was written within 50 ms after its process had stood still was on its way into the handler when it
stopped: it is counted apart (`thawed`), if it is in the way of others, or of a lower fence than theirs that are done.

The rules without an order, for each record; there the journals say when a member was told of its accept, too:

lost        a record no handler of which ended, and that is not rightly among the dead letters: a letter is wrong unless
            the record was begun, and each process that began it was killed
late        a handler that began after that record's accept was confirmed to a member
unexcused   a handler that began once more, although no fault excuses the run before it: one is excused by a fault that
            gave up its process while the record was begun and not confirmed, before the next run, and no longer after
            its end than an accept may be under way; a process that was given up may still begin what it held (`thawed`)
recounted   as above
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import pairwise

from tests.chaos.journal import BEGUN, CONFIRMED, NO_FENCE, NO_KEY, OTHER, REJECTED, STILL, Turn

UNCONFIRMED_S = 5.0
"""An accept that is not settled this long after its handler ended was lost, whatever happened to its process then."""
UNSEEN_PART = 0.002
THAW_S = 0.05
STILL_PART = 0.5
"""The part of a lock's time that may be left when a process stops: locks are renewed before."""


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
class Verdict:
    """Violations as texts, and figures."""

    lost: list[int] = field(default_factory=list)
    letters_wrong: list[int] = field(default_factory=list)
    late: list[str] = field(default_factory=list)
    inversions: list[str] = field(default_factory=list)
    overlaps: list[str] = field(default_factory=list)
    unexcused: list[str] = field(default_factory=list)
    recounted: list[str] = field(default_factory=list)
    unfenced: list[str] = field(default_factory=list)
    turns: int = 0
    failed: int = 0
    cut_short: int = 0
    """Handlers that were cancelled, or died with their process."""
    repeats: int = 0
    """Records that began again after an accept or a rejection which a fault took back."""
    stood: int = 0
    """Overlaps with a handler of a process that stood still."""
    found: int = 0
    """Those of them that a fence finds."""
    thawed: int = 0
    letters_twice: int = 0
    buried: int = 0
    """Dead letters of records each process of which was killed."""
    other: int = 0
    """Deliveries that ran and were settled otherwise than by an accept."""
    unexcused_max: int = 0

    NAMES = ("lost", "letters_wrong", "late", "inversions", "overlaps", "unexcused", "recounted", "unfenced")

    @property
    def violations(self) -> int:
        """How many; of what is unexcused, what is beyond `unexcused_max`."""
        found = sum(len(getattr(self, name)) for name in self.NAMES)
        return found - min(len(self.unexcused), self.unexcused_max)

    def __str__(self) -> str:
        """Return all counts, those of violations first."""
        wrong = {name: len(getattr(self, name)) for name in self.NAMES}
        figures = {one.name: getattr(self, one.name) for one in fields(self) if one.name not in self.NAMES}
        return "  ".join(f"{name.replace('_', ' ')} {count}" for name, count in (wrong | figures).items())


class Processes:
    """Facts about processes, seen from outside or noted by the processes themselves. ended: end times of the processes
    that ended in order. lock_s: how long locks last."""

    def __init__(self, faults: Sequence[Fault], *, lock_s: float, ended: Mapping[int, float]) -> None:
        self._ended, self._still_s = ended, lock_s * STILL_PART
        self.killed: dict[int, float] = {}
        self.still: dict[int, list[tuple[float, float]]] = defaultdict(list)
        """From when to when a process stood still for so long that it may have lost its locks."""
        self.given_up: dict[int, list[Fault]] = defaultdict(list)
        for fault in faults:
            self.killed.update((pid, fault.at) for pid in fault.killed)
            for pid in fault.gives_up:
                self.given_up[pid].append(fault)
            for pid in fault.still:
                self.stood(pid, fault.at, fault.until)

    def stood(self, pid: int, since: float, until: float) -> None:
        """A process did not get on from then to then."""
        if until - since > self._still_s:
            self.still[pid].append((since, until))

    def wrote(self, pid: int, at: float) -> None:
        """A line of it: who was killed had not ended before."""
        if self.killed.get(pid, at) < at:
            self.killed[pid] = at

    def end(self, pid: int) -> float:
        """When it had ended, as far as is known."""
        return self.killed.get(pid, self._ended.get(pid, float("inf")))


def turns_in(lines: Iterable[tuple], processes: Processes) -> list[Turn]:
    """The handlers' turns, each journal's lines in its order; what lines say of their processes is added to those."""
    turns: list[Turn] = []
    begun: dict[tuple[int, int, int, int], Turn] = {}
    running: dict[tuple[int, int, int, int], list[Turn]] = defaultdict(list)
    for what, partition, attempt, _, pid, number, key, offset, generation, serial, at_ns in lines:
        at = at_ns / 1e9
        processes.wrote(pid, at)
        if what == STILL:
            processes.stood(pid, at - offset / 1e9, at)
        elif what == BEGUN:
            turn = Turn(partition, offset, number, key, attempt, pid, at, fence=(generation, serial))
            running[pid, partition, offset, attempt].append(turn)
            begun[pid, partition, offset, attempt] = turn
            turns.append(turn)
        elif what in (CONFIRMED, OTHER):
            told = begun.get((pid, partition, offset, attempt))
            if told is not None:  # what was never run has no turn
                told.confirmed, told.otherwise = (at, False) if what == CONFIRMED else (told.confirmed, True)
        else:
            turn = running[pid, partition, offset, attempt].pop(0)
            turn.end, turn.outcome = at, what
    for left in running.values():
        for turn in left:
            turn.end = processes.end(turn.pid)
    return turns


def judge(
    turns: Sequence[Turn],
    processes: Processes,
    *,
    records: int,
    rejected: Callable[[int], bool],
    letters: Iterable[int],
    chains: bool = True,
) -> Verdict:
    """Judge a run in order of records with the ids 0 to `records` - 1. rejected: whether it is planned for the dead
    letters. chains: whether records of a key may be run in a row, settled or not."""
    verdict = Verdict(turns=len(turns), unexcused_max=int(records * UNSEEN_PART))
    in_letters = Counter(letters)
    accepted = {turn.number for turn in turns if turn.decided and turn.outcome != REJECTED}
    for number in range(records):
        if rejected(number):
            if number not in in_letters:
                verdict.lost.append(number)
        elif number not in accepted:
            verdict.lost.append(number)
    verdict.letters_wrong = sorted(number for number in in_letters if not rejected(number))
    verdict.letters_twice = sum(count - 1 for count in in_letters.values())
    keys: dict[tuple[int, int, int], list[Turn]] = defaultdict(list)
    for turn in turns:
        keys[turn.partition, turn.key, turn.offset if turn.key == NO_KEY else 0].append(turn)
        verdict.failed += not turn.decided and bool(turn.outcome)
        verdict.cut_short += not turn.outcome
    for (partition, key, _), found in keys.items():
        _Key(partition, key, sorted(found, key=lambda turn: turn.begin), processes, verdict, chains=chains).go()
    return verdict


def judge_without_order(
    turns: Sequence[Turn], processes: Processes, *, records: int, letters: Iterable[int], unconfirmed_s: float
) -> Verdict:
    """Judge a run without an order of records with the ids 0 to `records` - 1.

    unconfirmed_s: for how long after the end of its handler an accept may be under way.
    """
    verdict = Verdict(turns=len(turns), other=sum(turn.otherwise for turn in turns))
    by_number: dict[int, list[Turn]] = defaultdict(list)
    by_place: dict[tuple[int, int], list[Turn]] = defaultdict(list)
    for turn in sorted(turns, key=lambda turn: turn.begin):
        by_number[turn.number].append(turn)
        by_place[turn.partition, turn.offset].append(turn)
        verdict.failed += not turn.decided and bool(turn.outcome)
        verdict.cut_short += not turn.outcome
    in_letters = set(letters)
    for number in range(records):
        found = by_number[number]
        if not any(turn.decided for turn in found):
            killed = bool(found) and all(turn.pid in processes.killed for turn in found)
            if number not in in_letters:
                verdict.lost.append(number)
            elif killed:
                verdict.buried += 1
            else:
                verdict.letters_wrong.append(number)
    for found in by_place.values():
        _judge_record(found, processes, verdict, unconfirmed_s)
    return verdict


def _judge_record(turns: list[Turn], processes: Processes, verdict: Verdict, unconfirmed_s: float) -> None:
    confirmed = min((turn.confirmed for turn in turns), default=float("inf"))
    attempts = {turn.attempt for turn in turns[:1]}
    story = "; ".join(map(str, turns)) if len(turns) > 1 else ""
    for before, after in pairwise(turns):
        verdict.repeats += 1
        if after.begin > confirmed:
            verdict.late.append(story)
        if after.attempt < before.attempt:
            verdict.thawed += 1
            excused = any(fault.at <= after.begin for fault in processes.given_up.get(after.pid, ()))
        else:
            mine = min(turn.confirmed for turn in turns if turn.pid == before.pid)
            excused = any(
                fault.until >= before.begin and fault.at < min(mine, after.begin, before.end + unconfirmed_s)
                for fault in processes.given_up.get(before.pid, ())
            )
        if not excused:
            verdict.unexcused.append(story)
        if after.attempt in attempts:
            verdict.recounted.append(story)
        attempts.add(after.attempt)


@dataclass
class Met:
    """Counts for the faults of one kind: the faults, records in a handler when hit, records with the accept on its way,
    and slots claimed."""

    faults: int = 0
    held: int = 0
    unconfirmed: int = 0
    claims: int = 0


def met(turns: Sequence[Turn], claims: Sequence[float], faults: Sequence[Fault]) -> dict[str, Met]:
    """Return the counts for the faults, by kind. claims: times of claims of slots, sorted (monotonic seconds)."""
    figures: dict[str, Met] = defaultdict(Met)
    for fault in faults:
        mine = figures[fault.kind]
        mine.faults += 1
        mine.claims += bisect_right(claims, fault.until + 12.0) - bisect_right(claims, fault.at)
        for turn in turns:
            # What was never confirmed is what an earlier fault cut short.
            open_still = turn.confirmed < float("inf") or turn.pid in fault.gives_up
            if turn.begin < fault.at < turn.confirmed and open_still and (not fault.pids or turn.pid in fault.pids):
                held = not turn.outcome or turn.end > fault.at
                mine.held += held
                mine.unconfirmed += not held
    return figures


class _Key:
    """One key of one partition, looked at turn by turn as they began."""

    def __init__(
        self, partition: int, key: int, turns: list[Turn], processes: Processes, verdict: Verdict, *, chains: bool
    ) -> None:
        self.chains = chains
        self.name = f"key {'–' if key == NO_KEY else key} in {partition}"
        self.turns, self.processes, self.verdict = turns, processes, verdict
        self.offsets = sorted({turn.offset for turn in turns})
        self.last: dict[int, Turn] = {}
        """Of each record the last turn that began."""
        self.open: list[Turn] = []
        """Turns that may run now."""
        self.undecided: set[int] = set()
        """Records that began and, so far as is seen now, have not ended in an accept or a rejection."""
        self.front = -1
        """The place, in its key, of the last record that began."""
        self.begun: list[Turn] = []
        self.fence = NO_FENCE
        self.attempts: set[tuple[int, int]] = set()

    def go(self) -> None:
        """All of them."""
        for turn in self.turns:
            self._see_ends(turn.begin)
            wrong = list(self._overlaps(turn)), list(self._inversions(turn))
            late = NO_FENCE != turn.fence < self.fence  # others are done already: it is in nobody's way
            if (late or any(wrong)) and self._thawing(turn):
                self.verdict.thawed += 1
                self._fenced_out(turn)
                continue
            self.verdict.overlaps += wrong[0]
            self.verdict.inversions += wrong[1]
            self._again(turn)
            self._fences(turn)
            self._begin(turn)

    def _see_ends(self, now: float) -> None:
        """Remove the turns that have ended by now, and note the records that they decided."""
        left = []
        for turn in self.open:
            if turn.end > now:
                left.append(turn)
            elif turn.decided and self.last[turn.offset] is turn:
                self.undecided.discard(turn.offset)
        self.open = left

    def _begin(self, turn: Turn) -> None:
        if (turn.offset, turn.attempt) in self.attempts:
            self.verdict.recounted.append(f"{self.name}: {turn}")
        self.attempts.add((turn.offset, turn.attempt))
        self.last[turn.offset] = turn
        self.open.append(turn)
        self.begun.append(turn)
        self.undecided.add(turn.offset)
        self.front = max(self.front, bisect_left(self.offsets, turn.offset))

    # -- the rules

    def _overlaps(self, turn: Turn) -> Iterator[str]:
        for other in self.open:
            if not self._stood(other, turn.begin):
                yield f"{self.name}: {turn}, while {other}"
                continue
            self.verdict.stood += 1
            if turn.fence == NO_FENCE or other.fence == NO_FENCE:
                continue
            if turn.fence > other.fence:
                self.verdict.found += 1
            else:
                self.verdict.unfenced.append(f"{self.name}: {turn}, above {other}")

    def _inversions(self, turn: Turn) -> Iterator[str]:
        place = bisect_left(self.offsets, turn.offset)
        if place > self.front + 1:
            yield f"{self.name}: {turn}, before {self.offsets[self.front + 1]} had ever begun"
        for offset in self.undecided:
            if offset < turn.offset:
                yield f"{self.name}: {turn}, behind {self.last[offset]}"

    def _again(self, turn: Turn) -> None:
        """A record that had ended in an accept or a rejection begins again."""
        before = self.last.get(turn.offset)
        if before is None or not before.decided or before.end > turn.begin:
            return
        for later in self._begun_since(before.end):
            chained = self.chains and later.pid == before.pid and before.outcome != REJECTED
            if later.offset > turn.offset and not chained:
                self.verdict.inversions.append(f"{self.name}: {later}, behind {before}, which was not settled: {turn}")
        if any(
            fault.at < turn.begin and fault.until >= before.begin and fault.at <= before.end + UNCONFIRMED_S
            for fault in self.processes.given_up.get(before.pid, ())
        ) or self._stood(before, turn.begin):
            self.verdict.repeats += 1
        else:
            self.verdict.unexcused.append(f"{self.name}: {turn}, after {before}")

    def _begun_since(self, at: float) -> Iterator[Turn]:
        for turn in reversed(self.begun):
            if turn.begin < at:
                return
            yield turn

    def _fences(self, turn: Turn) -> None:
        if turn.fence == NO_FENCE:
            return
        if turn.fence <= self.fence:
            self.verdict.unfenced.append(f"{self.name}: {turn}, after {self.fence}")
        self.fence = max(self.fence, turn.fence)

    def _fenced_out(self, turn: Turn) -> None:
        """A turn that others are in the way of must have a lower fence than they."""
        if turn.fence == NO_FENCE:
            return
        if turn.fence < self.fence:
            self.verdict.found += 1
        else:
            self.verdict.unfenced.append(f"{self.name}: {turn}, thawed and not below {self.fence}")

    # -- processes that stood still

    def _stood(self, turn: Turn, now: float) -> bool:
        """True if, before now, a turn's process stood still while the turn ran, or before the turn's result was
        settled."""
        return any(
            since < min(turn.end + UNCONFIRMED_S, now) and until > turn.begin
            for since, until in self.processes.still.get(turn.pid, ())
        )

    def _thawing(self, turn: Turn) -> bool:
        return any(until <= turn.begin <= until + THAW_S for _, until in self.processes.still.get(turn.pid, ()))
