"""Members that lived in the process of a worker which is gone: nobody waits long for them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from flowshare.fleet.slot_group import SlotGroupSettings
from flowshare.server.share.returning_members import OFTEN_MS, THREE_BEATS_MS
from tests.fleet.test_lost_records import until, virtually
from tests.fleet.test_worker import accept, take
from tests.fleet.world import Fleet

LIMIT_S = SlotGroupSettings().session_s + THREE_BEATS_MS / 1000 + 1
"""The slot group notices, the member has its time, the others hear of it; without, it would be 8.5 s and more."""


async def two_members(fleet, coordinates, partitions=2):
    """(the worker that will be gone, a member in its process, a member elsewhere); each has half of the partitions."""
    await fleet.topic("orders", partitions)
    await fleet.configure()
    home = fleet.coordinator("g")
    if not coordinates:
        home = next(one for one in fleet.machines if one is not home)
    first, second = fleet.member("orders", lives_at=home), fleet.member("orders")
    await first.start()
    await second.start()
    await until(fleet.clock, lambda: len(first.assignment) == len(second.assignment) == partitions // 2)
    return home, first, second


@pytest.mark.parametrize("coordinates", [True, False], ids=["coordinator", "another"])
@pytest.mark.parametrize("frozen", [False, True], ids=["dead", "frozen"])
def test_the_partitions_of_a_gone_workers_members_are_others_soon_after_the_slot_group_gave_it_up(coordinates, frozen):
    """The connections of a frozen process stay open."""

    async def scenario(clock):
        async with Fleet(clock, workers=3, slots=8) as fleet:
            home, first, second = await two_members(fleet, coordinates)
            at_s = clock.monotonic()

            if frozen:
                await first._membership.stop()
                home.connections = [one for one in home.connections if getattr(one, "client_id", None) != "member"]
            await home.kill()
            await until(clock, lambda: len(second.assignment) == 2, limit_s=30)

            assert clock.monotonic() - at_s < LIMIT_S

    virtually(scenario)


def test_a_member_that_was_given_up_and_joined_again_keeps_what_it_holds_when_its_leader_dies():
    async def scenario(clock):
        async with Fleet(clock, workers=3, slots=8) as fleet:
            home, first, second = await two_members(fleet, False, partitions=16)
            await first._membership.stop()
            for machine in fleet.machines:
                machine.worker._service.coordinator.workers_left(frozenset({home.worker.node_id}))
            await until(clock, lambda: len(second.assignment) == 16)
            await first._membership.join()
            await until(clock, lambda: len(first.assignment) == 8)
            led = {at.partition: fleet.leader("orders", at.partition) for at in first.assignment}
            partition = next(partition for partition, leader in led.items() if leader is not home)
            await fleet.produce("orders", b"a", partition=partition)
            _, fetched = await take(first, 1)

            await led[partition].kill()
            await fleet.settled()
            again = await second.fetch(records_max=10, max_wait_s=3)

            assert again == []
            assert first.holds(fetched[0].tp, fetched[0].generation)
            await accept(first, fetched)

    virtually(scenario)


def test_a_member_that_stops_leaves_its_partitions_to_the_others_within_two_heartbeats():
    async def scenario(clock):
        async with Fleet(clock, workers=3, slots=8) as fleet:
            _, first, second = await two_members(fleet, False)
            await fleet.produce("orders", b"a", partition=next(iter(first.assignment)).partition)
            _, fetched = await take(first, 1)
            at_s = clock.monotonic()

            first.unsubscribe()
            await until(clock, lambda: len(second.assignment) == 2)

            assert clock.monotonic() - at_s < 2 * OFTEN_MS / 1000
            assert first.holds(fetched[0].tp, fetched[0].generation)
            await accept(first, fetched)

    virtually(scenario)


def test_a_member_that_lives_keeps_what_it_has_when_its_worker_leaves_the_fleet_alone():
    async def scenario(clock):
        async with Fleet(clock, workers=2) as fleet:
            home, first, _ = await two_members(fleet, False)
            await fleet.produce("orders", b"a", partition=next(iter(first.assignment)).partition)
            _, fetched = await take(first, 1)

            directory = fleet.coordinator("g").worker.directory
            left = {node_id: at for node_id, at in directory.map.nodes.items() if node_id != home.worker.node_id}
            directory.agreed(replace(directory.map, nodes=left))
            await clock.sleep(THREE_BEATS_MS / 1000 + 2)

            assert len(first.assignment) == 1
            assert first.holds(fetched[0].tp, fetched[0].generation)
            await first.confirm()

    virtually(scenario)
