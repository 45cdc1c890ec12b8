"""Cuts what a server sends into answers: an int32 length and that many bytes (Kafka protocol guide).

An answer that lies in one piece is sliced; one that comes in many pieces is joined once, when it is complete.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final

_LENGTH: Final = struct.Struct(">i")
_SHORTEST: Final = 4
"""Every answer begins with its correlation id."""


class FrameError(ValueError):
    """The bytes cannot be answers; the text says why."""


class Frames:
    """The answers of one connection."""

    def __init__(self, bytes_max: int) -> None:
        """`bytes_max`: the longest answer that is taken; a longer one is refused as soon as its length is known."""
        self._bytes_max = bytes_max
        self._pieces: list[bytes] = []
        self._have = 0
        self._need = _LENGTH.size

    def feed(self, data: bytes) -> Iterator[bytes]:
        """The answers that are complete with `data`, without their lengths. Raises: FrameError."""
        self._have += len(data)
        self._pieces.append(data)
        if self._have < self._need:
            return
        data = b"".join(self._pieces) if len(self._pieces) > 1 else data
        position, end = 0, len(data)
        self._pieces.clear()
        self._need = _LENGTH.size
        while end - position >= self._need:
            (length,) = _LENGTH.unpack_from(data, position)
            if not _SHORTEST <= length <= self._bytes_max:
                raise FrameError(f"a frame of {length} bytes; {_SHORTEST} to {self._bytes_max} are allowed")
            frame_end = position + _LENGTH.size + length
            if frame_end > end:
                self._need = _LENGTH.size + length
                break
            yield data[position + _LENGTH.size : frame_end]
            position = frame_end
        self._have = end - position
        if self._have:
            self._pieces.append(data[position:])
