"""The answer to ShareFetch, v1 and v2 (they are alike), straight between the plain message and bytes.

By hand because it is what every delivery costs: kio takes some 30 µs for the smallest answer to write it and 100 to
read it, this a third of that, and the records are copied once. Tests hold both ways equal to kio.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from flowshare.protocol.compact import Reader, count, framed, text, varint
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.messages import FetchedPartition, ShareFetchResponse
from flowshare.protocol.messages.share import NO_LEADER
from flowshare.protocol.share_codec import by_topic
from flowshare.share.types import AcquiredRange

if TYPE_CHECKING:
    import uuid
    from collections.abc import Mapping

_START: Final = struct.Struct(">iBih")
"""Correlation id, the header's tagged fields, throttle time, error."""
_THROTTLE_ERROR: Final = struct.Struct(">ih")
_LOCK: Final = struct.Struct(">i")
_PARTITION: Final = struct.Struct(">ih")
_ERROR: Final = struct.Struct(">h")
_LEADER: Final = struct.Struct(">iiB")
_ACQUIRED: Final = struct.Struct(">qqhB")
_RANGE: Final = struct.Struct(">qqh")
_NODE: Final = struct.Struct(">i")
_NO_TAGS: Final = b"\0"
_NO_RACK_NO_TAGS: Final = b"\0\0"
_LEADER_ONLY: Final = struct.Struct(">ii")
_TOPIC_BYTES_MIN: Final = 18
_PARTITION_BYTES_MIN: Final = 22
_NODE_BYTES_MIN: Final = 11
DELIVERIES_MAX: Final = 2**15 - 1
"""Highest delivery count that can be told."""
MOVED: Final = frozenset({ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH})
"""Errors that come with the current leader; beside others brokers send 0 and do not mean it."""


# --- writing ----------------------------------------------------------------------------------------------------


def encode_fetched(correlation_id: int, version: int, response: ShareFetchResponse) -> bytes:
    """The frame of a ShareFetch answer, its length included."""
    del version  # one form for both
    pieces = [
        _START.pack(correlation_id, 0, 0, response.error),
        text(response.message),
        _LOCK.pack(response.lock_timeout_ms),
    ]
    topics = by_topic((part.topic_id, part) for part in response.partitions)
    pieces.append(count(len(topics)))
    for topic_id, parts in topics.items():
        pieces += (topic_id.bytes, count(len(parts)))
        for part in parts:
            _write_partition(pieces, part)
        pieces.append(_NO_TAGS)
    _write_nodes(pieces, response.node_endpoints)
    pieces.append(_NO_TAGS)
    return framed(pieces)


def _write_partition(pieces: list[bytes], part: FetchedPartition) -> None:
    pieces += (
        _PARTITION.pack(part.partition, part.error),
        text(part.message),
        _ERROR.pack(part.ack_error),
        text(part.ack_message),
        _LEADER.pack(*part.current_leader, 0),
        varint(len(part.records) + 1),
        part.records,
        count(len(part.acquired)),
    )
    pieces += [
        _ACQUIRED.pack(first, last, min(deliveries, DELIVERIES_MAX), 0) for first, last, deliveries in part.acquired
    ]
    pieces.append(_NO_TAGS)


def _write_nodes(pieces: list[bytes], nodes: Mapping[int, tuple[str, int]]) -> None:
    pieces.append(count(len(nodes)))
    for node_id, (host, port) in nodes.items():
        pieces += (_NODE.pack(node_id), text(host), _NODE.pack(port), _NO_RACK_NO_TAGS)


# --- reading ----------------------------------------------------------------------------------------------------


def decode_fetched(frame: bytes) -> ShareFetchResponse:
    """The answer in a frame without its length; an empty message is none. Raises: DecodeError."""
    reader = Reader(frame, _NODE.size)
    reader.tags()
    throttle_ms, error = reader.unpack(_THROTTLE_ERROR)
    message = reader.text()
    (lock_timeout_ms,) = reader.unpack(_LOCK)
    parts: list[FetchedPartition] = []
    for _ in range(reader.count(_TOPIC_BYTES_MIN)):
        topic_id = reader.uuid()
        parts += [_read_partition(reader, topic_id) for _ in range(reader.count(_PARTITION_BYTES_MIN))]
        reader.tags()
    nodes = _read_nodes(reader)
    reader.tags()
    return ShareFetchResponse(
        error=ErrorCode.known(error),
        message=message or None,
        lock_timeout_ms=lock_timeout_ms,
        partitions=tuple(parts),
        node_endpoints=nodes,
        throttle_ms=throttle_ms,
    )


def _read_partition(reader: Reader, topic_id: uuid.UUID) -> FetchedPartition:
    partition, code = reader.unpack(_PARTITION)
    message = reader.text()
    (ack_code,) = reader.unpack(_ERROR)
    ack_message = reader.text()
    leader, leader_epoch = reader.unpack(_LEADER_ONLY)
    reader.tags()
    records = reader.take(max(0, reader.varint() - 1))
    acquired = _read_acquired(reader)
    reader.tags()
    error, ack_error = ErrorCode.known(code), ErrorCode.known(ack_code)
    return FetchedPartition(
        topic_id=topic_id,
        partition=partition,
        error=error,
        message=message or None,
        ack_error=ack_error,
        ack_message=ack_message or None,
        records=records,
        acquired=acquired,
        current_leader=NO_LEADER if MOVED.isdisjoint((error, ack_error)) else (leader, leader_epoch),
    )


def _read_acquired(reader: Reader) -> tuple[AcquiredRange, ...]:
    number = reader.count(_ACQUIRED.size)
    found: list[AcquiredRange] = []
    for _ in range(number):
        first, last, times = reader.unpack(_RANGE)
        reader.tags()
        found.append(AcquiredRange(first, last, times))
    return tuple(found)


def _read_nodes(reader: Reader) -> dict[int, tuple[str, int]]:
    nodes: dict[int, tuple[str, int]] = {}
    for _ in range(reader.count(_NODE_BYTES_MIN)):
        (node_id,) = reader.unpack(_NODE)
        host = reader.text()
        (port,) = reader.unpack(_NODE)
        reader.text()
        reader.tags()
        nodes[node_id] = (host or "", port)
    return nodes
