"""The form of the cores' stored values: a version, a checksum, and a body that only its core reads."""

from __future__ import annotations

import struct
import zlib
from typing import Final

from flowshare.core_errors import StateCorrupt

HEADER: Final = struct.Struct(">BI")
"""Format version of the body; CRC-32 of it."""


def seal(body: bytes, version: int) -> bytes:
    """Return `body` with version and checksum before it."""
    return HEADER.pack(version, zlib.crc32(body)) + body


def unseal(data: bytes, version: int, what: str = "a stored entry") -> bytes:
    """Return the body that `seal` was given. what: its name in errors. Raises StateCorrupt."""
    if len(data) < HEADER.size:
        raise StateCorrupt(f"{what} is cut short")
    found, checksum = HEADER.unpack_from(data)
    if found != version:
        raise StateCorrupt(f"{what} has format {found}; this release reads {version}")
    body = data[HEADER.size :]
    if zlib.crc32(body) != checksum:
        raise StateCorrupt(f"{what} fails its checksum")
    return body
