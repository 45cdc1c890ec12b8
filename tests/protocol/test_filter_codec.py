"""Fetch of some keys on the wire: what is written is read as it was, and what makes no sense refused."""

from __future__ import annotations

import struct

import pytest

from flowshare.cooperative.types import HASHES
from flowshare.protocol import filter_codec
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.headers import DecodeError
from flowshare.protocol.messages import (
    AbortedTransaction,
    FetchedLog,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    Filtered,
    KeyFilter,
)

REQUEST = FetchRequest(
    partitions=(FetchPartition("a", 1, 7, 99, only=KeyFilter(((0, 3), (5, HASHES)), 70)), FetchPartition("b", 0, 0)),
    max_wait_ms=5,
    min_bytes=2,
    max_bytes=1_000,
    committed=True,
)
ANSWER = FetchResponse(
    partitions=(
        FetchedLog(topic="a", partition=1, records=b"some", filtered=Filtered(9, ((7, 8),), ((8, 9),))),
        FetchedLog(topic="b", partition=0, records=b"more", high_watermark=3, aborted=(AbortedTransaction(1, 2),)),
        FetchedLog(topic="c", partition=0, error=ErrorCode.OFFSET_OUT_OF_RANGE, message="out", filtered=Filtered(0)),
    )
)
HEAD = struct.calcsize(">ihhih") + len("me") + 1


def test_requests_and_answers_are_read_as_they_were_written() -> None:
    frame = filter_codec.encode_fetch(3, "me", REQUEST, 0)
    assert filter_codec.decode_fetch(frame, HEAD, 0) == REQUEST
    assert filter_codec.decode_fetched(filter_codec.encode_fetched(3, 0, ANSWER)[4:]) == ANSWER


def test_what_is_cut_off_is_refused() -> None:
    frame = filter_codec.encode_fetch(3, "me", REQUEST, 0)
    for end in range(HEAD, len(frame)):
        with pytest.raises(DecodeError):
            filter_codec.decode_fetch(frame[:end], HEAD, 0)
    answer = filter_codec.encode_fetched(3, 0, ANSWER)[4:]
    for end in range(len(answer)):
        with pytest.raises(DecodeError):
            filter_codec.decode_fetched(answer[:end])


def test_a_partition_that_is_named_twice_is_refused() -> None:
    twice = FetchRequest(partitions=(FetchPartition("a", 0, 0), FetchPartition("a", 0, 5)))
    with pytest.raises(DecodeError):
        filter_codec.decode_fetch(filter_codec.encode_fetch(1, "me", twice, 0), HEAD, 0)


@pytest.mark.parametrize(
    ("partitions", "why"),
    [
        ((FetchPartition("", 0, 0), FetchPartition("longer", 0, 0)), "has no name"),
        (
            (FetchPartition("a", 0, 0, only=KeyFilter(((0, 10), (5, 20)), 1_000)),),
            "are to be read of a-0",
        ),
        (tuple(FetchPartition("a", number, 0) for number in range(10_001)), "at most 10000 are"),
    ],
    ids=["no topic", "keys that overlap", "too many partitions"],
)
def test_what_makes_no_sense_is_refused(partitions, why) -> None:
    frame = filter_codec.encode_fetch(1, "me", FetchRequest(partitions=partitions), 0)
    with pytest.raises(DecodeError, match=why):
        filter_codec.decode_fetch(frame, HEAD, 0)


def test_bytes_behind_an_answer_and_less_than_no_records_are_refused() -> None:
    whole = filter_codec.encode_fetched(3, 0, ANSWER)[4:]
    with pytest.raises(DecodeError, match="1 bytes behind"):
        filter_codec.decode_fetched(whole + b"x")
    one = FetchResponse(partitions=(FetchedLog(topic="a", partition=1, records=b"some"),))
    frame = bytearray(filter_codec.encode_fetched(3, 0, one)[4:])
    frame[-8:-4] = struct.pack(">i", -1)
    with pytest.raises(DecodeError, match="-1 bytes of records"):
        filter_codec.decode_fetched(bytes(frame))
