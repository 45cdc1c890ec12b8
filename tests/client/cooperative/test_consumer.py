"""Consumers of a cooperative group on a server in memory, on virtual time. Numbers in brackets: scenarios of the
reference (queue-systems, §5.6)."""

from __future__ import annotations

from flowshare.testing import run
from tests.client.cooperative.worlds import coop_world


def test_one_consumer_gets_all_records_and_commits_them() -> None:
    async def story() -> None:
        async with coop_world() as world:
            await world.send(50)
            world.worker("a")
            await world.until(lambda: len(world.runs) == 50)
            await world.until(lambda: world.stable() == 50)
            world.check_order()

    run(story())


def test_two_consumers_share_one_partition_by_keys() -> None:
    async def story() -> None:
        async with coop_world() as world:
            await world.send(100, keys=40)
            world.worker("a")
            world.worker("b")
            await world.until(lambda: world.stable() == 100)
            await world.send(100, keys=40, first=100)
            await world.until(lambda: world.stable() == 200)
            assert all(len(runs) == 1 for runs in world.handled().values())
            assert {one.member for one in world.runs if one.offset >= 100} == {"a", "b"}
            world.check_order()

    run(story())
