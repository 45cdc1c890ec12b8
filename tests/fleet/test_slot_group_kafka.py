"""The slot group at real Kafkas, with processes that freeze and die, and what Kafka's own tool shows of it."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import asynccontextmanager

import pytest

from flowshare.client.net.cluster import Cluster
from flowshare.clock import LoopClock
from flowshare.fleet.inspection import describe_fleet
from flowshare.fleet.slot_group import SlotGroupSettings
from flowshare.protocol import messages as m
from tests.fleet.slot_groups import Member, agreed, members, same_map
from tests.interop.toolbox import Toolbox
from tests.waiting import pause

pytestmark = [pytest.mark.asyncio, pytest.mark.java]
SETTINGS = SlotGroupSettings(session_s=3.0, heartbeat_s=0.1, rebalance_s=2.0, margin_s=0.5)


@pytest.fixture(scope="module")
def toolbox():
    box = Toolbox()
    yield box
    box.close()


@asynccontextmanager
async def fleet(broker, topic, *numbers, slots=8, settings=SETTINGS):
    """A state topic and members of the fleet, started and agreed."""
    clock = LoopClock()

    def connect():
        return Cluster(broker.addresses, clock=clock)

    maker = connect()
    await maker.start()
    kafka = maker.connect("maker")
    try:
        made = await kafka.send(m.CreateTopicRequest(name=topic, partitions=slots))
        assert made.error == 0
        async with members(connect, clock, *numbers, topic=topic, slots=slots, settings=settings) as found:
            await asyncio.gather(*(member.start() for member in found))
            await agreed(clock, *found)
            yield clock, kafka, found
    finally:
        await kafka.close()
        await maker.close()


async def test_workers_come_and_go(each_kafka, unique):
    topic = unique("__flowshare_state.orders")
    async with fleet(each_kafka, topic, 1, 2, 3) as (clock, kafka, (one, two, three)):
        assert sorted(len(member.mine) for member in (one, two, three)) == [2, 3, 3]
        seen = await describe_fleet(kafka, topic.removeprefix("__flowshare_state."))
        assert seen.owners == one.map.owners
        assert seen.nodes == one.map.nodes

        await three.group.leave()
        await agreed(clock, one, two)
        assert sorted(len(member.mine) for member in (one, two)) == [4, 4]

        await two.die()
        await agreed(clock, one)
        assert one.mine == tuple(range(8))
        assert one.doubts == [False]


async def test_who_comes_back_within_its_session_keeps_its_slots(each_kafka, unique):
    topic = unique("__flowshare_state.orders")
    async with fleet(each_kafka, topic, 1, 2, 3) as (clock, _, found):
        for number, dead in enumerate(found, 4):  # one of them is the group's leader
            others = [member for member in found if member is not dead and member.group._task is not None]
            before = dead.mine
            await dead.die()
            again = Member(
                dead.cluster,
                clock,
                number,
                instance=f"worker-{dead.number}",
                cached=before,
                topic=topic,
                settings=SETTINGS,
            )
            found[found.index(dead)] = again
            await again.start()
            await agreed(clock, again, *others)

            assert again.mine == before
            assert others[0].map.nodes[again.map.node_id] == (f"10.0.0.{number}", 9_000 + number)
            assert not others[0].doubts.count(True)


async def test_kafkas_own_tool_shows_who_has_which_slot(each_kafka, unique, toolbox):
    topic = unique("__flowshare_state.orders")
    async with fleet(each_kafka, topic, 1, 2) as (_, _, found):
        told = await asyncio.to_thread(
            toolbox, "kafka-consumer-groups", "--bootstrap-server", each_kafka.bootstrap, "--describe",
            "--members", "--verbose", "--group", topic,
        )  # fmt: skip

        assert told.code == 0, told.err
        shown = {row[2]: row for row in told.rows[1:]}
        for member in found:
            slots = ",".join(str(slot) for slot in member.mine)
            assert f"{topic}:{slots}" in shown[f"worker-{member.number}"]


async def test_a_frozen_worker_is_not_sure_of_itself_when_it_goes_on(each_kafka, unique):
    topic = unique("__flowshare_state.orders")
    async with fleet(each_kafka, topic, 1, 2) as (clock, _, (one, two)):
        await one.die()  # from here on its loop does nothing for it, as if the process were frozen
        assert one.group.sure
        await agreed(clock, two)

        assert not one.group.sure


@pytest.mark.parametrize("hit", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "frozen"])
async def test_a_coordinator_that_is_lost_costs_neither_slots_nor_the_lease(mortal_pair, unique, hit):
    clock = LoopClock()
    finder = Cluster(mortal_pair.addresses, clock=clock)
    await finder.start()
    names = (unique(f"__flowshare_state.{number}") for number in range(1_000))
    topic = await anext(name async for name in on_second_node(finder, names))
    await finder.close()
    async with fleet(mortal_pair, topic, 1, 2, settings=SlotGroupSettings()) as (clock, _, found):
        second = mortal_pair.processes[1].pid
        os.kill(second, hit)
        await pause(9, "longer than a session")
        try:
            assert [member.doubts for member in found] == [[False], [False]]
            assert same_map(found)
            assert all(member.group.sure for member in found)
        finally:
            os.kill(second, signal.SIGKILL)


async def on_second_node(cluster, names):
    """Those names whose group node 2 coordinates."""
    for name in names:
        while (node := await cluster.coordinator(name)) < 0:
            await cluster.clock.sleep(0.1)
        if node == 2:
            yield name
