"""A group's limit holds over all workers of a fleet, and a pause does too."""

from __future__ import annotations

import asyncio

from flowshare.client.errors import NotConnected
from flowshare.protocol.messages import AckBatch
from flowshare.share.types import AcknowledgeType
from flowshare.testing.clock import LoopTimeClock
from flowshare.testing.virtual import run
from tests.fleet.world import EARLIEST, Fleet

ACCEPT = bytes([AcknowledgeType.ACCEPT])


def ranges(fetched):
    return [(one, run_) for one in fetched for run_ in one.acquired]


def test_a_limit_holds_over_all_leaders_and_no_partition_starves():
    async def scenario(clock):
        async with Fleet(clock, workers=3, slots=6) as fleet:
            await fleet.topic("orders", 6)
            for partition in range(6):
                await fleet.produce("orders", *[b"v"] * 20, partition=partition)
            await fleet.configure(**EARLIEST, **{"share.max.in.flight": "4"})
            member = fleet.member("orders")
            await member.start()
            held, done, most = [], 0, 0
            async with asyncio.timeout(120):
                while done < 120:
                    held += ranges(await member.fetch(records_max=100, max_wait_s=0.2))
                    most = max(most, sum(run_.last - run_.first + 1 for _, run_ in held))
                    for one, run_ in held:
                        await member.acknowledge(
                            {one.tp: (AckBatch(run_.first, run_.last, ACCEPT),)}, generation=one.generation
                        )
                        done += run_.last - run_.first + 1
                    held.clear()

            assert done == 120
            assert most <= 4

    run(scenario(LoopTimeClock()))


def test_a_paused_group_gets_nothing_from_any_worker_until_it_is_resumed():
    async def scenario(clock):
        async with Fleet(clock, workers=2, slots=2) as fleet:
            await fleet.topic("orders", 2)
            await fleet.configure(**EARLIEST, **{"share.paused": "true"})
            for partition in range(2):
                await fleet.produce("orders", b"v", partition=partition)
            member = fleet.member("orders")
            await member.start()
            nothing = await member.fetch(records_max=10, max_wait_s=3)

            await fleet.configure(**{"share.paused": "false"})
            got = []
            async with asyncio.timeout(2):
                while len(got) < 2:
                    got += ranges(await member.fetch(records_max=10, max_wait_s=0.5))

            assert nothing == []

    run(scenario(LoopTimeClock()))


def test_a_lease_that_runs_out_while_its_coordinator_is_not_reached_is_taken_back():
    async def scenario(clock):
        async with Fleet(clock, workers=2) as fleet:
            for number in range(20):
                await fleet.topic(f"t{number}")
                if fleet.leader(f"t{number}", 0) is not fleet.coordinator("g"):
                    break
            topic = f"t{number}"
            await fleet.configure(**EARLIEST, **{"share.max.in.flight": "10"})
            await fleet.produce(topic, *[b"v"] * 30)
            member = fleet.member(topic)
            await member.start()
            held = []
            while sum(run_.last - run_.first + 1 for _, run_ in held) < 3:
                held += ranges(await member.fetch(records_max=3, max_wait_s=1))
            worker = fleet.leader(topic, 0).worker
            [owner] = worker._service.partitions.owners("g")
            assert owner.config.max_in_flight > 0

            async def cut_off(group_id, report):
                raise NotConnected("the coordinator is cut off from here")

            await clock.sleep(0.03)
            worker._limits._ask = cut_off
            await clock.sleep(10)
            assert owner.config.max_in_flight == 0

    run(scenario(LoopTimeClock()))
