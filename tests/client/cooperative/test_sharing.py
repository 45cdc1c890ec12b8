"""Who handles which keys when members come, go, die and stand still: scenarios of the reference (queue-systems, §5.6),
end to end on a server in memory, on virtual time. The numbers are theirs."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from typing import Any

import pytest

from flowshare.client.cooperative.consumer import CooperativeConsumer
from flowshare.client.groups.consumer import GroupConsumer
from flowshare.cooperative.types import HASHES, WHOLE, KeyRange
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.messages import OffsetCommitRequest, OffsetFetchRequest, OffsetToCommit
from flowshare.testing import run
from tests.client.cooperative.worlds import QUICK, CoopWorld, Worker, coop_world

HALF = HASHES // 2


async def shared(world: CoopWorld, *workers: Worker) -> None:
    """Wait until each holds what it is to have, and together that is everything."""

    def there() -> bool:
        targets = [one.consumer.assignment() for one in workers]
        covered = sum(end - first for target in targets for keys in target.values() for first, end in keys)
        partitions = {place for target in targets for place in target}
        whole = bool(partitions) and covered == HASHES * len(partitions)
        return whole and all(one.consumer.held() == one.consumer.assignment() for one in workers)

    await world.until(there)


def test_21_after_a_restart_exactly_what_is_not_committed_comes() -> None:
    async def story() -> None:
        async with coop_world() as world:
            await world.send(20, keys=20)
            first = world.consumer(member_id="a")
            first.subscribe(["orders"])
            got: list[Any] = []
            while len(got) < 20:
                got += await first.poll(5.0)
            for record in got:
                if record.offset not in (3, 4, 11):
                    assert first.commit(record)
            await first.commit_sync()
            await first.close()
            again = world.consumer(member_id="b")
            again.subscribe(["orders"])
            came: list[Any] = []
            while len(came) < 3:
                came += await again.poll(5.0)
            assert sorted(record.offset for record in came) == [3, 4, 11]
            assert await again.poll(2.0) == []
            await again.close()

    run(story())


def test_20_one_stuck_record_leaves_one_range_however_many_are_finished_behind_it() -> None:
    async def story() -> None:
        async with coop_world() as world:
            await world.send(3_000, keys=3_000)

            async def handler(record: Any) -> None:
                if record.offset == 0:
                    await asyncio.sleep(10_000)

            worker = world.worker("a", handler, concurrency=200)
            await world.until(lambda: len(world.runs) == 3_000)
            await world.until(lambda: world.state().offsets.furthest == 3_000)
            assert world.stable() == 0
            assert world.state().offsets.count == 1
            worker.kill()

    run(story())


def test_25_a_consumer_that_commits_one_offset_a_partition_is_refused_by_the_group() -> None:
    async def story() -> None:
        async with coop_world() as world:
            await shared(world, world.worker("a"))
            ordinary = GroupConsumer(
                world.world.connect, group_id="g", topics=["orders"], clock=world.clock, reset="earliest"
            )
            ordinary.start()
            await world.until(lambda: ordinary.member.trouble is not None)
            assert "INCONSISTENT_GROUP_PROTOCOL" in str(ordinary.member.trouble)
            await ordinary.close()

    run(story())


@pytest.mark.parametrize(("members", "shares"), [(1, [3]), (2, [1, 2]), (3, [1, 1, 1]), (5, [1, 1, 1, 1, 1])])
def test_26_27_28_members_get_whole_partitions_while_there_are_enough_and_equal_shares_then(
    members: int, shares: list[int]
) -> None:
    async def story() -> None:
        async with coop_world(partitions=3) as world:
            workers = [world.worker(f"m{number}") for number in range(members)]
            await shared(world, *workers)
            targets = [one.consumer.assignment() for one in workers]
            assert sorted(map(len, targets)) == shares
            if members <= 3:
                assert all(keys == WHOLE for target in targets for keys in target.values())
            else:
                parts = sorted(keys for target in targets for keys in target.values())
                assert parts.count((KeyRange(0, HALF),)) == parts.count((KeyRange(HALF, HASHES),)) == 2
                assert parts.count(WHOLE) == 1

    run(story())


def test_30_a_topic_that_one_member_does_not_share_is_not_split() -> None:
    async def story() -> None:
        async with coop_world() as world:
            a = world.worker("a")
            b = world.worker("b", settings=replace(QUICK, unshared_topics=("orders",)))
            await shared(world, a, b)
            assert sorted(map(len, (a.consumer.assignment(), b.consumer.assignment()))) == [0, 1]

    run(story())


def test_31_a_leave_moves_the_range_of_the_leaver_only() -> None:
    async def story() -> None:
        async with coop_world(partitions=3) as world:
            workers = [world.worker(f"m{number}") for number in range(5)]
            await shared(world, *workers)
            before = {one.name: one.consumer.assignment() for one in workers}
            leaver = next(one for one in workers if WHOLE not in before[one.name].values())
            (place,) = before[leaver.name]
            await leaver.stop()
            rest = [one for one in workers if one is not leaver]
            await shared(world, *rest)
            for one in rest:
                after = one.consumer.assignment()
                assert after == (before[one.name] if place not in before[one.name] else {place: WHOLE}), (
                    f"{one.name} had {before[one.name]}"
                )

    run(story())


def test_32_ranges_by_hand_may_not_overlap_and_none_are_the_whole_partition() -> None:
    async def story() -> None:
        async with coop_world() as world:
            with pytest.raises(ValueError, match="overlap"):
                world.consumer().assign({("orders", 0): [(0, 100), (50, 200)]})
            await world.send(20, keys=20)
            low: CooperativeConsumer[Any, Any] = world.consumer(member_id="low")
            low.assign({("orders", 0): [(0, HALF)]})
            got = await low.poll(5.0)
            assert 0 < len(got) < 20
            assert low.held() == {("orders", 0): (KeyRange(0, HALF),)}
            rest: CooperativeConsumer[Any, Any] = world.consumer(member_id="rest")
            rest.assign({("orders", 0): []})
            others = await rest.poll(5.0)
            assert {one.offset for one in got} | {one.offset for one in others} == set(range(20))
            assert not {one.offset for one in got} & {one.offset for one in others}
            assert "low" in str(rest.trouble)
            await low.close()
            again = await rest.poll(5.0)
            assert {one.offset for one in again} == {one.offset for one in got}
            await rest.close()

    run(story())


def test_33_a_key_that_takes_half_of_the_records_holds_up_its_member_only() -> None:
    async def story() -> None:
        async with coop_world() as world:
            from flowshare.client.producer.producer import Message

            messages = [
                Message(b"x", key=b"hot" if number % 2 else b"key %d" % (number % 40), partition=0)
                for number in range(400)
            ]
            await world.world.producer.send_many("orders", messages)

            async def handler(record: Any) -> None:
                await asyncio.sleep(0.1)

            workers = [world.worker(name, handler, concurrency=4) for name in "abc"]
            await world.until(lambda: len(world.runs) > 200)
            await shared(world, *workers)
            hot = next(one.member for one in reversed(world.runs) if one.key == b"hot")
            rest_done = max(one.ended_s for one in world.runs if one.member != hot)
            await world.until(lambda: world.stable() == 400)
            assert max(one.ended_s for one in world.runs) > rest_done
            assert all(len(runs) == 1 for runs in world.handled().values())
            world.check_order()

    run(story())


def test_34_partitions_that_are_added_are_read_and_what_was_held_stays() -> None:
    async def story() -> None:
        async with coop_world() as world:
            a, b = world.worker("a"), world.worker("b")
            await shared(world, a, b)
            await world.world.admin.create_partitions("orders", 4)
            await world.until(lambda: len(a.consumer.assignment()) + len(b.consumer.assignment()) == 4, limit_s=60)
            await shared(world, a, b)

    run(story())


def test_36_a_slow_record_keeps_its_slot_and_all_others_move_at_once() -> None:
    async def story() -> None:
        async with coop_world() as world:
            await world.send(60, keys=60)

            async def handler(record: Any) -> None:
                await asyncio.sleep(60.0 if record.key == b"key 7" else 0.01)

            a = world.worker("a", handler, concurrency=60)
            await world.until(lambda: sum(one.committed for one in world.runs) == 59)
            b = world.worker("b", handler)
            await world.until(lambda: bool(b.consumer.held()))
            moved = sum(end - first for keys in b.consumer.held().values() for first, end in keys)
            wanted = sum(end - first for keys in b.consumer.assignment().values() for first, end in keys)
            assert wanted - moved in (0, 1 << 15)
            await shared(world, a, b)
            await world.until(lambda: world.stable() == 60)
            assert all(len(runs) == 1 for runs in world.handled().values())
            world.check_order()
            if wanted > moved:
                assert world.state().claims.state.counts.blocked > 0

    run(story())


def test_37_what_a_member_had_that_dies_comes_again_when_its_lease_is_over() -> None:
    async def story() -> None:
        async with coop_world() as world:
            await world.send(40, keys=10)

            async def handler(record: Any) -> None:
                await asyncio.sleep(1.0)

            a, b = world.worker("a", handler, concurrency=3), world.worker("b", handler, concurrency=3)
            await shared(world, a, b)
            await world.until(lambda: any(one.member == "a" for one in world.runs))
            a.kill()
            died_s = asyncio.get_running_loop().time()
            await world.until(lambda: world.stable() == 40)
            again = {offset for offset, runs in world.handled().items() if len(runs) > 1}
            assert again == {one.offset for one in world.runs if one.member == "a" and not one.committed}
            for offset in again:
                assert world.handled()[offset][-1].began_s >= died_s
            world.check_order()

    run(story())


def test_38_a_member_that_stood_still_past_its_lease_commits_nothing_any_more() -> None:
    async def story() -> None:
        async with coop_world() as world:
            await world.send(8, keys=1)
            released = asyncio.Event()

            async def handler(record: Any) -> None:
                if record.offset == 2 and len(world.handled()[2]) == 1:
                    await released.wait()

            a = world.worker("a", handler)
            await world.until(lambda: len(world.runs) == 3)
            world.faults.away.add("a")
            b = world.worker("b", handler)
            await world.until(lambda: world.stable() == 8)
            released.set()
            await asyncio.sleep(0.1)
            zombie = world.handled()[2][0]
            assert zombie.member == "a"
            assert zombie.ended_s > 0
            assert not zombie.committed
            world.faults.away.clear()
            await shared(world, a, b)

    run(story())


def test_39_a_range_that_comes_back_before_it_drained_goes_on_without_a_repeat() -> None:
    async def story() -> None:
        async with coop_world() as world:
            await world.send(60, keys=20)

            async def handler(record: Any) -> None:
                await asyncio.sleep(3.0)

            a = world.worker("a", handler, concurrency=20)
            await world.until(lambda: len(world.runs) == 20)
            b = world.worker("b", handler, concurrency=20)
            await world.until(lambda: bool(b.consumer.assignment()))
            await b.stop()
            await shared(world, a)
            await world.until(lambda: world.stable() == 60)
            assert all(len(runs) == 1 for runs in world.handled().values())
            world.check_order()

    run(story())


def test_40_the_back_off_of_a_record_goes_with_its_key_and_nothing_overtakes_it() -> None:
    async def story() -> None:
        async with coop_world() as world:
            await world.send(40, keys=8)
            tried: dict[int, int] = {}
            order: list[tuple[bytes, int]] = []
            stopped = asyncio.Event()

            async def loop(consumer: CooperativeConsumer[Any, Any]) -> None:
                while not stopped.is_set():
                    for record in await consumer.poll(0.5):
                        tried[record.offset] = tried.get(record.offset, 0) + 1
                        if record.offset < 8 and tried[record.offset] < 3:
                            consumer.release(record, delay=4.0)
                            continue
                        order.append((record.key, record.offset))
                        consumer.commit(record)

            consumers = [world.consumer(member_id=name) for name in "abc"]
            tasks = []
            for consumer in consumers:
                consumer.subscribe(["orders"])
                tasks.append(asyncio.create_task(loop(consumer)))
                await asyncio.sleep(2.0)
            await world.until(lambda: world.stable() == 40)
            stopped.set()
            await asyncio.gather(*tasks)
            for consumer in consumers:
                await consumer.close()
            for key in {one for one, _ in order}:
                offsets = [offset for one, offset in order if one == key]
                assert offsets == sorted(set(offsets))

    run(story())


@pytest.mark.parametrize("mode", ["strict", "available"])
def test_41_a_key_that_does_not_drain_is_waited_for_or_taken(mode: Any) -> None:
    async def story() -> None:
        settings = replace(QUICK, drain_mode=mode, drain_timeout=3.0)
        async with coop_world() as world:
            await world.send(30, keys=30)

            async def handler(record: Any) -> None:
                await asyncio.sleep(40.0 if record.offset >= 20 and len(world.handled()[record.offset]) == 1 else 0.01)

            a = world.worker("a", handler, concurrency=30, settings=settings)
            await world.until(lambda: sum(one.committed for one in world.runs) == 20)
            b = world.worker("b", handler, concurrency=30, settings=settings)
            await world.until(lambda: bool(b.consumer.assignment()))
            await asyncio.sleep(15.0)
            overlaps = world.state().claims.state.counts.taken
            if mode == "strict":
                assert overlaps == 0
                assert all(len(runs) == 1 for runs in world.handled().values())
                assert "held by members" in str(b.consumer.trouble)
            else:
                assert overlaps > 0
                assert any(len(runs) == 2 for runs in world.handled().values())
            await world.until(lambda: world.stable() == 30)
            await shared(world, a, b)

    run(story())


@pytest.mark.parametrize("seed", range(3))
def test_42_members_that_come_and_go_all_the_time_lose_nothing_and_stop_nothing(seed: int) -> None:
    async def story() -> None:
        rng = random.Random(seed)
        async with coop_world(partitions=2) as world:

            async def handler(record: Any) -> None:
                await asyncio.sleep(rng.random() * 0.2)

            world.worker("stays", handler)
            await world.send(1_500, keys=60)
            guests: list[Worker] = []
            for number in range(40):
                await asyncio.sleep(rng.random() * 0.5)
                if guests and rng.random() < 0.5:
                    await guests.pop(rng.randrange(len(guests))).stop()
                else:
                    guests.append(world.worker(f"guest {number}", handler))
            await world.until(lambda: world.stable() >= 0 and len(world.handled()) == 1_500)
            await world.until(lambda: all(one.committed for one in world.runs))
            assert all(len(runs) == 1 for runs in world.handled().values()), "nobody died"
            world.check_order()

    run(story())


@pytest.mark.parametrize("seed", range(2))
def test_42_eight_members_that_change_two_hundred_times_lose_no_range_and_never_stand_still(seed: int) -> None:
    async def story() -> None:
        rng = random.Random(seed)
        async with coop_world(partitions=2) as world:

            async def handler(record: Any) -> None:
                await asyncio.sleep(rng.random() * 0.1)

            there = [world.worker(f"m{number}", handler) for number in range(8)]
            began = 0
            for number in range(200):
                await world.send(20, keys=200, first=20 * number)
                await asyncio.sleep(rng.random() * 0.5)
                if there and (len(there) == 8 or rng.random() < 0.5):
                    await there.pop(rng.randrange(len(there))).stop()
                else:
                    there.append(world.worker(f"later {number}", handler))
                if number % 40 == 39:
                    assert len(world.runs) > began, "nothing began for 40 changes, which take some 10 seconds"
                    began = len(world.runs)
            there += [world.worker(f"last {number}", handler) for number in range(8 - len(there))]
            await shared(world, *there)
            await world.until(lambda: len(world.handled()) == 4_000 and all(one.committed for one in world.runs))
            assert all(len(runs) == 1 for runs in world.handled().values()), "nobody died"
            world.check_order()

    run(story())


def test_a_lost_answer_of_a_hold_repeats_nothing() -> None:
    async def story() -> None:
        rng = random.Random(7)
        async with coop_world() as world:
            world.faults.lose_answer = lambda request: rng.random() < 0.2
            world.faults.lose_call = lambda request: rng.random() < 0.2
            await world.send(300, keys=30)
            workers = [world.worker(name) for name in "abc"]
            await world.until(lambda: world.stable() == 300)
            assert all(len(runs) == 1 for runs in world.handled().values())
            world.check_order()
            world.faults.lose_answer = world.faults.lose_call = lambda request: False
            await shared(world, *workers)

    run(story())


def test_tools_see_the_stable_offset_as_that_of_the_group_and_23_a_reset_begins_anew() -> None:
    async def story() -> None:
        async with coop_world() as world:
            await world.send(30)
            a = world.worker("a")
            await world.until(lambda: world.stable() == 30)
            await asyncio.sleep(10)
            assert await ordinary(world) == 30
            await a.stop()
            connection = await world.world.connect()
            request = OffsetCommitRequest(group_id="g", offsets=(OffsetToCommit("orders", 0, 12),))
            (answer,) = (await connection.send(request)).partitions
            assert answer.error is ErrorCode.NONE
            await connection.close()
            world.worker("b")
            await world.until(lambda: len(world.runs) == 48)
            assert sorted(one.offset for one in world.runs if one.member == "b") == list(range(12, 30))
            await world.until(lambda: world.stable() == 30)

    run(story())


@pytest.mark.parametrize("how", ["deleted", "expired"])
def test_24_what_members_committed_of_a_group_that_is_gone_does_not_come_back_with_its_name(how: str) -> None:
    async def story() -> None:
        async with coop_world() as world:
            world.world.server.classic.config = replace(
                world.world.server.classic.config, offsets_retention_minutes=1, retention_check_interval_ms=1_000
            )
            await world.send(30, keys=30)
            assert await handled(world, "a", 30, but=(5, 11)) == list(range(30))
            assert await handled(world, "b", 2, but=(5, 11)) == [5, 11]
            if how == "expired":
                await asyncio.sleep(1_300.0)
            else:
                await world.world.admin.delete_group("g")
            assert await handled(world, "c", 30) == list(range(30))

    run(story())


async def handled(world: CoopWorld, name: str, count: int, *, but: tuple[int, ...] = ()) -> list[int]:
    """Offsets that come to a consumer, which commits them with the exception of some, and leaves in order."""
    consumer = world.consumer(member_id=name)
    consumer.subscribe(["orders"])
    found: list[int] = []
    async with consumer:
        while len(found) < count:
            for record in await consumer.poll(5.0):
                found.append(record.offset)
                if record.offset not in but:
                    consumer.commit(record)
        await consumer.commit_sync()
    return sorted(found)


async def ordinary(world: CoopWorld) -> int:
    connection = await world.world.connect()
    answer = await connection.send(OffsetFetchRequest(group_id="g", partitions=(("orders", 0),)))
    await connection.close()
    return int(answer.partitions[0].offset)


def test_35_workers_that_are_replaced_one_by_one_under_load_repeat_nothing() -> None:
    async def story() -> None:
        async with coop_world(partitions=2) as world:

            async def handler(record: Any) -> None:
                await asyncio.sleep(0.05)

            old = [world.worker(f"old {number}", handler) for number in range(5)]
            await shared(world, *old)
            await world.send(3_000, keys=1_000)
            new: list[Worker] = []
            for number, worker in enumerate(old):
                await worker.stop()
                new.append(world.worker(f"new {number}", handler))
                await asyncio.sleep(1.0)
            await world.until(lambda: len(world.handled()) == 3_000 and all(one.committed for one in world.runs))
            assert all(len(runs) == 1 for runs in world.handled().values())
            world.check_order()

    run(story())
