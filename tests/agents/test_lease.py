"""The app's lease: at most one process holds it, whatever clocks, messages and members do."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable

import pytest

from flowshare.agents.host.candidate import Known, choose
from flowshare.agents.host.lease import HELD_S, WAIT_S, Lease, Moment
from flowshare.groups.types import JoinedMember
from tests.sim.seeds import named
from tests.sim.timeline import Timeline

DRIFT = 0.05
"""Clocks run so much faster or slower than true time."""


def at(seconds: float, *, wall_s: float | None = None) -> Moment:
    return Moment(seconds, round((seconds if wall_s is None else wall_s) * 1000))


def test_who_is_named_in_a_new_group_holds_at_once_and_until_the_answer_is_too_old():
    lease = Lease()
    lease.name(1, asked=at(10), now=at(11))

    assert lease.held(at(11))
    assert lease.left_s(at(11)) == pytest.approx(HELD_S - 1)
    assert not lease.held(at(10 + HELD_S))
    assert lease.left_s(at(10 + HELD_S)) == 0


def test_the_wait_covers_clocks_that_run_apart():
    assert HELD_S * (1 + DRIFT) < WAIT_S * (1 - DRIFT)


def test_who_is_named_after_others_waits_until_nobody_else_can_hold():
    lease = Lease()
    lease.name(7, asked=at(10), now=at(11))

    lease.beat(7, asked=at(11 + WAIT_S - 0.1))
    assert not lease.held(at(11 + WAIT_S))
    lease.beat(7, asked=at(11 + WAIT_S))
    assert lease.held(at(11 + WAIT_S))


def test_the_next_generation_of_the_same_process_takes_nothing_away_and_a_gap_does():
    lease = Lease()
    lease.name(1, asked=at(0), now=at(0))
    lease.name(2, asked=at(3), now=at(3))
    assert lease.held(at(3 + HELD_S - 0.1))

    lease.name(4, asked=at(4), now=at(4))
    assert not lease.held(at(4))


def test_a_process_that_waits_goes_on_waiting_in_the_next_generation():
    lease = Lease()
    lease.name(2, asked=at(0), now=at(0))
    lease.name(3, asked=at(WAIT_S - 1), now=at(WAIT_S - 1))
    assert not lease.held(at(WAIT_S - 1))

    lease.beat(3, asked=at(WAIT_S))
    assert lease.held(at(WAIT_S))


def test_a_lapsed_lease_comes_back_with_a_heartbeat_of_its_generation_and_with_no_other():
    lease = Lease()
    lease.name(1, asked=at(0), now=at(0))
    lease.beat(2, asked=at(20))
    assert not lease.held(at(20))

    lease.beat(1, asked=at(20))
    assert lease.held(at(20))
    lease.drop()
    lease.beat(1, asked=at(21))
    assert not lease.held(at(21))


def test_a_machine_that_was_suspended_or_whose_clock_was_set_does_not_hold():
    lease = Lease()
    lease.name(1, asked=at(100), now=at(100))

    assert lease.held(at(101))
    assert not lease.held(at(101, wall_s=100 + HELD_S)), "the monotonic clock stood still"
    assert not lease.held(at(101, wall_s=50)), "nobody knows how long it was"


def test_the_one_that_was_named_last_stays_and_any_one_is_named_when_it_is_gone():
    def member(name: str, known: Known) -> JoinedMember:
        return JoinedMember(name, None, known.encode())

    stays = (member("a", Known()), member("b", Known(3, "c")), member("c", Known(4, "c")))
    assert choose(stays) == "c"
    assert choose((member("b", Known(3, "c")), member("a", Known(2, "b")))) == "a"
    assert choose((JoinedMember("b", None, b"\xff"), JoinedMember("a", None, b"[]"))) == "a"


# --- all of it, over a coordinator and clocks that do anything they may ---------------------------------------------


class Process:
    """A process of the model, with a clock of its own; `frozen_until` is true time."""

    def __init__(self, name: int, rng: random.Random, true_s: float) -> None:
        self.name = name
        self.lease = Lease()
        self.rate = 1 + rng.uniform(-DRIFT, DRIFT)
        self.offset_s = rng.uniform(0, 1e6) - true_s
        self.frozen_until = 0.0
        self.member: str | None = None
        self.generation = -1
        self.alive = True
        self.asking = 0

    def now(self, true_s: float) -> Moment:
        return at((true_s + self.offset_s) * self.rate)


class World:
    """A coordinator that may name anybody, expel anybody, and forget to answer; messages that take any time."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.timeline = Timeline(0.0)
        self.later = self.timeline.after
        self.generation = 0
        self.named: str | None = None
        self.members: dict[str, Process] = {}
        self.processes: list[Process] = []
        self._ids = itertools.count()
        self.handed_over = 0
        self.held_s = 0.0
        self._last: Process | None = None

    @property
    def true_s(self) -> float:
        return self.timeline.now

    def delay_s(self) -> float:
        return self.rng.uniform(0, 15) if self.rng.random() < 0.03 else self.rng.choice((0.01, 0.1, 0.5))

    def on_process(self, process: Process, event: Callable[[], None]) -> None:
        """Run it there, when it is not frozen any more; never if it is dead."""

        def run() -> None:
            if process.frozen_until > self.true_s:
                self.later(process.frozen_until - self.true_s, run)
            elif process.alive:
                event()

        run()

    # the coordinator

    def turn(self) -> None:
        """A new generation: it names one of the members, mostly the one that was named before."""
        self.generation += 1
        keep = self.named in self.members and self.rng.random() < 0.8
        self.named = self.named if keep else self.rng.choice([*self.members, *self.members, *self.members, None])

    # a process

    def add(self) -> None:
        process = Process(len(self.processes), self.rng, self.true_s)
        self.processes.append(process)
        self.join(process)

    def join(self, process: Process) -> None:
        process.asking += 1
        number, asked = process.asking, process.now(self.true_s)

        def at_server() -> None:
            member = process.member
            if member is None or member not in self.members:
                member = f"m{next(self._ids)}"
                self.members[member] = process
                self.turn()
            generation, named = self.generation, self.named
            self.later(self.delay_s(), lambda: self.on_process(process, lambda: answered(member, generation, named)))

        def answered(member: str, generation: int, named: str | None) -> None:
            if number != process.asking:
                return  # it has asked anew meanwhile
            process.member, process.generation = member, generation
            if named == member:
                process.lease.name(generation, asked=asked, now=process.now(self.true_s))
            else:
                process.lease.drop()
            self.beat(process)

        self.later(self.delay_s(), at_server)
        self.again_if_unanswered(process, number)

    def beat(self, process: Process) -> None:
        process.asking += 1
        number, asked = process.asking, process.now(self.true_s)
        member, generation = process.member, process.generation

        def at_server() -> None:
            good, known = generation == self.generation, member in self.members
            self.later(self.delay_s(), lambda: self.on_process(process, lambda: answered(good and known, known)))

        def answered(good: bool, known: bool) -> None:
            if number != process.asking:
                return
            if good:
                process.lease.beat(generation, asked=asked)
                self.later(0.5, lambda: self.on_process(process, lambda: self.beat(process)))
                return
            if not known:
                process.member = None
                process.lease.drop()
            self.join(process)

        self.later(self.delay_s(), at_server)
        self.again_if_unanswered(process, number)

    def again_if_unanswered(self, process: Process, number: int) -> None:
        def look() -> None:
            if number == process.asking:
                self.join(process)

        self.later(4, lambda: self.on_process(process, look))

    # what happens to them

    def trouble(self) -> None:
        process = self.rng.choice(self.processes)
        match self.rng.randrange(6):
            case 0:
                process.frozen_until = self.true_s + self.rng.uniform(0, 30)
            case 1 if sum(one.alive for one in self.processes) > 1:
                process.alive = False
            case 2 if len(self.processes) < 8:
                self.add()
            case 3 if self.members:
                del self.members[self.rng.choice(list(self.members))]
                self.turn()
            case 4 if self.members:
                self.turn()
        self.later(self.rng.uniform(0, 20), self.trouble)

    def run(self, limit_s: float) -> None:
        self.add()
        self.later(3, self.add)
        self.later(5, self.trouble)
        while (due_s := self.timeline.next_due) is not None and self.true_s < limit_s:
            for part in (0.0, 0.25, 0.5, 0.75, 1.0):  # between events, too: leases end by themselves
                self.look(self.true_s + part * (due_s - self.true_s))
            self.held_s += (due_s - self.true_s) if self.holders(self.true_s) else 0
            self.timeline.step()
            self.look(due_s)

    def holders(self, true_s: float) -> list[Process]:
        return [one for one in self.processes if one.alive and one.lease.held(one.now(true_s))]

    def look(self, true_s: float) -> None:
        holders = self.holders(true_s)
        assert len(holders) <= 1, f"at {true_s:.2f} s {[one.name for one in holders]} hold the lease"
        if holders and holders[0] is not self._last:
            self.handed_over += self._last is not None
            self._last = holders[0]


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 20, 5))
def test_at_most_one_process_holds_the_lease_whatever_happens(first):
    handed_over = held_s = 0.0
    for seed in range(first, first + 5):
        world = World(seed)
        with named(seed):
            world.run(300)
        handed_over += world.handed_over
        held_s += world.held_s
    assert handed_over >= 3, "the lease has to move for this to show anything"
    assert held_s >= 60
