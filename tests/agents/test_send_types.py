"""Tests that a value is checked when it is sent: a topic accepts only values that its handlers take, by types and by
serializers."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import flowshare as fs
from flowshare.agents.handler.errors import UndecodableValue, Unencodable, UsageError
from flowshare.client import errors as fs_errors
from flowshare.client.producer.message import Message, size_of
from tests.agents.agents_kit import run_agent


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


@pytest.mark.parametrize(
    ("headers", "wrong"),
    [
        ("trace", "not 'trace'"),
        (5, "not 5"),
        (["trace"], "this is none: 'trace'"),
        ([("trace",)], r"this is none: \('trace',\)"),
        ([("a", b"1", b"2")], "this is none"),
        ({"trace": 5}, r"this is none: \('trace', 5\)"),
        ({b"trace": b"1"}, "this is none"),
        ({"trace": {"id": b"1"}}, "this is none"),
        ({"a\udc80": b"1"}, r"this has a character that has no UTF-8: \('a\\udc80', b'1'\)"),
        ({"trace": "a\udc80"}, "this has a character that has no UTF-8"),
    ],
)
def test_headers_of_another_shape_are_refused_with_the_right_one(headers: Any, wrong: str):
    text = rf"headers are a dict or pairs of names and bytes, str or None \(.*\).*{wrong}"
    with pytest.raises(Unencodable, match=text):
        fs.Send("out", b"x", headers=headers).encode()
    with pytest.raises(Unencodable, match=text):
        app.topic("orders")._made(None, b"x", None, None, headers, {})


@pytest.mark.parametrize("headers", [{"a": b"1", "b": "2", "c": None}, [("a", b"1"), ["b", "2"], ("c", None)]])
def test_headers_are_a_dict_or_pairs(headers: Any):
    assert fs.Send("out", b"x", headers=headers).encode().headers == (("a", b"1"), ("b", b"2"), ("c", None))


@pytest.mark.parametrize(
    ("timestamp", "hint"),
    [
        (1_764_000_000_000, "so many are behind the year 9999: divide milliseconds by 1000"),
        (-1_764_000_000_000, "divide milliseconds by 1000"),
        (datetime(2026, 1, 1, tzinfo=UTC), r"of a datetime: its timestamp\(\)"),
        ("now", "must be seconds since 1970, or None"),
        (float("nan"), "must be seconds since 1970, or None"),
    ],
)
def test_a_timestamp_that_is_none_in_seconds_is_refused_where_it_is_sent(timestamp: Any, hint: str):
    with pytest.raises(Unencodable, match=f"^the timestamp of a record for out is .*{hint}"):
        fs.Send("out", b"x", timestamp=timestamp).encode()
    with pytest.raises(Unencodable, match=hint):
        app.topic("out")._made(None, b"x", None, timestamp, None, {})
    with pytest.raises(TypeError, match=hint):
        size_of(Message(b"x", timestamp=timestamp), "out", 1000)


@pytest.mark.parametrize("partition", ["3", 0.5, True, -1, b"1"])
def test_a_partition_that_is_no_number_of_one_is_refused_where_it_is_sent(partition: Any):
    with pytest.raises(Unencodable, match=r"^the partition of a record for out is .*, and must be 0, 1, …"):
        fs.Send("out", b"x", partition=partition).encode()
    with pytest.raises(Unencodable):
        app.topic("out")._made(None, b"x", partition, None, None, {})


@pytest.mark.parametrize("timestamp", [None, 0, 1_764_000_000.5, 253_402_300_799])
def test_a_timestamp_in_seconds_is_taken(timestamp: Any):
    assert fs.Send("out", b"x", timestamp=timestamp).encode().timestamp == timestamp


@pytest.mark.parametrize(
    "mixed", [[fs.Send("out", 1), {"n": 2}], [{"n": 2}, fs.Send("out", 1)], (fs.Send("out", 1), None)]
)
@pytest.mark.parametrize("options", [{}, {"sink": "out"}, {"sink": "out", "exactly_once": True}])
def test_a_list_of_sends_and_of_something_else_is_the_handlers_failure(mixed: Any, options: dict[str, Any]):
    async def handler(value: Any) -> Any:
        return mixed

    seen = run_agent(handler, [1], retry=None, **options)

    [letter] = seen.dead
    assert "some are fs.Send and others are not" in letter.reason
    assert "wrap these in fs.Send(topic, value)" in letter.reason
    assert seen.records("out") == []


def test_who_awaits_a_send_of_the_delivery_is_told_that_it_is_none():
    async def handler(value: Any, delivery: fs.Delivery) -> None:
        await delivery.send("out", value)  # type: ignore[func-returns-value]

    seen = run_agent(handler, [1], retry=None)

    [letter] = seen.dead
    assert "delivery.send(…) is not awaited" in letter.reason
    assert seen.records("out") == []


@pytest.mark.parametrize("sink", [(), "other"])
def test_what_a_send_of_the_delivery_returns_is_nothing_to_produce(sink: Any):
    async def handler(value: Any, delivery: fs.Delivery) -> Any:
        return delivery.send("out", value)  # type: ignore[func-returns-value]

    seen = run_agent(handler, [1], sink=sink)

    assert [record.value for record in seen.records("out")] == [1]
    assert seen.records("other") == []


def test_there_is_no_current_delivery_where_no_handler_runs():
    with pytest.raises(UsageError, match="is for what a handler calls, and no handler runs here"):
        fs.current_delivery()


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

    settings = fs.ProducerSettings(max_request_size=3_000_000)
    async with fs.Producer(f"embedded://{tmp_path}/log", settings=settings) as producer:
        assert (await producer.send("blobs", b"y" * 2_000_000)).offset == 1


def declared(**options: Any) -> Any:
    return fs.App("declared", broker="memory://").topic("orders", **options)


@pytest.mark.filterwarnings("ignore::faust.exceptions.SecurityWarning")
@pytest.mark.parametrize("what", ["key", "value"])
@pytest.mark.parametrize(
    ("typ", "serializer", "given", "why"),
    [
        (Order, "json", 5, "expected an object for Order, got int"),
        (Order, "json", None, r"got null; (key|value)_type=Order \| None takes None, too"),
        (Order, "pickle", 5, "expected an object for Order, got int"),
        (str, "json", 5, "expected str, got int"),
        (str, None, b"\xff", "invalid start byte"),
        (int, None, "five", "does not fit: expected int, got str"),
        (float, None, float("nan"), "JSON has no such number"),
        (float, "json", float("inf"), "expected float, got null"),
        (float, "pickle", float("-inf"), "expected a finite number"),
        (str, "raw", 5, "makes no bytes of 5"),
    ],
)
def test_keys_and_values_are_held_against_their_type_whatever_the_serializer(
    what: str, typ: Any, serializer: Any, given: Any, why: str
):
    if what == "key" and given is None:
        return  # a record without a key
    topic = declared(**{f"{what}_type": typ, f"{what}_serializer": serializer})

    with pytest.raises(Unencodable, match=why):
        fs.Send(topic, **{what: given}).encode()


@pytest.mark.parametrize("what", ["key", "value"])
@pytest.mark.parametrize(
    ("typ", "serializer", "why"),
    [
        (Order, "raw", r"does not go with .*_type=Order: it carries bytes and str only"),
        (int, "binary", "it carries bytes and str only"),
        (bytes, "json", "it cannot carry bytes"),
        (Order, "nonsense", r"there is no codec 'nonsense'. Known are binary, json, .*register your own before"),
        (str, "bad|json", "there is no codec 'bad'"),
        (str, "", "there is no codec ''"),
        (str, 5, "there is no codec 5"),
    ],
)
def test_a_serializer_that_does_not_go_with_the_type_is_refused_at_the_declaration(
    what: str, typ: Any, serializer: Any, why: str
):
    with pytest.raises(UsageError, match=f"topic 'orders': {what}_serializer={serializer!r}.*{why}"):
        declared(**{f"{what}_type": typ, f"{what}_serializer": serializer})


def test_a_serializer_of_the_whole_app_is_refused_as_share_agents_would_not_heed_it():
    with pytest.raises(
        UsageError, match=r"give it to each topic that wants it: app.topic\(…, value_serializer='pickle'\)"
    ):
        fs.App("codecs", broker="memory://", value_serializer="pickle")


def test_a_serializer_of_one_send_is_looked_up_and_its_result_held_against_the_topic():
    topic = declared(value_type=str)
    with pytest.raises(UsageError, match="there is no codec 'nonsense'"):
        topic._made(None, "x", None, None, None, {"value_serializer": "nonsense"})
    with pytest.raises(Unencodable, match="cannot encode 5"):
        declared(value_type=int)._made(None, 5, None, None, None, {"value_serializer": "binary"})

    assert topic._made(None, "x", None, None, None, {"value_serializer": "json"}).value == b'"x"'


class Place(NamedTuple):
    """A value that JSON turns into a list."""

    shelf: int


@pytest.mark.asyncio
@pytest.mark.filterwarnings("ignore::faust.exceptions.SecurityWarning")
@pytest.mark.parametrize(
    ("typ", "serializer", "given"),
    [
        (Order, "pickle", Order(1)),
        (list[Order], "pickle", [Order(1)]),
        (Place, "pickle", Place(1)),
        (set[int], "pickle", {1}),
        (datetime, "pickle", datetime(2026, 1, 1, tzinfo=UTC)),
        (Decimal, "pickle", Decimal("1.5")),
        (Order, "json", Order(1)),
        (str, "json", "x"),
        (bytes, "binary", b"\xff\x00"),
        (str, "binary", "ä"),
        (str, "raw", "ä"),
        (str | None, "json", None),
        (Order | None, None, None),
    ],
)
async def test_what_was_sent_as_key_and_value_arrives_as_it_was(typ: Any, serializer: Any, given: Any):
    own = fs.App("codecs", broker="memory://")
    topic = own.topic("t", key_type=typ, key_serializer=serializer, value_type=typ, value_serializer=serializer)
    got: list[Any] = []

    async def take(value: Any, delivery: fs.Delivery) -> None:
        got.append((delivery.key, value))

    take.__annotations__ |= {"value": typ, "delivery": fs.Delivery}
    own.share_agent(topic)(take)
    async with fs.testing.harness(own) as bus:
        await bus.send(topic, given, key=given)
        await bus.run_until_idle()
        records = [(record.key, record.value) for record in bus.records(topic)]

    assert got == records == [(given, given)]


@pytest.mark.asyncio
async def test_the_harness_names_the_record_whose_key_is_of_another_type():
    own = fs.App("codecs", broker="memory://")
    topic = own.topic("t", key_type=int, value_type=str)

    async def take(value: str) -> None: ...

    take.__annotations__ |= {"value": str}
    own.share_agent(topic)(take)
    async with fs.testing.harness(own) as bus:
        await bus.send("t", "x", key="five")
        await bus.run_until_idle()
        with pytest.raises(UndecodableValue, match="the key b'five' of t-0@0 does not fit the topic's key_type=int"):
            bus.records(topic)
