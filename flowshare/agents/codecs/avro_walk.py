"""Checks of Avro's bytes before decoding, for schemas that let a few bytes grow large.

fastavro follows a recursive schema as deep as the bytes say, and a few kilobytes overflow the stack and end the
process. It makes as many values without bytes as a number or the schema says; a decimal takes the square of its length,
and a union's branch time in proportion to the branches; and nothing else in the process runs meanwhile. Values of such
schemas are walked first; others, nearly all, are not. Pure. Source: Avro 1.12, binary encoding.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any, Final

DEPTH_MAX: Final = 100
"""Most records within records of the same schema."""
DECIMAL_BYTES_MAX: Final = 256
"""Most bytes of a decimal number: 600 digits."""
PARTS_PER_BYTE: Final = 4
PARTS_FREE: Final = 10_000
"""Parts (records, fields, items) that a value may have for free, beside `PARTS_PER_BYTE` for each of its bytes."""
BRANCHES_PER_PART: Final = 8
"""Branches of a union that cost as much as a part."""
BRANCHES_FEW: Final = 32
"""Unions with at most this many branches cost nothing."""
_Walk = Callable[[bytes, int, int], int]
"""Function of bytes, a value's begin and its depth that returns its end. Raises: ValueError."""
_SIZES: Final[Mapping[str, int]] = {"null": 0, "boolean": 1, "float": 4, "double": 8}
_DECIMAL: Final = "decimal"
_MOST: Final = 1 << 60


def walk_of(schema: Any, named: Mapping[str, Any]) -> Callable[[bytes, int], None] | None:
    """Return a check for a value that begins at an offset in some bytes; None: values of this schema need no check.

    schema: as fastavro parsed it. named: the named schemas it refers to. Raises: ValueError: no value of the schema can
    be read.
    """
    look = _Look(named)
    excess = look.at(schema, ())
    if not look.needed and excess <= PARTS_FREE and not look.decimals:
        return None
    least = 0 if look.needed or excess > PARTS_FREE else DECIMAL_BYTES_MAX
    walks = _Walks(named)
    walk = walks.of(schema)

    def check(raw: bytes, at: int) -> None:
        if len(raw) >= least:  # else there is no room for a large decimal
            walks.begin(len(raw))
            walk(raw, at, 0)

    return check


class _Look:
    """Finds out if a schema lets a few bytes grow into a large value.

    needed: it does, so values must be walked first. decimals: the schema has decimals of variable length, which may be
    large.

    The excess of a schema is the largest number of parts that a value of it may have beyond the number that its bytes
    allow. A part that is repeated must have no excess.
    """

    def __init__(self, named: Mapping[str, Any]) -> None:
        self._named = named
        self._excess: dict[Any, int] = {}
        self.needed = self.decimals = False

    def at(self, schema: Any, above: tuple[str, ...]) -> int:
        """Return the excess of a schema."""
        if isinstance(schema, list):
            self.needed |= len(schema) > BRANCHES_FEW
            return max((self.at(one, above) for one in schema), default=0) - PARTS_PER_BYTE
        if isinstance(schema, str):
            return self._by_name(schema, above)
        kind = schema["type"]
        if kind == "record":
            return self._record(schema, above)
        if kind in ("array", "map"):
            item = self.at(schema["items" if kind == "array" else "values"], above)
            self.needed |= item + 1 > (PARTS_PER_BYTE if kind == "map" else 0)
            return 1 - PARTS_PER_BYTE
        if isinstance(kind, (dict, list)):
            return self.at(kind, above)
        if kind == "fixed":
            _check_fixed(schema)
            return 1 - PARTS_PER_BYTE * int(schema["size"])
        self.decimals |= schema.get("logicalType") == _DECIMAL
        return _plain_excess(kind)

    def _by_name(self, name: str, above: tuple[str, ...]) -> int:
        if name in above:
            self.needed = True
            return 0
        if name not in self._named:
            return _plain_excess(name)
        return self.at(self._named[name], above)

    def _record(self, schema: Any, above: tuple[str, ...]) -> int:
        name = schema["name"]
        if name not in self._excess:
            fields = [self.at(field["type"], (*above, name)) for field in schema["fields"]]
            self._excess[name] = min(1 + sum(fields), _MOST)
        return self._excess[name]


def _plain_excess(kind: str) -> int:
    return 1 - PARTS_PER_BYTE * _SIZES.get(kind, 1)


def _check_fixed(schema: Any) -> None:
    """Refuse a decimal that is too large. Raises: ValueError."""
    if schema.get("logicalType") == _DECIMAL and schema["size"] > DECIMAL_BYTES_MAX:
        raise ValueError(f"it has decimals of {schema['size']} bytes, and {DECIMAL_BYTES_MAX} are read")


class _Walks:
    """Walks over the values of a schema, in any thread."""

    def __init__(self, named: Mapping[str, Any]) -> None:
        self._named = named
        self._made: dict[str, list[_Walk]] = {}
        self._value = threading.local()
        """left: parts that the value at hand may still have."""

    def begin(self, size: int) -> None:
        """Begin the walk of a value of `size` bytes."""
        self._value.left = PARTS_FREE + PARTS_PER_BYTE * size

    def of(self, schema: Any) -> _Walk:
        if isinstance(schema, list):
            return self._union([self.of(one) for one in schema])
        if isinstance(schema, str):
            return self._by_name(schema) if schema in self._named else _plain(schema)
        kind = schema["type"]
        if kind == "record":
            return self._record(schema)
        if kind == "array":
            return self._blocks(self.of(schema["items"]))
        if kind == "map":
            item = self.of(schema["values"])
            return self._blocks(lambda raw, at, depth: item(raw, _bytes(raw, at, 0), depth))
        if kind == "fixed":
            return _sized(schema["size"])
        if kind == "bytes" and schema.get("logicalType") == _DECIMAL:
            return _decimal
        return _plain(kind) if isinstance(kind, str) else self.of(kind)

    def _by_name(self, name: str) -> _Walk:
        if name not in self._made:
            return self.of(self._named[name])
        made = self._made[name]
        return lambda raw, at, depth: made[0](raw, at, depth)

    def _record(self, schema: Any) -> _Walk:
        if schema["name"] in self._made:
            return self._by_name(schema["name"])
        made = self._made.setdefault(schema["name"], [])
        fields = [self.of(field["type"]) for field in schema["fields"]]

        def walk(raw: bytes, at: int, depth: int) -> int:
            if depth >= DEPTH_MAX:
                raise ValueError(f"it has records within records, deeper than {DEPTH_MAX}")
            self._take(1 + len(fields), raw)
            for field in fields:
                at = field(raw, at, depth + 1)
            return at

        made[:] = [walk]
        return walk

    def _union(self, branches: list[_Walk]) -> _Walk:
        cost = len(branches) // BRANCHES_PER_PART if len(branches) > BRANCHES_FEW else 0

        def walk(raw: bytes, at: int, depth: int) -> int:
            self._take(cost, raw)
            which, at = _long(raw, at)
            if not 0 <= which < len(branches):
                raise ValueError(f"it says branch {which} of a union of {len(branches)}")
            return branches[which](raw, at, depth)

        return walk

    def _blocks(self, item: _Walk) -> _Walk:
        def walk(raw: bytes, at: int, depth: int) -> int:
            while True:
                count, at = _long(raw, at)
                if count < 0:
                    _, at = _long(raw, at)
                if count == 0:
                    return at
                if abs(count) > len(raw):
                    raise ValueError(f"it says {abs(count)} items, and has {len(raw)} bytes")
                self._take(abs(count), raw)
                for _ in range(abs(count)):
                    at = item(raw, at, depth)

        return walk

    def _take(self, parts: int, raw: bytes) -> None:
        """Count parts. Raises: ValueError: the value has too many."""
        self._value.left -= parts
        if self._value.left < 0:
            allowed = PARTS_FREE + PARTS_PER_BYTE * len(raw)
            raise ValueError(f"it says more than {allowed} parts, and has {len(raw)} bytes")


def _plain(kind: str) -> _Walk:
    if kind in _SIZES:
        return _sized(_SIZES[kind])
    return _bytes if kind in ("string", "bytes") else lambda raw, at, depth: _long(raw, at)[1]


def _decimal(raw: bytes, at: int, depth: int) -> int:
    size, _ = _long(raw, at)
    if size > DECIMAL_BYTES_MAX:
        raise ValueError(f"it has a decimal of {size} bytes, and {DECIMAL_BYTES_MAX} are read")
    return _bytes(raw, at, depth)


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
