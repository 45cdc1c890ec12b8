"""Records cross from the handler loop to the service loop in batches, and results come back."""

import asyncio
from types import SimpleNamespace

import pytest

from flowshare.agents.handler.send import ProducerRecord
from flowshare.agents.host.outbox import Outbox
from flowshare.agents.host.service import ServiceLoop
from flowshare.client.errors import BufferFull, RecordTooLarge
from tests.waiting import LIMIT_S


def record(value: bytes) -> ProducerRecord:
    return ProducerRecord("t", value, None, (), None, None)


class FakeProducer:
    """Confirms what it gets on the next turn of its loop; refuses what it is told to."""

    def __init__(self):
        self.sent = []
        self.full = 0

    def send_nowait(self, topic, value, **arguments):
        if self.full:
            self.full -= 1
            raise BufferFull("full")
        if value == b"too large":
            raise RecordTooLarge("too large")
        loop = asyncio.get_running_loop()
        future = loop.create_future()
        self.sent.append(value)
        loop.call_soon(future.set_result, SimpleNamespace(topic=topic, partition=0, offset=len(self.sent) - 1))
        return future

    async def send(self, topic, value, **arguments):
        await asyncio.sleep(0)
        self.full = 0
        return await self.send_nowait(topic, value, **arguments)


@pytest.fixture
def service():
    service = ServiceLoop()
    service.start()
    yield service
    service.stop()


def test_records_keep_their_order_and_get_their_results(service):
    producer = FakeProducer()

    async def handlers():
        outbox = Outbox(producer, service.loop)
        futures = [await outbox.enqueue(record(str(n).encode())) for n in range(200)]
        return [done.offset for done in await asyncio.gather(*futures)]

    assert asyncio.run(handlers()) == list(range(200))
    assert producer.sent == [str(n).encode() for n in range(200)]


def test_a_full_buffer_holds_the_queue_and_keeps_its_order(service):
    producer = FakeProducer()
    producer.full = 1

    async def handlers():
        outbox = Outbox(producer, service.loop)
        futures = [await outbox.enqueue(record(str(n).encode())) for n in range(20)]
        await outbox.flush()
        return [future.result().offset for future in futures]

    assert asyncio.run(handlers()) == list(range(20))


def test_a_refusal_reaches_the_sender(service):
    async def handlers():
        outbox = Outbox(FakeProducer(), service.loop)
        with pytest.raises(RecordTooLarge):
            await (await outbox.enqueue(record(b"too large")))
        return (await (await outbox.enqueue(record(b"x")))).offset

    assert asyncio.run(handlers()) == 0


def test_one_loop_needs_no_thread():
    async def both():
        service = ServiceLoop(threads=False)
        service.start()
        sent = await Outbox(FakeProducer(), service.loop).enqueue(record(b"x"))
        return (await sent).offset

    assert asyncio.run(both()) == 0


def test_confirmations_go_on_while_the_handler_loop_is_blocked(service):
    producer = FakeProducer()

    async def handlers():
        outbox = Outbox(producer, service.loop)
        futures = [await outbox.enqueue(record(str(n).encode())) for n in range(50)]
        service.submit(lambda: asyncio.sleep(0)).result(LIMIT_S)  # blocks this loop until the other one has turned
        while len(producer.sent) < 50:
            service.submit(lambda: asyncio.sleep(0)).result(LIMIT_S)
        return len(await asyncio.gather(*futures))

    assert asyncio.run(handlers()) == 50
