"""Fetch of some keys on the wire: flowshare's own API, key 32502, offered in ApiVersions where a server can filter.

A request header (v2) and a body, an answer header (v1) and a body; there is one version, 0. Numbers are big-endian,
texts and counts are Kafka's compact ones. The records of all partitions lie at the end, one behind the other.

    request   int32 longest wait, int32 least bytes, int32 most bytes, int8 isolation level (1: read committed),
              partitions: count, each topic, int32 partition, int64 offset, int32 most bytes, int64 until,
                  ranges of hashes: count (0: all keys), each uint32 first, uint32 end
    answer    partitions, as they were asked for: count, each topic, int32 partition, int16 error, message,
                  int64 high watermark, int64 last stable offset, int64 log start,
                  aborted transactions: count, each int64 producer id, int64 first offset,
                  int64 end of what was looked at (−1: nothing was left out),
                  voids: count, each int64 first, int64 end, unopened batches: the same,
                  int32 bytes of records,
              the records
"""

from __future__ import annotations

import struct
from dataclasses import replace
from typing import Final

from flowshare.cooperative.ranges import checked
from flowshare.core_errors import InvalidRequest
from flowshare.protocol.compact import FrameReader, count, framed, head, text
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.headers import DecodeError
from flowshare.protocol.kafka import ApiKey
from flowshare.protocol.messages.records import (
    AbortedTransaction,
    FetchedLog,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    Filtered,
    KeyFilter,
)

VERSION: Final = 0
PARTITIONS_MAX: Final = 10_000
"""The most partitions of one request."""
NOT_FILTERED: Final = -1

_LIMITS: Final = struct.Struct(">iiib")
_ASKED: Final = struct.Struct(">iqiq")
_KEYS: Final = struct.Struct(">II")
_PAIR: Final = struct.Struct(">qq")
_CODE: Final = struct.Struct(">ih")
_OFFSETS: Final = struct.Struct(">qqq")
_END: Final = struct.Struct(">q")
_SIZE: Final = struct.Struct(">i")
_START: Final = struct.Struct(">iB")
"""The start of an answer: correlation id, no tags."""
_ASKED_BYTES_MIN: Final = 27
_ANSWERED_BYTES_MIN: Final = 48


# --- requests ---------------------------------------------------------------------------------------------------------


def encode_fetch(correlation_id: int, client_id: str, request: FetchRequest, version: int) -> bytes:
    """Return the frame of a request, its length included."""
    pieces = [
        head(ApiKey.FLOWSHARE_FETCH, version, correlation_id, client_id),
        _LIMITS.pack(request.max_wait_ms, request.min_bytes, request.max_bytes, request.committed),
        count(len(request.partitions)),
    ]
    for part in request.partitions:
        keys, until = part.only or ((), 0)
        pieces += (text(part.topic), _ASKED.pack(part.partition, part.offset, part.max_bytes, until), count(len(keys)))
        pieces += [_KEYS.pack(first, end) for first, end in keys]
    return framed(pieces)


def decode_fetch(frame: bytes, position: int, version: int) -> FetchRequest:
    """Read the request whose body begins at `position`. Raises: DecodeError."""
    del version  # there is one
    reader = FrameReader(frame, position)
    wait_ms, least, most, isolation = reader.unpack(_LIMITS)
    number = reader.count(_ASKED_BYTES_MIN)
    if number > PARTITIONS_MAX:
        raise DecodeError(f"{number} partitions are to be read at once; at most {PARTITIONS_MAX} are")
    parts = tuple(_read_asked(reader) for _ in range(number))
    if len({part[:2] for part in parts}) < number:
        raise DecodeError("a partition is to be read twice at once")
    return FetchRequest(
        partitions=parts, max_wait_ms=wait_ms, min_bytes=least, max_bytes=most, committed=isolation == 1
    )


def _read_asked(reader: FrameReader) -> FetchPartition:
    topic = reader.text()
    if not topic:
        raise DecodeError("a topic to be read has no name")
    partition, offset, most, until = reader.unpack(_ASKED)
    keys = list(_KEYS.iter_unpack(reader.take(reader.count(_KEYS.size) * _KEYS.size)))
    try:
        only = KeyFilter(tuple((first, end) for first, end in checked(keys)), until) if keys else None
    except InvalidRequest as error:
        raise DecodeError(f"the keys that are to be read of {topic}-{partition}: {error}") from None
    return FetchPartition(topic, partition, offset, most, only=only)


# --- answers ----------------------------------------------------------------------------------------------------------


def encode_fetched(correlation_id: int, version: int, answer: FetchResponse) -> bytes:
    """Return the frame of an answer, its length included."""
    del version
    pieces = [_START.pack(correlation_id, 0), count(len(answer.partitions))]
    for log in answer.partitions:
        end, voids, unopened = log.filtered or Filtered(NOT_FILTERED)
        pieces += (text(log.topic), _CODE.pack(log.partition, log.error), text(log.message))
        pieces += (_OFFSETS.pack(log.high_watermark, log.last_stable, log.log_start), count(len(log.aborted)))
        pieces += [_PAIR.pack(*one) for one in log.aborted]
        pieces.append(_END.pack(end))
        for ranges in (voids, unopened):
            pieces.append(count(len(ranges)))
            pieces += [_PAIR.pack(*one) for one in ranges]
        pieces.append(_SIZE.pack(len(log.records)))
    return framed([*pieces, *(log.records for log in answer.partitions)])


def decode_fetched(frame: bytes) -> FetchResponse:
    """Read the answer in a frame without its length. Raises: DecodeError."""
    reader = FrameReader(frame, 0)
    reader.unpack(_START)
    told = [_read_told(reader) for _ in range(reader.count(_ANSWERED_BYTES_MIN))]
    logs = tuple(replace(log, records=reader.take(size)) for log, size in told)
    if reader.position != reader.end:
        raise DecodeError(f"{reader.end - reader.position} bytes behind what was read belong to nothing")
    return FetchResponse(partitions=logs)


def _read_told(reader: FrameReader) -> tuple[FetchedLog, int]:
    topic, (partition, error), message = reader.text() or "", reader.unpack(_CODE), reader.text()
    high_watermark, last_stable, log_start = reader.unpack(_OFFSETS)
    aborted = tuple(AbortedTransaction(*one) for one in _pairs(reader))
    (end,) = reader.unpack(_END)
    voids, unopened = _pairs(reader), _pairs(reader)
    (size,) = reader.unpack(_SIZE)
    if size < 0:
        raise DecodeError(f"{topic}-{partition} has {size} bytes of records")
    log = FetchedLog(
        topic=topic,
        partition=partition,
        error=ErrorCode.known(error),
        message=message,
        high_watermark=high_watermark,
        last_stable=last_stable,
        log_start=log_start,
        aborted=aborted,
        filtered=None if end == NOT_FILTERED else Filtered(end, voids, unopened),
    )
    return log, size


def _pairs(reader: FrameReader) -> tuple[tuple[int, int], ...]:
    return tuple((first, end) for first, end in _PAIR.iter_unpack(reader.take(reader.count(_PAIR.size) * _PAIR.size)))
