"""Groups over the server: heartbeats, timeouts, describe, list, delete."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import pytest

from flowshare.log.base import NotLed, StorageError
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.messages import (
    CreatePartitionsRequest,
    DeleteGroupsRequest,
    DeleteTopicRequest,
    DescribeConfigsRequest,
    DescribeShareGroupOffsetsRequest,
    ListGroupsRequest,
    ShareGroupDescribeRequest,
    TopicPartition,
)
from flowshare.server.runtime.state import ShareKey
from flowshare.server.share.coordinator import PREFIX
from flowshare.testing.clock import settle
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


async def test_an_expired_group_that_cannot_be_deleted_keeps_no_dead_member_of_another_one() -> None:
    async with world() as w:
        await w.topic()
        await w.configure({"share.retention.ms": "60000"}, "old")
        gone = w.member("m1", "old")
        await gone.heartbeat("t")
        await gone.heartbeat(epoch=-1)
        gate = gated(w.server.share.coordinator._leaders, "replacing")
        await w.clock.advance(61)
        await w.member("m2").heartbeat("t")

        await w.clock.advance(44)
        before = await w.members()
        await w.clock.advance(2)

        assert (before, await w.members()) == (["m2"], [])
        gate.set()


async def test_a_group_that_cannot_be_written_keeps_no_other_one_unwritten() -> None:
    async with world() as w:
        await w.topic()
        groups = "g1", "g2", "g3"
        for group_id in groups:
            await w.member("m1", group_id).heartbeat("t")
        write, stored = w.storage.write, dict[bytes, bytes | None]()

        async def refused(writes) -> None:
            written = [key for key, _ in writes]
            if PREFIX + b"g1" in written:
                raise StorageError("its slot has no leader")
            if PREFIX + b"g2" in written:
                await w.clock.sleep(60)
            stored.update(writes)
            await write(writes)

        w.storage.write = refused
        await w.clock.advance(46)  # all members have timed out

        w.storage.write = write
        assert [key for key in stored if key.startswith(PREFIX)] == [PREFIX + b"g3"]


# --- what is begun before and written after -------------------------------------------------------------------------


def gated(leaders, name):
    """Who does this with leaders waits for the event that is returned, as in a fleet for the other workers' answers."""
    act, gate = getattr(leaders, name), asyncio.Event()

    @asynccontextmanager
    async def late(*args):
        await gate.wait()
        async with act(*args) as writes:
            yield writes

    setattr(leaders, name, late)
    return gate


async def moved_away_and_back(w) -> None:
    """As when the slot of all groups is given to another worker, who gives it back."""
    coordinator = w.server.share.coordinator
    coordinator.lay_down(tuple(coordinator.groups))
    coordinator.take_up(await w.storage.scan(PREFIX))


async def stored_members(w) -> list[str]:
    """Ids of the members of group `g`, as another coordinator would find them."""
    await moved_away_and_back(w)
    return await w.members()


async def test_a_deletion_that_was_begun_before_the_group_moved_away_and_back_deletes_nothing() -> None:
    async with world() as w:
        await w.topic()
        gone = w.member("m1")
        await gone.heartbeat("t")
        await gone.heartbeat(epoch=-1)
        gate = gated(w.server.share.coordinator._leaders, "replacing")
        deletion = await parked(w.admin.send(DeleteGroupsRequest(group_ids=("g",))))

        await moved_away_and_back(w)
        await w.member("m2").heartbeat("t")
        gate.set()
        (deleted,) = (await deletion).groups

        assert deleted.error is ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert await w.members() == ["m2"]
        assert await stored_members(w) == ["m2"]


async def test_a_group_that_is_used_while_others_expire_does_not_expire_with_them() -> None:
    settings = {"share.auto.offset.reset": "earliest", "share.retention.ms": "60000"}
    async with world(configs=settings) as w:
        await w.topic()
        await w.configure(settings, "h")
        for group_id in ("g", "h"):
            member = w.member("m1", group_id)
            await member.heartbeat("t")
            await member.heartbeat(epoch=-1)
        gate = gated(w.server.share.coordinator._leaders, "replacing")
        await w.clock.advance(61)
        late = w.member("m2", "h")
        await late.heartbeat("t", epoch=0)
        await late.heartbeat(epoch=-1)

        gate.set()
        await settle()

        assert [group.group_id for group in (await w.admin.send(ListGroupsRequest())).groups] == ["h"]


async def test_a_member_that_joins_while_a_topic_is_deleted_is_not_forgotten() -> None:
    async with world() as w:
        topic = await w.topic()
        await w.topic("u")
        await w.member("m1").heartbeat("t", "u")
        coordinator = w.server.share.coordinator
        gate = gated(coordinator._leaders, "deleting")
        deletion = await parked(coordinator.topic_deleted(topic))

        await w.member("m2").heartbeat("u")
        gate.set()
        await deletion

        assert await stored_members(w) == ["m1", "m2"]


async def test_a_share_partition_is_not_laid_down_before_what_replaces_its_state_is_written() -> None:
    async with world() as w:
        at, m = await w.held(1, joined=True)
        await m.heartbeat(epoch=-1)
        share = w.server.share
        key = ShareKey("g", *at)

        async with share.local.replacing({key: None}):
            laid_down = await parked(share.partitions.lay_down(lambda _: True))

        await laid_down


async def test_the_state_of_a_share_partition_that_is_led_elsewhere_is_not_replaced() -> None:
    async with world() as w:
        key = ShareKey("g", await w.topic(), 0)

        def elsewhere(_: ShareKey) -> None:
            raise NotLed("another worker leads it")

        w.server.share.duties.check_leader = elsewhere
        with pytest.raises(NotLed):
            async with w.server.share.local.replacing({key: None}):
                pass


# --- settings -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"share.retention.ms": "60000"}, {"share.record.lock.duration.ms": "20000"}),
        ({"consumer.session.timeout.ms": "50000"}, {"consumer.heartbeat.interval.ms": "6000"}),
    ],
    ids=["share", "consumer"],
)
async def test_who_sets_other_settings_of_a_group_at_the_same_time_undoes_none(one, other) -> None:
    async with world() as w:
        w.storage.before_write = lambda: asyncio.sleep(0)  # as a disk, or a broker: it takes a moment
        await asyncio.gather(w.configure(one), w.configure(other))
        await w.restart()

        found = await w.admin.send(DescribeConfigsRequest(resource_type="group", resource="g"))
        assert {**one, **other}.items() <= {entry.name: entry.value for entry in found.entries}.items()


async def test_settings_that_are_being_written_when_a_group_is_given_away_are_not_remembered() -> None:
    async with world() as w:
        gate, configs = asyncio.Event(), w.server.share.configs
        w.storage.before_write = gate.wait
        setting = await parked(w.configure({"share.retention.ms": "60000"}))
        laid_down = await parked(configs.lay_down(lambda _: True))

        gate.set()
        await asyncio.gather(setting, laid_down)

        assert configs.stored("g") == {}


async def test_each_outage_of_the_store_is_told_once_for_a_group(caplog) -> None:
    async with world() as w:
        await w.topic()
        m = w.member("m1")
        await m.heartbeat("t")
        coordinator = w.server.share.coordinator

        async def refuse() -> None:
            raise StorageError("the disk is full")

        for _ in range(2):
            w.storage.before_write = refuse
            coordinator._changed("g")
            coordinator._runtime.wake()
            await w.clock.advance(10)
            w.storage.before_write = None
            await m.heartbeat()
            await w.clock.advance(10)

    assert caplog.text.count("group could not be written") == 2
