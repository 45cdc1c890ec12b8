"""The producer against a scripted server: batches, order, bounds, retries, outcomes of each record."""

from __future__ import annotations

import asyncio
import uuid

import pytest

from flowshare.client.batching import Buffer
from flowshare.client.errors import BufferFull, ClientError, Closed, DeliveryTimeout, RecordTooLarge, ServerError
from flowshare.client.partitioner import partition_for
from flowshare.client.producer import Message, Producer, RecordMetadata
from flowshare.client.settings import ProducerSettings
from flowshare.protocol import messages as m
from flowshare.protocol.batches import batch_headers, decode_all
from flowshare.protocol.errors import ErrorCode
from flowshare.testing.clock import settle
from tests.client.fakes import FakeServer

pytestmark = pytest.mark.asyncio
FAILED = m.ProduceResponse(error=ErrorCode.NOT_LEADER_OR_FOLLOWER)


def records(server, topic="orders", partition=0):
    return [record for batch in server.log.get((topic, partition), []) for record in decode_all(batch)]


def values(server, topic="orders", partition=0):
    return [record.value for record in records(server, topic, partition)]


def producer(server, clock, **kwargs):
    return Producer(server.connect, clock=clock, **{"linger_s": 0.0, **kwargs})


async def test_a_record_arrives_with_all_that_was_given(clock):
    server = FakeServer()
    sender = producer(server, clock)

    sent = await sender.send("orders", b"v", key=b"k", headers=[("h", b"1"), ("n", None)], timestamp_ms=5)

    assert sent == RecordMetadata("orders", 0, 0)
    (record,) = records(server)
    assert (record.key, record.value, record.timestamp_ms) == (b"k", b"v", 5)
    assert record.headers == (("h", b"1"), ("n", None))
    await sender.close()


async def test_records_without_a_time_get_the_clocks(clock):
    server = FakeServer()
    sender = producer(server, clock)

    await sender.send("orders", None)
    await sender.send_many("orders", [b"b"])

    assert [record.timestamp_ms for record in records(server)] == [clock.now_ms()] * 2
    await sender.close()


async def test_records_that_come_within_the_linger_share_a_batch(clock):
    server = FakeServer()
    sender = producer(server, clock, linger_s=0.01)
    first = sender.send_nowait("orders", b"a")
    await settle()
    second = sender.send_nowait("orders", b"b")
    await clock.advance(0.005)
    assert not first.done()

    await clock.advance(0.006)

    assert [(await first).offset, (await second).offset] == [0, 1]
    assert len(server.seen(m.ProduceRequest)) == 1
    await sender.close()


async def test_nothing_lingers_by_default_and_what_comes_meanwhile_shares_the_next_request(clock):
    server = FakeServer()
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


async def test_a_full_batch_does_not_linger(clock):
    server = FakeServer()
    sender = producer(server, clock, linger_s=100, batch_bytes=1000)
    await sender.send_many("orders", [])

    waiting = [sender.send_nowait("orders", bytes(300)) for _ in range(4)]
    await settle()

    assert [future.done() for future in waiting] == [True, True, True, True]
    assert len(batch_headers(server.seen(m.ProduceRequest)[0].records)) == 2
    await sender.close()


async def test_order_within_a_partition_survives_retries(clock):
    server = FakeServer()
    sender = producer(server, clock)
    server.then(m.ProduceRequest, FAILED, FAILED)
    waiting = [sender.send_nowait("orders", b"%d" % n) for n in range(3)]
    await settle()
    waiting += [sender.send_nowait("orders", b"%d" % n) for n in range(3, 6)]

    await clock.advance(1)

    assert [future.result().offset for future in waiting] == list(range(6))
    assert values(server) == [b"%d" % n for n in range(6)]
    await sender.close()


async def test_a_lost_connection_is_replaced_and_the_records_are_sent_again(clock):
    server = FakeServer()
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


async def test_a_record_that_is_never_confirmed_fails_in_time(clock):
    server = FakeServer()
    sender = producer(server, clock, settings=ProducerSettings(delivery_timeout_s=3))
    await sender.send("orders", b"a")
    server.then(m.ProduceRequest, *[FAILED] * 1000)
    waiting = sender.send_nowait("orders", b"b")

    await clock.advance(3.1)

    with pytest.raises(DeliveryTimeout, match="NOT_LEADER"):
        waiting.result()
    assert sender.buffered_bytes == 0
    await sender.close()


async def test_a_server_that_is_not_there_fails_the_records_in_time(clock):
    server = FakeServer()
    server.refuse_connects = 1_000_000
    sender = producer(server, clock, settings=ProducerSettings(delivery_timeout_s=3))
    waiting = sender.send_nowait("orders", b"b")

    await clock.advance(4)

    with pytest.raises(DeliveryTimeout, match="nobody listens"):
        waiting.result()
    assert sender.buffered_bytes == 0
    await sender.close()


async def test_a_disk_that_refuses_is_told_at_once(clock):
    server = FakeServer()
    sender = producer(server, clock)
    server.then(m.ProduceRequest, m.ProduceResponse(error=ErrorCode.KAFKA_STORAGE_ERROR))

    with pytest.raises(ServerError, match="disk"):
        await sender.send("orders", b"a")

    assert (await sender.send("orders", b"b")).offset == 0
    await sender.close()


async def test_a_record_that_is_too_large_is_refused_before_it_is_sent(clock):
    server = FakeServer()
    sender = producer(server, clock)

    with pytest.raises(RecordTooLarge, match="request_bytes_max"):
        await sender.send("orders", bytes(1 << 20))

    assert server.requests == []
    await sender.close()


async def test_only_the_record_that_the_topic_finds_too_large_fails(clock):
    server = FakeServer()
    sender = producer(server, clock, linger_s=0.01)
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


async def test_a_full_buffer_makes_send_wait_and_send_nowait_raise(clock):
    server = FakeServer()
    sender = producer(server, clock, buffer_bytes=500)
    await sender.send_many("orders", [])
    held = asyncio.get_running_loop().create_future()
    server.then(m.ProduceRequest, held)
    first = sender.send_nowait("orders", bytes(400))
    await settle()

    with pytest.raises(BufferFull, match="buffer_bytes"):
        sender.send_nowait("orders", bytes(400))
    second = asyncio.ensure_future(sender.send("orders", bytes(400)))
    await settle()
    assert not second.done()
    held.set_result(m.ProduceResponse(base_offset=0))

    await first
    await second
    assert sender.buffered_bytes == 0
    await sender.close()


async def test_a_waiter_that_gives_up_leaves_its_place_to_the_next(clock):
    server = FakeServer()
    sender = producer(server, clock, buffer_bytes=500)
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


async def test_send_many_goes_through_a_small_buffer_in_order(clock):
    server = FakeServer()
    sender = producer(server, clock, buffer_bytes=5000, batch_bytes=1000)

    sent = await sender.send_many("orders", [b"%04d" % n for n in range(2000)])

    assert [one.offset for one in sent] == list(range(2000))
    assert values(server) == [b"%04d" % n for n in range(2000)]
    assert sender.buffered_bytes == 0
    await sender.close()


async def test_send_many_takes_messages_and_raises_the_first_error(clock):
    server = FakeServer(partitions=3)
    sender = producer(server, clock)

    sent = await sender.send_many("orders", [Message(b"v", b"k"), None, Message(b"w", partition=2, timestamp_ms=9)])
    with pytest.raises(ServerError, match="the topic has 3"):
        await sender.send_many("orders", [Message(b"x", partition=3)])

    assert sent[0].partition == partition_for(b"k", 3)
    assert records(server, partition=2)[-1].timestamp_ms == 9
    assert sender.buffered_bytes == 0
    await sender.close()


async def test_keyed_records_go_where_every_client_sends_them_and_others_change_by_the_batch(clock):
    server = FakeServer(partitions=4)
    sender = producer(server, clock, batch_bytes=500)

    keyed = await sender.send_many("orders", [Message(b"v", b"%d" % n) for n in range(50)])
    spread = await sender.send_many("orders", [bytes(100)] * 40)

    assert [one.partition for one in keyed] == [partition_for(b"%d" % n, 4) for n in range(50)]
    used = [one.partition for one in spread]
    assert set(used) == {0, 1, 2, 3}
    assert used[:3] == [used[0]] * 3
    await sender.close()


async def test_an_unknown_topic_is_created_once_and_early_records_keep_their_order(clock):
    server = FakeServer()
    sender = producer(server, clock)

    waiting = [sender.send_nowait("new", b"%d" % n) for n in range(3)]
    await settle()

    assert [future.result().offset for future in waiting] == [0, 1, 2]
    assert values(server, "new") == [b"0", b"1", b"2"]
    assert len(server.seen(m.CreateTopicRequest)) == 1
    await sender.close()


async def test_without_creation_an_unknown_topic_is_an_error_that_says_what_to_do(clock):
    server = FakeServer()
    sender = producer(server, clock, settings=ProducerSettings(auto_create_topics=False))

    with pytest.raises(ServerError, match="create the topic"):
        await sender.send("nwe", b"a")
    with pytest.raises(ServerError, match="create the topic"):
        await sender.send_many("nwe", [b"a"])

    assert sender.buffered_bytes == 0
    await sender.close()


async def test_a_topic_that_was_deleted_is_created_again(clock):
    server = FakeServer()
    sender = producer(server, clock)
    await sender.send("orders", b"a")
    del server.known["orders"]
    server.then(m.ProduceRequest, m.ProduceResponse(error=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))

    waiting = sender.send_nowait("orders", b"b")
    await clock.advance(1)

    assert waiting.result().offset == 1
    assert "orders" in server.known
    await sender.close()


async def test_a_topic_that_grew_is_noticed_when_the_knowledge_is_old(clock):
    server = FakeServer()
    sender = producer(server, clock)
    await sender.send("orders", b"a")
    server.known["orders"] = (uuid.uuid4(), 2)

    await clock.advance(301)
    await sender.send("orders", b"b")
    await settle()

    assert (await sender.send("orders", b"c", partition=1)).partition == 1
    await sender.close()


@pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "lz4", "zstd"])
async def test_batches_are_compressed_as_told(clock, compression):
    server = FakeServer()
    sender = producer(server, clock, compression=compression)

    await sender.send_many("orders", [b"x" * 100] * 50)

    assert batch_headers(server.log["orders", 0][0])[0].codec == compression
    assert values(server) == [b"x" * 100] * 50
    await sender.close()


async def test_flush_waits_for_what_was_sent_and_hurries_it(clock):
    server = FakeServer()
    sender = producer(server, clock, linger_s=1000)
    waiting = sender.send_nowait("orders", b"a")

    await sender.flush()

    assert waiting.done()
    await sender.close()


async def test_close_confirms_what_it_can_and_fails_the_rest_in_time(clock):
    server = FakeServer()
    sender = producer(server, clock, linger_s=1000)
    done = sender.send_nowait("orders", b"a")
    await sender.flush()
    server.then(m.ProduceRequest, asyncio.get_running_loop().create_future())
    stuck = sender.send_nowait("orders", b"b")
    closing = asyncio.ensure_future(sender.close(timeout_s=2))
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

    sender = Producer(connect, clock=clock, linger_s=0.0)

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


async def test_closing_while_a_batch_is_sent_in_halves_tells_of_every_record(clock):
    server = FakeServer()
    sender = producer(server, clock)
    never = asyncio.get_running_loop().create_future()
    too_large = m.ProduceResponse(error=ErrorCode.MESSAGE_TOO_LARGE)
    server.then(m.ProduceRequest, too_large, None, never)
    sending = asyncio.ensure_future(sender.send_many("orders", [b"a", b"b", b"c", b"d"], return_exceptions=True))
    await settle()

    closing = asyncio.ensure_future(sender.close(timeout_s=1.0))
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
        ({"value": b"", "timestamp_ms": 1.5}, "the timestamp_ms of a record for orders is float"),
    ],
)
async def test_what_is_no_record_is_refused_where_it_is_sent(clock, given, said):
    server = FakeServer()
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


async def test_an_early_record_that_cannot_be_queued_fails_alone(clock, monkeypatch):
    server = FakeServer()
    sender = producer(server, clock)

    def broken(key, count):
        if key == b"bad":
            raise ValueError("no such key")
        return 0

    monkeypatch.setattr("flowshare.client.producer.partition_for", broken)
    bad, good = (sender.send_nowait("orders", b"v", key=key) for key in (b"bad", b"good"))

    with pytest.raises(ClientError, match=r"could not be queued.*no such key"):
        await bad
    assert (await good).topic == "orders"
    assert sender.buffered_bytes == 0
    await sender.close()
