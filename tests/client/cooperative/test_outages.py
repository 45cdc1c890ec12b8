"""A consumer whose server is away for longer than its lease: what is not known to be committed is never said to be."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from flowshare.client.errors import ClientError, NotCommitted
from flowshare.protocol import messages as m
from flowshare.protocol.errors import ErrorCode
from flowshare.testing import run
from tests.client.cooperative.worlds import QUICK, CoopWorld, _Connection, coop_world

BRIEF = replace(QUICK, lease=2.0)
ALL = {("orders", 0, offset) for offset in range(10)}


async def ten_in_hand(world: CoopWorld, **kwargs: Any) -> tuple[Any, list[Any]]:
    """A consumer that has ten records in hand, each of a key of its own."""
    await world.send(10)
    consumer: Any = world.consumer(BRIEF, member_id="a", **kwargs)
    consumer.subscribe(["orders"])
    records = await consumer.poll(5.0)
    assert len(records) == 10
    return consumer, records


async def back(world: CoopWorld, *, after_s: float) -> None:
    """The server answers again."""
    await asyncio.sleep(after_s)
    world.faults.away.clear()
    world.faults.lose_answer = lambda request: False


@pytest.mark.parametrize("how", ["is refused", "does not say where it begins", "was cut"])
def test_a_partition_that_cannot_be_read_holds_up_no_other(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sending, broken = _Connection.send, True
    code = ErrorCode.NOT_LEADER_OR_FOLLOWER if how == "is refused" else ErrorCode.OFFSET_OUT_OF_RANGE

    async def send(self: _Connection, request: Any) -> Any:
        if broken and isinstance(request, m.ListOffsetsRequest) and request.partition == 1:
            if how == "was cut":
                return m.ListOffsetsResponse(offset=0)
            return m.ListOffsetsResponse(error=ErrorCode.NOT_LEADER_OR_FOLLOWER)
        answer = await sending(self, request)
        if not broken or not isinstance(request, m.FetchRequest):
            return answer
        logs = [replace(one, error=code, records=b"") if one.partition == 1 else one for one in answer.partitions]
        return replace(answer, partitions=tuple(logs))

    async def story() -> None:
        nonlocal broken
        async with coop_world(partitions=2) as world:
            consumer: Any = world.consumer(BRIEF, member_id="a")
            consumer.subscribe(["orders"])
            await world.world.producer.send("orders", b"late", partition=1)
            while "orders-1" not in (consumer.trouble or ""):
                assert not await consumer.poll(0.1)
            await world.clock.sleep(3.0)
            began_s = world.clock.monotonic()
            for number in range(20):
                await world.send(1, first=number)
                [record] = await consumer.poll(10.0)
                assert record.partition == 0
                assert consumer.commit(record)
            assert world.clock.monotonic() - began_s < 1.0
            broken = False
            [record] = await consumer.poll(5.0)
            assert record.value == b"late"
            assert consumer.trouble is None
            await consumer.close()

    monkeypatch.setattr(_Connection, "send", send)
    run(story())


@pytest.mark.parametrize("arrives", [False, True])
def test_a_commit_that_outlives_its_lease_unanswered_is_told_as_open(arrives: bool) -> None:
    async def story() -> None:
        async with coop_world() as world:
            consumer, records = await ten_in_hand(world)
            if arrives:
                world.faults.lose_answer = lambda request: True
            else:
                world.faults.away.add("a")
            assert all(consumer.commit(one) for one in records)
            coming = asyncio.create_task(back(world, after_s=3.0))
            with pytest.raises(NotCommitted, match=r"the lease ended.* and 5 more are committed") as raised:
                await consumer.commit_sync(20.0)
            assert raised.value.records == ALL
            await coming
            await consumer.commit_sync(20.0)
            again = {one.offset for one in await consumer.poll(5.0)}
            assert again == (set() if arrives else set(range(10)))
            await consumer.close()

    run(story())


def test_once_at_most_holds_through_an_outage() -> None:
    handled: list[int] = []

    async def once(consumer: Any, records: list[Any]) -> None:
        for one in records:
            consumer.commit(one)
        try:
            await consumer.commit_sync(20.0)
        except NotCommitted as error:
            records = [one for one in records if (one.topic, one.partition, one.offset) not in error.records]
        handled.extend(one.offset for one in records)

    async def story() -> None:
        async with coop_world() as world:
            consumer, records = await ten_in_hand(world)
            world.faults.away.add("a")
            coming = asyncio.create_task(back(world, after_s=1.5))
            await once(consumer, records)
            await coming
            while world.stable() < 10:
                await once(consumer, await consumer.poll(1.0))
            assert sorted(handled) == list(range(10))
            await consumer.close()

    run(story())


def test_what_was_lost_before_it_was_committed_is_told_as_open_too() -> None:
    async def story() -> None:
        async with coop_world() as world:
            consumer, records = await ten_in_hand(world)
            world.faults.away.add("a")
            await asyncio.sleep(3.0)
            assert not any(consumer.commit(one) for one in records)
            with pytest.raises(NotCommitted) as raised:
                await consumer.commit_sync(20.0)
            assert raised.value.records == ALL
            await back(world, after_s=0.0)
            again = await consumer.poll(20.0)
            assert all(consumer.commit(one) for one in again)
            await consumer.commit_sync(20.0)
            await consumer.close()

    run(story())


def test_a_commit_sync_whose_time_is_over_names_what_is_open_and_the_next_one_waits_for_it() -> None:
    async def story() -> None:
        async with coop_world() as world:
            consumer, records = await ten_in_hand(world)
            world.faults.away.add("a")
            consumer.commit(records[3])
            with pytest.raises(
                NotCommitted, match=r"not all is committed within 0.5 s.*whether orders-0@3 is"
            ) as raised:
                await consumer.commit_sync(0.5)
            assert raised.value.records == {("orders", 0, 3)}
            await back(world, after_s=0.0)
            await consumer.commit_sync(20.0)
            await consumer.close()

    run(story())


def test_a_consumer_that_polled_too_late_tells_what_its_member_could_not_commit() -> None:
    async def story() -> None:
        async with coop_world() as world:
            await world.send(10)
            consumer: Any = world.consumer(replace(BRIEF, max_poll_interval=5.0), member_id="a")
            consumer.subscribe(["orders"])
            records = await consumer.poll(5.0)
            world.faults.away.add("a")
            assert consumer.commit(records[0])
            await asyncio.sleep(5.1)
            assert not consumer.commit(records[1])
            with pytest.raises(NotCommitted) as raised:
                await consumer.commit_sync(60.0)
            assert raised.value.records == {("orders", 0, 0), ("orders", 0, 1)}
            await consumer.close()

    run(story())


def test_a_close_without_answers_tells_what_is_open() -> None:
    async def story() -> None:
        async with coop_world() as world:
            consumer, records = await ten_in_hand(world)
            world.faults.away.add("a")
            assert all(consumer.commit(one) for one in records)
            with pytest.raises(NotCommitted, match="the consumer was closed") as raised:
                await consumer.close()
            assert raised.value.records == ALL
            await consumer.close()

    run(story())


async def fails(world: CoopWorld, consumer: Any, records: list[Any]) -> None:
    async with consumer:
        world.faults.away.add("a")
        consumer.commit(records[0])
        raise ZeroDivisionError


def test_what_ends_the_block_is_not_hidden_by_what_is_open() -> None:
    async def story() -> None:
        async with coop_world() as world:
            consumer, records = await ten_in_hand(world)
            with pytest.raises(ZeroDivisionError):
                await fails(world, consumer, records)

    run(story())


def test_a_settle_in_doubt_whose_lease_ended_is_not_said_to_have_written_nothing() -> None:
    async def story() -> None:
        async with coop_world() as world:
            consumer, records = await ten_in_hand(world)
            world.faults.lose_answer = lambda request: True
            with pytest.raises(ClientError, match="settle the same records again"):
                await consumer.settle([records[0]], {"orders": [b"out"]}, timeout=0.5)
            await asyncio.sleep(3.0)
            with pytest.raises(ClientError, match="outcome unknown"):
                await consumer.settle([records[0]], {"orders": [b"out"]}, timeout=0.5)
            assert not await consumer.settle([records[1]], {"orders": [b"out"]}, timeout=0.5)
            await consumer.close()

    run(story())
