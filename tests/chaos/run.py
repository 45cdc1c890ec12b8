"""Chaos of a fleet on a real Kafka: workers as processes, every kind of fault, judged by their handlers' own journals.

    python -m tests.chaos.run [--seed N] [--runs 1] [--records 50000] [--rate 700] [--keep FOLDER]

Each run has a topic and a fleet of its own, 3 to 6 workers behind proxies, and records with ids that flow at a steady
rate past them; every kind of fault comes once, in an order of the seed's, then more of them until the records are all
produced. The seed decides what is done, not how fast this machine does it. Exit code 0: no run had a violation, and
the faults met enough claims, held locks and unconfirmed accepts to say something.
"""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from flowshare.clock import LoopClock
from tests.chaos.cluster import MortalKafka
from tests.chaos.command import finish, parser_of
from tests.chaos.faults import Faults
from tests.chaos.journal import Journals
from tests.chaos.judge import Fault, judge, met
from tests.chaos.proxy import Wires
from tests.chaos.traffic import Traffic, claims_in, lag, make_topic
from tests.chaos.workers import Workers

PLACES = 6
FINISH_S = 120.0
PROGRESS_S = 60.0
SHOWN = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One run. kinds: faults in this order, before those by dice; empty: all of them, shuffled."""

    seed: int
    records: int = 50_000
    rate: float = 700.0
    partitions: int = 8
    slots: int = 8
    workers: int = 0
    kinds: tuple[str, ...] = ()
    claims_min: int = 20
    held_min: int = 50
    unconfirmed_min: int = 20


class Run:
    """One run against a Kafka that runs."""

    def __init__(self, plan: Plan, kafka: MortalKafka, wires: Wires, folder: Path) -> None:
        self.plan, self.kafka = plan, kafka
        self.dice = random.Random(plan.seed)
        self.topic = f"chaos-{uuid.uuid4().hex[:8]}"
        self.count = plan.workers or self.dice.randint(3, 5)
        self.state = self.dice.random() < 0.5
        self.workers = Workers(
            folder,
            kafka,
            wires,
            topic=self.topic,
            slots=plan.slots,
            state=self.state,
            environment={
                "SHORT_S": str(self.dice.choice([0.002, 0.01, 0.03])),
                "CONCURRENCY": str(self.dice.choice([16, 32, 64])),
            },
        )
        self.journals = Journals(self.workers.journals)
        self.faults: list[Fault] = []
        self.traffic = Traffic(
            kafka.bootstrap, self.topic, partitions=plan.partitions, records=plan.records, rate=plan.rate
        )

    def go(self) -> None:
        """From the first worker to the last. Raises: AssertionError when it does not go on."""
        make_topic(self.kafka.bootstrap, self.topic, self.plan.partitions)
        try:
            self.workers.wait_ready(*(self.workers.start(place) for place in range(self.count)))
            self.traffic.start()
            self._progress()
            self._all_faults()
            self._finish()
        finally:
            self.workers.end()
            self.traffic.stop()
            self.journals.go_on()

    def _all_faults(self) -> None:
        faults = Faults(self.workers, self.kafka, self.dice)
        kinds = list(self.plan.kinds)
        if not kinds:
            kinds = list(faults.kinds)
            self.dice.shuffle(kinds)
        # A long fault at the beginning leaves something for those that come later to meet.
        reserve = self.plan.records // (2 * len(kinds))
        while kinds or self.traffic.sent < self.plan.records:
            self.traffic.up_to = self.plan.records - reserve * max(0, len(kinds) - 1)
            kind = kinds.pop(0) if kinds else self.dice.choice(list(faults.kinds))
            fault = faults.kinds[kind]()
            self.faults.append(fault)
            self.workers.check()
            self._progress()
            took, again = fault.until - fault.at, time.monotonic() - fault.until
            print(f"  {kind}: {took:.1f} s, on again after {again:.1f} s, {len(self.journals.ended)} ended", flush=True)
            time.sleep(self.dice.uniform(0.0, 1.5))

    def _progress(self) -> None:
        """Wait until records end again; all may have."""
        before, until = len(self.journals.ended), time.monotonic() + PROGRESS_S
        self.journals.go_on()
        while len(self.journals.ended) == before and before < self.traffic.up_to:
            assert time.monotonic() < until, f"no record ended for {PROGRESS_S:.0f} s"
            self.workers.check()
            time.sleep(0.05)
            self.journals.go_on()

    def _finish(self) -> None:
        until = time.monotonic() + FINISH_S
        while len(self.journals.ended) < self.plan.records and time.monotonic() < until:
            self.workers.check()
            time.sleep(0.2)
            self.journals.go_on()
        url = self.workers.url(self.kafka.bootstrap, lead="false")
        while (left := lag(url, self.topic)) != 0 and time.monotonic() < until:
            time.sleep(0.5)
        self.left = left
        for worker in list(self.workers.alive.values()):
            code = self.workers.stop(worker)
            assert code == 0, f"worker {worker.pid} ended with {code}:\n{worker.log.read_text()[-8000:]}"

    def verdict(self) -> int:
        """Print what came of it; the number of violations, too few faults among them."""
        plan, lines = self.plan, self.journals.lines
        found = judge(lines, plan.records, self.faults)
        shift = LoopClock().now_ms() / 1000 - time.monotonic()
        claims = claims_in(self.kafka.bootstrap, self.topic, plan.slots)
        times = sorted(at - shift for at, _, _ in claims)
        first = self.faults[0].at if self.faults else 0.0
        met_by = met(lines, times, self.faults)
        for kind, one in sorted(met_by.items()):
            print(f"  {kind}: {one.faults} times, met {one.held} held locks, {one.unconfirmed} unconfirmed accepts, "
                  f"{one.claims} claims followed")  # fmt: skip
        after = sum(at > first for at in times)
        held = sum(one.held for one in met_by.values())
        unconfirmed = sum(one.unconfirmed for one in met_by.values())
        print(
            f"seed {plan.seed}  workers {self.count}{' with state directories' if self.state else ''}  "
            f"faults {len(self.faults)}  claims {after}  held locks {held}  unconfirmed accepts {unconfirmed}"
        )
        print(
            f"records {plan.records}  lost {len(found.lost)}  begun after the accept {len(found.late)}  "
            f"run again {found.run_again}  without excuse {len(found.unexcused)}  counts lost {len(found.recounted)}  "
            f"begun by who had been given up {found.thawed}  not accepted {found.other}  lag {self.left}"
        )
        for name in ("late", "unexcused", "recounted"):
            for text in getattr(found, name)[:SHOWN]:
                print(f"  {name}: {text}")
        if found.lost:
            print(f"  lost: {found.lost[:20]}")
        for fault in self.faults if found.violations else ():
            print(f"  fault {fault}")
        few = [
            f"{name} {value} < {least}"
            for name, value, least in (
                ("claims", after, plan.claims_min),
                ("held locks", held, plan.held_min),
                ("unconfirmed accepts", unconfirmed, plan.unconfirmed_min),
            )
            if value < least
        ]
        if few:
            print(f"  too little was met: {', '.join(few)}")
        violations = found.violations + len(few) + (self.left != 0)
        print(f"violations {violations}", flush=True)
        return violations


def chaos(plans: Sequence[Plan], folder: Path) -> int:
    """All runs on one Kafka; the number of violations."""
    violations = 0
    with Wires() as wires:
        kafka = MortalKafka(folder, wires, PLACES)
        kafka.start()
        try:
            for number, plan in enumerate(plans, 1):
                print(f"run {number} of {len(plans)}, seed {plan.seed}", flush=True)
                run = Run(plan, kafka, wires, folder / f"run-{number}")
                try:
                    run.go()
                except AssertionError as error:
                    print(f"run {number}, seed {plan.seed}: {error}")
                    violations += 1
                    if not hasattr(run, "left"):
                        run.left = -1
                violations += run.verdict()
        finally:
            kafka.stop(kill=True)
    return violations


def main() -> None:
    """The command line."""
    parser = parser_of(__doc__, records=50_000)
    parser.add_argument("--rate", type=float, default=700.0)
    parser.add_argument("--kinds", default="", help="Kinds of faults, separated by commas; all without it.")
    options = parser.parse_args()
    kinds = tuple(options.kinds.split(",")) if options.kinds else ()
    plans = [
        Plan(seed=options.seed + number, records=options.records, rate=options.rate, kinds=kinds)
        for number in range(options.runs)
    ]
    finish(options, lambda folder: chaos(plans, folder))


if __name__ == "__main__":
    main()
