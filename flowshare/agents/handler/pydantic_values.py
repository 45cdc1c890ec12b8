"""Values of pydantic v2: models, root models, its dataclasses, its own types, and `Annotated` with what it checks.

pydantic is the application's: it is imported when an annotation, or a value that is sent, is of it.
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
"""So many of the errors that pydantic finds in one value are told."""
_TEXT_MAX: Final = 200


def is_pydantic(tp: Any) -> bool:
    """Whether a type (or a value's class) is pydantic's business; without importing it."""
    if get_origin(tp) is typing.Annotated:
        return any(_checks(one) for one in tp.__metadata__) or is_pydantic(get_args(tp)[0])
    if not isinstance(tp, type):
        return False
    return hasattr(tp, "__pydantic_validator__") or _of_module(tp.__module__)


def is_model(kind: type) -> bool:
    """Whether instances of a class are written by pydantic: a model, a root model, one of its dataclasses."""
    return hasattr(kind, "__pydantic_serializer__")


def from_json(tp: Any) -> Callable[[Any], Any]:
    """What makes `tp` out of JSON in bytes, by pydantic's own reader. Raises: AnnotationError: no such type.

    Strict, as values of other types are (a string is no number), unless the model's own config says `strict`.
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
    """What makes `tp` out of a value that was read from JSON, within something else; what is one already stays.

    One that holds what JSON has not (a codec's bytes) is taken by pydantic's rules for Python's objects.
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
    """A model as JSON, by the names that it is read by (aliases). other: for what pydantic cannot write."""
    made: bytes = type(value).__pydantic_serializer__.to_json(value, by_alias=True, fallback=other)
    return made


def to_plain(value: Any, other: Callable[[Any], Any]) -> Any:
    """A model as what JSON has, inside something else."""
    return type(value).__pydantic_serializer__.to_python(value, mode="json", by_alias=True, fallback=other)


def json_schema(tp: Any) -> dict[str, Any]:
    """The JSON Schema of what is read and written."""
    return dict(_adapter(tp).json_schema(by_alias=True))


def _of_module(module: str) -> bool:
    return module.partition(".")[0] in ("pydantic", "pydantic_core", "pydantic_extra_types")


def _checks(metadata: Any) -> bool:
    """Whether something in an `Annotated` is for pydantic to check; `annotated_types` are what its `Field` becomes."""
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
    """What stands in an `Annotated` may have none."""
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
    """Which fields, what was expected, of which kind it was; never a value, which may be a secret."""
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
