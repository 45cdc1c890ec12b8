"""Check the arguments of client calls against their annotations, so that a wrong type never reaches a server."""

from __future__ import annotations

import functools
import inspect
import math
import types
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

C = TypeVar("C", bound=type)
S = TypeVar("S")

_SHOWN_MAX: Final = 60
_NONE: Final = type(None)


def checked(cls: C) -> C:
    """Make public coroutine functions of a class raise TypeError at the call if an argument has another type
    (decorator)."""
    for name, function in list(vars(cls).items()):
        if not name.startswith("_") and inspect.iscoroutinefunction(function):
            setattr(cls, name, _checking(function))
    return cls


def check_argument(what: str, value: object, hint: Any) -> None:
    """Check a value against an annotation. Raises: TypeError; ValueError: the value is none of a Literal's."""
    if fits(value, hint):
        return
    error = ValueError if get_origin(hint) is Literal else TypeError
    raise error(f"{what} must be {describe(hint)}, not {_shown(value)}")


def check_settings(settings: object, least: Mapping[str, float]) -> None:
    """Check a settings object against its annotations, and its numbers against the least allowed ones.

    Raises: TypeError, ValueError.
    """
    kind = type(settings).__name__
    of: Any = type(settings)
    for name, hint in _hints(of).items():
        value = getattr(settings, name)
        check_argument(f"{kind}: {name}", value, hint)
        if name in least and not value >= least[name]:  # so that NaN is refused
            raise ValueError(f"{kind}: {name} must be at least {least[name]:g}, not {value!r}")


def settings_of(settings: S | None, kind: Callable[[], S]) -> S:
    """Return the given settings, or the defaults for None. Raises: TypeError: the settings are of another type."""
    if settings is None:
        return kind()
    if not isinstance(settings, cast("type", kind)):
        name = getattr(kind, "__name__", str(kind))
        raise TypeError(f"settings must be {name}, not {_shown(settings)}: write settings={name}(name=value, …)")
    return settings


def fits(value: Any, hint: Any) -> bool:
    """Tell if a value fits an annotation. A bool does not count as a number, nor a str as a sequence of str."""
    origin, args = get_origin(hint), get_args(hint)
    kind: Any = origin
    if origin in (Union, types.UnionType):
        return any(fits(value, arg) for arg in args)
    if origin is Literal:
        return any(value == arg and type(value) is type(arg) for arg in args)
    if isinstance(origin, type) and issubclass(origin, Collection):
        return _holds(value, kind, args)
    if hint is Any or not isinstance(hint, type):
        return True  # what only a type checker knows
    if hint is float:
        nan = isinstance(value, float) and math.isnan(value)
        return isinstance(value, (int, float)) and not isinstance(value, bool) and not nan
    return isinstance(value, hint) and (hint is bool or not isinstance(value, bool))


def _holds(value: Any, origin: type, args: tuple[Any, ...]) -> bool:
    """Tell if a container and all its items fit `origin[args]`."""
    given: Any = value
    if not isinstance(value, Collection) or isinstance(value, (str, bytes)):
        return False
    items: list[Any] = list(given)
    if origin is tuple:
        return isinstance(value, tuple) and len(items) == len(args) and all(map(fits, items, args))
    if issubclass(origin, Mapping):
        pairs = cast("Mapping[Any, Any]", value)
        return isinstance(value, Mapping) and all(fits(key, args[0]) and fits(pairs[key], args[1]) for key in items)
    return not isinstance(value, Mapping) and all(fits(item, args[0]) for item in items)


def describe(hint: Any) -> str:
    """Describe an annotation in a user's words."""
    origin, args = get_origin(hint), get_args(hint)
    if hint is _NONE:
        return "None"
    if origin in (Union, types.UnionType):
        return " or ".join(map(describe, args))
    if origin is Literal:
        return " or ".join(map(repr, args))
    if origin is tuple:
        return f"({', '.join(map(describe, args))})"
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return f"a dict of {describe(args[0])} to {describe(args[1])}"
    if isinstance(origin, type) and issubclass(origin, Collection):
        return f"a list of {describe(args[0])}"
    return "a number" if hint is float else str(getattr(hint, "__name__", hint))


def _checking(function: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(function)

    @functools.wraps(function)
    async def call(*args: Any, **kwargs: Any) -> Any:
        hints = _hints(function)
        for name, value in signature.bind(*args, **kwargs).arguments.items():
            if name in hints:
                check_argument(f"{function.__name__}: {name}", value, hints[name])
        return await function(*args, **kwargs)

    return call


@functools.cache
def _hints(of: Any) -> dict[str, Any]:
    return get_type_hints(of)


def _shown(value: object) -> str:
    """Describe a value by its type and content; of containers by the types only, as settings may contain secrets."""
    kind = type(value).__name__
    if isinstance(value, Mapping):
        mapping = cast("Mapping[object, object]", value)
        return f"{kind} of {_kinds(mapping.keys())} to {_kinds(mapping.values())}" if mapping else f"an empty {kind}"
    if isinstance(value, (list, tuple, set, frozenset)):
        items = cast("Collection[object]", value)
        return f"{kind} of {_kinds(items)}" if items else f"an empty {kind}"
    if isinstance(value, (str, bytes, int, float)):
        text = repr(value)
        return f"{kind}: {text if len(text) <= _SHOWN_MAX else text[: _SHOWN_MAX - 1] + '…'}"
    return kind


def _kinds(items: Collection[object]) -> str:
    return " and ".join(sorted({type(item).__name__ for item in items}))
