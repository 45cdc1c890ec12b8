"""Avro values: the column types that schemas mean, and values as other programs write them."""

from __future__ import annotations

import contextlib
import datetime
import io
import json
import random
import uuid
from decimal import Decimal

import fastavro
import pyarrow as pa
import pytest

from flowshare.agents.handler.errors import OptionError
from flowshare.protocol.batches import BatchBuilder
from flowshare.protocol.decoding import decode_raw
from flowshare.share.types import AcquiredRange
from flowshare.spark.source.avro import decoder, spark_type
from flowshare.spark.source.columns import to_arrow
from tests.batches import place

NOON = datetime.datetime(2026, 11, 22, 12, 0, 0, 123_000, tzinfo=datetime.UTC)
ID = uuid.UUID("12345678-1234-5678-1234-567812345678")
ENUM = {"type": "enum", "name": "color", "symbols": ["RED", "BLUE"]}
FIXED = {"type": "fixed", "name": "hash", "size": 2}
POINT = {"type": "record", "name": "point", "fields": [{"name": "x", "type": "int"}, {"name": "y", "type": "int"}]}
POINT_ARROW = pa.struct([("x", pa.int32()), ("y", pa.int32())])
US = pa.timestamp("us", tz="UTC")


def logical(kind: str, meaning: str, **more) -> dict:
    return {"type": kind, "logicalType": meaning, **more}


TYPES = [
    ("boolean", "BOOLEAN", pa.bool_(), True),
    ("int", "INT", pa.int32(), -7),
    ("long", "BIGINT", pa.int64(), 2**40),
    ("float", "FLOAT", pa.float32(), 1.5),
    ("double", "DOUBLE", pa.float64(), 0.1),
    ("string", "STRING", pa.string(), "ü"),
    ("bytes", "BINARY", pa.binary(), b"\x00\xff"),
    ({"type": "string"}, "STRING", pa.string(), "x"),
    (ENUM, "STRING", pa.string(), "BLUE"),
    (FIXED, "BINARY", pa.binary(), b"ab"),
    (logical("string", "uuid"), "STRING", pa.string(), str(ID)),
    (logical("int", "date"), "DATE", pa.date32(), datetime.date(2026, 11, 22)),
    (logical("long", "timestamp-millis"), "TIMESTAMP", US, NOON),
    (logical("long", "timestamp-micros"), "TIMESTAMP", US, NOON.replace(microsecond=123_456)),
    (
        logical("bytes", "decimal", precision=6, scale=2),
        "DECIMAL(6, 2)",
        pa.decimal128(6, 2),
        Decimal("-12.50"),
    ),
    (
        logical("fixed", "decimal", name="money", size=4, precision=6),
        "DECIMAL(6, 0)",
        pa.decimal128(6, 0),
        Decimal(1250),
    ),
    ({"type": "array", "items": "int"}, "ARRAY<INT>", pa.list_(pa.int32()), [1, 2]),
    ({"type": "map", "values": "long"}, "MAP<STRING, BIGINT>", pa.map_(pa.string(), pa.int64()), {"a": 1, "b": 2}),
    (POINT, "STRUCT<`x`: INT, `y`: INT>", POINT_ARROW, {"x": 1, "y": -1}),
    (["null", "int"], "INT", pa.int32(), None),
    (["int", "null"], "INT", pa.int32(), 5),
    (["null", POINT], "STRUCT<`x`: INT, `y`: INT>", POINT_ARROW, {"x": 1, "y": 2}),
    ({"type": "array", "items": ["null", "string"]}, "ARRAY<STRING>", pa.list_(pa.string()), ["a", None]),
]
"""Avro schema, Spark's type, Arrow's type, a value."""
RAW = [
    (logical("int", "time-millis"), "INT", pa.int32(), 1_000),
    (logical("long", "time-micros"), "BIGINT", pa.int64(), 1_000),
    (logical("long", "local-timestamp-millis"), "BIGINT", pa.int64(), 1_700_000_000_000),
    (logical("long", "local-timestamp-micros"), "BIGINT", pa.int64(), 1_700_000_000_000_000),
    (logical("string", "of-mine"), "STRING", pa.string(), "x"),
]
"""Logical types that are not in the table: what they are made of."""


def written(schema, value) -> bytes:
    """The value as a producer writes it, without a container."""
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(schema), value)
    return stream.getvalue()


def plain(schema):
    """The schema without its logical types: how to write a raw value."""
    return {key: part for key, part in schema.items() if key != "logicalType"}


def read(schema, type_: pa.DataType, *values: bytes | None):
    found = decoder(json.dumps(schema), type_)(values)
    assert found.type == type_
    found.validate(full=True)
    return found.to_pylist(maps_as_pydicts="strict")


def names(table) -> list[str]:
    return [json.dumps(schema)[:70] for schema, *_ in table]


@pytest.mark.parametrize(("schema", "column", "_type", "_value"), [*TYPES, *RAW], ids=names([*TYPES, *RAW]))
def test_a_schema_means_a_column_type(schema, column, _type, _value):
    assert spark_type(json.dumps(schema)) == column


@pytest.mark.parametrize(("schema", "_column", "type_", "value"), TYPES, ids=names(TYPES))
def test_a_value_comes_back_as_it_was_written(schema, _column, type_, value):
    assert read(schema, type_, written(schema, value), None) == [value, None]


@pytest.mark.parametrize(("schema", "_column", "type_", "value"), RAW, ids=names(RAW))
def test_a_logical_type_without_a_column_of_its_own_is_read_as_what_it_is_made_of(schema, _column, type_, value):
    assert read(schema, type_, written(plain(schema), value)) == [value]


def test_a_uuid_of_another_writer_is_its_text():
    schema = logical("string", "uuid")

    assert read(schema, pa.string(), written(schema, ID)) == [str(ID)]


def test_a_record_of_everything_is_a_struct():
    schema = {
        "type": "record",
        "name": "order",
        "fields": [
            {"name": "id", "type": logical("string", "uuid")},
            {"name": "at", "type": ["null", logical("long", "timestamp-millis")]},
            {"name": "from", "type": POINT},
            {"name": "to", "type": "point"},
            {"name": "tags", "type": {"type": "map", "values": {"type": "array", "items": "string"}}},
        ],
    }
    type_ = pa.struct(
        [
            ("id", pa.string()),
            ("at", US),
            ("from", POINT_ARROW),
            ("to", POINT_ARROW),
            ("tags", pa.map_(pa.string(), pa.list_(pa.string()))),
        ]
    )
    value = {"id": str(ID), "at": NOON, "from": {"x": 1, "y": 2}, "to": {"x": 3, "y": 4}, "tags": {"a": ["b"]}}

    assert spark_type(json.dumps(schema)) == (
        "STRUCT<`id`: STRING, `at`: TIMESTAMP, `from`: STRUCT<`x`: INT, `y`: INT>, "
        "`to`: STRUCT<`x`: INT, `y`: INT>, `tags`: MAP<STRING, ARRAY<STRING>>>"
    )
    assert read(schema, type_, written(schema, value)) == [value]


@pytest.mark.parametrize("name", ["inner", "shop.inner"])
def test_a_type_with_a_namespace_is_known_by_both_of_its_names(name):
    inner = {"type": "enum", "name": "inner", "symbols": ["A"]}
    schema = {
        "type": "record",
        "name": "outer",
        "namespace": "shop",
        "fields": [{"name": "a", "type": inner}, {"name": "b", "type": name}],
    }

    assert spark_type(json.dumps(schema)) == "STRUCT<`a`: STRING, `b`: STRING>"
    assert read(schema, pa.struct([("a", pa.string()), ("b", pa.string())]), b"\0\0") == [{"a": "A", "b": "A"}]


REFUSED = [
    ("id INT", "value_schema is no Avro schema, which is JSON"),
    ('"number"', "value_schema: type 'number' is not known"),
    ('"null"', "value_schema: type 'null' is not known"),
    ('["int", "string"]', "a union becomes a column only when it is of null and one other type"),
    ('["null"]', "a union becomes a column only when it is of null and one other type"),
    ("5", "value_schema is no Avro schema"),
    ("{}", "value_schema is no Avro schema"),
    ('{"type": "record", "name": "r"}', "value_schema"),
    ('{"type": "record", "fields": []}', "value_schema"),
    ('{"type": "array"}', "value_schema"),
    ('{"type": "map"}', "value_schema"),
    ('{"type": "bytes", "logicalType": "decimal"}', "value_schema"),
    (
        '{"type": "record", "name": "node", "fields": [{"name": "next", "type": ["null", "node"]}]}',
        "value_schema: type 'node' is not known",
    ),
]


@pytest.mark.parametrize(("schema", "said"), REFUSED, ids=[schema for schema, _ in REFUSED])
def test_a_schema_that_no_column_can_have_is_refused(schema, said):
    with pytest.raises(OptionError, match=said):
        spark_type(schema)


# --- poison -------------------------------------------------------------------------------------------------------

PERSON = {
    "type": "record",
    "name": "person",
    "fields": [{"name": "id", "type": "int"}, {"name": "name", "type": "string"}],
}
PERSON_ARROW = pa.struct([("id", pa.int32()), ("name", pa.string())])
GOOD = written(PERSON, {"id": 7, "name": "ann"})


@pytest.mark.parametrize("cut", range(len(GOOD)))
def test_a_value_that_is_cut_off_is_refused(cut):
    with pytest.raises(ValueError, match=r"Error|left behind"):
        read(PERSON, PERSON_ARROW, GOOD[:cut])


@pytest.mark.parametrize(
    ("schema", "type_", "value", "why"),
    [
        (logical("bytes", "decimal", precision=6), pa.decimal128(6), b"\x80\x08" + b"\x7f" * 512, "a decimal of 512"),
        ({"type": "array", "items": "null"}, pa.list_(pa.null()), b"\xfe\xff\xff\xff\x0f\0", "and has 6 bytes"),
    ],
)
def test_few_bytes_that_would_become_much_are_refused_before_they_do(schema, type_, value, why):
    with pytest.raises(ValueError, match=why):
        read(schema, type_, value)


def test_bytes_that_are_left_behind_a_value_are_told():
    with pytest.raises(ValueError, match="2 bytes are left behind the value"):
        read(PERSON, PERSON_ARROW, GOOD + b"\0\0")


@pytest.mark.parametrize(
    "bad",
    [
        b"",
        GOOD[:-1],
        GOOD + b"\0",
        b"\x0e\x06\xff\xff\xff",  # no text
        b"\x0e\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",  # a length below nothing
        b"\x0e\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01",  # a length beyond memory
        b"\xff" * 30,  # a number without an end
        b"\0\0\0\0\x01" + GOOD,  # with the head of a schema registry
        b'{"id": 7, "name": "ann"}',
    ],
)
def test_a_value_that_does_not_fit_is_poison_and_the_others_are_rows(bad):
    builder = BatchBuilder()
    for value in (GOOD, bad, None, GOOD):
        builder.add(None, value, timestamp_ms=1)
    decoded = decode_raw(place(builder.build(), 0), [AcquiredRange(0, 3, 2)])
    schema = pa.schema([("offset", pa.int64()), ("value", PERSON_ARROW), ("attempt", pa.int32())])

    batches, poison = to_arrow("t", 0, decoded, schema, decoder(json.dumps(PERSON), PERSON_ARROW))

    assert [(one.record.offset, one.record.value, one.delivery) for one in poison] == [(1, bad, 2)]
    assert [row for batch in batches for row in batch.to_pylist()] == [
        {"offset": 0, "value": {"id": 7, "name": "ann"}, "attempt": 2},
        {"offset": 2, "value": None, "attempt": 2},
        {"offset": 3, "value": {"id": 7, "name": "ann"}, "attempt": 2},
    ]


@pytest.mark.parametrize(("schema", "_column", "type_", "value"), TYPES, ids=names(TYPES))
def test_damaged_bytes_are_a_value_or_are_refused_and_nothing_else(schema, _column, type_, value):
    """Any other error of a decoder would end the query for good."""
    decode, whole = decoder(json.dumps(schema), type_), written(schema, value)
    chance = random.Random(5)
    for _ in range(40):
        damaged = bytearray(whole + chance.randbytes(chance.randrange(12)))
        for _ in range(chance.randrange(1, 4)):
            if damaged:
                damaged[chance.randrange(len(damaged))] = chance.randrange(256)
        with contextlib.suppress(pa.ArrowException, ValueError, TypeError, OverflowError):
            assert len(decode([bytes(damaged)])) == 1
