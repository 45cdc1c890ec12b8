"""KMQ of the JVM (0.2, the last one that Maven has) and ours, each as consumer of the other one's tracker.

Its tracker has neither a count header nor a topic for undelivered messages, and its committer of marker offsets dies
with the client that it is run with here; none of that is asked for.
"""

from __future__ import annotations

import re
import subprocess
import threading
from pathlib import Path

import pytest

from flowshare.dev.jars import class_path, libraries
from flowshare.dev.java import java, javac
from flowshare.dev.processes import tied_to_parent
from tests.agents.processes import Processes
from tests.interop.toolbox import compiled
from tests.waiting import blocking_until

pytestmark = [pytest.mark.java, pytest.mark.timeout(300)]
SOURCES = Path(__file__).parents[2] / "benchmarks" / "java" / "kmq"
APP = """
import os
import flowshare as fs

app = fs.App("shop", broker=os.environ["URL"])
JOURNAL = os.open(os.environ["JOURNAL"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
SEEN = set()

@app.kmq_agent(os.environ["QUEUE"], markers=os.environ["MARKERS"], group=os.environ["GROUP"], redeliver_after=2.0)
async def handle(value: bytes, delivery: fs.Delivery) -> None:
    os.write(JOURNAL, f"{delivery.partition} {delivery.offset} {value.decode()}\\n".encode())
    if value.startswith(b"once") and value not in SEEN:
        SEEN.add(value)
        raise ValueError("not the first time")
"""


class Peer:
    """One process of KMQ's."""

    def __init__(self, role: str, server, queue: str, records: int = 0) -> None:
        place = compiled("kmq", (SOURCES / "KmqPeer.java").read_bytes(), _compile, SOURCES)
        names = (queue, f"{queue}-markers", f"{queue}-consumers", f"{queue}-trackers")
        self.lines: list[str] = []
        self._process = subprocess.Popen(
            [str(java()), "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1",
             "-Dorg.slf4j.simpleLogger.defaultLogLevel=error", "-cp", f"{place}:{_libraries()}", "KmqPeer",
             role, server.bootstrap, *names, "2000", str(records)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            preexec_fn=tied_to_parent(),
        )  # fmt: skip
        self._reading = threading.Thread(target=self._read, daemon=True)
        self._reading.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        self.lines.extend(line.rstrip("\n") for line in iter(self._process.stdout.readline, ""))

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        self._reading.join()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()


def _libraries() -> str:
    return class_path(libraries("kmq-libs", (SOURCES / "pom.xml").read_bytes()))


def _compile(target: Path) -> list[str]:
    return [str(javac()), "-nowarn", "-cp", _libraries(), "-d", str(target), str(SOURCES / "KmqPeer.java")]


@pytest.fixture
def queue(server, unique):
    name = server.topic(unique("queue"), 2)
    server.topic(f"{name}-markers", 2)
    return name


@pytest.fixture
def peer(server, queue):
    started: list[Peer] = []

    def start(role: str, records: int = 0) -> Peer:
        started.append(Peer(role, server, queue, records))
        return started[-1]

    yield start
    for one in started:
        one.close()


@pytest.fixture
def ours(server, queue, tmp_path):
    names = {"QUEUE": queue, "MARKERS": f"{queue}-markers", "GROUP": f"{queue}-consumers"}
    found = Processes(tmp_path, f"kafka://{server.bootstrap}", **names)
    (tmp_path / "shop.py").write_text(APP)
    yield found
    found.close()


VALUES = ["once-a", *(f"{index}" for index in range(20)), "once-b"]
AGAIN = {"once-a", "once-b"}


def all_came(values: list[str]) -> bool:
    """Each of them, and those again that were not ended; others may come again, where a machine is slow."""
    return set(VALUES) == set(values) and all(values.count(one) > 1 for one in AGAIN)


def test_the_jvms_consumer_gets_again_from_our_tracker_what_it_did_not_end(server, queue, peer, ours):
    server.produce(queue, *VALUES)
    client = peer("client", records=100_000)
    tracker = ours.cli(
        *("kmq", "tracker", "--queue", queue, "--markers", f"{queue}-markers", "--broker", ours.url),
        *("--group", f"{queue}-trackers"),
    )

    def values() -> list[str]:
        return [line.split()[2] for line in client.lines]

    blocking_until(lambda: all_came(values()), lambda: f"{client.lines}\n{ours.log()}", limit_s=90)
    tracker.terminate()
    assert tracker.wait(60) == 0
    assert re.search(
        r"sent again \d+, undelivered 0, original lost 0, .* foreign markers 0, no markers 0", ours.log(tracker)
    )


def test_our_consumer_gets_again_from_the_jvms_tracker_what_it_did_not_end(server, queue, peer, ours):
    tracker = peer("tracker")
    blocking_until(lambda: tracker.lines, limit_s=60)
    ours.cli("worker", "shop:app", "--web-port", "0")
    server.produce(queue, *VALUES)

    ours.wait(lambda: all_came([note[2] for note in ours.notes()]), limit_s=90)


def test_consumers_of_both_kinds_share_one_group(server, queue, peer, ours):
    client = peer("client", records=100_000)
    ours.cli("worker", "shop:app", "--web-port", "0")
    sent: list[str] = []

    def both_work() -> bool:
        for partition in (0, 1):
            sent.append(f"v{len(sent)}")
            server.produce(queue, sent[-1], partition=partition)
        return bool(client.lines and ours.notes())

    ours.wait(both_work, limit_s=90)

    def left() -> set[str]:
        return set(sent) - {line.split()[2] for line in client.lines} - {note[2] for note in ours.notes()}

    blocking_until(lambda: not left(), lambda: f"{left()}\n{ours.log()}", limit_s=60)
