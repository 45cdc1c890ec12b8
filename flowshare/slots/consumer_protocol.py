"""Kafka's consumer protocol: messages of members of consumer groups, so that Kafka's tools can show them.

Version 1 of both messages (ConsumerProtocolSubscription.json, ConsumerProtocolAssignment.json), which every broker
since 2.4 reads. Flowshare's own data lies in the user data of both.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple

from flowshare.slots.errors import MembershipError

VERSION: Final = 1
_SHORT: Final = struct.Struct(">h")
_INT: Final = struct.Struct(">i")

Partitions = Mapping[str, Sequence[int]]
"""Topic -> partitions."""


class Subscription(NamedTuple):
    """The subscription that a group member sends: its topics, user data and owned partitions."""

    topics: tuple[str, ...]
    user_data: bytes
    owned: Partitions = MappingProxyType({})


class Assignment(NamedTuple):
    """The assignment that a group member receives: its partitions and user data."""

    partitions: Partitions
    user_data: bytes


def encode_subscription(subscription: Subscription) -> bytes:
    """Encode the metadata of a JoinGroup request."""
    topics = b"".join(_text(topic) for topic in subscription.topics)
    return b"".join(
        (
            _SHORT.pack(VERSION),
            _INT.pack(len(subscription.topics)),
            topics,
            _bytes(subscription.user_data),
            _partitions(subscription.owned),
        )
    )


def decode_subscription(data: bytes) -> Subscription:
    """Decode a subscription that `encode_subscription` wrote. Raises: MembershipError."""
    reader = _FieldReader(data)
    version = reader.short()
    topics = tuple(reader.text() for _ in range(reader.count()))
    user_data = reader.blob()
    return Subscription(topics, user_data, reader.partitions() if version >= 1 else {})


def encode_assignment(assignment: Assignment) -> bytes:
    """Encode one member's assignment for SyncGroup."""
    return _SHORT.pack(VERSION) + _partitions(assignment.partitions) + _bytes(assignment.user_data)


def decode_assignment(data: bytes) -> Assignment:
    """Decode an assignment that `encode_assignment` wrote. Raises: MembershipError."""
    reader = _FieldReader(data)
    reader.short()
    return Assignment(reader.partitions(), reader.blob())


def _text(text: str) -> bytes:
    data = text.encode()
    return _SHORT.pack(len(data)) + data


def _bytes(data: bytes) -> bytes:
    return _INT.pack(len(data)) + data


def _partitions(partitions: Partitions) -> bytes:
    parts = [_INT.pack(len(partitions))]
    for topic, numbers in partitions.items():
        parts += [_text(topic), struct.pack(f">i{len(numbers)}i", len(numbers), *numbers)]
    return b"".join(parts)


class _FieldReader:
    """Reads one field after another; lengths are compared with the bytes left before anything is made."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def take(self, size: int) -> bytes:
        if not 0 <= size <= len(self._data) - self._at:
            raise MembershipError(f"a field of {size} bytes, {len(self._data) - self._at} are left")
        self._at += size
        return self._data[self._at - size : self._at]

    def short(self) -> int:
        (number,) = _SHORT.unpack(self.take(_SHORT.size))
        return int(number)

    def number(self) -> int:
        (number,) = _INT.unpack(self.take(_INT.size))
        return int(number)

    def count(self, size_min: int = 2) -> int:
        """Read an array's length, null: 0. Raises: MembershipError (no room for elements of `size_min` bytes)."""
        count = self.number()
        if count * size_min > len(self._data) - self._at:
            raise MembershipError(f"an array of {count} elements, {len(self._data) - self._at} bytes are left")
        return max(0, count)

    def text(self) -> str:
        data = self.take(self.short())
        try:
            return data.decode()
        except UnicodeDecodeError as error:
            raise MembershipError(f"a name is no text: {error}") from None

    def blob(self) -> bytes:
        """Read bytes; null is empty."""
        size = self.number()
        return b"" if size < 0 else self.take(size)

    def partitions(self) -> dict[str, tuple[int, ...]]:
        found: dict[str, tuple[int, ...]] = {}
        for _ in range(self.count(6)):
            topic = self.text()
            found[topic] = tuple(self.number() for _ in range(self.count(_INT.size)))
        return found
