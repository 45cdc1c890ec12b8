"""Values with a schema registry as columns: read, refused and written; without Spark, then with it."""

from __future__ import annotations

import datetime
import json
import uuid
from dataclasses import dataclass

import fastavro
import pyarrow as pa
import pytest

import flowshare as fs
from flowshare.agents.codecs import wire
from flowshare.agents.codecs.client import RegistryUnavailable, SchemaText
from flowshare.agents.handler.errors import OptionError, Unencodable, UsageError
from flowshare.protocol.decoding import decode_raw
from flowshare.share.types import AcquiredRange
from flowshare.spark import registry as registries
from flowshare.spark.pipeline.query import checkpoint
from flowshare.spark.pipeline.query import source as source_of
from flowshare.spark.registry import ValueEncoder, sink_options, source_options
from flowshare.spark.sink.options import SinkOptions
from flowshare.spark.source.columns import source_schema, to_arrow, value_decoder
from flowshare.spark.source.options import SourceOptions
from tests.agents.registry_codecs.fake import FakeClient, registry_of
from tests.agents.registry_codecs.http_fake import served
from tests.agents.registry_codecs.messages import Order as OrderMessage
from tests.agents.registry_codecs.messages import Part
from tests.spark.test_columns import values_log

URL = "http://registry.test"
ORDER = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "note", "type": ["null", "string"], "default": None},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}, "default": 0},
        {"name": "of", "type": {"type": "string", "logicalType": "uuid"}, "default": ""},
        {"name": "counts", "type": {"type": "map", "values": "int"}, "default": {}},
    ],
}
NOON = datetime.datetime(2026, 1, 2, 12, tzinfo=datetime.UTC)
ID = uuid.UUID(int=7)
ORDER_ARROW = pa.struct(
    [
        ("id", pa.int64()),
        ("note", pa.string()),
        ("at", pa.timestamp("us", tz="UTC")),
        ("of", pa.string()),
        ("counts", pa.map_(pa.string(), pa.int32())),
    ]
)
MESSAGE = "tests.agents.registry_codecs.messages:Order"
MESSAGE_ARROW = pa.struct([("id", pa.int32()), ("part", pa.struct([("code", pa.string())]))])


@pytest.fixture
def client(monkeypatch):
    made = FakeClient()
    registry = registry_of(made)
    monkeypatch.setattr(registries, "registry_of", lambda url, ca: registry)
    return made


def source(**given):
    return SourceOptions.parse({"broker": "kafka://x:1", "topics": "orders", "group": "g", "registry": URL, **given})


def sink(**given):
    return SinkOptions.parse({"broker": "kafka://x:1", "topic": "orders", "registry": URL, **given})


def columns(values, type_, options):
    """The values of records as a column, and why others are none."""
    schema = pa.schema(
        [
            ("key", pa.binary()), ("value", type_), ("topic", pa.string()), ("partition", pa.int32()),
            ("offset", pa.int64()), ("timestamp", pa.timestamp("us", tz="UTC")), ("timestamp_type", pa.int32()),
            ("attempt", pa.int32()),
        ]
    )  # fmt: skip
    decoded = decode_raw(values_log(values), [AcquiredRange(0, 9_999, 1)])
    batches, poison = to_arrow("orders", 0, decoded, schema, value_decoder(options, schema))
    return [row for batch in batches for row in batch.column("value").to_pylist()], [one.reason for one in poison]


def avro(client, schema=ORDER):
    return fs.Avro(schema=json.dumps(schema), registry=registry_of(client)).bind("orders", "value")


def test_avro_is_read_by_the_given_schema_and_the_rest_is_poison(client):
    writes = avro(client)
    raw = writes.encode({"id": 1, "note": "n", "at": NOON, "of": ID, "counts": {"a": 1}})
    narrow = {**ORDER, "fields": [{"name": "id", "type": "int"}]}
    older = avro(client, narrow).encode({"id": 2})
    other = avro(client, "string").encode("x")
    values = [raw, None, older, other, b"{}", wire.prefix(99) + b"x"]

    rows, poison = columns(values, ORDER_ARROW, source(value="avro", value_schema=json.dumps(ORDER)))

    assert rows[0] == {"id": 1, "note": "n", "at": NOON, "of": str(ID), "counts": [("a", 1)]}
    assert rows[1] is None
    assert (rows[2]["id"], rows[2]["note"], rows[2]["of"]) == (2, None, "")
    assert [why.partition(":")[0] for why in poison] == ["ValueError", "NotFramed", "UnknownSchema"]
    assert "schema 3, which does not fit" in poison[0]


def test_without_a_schema_the_newest_one_is_taken(client):
    options = source(value="avro")
    with pytest.raises(fs.errors.UnknownSchema):
        options.with_schema()
    client.register("orders-value", SchemaText("AVRO", json.dumps({"type": "record", "name": "X", "fields": [
        {"name": "n", "type": "int"}]})))  # fmt: skip
    registries.registry_of("", "")._latest._without.clear()

    assert "value STRUCT<`n`: INT>, topic" in source_schema(options.with_schema())
    with pytest.raises(OptionError, match="takes one topic"):
        source(value="avro", topics="a,b").with_schema()


def test_json_is_read_behind_its_id(client):
    number = client.register("orders-value", SchemaText("JSON", '{"type": "object"}'))
    other = client.register("other", SchemaText("AVRO", '"string"'))
    values = [wire.prefix(number) + b'{"id":1}', None, b'{"id":1}', wire.prefix(other) + b'{"id":1}']

    rows, poison = columns(values, pa.struct([("id", pa.int32())]), source(value="json", value_schema="id INT"))

    assert rows == [{"id": 1}, None]
    assert "without a registry" in poison[0]
    assert "is of the kind AVRO" in poison[1]


def test_protobuf_is_read_as_a_struct(client):
    writes = fs.Protobuf(OrderMessage, registry=registry_of(client)).bind("orders", "value")
    options = source(value="protobuf", value_message=MESSAGE)

    rows, poison = columns(
        [writes.encode(OrderMessage(id=1, part=Part(code="p"))), writes.encode(OrderMessage(id=2)), b"\0\0\0\0\2\2\2x"],
        MESSAGE_ARROW,
        options,
    )

    assert "value STRUCT<`id`: INT, `part`: STRUCT<`code`: STRING>>, topic" in source_schema(options)
    assert rows == [{"id": 1, "part": {"code": "p"}}, {"id": 2, "part": None}]
    assert "it is a shop.Order.Line" not in poison[0]
    assert "not a shop.Order" in poison[0]


def test_a_registry_that_is_away_is_waited_for_and_makes_no_poison(client, monkeypatch):
    waits = []
    monkeypatch.setattr(registries.time, "sleep", waits.append)
    monkeypatch.setattr("flowshare.agents.codecs.registry.FAILED_S", 0.0)
    raw = avro(client).encode({"id": 1})
    client.down = 3
    options = source(value="avro", value_schema=json.dumps(ORDER))

    rows, poison = columns([raw], ORDER_ARROW, options)
    assert (rows[0]["id"], poison, waits) == (1, [], [1.0, 1.0, 1.0])

    registries.registry_of("", "")._schemas._found.clear()
    client.down = 10**6
    monkeypatch.setattr(registries, "WAIT_S", 0.0)
    with pytest.raises(RegistryUnavailable):
        columns([raw], ORDER_ARROW, options)


ROWS = pa.record_batch(
    {
        "topic": pa.array(["a", "b", "a"]),
        "value": pa.array(
            [
                {"id": 1, "note": "n", "at": NOON, "of": str(ID), "counts": [("a", 1)]},
                None,
                {"id": 2, "note": None, "at": NOON, "of": str(ID), "counts": []},
            ],
            ORDER_ARROW,
        ),
    }
)


@pytest.mark.parametrize("topic", ["", "orders"])
def test_structs_are_written_as_avro(client, topic):
    encoder = ValueEncoder(sink(value="avro", value_schema=json.dumps(ORDER)), "topic")

    [batch] = encoder.batches(iter([ROWS]), 1, topic, 0)

    values = batch.column(1).to_pylist()
    assert values[1] is None
    reads = avro(client)
    assert reads.decode(values[0]) == {"id": 1, "note": "n", "at": NOON, "of": ID, "counts": {"a": 1}}
    assert set(client.subjects) == ({"orders-value"} if topic else {"a-value"})


def test_the_newest_schema_is_written_with_where_none_is_given(client):
    client.register("orders-value", SchemaText("AVRO", json.dumps(fastavro.parse_schema(dict(ORDER)))))
    [batch] = ValueEncoder(sink(value="avro"), "topic").batches(iter([ROWS]), 1, "orders", 0)
    assert avro(client).decode(batch.column(1)[0].as_py())["id"] == 1


def test_structs_are_written_as_json_and_protobuf(client):
    plain = pa.record_batch({"value": pa.array([{"id": 1, "part": {"code": "p"}}, {"id": 2, "part": None}])})
    schema = {"type": "object", "required": ["id"], "properties": {"id": {"maximum": 1}}}

    [batch] = ValueEncoder(sink(value="protobuf", value_message=MESSAGE), "topic").batches(iter([plain]), 0, "o", -1)
    reads = fs.Protobuf(OrderMessage, registry=registry_of(client))
    assert [reads.decode(one) for one in batch.column(0).to_pylist()] == [
        OrderMessage(id=1, part=Part(code="p")),
        OrderMessage(id=2),
    ]

    encoder = ValueEncoder(sink(value="json", value_schema=json.dumps(schema)), "topic")
    [batch] = encoder.batches(iter([plain.slice(0, 1)]), 0, "p", -1)
    assert batch.column(0)[0].as_py()[5:] == b'{"id":1,"part":{"code":"p"}}'
    with pytest.raises(Unencodable, match=r"topic 'p': a row's value: .*id does not fit maximum: 1"):
        list(encoder.batches(iter([plain]), 0, "p", -1))


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"registry": ""}, "value_schema goes with"),
        ({"value": "protobuf"}, "needs registry=… and value_message"),
        ({"value": "protobuf", "value_message": "no.such:Thing"}, "takes module:Class"),
        ({"value": "bytes"}, "goes with value=avro, value=json or value=protobuf"),
        ({"value": "avro", "value_message": MESSAGE}, "value_message goes with value=protobuf"),
        ({"value": "json"}, "value_schema goes with"),
        ({"value": "protobuf", "value_message": MESSAGE, "value_schema": "x"}, "value_schema goes with"),
        ({"value": "avro", "registry": "nowhere"}, "Registry takes an address"),
    ],
)
def test_options_that_do_not_go_together_are_refused(given, why):
    with pytest.raises(OptionError, match=why):
        source(**({"value": "avro"} | given))


def test_options_of_the_sink_that_do_not_go_together_are_refused():
    for given in ({"value": "bytes"}, {"value": "avro", "registry": ""}, {"registry": "", "value_schema": "x"}):
        with pytest.raises(OptionError, match="registry"):
            sink(**given)


@dataclass
class Item:
    id: int
    note: str | None = None


def test_a_topics_codec_tells_source_and_sink_how_values_are_written(client):
    registry = fs.Registry(URL)
    avro = fs.Avro(Item, registry=registry, subject="record", namespace="shop").bind("orders", "value")
    schema = avro.text().text

    assert source_options(avro) == {"registry": URL, "value": "avro", "value_schema": schema}
    assert sink_options(avro) == {**source_options(avro), "subject": "record"}
    assert source_options(fs.Avro(registry=registry)) == {"registry": URL, "value": "avro"}
    assert sink_options(fs.Avro(Item, registry=registry, use_latest=True)).keys() == {"registry", "value", "subject"}
    in_json = fs.JsonSchema(Item, registry=fs.Registry(URL, tls="/ca.pem"))
    assert source_options(in_json) == {
        "registry": URL,
        "registry_ca": "/ca.pem",
        "value": "json",
        "value_schema": "`id`: BIGINT, `note`: STRING",
    }
    assert json.loads(sink_options(in_json)["value_schema"])["definitions"]
    parsed = SourceOptions.parse({"broker": "kafka://x:1", "topics": "orders", "group": "g", **source_options(avro)})
    assert "STRUCT<`id`: BIGINT, `note`: STRING>" in source_schema(parsed)


@pytest.mark.parametrize(
    "codec",
    [
        fs.Avro(Item, registry=fs.Registry(URL, auth=("user", "password"))),
        fs.Avro(Item, registry=fs.Registry("http://user:password@registry.test")),
        fs.Avro(Item, registry=fs.Registry(URL), references=[("Line", "line", 1)]),
        fs.Avro(Item, registry=fs.Registry(URL), subject=lambda topic, what, record: topic),
        fs.Avro(Item, registry=fs.Registry(URL), register=False),
    ],
)
def test_what_executors_cannot_be_told_is_refused(codec):
    with pytest.raises(UsageError, match=r"executors are told|has a subject by name") as raised:
        sink_options(codec)
    assert "password" not in str(raised.value)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("broker", ["embedded"], indirect=True)
def test_rows_go_through_topics_with_a_registry(spark, broker, unique, tmp_path):
    fake = FakeClient()
    topic = broker.topic(unique("avro"))
    fields = [{"name": "id", "type": "long"}, {"name": "note", "type": "string"}]
    schema = {"type": "record", "name": "Order", "fields": fields}
    with served(fake) as url:
        given = {"broker": broker.url, "value": "avro", "registry": url}
        rows = spark.range(100).selectExpr("struct(id, concat('n', id) AS note) AS value")
        writer = rows.write.format("flowshare").options(**given, topic=topic, value_schema=json.dumps(schema))
        writer.mode("append").save()
        broker.produce(topic, [b"no schema"])

        app = fs.App(unique("app"), broker=broker.url, datadir=str(tmp_path))
        orders = app.topic(topic, value_codec=fs.Avro(schema=schema, registry=fs.Registry(url)))
        pipeline = app.share_pipeline(orders, name="read")(lambda rows: None)
        declared = source_of(pipeline, spark, broker.url)
        given |= {"topics": topic, "group": unique("g"), "tasks": "2"}
        for stream in (spark.readStream.format("flowshare").options(**given).load(), declared):
            found: list = []
            query = (
                stream.select("value.*")
                .writeStream.foreachBatch(lambda batch, _, found=found: found.extend(map(tuple, batch.collect())))
                .option("checkpointLocation", checkpoint(pipeline) if stream is declared else str(tmp_path / "own"))
                .trigger(availableNow=True)
                .start()
            )
            query.awaitTermination(120)

            assert query.exception() is None
            assert sorted(found) == [(number, f"n{number}") for number in range(100)]
            assert stream.schema["value"].dataType.simpleString() == "struct<id:bigint,note:string>"
            letters = broker.read(f"{given['group']}.dlq" if stream is not declared else f"{app.app_id}.read.dlq")
            assert [letter.value for letter in letters] == [b"no schema"]
