"""Free mode: members take what comes next, whatever its key; on a server in memory, on virtual time."""

from __future__ import annotations

import asyncio
import random
from collections import Counter, defaultdict
from dataclasses import replace
from typing import Any

import pytest

from flowshare.client.cooperative.dispatch import Found
from flowshare.client.cooperative.scan import Progress
from flowshare.client.cooperative.spans import SpanScan
from flowshare.client.errors import IllegalState
from flowshare.testing import run
from tests.client.cooperative.worlds import QUICK, Worker, coop_world


def test_members_take_parts_of_one_partition_and_every_record_is_handled_once() -> None:
    async def story() -> None:
        async with coop_world() as world:
            await world.send(300, keys=1)
            for name in "abc":
                world.worker(name, free=True, concurrency=4)
            await world.until(lambda: world.stable() == 300)
            assert all(len(runs) == 1 for runs in world.handled().values())
            shares = [sum(one.member == name for one in world.runs) for name in "abc"]
            assert min(shares) > 50, f"one key holds nobody up here: {shares}"

    run(story())


def test_what_a_member_had_that_dies_comes_again_when_its_lease_is_over() -> None:
    async def story() -> None:
        async with coop_world() as world:
            await world.send(60)

            async def handler(record: Any) -> None:
                await asyncio.sleep(1.0)

            a = world.worker("a", handler, free=True, concurrency=3)
            world.worker("b", handler, free=True, concurrency=3)
            await world.until(lambda: sum(one.member == "a" for one in world.runs) > 3)
            a.kill()
            await world.until(lambda: world.stable() == 60)
            again = {offset for offset, runs in world.handled().items() if len(runs) > 1}
            assert again == {one.offset for one in world.runs if one.member == "a" and not one.committed}

    run(story())


def test_what_is_released_comes_again_here_and_what_a_member_leaves_is_free_at_once() -> None:
    async def story() -> None:
        async with coop_world() as world:
            await world.send(10)
            given: Counter[int] = Counter()
            first = world.consumer(replace(QUICK, max_poll_records=4), member_id="a", free=True)
            first.subscribe(["orders"])
            got = await first.poll(5.0)
            given.update(one.offset for one in got)
            assert len(got) == 4
            assert first.release(got[0], delay=2.0)
            began_s = asyncio.get_running_loop().time()
            while given[got[0].offset] < 2:
                for one in await first.poll(5.0):
                    given[one.offset] += 1
                    assert one.attempt == given[one.offset]
                assert asyncio.get_running_loop().time() < began_s + 10
            await first.close()
            second = world.consumer(replace(QUICK, max_poll_records=10), member_id="b", free=True)
            second.subscribe(["orders"])
            came: dict[int, int] = {}
            while len(came) < 10:
                found = await second.poll(1.0)
                assert found, "nothing waits for a lease"
                came.update((one.offset, one.attempt) for one in found)
                assert all(map(second.commit, found)), "what was given out twice already comes alone"
            assert came == {offset: given[offset] + 1 for offset in range(10)}
            await second.close()

    run(story())


@pytest.mark.parametrize("free", [True, False])
def test_what_is_in_hand_when_a_consumer_closes_counts_as_given_out(free: bool) -> None:
    """As of an application that closes it because a record made it fail."""

    async def story() -> None:
        async with coop_world() as world:
            await world.send(1)
            for attempt in range(1, 5):
                async with world.consumer(member_id=f"m{attempt}", free=free) as consumer:
                    consumer.subscribe(["orders"])
                    (record,) = await consumer.poll(5.0)
                    assert record.attempt == attempt

    run(story())


@pytest.mark.parametrize("free", [True, False])
def test_however_much_is_in_hand_when_a_consumer_closes_all_of_it_counts(free: bool) -> None:
    async def story() -> None:
        async with coop_world() as world:
            await world.send(12_000, keys=12_000)
            settings = replace(QUICK, max_poll_records=4_000)
            first = world.consumer(settings, member_id="a", free=free)
            first.subscribe(["orders"])
            given = 0
            while given < 12_000:
                given += len(await first.poll(5.0))
            await first.close()
            async with world.consumer(settings, member_id="b", free=free) as second:
                second.subscribe(["orders"])
                records = await second.poll(5.0)
                assert {one.attempt for one in records} == {2}

    run(story())


@pytest.mark.parametrize("exact", [True, False])
def test_a_record_that_ends_its_members_counts_all_of_them_and_runs_alone_then(exact: bool) -> None:
    async def story() -> None:
        async with coop_world() as world:
            await world.send(60)
            tries: dict[int, list[tuple[str, int]]] = defaultdict(list)
            beside: list[int] = []
            settings = replace(QUICK, exact_starts=exact)

            def member(name: str) -> Worker:
                async def handler(record: Any) -> None:
                    tries[record.offset].append((name, record.attempt))
                    if record.offset == 17:
                        beside.append(len(world.workers[-1].at_work) - 1)
                        if record.attempt <= 4:
                            world.workers[-1].kill()
                    await asyncio.sleep(0.1)

                return world.worker(name, handler, free=True, concurrency=3, settings=settings)

            for number in range(4):
                member(f"m{number}")
                await world.until(lambda number=number: len(tries[17]) == number + 1)
            member("last")
            await world.until(lambda: world.stable() == 60)

            assert [attempt for _, attempt in tries[17]] == [1, 2, 3, 4, 5]
            assert beside[2:] == [0, 0, 0], "two died with it: it runs alone"
            attempts = [told[-1][1] for offset, told in tries.items() if offset != 17]
            assert max(attempts) <= 3, "what was in flight beside it at most: the first two times"
            if exact:
                assert sum(told > 1 for told in attempts) <= 4, "two beside it died with it twice"

    run(story())


def test_what_is_committed_before_it_is_handled_is_handled_once_at_most() -> None:
    async def story() -> None:
        async with coop_world() as world:
            await world.send(60)
            ran: list[int] = []

            def member(name: str) -> Worker:
                async def handler(record: Any) -> None:
                    worker.consumer.commit(record)
                    await worker.consumer.commit_sync()
                    ran.append(record.offset)
                    await asyncio.sleep(0.1)

                worker = world.worker(
                    name, handler, free=True, concurrency=3, settings=replace(QUICK, exact_starts=True)
                )
                return worker

            for number in range(3):
                dies = member(f"m{number}")
                await world.until(lambda number=number: len(ran) >= 10 * (number + 1))
                dies.kill()
            last = member("last")
            await world.until(lambda: world.stable() == 60)
            await last.stop()
            assert len(ran) == len(set(ran)) >= 60 - 3 * 3

    run(story())


def test_a_partition_is_shared_in_one_way_at_a_time() -> None:
    async def story() -> None:
        async with coop_world() as world:
            await world.send(10)
            keys = world.consumer(member_id="a")
            keys.subscribe(["orders"])
            await keys.poll(5.0)
            free = world.consumer(member_id="b", free=True)
            free.subscribe(["orders"])
            assert await free.poll(2.0) == []
            assert "INCONSISTENT_GROUP_PROTOCOL" in str(free.trouble)
            await free.close()
            await keys.close()
            with pytest.raises(IllegalState):
                world.consumer(free=True).assign({("orders", 0): []})

    run(story())


def test_spans_end_when_all_of_them_is_committed_and_holes_are_void() -> None:
    scan: SpanScan[str] = SpanScan()
    scan.taken([(10, 16, 1), (30, 32, 2)], Progress(0, 1, 0, 0))
    assert scan.position() == 10
    assert scan.scanned(8, 20, [(8, 0, "x"), (11, 0, "a"), (14, 0, "b"), (17, 0, "y")]) == 2
    assert scan.position() == 30
    scan.scanned(30, 40, [(30, 0, "c"), (31, 0, "d")])
    taken: list[Found[str]] = scan.take(10, 0.0)
    assert [one.record for one in taken] == ["a", "b", "c", "d"]
    assert [one.epoch for one in taken] == [1, 1, 2, 2]
    for one in taken[:3]:
        assert scan.finish(one)
    batch = scan.commit()
    assert batch is not None
    assert list(batch.parts) == [(1, [(10, 16)]), (2, [(30, 31)])]
    scan.committed(batch, Progress(0, 1, 1, 16))
    assert scan.epochs == (2,)
    assert scan.lose_spans([2]) == [taken[3]]
    assert not scan.finish(taken[3])


@pytest.mark.parametrize("seed", range(3))
def test_members_that_come_and_go_all_the_time_lose_nothing(seed: int) -> None:
    async def story() -> None:
        rng = random.Random(seed)
        async with coop_world(partitions=2) as world:

            async def handler(record: Any) -> None:
                await asyncio.sleep(rng.random() * 0.2)

            world.worker("stays", handler, free=True)
            await world.send(1_000, keys=60)
            guests: list[Any] = []
            for number in range(30):
                await asyncio.sleep(rng.random() * 0.5)
                if guests and rng.random() < 0.5:
                    await guests.pop(rng.randrange(len(guests))).stop()
                else:
                    guests.append(world.worker(f"guest {number}", handler, free=True))
            await world.until(lambda: len(world.handled()) == 1_000 and all(one.committed for one in world.runs))
            assert all(len(runs) == 1 for runs in world.handled().values()), "nobody died"

    run(story())


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("free", [True, False])
@pytest.mark.parametrize("seed", range(2))
def test_whoever_dies_or_leaves_no_record_is_given_out_under_an_attempt_that_it_had_before(
    seed: int, free: bool, exact: bool
) -> None:
    async def story() -> None:
        rng = random.Random(seed)
        given: dict[int, list[int]] = defaultdict(list)
        async with coop_world(partitions=1) as world:
            settings = replace(QUICK, exact_starts=exact)

            async def handler(record: Any) -> None:
                given[record.offset].append(record.attempt)
                await asyncio.sleep(rng.random())

            await world.send(600, keys=60)
            here = [world.worker("stays", handler, free=free, settings=settings, concurrency=4)]
            for number in range(12):
                await asyncio.sleep(rng.random() * 2)
                here.append(world.worker(f"guest {number}", handler, free=free, settings=settings, concurrency=4))
                if len(here) > 3:
                    gone = here.pop(rng.randrange(1, len(here)))
                    if rng.random() < 0.6:
                        gone.kill()
                    else:
                        gone.task.cancel()
                        for one in gone.at_work:
                            one.cancel()
                        await gone.consumer.close()
            await world.until(lambda: world.stable() == 600)
        for offset, attempts in given.items():
            assert attempts == sorted(set(attempts)), f"{offset} was given out as {attempts}"
        assert any(len(attempts) > 1 for attempts in given.values())

    run(story())
