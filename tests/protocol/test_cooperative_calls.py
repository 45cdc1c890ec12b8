"""The calls of cooperative groups as JSON: what is written is read as it was, and what makes no sense is refused."""

from __future__ import annotations

import uuid
from array import array

import orjson
import pytest

from flowshare.cooperative.types import KeyRange, OffsetRange
from flowshare.protocol import messages as m
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.headers import DecodeError
from flowshare.protocol.messages import cooperative as c
from flowshare.protocol.private import NUMBER_MAX, read, write

ID = uuid.UUID("6f9619ff-8b86-d011-b42d-00c04fc964ff")
AT = {"topic_id": ID, "partition": 3}
FAR = {**AT, "stable": 5, "reset_epoch": 7, "count": 1, "furthest": 9, "log_start": 0, "log_end": 12}
R = c.OffsetColumns(array("q", [6]), array("q", [9]))
LEFT = {"error": ErrorCode.UNKNOWN_TOPIC_ID, "message": "gone"}
REQUESTS = [
    m.CooperativeHoldRequest(group_id="g", member_id="m", generation=1, sequence=2),
    m.CooperativeHoldRequest(
        group_id="größe",
        member_id="m",
        generation=0,
        sequence=0,
        mode="available",
        auto_offset_reset="latest",
        exact_starts=True,
        partitions=(
            c.WantedKeys(ID, 0, ((0, 5), (7, 9))),
            c.WantedKeys(ID, 1, (), c.GroupOffset(4, "x")),
            c.WantedKeys(ID, 2, (), c.GroupOffset(-1)),
        ),
    ),
    m.CooperativeCommitRequest(
        group_id="g",
        member_id="m",
        partitions=(
            c.PartitionCommit(ID, 0, 5, (c.CommitEntry(KeyRange(1, 9), 3, [OffsetRange(0, 2), OffsetRange(4, 5)]),)),
            c.PartitionCommit(ID, 2, 5, (c.StartEntry(KeyRange(1, 9), 3, [(4, 2)], 2_000),)),
        ),
    ),
    m.CooperativeOffsetsRequest(group_id="g"),
    m.CooperativeOffsetsRequest(group_id="g", topics={"t": (0, 1)}, ranges_from=5),
    m.CooperativeResetRequest(group_id="g", topic="t", partition=1, offset=9),
    m.CooperativeDeleteRequest(group_id="g"),
    m.CooperativeDeleteRequest(group_id="g", topics={"t": (0, 1)}),
]
ANSWERS = [
    (
        "cooperative_hold",
        m.CooperativeHoldResponse(
            lease_ms=5,
            partitions=(
                c.HeldPartition(
                    **FAR,
                    held=(c.HeldKeys(0, 5, 1),),
                    granted=((0, 5),),
                    blocked=(c.BlockedKeys(5, 9, "n"),),
                    superseded=True,
                    ranges=R,
                    pending=((7, 8),),
                    horizon=2_000,
                    reaches=(c.Reach(0, 5, 9),),
                    starts=((6, 3),),
                ),
                c.HeldPartition(**AT, **LEFT),
            ),
        ),
    ),
    (
        "cooperative_commit",
        m.CooperativeCommitResponse(
            partitions=(c.CommittedPartition(**FAR, fenced=(1, 2)), c.CommittedPartition(**AT, **LEFT))
        ),
    ),
    (
        "cooperative_offsets",
        m.CooperativeOffsetsResponse(
            partitions=(
                c.PartitionOffsets(
                    **FAR,
                    topic="t",
                    ranges=R,
                    more=True,
                    unstable=True,
                    claims=(c.ToldClaim(0, 5, "m", 1),),
                    reaches=(c.Reach(0, 5, 9),),
                    starts=((6, 3),),
                    waits=(c.ToldWait(0, 5, "n", "m", 30),),
                    unfinished=4,
                    blocked=3,
                    lapsed=2,
                    overlaps=1,
                ),
                c.PartitionOffsets(**FAR, topic="t"),
            )
        ),
    ),
    ("cooperative_reset", m.CooperativeResetResponse(reset_epoch=8)),
    ("cooperative_delete", m.CooperativeDeleteResponse()),
]
CALLS = {own.name: own for own in c.COOPERATIVE_CALLS}
HOLD, COMMIT = (orjson.loads(write(REQUESTS[at])) for at in (1, 2))
HEX = ID.hex
BAD = [
    ("cooperative_hold", {}),
    ("cooperative_hold", {**HOLD, "group_id": None}),
    ("cooperative_hold", {**HOLD, "group_id": "g" * 5_000}),
    ("cooperative_hold", {**HOLD, "sequence": True}),
    ("cooperative_hold", {**HOLD, "sequence": NUMBER_MAX}),
    ("cooperative_hold", {**HOLD, "lease_ms": -1}),
    ("cooperative_hold", {**HOLD, "exact_starts": 1}),
    ("cooperative_hold", {**HOLD, "partitions": {}}),
    ("cooperative_hold", {**HOLD, "partitions": [[HEX, 0]]}),
    ("cooperative_hold", {**HOLD, "partitions": [["id", 0, []]]}),
    ("cooperative_hold", {**HOLD, "partitions": [[5, 0, []]]}),
    ("cooperative_hold", {**HOLD, "partitions": [[HEX, 0, [[0]]]]}),
    ("cooperative_hold", {**HOLD, "partitions": [[HEX, 0, [[0, NUMBER_MAX]]]]}),
    ("cooperative_hold", {**HOLD, "partitions": [[HEX, 0, [5]]]}),
    ("cooperative_hold", {**HOLD, "partitions": [[HEX, 0, [], []]]}),
    ("cooperative_hold", {**HOLD, "partitions": [[HEX, 0, [], [-2, ""]]]}),
    ("cooperative_commit", {**COMMIT, "partitions": [[HEX, 0, 0, [[1]]]]}),
    ("cooperative_commit", {**COMMIT, "partitions": [[HEX, 0, 0, [[1, []]]]]}),
    ("cooperative_commit", {**COMMIT, "partitions": [[HEX, 0, 0, [[-1, [], [0, 5]]]]]}),
    ("cooperative_commit", {**COMMIT, "partitions": [[HEX, 0, 0, [[1, [[1]], [0, 5], 0, True]]]]}),
    ("cooperative_commit", {**COMMIT, "partitions": [[HEX, 0, 0, [["e", [], [0, 5]]]]]}),
    ("cooperative_commit", {**COMMIT, "partitions": [[HEX, 0, 0, [[1, [], [0, -1]]]]]}),
    ("cooperative_commit", {**COMMIT, "partitions": [[HEX, 0, 0, [[1, [[0, NUMBER_MAX]], [0, 5]]]]]}),
    ("cooperative_offsets", {"group_id": "g", "topics": ["t"]}),
    ("cooperative_offsets", {"group_id": "g", "topics": None, "ranges_from": "0"}),
    ("cooperative_reset", {"group_id": "g", "topic": 5, "partition": 0, "offset": 0}),
    ("cooperative_delete", {"group_id": "g", "topics": ["t"]}),
]


@pytest.mark.parametrize("request_", REQUESTS, ids=lambda one: type(one).__name__)
def test_a_request_is_read_as_it_was_written(request_):
    assert read(type(request_), write(request_)) == request_


@pytest.mark.parametrize(("name", "answer"), ANSWERS, ids=[name for name, _ in ANSWERS])
def test_an_answer_is_read_as_it_was_written(name, answer):
    assert read(CALLS[name].response, write(answer)) == answer


@pytest.mark.parametrize(("name", "body"), BAD)
def test_what_makes_no_sense_is_refused(name, body):
    with pytest.raises(DecodeError):
        read(CALLS[name].request, orjson.dumps(body))


@pytest.mark.parametrize("columns", [[[1]], [[1], ["x"]], [[1], 5], [[1 << 63], [1]], 7])
def test_ranges_that_are_no_two_columns_are_refused(columns):
    part = {"topic_id": HEX, "partition": 0, "ranges": columns}
    with pytest.raises(DecodeError):
        read(c.CooperativeHoldResponse, orjson.dumps({"partitions": [part]}))


def test_every_call_can_be_refused():
    refused = m.Response(error=ErrorCode.NOT_COORDINATOR, message="no")
    for own in CALLS.values():
        assert read(own.response, write(refused)).message == "no"
