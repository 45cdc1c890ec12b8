"""Tests of the load of a group on a real Kafka, whose brokers tell only its position and its lag."""

from __future__ import annotations

import asyncio

import pytest

import flowshare as fs
from flowshare.agents.feed.stalls import StallWatch
from flowshare.agents.host.host import Host
from flowshare.backend.base import NATIVE
from flowshare.clock import LoopClock
from flowshare.ops.figures import PartitionFigures
from flowshare.ops.watcher import Watcher
from tests.waiting import until

pytestmark = pytest.mark.slow


async def finish_one(broker: fs.Broker, group: str, topic: str) -> None:
    """Brokers do not tell a group's position before it has finished something; they may tell that record's then."""
    consumer = fs.ShareConsumer(broker, [topic], group_id=group)
    while not await consumer.poll(60):
        continue
    await consumer.commit_sync()
    await consumer.close()


def test_age_and_retention_of_the_first_unfinished_record_are_read_from_its_log(kafka, unique):
    topic, group = unique("aged"), unique("group")

    async def look() -> tuple[PartitionFigures, PartitionFigures]:
        async with fs.Broker(kafka.url) as broker:
            admin, producer, clock = fs.ShareAdmin(broker), fs.Producer(broker), LoopClock()
            await admin.create_topic(topic, configs={"retention.ms": "3600000", "retention.bytes": "1000000"})
            await admin.alter_group_configs(group, {"share.auto.offset.reset": "earliest"})
            half_an_hour_ago_ms = clock.now_ms() - 1_800_000
            await producer.send(topic, b"x" * 100, timestamp=half_an_hour_ago_ms / 1000)
            await finish_one(broker, group, topic)
            await producer.send(topic, b"x" * 100, timestamp=half_an_hour_ago_ms / 1000)
            await producer.send(topic, b"x" * 100)
            watcher, found = Watcher(clock), []
            for _ in range(2):
                found += (await watcher.look(admin, NATIVE, {group: "share"})).partitions
                await clock.sleep(0.1)
            return found[0], found[1]

    first, second = asyncio.run(look())

    assert (second.backlog, second.log_end, second.in_flight, second.redeliveries) == (2, 3, None, None)
    assert 1800 <= second.oldest_age_s < 2400
    assert first.retention_left_s is None
    assert "rate of new records is not known" in first.retention
    assert second.retention == "by retention.ms"
    assert second.retention_left_s == pytest.approx(3600 - second.oldest_age_s)


def test_fetches_of_a_busy_agent_bring_something(kafka, unique, monkeypatch):
    """A broker gives nothing while the locks of what was handled and not acknowledged yet take all that there are: a
    fetch that leaves before the acknowledgements that are to ride on it comes back empty."""
    topic, name, count, empty, usual = unique("full"), unique("app"), 200_000, [], StallWatch.nothing_fetched

    def nothing_fetched(watch: StallWatch, feeder: object) -> None:
        empty.append(feeder)
        usual(watch, feeder)

    monkeypatch.setattr(StallWatch, "nothing_fetched", nothing_fetched)

    async def handle() -> tuple[int, int]:
        async with fs.Broker(kafka.url) as broker:
            await fs.ShareAdmin(broker).create_topic(topic)
            await fs.Producer(broker).send_many(topic, [b"x" * 100] * count)
        app, handled = fs.App(name, broker=kafka.url), 0

        @app.share_agent(app.topic(topic, value_type=bytes), name="work", start="earliest")
        async def work(value: bytes) -> None:
            nonlocal handled
            handled += 1

        host = Host(app)
        await host.start()
        await until(lambda: handled == count)
        found = len(empty), int(host.runtimes["work"].stats()["fetches"])
        await host.drain(10)
        await host.stop()
        return found

    nothing, fetches = asyncio.run(handle())

    assert nothing < fetches / 6, f"{nothing} of {fetches} fetches brought nothing"
