"""Consumers of a cooperative group that commit records in one step with outputs, on virtual time."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace
from typing import Any

import pytest

from flowshare.client.errors import ClientError, ServerError
from flowshare.client.producer.message import Message
from flowshare.protocol.batches import decode_all
from flowshare.protocol.messages.cooperative import CooperativeSettleRequest
from flowshare.testing import run
from tests.client.cooperative.worlds import QUICK, CoopWorld, coop_world


async def written(world: CoopWorld) -> list[bytes]:
    storage = world.world.storage
    if not storage.offsets("out", 0).high_watermark:
        return []
    read = await storage.read("out", 0, 0, max_bytes=1 << 30)
    return [record.value for record in decode_all(read.records)]


async def begun(world: CoopWorld, count: int = 6, **fields: Any) -> Any:
    """A consumer that will have so many records, each of a key of its own."""
    await world.world.storage.create_topic("out")
    await world.send(count, keys=count)
    consumer = world.consumer(replace(QUICK, **fields.pop("settings", {})), **fields)
    consumer.subscribe(["orders"])
    return consumer


def test_records_are_committed_in_one_step_with_what_came_of_them() -> None:
    async def story() -> None:
        async with coop_world() as world:
            consumer = await begun(world)
            records = await consumer.poll(5.0)
            assert await consumer.settle(records[:2], {"out": [b"a", Message(b"b", key=b"k")]})
            assert await consumer.settle([records[4]], {})
            assert await written(world) == [b"a", b"b"]
            assert (world.stable(), world.state().offsets.ranges()) == (2, [(4, 5)])
            assert not await consumer.settle(records[:2], {"out": [b"twice"]}), "they are not in hand any more"
            assert await written(world) == [b"a", b"b"]
            await consumer.close()

    run(story())


def test_of_one_key_the_next_record_comes_when_the_one_before_is_settled() -> None:
    async def story() -> None:
        async with coop_world() as world:
            await world.world.storage.create_topic("out")
            await world.send(3, keys=1)
            consumer = world.consumer()
            consumer.subscribe(["orders"])
            for offset in range(3):
                (record,) = await consumer.poll(5.0)
                assert record.offset == offset
                assert await consumer.settle([record], {"out": [b"%d" % offset]})
            assert await written(world) == [b"0", b"1", b"2"]
            await consumer.close()

    run(story())


def test_a_lost_answer_writes_nothing_a_second_time_and_is_told_as_done() -> None:
    async def story() -> None:
        async with coop_world() as world:
            consumer = await begun(world)
            records = await consumer.poll(5.0)
            lost: list[Any] = []

            def once(request: Any) -> bool:
                if isinstance(request, CooperativeSettleRequest) and not lost:
                    lost.append(request)
                    return True
                return False

            world.faults.lose_answer = once
            assert await consumer.settle(records[:2], {"out": [b"a"]})
            lost.clear()
            world.faults.lose_answer, world.faults.lose_call = lambda request: False, once
            assert await consumer.settle(records[2:3], {"out": [b"b"]})
            assert await written(world) == [b"a", b"b"]
            assert world.stable() == 3
            await consumer.close()

    run(story())


def test_what_was_not_answered_in_time_may_be_settled_again_and_is_there_once() -> None:
    async def story() -> None:
        async with coop_world() as world:
            consumer = await begun(world)
            records = await consumer.poll(5.0)
            world.faults.lose_answer = lambda request: isinstance(request, CooperativeSettleRequest)
            with pytest.raises(ClientError, match="settle the same records again"):
                await consumer.settle(records[:1], {"out": [b"a"]}, timeout=1.0)
            world.faults.lose_answer = lambda request: False
            assert await consumer.settle(records[:1], {"out": [b"a"]})
            assert await written(world) == [b"a"]
            await consumer.close()

    run(story())


def test_records_whose_keys_went_to_another_member_are_settled_by_that_one_only() -> None:
    async def story() -> None:
        async with coop_world() as world:
            first = await begun(world, member_id="first")
            records = await first.poll(5.0)

            def gone(request: Any) -> bool:
                if isinstance(request, CooperativeSettleRequest):
                    world.faults.away.add("first")
                return "first" in world.faults.away and isinstance(request, CooperativeSettleRequest)

            world.faults.lose_call = gone
            sent = asyncio.create_task(first.settle(records, {"out": [b"first"]}))
            await world.until(lambda: bool(world.faults.away))
            world.faults.lose_call = lambda request: False
            second = world.consumer(member_id="second")
            second.subscribe(["orders"])
            got: list[Any] = []
            while len(got) < 6:
                got += await second.poll(5.0)
            assert await second.settle(got, {"out": [b"second"]})
            world.faults.away.clear()
            with pytest.raises(ClientError, match="outcome unknown"):
                await sent
            assert await written(world) == [b"second"]
            await first.close()
            await second.close()

    run(story())


def test_an_output_that_cannot_be_is_told_and_the_records_stay_in_hand() -> None:
    async def story() -> None:
        async with coop_world() as world:
            consumer = await begun(world)
            await world.world.storage.create_topic("small", configs={"max.message.bytes": "1000"})
            records = await consumer.poll(5.0)
            with pytest.raises(ServerError, match="no partition 7"):
                await consumer.settle(records[:1], {"out": [Message(b"x", partition=7)]})
            with pytest.raises(ServerError, match="MESSAGE_TOO_LARGE"):
                await consumer.settle(records[:1], {"out": [b"good"], "small": [b"x" * 2_000]})
            with pytest.raises(ClientError, match="nowhere"):
                await consumer.settle(records[:1], {"nowhere": [b"x"]}, timeout=2.0)
            assert world.stable() == 0
            assert await consumer.settle(records[:1], {"out": [b"good"]})
            assert await written(world) == [b"good"]
            await consumer.close()

    run(story())


def test_44_ordered_outputs_of_two_consumers_come_in_the_order_of_the_partition() -> None:
    async def story() -> None:
        async with coop_world() as world:
            consumer = await begun(world, 10)
            records = sorted(await consumer.poll(5.0), key=lambda one: one.offset)
            order = [7, 3, 9, 1, 0, 2, 4, 8, 5, 6]
            settled = await asyncio.gather(
                *(consumer.settle([records[at]], {"out": [b"%d" % at]}, ordered=True) for at in order)
            )
            assert all(settled)
            assert await written(world) == [b"%d" % at for at in range(10)]
            await consumer.close()

    run(story())


def test_who_is_left_of_ordered_settles_goes_on_with_what_the_other_had_read_though_its_own_room_is_full() -> None:
    async def story() -> None:
        async with coop_world() as world:
            await world.world.storage.create_topic("out")
            await world.send(400)
            names = ("first", "second")
            settings = replace(QUICK, buffer_records=5, max_poll_records=2)
            consumers = [world.consumer(settings, member_id=name) for name in names]
            settled = dict.fromkeys(names, 0)
            hands: dict[str, list[Any]] = {name: [] for name in names}

            async def work(name: str, consumer: Any) -> None:
                consumer.subscribe(["orders"])
                hand = hands[name]
                while True:
                    hand += await consumer.poll(0.1)
                    hand.sort(key=lambda one: one.offset)
                    await asyncio.sleep(0.1)
                    with contextlib.suppress(ClientError):  # it waits for what the other had, which this one polls next
                        while hand:
                            outputs = {"out": [hand[0].value]}
                            settled[name] += await consumer.settle(hand[:1], outputs, ordered=True, timeout=6.0)
                            del hand[0]

            tasks = [asyncio.create_task(work(*each)) for each in zip(names, consumers, strict=True)]
            await world.until(lambda: min(settled.values()) >= 10)
            assert world.stable() < 200
            world.faults.away.add("first")
            tasks[0].cancel()
            await world.until(lambda: world.stable() == 400 and not hands["second"])
            tasks[1].cancel()
            assert await written(world) == [b"%d" % number for number in range(400)]
            for consumer in consumers[1:]:
                await consumer.close()

    run(story())


def test_what_cannot_be_settled_is_said() -> None:
    async def story() -> None:
        async with coop_world() as world:
            consumer = await begun(world)
            records = await consumer.poll(5.0)
            with pytest.raises(ValueError, match="at least one"):
                await consumer.settle([], {})
            with pytest.raises(ValueError, match="one by one"):
                await consumer.settle([records[0], records[2]], {}, ordered=True)
            with pytest.raises(TypeError, match="a list of values"):
                await consumer.settle(records[:1], {"out": b"x"})
            with pytest.raises(TypeError, match="the outputs must be"):
                await consumer.settle(records[:1], [b"x"])
            await consumer.close()

    run(story())
