"""Looks over Avro's bytes before they are decoded, where their schema lets few bytes become much.

fastavro follows a recursive schema as deep as the bytes say, and a few kilobytes of them overflow the stack of the
process, which ends it; of an array whose items take no bytes it makes as many as a number says. Values of such schemas
are walked first; others, which are nearly all, are not. Pure. Source: Avro 1.12, binary encoding.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

DEPTH_MAX: Final = 100
"""Records within records of the same schema."""
_Walk = Callable[[bytes, int, int], int]
"""Bytes, where a value begins, how deep it is -> where it ends. Raises: ValueError."""
_SIZES: Final[Mapping[str, int]] = {"null": 0, "boolean": 1, "float": 4, "double": 8}


def walk_of(schema: Any, named: Mapping[str, Any]) -> Callable[[bytes, int], None] | None:
    """What looks over a value that begins somewhere in some bytes; None: values of this schema need it not.

    schema: as fastavro parsed it. named: those that it names.
    """
    look = _Look(named)
    look.at(schema, ())
    if not look.needed:
        return None
    walk = _Walks(named).of(schema)

    def check(raw: bytes, at: int) -> None:
        walk(raw, at, 0)

    return check


class _Look:
    """Whether a schema is recursive, or has arrays of what takes no bytes."""

    def __init__(self, named: Mapping[str, Any]) -> None:
        self._named = named
        self._done: set[str] = set()
        self.needed = False

    def at(self, schema: Any, above: tuple[str, ...]) -> None:
        if isinstance(schema, list):
            for one in schema:
                self.at(one, above)
        elif isinstance(schema, str):
            if schema in above:
                self.needed = True
            elif schema in self._named and schema not in self._done:
                self.at(self._named[schema], above)
        elif schema["type"] == "record":
            self._record(schema, above)
        elif schema["type"] == "array":
            self.needed |= _may_be_empty(schema["items"], self._named, ())
            self.at(schema["items"], above)
        elif schema["type"] == "map":
            self.at(schema["values"], above)
        elif isinstance(schema["type"], (dict, list)):
            self.at(schema["type"], above)

    def _record(self, schema: Any, above: tuple[str, ...]) -> None:
        if schema["name"] in self._done:
            return
        for field in schema["fields"]:
            self.at(field["type"], (*above, schema["name"]))
        self._done.add(schema["name"])


def _may_be_empty(schema: Any, named: Mapping[str, Any], above: tuple[str, ...]) -> bool:
    """Whether a value of it can have no bytes."""
    if isinstance(schema, str):
        if schema in named:
            return schema not in above and _may_be_empty(named[schema], named, (*above, schema))
        return schema == "null"
    if isinstance(schema, list):
        return False
    kind = schema["type"]
    if kind == "record":
        return all(_may_be_empty(field["type"], named, (*above, schema["name"])) for field in schema["fields"])
    return bool(kind == "null" or (kind == "fixed" and schema["size"] == 0))


class _Walks:
    def __init__(self, named: Mapping[str, Any]) -> None:
        self._named = named
        self._made: dict[str, list[_Walk]] = {}

    def of(self, schema: Any) -> _Walk:
        if isinstance(schema, list):
            return _union([self.of(one) for one in schema])
        if isinstance(schema, str):
            return self._by_name(schema) if schema in self._named else _plain(schema)
        kind = schema["type"]
        if kind == "record":
            return self._record(schema)
        if kind == "array":
            return _blocks(self.of(schema["items"]))
        if kind == "map":
            item = self.of(schema["values"])
            return _blocks(lambda raw, at, depth: item(raw, _bytes(raw, at, 0), depth))
        if kind == "fixed":
            return _sized(schema["size"])
        return _plain(kind) if isinstance(kind, str) else self.of(kind)

    def _by_name(self, name: str) -> _Walk:
        if name not in self._made:
            return self.of(self._named[name])
        made = self._made[name]
        return lambda raw, at, depth: made[0](raw, at, depth)

    def _record(self, schema: Any) -> _Walk:
        made = self._made.setdefault(schema["name"], [])
        fields = [self.of(field["type"]) for field in schema["fields"]]

        def walk(raw: bytes, at: int, depth: int) -> int:
            if depth >= DEPTH_MAX:
                raise ValueError(f"it has records within records, deeper than {DEPTH_MAX}")
            for field in fields:
                at = field(raw, at, depth + 1)
            return at

        made[:] = [walk]
        return walk


def _union(branches: list[_Walk]) -> _Walk:
    def walk(raw: bytes, at: int, depth: int) -> int:
        which, at = _long(raw, at)
        if not 0 <= which < len(branches):
            raise ValueError(f"it says branch {which} of a union of {len(branches)}")
        return branches[which](raw, at, depth)

    return walk


def _blocks(item: _Walk) -> _Walk:
    def walk(raw: bytes, at: int, depth: int) -> int:
        left = len(raw)  # items in all: those of no bytes are counted, too
        while True:
            count, at = _long(raw, at)
            if count < 0:
                _, at = _long(raw, at)
            if count == 0:
                return at
            left -= abs(count)
            if left < 0:
                raise ValueError(f"it says {abs(count)} items, and has {len(raw)} bytes")
            for _ in range(abs(count)):
                at = item(raw, at, depth)

    return walk


def _plain(kind: str) -> _Walk:
    if kind in _SIZES:
        return _sized(_SIZES[kind])
    return _bytes if kind in ("string", "bytes") else lambda raw, at, depth: _long(raw, at)[1]


def _sized(size: int) -> _Walk:
    def walk(raw: bytes, at: int, depth: int) -> int:
        if at + size > len(raw):
            raise ValueError("it ends in the middle")
        return at + size

    return walk


def _bytes(raw: bytes, at: int, depth: int) -> int:
    size, at = _long(raw, at)
    if size < 0 or at + size > len(raw):
        raise ValueError(f"it says {size} bytes, and has {len(raw) - at} left")
    return at + size


def _long(raw: bytes, at: int) -> tuple[int, int]:
    number = 0
    for count, byte in enumerate(raw[at : at + 10]):
        number |= (byte & 0x7F) << (7 * count)
        if byte < 0x80:
            return (number >> 1) ^ -(number & 1), at + count + 1
    raise ValueError("it ends in the middle of a number")
