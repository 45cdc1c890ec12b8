"""The APIs that a fleet of workers asks of Kafka: at flowshare's own server, and at each version of Kafka."""

from __future__ import annotations

from contextlib import asynccontextmanager

import pytest

from flowshare.client.net.cluster import Cluster
from flowshare.clock import LoopClock
from flowshare.groups.types import Supported
from flowshare.log.memory import MemoryStorage
from flowshare.protocol import messages as m
from flowshare.protocol.batches import BatchBuilder
from flowshare.protocol.errors import ErrorCode
from flowshare.server.net.listener import Listener
from flowshare.server.server import Server
from flowshare.share.config import ServerConfig
from tests.waiting import until

pytestmark = pytest.mark.asyncio


@pytest.fixture
def broker(each_kafka):
    """host:port of each Kafka."""
    return each_kafka.bootstrap


@asynccontextmanager
async def connected(address=None):
    """A connection to the cluster at `address`, or to a new server of flowshare's."""
    clock = LoopClock()
    server = Server(storage=MemoryStorage(clock), config=ServerConfig.embedded(), clock=clock)
    await server.start()
    listener = Listener(server, clock=clock)
    if address is None:
        address = "{}:{}".format(*await listener.start("127.0.0.1", 0))
    cluster = Cluster([address], clock=clock)
    await cluster.start()
    connection = cluster.connect("test")
    try:
        yield connection
    finally:
        await connection.close()
        await cluster.close()
        await listener.close()
        await server.close()


def batch(*values):
    builder = BatchBuilder()
    for value in values:
        assert builder.add(None, value, (), timestamp_ms=1_700_000_000_000)
    return builder.build()


# --- producer ids -------------------------------------------------------------------------------------------------


async def producer_ids(kafka, name):
    asked = m.InitProducerIdRequest(transactional_id=name)

    first = await kafka.send(asked)
    second = await kafka.send(asked)
    refused = await kafka.send(m.InitProducerIdRequest(transactional_id=name, known=first.producer))
    nameless = [await kafka.send(m.InitProducerIdRequest()) for _ in range(2)]

    assert first.error is second.error is ErrorCode.NONE
    assert second.producer.producer_id == first.producer.producer_id
    assert second.producer.epoch > first.producer.epoch
    assert refused.error in {ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH}
    assert [one.producer.epoch for one in nameless] == [0, 0]
    assert nameless[0].producer.producer_id != nameless[1].producer.producer_id


async def test_a_transactional_id_keeps_its_producer_id_and_raises_its_epoch(unique):
    async with connected() as kafka:
        await producer_ids(kafka, unique("slot"))


@pytest.mark.java
async def test_a_transactional_id_keeps_its_producer_id_and_raises_its_epoch_at_kafka(broker, unique):
    async with connected(broker) as kafka:
        await producer_ids(kafka, unique("slot"))


async def described(kafka, name, topic):
    """A transactional id before it has a transaction, with an open one, and after that."""
    asked = m.DescribeTransactionRequest(transactional_id=name)
    assert (await kafka.send(asked)).error is ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
    producer = (await kafka.send(m.InitProducerIdRequest(transactional_id=name, timeout_ms=9_000))).producer
    none_yet = await kafka.send(asked)
    await kafka.send(m.CreateTopicRequest(name=topic, partitions=2))
    places = ((topic, 0), (topic, 1))
    await kafka.send(m.AddPartitionsToTxnRequest(transactional_id=name, producer=producer, partitions=places))
    open_now = await kafka.send(asked)
    await kafka.send(m.EndTxnRequest(transactional_id=name, producer=producer, committed=True))
    ended = await until(lambda: kafka.send(asked), good=lambda answer: answer.state == "CompleteCommit")

    assert (none_yet.state, none_yet.partitions, none_yet.timeout_ms) == ("Empty", (), 9_000)
    assert none_yet.started_ms == -1
    assert (open_now.state, set(open_now.partitions), open_now.producer) == ("Ongoing", set(places), producer)
    assert open_now.started_ms > 0
    assert ended.partitions == ()


async def test_a_transaction_is_described(unique):
    async with connected() as kafka:
        await described(kafka, unique("slot"), unique("paid"))


@pytest.mark.java
async def test_a_transaction_is_described_at_kafka(kafka, unique):
    async with connected(kafka.bootstrap) as connection:
        await described(connection, unique("slot"), unique("paid"))


# --- classic groups -----------------------------------------------------------------------------------------------


def join(group, member_id="", instance_id=None, metadata=b"about me"):
    return m.JoinGroupRequest(
        group_id=group,
        member_id=member_id,
        instance_id=instance_id,
        client_id="test",
        protocol_type="test",
        protocols=(Supported("ours", metadata),),
        session_timeout_ms=6_000,
        rebalance_timeout_ms=3_000,
    )


async def membership(kafka, group):
    unnamed = await kafka.send(join(group))
    assert unnamed.error is ErrorCode.MEMBER_ID_REQUIRED

    joined = await kafka.send(join(group, unnamed.member_id))
    assert joined.error is ErrorCode.NONE
    assert joined.leader == joined.member_id
    assert joined.protocol_name == "ours"
    assert [(one.member_id, one.metadata) for one in joined.members] == [(joined.member_id, b"about me")]

    me = {"group_id": group, "member_id": joined.member_id, "generation": joined.generation}
    protocol = {"protocol_type": "test", "protocol_name": "ours"}
    synced = await kafka.send(m.SyncGroupRequest(**me, **protocol, assignments=((joined.member_id, b"all"),)))
    assert (synced.error, synced.assignment) == (ErrorCode.NONE, b"all")
    assert (await kafka.send(m.HeartbeatRequest(**me))).error is ErrorCode.NONE
    stale = await kafka.send(m.HeartbeatRequest(**{**me, "generation": joined.generation - 1}))
    assert stale.error is ErrorCode.ILLEGAL_GENERATION

    seen = await kafka.send(m.DescribeGroupRequest(group_id=group))
    assert (seen.error, seen.state, seen.protocol_type, seen.protocol_name) == (0, "Stable", "test", "ours")
    assert [(one.member_id, one.metadata, one.assignment) for one in seen.members] == [
        (joined.member_id, b"about me", b"all")
    ]

    left = await kafka.send(m.LeaveGroupRequest(group_id=group, members=(m.LeavingMember(joined.member_id),)))
    assert (left.error, [one.error for one in left.members]) == (ErrorCode.NONE, [ErrorCode.NONE])
    assert (await kafka.send(m.HeartbeatRequest(**me))).error is ErrorCode.UNKNOWN_MEMBER_ID


async def static_membership(kafka, group):
    first = await kafka.send(join(group, instance_id="worker-1"))
    me = {"group_id": group, "instance_id": "worker-1"}
    synced = await kafka.send(
        m.SyncGroupRequest(
            **me,
            member_id=first.member_id,
            generation=first.generation,
            protocol_type="test",
            protocol_name="ours",
            assignments=((first.member_id, b"all"),),
        )
    )
    again = await kafka.send(join(group, instance_id="worker-1", metadata=b"otherwise"))
    fenced = await kafka.send(m.HeartbeatRequest(**me, member_id=first.member_id, generation=again.generation))
    left = await kafka.send(m.LeaveGroupRequest(group_id=group, members=(m.LeavingMember("", "worker-1"),)))

    assert first.error is synced.error is again.error is ErrorCode.NONE
    assert again.member_id != first.member_id
    assert fenced.error is ErrorCode.FENCED_INSTANCE_ID
    assert [(one.instance_id, one.error) for one in left.members] == [("worker-1", ErrorCode.NONE)]


async def unknown_group(kafka, group):
    seen = await kafka.send(m.DescribeGroupRequest(group_id=group))
    offsets = await kafka.send(m.OffsetFetchRequest(group_id=group))

    assert seen.error in {ErrorCode.NONE, ErrorCode.GROUP_ID_NOT_FOUND}  # since version 6 (KIP-1043)
    assert (seen.state, seen.members) == ("Dead", ())
    assert (offsets.error, offsets.partitions) == (ErrorCode.NONE, ())


@pytest.mark.parametrize("story", [membership, static_membership, unknown_group])
async def test_a_classic_group_is_spoken_to(story, unique):
    async with connected() as kafka:
        await story(kafka, unique("group"))


@pytest.mark.java
@pytest.mark.parametrize("story", [membership, static_membership, unknown_group])
async def test_a_classic_group_is_spoken_to_at_kafka(story, broker, unique):
    async with connected(broker) as kafka:
        await story(kafka, unique("group"))


# --- topics and records -------------------------------------------------------------------------------------------


@pytest.mark.java
async def test_topics_and_records_are_made_found_and_deleted_at_kafka(broker, unique):
    async with connected(broker) as kafka:
        topic = unique("orders")
        made = await kafka.send(m.CreateTopicRequest(name=topic, partitions=2, configs={"retention.ms": "-1"}))
        told = await kafka.send(m.MetadataRequest(topics=(topic,)))
        settings = await kafka.send(m.DescribeConfigsRequest(resource_type="topic", resource=topic))
        written = await kafka.send(m.ProduceRequest(topic=topic, partition=1, records=batch(b"a", b"b", b"c")))
        read = await kafka.send(m.FetchRequest(partitions=(m.FetchPartition(topic, 1, 0),)))
        ends = [
            await kafka.send(m.ListOffsetsRequest(topic=topic, partition=1, timestamp_ms=when))
            for when in (m.EARLIEST, m.LATEST, 1_700_000_000_000)
        ]
        epoch = told.topics[0].leader_epochs[1]
        asked = m.OffsetForLeaderEpochRequest(topic=topic, partition=1, leader_epoch=epoch, current_epoch=epoch)
        divergence = await kafka.send(asked)
        deleted = await kafka.send(m.DeleteRecordsRequest(topic=topic, partition=1, before=2))
        grown = await kafka.send(m.CreatePartitionsRequest(name=topic, total=3))
        gone = await kafka.send(m.DeleteTopicRequest(name=topic))

        assert made.error is written.error is deleted.error is grown.error is gone.error is ErrorCode.NONE
        assert told.topics[0].topic_id is not None
        assert {entry.name: entry.value for entry in settings.entries}["retention.ms"] == "-1"
        assert read.partitions[0].high_watermark == 3
        assert read.partitions[0].records.count(b"a") >= 1
        assert [one.offset for one in ends] == [0, 3, 0]
        assert (divergence.error, divergence.leader_epoch, divergence.end_offset) == (ErrorCode.NONE, epoch, 3)
        assert deleted.log_start == 2


@pytest.mark.java
async def test_an_epoch_that_is_not_the_present_one_is_refused(broker, unique):
    async with connected(broker) as kafka:
        topic = unique("orders")
        await kafka.send(m.CreateTopicRequest(name=topic))
        asked = m.OffsetForLeaderEpochRequest(topic=topic, partition=0, leader_epoch=0, current_epoch=7)

        answer = await kafka.send(asked)

        assert answer.error is ErrorCode.UNKNOWN_LEADER_EPOCH


@pytest.mark.java
async def test_groups_are_listed_and_deleted_at_kafka(broker, unique):
    async with connected(broker) as kafka:
        group = unique("group")
        first = await kafka.send(join(group, instance_id="worker-1"))
        assert first.error is ErrorCode.NONE

        listed = await kafka.send(m.ListGroupsRequest())
        await kafka.send(m.LeaveGroupRequest(group_id=group, members=(m.LeavingMember("", "worker-1"),)))
        deleted = await kafka.send(m.DeleteGroupsRequest(group_ids=(group,)))

        assert [(one.type, one.protocol_type) for one in listed.groups if one.group_id == group] == [
            ("classic", "test")
        ]
        assert [one.error for one in deleted.groups] == [ErrorCode.NONE]
