"""Produce, by hand: an owner of a slot waits for each of its answers, and kio takes 150 µs for request and answer.

One partition in a request. Versions 9 to 12 look the same but for tagged fields, which are passed over. Source:
ProduceRequest.json, ProduceResponse.json.
"""

from __future__ import annotations

import struct
from typing import Any, Final

from flowshare.client.wire.base import LEFT_OUT, Codec, alone, text
from flowshare.protocol.compact import Reader, framed, head, varint
from flowshare.protocol.compact import text as text_bytes
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.kafka import ApiKey
from flowshare.protocol.messages import ProduceRequest, ProduceResponse

CONFIRMED: Final = -1
"""acks=all: answered when every replica that must have the records has them."""
WAIT_MS: Final = 15_000
"""How long the broker may wait for replicas; below request_timeout_s, so that its answer still comes."""
ONE: Final = b"\x02"
"""Length of an array with one entry."""
_LIMITS: Final = struct.Struct(">hi")
_INDEX: Final = struct.Struct(">i")
_PART: Final = struct.Struct(">ihqqq")
_RECORD_ERROR: Final = struct.Struct(">i")
_NO_TAGS: Final = b"\0"
_ID: Final = 4


def write(number: int, client_id: str, request: ProduceRequest, version: int) -> bytes:
    """The frame of a request, its length included."""
    return framed(
        [
            head(ApiKey.PRODUCE, version, number, client_id),
            text_bytes(request.transactional_id),
            _LIMITS.pack(CONFIRMED, WAIT_MS),
            ONE,
            text_bytes(request.topic),
            ONE,
            _INDEX.pack(request.partition),
            varint(len(request.records) + 1),
            request.records,
            _NO_TAGS * 3,
        ]
    )


def read(frame: bytes) -> ProduceResponse:
    """The answer in a frame without its length. Raises: DecodeError."""
    reader = Reader(frame, _ID)
    reader.tags()
    if not reader.count(3):
        return ProduceResponse(error=ErrorCode.UNKNOWN_SERVER_ERROR, message=LEFT_OUT)
    reader.text()
    if not reader.count(_PART.size):
        return ProduceResponse(error=ErrorCode.UNKNOWN_SERVER_ERROR, message=LEFT_OUT)
    _, error, base_offset, append_time_ms, log_start = reader.unpack(_PART)
    for _ in range(reader.count(_RECORD_ERROR.size + 2)):
        reader.unpack(_RECORD_ERROR)
        reader.text()
        reader.tags()
    message = reader.text()
    return ProduceResponse(
        error=ErrorCode.known(error),
        message=text(message),
        base_offset=base_offset,
        log_start=log_start,
        append_time_ms=append_time_ms,
    )


CODECS: Final[dict[type[Any], Codec]] = {
    ProduceRequest: Codec(key=ApiKey.PRODUCE, name="produce", lowest=9, highest=12, write=write, read=alone(read))
}
"""Request class -> how it crosses the wire."""
