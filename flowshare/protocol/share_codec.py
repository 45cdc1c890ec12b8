"""ShareFetch and ShareAcknowledge, v1 and v2, straight between bytes and the plain messages.

Requests are written by hand for two reasons: other clients acknowledge with one batch an offset, hundreds in a request,
and flowshare's own fields (delay, unrun and attempt of a batch, heads and chain of a fetch, the fence of its answer)
travel as tagged fields, which kio drops. The answer to ShareFetch, alike in both versions, is part of every delivery:
kio takes some 30 µs to write the smallest and 100 to read it, this a third of that, and the records are copied once.
Tests hold all of it equal to kio in both directions.

A batch of one type without tagged fields takes 19 bytes, so runs of such batches are found by a look at every 19th
byte. Consecutive offsets of one type that came as one batch each are returned as one batch marked `joined`: the
share-partition decides it exactly as the batches one by one (`share.acknowledge`), with the same error and the same
state. The order of batches, and the batches of one decision, are kept.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Final, TypeVar

from flowshare.protocol.compact import (
    I32,
    I32_MAX,
    I64_MAX,
    FrameReader,
    count,
    framed,
    grouped,
    head,
    tagged,
    text,
    varint,
)
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.headers import DecodeError
from flowshare.protocol.kafka import ApiKey
from flowshare.protocol.messages import (
    AcknowledgedPartition,
    FetchedPartition,
    ShareAcknowledgeRequest,
    ShareAcknowledgeResponse,
    ShareFetchRequest,
    ShareFetchResponse,
    SharePartitionRequest,
    TopicPartition,
)
from flowshare.protocol.messages.share import MOVED, NO_LEADER
from flowshare.share.types import AckRange, AcquiredRange

if TYPE_CHECKING:
    import uuid

P = TypeVar("P")

DELAY_TAG: Final = 10_000
"""Tagged field of an AcknowledgementBatch: milliseconds, a varint, until the released records may be acquired again."""
UNRUN_TAG: Final = 10_001
"""Tagged field of an AcknowledgementBatch, empty: the released records never ran and cost no attempt."""
ORDER_TAG: Final = 10_002
"""Tagged field of a ShareFetch request: two varints, the most records of one key in a row (`chain`), and the most that
may begin a key (`heads`, 0: as many as records)."""
FENCE_TAG: Final = 10_003
"""Tagged field of a partition in the answer to ShareFetch: two varints, `FetchedPartition.fence`."""
FOLLOWING_TAG: Final = 10_004
"""Tagged field of a partition in the answer to ShareFetch: varints, two each, `FetchedPartition.following`."""
ATTEMPT_TAG: Final = 10_005
"""Tagged field of an acknowledgement batch: a varint, `AckRange.attempt`."""
LOCKED_TAG: Final = 10_006
"""Tagged field of a partition in the answer to ShareFetch: a varint, `FetchedPartition.locked_after_ms`."""
REFUSED_TAG: Final = 10_007
"""Tagged field of a partition in either answer: varints, two for each range: its distance from the range before, and
its length: `AcknowledgedPartition.refused`."""
CHAIN_MAX: Final = 1_024
V2: Final = 2

_LIMITS: Final = struct.Struct(">iiiiii")
_LIMITS_V2: Final = struct.Struct(">iiiiiibB")
_EPOCH_V2: Final = struct.Struct(">iB")
_RANGE: Final = struct.Struct(">qq")
_SINGLE: Final = struct.Struct(">qqxBx")
_SINGLE_BYTES: Final = 19
_ONE_TYPE_AT: Final = 16
"""The place of a batch's number of types; with one type, the type and the number of tags follow."""
_TAGS_AT: Final = 18
_ONE_TYPE: Final = b"\x02"
_NO_TAGS: Final = b"\0"
_BATCH_BYTES_MIN: Final = 18
_PARTITION_BYTES_MIN: Final = 6
_TOPIC_BYTES_MIN: Final = 18
_START: Final = struct.Struct(">iBih")
"""Correlation id, the header's tagged fields, throttle time, error."""
_THROTTLE_ERROR: Final = struct.Struct(">ih")
_PARTITION: Final = struct.Struct(">ih")
_ERROR: Final = struct.Struct(">h")
_LEADER: Final = struct.Struct(">iiB")
_LEADER_ONLY: Final = struct.Struct(">ii")
_ACQUIRED: Final = struct.Struct(">qqhB")
_NO_RACK_NO_TAGS: Final = b"\0\0"
_PLAIN_ANSWER: Final = struct.Struct(">BihBi")
"""The start of an answer without a message: the header's tags, throttle time, error, none, lock time."""
_PLAIN_PARTITION: Final = struct.Struct(">ihBhBiiB")
"""A partition without messages and tags: number, error, none, error of the acknowledgements, none, leader, none."""
_NULL_OR_EMPTY: Final = 1
_ANSWERED_BYTES_MIN: Final = 22
_ACKNOWLEDGED_BYTES_MIN: Final = 17
_NODE_BYTES_MIN: Final = 11
DELIVERIES_MAX: Final = 2**15 - 1
"""The highest delivery count on the wire."""
_LOOK_AHEAD: Final = 256
"""The most batches examined together; bounds the cost of an odd batch between them."""
_new: Final[Callable[[type[AckRange], tuple[int, int, bytes, int, bool, bool, int, str]], AckRange]] = tuple.__new__  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
"""Makes an AckRange at a third of the cost of a call."""
_TYPES: Final = tuple(bytes((number,)) for number in range(256))


# --- reading ----------------------------------------------------------------------------------------------------


def decode_fetch(frame: bytes, position: int, version: int) -> ShareFetchRequest:
    """Read the ShareFetch request whose body begins at `position`. Raises: DecodeError."""
    reader = FrameReader(frame, position)
    group_id, member_id = reader.text(), reader.text()
    acquire_mode = renew = 0
    if version >= V2:
        epoch, wait_ms, least, most, records, batch, acquire_mode, renew = reader.unpack(_LIMITS_V2)
    else:
        epoch, wait_ms, least, most, records, batch = reader.unpack(_LIMITS)
    partitions = _read_topics(reader)
    forgotten = _read_forgotten(reader)
    tags = reader.tags()
    chain, heads = _order(tags[ORDER_TAG]) if ORDER_TAG in tags else (1, 0)
    return ShareFetchRequest(
        group_id=group_id,
        member_id=member_id,
        session_epoch=epoch,
        max_wait_ms=wait_ms,
        min_bytes=least,
        max_bytes=most,
        max_records=records,
        batch_size=batch,
        acquire_mode=acquire_mode,
        is_renew_ack=renew != 0,
        partitions=partitions,
        forgotten=forgotten,
        version=version,
        heads=heads,
        chain=chain,
    )


def decode_acknowledge(frame: bytes, position: int, version: int) -> ShareAcknowledgeRequest:
    """Read the ShareAcknowledge request whose body begins at `position`. Raises: DecodeError."""
    reader = FrameReader(frame, position)
    group_id, member_id = reader.text(), reader.text()
    renew = 0
    if version >= V2:
        epoch, renew = reader.unpack(_EPOCH_V2)
    else:
        (epoch,) = reader.unpack(I32)
    partitions = _read_topics(reader)
    reader.tags()
    return ShareAcknowledgeRequest(
        group_id=group_id,
        member_id=member_id,
        session_epoch=epoch,
        is_renew_ack=renew != 0,
        partitions=partitions,
        version=version,
    )


def _read_topics(reader: FrameReader) -> tuple[SharePartitionRequest, ...]:
    found: list[SharePartitionRequest] = []
    for _ in range(reader.count(_TOPIC_BYTES_MIN)):
        topic_id = reader.uuid()
        for _ in range(reader.count(_PARTITION_BYTES_MIN)):
            (partition,) = reader.unpack(I32)
            found.append(SharePartitionRequest(topic_id, partition, tuple(_read_batches(reader))))
            reader.tags()
        reader.tags()
    return tuple(found)


def _read_forgotten(reader: FrameReader) -> tuple[TopicPartition, ...]:
    found: list[TopicPartition] = []
    for _ in range(reader.count(_TOPIC_BYTES_MIN)):
        topic_id = reader.uuid()
        number = reader.count(I32.size)
        found += (TopicPartition(topic_id, one) for (one,) in I32.iter_unpack(reader.take(number * I32.size)))
        reader.tags()
    return tuple(found)


def _read_batches(reader: FrameReader) -> list[AckRange]:
    left = reader.count(_BATCH_BYTES_MIN)
    found: list[AckRange] = []
    while left:
        run = _singles(reader, min(left, _LOOK_AHEAD))
        if run:
            _join(reader.take(run * _SINGLE_BYTES), found)
            left -= run
        else:
            found.append(_read_batch(reader))
            left -= 1
    return found


def _singles(reader: FrameReader, most: int) -> int:
    """Return the number of batches from here on with one type and no tagged field, up to `most`."""
    start = reader.position
    end = start + min(most, (reader.end - start) // _SINGLE_BYTES) * _SINGLE_BYTES
    numbers = reader.data[start + _ONE_TYPE_AT : end : _SINGLE_BYTES]
    tags = reader.data[start + _TAGS_AT : end : _SINGLE_BYTES]
    return min(len(numbers) - len(numbers.lstrip(_ONE_TYPE)), len(tags) - len(tags.lstrip(_NO_TAGS)))


def _join(batches: bytes, found: list[AckRange]) -> None:
    """Append batches of one type; consecutive batches of one offset each become one."""
    low = high = kind = -1  # a run of single offsets that may go on; none while kind is -1
    for first, last, type_ in _SINGLE.iter_unpack(batches):
        if first == high + 1 and type_ == kind and first == last:
            high = first
            continue
        if kind >= 0:
            found.append(_new(AckRange, (low, high, _TYPES[kind], 0, False, high > low, 0, "")))
        if first == last:
            low, high, kind = first, last, type_
        else:
            found.append(_new(AckRange, (first, last, _TYPES[type_], 0, False, False, 0, "")))
            kind = -1
    if kind >= 0:
        found.append(_new(AckRange, (low, high, _TYPES[kind], 0, False, high > low, 0, "")))


def _read_batch(reader: FrameReader) -> AckRange:
    first, last = reader.unpack(_RANGE)
    types = reader.take(reader.count(1))
    tags = reader.tags()
    if not tags:
        return _new(AckRange, (first, last, types, 0, False, False, 0, ""))
    delay_ms = _delay(tags[DELAY_TAG]) if DELAY_TAG in tags else 0
    attempt = _attempt(tags[ATTEMPT_TAG]) if ATTEMPT_TAG in tags else 0
    return AckRange(first, last, types, delay_ms, UNRUN_TAG in tags, attempt=attempt)


def _order(field: bytes) -> tuple[int, int]:
    """Read chain and heads. Raises: DecodeError."""
    reader, what = FrameReader(field, 0), "the order of a fetch"
    chain, heads = _number(reader, what), _number(reader, what)
    if reader.position != reader.end or not 1 <= chain <= CHAIN_MAX or heads > I32_MAX:
        raise DecodeError(f"{what} cannot be read: chains of {chain} (1 to {CHAIN_MAX}), {heads} heads")
    return chain, heads


def _number(reader: FrameReader, what: str) -> int:
    """Read a number of a tagged field. Raises: DecodeError, which names the field by `what`."""
    try:
        return reader.varint()
    except DecodeError as error:
        raise DecodeError(f"{what} cannot be read: {error}") from None


def _attempt(field: bytes) -> int:
    attempt = _number(FrameReader(field, 0), "the attempt of an acknowledgement")
    if attempt > I32_MAX:
        raise DecodeError(f"the attempt of an acknowledgement cannot be read: {attempt} is more than an int32 holds")
    return attempt


def _delay(field: bytes) -> int:
    delay_ms = _number(FrameReader(field, 0), "the delay of a release")
    if delay_ms > I64_MAX:
        raise DecodeError(f"the delay of a release cannot be read: {delay_ms} ms is more than an int64 holds")
    return delay_ms


# --- writing ----------------------------------------------------------------------------------------------------


def encode_fetch(correlation_id: int, client_id: str, request: ShareFetchRequest, version: int) -> bytes:
    """Return the frame of a ShareFetch request, its length included. Raises: struct.error, ValueError (out of
    range)."""
    numbers = (
        request.session_epoch,
        request.max_wait_ms,
        request.min_bytes,
        request.max_bytes,
        request.max_records,
        request.batch_size,
    )
    pieces = [
        head(ApiKey.SHARE_FETCH, version, correlation_id, client_id),
        _member(request.group_id, request.member_id),
        _LIMITS_V2.pack(*numbers, request.acquire_mode, request.is_renew_ack)
        if version >= V2
        else _LIMITS.pack(*numbers),
    ]
    _write_topics(pieces, request.partitions)
    topics = grouped((part.topic_id, part) for part in request.forgotten) if request.forgotten else {}
    pieces.append(count(len(topics)))
    for topic_id, parts in topics.items():
        indexes = b"".join(I32.pack(part.partition) for part in parts)
        pieces += (topic_id.bytes, count(len(parts)), indexes, _NO_TAGS)
    ordered = request.chain > 1 or request.heads > 0
    pieces.append(tagged({ORDER_TAG: varint(request.chain) + varint(request.heads)}) if ordered else _NO_TAGS)
    return framed(pieces)


def encode_acknowledge(correlation_id: int, client_id: str, request: ShareAcknowledgeRequest, version: int) -> bytes:
    """Return the frame of a ShareAcknowledge request, its length included. Raises: struct.error, ValueError (out of
    range)."""
    pieces = [
        head(ApiKey.SHARE_ACKNOWLEDGE, version, correlation_id, client_id),
        _member(request.group_id, request.member_id),
        _EPOCH_V2.pack(request.session_epoch, request.is_renew_ack)
        if version >= V2
        else I32.pack(request.session_epoch),
    ]
    _write_topics(pieces, request.partitions)
    pieces.append(_NO_TAGS)
    return framed(pieces)


@lru_cache(maxsize=1_024)
def _member(group_id: str | None, member_id: str | None) -> bytes:
    """Encode the part of a request that names the member: group id and member id."""
    return text(group_id) + text(member_id)


def _write_topics(pieces: list[bytes], partitions: Sequence[SharePartitionRequest]) -> None:
    topics: Mapping[uuid.UUID, Sequence[SharePartitionRequest]]
    if len(partitions) == 1:
        topics = {partitions[0].topic_id: partitions}
    else:
        topics = grouped((part.topic_id, part) for part in partitions)
    pieces.append(count(len(topics)))
    for topic_id, parts in topics.items():
        pieces += (topic_id.bytes, count(len(parts)))
        for part in parts:
            pieces += (I32.pack(part.partition), count(len(part.acks)))
            _write_batches(pieces, part.acks)
            pieces.append(_NO_TAGS)
        pieces.append(_NO_TAGS)


def _write_batches(pieces: list[bytes], batches: Iterable[AckRange]) -> None:
    for first, last, types, delay_ms, unrun, _, attempt, _ in batches:
        tags: dict[int, bytes] = {}
        if delay_ms:
            tags[DELAY_TAG] = varint(delay_ms)
        if unrun:
            tags[UNRUN_TAG] = b""
        if attempt:
            tags[ATTEMPT_TAG] = varint(attempt)
        pieces += (_RANGE.pack(first, last), count(len(types)), types, tagged(tags) if tags else _NO_TAGS)


# --- the answer to ShareFetch -----------------------------------------------------------------------------------


def encode_fetched(correlation_id: int, version: int, response: ShareFetchResponse) -> bytes:
    """Return the frame of a ShareFetch answer, its length included."""
    del version  # one form for both
    pieces = [
        _START.pack(correlation_id, 0, 0, response.error),
        text(response.message),
        I32.pack(response.lock_timeout_ms),
    ]
    topics = grouped((part.topic_id, part) for part in response.partitions)
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
    if part.fence is None and not part.ack_refused:
        pieces.append(_NO_TAGS)
        return
    tags: dict[int, bytes] = {}
    if part.ack_refused:
        tags[REFUSED_TAG] = _refused(part.ack_refused)
    if part.fence is not None:
        generation, serial = part.fence
        tags[FENCE_TAG] = varint(generation) + varint(serial)
        if part.following:
            tags[FOLLOWING_TAG] = b"".join([varint(number) for pair in part.following for number in pair])
        if part.locked_after_ms is not None:
            tags[LOCKED_TAG] = varint(part.locked_after_ms)
    pieces.append(tagged(tags))


def _refused(ranges: Iterable[tuple[int, int]]) -> bytes:
    pieces, at = list[bytes](), 0
    for first, last in ranges:
        pieces += (varint(first - at), varint(last - first))
        at = last
    return b"".join(pieces)


def _read_refused(field: bytes) -> tuple[tuple[int, int], ...]:
    """Read ranges, ascending. Raises: DecodeError."""
    reader = FrameReader(field, 0)
    found: list[tuple[int, int]] = []
    at = 0
    try:
        while reader.position < reader.end:
            first = at + reader.varint()
            at = first + reader.varint()
            found.append((first, at))
    except DecodeError as error:
        raise DecodeError(f"which acknowledgements are refused cannot be read: {error}") from None
    if at > I64_MAX:
        raise DecodeError(f"which acknowledgements are refused cannot be read: offset {at}")
    return tuple(found)


def _write_nodes(pieces: list[bytes], nodes: Mapping[int, tuple[str, int]]) -> None:
    pieces.append(count(len(nodes)))
    for node_id, (host, port) in nodes.items():
        pieces += (I32.pack(node_id), text(host), I32.pack(port), _NO_RACK_NO_TAGS)


def decode_fetched(frame: bytes) -> ShareFetchResponse:
    """Read the answer in a frame without its length; an empty message becomes None. Raises: DecodeError."""
    reader = FrameReader(frame, I32.size)
    throttle_ms, error, message, lock_timeout_ms = _read_start(reader)
    parts, nodes = _read_parts(reader, _ANSWERED_BYTES_MIN, _read_partition)
    return ShareFetchResponse(
        error=ErrorCode.known(error),
        message=message,
        lock_timeout_ms=lock_timeout_ms,
        partitions=parts,
        node_endpoints=nodes,
        throttle_ms=throttle_ms,
    )


def _read_parts(
    reader: FrameReader, least: int, read: Callable[[FrameReader, uuid.UUID], P]
) -> tuple[tuple[P, ...], dict[int, tuple[str, int]]]:
    """Read the rest of either answer: partitions below their topics, of at least `least` bytes each, and nodes."""
    parts: list[P] = []
    for _ in range(reader.count(_TOPIC_BYTES_MIN)):
        topic_id = reader.uuid()
        for _ in range(reader.count(least)):
            parts.append(read(reader, topic_id))  # noqa: PERF401 - a comprehension is one more call
        reader.tags()
    nodes = _read_nodes(reader)
    reader.tags()
    return tuple(parts), nodes


def _read_start(reader: FrameReader) -> tuple[int, int, str | None, int]:
    """Read throttle time, error, message and lock time."""
    if (plain := reader.peek(_PLAIN_ANSWER)) is not None:
        tags, throttle_ms, error, said, lock_timeout_ms = plain
        if not tags and said <= _NULL_OR_EMPTY:
            reader.position += _PLAIN_ANSWER.size
            return throttle_ms, error, None, lock_timeout_ms
    reader.tags()
    throttle_ms, error = reader.unpack(_THROTTLE_ERROR)
    message = reader.text() or None
    (lock_timeout_ms,) = reader.unpack(I32)
    return throttle_ms, error, message, lock_timeout_ms


def _read_partition(reader: FrameReader, topic_id: uuid.UUID) -> FetchedPartition:
    partition, code, message, ack_code, ack_message, leader, leader_epoch = _read_facts(reader)
    records = reader.take(max(0, reader.varint() - 1))
    acquired = _read_acquired(reader)
    tags = reader.tags()
    error, ack_error = ErrorCode.known(code), ErrorCode.known(ack_code)
    return FetchedPartition(
        topic_id=topic_id,
        partition=partition,
        error=error,
        message=message,
        ack_error=ack_error,
        ack_message=ack_message,
        ack_refused=_read_refused(tags[REFUSED_TAG]) if REFUSED_TAG in tags else (),
        records=records,
        acquired=acquired,
        current_leader=NO_LEADER if MOVED.isdisjoint((error, ack_error)) else (leader, leader_epoch),
        fence=_fence(tags[FENCE_TAG]) if FENCE_TAG in tags else None,
        following=_following(tags[FOLLOWING_TAG]) if FOLLOWING_TAG in tags else (),
        locked_after_ms=_locked_after(tags[LOCKED_TAG]) if LOCKED_TAG in tags else None,
    )


def _following(field: bytes) -> tuple[tuple[int, int], ...]:
    """Read pairs of offsets. Raises: DecodeError."""
    reader = FrameReader(field, 0)
    found: list[tuple[int, int]] = []
    try:
        while reader.position < reader.end:
            found.append((reader.varint(), reader.varint()))
    except DecodeError as error:
        raise DecodeError(f"what follows parked keys in a fetch cannot be read: {error}") from None
    return tuple(found)


def _locked_after(field: bytes) -> int:
    """Read milliseconds. Raises: DecodeError."""
    reader = FrameReader(field, 0)
    after_ms = _number(reader, "when the locks of a fetch began")
    if reader.position != reader.end:
        raise DecodeError(f"when the locks of a fetch began cannot be read: {field!r}")
    return after_ms


def _fence(field: bytes) -> tuple[int, int]:
    """Read generation and serial number. Raises: DecodeError."""
    reader = FrameReader(field, 0)
    fence = _number(reader, "the fence of a fetch"), _number(reader, "the fence of a fetch")
    if reader.position != reader.end or max(fence) > I64_MAX:
        raise DecodeError(f"the fence of a fetch cannot be read: {field!r}")
    return fence


def _read_facts(reader: FrameReader) -> tuple[int, int, str | None, int, str | None, int, int]:
    """Read partition, error, message, error and message of the acknowledgements, leader, leader epoch."""
    if (plain := reader.peek(_PLAIN_PARTITION)) is not None:
        partition, code, said, ack_code, ack_said, leader, leader_epoch, tags = plain
        if said <= _NULL_OR_EMPTY and ack_said <= _NULL_OR_EMPTY and not tags:
            reader.position += _PLAIN_PARTITION.size
            return partition, code, None, ack_code, None, leader, leader_epoch
    partition, code = reader.unpack(_PARTITION)
    message = reader.text() or None
    (ack_code,) = reader.unpack(_ERROR)
    ack_message = reader.text() or None
    leader, leader_epoch = reader.unpack(_LEADER_ONLY)
    reader.tags()
    return partition, code, message, ack_code, ack_message, leader, leader_epoch


def _read_acquired(reader: FrameReader) -> tuple[AcquiredRange, ...]:
    number = reader.count(_ACQUIRED.size)
    found: list[AcquiredRange] = []
    for _ in range(number):
        first, last, times, tags = reader.unpack(_ACQUIRED)
        if tags:
            reader.position -= 1
            reader.tags()
        found.append(AcquiredRange(first, last, times))
    return tuple(found)


def _read_nodes(reader: FrameReader) -> dict[int, tuple[str, int]]:
    nodes: dict[int, tuple[str, int]] = {}
    for _ in range(reader.count(_NODE_BYTES_MIN)):
        (node_id,) = reader.unpack(I32)
        host = reader.text()
        (port,) = reader.unpack(I32)
        reader.text()
        reader.tags()
        nodes[node_id] = (host or "", port)
    return nodes


# --- the answer to ShareAcknowledge -----------------------------------------------------------------------------


def encode_acknowledged(correlation_id: int, version: int, response: ShareAcknowledgeResponse) -> bytes:
    """Return the frame of a ShareAcknowledge answer, its length included."""
    pieces = [_START.pack(correlation_id, 0, 0, response.error), text(response.message)]
    if version >= V2:
        pieces.append(I32.pack(response.lock_timeout_ms))
    topics = grouped((part.topic_id, part) for part in response.partitions)
    pieces.append(count(len(topics)))
    for topic_id, parts in topics.items():
        pieces += (topic_id.bytes, count(len(parts)))
        for part in parts:
            pieces += (
                _PARTITION.pack(part.partition, part.error),
                text(part.message),
                _LEADER.pack(*part.current_leader, 0),
                tagged({REFUSED_TAG: _refused(part.refused)}) if part.refused else _NO_TAGS,
            )
        pieces.append(_NO_TAGS)
    _write_nodes(pieces, response.node_endpoints)
    pieces.append(_NO_TAGS)
    return framed(pieces)


def decode_acknowledged(frame: bytes, version: int) -> ShareAcknowledgeResponse:
    """Read the answer in a frame without its length; an empty message becomes None. Raises: DecodeError."""
    reader = FrameReader(frame, I32.size)
    reader.tags()
    _, error = reader.unpack(_THROTTLE_ERROR)
    message = reader.text() or None
    lock_timeout_ms = reader.unpack(I32)[0] if version >= V2 else 0
    parts, nodes = _read_parts(reader, _ACKNOWLEDGED_BYTES_MIN, _read_acknowledged)
    return ShareAcknowledgeResponse(
        error=ErrorCode.known(error),
        message=message,
        lock_timeout_ms=lock_timeout_ms,
        partitions=parts,
        node_endpoints=nodes,
    )


def _read_acknowledged(reader: FrameReader, topic_id: uuid.UUID) -> AcknowledgedPartition:
    partition, code = reader.unpack(_PARTITION)
    message = reader.text() or None
    leader, leader_epoch = reader.unpack(_LEADER_ONLY)
    reader.tags()
    tags = reader.tags()
    error = ErrorCode.known(code)
    return AcknowledgedPartition(
        topic_id=topic_id,
        partition=partition,
        error=error,
        message=message,
        current_leader=(leader, leader_epoch) if error in MOVED else NO_LEADER,
        refused=_read_refused(tags[REFUSED_TAG]) if REFUSED_TAG in tags else (),
    )
