"""Groups begin where consumer groups are, and are carried from one place to another."""

from __future__ import annotations

from contextlib import asynccontextmanager
from unittest.mock import AsyncMock

import pytest

from flowshare.client.admin.admin import ShareAdmin
from flowshare.client.admin.moving import carry, plan_move
from flowshare.client.admin.seeding import Seed, plan_seeds
from flowshare.client.errors import ClientError, ServerError, Unsupported
from flowshare.client.net.tcp import open_tcp
from flowshare.client.session.member import ShareMember
from flowshare.client.settings import LinkSettings
from flowshare.clock import LoopClock
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.messages import OffsetCommitRequest, OffsetToCommit
from flowshare.server.net.listener import Listener
from flowshare.share.types import AckRange
from tests.client.sockets import raw_call
from tests.client.worlds import world_on

pytestmark = pytest.mark.asyncio
ACCEPT, RELEASE = b"\1", b"\2"


@asynccontextmanager
async def two_places(partitions=1, records=10):
    """Two servers with the same topic; the records lie one a batch, as what one record is finished by itself."""
    clock = LoopClock()
    async with world_on(clock, partitions) as here, world_on(clock, partitions) as there:
        for world in (here, there):
            for number in range(records):
                await world.send(b"%d" % number)
        yield here, there


async def work(world, *finished):
    """A member of `g` that finishes some of what it got, gives the rest back and leaves."""
    member = ShareMember(world.connect, group_id="g", topics=["orders"], clock=world.clock)
    await member.start()
    fetched, got = [], 0
    while got < 10:
        for one in await member.fetch(records_max=10, max_wait_s=0.5):
            fetched.append(one)
            got += sum(run.last - run.first + 1 for run in one.acquired)
    for one in fetched:
        acks = tuple(
            AckRange(number, number, ACCEPT if number in finished else RELEASE)
            for run in one.acquired
            for number in range(run.first, run.last + 1)
        )
        await member.acknowledge({one.tp: acks}, generation=one.generation)
    await member.close()


async def test_offsets_go_along_with_what_is_finished_behind_them_and_with_the_settings():
    async with two_places() as (here, there):
        await here.admin.alter_group_configs("g", {"share.record.lock.duration.ms": "20000"})
        await there.admin.alter_group_configs("g", {"share.auto.offset.reset": None})
        await work(here, 0, 1, 4, 5, 8)

        plan = await plan_move(here.admin, there.admin, "g", ranges=True)
        mark = AsyncMock()
        await carry(here.admin, there.admin, plan, keep=False, mark=mark)

        (move,) = plan.moves
        assert (move.start, move.finished, move.again) == (2, ((4, 5), (8, 8)), 0)
        assert plan.settings == {"share.auto.offset.reset": "earliest", "share.record.lock.duration.ms": "20000"}
        (part,) = await there.admin.group_offsets("g")
        assert (part.start_offset, part.lag) == (2, 5)
        assert [group.group_id for group in await here.admin.list_groups()] == []
        mark.assert_awaited_once()


async def test_to_a_place_that_takes_start_offsets_only_it_is_said_what_runs_again_and_the_group_can_be_kept():
    async with two_places() as (here, there):
        await work(here, 0, 1, 4, 5, 8)

        plan = await plan_move(here.admin, there.admin, "g", ranges=False)
        mark = AsyncMock()
        await carry(here.admin, there.admin, plan, keep=True, mark=mark)

        assert (plan.again, plan.reason) == (3, "brokers take start offsets only")
        assert [(part.start_offset, part.lag) for part in await there.admin.group_offsets("g")] == [(2, 8)]
        assert [group.group_id for group in await here.admin.list_groups()] == ["g"]
        mark.assert_awaited_once()


async def test_a_group_with_members_and_one_that_is_there_already_are_not_moved():
    async with two_places() as (here, there):
        await work(here)
        await there.admin.place_group("g", {("orders", 0): 1})
        with pytest.raises(ClientError, match="there is a group g already"):
            await plan_move(here.admin, there.admin, "g", ranges=True)

        member = ShareMember(here.connect, group_id="g", topics=["orders"], clock=here.clock)
        await member.start()
        with pytest.raises(ClientError, match="1 members"):
            await plan_move(here.admin, None, "g", ranges=True)
        await member.close()

        with pytest.raises(ServerError) as refused:
            await plan_move(here.admin, None, "none", ranges=True)
        assert refused.value.code is ErrorCode.GROUP_ID_NOT_FOUND


async def test_without_the_right_to_see_what_is_finished_it_is_said_what_runs_again(monkeypatch):
    async def refused(*_):
        raise ServerError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, None, about="state")

    async with two_places() as (here, there):
        await work(here, 0, 1, 4, 5, 8)
        monkeypatch.setattr(here.admin, "finished_ranges", refused)

        plan = await plan_move(here.admin, there.admin, "g", ranges=True)

        assert plan.again == 3
        assert "CLUSTER_ACTION" in plan.reason


@pytest.mark.slow
async def test_finished_ranges_cross_a_socket_and_only_to_flowshares_own_servers():
    async with two_places() as (here, _):
        listener = Listener(here.server, clock=here.clock)
        host, port = await listener.start("127.0.0.1", 0)
        line = await open_tcp(host, port, client_id="t", clock=here.clock, settings=LinkSettings())

        async def connect():
            return line

        admin = ShareAdmin(connect, clock=here.clock)
        await admin.place_group("far", {("orders", 0): 1}, {("orders", 0): [(3, 4)]})
        assert [(part.start_offset, part.lag) for part in await here.admin.group_offsets("far")] == [(1, 7)]
        with pytest.raises(ServerError) as refused:
            await admin.place_group("far", {("none", 0): 1}, {("none", 0): [(3, 4)]})
        assert refused.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        offsets = [[["orders", 0], 1]]
        for nonsense in ({"offsets": {"x": 1}}, {"offsets": offsets, "finished": [[["orders", 0], [[5, 4]]]]}):
            with pytest.raises(ServerError) as wrong:
                await raw_call(line, "share_place", group_id="far", **nonsense)
            assert wrong.value.code is ErrorCode.INVALID_REQUEST

        line.is_flowshare = False
        with pytest.raises(Unsupported):
            await admin.place_group("far", {("orders", 0): 1}, {("orders", 0): [(3, 4)]})
        await admin.close()
        await line.close()
        await listener.close()


async def test_a_share_group_begins_where_a_consumer_group_is_and_says_what_it_cannot_take():
    async with two_places(partitions=4) as (here, _):
        for partition in range(4):
            await here.send(*(b"x" for _ in range(5)), partition=partition)
        await here.admin.delete_records("orders", 1, 3)
        committed = [OffsetToCommit("orders", 0, 4), OffsetToCommit("orders", 1, 2), OffsetToCommit("orders", 2, 99)]
        connection = await here.connect()
        answer = await connection.send(OffsetCommitRequest(group_id="etl", offsets=tuple(committed)))
        assert all(not part.error for part in answer.partitions), answer
        end = await here.admin.log_end("orders", 2)

        plan = await plan_seeds(here.admin, "etl")

        assert [seed[:4] for seed in plan.seeds] == [
            ("orders", 0, 4, 4),
            ("orders", 1, 2, 3),
            ("orders", 2, 99, end),
            ("orders", 3, -1, 0),
        ]
        assert plan.seeds[0] == Seed("orders", 0, 4, 4)
        assert ["start" in seed.note or "end" in seed.note for seed in plan.seeds] == [False, True, True, True]
        await connection.close()


async def test_a_consumer_group_that_committed_nothing_is_refused():
    async with two_places() as (here, _):
        with pytest.raises(ClientError, match="etl has committed nothing;"):
            await plan_seeds(here.admin, "etl")
        with pytest.raises(ClientError, match="nothing in orders"):
            await plan_seeds(here.admin, "etl", ["orders"])
