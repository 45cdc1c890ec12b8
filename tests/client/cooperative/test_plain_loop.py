"""A loop as a first user writes it: poll, then settle one record after the other, with ordered outputs."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from flowshare.client.errors import ClientError
from flowshare.client.producer.producer import Message
from flowshare.testing import run
from tests.client.cooperative.test_settles import written
from tests.client.cooperative.worlds import CoopWorld, coop_world


async def send(world: CoopWorld, keys: str) -> None:
    await world.world.producer.send_many(
        "orders", [Message(key.encode(), key=key.encode(), partition=0) for key in keys]
    )


async def settle_all(world: CoopWorld, consumer: Any, count: int) -> list[int]:
    """Offsets in the order in which they were handed out until all are settled."""
    seen: list[int] = []
    while world.stable() < count:
        for record in await consumer.poll(1.0):
            seen.append(record.offset)
            await consumer.settle([record], {"out": [b"%d" % record.offset]}, ordered=True, timeout=2.0)
    return seen


@pytest.mark.parametrize("keys", ["aaab", "aabbaabb", "abcabc", "aaaaabbbbbcaaab"])
def test_a_lone_member_is_never_held_up_by_a_record_of_its_own(keys: str) -> None:
    async def story() -> None:
        async with coop_world() as world:
            await send(world, keys)
            await world.world.storage.create_topic("out")
            consumer: Any = world.consumer()
            consumer.subscribe(["orders"])
            began_s = world.clock.monotonic()
            seen = await settle_all(world, consumer, len(keys))
            assert world.clock.monotonic() - began_s < 2.0
            assert sorted(set(seen)) == list(range(len(keys)))
            assert await written(world) == [b"%d" % offset for offset in range(len(keys))]
            assert len(seen) - len(set(seen)) <= len(set(keys)), "only what the first poll brought comes again"
            await consumer.close()

    run(story())


def test_what_was_released_is_waited_for_and_what_comes_behind_it_is_given_back() -> None:
    async def story() -> None:
        async with coop_world() as world:
            await send(world, "abc")
            consumer: Any = world.consumer()
            consumer.subscribe(["orders"])
            first, second, third = await consumer.poll(5.0)
            assert consumer.release(first, delay=1.0)
            assert not await consumer.settle([second, third], {}, ordered=True, timeout=2.0)
            again = await consumer.poll(5.0)
            assert [(one.offset, one.attempt) for one in again] == [(0, 2), (1, 1), (2, 1)]
            for one in again:
                assert await consumer.settle([one], {}, ordered=True, timeout=2.0)
            await consumer.close()

    run(story())


def test_two_loops_share_the_keys_and_both_come_to_the_end() -> None:
    async def story() -> None:
        async with coop_world() as world:
            await world.send(60, keys=12)
            await world.world.storage.create_topic("out")
            loops = []
            for name in ("a", "b"):
                consumer: Any = world.consumer(member_id=name)
                consumer.subscribe(["orders"])
                loops.append(settle_all(world, consumer, 60))
            seen = await asyncio.gather(*loops)
            assert {*seen[0], *seen[1]} == set(range(60))
            assert await written(world) == [b"%d" % offset for offset in range(60)]

    run(story())


def test_who_settles_the_higher_offset_first_is_told_what_comes_before_it() -> None:
    async def story() -> None:
        async with coop_world() as world:
            await send(world, "ab")
            consumer: Any = world.consumer()
            consumer.subscribe(["orders"])
            first, second = await consumer.poll(5.0)
            with pytest.raises(ClientError, match="orders-0@0 is in hand and comes first"):
                await consumer.settle([second], {}, ordered=True, timeout=2.0)
            assert await consumer.settle([first], {}, ordered=True, timeout=2.0)
            assert await consumer.settle([second], {}, ordered=True, timeout=2.0)
            await consumer.close()

    run(story())
