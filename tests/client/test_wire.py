"""Every plain message crosses the wire and means the same: to flowshare's own server and to a real broker."""

from __future__ import annotations

import asyncio
import uuid
from contextlib import asynccontextmanager

import pytest

from flowshare.client.net.tcp import open_tcp
from flowshare.client.settings import LinkSettings
from flowshare.clock import LoopClock
from flowshare.log.memory import MemoryStorage
from flowshare.protocol import messages as m
from flowshare.protocol.batches import BatchBuilder, batch_headers
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.kafka import ApiKey, module, write_response
from flowshare.server.net.listener import Listener
from flowshare.server.server import Server
from flowshare.share.config import ServerConfig
from flowshare.share.types import AckRange
from tests.client.sockets import EVERYTHING, NO_TIME, answer_of, connected, fake_broker, kio_error, name_of
from tests.waiting import until

pytestmark = pytest.mark.asyncio
STAMP_MS = 1_700_000_000_000


@pytest.fixture(params=["flowshare", pytest.param("kafka", marks=[pytest.mark.java, pytest.mark.slow])])
def address(request):
    """Where the server is; None: one is to be started here."""
    if request.param == "flowshare":
        return None
    host, _, port = request.getfixturevalue("kafka").bootstrap.partition(":")
    return host, int(port)


@asynccontextmanager
async def served(address):
    """A connection to the server at `address`, or to a new one of flowshare's."""
    clock = LoopClock()
    server = Server(storage=MemoryStorage(clock), config=ServerConfig.embedded(), clock=clock)
    await server.start()
    listener = Listener(server, clock=clock)
    host, port = address or await listener.start("127.0.0.1", 0)
    connection = await open_tcp(host, port, client_id="test", clock=clock, settings=LinkSettings())
    try:
        yield connection
    finally:
        await connection.close()
        await listener.close()
        await server.close()


async def ask_until(connection, request, good, bound_s=30.0):
    """Ask again until the answer is good: a broker works on some things after it said yes."""
    return await until(lambda: connection.send(request), good=good, limit_s=bound_s, look_s=0.05)


def records(count):
    builder = BatchBuilder(compression="none")
    for number in range(count):
        assert builder.add(None, b"v%d" % number, (), timestamp_ms=STAMP_MS + number)
    return builder.build()


def led(answer):
    """True if the one topic asked for is known and all its partitions have leaders."""
    (topic,) = answer.topics
    return topic.error is ErrorCode.NONE and -1 not in topic.leaders


def default(answer, name):
    """True if a setting has its default value."""
    return all(entry.is_default for entry in answer.entries if entry.name == name)


async def new_topic(connection, partitions=1):
    name = f"wire-{uuid.uuid4().hex[:12]}"
    made = await connection.send(m.CreateTopicRequest(name=name, partitions=partitions, configs={"retention.ms": "-1"}))
    assert (made.topic, made.error) == (name, ErrorCode.NONE)
    await ask_until(connection, m.MetadataRequest(topics=(name,)), led)
    return name, made.topic_id


async def stored(connection, topic, count):
    """Send records until they are stored: a broker that has told that it leads may still refuse the first ones."""
    request = m.ProduceRequest(topic=topic, partition=0, records=records(count))
    return await ask_until(connection, request, lambda a: a.error is ErrorCode.NONE)


async def test_topics_are_made_described_extended_and_deleted(address):
    async with served(address) as connection:
        name, topic_id = await new_topic(connection)

        again = await connection.send(m.CreateTopicRequest(name=name))
        grown = await connection.send(m.CreatePartitionsRequest(name=name, total=2))
        await ask_until(connection, m.MetadataRequest(topics=(name,)), lambda a: len(a.topics[0].leaders) == 2)
        unknown = uuid.uuid4()
        by_id = await connection.send(m.MetadataRequest(topic_ids=(topic_id, unknown)))
        everything = await connection.send(m.MetadataRequest())
        gone = await connection.send(m.DeleteTopicRequest(name=name))
        missing = await connection.send(m.DeleteTopicRequest(name="there-is-none"))

        assert again.error is ErrorCode.TOPIC_ALREADY_EXISTS
        assert grown == m.TopicResult(topic=name)
        found = {topic.topic_id: topic for topic in by_id.topics}
        (leader,) = set(found[topic_id].leaders)
        assert (found[topic_id].name, found[topic_id].partitions) == (name, 2)
        assert found[unknown] == m.TopicMetadata(name="", error=ErrorCode.UNKNOWN_TOPIC_ID, topic_id=unknown)
        assert leader in by_id.nodes
        assert name in {topic.name for topic in everything.topics}
        assert gone.error is ErrorCode.NONE
        assert missing.error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def test_records_are_produced_fetched_found_by_time_and_deleted(address):
    async with served(address) as connection:
        name, _ = await new_topic(connection)
        at = {"topic": name, "partition": 0}

        produced = await stored(connection, name, 5)
        fetched = await connection.send(
            m.FetchRequest(partitions=(m.FetchPartition(name, 0, 0), m.FetchPartition(name, 9, 0)), max_wait_ms=100)
        )
        offsets = [
            (await connection.send(m.ListOffsetsRequest(**at, timestamp_ms=when))).offset
            for when in (-1, -2, STAMP_MS + 3, STAMP_MS + 100)
        ]
        committed = await connection.send(m.ListOffsetsRequest(**at, timestamp_ms=-1, committed=True))
        deleted = await connection.send(m.DeleteRecordsRequest(**at, before=2))
        nowhere = await connection.send(m.ProduceRequest(topic=name, partition=7, records=records(1)))

        assert (produced.error, produced.base_offset, produced.append_time_ms) == (ErrorCode.NONE, 0, -1)
        first, second = fetched.partitions
        assert (first.error, first.high_watermark, first.last_stable) == (ErrorCode.NONE, 5, 5)
        assert batch_headers(first.records)[0].last_offset == 4
        assert (second.partition, second.error) == (9, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        assert offsets == [5, 0, 3, -1]
        assert committed.offset == 5
        assert (deleted.error, deleted.log_start) == (ErrorCode.NONE, 2)
        assert nowhere.error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def test_settings_of_groups_topics_and_brokers_are_changed_and_described(address):
    async with served(address) as connection:
        name, _ = await new_topic(connection)
        group = f"wire-{uuid.uuid4().hex[:12]}"
        setting = {"share.auto.offset.reset": "earliest"}

        async def alter(configs, **more):
            return await connection.send(
                m.IncrementalAlterConfigsRequest(resource_type="group", resource=group, configs=configs, **more)
            )

        async def described(kind, resource):
            answer = await connection.send(m.DescribeConfigsRequest(resource_type=kind, resource=resource))
            assert answer.error is ErrorCode.NONE
            return {entry.name: entry for entry in answer.entries}

        tried = await alter(setting, validate_only=True)
        before = await described("group", group)
        changed = await alter(setting)
        wrong = await alter({"share.no.such.setting": "1"})
        await ask_until(
            connection,
            m.DescribeConfigsRequest(resource_type="group", resource=group),
            lambda a: not default(a, "share.auto.offset.reset"),
        )
        after = await described("group", group)
        await alter({"share.auto.offset.reset": None})
        nodes = (await connection.send(m.MetadataRequest(topics=()))).nodes
        broker = await described("broker", str(next(iter(nodes))))

        assert tried == changed == m.Response()
        assert before["share.auto.offset.reset"].is_default
        assert (after["share.auto.offset.reset"].value, after["share.auto.offset.reset"].is_default) == (
            "earliest",
            False,
        )
        assert (wrong.error, bool(wrong.message)) == (ErrorCode.INVALID_CONFIG, True)
        assert not (await described("topic", name))["retention.ms"].is_default
        assert broker["group.share.max.size"].is_default


async def joined(connection, group, topic):
    """A member with an assignment."""
    await connection.send(
        m.IncrementalAlterConfigsRequest(
            resource_type="group", resource=group, configs={"share.auto.offset.reset": "earliest"}
        )
    )
    asked = m.DescribeConfigsRequest(resource_type="group", resource=group)
    # A share-partition begins where the setting says when it is first fetched from, and a broker takes it up later.
    await ask_until(connection, asked, lambda a: not default(a, "share.auto.offset.reset"))
    coordinator = await ask_until(connection, m.FindCoordinatorRequest(key=group), lambda a: a.error is ErrorCode.NONE)
    assert coordinator.host
    assert coordinator.port > 0
    member, epoch = str(uuid.uuid4()), 0

    async def assigned():
        nonlocal epoch
        answer = await connection.send(
            m.ShareGroupHeartbeatRequest(
                group_id=group, member_id=member, member_epoch=epoch, subscribed_topics=None if epoch else (topic,)
            )
        )
        if answer.error is ErrorCode.NONE:
            epoch = answer.member_epoch
        return answer.assignment

    return member, await until(assigned, look_s=0.05)


async def test_a_member_joins_fetches_acknowledges_and_leaves_and_the_group_is_seen_and_removed(address):
    async with served(address) as connection:
        topic, topic_id = await new_topic(connection)
        group = f"wire-{uuid.uuid4().hex[:12]}"
        await stored(connection, topic, 10)
        member, assignment = await joined(connection, group, topic)
        assert assignment == (m.TopicPartition(topic_id, 0),)

        def fetch(session_epoch, *acks, **more):
            parts = (m.SharePartitionRequest(topic_id, 0, acks),)
            return m.ShareFetchRequest(
                group_id=group, member_id=member, session_epoch=session_epoch, partitions=parts, acquire_mode=1, **more
            )

        session = 0
        answer = await connection.send(fetch(session, max_records=6, batch_size=6))
        async with asyncio.timeout(30):
            while not (answer.partitions and answer.partitions[0].acquired):
                session += 1
                answer = await connection.send(fetch(session, max_records=6, batch_size=6))
        (part,) = answer.partitions
        assert [(first, last, count) for first, last, count in part.acquired] == [(0, 5, 1)]
        assert batch_headers(part.records)[0].base_offset == 0
        assert answer.lock_timeout_ms == 30_000

        singles = [AckRange(offset, offset, b"\x01") for offset in range(3)]
        acked = await connection.send(fetch(session + 1, *singles, AckRange(3, 4, b"\x01\x02"), max_records=0))
        told = await connection.send(
            m.ShareAcknowledgeRequest(
                group_id=group,
                member_id=member,
                session_epoch=session + 2,
                partitions=(m.SharePartitionRequest(topic_id, 0, (AckRange(0, 0, b"\x01"), AckRange(5, 5, b"\x01"))),),
            )
        )
        wrong = await connection.send(
            m.ShareAcknowledgeRequest(
                group_id=group,
                member_id=member,
                session_epoch=session + 3,
                partitions=(m.SharePartitionRequest(topic_id, 0, (AckRange(90, 95, b"\x01"),)),),
            )
        )
        assert [(part.ack_error, part.error) for part in acked.partitions] == [(ErrorCode.NONE, ErrorCode.NONE)]
        assert [part.error for part in told.partitions] == [ErrorCode.NONE]
        assert [part.error for part in wrong.partitions] == [ErrorCode.INVALID_REQUEST]
        assert wrong.partitions[0].current_leader == (-1, -1)

        described = await connection.send(m.ShareGroupDescribeRequest(group_id=group))
        unknown = await connection.send(m.ShareGroupDescribeRequest(group_id="zzz-none"))
        assert (described.state, described.assignor) == ("Stable", "simple")
        assert [(one.member_id, one.client_id, one.assignment) for one in described.members] == [
            (member, "test", {topic: (0,)})
        ]
        assert unknown.error is ErrorCode.GROUP_ID_NOT_FOUND
        listed = await connection.send(m.ListGroupsRequest(types=("share",), states=("Stable",)))
        assert m.ListedGroup(group_id=group, state="Stable") in listed.groups

        offsets = await connection.send(m.DescribeShareGroupOffsetsRequest(group_id=group))
        assert [(one.topic, one.partition, one.lag, one.topic_id) for one in offsets.partitions] == [
            (topic, 0, 5, topic_id)
        ]
        assert offsets.partitions[0].redeliveries == (0 if connection.is_flowshare else -1)
        assert offsets.partitions[0].oldest_ms == (STAMP_MS if connection.is_flowshare else -1)
        refused = await connection.send(m.AlterShareGroupOffsetsRequest(group_id=group, offsets={(topic, 0): 3}))
        assert refused.error is ErrorCode.NON_EMPTY_GROUP

        closing = await connection.send(m.ShareAcknowledgeRequest(group_id=group, member_id=member, session_epoch=-1))
        left = await connection.send(m.ShareGroupHeartbeatRequest(group_id=group, member_id=member, member_epoch=-1))
        altered = await connection.send(m.AlterShareGroupOffsetsRequest(group_id=group, offsets={(topic, 0): 3}))
        forgotten = await connection.send(m.DeleteShareGroupOffsetsRequest(group_id=group, topics=(topic,)))
        removed = await connection.send(m.DeleteGroupsRequest(group_ids=(group, "zzz-none")))
        assert closing.error is ErrorCode.NONE
        assert (left.error, left.member_epoch) == (ErrorCode.NONE, -1)
        assert [(part.topic, part.partition, part.error) for part in altered.partitions] == [(topic, 0, ErrorCode.NONE)]
        assert forgotten.topics == (m.TopicResult(topic=topic, topic_id=topic_id),)
        assert {one.group_id: one.error for one in removed.groups} == {
            group: ErrorCode.NONE,
            "zzz-none": ErrorCode.GROUP_ID_NOT_FOUND,
        }


async def test_flowshares_own_fields_reach_flowshares_server_and_a_broker_reads_past_them(address):
    async with served(address) as connection:
        topic, topic_id = await new_topic(connection)
        group = f"wire-{uuid.uuid4().hex[:12]}"
        await stored(connection, topic, 2)
        member, _ = await joined(connection, group, topic)

        def fetch(session_epoch, **more):
            return m.ShareFetchRequest(
                group_id=group,
                member_id=member,
                session_epoch=session_epoch,
                partitions=(m.SharePartitionRequest(topic_id, 0),),
                **more,
            )

        session = 0
        answer = await connection.send(fetch(session))
        async with asyncio.timeout(30):
            while not (answer.partitions and answer.partitions[0].acquired):
                session += 1
                answer = await connection.send(fetch(session))
        released = await connection.send(
            m.ShareAcknowledgeRequest(
                group_id=group,
                member_id=member,
                session_epoch=session + 1,
                partitions=(
                    m.SharePartitionRequest(
                        topic_id,
                        0,
                        (AckRange(0, 0, b"\x02", delay_ms=600_000), AckRange(1, 1, b"\x02", unrun=True)),
                    ),
                ),
            )
        )
        again = await connection.send(fetch(session + 2))

        assert [part.error for part in released.partitions] == [ErrorCode.NONE]
        acquired = [tuple(one) for part in again.partitions for one in part.acquired]
        assert acquired == ([(1, 1, 1)] if connection.is_flowshare else [(0, 1, 2)])
        if connection.is_flowshare:
            offsets = await connection.send(m.DescribeShareGroupOffsetsRequest(group_id=group, topics={topic: (0,)}))
            assert [(part.in_flight, part.delayed) for part in offsets.partitions] == [(1, 1)]


async def test_the_listener_has_every_version_that_the_client_asks_for():
    async with served(None) as connection:
        for key, (_, asked) in EVERYTHING.items():
            if key in (ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE):
                continue  # it has no logins
            lowest, highest = connection.api_versions[key]
            assert lowest <= asked <= highest, key.name


# Answers that are well formed and yet not what was asked

EMPTY = {
    "find_coordinator": {"coordinators": ()},
    "create_topics": {"topics": ()},
    "delete_topics": {"responses": ()},
    "create_partitions": {"results": ()},
    "produce": {"responses": ()},
    "fetch": {"error_code": 0, "responses": ()},
    "list_offsets": {"topics": ()},
    "delete_records": {"topics": ()},
    "describe_configs": {"results": ()},
    "incremental_alter_configs": {"responses": ()},
    "describe_share_group_offsets": {"groups": ()},
    "describe_groups": {"groups": ()},
    "offset_fetch": {"groups": ()},
    "offset_for_leader_epoch": {"topics": ()},
}
ASKED = [
    m.FindCoordinatorRequest(key="g"),
    m.CreateTopicRequest(name="t"),
    m.DeleteTopicRequest(name="t"),
    m.CreatePartitionsRequest(name="t", total=2),
    m.ProduceRequest(topic="t", partition=0, records=b""),
    m.FetchRequest(partitions=(m.FetchPartition("t", 0, 0),)),
    m.ListOffsetsRequest(topic="t", partition=0, timestamp_ms=-1),
    m.DeleteRecordsRequest(topic="t", partition=0, before=0),
    m.DescribeConfigsRequest(resource_type="group", resource="g"),
    m.IncrementalAlterConfigsRequest(resource_type="group", resource="g", configs={}),
    m.DescribeShareGroupOffsetsRequest(group_id="g"),
    m.DescribeGroupRequest(group_id="g"),
    m.OffsetFetchRequest(group_id="g"),
    m.OffsetForLeaderEpochRequest(topic="t", partition=0, leader_epoch=0),
]


@pytest.mark.parametrize("request_", ASKED, ids=lambda one: type(one).__name__)
async def test_an_answer_that_leaves_out_what_was_asked_is_an_error_that_says_so(request_):
    def answer(start, frame, writer):
        name = name_of(start.key)
        fields = dict(EMPTY[name])
        if "error_code" in fields:
            fields["error_code"] = kio_error(0)
        return write_response(start.correlation_id, answer_of(name, start.version, throttle_time=NO_TIME, **fields))

    async with fake_broker() as broker, connected(broker) as connection:
        broker.answer = answer

        found = await connection.send(request_)

        if isinstance(found, m.FetchResponse):
            (found,) = found.partitions
        assert found.error is ErrorCode.UNKNOWN_SERVER_ERROR
        assert "the answer" in found.message


async def test_leaders_that_moved_are_told_with_their_address():
    topic_id = uuid.uuid4()

    def answer(start, frame, writer):
        k = module("share_acknowledge", start.version, "response")
        moved = k.PartitionData(
            partition_index=0,
            error_code=kio_error(ErrorCode.NOT_LEADER_OR_FOLLOWER),
            error_message=None,
            current_leader=k.LeaderIdAndEpoch(leader_id=2, leader_epoch=5),
        )
        return write_response(
            start.correlation_id,
            k.ShareAcknowledgeResponse(
                throttle_time=NO_TIME,
                error_code=kio_error(0),
                error_message="",
                acquisition_lock_timeout=NO_TIME,
                responses=(k.ShareAcknowledgeTopicResponse(topic_id=topic_id, partitions=(moved,)),),
                node_endpoints=(k.NodeEndpoint(node_id=2, host="other", port=9, rack=None),),
            ),
        )

    async with fake_broker() as broker, connected(broker) as connection:
        broker.answer = answer

        found = await connection.send(m.ShareAcknowledgeRequest(group_id="g", member_id="m", session_epoch=1))

        assert found.message is None
        assert found.partitions[0].current_leader == (2, 5)
        assert found.node_endpoints == {2: ("other", 9)}
