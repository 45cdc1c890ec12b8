"""Against a real registry, and beside Confluent's own serializers: each reads what the other wrote."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONDeserializer, JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer, ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

import flowshare as fs
from flowshare.agents.codecs import wire
from flowshare.agents.codecs.schemas import avro_schema, json_schema
from flowshare.agents.host.host import Host
from flowshare.dev import DevFailure
from tests.agents.registry_codecs.apicurio import Apicurio
from tests.agents.registry_codecs.messages import Line, Other, Plain, PlainLater
from tests.kafka.fixtures import refuse
from tests.waiting import until

pytestmark = [pytest.mark.java, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def server() -> Iterator[Apicurio]:
    try:
        made = Apicurio()
    except DevFailure as error:
        refuse(str(error))
        raise
    made.start()
    yield made
    made.stop()


@pytest.fixture
def registry(server: Apicurio) -> Iterator[fs.Registry]:
    made = fs.Registry(server.url)
    yield made
    made.close()


@pytest.fixture
def theirs(server: Apicurio) -> Iterator[SchemaRegistryClient]:
    with SchemaRegistryClient({"url": server.url, "timeout": 10}) as made:
        yield made


@dataclass
class Item:
    article: str
    count: int = 1


@dataclass
class Order:
    id: int
    items: list[Item] = field(default_factory=list)
    note: str | None = None


ORDER = Order(1, [Item("a", 2), Item("b")], "n")
PLAIN = {"id": 1, "items": [{"article": "a", "count": 2}, {"article": "b", "count": 1}], "note": "n"}


def context(topic: str, what: Any = MessageField.VALUE) -> SerializationContext:
    return SerializationContext(topic, what)


def test_avro_is_read_and_written_by_confluents_too(registry: fs.Registry, theirs: Any, unique: Any):
    topic = unique("avro")
    mine = fs.Avro(Order, registry=registry, namespace="shop").bind(topic, "value")

    raw = mine.encode(ORDER)
    assert AvroDeserializer(theirs)(raw, context(topic)) == PLAIN

    schema = json.dumps(avro_schema(Order, "shop"))
    written = AvroSerializer(theirs, schema)(PLAIN, context(topic))
    assert written == raw
    assert mine.decode(written) == ORDER


def test_json_schema_is_read_and_written_by_confluents_too(registry: fs.Registry, theirs: Any, unique: Any):
    topic = unique("json")
    mine = fs.JsonSchema(Order, registry=registry).bind(topic, "value")
    schema = json.dumps(json_schema(Order))

    raw = mine.encode(ORDER)
    assert JSONDeserializer(schema)(raw, context(topic)) == PLAIN

    written = JSONSerializer(schema, theirs)(PLAIN, context(topic))
    assert wire.schema_id(written) == wire.schema_id(raw)
    assert mine.decode(written) == ORDER
    assert fs.JsonSchema(registry=registry).decode(written) == PLAIN


@pytest.mark.parametrize("value", [Plain(id=3), Line(n=2), Other(text="x")], ids=lambda value: type(value).__name__)
def test_protobuf_is_read_and_written_by_confluents_too(registry: fs.Registry, theirs: Any, unique: Any, value: Any):
    topic = unique("proto")
    mine = fs.Protobuf(type(value), registry=registry).bind(topic, "value")
    settings = {"use.deprecated.format": False}

    raw = mine.encode(value)
    assert ProtobufDeserializer(type(value), settings)(raw, context(topic)) == value

    written = ProtobufSerializer(type(value), theirs, settings)(value, context(topic))
    assert written[wire.HEADER :] == raw[wire.HEADER :]
    assert mine.decode(written) == value


def test_versions_read_each_other_and_an_incompatible_one_is_refused(registry: fs.Registry, theirs: Any, unique: Any):
    topic = unique("evolution")
    theirs.set_compatibility(f"{topic}-value", "BACKWARD")
    first = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "int"}]}
    wider = {"name": "id", "type": "long"}
    second = {**first, "fields": [wider, {"name": "note", "type": "string", "default": "-"}]}
    broken = {**first, "fields": [wider, {"name": "must", "type": "string"}]}
    one, two, three = (
        fs.Avro(schema=schema, registry=registry).bind(topic, "value") for schema in (first, second, broken)
    )

    written = one.encode({"id": 1}), two.encode({"id": 2, "note": "n"})

    assert [two.decode(raw) for raw in written] == [{"id": 1, "note": "-"}, {"id": 2, "note": "n"}]
    with pytest.raises(ValueError, match="does not fit"):
        one.decode(written[1])
    with pytest.raises(fs.errors.SchemaRefused, match="refuses the schema for subject"):
        three.encode({"id": 1, "must": "x"})

    plain, later = (fs.Protobuf(one, registry=registry).bind(unique("proto"), "value") for one in (Plain, PlainLater))
    assert later.decode(plain.encode(Plain(id=1))) == PlainLater(id=1)
    assert plain.decode(later.encode(PlainLater(id=1, note="n"))).id == 1


def test_references_are_followed(registry: fs.Registry, theirs: Any, unique: Any):
    line, topic = unique("line"), unique("refs")
    schema = {"type": "record", "name": "Line", "fields": [{"name": "article", "type": "string"}]}
    theirs.register_schema(line, Schema(json.dumps(schema), "AVRO"))
    order = {"type": "record", "name": "Order", "fields": [{"name": "line", "type": "Line"}]}
    mine = fs.Avro(schema=order, references=[("Line", line, 1)], registry=registry).bind(topic, "value")

    raw = mine.encode({"line": {"article": "a"}})

    assert fs.Avro(registry=fs.Registry(registry.shown)).decode(raw) == {"line": {"article": "a"}}
    assert AvroDeserializer(theirs)(raw, context(topic)) == {"line": {"article": "a"}}


def test_an_id_that_is_not_there_is_unknown_and_a_wrong_address_is_an_outage(registry: fs.Registry, server: Apicurio):
    with pytest.raises(fs.errors.UnknownSchema, match="does not know schema 123456"):
        fs.Avro(registry=registry).decode(wire.prefix(123456) + b"x")
    with pytest.raises(fs.errors.RegistryUnavailable, match="answers 404"):
        fs.Avro(registry=fs.Registry(server.url.replace("ccompat", "nothing"))).decode(wire.prefix(1) + b"x")
    with pytest.raises(fs.errors.UnknownSchema):
        fs.Avro(Item, registry=registry, register=False).bind("never", "value").encode(Item("a"))


def test_a_registry_that_does_not_answer_costs_no_record(server: Apicurio, registry: fs.Registry, unique: Any):
    topic = unique("outage")
    fresh = fs.Registry(server.url, timeout=1)
    app, got = fs.App(unique("app"), broker="memory://"), []

    @app.share_agent(
        app.topic(topic, value_codec=fs.Avro(Item, registry=fresh)), name="agent", retry=fs.Retry(max_attempts=1)
    )
    async def agent(item: Item, delivery: fs.Delivery) -> None:
        got.append((item.article, delivery.attempt))

    written = [fs.Avro(Item, registry=registry).bind(topic, "value").encode(Item(f"a{n}")) for n in range(20)]

    async def main() -> dict[str, float]:
        host = Host(app)
        await host.start()
        try:
            server.stand_still()
            for raw in written:
                await app.topic(topic).send(value=raw)
            runtime = host.runtimes["agent"]
            await until(lambda: runtime.stats() and runtime._pool.problems(), good=bool)
            assert got == []
            server.go_on()
            return await until(runtime.stats, good=lambda stats: stats["accepted"] == 20)
        finally:
            server.go_on()
            await host.drain(5)
            await host.stop()
            fresh.close()

    stats = asyncio.run(main())

    assert stats["dead_lettered"] == 0
    assert sorted(got) == sorted((f"a{n}", 1) for n in range(20))
