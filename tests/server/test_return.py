"""Members of other processes keep their records over the leader's end, for as long as they may take to come back."""

from __future__ import annotations

import pytest

from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.messages import ShareGroupDescribeRequest, TopicPartition
from flowshare.share.config import ServerConfig
from flowshare.testing.clock import settle
from tests.server.world import accept, ranges, world

pytestmark = pytest.mark.asyncio

GRACE_S = 3.0


def elsewhere(w, name: str, *, own: bool = True):
    """A member whose connection comes from another process."""
    member = w.member(name)
    member.connection = w.server.connect(client_id=name, host="127.0.0.1")
    member.connection.own = own
    return member


def again(w, member):
    """The same member, connected to the server of now."""
    member.connection = w.server.connect(client_id=member.member_id, host="127.0.0.1")
    member.connection.own = True
    member.epoch = 0
    return member


async def die(w) -> None:
    """End the leader as kill -9 does: nothing is released."""
    w.server._sessions.disconnected = lambda _: None
    await w.restart()


async def test_what_a_living_member_holds_stays_with_it_when_the_leader_dies() -> None:
    async with world() as w:
        at = TopicPartition(await w.topic(), 0)
        await w.produce(10)
        m1 = elsewhere(w, "m1")
        await m1.heartbeat("t", epoch=0)
        await m1.fetch(at)

        await die(w)
        again(w, m1)
        assert (await m1.heartbeat()).error is ErrorCode.NONE
        assert ranges(await m1.fetch(at)) == []
        done = await m1.acknowledge({at: [accept(0, 9)]})

        assert done.partitions[0].error is ErrorCode.NONE


async def test_what_a_member_held_that_does_not_come_back_is_given_to_others_after_the_grace() -> None:
    async with world() as w:
        at = TopicPartition(await w.topic(), 0)
        await w.produce(10)
        m1, m2 = elsewhere(w, "m1"), elsewhere(w, "m2")
        for member in (m1, m2):
            await member.heartbeat("t", epoch=0)
        await m1.fetch(at)

        await die(w)
        again(w, m2)
        await m2.heartbeat()
        assert ranges(await m2.fetch(at)) == []
        await w.clock.advance(GRACE_S)
        await settle()

        assert ranges(await m2.fetch(at)) == [(0, 9, 2)]
        groups = await w.admin.send(ShareGroupDescribeRequest(group_ids=("g",)))
        assert [member.member_id for member in groups.groups[0].members] == ["m2"]


async def test_a_leader_that_ends_in_order_takes_nothing_from_members_elsewhere() -> None:
    async with world() as w:
        at = TopicPartition(await w.topic(), 0)
        await w.produce(10)
        m1 = elsewhere(w, "m1")
        await m1.heartbeat("t", epoch=0)
        await m1.fetch(at)

        await w.restart()
        again(w, m1)
        await m1.heartbeat()
        await m1.fetch(at)

        assert (await m1.acknowledge({at: [accept(0, 9)]})).partitions[0].error is ErrorCode.NONE


async def test_without_a_grace_everything_is_given_to_others_as_by_kafka() -> None:
    async with world(config=ServerConfig.embedded({"group.share.return.grace.ms": "0"})) as w:
        at = TopicPartition(await w.topic(), 0)
        await w.produce(10)
        m1 = elsewhere(w, "m1")
        await m1.heartbeat("t", epoch=0)
        await m1.fetch(at)

        await die(w)
        m2 = elsewhere(w, "m2")
        await m2.heartbeat("t", epoch=0)

        assert ranges(await m2.fetch(at)) == [(0, 9, 2)]


@pytest.mark.parametrize(("own", "left"), [(True, []), (False, ["m1"])], ids=["flowshare's", "others'"])
async def test_a_member_whose_connection_broke_leaves_its_group_soon_if_it_is_flowshares_own(own, left) -> None:
    async with world() as w:
        await w.topic()
        m1 = elsewhere(w, "m1", own=own)
        await m1.heartbeat("t", epoch=0)

        await m1.connection.close()
        await w.clock.advance(GRACE_S)
        await settle()

        groups = await w.admin.send(ShareGroupDescribeRequest(group_ids=("g",)))
        assert [member.member_id for member in groups.groups[0].members] == left
