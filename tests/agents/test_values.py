"""Values: what each annotation takes, makes and refuses; how outputs become bytes."""

from __future__ import annotations

import datetime
import decimal
import enum
import uuid
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, NotRequired, TypedDict

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

import flowshare as fs
from flowshare.agents.handler.encoding import encode
from flowshare.agents.handler.errors import AnnotationError, Unencodable
from flowshare.agents.handler.send import encode_headers
from flowshare.agents.handler.values import decoder


class Colour(enum.Enum):
    RED = "red"


@dataclass
class Item:
    name: str
    price: float = 0.0
    tags: list[str] = field(default_factory=list)


@dataclass
class Tree:
    name: str
    children: list[Tree] = field(default_factory=list)


class Row(TypedDict):
    id: int
    note: NotRequired[str]


class Point(NamedTuple):
    x: int
    y: int = 0


class Order(fs.Record, serializer="json"):
    id: str
    total: float


@pytest.mark.parametrize(
    ("annotation", "raw", "value"),
    [
        (str, "héllo".encode(), "héllo"),
        (int, b"5", 5),
        (float, b"5", 5.0),
        (float, b"5.5", 5.5),
        (bool, b"true", True),
        (dict, b'{"a":1}', {"a": 1}),
        (list, b"[1]", [1]),
        (Any, b'[1,{"a":null}]', [1, {"a": None}]),
        (list[int], b"[1,2]", [1, 2]),
        (dict[str, float], b'{"a":1}', {"a": 1.0}),
        (tuple[int, str], b'[1,"a"]', (1, "a")),
        (set[int], b"[1,1]", {1}),
        (Colour, b'"red"', Colour.RED),
        (Literal["a", "b"], b'"a"', "a"),
        (Item, b'{"name":"x","price":2,"extra":1}', Item("x", 2.0)),
        (Tree, b'{"name":"a","children":[{"name":"b"}]}', Tree("a", [Tree("b")])),
        (list[Item], b'[{"name":"x"}]', [Item("x")]),
        (Row, b'{"id":1}', {"id": 1}),
        (Row, b'{"id":1,"note":"n"}', {"id": 1, "note": "n"}),
        (Point, b'{"x":1}', Point(1)),
        (datetime.date, b'"2026-11-21"', datetime.date(2026, 11, 21)),
        (uuid.UUID, b'"00000000-0000-0000-0000-000000000001"', uuid.UUID(int=1)),
        (decimal.Decimal, b'"1.10"', decimal.Decimal("1.10")),
        (int | str, b'"a"', "a"),
        (Item | None, b'{"name":"x"}', Item("x")),
        (dict | None, None, None),
        (bytes | None, None, None),
        (bytes | None, b"x", b"x"),
    ],
)
def test_a_value_that_fits_is_made(annotation: Any, raw: bytes | None, value: Any):
    decode = decoder(annotation)

    assert decode is not None
    assert decode(raw) == value


@pytest.mark.parametrize(
    ("annotation", "raw"),
    [
        (str, b"\xff"),
        (int, b'"5"'),
        (int, b"true"),
        (int, b"1.5"),
        (float, b"true"),
        (dict, b"[]"),
        (list[int], b'["a"]'),
        (tuple[int, int], b"[1]"),
        (Colour, b'"blue"'),
        (Literal["a"], b'"b"'),
        (Item, b"{}"),
        (Item, b"[]"),
        (Item, b'{"name":5}'),
        (Row, b'{"note":"n"}'),
        (Row, b'{"id":"1"}'),
        (datetime.datetime, b"5"),
        (int | str, b"[]"),
        (dict, None),
        (str, None),
        (Order, b"{}"),
        (Order, b"5"),
    ],
)
def test_a_value_that_does_not_fit_is_refused(annotation: Any, raw: bytes | None):
    decode = decoder(annotation)

    assert decode is not None
    with pytest.raises(Exception):  # noqa: B017, PT011 - the runner turns any error into a dead letter
        decode(raw)


def test_bytes_need_no_decoder():
    assert decoder(bytes) is None


def test_a_faust_record_is_made_and_encoded():
    decode = decoder(Order)
    assert decode is not None
    order = decode(b'{"id":"1","total":2.5}')

    assert isinstance(order, Order)
    assert order.total == 2.5
    assert orjson.loads(encode(order) or b"")["id"] == "1"


class Plain:
    pass


@pytest.mark.parametrize("annotation", [Plain, dict[int, str], "text", complex])
def test_an_annotation_without_decoder_is_refused(annotation: Any):
    with pytest.raises(AnnotationError):
        decoder(annotation)


json = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


@given(json)
def test_what_is_encoded_as_json_decodes_to_itself(value: Any):
    decode = decoder(Any)
    encoded = encode(value)
    if value is None:
        assert encoded is None
    elif isinstance(value, str):
        assert encoded == value.encode()
    else:
        assert decode is not None
        assert decode(encoded) == value


def test_outputs_become_bytes():
    assert encode(b"x") == b"x"
    assert encode(bytearray(b"x")) == b"x"
    assert (
        encode({"when": datetime.date(2026, 1, 2), "n": decimal.Decimal("1.5")}) == b'{"when":"2026-01-02","n":"1.5"}'
    )
    assert encode(Item("x")) == b'{"name":"x","price":0.0,"tags":[]}'
    with pytest.raises(Unencodable, match="object cannot be sent"):
        encode(object())
    with pytest.raises(Unencodable, match="surrogates not allowed"):
        encode("\ud800")


def test_headers_are_pairs_or_a_mapping_and_extra_ones_do_not_replace():
    assert encode_headers({"a": "x", "b": None}) == (("a", b"x"), ("b", None))
    assert encode_headers([("a", b"1")], (("a", b"2"), ("t", b"3"))) == (("a", b"1"), ("t", b"3"))
    assert encode_headers(None, (("t", b"3"),)) == (("t", b"3"),)
