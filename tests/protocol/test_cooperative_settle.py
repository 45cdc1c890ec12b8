"""A settle of a cooperative group on the wire: what is written is read as it was, and what makes no sense refused."""

from __future__ import annotations

import struct
import uuid
from dataclasses import replace

import orjson
import pytest

from flowshare.cooperative.types import KeyRange, OffsetRange
from flowshare.protocol import cooperative_settle as codec
from flowshare.protocol.compact import count
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.headers import DecodeError
from flowshare.protocol.kafka import ApiKey, request_body, request_start
from flowshare.protocol.messages import (
    CooperativeSettleRequest,
    CooperativeSettleResponse,
    RefusedOutput,
    SettleOutput,
)
from flowshare.protocol.messages.cooperative import CommitEntry

ID, OUT = uuid.UUID(int=7), uuid.UUID(int=8)
REQUEST = CooperativeSettleRequest(
    group_id="größe",
    member_id="m",
    topic_id=ID,
    partition=3,
    reset_epoch=1 << 40,
    entries=(
        CommitEntry(KeyRange(5, 6), 9, [OffsetRange(3, 4), OffsetRange(8, 9)]),
        CommitEntry(KeyRange(7, 8), 2, [OffsetRange(10, 12)]),
    ),
    outputs=(SettleOutput("a", OUT, 0, b"first"), SettleOutput("a", OUT, 1, b"second" * 100)),
    ordered=True,
    generation=4,
)
ANSWER = CooperativeSettleResponse(
    topic_id=ID,
    partition=3,
    stable=5,
    reset_epoch=1 << 40,
    count=2,
    furthest=9,
    log_start=1,
    log_end=20,
    error=ErrorCode.INVALID_RECORD_STATE,
    message="gone",
    fenced=((3, 4),),
    committed=((8, 9), (10, 12)),
    outputs=(RefusedOutput(1, ErrorCode.TOPIC_AUTHORIZATION_FAILED, "no"),),
)


def decoded(frame: bytes) -> CooperativeSettleRequest:
    start = request_start(frame)
    _, position = request_body(ApiKey(start.key).name.lower(), start, frame)
    return codec.decode_settle(frame, position, start.version)


def encoded(request: CooperativeSettleRequest) -> bytes:
    return codec.encode_settle(5, "me", request, 0)[4:]


@pytest.mark.parametrize("request_", [REQUEST, replace(REQUEST, outputs=(), ordered=False, generation=0)])
def test_a_request_is_read_as_it_was_written(request_):
    assert decoded(encoded(request_)) == request_


@pytest.mark.parametrize("answer", [ANSWER, CooperativeSettleResponse(topic_id=ID, partition=0, stable=1)])
def test_an_answer_is_read_as_it_was_written(answer):
    assert codec.decode_settled(codec.encode_settled(5, 0, answer)[4:]) == answer


def test_outputs_that_nobody_takes_are_not_written():
    with pytest.raises(ValueError, match="cannot be written: output 0"):
        encoded(replace(REQUEST, outputs=(SettleOutput("a", OUT, 0, b""),)))


def with_json(told: bytes) -> bytes:
    head = struct.pack(">hhih2sB", ApiKey.FLOWSHARE_COOPERATIVE_SETTLE, 0, 1, 2, b"me", 0)
    return head + count(len(told)) + told + count(0) + count(0)


GOOD = {
    "group_id": "g",
    "member_id": "m",
    "topic_id": ID.hex,
    "partition": 0,
    "reset_epoch": 1,
    "entries": [[1, [[0, 1]], [0, 5]]],
    "ordered": False,
    "generation": 0,
}


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        (b"{", "cannot be read"),
        (b"[]", "Expected `object`"),
        (orjson.dumps({**GOOD, "topic_id": None}), "topic_id"),
        (orjson.dumps({**GOOD, "group_id": ""}), "length >= 1"),
        (orjson.dumps({**GOOD, "ordered": 1}), "ordered"),
        (orjson.dumps({**GOOD, "generation": -1}), "generation"),
        (orjson.dumps({**GOOD, "generation": True}), "generation"),
        (orjson.dumps({**GOOD, "entries": [[1, [[0]], [0, 5]]]}), "length 2"),
        (orjson.dumps({**GOOD, "entries": [[1, [[0, 1]], [0, 5], 9, True]]}), "tells of no starts"),
        (orjson.dumps({**GOOD, "entries": [[1, [[0, 1]]]]}), "length 3 to 5"),
        (orjson.dumps({**GOOD, "x": "y" * codec.JSON_BYTES_MAX}), "bytes of JSON"),
    ],
)
def test_what_makes_no_sense_is_refused(wrong, why):
    assert decoded(with_json(orjson.dumps(GOOD))).group_id == "g"
    with pytest.raises(DecodeError, match=why):
        decoded(with_json(wrong))


def test_a_frame_that_is_cut_anywhere_is_refused():
    frame = encoded(REQUEST)
    for end in range(40, len(frame)):
        with pytest.raises(DecodeError):
            decoded(frame[:end])


def test_an_answer_that_makes_no_sense_is_refused():
    for text in (b"", b"{}", b"[]", b'{"partitions":[]}'):
        with pytest.raises(DecodeError):
            codec.decode_settled(b"\0\0\0\0\0" + text)
