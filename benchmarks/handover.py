"""Seconds in which a group on an embedded path stands still when one of its three workers dies or stops.

    python benchmarks/handover.py [--rounds 5] [--rate 100] [--only leader_stopped]

Records flow to twelve partitions at `--rate` a second. A round ends one worker, looks on for eight seconds and starts
another one in its place. Four kinds of rounds: the worker that leads the path is stopped in order (SIGTERM) or killed
(kill -9), and the same for a worker that does not lead. Printed, medians over the rounds: the longest time in which no
handler began a record (group), the same for the partition that waited longest and for the median partition, and the
longest time from a record's timestamp to the begin of its handler.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from common import embedded_url
from flowshare.log.owner import read_owner

PARTITIONS, WORKERS = 12, 3
SETTLE_S, LOOK_S, READY_S = 3.0, 8.0, 60.0
KINDS = ("leader_stopped", "leader_killed", "member_stopped", "member_killed")

APP = """
import asyncio, os, time
import flowshare as fs

app = fs.App("handover", broker=os.environ["URL"])
flow = app.topic("flow", value_type=bytes, partitions=12)

if JOURNAL := os.environ.get("JOURNAL"):
    LOG = os.open(JOURNAL, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

@app.share_agent(flow, group="handover", concurrency=16)
async def work(value: bytes, delivery: fs.Delivery) -> None:
    os.write(LOG, b"%d %s %f\\n" % (delivery.partition, value, time.monotonic()))
    await asyncio.sleep(0.005)

async def send(rate):
    number, begun = 0, time.monotonic()
    async with app.running():
        while True:
            number += 1
            await flow.send(value=b"%f" % time.monotonic(), partition=number % 12)
            await asyncio.sleep(max(0.0, begun + number / rate - time.monotonic()))

if __name__ == "__main__":
    import sys
    asyncio.run(send(float(sys.argv[1])))
"""


class Begin(NamedTuple):
    """A handler's begin. sent, at: seconds of the monotonic clock."""

    partition: int
    sent: float
    at: float


class Figures(NamedTuple):
    """Seconds of one round."""

    group: float
    worst_partition: float
    median_partition: float
    oldest: float


class WorkersOnPath:
    """Three workers and a sender on one path."""

    def __init__(self, url: str, folder: Path, rate: float, seed: int) -> None:
        self.path = Path(url.removeprefix("embedded://"))
        self.folder, self.rate, self.dice = folder, rate, random.Random(seed)
        (folder / "handover_app.py").write_text(APP)
        self.environment = {**os.environ, "URL": url, "JOURNAL": str(folder / "journal"), "PYTHONPATH": str(folder)}
        self.workers: list[subprocess.Popen[bytes]] = []
        self.sender: subprocess.Popen[bytes] | None = None
        self._started = 0

    def start_worker(self) -> None:
        """Start one, and wait until it fetches."""
        self._started += 1
        log = self.folder / f"worker-{self._started}.log"
        self.workers.append(self._run(log, "flowshare.cli", "worker", "handover_app:app"))
        until = time.monotonic() + READY_S
        while "flowshare.worker: ready" not in log.read_text():
            if time.monotonic() > until:
                sys.exit(f"a worker is not ready after {READY_S:.0f} s:\n{log.read_text()[-3000:]}")
            time.sleep(0.05)

    def start_sender(self) -> None:
        """Start what sends, as a process of its own."""
        self.sender = self._run(self.folder / "sender.log", "handover_app", str(self.rate))

    def _run(self, log: Path, *arguments: str) -> subprocess.Popen[bytes]:
        with log.open("ab") as output:
            return subprocess.Popen(
                [sys.executable, "-m", *arguments],
                cwd=self.folder, env=self.environment, stdout=output, stderr=output,
            )  # fmt: skip

    def leader(self) -> subprocess.Popen[bytes]:
        """The worker that leads; a sender that leads is started anew until a worker does."""
        until = time.monotonic() + READY_S
        while time.monotonic() < until:
            owner = read_owner(self.path)
            found = [one for one in self.workers if owner is not None and one.pid == owner.pid]
            if found:
                return found[0]
            if owner is not None and self.sender is not None and owner.pid == self.sender.pid:
                self.sender.terminate()
                self.sender.wait()
                time.sleep(1.0)
                self.start_sender()
            time.sleep(0.1)
        sys.exit("no worker leads the path")

    def round(self, kind: str) -> Figures:
        """End a worker, look on, start another one."""
        self.leader()
        time.sleep(SETTLE_S)
        leader, (who, how) = self.leader(), kind.split("_")
        victim = leader if who == "leader" else self.dice.choice([one for one in self.workers if one is not leader])
        at = time.monotonic()
        victim.send_signal(signal.SIGTERM if how == "stopped" else signal.SIGKILL)
        time.sleep(LOOK_S)
        victim.wait()
        self.workers.remove(victim)
        if self.sender is None or self.sender.poll() is not None:
            sys.exit(f"the sender has ended:\n{(self.folder / 'sender.log').read_text()[-3000:]}")
        found = _figures(self.begins(), at, at + LOOK_S)
        self.start_worker()
        return found

    def begins(self) -> list[Begin]:
        """All begins so far."""
        lines = (line.split() for line in (self.folder / "journal").read_text().splitlines())
        return [Begin(int(partition), float(sent), float(at)) for partition, sent, at in lines]

    def end(self) -> None:
        """End all."""
        for process in [*self.workers, *([self.sender] if self.sender is not None else [])]:
            process.terminate()
            process.wait()


def _figures(begins: list[Begin], start: float, end: float) -> Figures:
    within = sorted((one for one in begins if start < one.at < end), key=lambda one: one.at)
    by_partition: dict[int, list[float]] = defaultdict(list)
    for one in within:
        by_partition[one.partition].append(one.at)
    pauses = [_pause(by_partition[partition], start, end) for partition in range(PARTITIONS)]
    oldest = max((one.at - one.sent for one in within), default=end - start)
    return Figures(_pause([one.at for one in within], start, end), max(pauses), statistics.median(pauses), oldest)


def _pause(times: list[float], start: float, end: float) -> float:
    return max(after - before for before, after in pairwise([start, *times, end]))


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rate", type=float, default=100.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", choices=KINDS)
    options = parser.parse_args()
    with embedded_url() as url, tempfile.TemporaryDirectory(prefix="flowshare-handover-") as folder:
        run = WorkersOnPath(url, Path(folder), options.rate, options.seed)
        try:
            for _ in range(WORKERS):
                run.start_worker()
            run.start_sender()
            print(f"{'seconds':16} {'group':>8} {'worst':>8} {'median':>8} {'oldest':>8}   medians of {options.rounds}")
            for kind in KINDS if options.only is None else (options.only,):
                rounds = [run.round(kind) for _ in range(options.rounds)]
                middle = [statistics.median(column) for column in zip(*rounds, strict=True)]
                worst = [max(column) for column in zip(*rounds, strict=True)]
                print(f"{kind:16} " + " ".join(f"{one:8.2f}" for one in middle)
                      + "   at most " + " ".join(f"{one:.2f}" for one in worst), flush=True)  # fmt: skip
        finally:
            run.end()


if __name__ == "__main__":
    main()
