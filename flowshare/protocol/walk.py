"""Walks through a message before kio reads it: refuses false lengths, removes tagged fields that kio does not know.

kio's reader allocates memory for the announced elements of an array before it looks for them, which ends the process
when a stranger announces four billion. It reads null arrays where the schema forbids them, and it refuses unknown
tagged fields, which Kafka ignores (KIP-482). One walk over the bytes, compiled once for each schema, protects kio from
all three.
"""

from __future__ import annotations

import dataclasses
import functools
import struct
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from flowshare.protocol.compact import varint


class MalformedMessage(ValueError):
    """The bytes are no such message."""


class TooManyParts(MalformedMessage):
    """The message has more parts than may be read."""


class Edit(NamedTuple):
    """A change: bytes `start` to `end` become `new`."""

    start: int
    end: int
    new: bytes


class Edits(list[Edit]):
    """The edits of one walk, and a limit on the array elements that it may meet."""

    def __init__(self, parts_max: int | None = None) -> None:
        super().__init__()
        self._parts_max = parts_max
        self._parts = 0

    def meet(self, parts: int) -> None:
        """Count elements of an array, or tagged fields. Raises: TooManyParts."""
        self._parts += parts
        if self._parts_max is not None and self._parts > self._parts_max:
            raise TooManyParts(f"the message has more than {self._parts_max} parts; send several")


Step = Callable[[bytes, int, Edits], int]
"""Walks (message, position, edits to add to) -> position behind. Raises: MalformedMessage, IndexError and
struct.error."""

_SHORT: Final = struct.Struct(">h")
_INT: Final = struct.Struct(">i")
_VARINT_BYTES_MAX: Final = 5
HEADER_TAGS_MAX: Final = 1_000
"""The most tagged fields of a header; Kafka has defined one so far."""
_FIXED: Final[Mapping[str, int]] = {
    "bool": 1,
    "int8": 1,
    "int16": 2,
    "error_code": 2,
    "int32": 4,
    "timedelta_i32": 4,
    "int64": 8,
    "timedelta_i64": 8,
    "datetime_i64": 8,
    "float64": 8,
    "uuid": 16,
}


def tidy(schema: Any, message: bytes, position: int, *, parts_max: int | None = None) -> tuple[bytes, int]:
    """Return the message in a form that kio can read, and the position from which to read it.

    parts_max: limit on the elements of all arrays and the tagged fields together, each of which becomes an object;
    None: as many as the bytes can hold. Raises: MalformedMessage; TooManyParts, as soon as an array announces too many.
    """
    edits = Edits(parts_max)
    try:
        step_of(schema)(message, position, edits)
    except (IndexError, struct.error):
        raise MalformedMessage("the message is shorter than it says") from None
    if not edits:
        return message, position
    pieces: list[bytes] = []
    for edit in sorted(edits):
        pieces += (message[position : edit.start], edit.new)
        position = edit.end
    return b"".join((*pieces, message[position:])), 0


def skip_tags(message: bytes, position: int) -> int:
    """Return the position behind a header's tagged fields. Raises: MalformedMessage, IndexError."""
    return _tags({})(message, position, Edits(HEADER_TAGS_MAX))


@functools.cache
def step_of(schema: Any) -> Step:
    """Return the step that walks through an entity of this class."""
    flexible: bool = schema.__flexible__
    hints = typing.get_type_hints(schema)
    steps: list[Step] = []
    fixed = 0  # bytes of fields of fixed size that follow each other
    tagged: dict[int, Step] = {}
    for field in dataclasses.fields(schema):
        kind: str = field.metadata.get("kafka_type", "")
        if "tag" in field.metadata:
            tagged[field.metadata["tag"]] = _field(hints[field.name], kind, flexible=flexible)
        elif kind in _FIXED and not _is_array(hints[field.name]):
            fixed += _FIXED[kind]
        else:
            if fixed:
                steps.append(_skip(fixed))
                fixed = 0
            steps.append(_field(hints[field.name], kind, flexible=flexible))
    if fixed:
        steps.append(_skip(fixed))
    if flexible:
        steps.append(_tags(tagged))
    return _in_turn(tuple(steps))


def _is_array(hint: Any) -> bool:
    return typing.get_origin(without_none(hint)[1]) is tuple


def _field(hint: Any, kind: str, *, flexible: bool) -> Step:
    nullable, hint = without_none(hint)
    if typing.get_origin(hint) is tuple:
        _, part = without_none(typing.get_args(hint)[0])
        if kind in _FIXED:
            return _array(None, _FIXED[kind], nullable=nullable, flexible=flexible)
        return _array(_single(part, kind, flexible=flexible, nullable=False), 1, nullable=nullable, flexible=flexible)
    return _single(hint, kind, flexible=flexible, nullable=nullable)


def _single(hint: Any, kind: str, *, flexible: bool, nullable: bool) -> Step:
    if not kind:
        return _entity(step_of(hint), nullable=nullable)
    if kind in _FIXED:
        return _skip(_FIXED[kind])
    if kind not in ("string", "bytes", "records"):
        raise TypeError(f"kio has a type of field that is not known here: {kind}")
    wide = kind != "string"
    return _text(_length_reader(flexible=flexible, wide=wide), nullable=nullable)


def without_none(hint: Any) -> tuple[bool, Any]:
    """Return True if a field may be null, and the field's type without None."""
    options = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    (kind,) = (option for option in options if option is not type(None))
    return len(options) > 1, kind


def _in_turn(steps: tuple[Step, ...]) -> Step:
    if len(steps) == 1:
        return steps[0]

    def walk(message: bytes, position: int, edits: Edits) -> int:
        for step in steps:
            position = step(message, position, edits)
        return position

    return walk


def _skip(count: int) -> Step:
    def walk(message: bytes, position: int, edits: Edits) -> int:
        del edits
        position += count
        if position > len(message):
            raise MalformedMessage("the message is shorter than it says")
        return position

    return walk


def _text(length_at: Callable[[bytes, int], tuple[int, int]], *, nullable: bool) -> Step:
    def walk(message: bytes, position: int, edits: Edits) -> int:
        del edits
        length, position = length_at(message, position)
        if length < 0:
            if length < -1 or not nullable:
                raise MalformedMessage("a text or a block of bytes has a negative length")
            return position
        position += length
        if position > len(message):
            raise MalformedMessage(f"a text or a block of bytes says that it has {length} bytes")
        return position

    return walk


def _array(part: Step | None, size: int, *, nullable: bool, flexible: bool) -> Step:
    """part: walks through one element of at least `size` bytes; None: each element has `size` bytes."""
    length_at = _length_reader(flexible=flexible, wide=True)

    def walk(message: bytes, position: int, edits: Edits) -> int:
        length, position = length_at(message, position)
        if length < 0:
            if length < -1 or not nullable:
                raise MalformedMessage("an array that cannot be null has a negative length")
            return position
        if length * size > len(message) - position:
            raise MalformedMessage(f"an array says that it has {length} elements")
        edits.meet(length)
        if part is None:
            return position + length * size
        for _ in range(length):
            position = part(message, position, edits)
        return position

    return walk


def _entity(inner: Step, *, nullable: bool) -> Step:
    if not nullable:
        return inner

    def walk(message: bytes, position: int, edits: Edits) -> int:
        is_null = message[position] > 127  # an int8: -1 for null
        return position + 1 if is_null else inner(message, position + 1, edits)

    return walk


def _tags(known: Mapping[int, Step]) -> Step:
    def walk(message: bytes, position: int, edits: Edits) -> int:
        if message[position] == 0:  # the usual case
            return position + 1
        begin = position
        count, position = _varint(message, position)
        left = 0
        counted = position
        if count > len(message) - position:
            raise MalformedMessage(f"there are said to be {count} tagged fields")
        edits.meet(count)
        for _ in range(count):
            start = position
            tag, position = _varint(message, position)
            sized = position
            size, position = _varint(message, position)
            end = position + size
            if end > len(message):
                raise MalformedMessage(f"a tagged field says that it has {size} bytes")
            inner = known.get(tag)
            if inner is None:
                edits.append(Edit(start, end, b""))
            else:
                left += 1
                _walk_tagged(inner, message, (sized, position, end), edits)
            position = end
        if left < count:
            edits.append(Edit(begin, counted, varint(left)))
        return position

    return walk


def _walk_tagged(inner: Step, message: bytes, at: tuple[int, int, int], edits: Edits) -> None:
    """Walk through a tagged field. at: the positions of its size, of its content, and behind it."""
    sized, begin, end = at
    before = len(edits)
    if inner(message, begin, edits) != end:
        raise MalformedMessage("a tagged field has another size than it says")
    grown = sum(len(edit.new) - (edit.end - edit.start) for edit in edits[before:])
    if grown:
        edits.append(Edit(sized, begin, varint(end - begin + grown)))


def _length_reader(*, flexible: bool, wide: bool) -> Callable[[bytes, int], tuple[int, int]]:
    """Return a reader for the length of a text (`wide`: of bytes or an array); −1 for null."""
    if flexible:
        return _compact_length
    form = _INT if wide else _SHORT

    def length_at(message: bytes, position: int) -> tuple[int, int]:
        return form.unpack_from(message, position)[0], position + form.size

    return length_at


def _compact_length(message: bytes, position: int) -> tuple[int, int]:
    first = message[position]
    if first < 128:
        return first - 1, position + 1
    length, position = _varint(message, position)
    return length - 1, position


def _varint(message: bytes, position: int) -> tuple[int, int]:
    value = 0
    for number in range(_VARINT_BYTES_MAX):
        byte = message[position + number]
        value |= (byte & 127) << 7 * number
        if byte < 128:
            if value > 2**32 - 1:
                break
            return value, position + number + 1
    raise MalformedMessage("a number has more than 32 bits")
