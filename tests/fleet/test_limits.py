"""A group's limit holds over all workers of a fleet, and a pause does too."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from flowshare.client.errors import NotConnected
from flowshare.share.leases import LEASE_MS
from flowshare.share.types import AcknowledgeType, AckRange
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
                            {one.tp: (AckRange(run_.first, run_.last, ACCEPT),)}, generation=one.generation
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

            async def cut_off(*_):
                raise NotConnected("the coordinator is cut off from here")

            await clock.sleep(0.03)
            worker._limits._ask = cut_off
            await clock.sleep(10)
            assert owner.config.max_in_flight == 0

    run(scenario(LoopTimeClock()))


def test_an_answer_that_cannot_be_read_costs_no_group_its_later_leases(caplog):
    async def scenario(clock):
        async with Fleet(clock, workers=1) as fleet:
            await fleet.topic("orders")
            await fleet.produce("orders", b"v", b"v")
            for group in ("g", "h"):
                await fleet.configure(group, **EARLIEST, **{"share.max.in.flight": "1"})
            members = [fleet.member("orders", group=group) for group in ("g", "h")]
            for member in members:
                await member.start()
                await member.fetch(records_max=1, max_wait_s=5)
            limits = fleet.living[0].worker._limits
            ask = limits._ask

            async def unreadable(group_id, report):
                if group_id == "g":
                    raise KeyError("gate")
                return await ask(group_id, report)

            limits._ask = unreadable
            await clock.sleep(LEASE_MS / 1000 + 1)
            leases = limits._lease("g"), limits._lease("h")
            limits._ask = ask
            await clock.sleep(1)

            assert leases == (0, 1)
            assert limits._lease("g") == 1

    run(scenario(LoopTimeClock()))
    said = [one for one in caplog.records if "this worker hands out no records of group g" in one.getMessage()]
    assert len(said) == 1


# --- a rate ----------------------------------------------------------------------------------------------------------


async def paced_fleet(fleet, rate, *, partitions=6, records=400):
    """A member that has joined a group with a rate, and a topic whose partitions all have records."""
    await fleet.topic("orders", partitions)
    for partition in range(partitions):
        await fleet.produce("orders", *[b"v"] * records, partition=partition)
    await fleet.configure(**EARLIEST, **{"share.max.rate": rate})
    member = fleet.member("orders")
    await member.start()
    return member


async def taken_for(clock, member, seconds, handed, at=None):
    """Fetch for so long; when how many came, and from which partition (with `at`)."""
    until_s = clock.monotonic() + seconds
    while clock.monotonic() < until_s:
        for one, run_ in ranges(await member.fetch(records_max=100, max_wait_s=0.1)):
            handed.append((clock.monotonic(), run_.last - run_.first + 1))
            if at is not None:
                at[one.tp.partition] = at.get(one.tp.partition, 0) + handed[-1][1]
            batches = {one.tp: (AckRange(run_.first, run_.last, ACCEPT),)}
            await member.acknowledge(batches, generation=one.generation)


def most_above_the_line(handed, per_s):
    """The most records that were handed out in any time beyond what the rate gives for it."""
    most, total, least = 0.0, 0.0, 0.0
    for at_s, count in handed:
        line = (at_s - handed[0][0]) * per_s
        least = min(least, total - line)
        total += count
        most = max(most, total - line - least)
    return most


@pytest.mark.slow
def test_a_rate_holds_over_all_leaders_and_each_of_them_gets_its_part():
    async def scenario(clock):
        async with Fleet(clock, workers=3, slots=6) as fleet:
            member = await paced_fleet(fleet, "30/s")
            handed, at = [], {}
            await taken_for(clock, member, 5, [])
            await taken_for(clock, member, 60, handed, at)
            by_leader = {}
            for partition, count in at.items():
                leader = fleet.leader("orders", partition)
                by_leader[leader] = by_leader.get(leader, 0) + count

            got = sum(count for _, count in handed)
            print(f"{got} of 1800 in 60 s, by leader {sorted(by_leader.values())}")
            assert abs(got - 1800) <= 36
            assert most_above_the_line(handed, 30) <= 16
            assert max(by_leader.values()) - min(by_leader.values()) <= 0.1 * got

    run(scenario(LoopTimeClock()))


@pytest.mark.slow
def test_what_a_leader_without_records_does_not_need_goes_to_the_others():
    async def scenario(clock):
        async with Fleet(clock, workers=3, slots=6) as fleet:
            member = await paced_fleet(fleet, "20/s", records=3)
            await taken_for(clock, member, 5, [])
            await fleet.produce("orders", *[b"v"] * 600, partition=2)
            handed = []
            await taken_for(clock, member, 20, handed)

            assert abs(sum(count for _, count in handed) - 400) <= 16

    run(scenario(LoopTimeClock()))


@pytest.mark.slow
@pytest.mark.parametrize("which", ["leader", "coordinator"])
def test_the_rate_is_kept_and_reached_again_when_a_worker_dies(which):
    async def scenario(clock):
        async with Fleet(clock, workers=3, slots=6) as fleet:
            member = await paced_fleet(fleet, "20/s", records=1_000)
            handed = []
            await taken_for(clock, member, 5, handed)
            coordinator = fleet.coordinator("g")
            others = [one for one in fleet.living if one is not coordinator]
            await (coordinator if which == "coordinator" else others[0]).kill()
            await taken_for(clock, member, 30, handed)
            before = len(handed)
            await taken_for(clock, member, 10, handed)

            assert abs(sum(count for _, count in handed[before:]) - 200) <= 12
            assert most_above_the_line(handed, 20) <= 11 * (1 + (which == "coordinator"))

    run(scenario(LoopTimeClock()))


@pytest.mark.slow
@pytest.mark.parametrize(
    "more",
    [
        {},
        {"share.delivery.priority": "mixed", "share.max.in.flight": "500"},
        {"share.max.in.flight": "1"},
        {"share.breaker.failure.percent": "50"},
        {"share.key.order": "key"},
    ],
    ids=lambda one: " ".join(one) or "alone",
)
def test_a_rate_that_is_changed_at_run_time_acts_at_once_and_a_removed_one_no_more(more):
    async def scenario(clock):
        async with Fleet(clock, workers=2, slots=4) as fleet:
            await fleet.configure(**more)
            member = await paced_fleet(fleet, "50/s", records=300)
            await taken_for(clock, member, 5, [])
            for rate, per_s in (("12/m", 0.2), ("100/s", 100), ("20", 20), ("0.5", 0.5)):
                await fleet.configure(**{"share.max.rate": rate})
                await taken_for(clock, member, 1, [])
                handed = []
                await taken_for(clock, member, 6, handed)
                got = sum(count for _, count in handed)
                print(f"{got} in 6 s of {rate}")
                assert abs(got - 6 * per_s) <= 2 + 0.1 * per_s
            await fleet.configure(**{"share.max.rate": "0"})
            handed, at = [], {}
            await taken_for(clock, member, 5, handed, at)
            assert sum(count for _, count in handed) > 30

    run(scenario(LoopTimeClock()))


@pytest.mark.slow
def test_a_fetch_that_waits_long_gets_what_comes_meanwhile():
    async def scenario(clock):
        async with Fleet(clock, workers=2, slots=4) as fleet:
            member = await paced_fleet(fleet, "6/m", partitions=1)
            came = []
            while len(came) < 4:
                if ranges(await member.fetch(records_max=10, max_wait_s=60)):
                    came.append(clock.monotonic())

            assert all(9 < after - before < 11 for before, after in itertools.pairwise(came))

    run(scenario(LoopTimeClock()))


@pytest.mark.slow
def test_without_its_coordinator_a_leader_hands_out_nothing_after_its_lease():
    async def scenario(clock):
        async with Fleet(clock, workers=2, slots=4) as fleet:
            member = await paced_fleet(fleet, "50/s", partitions=4)
            await taken_for(clock, member, 2, [])

            async def cut_off(*_):
                raise NotConnected("the coordinator is cut off from here")

            for machine in fleet.living:
                machine.worker._limits._ask = cut_off
            await taken_for(clock, member, 3, [])
            handed = []
            await taken_for(clock, member, 5, handed)

            assert handed == []

    run(scenario(LoopTimeClock()))


def test_both_limits_hold_in_one_round():
    async def scenario(clock):
        async with Fleet(clock, workers=2, slots=4) as fleet:
            member = await paced_fleet(fleet, "10/s", partitions=4)
            await fleet.configure(**{"share.max.in.flight": "3"})
            held = []
            for _ in range(40):
                held += ranges(await member.fetch(records_max=100, max_wait_s=0.1))

            assert sum(run_.last - run_.first + 1 for _, run_ in held) == 3

    run(scenario(LoopTimeClock()))
