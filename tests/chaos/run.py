"""Chaos of groups without an order: workers as processes, faults by seed, judged by their handlers' own journals.

    python -m tests.chaos.run [--seed N] [--runs 1] [--records 50000] [--rate 700] [--kinds …] [--keep FOLDER]
    python -m tests.chaos.run --kills 20 [--workers 1] [--broker kafka://host:port] [--records 20000] …

Each run has a topic and workers of its own. Without --kills they are 3 to 6 workers of a fleet on a real Kafka, behind
proxies, and the records flow at a steady rate past them; every kind of fault comes once, in an order of the seed's,
then more of them until the records are all produced. Exit code 0: no run had a violation, and the faults met enough
claims, held locks and unconfirmed accepts to say something.

With --kills they share a path of their own, on which every second kill hits the process that leads it, or are on a
broker that is there; all records are there when they begin, and handlers are so slow that these last for all kills.
With one worker on a path a record follows whose handler kills its own process each time: it must end in the dead
letters and hold up nothing else.

The seed decides what is done, not how fast this machine does it. What is judged is in `tests.chaos.judge`.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from flowshare.clock import LoopClock
from tests.chaos.cluster import MortalKafka
from tests.chaos.command import finish, parser_of
from tests.chaos.faults import LOCKS_S
from tests.chaos.journal import Turn
from tests.chaos.judge import Fault, Verdict, judge_without_order, met
from tests.chaos.judge import Processes as Known
from tests.chaos.order import SLOTS, Plan, Run, chaos
from tests.chaos.traffic import Feed, Traffic, claims_in, message
from tests.waiting import blocking_until

FLEET, PATH, BROKER = "workers", "embedded", "broker"
LOCK_S = 30.0
CONCURRENCY = 16
KILL_EVERY_S = 5.0
"""About how long a kill and what it is waited for take."""
UNCONFIRMED_S = 1.0
"""An accept that is not confirmed this long after its handler ended counts as lost, not as unconfirmed."""
AT_ONCE = 0.3
"""Of the handlers, so many take no time."""
ATTEMPTS, PATH_ATTEMPTS = 5, 3
"""On Kafka's share groups a death costs all that was fetched an attempt, and kills here may follow within a second:
with three attempts, three of them in a row made dead letters of records that no handler had seen."""
POISON, POISONED_RECORDS, POISON_S = 50, 200, 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LoosePlan(Plan):
    """One run. kills: on a path or a broker. workers: so many, 0: as the seed says. poison: the id of a record whose
    handler kills its process. The rest is what faults must meet in a fleet."""

    rate: float = 700.0
    partitions: int = 8
    workers: int = 0
    kills: int = 0
    poison: int = -1
    claims_min: int = 20
    held_min: int = 50
    unconfirmed_min: int = 20


class LooseRun(Run):
    """One run without an order."""

    plan: LoosePlan
    all_given_up = leaderless = frozenset()

    @property
    def locks_s(self) -> float:
        """Of the group's own setting, a lock is renewed when a third of it is over."""
        return LOCKS_S

    def _draw(self) -> dict[str, str]:
        plan = self.plan
        attempts = PATH_ATTEMPTS if self._on_path else ATTEMPTS
        drawn = {"ORDER": "", "LOCK_S": str(LOCK_S), "ATTEMPTS": str(attempts), "POISON": str(plan.poison)}
        self.count = plan.workers or self.dice.randint(3, 5)
        if plan.backend != FLEET:
            takes_s = CONCURRENCY * self.count * KILL_EVERY_S * plan.kills / plan.records
            return {**drawn, "CONCURRENCY": str(CONCURRENCY), "SHORT_S": str(takes_s / (1 - AT_ONCE))}
        short, many = self.dice.choice([0.002, 0.01, 0.03]), self.dice.choice([16, 32, 64])
        # Three records in a hundred take 2 s, so that locks are held whenever a fault comes.
        return {**drawn, "CONCURRENCY": str(many), "SHORT_S": str(short), "LONG": "0.03", "LONG_S": "2.7"}

    @property
    def _on_path(self) -> bool:
        return self.plan.backend == PATH

    @property
    def all_kinds(self) -> tuple[str, ...]:
        """All that a fleet has, but what is of an order's short locks."""
        return tuple(self.faults_of.kinds)

    def _fed_by(self, kafka: MortalKafka | None) -> Feed | Traffic:
        plan = self.plan
        if kafka is None:
            messages = [message(number) for number in range(plan.records)]
            return Feed(self.url, self.topic, messages, partitions=plan.partitions)
        where = kafka.bootstrap, self.topic
        return Traffic(*where, partitions=plan.partitions, records=plan.records, rate=plan.rate)

    def _begin(self) -> None:
        if self.plan.backend != FLEET:
            self._feed_first(self.plan.records)
        self.workers.wait_ready(*(self.workers.start(place) for place in range(self.count)))
        if self.plan.backend == FLEET:
            self.feed.start()

    def _all_faults(self) -> None:
        plan = self.plan
        if plan.backend != FLEET:
            for number in range(plan.kills):
                self._team()
                left = plan.records - len(self.journals.decided)
                assert left, f"all records had ended after {number} of {plan.kills} kills: give more --records"
                self._one("kill of the leader" if number % 2 and self._on_path else "kill")
            return
        kinds = self._kinds_first()
        # A long fault at the beginning leaves something for those that come later to meet.
        reserve = plan.records // (2 * len(kinds))
        while kinds or self.feed.sent < plan.records:
            self.feed.up_to = plan.records - reserve * max(0, len(kinds) - 1)
            self._one(kinds.pop(0) if kinds else self.dice.choice(self.all_kinds))

    def _team(self) -> None:
        """Wait until two of several workers are at work: else nobody is there to take over."""

        def two() -> bool:
            self.journals.go_on()
            alive = {worker.pid for worker in self.workers.alive.values()}
            return len(alive & self.journals.at_work) > 1 or len(self.journals.decided) == self.plan.records

        if self.count > 1:
            blocking_until(two, "two workers are at work")
        time.sleep(self.dice.uniform(0.0, 1.0))

    def _judge(self, turns: list[Turn], processes: Known, letters: list[int]) -> Verdict:
        within_s = float("inf") if self.plan.backend == FLEET else UNCONFIRMED_S
        return judge_without_order(turns, processes, records=self.plan.records, letters=letters, unconfirmed_s=within_s)

    def _letters(self) -> list[int]:
        """None of a fleet's count: no record is to be one."""
        return [] if self.plan.backend == FLEET else super()._letters()

    def _leaderless(self) -> list[Fault]:
        return []

    def _more(self, turns: Sequence[Turn], letters: Sequence[int]) -> int:
        """Print what the faults of a fleet met; how much of that is too little."""
        plan = self.plan
        if not isinstance(self.feed, Traffic):
            return 0
        shift = LoopClock().now_ms() / 1000 - time.monotonic()
        times = sorted(at - shift for at, _, _ in claims_in(self.feed.bootstrap, self.topic, SLOTS))
        first = self.faults[0].at if self.faults else 0.0
        met_by = met(turns, times, self.faults)
        for kind, one in sorted(met_by.items()):
            print(f"  {kind}: {one.faults} times, met {one.held} held locks, {one.unconfirmed} unconfirmed accepts, "
                  f"{one.claims} claims followed")  # fmt: skip
        found = {
            "claims": (sum(at > first for at in times), plan.claims_min),
            "held locks": (sum(one.held for one in met_by.values()), plan.held_min),
            "unconfirmed accepts": (sum(one.unconfirmed for one in met_by.values()), plan.unconfirmed_min),
        }
        few = [f"{name} {count} < {least}" for name, (count, least) in found.items() if count < least]
        print("  met: " + ", ".join(f"{name} {count}" for name, (count, _) in found.items()))
        print(f"  too little was met: {', '.join(few)}" if few else "", flush=True)
        return len(few)


def poisoned(folder: Path) -> int:
    """A record whose handler kills its process each time must end as a dead letter, all others as accepted."""
    folder.mkdir()
    plan = LoosePlan(seed=0, backend=PATH, records=POISONED_RECORDS, partitions=1, workers=1, kills=1, poison=POISON)
    run = LooseRun(plan, folder)
    deaths, until = 0, time.monotonic() + POISON_S
    try:
        run.feed.make_topic()
        run._feed_first(plan.records)
        run.workers.start(0)  # it may die before it is ready
        letters: list[int] = []
        while not letters:
            assert time.monotonic() < until, f"after {deaths} deaths {len(run.journals.decided)} records had ended"
            time.sleep(0.05)
            run.journals.go_on()
            worker = run.workers.alive[0]
            if not worker.runs:
                deaths += 1
                del run.workers.alive[0]
                run.workers.start(0)
            elif worker.ready and len(run.journals.decided) >= plan.records - 1:
                letters = run._letters()
        code = run.workers.stop(run.workers.alive[0])
    finally:
        run.workers.end()
        run.feed.stop()
    print(f"poison: process deaths {deaths}, other records ended {len(run.journals.decided)}, dead letters {letters}")
    return (run.journals.decided != set(range(plan.records)) - {POISON}) + (letters != [POISON]) + (code != 0)


def main() -> None:
    """The command line."""
    parser = parser_of(__doc__, records=50_000)
    parser.add_argument("--rate", type=float, default=700.0)
    parser.add_argument("--kinds", default="", help="Kinds of faults, separated by commas; all without it.")
    parser.add_argument("--kills", type=int, default=0)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--broker", default="", help="A broker URL; by default a new path.")
    options = parser.parse_args()
    on = FLEET if not options.kills else BROKER if options.broker else PATH
    plans = [
        LoosePlan(
            seed=options.seed + number,
            backend=on,
            url=options.broker,
            records=options.records,
            rate=options.rate,
            partitions=8 if on == FLEET else 1,
            workers=options.workers if on == FLEET else options.workers or 1,
            kills=options.kills,
            kinds=tuple(options.kinds.split(",")) if options.kinds else (),
        )
        for number in range(options.runs)
    ]
    one_on_path = on == PATH and options.workers == 1
    finish(
        options,
        lambda folder: chaos(plans, folder, LooseRun) + (poisoned(folder / "poison") if one_on_path else 0),
    )


if __name__ == "__main__":
    main()
