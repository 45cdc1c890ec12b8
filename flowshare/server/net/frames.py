"""Frames of a socket's bytes: an int32 length and that many bytes (Kafka protocol guide).

A frame is refused as soon as its length, or the API key behind it, is known: nothing too large is kept. A chunk that
holds whole frames is sliced; a frame that comes in many chunks is joined once, when it is complete.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Mapping
from typing import Final

_LENGTH: Final = struct.Struct(">i")
_LENGTH_AND_KEY: Final = struct.Struct(">ih")
_SMALL: Final = 4_096
"""Chunks below this are collected in one buffer: a chunk object costs more than a peer's single byte."""


class FrameError(Exception):
    """The bytes cannot be frames; the text gives the reason. The connection is of no use any more."""


class Frames:
    """The frames of one connection, taken one at a time with `next`."""

    __slots__ = ("_bytes_max", "_chunks", "_longer", "_longest", "_need", "_position", "buffered")

    def __init__(self, bytes_max: int) -> None:
        """bytes_max: bytes of the longest frame."""
        self._bytes_max = self._longest = bytes_max
        self._longer: Mapping[int, int] = {}
        self._chunks: deque[bytes | bytearray] = deque()
        self._position = 0  # of the next byte in the first chunk
        self._need = 0  # bytes of the next frame with its length; 0: not known yet
        self.buffered = 0
        """Bytes fed and not yet taken."""

    def allow(self, bytes_max: int) -> None:
        """Set the longest frame in bytes; longer ones for an API key (`allow_longer`) stay."""
        self._bytes_max = bytes_max
        self._longest = max(bytes_max, *self._longer.values()) if self._longer else bytes_max

    def allow_longer(self, longer: Mapping[int, int]) -> None:
        """Set the longest frame in bytes of requests with these API keys, if that is more."""
        self._longer = longer
        self._longest = max(self._bytes_max, *longer.values())

    def feed(self, data: bytes) -> None:
        """Add received bytes."""
        self.buffered += len(data)
        chunks = self._chunks
        if len(data) < _SMALL and chunks:
            last = chunks[-1]
            if isinstance(last, bytearray):
                last += data
                return
            data = bytearray(data)  # type: ignore[assignment]
        chunks.append(data)

    def next(self) -> bytes | None:
        """Return the next frame without its length; None when it is not complete. Raises: FrameError."""
        need = self._need or self._measure()
        if not need or self.buffered < need:
            return None
        self._need = 0
        first = self._chunks[0]
        start = self._position + 4
        end = self._position + need
        if end <= len(first):
            frame = first[start:end]
            self._skip(need)
            return frame if isinstance(frame, bytes) else bytes(frame)
        self._skip(4)
        return self._join(need - 4)

    def clear(self) -> None:
        """Forget all bytes."""
        self._chunks.clear()
        self._position = self._need = self.buffered = 0

    def _measure(self) -> int:
        """Return the length of the next frame with the length itself, 0 while it is not known. Raises: FrameError."""
        if self.buffered < 4:
            return 0
        (length,) = _LENGTH.unpack(self._peek(4))
        if length < 1:
            raise FrameError(f"a frame says that it has {length} bytes")
        if length > self._bytes_max:
            if length > self._longest:
                raise FrameError(f"a frame says that it has {length} bytes; {self._longest} are allowed")
            if self.buffered < 6:
                return 0
            _, key = _LENGTH_AND_KEY.unpack(self._peek(6))
            allowed = max(self._bytes_max, self._longer.get(key, 0))
            if length > allowed:
                raise FrameError(f"a frame says that it has {length} bytes; {allowed} are allowed for API key {key}")
        self._need = length + 4
        return self._need

    def _peek(self, count: int) -> bytes | bytearray:
        first = self._chunks[0]
        if len(first) - self._position >= count:
            return first[self._position : self._position + count]
        found = bytearray(first[self._position :])
        for chunk in list(self._chunks)[1:count]:
            found += chunk[:count]
        return found[:count]

    def _join(self, count: int) -> bytes:
        """Take `count` bytes that lie in several chunks."""
        pieces: list[memoryview] = []
        missing = count
        for chunk in self._chunks:
            view = memoryview(chunk)
            piece = view[self._position :] if not pieces else view
            pieces.append(piece[:missing])
            missing -= len(pieces[-1])
            if not missing:
                break
        frame = b"".join(pieces)
        for piece in pieces:
            piece.release()
        self._skip(count)
        return frame

    def _skip(self, count: int) -> None:
        self.buffered -= count
        count += self._position
        while self._chunks and count >= len(self._chunks[0]):
            count -= len(self._chunks.popleft())
        self._position = count
