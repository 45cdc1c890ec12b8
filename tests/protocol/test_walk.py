"""Messages are walked through before kio reads them: the same bytes are taken, and nothing that would harm."""

from __future__ import annotations

import importlib
import pkgutil
import random
import struct
from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode as KafkaError

from flowshare.protocol.kafka import (
    REQUEST_PARTS_MAX,
    ApiKey,
    entity,
    read_request,
    read_response,
    request_start,
    write_request,
    write_response,
)
from flowshare.protocol.walk import MalformedMessage, tidy
from tests.fuzz.samples import example

NAMES = tuple(key.name.lower() for key in ApiKey if key < ApiKey.FLOWSHARE)


def versions(name: str) -> list[int]:
    package = importlib.import_module(f"kio.schema.{name}")
    return sorted(int(module.name[1:]) for module in pkgutil.iter_modules(package.__path__))


def read(name: str, frame: bytes):
    return read_request(name, request_start(frame), frame)[1]


def varint(value: int) -> bytes:
    found = b""
    while value > 127:
        found += bytes((value & 127 | 128,))
        value >>= 7
    return found + bytes((value,))


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_every_version_of_a_message_is_read_as_it_was_written(name):
    rng = random.Random(name)
    for version in versions(name):
        for _ in range(20):
            request = example(entity(name, version, "request"), rng)
            assert read(name, write_request(1, "me", request)[4:]) == request
            response = example(entity(name, version, "response"), rng)
            assert read_response(name, version, write_response(7, response)[4:]) == (7, response)


@settings(deadline=None)
@given(rng=st.randoms(use_true_random=False), tag=st.integers(100, 2**32 - 1), value=st.binary(max_size=200))
def test_tagged_fields_that_nobody_knows_are_left_out(rng, tag, value):
    """One is added behind the body, and one in the last of its entities (both end with an empty list of tags)."""
    schema = entity("delete_topics", 6, "request")
    request = example(schema, rng)
    frame = write_request(1, "me", request)[4:]
    unknown = varint(1) + varint(tag) + varint(len(value)) + value
    assert read("delete_topics", frame[:-1] + unknown) == request
    two = varint(2) + unknown[1:] * 2
    assert read("delete_topics", frame[:-1] + two) == request
    if request.topics:
        last = frame[:-6] + unknown + frame[-5:]  # int32 of the time limit and the body's own tags stand behind
        assert read("delete_topics", last) == request


def test_unknown_tagged_fields_of_the_header_are_left_out():
    frame = struct.pack(">hhih2sB", ApiKey.DELETE_GROUPS, 2, 1, 2, b"me", 1) + b"\x05\x02ab" + b"\x02\x02g\x00"
    header, request = read_request("delete_groups", request_start(frame), frame)
    assert (header.client_id, request.groups_names) == ("me", ("g",))


def test_known_tagged_fields_stay_beside_unknown_ones():
    made = entity("api_versions", 4, "response")
    response = made(error_code=KafkaError.none, api_keys=(), throttle_time=timedelta(), finalized_features_epoch=5)
    frame = write_response(3, response)[4:]
    count, tags = frame[:-11], frame[-10:]  # one tagged field: 1, its tag, its size, 8 bytes
    assert frame[-11:] == b"\x01" + tags
    for changed in (b"\x02" + tags + b"\x09\x01x", b"\x02" + b"\x00\x00"[:0] + tags + b"\x0a\x00"):
        assert read_response("api_versions", 4, count + changed) == (3, response)


@pytest.mark.parametrize("length", [3, 2**31 - 1, 2**31 + 1, 2**32 - 1, 2**35 - 1])
def test_an_array_that_says_it_is_longer_than_the_message_is_refused(length):
    frame = struct.pack(">hhihB", ApiKey.DELETE_GROUPS, 2, 1, -1, 0) + varint(length + 1) + b"\x02g\x00"
    with pytest.raises(MalformedMessage):
        read("delete_groups", frame[:-1] if length == 3 else frame)


@pytest.mark.parametrize("length", [4, 2**31 - 1, -2, -1])
def test_an_old_array_that_says_it_is_longer_than_the_message_is_refused(length):
    frame = struct.pack(">hhihi", ApiKey.DELETE_GROUPS, 0, 1, -1, length) + b"\x00\x01g"
    with pytest.raises(MalformedMessage):
        read("delete_groups", frame)


def test_a_null_array_where_there_can_be_none_is_refused_within_others_too():
    made = entity("produce", 9, "request")
    frame = write_request(1, None, made(acks=1, timeout=timedelta(), topic_data=(), transactional_id=None))[4:]
    assert read("produce", frame).topic_data == ()
    with pytest.raises(MalformedMessage, match="cannot be null"):
        read("produce", frame[:-2] + b"\x02" + b"\x02t" + b"\x00" + b"\x00" + b"\x00")
    with pytest.raises(MalformedMessage, match="cannot be null"):
        read("produce", frame[:-2] + b"\x00\x00")


def test_a_null_array_that_the_schema_allows_is_taken():
    frame = write_request(1, None, entity("metadata", 1, "request")(topics=None))[4:]
    assert read("metadata", frame).topics is None


@pytest.mark.parametrize("assigned", [None, ()])
def test_a_part_that_may_be_null_is_taken_as_null_or_whole(assigned):
    made = importlib.import_module("kio.schema.share_group_heartbeat.v1.response")
    response = made.ShareGroupHeartbeatResponse(
        throttle_time=timedelta(),
        error_code=KafkaError.none,
        error_message=None,
        member_id="m",
        member_epoch=1,
        heartbeat_interval=timedelta(),
        assignment=None if assigned is None else made.Assignment(topic_partitions=assigned),
    )
    assert read_response("share_group_heartbeat", 1, write_response(3, response)[4:]) == (3, response)


def replica_state(*tags, size=None):
    """A fetch request with the tagged field 1 of its body, which has these tagged fields."""
    made = entity("fetch", 15, "request")
    frame = write_request(1, "me", made(max_wait=timedelta(), min_bytes=1, topics=(), forgotten_topics_data=()))[4:]
    content = struct.pack(">iq", 3, 4) + varint(len(tags)) + b"".join(tags)
    return frame[:-1] + b"\x01\x01" + varint(len(content) if size is None else size) + content


def test_tagged_fields_that_nobody_knows_are_left_out_of_tagged_fields():
    known = read("fetch", replica_state())
    assert known.replica_state.replica_epoch == 4
    assert read("fetch", replica_state(b"\x09\x01x", b"\x0a\x00")) == known


@pytest.mark.parametrize("size", [12, 14])
def test_a_tagged_field_of_another_size_than_it_says_is_refused(size):
    with pytest.raises(MalformedMessage):
        read("fetch", replica_state(size=size) + b"\0")


@pytest.mark.parametrize("length", [b"\xff\xfe", b"\x80\x00"])
def test_a_text_of_a_negative_length_is_refused(length):
    frame = write_request(1, None, entity("metadata", 1, "request")(topics=()))[4:]
    with pytest.raises(MalformedMessage, match="negative length"):
        read("metadata", frame[:-4] + struct.pack(">i", 1) + length)


def test_a_request_with_too_many_parts_is_refused_before_any_is_made():
    """All arrays count together: here topics, and partitions in each."""
    made = importlib.import_module("kio.schema.offset_fetch.v7.request")
    topic = made.OffsetFetchRequestTopic(name="t", partition_indexes=tuple(range(REQUEST_PARTS_MAX // 2 - 1)))
    request = made.OffsetFetchRequest(group_id="g", topics=(topic, topic), require_stable=False)
    frame = write_request(1, None, request)[4:]
    assert read("offset_fetch", frame) == request
    longer = replace(request, topics=(*request.topics, replace(topic, partition_indexes=())))
    with pytest.raises(MalformedMessage, match="more than 50000 parts"):
        read("offset_fetch", write_request(1, None, longer)[4:])


def test_a_request_with_too_many_tagged_fields_is_refused():
    frame = struct.pack(">hhihB", ApiKey.DELETE_GROUPS, 2, 1, -1, 0) + b"\x01"
    many = REQUEST_PARTS_MAX + 1
    with pytest.raises(MalformedMessage, match="more than 50000 parts"):
        read("delete_groups", frame + varint(many) + b"\x05\x00" * many)
    with pytest.raises(MalformedMessage, match="more than 1000 parts"):
        read("delete_groups", frame[:-2] + varint(1_001) + b"\x05\x00" * 1_001 + b"\x01\x00")


def test_an_answer_may_have_more_parts_than_a_request():
    made = importlib.import_module("kio.schema.list_partition_reassignments.v0.response")
    part = made.OngoingPartitionReassignment(partition_index=0, replicas=(), adding_replicas=(), removing_replicas=())
    topic = made.OngoingTopicReassignment(
        name="t", partitions=(replace(part, replicas=(1,) * (REQUEST_PARTS_MAX + 1)),)
    )
    response = made.ListPartitionReassignmentsResponse(
        throttle_time=timedelta(), error_code=KafkaError.none, error_message=None, topics=(topic,)
    )
    assert read_response("list_partition_reassignments", 0, write_response(1, response)[4:])[1] == response


@pytest.mark.parametrize("tags", [b"\xff\xff\xff\xff\x0f", b"\x01\x05\x7f", b"\x01\x05", b"\x80\x80\x80\x80\x80\x01"])
def test_tagged_fields_that_lie_about_themselves_are_refused(tags):
    frame = struct.pack(">hhihB", ApiKey.DELETE_GROUPS, 2, 1, -1, 0) + b"\x01" + tags
    with pytest.raises(MalformedMessage):
        read("delete_groups", frame)


@settings(deadline=None)
@given(rng=st.randoms(use_true_random=False), cut=st.floats(0, 1))
def test_a_message_that_is_cut_short_is_refused(rng, cut):
    frame = write_request(1, "me", example(entity("join_group", 9, "request"), rng))[4:]
    with pytest.raises((MalformedMessage, IndexError, struct.error)):
        read("join_group", frame[: int(8 + cut * (len(frame) - 9))])


def test_nothing_is_copied_when_nothing_is_to_be_changed():
    frame = write_request(1, "me", entity("heartbeat", 4, "request")(group_id="g", generation_id=1, member_id="m"))
    message = frame[17:]  # behind length and header
    assert tidy(entity("heartbeat", 4, "request"), message, 0) == (message, 0)
    assert tidy(entity("heartbeat", 4, "request"), message, 0)[0] is message
