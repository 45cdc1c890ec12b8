"""Flowshare's own API, key 32500: calls between flowshare's clients and servers that Kafka's messages have no field
for.

A request is a request header (v2) and a JSON object `{"call": name, …}`, an answer a response header (v1) and a JSON
object; with `error` (Kafka's number) and `message` it is a refusal. ApiVersions names the key to flowshare's clients
only, which so recognise flowshare's servers; other clients do not see it.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any, Final, cast

import orjson

from flowshare.protocol.compact import framed, head
from flowshare.protocol.headers import DecodeError
from flowshare.protocol.kafka import ApiKey

VERSION: Final = 0
SHARE_OFFSETS: Final = "share_offsets"
"""{"group_id", "topics": {name: [partition, …]} or null} -> {"partitions": [[topic, partition, in_flight, delayed,
redeliveries, oldest_ms, blocked, [[offset, blocked, state, delivery_count, member_id], …]], …]}: flowshare's own fields
of DescribeShareGroupOffsets."""

SHARE_RESUME: Final = "share_resume"
"""{"group_id", "member_id", "partitions": [[topic id, partition, [[first, last], …]], …]} -> {"partitions": the same
with the ranges that are still the member's, "elsewhere": [[topic id, partition], …], led by others}: ShareResume."""

SHARE_PLACE: Final = "share_place"
"""{"group_id", "partitions": [[topic, partition, offset, [[first, last], …]], …]} -> {"partitions": [[topic, partition,
error, message], …]}: AlterShareGroupOffsets with finished ranges from the offset on."""

SHARE_PARKED: Final = "share_parked"
"""{"group_id", "act": "list"} or {…, "act": "replay" | "unpark", "topic", "partition", "key": in hex} -> {"order",
"keys": [[topic, partition, key in hex, fields of `ParkedKey`…], …]}: ParkedKeysRequest."""

SHARE_BREAKER: Final = "share_breaker"
"""{"group_id", "act": "tell" | "close"} or {…, "act": "report", "member_id", "outcomes": [succeeded, failed, tried and
succeeded, tried and failed], "known": [state, left_ms, open_ms]} -> {"state", "why", "left_ms", "open_ms"}:
ShareBreakerRequest."""

TOPIC_GROW: Final = "topic_grow"
"""{"topic", "total"} -> {}: CreatePartitions of one topic, also where a group reads the topic in key order."""

REPLAY_HEADER: Final = "flowshare.dlq.replay"
"""The header of a replayed record of a parked key: `share.parking.Mark`."""

_RESPONSE: Final = struct.Struct(">iB")

Body = Mapping[str, Any]


def encode_call(correlation_id: int, client_id: str, body: Body) -> bytes:
    """Return the frame of a call, its length included."""
    return framed([head(ApiKey.FLOWSHARE, VERSION, correlation_id, client_id), orjson.dumps(body)])


def decode_call(frame: bytes, position: int, version: int) -> dict[str, Any]:
    """Read the object of the call whose body begins at `position`. Raises: DecodeError."""
    del version  # there is one
    return json_object(frame[position:], "the private message")


def encode_answer(correlation_id: int, version: int, body: Body) -> bytes:
    """Return the frame of an answer, its length included."""
    del version
    return framed([_RESPONSE.pack(correlation_id, 0), orjson.dumps(body)])


def decode_answer(frame: bytes) -> dict[str, Any]:
    """Read the object of an answer (without its length). Raises: DecodeError."""
    return json_object(frame[_RESPONSE.size :], "the private message")


def json_object(text: bytes, what: str) -> dict[str, Any]:
    """Parse the JSON object of one of flowshare's own APIs; `what` names it in errors. Raises: DecodeError."""
    try:
        found = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise DecodeError(f"{what} is no JSON: {error}") from None
    if not isinstance(found, dict):
        raise DecodeError(f"{what} is no JSON object")
    return cast("dict[str, Any]", found)
