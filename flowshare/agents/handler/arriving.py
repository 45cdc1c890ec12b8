"""Checks that a sent value arrives as the same kind, given the topic's type.

The topic's type is compared with the value, or with the handler's return type. JSON has fewer kinds than Python: a set
becomes an array, and a number read as text is text. A value that a reader would get as another kind is refused where it
is sent.
"""

from __future__ import annotations

import collections
import datetime
import enum
import functools
import pathlib
import uuid
from collections.abc import Collection, Mapping
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin, get_type_hints, is_typeddict

from flowshare.agents.handler.fields import fields_of, is_of_fields
from flowshare.agents.handler.values import alternatives, describe, is_model, plain

_ARRAYS: Final = (list, tuple, collections.deque)
_SETS: Final = (set, frozenset)


def arrives(typ: Any, made: Any, given: Any) -> bool:
    """Tell if `made`, which a reader of a topic of this type gets, has the same kind as `given`, which is sent."""
    if isinstance(given, str) and not isinstance(made, str) and str in (types := alternatives(typ)):
        return Any in types or object in types
    return _same_kind(typ, made, given)


def _same_kind(typ: Any, made: Any, given: Any) -> bool:
    """Compare kinds as `arrives`; a type that says nothing of its parts takes every kind."""
    kind, types = type(made), alternatives(typ)
    if Any in types or object in types:
        return True
    if kind is str:
        return isinstance(given, (str, bytes, bytearray))
    if kind is bytes:
        return isinstance(given, (str, bytes, bytearray, memoryview))
    if kind in _ARRAYS:
        if not isinstance(given, _ARRAYS):
            return False
        pairs = enumerate(zip(made, given, strict=False))
        return all(_same_kind(_item_type(types, at), item, other) for at, (item, other) in pairs)
    if kind in _SETS:
        return isinstance(given, (*_SETS, *_ARRAYS))
    if kind is dict and isinstance(given, dict):
        return all(_same_kind(_field_type(types, key), item, given[key]) for key, item in made.items() if key in given)
    return True


def _item_type(types: tuple[Any, ...], at: int) -> Any:
    """Return the type of an array's item; Any: not known."""
    found: list[Any] = []
    for one, args in map(_origin, types):
        if isinstance(one, type) and issubclass(one, Collection) and not issubclass(one, (Mapping, str, bytes, *_SETS)):
            if not args:
                return Any
            found.append(args[at] if one is tuple and args[-1] is not Ellipsis and at < len(args) else args[0])
    return _any_of(found)


def _field_type(types: tuple[Any, ...], name: str) -> Any:
    """Return the type of a named field of an object; Any: not known."""
    found: list[Any] = []
    for one, args in map(_origin, types):
        if is_typeddict(one):
            found.append(_hints_of(one).get(name, Any))
        elif isinstance(one, type) and issubclass(one, Mapping):
            found.append(args[1] if len(args) > 1 else Any)
    return _any_of(found)


def _any_of(types: list[Any]) -> Any:
    if len(types) == 1:
        return types[0]
    return Union[tuple(types)] if types else Any  # noqa: UP007 - built at run time


def _origin(typ: Any) -> tuple[Any, tuple[Any, ...]]:
    """Return a type and the types of its parts."""
    if get_origin(typ) is Annotated:
        typ = get_args(typ)[0]
    return get_origin(typ) or typ, get_args(typ)


@functools.lru_cache(maxsize=1024)
def _hints_of(typed: Any) -> dict[str, Any]:
    """Return the types of a TypedDict's fields by name; a field may hold the TypedDict itself."""
    return get_type_hints(typed)


# --- before anything is sent ---------------------------------------------------------------------------------------


def misfit(returns: Any, typ: Any) -> str | None:
    """Say why a handler's return annotation cannot fit a topic of this type; None: it may.

    returns: the annotation. Unknown types (`Any`, a class of its own kind) may be anything.
    """
    kinds: set[str] = set()
    for one in alternatives(typ):
        kind = "bytes" if one is bytes else _kind_of(one)
        if kind is None:
            return None
        kinds |= _TAKES[kind]
    for one in alternatives(returns):
        found = _kind_of(one)
        if found is None:
            continue
        if found not in kinds:
            return f"{describe(one)} does not fit it"
        if found == "object" and (why := _without(one, typ)) is not None:
            return why
    return None


_TAKES: Final[dict[str, frozenset[str]]] = {
    "text": frozenset({"text"}),
    "bytes": frozenset({"text"}),
    "int": frozenset({"int"}),
    "number": frozenset({"int", "number"}),
    "bool": frozenset({"bool"}),
    "array": frozenset({"array"}),
    "set": frozenset({"set", "array"}),
    "object": frozenset({"object"}),
    "parsed": frozenset({"parsed", "text", "int", "number"}),
}
"""Kinds of a topic's type -> kinds of values that it takes. Every type takes encoded bytes."""
_SIMPLE: Final[dict[Any, str]] = {str: "text", int: "int", float: "number", bool: "bool"}


def _kind_of(tp: Any) -> str | None:
    """Return the kind of a type; None: not known, or anything."""
    tp = plain(tp)
    kind = get_origin(tp) or tp
    if kind is Literal:
        kinds = {_SIMPLE.get(type(one)) for one in get_args(tp)}
        return kinds.pop() if len(kinds) == 1 else None
    if kind in _SIMPLE:
        return _SIMPLE[kind]
    if not isinstance(kind, type) or kind in (object, bytes):
        return None
    if issubclass(kind, enum.Enum):
        return "text" if issubclass(kind, str) else "int" if issubclass(kind, int) else None
    if issubclass(kind, (datetime.date, datetime.time, datetime.timedelta, uuid.UUID, pathlib.PurePath)):
        return "parsed"
    if issubclass(kind, Mapping) or is_model(kind) or is_of_fields(kind):
        return "object"
    if issubclass(kind, _SETS):
        return "set"
    return "array" if issubclass(kind, _ARRAYS) else None


def _without(returns: Any, typ: Any) -> str | None:
    """Name a field that a topic's class needs, and that the returned class does not have."""
    types = alternatives(typ)
    wanted, given = (fields_of(types[0]), fields_of(returns)) if len(types) == 1 else (None, None)
    if wanted is None or given is None:
        return None
    names = {one.name for one in given}
    missing = next((one.name for one in wanted if one.required and one.name not in names), None)
    return None if missing is None else f"{describe(returns)} has no {missing!r}"
