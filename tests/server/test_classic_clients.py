"""Consumer groups of other people's clients on a broker that is stopped and started again on its data.

What they do on a broker that stays up is in `tests/interop/test_consumer_groups.py`, beside a real Kafka.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRebalanceListener, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from confluent_kafka import Consumer

from flowshare.clock import LoopClock
from flowshare.server.standalone import Address, Standalone, StandaloneOptions
from tests.waiting import until

pytestmark = [pytest.mark.asyncio, pytest.mark.slow, pytest.mark.timeout(90)]

LIMIT_S = 60.0
PARTITIONS = 4


class Broker:
    """A stand-alone broker on one path, on the same port after a restart."""

    def __init__(self, data) -> None:
        self._data = data
        self._listen = Address(host="127.0.0.1", port=0)

    @property
    def bootstrap(self) -> str:
        return str(self._listen)

    async def start(self) -> None:
        self._standalone = Standalone(StandaloneOptions(data=self._data, listen=self._listen), clock=LoopClock())
        await self._standalone.start()
        self._listen = self._standalone.address

    async def restart(self) -> None:
        await self.close()
        await self.start()

    async def close(self) -> None:
        await self._standalone.close()

    async def topic(self, name) -> None:
        admin = AIOKafkaAdminClient(bootstrap_servers=self.bootstrap)
        await admin.start()
        await admin.create_topics([NewTopic(name, PARTITIONS, 1)])
        await admin.close()

    async def produce(self, topic, *values) -> None:
        async with AIOKafkaProducer(bootstrap_servers=self.bootstrap) as producer:
            for number, value in enumerate(values):
                await producer.send_and_wait(topic, value.encode(), partition=number % PARTITIONS)

    def consumer(self, *topics, group="g", **fields) -> AIOKafkaConsumer:
        return AIOKafkaConsumer(
            *topics,
            bootstrap_servers=self.bootstrap,
            group_id=group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            heartbeat_interval_ms=200,
            retry_backoff_ms=50,
            **fields,
        )


@asynccontextmanager
async def broker(tmp_path):
    made = Broker(tmp_path / "log")
    await made.start()
    try:
        yield made
    finally:
        await made.close()


async def take(consumer, count):
    """So many values, in no order."""
    found: list[str] = []
    async with asyncio.timeout(LIMIT_S):
        while len(found) < count:
            for records in (await consumer.getmany(timeout_ms=200)).values():
                found += [record.value.decode() for record in records]
    return sorted(found)


class Seen(ConsumerRebalanceListener):
    """Counts assignments."""

    def __init__(self) -> None:
        self.count = 0

    async def on_partitions_revoked(self, revoked) -> None:
        del revoked

    async def on_partitions_assigned(self, assigned) -> None:
        del assigned
        self.count += 1


async def test_two_aiokafka_consumers_share_the_partitions_and_commits_survive_a_restart(tmp_path):
    async with broker(tmp_path) as b:
        await b.topic("orders")
        await b.produce("orders", *"abcdefgh")
        one, two, seen = b.consumer(), b.consumer(), Seen()
        one.subscribe(["orders"], listener=seen)
        two.subscribe(["orders"])
        await one.start()
        alone = await take(one, 8)
        await one.commit()
        await two.start()
        await until(lambda: len(one.assignment()) == len(two.assignment()) == 2 and seen.count == 2)
        await b.produce("orders", *"ijkl")
        later = sorted(await take(one, 2) + await take(two, 2))
        await one.commit()
        await two.commit()
        await one.stop()
        await two.stop()

        await b.restart()

        await b.produce("orders", *"mnop")
        async with b.consumer("orders") as again:
            assert await take(again, 4) == list("mnop")
            assert {await again.committed(TopicPartition("orders", number)) for number in range(4)} == {3}
        assert alone == list("abcdefgh")
        assert later == list("ijkl")


async def test_a_consumer_that_lives_through_a_restart_of_the_broker_goes_on_in_its_group(tmp_path):
    async with broker(tmp_path) as b:
        await b.topic("orders")
        await b.produce("orders", *"abcd")
        seen = Seen()
        consumer = b.consumer(group="lives")
        consumer.subscribe(["orders"], listener=seen)
        await consumer.start()
        assert await take(consumer, 4) == list("abcd")
        await consumer.commit()

        await b.restart()
        await b.produce("orders", *"efgh")

        assert await take(consumer, 4) == list("efgh")
        await consumer.commit()
        assert seen.count == 1, "the group rebalanced"
        await consumer.stop()


async def test_a_static_member_of_librdkafka_finds_its_place_after_a_restart_of_the_broker(tmp_path):
    async with broker(tmp_path) as b:
        await b.topic("orders")
        await b.produce("orders", *"abcd")
        assert await asyncio.to_thread(librdkafka, b.bootstrap, 4) == list("abcd")
        await b.restart()
        await b.produce("orders", *"efgh")
        assert await asyncio.to_thread(librdkafka, b.bootstrap, 4) == list("efgh")


def librdkafka(bootstrap, count):
    """A static member takes so many records, commits and closes, which leaves it in the group."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "static",
            "group.instance.id": "only",
            "partition.assignment.strategy": "cooperative-sticky",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe(["orders"])
    found: list[str] = []
    for _ in range(int(LIMIT_S / 0.2)):
        found += [message.value().decode() for message in consumer.consume(100, timeout=0.2)]
        if len(found) >= count:
            break
    consumer.commit(asynchronous=False)
    consumer.close()
    return sorted(found)
