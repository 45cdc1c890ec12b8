"""Topics, records and settings through the server."""

from __future__ import annotations

import importlib

import pytest

from flowshare.protocol import messages
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.messages import (
    CreatePartitionsRequest,
    CreateTopicRequest,
    DeleteRecordsRequest,
    DeleteTopicRequest,
    DescribeConfigsRequest,
    FetchPartition,
    FetchRequest,
    IncrementalAlterConfigsRequest,
    ListOffsetsRequest,
    MetadataRequest,
    ProduceRequest,
    Request,
)
from tests.server.world import batch, world

pytestmark = pytest.mark.asyncio


async def test_topics_are_made_listed_and_deleted() -> None:
    async with world() as w:
        made = await w.admin.send(CreateTopicRequest(name="a", partitions=2))
        twice = await w.admin.send(CreateTopicRequest(name="a"))
        none = await w.admin.send(CreateTopicRequest(name="b", partitions=0))
        bad = await w.admin.send(CreateTopicRequest(name="c d"))
        grown = await w.admin.send(CreatePartitionsRequest(name="a", total=3))
        shrunk = await w.admin.send(CreatePartitionsRequest(name="a", total=2))
        unknown = await w.admin.send(CreatePartitionsRequest(name="x", total=2))
        listed = (await w.admin.send(MetadataRequest())).topics
        asked = (await w.admin.send(MetadataRequest(topics=("a", "x")))).topics
        deleted = await w.admin.send(DeleteTopicRequest(name="a"))
        gone = await w.admin.send(DeleteTopicRequest(name="a"))

        assert (made.error, twice.error) == (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS)
        assert (none.error, bad.error) == (ErrorCode.INVALID_PARTITIONS, ErrorCode.INVALID_TOPIC_EXCEPTION)
        assert (grown.error, shrunk.error) == (ErrorCode.NONE, ErrorCode.INVALID_PARTITIONS)
        assert unknown.error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert [(t.name, t.topic_id, t.partitions) for t in listed] == [("a", made.topic_id, 3)]
        assert [t.error for t in asked] == [ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
        assert (deleted.error, gone.error) == (ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)


async def test_records_are_produced_read_found_and_deleted() -> None:
    async with world() as w:
        await w.topic()
        assert await w.produce(batch(3, timestamp_ms=100)) == 0
        assert await w.produce(batch(2, timestamp_ms=200)) == 3

        async def offset_of(timestamp_ms: int) -> int:
            request = ListOffsetsRequest(topic="t", partition=0, timestamp_ms=timestamp_ms)
            return (await w.admin.send(request)).offset

        (read,) = (await w.admin.send(FetchRequest(partitions=(FetchPartition("t", 0, 3),)))).partitions
        assert (len(read.records), read.log_start, read.high_watermark) == (len(batch(2)), 0, 5)
        assert [await offset_of(at) for at in (-2, -1, 101, 150, 201, 900)] == [0, 5, 1, 3, 4, -1]
        cut = await w.admin.send(DeleteRecordsRequest(topic="t", partition=0, before=4))
        assert (cut.error, cut.log_start, await offset_of(-2)) == (ErrorCode.NONE, 4, 4)
        (below,) = (await w.admin.send(FetchRequest(partitions=(FetchPartition("t", 0, 1),)))).partitions
        assert below.error is ErrorCode.OFFSET_OUT_OF_RANGE
        cut = await w.admin.send(DeleteRecordsRequest(topic="t", partition=0, before=-1))
        assert cut.log_start == 5


async def test_bad_records_and_unknown_places_are_refused() -> None:
    async with world() as w:
        await w.topic()
        damaged = bytearray(batch(2))
        damaged[-1] ^= 1

        corrupt = await w.admin.send(ProduceRequest(topic="t", partition=0, records=bytes(damaged)))
        unknown = await w.admin.send(ProduceRequest(topic="t", partition=3, records=batch(1)))
        large = await w.admin.send(ProduceRequest(topic="t", partition=0, records=batch(1, size=2 << 20)))

        assert corrupt.error is ErrorCode.CORRUPT_MESSAGE
        assert unknown.error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert large.error is ErrorCode.MESSAGE_TOO_LARGE


async def test_group_settings_are_checked_kept_and_described() -> None:
    async with world(configs={}) as w:
        good = await w.configure({"share.record.lock.duration.ms": "5000"})
        tried = await w.admin.send(
            IncrementalAlterConfigsRequest(
                resource_type="group", resource="g", configs={"share.delivery.count.limit": "9"}, validate_only=True
            )
        )
        bad = await w.configure({"share.record.lock.duration.ms": "12"})
        unknown = await w.configure({"share.record.lock.duration": "5000"})
        described = await w.admin.send(DescribeConfigsRequest(resource_type="group", resource="g"))
        await w.configure({"share.record.lock.duration.ms": None})
        unset = await w.admin.send(DescribeConfigsRequest(resource_type="group", resource="g"))

        entries = {entry.name: entry for entry in described.entries}
        assert (good.error, tried.error) == (ErrorCode.NONE, ErrorCode.NONE)
        assert (bad.error, unknown.error) == (ErrorCode.INVALID_CONFIG, ErrorCode.INVALID_CONFIG)
        assert "share.record.lock.duration.ms" in (unknown.message or "")
        assert entries["share.record.lock.duration.ms"].value == "5000"
        assert not entries["share.record.lock.duration.ms"].is_default
        assert entries["share.delivery.count.limit"].is_default
        assert {e.name: e.value for e in unset.entries}["share.record.lock.duration.ms"] == "30000"


async def test_a_changed_setting_acts_on_loaded_share_partitions() -> None:
    async with world() as w:
        at = await w.log(1)
        m = w.member("m1")
        assert (await m.fetch(at, max_records=0)).lock_timeout_ms == 30_000

        await w.configure({"share.record.lock.duration.ms": "2000"})
        assert (await m.fetch()).lock_timeout_ms == 2000
        await w.clock.advance(2.1)

        assert w.server.stats()["lock_timeouts"] == 1


async def test_topic_settings_are_checked_and_described() -> None:
    async with world() as w:
        await w.topic()

        async def alter(configs, *, name: str = "t", validate_only: bool = False) -> ErrorCode:
            request = IncrementalAlterConfigsRequest(
                resource_type="topic", resource=name, configs=configs, validate_only=validate_only
            )
            return (await w.admin.send(request)).error

        assert await alter({"retention.ms": "60000"}) is ErrorCode.NONE
        assert await alter({"retention.ms": "x"}) is ErrorCode.INVALID_CONFIG
        assert await alter({"retention.ms": "x"}, validate_only=True) is ErrorCode.INVALID_CONFIG
        assert await alter({"retention.ms": "1"}, name="none") is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert await alter({"retention.m": None}, validate_only=True) is ErrorCode.INVALID_CONFIG
        assert await alter({"errors.deadletterqueue.group.enable": "true"}) is ErrorCode.NONE
        assert await alter({"retention.ms": "1"}, name="none", validate_only=True) is not ErrorCode.NONE
        described = await w.admin.send(DescribeConfigsRequest(resource_type="topic", resource="t"))
        missing = await w.admin.send(DescribeConfigsRequest(resource_type="topic", resource="none"))
        other = await w.admin.send(DescribeConfigsRequest(resource_type="logger", resource="1"))

        entries = {entry.name: entry for entry in described.entries}
        assert (entries["retention.ms"].value, entries["retention.ms"].is_default) == ("60000", False)
        assert missing.error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert other.error is ErrorCode.INVALID_REQUEST


async def test_every_request_has_a_handler() -> None:
    async with world() as w:
        families = (importlib.import_module(f"{messages.__name__}.{family}") for family in messages.FAMILIES)
        named = (one for family in families for one in vars(family).values())
        requests = {kind for kind in named if isinstance(kind, type) and issubclass(kind, Request)}
        sockets_only = {
            messages.ManyOffsetsRequest,
            messages.OffsetForLeaderEpochRequest,
            messages.SaslAuthenticateRequest,
            messages.SaslHandshakeRequest,
        }
        asked = requests - {Request, messages.ShareGroupStateRequest} - sockets_only

        assert all(callable(w.server._handlers[kind]) for kind in asked)
        assert set(w.server._handlers) == asked


async def test_a_fault_of_the_server_ends_the_request_with_a_connection_error() -> None:
    async with world() as w:

        def broken(_) -> None:
            raise RuntimeError("broken")

        w.storage.topics = broken
        with pytest.raises(ConnectionError):
            await w.admin.send(MetadataRequest())
        del w.storage.topics
