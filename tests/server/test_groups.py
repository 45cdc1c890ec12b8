"""Groups over the server: heartbeats, timeouts, describe, list, delete."""

from __future__ import annotations

import pytest

from flowshare.log.base import StorageError
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.messages import (
    CreatePartitionsRequest,
    DeleteGroupsRequest,
    DeleteTopicRequest,
    DescribeShareGroupOffsetsRequest,
    ListGroupsRequest,
    ShareGroupDescribeRequest,
    TopicPartition,
)
from tests.server.world import accept, parked, ranges, world

pytestmark = pytest.mark.asyncio


async def test_the_first_heartbeat_answers_with_the_assignment() -> None:
    async with world() as w:
        topic = await w.topic(partitions=3)

        answer = await w.member("m1").heartbeat("t")

        assert answer.error is ErrorCode.NONE
        assert answer.assignment == tuple(TopicPartition(topic, number) for number in range(3))
        assert answer.heartbeat_interval_ms == 5000


async def test_records_produced_after_the_first_heartbeat_count_as_new_for_latest() -> None:
    async with world(configs={}) as w:
        at = await w.log(1)
        m = w.member("m1")
        await m.heartbeat("t")
        await w.produce(1)

        assert ranges(await m.fetch(at)) == [(1, 1, 1)]


async def test_added_partitions_are_read_from_their_start() -> None:
    async with world(configs={}) as w:
        topic = await w.topic()
        m = w.member("m1")
        await m.heartbeat("t")
        await w.admin.send(CreatePartitionsRequest(name="t", total=2))
        await w.produce(1, partition=1)

        await w.clock.advance(5)
        answer = await m.heartbeat()

        assert answer.assignment == (TopicPartition(topic, 0), TopicPartition(topic, 1))
        assert ranges(await m.fetch(TopicPartition(topic, 1))) == [(0, 0, 1)]


@pytest.mark.parametrize(
    ("topics", "fields", "error"),
    [
        ((), {"epoch": 0}, ErrorCode.INVALID_REQUEST),
        (("t",), {"epoch": -2}, ErrorCode.INVALID_REQUEST),
        (("t",), {"epoch": 0, "rack_id": ""}, ErrorCode.INVALID_REQUEST),
        ((), {"epoch": 5}, ErrorCode.GROUP_ID_NOT_FOUND),
        ((), {"epoch": -1}, ErrorCode.GROUP_ID_NOT_FOUND),
    ],
)
async def test_bad_heartbeats_are_refused_and_make_no_group(topics, fields, error: ErrorCode) -> None:
    async with world() as w:
        answer = await w.member("m1").heartbeat(*topics, **fields)

        assert answer.error is error
        assert (await w.admin.send(ListGroupsRequest())).groups == ()


async def test_a_member_that_leaves_frees_its_records_at_once() -> None:
    async with world() as w:
        at, m1 = await w.held(1, joined=True)
        m2 = w.member("m2")
        task = await parked(m2.fetch(at, max_wait_ms=10_000))

        left = await m1.heartbeat(epoch=-1)

        assert left.member_epoch == -1
        assert ranges(await task) == [(0, 0, 2)]


async def test_a_member_that_times_out_frees_its_records_at_once() -> None:
    async with world(configs={"share.auto.offset.reset": "earliest", "share.record.lock.duration.ms": "600000"}) as w:
        at, m1 = await w.held(1, joined=True)
        m2 = w.member("m2")
        task = await parked(m2.fetch(at, max_wait_ms=100_000))

        await w.clock.advance(44.9)
        assert not task.done()
        await w.clock.advance(0.2)

        assert ranges(await task) == [(0, 0, 2)]
        assert (await m1.heartbeat()).error is ErrorCode.UNKNOWN_MEMBER_ID


async def test_a_fenced_member_loses_its_records() -> None:
    async with world() as w:
        at, m1 = await w.held(1, joined=True)
        m2 = w.member("m2")

        assert (await m1.heartbeat(epoch=99)).error is ErrorCode.FENCED_MEMBER_EPOCH

        assert ranges(await m2.fetch(at)) == [(0, 0, 2)]


async def test_heartbeats_keep_a_member_alive() -> None:
    async with world() as w:
        await w.topic()
        m = w.member("m1")
        await m.heartbeat("t")
        for _ in range(20):
            await w.clock.advance(5)
            assert (await m.heartbeat()).error is ErrorCode.NONE


async def test_a_group_that_cannot_be_written_is_not_available_and_the_next_heartbeat_repairs_it() -> None:
    async with world() as w:
        topic = await w.topic()
        m = w.member("m1")

        async def refuse() -> None:
            raise StorageError("no space left on device")

        w.storage.before_write = refuse
        refused = await m.heartbeat("t")
        w.storage.before_write = None
        answer = await m.heartbeat("t", epoch=0)
        await w.restart()
        again = w.member("m1")

        assert refused.error is ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert answer.assignment == (TopicPartition(topic, 0),)
        assert (await again.heartbeat(epoch=answer.member_epoch)).error is ErrorCode.NONE


async def test_groups_are_described_and_listed() -> None:
    async with world() as w:
        await w.topic(partitions=2)
        m = w.member("m1")
        await m.heartbeat("t")
        gone = w.member("m2", "empty")
        await gone.heartbeat("t")
        await gone.heartbeat(epoch=-1)

        described = [await w.admin.send(ShareGroupDescribeRequest(group_id=name)) for name in ("g", "none")]
        listed = (await w.admin.send(ListGroupsRequest(states=("Empty",), types=("share",)))).groups
        classic = (await w.admin.send(ListGroupsRequest(types=("classic",)))).groups

        (member,) = described[0].members
        assert (described[0].state, described[0].assignor) == ("Stable", "simple")
        assert (member.client_id, member.client_host, member.subscribed_topics) == ("client-m1", "10.0.0.1", ("t",))
        assert member.assignment == {"t": (0, 1)}
        assert (described[1].state, described[1].error) == ("Dead", ErrorCode.GROUP_ID_NOT_FOUND)
        assert [(group.group_id, group.state, group.type) for group in listed] == [("empty", "Empty", "share")]
        assert classic == ()


async def test_only_an_empty_group_is_deleted_and_then_begins_anew() -> None:
    async with world() as w:
        at, m = await w.held(3, joined=True)
        await m.acknowledge({at: [accept(0, 2)]})

        busy = (await w.admin.send(DeleteGroupsRequest(group_ids=("g", "none")))).groups
        await m.heartbeat(epoch=-1)
        done = (await w.admin.send(DeleteGroupsRequest(group_ids=("g",)))).groups

        assert [result.error for result in busy] == [ErrorCode.NON_EMPTY_GROUP, ErrorCode.GROUP_ID_NOT_FOUND]
        assert [result.error for result in done] == [ErrorCode.NONE]
        assert await w.storage.scan(b"s/") == []
        assert await w.storage.scan(b"g/") == []
        assert ranges(await w.member("m2").fetch(at)) == [(0, 2, 1)]


async def test_a_deleted_topic_is_forgotten_by_its_groups() -> None:
    async with world() as w:
        await w.topic()
        m = w.member("m1")
        await m.heartbeat("t")
        await w.admin.send(DeleteTopicRequest(name="t"))

        assert await w.storage.scan(b"s/") == []
        answer = await w.admin.send(DescribeShareGroupOffsetsRequest(group_id="g"))
        assert answer.partitions == ()
        topic = await w.topic()
        await w.clock.advance(5)
        assert (await m.heartbeat()).assignment == (TopicPartition(topic, 0),)


async def test_an_empty_group_expires_after_its_retention() -> None:
    async with world(configs={"share.auto.offset.reset": "earliest", "share.retention.ms": "60000"}) as w:
        await w.topic()
        m = w.member("m1")
        await m.heartbeat("t")
        await m.heartbeat(epoch=-1)

        await w.clock.advance(59)
        assert [group.group_id for group in (await w.admin.send(ListGroupsRequest())).groups] == ["g"]
        await w.clock.advance(2)

        assert (await w.admin.send(ListGroupsRequest())).groups == ()
        assert await w.storage.scan(b"s/") == []


async def test_a_group_with_a_reader_that_never_joined_does_not_expire() -> None:
    async with world(configs={"share.auto.offset.reset": "earliest", "share.retention.ms": "60000"}) as w:
        at = TopicPartition(await w.topic(), 0)
        m = w.member("m1")
        await m.heartbeat("t")
        await m.heartbeat(epoch=-1)
        reader = await parked(w.member("m2").fetch(at, max_wait_ms=90_000))

        await w.clock.advance(80)
        assert len((await w.admin.send(ListGroupsRequest())).groups) == 1
        await w.clock.advance(12)

        assert reader.done()
        assert (await w.admin.send(ListGroupsRequest())).groups == ()
