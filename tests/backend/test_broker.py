"""Clients without agents: each at a URL of its own, or several at one `fs.Broker`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import flowshare as fs
from flowshare.backend import BadBrokerUrl

pytestmark = pytest.mark.asyncio

EARLIEST = {"share.auto.offset.reset": "earliest"}


async def test_what_a_producer_sends_a_consumer_gets_and_all_is_closed_with_the_broker(tmp_path: Path) -> None:
    async with fs.Broker(f"embedded://{tmp_path}/shop") as broker:
        admin = fs.ShareAdmin(broker)
        await admin.create_topic("orders")
        await admin.alter_group_configs("billing", EARLIEST)
        producer = fs.Producer(broker)
        producer.send_nowait("orders", b"one")
        await producer.flush()
        consumer = fs.ShareConsumer(
            broker,
            ["orders"],
            group_id="billing",
            key_decoder=lambda key: key,
            value_decoder=lambda value: (value or b"").decode(),
        )
        (record,) = await consumer.poll(10.0)

    assert record.value == "one"
    with pytest.raises(fs.errors.Closed):
        await consumer.poll(0.1)


async def test_clients_that_are_given_a_url_open_and_close_it_themselves(tmp_path: Path) -> None:
    url = f"embedded://{tmp_path}/shop"
    async with fs.ShareAdmin(url) as admin:
        await admin.create_topic("orders")
        await admin.alter_group_configs("billing", EARLIEST)
    async with fs.Producer(url) as producer:
        producer.send_nowait("orders", b"one")  # is sent before the producer is closed
    async with fs.ShareConsumer(url, ["orders"], group_id="billing") as consumer:
        (record,) = await consumer.poll(10.0)

    assert record.value == b"one"
    with pytest.raises(fs.errors.Closed):
        await consumer.poll(0.1)


async def test_a_client_that_is_closed_leaves_the_broker_that_it_shares_open() -> None:
    async with fs.Broker("memory://") as broker:
        async with fs.ShareAdmin(broker) as admin:
            await admin.create_topic("orders")
        assert [topic.name for topic in await fs.ShareAdmin(broker).list_topics()] == ["orders"]


@pytest.mark.parametrize(
    ("broker", "error", "text"),
    [
        ("kafk://localhost", BadBrokerUrl, "did you mean kafka://"),
        ("localhost:9092", BadBrokerUrl, "is no URL"),
        (
            {"bootstrap.servers": "localhost:9092"},
            TypeError,
            "broker must be a URL such as .* or a fs.Broker, not dict",
        ),
    ],
)
@pytest.mark.parametrize(
    "client", [lambda broker: fs.ShareConsumer(broker, ["orders"], group_id="g"), fs.ShareAdmin, fs.Producer]
)
async def test_what_is_no_broker_is_refused_at_once(
    client: Any, broker: Any, error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        client(broker)


async def test_a_client_that_was_not_opened_says_how_it_is() -> None:
    with pytest.raises(fs.errors.BackendError, match=r"memory:// is not open: .*`async with`"):
        await fs.ShareAdmin("memory://").list_topics()


@pytest.mark.parametrize("many", [False, True])
async def test_a_producer_that_was_not_opened_says_how_it_is_in_one_sentence(
    many: bool, caplog: pytest.LogCaptureFixture
) -> None:
    producer = fs.Producer("memory://")
    with pytest.raises(
        fs.errors.ClientError, match=r"^topic t could not be looked up: broker memory:// is not open: .*`async with`$"
    ):
        await (producer.send_many("t", [b"x"]) if many else producer.send("t", b"x"))

    assert not caplog.records


async def test_a_broker_whose_client_could_not_commit_all_is_closed_all_the_same() -> None:
    class Consumer:
        async def close(self) -> None:
            raise fs.errors.NotCommitted([("orders", 0, 1)], "it was closed")

    broker = fs.Broker("memory://")
    with pytest.raises(fs.errors.NotCommitted):
        async with broker:
            broker.clients.append(Consumer())
    with pytest.raises(fs.errors.BackendError, match=r"memory:// is not open: .*`async with`"):
        await broker.connect("test")
