"""Keys of the embedded store. One byte says what an entry is; numbers are big-endian, so that key order is theirs.

b topic_id partition base_offset            a record batch as it is served
i topic_id partition max_timestamp offset   time index: largest timestamp up to and with the batch at `offset`
p topic_id partition                        log start and its byte position
n topic_id partition producer_id            an idempotent producer of the partition
a topic_id partition marker_offset          an aborted transaction
c topic_id partition                        how far the partition was compacted
k key                                       state
t name                                      a topic
m                                           number of the last commit
v                                           version of this layout
"""

from __future__ import annotations

import struct
import uuid
from typing import Final

COMMIT: Final = b"m"
VERSION: Final = b"v"
TOPIC: Final = b"t"
STATE: Final = b"k"
BATCHES: Final = b"b"
LAYOUT: Final = b"1"
END: Final = b"\xff"

_partition = struct.Struct(">c16sI")
_number = struct.Struct(">Q")
_pair = struct.Struct(">QQ")
_triple = struct.Struct(">QQQ")
_BIAS: Final = 1 << 63
"""Added to timestamps, which may be negative."""


def batches(topic_id: uuid.UUID, partition: int) -> bytes:
    """Prefix of a partition's batches."""
    return _partition.pack(b"b", topic_id.bytes, partition)


def times(topic_id: uuid.UUID, partition: int) -> bytes:
    """Prefix of a partition's time index."""
    return _partition.pack(b"i", topic_id.bytes, partition)


def bounds(topic_id: uuid.UUID, partition: int) -> bytes:
    """Key of a partition's log start."""
    return _partition.pack(b"p", topic_id.bytes, partition)


def producers(topic_id: uuid.UUID, partition: int) -> bytes:
    """Prefix of a partition's idempotent producers; `at` with a producer id makes the key of one."""
    return _partition.pack(b"n", topic_id.bytes, partition)


def aborted(topic_id: uuid.UUID, partition: int) -> bytes:
    """Prefix of a partition's aborted transactions; `at` with the offset of its marker makes the key of one."""
    return _partition.pack(b"a", topic_id.bytes, partition)


def compacted(topic_id: uuid.UUID, partition: int) -> bytes:
    """Key of how far a partition was compacted."""
    return _partition.pack(b"c", topic_id.bytes, partition)


def topic_ranges(topic_id: uuid.UUID) -> tuple[tuple[bytes, bytes], ...]:
    """All key ranges of a topic, half-open."""
    return tuple((kind + topic_id.bytes, after(kind + topic_id.bytes)) for kind in (b"b", b"i", b"p", b"n", b"a", b"c"))


def at(prefix: bytes, offset: int) -> bytes:
    """Key of the batch with this base offset."""
    return prefix + _number.pack(offset)


def prefix_of(key: bytes) -> bytes:
    """The partition's prefix in the key of a batch."""
    return key[: _partition.size]


def offset_of(key: bytes) -> int:
    """The number at the end of a key: a batch's base offset, a producer id, a marker's offset."""
    return int.from_bytes(key[-8:], "big")


def time_at(prefix: bytes, max_timestamp: int, offset: int) -> bytes:
    """Key of a time index entry."""
    return prefix + _pair.pack(max_timestamp + _BIAS, offset)


def time_of(key: bytes) -> tuple[int, int]:
    """Largest timestamp and offset in the key of a time index entry."""
    timestamp, offset = _pair.unpack(key[-16:])
    return timestamp - _BIAS, offset


def pack(number: int) -> bytes:
    """A number as a value."""
    return _number.pack(number)


def unpack(value: bytes) -> int:
    """A value as a number."""
    return int.from_bytes(value, "big")


def pack_pair(first: int, second: int) -> bytes:
    """Two numbers as a value."""
    return _pair.pack(first, second)


def unpack_pair(value: bytes) -> tuple[int, int]:
    """A value as two numbers."""
    first, second = _pair.unpack(value)
    return first, second


def pack_triple(first: int, second: int, third: int) -> bytes:
    """Three numbers as a value."""
    return _triple.pack(first, second, third)


def unpack_triple(value: bytes) -> tuple[int, int, int]:
    """A value as three numbers."""
    first, second, third = _triple.unpack(value)
    return first, second, third


def after(prefix: bytes) -> bytes:
    """The least key behind all keys with this prefix."""
    trimmed = prefix.rstrip(END)
    return trimmed[:-1] + bytes((trimmed[-1] + 1,)) if trimmed else END * 64
