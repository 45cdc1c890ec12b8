"""`flowshare worker --procs N` and several workers on one embedded path: real processes, judged by their handlers."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from flowshare.backend.path_workers import running_workers
from flowshare.log.owner import read_owner
from tests.agents.processes import Processes

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

LIMIT_S = 120.0

APP = """
import asyncio, ctypes, os, time
import flowshare as fs

LOG = os.open(os.environ["JOURNAL"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
app = fs.App("fleet", broker=os.environ["URL"])

def note(word, delivery):
    line = f"{word} {delivery.offset} {delivery.attempt} {os.getpid()} {time.clock_gettime(time.CLOCK_MONOTONIC)}\\n"
    os.write(LOG, line.encode())

@app.share_agent(app.topic("work", value_type=bytes), concurrency=4, drain_timeout=5)
async def work(value: bytes, delivery: fs.Delivery) -> None:
    note("start", delivery)
    kind, _, amount = value.decode().partition(" ")
    if kind == "hold":  # the interpreter lock, in C code, until somebody writes to the pipe
        while ctypes.PyDLL(None).open(amount.encode(), os.O_RDONLY) < 0:
            pass
    else:
        await asyncio.sleep(float(amount))
    note("end", delivery)
"""


class Note(NamedTuple):
    """A line of the handlers' journal."""

    offset: int
    pid: int
    at: float


class Place(Processes):
    """A folder with an app on an embedded path, what its handlers wrote and its processes."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, f"embedded://{folder}/path")
        self.path = folder / "path"
        (folder / "fleetapp.py").write_text(APP)

    def work(self, *values: str) -> None:
        self.send("work", *(value.encode() for value in values))

    def worker(self, *arguments: str) -> subprocess.Popen[bytes]:
        return self.cli("worker", "fleetapp:app", *arguments)

    def noted(self, word: str) -> list[Note]:
        return [Note(int(offset), int(pid), float(at)) for said, offset, _, pid, at in self.notes() if said == word]

    def numbers(self) -> dict[int, int]:
        """The last process of each of the supervisor's workers."""
        return {number: pid for pid, number in self.workers().items()}

    def wait_known(self, count: int) -> None:
        """Wait until so many workers have their health pages."""
        self.wait(lambda: len(running_workers(self.path)) >= count, f"{count} workers ready")

    def ended(self) -> set[int]:
        return {note.offset for note in self.noted("end")}

    def begun_by(self) -> dict[int, int]:
        """The process that was the first to begin each record."""
        return {note.offset: note.pid for note in reversed(self.noted("start"))}

    def started_twice(self) -> list[Note]:
        """Starts of records that somebody had begun before."""
        first: set[int] = set()
        again = []
        for note in self.noted("start"):
            if note.offset in first:
                again.append(note)
            first.add(note.offset)
        return again

    def leader(self) -> int | None:
        owner = read_owner(self.path)
        return None if owner is None else owner.pid


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with contextlib.closing(Place(tmp_path)) as made:
        yield made


def gone(pid: int) -> bool:
    """True if the app's process with this id does not run any more."""
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return True
    return b"fleetapp" not in command


def test_the_workers_of_a_fleet_share_the_records_and_drain(place: Place) -> None:
    supervisor = place.worker("--procs", "3", "-c", "2", "--log-format", "text")
    place.wait_known(3)
    place.work(*["sleep 0.02"] * 200)

    place.wait(lambda: len(place.ended()) == 200, "all records", LIMIT_S)

    by_worker = Counter(note.pid for note in place.noted("end"))
    assert by_worker.keys() == place.workers().keys()
    assert min(by_worker.values()) >= 10
    assert place.started_twice() == []
    assert place.leader() == supervisor.pid
    place.wait(lambda: "all 3 workers are ready" in place.log(), "the supervisor's list")
    assert {f"[{number}] flowshare.worker: ready" in place.log() for number in (1, 2, 3)} == {True}
    assert "concurrency 2" in place.log()
    supervisor.send_signal(signal.SIGTERM)
    assert supervisor.wait(LIMIT_S) == 0
    assert running_workers(place.path) == []


def test_a_killed_worker_of_a_fleet_comes_again_and_so_do_its_records_only(place: Place) -> None:
    supervisor = place.worker("--procs", "3")
    place.wait_known(3)
    place.work(*["sleep 0.05"] * 300)
    place.wait(lambda: len({note.pid for note in place.noted("start")}) == 3, "work for all")
    before = place.numbers()

    os.kill(before[2], signal.SIGKILL)
    killed_at = time.clock_gettime(time.CLOCK_MONOTONIC)
    place.wait(lambda: len(place.ended()) == 300, "all records", LIMIT_S)
    place.wait(lambda: place.numbers()[2] != before[2], "another worker 2", LIMIT_S)

    begun_by, again = place.begun_by(), place.started_twice()
    assert {begun_by[note.offset] for note in again} <= {before[2]}
    assert {place.numbers()[number] for number in (1, 3)} == {before[1], before[3]}
    assert all(note.at > killed_at for note in again)
    supervisor.send_signal(signal.SIGTERM)
    assert supervisor.wait(LIMIT_S) == 0


def test_the_workers_of_a_killed_supervisor_drain_and_another_one_takes_its_place(place: Place) -> None:
    supervisor = place.worker("--procs", "3")
    place.wait_known(3)
    place.work(*["sleep 0.2"] * 100)
    place.wait(lambda: len({note.pid for note in place.noted("end")}) == 3, "work by all", LIMIT_S)
    orphans = list(place.workers())

    supervisor.kill()
    supervisor.wait()
    second = place.worker("--procs", "3")
    place.wait(lambda: all(map(gone, orphans)), "the orphans' end", LIMIT_S)
    place.wait(lambda: len(place.ended()) == 100, "all records", LIMIT_S)
    place.wait(lambda: place.leader() == second.pid, "the second supervisor leads", LIMIT_S)

    assert place.started_twice() == []
    second.send_signal(signal.SIGTERM)
    assert second.wait(LIMIT_S) == 0


def test_a_handler_that_holds_the_interpreter_costs_the_other_workers_nothing(place: Place) -> None:
    pipe = place.folder / "pipe"
    os.mkfifo(pipe)
    supervisor = place.worker("--procs", "3")
    place.wait_known(3)
    place.work(f"hold {pipe}", *["sleep 0.02"] * 300)
    place.wait(lambda: any(note.offset == 0 for note in place.noted("start")), "the handler that holds")
    holder = next(note.pid for note in place.noted("start") if note.offset == 0)

    place.wait(lambda: len(place.ended()) >= 200, "the others' records", LIMIT_S)
    assert 0 not in place.ended()
    assert len({note.pid for note in place.noted("end")} - {holder}) == 2

    pipe.write_bytes(b"go on")
    place.wait(lambda: len(place.ended()) == 301, "all records", LIMIT_S)
    begun_by = place.begun_by()
    assert {begun_by[note.offset] for note in place.started_twice()} <= {holder}
    supervisor.send_signal(signal.SIGTERM)
    assert supervisor.wait(LIMIT_S) == 0


def test_when_the_leading_worker_is_killed_the_others_keep_their_records_and_one_leads(place: Place) -> None:
    leader = place.worker("--log-level", "warning")
    place.wait_known(1)
    for _ in range(2):
        place.worker("--log-level", "warning")
    place.wait_known(3)
    place.work(*["sleep 3"] * 12, *["sleep 0.01"] * 300)
    place.wait(lambda: len({note.pid for note in place.noted("start")}) == 3, "work for all")
    assert place.leader() == leader.pid

    leader.kill()
    begun = time.monotonic()
    place.wait(lambda: place.leader() not in (None, leader.pid), "another leader")
    print(f"another process led after {time.monotonic() - begun:.2f} s")
    place.wait(lambda: len(place.ended()) == 312, "all records", LIMIT_S)

    begun_by = place.begun_by()
    assert {begun_by[note.offset] for note in place.started_twice()} <= {leader.pid}
