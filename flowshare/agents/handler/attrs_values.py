"""Values of attrs classes: each attribute by its annotation, as a dataclass's fields; attrs' own converters and
validators run at construction. attrs is a dependency of the application."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any, NamedTuple, get_type_hints


class Attribute(NamedTuple):
    """An attribute that is in the JSON. argument: its name in `__init__` (a private attribute has another one
    there)."""

    name: str
    argument: str
    hint: Any
    required: bool
    default: Any
    """The default; None without one, or when a factory makes it."""


def is_attrs(kind: type) -> bool:
    """Tell if the class is an attrs class; does not import attrs."""
    return hasattr(kind, "__attrs_attrs__")


def attributes(kind: Any) -> Iterator[Attribute]:
    """Yield the attributes that `__init__` takes; one without annotation may be anything."""
    nothing = sys.modules["attr"].NOTHING
    hints = get_type_hints(kind, include_extras=True)
    for one in kind.__attrs_attrs__:
        if one.init:
            plain = None if one.default is nothing or hasattr(one.default, "factory") else one.default
            hint = hints.get(one.name, Any if one.type is None else one.type)
            yield Attribute(one.name, one.alias, hint, one.default is nothing, plain)


def to_plain(value: Any) -> dict[str, Any]:
    """Return the attributes by name, unchanged, without those that `__init__` does not take."""
    return {one.name: getattr(value, one.name) for one in type(value).__attrs_attrs__ if one.init}
