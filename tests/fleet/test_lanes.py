"""Lanes of a slot's outputs: which are used, what their notes say, whom they wait for."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from flowshare.fleet.state.lane import OutputSettings
from flowshare.log.base import LogError, OutputRefused
from flowshare.protocol import messages as m
from flowshare.slots.prepared import LaneNote, decode_note, lane_entry, lane_of
from tests.fleet.outputs_world import NOTHING, ONE, OUTPUT, Leader, on_outputs, out, written
from tests.fleet.slots import TOPIC

FEW = OutputSettings(lanes_max=2, stuck_max=3, queue_s=60)


def test_the_log_names_where_the_last_transactions_went_whatever_became_of_the_notes_before():
    async def scenario(world):
        leader = await world.leader("a", settings=ONE)
        await written(leader, out(world, b"a", 0), out(world, b"c", 2))
        await written(leader, out(world, b"b", 1))
        world.forbidden.add((m.ProduceRequest, OUTPUT))
        with pytest.raises(LogError):
            await written(leader, out(world, b"x", 0))
        world.forbidden.clear()
        await world.clock.sleep(1)
        await written(leader, out(world, b"c2", 2), out(world, b"b2", 1))
        (note,) = [decode_note(value) for key, value in leader.slot.scan(b"") if lane_of(key) == 0]
        assert set(note.places) >= {(OUTPUT, 2), (OUTPUT, 1)}

    on_outputs(scenario, outputs=3)


def test_a_note_that_cannot_be_read_keeps_no_lane_from_being_taken_over():
    async def scenario(world):
        leader = await world.leader("a", take=3, settings=FEW)
        world.still.update(f"{TOPIC}.0.outputs.{lane}" for lane in range(3))
        await leader.settle(0, b"out-0")
        lanes = len(leader.lanes)
        await leader.slot.write([(lane_entry(0, 0, LaneNote())[0], b"damaged, too")])
        world.still.clear()
        await leader.give_away("b")
        second = await world.leader("b", settings=FEW)
        await world.clock.sleep(5)
        assert len(second.lanes) >= lanes

    on_outputs(scenario)


def test_lanes_that_could_not_be_used_for_a_while_do_not_add_to_the_transactions_at_a_time():
    async def scenario(world):
        leader = await world.leader("a", settings=replace(FEW, joined_max=1))
        world.still.update(f"{TOPIC}.0.outputs.{lane}" for lane in range(3))
        await written(leader, out(world, b"out-0"))
        world.still.clear()
        await world.until(lambda: all(u.state.name == "READY" for u in leader.lanes))
        world.kafka.hold(m.EndTxnRequest)
        some = [asyncio.ensure_future(written(leader, out(world, b"x"))) for _ in range(10)]
        await world.clock.sleep(0.5)
        busy = sum(u.state.name != "READY" for u in leader.lanes)
        world.kafka.release(m.EndTxnRequest)
        await asyncio.gather(*some)
        assert busy <= 2

    on_outputs(scenario)


def test_brokers_that_close_idle_connections_have_no_lane_taken_over_again_and_again():
    async def scenario(world):
        leader = await world.leader("a")
        await written(leader, out(world, b"out-0"))
        await world.clock.sleep(1)
        counts = []
        for _ in range(5):
            inits = world.kafka.asked[m.InitProducerIdRequest]
            for connection in list(leader.connections):
                await connection.break_off()
            await world.clock.sleep(600)
            counts.append(world.kafka.asked[m.InitProducerIdRequest] - inits)
        assert counts[1:] == [0] * 4

    on_outputs(scenario)


def test_a_partition_that_is_well_again_is_written_to_while_its_lanes_coordinator_is_away():
    async def scenario(world):
        leader = await world.leader("a")
        await written(leader, out(world, b"one", 1))
        world.still.add((OUTPUT, 1))
        stuck = asyncio.ensure_future(written(leader, out(world, b"two", 1)))
        await world.clock.sleep(1)
        (sending,) = [used for used in leader.lanes if used.state.name == "SENDING"]
        world.still.add(sending.lane.transactional_id)  # its coordinator is away, for an hour
        with pytest.raises(OutputRefused):
            await stuck
        world.still.discard((OUTPUT, 1))  # the partition is well again
        await world.clock.sleep(600)
        await written(leader, out(world, b"three", 1))

    on_outputs(scenario)


def test_a_partition_that_has_a_leader_again_is_written_to_while_another_one_has_none():
    async def scenario(world):
        first = await world.leader("a", settings=ONE)
        await written(first, out(world, b"zero", 0), out(world, b"one", 1))
        await first.kill()
        world.kafka.not_led.update([(OUTPUT, 0), (OUTPUT, 1)])
        second = Leader(world, "b")
        world.leaders.append(second)
        await second.lead()
        await world.clock.sleep(3)
        world.kafka.not_led.discard((OUTPUT, 1))
        await world.clock.sleep(600)
        await second.log.refresh((OUTPUT,))
        await second.storage.settle_apart(first.key.prefix, NOTHING, (), [out(world, b"two", 1)])

    on_outputs(scenario)


def test_a_partition_that_stood_still_is_written_to_as_soon_as_its_lane_is_free():
    async def scenario(world):
        leader = await world.leader("a", settings=replace(ONE, rest_s=0.5))
        world.still.add((OUTPUT, 1))
        with pytest.raises(OutputRefused):
            await written(leader, out(world, b"one", 1))
        world.still.clear()
        await world.until(lambda: leader.lanes[0].state.name == "READY")
        await world.clock.sleep(1)

        await written(leader, out(world, b"two", 1))

        assert await world.visible(partition=1) == [b"two"]

    on_outputs(scenario)


def test_a_lane_that_lost_a_broker_in_use_is_taken_over_again_when_it_is_free():
    async def scenario(world):
        leader = await world.leader("a", settings=ONE)
        await written(leader, out(world, b"one"))
        world.kafka.hold(m.EndTxnRequest)
        going_on = asyncio.ensure_future(written(leader, out(world, b"two")))
        await world.until(lambda: leader.lanes[0].state.name == "ENDING")
        asked = world.kafka.asked[m.InitProducerIdRequest]

        leader.lanes[0].lane._brokers._on_lost()
        world.kafka.release(m.EndTxnRequest)
        await going_on
        await world.until(lambda: leader.lanes[0].state.name == "READY")
        await world.clock.sleep(1)

        assert world.kafka.asked[m.InitProducerIdRequest] == asked + 1
        assert await world.visible() == [b"one", b"two"]

    on_outputs(scenario)
