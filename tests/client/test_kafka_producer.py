"""The producer for Kafka clusters, over aiokafka's, at a broker that does as the test says."""

from __future__ import annotations

import asyncio

import pytest

from flowshare.client.kafka_producer import KafkaProducer
from flowshare.client.settings import ProducerSettings
from flowshare.clock import LoopClock
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.messages import (
    InitProducerIdRequest,
    InitProducerIdResponse,
    MetadataRequest,
    ProduceRequest,
    ProduceResponse,
)
from tests.server.edge.kit import edge, until

pytestmark = [pytest.mark.asyncio, pytest.mark.slow]

CLIENT = "kafka producer"


async def test_a_topic_stays_known_while_another_ones_first_record_is_sent() -> None:
    """aiokafka asks for all topics as long as it has to know none (here because its first InitProducerId failed), and
    from then on only for those that it knew nothing of when their first record came."""
    async with edge() as e:
        handlers, asked, moved = e.server._handlers, [], asyncio.Event()
        init, produce, metadata = (handlers[kind] for kind in (InitProducerIdRequest, ProduceRequest, MetadataRequest))

        async def loading(request, connection):
            handlers[InitProducerIdRequest] = init
            return InitProducerIdResponse(error=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)

        async def moving(request, connection):
            handlers[ProduceRequest] = produce
            await moved.wait()
            return ProduceResponse(error=ErrorCode.NOT_LEADER_OR_FOLLOWER)

        async def listening(request, connection):
            if connection.client_id == CLIENT:
                asked.append(request.topics)
            return await metadata(request, connection)

        handlers.update({InitProducerIdRequest: loading, ProduceRequest: moving, MetadataRequest: listening})
        await e.topic("early")

        async def connect():
            return e.server.connect(client_id="sizes")

        settings = ProducerSettings(delivery_timeout_s=20.0)
        producer = KafkaProducer([e.address], connect, clock=LoopClock(), client_id=CLIENT, settings=settings)
        early = producer.send_nowait("early", b"1")
        await until(lambda: handlers[ProduceRequest] is produce)
        await e.topic("late")
        late = producer.send_nowait("late", b"2")
        await until(lambda: any("late" in (topics or ()) for topics in asked))

        moved.set()

        assert (await late).topic == "late"
        assert (await early).topic == "early"
        await producer.close()
