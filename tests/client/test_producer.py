"""The producer against a scripted server: batches, order, bounds, retries, outcomes of each record."""

from __future__ import annotations

import asyncio
import re
import uuid
from functools import partial

import pytest

from flowshare.client.errors import (
    BufferFull,
    ClientError,
    Closed,
    DeliveryTimeout,
    IllegalState,
    NotConnected,
    RecordTooLarge,
    ServerError,
)
from flowshare.client.producer.batching import Buffer
from flowshare.client.producer.message import partition_for
from flowshare.client.producer.producer import ROUND, Message, Producer, RecordMetadata
from flowshare.client.settings import ProducerSettings
from flowshare.protocol import messages as m
from flowshare.protocol.batches import BatchBuilder, batch_headers, decode_all
from flowshare.protocol.errors import ErrorCode
from flowshare.testing.clock import settle
from tests.client.fakes import FakeServer

pytestmark = pytest.mark.asyncio
FAILED = m.ProduceResponse(error=ErrorCode.NOT_LEADER_OR_FOLLOWER)


@pytest.fixture
def server():
    return FakeServer()


def records(server, topic="orders", partition=0):
    return [record for batch in server.log.get((topic, partition), []) for record in decode_all(batch)]


def values(server, topic="orders", partition=0):
    return [record.value for record in records(server, topic, partition)]


def producer(server, clock, **kwargs):
    return Producer(server.connect, clock=clock, **{"linger": 0.0, **kwargs})


async def test_a_producer_whose_close_is_cancelled_fails_its_records_and_ends_its_connection(clock, server):
    sender = producer(server, clock)
    await sender.send("orders", b"1")
    server.then(m.ProduceRequest, asyncio.get_running_loop().create_future())
    sent = sender.send_nowait("orders", b"2")
    await settle()

    closing = asyncio.ensure_future(clock.wait_for(sender.close(), 2.0))
    await clock.advance(2.1)
    with pytest.raises(TimeoutError):
        await closing

    assert isinstance(sent.exception(), Closed)
    await settle()
    assert all(one.gone.done() for one in server.connections)
    assert {task for task in asyncio.all_tasks() if task is not asyncio.current_task()} == set()


async def test_a_record_arrives_with_all_that_was_given(clock, server):
    sender = producer(server, clock)

    sent = await sender.send("orders", b"v", key=b"k", headers=[("h", b"1"), ("n", None)], timestamp=0.005)

    assert sent == RecordMetadata("orders", 0, 0)
    (record,) = records(server)
    assert (record.key, record.value, record.timestamp_ms) == (b"k", b"v", 5)
    assert record.headers == (("h", b"1"), ("n", None))
    await sender.close()


async def test_a_topic_that_was_only_asked_about_takes_records(clock, server):
    one, many, sized = (producer(server, clock) for _ in range(3))
    for sender in (one, many, sized):
        await sender.topic("orders")

    assert await one.send("orders", b"1") == RecordMetadata("orders", 0, 0)
    assert await many.send_many("orders", [b"2"]) == [RecordMetadata("orders", 0, 1)]
    assert await sized.partitions("orders") == 1
    for sender in (one, many, sized):
        await sender.close()


async def test_a_record_for_a_partition_that_was_added_since_goes_there(clock, server):
    one, many = producer(server, clock), producer(server, clock)
    for sender in (one, many):
        await sender.send("orders", b"before")
    server.known["orders"] = (server.known["orders"][0], 3)

    assert (await one.send("orders", b"one", partition=1)).partition == 1
    sent = await many.send_many("orders", [Message(b"many", partition=2), Message(b"more", partition=2)])
    assert [made.partition for made in sent] == [2, 2]
    assert values(server, partition=2) == [b"many", b"more"]
    with pytest.raises(ServerError, match="no partition 3, the topic has 3"):
        await one.send("orders", b"none", partition=3)
    for sender in (one, many):
        await sender.close()


@pytest.mark.parametrize("behind", [{"partition": 1}, {"key": b"1"}])
async def test_records_for_a_partition_that_is_found_by_another_ones_sender_keep_their_order(clock, server, behind):
    sender = producer(server, clock)
    await sender.send("orders", b"before")
    server.known["orders"] = (server.known["orders"][0], 2)
    first = sender.send_nowait("orders", b"first", partition=1)
    (queue,) = sender._targets["orders"].queues

    queue._resize("orders", 2)  # it looked the topic up for a reason of its own
    second = sender.send_nowait("orders", b"second", **behind)

    assert [(sent.partition, sent.offset) for sent in await asyncio.gather(first, second)] == [(1, 0), (1, 1)]
    assert values(server, partition=1) == [b"first", b"second"]
    await sender.close()


async def test_records_without_a_time_get_the_clocks(clock, server):
    sender = producer(server, clock)

    await sender.send("orders", None)
    await sender.send_many("orders", [b"b"])

    assert [record.timestamp_ms for record in records(server)] == [clock.now_ms()] * 2
    await sender.close()


async def test_records_that_come_within_the_linger_share_a_batch(clock, server):
    sender = producer(server, clock, linger=0.01)
    first = sender.send_nowait("orders", b"a")
    await settle()
    second = sender.send_nowait("orders", b"b")
    await clock.advance(0.005)
    assert not first.done()

    await clock.advance(0.006)

    assert [(await first).offset, (await second).offset] == [0, 1]
    assert len(server.seen(m.ProduceRequest)) == 1
    await sender.close()


async def test_nothing_lingers_by_default_and_what_comes_meanwhile_shares_the_next_request(clock, server):
    sender = Producer(server.connect, clock=clock)
    server.then(m.ProduceRequest, FAILED)
    first = sender.send_nowait("orders", b"a")
    await settle()
    assert len(server.seen(m.ProduceRequest)) == 1

    more = [sender.send_nowait("orders", value) for value in (b"b", b"c")]
    await settle()
    assert len(server.seen(m.ProduceRequest)) == 1
    await clock.advance(1)

    assert [(await future).offset for future in (first, *more)] == [0, 1, 2]
    assert len(server.seen(m.ProduceRequest)) == 3
    assert values(server) == [b"a", b"b", b"c"]
    await sender.close()


async def test_a_lone_record_does_not_wait_for_the_answer_to_another_while_five_may_be_under_way(clock, server):
    sender = producer(server, clock)
    await sender.send("orders", b"first")
    answers = [asyncio.get_running_loop().create_future() for _ in range(5)]
    server.then(m.ProduceRequest, *answers)
    sent = []
    for number in range(8):
        sent.append(sender.send_nowait("orders", b"%d" % number))
        await settle()
    assert len(server.seen(m.ProduceRequest)) == 1 + 5

    for answer in answers:
        answer.set_result(None)
    await sender.flush()

    assert [future.result().offset for future in sent] == list(range(1, 9))
    assert len(server.seen(m.ProduceRequest)) == 1 + 5 + 1
    assert values(server) == [b"first", *(b"%d" % number for number in range(8))]
    await sender.close()


async def test_records_of_one_turn_and_of_a_loop_that_adds_one_a_turn_share_a_batch_beside_another(clock, server):
    sender = producer(server, clock)
    await sender.send("orders", b"first")
    answer = asyncio.get_running_loop().create_future()
    server.then(m.ProduceRequest, answer)
    alone = sender.send_nowait("orders", b"alone")
    await settle()

    turn = [sender.send_nowait("orders", b"turn") for _ in range(100)]
    await settle()
    for _ in range(100):
        turn.append(sender.send_nowait("orders", b"loop"))
        await asyncio.sleep(0)
    await settle()
    answer.set_result(None)
    await asyncio.gather(alone, *turn)

    assert sorted(len(decode_all(request.records)) for request in server.seen(m.ProduceRequest)) == [1, 1, 100, 100]
    await sender.close()


async def test_a_full_batch_does_not_linger(clock, server):
    sender = producer(server, clock, linger=100, batch_size=1000)
    await sender.send_many("orders", [])

    waiting = [sender.send_nowait("orders", bytes(300)) for _ in range(4)]
    await settle()

    assert [future.done() for future in waiting] == [True, True, True, False]
    await clock.advance(100)
    assert waiting[3].done()
    await sender.close()


async def test_order_within_a_partition_survives_retries(clock, server):
    sender = producer(server, clock)
    server.then(m.ProduceRequest, FAILED, FAILED)
    waiting = [sender.send_nowait("orders", b"%d" % n) for n in range(3)]
    await settle()
    waiting += [sender.send_nowait("orders", b"%d" % n) for n in range(3, 6)]

    await clock.advance(1)

    assert [future.result().offset for future in waiting] == list(range(6))
    assert values(server) == [b"%d" % n for n in range(6)]
    await sender.close()


async def test_a_lost_connection_is_replaced_and_the_records_are_sent_again(clock, server):
    sender = producer(server, clock)
    await sender.send("orders", b"a")
    server.then(m.ProduceRequest, asyncio.get_running_loop().create_future())
    waiting = sender.send_nowait("orders", b"b")
    await settle()

    server.connections[0].break_off()
    await clock.advance(1)

    assert waiting.result().offset == 1
    assert values(server) == [b"a", b"b"]
    await sender.close()


async def test_a_record_that_is_never_confirmed_fails_in_time(clock, server):
    sender = producer(server, clock, settings=ProducerSettings(delivery_timeout=3))
    await sender.send("orders", b"a")
    server.then(m.ProduceRequest, *[FAILED] * 1000)
    waiting = sender.send_nowait("orders", b"b")

    await clock.advance(3.1)

    with pytest.raises(DeliveryTimeout, match="NOT_LEADER"):
        waiting.result()
    assert sender.buffered_bytes == 0
    await sender.close()


async def test_a_server_that_is_not_there_fails_the_records_in_time(clock, server):
    server.refuse_connects = 1_000_000
    sender = producer(server, clock, settings=ProducerSettings(delivery_timeout=3))
    waiting = sender.send_nowait("orders", b"b")

    await clock.advance(4)

    with pytest.raises(DeliveryTimeout, match="nobody listens"):
        waiting.result()
    assert sender.buffered_bytes == 0
    await sender.close()


PASSING = pytest.mark.parametrize("answer", [ConnectionError("cut off"), "refused"], ids=["lost", "refused"])


@PASSING
async def test_a_partitions_records_do_not_fail_with_older_ones_of_another_that_got_no_producer_id(clock, answer):
    server = FakeServer(partitions=2)
    sender = producer(server, clock, settings=ProducerSettings(delivery_timeout=10))
    await sender.partitions("orders")
    refused = m.InitProducerIdResponse(error=ErrorCode.COORDINATOR_NOT_AVAILABLE)
    server.then(m.InitProducerIdRequest, *[refused if answer == "refused" else answer] * 99)

    old = sender.send_nowait("orders", b"old", partition=0)
    await clock.advance(9)
    young = sender.send_nowait("orders", b"young", partition=1)
    await clock.advance(1)
    assert (old.done(), young.done()) == (True, False)
    server.script.clear()
    await clock.advance(2)

    assert isinstance(old.exception(), ServerError if answer == "refused" else DeliveryTimeout)
    assert young.result().partition == 1
    assert sender.buffered_bytes == 0
    await sender.close()


async def test_a_batch_does_not_wait_for_a_producer_id_longer_than_its_own_time(clock, server):
    sender = producer(server, clock)
    server.then(m.InitProducerIdRequest, *[ConnectionError("cut off")] * 99)
    long = asyncio.ensure_future(sender._channel.identity(20))
    await settle()
    short = asyncio.ensure_future(sender._channel.identity(5))

    await clock.advance(5)

    assert not long.done()
    with pytest.raises(NotConnected, match="cut off"):
        await short
    long.cancel()
    await sender.close()


@PASSING
async def test_records_that_wait_for_a_topic_do_not_fail_with_older_ones(clock, server, answer):
    sender = producer(server, clock, settings=ProducerSettings(delivery_timeout=10))
    refused = m.MetadataResponse(topics=(m.TopicMetadata(name="orders", error=ErrorCode.LEADER_NOT_AVAILABLE),))
    server.then(m.MetadataRequest, *[refused if answer == "refused" else answer] * 99)

    old = sender.send_nowait("orders", b"old")
    await clock.advance(9)
    young = sender.send_nowait("orders", b"young")
    many, sized = (
        asyncio.ensure_future(one) for one in (sender.send_many("orders", [b"m"]), sender.partitions("orders"))
    )
    flushed = asyncio.ensure_future(sender.flush())
    await clock.advance(1)
    assert [one.done() for one in (old, young, many, sized, flushed)] == [True, False, False, False, False]
    server.script.clear()
    await clock.advance(2)

    assert isinstance(old.exception(), ServerError if answer == "refused" else DeliveryTimeout)
    assert (young.result().offset, sized.result()) == (0, 1)
    assert flushed.done()
    assert values(server) == [b"young", b"m"]
    assert sender.buffered_bytes == 0
    await sender.close()


@PASSING
async def test_each_record_that_waits_for_a_topic_fails_when_its_own_time_is_over(clock, server, answer):
    sender = producer(server, clock, settings=ProducerSettings(delivery_timeout=10))
    refused = m.MetadataResponse(topics=(m.TopicMetadata(name="orders", error=ErrorCode.LEADER_NOT_AVAILABLE),))
    server.then(m.MetadataRequest, *[refused if answer == "refused" else answer] * 99)

    first = sender.send_nowait("orders", b"first")
    await clock.advance(1)
    asked = asyncio.ensure_future(sender.partitions("orders"))
    await clock.advance(4)
    second, many = sender.send_nowait("orders", b"second"), asyncio.ensure_future(sender.send_many("orders", [b"many"]))
    await clock.advance(7)
    assert [one.done() for one in (first, asked, second, many)] == [True, True, False, False]
    await clock.advance(3)

    for failed in (first, asked, second, many):
        assert isinstance(failed.exception(), ServerError if answer == "refused" else DeliveryTimeout)
    assert sender.buffered_bytes == 0
    assert not sender._targets
    await sender.close()


async def test_a_disk_that_refuses_is_told_at_once(clock, server):
    sender = producer(server, clock)
    server.then(m.ProduceRequest, m.ProduceResponse(error=ErrorCode.KAFKA_STORAGE_ERROR))

    with pytest.raises(ServerError, match="disk"):
        await sender.send("orders", b"a")

    assert (await sender.send("orders", b"b")).offset == 0
    await sender.close()


async def test_a_record_that_is_too_large_is_refused_before_it_is_sent(clock, server):
    sender = producer(server, clock)

    with pytest.raises(RecordTooLarge, match="max_request_size"):
        await sender.send("orders", bytes(1 << 20))

    assert server.requests == []
    await sender.close()


async def test_only_the_record_that_the_topic_finds_too_large_fails(clock, server):
    sender = producer(server, clock, linger=0.01)
    await sender.send_many("orders", [])
    answer = server._ProduceRequest

    async def picky(request):
        if any(header.size > 500 for header in batch_headers(request.records)):
            return m.ProduceResponse(error=ErrorCode.MESSAGE_TOO_LARGE, message="over 500")
        return await answer(request)

    server._ProduceRequest = picky
    sizes = (10, 20, 900, 30, 40)
    waiting = asyncio.ensure_future(sender.send_many("orders", [bytes(size) for size in sizes], return_exceptions=True))
    await clock.advance(0.1)
    outcomes = await waiting

    assert [type(outcome) for outcome in outcomes].count(RecordTooLarge) == 1
    assert isinstance(outcomes[2], RecordTooLarge)
    assert [len(value) for value in values(server)] == [10, 20, 30, 40]
    assert [outcomes[index].offset for index in (0, 1, 3, 4)] == [0, 1, 2, 3]
    assert sender.buffered_bytes == 0
    await sender.close()


async def test_a_full_buffer_makes_send_wait_and_send_nowait_raise(clock, server):
    sender = producer(server, clock, buffer_memory=500)
    await sender.send_many("orders", [])
    held = asyncio.get_running_loop().create_future()
    server.then(m.ProduceRequest, held)
    first = sender.send_nowait("orders", bytes(400))
    await settle()

    with pytest.raises(BufferFull, match="buffer_memory"):
        sender.send_nowait("orders", bytes(400))
    second = asyncio.ensure_future(sender.send("orders", bytes(400)))
    await settle()
    assert not second.done()
    held.set_result(m.ProduceResponse(base_offset=0))

    await first
    await second
    assert sender.buffered_bytes == 0
    await sender.close()


async def test_a_waiter_that_gives_up_leaves_its_place_to_the_next(clock, server):
    sender = producer(server, clock, buffer_memory=500)
    await sender.send_many("orders", [])
    held = asyncio.get_running_loop().create_future()
    server.then(m.ProduceRequest, held)
    sender.send_nowait("orders", bytes(400))
    await settle()
    waiting = [asyncio.ensure_future(sender.send("orders", bytes(400))) for _ in range(2)]
    await settle()

    waiting[0].cancel()
    held.set_result(m.ProduceResponse(base_offset=0))

    assert (await waiting[1]).offset == 0
    assert sender.buffered_bytes == 0
    await sender.close()


async def test_send_many_goes_through_a_small_buffer_in_order(clock, server):
    sender = producer(server, clock, buffer_memory=5000, batch_size=1000)

    sent = await sender.send_many("orders", [b"%04d" % n for n in range(2000)])

    assert [one.offset for one in sent] == list(range(2000))
    assert values(server) == [b"%04d" % n for n in range(2000)]
    assert sender.buffered_bytes == 0
    await sender.close()


async def test_send_many_takes_messages_and_raises_the_first_error(clock):
    server = FakeServer(partitions=3)
    sender = producer(server, clock)

    sent = await sender.send_many("orders", [Message(b"v", b"k"), None, Message(b"w", partition=2, timestamp=0.009)])
    with pytest.raises(ServerError, match="the topic has 3"):
        await sender.send_many("orders", [Message(b"x", partition=3)])

    assert sent[0].partition == partition_for(b"k", 3)
    assert records(server, partition=2)[-1].timestamp_ms == 9
    assert sender.buffered_bytes == 0
    await sender.close()


async def test_keyed_records_go_where_every_client_sends_them_and_others_change_by_the_batch(clock):
    server = FakeServer(partitions=4)
    sender = producer(server, clock, batch_size=500)

    keyed = await sender.send_many("orders", [Message(b"v", b"%d" % n) for n in range(50)])
    spread = await sender.send_many("orders", [bytes(100)] * 40)

    assert [one.partition for one in keyed] == [partition_for(b"%d" % n, 4) for n in range(50)]
    used = [one.partition for one in spread]
    assert set(used) == {0, 1, 2, 3}
    assert used[:3] == [used[0]] * 3
    await sender.close()


async def test_an_unknown_topic_is_created_once_and_early_records_keep_their_order(clock, server, caplog):
    caplog.set_level("INFO", "flowshare.client")
    sender = producer(server, clock)

    waiting = [sender.send_nowait("new", b"%d" % n) for n in range(3)]
    await settle()

    assert [future.result().offset for future in waiting] == [0, 1, 2]
    assert values(server, "new") == [b"0", b"1", b"2"]
    assert len(server.seen(m.CreateTopicRequest)) == 1
    assert caplog.messages == ["topic new was missing and is made, partitions=1"]
    await sender.close()


async def test_without_creation_an_unknown_topic_is_an_error_that_says_what_to_do(clock, server):
    sender = producer(server, clock, settings=ProducerSettings(auto_create_topics=False))

    with pytest.raises(ServerError, match="create the topic"):
        await sender.send("nwe", b"a")
    with pytest.raises(ServerError, match="create the topic"):
        await sender.send_many("nwe", [b"a"])

    assert sender.buffered_bytes == 0
    await sender.close()


async def test_a_topic_that_was_deleted_is_created_again(clock, server):
    sender = producer(server, clock)
    await sender.send("orders", b"a")
    del server.known["orders"]
    server.then(m.ProduceRequest, m.ProduceResponse(error=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))

    waiting = sender.send_nowait("orders", b"b")
    await clock.advance(1)

    assert waiting.result().offset == 1
    assert "orders" in server.known
    await sender.close()


async def test_a_topic_that_grew_is_noticed_when_the_knowledge_is_old(clock, server):
    sender = producer(server, clock)
    await sender.send("orders", b"a")
    server.known["orders"] = (uuid.uuid4(), 2)

    await clock.advance(301)
    await sender.send("orders", b"b")
    await settle()

    assert (await sender.send("orders", b"c", partition=1)).partition == 1
    await sender.close()


@pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "lz4", "zstd"])
async def test_batches_are_compressed_as_told(clock, server, compression):
    sender = producer(server, clock, compression=compression)

    await sender.send_many("orders", [b"x" * 100] * 50)

    assert batch_headers(server.log["orders", 0][0])[0].codec == compression
    assert values(server) == [b"x" * 100] * 50
    await sender.close()


async def test_flush_waits_for_what_was_sent_and_hurries_it(clock, server):
    sender = producer(server, clock, linger=1000)
    waiting = sender.send_nowait("orders", b"a")

    await sender.flush()

    assert waiting.done()
    await sender.close()


async def test_close_confirms_what_it_can_and_fails_the_rest_in_time(clock, server):
    sender = producer(server, clock, linger=1000)
    done = sender.send_nowait("orders", b"a")
    await sender.flush()
    server.then(m.ProduceRequest, asyncio.get_running_loop().create_future())
    stuck = sender.send_nowait("orders", b"b")
    closing = asyncio.ensure_future(sender.close(timeout=2))
    await clock.advance(2)
    await closing

    assert done.result().offset == 0
    with pytest.raises(Closed):
        stuck.result()
    with pytest.raises(Closed):
        await sender.send("orders", b"c")
    assert server.connections[0].gone.done()
    assert sender.buffered_bytes == 0


async def test_room_in_the_buffer_is_given_in_order_and_comes_back_from_who_gave_up():
    buffer = Buffer(100)
    assert buffer.take(90)
    large, small = asyncio.ensure_future(buffer.wait(80)), asyncio.ensure_future(buffer.wait(5))
    await settle()
    assert not buffer.take(5), "somebody waits already"

    buffer.give(90)
    large.cancel()
    await asyncio.gather(large, return_exceptions=True)

    await small
    assert buffer.used == 5


async def test_a_connection_that_cannot_be_made_at_all_fails_the_records_at_once(clock):
    async def connect():
        raise RuntimeError("the backend is not open")

    sender = Producer(connect, clock=clock, linger=0.0)

    for _ in range(2):
        with pytest.raises(ClientError, match="the backend is not open"):
            await sender.send("orders", b"v")
    assert sender.buffered_bytes == 0
    await sender.close()


async def test_names_that_are_no_topics_are_not_remembered(clock):
    sender = producer(FakeServer(), clock, settings=ProducerSettings(auto_create_topics=False))

    for number in range(20):
        with pytest.raises(ServerError):
            await sender.send(f"nowhere-{number}", b"v")

    assert sender._targets == {}
    await sender.close()


async def test_a_topic_made_anew_with_fewer_partitions_gets_all_records(clock):
    server = FakeServer(partitions=3)
    sender = producer(server, clock)
    keys = [b"%d" % number for number in range(20)]
    await sender.send_many("orders", [Message(b"old", key) for key in keys])
    server.known["orders"] = (uuid.uuid4(), 1)
    gone = m.ProduceResponse(error=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    server.then(m.ProduceRequest, gone, gone, gone)

    on_the_way = asyncio.ensure_future(
        sender.send_many("orders", [Message(b"on the way", key) for key in keys], return_exceptions=True)
    )
    await clock.advance(1)
    assert any(isinstance(outcome, ServerError) for outcome in await on_the_way)
    sent = await sender.send_many("orders", [Message(b"new", key) for key in keys])
    plain = await sender.send_many("orders", [b"plain"] * 20)

    assert {part.partition for part in [*sent, *plain]} == {0}
    await sender.close()


async def test_closing_while_a_batch_is_sent_in_halves_tells_of_every_record(clock, server):
    sender = producer(server, clock)
    never = asyncio.get_running_loop().create_future()
    too_large = m.ProduceResponse(error=ErrorCode.MESSAGE_TOO_LARGE)
    server.then(m.ProduceRequest, too_large, None, never)
    sending = asyncio.ensure_future(sender.send_many("orders", [b"a", b"b", b"c", b"d"], return_exceptions=True))
    await settle()

    closing = asyncio.ensure_future(sender.close(timeout=1.0))
    await clock.advance(2)
    await closing
    outcomes = await sending

    assert outcomes[:2] == [RecordMetadata("orders", 0, 0), RecordMetadata("orders", 0, 1)]
    assert all(isinstance(outcome, Closed) for outcome in outcomes[2:])
    assert sender.buffered_bytes == 0


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"value": {"id": 1}}, "the value of a record for orders is dict, and must be bytes or None"),
        ({"value": "text"}, r"the value .* is str, .* text\.encode\(\)"),
        ({"value": b"", "key": 5}, "the key of a record for orders is int"),
        ({"value": b"", "headers": {"a": b"1"}}, r"not dict: list\(headers\.items\(\)\)"),
        ({"value": b"", "headers": [("a", "1")]}, r"a pair \(str, bytes or None\), not \('a', '1'\)"),
        ({"value": b"", "headers": ["ab"]}, r"not 'ab'"),
        ({"value": b"", "partition": "0"}, "the partition of a record for orders is str"),
        ({"value": b"", "timestamp": "now"}, "the timestamp of a record for orders is 'now'"),
    ],
)
async def test_what_is_no_record_is_refused_where_it_is_sent(clock, server, given, said):
    sender = producer(server, clock)

    with pytest.raises(TypeError, match=said):
        await sender.send("orders", **given)
    with pytest.raises(TypeError, match=said):
        sender.send_nowait("orders", **given)
    with pytest.raises(TypeError, match=said):
        await sender.send_many("orders", [b"before", Message(**given)])

    assert (await sender.send("orders", b"good")).topic == "orders"
    assert sender.buffered_bytes == 0
    await sender.close()


WAITS_FOR_A_TOPIC = pytest.mark.parametrize(
    "call",
    [lambda sender: sender.send_many("orders", [b"a"]), lambda sender: sender.partitions("orders")],
    ids=["send_many", "partitions"],
)


@WAITS_FOR_A_TOPIC
@pytest.mark.parametrize(
    ("end", "error"),
    [(lambda sender: sender.close(1), Closed), (lambda sender: sender.abort(), IllegalState)],
    ids=["close", "abort"],
)
async def test_a_caller_that_waits_for_a_topic_is_told_why_nobody_looks_for_it_any_more(
    clock, server, call, end, error
):
    sender = producer(server, clock, transactional_id="copy")
    await sender.begin()
    server.then(m.MetadataRequest, asyncio.get_running_loop().create_future())
    waiting = asyncio.ensure_future(call(sender))
    await settle()

    ending = asyncio.ensure_future(end(sender))
    await clock.advance(1)
    await ending

    with pytest.raises(error, match="before the record was confirmed"):
        await waiting
    await sender.close()


@WAITS_FOR_A_TOPIC
async def test_a_caller_that_is_cancelled_while_it_waits_for_a_topic_is_cancelled_and_no_other_one(clock, server, call):
    sender = producer(server, clock)
    answer = asyncio.get_running_loop().create_future()
    server.then(m.MetadataRequest, answer)
    cancelled, other = (asyncio.ensure_future(call(sender)) for _ in range(2))
    await settle()

    cancelled.cancel()
    await settle()
    answer.set_result(None)

    assert await other
    assert cancelled.cancelled()
    await sender.close()


async def test_an_early_record_that_cannot_be_queued_fails_alone(clock, server, monkeypatch):
    sender = producer(server, clock)

    def broken(key, count):
        if key == b"bad":
            raise ValueError("no such key")
        return 0

    monkeypatch.setattr("flowshare.client.producer.producer.partition_for", broken)
    bad, good = (sender.send_nowait("orders", b"v", key=key) for key in (b"bad", b"good"))

    with pytest.raises(ClientError, match=r"could not be queued.*no such key"):
        await bad
    assert (await good).topic == "orders"
    assert sender.buffered_bytes == 0
    await sender.close()


# --- idempotence ----------------------------------------------------------------------------------------------------


def numbers(server):
    """Producer id, epoch and first sequence of each batch that was sent."""
    headers = [batch_headers(request.records)[0] for request in server.seen(m.ProduceRequest)]
    return [(one.producer_id, one.producer_epoch, one.base_sequence) for one in headers]


def refusal(code):
    return m.ProduceResponse(error=code)


async def test_a_batch_whose_answer_was_lost_is_sent_again_under_the_same_numbers(clock, server):
    sender = producer(server, clock)
    await sender.send_many("orders", [b"a", b"b"])
    server.then(m.ProduceRequest, ConnectionResetError("gone"), refusal(ErrorCode.REQUEST_TIMED_OUT))

    sent = asyncio.ensure_future(sender.send("orders", b"c"))
    await clock.advance(1)

    assert (await sent).offset == 2
    assert numbers(server) == [(1, 0, 0), (1, 0, 2), (1, 0, 2), (1, 0, 2)]
    await sender.close()


async def test_five_full_batches_of_a_partition_are_under_way_and_no_more(clock, server):
    sender = producer(server, clock, batch_size=500)
    await sender.send("orders", b"first")
    held = [asyncio.get_running_loop().create_future() for _ in range(5)]
    server.then(m.ProduceRequest, *held)

    sent = asyncio.ensure_future(sender.send_many("orders", [bytes(400)] * 8))
    await settle()
    assert numbers(server)[1:] == [(1, 0, 1), (1, 0, 2), (1, 0, 3), (1, 0, 4), (1, 0, 5)]
    for answer in held:
        answer.set_result(None)

    assert [one.offset for one in await sent] == list(range(1, 9))
    await sender.close()


@pytest.mark.parametrize("code", [ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.UNKNOWN_PRODUCER_ID])
async def test_a_log_that_has_forgotten_what_was_before_gets_the_batch_in_a_new_epoch(clock, server, code):
    sender = producer(server, clock)
    await sender.send("orders", b"a")
    server.then(m.ProduceRequest, refusal(code))

    assert (await sender.send("orders", b"b")).offset == 1

    assert numbers(server) == [(1, 0, 0), (1, 0, 1), (1, 1, 0)]
    await sender.close()


async def test_a_batch_that_the_log_has_already_is_confirmed_though_it_does_not_say_where(clock, server):
    sender = producer(server, clock)
    server.then(m.ProduceRequest, refusal(ErrorCode.DUPLICATE_SEQUENCE_NUMBER))

    assert await sender.send_many("orders", [b"a", b"b"]) == [RecordMetadata("orders", 0, -1)] * 2
    await sender.close()


async def test_who_is_fenced_goes_on_under_another_producer_id(clock, server):
    sender = producer(server, clock)
    server.then(m.ProduceRequest, refusal(ErrorCode.INVALID_PRODUCER_EPOCH))

    await sender.send("orders", b"a")

    assert numbers(server) == [(1, 0, 0), (2, 0, 0)]
    await sender.close()


async def test_a_batch_that_is_fenced_when_it_may_be_written_fails(clock, server):
    sender = producer(server, clock)
    fenced = refusal(ErrorCode.INVALID_PRODUCER_EPOCH)
    server.then(m.ProduceRequest, refusal(ErrorCode.REQUEST_TIMED_OUT), fenced)

    sent = asyncio.ensure_future(sender.send("orders", b"a"))
    await clock.advance(1)

    with pytest.raises(ServerError, match="INVALID_PRODUCER_EPOCH"):
        await sent
    assert (await sender.send("orders", b"b")).offset == 0
    await sender.close()


async def test_a_record_that_was_given_up_leaves_the_next_one_a_new_epoch(clock, server):
    sender = producer(server, clock, settings=ProducerSettings(delivery_timeout=3))
    await sender.send("orders", b"a")
    server.then(m.ProduceRequest, *[FAILED] * 1000)
    late = sender.send_nowait("orders", b"b")
    await clock.advance(3.1)
    with pytest.raises(DeliveryTimeout):
        late.result()
    server.script.clear()

    await sender.send("orders", b"c")

    assert numbers(server)[-1] == (1, 1, 0)
    await sender.close()


async def test_who_waits_for_room_and_is_cancelled_as_the_buffer_closes_gives_back_nothing(clock):
    buffer = Buffer(10)
    assert buffer.take(10)
    waiting = asyncio.ensure_future(buffer.wait(5))
    await settle()

    buffer.close()
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)

    assert buffer.used == 10


async def test_an_abort_while_a_batch_lingers_lets_the_next_transactions_leave(clock, server):
    sender = producer(server, clock, transactional_id="copy", linger=1.0)
    await sender.begin()
    lost = sender.send_nowait("orders", b"a")
    await settle()
    await sender.abort()
    await sender.begin()

    sent = asyncio.ensure_future(sender.send("orders", b"b"))
    await settle()
    await clock.advance(1)

    assert (await sent).offset == 0
    assert isinstance(lost.exception(), IllegalState)
    await sender.close()


async def test_who_may_not_produce_is_told_so(clock, server):
    sender = producer(server, clock)
    server.then(m.InitProducerIdRequest, m.InitProducerIdResponse(error=ErrorCode.CLUSTER_AUTHORIZATION_FAILED))

    with pytest.raises(ServerError, match=r"CLUSTER_AUTHORIZATION_FAILED \(ask for the right to write"):
        await sender.send("orders", b"a")

    assert (await sender.send("orders", b"b")).offset == 0
    assert sender.buffered_bytes == 0
    await sender.close()


async def test_a_batch_of_the_callers_making_is_sent_as_it_is(clock, server):
    sender = producer(server, clock)
    assert await sender.partitions("orders") == 1
    batch = BatchBuilder()
    batch.add(b"k", b"v", timestamp_ms=5)

    await sender.send_batch("orders", 0, batch)

    assert [(one.key, one.value, one.timestamp_ms) for one in records(server)] == [(b"k", b"v", 5)]
    await sender.close()


async def test_a_batch_of_the_callers_making_fails_with_the_first_of_its_records_that_does(clock, server):
    sender = producer(server, clock)
    await sender.partitions("orders")
    batch = BatchBuilder()
    for _ in range(2):
        batch.add(None, b"v", timestamp_ms=5)
    server.then(m.ProduceRequest, *[refusal(ErrorCode.MESSAGE_TOO_LARGE)] * 2)

    with pytest.raises(RecordTooLarge):
        await sender.send_batch("orders", 0, batch)

    assert values(server) == [b"v"]
    await sender.close()


# --- transactions -----------------------------------------------------------------------------------------------------


def transactional(server, clock):
    return producer(server, clock, transactional_id="copy", transaction_timeout=9)


async def test_a_transaction_names_its_partitions_before_their_first_batch_and_ends_once(clock):
    server = FakeServer(partitions=2)
    sender = transactional(server, clock)

    for _ in range(2):
        await sender.begin()
        await sender.send_many("orders", [Message(b"a", partition=0), Message(b"b", partition=1), Message(b"c")])
        sender.send_nowait("orders", b"d")
        await sender.commit()

    (init,) = server.seen(m.InitProducerIdRequest)
    assert (init.transactional_id, init.timeout_ms) == ("copy", 9000)
    kinds = [type(one) for one in server.requests]
    assert [kinds.count(kind) for kind in (m.AddPartitionsToTxnRequest, m.EndTxnRequest)] == [4, 2]
    assert all(one.transactional_id == "copy" for one in server.seen(m.ProduceRequest))
    assert all(batch_headers(one.records)[0].is_transactional for one in server.seen(m.ProduceRequest))
    assert all(one.committed for one in server.seen(m.EndTxnRequest))
    await sender.close()


async def test_after_an_abort_the_next_transaction_has_a_new_epoch(clock, server):
    sender = transactional(server, clock)
    await sender.begin()
    await sender.send("orders", b"a")
    await sender.abort()
    await sender.begin()
    await sender.send("orders", b"b")
    await sender.commit()

    assert numbers(server) == [(1, 0, 0), (1, 1, 0)]
    assert [one.committed for one in server.seen(m.EndTxnRequest)] == [False, True]
    await sender.close()


async def test_a_transaction_of_which_a_record_failed_can_only_be_aborted(clock, server):
    sender = transactional(server, clock)
    await sender.begin()
    await sender.send("orders", b"a")
    server.then(m.ProduceRequest, refusal(ErrorCode.INVALID_RECORD))
    with pytest.raises(ServerError, match="INVALID_RECORD"):
        await sender.send("orders", b"b")

    for call in (sender.commit, lambda: sender.send("orders", b"c")):
        with pytest.raises(ServerError, match="INVALID_RECORD"):
            await call()
    await sender.abort()
    await sender.begin()
    await sender.send("orders", b"c")
    await sender.commit()

    assert [one.committed for one in server.seen(m.EndTxnRequest)] == [False, True]
    assert sender.buffered_bytes == 0
    await sender.close()


async def test_what_is_too_large_in_a_transaction_is_sent_in_halves_in_its_epoch(clock, server):
    sender = transactional(server, clock)
    await sender.begin()
    server.then(m.ProduceRequest, refusal(ErrorCode.MESSAGE_TOO_LARGE))

    await sender.send_many("orders", [b"a", b"b", b"c", b"d"])
    await sender.commit()

    assert numbers(server) == [(1, 0, 0), (1, 0, 0), (1, 0, 2)]
    await sender.close()


async def test_transactions_are_begun_and_ended_in_turns(clock, server):
    plain, sender = producer(server, clock), transactional(server, clock)

    with pytest.raises(IllegalState, match="give it one"):
        await plain.begin()
    with pytest.raises(IllegalState, match="begin"):
        await sender.send("orders", b"a")
    with pytest.raises(IllegalState, match="nothing to abort"):
        await sender.abort()
    await sender.begin()
    with pytest.raises(IllegalState, match="open already"):
        await sender.begin()
    assert sender.identity == (1, 0)
    await plain.close()
    await sender.close()


async def test_a_commit_without_an_answer_can_only_be_asked_for_again(clock, server):
    sender = transactional(server, clock)
    await sender.begin()
    await sender.send("orders", b"a")
    server.then(m.EndTxnRequest, asyncio.get_running_loop().create_future())
    committing = asyncio.ensure_future(sender.commit())
    await settle()
    committing.cancel()
    await asyncio.gather(committing, return_exceptions=True)

    for call in (sender.abort, lambda: sender.send("orders", b"b")):
        with pytest.raises(IllegalState, match=r"committed is not known: commit\(\) again"):
            await call()
    await sender.commit()

    assert [one.committed for one in server.seen(m.EndTxnRequest)] == [True, True]
    await sender.begin()
    await sender.send("orders", b"b")
    await sender.abort()
    await sender.close()


async def test_a_commit_that_is_refused_can_be_aborted(clock, server):
    sender = transactional(server, clock)
    await sender.begin()
    await sender.send("orders", b"a")
    server.then(m.EndTxnRequest, m.Response(error=ErrorCode.INVALID_TXN_STATE))

    with pytest.raises(ServerError, match="INVALID_TXN_STATE"):
        await sender.commit()
    await sender.abort()

    assert [one.committed for one in server.seen(m.EndTxnRequest)] == [True, False]
    await sender.close()


@pytest.mark.parametrize("many", [False, True])
async def test_a_record_that_waited_for_room_does_not_slip_into_the_next_transaction(clock, server, many):
    sender = producer(server, clock, transactional_id="copy", buffer_memory=200)
    await sender.begin()
    answer = asyncio.get_running_loop().create_future()
    server.then(m.ProduceRequest, answer)
    first = sender.send_nowait("orders", b"a" * 150)
    await settle()
    late = sender.send_many("orders", [Message(b"b" * 150)]) if many else sender.send("orders", b"b" * 150)
    late = asyncio.ensure_future(late)
    await settle()

    await sender.abort()
    await sender.begin()

    with pytest.raises(IllegalState, match="is being ended"):
        await late
    assert first.exception() is not None
    assert sender.buffered_bytes == 0
    await sender.close()


@pytest.mark.parametrize("item", [b"v", Message(b"v", key=b"k")])
async def test_what_a_commit_beside_send_many_does_not_take_is_refused_and_counted(clock, server, item):
    sender = transactional(server, clock)
    await sender.begin()
    many = asyncio.ensure_future(sender.send_many("orders", [item] * (2 * ROUND + 1), return_exceptions=True))
    for _ in range(100):  # turns of the loop; in each one it adds a part
        if sender.buffered_bytes:
            break
        await asyncio.sleep(0)
    await sender.commit()

    with pytest.raises(
        IllegalState, match=r"await all sends before commit\(\).*; the first \d+ items of this"
    ) as refused:
        await many
    taken = int(re.findall(r"the first (\d+) items", str(refused.value))[0])
    assert 0 < taken < 2 * ROUND + 1
    assert len(records(server)) == taken, "what was taken is in the log, and nothing else"
    await sender.close()


async def test_a_coordinator_that_still_ends_the_one_before_is_asked_again(clock, server):
    sender = transactional(server, clock)
    await sender.begin()
    server.then(m.AddPartitionsToTxnRequest, m.Response(error=ErrorCode.CONCURRENT_TRANSACTIONS))

    sent = asyncio.ensure_future(sender.send("orders", b"a"))
    await clock.advance(1)

    assert (await sent).offset == 0
    await sender.close()


async def test_an_abort_while_a_partition_is_being_added_ends_what_the_coordinator_may_have_begun(clock, server):
    sender = transactional(server, clock)
    await sender.begin()
    server.then(m.AddPartitionsToTxnRequest, asyncio.get_running_loop().create_future())
    waiting = sender.send_nowait("orders", b"a")
    await settle()
    server.then(m.EndTxnRequest, m.Response(error=ErrorCode.INVALID_TXN_STATE))

    await sender.abort()

    with pytest.raises(IllegalState, match="aborted before"):
        waiting.result()
    assert len(server.seen(m.EndTxnRequest)) == 1
    assert sender.identity == (1, 1)
    await sender.close()


async def test_a_commit_sends_the_first_records_of_a_partition(clock):
    server = FakeServer(partitions=2)
    sender = transactional(server, clock)

    for _ in range(2):  # the second time after an abort, which makes all partitions new
        await sender.begin()
        await sender.send("orders", b"joined", partition=1)
        first = sender.send_nowait("orders", b"first", partition=0)
        await sender.commit()

        assert first.result().partition == 0
        await sender.begin()
        await sender.abort()

    assert values(server) == [b"first"] * 2
    assert [one.committed for one in server.seen(m.EndTxnRequest)] == [True] * 2
    await sender.close()


async def can_only_be_aborted(server, sender, error):
    """Check that the open transaction is refused a commit and more records with `error`, and that the next one
    commits."""
    for call in (sender.commit, lambda: sender.send("orders", b"more")):
        with pytest.raises(type(error)) as raised:
            await call()
        assert raised.value is error
    server.script.clear()
    await sender.abort()
    await sender.begin()
    sender.send_nowait("orders", b"next")
    await sender.commit()
    assert [one.committed for one in server.seen(m.EndTxnRequest)][-1:] == [True]
    assert not any(one.committed for one in server.seen(m.EndTxnRequest)[:-1])
    assert sender.buffered_bytes == 0
    await sender.close()


@pytest.mark.parametrize(("linger", "answers"), [(0.0, [FAILED] * 99), (2.0, [])], ids=["refused", "never_sent"])
async def test_a_record_that_is_not_confirmed_in_time_fails_its_transaction(clock, server, linger, answers):
    settings = ProducerSettings(delivery_timeout=1)
    sender = producer(server, clock, transactional_id="copy", settings=settings, linger=linger)
    await sender.begin()
    early = sender.send_nowait("orders", b"confirmed")
    await sender.flush()
    assert early.result().offset == 0
    server.then(m.ProduceRequest, *answers)

    late = sender.send_nowait("orders", b"late")
    await clock.advance(2)

    assert isinstance(late.exception(), DeliveryTimeout)
    await can_only_be_aborted(server, sender, late.exception())


@pytest.mark.parametrize(
    ("topic", "record"),
    [
        ("missing", Message(b"a")),
        ("orders", Message(b"a", partition=1)),
        ("orders", Message(b"a" * 999)),
    ],
    ids=["no_topic", "no_partition", "too_large"],
)
@pytest.mark.parametrize("many", [False, True])
async def test_a_record_that_cannot_be_sent_at_all_fails_its_transaction(clock, server, topic, record, many):
    settings = ProducerSettings(auto_create_topics=False, max_request_size=500)
    sender = producer(server, clock, transactional_id="copy", settings=settings)
    await sender.begin()
    one = partial(sender.send, topic, record.value, partition=record.partition)

    with pytest.raises(ClientError) as raised:
        await (sender.send_many(topic, [record]) if many else one())

    await can_only_be_aborted(server, sender, raised.value)


async def test_what_failed_before_a_transaction_or_was_only_asked_does_not_fail_it(clock, server):
    sender = producer(
        server, clock, transactional_id="copy", settings=ProducerSettings(auto_create_topics=False), buffer_memory=200
    )
    await sender.begin()
    lost = sender.send_nowait("orders", b"a" * 150)
    with pytest.raises(BufferFull):
        sender.send_nowait("orders", b"b" * 150)
    await sender.abort()
    assert isinstance(lost.exception(), IllegalState)
    await sender.begin()
    with pytest.raises(ServerError, match="UNKNOWN_TOPIC"):
        await sender.partitions("missing")
    with pytest.raises(TypeError):
        await sender.send("orders", "text")

    await sender.send("orders", b"c")
    with pytest.raises(BufferFull):
        [sender.send_nowait("orders", b"d" * 50) for _ in range(9)]
    await sender.commit()

    assert values(server) == [b"c", *[b"d" * 50] * 2]
    await sender.close()


async def test_after_an_abort_that_was_not_answered_the_rest_cannot_be_committed(clock, server):
    sender = transactional(server, clock)
    await sender.begin()
    await sender.send("orders", b"confirmed")
    server.then(m.ProduceRequest, asyncio.get_running_loop().create_future())
    given_up = sender.send_nowait("orders", b"given up")
    await settle()
    server.then(m.EndTxnRequest, asyncio.get_running_loop().create_future())
    aborting = asyncio.ensure_future(sender.abort())
    await settle()
    aborting.cancel()
    await asyncio.gather(aborting, return_exceptions=True)

    with pytest.raises(IllegalState, match="aborted before"):
        await sender.commit()
    await sender.abort()

    assert isinstance(given_up.exception(), IllegalState)
    assert not any(one.committed for one in server.seen(m.EndTxnRequest))
    await sender.close()


async def test_an_abort_that_was_cancelled_after_its_end_is_repeated_and_ends(clock, server):
    sender = transactional(server, clock)
    await sender.begin()
    await sender.send("orders", b"a")
    never = asyncio.get_running_loop().create_future()
    server.then(m.InitProducerIdRequest, never)
    aborting = asyncio.ensure_future(sender.abort())
    await settle()
    aborting.cancel()
    await settle()

    await sender.abort()
    await sender.begin()
    await sender.send("orders", b"b")
    await sender.commit()

    assert [one.committed for one in server.seen(m.EndTxnRequest)] == [False, True]
    await sender.close()


async def test_a_batch_that_never_left_is_sent_in_halves_when_it_is_too_large(clock, server):
    sender = producer(server, clock)
    await sender.partitions("orders")
    ask, tries = sender._channel.ask, []

    async def away_once(request, left_s):
        if isinstance(request, m.ProduceRequest):
            tries.append(request)
            if len(tries) == 1:
                raise NotConnected("broker 1 cannot be reached")
        return await ask(request, left_s)

    sender._channel.ask = away_once
    server.then(m.ProduceRequest, refusal(ErrorCode.MESSAGE_TOO_LARGE))
    sending = asyncio.ensure_future(sender.send_many("orders", [b"a", b"b"]))
    await settle()
    await clock.advance(5)

    assert [one.offset for one in await sending] == [0, 1]
    await sender.close()


@pytest.mark.parametrize("early", [True, False], ids=["before the topic is known", "after"])
async def test_a_record_that_cannot_be_written_leaves_no_room_taken(clock, server, early):
    sender = producer(server, clock)
    if not early:
        await sender.partitions("orders")
    half = Message(b"x" * 100, headers=(("a\udc80", b"1"),))

    for send in (sender.send_nowait, sender.send):
        with pytest.raises(TypeError, match=r"no text that UTF-8 can write: 'a\\udc80'"):
            await send("orders", half.value, headers=half.headers)
    with pytest.raises(TypeError, match="no text that UTF-8 can write"):
        await sender.send_many("orders", [half])

    assert sender.buffered_bytes == 0
    await sender.close()
