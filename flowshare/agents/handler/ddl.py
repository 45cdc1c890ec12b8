"""Annotation -> column type in Spark's DDL, for values that are JSON: the types that `agents.handler.values` decodes.

| annotation | column |
|---|---|
| `str`, `int`, `float`, `bool` | STRING, BIGINT, DOUBLE, BOOLEAN |
| `datetime`, `date`, `UUID`, `Decimal` | TIMESTAMP, DATE, STRING, DECIMAL(38, 18) |
| `Literal[…]` of texts, an `Enum` of texts | STRING |
| `list[T]`, `set[T]`, `tuple[T, …]` | ARRAY<T> |
| `dict[str, T]` | MAP<STRING, T> |
| dataclass, `TypedDict`, `NamedTuple`, pydantic model, msgspec struct, attrs class | STRUCT |
| `T | None` | T |
"""

from __future__ import annotations

import datetime
import decimal
import enum
import typing
import uuid
from collections.abc import Mapping
from typing import Any, Final, Literal, get_args, get_origin

from flowshare.agents.handler.fields import fields_of
from flowshare.agents.handler.values import strip_none
from flowshare.core_errors import FlowshareError

SCALARS: Final[Mapping[Any, str]] = {
    str: "STRING",
    int: "BIGINT",
    float: "DOUBLE",
    bool: "BOOLEAN",
    datetime.datetime: "TIMESTAMP",
    datetime.date: "DATE",
    uuid.UUID: "STRING",
    decimal.Decimal: "DECIMAL(38, 18)",
}


class NoColumn(FlowshareError, TypeError):
    """No column type is known for an annotation."""


def struct_fields(annotation: Any) -> str | None:
    """Return the fields of a class (`handler.fields`) as DDL; None when it has no fields. Raises: NoColumn."""
    fields = fields_of(strip_none(annotation)[0])
    return None if fields is None else ", ".join(f"`{one.name}`: {column_type(one.hint)}" for one in fields)


def column_type(annotation: Any) -> str:
    """Return the column type of an annotation. Raises: NoColumn."""
    inner, _ = strip_none(annotation)
    if get_origin(inner) is typing.Annotated:
        return column_type(get_args(inner)[0])
    if inner in SCALARS:
        return SCALARS[inner]
    if (struct := struct_fields(inner)) is not None:
        return f"STRUCT<{struct}>"
    origin, arguments = get_origin(inner), get_args(inner)
    if origin in (list, set, frozenset, tuple) and arguments:
        return f"ARRAY<{column_type(arguments[0])}>"
    if origin is dict and arguments[0] is str:
        return f"MAP<STRING, {column_type(arguments[1])}>"
    texts = arguments if origin is Literal else ()
    if isinstance(inner, type) and issubclass(inner, enum.Enum):
        texts = tuple(one.value for one in inner)
    if texts and all(isinstance(text, str) for text in texts):
        return "STRING"
    raise NoColumn(f"{annotation!r} is no type of a column; give source={{'value_schema': …}} yourself")
