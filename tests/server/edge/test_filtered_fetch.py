"""Fetch of some keys at a socket: what crosses it, rights, what is refused."""

from __future__ import annotations

import struct
from contextlib import asynccontextmanager

import pytest

from flowshare.client.errors import ClientError
from flowshare.client.net.tcp import open_tcp
from flowshare.client.settings import LinkSettings
from flowshare.clock import LoopClock
from flowshare.cooperative.types import HASHES
from flowshare.protocol import filter_codec
from flowshare.protocol.batches import decode_all
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.headers import DecodeError
from flowshare.protocol.kafka import ApiKey
from flowshare.protocol.key_hash import key_slot_hash
from flowshare.protocol.messages import (
    AbortedTransaction,
    CreateTopicRequest,
    FetchedLog,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    Filtered,
    KeyFilter,
    ProduceRequest,
)
from flowshare.protocol.rights import Operation, ResourceType
from tests.log.compaction_world import built
from tests.server.edge.kit import edge

KEYS = [b"key %d" % number for number in range(20)]
LOWER = KeyFilter(((0, HASHES // 2),), 1_000)


@asynccontextmanager
async def reading(*denied):
    async with edge(*denied) as e:
        own = e.server.connect(client_id="own")
        for topic in ("a", "b"):
            await own.send(CreateTopicRequest(name=topic, partitions=1))
            records = built([(key, b"v") for key in KEYS], codec="lz4")
            await own.send(ProduceRequest(topic=topic, partition=0, records=records))
        client = await open_tcp(e.host, e.port, client_id="c", clock=LoopClock(), settings=LinkSettings())
        try:
            yield client
        finally:
            await client.close()


@pytest.mark.asyncio
async def test_a_member_is_sent_the_records_of_its_keys() -> None:
    async with reading() as client:
        assert client.api_versions[ApiKey.FLOWSHARE_FETCH] == (0, 0)
        parts = (FetchPartition("a", 0, 0, only=LOWER), FetchPartition("b", 0, 0))
        some, everything = (await client.send(FetchRequest(partitions=parts))).partitions

    mine = [key for key in KEYS if key_slot_hash(key, 0) < HASHES // 2]
    assert [record.key for record in decode_all(some.records)] == mine
    assert some.filtered == Filtered(20)
    assert [record.key for record in decode_all(everything.records)] == KEYS
    assert everything.filtered is None


@pytest.mark.asyncio
async def test_topics_that_may_not_be_read_are_refused_and_the_others_are_read() -> None:
    async with reading((Operation.READ, ResourceType.TOPIC, "b")) as client:
        parts = tuple(FetchPartition(topic, 0, 0, only=LOWER) for topic in ("b", "a", "c"))
        shut, fine, unknown = (await client.send(FetchRequest(partitions=parts))).partitions

    assert (shut.error, shut.records) == (ErrorCode.TOPIC_AUTHORIZATION_FAILED, b"")
    assert (fine.error, fine.filtered) == (ErrorCode.NONE, Filtered(20))
    assert unknown.error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.asyncio
async def test_an_offset_that_is_not_in_the_log_is_out_of_range() -> None:
    async with reading() as client:
        (log,) = (await client.send(FetchRequest(partitions=(FetchPartition("a", 0, 21, only=LOWER),)))).partitions
    assert log.error is ErrorCode.OFFSET_OUT_OF_RANGE


@pytest.mark.asyncio
async def test_a_request_that_makes_no_sense_ends_the_connection() -> None:
    async with reading() as client:
        overlapping = KeyFilter(((0, 10), (5, 20)), 1_000)
        with pytest.raises((ClientError, OSError)):
            await client.send(FetchRequest(partitions=(FetchPartition("a", 0, 0, only=overlapping),)))


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
