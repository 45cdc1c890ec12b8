"""Random `kill -9` of workers under load, judged from outside.

    python benchmarks/chaos.py --kills 20 [--workers 1] [--seed N] [--records 20000] [--broker kafka://host:port]

The handler itself writes the start and the end of each record to a log, which a kill does not undo, so the judgement
does not depend on anything flowshare says. Lost: records that never ended and are no dead letters either; one is buried
rightly only if it began, and each process that began it was killed. Ended twice: allowed only if the record was running
at a kill of its worker or its accept was not yet confirmed then, so each must have ended shortly before that kill; how
many there were at a kill is printed beside the bound. On an embedded path (the default: a new one) every second kill
hits the process that leads the path. Then, with one worker, a record whose handler kills its own process each time: it
must end in the dead letters and hold up nothing else. Prints the seed; exits non-zero on a violation.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

from common import fill
from flowshare.log.owner import read_owner

CONCURRENCY = 16
UNCONFIRMED_S = 1.0
"""An accept that is not confirmed this long after its handler ended counts as lost, not as unconfirmed."""
KILL_EVERY_S = 2.0
"""About how long a kill and what it is waited for take: handlers are so slow that records last for all kills."""
QUIET_LOOKS = 40
"""So often in a row nothing more has ended: what is missing may be dead letters."""
SHOWN = 5
ATTEMPTS = 3
KAFKA_ATTEMPTS = 5
"""On Kafka's share groups a death costs all that was fetched an attempt, and kills here may follow within a second:
with three attempts, three of them in a row made dead letters of records that no handler had seen."""

APP = """
import asyncio, os, signal, time
import flowshare as fs

LOG = os.open(os.environ["JOURNAL"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
app = fs.App("chaos", broker=os.environ["URL"])
TOPIC = os.environ["TOPIC"]

def note(word, delivery):
    line = f"{word} {delivery.offset} {delivery.attempt} {os.getpid()} {time.clock_gettime(time.CLOCK_MONOTONIC)}\\n"
    os.write(LOG, line.encode())

@app.share_agent(app.topic(TOPIC, value_type=bytes), group=f"{TOPIC}.work", concurrency=16,
                 retry=fs.Retry(max_attempts=int(os.environ["ATTEMPTS"]), delay=fs.exponential(0.1)))
async def work(value: bytes, delivery: fs.Delivery) -> None:
    note("start", delivery)
    if value == b"poison":
        os.kill(os.getpid(), signal.SIGKILL)
    await asyncio.sleep(float(os.environ["TAKES_S"]))
    note("end", delivery)
"""


@dataclass
class Journal:
    """The notes that handlers wrote to the journal file: the starts and ends of records."""

    starts: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    """Processes that began a record."""
    ends: dict[int, list[tuple[int, float]]] = field(default_factory=lambda: defaultdict(list))
    pause_s: float = 0.0
    """Longest time in which no record ended."""
    pids: set[int] = field(default_factory=set)
    """Workers that ended a record."""
    position: int = 0
    last_end: float | None = None

    @classmethod
    def read(cls, path: Path) -> Journal:
        journal = cls()
        journal.go_on(path)
        return journal

    def go_on(self, path: Path) -> None:
        """Read what was added."""
        if not path.exists():
            return
        with path.open("rb") as file:
            file.seek(self.position)
            for line in file:
                if not line.endswith(b"\n"):
                    break  # half a line: somebody writes it right now
                self.position += len(line)
                self._take(line.decode().split())

    def _take(self, parts: list[str]) -> None:
        if len(parts) != 5:
            return  # a kill cut it off
        offset, pid, at = int(parts[1]), int(parts[3]), float(parts[4])
        if parts[0] == "start":
            self.starts[offset].append(pid)
            return
        self.ends[offset].append((pid, at))
        self.pids.add(pid)
        if self.last_end is not None:
            self.pause_s = max(self.pause_s, at - self.last_end)
        self.last_end = at


class World:
    """A broker, a journal and the workers of the moment."""

    def __init__(self, folder: Path, broker: str | None = None, takes_s: float = 0.001) -> None:
        self.folder = folder
        self.takes_s = takes_s
        self.attempts = ATTEMPTS if broker is None else KAFKA_ATTEMPTS
        self.path = None if broker else folder / "broker"
        self.url = broker or f"embedded://{self.path}"
        self.topic = f"chaos-{uuid.uuid4().hex[:8]}"
        self.journal = folder / "journal"
        self.kills: dict[int, float] = {}
        self.leader_kills = 0
        self.seen = Journal()
        self.workers: list[subprocess.Popen[bytes]] = []
        (folder / "chaosapp.py").write_text(APP)
        # kio imports it (0.4 s) wherever it is installed, which is where flowshare is developed.
        (folder / "hypothesis.py").write_text("raise ModuleNotFoundError")

    def start(self, count: int = 1) -> None:
        """Start workers until there are `count`."""
        self.workers = [worker for worker in self.workers if worker.poll() is None]
        while len(self.workers) < count:
            worker = subprocess.Popen(
                [str(Path(sys.executable).parent / "flowshare"), "worker", "chaosapp:app", "--log-level", "error"],
                cwd=self.folder,
                env=self.environment,
            )
            self.workers.append(worker)

    @property
    def environment(self) -> dict[str, str]:
        places = os.pathsep.join([str(self.folder), os.environ.get("PYTHONPATH", "")])
        more = {"URL": self.url, "JOURNAL": str(self.journal), "TOPIC": self.topic, "PYTHONPATH": places}
        return {**os.environ, **more, "ATTEMPTS": str(self.attempts), "TAKES_S": str(self.takes_s)}

    def size(self) -> int:
        return self.journal.stat().st_size if self.journal.exists() else 0

    def wait_for_team(self, limit_s: float = 60) -> None:
        """Wait until two of several workers are at work (or for so long): else nobody is there to take over."""
        deadline = time.monotonic() + limit_s
        while time.monotonic() < deadline and len(self.workers) > 1:
            self.seen.go_on(self.journal)
            alive = {worker.pid for worker in self.workers if worker.poll() is None}
            if len(alive & self.seen.pids) > 1:
                return
            time.sleep(0.05)

    def wait_for_progress(self, records: int, limit_s: float = 60) -> bool:
        """Wait until something is noted; False when all records have ended."""
        before, deadline = self.size(), time.monotonic() + limit_s
        while self.size() == before:
            if all(worker.poll() is not None for worker in self.workers):
                return True
            self.seen.go_on(self.journal)
            if len(self.seen.ends) == records:
                return False
            if time.monotonic() > deadline:
                raise SystemExit(f"the workers made no progress for {limit_s} s")
            time.sleep(0.01)
        return True

    def leader(self) -> int | None:
        """Process that leads the path now."""
        owner = None if self.path is None else read_owner(self.path)
        return None if owner is None else owner.pid

    def kill(self, worker: subprocess.Popen[bytes]) -> None:
        self.leader_kills += worker.pid == self.leader()
        worker.send_signal(signal.SIGKILL)
        worker.wait()
        self.kills[worker.pid] = time.clock_gettime(time.CLOCK_MONOTONIC)

    def finish(self, records: int, limit_s: float = 600) -> None:
        """Let the workers go on until every record ended, then stop them in order."""
        deadline = time.monotonic() + limit_s
        journal = self.seen
        journal.go_on(self.journal)
        quiet, buried = 0, 0
        while len(journal.ends) + buried < records:
            if time.monotonic() > deadline or all(worker.poll() is not None for worker in self.workers):
                break
            time.sleep(0.25)
            before = len(journal.ends)
            journal.go_on(self.journal)
            quiet = quiet + 1 if len(journal.ends) == before else 0
            if quiet >= QUIET_LOOKS:
                quiet, buried = 0, len(asyncio.run(dead_letters(self)))
        self.stop()

    def stop(self) -> None:
        for worker in self.workers:
            worker.terminate()
        for worker in self.workers:
            worker.wait(timeout=60)


def judge(world: World, records: int) -> int:
    """Print the figures; returns the number of violations."""
    journal = Journal.read(world.journal)
    missing = [offset for offset in range(records) if offset not in journal.ends]
    buried = set(asyncio.run(dead_letters(world))) if missing else set[int]()
    lost = [offset for offset in missing if offset not in buried]
    wronged = [offset for offset in buried.intersection(missing) if not _killed_always(world, journal, offset)]
    twice = {offset: ends for offset, ends in journal.ends.items() if len(ends) > 1}
    by_kill: dict[int, int] = defaultdict(int)
    wrong: set[int] = set()
    for offset, ends in twice.items():
        for pid, at in ends[:-1]:
            killed_at = world.kills.get(pid)
            if killed_at is None or killed_at - at > UNCONFIRMED_S:
                wrong.add(offset)
            else:
                by_kill[pid] += 1
    for offset in sorted(wrong)[:SHOWN]:
        story = ", ".join(f"worker {pid} at {at:.3f}" for pid, at in journal.ends[offset])
        deaths = ", ".join(f"{pid} at {world.kills[pid]:.3f}" for pid, _ in journal.ends[offset] if pid in world.kills)
        print(f"offset {offset} ended more than once: {story}; killed: {deaths or 'none of them'}")
    restarted = sum(len(starts) > 1 for starts in journal.starts.values())
    print(
        f"records {records}  ended {len(journal.ends)}  lost {len(lost)}  killed at every attempt "
        f"{len(missing) - len(lost)}, wrongly so {len(wronged)}  started twice {restarted}  "
        f"longest pause {journal.pause_s:.1f} s"
    )
    print(
        f"ended twice {len(twice)}, at most {max(by_kill.values(), default=0)} at one kill "
        f"(bound: concurrency {CONCURRENCY} + what ended in the {UNCONFIRMED_S} s before it); "
        f"outside the bound {len(wrong)}"
    )
    return len(lost) + len(wronged) + len(wrong)


def _killed_always(world: World, journal: Journal, offset: int) -> bool:
    """True if the record began and every process that began it was killed."""
    begun_by = journal.starts.get(offset, [])
    return bool(begun_by) and world.kills.keys() >= set(begun_by)


def run_kills(kills: int, records: int, seed: int, workers: int, broker: str | None) -> int:
    dice = random.Random(seed)
    with tempfile.TemporaryDirectory(prefix="flowshare-chaos-") as folder:
        world = World(Path(folder), broker, takes_s=CONCURRENCY * workers * KILL_EVERY_S * kills / records)
        fill(world.url, world.topic, [b"record %d" % number for number in range(records)])
        done = 0
        try:
            while done < kills:
                world.start(workers)
                world.wait_for_team()
                if not world.wait_for_progress(records):
                    raise SystemExit(f"all records had ended after {done} of {kills} kills: give more --records")
                time.sleep(dice.uniform(0.0, 1.0))
                alive = [worker for worker in world.workers if worker.poll() is None]
                leading = [worker for worker in alive if worker.pid == world.leader()]
                if alive:
                    world.kill(dice.choice(leading if leading and done % 2 else alive))
                    done += 1
            world.start(workers)
            world.finish(records)
        finally:
            for worker in world.workers:
                worker.kill()
        left = records - len(Journal.read(world.journal).ends)
        leaders = f"  of the leader {world.leader_kills}" if world.path is not None else ""
        print(f"seed {seed}  workers {workers}  kills {done}{leaders}  unfinished {left}")
        return judge(world, records)


def run_poison() -> int:
    """A record that kills its process each time; it must end as a dead letter, all others as accepted."""
    with tempfile.TemporaryDirectory(prefix="flowshare-chaos-") as folder:
        world = World(Path(folder))
        values = [b"record"] * 200
        values[50] = b"poison"
        fill(world.url, world.topic, values)
        deaths = 0
        deadline = time.monotonic() + 120
        world.start()
        while time.monotonic() < deadline:
            if world.workers[0].poll() is not None:
                deaths += 1
                world.start()
            if len(Journal.read(world.journal).ends) == 199 and deaths >= 3:
                break
            time.sleep(0.05)
        time.sleep(2)  # the dead letter is written after the last restart
        world.stop()
        code = world.workers[0].returncode
        letters = asyncio.run(dead_letters(world))
        ended = len(Journal.read(world.journal).ends)
        print(
            f"poison: process deaths {deaths}, other records ended {ended} of 199, dead letters {letters}, exit {code}"
        )
        return (ended != 199) + (letters != [50])


async def dead_letters(world: World) -> list[int]:
    from flowshare.backend import open_backend
    from flowshare.client.admin.admin import ShareAdmin
    from flowshare.clock import LoopClock

    backend = open_backend(world.url, clock=LoopClock())
    await backend.start()
    try:
        admin = ShareAdmin(lambda: backend.connect("chaos"), clock=LoopClock())
        letters = await admin.read(f"{world.topic}.work.dlq", 0, 0, limit=100)
        offsets = [int(dict(letter.headers)["flowshare.dlq.offset"]) for letter in letters]
        await admin.close()
        return offsets
    finally:
        await backend.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--broker", help="A broker URL; by default a new embedded path.")
    parser.add_argument("--records", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=None)
    options = parser.parse_args()
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(1 << 32)
    violations = run_kills(options.kills, options.records, seed, options.workers, options.broker)
    if options.workers == 1 and options.broker is None:
        violations += run_poison()
    print("violations", violations)
    sys.exit(violations != 0)


if __name__ == "__main__":
    main()
