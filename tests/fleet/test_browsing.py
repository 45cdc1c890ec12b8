"""Browsing on a fleet: whoever is asked, the share-partition's leader tells, also one that has just begun to lead."""

from __future__ import annotations

import asyncio

import pytest

from flowshare.client.errors import ServerError
from flowshare.protocol.errors import ErrorCode
from flowshare.share.types import AckRange
from tests.fleet.test_worker import virtually
from tests.fleet.world import EARLIEST, Fleet, batch

ACCEPT, RELEASE = b"\x01", b"\x02"


async def held(fleet: Fleet, values: int = 5):
    """A member that holds records of each of four partitions."""
    await fleet.topic("orders", 4)
    await fleet.configure(**EARLIEST)
    for partition in range(4):
        await fleet.kafka.storage.append("orders", partition, batch(*[b"%d" % number for number in range(values)]))
    member = fleet.member("orders")
    await member.start()
    found = {}
    async with asyncio.timeout(120):
        while len(found) < 4:
            found |= {one.tp.partition: one for one in await member.fetch(records_max=100, max_wait_s=0.5)}
    return member, found


def runs(page):
    return [(one.first, one.last, one.state) for one in page.runs]


def test_the_leader_of_each_share_partition_tells_of_it_whoever_is_asked():
    async def scenario(clock):
        async with Fleet(clock, workers=3) as fleet:
            member, found = await held(fleet)
            acks = [AckRange(0, 0, ACCEPT), AckRange(2, 2, RELEASE, 60_000)]
            await member.acknowledge({found[1].tp: acks}, generation=found[1].generation)
            admin = fleet.admin()

            pages = [await admin.browse("g", "orders", partition) for partition in range(4)]

            assert await admin.places("g") == [("orders", partition) for partition in range(4)]
            assert [runs(page) for page in pages] == [
                [(0, 4, "acquired")],
                [(1, 1, "acquired"), (2, 2, "delayed"), (3, 4, "acquired")],
                [(0, 4, "acquired")],
                [(0, 4, "acquired")],
            ]
            assert {one.member_id for page in pages for one in page.runs} == {member.member_id, ""}
            assert [page.leader for page in pages] == [
                100 + fleet.leader("orders", partition).number for partition in range(4)
            ]
            assert all(page.loaded and page.leader_epoch > 0 for page in pages)
            await admin.close()
            await member.close(timeout_s=1.0)

    virtually(scenario)


def test_what_an_operator_did_is_known_to_the_next_leader():
    async def scenario(clock):
        async with Fleet(clock, workers=3) as fleet:
            await held(fleet)
            admin = fleet.admin()
            (rejected,) = await admin.intervene("g", "orders", 2, [(3, 9)], "reject")
            assert (rejected.done, rejected.not_held) == (2, 5)

            await fleet.leader("orders", 2).kill()
            await fleet.settled()
            page = await admin.browse("g", "orders", 2)

            assert page.leader == 100 + fleet.leader("orders", 2).number
            assert [run for run in runs(page) if run[0] > 2] == [(3, 4, "archived")]
            await admin.close()

    virtually(scenario)


def test_while_a_leader_hands_over_pages_come_from_whoever_leads():
    async def scenario(clock):
        async with Fleet(clock, workers=3) as fleet:
            member, _ = await held(fleet)
            admin = fleet.admin()
            leaving = asyncio.ensure_future(fleet.leader("orders", 3).stop())
            pages = []
            while not leaving.done():
                pages.append(await admin.browse("g", "orders", 3))
                await clock.sleep(0.05)
            await leaving
            pages.append(await admin.browse("g", "orders", 3))

            assert {page.end_offset for page in pages} == {5}
            assert all(run.member_id == member.member_id for page in pages for run in page.runs)
            assert pages[-1].leader == 100 + fleet.leader("orders", 3).number
            await admin.close()
            await member.close(timeout_s=1.0)

    virtually(scenario)


def test_a_leader_that_has_loaded_nothing_reads_what_is_stored_and_loads_nothing():
    async def scenario(clock):
        async with Fleet(clock, workers=2) as fleet:
            member, _ = await held(fleet)
            await member.close(timeout_s=1.0)
            machine = fleet.leader("orders", 0)
            partitions = machine.worker._service.partitions
            for owner in partitions.owners("g"):
                await partitions.drop([owner.key])
            writes = machine.worker._service.stats.state_writes
            admin = fleet.admin()

            pages = [await admin.browse("g", "orders", 0) for _ in range(20)]

            assert {(page.loaded, page.start_offset, page.end_offset) for page in pages} == {(False, 0, 5)}
            assert all("nobody has loaded" in page.unknown for page in pages)
            assert [owner.key.partition for owner in partitions.owners("g")] == []
            assert machine.worker._service.stats.state_writes == writes
            await admin.close()

    virtually(scenario)


def test_a_refusal_of_the_leader_is_told_at_once():
    async def scenario(clock):
        async with Fleet(clock, workers=2) as fleet:
            await held(fleet)
            admin = fleet.admin()
            begun_s = clock.monotonic()
            for partition in range(4):
                with pytest.raises(ServerError) as refused:
                    await admin.intervene("g", "orders", partition, [(0, 0)], "dead_letter")
                assert refused.value.code is ErrorCode.INVALID_REQUEST
            with pytest.raises(ServerError) as refused:
                await admin.browse("g", "none", 0)
            assert refused.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            assert clock.monotonic() - begun_s < 5
            await admin.close()

    virtually(scenario)


def test_who_watches_a_fleet_sees_all_share_partitions_also_while_they_move_and_as_one_asked_alone():
    async def scenario(clock):
        async with Fleet(clock, workers=2) as fleet:
            member, found = await held(fleet)
            admin = fleet.admin()
            watch = admin.watch()

            async def seen(who):
                return {where[2]: (row.start_offset, row.lag) for where, row in (await who.look()).items()}

            assert await seen(watch) == dict.fromkeys(range(4), (0, 5))
            assert sum(watch.led().values()) == 4
            await member.acknowledge({found[1].tp: [AckRange(0, 2, ACCEPT)]}, generation=found[1].generation)
            await clock.sleep(1.0)
            assert (await seen(watch))[1] == (3, 2)

            await fleet.add()
            await fleet.settled()
            await clock.sleep(6.0)
            assert await seen(watch) == {0: (0, 5), 1: (3, 2), 2: (0, 5), 3: (0, 5)}
            assert await seen(admin.watch()) == await seen(watch)
            gone = fleet.leader("orders", 1)
            await gone.kill()
            await fleet.settled()
            await clock.sleep(6.0)
            assert await seen(watch) == {0: (0, 5), 1: (3, 2), 2: (0, 5), 3: (0, 5)}
            offsets = {one.partition: (one.start_offset, one.lag) for one in await admin.group_offsets("g")}
            assert await seen(watch) == offsets
            await admin.close()

    virtually(scenario)
