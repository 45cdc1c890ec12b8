"""Avro with a registry: what is written, how it is read by another version, what is refused."""

from __future__ import annotations

import copy
import datetime
import decimal
import enum
import io
import json
import pickle
import uuid
from dataclasses import dataclass, field
from typing import Any, Literal, TypedDict

import attrs
import fastavro
import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

import flowshare as fs
from flowshare.agents.codecs import wire
from flowshare.agents.codecs.avro_walk import walk_of
from flowshare.agents.codecs.client import SchemaText
from flowshare.agents.codecs.schemas import avro_schema, json_schema
from flowshare.agents.handler.errors import OptionError, Unencodable
from tests.agents.registry_codecs.fake import FakeClient, registry_of


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


@dataclass
class Line:
    article: str
    count: int = 1


@dataclass
class Order:
    id: int
    lines: list[Line] = field(default_factory=list)
    at: datetime.datetime | None = None
    colour: Colour = Colour.RED
    of: uuid.UUID | None = None
    raw: bytes = b""
    by: dict[str, float] = field(default_factory=dict)
    kind: Literal["a", "b"] = "a"


@attrs.define
class OrderAttrs:
    id: int
    _note: str | None = None


class OrderModel(pydantic.BaseModel):
    id: int
    lines: list[Line] = []
    at: datetime.datetime | None = None
    colour: Colour = Colour.RED
    raw: bytes = b""


class OrderStruct(msgspec.Struct):
    id: int
    at: datetime.datetime | None = None
    raw: bytes = b""
    tags: list[str] = []


class OrderDict(TypedDict):
    id: int


@dataclass
class Tree:
    name: str
    children: list[Tree] = field(default_factory=list)


NOW = datetime.datetime(2026, 1, 2, 3, 4, 5, 678, tzinfo=datetime.UTC)
VALUES = [
    Order(1, [Line("a", 2)], NOW, Colour.BLUE, uuid.UUID(int=5), b"\xff", {"x": 1.5}, "b"),
    OrderAttrs(1, "n"),
    OrderModel(id=1, lines=[Line("a")], at=NOW, colour=Colour.BLUE, raw=b"\xff"),
    OrderStruct(1, NOW, b"\xff", ["t"]),
    Tree("a", [Tree("b", [Tree("c")])]),
]


@pytest.fixture
def client() -> FakeClient:
    return FakeClient()


def codec(client: FakeClient, model: Any = None, **options: Any) -> Any:
    return fs.Avro(model, registry=registry_of(client), **options).bind("orders", "value")


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_what_is_written_is_read_again_by_the_class_and_by_others(client: FakeClient, value: Any):
    mine = codec(client, type(value))
    raw = mine.encode(value)

    assert mine.decode(raw) == value
    assert codec(client, type(value)).decode(raw) == value
    plain = codec(client).decode(raw)
    assert isinstance(plain, dict)
    assert codec(client, dict, schema=avro_schema(type(value))).encode(plain) == raw
    assert client.asked["register orders-value"] == 2
    assert wire.schema_id(raw) == 1


def test_a_typed_dict_and_plain_types_have_schemas_too(client: FakeClient):
    mine = codec(client, OrderDict)
    assert mine.decode(mine.encode({"id": 1})) == {"id": 1}
    text = fs.Avro(schema="string", registry=registry_of(client)).bind("orders", "key")
    assert text.decode(text.encode("c")) == "c"
    assert text.subject == "orders-key"


@dataclass
class OrderLater:
    """A later version of `OrderStart`: a field is new, one is gone, one is wider."""

    id: int
    amount: float
    note: str = "none"


@dataclass
class OrderStart:
    id: int
    amount: int
    gone: bool


OrderLater.__name__ = OrderStart.__name__ = "Order"


def test_a_newer_reader_reads_the_older_and_the_other_way_round(client: FakeClient):
    start, later = codec(client, OrderStart), codec(client, OrderLater)

    assert later.decode(start.encode(OrderStart(1, 2, True))) == OrderLater(1, 2.0, "none")
    with pytest.raises(ValueError, match="schema 2, which does not fit"):
        start.decode(later.encode(OrderLater(1, 2.5)))  # a double is no long, and `gone` has no default

    back = codec(client, dict, schema={"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]})
    assert back.decode(later.encode(OrderLater(1, 2.5))) == {"id": 1}


def test_aliases_of_a_schema_of_ones_own_are_followed(client: FakeClient):
    renamed = {
        "type": "record",
        "name": "Bill",
        "aliases": ["Order"],
        "fields": [{"name": "number", "type": "long", "aliases": ["id"]}],
    }
    raw = codec(client, OrderDict).encode({"id": 7})
    aliased = {**renamed, "aliases": ["OrderDict"]}
    assert codec(client, dict, schema=json.dumps(aliased)).decode(raw) == {"number": 7}


@pytest.mark.parametrize(
    ("subject", "expected"),
    [
        ("topic", "orders-value"),
        ("record", "shop.Line"),
        ("topic_record", "orders-shop.Line"),
        (lambda topic, what, record: f"{topic}/{what}/{record}", "orders/value/shop.Line"),
    ],
)
def test_subjects_are_named_by_a_strategy(client: FakeClient, subject: Any, expected: str):
    codec(client, Line, namespace="shop", subject=subject).encode(Line("a"))
    assert list(client.subjects) == [expected]


def test_what_is_not_registered_is_not_written_where_it_may_not_be(client: FakeClient):
    mine = codec(client, Line, register=False)
    with pytest.raises(fs.errors.UnknownSchema, match="not registered by this process"):
        mine.encode(Line("a"))

    codec(client, Line).encode(Line("a"))
    fresh = codec(client, Line, register=False)
    assert fresh.decode(fresh.encode(Line("a"))) == Line("a")


def test_the_newest_schema_of_the_subject_is_written_with(client: FakeClient):
    client.register("orders-value", SchemaText("AVRO", json.dumps(avro_schema(OrderStart))))
    newest = {
        "type": "record",
        "name": "Order",
        "fields": [{"name": "id", "type": "long"}, {"name": "note", "type": "string", "default": "-"}],
    }
    client.register("orders-value", SchemaText("AVRO", json.dumps(newest)))

    mine = codec(client, dict, use_latest=True)

    assert mine.decode(mine.encode({"id": 3})) == {"id": 3, "note": "-"}
    assert wire.schema_id(mine.encode({"id": 3})) == 2


def test_an_incompatible_schema_is_refused_in_the_registrys_words_and_asked_for_again(client: FakeClient):
    mine = codec(client, Line)
    client.refuses = lambda subject, schema: True

    missing = mine.missing_to_encode()
    assert missing is not None
    missing.fetch()
    assert mine.missing_to_encode() is None
    with pytest.raises(fs.errors.SchemaRefused, match="READER_FIELD_MISSING_DEFAULT_VALUE"):
        mine.encode(Line("a"))
    assert mine.missing_to_encode() is not None


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ({"article": 5}, "Line.article is <5> of type <class 'int'> expected string"),
        ({"article": "a", "cuont": 1}, "more fields than the schema specifies: cuont"),
        ("text", "expected"),
    ],
)
def test_what_does_not_fit_the_schema_is_not_written(client: FakeClient, value: Any, why: str):
    with pytest.raises(Unencodable, match=f"does not fit the Avro schema: .*{why}"):
        codec(client, Line).encode(value)


def test_references_are_fetched_with_the_schema_and_given_with_ones_own(client: FakeClient):
    line = {"type": "record", "name": "Line", "fields": [{"name": "article", "type": "string"}]}
    client.register("line", SchemaText("AVRO", json.dumps(line)))
    order = {"type": "record", "name": "Order", "fields": [{"name": "line", "type": "Line"}]}

    mine = codec(client, dict, schema=order, references=[("Line", "line", 1)])
    raw = mine.encode({"line": {"article": "a"}})

    assert client.subjects["orders-value"][0].references[0].subject == "line"
    assert codec(client).decode(raw) == {"line": {"article": "a"}}
    assert mine.decode(raw) == {"line": {"article": "a"}}


def test_schemas_that_refer_in_a_circle_are_refused(client: FakeClient):
    a = SchemaText("AVRO", '"A"', (("B", "b", 1),))  # type: ignore[arg-type]
    from flowshare.agents.codecs.client import Reference

    a = SchemaText("AVRO", '"A"', (Reference("B", "b", 1),))
    b = SchemaText("AVRO", '"B"', (Reference("B2", "b", 1),))
    client.register("a", a)
    client.register("b", b)
    with pytest.raises(fs.errors.SchemaRefused):
        codec(client).decode(wire.prefix(1) + b"x")


NODE = {"type": "record", "name": "Node", "fields": [{"name": "next", "type": ["null", "Node"]}]}


def frame(client: FakeClient, schema: Any, value: bytes) -> bytes:
    return wire.prefix(client.register("any", SchemaText("AVRO", json.dumps(schema)))) + value


@pytest.mark.parametrize(
    ("schema", "value", "why"),
    [
        (NODE, b"\x02" * 100_000 + b"\0", "deeper than 100"),
        ({"type": "array", "items": "null"}, b"\xfe\xff\xff\xff\x0f\0", "items, and has 11 bytes"),
        ({"type": "array", "items": NODE}, b"\xfe\xff\xff\xff\x0f\0", "items"),
        ("bytes", b"\xfe\xff\xff\xff\x0fab", "EOFError"),
        ("string", b"\x04\xff\xff", "utf-8"),
        ("long", b"", "it is no value of schema 1"),
        ("long", b"\x02\x02", "1 bytes are left behind"),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, b"\x10", "it is no value of schema 1"),
        (["null", "long"], b"\x10", "it is no value of schema 1"),
        ({"type": "record", "name": "R", "fields": [{"name": "a", "type": "Unknown"}]}, b"", "it is no Avro schema"),
        ("{", b"", "it is no Avro schema"),
    ],
)
def test_bytes_that_are_no_value_are_refused_and_cost_nothing(client: FakeClient, schema: Any, value: bytes, why: str):
    with pytest.raises(ValueError, match=why):
        codec(client).decode(frame(client, schema, value))


def test_a_recursive_value_that_is_not_deep_is_read(client: FakeClient):
    found = codec(client).decode(frame(client, NODE, b"\x02" * 99 + b"\0"))
    depth = 0
    while found["next"] is not None:
        found, depth = found["next"], depth + 1
    assert depth == 99


def doubling(levels: int) -> dict[str, Any]:
    """A record of two records of two records …, none of which takes a byte."""
    kind: Any = "null"
    for level in range(levels):
        first = {"name": "a", "type": kind}
        kind = {"type": "record", "name": f"L{level}", "fields": [first, {"name": "b", "type": f"L{level - 1}"}]}
        if not level:
            kind["fields"] = [first]
    return kind


MANY = [{"type": "record", "name": f"R{number}", "fields": [{"name": "a", "type": "int"}]} for number in range(2_000)]
DECIMAL = {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}


@pytest.mark.parametrize(
    ("schema", "value", "why"),
    [
        (DECIMAL, b"\x80\x08" + b"\x7f" * 512, "a decimal of 512 bytes"),
        ({"type": "array", "items": DECIMAL}, b"\x02\x80\x08" + b"\x7f" * 512 + b"\0", "a decimal of 512 bytes"),
        (
            {**DECIMAL, "type": "fixed", "name": "F", "size": 300, "precision": 700},
            b"\1" * 300,
            "decimals of 300 bytes",
        ),
        (
            {"type": "array", "items": {"type": "array", "items": "null"}},
            b"\x80\x10" + b"\x80\x10\0" * 1_024 + b"\0",
            "more than [0-9]+ parts",
        ),
        (doubling(22), b"", "more than 10020 parts"),
        ({"type": "array", "items": MANY}, b"\xd0\x0f" + b"\x9e\x1f\2" * 1_000 + b"\0", "more than [0-9]+ parts"),
    ],
    ids=["decimal", "decimals", "fixed", "nulls", "laughs", "union"],
)
def test_few_bytes_that_would_become_much_are_refused_before_they_do(
    client: FakeClient, monkeypatch: pytest.MonkeyPatch, schema: Any, value: bytes, why: str
):
    raw = frame(client, schema, value)
    monkeypatch.setattr(fastavro, "schemaless_reader", lambda *_: pytest.fail("it was read"))
    with pytest.raises(ValueError, match=why):
        codec(client).decode(raw)


def test_decimals_and_unions_as_people_have_them_are_read(client: FakeClient):
    own = {"type": "array", "items": ["null", DECIMAL, "string"]}
    mine = codec(client, schema=own)
    value = [decimal.Decimal("12.34"), None, "x"] * 200
    assert mine.decode(mine.encode(value)) == value


EVERYTHING = {
    "type": "record",
    "name": "All",
    "fields": [
        {"name": "n", "type": "null"},
        {"name": "b", "type": "boolean"},
        {"name": "i", "type": "int"},
        {"name": "f", "type": "float"},
        {"name": "d", "type": "double"},
        {"name": "s", "type": "string"},
        {"name": "y", "type": "bytes"},
        {"name": "x", "type": {"type": "fixed", "name": "X", "size": 3}},
        {"name": "e", "type": {"type": "enum", "name": "E", "symbols": ["A", "B"]}},
        {"name": "m", "type": {"type": "map", "values": "long"}},
        {"name": "a", "type": {"type": "array", "items": ["null", "All"]}},
        {"name": "t", "type": {"type": "long", "logicalType": "timestamp-millis"}},
    ],
}


def test_a_walk_ends_where_the_value_ends():
    named: dict[str, Any] = {}
    schema = fastavro.parse_schema(copy.deepcopy(EVERYTHING), named)
    inner = {"n": None, "b": True, "i": -70000, "f": 1.0, "d": 2.0, "s": "é", "y": b"abc", "x": b"123", "e": "B"}
    inner |= {"m": {"k": 1, "l": 2}, "a": [], "t": NOW}
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, schema, {**inner, "a": [None, inner, inner]})
    raw, walk = stream.getvalue(), walk_of(schema, named)

    assert walk is not None
    walk(raw, 0)
    for cut in range(len(raw)):
        with pytest.raises(ValueError, match=r"it (ends|says)"):
            walk(raw[:cut], 0)


@pytest.mark.parametrize("schema", ["long", {"type": "array", "items": "long"}, avro_schema(Order)])
def test_values_that_cannot_grow_are_not_walked(schema: Any):
    named: dict[str, Any] = {}
    parsed = fastavro.parse_schema(copy.deepcopy(schema), named)
    assert walk_of(parsed, named) is None


@dataclass
class HasAny:
    thing: Any


@pytest.mark.parametrize("model", [HasAny, dict[int, str], tuple[int, str], object])
def test_a_model_that_avro_cannot_say_is_refused_where_it_is_declared(client: FakeClient, model: Any):
    with pytest.raises(OptionError, match="schema of your own"):
        codec(client, model)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"subject": "nothing"}, "takes 'topic', 'record', 'topic_record' or a function"),
        ({"schema": {"type": "record"}}, "it is no Avro schema"),
        ({"registry": "http://x"}, r"takes fs.Registry"),
    ],
)
def test_what_a_codec_cannot_be_made_of_is_refused(client: FakeClient, options: dict[str, Any], why: str):
    with pytest.raises(OptionError, match=why):
        fs.Avro(**{"registry": registry_of(client), **options})


def test_a_codec_without_schema_only_reads(client: FakeClient):
    with pytest.raises(Unencodable, match="only reads"):
        codec(client).encode({})


def test_a_codec_travels_without_what_it_knows(client: FakeClient):
    mine = fs.Avro(Line, registry=fs.Registry("http://user:secret@registry.test", timeout=2)).bind("orders", "value")
    copied = pickle.loads(pickle.dumps(mine))
    assert copied.subject == "orders-value"
    assert copied.registry.shown == "http://registry.test"
    assert "secret" not in repr(copied.registry)


def test_schemas_of_classes_are_the_same_in_both_languages():
    schema = json_schema(Order)
    assert schema["definitions"]["Order"]["required"] == ["id"]
    assert schema["definitions"]["Line"]["properties"]["count"] == {"type": "integer", "default": 1}
    assert avro_schema(Order, "shop")["namespace"] == "shop"  # type: ignore[index, call-overload]
    assert json_schema(Tree)["definitions"]["Tree"]["properties"]["children"]["items"] == {"$ref": "#/definitions/Tree"}
    assert json_schema(OrderModel)["title"] == "OrderModel"
    assert "$defs" in json_schema(OrderStruct)


@given(st.binary(max_size=60))
def test_any_bytes_are_a_value_or_refused(raw: bytes):
    client = FakeClient()
    mine = codec(client)
    for schema in (EVERYTHING, NODE, avro_schema(Tree)):
        try:
            mine.decode(frame(client, schema, raw))
        except (ValueError, TypeError, AttributeError):
            continue


def test_a_schema_that_is_nested_deep_is_refused(client: FakeClient):
    text = '{"type":"array","items":' * 20_000 + '"long"' + "}" * 20_000
    number = client.register("deep", SchemaText("AVRO", text))
    with pytest.raises(ValueError, match="nested too deep"):
        codec(client).decode(wire.prefix(number) + b"\0")


@dataclass
class Created:
    id: int


@dataclass
class Renamed:
    id: int
    name: str = ""


@attrs.define
class Moved:
    id: int
    to: str = ""


@dataclass
class Event:
    what: Created | Renamed | Moved
    all: list[Renamed | Created] = field(default_factory=list)


class EventModel(pydantic.BaseModel):
    what: Created | Renamed
    more: Created | None = None


@pytest.mark.parametrize(
    "value",
    [
        Event(Created(1), [Created(2), Renamed(3, "n")]),
        Event(Renamed(1, "n")),
        Event(Moved(1, "there")),
        EventModel(what=Renamed(1, "n"), more=Created(2)),
        EventModel(what=Created(1)),
    ],
)
@pytest.mark.parametrize("namespace", [None, "shop"])
def test_a_record_out_of_a_union_is_of_its_own_class(client: FakeClient, value: Any, namespace: str | None):
    mine = codec(client, type(value), namespace=namespace)
    assert mine.decode(mine.encode(value)) == value
