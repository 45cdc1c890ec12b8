"""Tests of a server that starts over the same storage: state found again, and state that cannot be read."""

from __future__ import annotations

import asyncio

import pytest

from flowshare.log.base import StorageError
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.messages import (
    AlterShareGroupOffsetsRequest,
    DeleteGroupsRequest,
    DescribeConfigsRequest,
    DescribeShareGroupOffsetsRequest,
    ShareGroupDescribeRequest,
)
from flowshare.server.runtime.state import ShareKey, read_state
from flowshare.share.config import ServerConfig
from flowshare.testing.clock import settle
from tests.server.world import accept, given_up, parked, ranges, release, world

pytestmark = pytest.mark.asyncio


async def test_accepted_stays_accepted_and_acquired_comes_again_with_its_count() -> None:
    async with world() as w:
        at, m = await w.held(10)
        await m.acknowledge({at: [accept(0, 2), accept(5, 6)]})

        await w.die()

        assert ranges(await w.member("m2").fetch(at)) == [(3, 4, 2), (7, 9, 2)]


async def test_an_acquire_is_durable_unless_turned_off() -> None:
    config = ServerConfig.embedded({"share.acquire.durable": "false"})
    async with world(config=config) as w:
        at = await w.log(1)
        await w.member("m1").fetch(at)

        await w.die()

        assert ranges(await w.member("m2").fetch(at)) == [(0, 0, 1)]


async def test_the_resolved_start_is_kept_without_any_acknowledgement() -> None:
    async with world(configs={}) as w:
        at = await w.log(1)
        await w.member("m1").fetch(at)
        await w.restart()
        await w.produce(1)
        await w.restart()

        assert ranges(await w.member("m1").fetch(at)) == [(1, 1, 1)]


async def test_settings_groups_and_members_are_found_again() -> None:
    async with world() as w:
        await w.topic()
        m = w.member("m1")
        joined = await m.heartbeat("t")
        await w.configure({"share.record.lock.duration.ms": "9000"})
        await w.restart()

        group = await w.admin.send(ShareGroupDescribeRequest(group_id="g"))
        again = w.member("m1")
        beat = await again.heartbeat(epoch=joined.member_epoch)

        assert (group.state, [member.member_id for member in group.members]) == ("Stable", ["m1"])
        assert (beat.error, beat.member_epoch, beat.assignment) == (ErrorCode.NONE, joined.member_epoch, None)
        assert (await again.fetch()).lock_timeout_ms == 9000


async def test_members_of_the_old_process_are_gone() -> None:
    async with world() as w:
        await w.topic()
        m = w.member("m1")
        m.connection = w.server.connect(client_id="c")
        await m.heartbeat("t")
        await w.restart()

        group = await w.admin.send(ShareGroupDescribeRequest(group_id="g"))

        assert (group.state, group.members) == ("Empty", ())


async def test_many_updates_are_replaced_by_a_snapshot() -> None:
    config = ServerConfig.embedded({"share.coordinator.snapshot.update.records.per.snapshot": "10"})
    async with world(config=config) as w:
        at, m = await w.held(100)
        for offset in range(99, 0, -1):
            await m.acknowledge({at: [accept(offset)]})
        key = ShareKey("g", *at)

        assert len(await w.storage.scan(key.prefix)) <= 11
        stored = await read_state(w.storage, key)
        assert stored is not None
        assert stored.next_number == 100
        await w.die()
        assert ranges(await w.member("m2").fetch(at)) == [(0, 0, 2)]


async def test_state_that_cannot_be_read_is_refused_and_tried_again() -> None:
    async with world() as w:
        at, m = await w.held(1)
        await m.acknowledge({at: [release(0)]}, epoch=-1)
        await w.restart()
        key = ShareKey("g", *at)
        good = await w.storage.scan(key.prefix)
        await w.storage.write([(name, b"nonsense") for name, _ in good])
        m = w.member("m2")

        refused = await m.fetch(at)
        await w.storage.write(good)
        soon = await m.fetch()
        await w.clock.advance(1)
        later = await m.fetch()

        assert [p.error for p in refused.partitions] == [ErrorCode.UNKNOWN_SERVER_ERROR]
        assert [p.error for p in soon.partitions] == [ErrorCode.UNKNOWN_SERVER_ERROR]
        assert ranges(later) == [(0, 0, 2)]


async def test_unfinished_offsets_are_described_after_a_restart() -> None:
    async with world(config=ServerConfig.embedded({"group.share.return.grace.ms": "0"})) as w:
        at, m = await w.held(10, joined=True)
        await m.acknowledge({at: [accept(0, 1), accept(4, 5)]})
        await w.restart()

        answer = await w.admin.send(DescribeShareGroupOffsetsRequest(group_id="g"))

        (described,) = answer.partitions
        assert (described.start_offset, described.lag, described.in_flight) == (2, 6, 0)


@pytest.mark.parametrize("key", [b"g/g", b"c/g"])
async def test_a_group_that_cannot_be_read_is_refused_and_nothing_of_it_is_overwritten(key: bytes) -> None:
    async with world() as w:
        at, m = await w.held(3, joined=True)
        await m.acknowledge({at: [accept(0)]}, epoch=-1)
        await w.storage.write([(key, b"nonsense")])
        await w.restart()
        before = await w.storage.scan(b"")

        joined = await w.member("m2").heartbeat("t")
        fetched = await w.member("m2").fetch(at)
        described = await w.admin.send(ShareGroupDescribeRequest(group_id="g"))
        offsets = await w.admin.send(DescribeShareGroupOffsetsRequest(group_id="g"))
        reset = await w.admin.send(AlterShareGroupOffsetsRequest(group_id="g", offsets={("t", 0): 0}))
        settings = await w.admin.send(DescribeConfigsRequest(resource_type="group", resource="g"))
        altered = await w.configure({"share.record.lock.duration.ms": "9000"})
        await w.restart()

        for answer in (joined, *fetched.partitions, described, offsets, reset, settings, altered):
            assert answer.error is ErrorCode.UNKNOWN_SERVER_ERROR
            assert answer.message is not None
            assert "group 'g' is refused" in answer.message
            assert "flowshare groups delete g" in answer.message
        assert await w.storage.scan(b"") == before
        assert (await w.member("m3", "another").heartbeat("t")).error is ErrorCode.NONE


async def test_a_group_that_cannot_be_read_can_be_given_up() -> None:
    async with world() as w:
        at = await w.log(3)
        await w.member("m1").heartbeat("t")
        await w.storage.write([(b"g/g", b"nonsense"), (b"c/g", b"nonsense")])
        await w.restart()

        (deleted,) = (await w.admin.send(DeleteGroupsRequest(group_ids=("g",)))).groups

        assert deleted.error is ErrorCode.NONE
        assert await w.storage.scan(b"") == []
        assert (await w.member("m2").heartbeat("t")).error is ErrorCode.NONE
        await w.configure({"share.auto.offset.reset": "earliest"})
        assert (await w.member("m2").fetch(at)).error is ErrorCode.NONE


async def test_a_group_that_cannot_be_read_is_gone_though_its_deleter_gives_up() -> None:
    async with world() as w:
        await w.log(3)
        await w.member("m1").heartbeat("t")
        await w.storage.write([(b"g/g", b"nonsense")])
        await w.restart()

        await given_up(w.storage, w.admin.send(DeleteGroupsRequest(group_ids=("g",))))

        assert (await w.member("m2").heartbeat("t")).error is ErrorCode.NONE


async def test_a_group_whose_deletion_failed_is_there_though_its_deleter_gave_up() -> None:
    async with world() as w:
        await w.log(3)
        m = w.member("m1")
        await m.heartbeat("t")
        await m.heartbeat(epoch=-1)
        goes_on = asyncio.Event()

        async def fail() -> None:
            await goes_on.wait()
            raise StorageError("the disk is full")

        w.storage.before_write = fail
        deleting = await parked(w.admin.send(DeleteGroupsRequest(group_ids=("g",))))
        deleting.cancel()
        await settle()
        goes_on.set()
        await settle()
        w.storage.before_write = None

        assert (await w.admin.send(ShareGroupDescribeRequest(group_id="g"))).state == "Empty"


async def test_changed_settings_act_though_who_changed_them_gives_up() -> None:
    async with world() as w:
        await w.member("m1").heartbeat("t")

        await given_up(w.storage, w.configure({"share.heartbeat.interval.ms": "6000"}))

        assert (await w.member("m2").heartbeat("t")).heartbeat_interval_ms == 6_000


async def test_an_entry_whose_group_id_is_no_text_is_left_alone() -> None:
    async with world() as w:
        await w.storage.write([(b"g/\xff", b"x"), (b"c/\xff", b"x")])
        await w.restart()
        assert await w.storage.scan(b"g/") == [(b"g/\xff", b"x")]


async def test_offsets_are_not_altered_for_a_group_without_a_name() -> None:
    async with world() as w:
        await w.topic()
        answer = await w.admin.send(AlterShareGroupOffsetsRequest(group_id="", offsets={("t", 0): 0}))
        assert answer.error is ErrorCode.INVALID_REQUEST


async def test_a_member_that_may_take_nothing_of_what_a_dead_process_held_does_not_keep_others_from_it() -> None:
    async with world() as w:
        at = await w.log(4)
        for _ in range(2):  # held by two processes that died
            await w.member("dead").fetch(at)
            await w.die()
        m1, m2 = w.member("m1"), w.member("m2")
        assert ranges(await m1.fetch(at)) == [(0, 0, 3)]
        busy = await parked(m1.fetch(max_wait_ms=10_000))
        assert ranges(await m2.fetch(at)) == [(1, 1, 3)]
        idle = await parked(m2.fetch(max_wait_ms=10_000))

        await m2.acknowledge({at: [accept(1)]})
        await settle()

        assert not busy.done()
        assert idle.done()
        assert ranges(await idle) == [(2, 2, 3)]
        busy.cancel()


async def test_a_write_that_failed_but_is_stored_all_the_same_is_undone_by_the_repair() -> None:
    async with world() as w:
        at, m = await w.held(3)
        write = w.storage.write

        async def late(writes) -> None:
            await write(writes)
            raise StorageError("the disk failed after the write")

        w.storage.write = late
        refused = await m.acknowledge({at: [accept(0)]})
        w.storage.write = write
        await w.clock.advance(1.5)  # the whole state is written again
        stored = await read_state(w.storage, ShareKey("g", *at))

        assert [part.error for part in refused.partitions] == [ErrorCode.KAFKA_STORAGE_ERROR]
        assert stored is not None
        assert stored.state.start_offset == 0
        await w.die()
        assert ranges(await w.member("m2").fetch(at)) == [(0, 2, 2)]


async def test_a_group_that_is_joined_while_it_is_deleted_has_state_afterwards() -> None:
    async with world() as w:
        at = await w.log(3)
        m = w.member("m1")
        await m.heartbeat("t")
        await m.heartbeat(epoch=-1)
        hold = asyncio.Event()
        w.storage.before_write = hold.wait
        deleting = await parked(w.admin.send(DeleteGroupsRequest(group_ids=("g",))))
        joining = await parked(w.member("m2").heartbeat("t"))
        hold.set()
        w.storage.before_write = None

        assert [group.error for group in (await deleting).groups] == [ErrorCode.NONE]
        assert (await joining).error is ErrorCode.NONE
        assert await read_state(w.storage, ShareKey("g", *at)) is not None
        assert w.server.share.partitions.known("g")


async def test_what_a_crash_left_of_a_deleted_topic_is_removed_at_the_next_start() -> None:
    async with world() as w:
        await w.topic()
        await w.member("m1").heartbeat("t")
        await w.storage.delete_topic("t")  # the process died before the groups heard of it

        await w.restart()
        await w.clock.advance(2)

        assert await w.storage.scan(b"s/") == []
        assert w.server.share.coordinator.find("g").initialized == frozenset()
