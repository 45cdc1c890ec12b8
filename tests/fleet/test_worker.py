"""Workers of a fleet share slots out, serve share groups, and survive each other."""

from __future__ import annotations

import logging

import pytest

from flowshare.fleet.worker import LEAVE_S
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.messages import (
    HeartbeatRequest,
    InitProducerIdRequest,
    LeaveGroupRequest,
    ShareGroupHeartbeatRequest,
)
from flowshare.share.types import AcknowledgeType, AckRange
from flowshare.slots.placement import group_slot
from flowshare.testing.clock import LoopTimeClock
from flowshare.testing.virtual import run
from tests.fleet.world import Fleet

ACCEPT = bytes([AcknowledgeType.ACCEPT])

GRACE_S = 8.0
"""group.share.return.grace.ms and a heartbeat's interval."""


def virtually(scenario):
    """Run a scenario that takes a clock on virtual time."""
    return run(scenario(LoopTimeClock()))


async def take(member, count):
    """Records until there are so many: (partition, offset) in order of arrival, and what came."""
    got, fetched = [], []
    while len(got) < count:
        for one in await member.fetch(records_max=100, max_wait_s=0.5):
            fetched.append(one)
            got += [(one.tp.partition, offset) for run_ in one.acquired for offset in range(run_.first, run_.last + 1)]
    return got, fetched


async def accept(member, fetched):
    """Accept all that was fetched."""
    for one in fetched:
        acks = {one.tp: tuple(AckRange(run_.first, run_.last, ACCEPT) for run_ in one.acquired)}
        for result in await member.acknowledge(acks, generation=one.generation):
            assert not result.error, result


def test_one_worker_claims_all_slots_and_delivers_records():
    async def scenario(clock):
        async with Fleet(clock, workers=1) as fleet:
            await fleet.topic("orders", 2)
            await fleet.produce("orders", b"a", b"b", partition=0)
            await fleet.produce("orders", b"c", partition=1)
            await fleet.configure()
            member = fleet.member("orders")
            await member.start()

            got, fetched = await take(member, 3)
            await accept(member, fetched)

            assert sorted(got) == [(0, 0), (0, 1), (1, 0)]

    virtually(scenario)


def test_workers_share_the_slots_out_and_a_member_gets_records_from_all_of_them():
    async def scenario(clock):
        async with Fleet(clock, workers=3, slots=6) as fleet:
            assert sorted(len(machine.worker.served) for machine in fleet.machines) == [2, 2, 2]
            await fleet.topic("orders", 6)
            for partition in range(6):
                await fleet.produce("orders", b"a", b"b", partition=partition)
            await fleet.configure()
            member = fleet.member("orders")
            await member.start()

            got, fetched = await take(member, 12)
            await accept(member, fetched)

            assert sorted(got) == [(partition, offset) for partition in range(6) for offset in range(2)]

    virtually(scenario)


def test_what_was_accepted_does_not_come_again_after_its_leader_was_killed():
    async def scenario(clock):
        async with Fleet(clock, workers=2) as fleet:
            await fleet.topic("orders", 1)
            await fleet.produce("orders", b"a", b"b")
            await fleet.configure()
            member = fleet.member("orders")
            await member.start()
            got, fetched = await take(member, 2)
            await accept(member, fetched)
            await fleet.produce("orders", b"c")

            await fleet.leader("orders", 0).kill()
            await fleet.settled()
            more, fetched = await take(member, 1)
            await accept(member, fetched)

            assert got + more == [(0, 0), (0, 1), (0, 2)]

    virtually(scenario)


@pytest.mark.parametrize("graceful", [True, False])
def test_what_a_member_works_on_stays_with_it_when_its_leader_ends(graceful):
    async def scenario(clock):
        async with Fleet(clock, workers=2) as fleet:
            await fleet.topic("orders", 1)
            await fleet.produce("orders", b"a", b"b")
            await fleet.configure()
            member, other = fleet.member("orders", member_id="m1"), fleet.member("orders", member_id="m2")
            await member.start()
            got, fetched = await take(member, 2)
            await other.start()

            leader = fleet.leader("orders", 0)
            await (leader.stop() if graceful else leader.kill())
            await fleet.settled()
            await fleet.produce("orders", b"c")
            await accept(member, fetched)
            both = [*await member.fetch(records_max=10, max_wait_s=5), *await other.fetch(records_max=10, max_wait_s=5)]

            assert got == [(0, 0), (0, 1)]
            assert [(run_.first, run_.last) for one in both for run_ in one.acquired] == [(2, 2)]

    virtually(scenario)


def test_a_member_that_has_not_heard_of_its_groups_new_coordinator_keeps_its_records_until_its_next_heartbeat():
    async def scenario(clock):
        async with Fleet(clock, workers=2) as fleet:
            await fleet.topic("orders", 1)
            await fleet.produce("orders", b"a", b"b")
            await fleet.configure()
            member, other = fleet.member("orders", member_id="m1"), fleet.member("orders", member_id="m2")
            await member.start()
            got, fetched = await take(member, 2)
            await other.start()

            coordinates = group_slot("g", fleet.slots)
            coordinator = next(machine for machine in fleet.machines if coordinates in machine.worker.served)
            await coordinator.worker._slot_manager.hand_over(coordinates, "")
            await fleet.settled()
            again = await other.fetch(records_max=10, max_wait_s=12)
            await accept(member, fetched)

            assert got == [(0, 0), (0, 1)]
            assert again == []

    virtually(scenario)


def test_the_end_of_a_worker_that_led_many_slots_is_told_in_one_line_by_each_of_the_others(caplog):
    caplog.set_level(logging.INFO)

    async def scenario(clock):
        async with Fleet(clock, workers=2, slots=16) as fleet:
            await fleet.topic("orders", 16)
            await fleet.configure()
            member = fleet.member("orders", member_id="m1")
            await member.start()
            await member.fetch(records_max=1, max_wait_s=1)

            await fleet.machines[0].kill()
            await fleet.settled()
            await clock.sleep(5)

    virtually(scenario)
    told = [record.getMessage() for record in caplog.records]
    assert [text.split(" (")[0] for text in told if "without its word" in text] == ["8 slots"]
    assert not [text for text in told if "m1" in text and "at broker" in text]


def test_slots_that_cannot_be_claimed_are_told_in_one_line_and_tried_again(caplog):
    async def scenario(clock):
        async with Fleet(clock, workers=1, slots=16) as fleet:
            fleet.kafka.refuse(InitProducerIdRequest, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, count=8)
            caplog.clear()
            newcomer = await fleet.add()
            await fleet.settled()
            await clock.sleep(2)

            assert len(newcomer.worker.served) == 8

    virtually(scenario)
    told = [record.getMessage() for record in caplog.records if "cannot be claimed now" in record.getMessage()]
    assert [text.split(" (")[0] for text in told] == ["8 slots"]


@pytest.mark.parametrize("comes_back", [True, False])
def test_what_a_member_holds_stays_with_it_over_broken_connections_if_it_comes_back_soon(comes_back):
    """It does so by itself: its next heartbeat would come later than it is given up."""

    async def scenario(clock):
        async with Fleet(clock, workers=2) as fleet:
            await fleet.topic("orders", 1)
            await fleet.produce("orders", b"a", b"b")
            await fleet.configure()
            member, other = fleet.member("orders", member_id="m1"), fleet.member("orders", member_id="m2")
            await member.start()
            got, fetched = await take(member, 2)
            await other.start()

            if not comes_back:
                await member._end()
            for machine in fleet.machines:
                for connection in [one for one in machine.connections if hasattr(one, "own")]:
                    await connection.close()
            again = await other.fetch(records_max=10, max_wait_s=GRACE_S + 1)
            if comes_back:
                await accept(member, fetched)

            assert got == [(0, 0), (0, 1)]
            assert [(run_.first, run_.last) for one in again for run_ in one.acquired] == (
                [] if comes_back else [(0, 1)]
            )

    virtually(scenario)


@pytest.mark.parametrize(("own", "interval_ms"), [(True, 500), (False, 5_000)])
def test_flowshares_own_members_send_heartbeats_often(own, interval_ms):
    async def scenario(clock):
        async with Fleet(clock, workers=2) as fleet:
            await fleet.topic("orders", 1)
            machine = fleet.coordinator("g")
            line = machine.serve("m1")
            machine.connections[-1].own = own

            told = await line.send(heartbeat("m1", 0))

            assert told.heartbeat_interval_ms == interval_ms

    virtually(scenario)


def test_others_send_heartbeats_often_while_a_member_may_be_given_up():
    async def scenario(clock):
        async with Fleet(clock, workers=2) as fleet:
            await fleet.topic("orders", 1)
            machine = fleet.coordinator("g")
            lines = {}
            for member_id in ("m1", "m2"):
                lines[member_id] = machine.serve(member_id)
                machine.connections[-1].own = member_id == "m2"
                await lines[member_id].send(heartbeat(member_id, 0))
            told = await lines["m1"].send(heartbeat("m1", 0))
            assert told.heartbeat_interval_ms == 5_000

            await lines["m2"].close()
            during = await lines["m1"].send(heartbeat("m1", 0))
            await clock.sleep(GRACE_S + 2)
            after = await lines["m1"].send(heartbeat("m1", 0))

            assert (during.heartbeat_interval_ms, after.heartbeat_interval_ms) == (500, 5_000)
            assert len(after.assignment) == 1

    virtually(scenario)


def heartbeat(member_id, epoch):
    """Of a member of the group `g` that reads `orders`."""
    return ShareGroupHeartbeatRequest(
        group_id="g", member_id=member_id, member_epoch=epoch, subscribed_topics=("orders",)
    )


@pytest.mark.parametrize("silent_s", [0, 4], ids=["from now on", "for longer than its lease"])
def test_a_worker_that_stops_while_the_slot_group_is_silent_lets_go_of_its_slots_no_later_than_otherwise(silent_s):
    async def scenario(clock):
        async with Fleet(clock, workers=2, slots=4) as fleet:
            leaver, other = fleet.machines
            held = (LeaveGroupRequest, HeartbeatRequest) if silent_s else (LeaveGroupRequest,)
            for kind in held:
                fleet.kafka.hold(kind)
            await clock.sleep(silent_s)
            led = dict(leaver.worker._slot_manager.led)
            at_s = clock.monotonic()

            await leaver.worker.leave()

            assert clock.monotonic() - at_s < LEAVE_S + 0.5
            assert not leaver.worker.served
            assert [slot.handed_over_to for slot in led.values()] == ["", ""]
            for kind in held:
                fleet.kafka.release(kind)
            await clock.sleep(15)
            assert len(other.worker.served) == 4

    virtually(scenario)
