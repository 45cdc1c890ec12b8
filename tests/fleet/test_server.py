"""Tests of a worker's answers beside share groups."""

from __future__ import annotations

from flowshare.protocol import messages as m
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.kafka import ApiKey
from flowshare.testing.clock import LoopTimeClock
from flowshare.testing.virtual import run
from tests.fleet.world import Fleet, batch


def test_librdkafka_finds_record_batches_advertised_and_everybody_that_the_brokers_have_them():
    async def scenario(clock):
        async with Fleet(clock) as fleet:
            await fleet.topic("orders")
            worker = fleet.machines[0].serve("librdkafka")

            apis = fleet.machines[0].worker.server.apis()
            produced = await worker.send(m.ProduceRequest(topic="orders", partition=0, records=batch(b"a")))
            (log,) = (await worker.send(m.FetchRequest(partitions=(m.FetchPartition("orders", 0, 0, 1),)))).partitions

            assert apis[ApiKey.PRODUCE].versions[1] >= 3
            assert apis[ApiKey.FETCH].versions[1] >= 4
            assert produced.error is log.error is ErrorCode.UNSUPPORTED_VERSION
            assert "the Kafka brokers' own address" in produced.message
            assert fleet.kafka.storage.offsets("orders", 0).high_watermark == 0

    run(scenario(LoopTimeClock()))
