"""flowshare's no-op agent beside other clients on one real broker, and other share consumers on flowshare's server.

    python benchmarks/peers.py [--records 1000000] [--runs 3] [--out DIRECTORY] [--only broker|server]

One partition, records of 100 bytes in producer batches of about 1,000. Each peer is a process of its own and alone at
its time; they take turns, and each figure is the median over the runs. Rates count from the first record to the last,
so that joining (5 s for stock share consumers) does not; processor time is that of the client process between the
same two. The slow ones get fewer records. Needs Java, its compiler and, the first time, Maven.

The second part holds stock share consumers against themselves: on `flowshare serve` and on the broker, in turns.
"""

from __future__ import annotations

import argparse
import tempfile
from collections import defaultdict
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import arena
import plot
from common import info, verdict

if TYPE_CHECKING:
    from collections.abc import Callable

Figures = dict[str, float]

FLOWSHARE = "flowshare agent"
FAUST = "Faust agent"
LIBRDKAFKA = "confluent ShareConsumer, explicit"
JAVA = "Java KafkaShareConsumer, explicit"
AIOKAFKA = "aiokafka getmany"
PARALLEL = "parallel-consumer, unordered, 100"
TARGETS = {FAUST: 30.0, LIBRDKAFKA: 1.0, JAVA: 1.0, AIOKAFKA: 0.7, PARALLEL: 4.0}
SHARE_TARGET = 0.8
CPU_MOST_US = 2.0
WARM_ROUNDS = 4


class Field:
    """The peers on one server's topics."""

    def __init__(self, server: arena.Server, records: int) -> None:
        self._server = server
        self._records = records
        self._topic = server.fill("values", records)

    def _python(self, peer: str, records: int, group: str) -> Figures:
        return arena.python_peer(
            "peer.py", peer, bootstrap=self._server.bootstrap, topic=self._topic, group=group, records=records
        )

    def _java(self, program: str, records: int, group: str, *more: object, libraries: str) -> Figures:
        where = (self._server.bootstrap, self._topic, group, records)
        return arena.java_peer(program, *where, *more, libraries=libraries)

    def flowshare(self) -> Figures:
        return self._python("flowshare", self._records, self._server.group())

    def librdkafka(self) -> Figures:
        return self._python("librdkafka", self._records, self._server.group())

    def java(self) -> Figures:
        return self._java("ShareRate", self._records, self._server.group(), libraries=arena.kafka_libraries())

    def aiokafka(self) -> Figures:
        return self._python("aiokafka", self._records, self._server.unused_group())

    def faust(self) -> Figures:
        return self._python("faust", min(self._records, 100_000), self._server.unused_group())

    def parallel(self) -> Figures:
        libraries = arena.parallel_libraries()
        group = self._server.unused_group()
        records = min(self._records, 300_000)
        return self._java("ParallelRate", records, group, 0, "UNORDERED", libraries=libraries)


def in_turns(peers: dict[str, Callable[[], Figures]], runs: int) -> dict[str, Figures]:
    """Run all peers one after another, `runs` times after rounds that are not counted; the medians.

    A broker's compiler needs several rounds of share fetches: without them each counted one is faster than the last.
    """
    found: dict[str, list[Figures]] = defaultdict(list)
    for run in range(-WARM_ROUNDS, runs):
        for name, peer in peers.items():
            if run < -1 and name in (FAUST, PARALLEL):
                continue  # they take long, and cost a broker next to nothing
            figures = peer()
            if run >= 0:
                found[name].append(figures)
                print(f"  {name:<46} {figures['rate']:>12,.0f}/s {figures['cpu_us']:>8.2f} µs/record", flush=True)
    return {name: arena.medians(each) for name, each in found.items()}


def on_the_broker(field: Field, runs: int, out: Path) -> None:
    """The first part."""
    found = in_turns(
        {
            FLOWSHARE: field.flowshare,
            LIBRDKAFKA: field.librdkafka,
            JAVA: field.java,
            AIOKAFKA: field.aiokafka,
            PARALLEL: field.parallel,
            FAUST: field.faust,
        },
        runs,
    )
    ours = found[FLOWSHARE]
    print("\nmedians, on Kafka")
    for name, figures in found.items():
        info(name, figures["rate"], unit="records/s")
        info("  processor time of the client", figures["cpu_us"], unit="µs/record")
    for name, target in TARGETS.items():
        verdict(f"flowshare / {name}", ours["rate"] / found[name]["rate"], target, unit="×")
    verdict("flowshare's processor time", ours["cpu_us"], CPU_MOST_US, unit="µs/record", at_most=True)
    rows = sorted(((name, each["rate"], name == FLOWSHARE) for name, each in found.items()), key=lambda row: -row[1])
    file = out / "peers.svg"
    plot.bars(file, "No-op handlers on one partition of one Kafka broker", rows, unit="/s")
    print(f"plot: {file}")


def on_our_server(broker: Field, ours: Field, runs: int, out: Path) -> None:
    """The second part."""
    found = in_turns(
        {
            f"{LIBRDKAFKA}: Kafka": broker.librdkafka,
            f"{LIBRDKAFKA}: flowshare": ours.librdkafka,
            f"{JAVA}: Kafka": broker.java,
            f"{JAVA}: flowshare": ours.java,
        },
        runs,
    )
    print("\nmedians, flowshare serve in place of the broker")
    for name, figures in found.items():
        info(name, figures["rate"], unit="records/s")
    for name in (LIBRDKAFKA, JAVA):
        ratio = found[f"{name}: flowshare"]["rate"] / found[f"{name}: Kafka"]["rate"]
        verdict(f"{name}: on flowshare / on Kafka", ratio, SHARE_TARGET, unit="×")
    file = out / "server.svg"
    rows = [(name, each["rate"], name.endswith("flowshare")) for name, each in found.items()]
    plot.bars(file, "Stock share consumers on Kafka and on flowshare serve", rows, unit="/s")
    print(f"plot: {file}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--out", type=Path, help="where the plots go; default: a new temporary directory")
    parser.add_argument("--only", choices=("broker", "server"))
    options = parser.parse_args()
    out = options.out or Path(tempfile.mkdtemp(prefix="flowshare-plots-"))
    out.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        broker = Field(stack.enter_context(arena.kafka()), options.records)
        if options.only != "server":
            on_the_broker(broker, options.runs, out)
        if options.only != "broker":
            ours = Field(stack.enter_context(arena.serve()), options.records)
            on_our_server(broker, ours, options.runs, out)


if __name__ == "__main__":
    main()
