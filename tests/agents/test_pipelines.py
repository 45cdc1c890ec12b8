"""Declared pipelines: what is checked when the module is imported, and the column types of annotations."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any, Literal, NamedTuple, TypedDict

import attrs
import msgspec
import pydantic
import pytest

import flowshare as fs
from flowshare.agents.handler.ddl import NoColumn, column_type, struct_fields
from flowshare.agents.handler.errors import OptionError, UsageError


@pytest.fixture
def app():
    return fs.App("shop", broker="embedded:///tmp/nowhere")


def test_a_pipeline_has_the_apps_group_and_its_topics_names(app):
    orders = app.topic("orders", value_type=bytes)

    @app.share_pipeline(orders, "returns", sink=fs.Folder("/data/orders"), trigger="10 seconds")
    def paid(rows):
        return rows

    assert app.pipelines == {"paid": paid}
    assert (paid.group, paid.topics) == ("shop.paid", ("orders", "returns"))
    assert paid.options.sink == (fs.Folder("/data/orders"),)
    assert paid(3) == 3


def test_a_topic_as_sink_is_one_that_is_produced_to(app):
    orders = app.topic("orders", value_type=bytes)

    assert app.share_pipeline("a", sink=["b", orders], name="c")(lambda rows: rows).options.sink == (
        fs.Produce("b"),
        fs.Produce(orders),
    )


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"sinks": fs.Console()}, "has no option 'sinks'. Did you mean 'sink'?"),
        ({"sink": 3}, "sink takes fs.Folder"),
        ({"sink": []}, "leave sink out"),
        ({"sink": fs.Produce("out", "twice")}, "delivery takes at_least_once or exactly_once"),
        ({"exactly_once": True}, "exactly_once is for agents"),
        ({"sink": [fs.Produce("out", "exactly_once"), "more"]}, "give each topic a pipeline of its own"),
        ({"sink": fs.Produce("out", "exactly_once"), "output_mode": "complete"}, "append or update, not complete"),
        ({"sink": "out", "trigger": "now and then"}, 'trigger takes text such as "10 seconds"'),
        ({"sink": "out", "trigger": 10}, "trigger takes text"),
        ({"sink": "out", "output_mode": "all"}, "output_mode takes append, update or complete"),
        ({"sink": "out", "source": {"group": "g"}}, "is the pipeline's own"),
    ],
)
def test_a_wrong_option_is_refused_at_import(app, options, problem):
    with pytest.raises(OptionError) as refused:
        app.share_pipeline("orders", **options)(lambda rows: rows)

    assert problem in str(refused.value)


def test_a_function_takes_one_frame_or_without_a_sink_a_batch_and_its_number(app):
    def two(rows, number): ...
    def three(rows, number, more): ...
    async def later(rows): ...

    assert app.share_pipeline("orders")(two).arguments == 2
    with pytest.raises(UsageError, match="takes one DataFrame, and this one takes 2"):
        app.share_pipeline("orders", sink="out", name="b")(two)
    with pytest.raises(UsageError, match="the batch and its number, and this one takes 3"):
        app.share_pipeline("orders", name="c")(three)
    with pytest.raises(UsageError, match="cannot be async"):
        app.share_pipeline("orders", name="d")(later)


def test_names_and_groups_are_one_pipelines_only(app):
    app.share_pipeline("orders", name="a")(lambda rows: None)

    with pytest.raises(UsageError, match="already"):
        app.share_pipeline("orders", name="a")(lambda rows: None)
    with pytest.raises(UsageError, match="already"):
        app.share_pipeline("orders", name="b", group="shop.a")(lambda rows: None)
    with pytest.raises(UsageError, match=r"write @app\.share_pipeline"):
        app.share_pipeline(lambda rows: None)


class Kind(enum.Enum):
    GOOD = "good"
    BAD = "bad"


class Item(NamedTuple):
    name: str
    price: Decimal | None


class Order(TypedDict):
    id: int
    state: Literal["paid", "open"]
    items: list[Item]
    notes: dict[str, float]


@dataclass
class Parcel:
    order: Order
    sent: datetime
    kind: Kind
    fragile: bool


@pytest.mark.parametrize(
    ("annotation", "column"),
    [
        (str, "STRING"),
        (int | None, "BIGINT"),
        (list[float], "ARRAY<DOUBLE>"),
        (tuple[str, ...], "ARRAY<STRING>"),
        (Item, "STRUCT<`name`: STRING, `price`: DECIMAL(38, 18)>"),
        (
            Parcel,
            "STRUCT<`order`: STRUCT<`id`: BIGINT, `state`: STRING, `items`: ARRAY<STRUCT<`name`: STRING, "
            "`price`: DECIMAL(38, 18)>>, `notes`: MAP<STRING, DOUBLE>>, `sent`: TIMESTAMP, `kind`: STRING, "
            "`fragile`: BOOLEAN>",
        ),
    ],
)
def test_annotations_become_column_types(annotation, column):
    assert column_type(annotation) == column


def test_what_is_no_struct_has_no_fields_and_what_is_no_type_no_column():
    assert struct_fields(str) is None
    assert struct_fields(Item) == "`name`: STRING, `price`: DECIMAL(38, 18)"
    with pytest.raises(NoColumn, match="value_schema"):
        column_type(Any)


class Model(pydantic.BaseModel):
    id: int = pydantic.Field(gt=0)
    note: str | None = pydantic.Field(None, alias="noteText")


class Struct(msgspec.Struct, rename="camel"):
    some_id: int
    tags: list[str] = []


@attrs.define
class Attrs:
    id: int
    inner: Model


def test_models_are_structs_as_dataclasses_are() -> None:
    assert struct_fields(Model) == "`id`: BIGINT, `noteText`: STRING"
    assert struct_fields(Struct) == "`someId`: BIGINT, `tags`: ARRAY<STRING>"
    assert struct_fields(Attrs) == "`id`: BIGINT, `inner`: STRUCT<`id`: BIGINT, `noteText`: STRING>"


def test_a_pipeline_on_a_topic_with_a_codec_that_spark_does_not_know_is_refused(app):
    class Codec:
        def decode(self, raw, headers): ...
        def encode(self, value): ...

    with pytest.raises(UsageError, match="a codec of the application's, which Spark does not know"):
        app.share_pipeline(app.topic("orders", value_codec=Codec()))(lambda rows: rows)
    known = app.topic("orders", value_codec=fs.Avro(Model, registry=fs.Registry("http://registry.test")))
    assert app.share_pipeline(known, name="fine")(lambda rows: rows).topics == ("orders",)
