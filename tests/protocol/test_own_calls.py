"""Declared calls as JSON: what is written is read again, and foreign bytes cost no more than their bounds allow."""

from __future__ import annotations

import contextlib
import random
import uuid

import orjson
import pytest

from flowshare.protocol import messages as m
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.headers import DecodeError
from flowshare.protocol.messages.browse import (
    ShareBrowseRequest,
    ShareBrowseResponse,
    ShareChangesRequest,
    ShareChangesResponse,
    ShareInterveneRequest,
    ShareInterveneResponse,
    SharePlacesRequest,
    SharePlacesResponse,
    Standing,
)
from flowshare.protocol.messages.cooperative import COOPERATIVE_CALLS
from flowshare.protocol.messages.state import ParkedKeyTold
from flowshare.protocol.private import LIST_MAX, NUMBER_MAX, read, write
from flowshare.server.edge.private import ON_TOPICS, WAYS
from flowshare.share.browse import Hole, SeenRun, SeenRuns
from flowshare.share.intervene import Intervened
from flowshare.share.parking import ParkedKey
from flowshare.share.types import BlockedKey

CALLS = {own.name: own for own in (*WAYS, *ON_TOPICS) if own not in COOPERATIVE_CALLS}
ID = uuid.UUID(int=3)
PLACE = {"group_id": "g", "topic": "t", "partition": 3}
KEY = BlockedKey(1, 2, "HELD", 4, "m")
ROW = Standing("gé", "t", 3, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, (KEY, KEY))
REQUESTS = [
    SharePlacesRequest(group_id="größe"),
    ShareBrowseRequest(**PLACE),
    ShareBrowseRequest(**PLACE, offset=7, limit=1, states=("acquired", "hole")),
    ShareInterveneRequest(**PLACE, act="dead_letter", ranges=((0, 0), (2, 9)), dry_run=True),
    ShareChangesRequest(),
    ShareChangesRequest(node=7, server="a-b", since=NUMBER_MAX - 1),
    m.ShareResumeRequest(
        group_id="g", member_id="m", partitions=(m.HeldRanges(ID, 0, ((1, 2), (4, 4))), m.HeldRanges(ID, 1))
    ),
    m.AlterShareGroupOffsetsRequest(group_id="g", offsets={("t", 0): 5, ("u", 1): 6}, finished={("t", 0): ((7, 9),)}),
    m.ParkedKeysRequest(group_id="g", act="unpark", topic="t", partition=0, key=b"\0\xff"),
    m.ShareBreakerRequest(group_id="g", act="report", member_id="m", outcomes=(1, 2, 3, 4), known=("half-open", 1, 2)),
    m.DescribeShareGroupOffsetsRequest(group_id="g"),
    m.DescribeShareGroupOffsetsRequest(group_id="g", topics={"t": (0, 1)}),
    m.CreatePartitionsRequest(name="t", total=3, breaks_order=True),
]
RUNS = SeenRuns.of([SeenRun(5, 7, "acquired", 2, "m", 99), SeenRun(8, 8, "blocked", 0, "", 0, 5)])
ANSWERS = [
    SharePlacesResponse(places=(("t", 0), ("u", 12))),
    ShareBrowseResponse(),
    ShareBrowseResponse(
        taken_ms=1, loaded=True, start_offset=5, end_offset=9, log_start=0, log_end=20, last_stable=19, leader=101,
        leader_epoch=4, next=9, runs=RUNS, holes=(Hole(9, 9, "log"),), order="key",
    ),
    ShareInterveneResponse(found=(Intervened(0, 4, 1, 1, 1, 1, 1),)),
    ShareChangesResponse(server="s", version=9, whole=False, rows=(ROW, Standing("g", "t", 0)),
                         gone=(("g", "t", 1), ("h", "u", 2)), node=3, nodes=(1, 3)),
    ShareChangesResponse(),
    m.ShareResumeResponse(partitions=(m.HeldRanges(ID, 0, ((1, 2),)),), elsewhere=(m.TopicPartition(ID, 1),)),
    m.AlterShareGroupOffsetsResponse(
        partitions=(m.PartitionResult(topic="t", partition=0, error=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),)
    ),
    m.ParkedKeysResponse(order="key", keys=(ParkedKeyTold("t", ID, 0, b"\xff", ParkedKey(1, 2, 3)),)),
    m.ShareBreakerResponse(state="open", why="9 of 10", left_ms=5, open_ms=7),
    m.DescribeShareGroupOffsetsResponse(
        partitions=(m.SharePartitionOffsets(topic="t", topic_id=ID, partition=0, stuck=(KEY,), parked=2),)
    ),
    m.TopicResult(topic="t"),
]  # fmt: skip


@pytest.mark.parametrize("message", [*REQUESTS, *ANSWERS], ids=lambda one: type(one).__name__)
def test_what_is_written_is_what_is_read(message):
    assert read(type(message), write(message)) == message


def test_every_call_of_a_server_has_a_request_and_an_answer_here():
    assert {own.request for own in CALLS.values()} == {type(one) for one in REQUESTS}
    assert {own.response for own in CALLS.values()} == {type(one) for one in ANSWERS}


@pytest.mark.parametrize("own", CALLS.values(), ids=lambda own: own.name)
def test_every_call_can_be_refused(own):
    told = read(own.response, write(m.Response(error=ErrorCode.NOT_COORDINATOR, message="no")))

    assert (told.error, told.message) == (ErrorCode.NOT_COORDINATOR, "no")


def test_an_answer_of_a_newer_server_may_have_more_fields():
    assert read(SharePlacesResponse, b'{"places":[["t",0]],"more":[1]}') == SharePlacesResponse(places=(("t", 0),))


def test_an_error_of_a_newer_server_that_has_no_name_here_is_an_unknown_one():
    told = read(SharePlacesResponse, b'{"error":9999,"message":"a new reason"}')

    assert (told.error, told.message) == (ErrorCode.UNKNOWN_SERVER_ERROR, "a new reason")


ACT = {**PLACE, "act": "now", "ranges": [[0, 1]]}
HELD = {"group_id": "g", "member_id": "m"}
HEX = ID.hex


@pytest.mark.parametrize(
    ("name", "body", "why"),
    [
        ("share_places", {}, "required field `group_id`"),
        ("share_places", {"group_id": "g", "more": 1}, "unknown field `more`"),
        ("share_places", {"group_id": "g" * 5_000}, "length <= 4096"),
        ("share_browse", {**PLACE, "topic": None}, r"Expected `str`, got `null` - at `\$.topic`"),
        ("share_browse", {**PLACE, "partition": -1}, ">= 0"),
        ("share_browse", {**PLACE, "partition": 1.5}, "Expected `int`"),
        ("share_browse", {**PLACE, "limit": 0}, ">= 1"),
        ("share_browse", {**PLACE, "limit": 10_001}, "<= 10000"),
        ("share_browse", {**PLACE, "offset": "1"}, "Expected `int`"),
        ("share_browse", {**PLACE, "states": {}}, "Expected `array`"),
        ("share_browse", {**PLACE, "states": ["acquired"] * 21}, "length <= 20"),
        ("share_browse", {**PLACE, "states": [["acquired"]]}, "Expected `str`"),
        ("share_intervene", {**ACT, "act": {}}, "Expected `str`"),
        ("share_intervene", {**ACT, "dry_run": 1}, "Expected `bool`"),
        ("share_intervene", {**ACT, "ranges": []}, "length >= 1"),
        ("share_intervene", {**ACT, "ranges": [[0, 0]] * 1_001}, "length <= 1000"),
        ("share_intervene", {**ACT, "ranges": [3]}, "Expected `array`"),
        ("share_intervene", {**ACT, "ranges": [[1, 2, 3]]}, "length 2"),
        ("share_changes", {"node": -2}, ">= -1"),
        ("share_changes", {"since": True}, "Expected `int`"),
        ("share_changes", {"since": 1 << 63}, f"<= {NUMBER_MAX - 1}"),
        ("share_changes", {"server": 7}, "Expected `str`"),
        ("share_resume", {**HELD, "partitions": [["x", 0]]}, "Invalid UUID"),
        ("share_resume", {**HELD, "partitions": [[HEX, "0"]]}, "Expected `int`"),
        ("share_resume", {**HELD, "partitions": [[HEX, 0, [], [], []]]}, "length"),
        ("share_resume", {**HELD, "partitions": [[HEX, 0, [[4, 0]]]]}, "ascending and disjoint"),
        ("share_resume", {**HELD, "partitions": [[HEX, 0, [], [[5, 6], [1, 2]]]]}, "ascending and disjoint"),
        ("share_resume", {**HELD, "partitions": [[HEX, 0], [HEX, 0]]}, "named twice"),
        ("share_place", {"group_id": "g", "offsets": {"x": 1}}, "Expected `array`"),
        ("share_place", {"group_id": "g", "offsets": [[["t", 0], 1]] * (LIST_MAX + 1)}, "length <= 10000"),
        ("share_place", {"group_id": "g", "offsets": [], "finished": [[["t", 0], [[5, 4]]]]}, "ascending and disjoint"),
        ("share_parked", {"group_id": "g", "key": "zz zz"}, "base64"),
        ("share_offsets", {"group_id": "g", "topics": []}, "Expected `object | null`"),
        ("share_offsets", {"group_id": "g", "topics": {"t": [True]}}, "Expected `int`"),
        ("share_offsets", {"group_id": "g", "topics": {"t": list(range(LIST_MAX + 1))}}, "length <= 10000"),
        ("share_offsets", {"group_id": "g", "topics": {"t": [-1]}}, ">= 0"),
        ("share_offsets", {"group_id": "g", "topics": {"t": [1 << 63]}}, f"<= {NUMBER_MAX - 1}"),
        ("topic_grow", {"name": "t"}, "required field `total`"),
        ("topic_grow", {"name": "t", "total": True}, "Expected `int`"),
    ],
)
def test_what_makes_no_sense_is_refused_and_the_field_named(name, body, why):
    with pytest.raises(DecodeError, match=why):
        read(CALLS[name].request, orjson.dumps(body))


@pytest.mark.parametrize(
    "odd",
    [
        {"act": "open"},
        {"act": "tell\n"},
        {"act": 3},
        {"member_id": 7},
        {"outcomes": [1, 2, 3]},
        {"outcomes": [1, 2, 3, -1]},
        {"outcomes": [1, 2, 3, True]},
        {"outcomes": [1, 2, 3, 2**60]},
        {"outcomes": "1234"},
        {"known": ["open", 1]},
        {"known": ["ajar", 1, 2]},
        {"known": ["open\n", 1, 2]},
        {"known": [["open"], 1, 2]},
        {"known": ["open", -1, 2]},
        {"known": ["open", 1, 2.5]},
    ],
)
def test_what_a_breaker_is_told_that_makes_no_sense_is_refused(odd):
    with pytest.raises(DecodeError):
        read(m.ShareBreakerRequest, orjson.dumps({"group_id": "g", "act": "report", **odd}))


@pytest.mark.parametrize(
    "text",
    [b"", b"{", b"[]", b"null", b'{"group_id":"\xff"}', b'{"group_id":"\\ud800"}', b'{"group_id":"g"} x',
     b"[" * 100_000, b'{"group_id":' + b"[" * 100_000, b'{"x":' + b'{"x":' * 100_000, b'{"group_id":' + b"9" * 10_000],
    ids=range(11),
)  # fmt: skip
def test_bytes_that_are_no_request_raise_the_error_of_decoding_only(text):
    with pytest.raises(DecodeError):
        read(SharePlacesRequest, text)


@pytest.mark.parametrize("columns", [[], [[1]], [[1]] * 8, [[1], [1, 2], [], [], [], [], []], 5, {"a": 1}, [1] * 7])
def test_runs_that_are_no_columns_of_one_length_are_refused_or_none(columns):
    with contextlib.suppress(DecodeError):
        assert read(ShareBrowseResponse, orjson.dumps({"runs": columns})).runs == ()


@pytest.mark.parametrize("seed", range(10))
def test_requests_of_any_kind_are_read_or_refused(seed):
    rng = random.Random(seed)
    odd = [None, -1, 0, 1, True, 1 << 63, 1.5, "", "g", [], [[0, 3]], [[3, 1]], ["acquired"], {}, {"t": [0]}, [None],
           [[]], [[HEX, 0, [[0, 1]]]], [[["t", 0], 1]]]  # fmt: skip
    names = ("group_id", "topic", "partition", "offset", "limit", "states", "act", "ranges", "dry_run", "node",
             "server", "since", "partitions", "member_id", "offsets", "finished", "topics", "key", "known",
             "outcomes", "name", "total")  # fmt: skip
    for _ in range(300):
        body = orjson.dumps({name: rng.choice(odd) for name in rng.sample(names, rng.randrange(len(names)))})
        for own in CALLS.values():
            with contextlib.suppress(DecodeError):
                assert isinstance(read(own.request, body), own.request), (seed, body)
