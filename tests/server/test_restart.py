"""What a server finds again over the same storage, and what it does with state it cannot read."""

from __future__ import annotations

import pytest

from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.messages import DescribeShareGroupOffsetsRequest, ShareGroupDescribeRequest, TopicPartition
from flowshare.server.state import ShareKey, read_state
from flowshare.share.config import ServerConfig
from tests.server.world import accept, ranges, release, world

pytestmark = pytest.mark.asyncio


async def test_accepted_stays_accepted_and_acquired_comes_again_with_its_count() -> None:
    async with world() as w:
        at = TopicPartition(await w.topic(), 0)
        await w.produce(10)
        m = w.member("m1")
        await m.fetch(at)
        await m.acknowledge({at: [accept(0, 2), accept(5, 6)]})

        w.server._partitions.release_member = lambda *_: None  # the process dies: nothing is released
        await w.restart()

        assert ranges(await w.member("m2").fetch(at)) == [(3, 4, 2), (7, 9, 2)]


async def test_an_acquire_is_durable_unless_turned_off() -> None:
    config = ServerConfig.embedded({"share.acquire.durable": "false"})
    async with world(config=config) as w:
        at = TopicPartition(await w.topic(), 0)
        await w.produce(1)
        await w.member("m1").fetch(at)

        w.server._partitions.release_member = lambda *_: None
        await w.restart()

        assert ranges(await w.member("m2").fetch(at)) == [(0, 0, 1)]


async def test_the_resolved_start_is_kept_without_any_acknowledgement() -> None:
    async with world(configs={}) as w:
        at = TopicPartition(await w.topic(), 0)
        await w.produce(1)
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

        (group,) = (await w.admin.send(ShareGroupDescribeRequest(group_ids=("g",)))).groups
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

        (group,) = (await w.admin.send(ShareGroupDescribeRequest(group_ids=("g",)))).groups

        assert (group.state, group.members) == ("Empty", ())


async def test_many_updates_are_replaced_by_a_snapshot() -> None:
    config = ServerConfig.embedded({"share.coordinator.snapshot.update.records.per.snapshot": "10"})
    async with world(config=config) as w:
        at = TopicPartition(await w.topic(), 0)
        await w.produce(100)
        m = w.member("m1")
        await m.fetch(at)
        for offset in range(99, 0, -1):
            await m.acknowledge({at: [accept(offset)]})
        key = ShareKey("g", *at)

        assert len(await w.storage.scan(key.prefix)) <= 11
        stored = await read_state(w.storage, key)
        assert stored is not None
        assert stored.next_number == 100
        w.server._partitions.release_member = lambda *_: None
        await w.restart()
        assert ranges(await w.member("m2").fetch(at)) == [(0, 0, 2)]


async def test_state_that_cannot_be_read_is_refused_and_tried_again() -> None:
    async with world() as w:
        at = TopicPartition(await w.topic(), 0)
        await w.produce(1)
        m = w.member("m1")
        await m.fetch(at)
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
    async with world() as w:
        at = TopicPartition(await w.topic(), 0)
        await w.produce(10)
        m = w.member("m1")
        await m.heartbeat("t")
        await m.fetch(at)
        await m.acknowledge({at: [accept(0, 1), accept(4, 5)]})
        await w.restart()

        answer = await w.admin.send(DescribeShareGroupOffsetsRequest(group_id="g"))

        (described,) = answer.partitions
        assert (described.start_offset, described.lag, described.in_flight) == (2, 6, 0)
