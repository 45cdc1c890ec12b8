"""Dead letters that the server writes (KIP-1191)."""

from __future__ import annotations

from unittest.mock import patch

import pytest

from flowshare.log.base import CorruptBatches, ReadResult, StorageDamaged, StorageError, TooFewBrokers, UnknownTopic
from flowshare.protocol.batches import decode_all
from flowshare.protocol.messages import (
    CreateTopicRequest,
    DescribeShareGroupOffsetsRequest,
    FetchPartition,
    FetchRequest,
    IncrementalAlterConfigsRequest,
    TopicPartition,
)
from flowshare.protocol.rights import Operation, ResourceType
from flowshare.server.runtime.state import ShareKey
from flowshare.server.share.dead_letters import TOO_FEW_S
from flowshare.testing.clock import settle
from tests.server.world import EARLIEST, ranges, reject, release, world

pytestmark = pytest.mark.asyncio

DLQ = {**EARLIEST, "errors.deadletterqueue.topic.name": "dlq.t", "share.delivery.count.limit": "2"}
COPIED = {**DLQ, "errors.deadletterqueue.copy.record.enable": "true"}
FULL = StorageError("no space left on device")


async def letters(w, partition: int = 0):
    asked = FetchRequest(partitions=(FetchPartition("dlq.t", partition, 0),))
    (answer,) = (await w.admin.send(asked)).partitions
    return list(decode_all(answer.records))


async def test_a_rejected_record_goes_to_the_dead_letter_topic() -> None:
    async with world(configs=DLQ) as w:
        at, m = await w.held(3)

        await m.acknowledge({at: [reject(1, 2)]})
        await settle()

        found = await letters(w)
        assert [dict(record.headers) for record in found] == [
            {
                "__dlq.errors.topic": b"t",
                "__dlq.errors.topic.id": str(at.topic_id).encode(),
                "__dlq.errors.partition": b"0",
                "__dlq.errors.offset": offset,
                "__dlq.errors.group": b"g",
                "__dlq.errors.delivery.count": b"1",
                "__dlq.errors.message": b"Rejected by the consumer",
            }
            for offset in (b"1", b"2")
        ]
        assert [(record.key, record.value) for record in found] == [(None, None)] * 2
        assert w.server.stats()["dead_letters"] == 2


async def test_a_record_that_used_up_its_deliveries_goes_to_the_dead_letter_topic_with_its_content() -> None:
    async with world(configs={**COPIED, "share.dead.letter.on": "limit"}) as w:
        at, m = await w.held(2)
        await m.acknowledge({at: [reject(0), release(1)]})
        await m.fetch()
        await m.acknowledge({at: [release(1)]})
        await settle()

        (letter,) = await letters(w)

        assert (letter.key, letter.value) == (b"key", b"v" * 10)
        assert dict(letter.headers)["__dlq.errors.message"] == b"Delivery count limit exceeded"
        assert dict(letter.headers)["__dlq.errors.offset"] == b"1"


class Readers:
    """An authorizer that lets some principals read, and nobody do anything else."""

    def __init__(self, *principals: str) -> None:
        self.principals = set(principals)

    def allowed(self, principal, host, operation, resource, name) -> bool:
        """True if one of the principals reads topic t from host h."""
        return principal in self.principals and (host, operation, resource, name) == (
            "h",
            Operation.READ,
            ResourceType.TOPIC,
            "t",
        )

    def allowed_somewhere(self, principal, host, operation, resource) -> bool:
        """Nobody asks."""
        raise AssertionError


async def set_by(w, principal: str, configs) -> None:
    """As if somebody at a socket had set it."""
    asked = IncrementalAlterConfigsRequest(resource_type="group", resource="g", configs=configs, by=(principal, "h"))
    assert (await w.admin.send(asked)).error == 0


async def rejected(w) -> list:
    """Dead letters, of which the newest is that of the next record, which a member just rejected."""
    offset = await w.produce(1)
    at, m = TopicPartition(w.server.topics.by_name("t").topic_id, 0), w.member(f"m{offset}")
    await m.fetch(at)
    await m.acknowledge({at: [reject(offset)]})
    await settle()
    return await letters(w)


async def test_who_may_not_read_the_source_is_given_no_record_by_the_dead_letters_that_it_named() -> None:
    async with world() as w:
        await w.topic()
        w.server.authorize(rights := Readers("User:alice"))
        await set_by(w, "User:bob", COPIED)
        assert [record.value for record in await rejected(w)] == [None]
        (letter,) = await letters(w)
        assert dict(letter.headers)["__dlq.errors.offset"] == b"0"

        await set_by(w, "User:alice", COPIED)
        assert [record.value for record in await rejected(w)] == [None, b"v" * 10]

        rights.principals.clear()
        assert [record.value for record in await rejected(w)] == [None, b"v" * 10, None]


async def test_who_lets_dead_letters_carry_records_is_answerable_for_them() -> None:
    async with world() as w:
        await w.topic()
        w.server.authorize(Readers("User:alice"))
        await set_by(w, "User:alice", DLQ)
        await set_by(w, "User:bob", {"errors.deadletterqueue.copy.record.enable": "true"})
        assert [record.value for record in await rejected(w)] == [None]

        await set_by(w, "User:alice", {"share.dead.letter.on": "all"})
        await set_by(w, "User:bob", {"share.delivery.count.limit": "3"})
        assert [record.value for record in await rejected(w)] == [None, b"v" * 10]


async def test_who_named_a_dead_letter_topic_is_known_after_a_restart() -> None:
    async with world() as w:
        await w.topic()
        await set_by(w, "User:alice", COPIED)
        await w.restart()
        w.server.authorize(rights := Readers())

        assert [record.value for record in await rejected(w)] == [None]
        rights.principals.add("User:alice")
        assert [record.value for record in await rejected(w)] == [None, b"v" * 10]


async def test_settings_of_the_servers_own_process_need_no_right() -> None:
    async with world(configs=COPIED) as w:
        await w.topic()
        w.server.authorize(Readers())

        assert [record.value for record in await rejected(w)] == [b"v" * 10]


async def test_a_lapsed_last_delivery_is_dead_lettered_into_the_matching_partition() -> None:
    async with world(configs=DLQ) as w:
        topic = await w.topic(partitions=3)
        await w.admin.send(CreateTopicRequest(name="dlq.t", partitions=2))
        await w.produce(1, partition=2)
        at = TopicPartition(topic, 2)
        m = w.member("m1")
        await m.fetch(at)
        await w.clock.advance(31)
        assert ranges(await m.fetch()) == [(0, 0, 2)]
        await w.clock.advance(31)

        assert len(await letters(w, 0)) == 1


async def test_the_start_offset_waits_for_the_dead_letter() -> None:
    async with world(configs=DLQ) as w:
        at, m = await w.held(1, joined=True)
        real, refusals = w.storage.append, 2

        async def refuse(topic: str, partition: int, records: bytes):
            nonlocal refusals
            if refusals:
                refusals -= 1
                raise FULL
            return await real(topic, partition, records)

        w.storage.append = refuse
        await m.acknowledge({at: [reject(0)]})
        await settle()

        async def start_offset() -> int:
            (found,) = (await w.admin.send(DescribeShareGroupOffsetsRequest(group_id="g"))).partitions
            return found.start_offset

        assert await start_offset() == 0
        await w.clock.advance(1)
        assert await start_offset() == 0
        await w.clock.advance(2)
        assert await start_offset() == 1
        assert len(await letters(w)) == 1


async def test_a_dead_letter_that_is_refused_every_time_is_given_up() -> None:
    async with world(configs=DLQ) as w:
        at, m = await w.held(1)

        with patch.object(w.storage, "append", side_effect=UnknownTopic("the topic was just deleted")):
            await m.acknowledge({at: [reject(0)]})
            await w.clock.advance(1 + 2 + 4 + 8)

        assert w.server.stats()["failed_dead_letters"] == 1
        assert w.server.share.partitions.owners()[0].partition.start_offset == 1


async def test_a_dead_letter_that_was_under_way_is_written_after_a_restart() -> None:
    async with world(configs=DLQ) as w:
        at, m = await w.held(1)

        with patch.object(w.storage, "append", side_effect=FULL):
            await m.acknowledge({at: [reject(0)]})
            await settle()
        await w.restart()

        await w.member("m2").fetch(at)
        await settle()

        assert len(await letters(w)) == 1


async def test_a_dead_letter_waits_for_a_disk_that_is_full_for_long() -> None:
    async with world(configs=DLQ) as w:
        at, m = await w.held(1)

        with patch.object(w.storage, "append", side_effect=FULL):
            await m.acknowledge({at: [reject(0)]})
            await w.clock.advance(3600)
        await w.clock.advance(30)

        assert len(await letters(w)) == 1
        assert w.server.stats()["failed_dead_letters"] == 0


async def test_a_topic_that_needs_more_brokers_than_run_is_waited_for_ten_minutes_and_not_again(caplog) -> None:
    async with world(configs=DLQ) as w:
        at, m = await w.held(1)
        error = TooFewBrokers("INVALID_REPLICATION_FACTOR; lower that setting")

        with patch.object(w.storage, "create_topic", side_effect=error):
            await m.acknowledge({at: [reject(0)]})
            await w.clock.advance(TOO_FEW_S - 1)
            assert w.server.stats()["failed_dead_letters"] == 0
            await w.clock.advance(200)
            assert w.server.stats()["failed_dead_letters"] == 1
            assert "dead letters are given up: INVALID_REPLICATION_FACTOR; lower that setting" in caplog.text

            await w.produce(1)
            await m.fetch()
            await m.acknowledge({at: [reject(1)]})
            await w.clock.advance(60)
            assert w.server.stats()["failed_dead_letters"] == 2


async def test_a_record_that_cannot_be_read_has_a_dead_letter_without_content() -> None:
    async with world(configs=COPIED) as w:
        at, m = await w.held(1)

        with patch.object(w.storage, "read", side_effect=StorageDamaged("stored data cannot be read")):
            await m.acknowledge({at: [reject(0)]})
            await settle()

        (letter,) = await letters(w)
        assert letter.value is None
        assert dict(letter.headers)["__dlq.errors.offset"] == b"0"


async def test_a_dead_letter_waits_for_a_log_that_gives_less_than_it_has() -> None:
    async with world(configs=COPIED) as w:
        at, m = await w.held(2)
        read = w.storage.read

        async def nothing(topic, partition, offset, **fields) -> ReadResult:
            return ReadResult(pieces=(), batches=(), offsets=w.storage.offsets(topic, partition))

        w.storage.read = nothing
        await m.acknowledge({at: [reject(0, 1)]})
        await w.clock.advance(3600)
        w.storage.read = read
        assert await letters(w) == []

        await w.clock.advance(30)

        assert [letter.value for letter in await letters(w)] == [b"v" * 10] * 2
        assert w.server.stats()["failed_dead_letters"] == 0


async def test_a_record_that_cannot_be_read_takes_no_content_from_the_dead_letters_around_it(caplog) -> None:
    async with world(configs=COPIED) as w:
        at = await w.log(1)
        await w.produce(2)
        await w.produce(1)
        m = w.member("m1")
        await m.fetch(at)
        read = w.storage.read

        async def damaged(topic, partition, offset, **fields) -> ReadResult:
            if topic == "t" and offset in (1, 2):
                raise CorruptBatches("the batch at offset 1 is damaged")
            return await read(topic, partition, offset, **{**fields, "max_bytes": 1})

        w.storage.read = damaged
        await m.acknowledge({at: [reject(0, 3)]})
        await settle()
        w.storage.read = read

        assert [letter.value for letter in await letters(w)] == [b"v" * 10, None, None, b"v" * 10]
        assert len([line for line in caplog.messages if "cannot be read" in line]) == 1


async def test_a_dead_letter_that_waits_is_written_by_who_serves_the_share_partition_then() -> None:
    async with world(configs=DLQ) as w:
        at, m = await w.held(1)

        with patch.object(w.storage, "append", side_effect=FULL):
            await m.acknowledge({at: [reject(0)]})
            await settle()
            await w.server.share.partitions.drop([ShareKey("g", *at)])
            await m.fetch()
        await w.clock.advance(30)

        assert len(await letters(w)) == 1
        assert w.server.stats()["dead_letters"] == 1
