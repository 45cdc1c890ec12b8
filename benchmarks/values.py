"""Speed of values: one order of four fields and three lines, read from JSON and written, by what it is declared as.

    python benchmarks/values.py [--runs N]

Printed are the best of the runs, in thousands a second of one processor. `library alone` is what its own reader or
writer takes for the same bytes. Nothing is claimed: what a handler does beside it is most of the time.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import attrs
import msgspec
import orjson
import pydantic

from flowshare.agents.handler.encoding import encode
from flowshare.agents.handler.values import decoder

RAW: Final = orjson.dumps(
    {
        "id": "o-1",
        "customer": "ann",
        "total": 12.5,
        "lines": [{"article": f"a-{n}", "count": n, "price": n / 2} for n in range(3)],
    }
)
REPEAT: Final = 5_000


@dataclass
class Line:
    article: str
    count: int
    price: float


@dataclass
class Order:
    id: str
    customer: str
    total: float
    lines: list[Line]


class LineModel(pydantic.BaseModel):
    article: str
    count: int
    price: float


class OrderModel(pydantic.BaseModel):
    id: str
    customer: str
    total: float
    lines: list[LineModel]


class LineStruct(msgspec.Struct):
    article: str
    count: int
    price: float


class OrderStruct(msgspec.Struct):
    id: str
    customer: str
    total: float
    lines: list[LineStruct]


@attrs.define
class LineAttrs:
    article: str
    count: int
    price: float


@attrs.define
class OrderAttrs:
    id: str
    customer: str
    total: float
    lines: list[LineAttrs]


@dataclass
class Mixed:
    id: str
    customer: str
    total: float
    lines: list[LineModel]


def rate(call: Callable[[Any], Any], given: Any, runs: int) -> float:
    """Calls a second of CPU time, the best of the runs, in thousands."""
    best = float("inf")
    for _ in range(runs):
        began = time.process_time()
        for _ in range(REPEAT):
            call(given)
        best = min(best, time.process_time() - began)
    return REPEAT / best / 1000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=7)
    runs = parser.parse_args().runs
    alone: dict[Any, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
        dict: (orjson.loads, orjson.dumps),
        OrderModel: (OrderModel.model_validate_json, OrderModel.model_dump_json),
        OrderStruct: (msgspec.json.Decoder(OrderStruct).decode, msgspec.json.encode),
    }
    print(f"{'thousands a second':<36}{'read':>8}{'written':>9}{'library alone':>20}")
    for annotation in (dict, Order, OrderModel, OrderStruct, OrderAttrs, Mixed, list[OrderModel], list[OrderStruct]):
        raw = RAW if annotation in (dict, Order, OrderModel, OrderStruct, OrderAttrs, Mixed) else b"[" + RAW + b"]"
        decode = decoder(annotation)
        assert decode is not None
        value = decode(raw)
        figures = f"{rate(decode, raw, runs):>8.0f}{rate(encode, value, runs):>9.0f}"
        if annotation in alone:
            read, write = alone[annotation]
            figures += f"{rate(read, raw, runs):>10.0f} /{rate(write, value, runs):>8.0f}"
        name = annotation.__name__ if isinstance(annotation, type) and annotation in alone else str(annotation)
        print(f"{name.replace('__main__.', ''):<36}{figures}")


if __name__ == "__main__":
    main()
