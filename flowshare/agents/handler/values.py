"""Values: what an annotation makes of bytes (a decoder, built once per agent). The way back: `encoding`.

| annotation | the record's value | checked |
|---|---|---|
| `bytes` | as it is | nothing |
| `str` | UTF-8 | valid UTF-8 |
| `int`, `float`, `bool`, `list`, `dict` | JSON (orjson) | the outermost type |
| `Any`, no annotation | JSON | valid JSON |
| `list[T]`, `dict[str, T]`, `tuple[T, …]`, `set[T]`, `Literal`, `Enum` | JSON | every element |
| dataclass, `TypedDict`, `NamedTuple` | JSON object | required fields, each field's type; unknown ones are ignored |
| attrs class | JSON object | as a dataclass; its converters and validators run |
| `datetime`, `date`, `UUID`, `Decimal` | JSON string | that it parses |
| `faust.Record` | JSON, or the record's serializer | what the record checks |
| pydantic's models, dataclasses, types, `Annotated` | JSON | what pydantic checks, in its strict mode |
| `msgspec.Struct`, `Annotated` with `msgspec.Meta` | JSON | what msgspec checks, in its strict mode |
| `T | None` | as `T`; a null value (tombstone) is None | as `T` |

Without `| None` a null value does not fit and goes to the dead letter. Integers fit `float`; nothing else is converted,
unless a pydantic model says so itself (`model_config = {"strict": False}`, validators). All may stand in lists, dicts,
unions, dataclasses and in one another; within a pydantic model or a struct, what its library takes there, and in a
struct whatever else is in this table. `bytes` within something else are UTF-8 text. Lists of models, unions and the
like of one library are read by it whole.
"""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
import functools
import math
import types
import typing
import uuid
from collections.abc import Callable, Mapping
from typing import Any, Final, Literal, Union, get_args, get_origin, get_type_hints

import orjson

from flowshare.agents.handler import attrs_values, msgspec_values, pydantic_values
from flowshare.agents.handler.errors import AnnotationError, UndecodableValue
from flowshare.agents.handler.texts import said
from flowshare.agents.handler.unions import DOES_NOT_FIT, union

Decoder = Callable[[Any], Any]
"""Value bytes (or None) -> what the handler gets. Raises anything when it does not fit; see `explain`."""

_Convert = Callable[[Any], Any]
_NONE: Final = type(None)
_PLAIN: Final = (str, int, float, bool, list, dict)
_PARSED: Final[dict[type, _Convert]] = {
    datetime.datetime: datetime.datetime.fromisoformat,
    datetime.date: datetime.date.fromisoformat,
    datetime.time: datetime.time.fromisoformat,
    uuid.UUID: uuid.UUID,
}


def decoder(annotation: Any) -> Decoder | None:
    """The decoder for a handler's value annotation; None: the bytes themselves (a null value does not fit then).

    Raises: AnnotationError when no decoder can be made.
    """
    inner, optional = strip_none(annotation)
    if inner is bytes and not optional:
        return None
    decode = _decoder(inner)
    return (lambda raw: None if raw is None else decode(raw)) if optional else decode


def strip_none(annotation: Any) -> tuple[Any, bool]:
    """The annotation without `None`, and whether it allowed None (`Any` does not: a null value is no JSON)."""
    if get_origin(annotation) in (Union, types.UnionType):
        rest = tuple(arg for arg in get_args(annotation) if arg is not _NONE)
        if len(rest) < len(get_args(annotation)):
            return (Union[rest] if rest else _NONE), True  # noqa: UP007 - built at run time
    return annotation, annotation is _NONE


def explain(raw: bytes | None, annotation: Any, error: BaseException) -> UndecodableValue:
    """One error for a value that a decoder refused."""
    if raw is None:
        return UndecodableValue(
            f"the value is null (a tombstone) and the handler's annotation {describe(annotation)} does not allow None; "
            f"annotate the value as `{describe(annotation)} | None` to get tombstones"
        )
    shown = raw[:80]
    more = "…" if len(raw) > 80 else ""
    return UndecodableValue(f"the value {shown!r}{more} does not fit {describe(annotation)}: {said(error)}")


def describe(annotation: Any) -> str:
    """An annotation as a user writes it."""
    if annotation is Any:
        return "Any"
    if isinstance(annotation, type) and not get_args(annotation):
        return annotation.__qualname__
    return str(annotation).replace("typing.", "")


def check_topic_type(annotation: Any, value_type: Any, agent: str, topic: str) -> None:
    """Raise AnnotationError when the handler's annotation contradicts the topic's `value_type`."""
    inner, value_type = strip_none(annotation)[0], value_type and strip_none(value_type)[0]
    if inner is Any or value_type is None or inner is value_type:
        return
    if isinstance(value_type, str):
        by_name: dict[str, tuple[Any, ...]] = {"raw": (bytes,), "bytes": (bytes,), "str": (str,), "text": (str,)}
        fits = inner in by_name.get(value_type, (inner,))
    elif isinstance(inner, type) and isinstance(value_type, type):
        fits = issubclass(inner, value_type) or inner is dict or inner is bytes
        fits = fits and not (inner is bytes and value_type is not bytes)
    else:
        fits = get_origin(inner) is value_type or inner == value_type
    if not fits:
        raise AnnotationError(
            f"agent {agent}: the handler takes {describe(annotation)}, but topic {topic!r} has "
            f"value_type={describe(value_type)}. Make them the same, or leave one of them out."
        )


def is_model(tp: Any) -> bool:
    """Whether it is a model class of Faust's (`fs.Record`): known by what it can, so that Faust need not be there."""
    return isinstance(tp, type) and hasattr(tp, "from_data") and hasattr(tp, "to_representation")


def _decoder(tp: Any) -> Decoder:
    if tp is bytes:
        return bytes
    if tp is str:
        return bytes.decode
    if tp is Any:
        return orjson.loads
    if is_model(tp):
        return _record_decoder(tp)
    if tp in _PLAIN:
        return _plain_decoder(tp)
    if (read := _library_decoder(tp)) is not None:
        return read
    convert = converter(tp)
    loads = orjson.loads

    def decode(raw: Any) -> Any:
        return convert(loads(raw))

    return decode


def _library_decoder(tp: Any) -> Decoder | None:
    """The reader of the library that an annotation is wholly of; None: it is of none, or of more."""
    libraries = _libraries(tp)
    if libraries == {"pydantic"}:
        return pydantic_values.from_json(tp)
    if libraries == {"msgspec"}:
        try:
            return msgspec_values.from_json(tp, converter)
        except AnnotationError:
            if msgspec_values.is_msgspec(tp):
                raise
            return None  # a union of structs without tags: the first that fits
    return None


def _libraries(tp: Any) -> set[str]:
    """What an annotation's values are checked by: libraries, and `own` for what only this module knows."""
    if pydantic_values.is_pydantic(tp):
        return {"pydantic"}
    if msgspec_values.is_msgspec(tp):
        return {"msgspec"}
    origin, args = get_origin(tp), get_args(tp)
    if origin is typing.Annotated:
        return _libraries(args[0])
    if origin in (Union, types.UnionType, list, dict, set, frozenset, tuple):
        return set().union(*(_libraries(arg) for arg in args if arg is not Ellipsis))
    parsed = isinstance(tp, type) and (tp in _PARSED or tp is decimal.Decimal)
    return set() if tp is Any or tp in _PLAIN or tp is _NONE or parsed else {"own"}


def _record_decoder(tp: Any) -> Decoder:
    serializer = tp._options.serializer  # noqa: SLF001 - faust keeps it there only
    from_data = tp.from_data
    if serializer in (None, "json"):
        loads = orjson.loads

        def decode(raw: Any) -> Any:
            return from_data(loads(raw), preferred_type=tp)

        return decode

    def decode_other(raw: Any) -> Any:
        if raw is None:
            raise ValueError("null")
        return tp.loads(raw)

    return decode_other


def _plain_decoder(tp: type) -> Decoder:
    loads = orjson.loads
    convert = converter(tp)

    def decode(raw: Any) -> Any:
        value = loads(raw)
        return value if type(value) is tp else convert(value)

    return decode


def converter(tp: Any) -> _Convert:
    """A function that checks one JSON value against `tp` and makes what `tp` asks for. Raises: AnnotationError."""
    if pydantic_values.is_pydantic(tp):
        return pydantic_values.converter(tp)
    if msgspec_values.is_msgspec(tp):
        return msgspec_values.converter(tp, converter)
    if get_origin(tp) is typing.Annotated:
        return converter(get_args(tp)[0])
    if tp is Any or tp is object:
        return _same
    if tp in _PLAIN or tp is _NONE:
        return _plain(tp)
    if isinstance(tp, type) and tp in _PARSED:
        return _parsed(tp, _PARSED[tp])
    return _decimal if tp is decimal.Decimal else _made_of(tp)


def _made_of(tp: Any) -> _Convert:
    origin = get_origin(tp)
    if origin in (Union, types.UnionType):
        return _union(get_args(tp))
    if origin is Literal:
        return _literal(get_args(tp))
    if origin in (typing.Required, typing.NotRequired):
        return converter(get_args(tp)[0])
    if origin is not None:
        return _container(tp, origin)
    if isinstance(tp, type):
        return _class(tp)
    raise AnnotationError(
        f"no decoder for the annotation {describe(tp)}: use bytes, str, dict, a dataclass, a TypedDict, "
        "a faust.Record, a pydantic model, a msgspec.Struct, an attrs class, or Any for plain JSON"
    )


@functools.lru_cache(maxsize=1024)
def _class(tp: type) -> _Convert:
    """Made once of each class: one that may hold itself would else have converters for each path in its values."""
    if issubclass(tp, enum.Enum):
        return tp
    if is_model(tp):
        model: Any = tp
        return lambda value: value if isinstance(value, model) else model.from_data(value, preferred_type=model)
    if dataclasses.is_dataclass(tp):
        return _fields(tp, _dataclass_fields(tp), tp)
    if attrs_values.is_attrs(tp):
        return _attrs_class(tp)
    if tp is bytes:
        return _text_bytes
    if typing.is_typeddict(tp):
        return _fields(tp, _typed_dict_fields(tp), dict)
    if issubclass(tp, tuple) and hasattr(tp, "_fields"):
        defaults = getattr(tp, "_field_defaults", {})
        hints = get_type_hints(tp, include_extras=True)
        return _fields(tp, {n: (n not in defaults, _lazy(hints.get(n, Any))) for n in tp._fields}, tp)
    if tp in (set, frozenset, tuple):
        return _container(tp, tp)
    raise AnnotationError(
        f"no decoder for the class {describe(tp)}: make it a dataclass, a TypedDict, a faust.Record, a pydantic model, "
        "a msgspec.Struct or an attrs class, or take dict"
    )


def _attrs_class(tp: type) -> _Convert:
    found = list(attrs_values.attributes(tp))
    arguments = {one.name: one.argument for one in found}

    def make(**made: Any) -> Any:
        return tp(**{arguments[name]: value for name, value in made.items()})

    return _fields(tp, {one.name: (one.required, _lazy(one.hint)) for one in found}, make)


def _typed_dict_fields(tp: type) -> dict[str, tuple[bool, _Convert]]:
    # With postponed annotations Python 3.11 counts NotRequired fields among __required_keys__.
    required: frozenset[str] = getattr(tp, "__required_keys__", frozenset())
    return {
        name: (name in required and get_origin(hint) is not typing.NotRequired, _lazy(hint))
        for name, hint in get_type_hints(tp, include_extras=True).items()
    }


def _dataclass_fields(tp: type) -> dict[str, tuple[bool, _Convert]]:
    hints = get_type_hints(tp, include_extras=True)
    return {
        field.name: (
            field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING,
            _lazy(hints[field.name]),
        )
        for field in dataclasses.fields(tp)
        if field.init
    }


def _lazy(tp: Any) -> _Convert:
    """A converter that is built at first use, so that types may refer to themselves; plain ones at once."""
    if tp is Any or tp in _PLAIN:
        return converter(tp)
    built: _Convert | None = None

    def convert(value: Any) -> Any:
        nonlocal built
        if built is None:
            built = converter(tp)
        return built(value)

    return convert


def _fields(tp: type, fields: Mapping[str, tuple[bool, _Convert]], make: Callable[..., Any]) -> _Convert:
    items = [(name, required, convert) for name, (required, convert) in fields.items()]

    def convert_fields(value: Any) -> Any:
        if type(value) is tp:
            return value  # pickled as what it is
        if type(value) is not dict:
            raise ValueError(f"expected an object for {tp.__qualname__}, got {_kind(value)}")
        made = {}
        for name, required, convert in items:
            if name in value:
                try:
                    made[name] = convert(value[name])
                except DOES_NOT_FIT as error:
                    raise ValueError(f"{tp.__qualname__}.{name}: {error}") from error
            elif required:
                raise ValueError(f"{tp.__qualname__}.{name} is missing")
        return make(**made)

    return convert_fields


def _container(tp: Any, origin: Any) -> _Convert:
    args = get_args(tp)
    if issubclass(origin, Mapping):
        return _mapping(args)
    if origin is tuple and args and args[-1] is not Ellipsis:
        return _tuple(args)
    if not issubclass(origin, (list, tuple, set, frozenset, typing.Collection)) or issubclass(origin, (str, bytes)):
        raise AnnotationError(f"no decoder for the annotation {describe(tp)}")
    make = origin if origin in (tuple, set, frozenset) else list
    convert = _lazy(args[0]) if args else _same

    def convert_list(value: Any) -> Any:
        if type(value) not in (list, make):
            raise ValueError(f"expected an array, got {_kind(value)}")
        return make([convert(item) for item in value])

    return convert_list


def _mapping(args: tuple[Any, ...]) -> _Convert:
    if args and args[0] not in (str, Any):
        raise AnnotationError(f"JSON objects have keys of type str, not {describe(args[0])}")
    convert = _lazy(args[1]) if args else _same

    def convert_mapping(value: Any) -> Any:
        if type(value) is not dict:
            raise ValueError(f"expected an object, got {_kind(value)}")
        return {key: convert(item) for key, item in value.items()}

    return convert_mapping


def _tuple(args: tuple[Any, ...]) -> _Convert:
    converts = [_lazy(arg) for arg in args]

    def convert_tuple(value: Any) -> Any:
        if type(value) not in (list, tuple) or len(value) != len(converts):
            raise ValueError(f"expected an array of {len(converts)}, got {_kind(value)}")
        return tuple(convert(item) for convert, item in zip(converts, value, strict=True))

    return convert_tuple


def _union(args: tuple[Any, ...]) -> _Convert:
    return union([converter(arg) for arg in args], nested=sum(map(_looks_inside, args)) > 1)


def _looks_inside(tp: Any) -> bool:
    """Whether a value of the type has further ones in it that are converted."""
    leaf = tp is Any or tp in _PLAIN or tp in (_NONE, bytes, decimal.Decimal) or get_origin(tp) is Literal
    return not leaf and not (isinstance(tp, type) and (tp in _PARSED or issubclass(tp, enum.Enum)))


def _literal(args: tuple[Any, ...]) -> _Convert:
    def convert_literal(value: Any) -> Any:
        if value not in args:
            raise ValueError(f"expected one of {args}, got {value!r}")
        return value

    return convert_literal


def _plain(tp: Any) -> _Convert:
    name = "null" if tp is _NONE else tp.__name__
    accepted = (float, int) if tp is float else (tp,)

    def convert_plain(value: Any) -> Any:
        if type(value) not in accepted:
            raise ValueError(f"expected {name}, got {_kind(value)}")
        if tp is not float:
            return value
        if not math.isfinite(value):
            raise ValueError(f"expected a finite number, got {value}")
        return float(value)

    return convert_plain


def _parsed(tp: type, parse: _Convert) -> _Convert:
    def convert_parsed(value: Any) -> Any:
        if type(value) is tp:
            return value
        if type(value) is not str:
            raise ValueError(f"expected a string for {tp.__name__}, got {_kind(value)}")
        return parse(value)

    return convert_parsed


def _decimal(value: Any) -> decimal.Decimal:
    if type(value) is decimal.Decimal:
        return value
    if type(value) not in (str, int, float):
        raise ValueError(f"expected a number or a string, got {_kind(value)}")
    return decimal.Decimal(str(value))


def _text_bytes(value: Any) -> bytes:
    if type(value) is bytes:
        return value
    if type(value) is not str:
        raise ValueError(f"expected a string for bytes, got {_kind(value)}")
    return value.encode()


def _same(value: Any) -> Any:
    return value


def _kind(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, dict):
        return "object"
    return "array" if isinstance(value, list) else type(value).__name__
