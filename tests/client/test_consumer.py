"""The consumer against the real server over a storage in memory: the rules of KafkaShareConsumer."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace

import pytest

from flowshare.client.consumer.consumer import ShareConsumer
from flowshare.client.errors import Closed, CorruptRecords, IllegalState, RecordError, Wakeup
from flowshare.client.settings import ConsumerSettings
from flowshare.protocol import messages as m
from flowshare.protocol.batches import BatchBuilder
from flowshare.share.types import AcknowledgeType, AcquireMode
from flowshare.testing.clock import settle
from tests.batches import place
from tests.client.fakes import FakeServer
from tests.client.worlds import within, world_on
from tests.waiting import LIMIT_S

pytestmark = pytest.mark.asyncio
EXPLICIT = ConsumerSettings(acknowledgement_mode="explicit")


async def test_a_second_poll_accepts_what_the_first_returned(clock):
    async with world_on(clock) as world:
        await world.send(b"a", b"b")
        consumer = world.consumer()

        records = await consumer.poll(1)
        await within(clock, 1, consumer.poll(0.5))

        assert [(r.topic, r.partition, r.offset, r.value, r.attempt) for r in records] == [
            ("orders", 0, 0, b"a", 1),
            ("orders", 0, 1, b"b", 1),
        ]
        assert await world.lag() == 0


async def test_records_of_a_consumer_that_closes_without_accepting_come_again(clock):
    async with world_on(clock) as world:
        await world.send(b"a")
        first = world.consumer()
        await first.poll(1)

        await first.close()
        (again,) = await world.consumer().poll(1)

        assert again.attempt == 2


async def test_a_consumer_whose_close_is_cancelled_leaves_nothing_at_work(clock):
    """The leader does not answer an acknowledgement."""
    server = FakeServer()
    settings = ConsumerSettings(isolation_level=None)
    consumer = ShareConsumer(server.connect, group_id="g", clock=clock, settings=settings)
    consumer.subscribe(["orders"])
    batch = BatchBuilder()
    batch.add(None, b"x", timestamp_ms=1)
    server.offer(place(batch.build(), 0))
    assert len(await within(clock, 5, consumer.poll(1.0))) == 1
    server.then(m.ShareAcknowledgeRequest, asyncio.get_running_loop().create_future())
    consumer.commit_async()
    await settle()

    with pytest.raises(TimeoutError):
        await within(clock, 10, clock.wait_for(consumer.close(), 2.0))

    beats = len(server.seen(m.ShareGroupHeartbeatRequest))
    await clock.advance(600)
    assert len(server.seen(m.ShareGroupHeartbeatRequest)) == beats
    assert all(one.gone.done() for one in server.connections)
    assert {task for task in asyncio.all_tasks() if task is not asyncio.current_task()} == set()


async def test_a_poll_waits_for_records_and_returns_when_they_come(clock):
    async with world_on(clock) as world:
        consumer = world.consumer()
        polling = asyncio.ensure_future(consumer.poll(60))
        await clock.advance(10)
        assert not polling.done()

        await world.send(b"a")
        await settle()

        assert [record.value for record in polling.result()] == [b"a"]


async def test_a_poll_without_records_ends_in_time(clock):
    async with world_on(clock) as world:
        consumer = world.consumer()

        assert await within(clock, 2, consumer.poll(1.5)) == []
        assert await consumer.poll(0) == []
        assert 1.4 < clock.monotonic() < 1.7


async def test_explicit_mode_refuses_to_poll_while_records_are_not_acknowledged(clock):
    async with world_on(clock) as world:
        await world.send(b"a", b"b")
        consumer = world.consumer(EXPLICIT)
        records = await consumer.poll(1)
        consumer.acknowledge(records[0])

        with pytest.raises(IllegalState, match="1 records"):
            await consumer.poll(1)

        consumer.acknowledge(records[1])
        assert await within(clock, 1, consumer.poll(0.5)) == []
        assert await world.lag() == 0


async def test_the_types_do_what_they_say(clock):
    async with world_on(clock) as world:
        await world.send(b"accept", b"release", b"reject")
        consumer = world.consumer(EXPLICIT)
        for record in await consumer.poll(1):
            consumer.acknowledge(record, AcknowledgeType[record.value.decode().upper()])

        outcomes = await consumer.commit_sync()
        (again,) = await consumer.poll(1)
        consumer.acknowledge(again)

        assert [(tip.topic, tip.partition, error) for tip, error in outcomes.items()] == [("orders", 0, None)]
        assert (again.value, again.attempt) == (b"release", 2)
        assert await consumer.commit_sync() == {again.topic_id_partition: None}
        assert await world.lag() == 0


async def test_the_last_word_counts_until_it_is_sent_and_then_none_does(clock):
    async with world_on(clock) as world:
        await world.send(b"a")
        consumer = world.consumer(EXPLICIT)
        (record,) = await consumer.poll(1)
        consumer.acknowledge(record, AcknowledgeType.RELEASE)
        consumer.acknowledge(record, AcknowledgeType.ACCEPT)
        await consumer.commit_sync()

        with pytest.raises(IllegalState, match="acknowledged already"):
            consumer.acknowledge(record)
        assert await world.lag() == 0


async def test_acknowledging_needs_explicit_mode_and_never_is_gap(clock):
    async with world_on(clock) as world:
        await world.send(b"a")
        implicit, explicit = world.consumer(), world.consumer(EXPLICIT)
        (record,) = await explicit.poll(1)

        with pytest.raises(IllegalState, match="explicit"):
            implicit.acknowledge(record)
        with pytest.raises(ValueError, match="GAP"):
            explicit.acknowledge(record, AcknowledgeType.GAP)
        explicit.acknowledge(record)


async def test_a_poll_after_renewals_returns_only_the_renewed_records(clock):
    async with world_on(clock) as world:
        await world.send(*[b"%d" % n for n in range(10)])
        consumer = world.consumer(EXPLICIT)
        seen = []
        consumer.set_acknowledgement_commit_callback(lambda offsets, error: seen.append((offsets, error)))
        for record in await consumer.poll(1):
            consumer.acknowledge(record, AcknowledgeType.RENEW if record.offset % 2 == 0 else AcknowledgeType.ACCEPT)
        await world.send(b"new")

        renewed = await consumer.poll(1)
        for record in renewed:
            consumer.acknowledge(record)
        await consumer.commit_sync()
        (new,) = await consumer.poll(1)
        consumer.acknowledge(new)

        assert [(record.offset, record.attempt) for record in renewed] == [(n, 1) for n in range(0, 10, 2)]
        assert new.offset == 10
        assert sum(len(found) for offsets, _ in seen for found in offsets.values()) == 15
        assert [error for _, error in seen] == [None, None]


async def test_a_renewed_record_cannot_be_acknowledged_before_the_next_poll(clock):
    async with world_on(clock) as world:
        await world.send(b"a", b"b")
        consumer = world.consumer(EXPLICIT)
        first, second = await consumer.poll(1)
        consumer.acknowledge(first, AcknowledgeType.RENEW)

        with pytest.raises(IllegalState):
            consumer.acknowledge(first, AcknowledgeType.REJECT)
        consumer.acknowledge(second, AcknowledgeType.ACCEPT)
        await consumer.commit_sync()
        with pytest.raises(IllegalState):
            consumer.acknowledge(first, AcknowledgeType.REJECT)

        (again,) = await consumer.poll(1)
        consumer.acknowledge(again, AcknowledgeType.REJECT)


async def test_a_renewal_keeps_the_lock_beyond_its_time(clock):
    async with world_on(clock) as world:
        await world.send(b"a")
        consumer = world.consumer(EXPLICIT)
        (record,) = await consumer.poll(1)
        for _ in range(3):
            await clock.advance(20)
            consumer.acknowledge(record, AcknowledgeType.RENEW)
            (record,) = await consumer.poll(1)

        consumer.acknowledge(record)

        assert await consumer.commit_sync() == {record.topic_id_partition: None}
        assert record.attempt == 1


async def test_a_lock_that_lapsed_is_an_outcome_of_the_commit(clock):
    async with world_on(clock) as world:
        await world.send(b"a")
        consumer = world.consumer()
        (record,) = await consumer.poll(1)
        await clock.advance(31)

        outcomes = await consumer.commit_sync()

        assert "INVALID_RECORD_STATE" in str(outcomes[record.topic_id_partition])


async def test_the_callback_is_called_once_a_partition_with_its_offsets(clock):
    async with world_on(clock, partitions=2) as world:
        await world.send(b"a", b"b")
        await world.send(b"c", partition=1)
        consumer = world.consumer(EXPLICIT)
        seen = []

        async def callback(offsets, error):
            seen.append(({(tip.topic, tip.partition): set(found) for tip, found in offsets.items()}, error))

        consumer.set_acknowledgement_commit_callback(callback)
        for record in await consumer.poll(1):
            consumer.acknowledge(record)
        consumer.commit_async()
        await settle()
        assert seen == []
        await within(clock, 1, consumer.poll(0.1))

        assert sorted(seen, key=str) == [({("orders", 0): {0, 1}}, None), ({("orders", 1): {0}}, None)]


async def test_the_callback_may_not_call_the_consumer(clock):
    async with world_on(clock) as world:
        await world.send(b"a")
        consumer = world.consumer()
        consumer.set_acknowledgement_commit_callback(lambda offsets, error: consumer.commit_async())
        await consumer.poll(1)
        await consumer.commit_sync()

        with pytest.raises(IllegalState, match="callback"):
            await consumer.poll(0.1)


async def test_a_record_that_cannot_be_decoded_names_itself_and_is_released(clock):
    async with world_on(clock) as world:
        await world.send(b"1", b"x", b"3")
        consumer = world.consumer(EXPLICIT, key_decoder=lambda key: key, value_decoder=json.loads)

        (first,) = await consumer.poll(1)
        consumer.acknowledge(first)
        with pytest.raises(RecordError, match="orders-0@1 cannot be decoded") as caught:
            await consumer.poll(1)
        (third,) = await consumer.poll(1)
        consumer.acknowledge(third)
        assert (first.value, third.value) == (1, 3)
        with pytest.raises(RecordError):
            await consumer.poll(1)
        consumer.acknowledge("orders", 0, caught.value.offset, AcknowledgeType.REJECT)
        await consumer.commit_sync()

        assert await world.lag() == 0


async def test_a_damaged_batch_is_rejected_and_the_rest_is_delivered(clock):
    async with world_on(clock) as world:
        await world.send(b"a" * 50)
        await world.send(b"b" * 50)
        await world.send(b"c" * 50)
        real = world.storage.read

        async def damaged(*args, **kwargs):
            result = await real(*args, **kwargs)
            return replace(result, pieces=[result.records.replace(b"bbb", b"bxb", 1)])

        world.storage.read = damaged
        consumer = world.consumer()

        first = await consumer.poll(1)
        with pytest.raises(CorruptRecords, match="orders-0@1 to 1"):
            await consumer.poll(1)
        last = await consumer.poll(1)
        await consumer.commit_sync()
        await settle()

        assert [record.offset for record in first + last] == [0, 2]
        assert await world.lag() == 0


async def test_record_limit_keeps_to_the_number_asked_for(clock):
    async with world_on(clock) as world:
        await world.producer.send_many("orders", [b"v"] * 20)
        settings = ConsumerSettings(acquire_mode=AcquireMode.RECORD_LIMIT, max_poll_records=6)
        consumer = world.consumer(settings)

        assert [len(await consumer.poll(1)) for _ in range(4)] == [6, 6, 6, 2]


async def test_the_lock_timeout_is_that_of_the_last_fetch(clock):
    async with world_on(clock) as world:
        consumer = world.consumer()
        assert consumer.acquisition_lock_timeout is None
        await world.send(b"a")
        await consumer.poll(1)
        await world.admin.alter_group_configs("g", {"share.record.lock.duration.ms": "25000"})
        assert consumer.acquisition_lock_timeout == 30.0

        await world.send(b"b")
        await consumer.poll(1)

        assert consumer.acquisition_lock_timeout == 25.0


async def test_iteration_goes_on_over_records_that_come_later_and_ends_with_the_close(clock):
    async with world_on(clock) as world:
        await world.send(b"a", b"b")
        consumer = world.consumer()
        seen = []

        async def read():
            async for record in consumer:
                seen.append(record.value)

        reading = asyncio.ensure_future(read())
        await settle()
        await world.send(b"c")
        await clock.advance(1)
        assert seen == [b"a", b"b", b"c"]

        await consumer.close()
        await asyncio.wait_for(reading, LIMIT_S)


async def test_a_commit_within_an_iteration_does_not_accept_what_was_not_handed_out_yet(clock):
    async with world_on(clock) as world:
        await world.send(b"a", b"b", b"c")
        consumer = world.consumer()
        assert (await anext(consumer)).value == b"a"

        await consumer.commit_sync()

        assert await world.lag() == 2
        await consumer.close()
        again = await world.consumer().poll(1)
        assert [(record.value, record.attempt) for record in again] == [(b"b", 1), (b"c", 1)]


async def test_renewed_records_come_again_in_an_iteration(clock):
    async with world_on(clock) as world:
        await world.send(b"a", b"b")
        consumer = world.consumer(EXPLICIT)
        for _ in range(2):
            consumer.acknowledge(await anext(consumer), AcknowledgeType.RENEW)

        again = [await anext(consumer), await anext(consumer)]

        assert [(record.value, record.attempt) for record in again] == [(b"a", 1), (b"b", 1)]
        for record in again:
            consumer.acknowledge(record)


async def test_a_wakeup_ends_the_poll_that_waits_or_the_next_one(clock):
    async with world_on(clock) as world:
        consumer = world.consumer()
        polling = asyncio.ensure_future(consumer.poll(60))
        await settle()

        await asyncio.to_thread(consumer.wakeup)
        with pytest.raises(Wakeup):
            await asyncio.wait_for(polling, LIMIT_S)
        consumer.wakeup()
        with pytest.raises(Wakeup):
            await consumer.poll(1)

        await world.send(b"a")
        assert len(await within(clock, 1, consumer.poll(1))) == 1


async def test_two_calls_at_once_are_refused(clock):
    async with world_on(clock) as world:
        consumer = world.consumer()
        polling = asyncio.ensure_future(consumer.poll(60))
        await settle()

        with pytest.raises(IllegalState, match="one task"):
            await consumer.poll(1)
        polling.cancel()
        await asyncio.gather(polling, return_exceptions=True)


async def test_a_cancelled_poll_loses_nothing(clock):
    async with world_on(clock) as world:
        consumer = world.consumer()
        polling = asyncio.ensure_future(consumer.poll(60))
        await settle()
        polling.cancel()
        await asyncio.gather(polling, return_exceptions=True)

        await world.send(b"a")
        await settle()

        assert [record.attempt for record in await consumer.poll(1)] == [1]


async def test_polling_without_a_subscription_says_so(clock):
    async with world_on(clock) as world:
        consumer = ShareConsumer(world.connect, group_id="g", clock=clock)

        with pytest.raises(IllegalState, match="subscribe"):
            await consumer.poll(1)
        with pytest.raises(ValueError, match="at least one"):
            consumer.subscribe([])

        assert consumer.subscription() == frozenset()
        await consumer.close()
        with pytest.raises(Closed):
            await consumer.poll(1)


async def test_unsubscribing_leaves_the_group_and_subscribing_joins_again(clock):
    async with world_on(clock) as world:
        await world.send(b"a")
        consumer = world.consumer()
        await consumer.poll(1)
        await consumer.commit_sync()

        await consumer.unsubscribe()
        assert (await world.admin.describe_group("g")).members == ()
        consumer.subscribe(["orders"])
        await world.send(b"b")

        assert [record.value for record in await within(clock, 1, consumer.poll(1))] == [b"b"]


async def test_a_consumer_that_polls_too_rarely_leaves_and_joins_again_with_the_next_poll(clock):
    async with world_on(clock) as world:
        await world.send(b"a")
        consumer = world.consumer(ConsumerSettings(max_poll_interval=60))
        await consumer.poll(1)

        await clock.advance(61)
        assert (await world.admin.describe_group("g")).members == ()
        again = await within(clock, 1, consumer.poll(1))

        assert [record.attempt for record in again] == [2]


async def test_a_lost_connection_is_told_by_the_commit_and_the_records_come_again(clock):
    async with world_on(clock) as world:
        await world.send(b"a")
        consumer = world.consumer(EXPLICIT)
        (record,) = await consumer.poll(1)
        await world.connections[-1].close()

        again = await within(clock, 2, _poll_after_accepting(consumer, record))

        assert [one.attempt for one in again] == [2]
        consumer.acknowledge(again[0])
        assert await consumer.commit_sync() == {record.topic_id_partition: None}


async def _poll_after_accepting(consumer, record):
    consumer.acknowledge(record)
    outcomes = await consumer.commit_sync()
    assert "NETWORK_EXCEPTION" in str(outcomes[record.topic_id_partition])
    return await consumer.poll(1)


async def test_a_topic_that_is_created_later_is_consumed(clock):
    async with world_on(clock) as world:
        consumer = world.consumer()
        consumer.subscribe(["later"])
        assert await within(clock, 1, consumer.poll(0.5)) == []
        assert "later" in consumer.member.trouble

        await world.producer.send("later", b"a")
        records = await within(clock, 10, consumer.poll(10))

        assert [record.topic for record in records] == ["later"]


def answers_after(consumer, go):
    """The server's answers to acknowledgements come when `go` is set."""
    real = consumer._member.acknowledge

    async def acknowledge(*args, **kwargs):
        await go.wait()
        return await real(*args, **kwargs)

    consumer._member.acknowledge = acknowledge


async def test_commit_sync_waits_for_what_was_sent_before_and_is_not_answered(clock):
    async with world_on(clock) as world:
        await world.send(b"a")
        consumer, go = world.consumer(), asyncio.Event()
        answers_after(consumer, go)
        (record,) = await consumer.poll(1)
        consumer.commit_async()
        await settle()

        committing = asyncio.ensure_future(consumer.commit_sync())
        await settle()
        assert not committing.done()
        go.set()

        assert await committing == {record.topic_id_partition: None}
        assert await consumer.commit_sync() == {}


async def test_a_close_without_answers_returns_and_tells_what_is_open(clock):
    async with world_on(clock) as world:
        await world.send(b"a")
        consumer, seen = world.consumer(), []
        answers_after(consumer, asyncio.Event())
        consumer.set_acknowledgement_commit_callback(lambda offsets, error: seen.append((dict(offsets), str(error))))
        (record,) = await consumer.poll(1)
        consumer.commit_async()

        outcomes = await within(clock, 10, consumer.close(timeout=2.0))

        assert "is not known" in str(outcomes[record.topic_id_partition])
        ((offsets, error),) = seen
        assert offsets == {record.topic_id_partition: frozenset({0})}
        assert "closed before the answer" in error


async def test_an_acknowledgement_that_does_not_hold_is_counted_as_an_error(clock):
    async with world_on(clock) as world:
        await world.send(b"a", b"b")
        consumer = world.consumer()
        assert len(await consumer.poll(1)) == 2
        await clock.advance(31)
        await consumer.commit_sync()
        found = consumer.metrics()

    assert (found["acknowledgements_send_total"], found["acknowledgements_error_total"]) == (2, 2)
    assert found["last_poll_seconds_ago"] == 31
