"""A share consumer that accepts records in one step with outputs, and releases records with a delay."""

from __future__ import annotations

import asyncio
import uuid
from dataclasses import replace

import pytest

from flowshare.client.consumer.consumer import ShareConsumer
from flowshare.client.errors import ClientError, IllegalState, RecordError, ServerError, Unsupported
from flowshare.client.producer.message import Message
from flowshare.client.settings import ConsumerSettings, LinkSettings, MemberSettings
from flowshare.protocol import messages as m
from flowshare.protocol.batches import BatchBuilder, decode_all
from flowshare.protocol.errors import ErrorCode
from flowshare.share.types import AcknowledgeType, AckRange, AcquireMode
from flowshare.testing.clock import settle as settled
from tests.batches import place
from tests.client.fakes import FakeServer
from tests.client.worlds import within, world_on

pytestmark = pytest.mark.asyncio
EXPLICIT = ConsumerSettings(acknowledgement_mode="explicit")
SOME = replace(EXPLICIT, max_poll_records=2, acquire_mode=AcquireMode.RECORD_LIMIT)
OUT = {"out": [b"a"]}


async def written(world, topic="out"):
    if not world.storage.offsets(topic, 0).high_watermark:
        return []
    read = await world.storage.read(topic, 0, 0, max_bytes=1 << 30)
    return [record.value for record in decode_all(read.records)]


async def in_hand(world, count=6, **fields):
    """A consumer with so many records, and a topic to write to."""
    await world.admin.create_topic("out")
    await world.send(*(b"%d" % number for number in range(count)))
    consumer = world.consumer(EXPLICIT, **fields)
    return consumer, await consumer.poll(1)


# --- on a real server ---------------------------------------------------------------------------------------------


async def test_records_are_accepted_in_one_step_with_what_came_of_them(clock):
    async with world_on(clock) as world:
        consumer, records = await in_hand(world)

        assert await consumer.settle(records[:2], {"out": [b"a", Message(b"b", key=b"k")]})
        assert await consumer.settle([records[4]], {})

        assert await written(world) == [b"a", b"b"]
        assert await world.lag() == 3
        assert not await consumer.settle(records[:2], {"out": [b"twice"]}), "they are not in hand any more"
        assert await written(world) == [b"a", b"b"]
        for record in (records[2], records[3], records[5]):
            consumer.acknowledge(record)
        assert await within(clock, 1, consumer.poll(0.1)) == []
        assert await world.lag() == 0


async def test_settles_of_different_records_may_be_under_way_at_once(clock):
    async with world_on(clock) as world:
        consumer, records = await in_hand(world)

        told = await asyncio.gather(*(consumer.settle([one], {"out": [one.value]}) for one in records))

        assert told == [True] * 6
        assert sorted(await written(world)) == [b"%d" % number for number in range(6)]


async def test_an_output_that_cannot_be_is_told_and_the_records_stay_in_hand(clock):
    async with world_on(clock) as world:
        consumer, records = await in_hand(world)
        await world.admin.create_topic("small", configs={"max.message.bytes": "1000"})

        with pytest.raises(ServerError, match="no partition 7"):
            await consumer.settle(records[:1], {"out": [Message(b"x", partition=7)]})
        with pytest.raises(ServerError, match="an output: MESSAGE_TOO_LARGE"):
            await consumer.settle(records[:1], {"out": [b"good"], "small": [b"x" * 2_000]})
        with pytest.raises(ClientError, match="there is no topic nowhere"):
            await within(clock, 3, consumer.settle(records[:1], {"nowhere": [b"x"]}, timeout=2.0))

        assert await consumer.settle(records, {"out": [b"good"]})
        assert await written(world) == [b"good"]


async def test_a_record_whose_lock_lapsed_is_settled_by_who_has_it_now_only(clock):
    async with world_on(clock) as world:
        await world.admin.alter_group_configs("g", {"share.record.lock.duration.ms": "15000"})
        first, records = await in_hand(world, 2, member_id="first")
        await clock.advance(16)
        second = world.consumer(EXPLICIT, member_id="second")
        again = await second.poll(1)

        assert not await first.settle(records, {"out": [b"first"]})
        assert await second.settle(again, {"out": [b"second"]})

        assert [record.attempt for record in again] == [2, 2]
        assert await written(world) == [b"second"]


async def test_a_record_that_cannot_be_read_can_be_settled_too(clock):
    async with world_on(clock) as world:
        await world.admin.create_topic("out")
        await world.send(b"broken")

        def decoder(value):
            raise ValueError("not mine")

        consumer = world.consumer(EXPLICIT, key_decoder=lambda key: key, value_decoder=decoder)
        with pytest.raises(RecordError) as raised:
            await consumer.poll(1)

        with pytest.raises(ServerError, match="no partition 7"):
            await consumer.settle([raised.value], {"out": [Message(b"x", partition=7)]})
        assert await consumer.settle([raised.value], {"out": [b"broken: told of"]})

        assert await written(world) == [b"broken: told of"]
        assert await world.lag() == 0


async def test_ordered_outputs_come_in_the_order_of_the_partition(clock):
    async with world_on(clock) as world:
        consumer, records = await in_hand(world, 10)
        order = [7, 3, 9, 1, 0, 2, 4, 8, 5, 6]

        settling = [consumer.settle([records[at]], {"out": [b"%d" % at]}, ordered=True) for at in order]

        assert all(await within(clock, 5, asyncio.gather(*settling)))
        assert await written(world) == [b"%d" % at for at in range(10)]


async def test_ordered_outputs_of_several_consumers_come_in_the_order_of_the_partition(clock):
    async with world_on(clock) as world:
        await world.admin.create_topic("out")
        await world.send(*(b"%d" % number for number in range(8)))
        hands = []
        for name in "abcd":
            consumer = world.consumer(SOME, member_id=name)
            hands.append((consumer, await consumer.poll(1)))

        settling = [one.settle(hand, {"out": [record.value for record in hand]}, ordered=True) for one, hand in hands]

        assert all(await within(clock, 5, asyncio.gather(*reversed(settling))))
        assert await written(world) == [b"%d" % number for number in range(8)]


async def test_an_ordered_settle_that_waits_says_for_what(clock):
    async with world_on(clock) as world:
        consumer, records = await in_hand(world, 3)

        with pytest.raises(ClientError, match="orders-0@0 is in hand and comes first; settle the same records again"):
            await within(clock, 9, consumer.settle(records[1:], OUT, ordered=True, timeout=8.0))
        await world.send(b"3")
        other = world.consumer(EXPLICIT, member_id="other")
        last = await within(clock, 1, other.poll(0.5))
        with pytest.raises(ClientError, match="not all records before offset 3 were finished in time"):
            await within(clock, 20, other.settle(last, OUT, ordered=True, timeout=12.0))

        await within(clock, 10, consumer.close())
        await within(clock, 10, other.close())
        assert await written(world) == []
        assert await world.lag() == 4


async def test_what_cannot_be_settled_is_said(clock):
    async with world_on(clock) as world:
        consumer, records = await in_hand(world)

        with pytest.raises(ValueError, match="at least one"):
            await consumer.settle([], {})
        with pytest.raises(ValueError, match="one by one"):
            await consumer.settle([records[0], records[2]], {}, ordered=True)
        with pytest.raises(TypeError, match="a list of values"):
            await consumer.settle(records[:1], {"out": b"x"})
        with pytest.raises(TypeError, match="the outputs must be"):
            await consumer.settle(records[:1], [b"x"])
        with pytest.raises(TypeError, match="settle: the record must be"):
            await consumer.settle([b"x"], {})
        consumer.acknowledge(records[0], AcknowledgeType.RENEW)
        with pytest.raises(IllegalState, match="is being renewed"):
            await consumer.settle(records[:1], {})
        with pytest.raises(IllegalState, match="explicit"):
            await world.consumer().settle(records[:1], {})


async def test_a_settle_takes_the_place_of_an_acknowledgement_that_was_not_sent(clock):
    async with world_on(clock) as world:
        consumer, records = await in_hand(world, 1)
        consumer.release(records[0], delay=60)

        assert await consumer.settle(records, OUT)
        assert await within(clock, 1, consumer.poll(0.1)) == []

        assert await world.lag() == 0


async def test_a_released_record_comes_again_after_its_delay_and_not_before(clock):
    async with world_on(clock) as world:
        await world.send(b"a", b"b", b"c", b"d")
        consumer = world.consumer(EXPLICIT)
        records = await consumer.poll(1)
        consumer.release(records[0], delay=5)
        consumer.release(records[1])
        consumer.release(records[2], delay=5)
        consumer.release(records[3], delay=5)
        consumer.acknowledge(records[3])

        (at_once,) = await consumer.poll(1)
        consumer.acknowledge(at_once)
        assert await within(clock, 4, consumer.poll(3.5)) == []
        later = await within(clock, 4, consumer.poll(3))

        assert (at_once.value, at_once.attempt) == (b"b", 2)
        assert [(record.value, record.attempt) for record in later] == [(b"a", 2), (b"c", 2)]


@pytest.mark.parametrize("delay", [-1, float("inf")])
async def test_a_delay_that_is_none_is_refused(clock, delay):
    async with world_on(clock) as world:
        consumer, records = await in_hand(world, 1)
        with pytest.raises(ValueError, match="seconds from 0 on"):
            consumer.release(records[0], delay=delay)
        with pytest.raises(TypeError, match="release: delay must be"):
            consumer.release(records[0], delay="soon")


# --- on a server that is written by the test ----------------------------------------------------------------------


async def of_a_server(clock, server, count=2, **fields):
    """A consumer with so many records of the server."""
    settings = replace(EXPLICIT, isolation_level=None, **fields)
    consumer = ShareConsumer(server.connect, group_id="g", clock=clock, settings=settings, member_id="m")
    consumer.subscribe(["orders"])
    batch = BatchBuilder()
    for number in range(count):
        batch.add(None, b"%d" % number, timestamp_ms=1)
    server.offer(place(batch.build(), 0))
    server.known["out"] = (uuid.UUID(int=9), 1)
    return consumer, await within(clock, 5, consumer.poll(1.0))


async def test_a_settle_names_the_attempt_of_each_record_and_its_topics_are_looked_up_once(clock):
    server = FakeServer()
    consumer, records = await of_a_server(clock, server)

    assert await consumer.settle(records, OUT)
    looked_up = len(server.seen(m.MetadataRequest))
    assert not await consumer.settle(records, OUT)
    server.offer(place(one_record(), 7), count=3)
    (again,) = await within(clock, 5, consumer.poll(1.0))
    assert await consumer.settle([again], OUT)

    first, second = server.seen(m.ShareSettleRequest)
    assert first.acks == (AckRange(0, 1, b"\1", attempt=1),)
    assert second.acks == (AckRange(7, 7, b"\1", attempt=3),)
    assert [one.topic for one in first.outputs] == ["out"]
    assert len(server.seen(m.MetadataRequest)) == looked_up
    assert consumer.metrics()["acknowledgements_send_total"] == 3
    await consumer.close()


def one_record():
    batch = BatchBuilder()
    batch.add(None, b"x", timestamp_ms=1)
    return batch.build()


async def test_what_was_not_answered_in_time_may_be_asked_for_again_and_is_sent_once(clock):
    server = FakeServer()
    consumer, records = await of_a_server(clock, server)
    answer = asyncio.get_running_loop().create_future()
    server.then(m.ShareSettleRequest, answer)

    with pytest.raises(ClientError, match="settle the same records again"):
        await within(clock, 3, consumer.settle(records, OUT, timeout=1.0))
    waiting = asyncio.ensure_future(consumer.settle(records[:1], OUT))
    await settled()
    assert not waiting.done()
    answer.set_result(m.ShareSettleResponse())

    assert await waiting
    assert await consumer.settle(records[1:], OUT)
    assert not await consumer.settle(records, OUT), "both were told of"
    assert len(server.seen(m.ShareSettleRequest)) == 1
    await consumer.close()


async def test_records_of_a_settle_whose_outcome_came_late_and_is_a_refusal_can_be_settled_again(clock):
    server = FakeServer()
    consumer, records = await of_a_server(clock, server)
    answer = asyncio.get_running_loop().create_future()
    server.then(m.ShareSettleRequest, answer)
    with pytest.raises(ClientError, match="settle the same records again"):
        await within(clock, 3, consumer.settle(records, OUT, timeout=1.0))
    refused = (m.RefusedOutput(0, ErrorCode.MESSAGE_TOO_LARGE, "too much"),)
    answer.set_result(m.ShareSettleResponse(error=ErrorCode.INVALID_REQUEST, outputs=refused))

    assert await consumer.settle(records, {"out": [b"less"]})

    assert len(server.seen(m.ShareSettleRequest)) == 2
    await consumer.close()


async def test_a_server_that_cannot_now_is_asked_again(clock):
    server = FakeServer()
    consumer, records = await of_a_server(clock, server)
    server.then(
        m.ShareSettleRequest,
        m.ShareSettleResponse(error=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),
        m.ShareSettleResponse(error=ErrorCode.THROTTLING_QUOTA_EXCEEDED),
    )

    assert await within(clock, 3, consumer.settle(records, OUT))

    assert len(server.seen(m.ShareSettleRequest)) == 3
    await consumer.close()


async def test_of_records_that_are_not_the_members_the_others_stay_in_hand(clock):
    server = FakeServer()
    consumer, records = await of_a_server(clock, server)
    refused = m.ShareSettleResponse(error=ErrorCode.INVALID_RECORD_STATE, refused=((0, 0),))
    server.then(m.ShareSettleRequest, refused)

    assert not await consumer.settle(records, OUT)
    assert not await consumer.settle(records, OUT)
    assert len(server.seen(m.ShareSettleRequest)) == 1
    assert await consumer.settle(records[1:], OUT)

    assert consumer.metrics()["acknowledgements_error_total"] == 2
    await consumer.close()


async def test_what_is_not_answered_before_the_connection_ends_is_sent_again_if_the_records_are_held_still(clock):
    server = FakeServer()
    server.keeps = True
    consumer, records = await of_a_server(clock, server)
    server.then(m.ShareSettleRequest, asyncio.get_running_loop().create_future())
    settling = asyncio.ensure_future(consumer.settle(records, OUT))
    await settled()
    server.connections[0].break_off()

    assert await within(clock, 5, settling)

    assert len(server.seen(m.ShareSettleRequest)) == 2
    await consumer.close()


async def test_what_is_not_answered_and_not_held_any_more_has_an_unknown_outcome(clock):
    server = FakeServer()
    consumer, records = await of_a_server(clock, server)
    server.then(m.ShareSettleRequest, asyncio.get_running_loop().create_future())
    settling = asyncio.ensure_future(consumer.settle(records, OUT))
    await settled()
    server.connections[0].break_off()

    with pytest.raises(ClientError, match=r"outcome unknown.*come again where they are not accepted"):
        await within(clock, 10, settling)

    assert len(server.seen(m.ShareSettleRequest)) == 1
    assert not await consumer.settle(records, OUT)
    await consumer.close()


@pytest.mark.parametrize("ordered", [True, False])
async def test_an_ordered_settle_may_wait_for_its_turn_beside_the_time_of_a_request(clock, ordered):
    server = FakeServer()
    consumer, records = await of_a_server(clock, server, member=MemberSettings(link=LinkSettings(request_timeout=1.0)))
    answer = asyncio.get_running_loop().create_future()
    server.then(m.ShareSettleRequest, answer)
    settling = asyncio.ensure_future(consumer.settle(records, OUT, ordered=ordered))
    await settled()
    for _ in range(40):
        await clock.advance(0.1)
    lost = len(server.connections) > 1 or len(server.seen(m.ShareSettleRequest)) > 1
    settling.cancel()
    answer.cancel()
    await within(clock, 60, consumer.close())

    assert lost != ordered


async def test_a_consumer_that_closes_waits_for_its_settles(clock):
    server = FakeServer()
    consumer, records = await of_a_server(clock, server)
    answer = asyncio.get_running_loop().create_future()
    server.then(m.ShareSettleRequest, answer)
    settling = asyncio.ensure_future(consumer.settle(records, OUT))
    await settled()
    closing = asyncio.ensure_future(consumer.close())
    await settled()
    assert not closing.done()

    answer.set_result(m.ShareSettleResponse())
    await within(clock, 5, closing)

    assert await settling


async def test_kafkas_own_brokers_neither_settle_nor_delay_and_that_is_said(clock):
    server = FakeServer()
    connect = server.connect

    async def to_kafka():
        connection = await connect()
        connection.is_flowshare = False
        return connection

    server.connect = to_kafka
    consumer, records = await of_a_server(clock, server)

    with pytest.raises(Unsupported, match="only flowshare's own servers settle"):
        await consumer.settle(records, OUT)
    with pytest.raises(Unsupported, match="cannot delay a released record: release it without a delay"):
        consumer.release(records[0], delay=1)
    consumer.release(records[0])
    consumer.acknowledge(records[1])
    await within(clock, 5, consumer.commit_sync())

    (request,) = [one for one in server.seen(m.ShareAcknowledgeRequest) if one.partitions]
    assert request.partitions[0].acks == (AckRange(0, 1, b"\2\1"),)
    await within(clock, 5, consumer.close())
