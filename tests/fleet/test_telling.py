"""Coordinators tell what happens to groups to those who lead, however many more workers there are."""

from __future__ import annotations

import asyncio

import pytest

from flowshare.client.errors import ServerError
from flowshare.fleet.directory import Claimed, Directory, WorkerAddress
from flowshare.fleet.groups.facts import ANSWERED_S
from flowshare.fleet.messages import FactsChanged, FactsRequest, MemberGone
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.messages import IncrementalAlterConfigsRequest
from flowshare.share.types import AcknowledgeType, AckRange
from flowshare.slots.membership import SlotMap
from flowshare.testing.clock import LoopTimeClock
from flowshare.testing.virtual import run
from tests.fleet.world import EARLIEST, Fleet

RELEASE = bytes([AcknowledgeType.RELEASE])


def virtually(scenario):
    """Run a scenario that takes a clock on virtual time."""
    return run(scenario(LoopTimeClock()))


def agreed(owners, *, nodes, me=1):
    """A map of two slots as the worker `me` gets it."""
    addresses = {node: (f"worker-{node}", 9_000) for node in nodes}
    return SlotMap(generation=1, topic="t", slots=2, owners=owners, nodes=addresses, node_id=me)


def test_those_that_lead_are_the_holders_of_claims_and_those_that_were_chosen():
    directory = Directory(2, WorkerAddress(1, "worker-1", 9_000))
    directory.agreed(agreed({0: 1, 1: 2}, nodes=[1, 2, 3, 4]))
    directory.claimed(0, Claimed(7, WorkerAddress(3, "worker-3", 9_000)))

    assert directory.leading == {2, 3}
    assert set(directory.other_nodes) == {2, 3, 4}


def test_a_holder_that_has_left_does_not_lead():
    directory = Directory(2, WorkerAddress(1, "worker-1", 9_000))
    directory.claimed(0, Claimed(7, WorkerAddress(9, "worker-9", 9_000)))
    directory.agreed(agreed({0: 2, 1: 2}, nodes=[1, 2]))

    assert directory.leading == {2}


def told(fleet, name):
    """Numbers of the workers that were called so."""
    return {number for (called, number), count in fleet.calls.items() if called == name and count}


def test_only_leaders_hear_of_settings_and_of_members_that_left():
    async def scenario(clock):
        async with Fleet(clock, workers=5, slots=2) as fleet:
            leaders = {machine.number for machine in fleet.machines if machine.worker.served}
            await fleet.topic("orders", 2)
            fleet.calls.clear()
            await fleet.configure()
            member = fleet.member("orders")
            await member.start()
            await member.close(timeout_s=1.0)
            await clock.sleep(1.0)

            assert len(leaders) == 2
            assert told(fleet, FactsChanged.own.name) < leaders
            assert told(fleet, MemberGone.own.name) < leaders
            assert told(fleet, FactsChanged.own.name)

    virtually(scenario)


def test_who_begins_to_lead_is_told_of_settings_that_changed_just_before():
    async def scenario(clock):
        async with Fleet(clock, workers=1, slots=4) as fleet:
            await fleet.configure("g", **{"share.record.lock.duration.ms": "20000"})

            await fleet.add()
            await fleet.settled()
            await clock.sleep(1.0)

            known_groups = [machine.worker._known_groups for machine in fleet.machines]
            assert [one.config_of("g").record_lock_duration_ms for one in known_groups] == [20_000, 20_000]

    virtually(scenario)


def far_from(coordinator, fleet):
    """A worker that leads and does not coordinate."""
    return next(machine for machine in fleet.machines if machine is not coordinator and machine.worker.served)


def test_settings_act_at_all_leaders_when_their_change_is_answered():
    async def scenario(clock):
        async with Fleet(clock, workers=3, slots=6) as fleet:
            far = far_from(fleet.coordinator("g"), fleet)
            fleet.delays[FactsChanged.own.name, far.number] = 0.5
            await fleet.configure("g", **{"share.record.lock.duration.ms": "20000"})

            assert far.worker._known_groups.config_of("g").record_lock_duration_ms == 20_000

    virtually(scenario)


def test_a_leader_that_does_not_answer_holds_up_a_change_of_settings_for_a_bounded_time_and_hears_of_it_later():
    async def scenario(clock):
        async with Fleet(clock, workers=3, slots=6) as fleet:
            far = far_from(fleet.coordinator("g"), fleet)
            fleet.delays[FactsChanged.own.name, far.number] = 1_000.0
            before_s = clock.monotonic()
            await fleet.configure("g", **{"share.record.lock.duration.ms": "20000"})
            took_s = clock.monotonic() - before_s
            del fleet.delays[FactsChanged.own.name, far.number]
            await clock.sleep(10.0)

            assert took_s < ANSWERED_S + 0.5
            assert far.worker._known_groups.config_of("g").record_lock_duration_ms == 20_000

    virtually(scenario)


def test_the_order_of_a_group_does_not_change_while_another_worker_delays_a_record_of_it():
    async def scenario(clock):
        async with Fleet(clock, workers=3, slots=6) as fleet:
            await fleet.topic("orders", 8)
            await fleet.configure("g")
            coordinator = fleet.coordinator("g")
            partition = next(number for number in range(8) if fleet.leader("orders", number) is not coordinator)
            await fleet.produce("orders", b"a", partition=partition)
            member = fleet.member("orders")
            await member.start()
            fetched = []
            while not fetched:
                fetched = await member.fetch(records_max=1)
            delayed = {fetched[0].tp: (AckRange(0, 0, RELEASE, delay_ms=60_000),)}
            await member.acknowledge(delayed, generation=fetched[0].generation)
            await member.close(timeout_s=1.0)
            connection = fleet.connection()
            change = IncrementalAlterConfigsRequest(
                resource_type="group", resource="g", configs={"share.key.order": "key"}
            )

            answer = await connection.send(change)
            await connection.close()

            assert answer.error is ErrorCode.NON_EMPTY_GROUP, answer

    virtually(scenario)


def test_a_worker_that_joins_its_fleet_just_now_is_asked_again():
    """It cannot know yet that the caller is one of its fleet."""

    async def scenario(clock):
        async with Fleet(clock, workers=2, slots=4) as fleet:
            group = next(name for name in map(str, range(100)) if fleet.coordinator(name) is fleet.machines[1])
            late = fleet.machines[1].worker.directory
            known, late.map = late.map, None
            peers = fleet.machines[0].worker._peers
            await peers._drop(late.place.node_id)
            telling = asyncio.create_task(
                fleet.machines[0]
                .worker.server.connect(client_id="c", host="h")
                .send(IncrementalAlterConfigsRequest(resource_type="group", resource=group, configs=EARLIEST))
            )
            with pytest.raises(ServerError, match="joining its fleet; try again"):
                await peers.call(late.place.node_id, FactsRequest(group_id=group))

            late.map = known
            answer = await telling

            assert answer.error is ErrorCode.NONE

    virtually(scenario)


def test_a_new_order_of_keys_is_confirmed_when_all_leaders_act_by_it_and_not_before():
    async def scenario(clock):
        async with Fleet(clock, workers=3, slots=6) as fleet:
            far = far_from(fleet.coordinator("g"), fleet)
            await fleet.configure("g", **{"share.key.order": "key"})
            fleet.delays[FactsChanged.own.name, far.number] = ANSWERED_S + 1.0
            await fleet.configure("g", **{"share.key.order": "header:customer"})
            assert far.worker._known_groups.config_of("g").key_order == "header:customer"

            fleet.delays[FactsChanged.own.name, far.number] = 1_000.0
            connection = fleet.connection()
            change = IncrementalAlterConfigsRequest(
                resource_type="group", resource="g", configs={"share.key.order": "key"}
            )
            answers = [await connection.send(change) for _ in range(2)]
            del fleet.delays[FactsChanged.own.name, far.number]
            await clock.sleep(30.0)
            answers.append(await connection.send(change))
            await connection.close()

            late = ErrorCode.REQUEST_TIMED_OUT
            assert [answer.error for answer in answers] == [late, late, ErrorCode.NONE]
            assert "1 workers that lead for it have not answered yet" in answers[0].message
            assert far.worker._known_groups.config_of("g").key_order == "key"

    virtually(scenario)
