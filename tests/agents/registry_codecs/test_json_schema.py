"""JSON Schema with a registry: what is held against which schema."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import msgspec
import pydantic
import pytest

import flowshare as fs
from flowshare.agents.codecs import base, wire
from flowshare.agents.codecs.client import Reference, SchemaText
from flowshare.agents.handler.errors import OptionError, Unencodable
from tests.agents.registry_codecs.fake import FakeClient, registry_of

SCHEMA = {
    "$schema": "http://json-schema.org/draft-07/schema#",
    "title": "Order",
    "type": "object",
    "properties": {"id": {"type": "integer", "minimum": 1}, "secret": {"type": "string", "maxLength": 3}},
    "required": ["id"],
}


@dataclass
class Order:
    id: int
    note: str = "-"


class OrderModel(pydantic.BaseModel):
    id: int = pydantic.Field(ge=1, alias="orderId")


class OrderStruct(msgspec.Struct, rename="camel"):
    order_id: int


@pytest.fixture
def client() -> FakeClient:
    return FakeClient()


def codec(client: FakeClient, model: Any = None, **options: Any) -> Any:
    return fs.JsonSchema(model, registry=registry_of(client), **options).bind("orders", "value")


@pytest.mark.parametrize(
    ("value", "raw"),
    [(Order(1), b'{"id":1,"note":"-"}'), (OrderModel(orderId=1), b'{"orderId":1}'), (OrderStruct(1), b'{"orderId":1}')],
)
def test_a_class_is_written_as_json_behind_its_schemas_id(client: FakeClient, value: Any, raw: bytes):
    mine = codec(client, type(value))

    assert mine.encode(value) == wire.prefix(1) + raw
    assert mine.decode(wire.prefix(1) + raw) == value
    assert codec(client).decode(wire.prefix(1) + raw) == json.loads(raw)
    assert json.loads(client.subjects["orders-value"][0].text)
    assert mine.record_name == type(value).__name__


def test_what_does_not_fit_the_model_is_refused_in_both_directions(client: FakeClient):
    mine = codec(client, Order)
    mine.encode(Order(1))
    with pytest.raises(Unencodable, match=r"Order.id: expected int, got str"):
        mine.encode({"id": "x"})
    with pytest.raises(ValueError, match=r"Order.id: expected int, got str"):
        mine.decode(wire.prefix(1) + b'{"id":"x"}')
    for wrong in (b"bytes", object()):
        with pytest.raises(Unencodable):
            mine.encode(wrong)


def test_without_a_model_values_fit_the_given_schema_or_the_writers(client: FakeClient):
    mine, reads = codec(client, schema=json.dumps(SCHEMA)), codec(client)

    raw = mine.encode({"id": 1})
    assert mine.decode(raw) == reads.decode(raw) == {"id": 1}
    for one in (mine, reads):
        with pytest.raises(ValueError, match="id does not fit minimum: 1"):
            one.decode(wire.prefix(1) + b'{"id":0}')
    with pytest.raises(Unencodable, match="does not fit required: "):
        mine.encode({})
    with pytest.raises(Unencodable, match="only reads"):
        reads.encode({})


def test_the_error_shows_no_value(client: FakeClient):
    mine = codec(client, schema=SCHEMA)
    mine.encode({"id": 1})
    with pytest.raises(ValueError, match=r"^secret does not fit maxLength: 3$"):
        mine.decode(wire.prefix(1) + b'{"id":1,"secret":"hunter2"}')


def test_the_newest_schema_decides_what_may_be_written(client: FakeClient):
    client.register("orders-value", SchemaText("JSON", json.dumps(SCHEMA)))
    mine = codec(client, Order, use_latest=True)
    assert mine.decode(mine.encode(Order(1))) == Order(1)
    with pytest.raises(Unencodable, match="id does not fit minimum: 1"):
        mine.encode(Order(0))


def test_references_are_those_of_the_schema_and_no_other_address_is_asked(client: FakeClient):
    line = {"type": "object", "required": ["article"]}
    client.register("line", SchemaText("JSON", json.dumps(line)))
    order = {"type": "object", "properties": {"line": {"$ref": "line.json"}}}
    mine = codec(client, schema=order, references=[("line.json", "line", 1)])

    raw = mine.encode({"line": {"article": "a"}})

    assert client.subjects["orders-value"][0].references == (Reference("line.json", "line", 1),)
    assert codec(client).decode(raw) == {"line": {"article": "a"}}
    with pytest.raises(ValueError, match="line does not fit required"):
        codec(client).decode(raw[:5] + b'{"line":{}}')
    stray = {"type": "object", "properties": {"x": {"$ref": "http://registry.test/other.json"}}}
    number = client.register("stray", SchemaText("JSON", json.dumps(stray)))
    with pytest.raises(ValueError, match="which is none of its references"):
        codec(client).decode(wire.prefix(number) + b'{"x":1}')


def test_a_recursive_schema_and_a_deep_value(client: FakeClient):
    tree = {"$id": "tree", "type": "object", "properties": {"child": {"$ref": "#"}}}
    mine = codec(client, schema=tree)
    assert mine.decode(mine.encode({"child": {"child": {}}})) == {"child": {"child": {}}}
    deep = b'{"child":' * 900 + b"{}" + b"}" * 900
    with pytest.raises(ValueError, match=r"too deep|does not fit|recursion|unexpected"):
        mine.decode(wire.prefix(1) + deep)


def operation(sign: str) -> dict[str, Any]:
    any_ = {"$ref": "#/definitions/any"}
    rules = {"left": any_, "right": any_, "sign": {"const": sign}}
    return {"type": "object", "required": list(rules), "properties": rules}


@pytest.mark.parametrize("way", ["anyOf", "oneOf"])
def test_of_a_schema_that_holds_itself_in_alternatives_each_part_of_a_value_is_looked_at_once(
    client: FakeClient, way: str
):
    kinds = [{"$ref": "#/definitions/sum"}, {"$ref": "#/definitions/product"}, {"type": "integer"}]
    schema = {
        "$ref": "#/definitions/any",
        "definitions": {"any": {way: kinds}, "sum": operation("+"), "product": operation("*")},
    }
    mine = codec(client, schema=schema)
    value: Any = 1
    for _ in range(40):  # looked at anew at each level it would be 2 ** 40 times
        value = {"left": value, "right": 1, "sign": "*"}

    raw = mine.encode(value)

    assert mine.decode(raw) == value
    with pytest.raises(ValueError, match=rf"it does not fit {way}"):
        mine.decode(raw.replace(b'"left":1,', b'"left":"1",'))
    assert mine.decode(raw) == value


def foreign(client: FakeClient, schema: Any, value: Any, **options: Any) -> tuple[Any, bytes]:
    """A codec that only reads, and a value that was written with this schema."""
    number = client.register("orders-value", SchemaText("JSON", json.dumps(schema)))
    return codec(client, **options), wire.prefix(number) + json.dumps(value).encode()


def doubled(**more: Any) -> dict[str, Any]:
    """A schema that asks twice for what asks twice for what … and refers to it."""
    pairs = {f"d{n}": {"anyOf": [{"$ref": f"#/$defs/d{n - 1}"}] * 2} for n in range(1, 40)}
    schema = "https://json-schema.org/draft/2020-12/schema"
    return {"$schema": schema, "$ref": "#/$defs/d39", "$defs": {"d0": {"type": "integer"}, **pairs}, **more}


@pytest.mark.parametrize(
    ("schema", "value", "why"),
    [
        ({"pattern": "(a+)+$"}, "a" * 2_000 + "b", "does not fit pattern"),
        (
            {"patternProperties": {"(a+)+$": {"type": "null"}}, "additionalProperties": False},
            {"a" * 50 + "b": 1},
            "fit",
        ),
        ({"uniqueItems": True}, [{"a": n} for n in range(3_000)] + [{"a": 1.0}], "does not fit uniqueItems"),
        (doubled(description="$dynamicRef"), "x", "it does not fit anyOf"),
        (doubled(properties={"a": {"$dynamicRef": "#x"}}), "x", "takes more than 20000 steps"),
        ({"items": {"anyOf": [{"const": n} for n in range(1_000)]}}, [{}] * 1_000, "takes more than 20000 steps"),
        ({"anyOf": [False] * 1_000}, ["x"] * 1_000, "takes more than 20000 steps"),
        ({"pattern": "(?=a)a"}, "a", "is none that RE2 can match"),
        ({"unevaluatedProperties": False, "patternProperties": {"a": {}}}, {}, "is not looked at"),
    ],
)
def test_a_schema_that_could_keep_a_reader_busy_for_hours_does_not(
    client: FakeClient, schema: Any, value: Any, why: str
):
    mine, raw = foreign(client, schema, value)
    with pytest.raises(ValueError, match=why):
        mine.decode(raw)


OTHERS = {"patternProperties": {"^x": {"type": "integer"}}}


def test_patterns_of_the_applications_own_schema_may_be_others(client: FakeClient):
    mine = codec(client, schema={"pattern": "^(?=.*[0-9])[a-z0-9]+$"})
    assert mine.decode(mine.encode("a1")) == "a1"
    with pytest.raises(Unencodable, match="does not fit pattern"):
        mine.encode("ab")


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({"uniqueItems": True}, [1, True, "1", [1], {"a": 1}, [True]], [{"a": [1]}, {"a": [1.0]}]),
        ({"enum": [1, "a", {"x": [1]}, None]}, {"x": [1.0]}, True),
        ({"const": {"a": 0}}, {"a": 0.0}, {"a": False}),
        ({"pattern": "\\u00e9$"}, "caf\u00e9", "cafe"),
        ({"properties": {"a": {}}, **OTHERS, "additionalProperties": False}, {"a": 1, "x1": 2}, {"y": 1}),
        ({**OTHERS, "additionalProperties": {"type": "null"}}, {"x": 1, "y": None}, {"y": 1}),
        ({**OTHERS, "additionalProperties": {"type": "null"}}, {"x": 1}, {"x": "1"}),
    ],
)
def test_keywords_say_what_json_schema_says(client: FakeClient, schema: Any, good: Any, bad: Any):
    mine, raw = foreign(client, schema, good)
    assert mine.decode(raw) == good
    with pytest.raises(ValueError, match="does not fit"):
        mine.decode(foreign(client, schema, bad)[1])


def test_a_large_value_is_held_against_its_schema_before_its_handlers_turn(client: FakeClient):
    value = {"id": 1, "more": ["x" * 100] * 200}
    mine, raw = foreign(client, SCHEMA, value)
    assert mine.missing(raw, ()).what.startswith("schema 1")
    mine.missing(raw, ()).fetch()
    look = mine.missing(raw, ())
    assert look.what == f"a look at a value of {len(raw)} bytes"
    look.fetch()
    assert mine.missing(raw, ()) is None
    assert mine.decode(raw) == value
    assert not mine._looked
    bad = raw.replace(b'"id": 1', b'"id": 0')
    mine.missing(bad, ()).fetch()
    with pytest.raises(ValueError, match="id does not fit minimum"):
        mine.decode(bad)
    assert mine.decode(raw) == value  # who does not ask before gets it all the same


def test_values_that_were_looked_at_and_are_not_asked_for_are_bounded(
    client: FakeClient, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(base, "LOOKED_BYTES_MAX", 50_000)
    mine, raw = foreign(client, SCHEMA, {"id": 1, "more": ["x" * 100] * 200})
    mine.missing(raw, ()).fetch()
    for number in range(1, 9):
        mine.missing(raw.replace(b'"id": 1', b'"id": %d' % number), ()).fetch()
    assert sum(map(len, mine._looked)) <= 50_000


def test_what_a_schema_refers_to_is_looked_at_for_each_place_of_the_same_value(client: FakeClient):
    schema = {
        "properties": {"a": {"$ref": "#/definitions/small"}, "b": {"$ref": "#/definitions/large"}},
        "definitions": {"small": {"maximum": 5}, "large": {"minimum": 5}},
    }
    mine = codec(client, schema=schema)

    assert mine.decode(mine.encode({"a": 5, "b": 5})) == {"a": 5, "b": 5}
    with pytest.raises(Unencodable, match="b does not fit minimum: 5"):
        mine.encode({"a": 3, "b": 3})


@pytest.mark.parametrize("schema", ["{", {"type": "nothing"}, {"properties": 5}])
def test_what_is_no_schema_is_refused(client: FakeClient, schema: Any):
    with pytest.raises(OptionError, match="it is no JSON Schema"):
        codec(client, schema=schema)
    number = client.register("any", SchemaText("JSON", schema if isinstance(schema, str) else json.dumps(schema)))
    with pytest.raises(ValueError, match="it is no JSON Schema"):
        codec(client).decode(wire.prefix(number) + b"{}")
