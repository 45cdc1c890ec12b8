"""Values of types that hold themselves in unions: what is read of them, and at what cost, whatever the value."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal

import orjson
import pytest

from flowshare.agents.handler import values
from flowshare.agents.handler.values import decoder


@dataclass
class Sum:
    left: Sum | Product | int
    right: Sum | Product | int
    op: Literal["+"]


@dataclass
class Product:
    made: ClassVar[int] = 0
    left: Sum | Product | int
    right: Sum | Product | int
    op: Literal["*"]

    def __post_init__(self) -> None:
        Product.made += 1


@dataclass
class Branch:
    left: Branch | None = None
    right: Branch | None = None
    tags: list[str] = field(default_factory=list)


def products(depth: int, inmost: object) -> object:
    found = inmost
    for _ in range(depth):
        found = {"left": found, "right": 1, "op": "*"}
    return found


def test_of_a_union_the_first_that_fits_is_made():
    read = decoder(Sum | Product | int)
    assert read is not None

    assert read(b'{"left":1,"right":{"left":2,"right":3,"op":"*"},"op":"+"}') == Sum(1, Product(2, 3, "*"), "+")
    assert read(b"5") == 5
    with pytest.raises(ValueError, match=r"Sum\.op.*Product\.op"):
        read(b'{"left":1,"right":2,"op":"-"}')


def test_what_fits_the_first_one_but_for_its_end_is_not_tried_again_at_each_level():
    read = decoder(Sum | Product | int)
    assert read is not None
    Product.made = 0

    read(orjson.dumps(products(30, 1)))

    assert Product.made <= 60  # once for each of the two unions that hold it, and not 2 ** 30


@pytest.mark.parametrize("inmost", ["none of them", {"left": 1}, [], None])
def test_what_fits_none_of_them_is_refused_once_with_a_reason_that_is_not_doubled_at_each_level(inmost):
    read = decoder(Sum | Product | int)
    assert read is not None
    Product.made = 0

    with pytest.raises(ValueError, match=r"^Sum\.left: ") as caught:
        read(orjson.dumps(products(50, inmost)))

    assert Product.made == 0
    assert len(str(caught.value)) <= 1_000


def test_what_was_tried_for_one_value_is_nothing_to_the_next_one():
    read = decoder(Sum | Product | int)
    assert read is not None

    for _ in range(100):  # objects whose ids are used again
        assert read(b'{"left":1,"right":1,"op":"+"}') == Sum(1, 1, "+")
        with pytest.raises(ValueError, match="Sum"):
            read(b'{"left":1,"right":1,"op":"?"}')


def test_a_value_that_is_nested_too_deep_is_refused_and_the_next_one_is_read():
    read = decoder(Sum | Product | int)
    assert read is not None

    with pytest.raises(RecursionError):
        read(b'{"left":' * 1_000 + b"1" + b',"right":1,"op":"*"}' * 1_000)

    assert read(orjson.dumps(products(1, 1))) == Product(1, 1, "*")


def test_a_class_that_holds_itself_is_looked_at_once_whatever_the_paths_in_its_values(monkeypatch):
    looked: list[object] = []
    hints = values.get_type_hints

    def counted(kind: object, **options: bool) -> dict[str, object]:
        looked.append(kind)
        return hints(kind, **options)

    monkeypatch.setattr(values, "get_type_hints", counted)
    values._class.cache_clear()
    read = decoder(Branch)
    assert read is not None
    for path in range(64):
        value: object = {}
        for bit in range(6):
            value = {"left" if path >> bit & 1 else "right": value}
        read(orjson.dumps(value))

    assert looked == [Branch]
