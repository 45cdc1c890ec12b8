"""Avro values: the column type of a schema, and a decoder for plain Avro binary without a container.

Source: Avro 1.12 specification; the table is that of Spark's own `from_avro`.

| Avro | Spark |
|---|---|
| boolean, int, long, float, double, string, bytes | BOOLEAN, INT, BIGINT, FLOAT, DOUBLE, STRING, BINARY |
| enum, uuid | STRING |
| fixed | BINARY |
| date, timestamp-millis, timestamp-micros | DATE, TIMESTAMP |
| decimal | DECIMAL(precision, scale) |
| record, array, map | STRUCT, ARRAY, MAP with string keys |
| union of null and one more | that one, nullable |
| any other logical type | its base type |
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa

from flowshare.agents.codecs.avro_walk import walk_of
from flowshare.agents.handler.errors import OptionError
from flowshare.spark.registry import WithRegistry, avro_values

PLAIN: Final[Mapping[str, str]] = {
    "boolean": "BOOLEAN",
    "int": "INT",
    "long": "BIGINT",
    "float": "FLOAT",
    "double": "DOUBLE",
    "string": "STRING",
    "bytes": "BINARY",
    "enum": "STRING",
    "fixed": "BINARY",
}
LOGICAL: Final[Mapping[str, str]] = {
    "int-date": "DATE",
    "long-timestamp-millis": "TIMESTAMP",
    "long-timestamp-micros": "TIMESTAMP",
    "bytes-decimal": "DECIMAL",
    "fixed-decimal": "DECIMAL",
}
"""Column types of logical types with their base types: on another base type they have no meaning."""


def spark_type(schema: str) -> str:
    """Return the column type in Spark's DDL.

    Raises: OptionError (no schema, or one without a column type; fastavro is not installed).
    """
    return _type(_parsed(schema), {})


def decoder(schema: str, type_: pa.DataType) -> Callable[[Sequence[bytes | None]], pa.Array]:
    """Return a function that decodes Avro values into an Arrow array of the column's type.

    Raises: OptionError (as `spark_type`).
    """
    named: dict[str, Any] = {}
    parsed = _parsed(schema, named)
    from fastavro import schemaless_reader as read

    try:
        check = walk_of(parsed, named)
    except ValueError as error:
        raise OptionError(f"value_schema: {error}") from error

    def decode(values: Sequence[bytes | None]) -> pa.Array:
        found: list[Any] = []
        for value in values:
            if value is None:
                found.append(None)
                continue
            if check is not None:
                check(value, 0)
            stream = io.BytesIO(value)
            try:
                found.append(read(stream, parsed, None))
            except (EOFError, IndexError, UnicodeDecodeError, StopIteration) as error:
                raise ValueError(f"{type(error).__name__}: {error}") from error
            if stream.tell() != len(value):
                raise ValueError(f"{len(value) - stream.tell()} bytes are left behind the value")
        return pa.array(found, type_)

    return decode


def values(options: WithRegistry) -> Callable[[bytes], Any]:
    """Return a function that decodes a value with a schema registry. Raises: OptionError (as `spark_type`)."""
    _parsed(options.value_schema)
    return avro_values(options, _readable)


def _parsed(schema: str, named: dict[str, Any] | None = None) -> Any:
    """Return the schema, checked and with full names. named: gets the named types. Raises: OptionError."""
    try:
        from fastavro.schema import SchemaParseException, UnknownType, parse_schema
    except ImportError:
        raise OptionError("value=avro needs fastavro: pip install 'flowshare[spark]'") from None
    try:
        found = json.loads(schema)
    except ValueError as error:
        raise OptionError(f"value_schema is no Avro schema, which is JSON: {error}") from error
    try:
        return parse_schema(_readable(found), named)
    except UnknownType as error:
        raise OptionError(f"value_schema: type {error.name!r} is not known") from error
    except (SchemaParseException, KeyError, TypeError, ValueError) as error:
        raise OptionError(f"value_schema is no Avro schema: {type(error).__name__}: {error}") from error


def _readable(schema: Any) -> Any:
    """Return the schema without logical types that have no column type: fastavro makes objects of some that fit
    none."""
    if isinstance(schema, list):
        return [_readable(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    unknown = f"{schema.get('type')}-{schema.get('logicalType')}" not in LOGICAL
    return {key: _readable(part) for key, part in schema.items() if key != "logicalType" or not unknown}


def _type(schema: Any, named: dict[str, str]) -> str:
    if isinstance(schema, list):
        return _union(schema, named)
    if isinstance(schema, str):
        if schema in PLAIN or schema in named:
            return PLAIN.get(schema) or named[schema]
        raise OptionError(f"value_schema: type {schema!r} is not known")
    found = _made_of(schema, named)
    if "name" in schema:
        named[schema["name"]] = found
    return found


def _made_of(schema: Mapping[str, Any], named: dict[str, str]) -> str:
    kind: str = schema["type"]
    if "logicalType" in schema:
        found = LOGICAL[f"{kind}-{schema['logicalType']}"]
        return _decimal(schema) if found == "DECIMAL" else found
    if kind == "record":
        if not schema["fields"]:
            raise OptionError(f"value_schema: record {schema['name']} has no fields")
        fields = ", ".join(f"`{field['name']}`: {_type(field['type'], named)}" for field in schema["fields"])
        return f"STRUCT<{fields}>"
    if kind == "array":
        return f"ARRAY<{_type(schema['items'], named)}>"
    if kind == "map":
        return f"MAP<STRING, {_type(schema['values'], named)}>"
    return _type(kind, named)


def _decimal(schema: Mapping[str, Any]) -> str:
    if "precision" not in schema:
        raise OptionError("value_schema: a decimal needs its precision")
    return f"DECIMAL({schema['precision']}, {schema.get('scale', 0)})"


def _union(schema: Sequence[Any], named: dict[str, str]) -> str:
    others = [one for one in schema if one != "null"]
    if len(others) != 1:
        raise OptionError("value_schema: a union becomes a column only when it is of null and one other type")
    return _type(others[0], named)
