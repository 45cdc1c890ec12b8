"""Fetch of some keys at a socket: what crosses it, rights, what is refused."""

from __future__ import annotations

from contextlib import asynccontextmanager

import pytest

from flowshare.client.errors import ClientError
from flowshare.client.net.tcp import open_tcp
from flowshare.client.settings import LinkSettings
from flowshare.clock import LoopClock
from flowshare.cooperative.types import HASHES
from flowshare.protocol.batches import decode_all
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.kafka import ApiKey
from flowshare.protocol.key_hash import key_slot_hash
from flowshare.protocol.messages import (
    CreateTopicRequest,
    FetchPartition,
    FetchRequest,
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
