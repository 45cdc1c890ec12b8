"""`fs.Broker`: clients at one URL without agents."""

from __future__ import annotations

from pathlib import Path

import pytest

import flowshare as fs
from flowshare.backend import BadBrokerUrl
from flowshare.client.errors import Closed

pytestmark = pytest.mark.asyncio


async def test_what_a_producer_sends_a_consumer_gets_and_all_is_closed_with_the_broker(tmp_path: Path) -> None:
    async with fs.Broker(f"embedded://{tmp_path}/shop") as broker:
        admin = broker.admin()
        await admin.create_topic("orders")
        await admin.alter_group_configs("billing", {"share.auto.offset.reset": "earliest"})
        producer = broker.producer()
        producer.send_nowait("orders", b"one")
        await producer.flush()
        consumer = broker.consumer(
            "billing", ["orders"], key_decoder=lambda key: key, value_decoder=lambda value: (value or b"").decode()
        )
        (record,) = await consumer.poll(10.0)

    assert record.value == "one"
    with pytest.raises(Closed):
        await consumer.poll(0.1)


async def test_what_was_sent_without_waiting_is_there_when_the_broker_is_closed(tmp_path: Path) -> None:
    url = f"embedded://{tmp_path}/shop"
    async with fs.Broker(url) as broker:
        await broker.admin().create_topic("orders")
        broker.producer().send_nowait("orders", b"one")

    async with fs.Broker(url) as broker:
        assert (await broker.admin().offsets("orders", 0)).high_watermark == 1


async def test_a_bad_url_is_refused_at_once() -> None:
    with pytest.raises(BadBrokerUrl):
        fs.Broker("kafk://localhost")
