"""What is sent to a topic is what its handlers take: checked where it is sent, by types and by serializers."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import flowshare as fs
from flowshare.agents.errors import Unencodable, UsageError
from flowshare.client import errors as fs_errors


@dataclass
class Order:
    """A topic's value."""

    id: int


app = fs.App("types", broker="memory://")


@pytest.mark.parametrize(
    ("value_type", "value", "why"),
    [
        (Order, {"id": "x"}, "Order.id: expected int, got str"),
        (Order, 5, "expected an object for Order"),
        (int, "five", ""),
        (dict, [1], ""),
        (list[int], ["a"], ""),
    ],
)
def test_what_a_handler_of_the_topic_would_not_get_is_refused_where_it_is_sent(value_type: Any, value: Any, why: str):
    topic = app.topic("orders", value_type=value_type)

    with pytest.raises(Unencodable, match=rf"topic 'orders' has value_type=.*does not fit: .*{why}"):
        topic._made(None, value, None, None, None, {})
    with pytest.raises(Unencodable):
        fs.Send(topic, value).encode()


@pytest.mark.parametrize(
    ("value_type", "value"),
    [
        (Order, Order(1)),
        (Order, {"id": 1}),
        (Order, None),
        (str, "x"),
        (bytes, b"x"),
        (bytes, "x"),
        (Any, [1]),
        (int, 5),
    ],
)
def test_what_fits_is_sent(value_type: Any, value: Any):
    assert app.topic("orders", value_type=value_type)._made(None, value, None, None, None, {}).topic == "orders"


@pytest.mark.asyncio
@pytest.mark.parametrize(("serializer", "value"), [("json", "plain"), ("json|binary", {"a": 1})])
async def test_a_serializer_works_in_both_directions(serializer: str, value: Any):
    own = fs.App("codecs", broker="memory://")
    topic = own.topic("coded", value_type=type(value), value_serializer=serializer)
    got: list[Any] = []

    async def take(value: Any) -> None:
        got.append(value)

    take.__annotations__["value"] = type(value)
    own.share_agent(topic)(take)
    async with fs.testing.harness(own) as bus:
        await bus.send(topic, value)
        await bus.run_until_idle()

    assert got == [value]


def test_a_serializer_that_spark_does_not_know_is_refused_for_a_pipeline():
    topic = app.topic("coded", value_serializer="json|binary")

    with pytest.raises(UsageError, match=r"value_serializer='json\|binary', which Spark does not know"):

        @app.share_pipeline(topic)
        def read(batch: Any, number: int) -> None: ...


@pytest.mark.asyncio
async def test_the_largest_record_can_be_raised_where_the_error_says(tmp_path: Path):
    async def send(**options: Any) -> None:
        own = fs.App("large", broker=f"embedded://{tmp_path}/log", **options)
        topic = own.topic("blobs", value_type=bytes, config={"max.message.bytes": 4_000_000})
        async with own.sending():
            await topic.declare()
            await topic.send(value=b"x" * 2_000_000)

    with pytest.raises(fs_errors.RecordTooLarge, match="producer_max_request_size"):
        await send()
    await send(producer_max_request_size=3_000_000)

    broker = fs.Broker(f"embedded://{tmp_path}/log")
    async with broker:
        producer = broker.producer(settings=fs.ProducerSettings(request_bytes_max=3_000_000))
        assert (await producer.send("blobs", b"y" * 2_000_000)).offset == 1
