"""The hand-written codec of ShareFetch and ShareAcknowledge: equal to kio both ways, and safe from any bytes."""

from __future__ import annotations

import contextlib
import datetime
import struct
import tracemalloc
import uuid
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowshare.protocol import messages as m
from flowshare.protocol.compact import FrameReader, tagged, varint
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.headers import DecodeError
from flowshare.protocol.kafka import module, read_request, request_body, request_start, write_request, write_response
from flowshare.protocol.messages.share import MOVED, NO_LEADER
from flowshare.protocol.share_codec import (
    CHAIN_MAX,
    FENCE_TAG,
    FOLLOWING_TAG,
    LOCKED_TAG,
    ORDER_TAG,
    REFUSED_TAG,
    decode_acknowledge,
    decode_acknowledged,
    decode_fetch,
    decode_fetched,
    encode_acknowledge,
    encode_acknowledged,
    encode_fetch,
    encode_fetched,
)
from flowshare.share.types import AckRange, AcquiredRange

T1, T2 = uuid.UUID(int=1), uuid.UUID(int=2)
INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.one_of(st.integers(0, 30), st.integers(-(2**63), 2**63 - 1))
TEXT = st.one_of(st.none(), st.text(st.characters(exclude_categories=["Cs"]), max_size=12), st.just("é" * 100))
TOPIC = st.uuids()
SINGLE = st.builds(lambda offset, kind: AckRange(offset, offset, bytes([kind])), st.integers(0, 12), st.integers(0, 4))
BATCH = st.one_of(SINGLE, SINGLE, st.tuples(INT64, INT64, st.binary(max_size=140)).map(lambda one: AckRange(*one)))
OWN = st.tuples(INT64, INT64, st.binary(max_size=3), st.integers(0, 2**63 - 1), st.booleans()).map(
    lambda one: AckRange(*one)
)
FEW = settings(deadline=None, max_examples=40)


def partitions(batch):
    """One topic's partitions after the other's, as they come back."""
    part = st.tuples(INT32, st.lists(batch, max_size=6).map(tuple))
    topics = st.dictionaries(TOPIC, st.lists(part, min_size=1, max_size=2), max_size=2)
    return topics.map(lambda found: tuple(m.SharePartitionRequest(at, *one) for at in found for one in found[at]))


def fetches(batch=BATCH):
    return st.builds(
        m.ShareFetchRequest,
        group_id=TEXT,
        member_id=TEXT,
        session_epoch=INT32,
        max_wait_ms=INT32,
        min_bytes=INT32,
        max_bytes=INT32,
        max_records=INT32,
        batch_size=INT32,
        acquire_mode=st.integers(-128, 127),
        is_renew_ack=st.booleans(),
        partitions=partitions(batch),
        forgotten=st.dictionaries(TOPIC, st.lists(INT32, min_size=1, max_size=3), max_size=2).map(
            lambda found: tuple(m.TopicPartition(at, one) for at in found for one in found[at])
        ),
        version=st.sampled_from([1, 2]),
    ).map(lambda one: one if one.version == 2 else _first(one, acquire_mode=0, is_renew_ack=False))


def ordered(batch=BATCH):
    """Fetches out of a group with an order."""
    of_one = st.tuples(fetches(batch), st.integers(0, 2**31 - 1), st.integers(1, CHAIN_MAX))
    return of_one.map(lambda one: replace(one[0], heads=one[1], chain=one[2]))


def acknowledges(batch=BATCH):
    return st.builds(
        m.ShareAcknowledgeRequest,
        group_id=TEXT,
        member_id=TEXT,
        session_epoch=INT32,
        is_renew_ack=st.booleans(),
        partitions=partitions(batch),
        version=st.sampled_from([1, 2]),
    ).map(lambda one: one if one.version == 2 else _first(one, is_renew_ack=False))


def _first(request, **fields):
    """A request of version 1, which lacks these fields."""
    return replace(request, **fields)


def by_topic(parts, form, part_form):
    topics = {}
    for at, *rest in parts:
        topics.setdefault(at, []).append(part_form(*rest))
    return tuple(form(topic_id=at, partitions=tuple(found)) for at, found in topics.items())


def kio_batch(module_):
    def make(batch):
        kinds = struct.unpack(f">{len(batch.types)}b", batch.types)
        return module_.AcknowledgementBatch(first_offset=batch[0], last_offset=batch[1], acknowledge_types=kinds)

    return make


def kio_topics(module_, request, topic_form, part_form):
    def part(index, acks):
        return part_form(partition_index=index, acknowledgement_batches=tuple(map(kio_batch(module_), acks)))

    return by_topic(request.partitions, topic_form, part)


def kio_fetch(request):
    k = module("share_fetch", request.version, "request")
    newer = {"share_acquire_mode": request.acquire_mode, "is_renew_ack": request.is_renew_ack}
    return k.ShareFetchRequest(
        group_id=request.group_id,
        member_id=request.member_id,
        share_session_epoch=request.session_epoch,
        max_wait=datetime.timedelta(milliseconds=request.max_wait_ms),
        min_bytes=request.min_bytes,
        max_bytes=request.max_bytes,
        max_records=request.max_records,
        batch_size=request.batch_size,
        topics=kio_topics(k, request, k.FetchTopic, k.FetchPartition),
        forgotten_topics_data=by_topic(request.forgotten, k.ForgottenTopic, lambda index: index),
        **(newer if request.version == 2 else {}),
    )


def kio_acknowledge(request):
    k = module("share_acknowledge", request.version, "request")
    return k.ShareAcknowledgeRequest(
        group_id=request.group_id,
        member_id=request.member_id,
        share_session_epoch=request.session_epoch,
        topics=kio_topics(k, request, k.AcknowledgeTopic, k.AcknowledgePartition),
        **({"is_renew_ack": request.is_renew_ack} if request.version == 2 else {}),
    )


KINDS = {
    m.ShareFetchRequest: ("share_fetch", kio_fetch, encode_fetch, decode_fetch),
    m.ShareAcknowledgeRequest: ("share_acknowledge", kio_acknowledge, encode_acknowledge, decode_acknowledge),
}


def decoded(frame, kind):
    """Decode a frame without its length by the hand-written codec."""
    name, _, _, decode = KINDS[kind]
    start = request_start(frame)
    return decode(frame, request_body(name, start, frame)[1], start.version)


def apart(request):
    """The request with joined batches an offset each again, and offsets that no int64 holds left as they are."""

    def batches(acks):
        for ack in acks:
            if ack.joined:
                assert ack.last > ack.first
                assert len(ack.types) == 1
                yield from (AckRange(offset, offset, ack.types) for offset in range(ack.first, ack.last + 1))
            else:
                yield ack

    return replace(
        request, partitions=tuple(part._replace(acks=tuple(batches(part.acks))) for part in request.partitions)
    )


@FEW
@given(request=st.one_of(fetches(), acknowledges()))
def test_it_writes_the_bytes_that_kio_writes_and_reads_what_kio_wrote(request):
    _, to_kio, encode, _ = KINDS[type(request)]
    expected = write_request(7, "a client", to_kio(request))

    assert encode(7, "a client", request, request.version) == expected
    assert apart(decoded(expected[4:], type(request))) == request


@FEW
@given(request=st.one_of(ordered(st.one_of(BATCH, OWN)), acknowledges(st.one_of(BATCH, OWN))))
def test_flowshares_own_fields_come_back(request):
    encode = KINDS[type(request)][2]
    frame = encode(7, "c", request, request.version)[4:]

    assert apart(decoded(frame, type(request))) == request


@FEW
@given(request=st.one_of(ordered(OWN), acknowledges(BATCH)), data=st.data())
def test_a_request_that_is_cut_anywhere_is_an_error(request, data):
    name, _, encode, decode = KINDS[type(request)]
    frame = encode(7, "c", request, request.version)[4:]
    body = request_body(name, request_start(frame), frame)[1]
    cut = data.draw(st.integers(body, len(frame) - 1))

    with pytest.raises(DecodeError):
        decode(frame[:cut], body, request.version)


@FEW
@given(request=st.one_of(ordered(OWN), acknowledges(BATCH)), data=st.data())
def test_a_request_that_is_changed_anywhere_is_read_or_is_an_error(request, data):
    name, _, encode, decode = KINDS[type(request)]
    frame = bytearray(encode(7, "c", request, request.version)[4:])
    body = request_body(name, request_start(frame), bytes(frame))[1]
    for _ in range(data.draw(st.integers(1, 4))):
        frame[data.draw(st.integers(body, len(frame) - 1))] = data.draw(st.integers(0, 255))

    agree(name, decode, bytes(frame), body, request.version)


@FEW
@given(
    garbage=st.binary(max_size=200),
    version=st.sampled_from([1, 2]),
    decode=st.sampled_from([decode_fetch, decode_acknowledge]),
)
def test_any_bytes_are_read_or_are_an_error(garbage, version, decode):
    with contextlib.suppress(DecodeError):
        decode(garbage, 0, version)


def agree(name, decode, frame, body, version):
    """Assert that the codec reads everything that kio reads, with the same result, and raises only DecodeError."""
    refused = ""
    try:
        ours = decode(frame, body, version)
    except DecodeError as error:
        ours, refused = None, str(error)
    try:
        _, theirs = read_request(name, request_start(frame), frame)
    except Exception:  # noqa: BLE001 - kio raises many kinds for garbage
        return
    if refused.startswith(("the delay of a release cannot be read", "the order of a fetch cannot be read")):
        return  # kio does not look into a field of ours
    assert ours is not None
    assert ours.group_id == theirs.group_id
    assert ours.session_epoch == theirs.share_session_epoch
    assert len(ours.partitions) == sum(len(topic.partitions) for topic in theirs.topics)


@pytest.mark.parametrize(
    "announced",
    [
        b"\xff\xff\xff\xff\x0f",  # topics
        b"\x02" + bytes(16) + b"\xff\xff\xff\xff\x0f",  # partitions
        b"\x02" + bytes(16) + b"\x02" + bytes(4) + b"\xff\xff\xff\xff\x0f",  # batches
        b"\x02" + bytes(16) + b"\x02" + bytes(4) + b"\x02" + bytes(16) + b"\xff\xff\xff\xff\x0f",  # types
        b"\x02" + bytes(16) + b"\x02" + bytes(4) + b"\x02" + bytes(16) + b"\x02\x01\xff\xff\xff\xff\x0f",  # tags
        b"\x00",  # null
        b"\xff" * 40,  # a varint without end
    ],
)
def test_counts_that_cannot_be_true_are_refused_before_memory_is_taken(announced):
    frame = b"\x02g\x02m" + bytes(4) + announced + bytes(64)
    tracemalloc.start()
    try:
        with pytest.raises(DecodeError):
            decode_acknowledge(frame, 0, 1)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert peak < 100_000


def test_a_name_that_is_no_utf_8_is_an_error():
    with pytest.raises(DecodeError, match="UTF-8"):
        decode_acknowledge(b"\x03\xff\xfe\x02m" + bytes(6), 0, 1)


def test_a_delay_that_no_int64_holds_is_an_error():
    field = b"\x02" + bytes(16) + b"\x02\x02" + b"\x01" + varint(10_000) + b"\x0a" + b"\xff" * 9 + b"\x01"
    frame = b"\x02g\x02m" + bytes(4) + b"\x02" + bytes(16) + b"\x02" + bytes(4) + field + bytes(8)

    with pytest.raises(DecodeError):
        decode_acknowledge(frame, 0, 1)


def ordered_by(field):
    """Return chain and heads of a decoded fetch that has this in the tagged field for its order."""
    plain = encode_fetch(1, "c", m.ShareFetchRequest(group_id="g", member_id="m", session_epoch=1), 2)[4:]
    found = decoded(plain[:-1] + tagged({ORDER_TAG: field}), m.ShareFetchRequest)
    return found.chain, found.heads


@pytest.mark.parametrize(("chain", "heads"), [(1, 1), (2, 0), (16, 20), (CHAIN_MAX, 2**31 - 1)])
def test_an_order_is_two_numbers(chain, heads):
    assert ordered_by(varint(chain) + varint(heads)) == (chain, heads)


@pytest.mark.parametrize(
    "field",
    [
        b"",
        varint(2),
        varint(0) + varint(1),
        varint(CHAIN_MAX + 1) + varint(1),
        varint(2) + varint(2**31),
        varint(2) + varint(1) + b"x",
        b"\xff" * 12,
    ],
    ids=["nothing", "one number", "no chain", "a long chain", "too many heads", "more than two", "no end"],
)
def test_an_order_that_cannot_be_read_is_an_error(field):
    with pytest.raises(DecodeError, match="the order of a fetch cannot be read"):
        ordered_by(field)


def test_a_fetch_without_an_order_has_no_field_for_it():
    request = m.ShareFetchRequest(group_id="g", member_id="m", session_epoch=1)

    assert encode_fetch(1, "c", request, 2).endswith(b"\x01\x01\0")


def read_batches(*batches):
    request = m.ShareAcknowledgeRequest(
        group_id="g", member_id="m", session_epoch=1, partitions=(m.SharePartitionRequest(T1, 0, batches),)
    )
    (part,) = decoded(encode_acknowledge(1, "c", request, 2)[4:], m.ShareAcknowledgeRequest).partitions
    return [tuple(ack)[:6] for ack in part.acks]


def one(offset, kind=1):
    return AckRange(offset, offset, bytes([kind]))


def test_consecutive_offsets_of_one_type_are_joined_and_nothing_else():
    assert read_batches(one(5), one(6), one(7)) == [(5, 7, b"\x01", 0, False, True)]
    assert read_batches(one(5), one(7)) == [(5, 5, b"\x01", 0, False, False), (7, 7, b"\x01", 0, False, False)]
    assert read_batches(one(5), one(5)) == [(5, 5, b"\x01", 0, False, False)] * 2
    assert read_batches(one(6), one(5)) == [(6, 6, b"\x01", 0, False, False), (5, 5, b"\x01", 0, False, False)]
    assert read_batches(one(5), one(6, 2)) == [(5, 5, b"\x01", 0, False, False), (6, 6, b"\x02", 0, False, False)]
    assert read_batches(AckRange(1, 4, b"\x01"), one(5), one(6)) == [
        (1, 4, b"\x01", 0, False, False),
        (5, 6, b"\x01", 0, False, True),
    ]
    assert read_batches(one(5), AckRange(6, 6, b"\x01", 0, True), one(7)) == [
        (5, 5, b"\x01", 0, False, False),
        (6, 6, b"\x01", 0, True, False),
        (7, 7, b"\x01", 0, False, False),
    ]


def test_a_run_longer_than_one_look_is_joined_piece_by_piece():
    found = read_batches(*(one(offset) for offset in range(1000)))

    assert sum(last - first + 1 for first, last, *_ in found) == 1000
    assert len(found) < 10
    assert all(joined for *_, joined in found)


def test_the_attempt_of_a_batch_is_read_as_it_is_written_and_joins_no_other():
    batches = tuple(AckRange(at, at, b"\x02", 0, at == 6, attempt=at) for at in (5, 6, 300))
    request = m.ShareAcknowledgeRequest(
        group_id="g", member_id="m", session_epoch=1, partitions=(m.SharePartitionRequest(T1, 0, batches),)
    )

    assert decoded(encode_acknowledge(1, "c", request, 2)[4:], m.ShareAcknowledgeRequest).partitions[0].acks == batches


@pytest.mark.parametrize("field", [b"", b"\xff", varint(2**31)])
def test_an_attempt_that_cannot_be_read_is_an_error(field: bytes):
    batch = b"\x02" + bytes(16) + b"\x02\x02" + b"\x01" + varint(10_005) + bytes([len(field)]) + field
    frame = b"\x02g\x02m" + bytes(4) + b"\x02" + T1.bytes + b"\x02" + bytes(4) + batch + b"\0" * 3

    with pytest.raises(DecodeError, match="attempt"):
        decode_acknowledge(frame, 0, 1)


def test_topics_that_come_twice_in_a_request_stay_in_their_order():
    k = module("share_acknowledge", 2, "request")
    part = k.AcknowledgePartition(partition_index=0, acknowledgement_batches=())
    topics = tuple(k.AcknowledgeTopic(topic_id=at, partitions=(part,)) for at in (T1, T2, T1))
    frame = write_request(
        1,
        "c",
        k.ShareAcknowledgeRequest(
            group_id="g", member_id="m", share_session_epoch=1, is_renew_ack=False, topics=topics
        ),
    )[4:]

    assert [part.topic_id for part in decoded(frame, m.ShareAcknowledgeRequest).partitions] == [T1, T2, T1]


def test_tagged_fields_that_nobody_knows_are_read_past():
    field = b"\x02" + bytes(16) + b"\x02\x02" + b"\x02" + varint(77) + b"\x03abc" + varint(10_001) + b"\x00"
    tags = b"\x01\x05\x01x"
    frame = b"\x02g\x02m" + bytes(4) + b"\x02" + T1.bytes + b"\x02" + bytes(4) + field + tags * 3

    assert decode_acknowledge(frame, 0, 1).partitions == (
        m.SharePartitionRequest(T1, 0, (AckRange(0, 0, b"\x02", unrun=True),)),
    )


def test_varints_are_read_as_they_are_written():
    for value in (0, 1, 127, 128, 300, 2**31 - 1, 2**63 - 1):
        reader = FrameReader(varint(value), 0)
        assert (reader.varint(), reader.position) == (value, reader.end)
    with pytest.raises(ValueError, match="negative"):
        varint(-1)


# The answer

ERROR = st.sampled_from([ErrorCode.NONE, ErrorCode.UNKNOWN_SERVER_ERROR, ErrorCode.NOT_LEADER_OR_FOLLOWER])
FETCHED = st.builds(
    m.FetchedPartition,
    topic_id=st.sampled_from([T1, T2]),
    partition=INT32,
    error=ERROR,
    message=TEXT,
    ack_error=ERROR,
    ack_message=TEXT,
    records=st.binary(max_size=300),
    acquired=st.lists(st.builds(AcquiredRange, INT64, INT64, st.integers(1, 2**15 - 1)), max_size=3).map(tuple),
    current_leader=st.tuples(INT32, INT32),
)
ANSWER = st.builds(
    m.ShareFetchResponse,
    error=ERROR,
    message=TEXT,
    lock_timeout_ms=st.integers(0, 2**31 - 1),
    partitions=st.lists(FETCHED, max_size=4).map(tuple),
    node_endpoints=st.dictionaries(
        INT32, st.tuples(st.text(st.characters(exclude_categories=["Cs"]), max_size=5), INT32), max_size=2
    ),
)


def kio_nodes(module_, answer):
    return tuple(
        module_.NodeEndpoint(node_id=node, host=host, port=port, rack=None)
        for node, (host, port) in answer.node_endpoints.items()
    )


def kio_answer(answer, version):
    k = module("share_fetch", version, "response")
    error = module("api_versions", 0, "response").ErrorCode

    def part(one):
        return k.PartitionData(
            partition_index=one.partition,
            error_code=error(int(one.error)),
            error_message=one.message,
            acknowledge_error_code=int(one.ack_error),
            acknowledge_error_message=one.ack_message,
            current_leader=k.LeaderIdAndEpoch(leader_id=one.current_leader[0], leader_epoch=one.current_leader[1]),
            records=one.records,
            acquired_records=tuple(
                k.AcquiredRecords(first_offset=a, last_offset=b, delivery_count=c) for a, b, c in one.acquired
            ),
        )

    return k.ShareFetchResponse(
        throttle_time=datetime.timedelta(0),
        error_code=error(int(answer.error)),
        error_message=answer.message,
        acquisition_lock_timeout=datetime.timedelta(milliseconds=answer.lock_timeout_ms),
        responses=by_topic(((one.topic_id, one) for one in answer.partitions), k.ShareFetchableTopicResponse, part),
        node_endpoints=kio_nodes(k, answer),
    )


@FEW
@given(answer=ANSWER, version=st.sampled_from([1, 2]))
def test_the_answer_is_written_as_kio_writes_it(answer, version):
    assert encode_fetched(9, version, answer) == write_response(9, kio_answer(answer, version))


@FEW
@given(answer=ANSWER, version=st.sampled_from([1, 2]))
def test_what_kio_writes_of_an_answer_is_read(answer, version):
    told = tuple(
        replace(
            part,
            message=part.message or None,
            ack_message=part.ack_message or None,
            current_leader=NO_LEADER if MOVED.isdisjoint((part.error, part.ack_error)) else part.current_leader,
        )
        for topic in dict.fromkeys(one.topic_id for one in answer.partitions)
        for part in answer.partitions
        if part.topic_id == topic
    )

    found = decode_fetched(write_response(9, kio_answer(answer, version))[4:])

    assert found == replace(answer, message=answer.message or None, partitions=told)


@FEW
@given(answer=ANSWER, data=st.data())
def test_a_damaged_answer_is_refused_or_read_but_nothing_else_happens(answer, data):
    frame = bytearray(encode_fetched(9, 2, answer)[4:])
    frame[data.draw(st.integers(4, len(frame) - 1))] ^= data.draw(st.integers(1, 255))
    cut = bytes(frame[: data.draw(st.integers(4, len(frame)))])

    with contextlib.suppress(DecodeError):
        decode_fetched(cut)


ACKNOWLEDGED = st.builds(
    m.ShareAcknowledgeResponse,
    error=ERROR,
    message=TEXT,
    lock_timeout_ms=st.integers(0, 2**31 - 1),
    partitions=st.lists(
        st.builds(
            m.AcknowledgedPartition,
            topic_id=st.sampled_from([T1, T2]),
            partition=INT32,
            error=ERROR,
            message=TEXT,
            current_leader=st.tuples(INT32, INT32),
        ),
        max_size=4,
    ).map(tuple),
    node_endpoints=st.dictionaries(INT32, st.tuples(st.text("abc", max_size=5), INT32), max_size=2),
)


def kio_acknowledged(answer, version):
    k = module("share_acknowledge", version, "response")
    error = module("api_versions", 0, "response").ErrorCode

    def part(one):
        return k.PartitionData(
            partition_index=one.partition,
            error_code=error(int(one.error)),
            error_message=one.message,
            current_leader=k.LeaderIdAndEpoch(leader_id=one.current_leader[0], leader_epoch=one.current_leader[1]),
        )

    lock = {"acquisition_lock_timeout": datetime.timedelta(milliseconds=answer.lock_timeout_ms)} if version > 1 else {}
    return k.ShareAcknowledgeResponse(
        throttle_time=datetime.timedelta(0),
        error_code=error(int(answer.error)),
        error_message=answer.message,
        responses=by_topic(((one.topic_id, one) for one in answer.partitions), k.ShareAcknowledgeTopicResponse, part),
        node_endpoints=kio_nodes(k, answer),
        **lock,
    )


@FEW
@given(answer=ACKNOWLEDGED, version=st.sampled_from([1, 2]))
def test_the_answer_to_acknowledgements_is_written_as_kio_writes_it_and_read(answer, version):
    frame = encode_acknowledged(9, version, answer)
    told = tuple(
        replace(
            part,
            message=part.message or None,
            current_leader=part.current_leader if part.error in MOVED else NO_LEADER,
        )
        for topic in dict.fromkeys(one.topic_id for one in answer.partitions)
        for part in answer.partitions
        if part.topic_id == topic
    )
    lock_ms = answer.lock_timeout_ms if version > 1 else 0

    assert frame == write_response(9, kio_acknowledged(answer, version))
    assert decode_acknowledged(frame[4:], version) == replace(
        answer, message=answer.message or None, partitions=told, lock_timeout_ms=lock_ms
    )


@FEW
@given(answer=ACKNOWLEDGED, data=st.data())
def test_a_damaged_answer_to_acknowledgements_is_refused_or_read_but_nothing_else_happens(answer, data):
    frame = bytearray(encode_acknowledged(9, 2, answer)[4:])
    frame[data.draw(st.integers(4, len(frame) - 1))] ^= data.draw(st.integers(1, 255))
    cut = bytes(frame[: data.draw(st.integers(4, len(frame)))])

    with contextlib.suppress(DecodeError):
        decode_acknowledged(cut, 2)


def refusing(ranges):
    """Both answers with these ranges refused."""
    fetched = m.FetchedPartition(topic_id=T1, partition=0, ack_refused=ranges)
    told = m.AcknowledgedPartition(topic_id=T1, partition=0, refused=ranges)
    return m.ShareFetchResponse(partitions=(fetched,)), m.ShareAcknowledgeResponse(partitions=(told,))


@pytest.mark.parametrize("ranges", [((0, 0),), ((3, 9), (11, 11), (2**40, 2**63 - 1))])
def test_what_is_refused_of_acknowledgements_comes_back(ranges):
    fetched, told = refusing(ranges)

    assert decode_fetched(encode_fetched(9, 2, fetched)[4:]) == fetched
    assert decode_acknowledged(encode_acknowledged(9, 2, told)[4:], 2) == told


@pytest.mark.parametrize("field", [b"\x01", b"\xff", varint(2**63 - 1) + varint(1)])
def test_what_is_refused_is_an_error_when_it_cannot_be_read(field):
    mark = varint(REFUSED_TAG) + b"\x02\x03\x04"
    fetched, told = refusing(((3, 7),))
    for frame, decode in (
        (encode_fetched(9, 2, fetched), decode_fetched),
        (encode_acknowledged(9, 2, told), lambda some: decode_acknowledged(some, 2)),
    ):
        assert frame.count(mark) == 1
        with pytest.raises(DecodeError, match="refused"):
            decode(frame.replace(mark, varint(REFUSED_TAG) + varint(len(field)) + field)[4:])


def test_unknown_errors_tagged_fields_and_null_records_of_an_answer_are_read():
    frame = (
        b"\0\0\0\7" + b"\1\5\2ab" + b"\0\0\0\0\x7f\xff\0\0\0\0\1"
        b"\2" + bytes(16) + b"\2" + b"\0\0\0\3\0\0\0\0\0\0" + b"\0\0\0\0\0\0\0\0\0"
        b"\0" + b"\2" + struct.pack(">qqh", 5, 6, 1) + b"\1\0\1z" + b"\0\0\1\0"
    )

    found = decode_fetched(frame)

    assert found.error is ErrorCode.UNKNOWN_SERVER_ERROR
    assert [(part.partition, part.records, part.acquired) for part in found.partitions] == [
        (3, b"", (AcquiredRange(5, 6, 1),))
    ]


def fenced(*, fence=None):
    part = m.FetchedPartition(topic_id=T1, partition=0, acquired=(AcquiredRange(3, 4, 1),), fence=fence)
    return m.ShareFetchResponse(partitions=(part,))


@pytest.mark.parametrize("fence", [(1_700_000_000_000, 0), (1, 2**62), None])
def test_a_fence_comes_back(fence):
    frame = encode_fetched(9, 2, fenced(fence=fence))

    assert decode_fetched(frame[4:]).partitions[0].fence == fence


def test_what_follows_a_parked_key_comes_back():
    part = m.FetchedPartition(
        topic_id=T1, partition=0, acquired=(AcquiredRange(3, 4, 1),), fence=(1, 2), following=((3, 0), (4, 2**40))
    )
    frame = encode_fetched(9, 2, m.ShareFetchResponse(partitions=(part,)))

    assert decode_fetched(frame[4:]).partitions == (part,)


def test_half_a_pair_of_what_follows_is_an_error():
    part = m.FetchedPartition(
        topic_id=T1, partition=0, acquired=(AcquiredRange(3, 4, 1),), fence=(1, 2), following=((3, 0),)
    )
    frame = encode_fetched(9, 2, m.ShareFetchResponse(partitions=(part,)))
    mark = varint(FOLLOWING_TAG) + b"\x02\x03\x00"
    assert frame.count(mark) == 1

    with pytest.raises(DecodeError, match="parked"):
        decode_fetched(frame.replace(mark, varint(FOLLOWING_TAG) + b"\x01\x03")[4:])


@pytest.mark.parametrize("field", [b"", varint(1), varint(1) + varint(2) + b"x", varint(2**63) + varint(1)])
def test_a_fence_that_cannot_be_read_is_an_error(field):
    frame = encode_fetched(9, 2, fenced(fence=(1, 2)))
    mark = tagged({FENCE_TAG: varint(1) + varint(2)})
    assert frame.count(mark) == 1

    with pytest.raises(DecodeError, match="fence"):
        decode_fetched(frame.replace(mark, tagged({FENCE_TAG: field}))[4:])


def locked(after_ms):
    part = m.FetchedPartition(
        topic_id=T1, partition=0, acquired=(AcquiredRange(3, 4, 1),), fence=(1, 2), locked_after_ms=after_ms
    )
    return m.ShareFetchResponse(partitions=(part,))


@pytest.mark.parametrize("after_ms", [0, 500, 600_000, None])
def test_when_locks_began_comes_back(after_ms):
    answer = locked(after_ms)

    assert decode_fetched(encode_fetched(9, 2, answer)[4:]).partitions == answer.partitions


@pytest.mark.parametrize("field", [b"", b"\xff", varint(1) + b"x"])
def test_when_locks_began_is_an_error_when_it_cannot_be_read(field):
    frame = encode_fetched(9, 2, locked(500))
    mark = varint(LOCKED_TAG) + b"\x02" + varint(500)
    assert frame.count(mark) == 1

    with pytest.raises(DecodeError, match="locks of a fetch"):
        decode_fetched(frame.replace(mark, varint(LOCKED_TAG) + varint(len(field)) + field)[4:])


def test_a_delivery_count_that_the_wire_cannot_say_is_told_as_the_highest():
    fetched = m.FetchedPartition(topic_id=T1, partition=0, acquired=(AcquiredRange(0, 0, 70_000),))
    capped = m.FetchedPartition(topic_id=T1, partition=0, acquired=(AcquiredRange(0, 0, 32_767),))

    answers = [encode_fetched(1, 2, m.ShareFetchResponse(partitions=(part,))) for part in (fetched, capped)]

    assert answers[0] == answers[1]
