"""Which partition a keyed record goes to: the same one that every other Kafka client would choose.

murmur2 over the key's bytes, as in Kafka's own `Utils.murmur2` and built-in partitioner, so that producers in any
language agree. Records without a key are spread by the producer, a batch at a time (KIP-794).
"""

from __future__ import annotations

import functools
import struct
from typing import Final

SEED: Final = 0x9747B28C
MULTIPLIER: Final = 0x5BD1E995
MASK: Final = 0xFFFFFFFF
KEYS_KEPT: Final = 16_384


def murmur2(data: bytes) -> int:
    """Kafka's murmur2 of `data`, as an unsigned 32-bit number."""
    length = len(data)
    value = SEED ^ length
    words = length >> 2
    for word in struct.unpack_from(f"<{words}I", data):
        mixed = (word * MULTIPLIER) & MASK
        mixed ^= mixed >> 24
        value = ((value * MULTIPLIER) & MASK) ^ ((mixed * MULTIPLIER) & MASK)
    tail = data[words << 2 :]
    if tail:
        value ^= int.from_bytes(tail, "little")
        value = (value * MULTIPLIER) & MASK
    value ^= value >> 13
    value = (value * MULTIPLIER) & MASK
    return value ^ (value >> 15)


@functools.lru_cache(maxsize=KEYS_KEPT)
def _positive(key: bytes) -> int:
    return murmur2(key) & 0x7FFFFFFF


def partition_for(key: bytes, partitions: int) -> int:
    """The partition of a keyed record among `partitions`; keys seen lately are remembered."""
    return 0 if partitions == 1 else _positive(key) % partitions
