"""Protobuf with a registry: messages by their indexes, imports as references, other messages refused."""

from __future__ import annotations

from typing import Any

import pytest

import flowshare as fs
from flowshare.agents.codecs import protobuf, wire
from flowshare.agents.codecs.client import SchemaText
from flowshare.agents.handler.errors import OptionError, Unencodable
from tests.agents.registry_codecs.fake import FakeClient, registry_of
from tests.agents.registry_codecs.messages import Line, Order, Other, Part, Plain, PlainLater


@pytest.fixture
def client() -> FakeClient:
    return FakeClient()


def codec(client: FakeClient, model: Any, **options: Any) -> Any:
    return fs.Protobuf(model, registry=registry_of(client), **options).bind("orders", "value")


@pytest.mark.parametrize(
    ("value", "before"),
    [
        (Order(id=3, part=Part(code="p")), b"\0"),
        (Line(n=2), b"\x04\0\0"),
        (Other(text="x"), b"\x02\x02"),
        (Part(code="p"), b"\0"),
        (Order(), b"\0"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_message_is_written_behind_its_indexes_and_read_again(client: FakeClient, value: Any, before: bytes):
    mine = codec(client, type(value))
    raw = mine.encode(value)

    assert raw[wire.HEADER :] == before + value.SerializeToString()
    assert mine.decode(raw) == value
    assert codec(client, type(value)).decode(raw) == value


def test_the_long_form_of_the_first_message_is_read_too(client: FakeClient):
    mine = codec(client, Order)
    raw = mine.encode(Order(id=3))
    assert mine.decode(raw[: wire.HEADER] + b"\x02\0" + raw[wire.HEADER + 1 :]) == Order(id=3)


def test_imported_files_are_registered_first_and_referred_to(client: FakeClient):
    codec(client, Order).encode(Order(id=1))

    assert list(client.subjects) == ["shop/parts.proto", "orders-value"]
    [reference] = client.subjects["orders-value"][0].references
    assert reference == ("shop/parts.proto", "shop/parts.proto", 1)


def test_another_message_of_the_same_schema_is_refused(client: FakeClient):
    raw = codec(client, Other).encode(Other(text="x"))
    with pytest.raises(ValueError, match=r"it is a shop.Other of schema 2, not a shop.Order"):
        codec(client, Order).decode(raw)


def test_a_schema_is_read_once_whatever_messages_values_say_they_are(
    client: FakeClient, monkeypatch: pytest.MonkeyPatch
):
    read: list[int] = []
    real = protobuf.file_of
    monkeypatch.setattr(protobuf, "file_of", lambda text: read.append(1) or real(text))
    mine = codec(client, Order)
    raw = mine.encode(Order())
    mine.decode(raw)
    for number in range(5, 30):
        with pytest.raises(ValueError, match="not a"):
            mine.decode(raw[: wire.HEADER] + wire.write_indexes([number]) + raw[wire.HEADER + 1 :])
    assert read == [1]


def test_a_schema_in_text_names_its_messages_as_well(client: FakeClient):
    text = 'syntax = "proto3"; package shop; message Other { string t = 1; } message Order { int32 id = 1; }'
    number = client.register("any", SchemaText("PROTOBUF", text))
    mine = codec(client, Order)

    assert mine.decode(wire.prefix(number) + b"\x02\x02" + b"\x08\x03") == Order(id=3)
    with pytest.raises(ValueError, match=r"a shop.Other of schema 1"):
        mine.decode(wire.prefix(number) + b"\0\x08\x03")
    with pytest.raises(ValueError, match=r"message \[7\] of schema 1"):
        mine.decode(wire.prefix(number) + b"\x02\x0e\x08\x03")


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (b"\0\x08", "it is no shop.Order"),
        (b"", "indexes end in the middle"),
        (b"\0\xff\xff\xff", "it is no shop.Order"),
    ],
)
def test_bytes_that_are_no_message_are_refused(client: FakeClient, value: bytes, why: str):
    mine = codec(client, Order)
    raw = mine.encode(Order(id=1))
    with pytest.raises(ValueError, match=why):
        mine.decode(raw[: wire.HEADER] + value)


def test_versions_of_a_message_read_each_other(client: FakeClient):
    earlier, later = codec(client, Plain), codec(client, PlainLater)

    assert later.decode(earlier.encode(Plain(id=1))) == PlainLater(id=1)
    kept = earlier.decode(later.encode(PlainLater(id=1, note="new")))
    assert kept.id == 1
    assert PlainLater.FromString(kept.SerializeToString()).note == "new"


def test_what_is_no_message_of_the_class_is_not_written(client: FakeClient):
    for value in (Other(text="x"), {"id": 1}, b"x"):
        with pytest.raises(Unencodable, match=r"is no shop.Order"):
            codec(client, Order).encode(value)
    with pytest.raises(OptionError, match="takes a message class that protoc made"):
        codec(client, dict)


def test_subjects_and_the_newest_schema(client: FakeClient):
    codec(client, Plain, subject="record").encode(Plain(id=1))
    assert "shop.Plain" in client.subjects
    client.register("orders-value", SchemaText("PROTOBUF", 'syntax = "proto3"; package shop; message Plain {}'))
    assert wire.schema_id(codec(client, Plain, use_latest=True).encode(Plain(id=1))) == 2
