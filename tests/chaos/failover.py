"""How long a share-partition is served by nobody when the worker that leads it dies, or stops in order.

    python -m tests.chaos.failover [--rounds 5] [--rate 400]

Three workers, records that flow to all partitions. After kill -9 of a worker that leads: from the kill until a handler
begins a record of a share-partition that it led which was produced after the kill; allowed are session (6 s),
rebalance (3 s) and 1 s. On SIGTERM: the longest time in which no record of such a share-partition was begun; 1 s is
allowed. What living workers had in hand must run once, as in `tests.chaos.run`. Exit code 0: all of it holds.
"""

from __future__ import annotations

import random
import signal
import statistics
import time
import uuid
from collections import defaultdict
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from confluent_kafka import TopicCollection
from confluent_kafka.admin import AdminClient

from flowshare.slots.placement import share_slot
from tests.chaos.cluster import MortalKafka
from tests.chaos.command import finish, parser_of
from tests.chaos.journal import Journals, Turn
from tests.chaos.judge import Fault, Processes, judge_without_order, turns_in
from tests.chaos.order import SHOWN
from tests.chaos.proxy import Wires
from tests.chaos.traffic import Traffic, claims_in
from tests.chaos.workers import APP, Worker, Workers

WORKERS, PARTITIONS, SLOTS = 3, 12, 12
KILL_S_MAX, STOP_S_MAX = 10.0, 1.0
SETTLE_S, AFTER_S = 6.0, 14.0
LOCK_S = 30.0
HANDLERS = {"SHORT_S": "0.005", "CONCURRENCY": "64", "LONG": "0.03", "LONG_S": "2.7"}
RECORDS_MAX = 10_000_000


@dataclass
class Figures:
    """Seconds, one for each share-partition that a worker led when it ended."""

    killed: list[float] = field(default_factory=list)
    stopped: list[float] = field(default_factory=list)


class FailOver:
    """A fleet under load whose workers end one by one."""

    def __init__(self, kafka: MortalKafka, wires: Wires, folder: Path, rate: float, seed: int) -> None:
        self.kafka, self.dice = kafka, random.Random(seed)
        self.topic = f"failover-{uuid.uuid4().hex[:8]}"
        self.workers = Workers(
            folder,
            kafka,
            wires,
            topic=self.topic,
            slots=SLOTS,
            state=False,
            app=APP,
            environment={"ORDER": "", "LOCK_S": str(LOCK_S), "ATTEMPTS": "5", **HANDLERS},
        )
        self.journals = Journals(self.workers.journals)
        self.traffic = Traffic(kafka.bootstrap, self.topic, partitions=PARTITIONS, records=RECORDS_MAX, rate=rate)
        self.traffic.make_topic()
        self.faults: list[Fault] = []
        self.figures = Figures()

    def go(self, rounds: int) -> None:
        """All rounds, a kill and a stop each."""
        try:
            self.workers.wait_ready(*(self.workers.start(place) for place in range(WORKERS)))
            self.traffic.start()
            for number in range(rounds):
                self._round("kill", signal.SIGKILL)
                self._round("stop", signal.SIGTERM)
                print(f"  round {number + 1}: kill {_line(self.figures.killed)}, stop {_line(self.figures.stopped)}",
                      flush=True)  # fmt: skip
        finally:
            self.traffic.stop()
            self._drain()
            self.workers.end()
            self.journals.go_on()

    def _round(self, kind: str, number: signal.Signals) -> None:
        time.sleep(SETTLE_S)
        self.journals.go_on()
        led = self._led()
        victim = self.dice.choice([worker for worker in self.workers.alive.values() if led[worker.peers.port]])
        partitions = led[victim.peers.port]
        if number is signal.SIGKILL:
            at = self.workers.kill(victim)
        else:
            at = time.monotonic()
            self.workers.stop(victim)
        time.sleep(max(0.0, at + AFTER_S - time.monotonic()))
        self.journals.go_on()
        gave_up = (victim.pid,) if number is signal.SIGKILL else ()
        self.faults.append(Fault(kind, at, time.monotonic(), (victim.pid,), gave_up, killed=gave_up))
        begun = self._begun_by_partition()
        for partition in partitions:
            if number is signal.SIGKILL:
                self.figures.killed.append(self._served_again(begun[partition], victim, at))
            else:
                self.figures.stopped.append(_longest_pause([turn.begin for turn in begun[partition]], at, at + AFTER_S))
        self._start_again(victim)

    def _start_again(self, victim: Worker) -> None:
        self.workers.wait_ready(self.workers.start(victim.place))

    def _led(self) -> dict[int, list[int]]:
        """Partitions by the port at which their leader is reached."""
        admin = AdminClient({"bootstrap.servers": self.kafka.bootstrap, "log_level": 0})
        found = admin.describe_topics(TopicCollection([self.topic]))[self.topic].result(30).topic_id
        bits = (1 << 64) - 1
        topic_id = uuid.UUID(
            int=(found.get_most_significant_bits() & bits) << 64 | (found.get_least_significant_bits() & bits)
        )
        ports = {slot: claim.port for _, slot, claim in claims_in(self.kafka.bootstrap, self.topic, SLOTS)}
        led: dict[int, list[int]] = defaultdict(list)
        for partition in range(PARTITIONS):
            led[ports[share_slot(topic_id, partition, SLOTS)]].append(partition)
        return led

    def _turns(self) -> tuple[list[Turn], Processes]:
        processes = Processes(self.faults, lock_s=LOCK_S, ended={})
        return turns_in(self.journals.lines(), processes), processes

    def _begun_by_partition(self) -> dict[int, list[Turn]]:
        begun: dict[int, list[Turn]] = defaultdict(list)
        for turn in sorted(self._turns()[0], key=lambda turn: turn.begin):
            begun[turn.partition].append(turn)
        return begun

    def _served_again(self, begun: list[Turn], victim: Worker, at: float) -> float:
        """Seconds until a record was begun elsewhere that was produced after the kill; infinite: it never was."""
        sent_after = (one.begin for one in begun if one.begin > at and one.pid != victim.pid and self._sent(one) > at)
        return next(sent_after, float("inf")) - at

    def _sent(self, turn: Turn) -> float:
        return self.traffic.confirmed.get(turn.number, (0, 0.0))[1]

    def _drain(self) -> None:
        until = time.monotonic() + 60.0
        while len(self.journals.decided) < self.traffic.sent and time.monotonic() < until:
            time.sleep(0.2)
            self.journals.go_on()

    def verdict(self) -> int:
        """Print the figures; the number of violations."""
        turns, processes = self._turns()
        records = self.traffic.sent
        found = judge_without_order(turns, processes, records=records, letters=(), unconfirmed_s=float("inf"))
        killed, stopped = self.figures.killed, self.figures.stopped
        print(
            f"kill -9 until served again: {_line(killed)} (at most {KILL_S_MAX:.0f} s), {len(killed)} share-partitions"
        )
        print(f"graceful stop, longest pause: {_line(stopped)} (at most {STOP_S_MAX:.0f} s), of {len(stopped)}")
        print(f"records {records}  {found}")
        for text in [*found.unexcused, *found.late][:SHOWN]:
            print(f"  {text}")
        late = sum(one > KILL_S_MAX for one in killed) + sum(one > STOP_S_MAX for one in stopped)
        print(f"violations {found.violations}  too late {late}", flush=True)
        return found.violations + late


def _longest_pause(times: list[float], start: float, end: float) -> float:
    within = [start, *(at for at in times if start < at < end), end]
    return max(after - before for before, after in pairwise(within))


def _line(seconds: list[float]) -> str:
    if not seconds:
        return "none yet"
    return f"p50 {statistics.median(seconds):.2f} s, max {max(seconds):.2f} s"


def main() -> None:
    """The command line."""
    parser = parser_of(__doc__, records=RECORDS_MAX, runs=False)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rate", type=float, default=400.0)
    options = parser.parse_args()

    def runs(folder: Path) -> int:
        with ExitStack() as stack:
            wires = stack.enter_context(Wires())
            kafka = MortalKafka(folder, wires, WORKERS)
            kafka.start()
            stack.callback(kafka.stop, kill=True)
            run = FailOver(kafka, wires, folder / "run", options.rate, options.seed)
            run.go(options.rounds)
            return run.verdict()

    finish(options, runs)


if __name__ == "__main__":
    main()
