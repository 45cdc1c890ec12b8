"""An agent on a real Kafka of two nodes, one of which is killed under work: no record is lost, and no restart helps."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from itertools import count

import pytest
from confluent_kafka import Producer

import flowshare as fs
from flowshare.client.errors import ServerError
from tests.kafka.test_native import LIMIT_S, cluster, running, url
from tests.waiting import until

pytestmark = [pytest.mark.asyncio, pytest.mark.java]

OFFSETS = "__consumer_offsets"
DOOMED = 2
RECORDS, BEFORE, IN_HAND = 6000, 500, 100


def java_hash(text):
    """`String.hashCode`, of letters that are ASCII."""
    hashed = 0
    for letter in text.encode():
        hashed = (31 * hashed + letter) & 0xFFFF_FFFF
    return hashed - (1 << 32) if hashed >> 31 else hashed


async def leaders(admin, topic):
    """The leader of each partition, as soon as there are all of them on both nodes."""

    async def led():
        return next((one.leaders for one in await admin.list_topics() if one.name == topic), ())

    return await until(led, good=lambda found: set(found) == {1, DOOMED})


async def coordinated_by(admin, node, name):
    """A name for an app whose group `<app>.work` has its coordinator at this node."""
    with suppress(ServerError):  # the first one who asks for a coordinator has their topic made
        await admin.describe_group(name)
    found = await leaders(admin, OFFSETS)
    names = (f"{name}-{number}" for number in count())
    return next(one for one in names if found[(java_hash(f"{one}.work") & 0x7FFF_FFFF) % len(found)] == node)


class Sender:
    """librdkafka's producer, with its own persistence against a leader that is gone: who sends is not on trial."""

    def __init__(self, broker, topic, partitions):
        self._producer = Producer(
            {"bootstrap.servers": broker.bootstrap, "enable.idempotence": True, "linger.ms": 5, "log_level": 0}
        )
        self._topic, self._partitions = topic, partitions

    def send(self, numbers):
        for number in numbers:
            self._producer.produce(self._topic, b"%d" % number, partition=number % self._partitions)

    async def confirm(self):
        left = await asyncio.to_thread(self._producer.flush, LIMIT_S)
        assert left == 0, f"{left} records were not confirmed"


async def test_when_a_broker_is_killed_under_work_the_agent_finishes_everything_on_the_other(mortal_pair, unique):
    async with cluster(mortal_pair) as (admin, _):
        name = await coordinated_by(admin, DOOMED, unique("loss"))
        await admin.create_topic(name, partitions=4)
        led = await leaders(admin, name)

        killed, seen, held = asyncio.Event(), [], []
        app = fs.App(name, broker=url(mortal_pair), share="native")

        @app.share_agent(name, name="work", concurrency=IN_HAND, dead_letter=None)
        async def work(value: bytes) -> None:
            number = int(value)
            if led[number % 4] == DOOMED and len(seen) >= BEFORE and not killed.is_set():
                held.append(number)
                await killed.wait()
            seen.append(number)

        sender = Sender(mortal_pair, name, 4)
        async with running(app):
            sender.send(range(RECORDS // 2))
            await until(lambda: len(held) == IN_HAND)
            mortal_pair.processes[DOOMED - 1].end(0)
            sender.send(range(RECORDS // 2, RECORDS))
            killed.set()
            await until(lambda: len(set(seen)) == RECORDS)
            await sender.confirm()
        lags = {part.lag for part in await admin.group_offsets(f"{name}.work", [name])}
        left = set((await admin.describe_topic(name)).leaders)

    assert sorted(set(seen)) == list(range(RECORDS))
    assert set(held) <= set(seen)
    assert lags == {0}
    assert left == {1}
