"""Logs that lose their end with a leader of Kafka's: the fleet forgets what is not there, and goes on from there."""

from __future__ import annotations

import asyncio
import logging

import pytest

from flowshare.protocol import messages as m
from flowshare.protocol.errors import ErrorCode
from flowshare.share.types import AckRange
from flowshare.testing.clock import LoopTimeClock
from flowshare.testing.virtual import run
from tests.fleet.test_worker import ACCEPT, accept, take
from tests.fleet.world import Fleet


def virtually(scenario):
    """Run a scenario that takes a clock on virtual time, for two minutes of it at most."""

    async def bounded():
        async with asyncio.timeout(120):
            await scenario(LoopTimeClock())

    return run(bounded())


async def until(clock, condition, limit_s=30.0):
    """Let time pass until something holds."""
    end_s = clock.monotonic() + limit_s
    while not condition():
        assert clock.monotonic() < end_s, "it does not come to that"
        await clock.sleep(0.05)


async def begin(fleet, *batches):
    """A topic with a batch for each argument, a group that begins at its start, and a member that is started."""
    await fleet.topic("orders")
    for values in batches:
        await fleet.produce("orders", *values)
    await fleet.configure()
    member = fleet.member("orders", member_id="m1")
    await member.start()
    return member


def count(fleet, name):
    """A counter of the leader."""
    return fleet.leader("orders", 0).worker.stats()[name]


def part(fleet):
    """The leader's gauges of the share-partition."""
    (found,) = fleet.leader("orders", 0).worker.stats()["partitions"]
    return found


OLD = [b"old"] * 5
NEW = [b"new"] * 5


@pytest.mark.parametrize("grown", [0, 5, 10, 20])
def test_records_that_come_in_the_place_of_lost_ones_are_delivered(grown, caplog):
    """However far the log has grown again before anybody looks."""

    async def scenario(clock):
        async with Fleet(clock, workers=1) as fleet:
            member = await begin(fleet, OLD, OLD, OLD)
            got, fetched = await take(member, 15)
            await accept(member, fetched)
            assert part(fleet)["start_offset"] == 15

            await fleet.kafka.lose("orders", 0, 5)
            for _ in range(grown // 5):
                await fleet.produce("orders", *NEW)
            if not grown:
                await until(clock, lambda: part(fleet)["start_offset"] == 5)
                await fleet.produce("orders", *NEW)
            more, fetched = await take(member, max(grown, 5))
            await accept(member, fetched)

            assert [offset for _, offset in got] == list(range(15))
            assert [offset for _, offset in more] == list(range(5, 5 + max(grown, 5)))
            assert (count(fleet, "log_cuts"), count(fleet, "records_lost")) == (1, 10)

    with caplog.at_level(logging.WARNING, "flowshare.server"):
        virtually(scenario)
    (line,) = [one.getMessage() for one in caplog.records if one.name == "flowshare.server.share.partition_log"]
    assert line == (
        "the log lost its records from offset 5 on with a leader: forgotten what was acquired there, up to 14; "
        "start offset 5, was 15 group=g topic=orders partition=0"
    )


def test_a_log_that_was_cut_while_another_worker_took_over_is_seen_by_that_one():
    async def scenario(clock):
        async with Fleet(clock, workers=2) as fleet:
            member = await begin(fleet, OLD, OLD)
            _, fetched = await take(member, 10)
            await accept(member, fetched)

            await fleet.leader("orders", 0).kill()
            await fleet.kafka.lose("orders", 0, 5)
            await fleet.produce("orders", *NEW)
            await fleet.produce("orders", *NEW)
            await fleet.settled()
            more, fetched = await take(member, 10)
            await accept(member, fetched)

            assert [offset for _, offset in more] == list(range(5, 15))
            assert (count(fleet, "log_cuts"), count(fleet, "records_lost")) == (1, 5)

    virtually(scenario)


def test_a_log_that_was_cut_while_nobody_ran_is_seen_by_who_starts_next():
    async def scenario(clock):
        async with Fleet(clock, workers=1) as fleet:
            member = await begin(fleet, OLD, OLD)
            _, fetched = await take(member, 10)
            await accept(member, fetched)

            await member.close()
            await fleet.machines[0].stop()
            await fleet.kafka.lose("orders", 0, 0)
            await fleet.produce("orders", *NEW)
            await fleet.add()
            await fleet.settled()
            late = fleet.member("orders")
            await late.start()
            more, fetched = await take(late, 5)
            await accept(late, fetched)

            assert [offset for _, offset in more] == list(range(5))
            assert count(fleet, "log_cuts") == 1

    virtually(scenario)


def test_the_cut_is_stored_so_that_the_next_leader_finds_nothing_to_cut():
    async def scenario(clock):
        async with Fleet(clock, workers=2) as fleet:
            member = await begin(fleet, OLD, OLD)
            _, fetched = await take(member, 10)
            await accept(member, fetched)
            await fleet.kafka.lose("orders", 0, 5)
            await fleet.produce("orders", *NEW)
            more, fetched = await take(member, 5)
            await accept(member, fetched)
            before = count(fleet, "log_cuts")

            await fleet.leader("orders", 0).kill()
            await fleet.settled()
            await fleet.produce("orders", *NEW)
            last, _ = await take(member, 5)

            assert [offset for _, offset in more] == list(range(5, 10))
            assert [offset for _, offset in last] == list(range(10, 15))
            assert (before, count(fleet, "log_cuts")) == (1, 0)

    virtually(scenario)


def test_what_a_member_holds_of_lost_records_is_refused_and_the_rest_counts():
    async def scenario(clock):
        async with Fleet(clock, workers=1) as fleet:
            member = await begin(fleet, OLD, OLD)
            _, fetched = await take(member, 10)
            (tp,) = {one.tp for one in fetched}

            await fleet.kafka.lose("orders", 0, 5)
            await until(clock, lambda: part(fleet)["in_flight"] == 5)
            lost = await member.acknowledge({tp: (AckRange(5, 9, ACCEPT),)}, generation=fetched[0].generation)
            kept = await member.acknowledge({tp: (AckRange(0, 4, ACCEPT),)}, generation=fetched[0].generation)

            assert [result.error for result in lost] == [ErrorCode.INVALID_RECORD_STATE]
            assert [result.error for result in kept] == [ErrorCode.NONE]
            assert part(fleet)["start_offset"] == 5

    virtually(scenario)


def test_nothing_is_acquired_while_the_brokers_cannot_say_where_the_epochs_part():
    async def scenario(clock):
        async with Fleet(clock, workers=1) as fleet:
            member = await begin(fleet, OLD, OLD)
            _, fetched = await take(member, 10)
            await accept(member, fetched)

            refused = ErrorCode.NOT_LEADER_OR_FOLLOWER
            fleet.kafka.refuse(m.OffsetForLeaderEpochRequest, refused, 1_000)
            await fleet.kafka.lose("orders", 0, 5)
            for _ in range(3):
                await fleet.produce("orders", *NEW)
            early = await member.fetch(records_max=100, max_wait_s=20)
            asked = fleet.kafka.asked[m.OffsetForLeaderEpochRequest]
            fleet.kafka.refuse_no_more(m.OffsetForLeaderEpochRequest)
            more, _ = await take(member, 15)

            assert early == []
            assert asked < 60
            assert [offset for _, offset in more] == list(range(5, 20))

    virtually(scenario)


def test_a_leader_that_changes_without_losing_anything_disturbs_nobody():
    async def scenario(clock):
        async with Fleet(clock, workers=1) as fleet:
            member = await begin(fleet, OLD)
            _, fetched = await take(member, 5)

            await fleet.kafka.lose("orders", 0, 5)
            await fleet.produce("orders", *NEW)
            more, later = await take(member, 5)
            await accept(member, fetched)
            await accept(member, later)

            assert [offset for _, offset in more] == list(range(5, 10))
            assert count(fleet, "log_cuts") == 0
            assert part(fleet)["start_offset"] == 10

    virtually(scenario)


def test_a_service_that_keeps_no_epochs_is_judged_by_where_its_log_ends():
    async def scenario(clock):
        async with Fleet(clock, workers=2) as fleet:
            fleet.kafka.epochs.end = lambda *_: (-1, -1)
            member = await begin(fleet, OLD, OLD)
            _, fetched = await take(member, 10)
            await accept(member, fetched)

            await fleet.leader("orders", 0).kill()
            await fleet.kafka.lose("orders", 0, 5)
            await fleet.settled()
            taking = asyncio.create_task(take(member, 5))
            await until(clock, lambda: count(fleet, "log_cuts"))
            await fleet.produce("orders", *NEW)
            more, _ = await taking

            assert [offset for _, offset in more] == list(range(5, 10))

    virtually(scenario)
