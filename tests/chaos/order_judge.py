"""The judgement of a run in order by key, from the handlers' journals, the plan and the list of faults alone.

What a journal can prove. A handler writes that it begins after it began, and that it ends before it returned, each with
the time taken just before the write. So the stretch between the two lines lies within the time in which the handler
really ran: what overlaps in the journals did overlap, and what began too early did. What it cannot show is an overlap
of the microseconds outside of the two lines. A line that a kill prevented was prevented before the handler went on, so
nothing can have been built upon it: a handler without an end ended at the death of its process, with no outcome. That a
record is *settled* no handler can see; but a settled record never begins again, so who acted on one that does begin
again acted on what was not settled.

The rules, for each key in each partition (a record without key is a key of its own), in the order of the log:

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
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from tests.chaos.judge import Fault
from tests.chaos.order_journal import BEGUN, NO_FENCE, NO_KEY, REJECTED, STILL, Turn

UNCONFIRMED_S = 5.0
"""An accept that is not settled this long after its handler ended was lost, whatever happened to its process then."""
UNSEEN_PART = 0.002
THAW_S = 0.05
STILL_PART = 0.5
"""The part of a lock's time that may be left when a process stops: locks are renewed before."""


@dataclass
class Verdict:
    """Violations as texts, and figures."""

    lost: list[int] = field(default_factory=list)
    letters_wrong: list[int] = field(default_factory=list)
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
    records: int = 0

    NAMES = ("lost", "letters_wrong", "inversions", "overlaps", "unexcused", "recounted", "unfenced")

    @property
    def violations(self) -> int:
        """How many; of what is unexcused, what is beyond `UNSEEN_PART` of the records."""
        found = sum(len(getattr(self, name)) for name in self.NAMES)
        return found - min(len(self.unexcused), int(self.records * UNSEEN_PART))


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
    running: dict[tuple[int, int, int, int], list[Turn]] = defaultdict(list)
    for what, partition, attempt, _, pid, number, key, offset, generation, serial, at_ns in lines:
        at = at_ns / 1e9
        processes.wrote(pid, at)
        if what == STILL:
            processes.stood(pid, at - offset / 1e9, at)
        elif what == BEGUN:
            turn = Turn(partition, offset, number, key, attempt, pid, at, fence=(generation, serial))
            running[pid, partition, offset, attempt].append(turn)
            turns.append(turn)
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
    """Judge a run of records with the ids 0 to `records` - 1. rejected: whether it is planned for the dead letters.
    chains: whether records of a key may be run in a row, settled or not."""
    verdict = Verdict(turns=len(turns), records=records)
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
