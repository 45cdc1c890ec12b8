"""Consumers of a cooperative group on a server in memory, on virtual time. Numbers in brackets: scenarios of the
reference (queue-systems, §5.6)."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from flowshare.client.errors import Closed, IllegalState, RecordError
from flowshare.testing import run
from tests.client.cooperative.worlds import QUICK, coop_world


def test_one_consumer_gets_all_records_and_commits_them() -> None:
    async def story() -> None:
        async with coop_world() as world:
            await world.send(50)
            world.worker("a")
            await world.until(lambda: len(world.runs) == 50)
            await world.until(lambda: world.stable() == 50)
            world.check_order()

    run(story())


def test_a_consumer_whose_close_is_cancelled_leaves_nothing_at_work() -> None:
    """It waits for a member that left before, for want of polls."""

    async def story() -> None:
        async with coop_world() as world:
            await world.send(10)
            consumer: Any = world.consumer()
            consumer.subscribe(["orders"])
            assert await consumer.poll(5.0)
            member = consumer._member
            consumer._leaving[asyncio.create_task(asyncio.sleep(1e6))] = member
            closing = asyncio.create_task(consumer.close())
            await asyncio.sleep(1.0)
            closing.cancel()
            await asyncio.wait({closing})
            assert closing.cancelled()
            assert all(task.done() for task in member._tasks)
            assert member._link.current is None

    run(story())


def test_two_consumers_share_one_partition_by_keys() -> None:
    async def story() -> None:
        async with coop_world() as world:
            await world.send(100, keys=40)
            world.worker("a")
            world.worker("b")
            await world.until(lambda: world.stable() == 100)
            await world.send(100, keys=40, first=100)
            await world.until(lambda: world.stable() == 200)
            assert all(len(runs) == 1 for runs in world.handled().values())
            assert {one.member for one in world.runs if one.offset >= 100} == {"a", "b"}
            world.check_order()

    run(story())


def test_of_each_key_one_record_is_in_hand_and_the_next_one_comes_when_that_is_committed() -> None:
    async def story() -> None:
        async with coop_world() as world:
            await world.send(6, keys=2)
            consumer: Any = world.consumer()
            consumer.subscribe(["orders"])
            first = await consumer.poll(5.0)
            assert [one.offset for one in first] == [0, 1]
            assert await consumer.poll(1.0) == []
            assert consumer.commit(first[1])
            assert [one.offset for one in await consumer.poll(1.0)] == [3]
            assert consumer.release(first[0], delay=2.0)
            assert await consumer.poll(1.0) == []
            (again,) = await consumer.poll(5.0)
            assert (again.offset, again.attempt) == (0, 2)
            assert not consumer.commit(first[1]), "it is not in hand any more"
            await consumer.close()
            with pytest.raises(Closed):
                await consumer.poll(1.0)

    run(story())


def test_with_auto_commit_the_next_poll_commits_what_the_last_one_returned() -> None:
    async def story() -> None:
        async with coop_world() as world:
            await world.send(30, keys=3)
            consumer: Any = world.consumer(replace(QUICK, enable_auto_commit=True))
            consumer.subscribe(["orders"])
            offsets: list[int] = []
            while len(offsets) < 30:
                offsets += [one.offset for one in await consumer.poll(5.0)]
            assert sorted(offsets) == list(range(30))
            await consumer.poll(0.5)
            await consumer.commit_sync()
            assert world.stable() == 30
            await consumer.close()

    run(story())


def test_a_consumer_that_does_not_poll_in_time_leaves_what_it_has_to_others() -> None:
    async def story() -> None:
        async with coop_world() as world:
            await world.send(4, keys=4)
            late: Any = world.consumer(replace(QUICK, max_poll_interval=10.0), member_id="late")
            late.subscribe(["orders"])
            got = await late.poll(5.0)
            assert len(got) == 4
            other: Any = world.consumer(member_id="other")
            other.subscribe(["orders"])
            assert await other.poll(5.0) == []
            came: list[Any] = []
            while len(came) < 4:
                came += await other.poll(5.0)
            assert not late.commit(got[0])
            for one in came:
                other.commit(one)
            await other.commit_sync()
            await world.send(4, keys=4, first=4)
            more = [*await late.poll(20.0), *await other.poll(5.0)]
            assert more, "the next poll joins again"
            await late.close()
            await other.close()

    run(story())


def test_a_record_that_cannot_be_decoded_is_raised_and_can_be_committed() -> None:
    def decoder(value: bytes | None) -> int:
        return int(value or b"x")

    async def story() -> None:
        async with coop_world() as world:
            from flowshare.client.producer.producer import Message

            await world.world.producer.send_many(
                "orders", [Message(value, key=value, partition=0) for value in (b"1", b"two", b"3")]
            )
            consumer: Any = world.consumer(key_decoder=lambda key: key, value_decoder=decoder)
            consumer.subscribe(["orders"])
            assert [one.value for one in await consumer.poll(5.0)] == [1, 3]
            with pytest.raises(RecordError) as raised:
                await consumer.poll(5.0)
            assert raised.value.offset == 1
            assert consumer.commit(raised.value)
            await consumer.close()

    run(story())


def test_what_is_wrong_is_said() -> None:
    async def story() -> None:
        async with coop_world() as world:
            consumer: Any = world.consumer()
            with pytest.raises(IllegalState, match="subscribe"):
                await consumer.poll(1.0)
            with pytest.raises(ValueError, match="at least one topic"):
                consumer.subscribe([])
            consumer.subscribe(["nowhere"])
            with pytest.raises(IllegalState):
                consumer.subscribe(["orders"])
            assert await consumer.poll(3.0) == []
            assert "no partition is assigned" in str(consumer.trouble)
            for call in (consumer.commit, consumer.release):
                with pytest.raises(TypeError, match="the record must be ShareRecord or RecordError"):
                    call("a record")
            with pytest.raises(TypeError, match="settle: the record must be"):
                await consumer.settle([None], {"out": [b"x"]})
            await consumer.close()
            await consumer.close()
            assert not await asyncio.gather(*consumer._leaving)

    run(story())
