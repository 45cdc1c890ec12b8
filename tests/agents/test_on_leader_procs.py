"""Tests that an `on_leader` function runs in one process at most: real workers that join, end, are killed and stand
still."""

from __future__ import annotations

import contextlib
import itertools
import random
import signal
import subprocess
import time
from pathlib import Path
from typing import NamedTuple

import pytest

from flowshare.agents.host.lease import HELD_S, WAIT_S
from flowshare.log.owner import read_owner
from tests.agents.processes import Processes
from tests.sim.seeds import drawn
from tests.waiting import blocking_pause, blocking_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

GAP_S = (WAIT_S - HELD_S) / 2
"""Between the last step of one process and the first one of the next, at least."""

APP = """
import asyncio, os, time
import flowshare as fs

LOG = os.open(os.environ["JOURNAL"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
app = fs.App("shop", broker=os.environ["URL"])

def note(word):
    os.write(LOG, f"{word} {os.getpid()} {time.clock_gettime(time.CLOCK_MONOTONIC)}\\n".encode())

@app.share_agent(app.topic("work", value_type=bytes))
async def work(value: bytes) -> None: ...

@app.timer(0.5, on_leader=True)
async def tick() -> None:
    for _ in range(20):
        note("tick")
        await asyncio.sleep(0.01)

@app.task(on_leader=True)
async def go_on() -> None:
    while True:
        note("task")
        await asyncio.sleep(0.02)
"""


HOLDER = """
import os
import flowshare as fs

app = fs.App("holder", broker=os.environ["URL"])

@app.share_agent("held")
async def hold(value: bytes) -> None: ...
"""
"""Holds an embedded path, so that those that are stopped and killed do not."""


class Step(NamedTuple):
    word: str
    pid: int
    at_s: float


class Workers(Processes):
    """Worker processes of one app, and what ran in them."""

    def __init__(self, folder: Path, url: str) -> None:
        super().__init__(folder, url)
        self._by_pid: dict[int, subprocess.Popen[bytes]] = {}

    def add(self, module: str = "leaderapp") -> int:
        process = self.cli("worker", f"{module}:app", "--web-port", "0")
        self._by_pid[process.pid] = process
        return process.pid

    @property
    def living(self) -> list[int]:
        return [pid for pid, process in self._by_pid.items() if process.poll() is None]

    def signal(self, pid: int, number: int) -> None:
        self._by_pid[pid].send_signal(number)
        if number in (signal.SIGKILL, signal.SIGTERM):
            self._by_pid[pid].wait(60)

    def steps(self) -> list[Step]:
        return [Step(word, int(pid), float(at_s)) for word, pid, at_s in self.notes()]

    def holder(self, *others: int, limit_s: float = 60) -> int:
        """The process that runs it, as soon as one does that is none of these."""
        began_s = time.monotonic()

        def holding() -> int:
            steps = self.steps()
            return steps[-1].pid if steps and steps[-1].pid not in others and steps[-1].at_s > began_s else 0

        return blocking_until(holding, lambda: self.log()[-8000:], limit_s=limit_s)

    def check(self) -> int:
        """That no two processes ran it at once; how often it went from one to another."""
        changes = 0
        for before, after in itertools.pairwise(self.steps()):
            if before.pid == after.pid:
                continue
            changes += 1
            assert after.at_s - before.at_s >= GAP_S, f"{before} and {after}: two processes at once"
        return changes


def play(workers: Workers, seed: int) -> int:
    """Joins, ends, kills and standstills of those that run it; how often it moved."""
    rng = random.Random(seed)
    first = workers.add()
    assert workers.holder() == first
    for _ in range(2):
        workers.add()
        blocking_pause(rng.uniform(1, 4), "a join at any moment")
    assert workers.holder() == first, "a join takes it from nobody"

    workers.signal(first, signal.SIGSTOP)
    second = workers.holder(first)
    workers.signal(first, signal.SIGCONT)
    workers.signal(second, signal.SIGTERM)
    third = workers.holder(second)
    workers.signal(third, signal.SIGKILL)
    workers.add()
    fourth = workers.holder(third)
    workers.signal(fourth, signal.SIGSTOP)
    blocking_pause(rng.uniform(HELD_S - 2, HELD_S + 3), "a standstill that the lease does or does not outlive")
    workers.signal(fourth, signal.SIGCONT)
    workers.holder()
    return workers.check()


@pytest.mark.real
def test_joins_ends_kills_and_standstills_never_make_two_on_an_embedded_path(tmp_path):
    workers = Workers(tmp_path, f"embedded://{tmp_path / 'path'}")
    (tmp_path / "leaderapp.py").write_text(APP)
    (tmp_path / "holder.py").write_text(HOLDER)
    with contextlib.closing(workers):
        holder = workers.add("holder")
        blocking_until(lambda: read_owner(tmp_path / "path") is not None or holder not in workers.living)
        assert holder in workers.living
        assert play(workers, drawn()) >= 2
        assert {step.word for step in workers.steps()} == {"tick", "task"}


@pytest.mark.java
@pytest.mark.parametrize("share", ["native", "workers"])
def test_joins_ends_kills_and_standstills_never_make_two_on_a_kafka(tmp_path, kafka, unique, share):
    options = f"share={share}" + (f"&fleet={unique('shop')}&slots=4&listen=127.0.0.1:0" if share == "workers" else "")
    workers = Workers(tmp_path, f"kafka://{','.join(kafka.addresses)}?{options}")
    named = APP.replace('"shop"', repr(unique("shop"))).replace('"work"', repr(unique("work")))
    (tmp_path / "leaderapp.py").write_text(named)
    with contextlib.closing(workers):
        assert play(workers, drawn()) >= 2
