"""Speed of values: one order of four fields and three lines, read from JSON and written, by what it is declared as.

    python benchmarks/values.py [--runs N]

Printed are the best of the runs, in thousands a second of one processor. `library alone` is what its own reader or
writer takes for the same bytes; for values with a schema registry what Confluent's own serializers take, whose registry
is in memory, too. Nothing is claimed: what a handler does beside it is most of the time.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
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


def with_registry(runs: int) -> None:
    """Print those of Avro and JSON Schema."""
    from confluent_kafka.schema_registry import SchemaRegistryClient
    from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
    from confluent_kafka.schema_registry.json_schema import JSONDeserializer, JSONSerializer
    from confluent_kafka.serialization import MessageField, SerializationContext

    import flowshare as fs
    from flowshare.agents.codecs.schemas import avro_schema, json_schema
    from tests.agents.registry_codecs.fake import FakeClient, registry_of

    theirs, where = SchemaRegistryClient.new_client({"url": "mock://"}), SerializationContext("o", MessageField.VALUE)
    plain = orjson.loads(RAW)
    avro, in_json = orjson.dumps(avro_schema(Order)).decode(), orjson.dumps(json_schema(Order)).decode()
    mine = registry_of(FakeClient())
    cases: list[tuple[str, Any, Any, Any, Any]] = [
        (
            "Avro, dict",
            fs.Avro(schema=avro, registry=mine),
            plain,
            AvroDeserializer(theirs),
            AvroSerializer(theirs, avro),
        ),
        ("Avro, dataclass", fs.Avro(Order, registry=mine), Order(**plain), None, None),
        (
            "JSON Schema, dict",
            fs.JsonSchema(schema=in_json, registry=mine),
            plain,
            JSONDeserializer(in_json),
            JSONSerializer(in_json, theirs),
        ),
        ("JSON Schema, dataclass", fs.JsonSchema(Order, registry=mine), Order(**plain), None, None),
    ]
    for name, codec, value, read, write in cases:
        bound = codec.bind("o", "value")
        raw = bound.encode(value)
        figures = f"{rate(bound.decode, raw, runs):>8.0f}{rate(bound.encode, value, runs):>9.0f}"
        if read is not None:
            written = write(value, where)
            figures += f"{rate(partial(_in, read, where), written, runs):>10.0f} /"
            figures += f"{rate(partial(_in, write, where), value, runs):>8.0f}"
        print(f"{name:<36}{figures}")


def _in(call: Callable[[Any, Any], Any], where: Any, given: Any) -> Any:
    return call(given, where)


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
    with_registry(runs)


if __name__ == "__main__":
    main()
