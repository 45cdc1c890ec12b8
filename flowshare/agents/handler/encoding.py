"""Encoding of sent values as bytes, by their class; `values` reads the same bytes back."""

from __future__ import annotations

import collections
import datetime
import functools
import math
import pathlib
from collections.abc import Callable
from typing import Any, Final

import orjson

from flowshare.agents.handler import attrs_values, durations, msgspec_values, pydantic_values
from flowshare.agents.handler.errors import Unencodable
from flowshare.agents.handler.texts import said
from flowshare.agents.handler.values import is_model

_JSON: Final = (dict, list)
"""Types that can only become JSON; most sent values have one of them."""


def encode(value: Any) -> bytes | None:
    """Encode a key or value: bytes stay, str becomes UTF-8, None stays None, everything else becomes JSON.

    Models of pydantic and msgspec are written by their own writers, pydantic's by their aliases, so that they can be
    read again; inside other values, too (but pydantic's dataclasses there as dataclasses).
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
    """Return the writer for values of a class."""
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
        why = said(error if error.__cause__ is None else error.__cause__)
        raise Unencodable(f"a value of type {type(value).__name__} cannot be sent: {why}") from error


def in_json(value: Any) -> bytes:
    """Encode any value as JSON, text and bytes as a JSON string. Raises: Unencodable."""
    return _json(value)


def bytes_of(value: Any) -> bytes | None:
    """Return a Faust codec's output as bytes."""
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
    if isinstance(value, (set, frozenset, collections.deque)):
        return list(value)
    if isinstance(value, (bytes, bytearray)):
        try:
            return bytes(value).decode()
        except UnicodeDecodeError:
            raise TypeError(
                "bytes within something else are UTF-8 text, and these are none: send them as the whole value, or as "
                "text (base64)"
            ) from None
    if type(value).__module__ == "decimal" or isinstance(value, pathlib.PurePath):
        return str(value)
    if isinstance(value, datetime.timedelta):
        return durations.text_of(value)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return dict(zip(value._fields, value, strict=True))
    raise TypeError(f"{type(value).__name__} has no JSON form")
