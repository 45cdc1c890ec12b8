"""A chain of two agents in a fleet, the first of which writes exactly once, while its workers are killed.

    python -m tests.chaos.chain [--seed N] [--runs 1] [--records 20000] [--kills 6] [--isolation read_uncommitted]

What is judged is what the second agent was handed: every record, and each from one place of the topic between them
only. It may be handed one from there again, as its own accepts get lost with its process. Exit code 0: so it was.
"""

from __future__ import annotations

import random
import time
import uuid
from collections import defaultdict
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from tests.chaos.cluster import MortalKafka
from tests.chaos.command import finish, parser_of
from tests.chaos.journal import Journals
from tests.chaos.proxy import Wires
from tests.chaos.traffic import Feed, make_topics, message
from tests.chaos.workers import Workers

WORKERS, SLOTS, PARTITIONS = 3, 8, 4
PROGRESS_S, FINISH_S, CALM_S = 90.0, 300.0, 5.0
LOCK_S = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One run. isolation: of the second agent; empty: as it is by default."""

    seed: int
    records: int
    kills: int
    isolation: str = ""


@dataclass(frozen=True, slots=True)
class Chained:
    """Result of a run. twice: records that were handed on from several places. lost: records handed on from none."""

    twice: Mapping[int, frozenset[tuple[int, int]]]
    lost: list[int]
    kills: int

    @property
    def violations(self) -> int:
        """How many."""
        return len(self.twice) + len(self.lost)


class Run:
    """One run on a Kafka that runs."""

    def __init__(self, plan: Plan, folder: Path, kafka: MortalKafka, wires: Wires) -> None:
        self.plan = plan
        self.dice = random.Random(plan.seed)
        self.topic = f"chain-{uuid.uuid4().hex[:8]}"
        environment = {"ISOLATION": plan.isolation, "LOCK_S": str(LOCK_S)}
        self.workers = Workers(
            folder,
            kafka,
            wires,
            topic=self.topic,
            slots=SLOTS,
            state=True,
            app="tests.chaos.chain_app:app",
            environment=environment,
        )
        self.url = self.workers.url(kafka.bootstrap, lead="false")
        self.feed = Feed(self.url, self.topic, [message(number) for number in range(plan.records)])
        self.journals = Journals(self.workers.journals)
        self.kills = 0

    def places(self) -> dict[int, set[tuple[int, int]]]:
        """Where each record was that the second agent was handed."""
        found: dict[int, set[tuple[int, int]]] = defaultdict(set)
        self.journals.go_on()
        for _, partition, _, _, _, number, _, offset, *_ in self.journals.lines():
            found[number].add((partition, offset))
        return found

    def go(self) -> Chained:
        """From the first record to the last. Raises: AssertionError when it does not go on."""
        plan = self.plan
        make_topics(self.url, [self.topic, f"{self.topic}.mid"], PARTITIONS)
        try:
            self.feed.start()
            self.feed.up_to = plan.records // 4
            self.workers.wait_ready(*(self.workers.start(place) for place in range(WORKERS)))
            for number in range(plan.kills):
                self.feed.up_to = plan.records * (number + 2) // (plan.kills + 2)
                self._more()
                self._kill()
            self.feed.up_to = plan.records
            self._finish()
            return self._judged()
        finally:
            self.workers.end()
            self.feed.stop()

    def _more(self) -> None:
        """Wait until more has come through, by some records."""
        before, until = len(self.places()), time.monotonic() + PROGRESS_S
        while len(self.places()) <= min(before + self.dice.randint(0, 200), self.feed.up_to - 1):
            assert time.monotonic() < until, f"nothing came through within {PROGRESS_S:g} s"
            time.sleep(0.1)

    def _kill(self) -> None:
        self.workers.wait_ready(*self.workers.alive.values())
        victim = self.dice.choice(list(self.workers.alive.values()))
        self.workers.kill(victim)
        self.workers.start(victim.place)
        self.kills += 1
        print(f"  kill {self.kills}: {len(self.places())} came through", flush=True)

    def _finish(self) -> None:
        """Wait until all have come, and nothing more does."""
        until = time.monotonic() + FINISH_S
        while len(self.places()) < self.plan.records and time.monotonic() < until:
            assert self.feed.error is None, f"records could not be sent: {self.feed.error!r}"
            time.sleep(0.5)
        count, calm = -1, time.monotonic()
        while time.monotonic() < calm + CALM_S and time.monotonic() < until:
            seen = sum(map(len, self.places().values()))
            count, calm = seen, calm if seen == count else time.monotonic()
            time.sleep(0.5)

    def _judged(self) -> Chained:
        places = self.places()
        twice = {number: frozenset(found) for number, found in places.items() if len(found) > 1}
        return Chained(twice, [number for number in range(self.plan.records) if number not in places], self.kills)


def chained(plans: list[Plan], folder: Path) -> list[Chained]:
    """All runs on one Kafka."""
    found: list[Chained] = []
    with ExitStack() as stack:
        wires = stack.enter_context(Wires())
        kafka = MortalKafka(folder, wires, WORKERS)
        kafka.start()
        stack.callback(kafka.stop, kill=True)
        for number, plan in enumerate(plans, 1):
            print(f"run {number} of {len(plans)}: {plan}", flush=True)
            place = folder / f"chain-{number}"
            place.mkdir(parents=True)
            one = Run(plan, place, kafka, wires).go()
            found.append(one)
            print(
                f"kills {one.kills}  handed on from several places {len(one.twice)}  lost {len(one.lost)}  "
                f"violations {one.violations}",
                flush=True,
            )
    return found


def main() -> None:
    """The command line."""
    parser = parser_of(__doc__, records=20_000)
    parser.add_argument("--kills", type=int, default=6, help="Of each run.")
    parser.add_argument("--isolation", default="", help="Of the second agent.")
    options = parser.parse_args()
    plans = [
        Plan(seed=options.seed + number, records=options.records, kills=options.kills, isolation=options.isolation)
        for number in range(options.runs)
    ]
    finish(options, lambda folder: sum(one.violations for one in chained(plans, folder)))


if __name__ == "__main__":
    main()
