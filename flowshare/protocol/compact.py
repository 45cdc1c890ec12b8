"""Kafka's flexible encoding (KIP-482) by hand, for the few messages whose speed or own fields kio cannot give.

Lengths and counts are unsigned varints of the number plus one (0: null); tagged fields end each structure.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Iterable
from functools import lru_cache
from typing import Final, TypeVar

from flowshare.protocol.headers import DecodeError

K = TypeVar("K")
V = TypeVar("V")

I32: Final = struct.Struct(">i")
I32_MAX: Final = 2**31 - 1
I64_MAX: Final = 2**63 - 1
VARINT_BITS_MAX: Final = 63
TAG_BYTES_MIN: Final = 2
"""The least bytes of a tagged field: a tag and a length."""
_HEAD: Final = struct.Struct(">hhih")


@lru_cache(maxsize=4_096)
def _uuid(data: bytes) -> uuid.UUID:
    """Return the UUID of 16 bytes, cached: the same ids come all the time, and Python takes 3 µs to make one and
    compare two."""
    return uuid.UUID(bytes=data)


class FrameReader:
    """Reads a structure from a frame; every step is checked against the frame's end. Raises: DecodeError."""

    __slots__ = ("data", "end", "position")

    def __init__(self, data: bytes, position: int) -> None:
        self.data = data
        self.position = position
        self.end = len(data)

    def take(self, size: int) -> bytes:
        """Read the next `size` bytes."""
        until = self.position + size
        if until > self.end:
            raise DecodeError(f"{size} bytes are announced at {self.position}, {self.end - self.position} are there")
        found = self.data[self.position : until]
        self.position = until
        return found

    def unpack(self, form: struct.Struct) -> tuple[int, ...]:
        """Read numbers of fixed size."""
        until = self.position + form.size
        if until > self.end:
            raise DecodeError(f"the frame ends at {self.end}, within the numbers at {self.position}")
        found = form.unpack_from(self.data, self.position)
        self.position = until
        return found

    def peek(self, form: struct.Struct) -> tuple[int, ...] | None:
        """Return the next numbers of fixed size without reading on; None: the frame is too short."""
        if self.position + form.size > self.end:
            return None
        return form.unpack_from(self.data, self.position)

    def varint(self) -> int:
        """Read an unsigned varint."""
        position, end, data = self.position, self.end, self.data
        if position < end and data[position] < 0x80:
            self.position = position + 1
            return data[position]
        value = shift = 0
        while position < end and shift < VARINT_BITS_MAX:
            byte = data[position]
            position += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                self.position = position
                return value
            shift += 7
        raise DecodeError(f"the varint at {self.position} does not end")

    def count(self, size_min: int, *, nullable: bool = False) -> int:
        """Read the number of entries of an array, each of at least `size_min` bytes; refuse more than the frame has
        room for.

        nullable: a null array has 0 entries; else null is refused.
        """
        count = self.varint() - 1
        if count < 0:
            if nullable:
                return 0
            raise DecodeError(f"the array at {self.position} is null")
        if count * size_min > self.end - self.position:
            raise DecodeError(f"{count} entries are announced at {self.position}, there is no room for them")
        return count

    def text(self) -> str | None:
        """Read a string, or null."""
        size = self.varint() - 1
        if size < 0:
            return None
        try:
            return self.take(size).decode()
        except UnicodeDecodeError:
            raise DecodeError(f"the string before {self.position} is no UTF-8") from None

    def uuid(self) -> uuid.UUID:
        """Read a UUID; the zero UUID stands for null."""
        return _uuid(self.take(16))

    def tags(self) -> dict[int, bytes]:
        """Read the tagged fields, unknown ones, too."""
        if self.position < self.end and self.data[self.position] == 0:
            self.position += 1
            return NO_TAGS
        count = self.varint()
        if count * TAG_BYTES_MIN > self.end - self.position:
            raise DecodeError(f"{count} tagged fields are announced at {self.position}, there is no room for them")
        return {self.varint(): self.take(self.varint()) for _ in range(count)}


NO_TAGS: Final[dict[int, bytes]] = {}


def varint(value: int) -> bytes:
    """Return an unsigned varint. Raises: ValueError (negative)."""
    if 0 <= value < 0x80:
        return value.to_bytes()
    if value < 0:
        raise ValueError(f"{value} is negative")
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def count(number: int) -> bytes:
    """Return the encoded length of an array of `number` entries."""
    return varint(number + 1)


def text(value: str | None) -> bytes:
    """Return an encoded string, or null."""
    if value is None:
        return b"\0"
    encoded = value.encode()
    return varint(len(encoded) + 1) + encoded


def tagged(fields: dict[int, bytes]) -> bytes:
    """Return encoded tagged fields, in the required ascending order."""
    return varint(len(fields)) + b"".join(
        varint(tag) + varint(len(fields[tag])) + fields[tag] for tag in sorted(fields)
    )


def grouped(pairs: Iterable[tuple[K, V]]) -> dict[K, list[V]]:
    """Group values by key, in the order of the keys' first occurrence, as partitions lie below their topic."""
    found: dict[K, list[V]] = {}
    for key, value in pairs:
        found.setdefault(key, []).append(value)
    return found


def head(key: int, version: int, correlation_id: int, client_id: str) -> bytes:
    """Return the header (version 2) that a request begins with, without tagged fields."""
    name = client_id.encode()
    return _HEAD.pack(key, version, correlation_id, len(name)) + name + b"\0"


def framed(pieces: list[bytes]) -> bytes:
    """Return a frame of these pieces, with its length."""
    return I32.pack(sum(map(len, pieces))) + b"".join(pieces)
