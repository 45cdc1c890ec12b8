"""Workers of a cooperative group that come, go and are killed all the time, on an embedded path; judged from outside,
by the journals of their handlers: nothing is lost, each key keeps its order, no two handlers of a key overlap, and what
comes again a death explains."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

import pytest

import flowshare as fs
from flowshare.client.producer.producer import Message

RECORDS = 3_000
KEYS = 80
SECONDS = float(os.environ.get("FLOWSHARE_CHURN_S", "25"))
LEASE_S = 6.0
WORKERS = 4
LEFT_S = 180.0
"""How long what is left may take: a lease that has to end, and processes that have to begin."""


class Run(NamedTuple):
    """One handler's run; end: when it ended, or its process was killed. whole: it ended."""

    begin: int
    end: int
    offset: int
    whole: bool
    worker: int


class Workers:
    """Processes on one path."""

    def __init__(self, tmp_path: Path, rng: random.Random) -> None:
        self._leaving: list[subprocess.Popen[bytes]] = []
        self._tmp = tmp_path
        self._rng = rng
        self.broker = f"embedded://{tmp_path / 'path'}"
        self.running: dict[int, subprocess.Popen[bytes]] = {}
        self.killed_ns: dict[int, int] = {}
        self.started = 0

    def start(self) -> None:
        number, self.started = self.started, self.started + 1
        script = Path(__file__).with_name("churn_worker.py")
        command = [sys.executable, str(script), self.broker, str(self.journal(number)), str(LEASE_S), "0.02"]
        with (self._tmp / f"{number}.log").open("wb") as log:
            self.running[number] = subprocess.Popen(command, stdout=log, stderr=log)

    def journal(self, number: int) -> Path:
        return self._tmp / f"{number}.journal"

    def at_work(self) -> list[int]:
        """Those that have handled something: it takes a process seconds to begin."""
        return [number for number in self.running if self.journal(number).exists()]

    def end(self, *, kill: bool) -> None:
        number = self._rng.choice(self.at_work())
        process = self.running.pop(number)
        process.send_signal(signal.SIGKILL if kill else signal.SIGTERM)
        if kill:
            process.wait()
            self.killed_ns[number] = time.monotonic_ns()
        else:
            self._leaving.append(process)

    def stood_still(self, number: int) -> bool:
        """Whether its lease ended while it lived: a machine that has other things to do may keep it waiting."""
        return b"the lease of" in (self._tmp / f"{number}.log").read_bytes()

    def end_all(self) -> None:
        for process in self.running.values():
            process.terminate()
        for process in (*self.running.values(), *self._leaving):
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._leaving.clear()

    def runs(self) -> dict[str, list[Run]]:
        """By key, in the order in which they began."""
        found: dict[str, list[Run]] = defaultdict(list)
        for number in range(self.started):
            open_: dict[tuple[str, int], int] = {}
            text = self.journal(number).read_text() if self.journal(number).exists() else ""
            for line in text.splitlines():
                what, key, _, offset, at = line.split()
                if what == "b":
                    open_[key, int(offset)] = int(at)
                else:
                    begin = open_.pop((key, int(offset)))
                    found[key].append(Run(begin, int(at), int(offset), True, number))
            for (key, offset), begin in open_.items():
                end = self.killed_ns.get(number, begin)
                found[key].append(Run(begin, end, offset, False, number))
        return {key: sorted(runs) for key, runs in found.items()}


async def produce(broker: str) -> None:
    async with fs.Broker(broker) as one:
        await fs.ShareAdmin(one).create_topic("churn", partitions=2)
        messages = [Message(b"1", key=b"k%d" % (number % KEYS)) for number in range(RECORDS)]
        await fs.Producer(one).send_many("churn", messages)


def handled(workers: Workers) -> int:
    return sum(len({run.offset for run in runs if run.whole}) for runs in workers.runs().values())


@pytest.mark.slow
def test_workers_that_come_go_and_die_all_the_time_lose_nothing_and_keep_the_order(tmp_path: Path) -> None:
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    rng = random.Random(seed)
    workers = Workers(tmp_path, rng)
    asyncio.run(produce(workers.broker))
    try:
        for _ in range(WORKERS):
            workers.start()
        begin_by = time.monotonic() + LEFT_S
        while len(workers.at_work()) < 2 and time.monotonic() < begin_by:
            time.sleep(0.1)
        until = time.monotonic() + SECONDS
        while time.monotonic() < until:
            time.sleep(rng.random() * 0.5)
            if len(workers.at_work()) > 1 and rng.random() < 0.4:
                workers.end(kill=rng.random() < 0.5)
            elif len(workers.running) < WORKERS:
                workers.start()
        until = time.monotonic() + LEFT_S
        while handled(workers) < RECORDS and time.monotonic() < until:
            time.sleep(0.5)
    finally:
        workers.end_all()
    judge(workers)


def judge(workers: Workers) -> None:
    """What the journals say."""
    by_key = workers.runs()
    done = {(key, run.offset) for key, runs in by_key.items() for run in runs if run.whole}
    assert len(done) == RECORDS, f"{RECORDS - len(done)} records were lost"
    killed = sorted(workers.killed_ns.values())
    for key, runs in by_key.items():
        newest = -1
        for before, run in zip([None, *runs], runs, strict=False):
            if before is not None:
                assert run.begin >= before.end, f"{key}: {run} beside {before}"
            again = run.offset <= newest
            if again:
                before_it = [one.worker for one in runs if one.offset == run.offset]
                explained = any(one in workers.killed_ns or workers.stood_still(one) for one in before_it)
                assert explained, f"{key}: {run} comes again, and nobody who ran it was killed"
            newest = max(newest, run.offset)
        firsts: dict[int, int] = {}
        for run in runs:
            firsts.setdefault(run.offset, run.begin)
        assert list(firsts) == sorted(firsts), f"{key}: records began out of order"
    print(f"{workers.started} workers, {len(killed)} killed, {sum(map(len, by_key.values())) - RECORDS} runs again")
