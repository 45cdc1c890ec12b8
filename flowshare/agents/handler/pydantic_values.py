"""Values of pydantic v2: models, root models, its dataclasses, its own types, and `Annotated` with its checks.

pydantic is a dependency of the application: it is imported when an annotation, or a sent value, needs it.
"""

from __future__ import annotations

import decimal
import functools
import typing
from collections.abc import Callable
from typing import Any, Final, get_args, get_origin

import orjson

from flowshare.agents.handler.errors import AnnotationError
from flowshare.agents.handler.texts import clip, said

ERRORS_MAX: Final = 3
"""Most errors of one value that are told."""
_TEXT_MAX: Final = 200


def is_pydantic(tp: Any) -> bool:
    """Tell if pydantic reads this type (or this value's class); does not import pydantic."""
    if get_origin(tp) is typing.Annotated:
        return any(_checks(one) for one in tp.__metadata__) or is_pydantic(get_args(tp)[0])
    if not isinstance(tp, type):
        return False
    return hasattr(tp, "__pydantic_validator__") or _of_module(tp.__module__)


def is_model(kind: type) -> bool:
    """Tell if pydantic writes instances of the class: a model, a root model, or a pydantic dataclass."""
    return hasattr(kind, "__pydantic_serializer__")


def from_json(tp: Any) -> Callable[[Any], Any]:
    """Return a function that makes `tp` from JSON bytes, with pydantic's own reader.

    Strict, as for values of other types (a string is not a number), unless the model's own config sets `strict`.
    Raises: AnnotationError: pydantic does not take the type.
    """
    strict = None if _says_strict(tp) else True
    read = _validator(tp).validate_json
    error_kind = _validation_error()

    def decode(raw: Any) -> Any:
        try:
            return read(raw, strict=strict)
        except error_kind as error:
            raise ValueError(_told(tp, error)) from None  # pydantic's text shows the values

    return decode


def converter(tp: Any) -> Callable[[Any], Any]:
    """Return a function that makes `tp` from a JSON value inside another value; a value that is a `tp` stays as it is.

    A value with parts that JSON does not have (a codec's bytes) is read by pydantic's rules for Python objects.
    """
    decode = from_json(tp)
    of_python, error_kind = _validator(tp).validate_python, _validation_error()
    origin = typing.get_origin(tp)
    kind = get_args(tp)[0] if origin is typing.Annotated else tp
    plain = kind if isinstance(kind, type) and is_model(kind) else None

    def convert(value: Any) -> Any:
        if plain is not None and type(value) is plain:
            return value
        try:
            raw = orjson.dumps(value, default=_decimal)
        except TypeError:
            try:
                return of_python(value)
            except error_kind as error:
                raise ValueError(_told(tp, error)) from None
        return decode(raw)  # strings are dates and numbers of other kinds in JSON only

    return convert


def to_json(value: Any, other: Callable[[Any], Any]) -> bytes:
    """Encode a model as JSON, by the names that are read (aliases). other: for values that pydantic cannot write."""
    made: bytes = type(value).__pydantic_serializer__.to_json(value, by_alias=True, fallback=other)
    return made


def to_plain(value: Any, other: Callable[[Any], Any]) -> Any:
    """Turn a model into JSON's own types, inside another value."""
    return type(value).__pydantic_serializer__.to_python(value, mode="json", by_alias=True, fallback=other)


def json_schema(tp: Any) -> dict[str, Any]:
    """Return the JSON Schema of the values read and written."""
    return dict(_adapter(tp).json_schema(by_alias=True))


def _of_module(module: str) -> bool:
    return module.partition(".")[0] in ("pydantic", "pydantic_core", "pydantic_extra_types")


def _checks(metadata: Any) -> bool:
    """Tell if pydantic checks this part of an `Annotated`; pydantic's `Field` becomes objects of `annotated_types`."""
    module = type(metadata).__module__
    return _of_module(module) or module == "annotated_types"


def _adapter(tp: Any) -> Any:
    try:
        from pydantic import TypeAdapter
    except ImportError:
        raise AnnotationError(f"{tp} is checked by pydantic, which is not installed: pip install pydantic") from None
    try:
        made = _adapters(tp, TypeAdapter) if _has_hash(tp) else TypeAdapter(tp)
        made.rebuild(raise_errors=True)
    except Exception as error:
        text = said(error).partition("\n")[0]  # behind it stands where to read on
        raise AnnotationError(f"pydantic takes no {tp}: {clip(text, _TEXT_MAX)}") from error
    return made


def _has_hash(tp: Any) -> bool:
    """Tell if the type can be hashed; the parts of an `Annotated` may prevent it."""
    try:
        hash(tp)
    except TypeError:
        return False
    return True


def _validator(tp: Any) -> Any:
    return _adapter(tp).validator


@functools.lru_cache(maxsize=256)
def _adapters(tp: Any, make: Any) -> Any:
    return make(tp)


@functools.cache
def _validation_error() -> type[Exception]:
    from pydantic import ValidationError

    return ValidationError


def _says_strict(tp: Any) -> bool:
    config: Any = getattr(tp, "model_config", None) or getattr(tp, "__pydantic_config__", None) or {}
    return config.get("strict") is not None


def _told(tp: Any, error: Any) -> str:
    """Describe the errors: field, expectation, and kind of the value; never the value, which may be a secret."""
    found = error.errors(include_url=False, include_context=False, include_input=True)
    name = getattr(tp, "__qualname__", "")
    texts = []
    for one in found[:ERRORS_MAX]:
        where = ".".join(str(part) for part in (name, *one["loc"]) if part != "")
        kind = "" if one["type"] in ("missing", "json_invalid") else f", got {_kind(one['input'])}"
        texts.append(clip(f"{where}: {one['msg']}{kind}", _TEXT_MAX))
    if len(found) > ERRORS_MAX:
        texts.append(f"and {len(found) - ERRORS_MAX} more")
    return "; ".join(texts)


def _decimal(value: Any) -> str:
    if isinstance(value, decimal.Decimal):
        return str(value)
    raise TypeError


def _kind(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, dict):
        return "object"
    return "array" if isinstance(value, list) else type(value).__name__
