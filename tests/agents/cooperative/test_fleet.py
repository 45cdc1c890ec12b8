"""Cooperative agents on a fleet: the group is Kafka's, its state the workers', and one of them is killed."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from subprocess import Popen
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition

import flowshare as fs
from tests.agents.processes import Processes
from tests.waiting import until

pytestmark = [pytest.mark.real, pytest.mark.java, pytest.mark.slow, pytest.mark.timeout(300)]

APP = """
import asyncio, os
import flowshare as fs

app = fs.App(os.environ["NAME"], broker=os.environ["URL"])
orders = app.topic(os.environ["NAME"], partitions=2)
journal = os.open(os.environ["JOURNAL"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)

@app.cooperative_agent(orders, group=os.environ["NAME"], concurrency=8)
async def work(n: int, delivery: fs.Delivery) -> None:
    place = f"{os.getpid()} {delivery.partition} {delivery.offset} {delivery.key.decode()}"
    os.write(journal, f"B {place}\\n".encode())
    await asyncio.sleep(0.01)
    os.write(journal, f"E {place}\\n".encode())
"""
HEAP, KEYS = 2_000, 50
Process = Popen[bytes]


def test_a_killed_workers_keys_go_to_the_others_in_order_and_the_ordinary_offset_follows(kafka, unique, tmp_path):
    name = unique("shared")
    with _at_work(kafka, name, tmp_path, APP) as (world, _, victim, sent):
        _kill(world, victim)
        world.wait(lambda: len({tuple(note[2:4]) for note in world.notes() if note[0] == "E"}) == sent, "all end")

        _judge(world.notes(), str(victim.pid))
        world.wait(lambda: _committed(kafka.bootstrap, name) == sent, "the ordinary offset is at the end")


ONCE = """
import asyncio, os
import flowshare as fs

app = fs.App(os.environ["NAME"], broker=os.environ["URL"])
orders = app.topic(os.environ["NAME"], partitions=2)
paid = app.topic(os.environ["NAME"] + ".paid", partitions=2)
journal = os.open(os.environ["JOURNAL"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)

@app.cooperative_agent(orders, group=os.environ["NAME"], concurrency=8, lease=10, exactly_once=True)
async def work(n: int, delivery: fs.Delivery) -> None:
    await asyncio.sleep(0.01)
    delivery.send(paid, f"{delivery.partition} {delivery.offset}".encode(), key=delivery.key)
    place = f"{os.getpid()} {delivery.partition} {delivery.offset} {delivery.key.decode()}"
    os.write(journal, f"E {place}\\n".encode())
"""


def test_outputs_of_a_killed_worker_are_there_once_for_who_reads_what_is_committed(kafka, unique, tmp_path):
    name = unique("once")
    with _at_work(kafka, name, tmp_path, ONCE) as (world, first, victim, sent):
        for one in (victim, first):  # the second one has led the group's state for longest
            _kill(world, one)
        world.wait(lambda: _committed(kafka.bootstrap, name) == sent, "the ordinary offset is at the end")

        outputs = _read(kafka.bootstrap, f"{name}.paid", sent)
        assert Counter(outputs).most_common(1)[0][1] == 1
        assert len(outputs) == sent


@contextmanager
def _at_work(kafka: Any, name: str, folder: Path, app: str) -> Iterator[tuple[Processes, Process, Process, int]]:
    """Three workers of a fleet: the first one, and one of the others, which has begun; how many records were sent."""
    (folder / "fleet_app.py").write_text(app)
    world = Processes(folder, f"{kafka.url}?share=workers&fleet={name}", NAME=name)
    try:
        first = world.cli("worker", "fleet_app:app", "--web-port", "0")
        world.wait_log(first, "ready after")
        victim, _ = (world.cli("worker", "fleet_app:app", "--web-port", "0") for _ in range(2))
        sent = asyncio.run(_send_until(kafka.url, name, lambda: _works(world, victim.pid)))
        yield world, first, victim, sent
    finally:
        world.close()


def _kill(world: Processes, process: Process) -> None:
    process.kill()
    process.wait()
    world.started.remove(process)


def _read(bootstrap: str, topic: str, wanted: int) -> list[bytes]:
    """All committed records of a topic of two partitions, and what comes behind those that are wanted."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": topic, "isolation.level": "read_committed"})
    found: list[bytes] = []
    try:
        consumer.assign([TopicPartition(topic, number, 0) for number in range(2)])
        quiet = 0
        while quiet < (3 if len(found) >= wanted else 30):
            message = consumer.poll(1.0)
            quiet = quiet + 1 if message is None else 0
            if message is not None and message.error() is None:
                found.append(message.value())
    finally:
        consumer.close()
    return found


def _works(world: Processes, pid: int) -> bool:
    return any(note[:2] == ["E", str(pid)] for note in world.notes())


async def _send_until(url: str, topic: str, begun: Callable[[], bool]) -> int:
    """Send until somebody has begun, and a heap more for it to be killed in the middle of; how many."""
    sent = 0
    async with fs.Producer(url) as producer:

        async def send(count: int) -> None:
            nonlocal sent
            for n in range(sent, sent + count):
                producer.send_nowait(topic, str(n).encode(), key=f"k{n % KEYS}".encode())
            sent += count
            await producer.flush()

        async def some() -> bool:
            if begun():
                return True
            await send(KEYS)
            return False

        await until(some, "the victim works", look_s=0.1)
        await send(HEAP)
    return sent


def _judge(notes: list[list[str]], victim: str) -> None:
    """No key runs twice at once or backwards, but for what the killed worker had begun."""
    began = Counter(tuple(note[2:4]) for note in notes if note[0] == "B")
    ended = {(note[1], *note[2:4]) for note in notes if note[0] == "E"}
    lost = {tuple(note[2:4]) for note in notes if note[1] == victim and (victim, *note[2:4]) not in ended}
    uncommitted = {tuple(note[2:4]) for note in notes if note[1] == victim}
    again = {place for place, count in began.items() if count > 1}
    assert lost <= again
    assert again <= uncommitted
    latest: dict[tuple[str, str], int] = defaultdict(lambda: -1)
    open_at: dict[tuple[str, str], str] = {}
    for what, pid, partition, offset, key in notes:
        if what == "E":
            open_at.pop((partition, key), None)
            continue
        assert open_at.get((partition, key), victim) == victim
        open_at[partition, key] = pid
        if began[partition, offset] == 1:
            assert int(offset) > latest[partition, key]
            latest[partition, key] = int(offset)


def _committed(bootstrap: str, group: str) -> int:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group})
    try:
        found = consumer.committed([TopicPartition(group, number) for number in range(2)], timeout=10)
        return sum(max(0, one.offset) for one in found)
    finally:
        consumer.close()
