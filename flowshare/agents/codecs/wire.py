"""Confluent's wire format: the bytes before a value that has a schema in a registry. Pure.

    0 | schema id, 4 bytes, big-endian | for Protobuf: message indexes | the value

Message indexes name the value's message in the schema's file, from the outermost in: the number of indexes, then each
index, as zigzag varints; a lone 0 stands for "the first message" (`[0]`). Source: Confluent's documentation of the wire
format.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

MAGIC: Final = 0
HEADER: Final = 5
INDEXES_MAX: Final = 32
"""Deepest nesting of messages."""
_VARINT_MAX: Final = 5
"""Most bytes of a varint of 32 bits."""


class NotFramed(ValueError):
    """Bytes that were not written with a registry."""


def schema_id(raw: bytes) -> int:
    """Return the id that stands before a value. Raises: NotFramed."""
    if len(raw) < HEADER:
        raise NotFramed(f"it has {len(raw)} bytes, and a value with a schema begins with 5: a zero and the schema's id")
    if raw[0] != MAGIC:
        raise NotFramed(
            f"it begins with the byte {raw[0]}, not with the zero before a schema's id: it was written without a "
            "registry"
        )
    return int.from_bytes(raw[1:HEADER], "big")


def prefix(number: int) -> bytes:
    """Return the bytes that stand before a value of the schema with this id."""
    return bytes([MAGIC]) + number.to_bytes(4, "big")


def write_indexes(indexes: Sequence[int]) -> bytes:
    """Encode message indexes.

    >>> write_indexes([0]), write_indexes([1, 0]), write_indexes([2])
    (b'\\x00', b'\\x04\\x02\\x00', b'\\x02\\x04')
    """
    if list(indexes) == [0]:
        return b"\0"
    return b"".join(_varint(one) for one in (len(indexes), *indexes))


def read_indexes(raw: bytes, at: int) -> tuple[list[int], int]:
    """Read message indexes, and return them with the offset of the value. Raises: NotFramed."""
    count, at = _read_varint(raw, at)
    if count == 0:
        return [0], at
    if not 0 < count <= INDEXES_MAX:
        raise NotFramed(f"it says {count} message indexes, and there are at most {INDEXES_MAX}")
    found: list[int] = []
    for _ in range(count):
        one, at = _read_varint(raw, at)
        if one < 0:
            raise NotFramed(f"it says the message index {one}")
        found.append(one)
    return found, at


def _varint(number: int) -> bytes:
    number = number << 1 if number >= 0 else (-number << 1) - 1
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _read_varint(raw: bytes, at: int) -> tuple[int, int]:
    number = 0
    for count, byte in enumerate(raw[at : at + _VARINT_MAX]):
        number |= (byte & 0x7F) << (7 * count)
        if byte < 0x80:
            return (number >> 1) ^ -(number & 1), at + count + 1
    raise NotFramed("its message indexes end in the middle")
