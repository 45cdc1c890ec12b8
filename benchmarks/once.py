"""Measure the cost of exactly-once outputs: agents with a sink, exactly once beside at least once, in turns.

    python benchmarks/once.py                    the embedded backend
    python benchmarks/once.py --on workers       a fleet on a real Kafka, and parallel-consumer's transactions; Java
    python benchmarks/once.py --on embedded,workers [--runs 5] [--records 300000]

Records have 100 bytes; a handler returns its input to one sink. Rates count from the first handler until the last
record is accepted, with its outputs. Latency is that of an output: from the time when its input should have been sent
(500 a second) until a reader of the sink has it; on Kafka the reader reads committed records only. parallel-consumer
produces by pollAndProduceMany with PERIODIC_TRANSACTIONAL_PRODUCER and its own commit interval; its rate counts
produced records, committed or not. Each run is a process of its own; runs take turns, and figures and ratios are
medians.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import threading
import time
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import uvloop

import arena
import flowshare as fs
from common import embedded_url, fill, in_fresh_process, info, verdict

if TYPE_CHECKING:
    from collections.abc import Callable

HERE = str(Path(__file__).resolve())
VALUE = b"x" * 100
CONCURRENCY = 100
SLEEP_MS = 10
SLOW_PART = 5
"""Of so many records one is left for handlers that take their time."""
RATE, LATENCY_S = 500, 10
WARM_S = 2.0
LOOK_S = 0.002
WARM_ROUNDS = 1
READY_S = 60
EMBEDDED_LEAST, WORKERS_LEAST, PARALLEL_LEAST = 0.9, 0.6, 1.0
P50_MOST = 1.05
"""No worse, but for what two medians of the same differ by."""
EXACTLY, AT_LEAST, PARALLEL = "exactly once", "at least once", "parallel-consumer, transactional"

Figures = dict[str, float]


def promised(once: int) -> dict[str, Any]:
    """The agent's option."""
    return {"exactly_once": True} if once else {}


# --- rates --------------------------------------------------------------------------------------------------------


def section_rate(options: argparse.Namespace) -> Figures:
    """An agent whose handler returns the record's value; the topics are there, `values` is filled."""
    first: list[float] = []
    pause_s = options.sleep_ms / 1000

    async def main() -> Figures:
        app = fs.App("bench", broker=options.url)
        more: dict[str, Any] = {"concurrency": options.concurrency} if options.concurrency else {}

        async def quick(value: bytes) -> bytes:
            if not first:
                first.append(time.perf_counter())
            return value

        async def slow(value: bytes) -> bytes:
            if not first:
                first.append(time.perf_counter())
            await asyncio.sleep(pause_s)
            return value

        app.share_agent(
            app.topic(options.topic, value_type=bytes),
            name="copy",
            group=options.group,
            sink=[app.topic(options.sink, value_type=bytes)],
            **promised(options.once),
            **more,
        )(slow if pause_s else quick)
        async with app.running():
            runtime: Any = app.runtime_of("copy")
            while runtime.stats()["accepted"] < options.records:
                await asyncio.sleep(LOOK_S)
            seconds = time.perf_counter() - first[0]
            found = runtime.stats()
        return {"rate": options.records / seconds, "again": found["redelivered"]}

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main())


def section_embedded(options: argparse.Namespace) -> Figures:
    """The same on a path that this process makes."""
    with embedded_url() as url:
        fill(url, "values", [VALUE] * options.records)
        fill(url, "copies", [])
        options.url, options.topic, options.sink, options.group = url, "values", "copies", "bench"
        return section_rate(options)


# --- latency ------------------------------------------------------------------------------------------------------


class Stamps:
    """Times at which outputs were read; their values say when the inputs should have been sent."""

    def __init__(self) -> None:
        self._seen: list[float] = []
        self.all_seen = threading.Event()

    def take(self, value: bytes) -> None:
        """An output; those of the beginning are not counted."""
        at = time.perf_counter()
        number, due = value.split()
        if int(number) >= WARM_S * RATE:
            self._seen.append(at - float(due))
        if int(number) == (WARM_S + LATENCY_S) * RATE - 1:
            self.all_seen.set()

    def figures(self) -> Figures:
        """Milliseconds."""
        ordered = sorted(self._seen)
        return {"p50": 1000 * ordered[len(ordered) // 2], "p99": 1000 * ordered[int(0.99 * len(ordered))]}


class KafkaReader:
    """A plain consumer of committed records, on a thread of its own. at_end: only of those that come from now on."""

    def __init__(self, bootstrap: str, topic: str, stamps: Stamps, *, at_end: bool = False) -> None:
        from confluent_kafka import OFFSET_END, Consumer, TopicPartition

        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "none",
                "isolation.level": "read_committed",
                "fetch.wait.max.ms": 100,
            }
        )
        self._consumer.assign([TopicPartition(topic, 0, OFFSET_END if at_end else 0)])
        self._stamps = stamps
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        while not self._stamps.all_seen.is_set():
            for message in self._consumer.consume(500, 0.1):
                self._stamps.take(message.value())
        self._consumer.close()


def section_latency(options: argparse.Namespace) -> Figures:
    """500 records a second through the agent; on Kafka with `bootstrap`, else on a path of its own."""

    async def main(url: str) -> Figures:
        app = fs.App("bench", broker=url)
        values, copies = (app.topic(name, value_type=bytes) for name in (options.topic, options.sink))
        stamps = Stamps()

        @app.share_agent(values, group=options.group, sink=[copies], **promised(options.once))
        async def copy(value: bytes) -> bytes:
            return value

        if not options.bootstrap:

            @app.share_agent(copies)
            async def read(value: bytes) -> None:
                stamps.take(value)

        async with app.running():
            if options.bootstrap:
                KafkaReader(options.bootstrap, options.sink, stamps)
            await send_evenly(values)
            await asyncio.to_thread(stamps.all_seen.wait, READY_S)
        return stamps.figures()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        if options.bootstrap:
            return runner.run(main(options.url))
        with embedded_url() as url:
            options.topic, options.sink, options.group = "values", "copies", "bench"
            fill(url, "values", [])
            fill(url, "copies", [])
            return runner.run(main(url))


async def send_evenly(topic: Any) -> None:
    """Send number and due time, RATE a second; a sender that is late counts as latency."""
    sends = []
    begun = time.perf_counter()
    for number in range(int((WARM_S + LATENCY_S) * RATE)):
        due = begun + number / RATE
        if (pause_s := due - time.perf_counter()) > 0:
            await asyncio.sleep(pause_s)
        sends.append(asyncio.ensure_future(topic.send(value=b"%d %r" % (number, due))))
    await asyncio.gather(*sends)


# --- in turns -----------------------------------------------------------------------------------------------------


def in_turns(peers: dict[str, Callable[[], Figures]], runs: int) -> dict[str, list[Figures]]:
    """All peers one after the other, `runs` times after a round that is not counted; who begins changes."""
    found: dict[str, list[Figures]] = defaultdict(list)
    for run in range(-WARM_ROUNDS, runs):
        for name, peer in list(peers.items())[:: 1 if run % 2 == 0 else -1]:
            figures = peer()
            if run >= 0:
                found[name].append(figures)
    return found


def told(label: str, found: dict[str, list[Figures]], held: dict[str, float], figure: str = "rate") -> None:
    """Print the medians, and the median of each turn's ratio, exactly once to another. held: to what, by the other."""
    unit = "records/s" if figure == "rate" else "ms"
    for name, figures in found.items():
        info(f"{label}, {name}", statistics.median(one[figure] for one in figures), unit=unit)
    for other, limit in held.items():
        ratio = statistics.median(
            ours[figure] / theirs[figure] for ours, theirs in zip(found[EXACTLY], found[other], strict=True)
        )
        verdict(f"  {EXACTLY} / {other}", ratio, limit, unit="×", at_most=figure != "rate")


def latency_told(label: str, found: dict[str, list[Figures]], *, held: bool) -> None:
    """Its p50, which may be held to something, and its p99, which is not."""
    told(f"{label}, p50", found, {AT_LEAST: P50_MOST} if held else {}, "p50")
    told(f"{label}, p99", found, {}, "p99")


def on_embedded(options: argparse.Namespace) -> None:
    """A no-op handler, and single records."""

    def pair(section: str, **more: object) -> dict[str, Callable[[], Figures]]:
        return {
            name: lambda once=once: in_fresh_process(HERE, section, once=once, **more)
            for name, once in ((EXACTLY, 1), (AT_LEAST, 0))
        }

    told(
        "embedded, no-op, one sink",
        in_turns(pair("embedded", records=options.records), options.runs),
        {AT_LEAST: EMBEDDED_LEAST},
    )
    latency_told(f"embedded, {RATE}/s", in_turns(pair("latency"), options.runs), held=True)


class OnWorkers:
    """The peers on one real Kafka; each run has a fleet, a group and a sink of its own."""

    def __init__(self, server: arena.Server, records: int) -> None:
        self._server, self._records = server, records

    def rates(self, topic: str, records: int, sleep_ms: int) -> dict[str, Callable[[], Figures]]:
        """Agents of both promises, and parallel-consumer."""
        return {
            EXACTLY: lambda: self._agent("rate", 1, topic=topic, records=records, sleep_ms=sleep_ms),
            AT_LEAST: lambda: self._agent("rate", 0, topic=topic, records=records, sleep_ms=sleep_ms),
            PARALLEL: lambda: self._parallel(topic, records, sleep_ms),
        }

    def latencies(self) -> dict[str, Callable[[], Figures]]:
        """Agents of both promises, each with a topic of its own."""

        def peer(once: int) -> Figures:
            topic = self._server.topic(self._server.unused_group())
            return self._agent("latency", once, topic=topic, bootstrap=self._server.bootstrap)

        return {EXACTLY: lambda: peer(1), AT_LEAST: lambda: peer(0)}

    def run(self, runs: int) -> None:
        """All of it."""
        slow = self._records // SLOW_PART
        for label, records, sleep_ms in (("no-op", self._records, 0), (f"{SLEEP_MS} ms", slow, SLEEP_MS)):
            topic = self._server.fill(f"values-{sleep_ms}", records)
            found = in_turns(self.rates(topic, records, sleep_ms), runs)
            held = {AT_LEAST: WORKERS_LEAST, PARALLEL: PARALLEL_LEAST}
            told(f"workers, {label}, {CONCURRENCY} at once", found, held)
        latency_told(f"workers, {RATE}/s", in_turns(self.latencies(), runs), held=False)

    def _agent(self, section: str, once: int, **more: object) -> Figures:
        group = self._server.unused_group()
        sink = self._server.topic(f"{group}-copies")
        url = f"kafka://{self._server.bootstrap}?share=workers&fleet={group}"
        options = {"url": url, "group": group, "sink": sink, "once": once, "concurrency": CONCURRENCY, **more}
        return arena.python_peer("once.py", section, **options)

    def _parallel(self, topic: str, records: int, sleep_ms: int) -> Figures:
        group = self._server.unused_group()
        sink = self._server.topic(f"{group}-copies")
        where = (self._server.bootstrap, topic, group, records, sleep_ms, sink)
        return arena.java_peer("ParallelTransactions", *where, libraries=arena.parallel_libraries())


def on_workers(options: argparse.Namespace) -> None:
    """On a Kafka that this starts."""
    with arena.kafka() as server:
        OnWorkers(server, options.records).run(options.runs)


PARTS = {"embedded": on_embedded, "workers": on_workers}
SECTIONS = {"rate": section_rate, "embedded": section_embedded, "latency": section_latency}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--on", default="embedded")
    parser.add_argument("--records", type=int, default=300_000)
    parser.add_argument("--runs", type=int, default=5)
    inner = parser.add_argument_group("what the processes are told")
    inner.add_argument("--section", "--peer", choices=SECTIONS)
    inner.add_argument("--url")
    inner.add_argument("--bootstrap", default="")
    inner.add_argument("--topic")
    inner.add_argument("--sink")
    inner.add_argument("--group")
    inner.add_argument("--once", type=int, default=0)
    inner.add_argument("--concurrency", type=int, default=0)
    inner.add_argument("--sleep-ms", type=int, default=0)
    options = parser.parse_args()
    if options.section:
        print(json.dumps(SECTIONS[options.section](options)))
        return
    for part in options.on.split(","):
        PARTS[part](options)


if __name__ == "__main__":
    main()
