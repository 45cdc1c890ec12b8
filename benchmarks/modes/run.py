"""Consumer groups, share groups, cooperative groups and KMQ on the same records, in turns, in one run.

    make bench-modes                                        20 minutes at most; needs Java, its compiler and Maven
    python -m benchmarks.modes --quick                      3 to 4 minutes, to see that it works
    python -m benchmarks.modes --only W1,W4 --arms embedded --out DIRECTORY --seed 7
    python -m benchmarks.modes --out docs/modes --page docs/modes.md

Each cell is the median of up to three trials, which are shuffled anew in each round by a seed. Every trial has its own
topic and group; all that use Kafka use one broker. A trial counts when every record was seen (at most once: none
twice), no order was broken that was promised, and in W7 and W8 no output lost or repeated of an exactly-once arm; else
its cell is void, and the exit code is 1. --out gets samples.json, figures.md and three plots; --page is a page whose
figures are replaced.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import confluent_kafka

import flowshare
from benchmarks.modes import arms, page, places
from benchmarks.modes.members import compiled, kmq_libraries, parallel_libraries
from benchmarks.modes.table import HEADLINE, Notes, Results, number, plain, rows
from benchmarks.modes.workloads import COMMON, OWN, RATE_MOST, WORKLOADS, Case, Sample, Workload, sampled
from flowshare.dev.java import java

if TYPE_CHECKING:
    from benchmarks.modes.arms import Arm
    from benchmarks.modes.places import Site

TURNS = 3
MINUTES, QUICK_MINUTES = 19.0, 10.0
QUICK_SCALE, WARM_SCALE = 0.2, 0.1
QUICK_VARIANTS = {"W5": ("16",), "W6": ("1000",), "W10": ("random",)}
WARM_LANES = 3
QUICK_LANES = 4
SLOWEST_PART, OWN_PART = 0.5, 0.8
RATE_LEAST = 100.0


class Run:
    """One run."""

    def __init__(self, options: argparse.Namespace, kafka: Site, paths: Site) -> None:
        self._options = options
        self._sites = {False: kafka, True: paths}
        self._dice = random.Random(options.seed)
        self._begun = time.monotonic()
        self._took: dict[str, float] = {}
        self._rates: dict[str, dict[str, float]] = {}
        self.scale = QUICK_SCALE if options.quick else 1.0
        self.samples: list[Sample] = []
        self.empty: dict[tuple[str, str, str], str] = {}
        self.arms: list[Arm] = []
        for arm in arms.ARMS:
            if any(part in arm.name for part in options.arms.split(",")):
                self._take(arm)
        wanted = options.only.split(",") if options.only else [one.number for one in WORKLOADS]
        self.workloads = [one for one in WORKLOADS if one.number in wanted]

    def _take(self, arm: Arm) -> None:
        refused = arms.refusal(arm)
        if refused:
            self.empty[arm.name, "", ""] = refused
            print(f"left out: {arm.name}: {refused}", flush=True)
        self.arms.append(arm)

    @property
    def minutes(self) -> float:
        """Since the start."""
        return (time.monotonic() - self._begun) / 60

    def warm(self) -> None:
        """Rounds that do not count: a broker's compiler and the caches get to know all kinds of requests."""
        warmth = Workload(number="warm", title="not counted", measure=WORKLOADS[0].measure, lanes=WARM_LANES)
        self._round(warmth, -1, WARM_SCALE)
        self.samples.clear()

    def all_turns(self) -> None:
        """Round by round, as long as there is time."""
        for turn in range(1 if self._options.quick else self._options.turns):
            for workload in self.workloads:
                if turn >= workload.turns:
                    continue
                if turn and self.minutes + self._took[workload.number] > self._options.minutes:
                    print(f"no time is left for round {turn + 1} of {workload.number}", flush=True)
                    continue
                begun = self.minutes
                self._round(workload, turn, self.scale)
                self._took[workload.number] = self.minutes - begun

    def _round(self, workload: Workload, turn: int, scale: float) -> None:
        cases = list(self._cases(workload, scale))
        self._dice.shuffle(cases)
        begun = time.monotonic()
        lanes = QUICK_LANES if self._options.quick and workload.number != "W10" else workload.lanes
        with ThreadPoolExecutor(lanes) as pool:
            for sample in filter(None, pool.map(lambda case: self._sample(workload, case, turn), cases)):
                self._told(sample)
                self.samples.append(sample)
        print(f"{workload.number}, round {turn + 1}: {time.monotonic() - begun:.0f} s", flush=True)

    def _sample(self, workload: Workload, case: Case, turn: int) -> Sample | None:
        """A trial's, if there is time for it."""
        return sampled(workload, case, turn) if self.minutes < self._options.minutes else None

    def _cases(self, workload: Workload, scale: float):
        variants = workload.variants
        if self._options.quick:
            variants = QUICK_VARIANTS.get(workload.number, variants)
        for arm in self.arms:
            if (arm.name, "", "") in self.empty:
                continue
            rates = self._rates_of(arm) if workload.number == "W3" else {}
            for variant in variants:
                why = workload.cannot(arm, variant)
                if why:
                    self.empty[arm.name, workload.number, variant] = why
                    continue
                yield Case(site=self._sites[arm.embedded], arm=arm, variant=variant, scale=scale, rates=rates)

    def _rates_of(self, arm: Arm) -> dict[str, float]:
        """The rates of W3, from the first round of W1, and the same in all rounds."""
        if not self._rates:
            own = {one.name: self._own_rate(one) for one in self.arms if (one.name, "", "") not in self.empty}
            common = _two_digits(SLOWEST_PART * min(own.values()))
            for name, rate in own.items():
                self._rates[name] = {COMMON: common, OWN: _two_digits(OWN_PART * rate)}
        return self._rates[arm.name]

    def _own_rate(self, arm: Arm) -> float:
        found = [
            one.figures["rate"] for one in self.samples if one.workload == "W1" and one.arm == arm.name and one.figures
        ]
        return statistics.median(found) if found else RATE_MOST / 10

    def _told(self, sample: Sample) -> None:
        figures = ", ".join(f"{name} {number(value)}" for name, value in sample.figures.items())
        void = f" VOID: {'; '.join(sample.complaints)}" if sample.complaints else ""
        print(f"  {sample.workload} {sample.variant:<8} {sample.arm:<36} {figures}{void}", flush=True)


def _two_digits(rate: float) -> float:
    """Rounded, within what a sender can do."""
    return float(f"{min(RATE_MOST, max(RATE_LEAST, rate)):.2g}")


def configuration(options: argparse.Namespace, kafka: places.Kafka) -> dict[str, str]:
    """Return the versions and settings that the figures depend on."""
    said = subprocess.run([str(java()), "-version"], capture_output=True, text=True, check=False).stderr
    return {
        "flowshare": flowshare.__version__,
        "Kafka": f"{kafka.version}, one node, acks=all, {places.PARTITIONS} partitions a topic",
        "broker settings": ", ".join(f"{name}={value}" for name, value in places.SETTINGS.items()),
        "fleets": f"{places.SLOTS} slots",
        "confluent-kafka": f"{confluent_kafka.__version__}, librdkafka {confluent_kafka.libversion()[0]}",
        "parallel-consumer": "0.5.3.3",
        "KMQ": "0.2, kafka-clients 3.9.1",
        "Java": said.splitlines()[0] if said else "unknown",
        "Python": platform.python_version(),
        "machine": f"{os.cpu_count()} processors, {platform.system()} {platform.machine()}, "
        f"load {os.getloadavg()[0]:.1f} at the start",
        "records": "100 bytes, keys in turns",
        "seed": str(options.seed),
    }


def parsed() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.modes", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, help="default: a new temporary directory")
    parser.add_argument("--page", type=Path, help="a page whose figures are replaced")
    parser.add_argument("--quick", action="store_true", help="one short round, fewer variants, arms side by side")
    parser.add_argument("--only", default="", help="workloads, as W1,W4")
    parser.add_argument("--arms", default="", help="parts of the arms' names")
    parser.add_argument("--turns", type=int, default=TURNS)
    parser.add_argument(
        "--minutes", type=float, default=MINUTES, help="no round begins that would end later, and no trial"
    )
    parser.add_argument("--seed", type=int, default=random.randrange(10_000))
    options = parser.parse_args()
    options.minutes = options.minutes or (QUICK_MINUTES if options.quick else MINUTES)
    return options


def main() -> None:
    """Run it."""
    options = parsed()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended from outside"))  # so that broker and members end, too
    print(f"seed {options.seed}", flush=True)
    compiled("ParallelMembers", parallel_libraries())
    compiled("KmqMembers", kmq_libraries())
    out = options.out or Path(tempfile.mkdtemp(prefix="flowshare-modes-"))
    out.mkdir(parents=True, exist_ok=True)
    with places.kafka() as kafka, places.paths() as paths:
        run = Run(options, kafka, paths)
        config = configuration(options, kafka)
        if not options.quick:
            run.warm()
        run.all_turns()
    results = Results([one.name for one in run.arms], run.samples, run.empty)
    notes = Notes()
    print("\n" + "\n".join(plain(rows(results, HEADLINE, notes, spreads=False))))
    print("\n".join(notes.lines()))
    raw = {"config": config, "samples": [asdict(one) for one in run.samples]}
    (out / "samples.json").write_text(json.dumps(raw))
    page.write(out, options.page, results, config, [one.name for one in run.arms if one.ours])
    print(f"after {run.minutes:.1f} minutes; samples, figures and plots are in {out}")
    void = results.complaints()
    if void:
        sys.exit("void:\n" + "\n".join(f"  {line}" for line in void))
