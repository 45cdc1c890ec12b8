"""The bytes of KMQ: markers, and the header that counts redeliveries. All numbers are big-endian.

    key            int32 partition, int64 offset of a record of the queue's topic
    start marker   1, int64 milliseconds after which the message is due, counted from the marker's timestamp
    end marker     0
    count header   int8, or int32 where it does not fit

A marker lies in the partition of the markers topic that has the number of its record's partition. KMQ's own decoder
takes any first byte but 1 for an end, and so does this module. Markers that kill KMQ's own tracker (no value, an empty
value, a key of another length) raise `OddMarker` here.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from flowshare.core_errors import InvalidRequest

KEY: Final = struct.Struct(">iq")
START: Final = struct.Struct(">Bq")
END: Final = b"\0"
STARTS: Final = 1
COUNT_HEADER: Final = "kmq-redelivery-count"
UNDELIVERED: Final = "__undelivered"
"""Suffix of the undelivered topic's name: messages go to this topic after their last redelivery."""
MAX_REDELIVERIES: Final = 3
_BYTE: Final = struct.Struct(">b")
_INT: Final = struct.Struct(">i")


class OddMarker(InvalidRequest):
    """A record of the markers topic is no marker."""


class Marker(NamedTuple):
    """A start marker, or with `after_ms` None an end marker."""

    partition: int
    offset: int
    after_ms: int | None


def encode_key(partition: int, offset: int) -> bytes:
    """Encode the key of a marker."""
    return KEY.pack(partition, offset)


def encode_start(after_ms: int) -> bytes:
    """Encode a start marker's value. after_ms: milliseconds."""
    return START.pack(STARTS, after_ms)


def decode(key: bytes | None, value: bytes | None) -> Marker:
    """Decode a marker. Raises: OddMarker."""
    if key is None or len(key) != KEY.size:
        raise OddMarker(f"its key has {'no' if key is None else len(key)} bytes, and a marker's has {KEY.size}")
    partition, offset = KEY.unpack(key)
    if partition < 0 or offset < 0:
        raise OddMarker(f"it is of partition {partition} and offset {offset}")
    if not value:
        raise OddMarker("it has no value")
    if value[0] != STARTS:
        return Marker(partition, offset, None)
    if len(value) != START.size:
        raise OddMarker(f"it is a start marker of {len(value)} bytes, and such a one has {START.size}")
    _, after_ms = START.unpack(value)
    if after_ms < 0:
        raise OddMarker(f"its message is due {-after_ms} ms before it")
    return Marker(partition, offset, after_ms)


def encode_count(count: int) -> bytes:
    """Encode the number of redeliveries of a message, for its header."""
    return (_BYTE if -128 <= count <= 127 else _INT).pack(count)


def decode_count(value: bytes | None) -> int:
    """Return the redelivery count in the header's value; 0 if the value is missing or cannot be read."""
    if value is None or len(value) not in (_BYTE.size, _INT.size):
        return 0
    (count,) = (_BYTE if len(value) == _BYTE.size else _INT).unpack(value)
    return max(0, int(count))
