"""Fleets that share a Kafka, and nothing else."""

from __future__ import annotations

import asyncio

import pytest

from flowshare.client.errors import ServerError
from flowshare.testing.clock import LoopTimeClock
from flowshare.testing.virtual import run
from tests.fleet.test_worker import accept, take
from tests.fleet.world import EARLIEST, Fleet


def virtually(scenario):
    """Run a scenario that takes a clock on virtual time."""
    return run(scenario(LoopTimeClock()))


def both(clock):
    """Two fleets on one Kafka."""
    shop = Fleet(clock, workers=2, name="shop")
    return shop, Fleet(clock, workers=2, name="shop.two", slots=8, beside=shop)


async def taken(fleet, group, count):
    """Records that a member of a group takes, and accepts."""
    await fleet.configure(group, **EARLIEST)
    member = fleet.member("orders", group=group)
    await member.start()
    async with asyncio.timeout(60):
        got, fetched = await take(member, count)
    await accept(member, fetched)
    return sorted(got)


def test_two_fleets_on_one_cluster_do_not_touch_each_other():
    async def scenario(clock):
        shop, other = both(clock)
        async with shop, other:
            await shop.topic("orders", 4)
            for partition in range(4):
                await shop.produce("orders", b"a", partition=partition)
            all_of_them = [(partition, 0) for partition in range(4)]

            assert await taken(shop, "g", 4) == all_of_them
            assert await taken(other, "h", 4) == all_of_them
            await shop.leader("orders", 0).kill()
            await shop.settled()

            assert other.served() == list(range(8))
            assert all(len(machine.worker.directory.nodes) == 2 for machine in other.machines)

    virtually(scenario)


def test_a_group_of_one_fleet_is_refused_by_another():
    async def scenario(clock):
        shop, other = both(clock)
        async with shop, other:
            await shop.topic("orders", 1)
            await shop.produce("orders", b"a")
            await taken(shop, "g", 1)

            member = other.member("orders", group="g")
            with pytest.raises(ServerError, match="belongs to the fleet 'shop' on this Kafka: start its workers with"):
                await member.start()

    virtually(scenario)


def test_a_group_is_not_refused_for_a_fleet_that_says_nothing():
    async def scenario(clock):
        shop, other = both(clock)
        async with shop, other:
            await shop.topic("orders", 1)
            await shop.produce("orders", b"a")
            await taken(shop, "g", 1)
            for machine in shop.machines:
                await machine.kill()

            assert await taken(other, "g", 1) == [(0, 0)]

    virtually(scenario)
