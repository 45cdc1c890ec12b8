"""`flowshare worker --procs N` and several workers on one embedded path: real processes, judged by their handlers."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from flowshare.backend.workers import running_workers
from flowshare.log.owner import read_owner

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

ROOT = Path(__file__).parents[2]
LIMIT_S = 120.0

APP = """
import asyncio, os, re, time
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
    if kind == "hold":  # the interpreter lock, in C code
        re.match(r"(a|aa)+$", "a" * int(amount) + "b")
    else:
        await asyncio.sleep(float(amount))
    note("end", delivery)
"""


class Note:
    """A line of the handlers' journal."""

    def __init__(self, line: str) -> None:
        word, offset, attempt, pid, at = line.split()
        self.word = word
        self.offset, self.attempt, self.pid, self.at = int(offset), int(attempt), int(pid), float(at)


class Place:
    """A folder with an app, its path, what its handlers wrote and its processes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = folder / "path"
        self.journal = folder / "journal"
        self.started: list[subprocess.Popen[bytes]] = []
        (folder / "fleetapp.py").write_text(APP)
        (folder / "hypothesis.py").write_text("raise ModuleNotFoundError")  # as where workers run: kio takes 0.4 s less

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "flowshare.cli", *arguments]

    @property
    def environment(self) -> dict[str, str]:
        more = {
            "URL": f"embedded://{self.path}",
            "JOURNAL": str(self.journal),
            "PYTHONPATH": os.pathsep.join([str(self.folder), str(ROOT)]),
        }
        return {**os.environ, **more}

    def run(self, *arguments: str, given: str | None = None) -> str:
        done = subprocess.run(
            self.command(*arguments),
            cwd=self.folder,
            env=self.environment,
            input=given,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
        assert done.returncode == 0, (done.stdout, done.stderr)
        return done.stdout

    def send(self, *values: str) -> None:
        self.run("send", "work", "--lines", "--app", "fleetapp:app", given="\n".join(values))

    def worker(self, *arguments: str) -> subprocess.Popen[bytes]:
        with (self.folder / "log").open("ab") as log:
            process = subprocess.Popen(
                self.command("worker", "fleetapp:app", *arguments),
                cwd=self.folder,
                env=self.environment,
                stdout=log,
                stderr=log,
            )
        self.started.append(process)
        return process

    def log(self) -> str:
        return (self.folder / "log").read_text()

    def notes(self, word: str) -> list[Note]:
        lines = self.journal.read_text().splitlines(keepends=True) if self.journal.exists() else []
        notes = [Note(line) for line in lines if line.endswith("\n")]
        return [note for note in notes if note.word == word]

    def wait(self, ready: Callable[[], bool], what: str, limit_s: float = LIMIT_S) -> None:
        until = time.monotonic() + limit_s
        while not ready():
            assert time.monotonic() < until, f"{what} within {limit_s} s\n{self.log()[-20_000:]}"
            time.sleep(0.01)

    def workers(self) -> dict[int, int]:
        """Process of each of the supervisor's workers, by number, the last as the log has it."""
        return {int(n): int(pid) for n, pid in re.findall(r"worker (\d+) is process (\d+)", self.log())}

    def wait_known(self, count: int) -> list[int]:
        """Wait until so many workers have their health pages; their processes."""
        self.wait(lambda: len(running_workers(self.path)) >= count, f"{count} workers ready")
        return [entry.pid for entry in running_workers(self.path)]

    def ended(self) -> set[int]:
        return {note.offset for note in self.notes("end")}

    def started_twice(self) -> list[Note]:
        """Starts of records that somebody had begun before."""
        first: set[int] = set()
        again = []
        for note in self.notes("start"):
            if note.offset in first:
                again.append(note)
            first.add(note.offset)
        return again

    def leader(self) -> int | None:
        owner = read_owner(self.path)
        return None if owner is None else owner.pid


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    made = Place(tmp_path)
    yield made
    mine = [*(process.pid for process in made.started), *(made.workers().values() if made.started else ())]
    for process in made.started:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
    for pid in mine:
        if gone(pid):
            continue
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    for process in made.started:
        process.wait()


def gone(pid: int) -> bool:
    """Whether a process of ours does not run any more."""
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return True
    return b"fleetapp" not in command


def test_the_workers_of_a_fleet_share_the_records_and_drain(place: Place) -> None:
    place.send(*["sleep 0.02"] * 300)
    supervisor = place.worker("--procs", "3", "-c", "2", "--log-format", "text")

    place.wait(lambda: len(place.ended()) == 300, "all records")

    by_worker = Counter(note.pid for note in place.notes("end"))
    assert by_worker.keys() == set(place.workers().values())
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
    place.send(*["sleep 0.05"] * 600)
    supervisor = place.worker("--procs", "3")
    place.wait_known(3)
    place.wait(lambda: len({note.pid for note in place.notes("start")}) == 3, "work for all")
    before = place.workers()

    os.kill(before[2], signal.SIGKILL)
    killed_at = time.clock_gettime(time.CLOCK_MONOTONIC)
    place.wait(lambda: len(place.ended()) == 600, "all records")
    place.wait(lambda: place.workers()[2] != before[2], "another worker 2")

    begun_by = {note.offset: note.pid for note in reversed(place.notes("start"))}  # the first to begin it
    again = place.started_twice()
    assert {begun_by[note.offset] for note in again} <= {before[2]}
    assert {place.workers()[number] for number in (1, 3)} == {before[1], before[3]}
    assert all(note.at > killed_at for note in again)
    supervisor.send_signal(signal.SIGTERM)
    assert supervisor.wait(LIMIT_S) == 0


def test_the_workers_of_a_killed_supervisor_drain_and_another_one_takes_its_place(place: Place) -> None:
    place.send(*["sleep 0.2"] * 400)
    supervisor = place.worker("--procs", "3")
    place.wait_known(3)
    place.wait(lambda: len({note.pid for note in place.notes("end")}) == 3, "work by all")
    orphans = list(place.workers().values())

    supervisor.kill()
    supervisor.wait()
    second = place.worker("--procs", "3")
    place.wait(lambda: all(map(gone, orphans)), "the orphans' end")
    place.wait(lambda: len(place.ended()) == 400, "all records")
    place.wait(lambda: place.leader() == second.pid, "the second supervisor leads")

    assert place.started_twice() == []
    second.send_signal(signal.SIGTERM)
    assert second.wait(LIMIT_S) == 0


def test_a_handler_that_holds_the_interpreter_costs_the_other_workers_nothing(place: Place) -> None:
    place.send("hold 40", *["sleep 0.02"] * 1500)
    supervisor = place.worker("--procs", "3")
    place.wait(lambda: bool(place.notes("start")), "the first record")
    place.wait(lambda: any(note.offset == 0 for note in place.notes("start")), "the handler that holds")
    holder = next(note for note in place.notes("start") if note.offset == 0)

    place.wait(lambda: len({note.pid for note in place.notes("end")} - {holder.pid}) == 2, "progress of the others")
    others = {note.offset for note in place.notes("start") if note.pid != holder.pid}
    place.wait(lambda: len(place.ended() - {0}) >= 1400, "the others' records")
    held_still = 0 not in place.ended()

    begun_by = {note.offset: note.pid for note in reversed(place.notes("start"))}
    assert held_still
    assert others
    assert {begun_by[note.offset] for note in place.started_twice()} <= {holder.pid}
    supervisor.send_signal(signal.SIGINT)
    supervisor.send_signal(signal.SIGINT)
    supervisor.wait(LIMIT_S)


def test_when_the_leading_worker_is_killed_the_others_keep_their_records_and_one_leads(place: Place) -> None:
    for _ in range(3):
        place.worker("--log-level", "warning")
        place.wait(lambda: len(running_workers(place.path)) == len(place.started), "the worker is ready")
    place.send(*["sleep 3"] * 12, *["sleep 0.01"] * 300)
    place.wait(lambda: len({note.pid for note in place.notes("start")}) == 3, "work for all")
    leader = place.leader()
    assert leader == place.started[0].pid

    place.started[0].kill()
    begun = time.monotonic()
    place.wait(lambda: place.leader() not in (None, leader), "another leader", 20.0)
    print(f"another process led after {time.monotonic() - begun:.2f} s")
    place.wait(lambda: len(place.ended()) == 312, "all records")

    begun_by = {note.offset: note.pid for note in reversed(place.notes("start"))}
    assert {begun_by[note.offset] for note in place.started_twice()} <= {leader}
