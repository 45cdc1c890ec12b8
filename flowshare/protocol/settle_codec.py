"""ShareSettle on the wire: flowshare's own API, key 32501, offered in ApiVersions where a server can settle.

A request header (v2) and a body, an answer header (v1) and a body; there is one version, 0. Numbers are big-endian,
texts and counts are Kafka's compact ones. The records of all outputs lie at the end, one behind the other, so that they
are copied only once.

    request   group id, member id, topic id, int32 partition, int8 flags (1: ordered),
              acks: count, each int64 first, int64 last, int32 attempt, int8 flags (1: unrun), int32 number of types,
              then the types of all of them, int8 each,
              topics that are written to: count, each name, id,
              outputs: count, each int32 place of its topic, int32 partition, int32 bytes of records,
              the records
    answer    int16 error, message, int32 lock time,
              refused ranges: count, each int64 first, int64 last,
              refused outputs: count, each int32 place, int16 error, message,
              int32 leader, int32 leader epoch,
              nodes: count, each int32 id, host, int32 port
"""

from __future__ import annotations

import re
import struct
import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from flowshare.protocol.compact import I32, I32_MAX, FrameReader, count, framed, head, text
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.headers import DecodeError
from flowshare.protocol.kafka import ApiKey
from flowshare.protocol.messages.share import (
    RefusedOutput,
    SettleOutput,
    ShareSettleRequest,
    ShareSettleResponse,
)
from flowshare.share.types import AcknowledgeType, AckRange

VERSION: Final = 0
OUTPUTS_MAX: Final = 5_000
"""The most outputs of one settle."""
OFFSETS_MAX: Final = 10_000
"""The most offsets of one settle, and ranges that an answer refuses."""
TYPES: Final = bytes((AcknowledgeType.ACCEPT, AcknowledgeType.REJECT))
"""The acknowledgement types that a settle may have."""
NO_ID: Final = uuid.UUID(int=0)

_NAME: Final = re.compile(r"[a-zA-Z0-9._-]{1,249}")
_UNRUN: Final = 1
_ORDERED: Final = 1
_PARTITION: Final = struct.Struct(">iB")
_ACK: Final = struct.Struct(">qqiBi")
_OUTPUT: Final = struct.Struct(">iii")
_RANGE: Final = struct.Struct(">qq")
_START: Final = struct.Struct(">iBh")
"""The start of an answer: correlation id, no tags, error."""
_REFUSED: Final = struct.Struct(">ih")
_LEADER: Final = struct.Struct(">ii")
_TOPIC_BYTES_MIN: Final = 18
_REFUSED_BYTES_MIN: Final = 7
_NODE_BYTES_MIN: Final = 9


def problem(acks: Sequence[AckRange], outputs: Sequence[SettleOutput]) -> str | None:
    """Return the reason why a settle is invalid; None: it is valid."""
    return _problem_of_acks(acks) or problem_of_outputs(outputs)


def _problem_of_acks(acks: Sequence[AckRange]) -> str | None:
    if not acks:
        return "it settles no record"
    offsets, before = 0, -1
    for ack in acks:
        first, last = ack.first, ack.last
        if not before < first <= last:
            return f"offsets {first} to {last} are no range behind {before}"
        before = last
        offsets += last - first + 1
        if offsets > OFFSETS_MAX:
            return f"it is about more than {OFFSETS_MAX} offsets"
        if len(ack.types) not in (1, last - first + 1):
            return f"offsets {first} to {last} have {len(ack.types)} types"
        if ack.types.strip(TYPES) or ack.delay_ms:
            return f"offsets {first} to {last} are not all accepted or rejected"
        if not 0 <= ack.attempt <= I32_MAX:
            return f"offsets {first} to {last} are of attempt {ack.attempt}"
    return None


def problem_of_outputs(outputs: Sequence[SettleOutput]) -> str | None:
    """Return the reason why the outputs are invalid; None: they are valid."""
    if len(outputs) > OUTPUTS_MAX:
        return f"it has more than {OUTPUTS_MAX} outputs"
    for name, topic_id in {(output.topic, output.topic_id): None for output in outputs}:
        if not is_topic(name) or topic_id == NO_ID:
            return f"topic {name!r} with id {topic_id} cannot be written to"
    for index, output in enumerate(outputs):
        if output.partition < 0 or not output.records:
            return f"output {index} to partition {output.partition} has {len(output.records)} bytes"
    return None


def is_topic(name: str) -> bool:
    """True if Kafka's rules allow a topic of this name."""
    return _NAME.fullmatch(name) is not None and name not in (".", "..")


# --- requests ---------------------------------------------------------------------------------------------------------


def encode_settle(correlation_id: int, client_id: str, request: ShareSettleRequest, version: int) -> bytes:
    """Return the frame of a request, its length included. Raises: ValueError (no server accepts the request)."""
    wrong = problem(request.acks, request.outputs)
    if wrong is not None:
        raise ValueError(f"a settle cannot be written: {wrong}")
    pieces = [
        head(ApiKey.FLOWSHARE_SETTLE, version, correlation_id, client_id),
        text(request.group_id),
        text(request.member_id),
        request.topic_id.bytes,
        _PARTITION.pack(request.partition, _ORDERED if request.ordered else 0),
        count(len(request.acks)),
    ]
    for first, last, types, _, unrun, _, attempt, _ in request.acks:
        pieces.append(_ACK.pack(first, last, attempt, _UNRUN if unrun else 0, len(types)))
    pieces += [ack.types for ack in request.acks]
    return framed([*pieces, *output_pieces(request.outputs)])


def output_pieces(outputs: Sequence[SettleOutput]) -> list[bytes]:
    """Return the outputs as they stand at the end of a request."""
    topics = dict.fromkeys((one.topic, one.topic_id) for one in outputs)
    places = {named: place for place, named in enumerate(topics)}
    pieces = [count(len(places))]
    for name, topic_id in places:
        pieces += (text(name), topic_id.bytes)
    pieces.append(count(len(outputs)))
    for name, topic_id, partition, records in outputs:
        pieces.append(_OUTPUT.pack(places[name, topic_id], partition, len(records)))
    return pieces + [output.records for output in outputs]


def decode_settle(frame: bytes, position: int, version: int) -> ShareSettleRequest:
    """Read the request whose body begins at `position`. Raises: DecodeError."""
    del version  # there is one
    reader = FrameReader(frame, position)
    group_id, member_id = _named(reader, "group"), _named(reader, "member")
    topic_id, (partition, flags) = reader.uuid(), reader.unpack(_PARTITION)
    if topic_id == NO_ID or partition < 0:
        raise DecodeError(f"a settle of partition {partition} of the topic with id {topic_id}")
    if flags & ~_ORDERED:
        raise DecodeError(f"a settle has the flags {flags}")
    acks = _read_acks(reader)
    wrong = _problem_of_acks(acks)
    if wrong is not None:
        raise DecodeError(f"a settle cannot be read: {wrong}")
    return ShareSettleRequest(
        group_id=group_id,
        member_id=member_id,
        topic_id=topic_id,
        partition=partition,
        acks=acks,
        outputs=read_outputs(reader),
        ordered=flags == _ORDERED,
    )


def _named(reader: FrameReader, what: str) -> str:
    found = reader.text()
    if not found:
        raise DecodeError(f"a settle without the id of its {what}")
    return found


def _count(reader: FrameReader, size_min: int, most: int, what: str) -> int:
    number = reader.count(size_min)
    if number > most:
        raise DecodeError(f"a settle has {number} {what}; {most} are taken")
    return number


def _read_acks(reader: FrameReader) -> tuple[AckRange, ...]:
    number = _count(reader, _ACK.size, OFFSETS_MAX, "ranges of offsets")
    heads = tuple(_ACK.iter_unpack(reader.take(number * _ACK.size)))
    if any(size < 0 for *_, size in heads):
        raise DecodeError("a settle has a range with less than no type")
    types, at = reader.take(sum(size for *_, size in heads)), 0
    acks: list[AckRange] = []
    for first, last, attempt, flags, size in heads:
        if flags & ~_UNRUN:
            raise DecodeError(f"offsets {first} to {last} of a settle have the flags {flags}")
        acks.append(AckRange(first, last, types[at : at + size], 0, flags == _UNRUN, attempt=attempt))
        at += size
    return tuple(acks)


def read_outputs(reader: FrameReader) -> tuple[SettleOutput, ...]:
    """Read the outputs at the end of a request. Raises: DecodeError."""
    topics = _read_topics(reader)
    number = _count(reader, _OUTPUT.size, OUTPUTS_MAX, "outputs")
    heads: tuple[tuple[int, int, int], ...] = tuple(_OUTPUT.iter_unpack(reader.take(number * _OUTPUT.size)))
    outputs: list[SettleOutput] = []
    for place, partition, size in heads:
        if not (0 <= place < len(topics) and partition >= 0 and size > 0):
            raise DecodeError(f"a settle has an output of {size} bytes to partition {partition} of its topic {place}")
        name, topic_id = topics[int(place)]
        outputs.append(SettleOutput(name, topic_id, partition, reader.take(size)))
    if reader.position != reader.end:
        raise DecodeError(f"{reader.end - reader.position} bytes of a settle belong to no output")
    if len({place for place, _, _ in heads}) != len(topics):
        raise DecodeError("a settle names a topic that it does not write to")
    return tuple(outputs)


def _read_topics(reader: FrameReader) -> list[tuple[str, uuid.UUID]]:
    number = _count(reader, _TOPIC_BYTES_MIN, OUTPUTS_MAX, "topics")
    topics: list[tuple[str, uuid.UUID]] = []
    for _ in range(number):
        name, topic_id = reader.text(), reader.uuid()
        if name is None or not is_topic(name) or topic_id == NO_ID:
            raise DecodeError(f"a settle writes to the topic {name!r} with id {topic_id}")
        topics.append((name, topic_id))
    if len(set(topics)) < number:
        raise DecodeError("a settle names a topic twice")
    return topics


# --- answers ----------------------------------------------------------------------------------------------------------


def encode_settled(correlation_id: int, version: int, answer: ShareSettleResponse) -> bytes:
    """Return the frame of an answer, its length included."""
    del version
    pieces = [
        _START.pack(correlation_id, 0, answer.error),
        text(answer.message),
        I32.pack(answer.lock_timeout_ms),
        count(len(answer.refused)),
    ]
    pieces += [_RANGE.pack(first, last) for first, last in answer.refused]
    pieces.append(count(len(answer.outputs)))
    for place, error, message in answer.outputs:
        pieces += (_REFUSED.pack(place, error), text(message))
    pieces += (_LEADER.pack(*answer.current_leader), count(len(answer.node_endpoints)))
    for node_id, (host, port) in answer.node_endpoints.items():
        pieces += (I32.pack(node_id), text(host), I32.pack(port))
    return framed(pieces)


def decode_settled(frame: bytes) -> ShareSettleResponse:
    """Read the answer in a frame without its length. Raises: DecodeError."""
    reader = FrameReader(frame, 0)
    _, _, error = reader.unpack(_START)
    message, (lock_timeout_ms,) = reader.text(), reader.unpack(I32)
    refused = tuple(_ranges(reader))
    outputs = tuple(_refused_outputs(reader))
    node, epoch = reader.unpack(_LEADER)
    endpoints = _nodes(reader)
    if reader.position != reader.end:
        raise DecodeError(f"the answer to a settle has {reader.end - reader.position} bytes too many")
    return ShareSettleResponse(
        error=ErrorCode.known(error),
        message=message,
        lock_timeout_ms=lock_timeout_ms,
        refused=refused,
        outputs=outputs,
        current_leader=(node, epoch),
        node_endpoints=endpoints,
    )


def _ranges(reader: FrameReader) -> Iterable[tuple[int, int]]:
    before = -1
    for first, last in _RANGE.iter_unpack(reader.take(reader.count(_RANGE.size) * _RANGE.size)):
        if not before < first <= last:
            raise DecodeError(f"the answer to a settle refuses {first} to {last} behind {before}")
        before = last
        yield first, last


def _refused_outputs(reader: FrameReader) -> Iterable[RefusedOutput]:
    for _ in range(reader.count(_REFUSED_BYTES_MIN)):
        place, error = reader.unpack(_REFUSED)
        if not 0 <= place < OUTPUTS_MAX:
            raise DecodeError(f"the answer to a settle refuses output {place}")
        yield RefusedOutput(place, ErrorCode.known(error), reader.text())


def _nodes(reader: FrameReader) -> Mapping[int, tuple[str, int]]:
    found: dict[int, tuple[str, int]] = {}
    for _ in range(reader.count(_NODE_BYTES_MIN)):
        (node_id,), host, (port,) = reader.unpack(I32), reader.text(), reader.unpack(I32)
        if not host:
            raise DecodeError(f"the answer to a settle names no host of node {node_id}")
        found[node_id] = host, port
    return found
