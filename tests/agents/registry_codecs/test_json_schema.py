"""JSON Schema with a registry: what is held against which schema."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import msgspec
import pydantic
import pytest

import flowshare as fs
from flowshare.agents.codecs import wire
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
