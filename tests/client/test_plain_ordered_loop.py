"""A loop of a share consumer as a first user writes it: poll, then settle one record after the other, in order."""

from __future__ import annotations

import asyncio

import pytest

from flowshare.client.settings import ConsumerSettings
from flowshare.share.types import AcknowledgeType, AcquireMode
from tests.client.test_consumer_settles import in_hand, written
from tests.client.worlds import within, world_on

pytestmark = pytest.mark.asyncio
EXPLICIT = ConsumerSettings(acknowledgement_mode="explicit")


async def settled_by_a_loop(consumer, count, *, released=(), delay=0.0, one_by_one=False):
    """The deliveries until so many records are settled; some are released at their first delivery."""
    seen, done = [], 0

    async def handled(record):
        seen.append((record.offset, record.attempt))
        if record.offset in released and record.attempt == 1:
            consumer.release(record, delay=delay)
            return 0
        return int(await consumer.settle([record], {"out": [record.value]}, ordered=True, timeout=2.0))

    while done < count:
        if one_by_one:
            done += await handled(await anext(consumer))
            continue
        for record in await consumer.poll(1.0):
            done += await handled(record)
    return seen


@pytest.mark.parametrize("one_by_one", [False, True])
@pytest.mark.parametrize("delay", [0.0, 0.5])
async def test_a_lone_member_is_never_held_up_by_a_record_that_it_released(clock, delay, one_by_one):
    async with world_on(clock) as world:
        await world.admin.create_topic("out")
        await world.send(*(b"%d" % number for number in range(6)))
        consumer = world.consumer(EXPLICIT)

        loop = settled_by_a_loop(consumer, 6, released={0, 3}, delay=delay, one_by_one=one_by_one)
        seen = await within(clock, 4, loop)

        assert await written(world) == [b"%d" % number for number in range(6)]
        assert {attempt for offset, attempt in seen if offset not in {0, 3}} == {1}, "given back unrun"
        assert await world.lag() == 0


@pytest.mark.parametrize("kind", [AcknowledgeType.ACCEPT, AcknowledgeType.REJECT])
async def test_what_was_acknowledged_is_sent_before_a_later_record_is_settled_in_order(clock, kind):
    async with world_on(clock) as world:
        consumer, records = await in_hand(world, 3)
        consumer.acknowledge(records[0], kind)
        consumer.acknowledge(records[2], AcknowledgeType.RELEASE)

        assert await within(clock, 1, consumer.settle(records[1:2], {"out": [b"1"]}, ordered=True))

        assert await world.lag() == 1


async def test_a_record_behind_one_that_another_member_took_waits_for_that_member(clock):
    async with world_on(clock) as world:
        consumer, records = await in_hand(world, 2)
        consumer.release(records[0])
        assert not await within(clock, 1, consumer.settle(records[1:], {"out": [b"1"]}, ordered=True))
        one_each = ConsumerSettings(
            acknowledgement_mode="explicit", max_poll_records=1, acquire_mode=AcquireMode.RECORD_LIMIT
        )
        other = world.consumer(one_each, member_id="other")
        (first,) = await within(clock, 1, other.poll(0.5))
        (second,) = await within(clock, 1, consumer.poll(0.5))
        assert (first.offset, second.offset, second.attempt) == (0, 1, 1)

        settling = asyncio.ensure_future(consumer.settle([second], {"out": [b"1"]}, ordered=True))
        await clock.advance(1)
        assert not settling.done()
        other.acknowledge(first)
        await within(clock, 1, other.commit_sync())

        assert await within(clock, 1, settling)
