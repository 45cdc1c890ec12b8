"""Tests that a share-partition's state survives its leader: delays, delivery counts, dead letters, the log's start."""

from __future__ import annotations

import asyncio

import pytest

from flowshare.client.errors import NotConnected
from flowshare.log.partition import walk
from flowshare.protocol import messages as m
from flowshare.protocol.batches import decode_all
from flowshare.protocol.errors import ErrorCode
from flowshare.share.config import ServerConfig
from flowshare.share.types import AcknowledgeType, AckRange
from tests.fleet.test_lost_records import OLD, begin, part, until, virtually
from tests.fleet.test_worker import ACCEPT, accept, take
from tests.fleet.world import Fleet

RELEASE, REJECT = bytes([AcknowledgeType.RELEASE]), bytes([AcknowledgeType.REJECT])


async def acknowledge(member, fetched, *acks):
    """Say this of the one partition; it is taken."""
    results = await member.acknowledge({fetched[0].tp: acks}, generation=fetched[0].generation)
    assert [result.error for result in results] == [ErrorCode.NONE], results


async def end_leader(fleet, *, graceful):
    """The share-partition's leader stops or dies, and another one leads it."""
    leader = fleet.leader("orders", 0)
    await (leader.stop() if graceful else leader.kill())
    await fleet.settled()


def acquired(fetched):
    """(first, last, delivery) of what was acquired."""
    return [tuple(run_) for one in fetched for run_ in one.acquired]


# --- delays and counts --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("graceful", [True, False])
def test_a_delay_is_kept_by_the_next_leader(graceful):
    async def scenario(clock):
        async with Fleet(clock, workers=2) as fleet:
            member = await begin(fleet, OLD)
            _, fetched = await take(member, 5)
            due_ms = clock.now_ms() + 60_000
            await acknowledge(
                member, fetched, AckRange(0, 3, ACCEPT), AckRange(4, 4, RELEASE, delay_ms=60_000, unrun=True)
            )

            await end_leader(fleet, graceful=graceful)
            await until(clock, lambda: clock.now_ms() > due_ms - 30_000, limit_s=60)
            early = await member.fetch(records_max=10, max_wait_s=25)
            _, late = await take(member, 1)

            assert early == []
            assert acquired(late) == [(4, 4, 1)]
            assert clock.now_ms() >= due_ms

    virtually(scenario)


async def cut_off(fleet):
    """The member that was made last is gone, and nobody hears of it."""

    async def refuse(host, port, client_id):
        raise NotConnected("this member is dead")

    fleet._clusters[-1]._open = refuse
    for machine in fleet.living:
        for connection in [one for one in machine.connections if getattr(one, "client_id", "").startswith("member")]:
            await connection.close()


@pytest.mark.parametrize("returns", [True, False])
def test_a_delivery_counts_though_its_leader_dies_before_it_answers(returns):
    """The acquire is stored, then the leader is gone; only a member that comes back can say that it got nothing."""

    async def scenario(clock):
        async with Fleet(clock, workers=2) as fleet:
            await fleet.topic("orders")
            await fleet.configure()
            member = fleet.member("orders", member_id="m1")
            await member.start()
            fetching = asyncio.create_task(member.fetch(records_max=10, max_wait_s=5))
            await until(clock, lambda: any(one.worker.stats()["partitions"] for one in fleet.living))
            fleet.kafka.hold(m.ProduceRequest, late=True)
            await fleet.produce("orders", *OLD)
            leader = fleet.leader("orders", 0)
            await until(clock, lambda: leader.worker.stats()["in_flight"] == 5)
            await clock.sleep(0.01)

            await leader.kill()
            fleet.kafka.release(m.ProduceRequest)
            if not returns:
                await cut_off(fleet)
            await asyncio.gather(fetching, return_exceptions=True)
            await fleet.settled()
            taker = member
            if not returns:
                taker = fleet.member("orders", member_id="m2")
                await taker.start()
            _, again = await take(taker, 5)

            assert acquired(again) == [(0, 4, 1 if returns else 2)]

    virtually(scenario)


# --- a member that comes back -------------------------------------------------------------------------------------


def test_a_member_is_told_what_it_holds_only_by_who_has_claimed_and_replayed_the_slot():
    async def scenario(clock):
        async with Fleet(clock, workers=2) as fleet:
            member = await begin(fleet, OLD)
            _, fetched = await take(member, 5)
            old = fleet.leader("orders", 0)
            (other,) = (one for one in fleet.machines if one is not old)
            (held,) = {one.tp for one in fetched}
            request = m.ShareResumeRequest(
                group_id="g", member_id="m1", partitions=(m.HeldRanges(held.topic_id, held.partition, ((0, 4),)),)
            )
            asking = other.serve("m1")

            before = await asking.send(request)
            await old.kill()
            answers = []
            while not answers or answers[-1].elsewhere:
                answers.append(await asking.send(request))
                await clock.sleep(0.05)

            assert (before.partitions, before.elsewhere) == ((), (m.TopicPartition(held.topic_id, held.partition),))
            assert all(not one.partitions for one in answers[:-1])
            assert answers[-1].partitions[0].ranges == ((0, 4),)
            assert len(other.worker.served) == fleet.slots

    virtually(scenario)


def test_a_delivery_counts_though_nobody_led_for_the_locks_time():
    """The member had to let go of what it may have run; it says so to the next leader."""

    async def scenario(clock):
        async with Fleet(clock, workers=1) as fleet:
            member = await begin(fleet, OLD)
            _, fetched = await take(member, 5)
            await fleet.machines[0].kill()
            await until(clock, lambda: not member.holds(fetched[0].tp, fetched[0].generation), limit_s=40)

            await fleet.add()
            await fleet.settled()
            _, again = await take(member, 5)

            assert acquired(again) == [(0, 4, 2)]

    virtually(scenario)


# --- dead letters -------------------------------------------------------------------------------------------------

DEAD_LETTERS = {
    "errors.deadletterqueue.topic.name": "dead",
    "errors.deadletterqueue.copy.record.enable": "true",
    "share.auto.offset.reset": "earliest",
}


def letters(fleet):
    """Values in the dead-letter topic."""
    storage = fleet.kafka.storage
    partitions = storage._partitions.get("dead")
    logs = [] if partitions is None else [log for _, log in partitions.made()]
    records = [record for log in logs for _, batch in walk(storage._store, log, 0) for record in decode_all(batch)]
    return [record.value for record in records]


def letter_config():
    """Workers that make the dead-letter topic."""
    return ServerConfig.embedded({"errors.deadletterqueue.auto.create.topics.enable": "true"})


def test_a_leader_makes_the_dead_letter_topic_on_kafka_and_fills_it():
    async def scenario(clock):
        async with Fleet(clock, workers=2, config=letter_config()) as fleet:
            await fleet.configure(**DEAD_LETTERS)
            member = await begin_again(fleet)
            _, fetched = await take(member, 5)
            await acknowledge(member, fetched, AckRange(0, 1, REJECT), AckRange(2, 4, ACCEPT))
            await until(clock, lambda: part(fleet)["start_offset"] == 5)

            assert letters(fleet) == [b"old", b"old"]

    virtually(scenario)


async def begin_again(fleet):
    """Five records and a member; the group is configured already."""
    await fleet.topic("orders")
    await fleet.produce("orders", *OLD)
    member = fleet.member("orders", member_id="m1")
    await member.start()
    return member


@pytest.mark.parametrize("graceful", [True, False])
def test_dead_letters_that_a_leader_could_not_write_are_written_by_the_next(graceful):
    async def scenario(clock):
        async with Fleet(clock, workers=2, config=letter_config()) as fleet:
            await fleet.configure(**DEAD_LETTERS)
            member = await begin_again(fleet)
            _, fetched = await take(member, 5)
            fleet.kafka.hold(m.CreateTopicRequest)
            await acknowledge(member, fetched, AckRange(0, 1, REJECT), AckRange(2, 4, ACCEPT))
            await clock.sleep(3)
            assert part(fleet)["start_offset"] == 0

            await end_leader(fleet, graceful=graceful)
            fleet.kafka.release(m.CreateTopicRequest)
            await fleet.produce("orders", b"more")
            _, fetched = await take(member, 1)
            await accept(member, fetched)
            await until(clock, lambda: part(fleet)["start_offset"] == 6)

            assert letters(fleet) == [b"old", b"old"]

    virtually(scenario)


# --- the log's start ----------------------------------------------------------------------------------------------


def test_a_log_start_that_passes_the_start_offset_while_it_is_led_takes_it_along():
    async def scenario(clock):
        async with Fleet(clock, workers=1) as fleet:
            member = await begin(fleet, OLD, OLD, OLD)
            first = await member.fetch(records_max=5, max_wait_s=5)
            assert acquired(first) == [(0, 4, 1)]

            await fleet.kafka.storage.delete_records("orders", 0, 10)
            await until(clock, lambda: part(fleet)["start_offset"] == 10)
            await acknowledge(member, first, AckRange(0, 4, ACCEPT))
            rest, fetched = await take(member, 5)
            await accept(member, fetched)

            assert [offset for _, offset in rest] == list(range(10, 15))
            assert part(fleet)["start_offset"] == 15
            assert part(fleet)["in_flight"] == 0

    virtually(scenario)


def test_a_log_start_that_passed_the_start_offset_while_nobody_led_is_found_by_who_takes_over():
    async def scenario(clock):
        async with Fleet(clock, workers=2) as fleet:
            member = await begin(fleet, OLD, OLD, OLD)
            first = await member.fetch(records_max=5, max_wait_s=5)
            await accept(member, first)

            await fleet.leader("orders", 0).kill()
            await fleet.kafka.storage.delete_records("orders", 0, 10)
            await fleet.settled()
            rest, fetched = await take(member, 5)
            await accept(member, fetched)

            assert acquired(first) == [(0, 4, 1)]
            assert [offset for _, offset in rest] == list(range(10, 15))
            assert part(fleet)["start_offset"] == 15

    virtually(scenario)


def test_a_log_that_retention_emptied_is_read_from_its_start():
    async def scenario(clock):
        async with Fleet(clock, workers=1) as fleet:
            member = await begin(fleet, OLD)
            _, fetched = await take(member, 5)
            await accept(member, fetched)
            await fleet.produce("orders", *OLD)

            await fleet.kafka.storage.delete_records("orders", 0, 10)
            await fleet.produce("orders", b"new")
            rest, fetched = await take(member, 1)
            await accept(member, fetched)

            assert [offset for _, offset in rest][-1] == 10
            assert part(fleet)["start_offset"] == 11

    virtually(scenario)
