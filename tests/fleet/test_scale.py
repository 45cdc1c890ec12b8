"""Large fleets: balance, and how little moves or is said when workers and members come and go."""

from __future__ import annotations

from collections import Counter

import pytest

from flowshare.fleet.messages import HandOver, SlotClaimed
from flowshare.protocol.messages import DescribeGroupRequest, HeartbeatRequest, JoinGroupRequest, SyncGroupRequest
from flowshare.testing.clock import LoopTimeClock
from flowshare.testing.virtual import run
from tests.fleet.scale import GroupRun, SlotFleet
from tests.fleet.world import Fleet

SLOTS = 16


def virtually(scenario):
    """Run a scenario that takes a clock on virtual time."""
    return run(scenario(LoopTimeClock()))


def balanced(owners, nodes):
    """True if no worker leads two slots more than another."""
    counts = Counter(dict.fromkeys(nodes, 0))
    counts.update(owners.values())
    return max(counts.values()) - min(counts.values()) <= 1


def moved(before, after):
    """How many slots have another leader."""
    return sum(after[slot] != node for slot, node in before.items())


def nodes_of(fleet):
    """Node ids of the living."""
    return [worker.place.node_id for worker in fleet.living]


@pytest.mark.slow
@pytest.mark.parametrize("workers", [5, 24])
def test_slots_are_balanced_and_only_those_of_who_comes_or_goes_move(workers):
    async def scenario(clock):
        async with SlotFleet(clock, workers=workers, slots=SLOTS) as fleet:
            share = -(-SLOTS // workers)
            for step in (fleet.add, fleet.workers[0].leave, fleet.workers[1].kill):
                before = fleet.served()
                assert balanced(before, nodes_of(fleet))
                fleet.calls.clear()

                await step()
                await fleet.settled()

                count = moved(before, fleet.served())
                assert count <= share
                assert fleet.calls[HandOver.own.name] <= count
                assert fleet.calls[SlotClaimed.own.name] <= count * len(fleet.workers)
            assert balanced(fleet.served(), nodes_of(fleet))

    virtually(scenario)


@pytest.mark.slow
def test_each_worker_joins_and_syncs_once_for_one_that_joins_and_reads_nothing_else():
    async def scenario(clock):
        async with SlotFleet(clock, workers=20, slots=SLOTS) as fleet:
            await clock.sleep(1.0)
            fleet.kafka.asked.clear()

            await fleet.add()
            await fleet.settled()

            asked = fleet.kafka.asked
            assert asked[JoinGroupRequest] == asked[SyncGroupRequest] == 21
            assert asked[HeartbeatRequest] <= 2 * 21
            assert asked[DescribeGroupRequest] == 0

    virtually(scenario)


@pytest.mark.slow
def test_whole_workers_ask_the_slot_groups_coordinator_as_often_as_the_simulated_ones():
    async def whole(clock):
        async with Fleet(clock, workers=8, slots=8) as fleet:
            return await calm(clock, fleet)

    async def simulated(clock):
        async with SlotFleet(clock, workers=8, slots=8) as fleet:
            return await calm(clock, fleet)

    async def calm(clock, fleet):
        await clock.sleep(1.0)
        fleet.kafka.asked.clear()
        await clock.sleep(5.0)
        asked = fleet.kafka.asked
        return [asked[kind] for kind in (HeartbeatRequest, JoinGroupRequest, SyncGroupRequest, DescribeGroupRequest)]

    assert virtually(whole) == virtually(simulated) == [80, 0, 0, 0]


@pytest.mark.slow
@pytest.mark.parametrize("members", [8, 50])
def test_a_member_that_joins_or_leaves_moves_its_own_share_and_has_the_group_written_a_few_times(members):
    group = GroupRun(members=members, topics=5, partitions=100)
    group.beat_all()
    share = -(-500 // members)

    for act in (lambda: group.join(members), lambda: group.leave(0)):
        group.moves = group.writes = 0
        act()
        group.beat_all()
        group.beat_all()

        sizes = group.shares()
        assert max(sizes) - min(sizes) <= 1
        assert group.moves <= share + 1
        assert group.writes <= 8
