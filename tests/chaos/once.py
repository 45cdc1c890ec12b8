"""The proof that outputs are there once: whoever is killed, wherever in a settle, judged from the topics alone.

    python -m tests.chaos.once [--place embedded,fleet1,fleet2] [--kills 30] [--records 200000]
                               [--step-kills 5] [--step-records 20000] [--steps random,…] [--victims member,…]
                               [--seed N] [--promise exactly_once|at_least_once] [--keep FOLDER]

A row is a world of its own (`tests.chaos.once_world`), agents by key with two outputs of each record, a tenth of the
attempts failing and a twentieth of the records rejected (`tests.chaos.app`). In the rows `random` somebody is
killed while records are on their way, `--kills` times; in the others `--step-kills` times when a process has come to
the named step of a settle (`tests.chaos.once_steps`), and stands there. The tests have rows of several steps. A member,
the leader (at a step: who stands there), the broker, or all at once. When all has come to rest, the topics are read and
`tests.chaos.once_judge` says what is wrong. Exit code 1: something is, in any row. With at_least_once it is meant to
be: that shows the judge works.
"""

from __future__ import annotations

import argparse
import random
import time
import uuid
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from tests.chaos import once_steps
from tests.chaos.command import finish, parser_of
from tests.chaos.journal import ACCEPTED, REJECTED, Journals, fails, keys_of, poisoned
from tests.chaos.once_judge import (
    AT_LEAST_ONCE,
    EXACTLY_ONCE,
    OnceVerdict,
    Planned,
    judge_outputs,
    output_topics,
)
from tests.chaos.once_reader import letters_in, outputs_in
from tests.chaos.once_world import PLACES, VICTIMS, Brokers, World
from tests.chaos.traffic import Feed, lag, make_topics, message

RANDOM = "random"
PARTITIONS, OUTPUT_PARTITIONS = 6, 4
PER_KEY, SKEW = 200, 0.3
PROGRESS_S, REACH_S, FINISH_S = 120.0, 60.0, 300.0
LOOK_S = 0.02
SHOWN = 5
ATTEMPTS = 60
"""A record may be in hand at each kill, and none is to end in the dead letters for it."""


class Hit(NamedTuple):
    """A kill. step: RANDOM, or where a process stands when the victim is killed."""

    step: str
    victim: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One row, with its kills in their order."""

    place: str
    hits: tuple[Hit, ...]
    records: int
    seed: int
    promise: str = EXACTLY_ONCE

    @property
    def backend(self) -> str:
        """As `once_steps` calls it."""
        return "embedded" if self.place == "embedded" else "workers"

    @property
    def title(self) -> str:
        """Its name in the table."""
        steps, victims = dict.fromkeys(hit.step for hit in self.hits), dict.fromkeys(hit.victim for hit in self.hits)
        step, victim = (one[0] if len(one) == 1 else "several" for one in (list(steps), list(victims)))
        return f"{self.place:<9} {step:<40} {victim:<7}"


@dataclass(slots=True)
class Row:
    """Result of a plan. trouble: reasons why the plan did not reach its end. again: records whose handler ended more
    than once in a way that settles them: without the promise their outputs would be there twice."""

    plan: Plan
    verdict: OnceVerdict = field(default_factory=OnceVerdict)
    kills: int = 0
    again: int = 0
    left: int = -1
    seconds: float = 0.0
    trouble: list[str] = field(default_factory=list)

    @property
    def violations(self) -> int:
        """How many."""
        return self.verdict.violations + (self.left != 0) + len(self.trouble)

    def __str__(self) -> str:
        counts = "".join(f"{len(getattr(self.verdict, name)):>14}" for name in OnceVerdict.NAMES)
        begun = f"{self.plan.title}{self.kills:>6}{self.plan.records:>9}{self.again:>7}"
        return f"{begun}{counts}{self.left:>6}{self.seconds:>7.0f}"


HEAD = f"{'place':<9} {'step':<40} {'victim':<7}{'kills':>6}{'records':>9}{'again':>7}" + "".join(
    f"{name.replace('_', ' '):>14}" for name in OnceVerdict.NAMES
)


class Proof:
    """One row being made."""

    def __init__(self, plan: Plan, folder: Path, brokers: Brokers | None) -> None:
        self.plan = plan
        self.row = Row(plan)
        self.dice = random.Random(plan.seed)
        self.topic = f"once-{uuid.uuid4().hex[:8]}"
        self.steps = once_steps.Steps(folder / "steps")
        environment = {
            "TOPIC": self.topic,
            "SEED": str(plan.seed),
            "HANDLERS": self.dice.choice(["tasks", "threads"]),
            "CONCURRENCY": "32",
            "LOCK_S": "3",
            "SHORT_S": "0.002",
            "ATTEMPTS": str(ATTEMPTS),
            "ONCE": plan.promise,
        }
        if any(hit.step != RANDOM for hit in plan.hits):
            environment |= {"STEP_BACKEND": plan.backend, "STEP_FOLDER": str(folder / "steps")}
        self.world = World(folder, brokers, topic=self.topic, environment=environment, dice=self.dice)
        keys = keys_of(plan.seed, max(50, plan.records // PER_KEY), plan.records, SKEW)
        self.feed = Feed(self.world.url, self.topic, [message(*one) for one in enumerate(keys)])
        self.journals = Journals(self.world.workers.journals)

    def go(self) -> Row:
        """From the first record to the verdict."""
        began = time.monotonic()
        try:
            self._run()
        except AssertionError as error:
            self.row.trouble.append(str(error))
        finally:
            self.world.workers.end()
            self.feed.stop()
        try:
            self._judge()
        except AssertionError as error:
            self.row.trouble.append(str(error))
        self.row.kills, self.row.again = self.world.killed, self._again()
        self.row.seconds = time.monotonic() - began
        return self.row

    def _run(self) -> None:
        plan = self.plan
        make_topics(self.world.url, [self.topic], PARTITIONS)
        make_topics(self.world.url, output_topics(self.topic), OUTPUT_PARTITIONS)
        self.feed.start()
        self.world.start()
        piece = plan.records // (len(plan.hits) + 1)
        for hit in plan.hits:
            self._feed(piece)
            # It connects anew for each piece, and gives up when the brokers die while it does.
            self._wait(lambda: self._fed() and self.feed.sent >= self.feed.up_to, PROGRESS_S, "the records are sent")
            # Some of the piece has ended and most of it is on its way: the kill meets what is being settled.
            self._wait_decided(len(self.journals.decided) + round(piece * self.dice.uniform(0.02, 0.4)))
            self._hit(hit)
            self.world.back()
        self._feed(plan.records)
        self._wait(lambda: self._decided() >= plan.records, FINISH_S, "all records end")
        self._wait(self._finished, FINISH_S, "the group has finished all records")
        self.world.stop()

    def _hit(self, hit: Hit) -> None:
        if hit.step == RANDOM:
            self.world.hit(hit.victim)
            return
        self.steps.arm(hit.step)
        try:
            self._wait(lambda: self.steps.reached() is not None, REACH_S, f"somebody comes to: {hit.step}")
            self.world.hit(hit.victim, self.steps.reached())
        finally:
            self.steps.disarm()
            self.steps.release()

    def _feed(self, more: int) -> None:
        self.feed.up_to = min(self.plan.records, self.feed.up_to + more)

    def _fed(self) -> bool:
        assert self.feed.error is None, f"records could not be sent: {self.feed.error!r}"
        return True

    def _decided(self) -> int:
        self._fed()
        self.journals.go_on()
        return len(self.journals.decided)

    def _wait_decided(self, count: int) -> None:
        wanted = min(count, self.feed.up_to)
        self._wait(lambda: self._decided() >= wanted, PROGRESS_S, f"{wanted} records end")

    def _finished(self) -> bool:
        self.row.left = lag(self.world.url, self.topic)
        return self.row.left == 0

    def _wait(self, good: Callable[[], bool], limit_s: float, what: str) -> None:
        until = time.monotonic() + limit_s
        while not good():
            self.world.workers.check()
            assert time.monotonic() < until, f"not within {limit_s:.0f} s: {what}"
            time.sleep(LOOK_S)

    def _again(self) -> int:
        self.journals.go_on()
        ends = Counter(line[5] for line in self.journals.lines() if line[0] in (ACCEPTED, REJECTED))
        return sum(count > 1 for count in ends.values())

    def _judge(self) -> None:
        plan, url = self.plan, self.world.url
        planned = Planned(plan.records, lambda number: poisoned(plan.seed, number), lambda *one: fails(plan.seed, *one))
        topics = {topic: outputs_in(url, topic) for topic in output_topics(self.topic)}
        letters = letters_in(url, f"{self.topic}.work.dlq")
        self.row.verdict = judge_outputs(topics, letters, planned, ordered=True)


def prove(plans: Sequence[Plan], folder: Path) -> list[Row]:
    """All rows, those of one place on the same brokers; each is printed when it is done."""
    rows: list[Row] = []
    with ExitStack() as stack:
        running: dict[str, Brokers] = {}
        for number, plan in enumerate(plans, 1):
            if plan.backend == "workers" and plan.place not in running:
                brokers = running[plan.place] = Brokers(folder, 1 if plan.place == "fleet1" else 2)
                stack.callback(brokers.end)
                brokers.start()
            print(f"row {number} of {len(plans)}, seed {plan.seed}: {plan.title}", flush=True)
            place = folder / f"row-{number}"
            place.mkdir(parents=True)
            row = Proof(plan, place, running.get(plan.place)).go()
            rows.append(row)
            print(f"  {row.verdict}  again {row.again}  lag {row.left}  violations {row.violations}", flush=True)
            for text in row.trouble:
                print(f"  trouble: {text}", flush=True)
            for name in OnceVerdict.NAMES:
                for one in getattr(row.verdict, name)[:SHOWN]:
                    print(f"  {name}: {one}", flush=True)
    return rows


def table(rows: Sequence[Row]) -> str:
    """All rows."""
    return "\n".join([f"{HEAD}{'lag':>6}{'s':>7}", *map(str, rows)])


def plans_of(options: argparse.Namespace) -> list[Plan]:
    """The rows that are asked for."""
    plans: list[Plan] = []
    for place in options.place:
        backend = "embedded" if place == "embedded" else "workers"
        for step in [RANDOM, *once_steps.steps(backend, options.promise)]:
            if options.steps and step not in options.steps:
                continue
            at_random = step == RANDOM
            plans += [
                Plan(
                    place=place,
                    hits=(Hit(step, victim),) * (options.kills if at_random else options.step_kills),
                    records=options.records if at_random else options.step_records,
                    seed=options.seed + len(plans) + number,
                    promise=options.promise,
                )
                for number, victim in enumerate(VICTIMS[place])
                if not options.victims or victim in options.victims
            ]
    return plans


def _listed(text: str) -> list[str]:
    return [one.strip() for one in text.split(",") if one.strip()]


def main() -> None:
    """The command line."""
    parser = parser_of(__doc__, records=200_000, runs=False)
    parser.add_argument("--place", type=_listed, default=list(PLACES))
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--step-kills", type=int, default=5)
    parser.add_argument("--step-records", type=int, default=20_000)
    parser.add_argument("--steps", type=_listed, default=[], help="Names, 'random' among them; all without it.")
    parser.add_argument("--victims", type=_listed, default=[])
    parser.add_argument("--promise", choices=[EXACTLY_ONCE, AT_LEAST_ONCE], default=EXACTLY_ONCE)
    options = parser.parse_args()
    plans = plans_of(options)
    if not plans:
        parser.error("no row is of that place, step and victim")
    print(f"seed {options.seed}  rows {len(plans)}  {options.promise}", flush=True)

    def runs(folder: Path) -> int:
        rows = prove(plans, folder)
        print(f"\n{table(rows)}")
        return sum(row.violations for row in rows)

    finish(options, runs)


if __name__ == "__main__":
    main()
