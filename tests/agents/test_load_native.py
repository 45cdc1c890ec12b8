"""What is known of a group on a real Kafka, whose brokers tell only its position and its lag."""

from __future__ import annotations

import asyncio

import pytest

import flowshare as fs
from flowshare.agents.scale import lag
from flowshare.agents.scale.rates import Rates
from flowshare.agents.scale.retention import Facts
from flowshare.clock import LoopClock

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

    async def look() -> tuple[lag.Rows, lag.Rows]:
        async with fs.Broker(kafka.url) as broker:
            admin, producer, clock = fs.ShareAdmin(broker), fs.Producer(broker), LoopClock()
            await admin.create_topic(topic, configs={"retention.ms": "3600000", "retention.bytes": "1000000"})
            await admin.alter_group_configs(group, {"share.auto.offset.reset": "earliest"})
            half_an_hour_ago_ms = clock.now_ms() - 1_800_000
            await producer.send(topic, b"x" * 100, timestamp=half_an_hour_ago_ms / 1000)
            await finish_one(broker, group, topic)
            await producer.send(topic, b"x" * 100, timestamp=half_an_hour_ago_ms / 1000)
            await producer.send(topic, b"x" * 100)
            facts, rates, found = Facts(admin), Rates(), []
            for second in range(2):
                facts.begin()
                rows = await lag.rows(admin, [group], clock.now_ms(), facts)
                rates.look(rows, float(second))
                await lag.add_retention(rows, facts, rates, float(second))
                found.append(rows)
            return found[0], found[1]

    [first], [second] = asyncio.run(look())

    assert (second["backlog"], second["log_end"], second["in_flight"], second["redeliveries"]) == (2, 3, None, None)
    assert 1800 <= second["oldest_age_s"] < 2400
    assert first["retention_left_s"] is None
    assert "rate of new records is not known" in first["retention"]
    assert second["retention"] == "by retention.ms"
    assert second["retention_left_s"] == pytest.approx(3600 - second["oldest_age_s"])
