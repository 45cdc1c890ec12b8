"""Flowshare's own calls: found, answered, refused in clear words, and never sent to anybody else's broker."""

from __future__ import annotations

import uuid

import pytest

from flowshare.client.errors import ConnectionLost, ServerError, Unsupported
from flowshare.protocol import messages as m
from flowshare.protocol.batches import BatchBuilder
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.kafka import ApiKey
from flowshare.protocol.private import encode_answer
from flowshare.share.types import AckRange
from tests.client.sockets import EVERYTHING, connected, fake_broker, raw_call
from tests.client.test_wire import ask_until, joined, new_topic, served

pytestmark = pytest.mark.asyncio
OURS = {**EVERYTHING, 32500: (0, 0)}


async def test_an_unknown_call_is_refused_with_what_there_is():
    async with served(None) as connection:
        with pytest.raises(
            ServerError,
            match=r"no call 'dance' \(it has: share_offsets, .*, share_parked, share_breaker, .*topic_grow\); upgrade",
        ) as caught:
            await raw_call(connection, "dance")

        assert caught.value.code is ErrorCode.UNSUPPORTED_VERSION


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"group_id": 7},
        {"group_id": "g", "topics": []},
        {"group_id": "g", "topics": {"t": 1}},
        {"group_id": "g", "topics": {"t": [True]}},
        {"group_id": "g", "topics": {"t": ["0"]}},
        {"group_id": "g", "topics": {"t": list(range(10_001))}},
    ],
)
async def test_fields_that_make_no_sense_are_refused(fields):
    async with served(None) as connection:
        with pytest.raises(ServerError, match="DescribeShareGroupOffsetsRequest cannot be read") as refused:
            await raw_call(connection, "share_offsets", **fields)
        assert refused.value.code is ErrorCode.INVALID_REQUEST


async def test_a_group_that_is_not_there_has_kafkas_error():
    async with served(None) as connection:
        with pytest.raises(ServerError) as caught:
            await raw_call(connection, "share_offsets", group_id="nobody")

        assert caught.value.code is ErrorCode.GROUP_ID_NOT_FOUND


async def test_only_the_topics_asked_for_are_told():
    async with served(None) as connection:
        topic, _ = await new_topic(connection, partitions=2)
        await joined(connection, "g", topic)

        answer = await connection.send(m.DescribeShareGroupOffsetsRequest(group_id="g", topics={topic: (1,)}))
        whole = await connection.send(m.DescribeShareGroupOffsetsRequest(group_id="g"))

        assert [(part.topic, part.partition, part.in_flight) for part in answer.partitions] == [(topic, 1, 0)]
        assert len(whole.partitions) == 2


async def test_what_waits_for_another_record_of_its_key_is_told():
    async with served(None) as connection:
        topic, topic_id = await new_topic(connection)
        await connection.send(
            m.IncrementalAlterConfigsRequest(
                resource_type="group",
                resource="g",
                configs={"share.key.order": "key", "share.auto.offset.reset": "earliest"},
            )
        )
        member, _ = await joined(connection, "g", topic)
        builder = BatchBuilder()
        for key in (b"a", b"a", b"b"):
            builder.add(key, b"v", [], timestamp_ms=1_000)
        await connection.send(m.ProduceRequest(topic=topic, partition=0, records=builder.build()))
        part = m.SharePartitionRequest(topic_id, 0)
        await connection.send(m.ShareFetchRequest(group_id="g", member_id=member, session_epoch=0, partitions=(part,)))

        (told,) = (await connection.send(m.DescribeShareGroupOffsetsRequest(group_id="g"))).partitions

        assert (told.in_flight, told.blocked) == (2, 1)
        assert [(one.offset, one.blocked, one.state) for one in told.stuck] == [(0, 1, "HELD")]


async def test_parked_keys_are_counted_where_there_are_some():
    async with served(None) as connection:
        topic, topic_id = await new_topic(connection)
        configs = {
            "share.key.order": "key",
            "share.key.after.dead.letter": "park",
            "share.auto.offset.reset": "earliest",
        }
        await connection.send(m.IncrementalAlterConfigsRequest(resource_type="group", resource="g", configs=configs))
        member, _ = await joined(connection, "g", topic)
        builder = BatchBuilder()
        builder.add(b"a", b"v", [], timestamp_ms=1_000)
        await connection.send(m.ProduceRequest(topic=topic, partition=0, records=builder.build()))
        parts = (m.SharePartitionRequest(topic_id, 0),)
        asked = {"group_id": "g", "member_id": member}
        await connection.send(m.ShareFetchRequest(**asked, session_epoch=0, partitions=parts))
        rejected = (m.SharePartitionRequest(topic_id, 0, (AckRange(0, 0, b"\x03"),)),)
        await connection.send(m.ShareAcknowledgeRequest(**asked, session_epoch=1, partitions=rejected))

        told = await ask_until(
            connection, m.DescribeShareGroupOffsetsRequest(group_id="g"), lambda a: a.partitions[0].parked == 1
        )
        assert told.partitions[0].blocked == 0


async def test_a_member_says_what_it_holds_and_hears_what_is_still_its_own():
    async with served(None) as connection:
        topic, topic_id = await new_topic(connection)
        await joined(connection, "g", topic)
        held = m.HeldRanges(topic_id, 0, ((0, 4),))

        answer = await connection.send(m.ShareResumeRequest(group_id="g", member_id="m1", partitions=(held,)))

        assert answer == m.ShareResumeResponse()


async def test_a_member_is_told_what_a_server_does_not_lead():
    topic_id = uuid.UUID(int=3)
    async with fake_broker(OURS) as broker, connected(broker) as connection:
        held = m.HeldRanges(topic_id, 0, ((1, 2),))
        told = m.ShareResumeResponse(partitions=(held,), elsewhere=(m.TopicPartition(topic_id, 7),))
        broker.answer = lambda start, frame, writer: encode_answer(start.correlation_id, 0, told)

        answer = await connection.send(m.ShareResumeRequest(group_id="g", member_id="m1", partitions=(held,)))

        assert answer == told


@pytest.mark.parametrize(
    "partitions",
    [
        None,
        7,
        [[]],
        [["x", 0, [], []]],
        [["00" * 16, "0", [], []]],
        [["00" * 16, 0, [], [], []]],
        [["00" * 16, 0, [[4, 0]], []]],
        [["00" * 16, 0, [[5, 6], [1, 2]], []]],
        [["00" * 16, 0, [], [[5, 6], [1, 2]]]],
    ],
)
async def test_what_cannot_be_held_is_refused(partitions):
    async with served(None) as connection:
        with pytest.raises(ServerError, match="share_resume: ShareResumeRequest"):
            await raw_call(connection, "share_resume", group_id="g", member_id="m", partitions=partitions)


async def test_a_broker_of_somebody_elses_is_never_asked():
    async with fake_broker() as broker, connected(broker) as connection:
        with pytest.raises(Unsupported, match="is no flowshare server"):
            await connection.send(m.ShareResumeRequest(group_id="g", member_id="m", partitions=()))

        assert len(broker.starts) == 1


async def test_an_answer_of_another_form_ends_the_connection():
    async with fake_broker(OURS) as broker, connected(broker) as connection:
        wrong = m.ShareResumeResponse(partitions=(m.HeldRanges(uuid.UUID(int=3), 0),))
        broker.answer = lambda start, frame, writer: encode_answer(start.correlation_id, 0, wrong)

        with pytest.raises(ConnectionLost, match="cannot be read"):
            await connection.send(m.DescribeShareGroupOffsetsRequest(group_id="g"))


async def test_partitions_that_break_an_order_of_keys_are_added_over_a_socket_when_told_to():
    async with served(None) as connection:
        topic, _ = await new_topic(connection)
        order = {"share.key.order": "key"}
        await connection.send(m.IncrementalAlterConfigsRequest(resource_type="group", resource="g", configs=order))
        await joined(connection, "g", topic)

        refused = await connection.send(m.CreatePartitionsRequest(name=topic, total=2))
        told = await connection.send(m.CreatePartitionsRequest(name=topic, total=2, breaks_order=True))
        again = await connection.send(m.CreatePartitionsRequest(name=topic, total=2, breaks_order=True))
        [found] = (await connection.send(m.MetadataRequest(topics=(topic,)))).topics

        assert (refused.error, told.error) == (ErrorCode.POLICY_VIOLATION, ErrorCode.NONE)
        assert again.error is ErrorCode.INVALID_PARTITIONS
        assert found.partitions == 2


@pytest.mark.parametrize("fields", [{}, {"name": 1, "total": 2}, {"name": "t", "total": True}, {"name": "t"}])
async def test_partitions_need_a_topic_and_a_number(fields):
    async with served(None) as connection:
        with pytest.raises(ServerError, match="topic_grow: CreatePartitionsRequest cannot be read"):
            await raw_call(connection, "topic_grow", **fields)


@pytest.mark.parametrize("begun", [True, False])
async def test_a_server_that_does_not_offer_to_settle_is_not_asked_to(begun):
    request = m.ShareSettleRequest(
        group_id="g", member_id="m", topic_id=uuid.UUID(int=1), partition=0, acks=(AckRange(0, 0, b"\1"),), outputs=()
    )
    offered = {key: versions for key, versions in OURS.items() if key != ApiKey.FLOWSHARE_SETTLE}
    async with fake_broker(offered) as broker, connected(broker) as connection:
        told = []
        if begun:
            connection.begin(request, told.append)
        with pytest.raises(Unsupported, match="does not offer FlowshareSettle: records are settled together with"):
            told[0].result() if begun else await connection.send(request)

        assert [start.key for start in broker.starts] == [ApiKey.API_VERSIONS]
