"""Values: an annotation becomes a decoder of bytes, built once per agent. `encoding` is the way back.

| annotation | the record's value | checked |
|---|---|---|
| `bytes` | as it is | nothing |
| `str` | UTF-8 | valid UTF-8 |
| `int`, `float`, `bool`, `list`, `dict` | JSON (orjson) | the outermost type |
| `Any`, no annotation | JSON | valid JSON |
| `list[T]`, `dict[str, T]`, `tuple[T, …]`, `set[T]`, `deque[T]`, `Counter[str]`, … | JSON | every element |
| `Literal`, `Enum` | JSON; where all are text, plain text, too | that it is one of them |
| `A | B` | JSON, so that a text stands in quotes | the first that fits, `str` and `bytes` last |
| dataclass, `TypedDict`, `NamedTuple` | JSON object | required fields, each field's type; unknown ones are ignored |
| attrs class | JSON object | as a dataclass; its converters and validators run |
| `datetime`, `date`, `time`, `timedelta` (ISO 8601), `UUID`, `Decimal`, `Path` | JSON string | that it parses |
| `faust.Record` | JSON, or the record's serializer | what the record checks |
| pydantic's models, dataclasses, types, `Annotated` | JSON | what pydantic checks, in its strict mode |
| `msgspec.Struct`, `Annotated` with `msgspec.Meta` | JSON | what msgspec checks, in its strict mode |
| `T | None` | as `T`; a null value (tombstone) is None | as `T` |

Without `| None` a null value does not fit and goes to the dead letter. Integers fit `float`; nothing else is converted,
unless a pydantic model says so itself (`model_config = {"strict": False}`, validators). All these types may stand in
lists, dicts, unions, dataclasses and in one another. A pydantic model or a struct may hold the types that its library
takes, and a struct every other type of this table, too. `bytes` within something else are UTF-8 text. An annotation
whose types are all of one library (lists of models, unions) is read by that library as a whole.
"""

from __future__ import annotations

import collections
import dataclasses
import datetime
import decimal
import enum
import functools
import math
import pathlib
import threading
import types
import typing
import uuid
from collections.abc import Callable, Mapping
from typing import Any, Final, Literal, ParamSpec, TypeVar, Union, get_args, get_origin, get_type_hints

import orjson

from flowshare.agents.handler import attrs_values, durations, msgspec_values, pydantic_values
from flowshare.agents.handler.errors import AnnotationError, UndecodableValue
from flowshare.agents.handler.texts import said, shown
from flowshare.agents.handler.unions import DOES_NOT_FIT, union

Decoder = Callable[[Any], Any]
"""Function from value bytes (or None) to the handler's value. Raises any error when the bytes do not fit; see
`explain`."""

_Convert = Callable[[Any], Any]
P = ParamSpec("P")
R = TypeVar("R")
_NONE: Final = type(None)
_PLAIN: Final = (str, int, float, bool, list, dict)
_PARSED: Final[dict[type, _Convert]] = {
    datetime.datetime: datetime.datetime.fromisoformat,
    datetime.date: datetime.date.fromisoformat,
    datetime.time: datetime.time.fromisoformat,
    datetime.timedelta: durations.parse,
    uuid.UUID: uuid.UUID,
}
_PATHS: Final = (pathlib.Path, pathlib.PurePath, pathlib.PurePosixPath, pathlib.PureWindowsPath)


class _Promised(threading.local):
    """Converters of this thread that are made after the outermost one, each with its place. None: none is being
    made."""

    left: list[tuple[str, Callable[[], object]]] | None = None
    where = ""
    """Place in the handler's types of the converter now being made; used in errors."""


_promised: Final = _Promised()


def decoder(annotation: Any) -> Decoder | None:
    """Return the decoder for a handler's value annotation; None: the bytes themselves (a null value does not fit then).

    Raises: AnnotationError when no decoder can be made.
    """
    inner, optional = strip_none(annotation)
    inner = plain(inner)
    if inner is bytes and not optional:
        return None
    decode = _decoder(inner)
    return (lambda raw: None if raw is None else decode(raw)) if optional else decode


def strip_none(annotation: Any) -> tuple[Any, bool]:
    """Return the annotation without `None`, and True if it allowed None (`Any` does not: a null value is no JSON)."""
    if get_origin(annotation) in (Union, types.UnionType):
        rest = tuple(arg for arg in get_args(annotation) if arg is not _NONE)
        if len(rest) < len(get_args(annotation)):
            return (Union[rest] if rest else _NONE), True  # noqa: UP007 - built at run time
    return annotation, annotation is _NONE


def plain(tp: Any) -> Any:
    """Return the type below a `NewType`, a `type` statement, or an `Annotated` without a library's checks."""
    while True:
        if hasattr(tp, "__supertype__"):
            tp = tp.__supertype__
        elif type(tp).__name__ == "TypeAliasType":
            tp = tp.__value__
        elif get_origin(tp) is typing.Annotated and not _libraries(tp) & {"pydantic", "msgspec"}:
            tp = get_args(tp)[0]
        else:
            return tp


def cached_by_type(fun: Callable[P, R]) -> Callable[P, R]:
    """Cache a function by annotation; an annotation without a hash is computed each time, as the parts of an
    `Annotated` may be anything."""
    cached: Callable[..., R] = functools.cache(fun)

    @functools.wraps(fun)
    def found(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            hash(args)
        except TypeError:
            return fun(*args, **kwargs)
        return cached(*args, **kwargs)

    return found


@cached_by_type
def text_is_json(annotation: Any) -> bool:
    """Tell if a text of this type is a JSON string: all types but `str`, `bytes` and Faust's models by themselves."""
    inner = plain(strip_none(annotation)[0])
    return not (inner in (str, bytes) or isinstance(inner, str) or is_model(inner))


@cached_by_type
def alternatives(annotation: Any) -> tuple[Any, ...]:
    """Return the types of a union; of any other annotation, itself."""
    inner = plain(strip_none(annotation)[0])
    if get_origin(inner) in (Union, types.UnionType):
        return tuple(one for arg in get_args(inner) for one in alternatives(arg))
    return (inner,)


def explain(raw: bytes | None, annotation: Any, error: BaseException) -> UndecodableValue:
    """Make the error for a value that a decoder refused."""
    if raw is None:
        return UndecodableValue(
            f"the value is null (a tombstone) and the handler's annotation {describe(annotation)} does not allow None; "
            f"annotate the value as `{describe(annotation)} | None` to get tombstones"
        )
    shown = raw[:80]
    more = "…" if len(raw) > 80 else ""
    return UndecodableValue(f"the value {shown!r}{more} does not fit {describe(annotation)}: {said(error)}")


def describe(annotation: Any) -> str:
    """Describe an annotation as a user writes it."""
    if annotation is Any:
        return "Any"
    if isinstance(annotation, type) and not get_args(annotation):
        return annotation.__qualname__
    return str(annotation).replace("typing.", "")


def check_topic_type(annotation: Any, value_type: Any, agent: str, topic: str) -> None:
    """Check the handler's annotation against the topic's `value_type`. Raises: AnnotationError when they contradict."""
    inner, value_type = _bare(annotation), value_type if isinstance(value_type, str) else _bare(value_type)
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


def _bare(annotation: Any) -> Any:
    """Return an annotation without None, and without the parts of an `Annotated` besides its type."""
    inner = plain(strip_none(annotation)[0])
    return _bare(get_args(inner)[0]) if get_origin(inner) is typing.Annotated else inner


def is_model(tp: Any) -> bool:
    """Tell if the type is a Faust model class (`fs.Record`), by its methods, as Faust may not be installed."""
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

    return _or_text(decode, convert) if _is_closed_text(tp) else decode


def _is_closed_text(tp: Any) -> bool:
    """Tell if all values of the type are texts from a known list; bytes that are such a text cannot be other JSON."""
    if get_origin(tp) is Literal:
        return all(type(one) is str for one in get_args(tp))
    if get_origin(tp) in (Union, types.UnionType):
        return all(_is_closed_text(plain(arg)) for arg in get_args(tp))
    return isinstance(tp, type) and issubclass(tp, enum.Enum) and issubclass(tp, str)


def _or_text(decode: Decoder, convert: _Convert) -> Decoder:
    def decode_text(raw: Any) -> Any:
        try:
            return decode(raw)
        except ValueError as error:
            try:
                return convert(bytes.decode(raw))
            except ValueError:
                raise error from None

    return decode_text


def _library_decoder(tp: Any) -> Decoder | None:
    """Return the reader of the one library of an annotation; None: it has none, or several."""
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
    """Return the names of the libraries that check an annotation's values; `own`: only this module knows the type."""
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
    """Return a function that checks one JSON value against `tp` and makes a `tp`. Raises: AnnotationError."""
    if _promised.left is not None:
        return _converter(tp)
    _promised.left = []
    try:
        made = _converter(tp)
        while _promised.left:
            _keep(*_promised.left.pop())
    except BaseException:
        _class.cache_clear()  # of a class whose fields cannot be read no converter is kept
        raise
    finally:
        _promised.left = None
    return made


def _keep(where: str, build: Callable[[], object]) -> None:
    """Make a converter now, so that an unreadable type is refused where it is declared."""
    _promised.where = where
    try:
        build()
    except NameError:
        pass  # a class that is defined further down: made at first use
    except AnnotationError as error:
        raise (AnnotationError(f"{where}: {error}") if where else error) from None
    finally:
        _promised.where = ""


def _converter(tp: Any) -> _Convert:
    tp = plain(tp)
    if pydantic_values.is_pydantic(tp):
        return pydantic_values.converter(tp)
    if msgspec_values.is_msgspec(tp):
        return msgspec_values.converter(tp, converter)
    if tp is Any or tp is object:
        return _same
    if tp in _PLAIN or tp is _NONE:
        return _plain(tp)
    if isinstance(tp, type) and (parse := _PARSED.get(tp)) is not None:
        return _parsed(tp, parse)
    if tp in _PATHS:
        return _parsed(tp, tp)
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
    """Make the converter of a class, once: else a class that may hold itself would have one for each path in its
    values."""
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
        fields = {n: (n not in defaults, _lazy(hints.get(n, Any), f"{tp.__qualname__}.{n}")) for n in tp._fields}
        return _fields(tp, fields, tp)
    if tp in (set, frozenset, tuple, *_MAKERS):
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

    return _fields(
        tp, {one.name: (one.required, _lazy(one.hint, f"{tp.__qualname__}.{one.name}")) for one in found}, make
    )


def _typed_dict_fields(tp: type) -> dict[str, tuple[bool, _Convert]]:
    # With postponed annotations Python 3.11 counts NotRequired fields among __required_keys__.
    required: frozenset[str] = getattr(tp, "__required_keys__", frozenset())
    return {
        name: (
            name in required and get_origin(hint) is not typing.NotRequired,
            _lazy(hint, f"{tp.__qualname__}.{name}"),
        )
        for name, hint in get_type_hints(tp, include_extras=True).items()
    }


def _dataclass_fields(tp: type) -> dict[str, tuple[bool, _Convert]]:
    hints = get_type_hints(tp, include_extras=True)
    return {
        field.name: (
            field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING,
            _lazy(hints[field.name], f"{tp.__qualname__}.{field.name}"),
        )
        for field in dataclasses.fields(tp)
        if field.init
    }


def _lazy(tp: Any, where: str = "") -> _Convert:
    """Return a converter that is built after the one that needs it, so that types may refer to themselves; a plain one
    is built at once. where: its place, for errors."""
    if tp is Any or tp in _PLAIN:
        return converter(tp)
    built: _Convert | None = None

    def build() -> _Convert:
        nonlocal built
        if built is None:
            built = converter(tp)
        return built

    def convert(value: Any) -> Any:
        return (built or build())(value)

    if _promised.left is not None:
        _promised.left.append((where or _promised.where, build))
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
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return _mapping(origin, args)
    if origin is tuple and args and args[-1] is not Ellipsis:
        return _tuple(args)
    if not isinstance(origin, type):
        raise AnnotationError(f"no decoder for the annotation {describe(tp)}")
    if not issubclass(origin, (list, tuple, set, frozenset, typing.Collection)) or issubclass(origin, (str, bytes)):
        raise AnnotationError(f"no decoder for the annotation {describe(tp)}")
    make = origin if origin in (tuple, set, frozenset, collections.deque) else list
    convert = _lazy(args[0]) if args else _same

    def convert_list(value: Any) -> Any:
        if type(value) not in (list, make):
            raise ValueError(f"expected an array, got {_kind(value)}")
        return make([convert(item) for item in value])

    return convert_list


_MAKERS: Final[dict[type, Callable[[dict[str, Any]], Any]]] = {
    collections.Counter: collections.Counter,
    collections.OrderedDict: collections.OrderedDict,
    collections.deque: collections.deque,
}
"""Containers that are made from JSON's own ones."""


def _mapping(origin: type, args: tuple[Any, ...]) -> _Convert:
    if args and plain(args[0]) not in (str, Any):
        raise AnnotationError(f"JSON objects have keys of type str, not {describe(args[0])}")
    is_counter = origin is collections.Counter
    of_values = int if is_counter else args[1] if len(args) > 1 else Any
    convert, make = _lazy(of_values), _MAKERS.get(origin)
    if origin is collections.defaultdict:
        factory = get_origin(plain(of_values)) or plain(of_values)
        if factory not in (int, float, str, bool, list, dict, set):
            raise AnnotationError(f"what is missing in a defaultdict of {describe(of_values)} is not known: take dict")
        make = functools.partial(collections.defaultdict, factory)

    def convert_mapping(value: Any) -> Any:
        if not isinstance(value, dict):
            raise ValueError(f"expected an object, got {_kind(value)}")  # noqa: TRY004 - as of all that does not fit
        made = {key: convert(item) for key, item in value.items()}
        return made if make is None else make(made)

    return convert_mapping


def _tuple(args: tuple[Any, ...]) -> _Convert:
    converts = [_lazy(arg) for arg in args]

    def convert_tuple(value: Any) -> Any:
        if type(value) not in (list, tuple) or len(value) != len(converts):
            raise ValueError(f"expected an array of {len(converts)}, got {_kind(value)}")
        return tuple(convert(item) for convert, item in zip(converts, value, strict=True))

    return convert_tuple


def _union(args: tuple[Any, ...]) -> _Convert:
    """Make the converter of a union; text comes last, as a date or an enum's member is text, too."""
    args = tuple(sorted(args, key=lambda arg: plain(arg) in (str, bytes, Any, object)))
    return union([converter(arg) for arg in args], nested=sum(map(_looks_inside, args)) > 1)


def _looks_inside(tp: Any) -> bool:
    """Tell if a value of the type has parts that are converted themselves."""
    tp = plain(tp)
    leaf = (
        tp is Any or tp in _PLAIN or tp in _PATHS or tp in (_NONE, bytes, decimal.Decimal) or get_origin(tp) is Literal
    )
    return not leaf and not (isinstance(tp, type) and (tp in _PARSED or issubclass(tp, enum.Enum)))


def _literal(args: tuple[Any, ...]) -> _Convert:
    def convert_literal(value: Any) -> Any:
        for one in args:
            if one == value and (type(one) is type(value) or isinstance(one, enum.Enum)):
                return one
        raise ValueError(f"expected one of {args}, got {shown(value)}")

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
