"""ShareSettle on the wire: what is written comes back, and bytes that make no sense are refused."""

from __future__ import annotations

import random
import struct
import uuid
from dataclasses import replace

import pytest

from flowshare.protocol import settle_codec as codec
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.headers import DecodeError
from flowshare.protocol.kafka import ApiKey, request_body, request_start
from flowshare.protocol.messages import RefusedOutput, SettleOutput, ShareSettleRequest, ShareSettleResponse
from flowshare.share.types import AckRange

SEEDS = range(20)
TOPIC = uuid.UUID(int=7)
A, B = uuid.UUID(int=8), uuid.UUID(int=9)
REQUEST = ShareSettleRequest(
    group_id="größe",
    member_id="m1",
    topic_id=TOPIC,
    partition=3,
    acks=(
        AckRange(0, 9, b"\1", attempt=1),
        AckRange(12, 14, b"\1\3\1", attempt=2),
        AckRange(15, 15, b"\3", unrun=True, attempt=7),
    ),
    outputs=(
        SettleOutput("a", A, 0, b"first"),
        SettleOutput("b.c-d_e", B, 5, b"second" * 100),
        SettleOutput("a", A, 0, b"third"),
    ),
)
ANSWER = ShareSettleResponse(
    error=ErrorCode.INVALID_RECORD_STATE,
    message="gone",
    lock_timeout_ms=30_000,
    refused=((0, 3), (12, 12)),
    outputs=(RefusedOutput(1, ErrorCode.TOPIC_AUTHORIZATION_FAILED, "no"), RefusedOutput(2, ErrorCode.INVALID_RECORD)),
    current_leader=(2, 9),
    node_endpoints={2: ("host", 9092)},
)


def decoded(frame: bytes) -> ShareSettleRequest:
    """Decode a frame without its length, as a server does."""
    start = request_start(frame)
    _, position = request_body(ApiKey(start.key).name.lower(), start, frame)
    return codec.decode_settle(frame, position, start.version)


def encoded(request: ShareSettleRequest) -> bytes:
    """The frame without its length."""
    return codec.encode_settle(5, "me", request, codec.VERSION)[4:]


def written(monkeypatch: pytest.MonkeyPatch, request: ShareSettleRequest) -> bytes:
    """The frame of a request that no client would write."""
    with monkeypatch.context() as patched:
        patched.setattr(codec, "problem", lambda acks, outputs: None)
        return encoded(request)


@pytest.mark.parametrize("fields", [{}, {"outputs": ()}, {"ordered": True}], ids=["outputs", "none", "ordered"])
def test_a_settle_has_the_header_of_its_key_and_comes_back(fields) -> None:
    request = replace(REQUEST, **fields)
    frame = codec.encode_settle(5, "me", request, codec.VERSION)

    size, key, version, number, length = struct.unpack_from(">ihhih", frame)
    assert (size, key, version, number, length) == (len(frame) - 4, ApiKey.FLOWSHARE_SETTLE, 0, 5, 2)
    assert decoded(frame[4:]) == request


@pytest.mark.parametrize("answer", [ANSWER, ShareSettleResponse()], ids=["refused", "done"])
def test_an_answer_comes_back(answer) -> None:
    frame = codec.encode_settled(5, 0, answer)

    assert struct.unpack_from(">ii", frame) == (len(frame) - 4, 5)
    assert codec.decode_settled(frame[4:]) == answer


def acks(*batches: AckRange) -> ShareSettleRequest:
    return replace(REQUEST, acks=batches)


def output(**fields) -> ShareSettleRequest:
    return replace(REQUEST, outputs=(REQUEST.outputs[0]._replace(**fields),))


SENSELESS = {
    "no acks": acks(),
    "negative offset": acks(AckRange(-1, 0, b"\1")),
    "end before beginning": acks(AckRange(3, 2, b"\1")),
    "unordered": acks(AckRange(3, 4, b"\1"), AckRange(1, 2, b"\1")),
    "overlapping": acks(AckRange(3, 4, b"\1"), AckRange(4, 5, b"\1")),
    "released": acks(AckRange(3, 4, b"\2")),
    "one of several renewed": acks(AckRange(3, 4, b"\1\4")),
    "renewed between": acks(AckRange(3, 5, b"\1\4\1")),
    "gap": acks(AckRange(3, 4, b"\0")),
    "no type": acks(AckRange(3, 4, b"")),
    "too few types": acks(AckRange(3, 5, b"\1\1")),
    "too many types": acks(AckRange(3, 3, b"\1\1")),
    "too many offsets": acks(AckRange(0, 9_999, b"\1"), AckRange(20_000, 20_000, b"\1")),
    "negative attempt": acks(AckRange(3, 3, b"\1", attempt=-1)),
    "too many outputs": replace(REQUEST, outputs=REQUEST.outputs[:1] * (codec.OUTPUTS_MAX + 1)),
    "negative partition": output(partition=-1),
    "no records": output(records=b""),
    "no id of the topic": output(topic_id=codec.NO_ID),
    "no name": output(topic=""),
    "dots": output(topic=".."),
    "space": output(topic="a b"),
    "long name": output(topic="a" * 250),
}


@pytest.mark.parametrize("request_", SENSELESS.values(), ids=SENSELESS)
def test_what_makes_no_sense_is_neither_written_nor_read(request_, monkeypatch) -> None:
    with pytest.raises(ValueError, match="cannot be written"):
        encoded(request_)

    with pytest.raises(DecodeError):
        decoded(written(monkeypatch, request_))


@pytest.mark.parametrize(
    "fields", [{"group_id": ""}, {"group_id": None}, {"member_id": ""}, {"topic_id": codec.NO_ID}, {"partition": -1}]
)
def test_a_settle_that_does_not_say_of_whom_and_of_what_is_refused(fields) -> None:
    with pytest.raises(DecodeError):
        decoded(encoded(replace(REQUEST, **fields)))


def test_as_much_as_there_may_be_comes_back() -> None:
    request = replace(
        REQUEST,
        acks=tuple(AckRange(2 * number, 2 * number, b"\1") for number in range(codec.OFFSETS_MAX)),
        outputs=tuple(SettleOutput(f"t{number}", A, number, b"x") for number in range(codec.OUTPUTS_MAX)),
    )

    assert decoded(encoded(request)) == request


def test_flags_that_nobody_knows_are_refused() -> None:
    frame = bytearray(encoded(REQUEST))
    at = frame.index(TOPIC.bytes) + 20
    assert frame[at] == 0
    frame[at] = 2

    with pytest.raises(DecodeError, match="has the flags 2"):
        decoded(bytes(frame))


@pytest.mark.parametrize("more", [b"\0", b"trailing"])
def test_bytes_behind_the_last_output_are_refused(more) -> None:
    with pytest.raises(DecodeError, match="belong to no output"):
        decoded(encoded(REQUEST) + more)
    with pytest.raises(DecodeError, match="too many"):
        codec.decode_settled(codec.encode_settled(5, 0, ANSWER)[4:] + more)


@pytest.mark.parametrize(
    "answer",
    [
        replace(ANSWER, refused=((3, 2),)),
        replace(ANSWER, refused=((3, 4), (4, 5))),
        replace(ANSWER, outputs=(RefusedOutput(-1, ErrorCode.NONE),)),
        replace(ANSWER, node_endpoints={2: ("", 9092)}),
    ],
    ids=["range", "overlapping", "index", "host"],
)
def test_an_answer_that_makes_no_sense_is_refused(answer) -> None:
    with pytest.raises(DecodeError):
        codec.decode_settled(codec.encode_settled(5, 0, answer)[4:])


def test_an_error_that_is_not_known_yet_is_one_all_the_same() -> None:
    frame = bytearray(codec.encode_settled(5, 0, ANSWER))
    struct.pack_into(">h", frame, 9, 32_000)

    assert codec.decode_settled(bytes(frame[4:])).error is ErrorCode.UNKNOWN_SERVER_ERROR


def mutated(source: random.Random, frame: bytes) -> bytes:
    """The frame with a few bytes changed, cut out, put in or moved, behind its header."""
    begin = frame.index(b"\0", 12) + 1
    body = bytearray(frame[begin:])
    for _ in range(source.randint(1, 4)):
        at, size = source.randrange(len(body) + 1), source.randint(1, 9)
        match source.randrange(4):
            case 0:
                body[at : at + size] = source.randbytes(len(body[at : at + size]))
            case 1:
                del body[at : at + size]
            case 2:
                body[at:at] = source.choice((source.randbytes(size), bytes(size), b"\xff" * size))
            case _:
                body[at : at + 1] = bytes((source.choice((0, 1, 2, 3, 127, 128, 255)),)) if at < len(body) else b""
    return frame[:begin] + bytes(body)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_frame_whose_bytes_were_changed_is_a_settle_or_is_refused(seed) -> None:
    source, taken = random.Random(seed), 0
    small = replace(REQUEST, outputs=tuple(one._replace(records=one.records[:6]) for one in REQUEST.outputs))
    for _ in range(300):
        frame = mutated(source, encoded(small))
        try:
            found = decoded(frame)
        except DecodeError:
            continue
        taken += 1
        assert codec.problem(found.acks, found.outputs) is None
        assert decoded(encoded(found)) == found
    assert taken, "no mutation of an output's records was taken"


@pytest.mark.parametrize("seed", SEEDS)
def test_an_answer_whose_bytes_were_changed_is_one_or_is_refused(seed) -> None:
    source = random.Random(seed)
    for _ in range(300):
        body = bytearray(codec.encode_settled(5, 0, ANSWER)[4:])
        for _ in range(source.randint(1, 4)):
            body[source.randrange(len(body))] = source.randrange(256)
        try:
            found = codec.decode_settled(bytes(body[: source.choice((len(body), source.randrange(len(body))))]))
        except DecodeError:
            continue
        assert codec.decode_settled(codec.encode_settled(5, 0, found)[4:]) == found
