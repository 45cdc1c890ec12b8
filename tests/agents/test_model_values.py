"""Values of pydantic, msgspec and attrs: read and written as dataclasses are, alone, nested and in one another."""

from __future__ import annotations

import datetime
import decimal
import enum
import re
import subprocess
import sys
import textwrap
import uuid
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import attrs
import msgspec
import orjson
import pydantic
import pytest
from pydantic.dataclasses import dataclass as pydantic_dataclass

import flowshare as fs
from flowshare.agents.handler.encoding import encode
from flowshare.agents.handler.errors import AnnotationError, Unencodable
from flowshare.agents.handler.values import check_topic_type, decoder, explain
from tests.agents.agents_kit import run_agent


class Colour(enum.Enum):
    RED = "red"


class Line(pydantic.BaseModel):
    name: str
    price: float = 0.0


class Order(pydantic.BaseModel):
    id: int
    lines: list[Line] = []
    at: datetime.datetime | None = None
    colour: Colour = Colour.RED
    customer: str = pydantic.Field("", alias="customerName")


class Lax(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(strict=False)
    id: int


class Ids(pydantic.RootModel[list[int]]):
    pass


class Page(pydantic.BaseModel):
    items: list[Page] = []


@pydantic_dataclass
class Checked:
    n: Annotated[int, pydantic.Field(gt=0)]


class Point(msgspec.Struct):
    x: int
    y: float = 0.0
    at: datetime.date | None = None


class Cat(msgspec.Struct, tag=True):
    lives: int


class Dog(msgspec.Struct, tag=True):
    name: str


class Holder(msgspec.Struct):
    line: Line
    item: Item


@attrs.define
class Item:
    name: str
    _count: int = 1
    tags: list[str] = attrs.field(factory=list)
    shown: str = attrs.field(init=False, default="shown")


@attrs.frozen
class Bounded:
    n: int = attrs.field(validator=attrs.validators.gt(0))


@dataclass
class Basket:
    """A dataclass with all of them inside."""

    order: Order
    point: Point
    item: Item
    checked: list[Checked] = field(default_factory=list)
    by_name: dict[str, Line | None] = field(default_factory=dict)
    price: Annotated[int, pydantic.Field(le=10)] = 0
    raw: bytes = b""


@attrs.define
class Crate:
    line: Line
    point: Point | None
    basket: Basket | None = None


BASKET = Basket(
    Order(id=1, lines=[Line(name="a")], customerName="c"),
    Point(1, at=datetime.date(2026, 1, 2)),
    Item("i", 2),
    [Checked(3)],
    {"a": Line(name="b", price=1.5), "b": None},
    7,
    b"raw",
)


@pytest.mark.parametrize(
    ("annotation", "raw", "value"),
    [
        (Order, b'{"id":1,"at":"2026-01-02T03:04:05","colour":"red","customerName":"c","other":1}', None),
        (Order | None, None, None),
        (list[Order], b'[{"id":1}]', [Order(id=1)]),
        (dict[str, Line], b'{"a":{"name":"x","price":1}}', {"a": Line(name="x", price=1.0)}),
        (Lax, b'{"id":"1"}', Lax(id=1)),
        (Ids, b"[1,2]", Ids([1, 2])),
        (Page, b'{"items":[{"items":[]}]}', Page(items=[Page()])),
        (Checked, b'{"n":1}', Checked(1)),
        (Annotated[int, pydantic.Field(gt=0)], b"1", 1),
        (pydantic.PositiveInt, b"1", 1),
        (list[Annotated[int, {"of": "nobody"}]], b"[1]", [1]),
        (Annotated[int, pydantic.Field(gt=0), {"of": "nobody"}], b"1", 1),
        (pydantic.AnyUrl, b'"http://x/"', pydantic.AnyUrl("http://x/")),
        (Point, b'{"x":1,"y":2,"at":"2026-01-02","other":1}', Point(1, 2.0, datetime.date(2026, 1, 2))),
        (list[Point | None], b'[{"x":1},null]', [Point(1), None]),
        (Cat | Dog, b'{"type":"Dog","name":"d"}', Dog("d")),
        (Point | Item, b'{"name":"n"}', Item("n")),
        (Annotated[int, msgspec.Meta(gt=0)], b"1", 1),
        (Holder, b'{"line":{"name":"a"},"item":{"name":"b"}}', Holder(Line(name="a"), Item("b"))),
        (Item, b'{"name":"x","_count":2,"tags":["t"],"other":1}', Item("x", 2, ["t"])),
        (dict[str, Item], b'{"a":{"name":"x"}}', {"a": Item("x")}),
        (Order | Item, b'{"name":"x"}', Item("x")),
        (list[Order | Point], b'[{"id":1},{"x":1}]', [Order(id=1), Point(1)]),
    ],
)
def test_a_model_is_made_of_what_fits(annotation: Any, raw: bytes | None, value: Any):
    decode = decoder(annotation)
    assert decode is not None
    if annotation is Order:
        value = Order(id=1, at=datetime.datetime(2026, 1, 2, 3, 4, 5), customerName="c")  # noqa: DTZ001
    assert decode(raw) == value


@pytest.mark.parametrize(
    ("annotation", "raw", "why"),
    [
        (Order, b'{"id":"1"}', "Order.id: .*, got str"),
        (Order, b'{"id":1,"lines":[{"name":"a"},{"name":5}]}', r"Order.lines.1.name: .*, got int"),
        (Order, b"{}", "Order.id: Field required"),
        (Order, b"[]", "Order: .*, got array"),
        (Order, b"{", "Order: Invalid JSON"),
        (Order, None, "null"),
        (Order, b'{"id":1,"at":5}', "Order.at: .*, got int"),
        (Ids, b'["a"]', "Ids.0: .*, got str"),
        (Checked, b'{"n":0}', "greater than 0"),
        (pydantic.PositiveInt, b"0", "greater than 0"),
        (Point, b'{"x":"1"}', r"Expected `int`, got `str` - at `\$.x`"),
        (Point, b"{}", "required field `x`"),
        (Annotated[int, msgspec.Meta(gt=0)], b"0", ">= 1"),
        (Holder, b'{"line":{"name":5},"item":{"name":"b"}}', "Line.name: .*, got int"),
        (Item, b'{"name":5}', "Item.name: expected str, got int"),
        (Item, b'{"name":"x","_count":"2"}', "Item._count: expected int, got str"),
        (Item, b"{}", "Item.name is missing"),
        (Bounded, b'{"n":0}', "'n' must be > 0"),
        (Basket, b'{"order":{"id":1},"point":{"x":"1"}}', "Basket.point: Expected `int`"),
        (Basket, b'{"order":{"id":"1"}}', "Basket.order: Order.id: .*, got str"),
        (Crate, b'{"line":{"name":1},"point":null}', "Crate.line: Line.name"),
        (Order | Item, b"5", "got int"),
    ],
)
def test_what_does_not_fit_a_model_is_refused_with_field_and_kind(annotation: Any, raw: bytes | None, why: str):
    decode = decoder(annotation)
    assert decode is not None
    with pytest.raises(Exception) as raised:  # noqa: PT011 - the runner turns any error into a dead letter
        decode(raw)
    assert re.search(why, str(explain(raw, annotation, raised.value)))


def test_the_error_of_a_model_shows_no_value_and_few_of_many():
    decode = decoder(list[Line])
    assert decode is not None
    with pytest.raises(ValueError, match="and 17 more") as raised:
        decode(b"[" + b",".join([b'{"name":["secret"]}'] * 20) + b"]")
    assert "secret" not in str(raised.value)
    assert raised.value.__suppress_context__


@pytest.mark.parametrize(
    "value",
    [
        Order(id=1, lines=[Line(name="a")], at=datetime.datetime(2026, 1, 2), customerName="c"),  # noqa: DTZ001
        Ids([1]),
        Checked(1),
        Point(1, 2.5, datetime.date(2026, 1, 2)),
        Cat(9),
        Item("x", 2, ["t"]),
        Holder(Line(name="a"), Item("b")),
        BASKET,
        Crate(Line(name="a"), Point(2), BASKET),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_is_written_is_read_again(value: Any):
    decode = decoder(type(value))
    assert decode is not None
    raw = encode(value)
    assert decode(raw) == value
    in_list, in_dict = decoder(list[type(value)]), decoder(dict[str, type(value) | None])  # type: ignore[misc]
    assert in_list is not None
    assert in_dict is not None
    assert in_list(encode([value])) == [value]
    assert in_dict(encode({"a": value, "b": None})) == {"a": value, "b": None}


def test_a_model_is_written_by_its_own_writer():
    class Shouted(pydantic.BaseModel):
        n: decimal.Decimal
        id: uuid.UUID
        kind: Literal["a"] = "a"

        @pydantic.field_serializer("n")
        def loud(self, n: decimal.Decimal) -> str:
            return f"{n}!"

    class Renamed(msgspec.Struct, rename="camel", omit_defaults=True):
        some_name: int
        other: int = 5

    assert orjson.loads(encode(Shouted(n=decimal.Decimal("1.10"), id=uuid.UUID(int=1))) or b"") == {
        "n": "1.10!",
        "id": "00000000-0000-0000-0000-000000000001",
        "kind": "a",
    }
    assert encode([Renamed(1)]) == b'[{"someName":1}]'


def test_what_cannot_be_written_is_refused():
    class Odd(pydantic.BaseModel):
        model_config = pydantic.ConfigDict(arbitrary_types_allowed=True)
        thing: object

    class Odder(msgspec.Struct):
        thing: Any

    for value in (Odd(thing=object()), Odder(object()), [Odder(object())], Item(object())):  # type: ignore[arg-type]
        with pytest.raises(Unencodable, match="cannot be sent"):
            encode(value)


def test_a_type_that_its_library_does_not_take_is_refused_at_import():
    class Odd(msgspec.Struct):
        either: Point | Line

    with pytest.raises(AnnotationError, match="msgspec takes no"):
        decoder(Odd)
    with pytest.raises(AnnotationError, match="pydantic takes no"):
        decoder(Annotated[Plain, pydantic.Field(gt=0)])
    with pytest.raises(AnnotationError, match=r"pydantic takes no .*Unfinished.: name 'Missing' is not defined$"):
        decoder(list[Unfinished])


class Plain:
    pass


class Unfinished(pydantic.BaseModel):
    other: Missing  # type: ignore[name-defined]  # noqa: F821


def test_topics_of_models_are_checked_where_things_are_sent():
    app = fs.App("models", broker="memory://")
    for kind, fits, does_not in ((Order, {"id": 1}, {"id": "x"}), (Point, Point(1), {"x": "1"}), (Item, Item("a"), {})):
        topic = app.topic("orders", value_type=kind)
        assert fs.Send(topic, fits).encode().value
        with pytest.raises(Unencodable, match=f"value_type={kind.__name__}, which .* does not fit"):
            fs.Send(topic, does_not).encode()
        with pytest.raises(AnnotationError):
            check_topic_type(Line, kind, "agent", "orders")


def test_an_agent_takes_a_model_and_returns_another():
    got: list[Any] = []

    async def agent(order: Order, delivery: fs.Delivery) -> Point:
        got.append(order)
        delivery.send("out", Item("sent"))
        return Point(order.id)

    seen = run_agent(agent, [Order(id=3), b'{"id":"x"}'], sink="out")

    assert got == [Order(id=3)]
    assert [record.value["x"] for record in seen.out if "x" in record.value] == [3]
    assert [record.value["name"] for record in seen.out if "name" in record.value] == ["sent"]
    assert [letter.reason for letter in seen.dead] == [
        'undecodable: the value b\'{"id":"x"}\' does not fit Order: Order.id: Input should be a valid integer, got str'
    ]


@pytest.mark.slow
def test_none_of_the_libraries_is_imported_unless_an_annotation_is_of_it():
    program = """
        import sys, dataclasses, typing
        import flowshare as fs
        from flowshare.agents.handler.encoding import encode

        @dataclasses.dataclass
        class Order:
            id: int

        app = fs.App("shop", broker="memory://")
        orders = app.topic("orders", value_type=Order)

        @app.share_agent(orders)
        async def bill(order: Order) -> None: ...

        fs.Send(orders, Order(1)).encode()
        assert not {"pydantic", "confluent_kafka", "fastavro", "jsonschema"} & set(sys.modules)
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(program)], check=True, timeout=60)
