"""Records of real batches as Arrow columns, and JSON values that have a schema."""

from __future__ import annotations

import datetime
import json
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import types as t
from pyspark.sql.pandas.types import to_arrow_schema

from flowshare.agents.handler.errors import OptionError
from flowshare.protocol.batches import BatchBuilder
from flowshare.protocol.decoding import decode_raw
from flowshare.share.types import AcquiredRange
from flowshare.spark.source.columns import source_schema, to_arrow, value_decoder
from flowshare.spark.source.options import SourceOptions
from tests.batches import place

NOW_MS = 1_700_000_000_123
LEAST = {"broker": "kafka://localhost:9092", "topics": "orders", "group": "etl"}
HEADERS = t.ArrayType(t.StructType([t.StructField("key", t.StringType()), t.StructField("value", t.BinaryType())]))
PERSON = t.StructType([t.StructField("id", t.IntegerType()), t.StructField("name", t.StringType())])


def options(**given: str) -> SourceOptions:
    return SourceOptions.parse({**LEAST, **given})


def schema_of(value: t.DataType | None = None, *, headers: bool = False) -> pa.Schema:
    """The Arrow schema that Spark makes of the source's columns."""
    columns = t.StructType().add("key", t.BinaryType()).add("value", value or t.BinaryType())
    columns = columns.add("topic", t.StringType()).add("partition", t.IntegerType()).add("offset", t.LongType())
    columns = columns.add("timestamp", t.TimestampType()).add("timestamp_type", t.IntegerType())
    if headers:
        columns = columns.add("headers", HEADERS)
    return to_arrow_schema(columns.add("attempt", t.IntegerType()), timezone="UTC")


def log(records, *, base: int = 0, append_time_ms: int | None = None) -> bytes:
    """A batch of (key, value, headers, timestamp) as it lies in a log."""
    builder = BatchBuilder()
    for key, value, headers, timestamp_ms in records:
        assert builder.add(key, value, headers, timestamp_ms=timestamp_ms)
    return place(builder.build(), base, now_ms=append_time_ms)


def values_log(values, *, base: int = 0) -> bytes:
    return log([(None, value, (), NOW_MS) for value in values], base=base)


def arrow(records: bytes, schema: pa.Schema, *ranges: tuple[int, int, int], decode=None):
    """One table of all rows, and the poison."""
    decoded = decode_raw(records, [AcquiredRange(*one) for one in ranges or ((0, 9_999, 1),)])
    batches, poison = to_arrow("orders", 3, decoded, schema, decode)
    for batch in batches:
        batch.validate(full=True)
        assert batch.num_rows > 0
    return pa.Table.from_batches(batches, schema=schema), poison


def json_arrow(values, type_: t.DataType = PERSON):
    schema = schema_of(type_)
    return arrow(values_log(values), schema, decode=value_decoder(options(value="json", value_schema="id INT"), schema))


# --- the schema ---------------------------------------------------------------------------------------------------


def test_the_columns_are_those_of_a_record_and_of_its_delivery():
    assert source_schema(options()) == (
        "key BINARY, value BINARY, topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP, "
        "timestamp_type INT, attempt INT"
    )


def test_headers_are_a_column_where_they_are_asked_for():
    assert "headers ARRAY<STRUCT<key: STRING, value: BINARY>>, attempt INT" in source_schema(options(headers="1"))


def test_a_value_with_a_schema_is_a_column_of_that_type():
    assert "value STRUCT<id INT, name STRING>, topic" in source_schema(
        options(value="json", value_schema="id INT, name STRING")
    )
    assert "value BIGINT, topic" in source_schema(options(value="avro", value_schema='"long"'))


# --- columns ------------------------------------------------------------------------------------------------------


def test_a_records_fields_are_one_row():
    table, poison = arrow(log([(b"k", b"v", (), NOW_MS)], base=41), schema_of(), (41, 41, 2))

    assert poison == []
    assert table.to_pylist() == [
        {
            "key": b"k",
            "value": b"v",
            "topic": "orders",
            "partition": 3,
            "offset": 41,
            "timestamp": datetime.datetime(2023, 11, 14, 22, 13, 20, 123_000, tzinfo=datetime.UTC),
            "timestamp_type": 0,
            "attempt": 2,
        }
    ]


def test_a_record_without_key_and_value_has_nulls_and_empty_ones_stay_empty():
    table, _ = arrow(log([(None, None, (), NOW_MS), (b"", b"", (), NOW_MS)]), schema_of())

    assert table.column("key").to_pylist() == table.column("value").to_pylist() == [None, b""]


def test_headers_keep_their_order_their_doubles_and_their_nulls():
    headers = [("a", b"1"), ("b", None), ("a", b""), ("ü", b"\xff")]
    table, _ = arrow(log([(None, b"v", headers, NOW_MS), (None, b"v", (), NOW_MS)]), schema_of(headers=True))

    assert table.column("headers").to_pylist() == [[{"key": key, "value": value} for key, value in headers], []]
    assert table.schema.names[-2:] == ["headers", "attempt"]


def test_each_record_has_its_own_time():
    table, _ = arrow(log([(None, b"v", (), at_ms) for at_ms in (0, 1, NOW_MS)]), schema_of())

    seconds = [moment.timestamp() for moment in table.column("timestamp").to_pylist()]
    assert seconds == [0, 0.001, NOW_MS / 1000]
    assert table.schema.field("timestamp").type == pa.timestamp("us", tz="UTC")


def test_a_log_that_stamps_its_records_gives_all_of_a_batch_one_time():
    records = log([(None, b"v", (), at_ms) for at_ms in (1, 2)], append_time_ms=NOW_MS)
    table, _ = arrow(records, schema_of())

    assert [moment.timestamp() for moment in table.column("timestamp").to_pylist()] == [NOW_MS / 1000] * 2
    assert table.column("timestamp_type").to_pylist() == [1, 1]


def test_a_time_that_spark_cannot_hold_is_null_and_no_other_one_is():
    """Producers may write any number: a record of the year 300,000 must not end the query for good."""
    records = log([(None, b"early", (), 5), (None, b"late", (), 2**62), (None, b"then", (), 6)])
    table, poison = arrow(records, schema_of())

    assert poison == []
    assert table.column("value").to_pylist() == [b"early", b"late", b"then"]
    assert table.column("timestamp").cast(pa.int64()).to_pylist() == [5_000, None, 6_000]


def test_only_what_was_acquired_is_a_row_and_each_run_has_its_attempt():
    table, _ = arrow(values_log([b"%d" % n for n in range(10)]), schema_of(), (1, 2, 1), (3, 3, 4), (7, 99, 1))

    assert table.column("offset").to_pylist() == [1, 2, 3, 7, 8, 9]
    assert table.column("value").to_pylist() == [b"1", b"2", b"3", b"7", b"8", b"9"]
    assert table.column("attempt").to_pylist() == [1, 1, 4, 1, 1, 1]


def test_nothing_acquired_is_no_batch():
    assert to_arrow("orders", 0, decode_raw(values_log([b"v"]), []), schema_of(), None) == ([], [])


# --- JSON ---------------------------------------------------------------------------------------------------------


def test_values_that_fit_are_structs():
    table, poison = json_arrow([b'{"id": 1, "name": "a"}', b' {"name":"b",\n "id":2} \n'])

    assert poison == []
    assert table.column("value").to_pylist() == [{"id": 1, "name": "a"}, {"id": 2, "name": "b"}]


def test_a_missing_field_is_null_and_one_too_many_is_left_out():
    table, poison = json_arrow([b'{"name": "a"}', b'{"id": 2, "color": {"deep": [1]}}', b"{}", b'{"id": null}'])

    assert poison == []
    assert table.column("value").to_pylist() == [
        {"id": None, "name": "a"},
        {"id": 2, "name": None},
        {"id": None, "name": None},
        {"id": None, "name": None},
    ]


def test_a_record_without_a_value_is_a_null_and_no_poison():
    table, poison = json_arrow([None, b'{"id": 1, "name": "a"}', None, b'{"id": 2}'])

    assert poison == []
    assert table.column("value").to_pylist() == [None, {"id": 1, "name": "a"}, None, {"id": 2, "name": None}]
    assert table.column("offset").to_pylist() == [0, 1, 2, 3]


def test_records_without_values_alone_are_nulls():
    table, poison = json_arrow([None, None])

    assert (table.column("value").to_pylist(), poison) == ([None, None], [])


BAD = [
    b"",
    b" ",
    b"not json",
    b"\xff\xfe",
    b'{"id": 1',
    b'{"id": "seven"}',
    b'{"id": 3000000000}',
    b'{"id": 1.5}',
    b'{"name": 7}',
    b'{"name": "\xff"}',
    b'{"name": "\xed\xa0\x80"}',
    b'{"name": "\\ud800"}',
    b"[1]",
    b"1",
    b"null",
    b'"text"',
    b'{"id": 1} {"id": 2}',
    b'{"id": 1}{"id": 2}',
    b'{"id": 1}\n\n{"id": 2}',
    b'{"id": 1} trailing',
]


@pytest.mark.parametrize("bad", BAD)
def test_a_value_that_does_not_fit_is_poison_and_the_others_are_rows(bad):
    table, poison = json_arrow([b'{"id": 1}', bad, None, b'{"id": 3, "name": "c"}'])

    assert [(one.record.offset, one.record.value, one.delivery) for one in poison] == [(1, bad, 1)]
    assert len(poison[0].reason) > 10
    assert table.column("offset").to_pylist() == [0, 2, 3]
    assert table.column("value").to_pylist() == [{"id": 1, "name": None}, None, {"id": 3, "name": "c"}]


def test_values_that_are_whole_only_together_are_poison_each():
    """Read as one text they would be as many objects as there are records, none of them anybody's."""
    split = [b'{"id": 1, "name"', b': "a"}{"id": 2}']
    table, poison = json_arrow([*split, b"", b'{"id": 3}{"id": 4}', b'{"id": 5}'])

    assert [one.record.offset for one in poison] == [0, 1, 2, 3]
    assert table.column("value").to_pylist() == [{"id": 5, "name": None}]
    assert table.column("offset").to_pylist() == [4]


def test_a_string_that_is_not_closed_does_not_swallow_the_next_value():
    table, poison = json_arrow([b'{"name": "a}', b'{"name": "b"}', b'{"name": "}'])

    assert [one.record.offset for one in poison] == [0, 2]
    assert table.column("value").to_pylist() == [{"id": None, "name": "b"}]


def test_a_string_with_braces_at_the_seam_of_two_values_joins_nothing():
    """Together these were three objects; none of them is one of the three values."""
    table, poison = json_arrow([b'{"name": "a}', b'{", "id": 1}', b'{"id": 2}{"id": 3}'])

    assert (table.num_rows, [one.record.offset for one in poison]) == (0, [0, 1, 2])


def test_poison_is_told_with_the_delivery_that_it_was():
    schema = schema_of(PERSON)
    decode = value_decoder(options(value="json", value_schema="id INT, name STRING"), schema)
    records = values_log([b"bad", b'{"id": 1}', b"bad", b"bad"])

    table, poison = arrow(records, schema, (0, 1, 1), (2, 3, 5), decode=decode)

    assert [(one.record.offset, one.delivery) for one in poison] == [(0, 1), (2, 5), (3, 5)]
    assert table.column("offset").to_pylist() == [1]


def test_a_batch_of_poison_alone_is_no_row():
    table, poison = json_arrow([b"a", b"b"])

    assert (table.num_rows, len(poison)) == (0, 2)


TYPED = [
    (t.LongType(), "9007199254740993", 9007199254740993),
    (t.DoubleType(), "1.5", 1.5),
    (t.DoubleType(), "2", 2.0),
    (t.BooleanType(), "true", True),
    (t.StringType(), '"\\u00fc\\n"', "ü\n"),
    (t.ArrayType(t.IntegerType()), "[1, null, 3]", [1, None, 3]),
    (PERSON, '{"name": "x"}', {"id": None, "name": "x"}),
    (t.ArrayType(PERSON), '[{"id": 1}]', [{"id": 1, "name": None}]),
    (t.DateType(), '"2026-11-22"', datetime.date(2026, 11, 22)),
    (t.ArrayType(t.DateType()), '["0001-01-01", null]', [datetime.date(1, 1, 1), None]),
    (t.DecimalType(6, 2), "12.5", Decimal("12.50")),
    (t.DecimalType(6, 2), '"-12"', Decimal("-12.00")),
    (
        t.TimestampType(),
        '"2026-11-22T10:00:00Z"',
        datetime.datetime(2026, 11, 22, 10, tzinfo=datetime.UTC),
    ),
    (t.TimestampNTZType(), '"2026-11-22 10:00:00"', datetime.datetime(2026, 11, 22, 10)),  # noqa: DTZ001 - it has none
]


@pytest.mark.parametrize(
    ("type_", "written", "read"), TYPED, ids=[f"{one[0].simpleString()}-{one[1]}" for one in TYPED]
)
def test_a_field_of_each_type_is_read(type_, written, read):
    table, poison = json_arrow([b'{"x": %s}' % written.encode()], t.StructType([t.StructField("x", type_)]))

    assert poison == []
    assert table.column("value").to_pylist() == [{"x": read}]


def test_a_date_that_is_none_is_poison():
    table, poison = json_arrow([b'{"x": "22.11.2026"}', b'{"x": null}'], t.StructType().add("x", t.DateType()))

    assert [one.record.offset for one in poison] == [0]
    assert table.column("value").to_pylist() == [{"x": None}]


def test_a_type_that_cannot_be_read_is_refused_instead_of_making_every_record_poison():
    map_of = t.MapType(t.IntegerType(), t.IntegerType())

    with pytest.raises(OptionError, match="reads a MAP with keys of STRING, not of int32"):
        json_arrow([b'{"x": {"1": 1}}'], t.StructType().add("x", t.ArrayType(map_of)))


COUNTS = t.MapType(t.StringType(), t.IntegerType())


@pytest.mark.parametrize(
    ("type_", "written", "read"),
    [
        (COUNTS, '{"a": 1, "b": null}', [("a", 1), ("b", None)]),
        (COUNTS, "{}", []),
        (COUNTS, "null", None),
        (t.ArrayType(COUNTS), '[{"a": 1}, null]', [[("a", 1)], None]),
        (t.MapType(t.StringType(), COUNTS), '{"x": {"a": 1}}', [("x", [("a", 1)])]),
        (t.MapType(t.StringType(), PERSON), '{"x": {"id": 5, "more": 1}}', [("x", {"id": 5, "name": None})]),
        (
            t.MapType(t.StringType(), t.DecimalType(38, 18)),
            '{"x": 12345678901234567890.123456789012345678}',
            [("x", Decimal("12345678901234567890.123456789012345678"))],
        ),
        (
            t.MapType(t.StringType(), t.DateType()),
            '{"x": "2026-11-22"}',
            [("x", datetime.date(2026, 11, 22))],
        ),
    ],
    ids=lambda one: one if isinstance(one, str) else "",
)
def test_an_object_is_read_as_a_map(type_, written, read):
    table, poison = json_arrow([b'{"m": %s, "id": 3}' % written.encode()], t.StructType().add("m", type_))

    assert poison == []
    assert table.column("value").to_pylist() == [{"m": read}]


@pytest.mark.parametrize("written", ['[{"key": "a", "value": 1}]', "5", '{"a": "one"}', '{"a": NaN}', "[" * 5000])
def test_what_is_no_map_of_its_type_is_poison_beside_one_that_is(written):
    values = [b'{"m": {"a": 1}}', b'{"m": %s}' % written.encode()]
    table, poison = json_arrow(values, t.StructType().add("m", COUNTS))

    assert [one.record.offset for one in poison] == [1]
    assert table.column("value").to_pylist() == [{"m": [("a", 1)]}]


WIDE = (
    t.StructType()
    .add("id", t.IntegerType())
    .add("name", t.StringType())
    .add("at", t.TimestampType())
    .add("inner", PERSON)
    .add("ids", t.ArrayType(t.IntegerType()))
    .add("counts", COUNTS)
)
NOTHING = dict.fromkeys(("id", "name", "at", "inner", "ids", "counts"))


@pytest.mark.parametrize(
    ("written", "read"),
    [
        (b'{"id": "5", "name": "a"}', {"name": "a"}),
        (b'{"id": 5.0}', {}),
        (b'{"id": 99999999999}', {}),
        (b'{"name": 5}', {"name": "5"}),
        (b'{"name": {"a": [1.5]}}', {"name": '{"a":[1.5]}'}),
        (b'{"name": true, "id": 1}', {"name": "true", "id": 1}),
        (b'{"at": "22.11.2026", "id": 1}', {"id": 1}),
        (b'{"inner": {"id": "x", "name": "b"}, "id": 1}', {"inner": {"id": None, "name": "b"}, "id": 1}),
        (b'{"inner": 5, "id": 1}', {"id": 1}),
        (b'{"ids": [1, "2", 3]}', {"ids": [1, None, 3]}),
        (b'{"counts": {"a": 1, "b": "two"}}', {"counts": [("a", 1), ("b", None)]}),
        (b"no json", {}),
        (b"[1]", {}),
        (b'{"id": 1', {}),
        (b"[" * 100_000, {}),
        (b'{"name": ' + b"[" * 100_000, {}),
    ],
    ids=lambda one: one[:40].decode() if isinstance(one, bytes) else "",
)
def test_in_the_permissive_mode_what_does_not_fit_is_null_and_the_record_a_row(written, read):
    schema = schema_of(WIDE)
    decode = value_decoder(options(value="json", value_schema="id INT", value_mode="permissive"), schema)
    table, poison = arrow(values_log([b'{"id": 7}', written, None, b"null"]), schema, decode=decode)

    assert poison == []
    assert table.column("value").to_pylist() == [{**NOTHING, "id": 7}, {**NOTHING, **read}, None, None]


def test_few_of_many_values_are_looked_at_alone_where_one_is_poison():
    """One by one, an answer of many records with one that is bad would take a minute."""
    schema, calls = schema_of(PERSON), []
    decode = value_decoder(options(value="json", value_schema="id INT, name STRING"), schema)

    def counted(values):
        calls.append(len(values))
        return decode(values)

    values = [b"{}"] * 500
    values[77] = b"bad"
    table, poison = arrow(values_log(values), schema, decode=counted)

    assert (table.num_rows, [one.record.offset for one in poison]) == (499, [77])
    assert len(calls) < 30


def test_a_column_of_values_is_of_the_type_that_spark_expects():
    table, _ = json_arrow([b'{"id": 1}', b"bad", None])

    assert table.schema == schema_of(PERSON)


TEXT = st.text(st.characters(codec="utf-8"), max_size=5)
FITS = st.builds(
    lambda person, extra: json.dumps({**extra, **person}).encode(),
    st.fixed_dictionaries({"id": st.none() | st.integers(-(2**31), 2**31 - 1), "name": st.none() | TEXT}),
    st.dictionaries(
        st.sampled_from(["x", "y"]), st.none() | st.booleans() | st.lists(st.integers(), max_size=2), max_size=1
    ),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(FITS | st.none() | st.sampled_from(BAD), min_size=1, max_size=8))
def test_every_record_is_either_the_row_that_it_says_or_poison(values):
    table, poison = json_arrow(values)

    rows = dict(zip(table.column("offset").to_pylist(), table.column("value").to_pylist(), strict=True))
    assert sorted([*rows, *(one.record.offset for one in poison)]) == list(range(len(values)))
    assert list(rows) == sorted(rows)
    for one in poison:
        assert values[one.record.offset] in BAD
    for offset, row in rows.items():
        value = values[offset]
        assert value not in BAD
        found = None if value is None else json.loads(value)
        assert row == (found if found is None else {"id": found["id"], "name": found["name"]})
