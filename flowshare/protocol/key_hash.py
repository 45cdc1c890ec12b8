"""Hashes of record keys, by which servers and members order and split the records of a partition.

A server that hands out only the first unsettled record of each key stores one number for each offset. Members tell a
key's records apart by the same number. Two keys with the same hash wait for each other, which only costs time.

Members that share a partition by ranges of keys (`flowshare.cooperative`) use `key_slot_hash`, the hash by which
Kafka's producers choose partitions. Its ranges, unlike its remainders, are even within each partition.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import google_crc32c

from flowshare.protocol.decoding import RawRecord
from flowshare.protocol.headers import crc32c

_crc32c: Callable[[bytes], int] = google_crc32c.value  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
NO_ORDER: Final = 0
"""The hash of records without a key."""
NAME_MAX: Final = 512
"""The longest key, in bytes, that is its own name in tables of many keys."""
KEYS_KEPT: Final = 20_000
"""The most keys whose slot hash is cached."""
_SEED: Final = 0x9747B28C
_MULTIPLIER: Final = 0x5BD1E995
_MASK: Final = 0xFFFFFFFF
_BY_KEY: Final = "key"
_BY_HEADER: Final = "header:"


def key_hash(key: bytes | None) -> int:
    """Return the CRC-32C of a key, 1 where that is 0; 0 for null, which has no order."""
    return NO_ORDER if key is None else crc32c(key) or 1


def key_name(key: bytes) -> bytes:
    """Return a short name of a key, for tables of many keys. Up to NAME_MAX bytes the name is the key itself. The name
    of a longer key is NAME_MAX + 1 bytes: the key's beginning, SHA-256 and hash. A key may have a megabyte, and a table
    may hold thousands of keys."""
    if len(key) <= NAME_MAX:
        return key
    tail = hashlib.sha256(key).digest() + key_hash(key).to_bytes(4)
    return key[: NAME_MAX + 1 - len(tail)] + tail


def name_hash(name: bytes) -> int:
    """Return the hash of the key with this name."""
    return key_hash(name) if len(name) <= NAME_MAX else int.from_bytes(name[-4:])


def murmur2(data: bytes) -> int:
    """Return Kafka's murmur2 of `data`, as an unsigned 32-bit number."""
    length = len(data)
    value = _SEED ^ length
    words = length >> 2
    for word in struct.unpack_from(f"<{words}I", data):
        mixed = (word * _MULTIPLIER) & _MASK
        mixed ^= mixed >> 24
        value = ((value * _MULTIPLIER) & _MASK) ^ ((mixed * _MULTIPLIER) & _MASK)
    tail = data[words << 2 :]
    if tail:
        value ^= int.from_bytes(tail, "little")
        value = (value * _MULTIPLIER) & _MASK
    value ^= value >> 13
    value = (value * _MULTIPLIER) & _MASK
    return value ^ (value >> 15)


def key_slot_hash(key: bytes | None, offset: int) -> int:
    """Return a record's place among the key ranges of its partition, 0 to 2³¹ − 1: murmur2 of its key without the sign.

    Of a record without a key it is that of the offset as eight bytes, so that such records spread, the same for all
    members.
    """
    return murmur2(offset.to_bytes(8) if key is None else key) & 0x7FFFFFFF


def slot_hash_of(record: RawRecord) -> int:
    """Return `key_slot_hash` of a record; hashes of recent keys are cached."""
    key = record.key
    return key_slot_hash(None, record.offset) if key is None else _slot_hash_of_key(key)


@lru_cache(maxsize=KEYS_KEPT)
def _slot_hash_of_key(key: bytes) -> int:
    return key_slot_hash(key, 0)


@dataclass(frozen=True, slots=True)
class KeyOrder:
    """The order of a group's records: by their key, or by the last header with a given name."""

    header: str | None = None
    """The header's name; None: the record's key."""

    @classmethod
    def parse(cls, text: str) -> KeyOrder | None:
        """Parse the group setting `share.key.order`: `key`, `header:<name>`; empty: None, no order. Raises:
        ValueError."""
        if not text:
            return None
        if text == _BY_KEY:
            return cls()
        name = text.removeprefix(_BY_HEADER)
        if name == text or not name or name != name.strip():
            raise ValueError(f"an order is 'key' or 'header:<name>', or empty for none, not {text!r}")
        return cls(name)

    def hashes_of(self, records: Sequence[RawRecord]) -> list[int]:
        """Return the hash of each record, as `hash_of`."""
        if self.header is not None:
            return [self.hash_of(record) for record in records]
        keys = [record.key for record in records]
        return [NO_ORDER if key is None else _crc32c(key) or 1 for key in keys]

    def hash_of(self, record: RawRecord) -> int:
        """Return the hash of the bytes that order this record; 0: the record has no order."""
        return key_hash(self.key_of(record))

    def key_of(self, record: RawRecord) -> bytes | None:
        """Return the bytes by which this record is ordered; None: the record has no order."""
        return record.key if self.header is None else self.key_of_parts(None, record.headers)

    def key_of_parts(self, key: bytes | None, headers: Sequence[tuple[str, bytes | None]]) -> bytes | None:
        """Return the bytes by which a record with this key and these headers is ordered; None: it has no order."""
        if self.header is None:
            return key
        found: bytes | None = None
        for name, value in headers:
            if name == self.header:
                found = value
        return found
