"""Schemas made of classes: Avro's and JSON Schema's, for types without a written schema.

| annotation | Avro | JSON Schema |
|---|---|---|
| `str`, `bytes`, `bool` | string, bytes, boolean | string, string, boolean |
| `int`, `float` | long, double | integer, number |
| `None`, unions | null, union | null, anyOf |
| `list[T]`, `set[T]`, `tuple[T, ...]` | array | array |
| `dict[str, T]` | map | object |
| `datetime`, `date`, `time`, `UUID` | timestamp-micros, date, time-micros, uuid | string with a format |
| `Enum` and `Literal` of texts | enum (where they are names, else string) | enum |
| `Decimal` | refused, as its scale is not known | string |
| `Any` | refused | anything |
| dataclass, TypedDict, NamedTuple, attrs class, pydantic model, msgspec struct | record | object |

A default that is plain becomes the field's, so that values written without the field can be read. pydantic and msgspec
make their JSON Schemas themselves. A schema of your own can say what a class cannot (aliases, decimals, other numbers).
"""

from __future__ import annotations

import datetime
import decimal
import enum
import re
import types
import typing
import uuid
from collections.abc import Mapping
from typing import Any, Final, Literal, Union, get_args, get_origin

from flowshare.agents.handler import msgspec_values, pydantic_values
from flowshare.agents.handler.errors import OptionError
from flowshare.agents.handler.fields import NO_DEFAULT, Field, fields_of
from flowshare.agents.handler.values import describe

_AVRO: Final[Mapping[Any, Any]] = {
    str: "string",
    int: "long",
    float: "double",
    bool: "boolean",
    bytes: "bytes",
    type(None): "null",
    datetime.datetime: {"type": "long", "logicalType": "timestamp-micros"},
    datetime.date: {"type": "int", "logicalType": "date"},
    datetime.time: {"type": "long", "logicalType": "time-micros"},
    uuid.UUID: {"type": "string", "logicalType": "uuid"},
}
_JSON: Final[Mapping[Any, dict[str, Any]]] = {
    str: {"type": "string"},
    int: {"type": "integer"},
    float: {"type": "number"},
    bool: {"type": "boolean"},
    bytes: {"type": "string"},
    type(None): {"type": "null"},
    datetime.datetime: {"type": "string", "format": "date-time"},
    datetime.date: {"type": "string", "format": "date"},
    datetime.time: {"type": "string", "format": "time"},
    uuid.UUID: {"type": "string", "format": "uuid"},
    decimal.Decimal: {"type": "string"},
    list: {"type": "array"},
    dict: {"type": "object"},
    Any: {},
}
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_ARRAYS: Final = (list, set, frozenset, tuple)


def avro_schema(tp: Any, namespace: str | None = None) -> dict[str, Any] | str | list[Any]:
    """Return Avro's schema of a type. namespace: of its records. Raises: OptionError: a part of the type has none."""
    return _Avro(namespace).of(tp)  # type: ignore[no-any-return]


def avro_records(tp: Any, namespace: str | None = None) -> dict[str, Any]:
    """Return the classes that become records of a type's schema, by full name; none if no union has two of them."""
    made = _Avro(namespace)
    made.of(tp)
    return {name: one["of"] for name, one in made.named.items() if "of" in one} if made.divided else {}


def json_schema(tp: Any) -> dict[str, Any]:
    """Return the JSON Schema of a type. Raises: OptionError: a part of the type has none."""
    if pydantic_values.is_pydantic(tp):
        return {**pydantic_values.json_schema(tp)}
    if msgspec_values.is_msgspec(tp):
        return {**msgspec_values.json_schema(tp)}
    made = _Json()
    schema = made.of(tp)
    return {"$schema": "http://json-schema.org/draft-07/schema#", **schema, **made.others}


class _Avro:
    def __init__(self, namespace: str | None) -> None:
        self._namespace = namespace
        self.named: dict[str, Any] = {}
        self.divided = False
        """True if a union has more than one record."""

    def of(self, tp: Any) -> Any:
        if tp in _AVRO:
            return _AVRO[tp]
        origin, args = get_origin(tp), get_args(tp)
        if origin in (typing.Annotated, typing.Required, typing.NotRequired):
            return self.of(args[0])
        if origin in (Union, types.UnionType):
            found = self._union([self.of(arg) for arg in args])
            records = [one for one in found if self._is_record(one)]
            self.divided |= len(records) > 1
            return found
        if origin is Literal:
            return self._symbols(f"{'_'.join(map(str, args))}"[:60], args)
        if origin in _ARRAYS and args and (origin is not tuple or args[-1] is Ellipsis):
            return {"type": "array", "items": self.of(args[0])}
        if origin is dict and args[0] is str:
            return {"type": "map", "values": self.of(args[1])}
        if isinstance(tp, type) and issubclass(tp, enum.Enum):
            return self._symbols(tp.__name__, [one.value for one in tp])
        return self._record(tp)

    def _is_record(self, schema: Any) -> bool:
        if isinstance(schema, str):
            return "of" in self.named.get(schema, ())
        return isinstance(schema, dict) and schema["type"] == "record"

    @staticmethod
    def _union(parts: list[Any]) -> list[Any]:
        flat: list[Any] = []
        for part in parts:
            flat += part if isinstance(part, list) else [part]
        return [one for at, one in enumerate(flat) if one not in flat[:at]]

    def _symbols(self, name: str, values: Any) -> Any:
        if all(isinstance(one, str) and _NAME.fullmatch(one) for one in values) and _NAME.fullmatch(name):
            return self._once(name, {"type": "enum", "name": name, "symbols": list(values)})
        if all(isinstance(one, str) for one in values):
            return "string"
        if all(type(one) is int for one in values):
            return "long"
        raise OptionError(f"Avro has no type for one of {list(values)}: give a schema of your own")

    def _once(self, name: str, schema: dict[str, Any]) -> Any:
        """Write a named type where it comes first."""
        full = name if self._namespace is None else f"{self._namespace}.{name}"
        if full in self.named:
            if self.named[full] != schema:
                raise OptionError(f"two types of an Avro schema are called {full}: rename one, or give a schema")
            return full
        self.named[full] = schema
        return schema if self._namespace is None else {**schema, "namespace": self._namespace}

    def _record(self, tp: Any) -> Any:
        found = fields_of(tp)
        if found is None:
            raise OptionError(f"there is no Avro type for {describe(tp)}: give a schema of your own, schema=…")
        name = re.sub(r"\W", "_", tp.__name__)
        full = name if self._namespace is None else f"{self._namespace}.{name}"
        if full in self.named:
            if self.named[full].get("of") is not tp:
                raise OptionError(f"two types of an Avro schema are called {full}: rename one, or give a schema")
            return full
        self.named[full] = {"of": tp}
        schema: dict[str, Any] = {"type": "record", "name": name}
        if self._namespace is not None:
            schema["namespace"] = self._namespace
        schema["fields"] = [self._field(tp, one) for one in found]
        return schema

    def _field(self, tp: Any, one: Field) -> dict[str, Any]:
        if not _NAME.fullmatch(one.name):
            raise OptionError(f"{describe(tp)}.{one.name} is no name in Avro: give a schema of your own, schema=…")
        try:
            schema = self.of(one.hint)
        except OptionError as error:
            raise OptionError(f"{describe(tp)}.{one.name}: {error}") from None
        if one.default is NO_DEFAULT:
            return {"name": one.name, "type": schema}
        default = one.default.value if isinstance(one.default, enum.Enum) else one.default
        if isinstance(schema, list):  # a default is of the first of a union
            schema = sorted(schema, key=lambda part: (part == "null") != (default is None))
        if default is not None and not _plain(default):
            return {"name": one.name, "type": schema}
        return {"name": one.name, "type": schema, "default": default}


def _plain(default: Any) -> bool:
    return isinstance(default, (str, bool, int, float)) or default in ([], {})


class _Json:
    def __init__(self) -> None:
        self._defs: dict[str, Any] = {}
        self._of: dict[str, Any] = {}

    @property
    def others(self) -> dict[str, Any]:
        return {"definitions": self._defs} if self._defs else {}

    def of(self, tp: Any) -> dict[str, Any]:
        if tp in _JSON:
            return dict(_JSON[tp])
        origin, args = get_origin(tp), get_args(tp)
        if origin in (typing.Annotated, typing.Required, typing.NotRequired):
            return self.of(args[0])
        if origin in (Union, types.UnionType):
            return {"anyOf": [self.of(arg) for arg in args]}
        if origin is Literal:
            return {"enum": list(args)}
        if origin is tuple and args and args[-1] is not Ellipsis:
            return {
                "type": "array",
                "items": [self.of(arg) for arg in args],
                "minItems": len(args),
                "maxItems": len(args),
            }
        if origin in _ARRAYS and args:
            return {"type": "array", "items": self.of(args[0])}
        if origin is dict:
            return {"type": "object", "additionalProperties": self.of(args[1])}
        if isinstance(tp, type) and issubclass(tp, enum.Enum):
            return {"enum": [one.value for one in tp]}
        return self._object(tp)

    def _object(self, tp: Any) -> dict[str, Any]:
        found = fields_of(tp)
        if found is None or pydantic_values.is_pydantic(tp) or msgspec_values.is_msgspec(tp):
            raise OptionError(f"there is no JSON Schema for {describe(tp)} here: give a schema of your own, schema=…")
        name = tp.__name__
        if self._of.setdefault(name, tp) is not tp:
            raise OptionError(f"two types of a JSON Schema are called {name}: rename one, or give a schema")
        if name not in self._defs:
            self._defs[name] = {}
            properties = {one.name: self._property(one) for one in found}
            self._defs[name] = {"type": "object", "title": name, "properties": properties}
            if required := [one.name for one in found if one.required]:
                self._defs[name]["required"] = required
        return {"$ref": f"#/definitions/{name}"}

    def _property(self, one: Field) -> dict[str, Any]:
        schema = self.of(one.hint)
        default = one.default.value if isinstance(one.default, enum.Enum) else one.default
        return {**schema, "default": default} if default is None or _plain(default) else schema
