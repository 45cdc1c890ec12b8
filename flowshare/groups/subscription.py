"""Topics of a consumer's subscription, read from its JoinGroup metadata (ConsumerProtocolSubscription, v0 to v3).

The metadata is opaque to the coordinator, with this one exception: the topics that the members read decide whose
committed offsets may expire or be deleted. Only the beginning, which is the same in all versions, is read.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Final

CONSUMER: Final = "consumer"
"""Protocol type of consumers; Kafka Connect has another."""
_HEAD: Final = struct.Struct(">hi")
_LENGTH: Final = struct.Struct(">h")


def subscribed_topics(metadata: bytes) -> frozenset[str] | None:
    """Return the topics, or None if the metadata cannot be read."""
    try:
        version, count = _HEAD.unpack_from(metadata)
        if version < 0 or not 0 <= count <= len(metadata):
            return None
        position = _HEAD.size
        topics: list[str] = []
        for _ in range(count):
            (length,) = _LENGTH.unpack_from(metadata, position)
            end = position + _LENGTH.size + length
            if length < 0 or end > len(metadata):
                return None
            topics.append(metadata[position + _LENGTH.size : end].decode())
            position = end
    except (struct.error, UnicodeDecodeError):
        return None
    return frozenset(topics)


def all_subscribed_topics(metadata: Iterable[bytes]) -> frozenset[str] | None:
    """Return all topics that any of the members reads; None if the topics of one member are not known."""
    found: set[str] = set()
    for one in metadata:
        topics = subscribed_topics(one)
        if topics is None:
            return None
        found |= topics
    return frozenset(found)
