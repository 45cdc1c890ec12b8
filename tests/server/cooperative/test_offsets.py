"""The stable offset is the group's ordinary committed offset: where a group begins, resets, and what goes with it."""

from __future__ import annotations

import asyncio

import pytest

from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.messages import (
    CreatePartitionsRequest,
    DeleteGroupsRequest,
    DeleteTopicRequest,
    OffsetDeleteRequest,
    ShareGroupHeartbeatRequest,
)
from flowshare.protocol.messages.cooperative import stable_metadata
from flowshare.testing.clock import settle
from tests.server.cooperative.world import LEASE_MS, NONE, SWEEP, WHOLE, cooperative
from tests.server.world import batch

pytestmark = pytest.mark.asyncio


async def delete(w, group: str = "g"):
    (told,) = (await w.admin.send(DeleteGroupsRequest(group_ids=(group,)))).groups
    return told.error


# --- where it begins --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("policy", "stable"), [("earliest", 0), ("latest", 100)])
async def test_a_group_that_committed_nothing_begins_as_it_says_and_every_tool_sees_where(policy, stable):
    async with cooperative(100) as w:
        m = w.member("m")

        part = await m.hold(WHOLE, auto_offset_reset=policy)

        assert part.stable == stable
        assert await w.offset() == (stable, stable_metadata(part.reset_epoch, part.topic_id))


@pytest.mark.parametrize("policy", ["latest", "by_duration:PT1H"])
@pytest.mark.parametrize("restarts", [False, True], ids=["loaded", "after a restart"])
async def test_a_partition_that_is_added_to_a_topic_that_the_group_reads_begins_at_its_first_record(policy, restarts):
    async with cooperative(100, partitions=2) as w:
        await w.clock.advance(7_200)
        m = w.member("m")
        first = await m.hold(WHOLE, auto_offset_reset=policy)
        await w.produce(5, partition=1)
        assert (await w.admin.send(CreatePartitionsRequest(name="t", total=3))).error is NONE
        await w.produce(7, partition=2)
        if restarts:
            await w.restart()
            w.again(m)

        late = await m.hold(WHOLE, at=1, auto_offset_reset=policy)
        added = await m.hold(WHOLE, at=2, auto_offset_reset=policy)

        assert added.stable == 0
        assert late.stable == first.stable == 100, "it was there when the group began"


async def test_a_partition_of_which_ordinary_consumers_committed_nothing_begins_as_the_group_says():
    async with cooperative(100, partitions=2) as w:
        await w.set_offset(40)

        assert (await w.member("m").hold(WHOLE, at=1, auto_offset_reset="latest")).stable == 100


async def test_a_group_that_committed_nothing_and_wants_no_default_is_refused():
    async with cooperative(100) as w:
        (part,) = (await w.member("m").asks({0: WHOLE}, auto_offset_reset="none")).partitions

        assert part.error is ErrorCode.OFFSET_OUT_OF_RANGE
        assert await w.stored() == []


async def test_a_group_that_is_given_away_while_a_partition_begins_writes_nothing_over_what_others_wrote_since():
    async with cooperative(100) as w:
        bounds, asked, gate = w.storage.bounds, asyncio.Event(), asyncio.Event()

        async def late(*args):
            asked.set()
            await gate.wait()
            return await bounds(*args)

        w.storage.bounds = late
        asking = asyncio.ensure_future(w.member("m").asks({0: WHOLE}))
        await asked.wait()
        w.server._cooperative_groups.lay_down(lambda _: True)
        gate.set()
        (part,) = (await asking).partitions

        assert part.error is ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert await w.stored() == []


async def test_a_group_begins_at_records_not_older_than_a_duration():
    async with cooperative(0) as w:
        now_ms = w.clock.now_ms()
        for hours in (3, 2, 1):
            await w.produce(batch(10, timestamp_ms=now_ms - hours * 3_600_000))

        assert (await w.member("m").hold(WHOLE, auto_offset_reset="by_duration:PT2H30M")).stable == 10


@pytest.mark.parametrize("policy", ["", "newest", "by_duration:an hour"])
async def test_a_beginning_that_does_not_exist_is_refused(policy):
    async with cooperative() as w:
        (part,) = (await w.member("m").asks({0: WHOLE}, auto_offset_reset=policy)).partitions

        assert part.error in (ErrorCode.INVALID_REQUEST, ErrorCode.INVALID_CONFIG)
        assert part.message


async def test_a_group_goes_on_where_ordinary_consumers_stopped():
    async with cooperative(100) as w:
        await w.set_offset(40)

        assert (await w.member("m").hold(WHOLE)).stable == 40
        assert (await w.offset())[1].startswith("flowshare cooperative E=")


async def test_a_committed_offset_behind_the_log_counts_for_nothing():
    async with cooperative(100) as w:
        await w.set_offset(400)

        assert (await w.member("m").hold(WHOLE, auto_offset_reset="latest")).stable == 100


# --- somebody sets it -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("restarts", [False, True], ids=["loaded", "after a restart"])
async def test_an_administrators_reset_is_where_the_group_begins_anew(restarts):  # 23
    async with cooperative(100) as w:
        m = w.member("m")
        await m.hold(WHOLE)
        await m.commit((0, 50), (60, 70))
        epoch = m.epochs[0]
        await m.leaves()
        await w.set_offset(20)
        if restarts:
            await w.restart()
            w.again(m)

        part = await m.hold(WHOLE)

        assert (part.stable, part.count, part.reset_epoch > epoch) == (20, 0, True)
        assert await w.offset() == (20, stable_metadata(part.reset_epoch, part.topic_id))


async def test_a_reset_while_somebody_holds_something_waits_until_nobody_does():
    async with cooperative(100) as w:
        m = w.member("m")
        await m.hold(WHOLE)
        await m.commit((0, 50))
        await w.set_offset(20)

        assert await m.commit((50, 60)) == (60, 0, 60)
        assert await w.offset() == (20, "")
        assert (await m.hold(WHOLE)).stable == 60
        await w.clock.advance(LEASE_MS / 1000)
        assert (await m.hold(WHOLE)).stable == 20


async def test_a_reset_is_followed_once_though_the_state_is_being_written_meanwhile():
    async with cooperative(100) as w:
        m, held = w.member("m"), asyncio.Event()
        await m.hold(WHOLE)
        await m.commit((0, 50))
        await w.set_offset(20)
        w.storage.before_write = held.wait
        leaving = asyncio.ensure_future(m.leaves())
        await settle()
        again = asyncio.ensure_future(w.member("n").hold(WHOLE))
        await settle()
        held.set()
        await leaving
        first = await again

        assert first.stable == 20
        assert await w.offset() == (20, stable_metadata(first.reset_epoch, first.topic_id))
        await w.clock.advance(LEASE_MS / 1000)
        assert (await m.hold(WHOLE)).reset_epoch == first.reset_epoch


async def test_a_reset_is_seen_once():
    async with cooperative(100) as w:
        m = w.member("m")
        await m.hold(WHOLE)
        await m.leaves()
        await w.set_offset(20)
        await m.hold(WHOLE)
        await m.commit((20, 30))
        await m.leaves()

        assert (await m.hold(WHOLE)).stable == 30


async def test_flowshares_own_reset_counts_more_than_what_was_set_before():
    async with cooperative(100) as w:
        m = w.member("m")
        await m.hold(WHOLE)
        await m.leaves()
        await w.set_offset(20)
        await w.reset(70)

        assert (await w.offset())[0] == 70
        assert (await m.hold(WHOLE)).stable == 70


# --- what goes with it ------------------------------------------------------------------------------------------------


async def test_a_group_that_is_deleted_leaves_nothing_behind():  # 24
    async with cooperative(100) as w:
        m = w.member("m")
        await m.hold(WHOLE)
        await m.commit((0, 50), (60, 70))

        assert await delete(w) is NONE
        assert await w.stored() == []
        assert (await m.commits(m.entry((70, 80)))).error is ErrorCode.FENCED_STATE_EPOCH
        assert await w.told() is None


@pytest.mark.parametrize("restarts", [False, True], ids=["at once", "after a restart"])
async def test_a_group_name_that_is_used_again_begins_clean(restarts):  # 24
    async with cooperative(100) as w:
        m = w.member("m")
        await m.hold(WHOLE)
        await m.commit((0, 50), (60, 70))
        epoch = m.epochs[0]
        await delete(w)
        if restarts:
            await w.clock.advance(0.001)
            await w.restart()
            w.again(m)

        part = await m.hold(WHOLE)

        assert (part.stable, part.count, part.reset_epoch > epoch) == (0, 0, True)
        assert await w.state() == (0, [])


async def test_a_group_that_is_deleted_while_others_come_back_to_it_is_one_or_the_other():  # 24
    async with cooperative(100) as w:
        m = w.member("m")
        await m.hold(WHOLE)
        await m.commit((0, 50), (60, 70))
        await m.leaves()

        deleted, answer = await asyncio.gather(delete(w), m.asks({0: WHOLE}))
        await settle()
        state = await w.told()

        assert deleted is NONE
        (part,) = answer.partitions
        if part.error is NONE:
            assert (state.stable, state.count) == (part.stable, part.count)
        else:
            assert state is None
        await w.restart()
        assert (await w.again(m).hold(WHOLE)).stable in (0, 50)


async def test_state_that_was_left_over_is_not_taken_for_a_groups_own():  # 24
    async with cooperative(100) as w:
        m = w.member("m")
        await m.hold(WHOLE)
        await m.commit((0, 50), (60, 70))
        left = await w.storage.scan(b"k/")
        await delete(w)
        await w.storage.write(left)

        assert (await m.hold(WHOLE)).stable == 0
        assert await w.state() == (0, [])


async def test_a_partition_whose_offset_is_deleted_begins_anew():
    async with cooperative(100, partitions=2) as w:
        m = w.member("m")
        await m.asks({0: WHOLE, 1: WHOLE})
        await m.commit((0, 50), at=0)
        await m.commit((0, 50), at=1)
        await m.leaves()
        await w.admin.send(OffsetDeleteRequest(group_id="g", partitions=(("t", 0),)))

        answer = await m.asks({0: WHOLE, 1: WHOLE})

        assert [part.stable for part in answer.partitions] == [0, 50]


async def test_a_topic_that_is_deleted_takes_its_state_along():
    async with cooperative(100) as w:
        m = w.member("m")
        await m.hold(WHOLE)
        await m.commit((0, 50))
        await w.admin.send(DeleteTopicRequest(name="t"))

        assert await w.stored() == []
        m.topic_id = await w.topic()
        assert (await m.hold(WHOLE)).stable == 0


async def test_offsets_that_expire_take_the_state_along():
    async with cooperative(100, classic=SWEEP) as w:
        m = w.member("m")
        await m.hold(WHOLE)
        await m.commit((0, 50), (60, 70))
        await m.leaves()
        await w.clock.advance(59)
        await settle()
        kept = await w.stored()
        for _ in range(4):
            await w.clock.advance(1)
            await settle()

        assert kept
        assert (await w.stored(), await w.offset()) == ([], (-1, ""))


async def test_a_share_group_cannot_be_cooperative():
    async with cooperative() as w:
        await w.server.connect(client_id="s").send(
            ShareGroupHeartbeatRequest(group_id="g", member_id="s", member_epoch=0, subscribed_topics=("t",))
        )

        answer = await w.member("m").asks({0: WHOLE})

        assert answer.error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL


# --- the topic was made anew ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("begun", [False, True], ids=["nobody has begun", "begun"])
@pytest.mark.parametrize("restarts", [False, True], ids=["loaded", "after a restart"])
async def test_a_stable_offset_of_the_topic_that_had_the_name_before_hides_no_record(restarts, begun):
    async with cooperative(100) as w:
        old, m = w.topic_id, w.member("m")
        await m.hold(WHOLE)
        await m.commit((0, 50))
        late = stable_metadata(m.epochs[0], old)
        await w.remake_topic(100)
        n = w.member("n")
        if begun:
            await n.hold(WHOLE)
            await n.commit((0, 3), (7, 9))
            await n.leaves()
        await w.set_offset(50, metadata=late)
        if restarts:
            await w.restart()
            w.again(n)

        part = await n.hold(WHOLE)

        assert (part.stable, part.count) == ((3, 1) if begun else (0, 0))
        assert await n.commit((part.stable, 6)) == (6, 1 if begun else 0, 9 if begun else 6)
        assert await w.offset() == (6, stable_metadata(part.reset_epoch, part.topic_id))


async def test_nothing_of_a_topic_that_is_gone_is_kept_or_committed():
    async with cooperative(100) as w:
        m = w.member("m")
        await m.hold(WHOLE)
        late = m.entry((0, 50))
        await w.remake_topic(100)

        assert await w.stored() == []
        assert (await m.commits(late)).error is ErrorCode.UNKNOWN_TOPIC_ID
        assert (await w.member("n").hold(WHOLE)).stable == 0
        assert await w.state() == (0, [])
