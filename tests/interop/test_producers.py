"""Producers of aiokafka and librdkafka, plain and idempotent, and their plain consumers."""

from __future__ import annotations

import asyncio

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as Place

from tests.interop.servers import CALL_LIMIT_S
from tests.waiting import blocking_until


@pytest.fixture
def topic(server, unique):
    return server.topic(unique("orders"))


def read_all(server, topic, count):
    """Values of partition 0 from its beginning, by librdkafka without a group."""
    consumer = Consumer({"bootstrap.servers": server.bootstrap, "group.id": "none", "enable.auto.commit": False})
    consumer.assign([Place(topic, 0, 0)])
    found = []
    blocking_until(
        lambda: found.extend(consumer.consume(count, timeout=0.2)) or len(found), good=lambda seen: seen >= count
    )
    consumer.close()
    assert [message.error() for message in found] == [None] * len(found)
    return found


@pytest.mark.parametrize(("acks", "idempotent"), [(0, False), (1, False), ("all", False), ("all", True)])
def test_aiokafka_produces(server, topic, acks, idempotent):
    async def produce():
        async with AIOKafkaProducer(
            bootstrap_servers=server.bootstrap, enable_idempotence=idempotent, acks=acks, linger_ms=5
        ) as producer:
            confirmed = [
                await producer.send(topic, str(number).encode(), key=b"k", headers=[("h", b"v")], partition=0)
                for number in range(100)
            ]
            return [await one for one in confirmed]

    told = asyncio_run(produce())

    found = read_all(server, topic, 100)
    assert [message.value() for message in found] == [str(number).encode() for number in range(100)]
    assert {message.key() for message in found} == {b"k"}
    if acks != 0:
        assert [one.offset for one in told] == list(range(100))


@pytest.mark.parametrize("idempotent", [False, True], ids=["plain", "idempotent"])
def test_librdkafka_produces(server, topic, idempotent):
    confirmed = []
    producer = Producer({"bootstrap.servers": server.bootstrap, "enable.idempotence": idempotent, "linger.ms": 5})

    for number in range(1000):
        producer.produce(
            topic, str(number), on_delivery=lambda error, message: confirmed.append((error, message.offset()))
        )
    assert producer.flush(CALL_LIMIT_S) == 0

    assert confirmed == [(None, offset) for offset in range(1000)]
    assert [int(message.value()) for message in read_all(server, topic, 1000)] == list(range(1000))


def test_a_batch_over_the_topics_limit_is_refused(server, topic):
    errors = []
    producer = Producer({"bootstrap.servers": server.bootstrap, "message.max.bytes": 5_000_000})

    producer.produce(topic, b"x" * 2_000_000, on_delivery=lambda error, _: errors.append(error.name()))
    assert producer.flush(CALL_LIMIT_S) == 0

    assert errors == ["MSG_SIZE_TOO_LARGE"]


def test_aiokafka_reads_from_any_place_and_time(server, topic):
    server.produce(topic, *(str(number) for number in range(50)))

    async def read():
        async with AIOKafkaConsumer(bootstrap_servers=server.bootstrap, enable_auto_commit=False) as consumer:
            place = TopicPartition(topic, 0)
            consumer.assign([place])
            consumer.seek(place, 40)
            tail = [(await consumer.getone()).value for _ in range(10)]
            ends = await consumer.end_offsets([place])
            beginnings = await consumer.beginning_offsets([place])
            times = await consumer.offsets_for_times({place: 1000})
            return tail, ends[place], beginnings[place], times[place].offset

    assert asyncio_run(read()) == ([str(number).encode() for number in range(40, 50)], 50, 0, 0)


def asyncio_run(coroutine):
    """Run with a limit: a client that waits for ever is a failure."""

    async def limited():
        async with asyncio.timeout(60):
            return await coroutine

    return asyncio.run(limited())
