"""The sink's columns: what is refused, and what Arrow's arrays become."""

from datetime import UTC, datetime

import pyarrow as pa
import pytest

from flowshare.agents.handler.errors import OptionError
from flowshare.spark.sink.columns import Layout, bytes_of, headers_of, integers_of, milliseconds_of, names_of
from flowshare.spark.sink.options import SinkOptions

types = pytest.importorskip("pyspark.sql.types")

PAIR = types.StructType([types.StructField("key", types.StringType()), types.StructField("value", types.BinaryType())])
TYPES = {
    "binary": types.BinaryType(),
    "string": types.StringType(),
    "int": types.IntegerType(),
    "double": types.DoubleType(),
    "timestamp": types.TimestampType(),
    "void": types.NullType(),
    "struct": PAIR,
    "array": types.ArrayType(types.StringType()),
    "map": types.MapType(types.StringType(), types.BinaryType()),
    "numbers": types.MapType(types.StringType(), types.IntegerType()),
    "pairs": types.ArrayType(PAIR),
}


def layout(*columns, topic="orders"):
    """Columns as `name: type`."""
    named = [column.split(": ") for column in columns]
    schema = types.StructType([types.StructField(name, TYPES[type_]) for name, type_ in named])
    return Layout.of(schema, SinkOptions(broker="kafka://localhost", topic=topic))


# --- which columns ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("type_", ["binary", "string", "void"])
def test_values_are_binary_or_string(type_):
    assert layout(f"value: {type_}").values_only


@pytest.mark.parametrize("headers", ["pairs", "map", "void"])
def test_all_columns_are_found_whatever_their_order_and_case(headers):
    columns = f"Headers: {headers}", "TIMESTAMP: timestamp", "partition: int", "topic: string", "key: binary"

    found = layout(*columns, "value: string", topic="")

    assert dict(found.places) == {"headers": 0, "timestamp": 1, "partition": 2, "topic": 3, "key": 4, "value": 5}
    assert not found.values_only


def test_the_option_topic_goes_before_the_column():
    assert layout("value: string", "topic: string").values_only


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (["value: string", "vaule: string"], "has no column 'vaule' to write. Did you mean 'value'?"),
        (["value: string", "offset: int"], "has no column 'offset' to write. Known are: headers, key, partition"),
        (["key: string"], "needs a column 'value'"),
        (["value: string", "Value: string"], "'value' is there twice"),
        (["value: struct"], "struct<key:string,value:binary> and has to be binary or string: select to_json(value)"),
        (["value: array"], "select to_json(value)"),
        (["value: map"], "select to_json(value)"),
        (["value: double"], "'value' is double and has to be binary or string: select CAST(value AS string)"),
        (["value: string", "key: int"], "'key' is int and has to be binary or string: select CAST(key AS string)"),
        (["value: string", "partition: string"], "'partition' is string and has to be int: select CAST("),
        (["value: string", "timestamp: int"], "'timestamp' is int and has to be timestamp"),
        (["value: string", "topic: binary"], "'topic' is binary and has to be string"),
        (["value: string", "headers: numbers"], "'headers' is map<string,int>; it takes array<struct<key:string"),
        (["value: string", "headers: array"], "'headers' is array<string>"),
    ],
)
def test_what_cannot_be_written_is_refused_with_what_can(columns, message):
    with pytest.raises(OptionError) as refused:
        layout(*columns)

    assert message in str(refused.value)


def test_without_a_topic_both_ways_to_name_it_are_told():
    with pytest.raises(OptionError, match=r'needs .option\("topic", …\), or a column \'topic\''):
        layout("value: string", topic="")


# --- what is in them ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("type_", [pa.binary(), pa.string(), pa.large_binary(), pa.large_string()])
@pytest.mark.parametrize("values", [[], ["a"], ["", "ä", "long" * 100], ["a", None, "b"], [None, None]])
def test_strings_and_binaries_become_bytes(type_, values):
    column = pa.array([None if value is None else value.encode() for value in values], pa.binary()).cast(type_)

    assert bytes_of(column) == [None if value is None else value.encode() for value in values]


@pytest.mark.parametrize("start", [0, 1, 3])
def test_a_slice_of_an_array_is_read_as_such(start):
    whole = [b"one", None, b"three", b"four"]
    pairs = [[("a", b"1")], None, [], [("b", None), ("c", b"3")]]

    assert bytes_of(pa.array(whole)[start:]) == whole[start:]
    assert integers_of(pa.array([1, None, 3, 4], pa.int32())[start:]) == [1, None, 3, 4][start:]
    assert headers_of(pa.array(pairs, pa.map_(pa.string(), pa.binary()))[start:]) == [
        pair or [] for pair in pairs[start:]
    ]
    structs = [None if row is None else [{"key": key, "value": value} for key, value in row] for row in pairs]
    type_ = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    assert headers_of(pa.array(structs, type_)[start:]) == [pair or [] for pair in pairs[start:]]


def test_columns_of_nothing_but_nulls_have_no_type():
    nulls = pa.nulls(2)

    assert bytes_of(nulls) == integers_of(nulls) == milliseconds_of(nulls) == [None, None]
    assert headers_of(nulls) == [[], []]


@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin", None])
def test_timestamps_become_milliseconds_since_1970(zone):
    moment = datetime(2024, 2, 29, 12, 30, 15, 123_456, tzinfo=UTC)
    column = pa.array([moment, None], pa.timestamp("us", zone))

    assert milliseconds_of(column) == [1_709_209_815_123, None]


def test_equal_topics_are_one_string():
    names = names_of(pa.array(["a", "b", "a"]))

    assert names == ["a", "b", "a"]
    assert names[0] is names[2]


def test_a_row_without_topic_is_refused():
    with pytest.raises(ValueError, match="a row has no topic"):
        names_of(pa.array(["a", None]))


def test_a_header_without_name_is_refused():
    type_ = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))

    with pytest.raises(ValueError, match="a header has no name"):
        headers_of(pa.array([[{"key": None, "value": b"1"}]], type_))


def test_rows_are_read_column_by_column():
    found = layout("value: string", "key: binary", "headers: map", "partition: int", "timestamp: timestamp")
    batch = pa.record_batch(
        {
            "value": pa.array(["a", None]),
            "key": pa.array([None, b"k"]),
            "headers": pa.array([[("h", b"1")], None], pa.map_(pa.string(), pa.binary())),
            "partition": pa.array([1, None], pa.int32()),
            "timestamp": pa.array([5_000, None], pa.timestamp("us", "UTC")),
        }
    )

    assert list(zip(*found.rows(batch), strict=False)) == [
        ("orders", 1, None, b"a", [("h", b"1")], 5),
        ("orders", None, b"k", None, [], None),
    ]
