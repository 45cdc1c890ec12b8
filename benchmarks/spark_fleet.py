"""A fleet on Spark, `flowshare worker --on local[N]`: latency, throughput, and what a killed worker costs.

    python benchmarks/spark_fleet.py [--parts latency,throughput,kill] [--runs 3]

latency     500 records a second through two workers, from the producer's call to the handler's first line
throughput  handlers of 10 ms, 2 and 4 workers, beside what as many sleeping handlers reach at best, and beside
            `flowshare worker --procs` in the same run
kill        kill -9 of one of two Python workers: until all that it had in hand runs elsewhere

An embedded path, led by the driver; needs Java 17.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import flowshare as fs
from common import fill, verdict

if TYPE_CHECKING:
    from collections.abc import Iterator

CONCURRENCY = 16
TAKES_S = 0.010
RATE, LATENCY_S = 500, 20
RECORDS_A_WORKER = 12_000
P50_MOST_MS, P99_MOST_MS = 5.0, 50.0
IDEAL_LEAST = 0.95
KILL_MOST_S = 1.0
LIMIT_S = 180.0

APP = f"""
import asyncio, os, time
import flowshare as fs

LOG = os.open(os.environ["FLOWSHARE_BENCH_LOG"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
TAKES_S = float(os.environ["FLOWSHARE_BENCH_TAKES_S"])
app = fs.App("bench", broker="memory://")

def note(word, delivery, more=0.0):
    record = f"{{delivery.partition}}-{{delivery.offset}}"
    os.write(LOG, f"{{word}} {{record}} {{os.getpid()}} {{time.monotonic()}} {{more}}\\n".encode())

@app.share_agent(app.topic("bench", value_type=bytes), concurrency={CONCURRENCY})
async def work(value: bytes, delivery: fs.Delivery) -> None:
    note("start", delivery, time.monotonic() - float(value))
    await asyncio.sleep(TAKES_S)
    note("end", delivery)
"""


Note = tuple[str, str, int, float, float]
"""Word, record, process, moment, and how old the record was."""


class Fleet:
    """Workers, and what their handlers wrote."""

    def __init__(self, folder: Path, takes_s: float, *arguments: str) -> None:
        self.url = f"embedded://{folder}/broker"
        self._log, self._said = folder / "log", folder / "said"
        (folder / "benchapp.py").write_text(APP)
        (folder / "hypothesis.py").write_text("raise ModuleNotFoundError")  # as where workers run
        self.environment = {
            **os.environ,
            "FLOWSHARE_BROKER": self.url,
            "FLOWSHARE_BENCH_LOG": str(self._log),
            "FLOWSHARE_BENCH_TAKES_S": str(takes_s),
            "PYTHONPATH": os.pathsep.join([str(folder), str(Path(__file__).resolve().parent.parent)]),
            "PYSPARK_SUBMIT_ARGS": "--driver-memory 512m --conf spark.ui.enabled=false pyspark-shell",
        }
        self._folder, self._arguments = folder, arguments

    def start(self) -> None:
        """Start it, and wait until its workers are ready."""
        with self._said.open("wb") as said:
            self.driver = subprocess.Popen(
                [sys.executable, "-m", "flowshare.cli", "worker", "benchapp:app", *self._arguments],
                cwd=self._folder,
                env=self.environment,
                stdout=said,
                stderr=said,
            )

    def notes(self) -> list[Note]:
        """All of them, in the order in which they were written."""
        lines = self._log.read_text().splitlines(keepends=True) if self._log.exists() else []
        parts = [line.split() for line in lines if line.endswith("\n")]
        return [(word, record, int(pid), float(at), float(more)) for word, record, pid, at, more in parts]

    def wait_ended(self, records: int) -> list[Note]:
        """Wait until so many records have ended, and return all notes."""
        until = time.monotonic() + LIMIT_S
        notes = self.notes()
        while len({note[1] for note in notes if note[0] == "end"}) < records:
            if time.monotonic() > until or self.driver.poll() is not None:
                raise SystemExit(f"{records} records did not end:\n{self._said.read_text()[-3000:]}")
            time.sleep(0.2)
            notes = self.notes()
        return notes

    def stop(self) -> None:
        """End it in order."""
        self.driver.send_signal(signal.SIGTERM)
        self.driver.wait(60)


@contextmanager
def fleet(takes_s: float, *arguments: str) -> Iterator[Fleet]:
    """One that is not started yet, in a folder of its own."""
    with tempfile.TemporaryDirectory(prefix="flowshare-bench-") as folder:
        made = Fleet(Path(folder), takes_s, *arguments)
        try:
            yield made
        finally:
            if hasattr(made, "driver") and made.driver.poll() is None:
                made.stop()


async def send(url: str, records: int, rate: float) -> None:
    """Values are the moment of their sending."""
    async with fs.Producer(url) as producer:
        began, pending = time.monotonic(), set()
        for number in range(records):
            await asyncio.sleep(max(0.0, began + number / rate - time.monotonic()))
            task = asyncio.ensure_future(producer.send("bench", b"%.6f" % time.monotonic()))
            pending.add(task)
            task.add_done_callback(pending.discard)
        await asyncio.gather(*pending)


def latency() -> tuple[float, float]:
    """p50 and p99 in ms; the first seconds are left out."""
    with fleet(0.0, "--on", "local[2]", "--workers", "2") as one:
        fill(one.url, "bench", [b"0"] * 2, partitions=4)
        one.start()
        one.wait_ended(2)
        asyncio.run(send(one.url, RATE * LATENCY_S, RATE))
        notes = one.wait_ended(RATE * LATENCY_S + 2)
        times = [note[4] * 1000 for note in notes if note[0] == "start"][RATE * 5 :]
        cuts = statistics.quantiles(times, n=100)
        return cuts[49], cuts[98]


def throughput(workers: int, *arguments: str) -> float:
    """Records a second from when all workers are at work, on one partition, until nine tenths are done."""
    records = workers * RECORDS_A_WORKER
    with fleet(TAKES_S, *arguments) as one:
        fill(one.url, "bench", [b"0"] * records)
        one.start()
        ends = [(note[3], note[2]) for note in one.wait_ended(records) if note[0] == "end"]
        began = max(min(at for at, pid in ends if pid == worker) for worker in {pid for _, pid in ends})
        last = sorted(at for at, _ in ends)[records * 9 // 10]
        return sum(began < at <= last for at, _ in ends) / (last - began)


def kill() -> float:
    """Seconds from a kill until all that was running in that process has begun in another."""
    with fleet(TAKES_S, "--on", "local[2]", "--workers", "2") as one:
        fill(one.url, "bench", [b"0"] * 2 * RECORDS_A_WORKER, partitions=4)
        one.start()
        while len({note[2] for note in one.notes()}) < 2 or len(one.notes()) < 4000:
            time.sleep(0.05)
        victim = one.notes()[-1][2]
        os.kill(victim, signal.SIGKILL)
        at = time.monotonic()
        notes = one.wait_ended(2 * RECORDS_A_WORKER)
        ended = {note[1] for note in notes if note[0] == "end" and note[2] == victim}
        held = {note[1] for note in notes if note[0] == "start" and note[2] == victim} - ended
        return max(note[3] for note in notes if note[0] == "start" and note[2] != victim and note[1] in held) - at


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", default="latency,throughput,kill")
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args()
    parts, runs = options.parts.split(","), range(options.runs)
    if "latency" in parts:
        found = [latency() for _ in runs]
        verdict("latency p50 at 500 records/s", statistics.median(p50 for p50, _ in found), P50_MOST_MS, unit="ms",
                at_most=True)  # fmt: skip
        verdict("latency p99 at 500 records/s", statistics.median(p99 for _, p99 in found), P99_MOST_MS, unit="ms",
                at_most=True)  # fmt: skip
    if "throughput" in parts:
        for workers in (2, 4):
            ideal = workers * CONCURRENCY / TAKES_S
            ways = {
                "--on": ("--on", f"local[{workers}]", "--workers", str(workers)),
                "--procs": ("--procs", str(workers)),
            }
            rates = {way: [throughput(workers, *arguments) for _ in runs] for way, arguments in ways.items()}
            for way, found in rates.items():
                print(f"{workers} workers {way:<50} {statistics.median(found):>14,.0f} records/s")
            verdict(f"{workers} workers, 10 ms handlers, part of {ideal:,.0f}/s",
                    statistics.median(rates["--on"]) / ideal, IDEAL_LEAST)  # fmt: skip
    if "kill" in parts:
        verdict("kill -9 of a worker until its records run elsewhere, worst", max(kill() for _ in runs), KILL_MOST_S,
                unit="s", at_most=True)  # fmt: skip


if __name__ == "__main__":
    main()
