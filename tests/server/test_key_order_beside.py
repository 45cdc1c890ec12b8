"""Groups with an order by key: what is kept apart because its process died with it, and how far."""

from __future__ import annotations

import pytest

from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.messages import CreatePartitionsRequest
from flowshare.testing.clock import settle
from tests.server.test_key_order import BY_KEY, keyed, taken
from tests.server.world import accept, world

pytestmark = pytest.mark.asyncio


async def test_a_record_that_killed_its_process_twice_comes_alone_and_others_go_on() -> None:
    async with world(configs=BY_KEY) as w:
        at = await w.log(keyed("ab"))
        for name in ("m", "n"):
            dies = w.member(name)
            assert len(taken(await dies.fetch(at))) > 0
            await dies.connection.close()
            await settle()
            await w.clock.advance(31)
        await w.produce(keyed("cabd"))
        alone, beside = w.member("o"), w.member("p")
        first = taken(await alone.fetch(at))
        second = taken(await beside.fetch(at))
        third = taken(await w.member("q").fetch(at))
        bound = taken(await alone.fetch())
        await alone.acknowledge({at: [accept(0)]})
        after = taken(await alone.fetch())

    assert (first, second) == ([(0, 0, 3)], [(1, 1, 3)])
    assert third == [(2, 2, 1), (5, 5, 1)]
    assert bound == []
    assert after == [(3, 3, 1)]


async def test_partitions_are_added_to_a_topic_that_is_read_in_the_order_of_keys_only_when_told_to() -> None:
    async with world(configs=BY_KEY) as w:
        at = await w.log(keyed("ab"))
        await w.member("m").fetch(at)
        refused = await w.admin.send(CreatePartitionsRequest(name="t", total=2))
        tried = await w.admin.send(CreatePartitionsRequest(name="t", total=2, validate_only=True))
        told = await w.admin.send(CreatePartitionsRequest(name="t", total=2, breaks_order=True))

        assert [one.error for one in (refused, tried, told)] == [
            ErrorCode.POLICY_VIOLATION,
            ErrorCode.POLICY_VIOLATION,
            ErrorCode.NONE,
        ]
        assert "in the order of keys by g " in refused.message
        assert "flowshare topics grow t --partitions 2 --breaks-order" in refused.message
        assert w.storage.topics()["t"].partitions == 2


async def test_a_member_that_has_read_nothing_yet_keeps_partitions_from_being_added_too() -> None:
    async with world(configs=BY_KEY) as w:
        await w.topic("t")
        await w.topic("other")
        await w.member("m").heartbeat("t", epoch=0)
        refused = await w.admin.send(CreatePartitionsRequest(name="t", total=2))
        other = await w.admin.send(CreatePartitionsRequest(name="other", total=2))

    assert [one.error for one in (refused, other)] == [ErrorCode.POLICY_VIOLATION, ErrorCode.NONE]


async def test_groups_without_an_order_keep_no_partitions_from_being_added() -> None:
    async with world() as w:
        await w.member("m").fetch(await w.log(keyed("ab")))
        grown = await w.admin.send(CreatePartitionsRequest(name="t", total=2))

    assert grown.error is ErrorCode.NONE
