"""A KMQ queue on a real broker: records a second beside the JVM's KMQ, and how late what is due is sent again.

    python benchmarks/kmq.py [--only rate|late] [--runs 3] [--records 100000]

rate: consumers that do nothing, with a tracker beside them, by turns; from the first record to the last confirmed end
marker. late: messages that nobody ends, each with 2 s: the end marker that a tracker writes behind its copy, against
the start marker, by the broker's clock. KMQ is 0.2 of Maven with kafka-clients 3.9.1. Needs Java and Maven.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import random
import statistics
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

from confluent_kafka import Consumer, Producer, TopicPartition

import arena
import flowshare as fs
from common import verdict
from flowshare.dev.java import java
from flowshare.dev.processes import tied_to_parent
from flowshare.kmq.markers import END, encode_key, encode_start

HERE = Path(__file__).resolve()
ROOT = HERE.parent.parent
PARTITIONS = 4
AFTER_MS = 2_000
MESSAGES = 30
LATE_S = 1.2
START_S = 60.0


def info(text: str) -> None:
    """Print a line."""
    print(text, flush=True)


# --- the peers, each a process ------------------------------------------------------------------------------------


def peer_ours(options: argparse.Namespace) -> dict[str, float]:
    """Our agent, until all records are ended."""

    async def main() -> dict[str, float]:
        logging.basicConfig(level=logging.WARNING)
        app = fs.App(options.group, broker=f"kafka://{options.bootstrap}")
        first = [0.0]

        @app.kmq_agent(options.queue, markers=options.markers, group=options.group, redeliver_after=120)
        async def nothing(value: bytes) -> None:
            if not first[0]:
                first[0] = time.perf_counter()

        async with app.running():
            while app.host.runtimes["nothing"].stats()["accepted"] < options.records:
                await asyncio.sleep(0.01)
            seconds = time.perf_counter() - first[0]
        return {"records": options.records, "seconds": seconds}

    return asyncio.run(main())


def kmq_programs() -> str:
    """Class path of KMQ's peer."""
    sys.path.insert(0, str(ROOT))
    from tests.interop.test_kmq import SOURCES, _compile, _libraries
    from tests.interop.toolbox import compiled

    return f"{compiled('kmq', (SOURCES / 'KmqPeer.java').read_bytes(), _compile, SOURCES)}:{_libraries()}"


def java_command(role: str, server: arena.Server, names: tuple[str, str, str, str], after_ms: int, records: int):
    """KMQ's peer in a JVM."""
    quiet = "-Dorg.slf4j.simpleLogger.defaultLogLevel=off"
    command = [str(java()), "-Xmx512m", quiet, "-cp", kmq_programs(), "KmqPeer", role, server.bootstrap]
    return [*command, *names, str(after_ms), str(records)]


@contextmanager
def tracker(kind: str, server: arena.Server, names: tuple[str, str, str, str], after_ms: int):
    """A tracker of one kind, as a process."""
    queue, markers, _, group = names
    command = java_command("tracker", server, names, after_ms, 0)
    if kind == "ours":
        command = [sys.executable, "-m", "flowshare.cli", "kmq", "tracker", "--queue", queue, "--markers", markers]
        command += ["--group", group, "--broker", f"kafka://{server.bootstrap}"]
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        preexec_fn=tied_to_parent(),
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


# --- rate ---------------------------------------------------------------------------------------------------------


def names_of(server: arena.Server, kind: str, queue: str) -> tuple[str, str, str, str]:
    """Queue, a new topic of markers, and groups of their own."""
    name = f"{kind}-{time.time_ns()}"
    markers = server.topic(f"{name}-markers", PARTITIONS, {"message.timestamp.type": "LogAppendTime"})
    return queue, markers, f"{name}-consumers", f"{name}-trackers"


def rate_of(kind: str, server: arena.Server, queue: str, records: int) -> float:
    """Records a second of one kind, its tracker beside it."""
    names = names_of(server, kind, queue)
    with tracker(kind, server, names, 120_000):
        if kind == "ours":
            figures = arena.python_peer(
                HERE.name, "ours", bootstrap=server.bootstrap, queue=queue, markers=names[1], group=names[2],
                records=records,
            )  # fmt: skip
        else:
            figures = arena._figures("KMQ", java_command("rate", server, names, 120_000, records))
    return figures["records"] / figures["seconds"]


def rate(server: arena.Server, options: argparse.Namespace) -> None:
    """Both, by turns."""
    queue = server.topic("rate", PARTITIONS)
    server.send(queue, options.records)
    rates: dict[str, list[float]] = {"kmq": [], "ours": []}
    for _ in range(options.runs):
        for kind, found in rates.items():
            found.append(rate_of(kind, server, queue, options.records))
            info(f"{kind}: {found[-1]:,.0f} records/s")
    theirs, mine = (statistics.median(rates[kind]) for kind in ("kmq", "ours"))
    each = [mine / theirs for mine, theirs in zip(rates["ours"], rates["kmq"], strict=True)]
    info(f"KMQ {theirs:,.0f}, flowshare {mine:,.0f} records/s; ratio of each pair {min(each):.2f} to {max(each):.2f}")
    verdict("records a second against the JVM's KMQ", mine / theirs, 1.0)


# --- late ---------------------------------------------------------------------------------------------------------


def read_markers(server: arena.Server, topic: str) -> dict[bytes, list[tuple[int, bytes]]]:
    """(timestamp, value) of all markers, by their keys."""
    consumer = Consumer({"bootstrap.servers": server.bootstrap, "group.id": "look", "enable.auto.commit": False})
    places = [TopicPartition(topic, one, 0) for one in range(PARTITIONS)]
    ends = {one.partition: consumer.get_watermark_offsets(one)[1] for one in places}
    consumer.assign(places)
    found: dict[bytes, list[tuple[int, bytes]]] = {}
    left = sum(ends.values())
    while left:
        message = consumer.poll(10)
        if message is None:
            raise SystemExit(f"{left} markers of {topic} cannot be read")
        found.setdefault(message.key(), []).append((message.timestamp()[1], message.value()))
        left -= 1
    consumer.close()
    return found


def send(producer: Producer, topic: str, value: bytes, partition: int) -> int:
    """A message; its offset."""
    offsets: list[int] = []
    producer.produce(topic, value, partition=partition, on_delivery=lambda _, told: offsets.append(told.offset()))
    producer.flush(30)
    return offsets[0]


def late_of(kind: str, server: arena.Server, seed: int) -> list[float]:
    """Seconds that each message came later than its time, its tracker started before."""
    queue = server.topic(f"late-{kind}", PARTITIONS)
    names = names_of(server, kind, queue)
    producer = Producer({"bootstrap.servers": server.bootstrap, "linger.ms": 0, "log_level": 0})
    dice = random.Random(seed)
    with tracker(kind, server, names, AFTER_MS):
        keys: list[bytes] = []
        for number in range(MESSAGES + 1):
            partition = dice.randrange(PARTITIONS)
            offset = send(producer, queue, b"%d" % number, partition)
            keys.append(encode_key(partition, offset))
            producer.produce(names[1], encode_start(AFTER_MS), key=keys[-1], partition=partition)
            producer.flush(30)
            if not number:  # the first one waits for the tracker, and does not count
                deadline_s = time.monotonic() + START_S
                while len(read_markers(server, names[1])[keys[0]]) < 2 and time.monotonic() < deadline_s:
                    time.sleep(0.5)
            time.sleep(dice.uniform(0.05, 1.5))
        deadline_s = time.monotonic() + START_S
        while time.monotonic() < deadline_s:
            found = read_markers(server, names[1])
            if all(len(found[key]) > 1 for key in keys):
                break
            time.sleep(0.5)
    later = [found[key] for key in keys[1:]]
    if any(len(one) < 2 or one[1][1] != END for one in later):
        raise SystemExit(f"{kind} did not send all again")
    return [(one[1][0] - one[0][0] - AFTER_MS) / 1000 for one in later]


def late(server: arena.Server, options: argparse.Namespace) -> None:
    """Both."""
    for kind in ("kmq", "ours"):
        found = sorted(late_of(kind, server, options.seed))
        info(
            f"{kind}: {len(found)} messages came {found[0]:.3f} to {found[-1]:.3f} s after their time, "
            f"median {statistics.median(found):.3f} s"
        )
        if kind == "ours":
            verdict("seconds that a message comes too late, at most", found[-1], LATE_S, at_most=True)
            if found[0] < 0:
                raise SystemExit("a message came too early")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=["rate", "late"])
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--records", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=7)
    for name in ("peer", "bootstrap", "queue", "markers", "group"):
        parser.add_argument(f"--{name}", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.peer:
        print(json.dumps(peer_ours(options)))
        return
    with arena.kafka() as server:
        for section in (rate, late):
            if options.only in (None, section.__name__):
                section(server, options)


if __name__ == "__main__":
    main()
