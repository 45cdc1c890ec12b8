"""Random `kill -9` of the worker under load, judged from outside.

    python benchmarks/chaos.py --kills 20 [--seed N] [--records 20000]

The handler itself writes the start and the end of each record to a log that is synced at every line, so the judgement
does not depend on anything flowshare says. Lost: records that never ended. Ended twice: allowed only if the record was
running at a kill or its accept was not yet confirmed then, so each must have ended shortly before a kill of its worker;
how many there were at a kill is printed beside the bound. Then a record whose handler kills its own process each time:
it must end in the dead letters and hold up nothing else. Prints the seed; exits non-zero on a violation.
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
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

from common import fill

CONCURRENCY = 16
UNCONFIRMED_S = 1.0
"""An accept that is not confirmed this long after its handler ended counts as lost, not as unconfirmed."""

APP = """
import asyncio, os, signal, time
import flowshare as fs

LOG = os.open(os.environ["JOURNAL"], os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_DSYNC)
app = fs.App("chaos", broker=os.environ["URL"])

def note(word, delivery):
    line = f"{word} {delivery.offset} {delivery.attempt} {os.getpid()} {time.clock_gettime(time.CLOCK_MONOTONIC)}\\n"
    os.write(LOG, line.encode())

@app.share_agent(app.topic("values", value_type=bytes), concurrency=16,
                 retry=fs.Retry(max_attempts=3, delay=fs.exponential(0.1)))
async def work(value: bytes, delivery: fs.Delivery) -> None:
    note("start", delivery)
    if value == b"poison":
        os.kill(os.getpid(), signal.SIGKILL)
    await asyncio.sleep(0.001)
    note("end", delivery)
"""


@dataclass
class Journal:
    """What the handlers wrote."""

    starts: dict[int, list[float]] = field(default_factory=lambda: defaultdict(list))
    ends: dict[int, list[tuple[int, float]]] = field(default_factory=lambda: defaultdict(list))

    @classmethod
    def read(cls, path: Path) -> Journal:
        journal = cls()
        for line in path.read_text().splitlines() if path.exists() else ():
            parts = line.split()
            if len(parts) != 5:
                continue  # the line that a kill cut off
            offset, pid, at = int(parts[1]), int(parts[3]), float(parts[4])
            if parts[0] == "start":
                journal.starts[offset].append(at)
            else:
                journal.ends[offset].append((pid, at))
        return journal


class World:
    """A broker path, a journal and the worker of the moment."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.url = f"embedded://{folder}/broker"
        self.journal = folder / "journal"
        self.kills: dict[int, float] = {}
        (folder / "chaosapp.py").write_text(APP)

    def start(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [str(Path(sys.executable).parent / "flowshare"), "worker", "chaosapp:app", "--log-level", "warning"],
            cwd=self.folder,
            env={**os.environ, "URL": self.url, "JOURNAL": str(self.journal)},
        )

    def size(self) -> int:
        return self.journal.stat().st_size if self.journal.exists() else 0

    def wait_for_progress(self, worker: subprocess.Popen[bytes], limit_s: float = 60) -> None:
        before, deadline = self.size(), time.monotonic() + limit_s
        while self.size() == before:
            if worker.poll() is not None:
                return
            if time.monotonic() > deadline:
                raise SystemExit(f"the worker made no progress for {limit_s} s")
            time.sleep(0.01)

    def kill(self, worker: subprocess.Popen[bytes]) -> None:
        worker.send_signal(signal.SIGKILL)
        worker.wait()
        self.kills[worker.pid] = time.clock_gettime(time.CLOCK_MONOTONIC)

    def finish(self, worker: subprocess.Popen[bytes], records: int, limit_s: float = 300) -> None:
        """Let the worker go on until every record ended, then stop it in order."""
        deadline = time.monotonic() + limit_s
        while len(Journal.read(self.journal).ends) < records:
            if time.monotonic() > deadline or worker.poll() is not None:
                break
            time.sleep(0.25)
        worker.terminate()
        worker.wait(timeout=60)


def judge(world: World, records: int) -> int:
    """Print the figures; returns the number of violations."""
    journal = Journal.read(world.journal)
    lost = [offset for offset in range(records) if offset not in journal.ends]
    twice = {offset: ends for offset, ends in journal.ends.items() if len(ends) > 1}
    by_kill: dict[int, int] = defaultdict(int)
    wrong = []
    for offset, ends in twice.items():
        for pid, at in ends[:-1]:
            killed_at = world.kills.get(pid)
            if killed_at is None or killed_at - at > UNCONFIRMED_S:
                wrong.append(offset)
            else:
                by_kill[pid] += 1
    restarted = sum(len(starts) > 1 for starts in journal.starts.values())
    print(f"records {records}  ended {len(journal.ends)}  lost {len(lost)}  started twice {restarted}")
    print(
        f"ended twice {len(twice)}, at most {max(by_kill.values(), default=0)} at one kill "
        f"(bound: concurrency {CONCURRENCY} + what ended in the {UNCONFIRMED_S} s before it); "
        f"outside the bound {len(wrong)}"
    )
    return len(lost) + len(wrong)


def run_kills(kills: int, records: int, seed: int) -> int:
    dice = random.Random(seed)
    with tempfile.TemporaryDirectory(prefix="flowshare-chaos-") as folder:
        world = World(Path(folder))
        fill(world.url, "values", [b"record %d" % number for number in range(records)])
        worker = world.start()
        done = 0
        while done < kills:
            world.wait_for_progress(worker)
            time.sleep(dice.uniform(0.0, 1.0))
            if worker.poll() is None:
                world.kill(worker)
                done += 1
            worker = world.start()
        world.finish(worker, records)
        left = records - len(Journal.read(world.journal).ends)
        print(f"seed {seed}  kills {done}  unfinished {left}")
        return judge(world, records)


def run_poison() -> int:
    """A record that kills its process each time; it must end as a dead letter, all others as accepted."""
    with tempfile.TemporaryDirectory(prefix="flowshare-chaos-") as folder:
        world = World(Path(folder))
        values = [b"record"] * 200
        values[50] = b"poison"
        fill(world.url, "values", values)
        deaths = 0
        worker = world.start()
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            if worker.poll() is not None:
                deaths += 1
                worker = world.start()
            if len(Journal.read(world.journal).ends) == 199 and deaths >= 3:
                break
            time.sleep(0.05)
        time.sleep(2)  # the dead letter is written after the last restart
        worker.terminate()
        code = worker.wait(timeout=60)
        letters = asyncio.run(dead_letters(world.url))
        ended = len(Journal.read(world.journal).ends)
        print(
            f"poison: process deaths {deaths}, other records ended {ended} of 199, dead letters {letters}, exit {code}"
        )
        return (ended != 199) + (letters != [50])


async def dead_letters(url: str) -> list[int]:
    from flowshare.backend import open_backend
    from flowshare.client.admin import ShareAdmin
    from flowshare.clock import LoopClock

    backend = open_backend(url, clock=LoopClock())
    await backend.start()
    try:
        admin = ShareAdmin(lambda: backend.connect("chaos"), clock=LoopClock())
        letters = await admin.read("chaos.work.dlq", 0, 0, limit=100)
        offsets = [int(dict(letter.headers)["flowshare.dlq.offset"]) for letter in letters]
        await admin.close()
        return offsets
    finally:
        await backend.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--records", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=None)
    options = parser.parse_args()
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(1 << 32)
    violations = run_kills(options.kills, options.records, seed) + run_poison()
    print("violations", violations)
    sys.exit(violations != 0)


if __name__ == "__main__":
    main()
