"""Tests of a server's answers to tools about cooperative groups, and of the acts that tools may do."""

from __future__ import annotations

import pytest

from flowshare.client.admin.admin import ShareAdmin
from flowshare.cooperative.types import HASHES
from flowshare.ops.reading import partitions
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.messages import CooperativeDeleteRequest, ListGroupsRequest
from tests.server.cooperative.world import LEASE_MS, LOWER, NONE, UPPER, WHOLE, cooperative


@pytest.mark.asyncio
async def test_the_backlog_is_what_is_not_committed_up_to_the_logs_end():
    async with cooperative(100) as world:
        a = world.member("a")
        await a.hold(WHOLE)
        assert (await world.told()).unfinished == 100
        await a.commit((0, 10), (20, 30), (40, 41))

        told = await world.told()
        assert (told.stable, told.unfinished) == (10, 100 - 10 - 10 - 1)

        async def connect():
            return world.server.connect(client_id="tool", host="10.0.0.1")

        admin = ShareAdmin(connect, clock=world.clock)
        (row,) = await partitions(admin, {"g": "cooperative"}, world.clock.now_ms())
        assert (row.group, row.start_offset, row.backlog, row.finished) == ("g", 10, 79, 21)
        assert (row.committed_ranges, row.furthest, row.span) == (2, 41, 31)
        assert (row.held_keys, row.holders, row.in_flight) == (1.0, 1, None)
        await admin.close()


@pytest.mark.asyncio
async def test_who_waits_for_whom_is_told_and_since_when():
    async with cooperative(10) as world:
        a, b = world.member("a"), world.member("b")
        await a.hold(LOWER)
        b.generation = 2
        await b.hold(WHOLE)
        await world.clock.advance(3.0)

        told = await world.told()
        assert told.waits == ((0, HASHES // 2, "b", "a", 3_000),)
        assert (told.blocked, told.overlaps) == (1, 0)

        await b.hold(WHOLE, mode="available", drain_timeout_ms=2_000)
        told = await world.told()
        assert (told.waits, told.overlaps) == ((), 1)
        await world.clock.advance(LEASE_MS / 1000 + 1)
        told = await world.told()
        assert (told.claims, told.lapsed) == ((), 1)


@pytest.mark.asyncio
async def test_cooperative_groups_are_listed_to_who_asks_for_that_type_alone():
    async with cooperative(10) as world:
        await world.member("a").hold(LOWER)
        await world.member("b", group="h").hold(UPPER)

        answer = await world.admin.send(ListGroupsRequest(types=("Cooperative",)))
        assert [(one.group_id, one.type, one.protocol_type) for one in answer.groups] == [
            ("g", "cooperative", "consumer"),
            ("h", "cooperative", "consumer"),
        ]
        others = await world.admin.send(ListGroupsRequest())
        assert {one.type for one in others.groups} == {"classic"}


@pytest.mark.asyncio
async def test_a_group_is_deleted_with_its_state_when_nobody_holds_anything():
    async with cooperative(10) as world:
        a = world.member("a")
        await a.hold(WHOLE)
        await a.commit((0, 3))
        refused = await world.admin.send(CooperativeDeleteRequest(group_id="g"))
        assert refused.error is ErrorCode.NON_EMPTY_GROUP
        assert "stop the group's workers" in refused.message

        await a.leaves()
        assert (await world.admin.send(CooperativeDeleteRequest(group_id="g"))).error is NONE
        assert await world.stored() == []
        assert await world.told() is None
        gone = await world.admin.send(CooperativeDeleteRequest(group_id="g"))
        assert gone.error is ErrorCode.GROUP_ID_NOT_FOUND
