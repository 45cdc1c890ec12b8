"""Tests that the declarations of APIs agree with kio's schema, and mean the same at both ends."""

from __future__ import annotations

import dataclasses
import inspect
import typing
import uuid

import pytest

from flowshare.groups.types import JoinedMember, MemberView, Supported
from flowshare.protocol import messages, translation
from flowshare.protocol import messages as m
from flowshare.protocol.declaration import Array, Each, Inside, One
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.kafka import entity, module
from flowshare.protocol.messages.transactions import ActiveProducer, ProducerIdentity
from flowshare.protocol.walk import without_none
from flowshare.share.types import PartitionState, RecordState, StateRun

APIS = tuple(api for api in messages.apis() if api.request_shape is not None or api.response_shape is not None)
TOPIC_ID = uuid.UUID(int=7)


def versions(api):
    """All in which it is served or asked."""
    ranges = [one for one in (api.server, api.client) if one is not None]
    return range(min(one[0] for one in ranges), max(one[1] for one in ranges) + 1)


def names_of(shape, schemas, path=()):
    """Every field that a shape names, with whether one of the versions' schemas has it."""
    for names, part in shape.items():
        for name in names if isinstance(names, tuple) else (names,):
            fields = [hints[name] for hints in map(typing.get_type_hints, schemas) if name in hints]
            yield (*path, name), bool(fields)
            inner = part.shape if isinstance(part, (One, Array, Each, Inside)) else None
            if isinstance(inner, typing.Mapping):
                yield from names_of(inner, [element(hint) for hint in fields], (*path, name))


def element(hint):
    """The class of an entity, or of an array's."""
    _, hint = without_none(hint)
    return typing.get_args(hint)[0] if typing.get_origin(hint) is tuple else hint


@pytest.mark.parametrize("api", APIS, ids=lambda api: api.name)
@pytest.mark.parametrize("side", ["request", "response"])
def test_every_name_is_a_field_of_kio_in_some_version(api, side):
    shape = api.request_shape if side == "request" else api.response_shape
    schemas = [entity(api.name, version, side) for version in versions(api)]

    assert [path for path, known in names_of(shape or {}, schemas) if not known] == []


def read_of(api, side):
    """The plain fields that are read off one of the versions."""
    read = set()
    for version in versions(api):
        reader = translation.reader(api, version, side)
        while isinstance(reader, translation.EntityReader):
            read |= {*reader.values, *reader.rows}
            part = None if reader.one is None else reader.one[1]
            read |= {part} if isinstance(part, str) else set()
            reader = part
    return read


@pytest.mark.parametrize("api", [api for api in APIS if api.request_shape is not None], ids=lambda api: api.name)
def test_each_plain_field_has_a_place_or_is_said_here_to_have_none(api):
    plain = {field.name for field in dataclasses.fields(api.request)}
    read = read_of(api, "request")

    assert plain - read <= {"version", "client_id", "configs", "finished", "by", "breaks_order"}, api.name
    assert {name for name in read if isinstance(name, str)} <= plain


def source(name, version):
    """kio's words for an answer."""
    return inspect.getsource(module(name, version, "response"))


COMPUTED = {"add_partitions_to_txn", "read_share_group_state"}
"""Answers that a function makes of what is on the wire."""
NOT_ON_THE_WIRE = {m.TopicResult: {"throttle_ms", "topic_id"}, m.ShareGroupStateResponse: {"state"}}
"""Fields for which Kafka's answers of some APIs have no field, or none of their own."""


ANSWERS = [api for api in APIS if api.response_shape is not None]


def test_only_these_answers_are_made_by_a_function():
    assert {api.name for api in ANSWERS if not dataclasses.is_dataclass(api.response)} == COMPUTED


@pytest.mark.parametrize("api", [api for api in ANSWERS if api.name not in COMPUTED], ids=lambda api: api.name)
def test_each_field_of_an_answer_has_a_place_or_is_said_here_to_have_none(api):
    plain = {field.name for field in dataclasses.fields(api.response)}

    nowhere = plain - read_of(api, "response")
    if not any("error_message" in source(api.name, version) for version in versions(api)):
        nowhere -= {"message"}

    assert nowhere <= NOT_ON_THE_WIRE.get(api.response, set())


SAMPLES = [
    (
        m.ListOffsetsRequest(topic="t", partition=3, timestamp_ms=-1, committed=True, current_epoch=4),
        m.ListOffsetsResponse(offset=5, timestamp_ms=6, leader_epoch=7),
    ),
    (m.DeleteRecordsRequest(topic="t", partition=3, before=9), m.DeleteRecordsResponse(log_start=9)),
    (
        m.OffsetForLeaderEpochRequest(topic="t", partition=3, leader_epoch=2, current_epoch=5),
        m.OffsetForLeaderEpochResponse(error=ErrorCode.FENCED_LEADER_EPOCH, leader_epoch=2, end_offset=8),
    ),
    (
        m.DescribeGroupRequest(group_id="g", authorized=True),
        m.DescribeGroupResponse(
            state="Stable",
            protocol_type="consumer",
            protocol_name="range",
            members=(MemberView("m", None, "c", "h", b"meta", b"assigned"),),
            authorized=8,
        ),
    ),
    (
        m.OffsetFetchRequest(group_id="g", partitions=(("a", 0), ("a", 2), ("b", 1)), require_stable=True),
        m.OffsetFetchResponse(
            partitions=(m.FetchedOffset("a", 0, 5, 1, "x"), m.FetchedOffset("b", 1, error=ErrorCode.UNKNOWN_TOPIC_ID))
        ),
    ),
    (m.OffsetFetchRequest(group_id="g"), m.OffsetFetchResponse(error=ErrorCode.NOT_COORDINATOR)),
    (
        m.OffsetDeleteRequest(group_id="g", partitions=(("a", 0), ("b", 1))),
        m.OffsetDeleteResponse(partitions=(m.OffsetResult("a", 0), m.OffsetResult("b", 1, ErrorCode.UNKNOWN_TOPIC_ID))),
    ),
    (
        m.JoinGroupRequest(
            group_id="g",
            protocol_type="consumer",
            protocols=(Supported("range", b"r"), Supported("sticky", b"")),
            session_timeout_ms=1_000,
            rebalance_timeout_ms=2_000,
        ),
        m.JoinGroupResponse(
            member_id="m",
            generation=3,
            protocol_type="consumer",
            protocol_name="range",
            leader="m",
            members=(JoinedMember("m", "i", b"r"),),
        ),
    ),
    (
        m.SyncGroupRequest(group_id="g", member_id="m", generation=3, assignments=(("m", b"a"), ("n", b"b"))),
        m.SyncGroupResponse(assignment=b"a"),
    ),
    (
        m.FindCoordinatorRequest(key="g", kind="transaction"),
        m.FindCoordinatorResponse(node_id=2, host="h", port=9092),
    ),
    (
        m.InitProducerIdRequest(transactional_id="x", timeout_ms=5, known=ProducerIdentity(4, 1)),
        m.InitProducerIdResponse(producer=ProducerIdentity(4, 2)),
    ),
    (
        m.AddPartitionsToTxnRequest(
            transactional_id="x", producer=ProducerIdentity(4, 1), partitions=(("a", 0), ("a", 1), ("b", 0))
        ),
        None,
    ),
    (
        m.DescribeProducersRequest(topic="t", partition=1),
        m.DescribeProducersResponse(producers=(ActiveProducer(1, 2, 3, 4, 5),)),
    ),
    (
        m.DescribeTransactionRequest(transactional_id="x"),
        m.DescribeTransactionResponse(
            state="Ongoing",
            timeout_ms=9,
            started_ms=1_700_000_000_000,
            producer=ProducerIdentity(4, 1),
            partitions=(("a", 0), ("a", 1), ("b", 0)),
        ),
    ),
    (
        m.ReadShareGroupStateRequest(group_id="g", topic_id=TOPIC_ID, partition=1, leader_epoch=3),
        m.ShareGroupStateResponse(
            state=PartitionState(state_epoch=2, start_offset=5, runs=(StateRun(5, 9, RecordState.ARCHIVED, 1),))
        ),
    ),
    (
        m.AlterShareGroupOffsetsRequest(group_id="g", offsets={("a", 0): 5, ("a", 1): 6, ("b", 0): 7}),
        m.AlterShareGroupOffsetsResponse(
            partitions=(m.PartitionResult(topic="a", partition=0, topic_id=TOPIC_ID, message="no"),)
        ),
    ),
    (
        m.DescribeShareGroupOffsetsRequest(group_id="g", topics={"a": (0, 1), "b": ()}),
        m.DescribeShareGroupOffsetsResponse(
            partitions=(
                m.SharePartitionOffsets(
                    topic="a",
                    topic_id=TOPIC_ID,
                    partition=1,
                    start_offset=4,
                    in_flight=-1,
                    delayed=-1,
                    redeliveries=-1,
                    blocked=-1,
                    parked=-1,
                ),
            )
        ),
    ),
    (
        m.ShareGroupHeartbeatRequest(group_id="g", member_id="m", member_epoch=0, subscribed_topics=("a", "b")),
        m.ShareGroupHeartbeatResponse(
            member_id="m", assignment=(m.TopicPartition(TOPIC_ID, 0), m.TopicPartition(TOPIC_ID, 2))
        ),
    ),
    (m.ShareGroupHeartbeatRequest(group_id="g", member_id="m", member_epoch=1), m.ShareGroupHeartbeatResponse()),
    (
        m.ShareGroupDescribeRequest(group_id="g", authorized=True),
        m.GroupDescription(
            group_id="g",
            state="Stable",
            group_epoch=3,
            assignment_epoch=2,
            assignor="simple",
            members=(
                m.MemberDescription(
                    member_id="m",
                    member_epoch=3,
                    client_id="c",
                    client_host="h",
                    rack_id=None,
                    subscribed_topics=("a", "b"),
                    assigned=(m.AssignedTopic(TOPIC_ID, "a", (0, 2)),),
                ),
            ),
            authorized=8,
        ),
    ),
    (m.SaslHandshakeRequest(mechanism="PLAIN"), m.SaslHandshakeResponse(mechanisms=("PLAIN", "SCRAM-SHA-256"))),
    (
        m.SaslAuthenticateRequest(auth_bytes=b"a"),
        m.SaslAuthenticateResponse(auth_bytes=b"b", session_lifetime_ms=5, message="no"),
    ),
    (m.ElectLeaderRequest(topic="t", partition=1), m.Response(error=ErrorCode.ELECTION_NOT_NEEDED)),
]


@pytest.mark.parametrize(("request_", "response"), SAMPLES, ids=lambda one: type(one).__name__)
def test_what_one_end_writes_the_other_reads(request_, response):
    api = request_.api
    version = api.client[1]

    written = translation.writer(api, version, "request").all(translation.build, request_)
    assert one_request(api, written) == request_

    if response is not None:
        asked = {field.name: getattr(request_, field.name) for field in dataclasses.fields(request_)}
        answer = translation.writer(api, version, "response").all(translation.build, response, asked)
        assert translation.read_answer(api, answer, request_) == response


def test_an_answer_about_something_else_is_an_error_that_keeps_what_was_asked_for():
    request_ = m.ElectLeaderRequest(topic="t", partition=1)
    api, version = request_.api, request_.api.client[1]
    asked = {"topic": "t", "partition": 2}
    told = translation.writer(api, version, "response").all(
        translation.build, m.Response(error=ErrorCode.ELECTION_NOT_NEEDED), asked
    )

    found = translation.read_answer(api, told, request_)

    assert (found.error, found.message) == (ErrorCode.UNKNOWN_SERVER_ERROR, translation.LEFT_OUT)


def one_request(api, written):
    """The plain request that an entity with one holds."""
    reader, fields, whole = translation.reader(api, written.__version__, "request"), {}, written
    while True:
        fields |= reader.fields(whole)
        if reader.one is None:
            return api.request(**fields)
        array, part = reader.one
        (whole,) = array(whole)
        if isinstance(part, str):
            return api.request(**fields, **{part: whole})
        reader = part
