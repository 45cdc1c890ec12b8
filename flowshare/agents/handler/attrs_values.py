"""Values of attrs classes: each attribute by its annotation, as a dataclass's fields; attrs' own converters and
validators run when it is made. attrs is the application's: it is there when a class of it is."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any, NamedTuple, get_type_hints


class Attribute(NamedTuple):
    """One that is in the JSON. argument: of `__init__` (a private attribute has another name there)."""

    name: str
    argument: str
    hint: Any
    required: bool
    default: Any
    """None where there is none, or a factory makes it."""


def is_attrs(kind: type) -> bool:
    """Whether it is a class of attrs; without importing it."""
    return hasattr(kind, "__attrs_attrs__")


def attributes(kind: Any) -> Iterator[Attribute]:
    """Those that `__init__` takes. Without an annotation one may be anything."""
    nothing = sys.modules["attr"].NOTHING
    hints = get_type_hints(kind, include_extras=True)
    for one in kind.__attrs_attrs__:
        if one.init:
            plain = None if one.default is nothing or hasattr(one.default, "factory") else one.default
            hint = hints.get(one.name, Any if one.type is None else one.type)
            yield Attribute(one.name, one.alias, hint, one.default is nothing, plain)


def to_plain(value: Any) -> dict[str, Any]:
    """Its attributes by name, as they are; what `__init__` does not take is left out."""
    return {one.name: getattr(value, one.name) for one in type(value).__attrs_attrs__ if one.init}
