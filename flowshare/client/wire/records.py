"""Fetch and Produce, by hand, for speed.

kio takes 41 µs to write the Fetch that a follower of a log sends for each lone record, this 3 µs. The owner of a slot
waits for each of its Produces, for which kio takes 150 µs, answer included.

Fetch has version 12 alone: the last that names topics, and the first whose answers report a truncated log (KIP-595).
Produce has one partition in a request. Its versions 9 to 12 differ only in tagged fields, which are skipped; version 12
adds partitions to transactions by itself (KIP-890), which is not wanted here. Source: FetchRequest.json,
FetchResponse.json, ProduceRequest.json, ProduceResponse.json.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from flowshare.client.wire.base import LEFT_OUT, Codecs, text
from flowshare.protocol.compact import I32, FrameReader, count, framed, grouped, head, varint
from flowshare.protocol.compact import text as text_bytes
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.headers import DecodeError
from flowshare.protocol.kafka import ApiKey
from flowshare.protocol.messages import FetchRequest, FetchResponse, ProduceRequest, ProduceResponse
from flowshare.protocol.messages.records import WAIT_MS, AbortedTransaction, FetchedLog

if TYPE_CHECKING:
    from collections.abc import Iterable

    from flowshare.protocol.messages.records import FetchPartition

NO_REPLICA: Final = -1
NO_SESSION: Final = (0, -1)
DIVERGING_EPOCH: Final = 0
"""The tag of the place where a log was truncated."""
_LIMITS: Final = struct.Struct(">iiiibii")
_PART: Final = struct.Struct(">iiqiqi")
_ANSWER: Final = struct.Struct(">ihi")
_LOG: Final = struct.Struct(">ihqqq")
_ABORTED: Final = struct.Struct(">qq")
_CUT: Final = struct.Struct(">iq")
_NO_TAGS: Final = b"\0"
_NO_TEXT: Final = b"\x01"
_ID: Final = 4
THROTTLED: Final = "a quota of the brokers (consumer_byte_rate) holds its records back"
CONFIRMED: Final = -1
"""acks=all: answered when every in-sync replica has the records."""
ONE: Final = b"\x02"
"""The length of an array with one entry."""
_CONFIRM: Final = struct.Struct(">hi")
_WRITTEN: Final = struct.Struct(">ihqqq")


# --- Fetch ----------------------------------------------------------------------------------------------------------


def write_fetch(number: int, client_id: str, request: FetchRequest, version: int) -> bytes:
    """Return the frame of a request, its length included."""
    pieces = [
        head(ApiKey.FETCH, version, number, client_id),
        _LIMITS.pack(
            NO_REPLICA,
            request.max_wait_ms,
            request.min_bytes,
            request.max_bytes,
            request.committed,
            *(request.session or NO_SESSION),
        ),
    ]
    by_topic = grouped((part.topic, part) for part in request.partitions)
    pieces.append(count(len(by_topic)))
    for topic, parts in by_topic.items():
        pieces += (text_bytes(topic), count(len(parts)), *map(_asked, parts), _NO_TAGS)
    forgotten = grouped(request.forgotten)
    pieces.append(count(len(forgotten)))
    for topic, numbers in forgotten.items():
        pieces += (text_bytes(topic), count(len(numbers)), *map(I32.pack, numbers), _NO_TAGS)
    pieces += (_NO_TEXT, _NO_TAGS)
    return framed(pieces)


def _asked(part: FetchPartition) -> bytes:
    return _PART.pack(part.partition, -1, part.offset, part.last_epoch, -1, part.max_bytes) + _NO_TAGS


def read_fetch(frame: bytes, request: FetchRequest) -> FetchResponse:
    """Read the answer in a frame without its length. Raises: DecodeError."""
    reader = FrameReader(frame, _ID)
    reader.tags()
    throttle_ms, error, session_id = reader.unpack(_ANSWER)
    if error:
        return FetchResponse(error=ErrorCode.known(error), throttle_ms=throttle_ms)
    logs = tuple(_logs(reader))
    if request.session is not None and session_id:
        return FetchResponse(partitions=logs, session_id=session_id, throttle_ms=throttle_ms)
    if len(logs) == 1 == len(request.partitions) and request.partitions[0][:2] == (logs[0].topic, logs[0].partition):
        return FetchResponse(partitions=logs, throttle_ms=throttle_ms)
    found = {(log.topic, log.partition): log for log in logs}
    return FetchResponse(
        partitions=tuple(
            found.get(part[:2]) or _left_out(part.topic, part.partition, throttled=throttle_ms > 0)
            for part in request.partitions
        ),
        throttle_ms=throttle_ms,
    )


def _left_out(topic: str, partition: int, *, throttled: bool) -> FetchedLog:
    """Return the log of a partition that is missing in an answer: an answer that a quota holds back has no partitions
    (KIP-219)."""
    if throttled:
        return FetchedLog(
            topic=topic, partition=partition, error=ErrorCode.THROTTLING_QUOTA_EXCEEDED, message=THROTTLED
        )
    return FetchedLog(topic=topic, partition=partition, error=ErrorCode.UNKNOWN_SERVER_ERROR, message=LEFT_OUT)


def _logs(reader: FrameReader) -> Iterable[FetchedLog]:
    for _ in range(reader.count(3)):
        topic = reader.text()
        if topic is None:
            raise DecodeError("a topic has no name")
        for _ in range(reader.count(_LOG.size)):
            yield _log(reader, topic)
        reader.tags()


def _log(reader: FrameReader, topic: str) -> FetchedLog:
    partition, error, high_watermark, last_stable, log_start = reader.unpack(_LOG)
    aborted = tuple(_aborted(reader))
    reader.unpack(I32)
    size = reader.varint() - 1
    records = reader.take(size) if size > 0 else b""
    tags = reader.tags()
    return FetchedLog(
        topic=topic,
        partition=partition,
        error=ErrorCode.known(error),
        records=records,
        log_start=log_start,
        high_watermark=high_watermark,
        last_stable=last_stable,
        aborted=aborted,
        diverging=_cut(tags[DIVERGING_EPOCH]) if DIVERGING_EPOCH in tags else None,
    )


def _aborted(reader: FrameReader) -> Iterable[AbortedTransaction]:
    for _ in range(reader.count(_ABORTED.size + 1, nullable=True)):
        producer_id, first = reader.unpack(_ABORTED)
        reader.tags()
        yield AbortedTransaction(producer_id, first)


def _cut(field: bytes) -> tuple[int, int] | None:
    """Return epoch and end offset; end offset −1: None."""
    epoch, end = FrameReader(field, 0).unpack(_CUT)
    return (epoch, end) if end >= 0 else None


# --- Produce --------------------------------------------------------------------------------------------------------


def write_produce(number: int, client_id: str, request: ProduceRequest, version: int) -> bytes:
    """Return the frame of a request, its length included."""
    return framed(
        [
            head(ApiKey.PRODUCE, version, number, client_id),
            text_bytes(request.transactional_id),
            _CONFIRM.pack(CONFIRMED, WAIT_MS),
            ONE,
            text_bytes(request.topic),
            ONE,
            I32.pack(request.partition),
            varint(len(request.records) + 1),
            request.records,
            _NO_TAGS * 3,
        ]
    )


def read_produce(frame: bytes) -> ProduceResponse:
    """Read the answer in a frame without its length. Raises: DecodeError."""
    reader = FrameReader(frame, _ID)
    reader.tags()
    if not reader.count(3):
        return ProduceResponse(error=ErrorCode.UNKNOWN_SERVER_ERROR, message=LEFT_OUT)
    reader.text()
    if not reader.count(_WRITTEN.size):
        return ProduceResponse(error=ErrorCode.UNKNOWN_SERVER_ERROR, message=LEFT_OUT)
    _, error, base_offset, append_time_ms, log_start = reader.unpack(_WRITTEN)
    for _ in range(reader.count(I32.size + 2)):
        reader.unpack(I32)
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


CODECS: Final[Codecs] = {
    FetchRequest: (write_fetch, lambda frame, request, _version: read_fetch(frame, request)),
    ProduceRequest: (write_produce, lambda frame, _request, _version: read_produce(frame)),
}
