"""The Kafka of the other tests does what they need of it."""

from __future__ import annotations

import pytest

from flowshare.protocol import messages as m
from flowshare.protocol.batches import BatchBuilder
from flowshare.protocol.errors import ErrorCode
from flowshare.testing.clock import LoopTimeClock
from flowshare.testing.virtual import run
from tests.fleet.kafka import FakeKafka


def batch(*values: bytes) -> bytes:
    builder = BatchBuilder()
    for value in values:
        assert builder.add(None, value, [], timestamp_ms=1_000)
    return builder.build()


def test_records_are_produced_and_fetched_through_a_cluster():
    async def scenario(clock):
        async with FakeKafka(clock) as kafka:
            cluster = kafka.cluster()
            await cluster.start()
            client = cluster.connect("test")
            await client.send(m.CreateTopicRequest(name="orders", partitions=2))
            made = await client.send(m.ProduceRequest(topic="orders", partition=1, records=batch(b"a", b"b")))
            assert made.base_offset == 0
            read = await client.send(m.FetchRequest(partitions=(m.FetchPartition("orders", 1, 0),)))
            assert read.partitions[0].high_watermark == 2
            await client.close()
            await cluster.close()

    run(scenario(LoopTimeClock()))


def test_an_answer_can_be_lost_after_the_request_was_carried_out():
    async def scenario(clock):
        async with FakeKafka(clock) as kafka:
            cluster = kafka.cluster()
            await cluster.start()
            client = cluster.connect("test")
            await client.send(m.CreateTopicRequest(name="orders"))
            kafka.drop_answers(m.ProduceRequest)
            with pytest.raises(ConnectionError):
                await client.send(m.ProduceRequest(topic="orders", partition=0, records=batch(b"a")))
            kafka.refuse(m.ProduceRequest, ErrorCode.NOT_ENOUGH_REPLICAS)
            refused = await client.send(m.ProduceRequest(topic="orders", partition=0, records=batch(b"b")))
            assert refused.error is ErrorCode.NOT_ENOUGH_REPLICAS
            assert kafka.storage.offsets("orders", 0).high_watermark == 1
            await client.close()
            await cluster.close()

    run(scenario(LoopTimeClock()))
