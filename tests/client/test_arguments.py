"""Tests that users' arguments to the clients are checked in the call, before a server or a task sees them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import pytest

from flowshare.client.admin.admin import ShareAdmin
from flowshare.client.arguments import check_argument, describe, fits
from flowshare.client.consumer.consumer import ShareConsumer
from flowshare.client.producer.producer import Message, Producer
from flowshare.client.settings import ConsumerSettings, LinkSettings, MemberSettings, ProducerSettings


async def never() -> Any:
    raise AssertionError("a wrong argument must not get as far as a connection")


def call(method: str, *args: Any, **kwargs: Any) -> None:
    async def main(clock: Any) -> None:
        await getattr(ShareAdmin(never, clock=clock), method)(*args, **kwargs)

    asyncio.run(main(None))


@pytest.mark.parametrize(
    ("method", "args", "kwargs", "text"),
    [
        ("create_topic", (5,), {}, "create_topic: name must be str, not int: 5"),
        ("create_topic", ("t",), {"partitions": "3"}, "create_topic: partitions must be int, not str: '3'"),
        ("create_topic", ("t",), {"partitions": True}, "create_topic: partitions must be int, not bool: True"),
        (
            "alter_group_configs",
            ("g", {"a": 5}),
            {},
            "configs must be a dict of str to str or None, not dict of str to int",
        ),
        ("alter_topic_configs", ("t", ["a"]), {}, "configs must be a dict of str to str or None, not list of str"),
        ("describe_topics", ("abc",), {}, "names must be a list of str, not str: 'abc'"),
        ("list_groups", (), {"states": "Empty"}, "states must be a list of str, not str: 'Empty'"),
        ("group_offsets", ("g", "orders"), {}, "topics must be a list of str or None, not str"),
        ("read", ("t", 0, "x"), {}, "offset must be int, not str: 'x'"),
        ("reset_offsets", ("g",), {"to": "first"}, "to must be 'earliest' or 'latest' or int or datetime"),
        ("place_group", ("g", {"t": 5}), {}, r"offsets must be a dict of \(str, int\) to int, not dict of str to int"),
        ("delete_offsets", ("g", "t"), {}, "topics must be a list of str, not str: 't'"),
    ],
)
def test_administration_refuses_a_wrong_type_where_it_is_called(method: str, args: Any, kwargs: Any, text: str):
    with pytest.raises(TypeError, match=text):
        call(method, *args, **kwargs)


def test_every_public_call_of_administration_checks_its_arguments():
    calls = [name for name, found in vars(ShareAdmin).items() if asyncio.iscoroutinefunction(found) and name[0] != "_"]

    assert len(calls) > 20
    assert all(hasattr(getattr(ShareAdmin, name), "__wrapped__") for name in calls)


def producers(clock: Any) -> list[Any]:
    return [Producer(never, clock=clock)]


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("topic", "message", "text"),
    [
        (5, Message(b"x"), "the topic must be str, not int: 5"),
        (b"t", Message(b"x"), "the topic must be str, not bytes: b't'"),
        ("t", Message(b"x", partition="0"), "the partition of a record for t is str"),  # type: ignore[arg-type]
        ("t", Message(b"x", partition=True), "the partition of a record for t is bool"),
        ("t", Message(b"x", timestamp="now"), "the timestamp of a record for t is 'now'"),  # type: ignore[arg-type]
    ],
)
async def test_producers_refuse_a_wrong_type_at_once_and_keep_nothing_of_it(
    clock, topic: Any, message: Message, text: str
):
    value, key, headers, timestamp, partition = message
    rest: dict[str, Any] = {"headers": headers, "timestamp": timestamp, "partition": partition, "key": key}
    for producer in producers(clock):
        with pytest.raises(TypeError, match=text):
            await producer.send(topic, value, **rest)
        with pytest.raises(TypeError, match=text):
            producer.send_nowait(topic, value, **rest)
        assert producer.buffered_bytes == 0


@pytest.mark.asyncio
@pytest.mark.parametrize("items", [5, "abc", b"abc", Message(b"x")])
async def test_send_many_refuses_what_is_no_list(clock, items: Any):
    for producer in producers(clock):
        with pytest.raises(TypeError, match="send_many for t takes a list of values or messages"):
            await producer.send_many("t", items)
        with pytest.raises(TypeError, match="the topic must be str"):
            await producer.send_many(5, [b"x"])
        with pytest.raises(TypeError, match="timeout must be a number or None, not str"):
            await producer.flush("x")


@pytest.mark.asyncio
@pytest.mark.parametrize("topics", [5, [5], [b"t"], (name for name in ("a",)), {"a": 1}])
async def test_a_subscription_to_what_are_no_names_is_refused(clock, topics: Any):
    consumer = ShareConsumer(never, group_id="g", clock=clock)
    with pytest.raises(TypeError, match="topics must be a list of str, not "):
        consumer.subscribe(topics)
    with pytest.raises(TypeError, match="poll: timeout must be a number, not str"):
        await consumer.poll("soon")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("kind", "values", "text"),
    [
        (ConsumerSettings, {"acknowledgement_mode": "explict"}, "must be 'implicit' or 'explicit', not str: 'explict'"),
        (ConsumerSettings, {"max_poll_records": 0}, "ConsumerSettings: max_poll_records must be at least 1, not 0"),
        (ConsumerSettings, {"member": {}}, "member must be MemberSettings, not an empty dict"),
        (ProducerSettings, {"max_request_size": -1}, "ProducerSettings: max_request_size must be at least 1, not -1"),
        (ProducerSettings, {"compression": "zip"}, "must be 'none' or 'gzip'"),
        (ProducerSettings, {"linger": float("nan")}, "linger must be a number, not float: nan"),
        (ProducerSettings, {"buffer_memory": 1.5}, "buffer_memory must be int, not float: 1.5"),
        (LinkSettings, {"max_in_flight_requests": 0}, "max_in_flight_requests must be at least 1, not 0"),
        (MemberSettings, {"close_timeout": -1}, "close_timeout must be at least 0, not -1"),
    ],
)
def test_a_setting_that_cannot_be_meant_is_refused_where_it_is_written(kind: Any, values: dict[str, Any], text: str):
    with pytest.raises((TypeError, ValueError), match=text):
        kind(**values)


def test_settings_that_are_no_settings_are_refused_with_what_to_write(clock):
    for make in (
        lambda given: Producer(never, clock=clock, settings=given),
        lambda given: ShareConsumer(never, group_id="g", clock=clock, settings=given),
        lambda given: ShareAdmin(never, clock=clock, settings=given),
    ):
        with pytest.raises(
            TypeError, match=r"settings must be (\w+), not dict of str to int: write settings=\1\(name="
        ):
            make({"linger": 1})
        with pytest.raises(TypeError, match=r"settings must be (\w+), not an empty dict"):
            make({})


def test_no_value_of_a_dict_is_shown_as_it_may_be_a_secret():
    with pytest.raises(TypeError) as raised:
        check_argument("configs", {"password": "geheim", "port": 5}, Mapping[str, str])

    assert str(raised.value) == "configs must be a dict of str to str, not dict of str to int and str"


@pytest.mark.parametrize(
    ("value", "hint", "fit"),
    [
        (5, float, True),
        (True, float, False),
        (None, int | None, True),
        ([("a", 1)], Sequence[tuple[str, int]], True),
        ([("a", "1")], Sequence[tuple[str, int]], False),
        ("earliest", Literal["earliest"] | int, True),
        (object(), Any, True),
    ],
)
def test_a_value_fits_what_its_annotation_says(value: Any, hint: Any, fit: bool):
    assert fits(value, hint) is fit
    assert describe(hint)
