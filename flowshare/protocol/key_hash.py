"""What a record's key is to those who share a partition: a hash, the same for servers and members.

A server that hands out the first unsettled record of each key only remembers a number for each offset, and members tell
a key's records apart by the same number. Two keys with one hash wait for each other, which costs time and nothing else.

Members that share a partition by ranges of keys (`flowshare.cooperative`) go by `key_slot_hash`: the hash by which
Kafka's producers choose partitions, of which ranges, unlike remainders, are even within each partition.
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
"""The hash of records that have no key."""
NAME_MAX: Final = 512
"""Bytes of the keys that are known by themselves where many are remembered."""
KEYS_KEPT: Final = 20_000
"""Keys whose place among the ranges is remembered."""
_SEED: Final = 0x9747B28C
_MULTIPLIER: Final = 0x5BD1E995
_MASK: Final = 0xFFFFFFFF
_BY_KEY: Final = "key"
_BY_HEADER: Final = "header:"


def key_hash(key: bytes | None) -> int:
    """CRC-32C of a key, 1 where that is 0; 0 for null, which has no order."""
    return NO_ORDER if key is None else crc32c(key) or 1


def key_name(key: bytes) -> bytes:
    """What a key is known by where many are remembered: the key, or of a longer one than NAME_MAX bytes its beginning,
    its SHA-256 and its hash, one byte more than NAME_MAX. A key may have a megabyte, and so may each of thousands."""
    if len(key) <= NAME_MAX:
        return key
    tail = hashlib.sha256(key).digest() + key_hash(key).to_bytes(4)
    return key[: NAME_MAX + 1 - len(tail)] + tail


def name_hash(name: bytes) -> int:
    """The hash of the key with this name."""
    return key_hash(name) if len(name) <= NAME_MAX else int.from_bytes(name[-4:])


def murmur2(data: bytes) -> int:
    """Kafka's murmur2 of `data`, as an unsigned 32-bit number."""
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
    """The place of a record among the ranges of keys of its partition, from 0 to 2³¹ − 1: murmur2 of its key without
    the sign; of a record without a key, of its offset as eight bytes, so that those spread, the same for all members.
    """
    return murmur2(offset.to_bytes(8) if key is None else key) & 0x7FFFFFFF


def slot_hash_of(record: RawRecord) -> int:
    """The same of a record; keys seen lately are remembered."""
    key = record.key
    return key_slot_hash(None, record.offset) if key is None else _slot_hash_of_key(key)


@lru_cache(maxsize=KEYS_KEPT)
def _slot_hash_of_key(key: bytes) -> int:
    return key_slot_hash(key, 0)


@dataclass(frozen=True, slots=True)
class KeyOrder:
    """What orders the records of a group: their key, or the last header of a name."""

    header: str | None = None
    """None: the record's key."""

    @classmethod
    def parse(cls, text: str) -> KeyOrder | None:
        """The group setting `share.key.order`: `key`, `header:<name>`; empty: None, no order. Raises: ValueError."""
        if not text:
            return None
        if text == _BY_KEY:
            return cls()
        name = text.removeprefix(_BY_HEADER)
        if name == text or not name or name != name.strip():
            raise ValueError(f"an order is 'key' or 'header:<name>', or empty for none, not {text!r}")
        return cls(name)

    def hashes_of(self, records: Sequence[RawRecord]) -> list[int]:
        """The hash of each record, as `hash_of`."""
        if self.header is not None:
            return [self.hash_of(record) for record in records]
        keys = [record.key for record in records]
        return [NO_ORDER if key is None else _crc32c(key) or 1 for key in keys]

    def hash_of(self, record: RawRecord) -> int:
        """The hash of what orders this record; 0: it has no order."""
        return key_hash(self.key_of(record))

    def key_of(self, record: RawRecord) -> bytes | None:
        """What orders this record; None: it has no order."""
        return record.key if self.header is None else self.key_of_parts(None, record.headers)

    def key_of_parts(self, key: bytes | None, headers: Sequence[tuple[str, bytes | None]]) -> bytes | None:
        """The same of a record that has this key and these headers."""
        if self.header is None:
            return key
        found: bytes | None = None
        for name, value in headers:
            if name == self.header:
                found = value
        return found
