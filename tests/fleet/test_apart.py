"""A worker that Kafka was away from for longer than its session, and that comes back: it is out of date."""

from __future__ import annotations

from tests.fleet.test_worker import accept, take, virtually
from tests.fleet.world import Fleet

APART_S = 11.0
"""The slot group's session and its rebalance are over."""


def epochs(fleet):
    """Highest claim of each slot."""
    return [
        max(
            (slot.epoch for one in fleet.machines for n, slot in one.worker._slot_manager.led.items() if n == number),
            default=0,
        )
        for number in range(fleet.slots)
    ]


def test_a_worker_that_comes_back_claims_nothing_before_the_slot_group_has_it_again():
    async def scenario(clock):
        async with Fleet(clock, workers=3, slots=6) as fleet:
            victim = fleet.machines[0]
            led = sorted(victim.worker.served)
            before = epochs(fleet)
            await victim.cut_off()
            await clock.sleep(APART_S)
            between = epochs(fleet)

            victim.apart = False
            await clock.sleep(15)
            await fleet.settled()

            after = epochs(fleet)
            assert all(between[slot] == before[slot] + 1 for slot in led)
            assert all(after[slot] <= between[slot] + 1 for slot in range(fleet.slots)), (before, between, after)

    virtually(scenario)


def test_its_members_ask_others_who_coordinates_so_that_they_keep_their_records():
    async def scenario(clock):
        async with Fleet(clock, workers=3, slots=6) as fleet:
            await fleet.topic("orders", 6)
            for partition in range(6):
                await fleet.produce("orders", b"a", partition=partition)
            await fleet.configure()
            home = fleet.coordinator("g")
            first = fleet.member("orders", lives_at=home)
            await first.start()
            _, fetched = await take(first, 6)
            second = fleet.member("orders")
            await second.start()

            await home.cut_off()
            await clock.sleep(APART_S)
            home.apart = False
            await clock.sleep(5)

            assert not await second.fetch(records_max=100, max_wait_s=2)
            await accept(first, fetched)

    virtually(scenario)
