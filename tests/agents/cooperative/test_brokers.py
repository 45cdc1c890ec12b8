"""Cooperative agents of a fleet while that broker of two is killed that has their group, its slot, and records."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition

import flowshare as fs
from flowshare.client.net.cluster import Cluster
from flowshare.client.net.topology import NOBODY
from flowshare.clock import LoopClock
from flowshare.fleet.state.topic import state_topic
from flowshare.slots.placement import group_slot
from tests.agents.processes import Processes
from tests.chaos.once_world import Brokers
from tests.waiting import until

pytestmark = [pytest.mark.real, pytest.mark.java, pytest.mark.slow, pytest.mark.timeout(400)]

APP = """
import asyncio, os
import flowshare as fs

app = fs.App("shop", broker=os.environ["URL"])
orders = app.topic("orders", partitions=4)
journal = os.open(os.environ["JOURNAL"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)

@app.cooperative_agent(orders, group=os.environ["GROUP"], concurrency=8)
async def work(n: int, delivery: fs.Delivery) -> None:
    place = f"{os.environ['GROUP']} {delivery.partition} {delivery.offset} {delivery.key.decode()}"
    os.write(journal, f"B {place}\\n".encode())
    await asyncio.sleep(0.01)
    os.write(journal, f"E {place}\\n".encode())
"""
SLOTS, PARTITIONS, KEYS, PIECE = 8, 4, 50, 1_000


def test_a_dead_broker_of_the_group_of_its_slot_and_of_records_is_waited_for_and_nothing_is_lost(tmp_path: Path):
    (tmp_path / "shared.py").write_text(APP)
    brokers = Brokers(tmp_path, 2)
    brokers.start()
    url = f"kafka://{brokers.bootstrap}?share=workers&fleet=shop&slots={SLOTS}"
    world = Processes(tmp_path, url, GROUP="warm")
    try:
        world.wait_log(world.cli("worker", "shared:app", "--web-port", "0"), "ready after")
        group = world.environment["GROUP"] = asyncio.run(_group_on_the_last_node(brokers))
        for _ in range(2):
            world.wait_log(world.cli("worker", "shared:app", "--web-port", "0"), "ready after")
        asyncio.run(_story(url, brokers, world))
        _judge(_notes(world), 3 * PIECE)
        world.wait(lambda: _committed(brokers.bootstrap, group) == 3 * PIECE, "the ordinary offset is at the end")
    finally:
        world.close()
        brokers.end()


async def _group_on_the_last_node(brokers: Brokers) -> str:
    """A group whose coordinator, and whose slot's partition, are on the node that is to die; so is one of records."""
    cluster = Cluster(brokers.bootstrap.split(","), clock=LoopClock())
    await cluster.start()
    try:
        topic, mortal = state_topic("shop"), max(cluster.topology.nodes)
        await until(lambda: _all_led(cluster, topic, SLOTS), "all slots are led")
        assert mortal in [cluster.topology.leader(topic, slot) for slot in range(SLOTS)]
        await until(lambda: _all_led(cluster, "orders", PARTITIONS), "all partitions are led")
        assert mortal in [cluster.topology.leader("orders", number) for number in range(PARTITIONS)]
        for number in range(100):
            group = f"work-{number}"
            at = await until(lambda group=group: cluster.coordinator(group), good=lambda node: node != NOBODY)
            if at == cluster.topology.leader(topic, group_slot(group, SLOTS)) == mortal:
                return group
        raise AssertionError("no group is on that node")
    finally:
        await cluster.close()


async def _all_led(cluster: Cluster, topic: str, count: int) -> bool:
    await cluster.look_for((topic,))
    return all(cluster.topology.leader(topic, number) != NOBODY for number in range(count))


async def _story(url: str, brokers: Brokers, world: Processes) -> None:
    async with fs.Producer(url) as producer:
        sent = 0

        async def send() -> None:
            nonlocal sent
            for n in range(sent, sent + PIECE):
                producer.send_nowait("orders", str(n).encode(), key=f"k{n % KEYS}".encode())
            sent += PIECE
            await producer.flush()

        await send()
        await _handled(world, PIECE // 5)
        await asyncio.to_thread(brokers.kill, every=False)
        await send()
        await _handled(world, 2 * PIECE)
        await asyncio.to_thread(brokers.back)
        await send()
        await _handled(world, 3 * PIECE)


def _notes(world: Processes) -> list[list[str]]:
    """Those of the group, without the worker's that was there before it."""
    return [note for note in world.notes() if note[1] != "warm"]


async def _handled(world: Processes, count: int) -> None:
    def ended() -> int:
        return len({tuple(note[2:4]) for note in _notes(world) if note[0] == "E"})

    def told() -> str:
        return f"{ended()} of {count}\n{world.log()[-5_000:]}"

    await until(ended, told, good=lambda found: found >= count, limit_s=120.0)


def _judge(notes: list[list[str]], sent: int) -> None:
    """All were handled; the handlers of a key do not overlap, and first begin in the log's order."""
    assert len({tuple(note[2:4]) for note in notes if note[0] == "E"}) == sent
    began = Counter(tuple(note[2:4]) for note in notes if note[0] == "B")
    print(f"begun again: {sum(count - 1 for count in began.values())}")
    latest: dict[tuple[str, str], int] = defaultdict(lambda: -1)
    at_work: set[tuple[str, str]] = set()
    seen: set[tuple[str, str]] = set()
    for what, _, partition, offset, key in notes:
        if what == "E":
            at_work.discard((partition, key))
            continue
        assert (partition, key) not in at_work
        at_work.add((partition, key))
        if (partition, offset) not in seen:
            assert int(offset) > latest[partition, key]
            latest[partition, key] = int(offset)
        seen.add((partition, offset))


def _committed(bootstrap: str, group: str) -> int:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group, "log_level": 0})
    try:
        found = consumer.committed([TopicPartition("orders", number) for number in range(PARTITIONS)], timeout=10)
        return sum(max(0, one.offset) for one in found)
    finally:
        consumer.close()
