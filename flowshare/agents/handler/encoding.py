"""What bytes a value becomes that is sent: by what it is, and the same that `values` reads."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, Final

import orjson

from flowshare.agents.handler import attrs_values, msgspec_values, pydantic_values
from flowshare.agents.handler.errors import Unencodable
from flowshare.agents.handler.texts import said
from flowshare.agents.handler.values import is_model

_JSON: Final = (dict, list)
"""What is nothing else than JSON, and most of what is sent."""


def encode(value: Any) -> bytes | None:
    """A key or value as bytes: bytes stay, str is UTF-8, None stays None, everything else becomes JSON.

    Models of pydantic and msgspec are written by their own writers, pydantic's by their aliases, so that what is
    written is read again; inside other things, too (but pydantic's dataclasses there as dataclasses).
    Raises: Unencodable.
    """
    if value is None or type(value) is bytes:
        return value
    kind: Any = type(value)
    if kind is str:
        return _utf8(value)
    return _json(value) if kind in _JSON else _encoder(kind)(value)


@functools.lru_cache(maxsize=1024)
def _encoder(kind: type) -> Callable[[Any], bytes | None]:
    """How values of a class are written."""
    if issubclass(kind, str):
        return _utf8
    if issubclass(kind, (bytearray, memoryview)):
        return bytes
    if issubclass(kind, float):
        return _finite
    if is_model(kind):
        return _record
    if pydantic_values.is_model(kind):
        return _by(pydantic_values.to_json)
    if msgspec_values.is_struct(kind):
        return _by(msgspec_values.to_json)
    return _json


def _by(to_json: Callable[[Any, Callable[[Any], Any]], bytes]) -> Callable[[Any], bytes]:
    def write(value: Any) -> bytes:
        try:
            return to_json(value, _other)
        except (ValueError, TypeError, RecursionError) as error:
            raise Unencodable(f"a value of type {type(value).__name__} cannot be sent: {said(error)}") from error

    return write


def _utf8(value: Any) -> bytes:
    try:
        encoded: bytes = value.encode()
    except UnicodeEncodeError as error:
        raise Unencodable(f"a value of type {type(value).__name__} cannot be sent: {said(error)}") from error
    return encoded


def _finite(value: Any) -> bytes:
    if not math.isfinite(value):
        raise Unencodable(f"{value} cannot be sent: JSON has no such number; send None, or a str")
    return _json(value)


def _record(value: Any) -> bytes | None:
    return bytes_of(value.dumps(serializer=value._options.serializer or "json"))  # noqa: SLF001 - faust's only door


def _json(value: Any) -> bytes:
    try:
        return orjson.dumps(value, default=_other, option=orjson.OPT_NON_STR_KEYS)
    except orjson.JSONEncodeError as error:
        raise Unencodable(f"a value of type {type(value).__name__} cannot be sent: {said(error)}") from error


def bytes_of(value: Any) -> bytes | None:
    """What a Faust codec returned, as bytes."""
    return value.encode() if isinstance(value, str) else value


def _other(value: Any) -> Any:
    kind = type(value)
    if is_model(kind):
        return value.to_representation()
    if pydantic_values.is_model(kind):
        return pydantic_values.to_plain(value, _other)
    if msgspec_values.is_struct(kind):
        return msgspec_values.to_plain(value, _other)
    if attrs_values.is_attrs(kind):
        return attrs_values.to_plain(value)
    return _other_plain(value)


def _other_plain(value: Any) -> Any:
    if isinstance(value, (set, frozenset)):
        return list(value)
    if isinstance(value, (bytes, bytearray)):
        return bytes(value).decode()
    if type(value).__module__ == "decimal":
        return str(value)
    raise TypeError(f"{type(value).__name__} has no JSON form")
