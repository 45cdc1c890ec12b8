"""Control batches: the markers that end a transaction in a partition's log (KIP-98, EndTransactionMarker).

A marker is a batch of one record that readers skip: its key says abort or commit, its value the coordinator's epoch,
which is always 0 here, since there is one coordinator.
"""

from __future__ import annotations

import struct
from typing import Final

from flowshare.protocol.headers import (
    ATTRIBUTES_AT,
    CONTROL_MASK,
    CRC_AT,
    HEADER,
    HEADER_BYTES,
    LOG_OVERHEAD,
    TRANSACTIONAL_MASK,
    crc32c,
)

ABORT: Final = 0
COMMIT: Final = 1
MAGIC: Final = 2
NO_SEQUENCE: Final = -1
_key = struct.Struct(">hh")
_value = struct.Struct(">hi")
_crc = struct.Struct(">I")


def marker(producer_id: int, epoch: int, *, committed: bool, timestamp_ms: int) -> bytes:
    """The batch that ends the producer's transaction; its offset is 0 until the log gives it one."""
    key = _key.pack(0, COMMIT if committed else ABORT)
    value = _value.pack(0, 0)
    # Attributes, timestamp delta and offset delta are 0; lengths are zigzag varints, one byte each.
    record = bytes((0, 0, 0, 2 * len(key))) + key + bytes((2 * len(value),)) + value + b"\0"
    body = bytes((2 * len(record),)) + record
    attributes = CONTROL_MASK | TRANSACTIONAL_MASK
    length = HEADER_BYTES - LOG_OVERHEAD + len(body)
    batch = bytearray(
        HEADER.pack(
            0, length, 0, MAGIC, 0, attributes, 0, timestamp_ms, timestamp_ms, producer_id, epoch, NO_SEQUENCE, 1
        )
        + body
    )
    _crc.pack_into(batch, CRC_AT, crc32c(memoryview(batch)[ATTRIBUTES_AT:]))
    return bytes(batch)
