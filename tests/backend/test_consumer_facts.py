"""Facts that consumers tell of themselves and of topics: `metrics` and `partitions_for`."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import flowshare as fs

pytestmark = pytest.mark.asyncio

EARLIEST = {"share.auto.offset.reset": "earliest"}


@pytest.fixture(params=["memory", "embedded"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return "memory://" if request.param == "memory" else f"embedded://{tmp_path}/shop"


async def filled(broker: fs.Broker) -> None:
    admin = fs.ShareAdmin(broker)
    await admin.create_topic("orders", partitions=3)
    await admin.alter_group_configs("billing", EARLIEST)
    await fs.Producer(broker).send_many("orders", [b"one", b"three", b"five5"])


def counted(consumer: Any, *names: str) -> list[float]:
    found = consumer.metrics()
    return [found[name] for name in names]


async def test_a_share_consumer_counts_what_it_gets_and_says(url: str) -> None:
    settings = fs.ConsumerSettings(acknowledgement_mode="explicit")
    async with fs.Broker(url) as broker:
        await filled(broker)
        consumer = fs.ShareConsumer(broker, ["orders"], group_id="billing", settings=settings)
        before = consumer.metrics()
        seen = 0
        async with asyncio.timeout(60):
            while seen < 3:
                for record in await consumer.poll(1.0):
                    consumer.acknowledge(record)
                    seen += 1
        await consumer.commit_sync()
        found = consumer.metrics()

    assert {name: value for name, value in before.items() if value} == {
        "last_poll_seconds_ago": -1,
        "last_heartbeat_seconds_ago": -1,
    }
    assert set(found) == set(before)
    assert (found["records_consumed_total"], found["bytes_consumed_total"]) == (3, len(b"onethreefive5"))
    assert (found["acknowledgements_send_total"], found["acknowledgements_error_total"]) == (3, 0)
    assert (found["assigned_partitions"], found["rebalance_total"] >= 1) == (3, True)
    assert min(found["fetch_total"], found["heartbeat_total"]) >= 1
    assert min(found["last_poll_seconds_ago"], found["last_heartbeat_seconds_ago"]) >= 0
    assert counted(consumer, "records_consumed_total", "assigned_partitions") == [3, 0], "it is closed"


async def test_a_cooperative_consumer_counts_what_it_gets(url: str) -> None:
    async with fs.Broker(url, cooperative=["shared"]) as broker:
        await filled(broker)
        consumer = fs.CooperativeConsumer(broker, ["orders"], group_id="shared")
        assert counted(consumer, "records_consumed_total", "last_poll_seconds_ago", "assigned_partitions") == [0, -1, 0]
        seen = 0
        async with asyncio.timeout(60):
            while seen < 3:
                for record in await consumer.poll(1.0):
                    consumer.commit(record)
                    seen += 1
        assert counted(consumer, "records_consumed_total", "bytes_consumed_total") == [3, len(b"onethreefive5")]
        assert counted(consumer, "assigned_partitions") == [3]


@pytest.mark.parametrize("kind", ["share", "cooperative"])
async def test_the_partitions_of_a_topic_are_told_and_a_topic_that_is_not_there_is_refused(url: str, kind: str) -> None:
    async with fs.Broker(url, cooperative=["shared"]) as broker:
        await filled(broker)
        consumer: Any
        if kind == "share":
            consumer = fs.ShareConsumer(broker, ["orders"], group_id="billing")
        else:
            consumer = fs.CooperativeConsumer(broker, ["orders"], group_id="shared")
        found = await consumer.partitions_for("orders")
        with pytest.raises(fs.errors.ServerError, match=r"there is no topic ordres.*topics create ordres.*topics ls"):
            await consumer.partitions_for("ordres")
        with pytest.raises(ValueError, match="name of a topic"):
            await consumer.partitions_for("")
        with pytest.raises(TypeError, match="partitions_for: topic"):
            await consumer.partitions_for(7)

    assert [(one.topic, one.partition) for one in found] == [("orders", number) for number in range(3)]
    assert {(one.leader, one.replicas, one.in_sync) for one in found} == {(None, (), ())}, "there are no brokers"
    with pytest.raises(fs.errors.Closed):
        await consumer.partitions_for("orders")
