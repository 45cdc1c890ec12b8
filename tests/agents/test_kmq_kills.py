"""A KMQ queue on an embedded path whose tracker is killed again and again, and once its consumers: nothing is lost."""

from __future__ import annotations

import os
import random

import pytest

from tests.agents.processes import Processes
from tests.sim.seeds import drawn
from tests.waiting import blocking_pause, blocking_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

APP = """
import asyncio, os
import flowshare as fs

app = fs.App("shop", broker=os.environ["URL"], topic_partitions=4)
JOURNAL = os.open(os.environ["JOURNAL"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)

def note(word, value, attempt):
    os.write(JOURNAL, f"{word} {value.decode()} {attempt}\\n".encode())

@app.kmq_agent("orders", markers="orders-markers", redeliver_after=1.0)
async def handle(value: bytes, delivery: fs.Delivery) -> None:
    note("begun", value, delivery.attempt)
    if value == b"poison" or (delivery.attempt < 3 and value[-1] % 5 == 0):
        raise ValueError("this time it fails")
    note("done", value, delivery.attempt)
"""
TRACKER = ("kmq", "tracker", "--queue", "orders", "--markers", "orders-markers", "--instance-id", "only")


@pytest.fixture
def processes(tmp_path):
    (tmp_path / "shop.py").write_text(APP)
    found = Processes(tmp_path, f"embedded://{tmp_path}/data")
    yield found
    found.close()


def again(processes: Processes) -> int:
    """Deliveries after a first one."""
    return sum(note[0] == "begun" and note[2] > "1" for note in processes.notes())


def test_kills_of_the_tracker_lose_nothing_and_a_poisoned_record_has_four_deliveries(processes):
    rng = random.Random(drawn())
    worker = processes.cli("worker", "shop:app", "--web-port", "0")
    processes.wait_log(worker, "ready after")
    sent: list[bytes] = []
    for kill in range(int(os.environ.get("KILLS", "8"))):
        values = [b"%d-%d" % (kill, index) for index in range(40)]
        processes.send("orders", *values)
        sent += values
        tracker = processes.cli(*TRACKER, "--broker", processes.url)
        tracks = lambda tracker=tracker: "tracks partitions" in processes.log(tracker)  # noqa: E731
        processes.wait(tracks, "tracks partitions", limit_s=120)
        if kill % 2:
            blocking_pause(rng.uniform(0, 1.5), "the tracker is killed at any moment of its work")
        else:
            before = again(processes)
            processes.wait(lambda before=before: again(processes) > before, "sent again", limit_s=120)
        tracker.kill()
        tracker.wait()
    processes.send("orders", b"poison")
    processes.cli(*TRACKER, "--broker", processes.url)

    def left() -> set[bytes]:
        return set(sent) - {note[1].encode() for note in processes.notes() if note[0] == "done"}

    blocking_until(lambda: not left(), lambda: f"lost: {sorted(left())[:20]}\n{processes.log()[-5000:]}", limit_s=120)
    shown = "undelivered, goes to orders__undelivered"
    blocking_until(lambda: shown in processes.log(), processes.log, limit_s=60)
    assert worker.poll() is None
    poison = [int(note[2]) for note in processes.notes() if note[:2] == ["begun", "poison"]]
    assert poison == [1, 2, 3, 4]


def test_a_killed_consumers_records_come_to_another_one(processes):
    (processes.folder / "shop.py").write_text(APP.replace('note("done"', 'await asyncio.sleep(0.02)\n    note("done"'))
    first = processes.cli("worker", "shop:app", "--web-port", "0")
    processes.wait_log(first, "ready after")
    tracker = processes.cli(*TRACKER, "--broker", processes.url)
    processes.wait_log(tracker, "tracks partitions")
    sent = [b"%d" % index for index in range(500)]
    processes.send("orders", *sent)
    processes.wait(lambda: len(processes.notes()) > 50)
    first.kill()
    first.wait()
    processes.cli("worker", "shop:app", "--web-port", "0")

    def left() -> set[bytes]:
        return set(sent) - {note[1].encode() for note in processes.notes() if note[0] == "done"}

    blocking_until(lambda: not left(), lambda: f"lost: {sorted(left())[:20]}\n{processes.log()[-5000:]}", limit_s=120)
