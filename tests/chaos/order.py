"""Chaos of groups in order by key: workers as processes, faults by seed, judged by their handlers' own journals.

    python -m tests.chaos.order [--backend embedded|workers] [--seed N] [--runs 1] [--records 50000] [--keep FOLDER]
                                [--once [exactly_once|at_least_once]]

Each run has a topic, a group and three workers of its own, on one embedded path or as a fleet on a real Kafka. A third
of the records is there when they begin, the rest comes while every kind of fault is done once, in an order of the
seed's, and then more of them until nearly all have ended. One attempt in ten fails and is tried again soon, one record
in twenty is planned for the dead letters, one in twenty has no key. What is judged, and what a journal can prove, is in
`tests.chaos.judge`. With --once the agents have outputs, which are read when all has come to rest and judged by
`tests.chaos.once_judge`. Exit code 0: no run had a violation.
"""

from __future__ import annotations

import random
import subprocess
import time
import uuid
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

from tests.chaos.cluster import MortalKafka
from tests.chaos.command import finish, parser_of
from tests.chaos.faults import Faults, PathFaults, ProcessFaults
from tests.chaos.journal import STILL, Journals, Turn, fails, keys_of, poisoned
from tests.chaos.judge import STILL_PART, Fault, Verdict, judge, turns_in
from tests.chaos.judge import Processes as Known
from tests.chaos.leadership import Leadership
from tests.chaos.once_judge import AT_LEAST_ONCE, EXACTLY_ONCE, OnceVerdict, Planned, judge_outputs, output_topics
from tests.chaos.once_reader import letters_in, outputs_in
from tests.chaos.proxy import Wires
from tests.chaos.traffic import Feed, Traffic, lag, make_topics, message
from tests.chaos.workers import APP, STOP_S, Process, Processes, Workers

PLACES = 6
WORKERS = 3
SLOTS = 8
PROGRESS_S = 60.0
OUTPUT_PARTITIONS = 4
FINISH_S = 300.0
FAULTS_PART = 0.5
"""Of the records, or until every kind was done: what follows is to show that all of it ends. A seed more shows more
than more faults of one, and few keys are left in the end."""
SHOWN = 5
PER_KEY = (1_000, 250, 50)
"""Records of a key, on the average."""
SKEWS = (0.3, 0.7)
GUESTS_S = 8.0
ALL_GIVEN_UP = frozenset(
    {"frozen past the session", "frozen past the locks", "leader frozen past the locks", "broker kill"}
)
"""While a leader stands still, or there is no broker, nobody's accepts are settled and nobody's locks renewed."""
LEADERLESS = frozenset({"kill", "kill of two", "kill with accepts on their way"})
LEADERLESS_S = 10.0
"""In a fleet what a dead worker led has no leader for longer (session and rebalance) than locks last here."""
EMBEDDED_KINDS = (
    "kill",
    "kill of the leader",
    "kill of two",
    "frozen past the locks",
    "leader frozen past the locks",
    "frozen for a moment",
    "rolling restart",
    "join and leave",
    "guests",
)
WORKERS_KINDS = (
    "kill",
    "kill of two",
    "kill with accepts on their way",
    "frozen past the locks",
    "frozen past the session",
    "frozen for a moment",
    "broker kill",
    "cut from each other",
    "cut from the broker",
    "rolling restart",
    "join and leave",
    "guests",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One run. kinds: faults in this order, before those by dice; empty: all of them, shuffled."""

    seed: int
    backend: str
    records: int = 50_000
    keys_min: int = 500
    partitions: int = 6
    lock_s: float = 3.0
    load_s: float = 60.0
    """About so long all the handlers take together."""
    kinds: tuple[str, ...] = ()
    url: str = ""
    """Of a broker that is not the run's own; empty: of a path, or of a fleet, as the backend says."""
    more: bool = True
    """True if further faults follow until nearly all records have ended."""
    once: str = ""
    """The agents' promise for their outputs; empty: the agents have no outputs."""


class Run:
    """One run, on a path in `folder`, or as a fleet on a Kafka that runs."""

    environment: Mapping[str, str] = MappingProxyType({})
    """Further environment variables of the app."""
    leaderless_s = LEADERLESS_S
    all_given_up, leaderless = ALL_GIVEN_UP, LEADERLESS
    """Kinds of faults that may cost every process its locks."""
    chains = True
    """True if records of a key run in a row, settled or not."""

    def __init__(self, plan: Plan, folder: Path, kafka: MortalKafka | None = None, wires: Wires | None = None) -> None:
        self.plan = plan
        self.dice = random.Random(plan.seed)
        self.topic = f"{plan.backend}-{uuid.uuid4().hex[:8]}"
        self.count = WORKERS
        self.drawn = self._draw()
        environment = {"TOPIC": self.topic, "SEED": str(plan.seed), "ONCE": plan.once, **self.drawn, **self.environment}
        self.workers: Processes
        self.leadership: Leadership | None = None
        self.faults_of: ProcessFaults
        if plan.url:
            self.url = environment["URL"] = plan.url
            self.workers = Processes(folder, PLACES, app=APP, environment=environment)
            self.faults_of = ProcessFaults(self.workers, self.dice, locks_s=self.locks_s)
        elif kafka is None or wires is None:
            path = folder / "broker"
            self.leadership = Leadership(path)
            self.url = environment["URL"] = f"embedded://{path}"
            self.workers = Processes(folder, PLACES, app=APP, environment=environment)
            self.faults_of = PathFaults(self.workers, self.dice, self.leadership.leader, locks_s=self.locks_s)
        else:
            fleet = Workers(
                folder,
                kafka,
                wires,
                topic=self.topic,
                slots=SLOTS,
                state=self.dice.random() < 0.5,
                app=APP,
                environment=environment,
            )
            self.workers = fleet
            self.url = fleet.url(kafka.bootstrap, lead="false")
            self.faults_of = Faults(fleet, kafka, self.dice, locks_s=self.locks_s)
        self.feed = self._fed_by(kafka)
        self.journals = Journals(self.workers.journals)
        self.faults: list[Fault] = []
        self.guests_ended: dict[int, float] = {}
        self.left = -1
        self.took_s = 0.0
        own = {"guests": self.guests, "frozen past the locks": self.faults_of.freeze_locks}
        self.kinds: dict[str, Callable[[], Fault]] = {**self.faults_of.kinds, **own}

    @property
    def locks_s(self) -> float:
        """How long locks last without renewal."""
        return self.plan.lock_s

    @property
    def all_kinds(self) -> tuple[str, ...]:
        """Kinds of faults of a run whose plan names none."""
        return WORKERS_KINDS if self.leadership is None else EMBEDDED_KINDS

    def _draw(self) -> dict[str, str]:
        """Return the environment of the app as far as the seed decides it."""
        plan = self.plan
        return {
            "HANDLERS": self.dice.choice(["tasks", "tasks", "threads"]),
            "CONCURRENCY": str(self.dice.choice([8, 16, 32])),
            "LOCK_S": str(plan.lock_s),
            "SHORT_S": str(min(0.05, plan.load_s * 24 / plan.records)),
            "LONG": str(min(0.01, 500 / plan.records)),
            "LONG_S": "2",
        }

    def _fed_by(self, kafka: MortalKafka | None) -> Feed | Traffic:
        """Return the records to come."""
        del kafka
        plan = self.plan
        keys = max(plan.keys_min, plan.records // self.dice.choice(PER_KEY))
        of = keys_of(plan.seed, keys, plan.records, self.dice.choice(SKEWS))
        return Feed(self.url, self.topic, [message(*one) for one in enumerate(of)], partitions=plan.partitions)

    def go(self) -> None:
        """From the first record to the last. Raises: AssertionError when it does not go on."""
        at = time.monotonic()
        if self.leadership is not None:
            self.leadership.start()
        try:
            self.feed.make_topic()
            self._begin()
            self._progress()
            self._all_faults()
            self._finish()
        finally:
            self.workers.end()
            self.feed.stop()
            self.journals.go_on()
            if self.leadership is not None:
                self.leadership.stop()
            self.took_s = time.monotonic() - at

    def _begin(self) -> None:
        """Start the workers, with a third of the records there."""
        if self.plan.once:
            make_topics(self.url, output_topics(self.topic), OUTPUT_PARTITIONS)
        self._feed_first(self.plan.records // 3)
        self.workers.wait_ready(*(self.workers.start(place) for place in range(self.count)))

    def _feed_first(self, count: int) -> None:
        self.feed.up_to = count
        self.feed.start()
        _wait(lambda: self._fed() and self.feed.sent >= count, PROGRESS_S, "the first records are sent")

    def _kinds_first(self) -> list[str]:
        """Return the kinds of faults that come in any case, in their order."""
        kinds = list(self.plan.kinds)
        if not kinds:
            kinds = list(self.all_kinds)
            self.dice.shuffle(kinds)
        return kinds

    def _all_faults(self) -> None:
        plan, kinds = self.plan, self._kinds_first()
        piece = (plan.records - self.feed.up_to) // len(kinds) + 1
        while kinds or (plan.more and len(self.journals.decided) < plan.records * FAULTS_PART):
            self.feed.up_to = min(plan.records, self.feed.up_to + piece)
            kind = kinds.pop(0) if kinds else self.dice.choice(self.all_kinds)
            self._one(kind)

    def _one(self, kind: str) -> None:
        """Have a fault happen, and wait until records end again."""
        fault = self.kinds[kind]()
        leaderless = self.plan.backend == "workers" and kind in self.leaderless
        if leaderless or kind in self.all_given_up:
            everyone = tuple(worker.pid for worker in self.workers.all)
            self.faults.append(replace(fault, gives_up=everyone, until=fault.until + self.leaderless_s * leaderless))
        else:
            self.faults.append(fault)
        self.workers.check()
        self._progress()
        took, again = fault.until - fault.at, time.monotonic() - fault.until
        print(f"  {kind}: {took:.1f} s, on again after {again:.1f} s, {len(self.journals.decided)} ended", flush=True)
        time.sleep(self.dice.uniform(0.0, 1.0))

    def guests(self) -> Fault:
        """Further members of one more process join and leave all the time."""
        arguments = ["tests.chaos.app", str(GUESTS_S)]
        at = time.monotonic()
        process, log = self.workers.run(f"guests-{len(self.faults)}", arguments, URL=self.url)
        guests = Process(-1, process, log)
        try:
            code = process.wait(GUESTS_S + STOP_S)
        except subprocess.TimeoutExpired:
            code = None
            process.kill()
            process.wait(STOP_S)
        until = self.guests_ended[guests.pid] = time.monotonic()
        assert code == 0, f"guests {guests.pid} ended with {code}:\n{log.read_text()[-8000:]}"
        return Fault("guests", at, until, (guests.pid,))

    def _fed(self) -> bool:
        assert self.feed.error is None, f"records could not be sent: {self.feed.error!r}"
        return True

    def _progress(self) -> None:
        """Wait until records end again; all may have."""
        self.journals.go_on()
        before = len(self.journals.decided)

        def more() -> bool:
            self.workers.check()
            self._fed()
            self.journals.go_on()
            return len(self.journals.decided) > before or before >= self.feed.up_to

        _wait(more, PROGRESS_S, "a record ended")

    def _finish(self) -> None:
        plan, until = self.plan, time.monotonic() + FINISH_S
        self.feed.up_to = plan.records
        while len(self.journals.decided) < plan.records and time.monotonic() < until:
            self._fed()
            self.workers.check()
            time.sleep(0.2)
            self.journals.go_on()
        while (left := self._lag()) != 0 and time.monotonic() < until:
            time.sleep(0.5)
        self.left = left
        for worker in list(self.workers.alive.values()):
            code = self.workers.stop(worker)
            assert code == 0, f"worker {worker.pid} ended with {code}:\n{worker.log.read_text()[-8000:]}"

    def _lag(self) -> int:
        """Records that the group has not finished; -1 while that is not known."""
        return lag(self.url, self.topic)

    def verdict(self) -> int:
        """Print what came of it; the number of violations."""
        plan = self.plan
        ended = {worker.pid: worker.ended for worker in self.workers.all if worker.ended is not None}
        self.faults += self._leaderless()
        processes = Known(self.faults, lock_s=plan.lock_s, ended={**ended, **self.guests_ended})
        turns = self._turns(processes)
        letters = self._letters()
        found = self._judge(turns, processes, letters)
        self._print(found, len(letters))
        return found.violations + (self.left != 0) + self._more(turns, letters)

    def _judge(self, turns: list[Turn], processes: Known, letters: list[int]) -> Verdict:
        return judge(
            turns,
            processes,
            records=self.plan.records,
            rejected=self._rejected,
            letters=letters,
            chains=self.chains,
        )

    def _turns(self, processes: Known) -> list[Turn]:
        return turns_in(self.journals.lines(), processes)

    def _rejected(self, number: int) -> bool:
        return poisoned(self.plan.seed, number)

    def _letters(self) -> list[int]:
        """Ids in the dead letters."""
        return letters_in(self.url, f"{self.topic}.work.dlq")

    def _more(self, turns: Sequence[Turn], letters: Sequence[int]) -> int:
        """Print what came of the outputs; the number of violations."""
        del turns
        plan = self.plan
        if not plan.once:
            return 0
        planned = Planned(plan.records, lambda number: poisoned(plan.seed, number), lambda *one: fails(plan.seed, *one))
        topics = {topic: outputs_in(self.url, topic) for topic in output_topics(self.topic)}
        found = judge_outputs(topics, letters, planned, ordered=True)
        print(f"outputs {plan.once}  " + "  ".join(f"{len(placed)} in {topic}" for topic, placed in topics.items()))
        print(f"{found}  violations {found.violations}", flush=True)
        for name in OnceVerdict.NAMES:
            for one in getattr(found, name)[:SHOWN]:
                print(f"  {name}: {one}")
        return found.violations

    def _leaderless(self) -> list[Fault]:
        """The times in which nobody's accepts were settled and nobody's locks renewed for so long that some lapsed."""
        if self.leadership is None:
            return []
        stills = [
            (line[4], line[-1] / 1e9 - line[7] / 1e9, line[-1] / 1e9)
            for line in self.journals.lines()
            if line[0] == STILL
        ]
        everyone = (*(worker.pid for worker in self.workers.all), *self.guests_ended)
        return [
            Fault("no leader", since, until, gives_up=everyone)
            for since, until in self.leadership.absences(stills, self.plan.lock_s * STILL_PART)
        ]

    def _print(self, found: Verdict, letters: int) -> None:
        plan = self.plan
        kinds = Counter(fault.kind for fault in self.faults)
        kills = sum(len(fault.killed) for fault in self.faults)
        print(f"seed {plan.seed}  {plan.backend}  faults {len(self.faults)}  kills {kills}  {self.took_s:.0f} s")
        print("  " + "  ".join(f"{name} {value}" for name, value in self.drawn.items() if value))
        print("  " + ", ".join(f"{kind} {count}" for kind, count in sorted(kinds.items())))
        print(f"records {plan.records}  dead letters {letters}  lag {self.left}  {found}")
        for name in Verdict.NAMES:
            for one in getattr(found, name)[:SHOWN]:
                print(f"  {name}: {one}")
        for fault in self.faults if found.violations else ():
            print(f"  fault {fault}")
        print(f"violations {found.violations + (self.left != 0)}", flush=True)


def _wait(good: Callable[[], bool], limit_s: float, what: str) -> None:
    until = time.monotonic() + limit_s
    while not good():
        assert time.monotonic() < until, f"not within {limit_s:.0f} s: {what}"
        time.sleep(0.05)


def chaos(plans: Sequence[Plan], folder: Path, kind: type[Run] = Run) -> int:
    """All runs of a kind, those of fleets on one Kafka; the number of violations."""
    violations = 0
    with ExitStack() as stack:
        wires = kafka = None
        if any(plan.backend == "workers" for plan in plans):
            wires = stack.enter_context(Wires())
            kafka = MortalKafka(folder, wires, PLACES)
            kafka.start()
            stack.callback(kafka.stop, kill=True)
        for number, plan in enumerate(plans, 1):
            print(f"run {number} of {len(plans)}, seed {plan.seed}, {plan.backend}", flush=True)
            place = folder / f"run-{plan.backend}-{number}"
            place.mkdir(parents=True)
            run = kind(plan, place, *((kafka, wires) if plan.backend == "workers" else ()))
            try:
                run.go()
            except AssertionError as error:
                print(f"run {number}, seed {plan.seed}: {error}")
                violations += 1
            violations += run.verdict()
    return violations


def main() -> None:
    """The command line."""
    parser = parser_of(__doc__, records=50_000)
    parser.add_argument("--backend", choices=["embedded", "workers"], help="Both without it.")
    parser.add_argument("--kinds", default="", help="Kinds of faults, separated by commas; all without it.")
    parser.add_argument("--once", nargs="?", const=EXACTLY_ONCE, default="", choices=[EXACTLY_ONCE, AT_LEAST_ONCE])
    options = parser.parse_args()
    kinds = tuple(options.kinds.split(",")) if options.kinds else ()
    plans = [
        Plan(
            seed=options.seed + number,
            backend=backend,
            records=options.records,
            kinds=kinds,
            more=not kinds,
            once=options.once,
        )
        for backend in ([options.backend] if options.backend else ["embedded", "workers"])
        for number in range(options.runs)
    ]
    finish(options, lambda folder: chaos(plans, folder))


if __name__ == "__main__":
    main()
