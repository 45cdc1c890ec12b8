"""`flowshare scale` under a step load, with real processes: 1 → 8 → 1 workers.

Judged by what the handlers wrote and synced before and after each record, not by what the broker says of it. Handlers
await, so that two cores are enough for eight workers. Records come while workers leave, so that they have some in hand.
"""

from __future__ import annotations

import contextlib
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.agents.processes import Processes

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

LIMIT_S = 180.0

APP = """
import asyncio, os, time
import flowshare as fs

LOG = os.open(os.environ["JOURNAL"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
app = fs.App(os.environ["APP"], broker=os.environ["URL"])

def note(word, delivery):
    line = f"{word} {delivery.offset} {os.getpid()} {time.time()}\\n"
    os.write(LOG, line.encode())
    os.fsync(LOG)

@app.share_agent(app.topic(os.environ["APP"], value_type=bytes), concurrency=4, drain_timeout=20)
async def work(value: bytes, delivery: fs.Delivery) -> None:
    note("start", delivery)
    await asyncio.sleep(float(value))
    note("end", delivery)
"""

LOAD = """
import asyncio, os, sys
import flowshare as fs

async def main(url):
    async with fs.Producer(url) as producer:
        for step in sys.argv[2:]:
            per_s, handler_s, seconds = (float(part) for part in step.split(","))
            for _ in range(round(per_s * seconds)):
                await producer.send(os.environ["APP"], str(handler_s).encode())
                await asyncio.sleep(1 / per_s)

asyncio.run(main(sys.argv[1]))
"""


class Scaled(Processes):
    """A folder with an app, what its handlers wrote, and `flowshare scale` on it. `name`: of app and topic."""

    def __init__(self, folder: Path, url: str, name: str = "steps") -> None:
        super().__init__(folder, url, APP=name)
        (folder / "stepsapp.py").write_text(APP)
        (folder / "load.py").write_text(LOAD)

    def scale(self, *options: str) -> subprocess.Popen[bytes]:
        return self.cli("scale", "stepsapp:app", *options)

    def load(self, *steps: str) -> subprocess.Popen[bytes]:
        """Each step is `records a second,seconds a handler takes,seconds of the step`."""
        return self.start("load.py", self.url, *steps)

    def noted(self, word: str) -> list[tuple[int, int, float]]:
        """Offset, process and time of each line."""
        return [(int(offset), int(pid), float(at)) for said, offset, pid, at in self.notes() if said == word]

    def running(self) -> int:
        """Workers that are ready and have not left."""
        said = re.findall(r"(ready after|worker \d+ has left|worker \d+ ended)", self.log())
        return sum(1 if word == "ready after" else -1 for word in said)

    def moves(self) -> list[tuple[int, int]]:
        """From how many workers to how many, in order."""
        return [(int(a), int(b)) for a, b in re.findall(r"from (\d+) to (\d+) workers", self.log())]

    def wait(self, ready: Callable[[], object], what: str = "", limit_s: float = LIMIT_S) -> None:
        super().wait(ready, what, limit_s)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Scaled]:
    with contextlib.closing(Scaled(tmp_path, f"embedded://{tmp_path}/path")) as made:
        yield made


@pytest.fixture
def kafka_place(tmp_path: Path, kafka, unique) -> Iterator[Scaled]:
    with contextlib.closing(Scaled(tmp_path, kafka.url, unique("steps"))) as made:
        yield made


def step_load(place: Scaled) -> None:
    """A step of load and a tail of little, then nothing; checks that nothing was lost or begun twice."""
    supervisor = place.scale("--min", "1", "--max", "8", "--target-age", "5s", "--down-after", "4s")
    place.wait(lambda: place.running() == 1, "the first worker")

    # 28 records/s of a second each keep 7 workers of 4 places busy; then 3/s of 2 s: 1.5 workers, while others leave.
    load = place.load("28,1,20", "3,2,30")
    place.wait(lambda: place.running() == 8, "eight workers")
    place.wait(lambda: load.poll() is not None, "the end of the load")
    assert load.returncode == 0, place.log()
    sent = 28 * 20 + 3 * 30
    place.wait(lambda: len({offset for offset, _, _ in place.noted("end")}) == sent, "all records")
    place.wait(lambda: place.running() == 1 and place.moves()[-1][1] == 1, "one worker again")

    starts, ends = place.noted("start"), place.noted("end")
    assert sorted(offset for offset, _, _ in starts) == list(range(sent)), "none lost, none begun twice"
    assert sorted(offset for offset, _, _ in ends) == list(range(sent))
    assert max(size for _, size in place.moves()) == 8
    assert len({pid for _, pid, _ in starts}) >= 8, "eight of them worked"
    in_hand = left_with_records(place, starts, ends)
    print(f"moves {place.moves()}; records in the hands of workers that were told to leave: {in_hand}")
    assert in_hand > 0
    supervisor.send_signal(signal.SIGTERM)
    assert supervisor.wait(LIMIT_S) == 0, place.log()


@pytest.mark.real
def test_a_step_load_is_followed_to_8_workers_and_back_on_an_embedded_path(place: Scaled) -> None:
    step_load(place)


def test_a_step_load_is_followed_to_8_workers_and_back_on_a_real_kafka(kafka_place: Scaled) -> None:
    step_load(kafka_place)


def test_a_worker_finishes_what_it_runs_when_it_is_drained_and_begins_nothing_until_it_is_stopped(
    place: Scaled,
) -> None:
    worker = place.cli("worker", "stepsapp:app")
    place.wait(lambda: place.running() == 1, "the worker")
    assert place.load("10,2,0.1").wait(LIMIT_S) == 0
    place.wait(lambda: len(place.noted("start")) == 1, "the handler")

    [address] = re.findall(r"health and metrics at http://(\S+)", place.log())
    drained = place.cli("drain", "--web", address)
    assert drained.wait(LIMIT_S) == 0, place.log()

    assert len(place.noted("end")) == 1, "drained means finished"
    assert place.load("100,0,0.1").wait(LIMIT_S) == 0
    assert worker.poll() is None, "it waits to be told to stop"
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(LIMIT_S) == 0, place.log()
    assert len(place.noted("start")) == 1, "nothing new was begun"
    assert "drained: everything that was begun is finished" in place.log()


def left_with_records(place: Scaled, starts: list[tuple[int, int, float]], ends: list[tuple[int, int, float]]) -> int:
    """Records that the leaving workers' handlers worked on when they were told to."""
    text = place.log()
    ended = {(offset, pid): at for offset, pid, at in ends}
    count = 0
    for pid, number in place.workers().items():
        told = re.search(rf"([\d:.]+) INFO .*worker {number} drains", text[text.index(f"is process {pid}") :])
        if told is None:
            continue
        at = of_day(told[1])
        count += sum(of_day_s(begun) < at < of_day_s(ended[offset, who]) for offset, who, begun in starts if who == pid)
    return count


def of_day(text: str) -> float:
    hours, minutes, seconds = text.split(":")
    return int(hours) * 3600 + int(minutes) * 60 + float(seconds)


def of_day_s(at: float) -> float:
    local = time.localtime(at)
    return local.tm_hour * 3600 + local.tm_min * 60 + local.tm_sec + at % 1
