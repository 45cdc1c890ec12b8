"""Groups of a fleet that nobody uses any more expire, whoever leads their share-partitions (`share.retention.ms`)."""

from __future__ import annotations

import asyncio

import pytest

from flowshare.protocol import messages as m
from flowshare.testing.clock import LoopTimeClock
from flowshare.testing.virtual import run
from tests.fleet.test_worker import accept, take
from tests.fleet.world import EARLIEST, Fleet

HOUR_S = 3600.0


def virtually(scenario):
    """Run a scenario that takes a clock on virtual time."""
    return run(scenario(LoopTimeClock()))


async def idle_group(fleet, **settings):
    """A group that has read something of all partitions and has no members any more; the topic's id."""
    await fleet.topic("orders", 6)
    await fleet.configure(**EARLIEST, **settings)
    for partition in range(6):
        await fleet.produce("orders", b"a", partition=partition)
    member = fleet.member("orders")
    await member.start()
    async with asyncio.timeout(60):
        _, fetched = await take(member, 6)
    await accept(member, fetched)
    await member.close(timeout_s=1.0)
    topic_id = fleet.kafka.storage.topics()["orders"].topic_id
    assert len({key.rpartition(topic_id.bytes)[2][:4] for key in fleet.stored(topic_id)}) == 6
    return topic_id


async def groups(fleet):
    """Ids of all groups."""
    connection = fleet.connection()
    answer = await connection.send(m.ListGroupsRequest())
    await connection.close()
    return [group.group_id for group in answer.groups]


def test_a_group_is_kept_for_ever_unless_told_otherwise():
    async def scenario(clock):
        async with Fleet(clock, workers=3, slots=6) as fleet:
            topic_id = await idle_group(fleet)

            await clock.sleep(HOUR_S)

            assert await groups(fleet) == ["g"]
            assert fleet.stored(topic_id)

    virtually(scenario)


def test_an_idle_group_expires_on_all_workers_that_lead_its_share_partitions():
    async def scenario(clock):
        async with Fleet(clock, workers=3, slots=6) as fleet:
            topic_id = await idle_group(fleet, **{"share.retention.ms": "600000"})

            await clock.sleep(590)
            before = await groups(fleet), bool(fleet.stored(topic_id))
            await clock.sleep(30)

            assert before == (["g"], True)
            assert await groups(fleet) == []
            assert fleet.stored(topic_id) == []

    virtually(scenario)


@pytest.mark.parametrize("graceful", [True, False])
def test_the_time_of_an_idle_group_runs_on_when_its_coordinator_ends(graceful):
    async def scenario(clock):
        async with Fleet(clock, workers=3, slots=6) as fleet:
            topic_id = await idle_group(fleet, **{"share.retention.ms": "600000"})

            await clock.sleep(300)
            coordinator = fleet.coordinator("g")
            await (coordinator.stop() if graceful else coordinator.kill())
            await fleet.settled()
            await clock.sleep(250)
            before = await groups(fleet), bool(fleet.stored(topic_id))
            await clock.sleep(80)

            assert before == (["g"], True)
            assert await groups(fleet) == []
            assert fleet.stored(topic_id) == []

    virtually(scenario)


def test_an_idle_group_that_cannot_be_deleted_now_is_deleted_when_its_leaders_are_back():
    async def scenario(clock):
        async with Fleet(clock, workers=3, slots=6) as fleet:
            topic_id = await idle_group(fleet, **{"share.retention.ms": "600000"})

            await clock.sleep(590)
            coordinator = fleet.coordinator("g")
            for machine in fleet.machines:
                if machine is not coordinator:
                    await machine.kill()
            await clock.sleep(60)

            assert await groups(fleet) == []
            assert fleet.stored(topic_id) == []

    virtually(scenario)
