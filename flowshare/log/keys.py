"""Keys of the embedded store. The first byte is an entry's kind; numbers are big-endian, so that key order is theirs.

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
from functools import partial
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
_BIAS: Final = 1 << 63
"""Added to timestamps, which may be negative."""


def _partition_key(kind: bytes, topic_id: uuid.UUID, partition: int) -> bytes:
    return _partition.pack(kind, topic_id.bytes, partition)


batches: Final = partial(_partition_key, BATCHES)
"""Prefix of a partition's batches; `at` with a base offset makes the key of one."""
times: Final = partial(_partition_key, b"i")
"""Prefix of a partition's time index."""
bounds: Final = partial(_partition_key, b"p")
"""Key of a partition's log start."""
producers: Final = partial(_partition_key, b"n")
"""Prefix of a partition's idempotent producers; `at` with a producer id makes the key of one."""
aborted: Final = partial(_partition_key, b"a")
"""Prefix of a partition's aborted transactions; `at` with the offset of its marker makes the key of one."""
compacted: Final = partial(_partition_key, b"c")
"""Key of a partition's progress of compaction."""


def topic_ranges(topic_id: uuid.UUID) -> tuple[tuple[bytes, bytes], ...]:
    """Return all key ranges of a topic, half-open."""
    return tuple((kind + topic_id.bytes, after(kind + topic_id.bytes)) for kind in (b"b", b"i", b"p", b"n", b"a", b"c"))


def at(prefix: bytes, offset: int) -> bytes:
    """Return the key of the batch with this base offset."""
    return prefix + _number.pack(offset)


def prefix_of(key: bytes) -> bytes:
    """Return the partition's prefix in the key of a batch."""
    return key[: _partition.size]


def part_of(key: bytes) -> bytes:
    """Return the beginning that a key shares with all keys of its kind and, if it belongs to a partition, of that
    partition."""
    return key[:1] if key[:1] in (STATE, TOPIC) else key[: _partition.size]


def offset_of(key: bytes) -> int:
    """Return the number at the end of a key: a batch's base offset, a producer id, a marker's offset."""
    return int.from_bytes(key[-8:], "big")


def time_at(prefix: bytes, max_timestamp: int, offset: int) -> bytes:
    """Return the key of a time index entry."""
    return prefix + _pair.pack(max_timestamp + _BIAS, offset)


def time_of(key: bytes) -> tuple[int, int]:
    """Return largest timestamp and offset in the key of a time index entry."""
    timestamp, offset = _pair.unpack(key[-16:])
    return timestamp - _BIAS, offset


def pack(*numbers: int) -> bytes:
    """Encode numbers."""
    return b"".join(map(_number.pack, numbers))


def unpack(value: bytes) -> int:
    """Decode a number."""
    return int.from_bytes(value, "big")


def unpack_all(value: bytes) -> tuple[int, ...]:
    """Decode numbers."""
    return tuple(number for (number,) in _number.iter_unpack(value))


def after(prefix: bytes) -> bytes:
    """Return the least key behind all keys with this prefix."""
    trimmed = prefix.rstrip(END)
    return trimmed[:-1] + bytes((trimmed[-1] + 1,)) if trimmed else END * 64
