"""The log that workers read: what is produced is told, read once for all, within bounds."""

from __future__ import annotations

import asyncio

import pytest

from flowshare.fleet.log.settings import LogSettings
from flowshare.log.base import OffsetOutOfRange, StorageError, UnknownTopic
from flowshare.protocol import messages as m
from flowshare.protocol.batches import decode_all
from flowshare.share.types import LogBatch
from tests.fleet.log.worlds import batch, numbers, scenario, world

SMALL = LogSettings(
    ahead_bytes=400_000, ahead_partition_bytes=80_000, ahead_least_bytes=8_000, stretch_bytes=20_000, watch_bytes=40_000
)


@scenario
async def test_bounds_are_known_once_a_partition_is_followed():
    async with world() as w:
        await w.topic(partitions=2)
        await w.fill(3, partition=1)
        with pytest.raises(UnknownTopic, match="not read by this worker"):
            w.log.offsets("orders", 1)

        await w.log.follow("orders", 1)

        assert w.log.offsets("orders", 1).high_watermark == 30
        assert await w.read_all(partition=1) == [LogBatch(0, 9), LogBatch(10, 19), LogBatch(20, 29)]


@scenario
async def test_a_partition_that_is_not_there_is_refused():
    async with world() as w:
        await w.topic()

        with pytest.raises(UnknownTopic, match="none is 3"):
            await w.log.follow("orders", 3)
        with pytest.raises(UnknownTopic, match="no topic 'payments'"):
            await w.log.follow("payments", 0)
        with pytest.raises(UnknownTopic):
            w.log.offsets("payments", 0)
        assert w.log._registry.by_place == {}


@scenario
async def test_new_records_are_told_and_lie_in_memory_already():
    async with world() as w:
        await w.topic()
        await w.log.follow("orders", 0)
        await w.passes(2)
        w.moves.clear()
        asked = w.kafka.asked[m.FetchRequest]

        await w.produce(b"a", b"b")
        await w.passes(0.001)

        assert w.moves == [("orders", 0)]
        assert w.log.offsets("orders", 0).high_watermark == 2
        read = await w.log.read("orders", 0, 0, max_bytes=1000)
        assert [record.value for record in decode_all(read.records)] == [b"a", b"b"]
        # The parked one that was answered, and the next one.
        assert w.kafka.asked[m.FetchRequest] <= asked + 1


@scenario
async def test_one_parked_fetch_asks_for_all_partitions_of_a_broker():
    async with world() as w:
        await w.topic(partitions=50)
        await asyncio.gather(*(w.log.follow("orders", number) for number in range(50)))
        await w.passes(2)
        before = w.kafka.asked[m.FetchRequest]

        await w.passes(10)

        assert w.kafka.asked[m.FetchRequest] - before <= 2 * 20, "two tracks, each waits half a second"
        await w.produce(b"x", partition=37)
        await w.passes(0.001)
        assert ("orders", 37) in w.moves


@scenario
async def test_groups_at_the_same_place_have_a_record_read_once():
    async with world() as w:
        await w.topic()
        await w.fill(100, size=1000)
        await w.log.follow("orders", 0)
        await w.passes(1)
        before = w.kafka.asked[m.FetchRequest]

        found = await asyncio.gather(*(w.read_all() for _ in range(5)))

        assert found == [[LogBatch(n, n + 9) for n in range(0, 1000, 10)]] * 5
        once = w.kafka.asked[m.FetchRequest] - before
        await w.read_all()
        assert once <= 3
        assert w.kafka.asked[m.FetchRequest] - before == once


@scenario
async def test_a_whole_backlog_is_read_within_little_memory():
    async with world(SMALL) as w:
        await w.topic()
        await w.fill(300, size=200)
        await w.log.follow("orders", 0)

        assert await w.read_all(max_bytes=5000) == [LogBatch(n, n + 9) for n in range(0, 3000, 10)]
        buffer = w.log._registry.find("orders", 0).buffers[False]
        assert w.log._registry.memory.size <= 4 * SMALL.stretch_bytes
        assert sum(run.size for run in buffer.cold) + buffer.tail.size == w.log._registry.memory.size


@scenario
async def test_what_nobody_reads_is_not_read_ahead_without_end():
    async with world(SMALL) as w:
        await w.topic()
        await w.log.follow("orders", 0)
        for _ in range(30):
            await w.fill(5, size=1000)
            await w.passes(0.1)

        buffer = w.log._registry.find("orders", 0).buffers[False]
        assert buffer.paused
        assert buffer.tail.size <= SMALL.ahead_partition_bytes // 2 + SMALL.stretch_bytes
        await w.passes(SMALL.look_s + 0.1)
        assert w.log.offsets("orders", 0).high_watermark == 1500, "the end is known all the same"

        await w.kafka.storage.delete_records("orders", 0, 700)
        await w.passes(SMALL.look_s + 0.1)
        assert w.log.offsets("orders", 0).log_start == 700, "and the start"
        found = await w.read_all(700, max_bytes=30_000)
        assert found == [LogBatch(n, n + 9) for n in range(700, 1500, 10)]
        await w.produce(b"next")
        await w.passes(0.01)
        assert not buffer.paused
        assert await w.read_all(1500) == [LogBatch(1500, 1500)]


@scenario
async def test_a_group_at_the_end_is_told_at_once_although_another_lags():
    async with world(SMALL) as w:
        await w.topic()
        await w.fill(300, size=200)
        await w.log.follow("orders", 0)
        await w.log.read("orders", 0, 0, max_bytes=100)
        await w.fill(100, size=1000)
        await w.passes(2)
        assert w.log._registry.find("orders", 0).buffers[False].paused

        end = w.log.offsets("orders", 0).high_watermark
        await w.produce(b"one")
        await w.passes(SMALL.look_s + 0.1)
        assert await w.read_all(end) == [LogBatch(end, end)]
        w.moves.clear()
        await w.produce(b"two")
        await w.passes(0.001)

        assert w.moves == [("orders", 0)]
        assert await w.read_all(end + 1) == [LogBatch(end + 1, end + 1)]
        assert (await w.log.read("orders", 0, 10, max_bytes=100)).batches == (LogBatch(10, 19),)


@scenario
async def test_deleted_records_are_told_and_refused():
    async with world() as w:
        await w.topic()
        await w.fill(10)
        await w.log.follow("orders", 0)
        await w.read_all()
        w.moves.clear()

        await w.kafka.storage.delete_records("orders", 0, 55)
        await w.passes(1)

        assert w.moves
        assert w.log.offsets("orders", 0).log_start == 55
        with pytest.raises(OffsetOutOfRange):
            await w.log.read("orders", 0, 54, max_bytes=100)
        with pytest.raises(OffsetOutOfRange):
            await w.log.read("orders", 0, 101, max_bytes=100)
        assert await w.read_all(55) == [LogBatch(n, n + 9) for n in range(50, 100, 10)]


@scenario
async def test_records_deleted_a_moment_ago_are_refused_with_the_new_start():
    async with world() as w:
        await w.topic()
        await w.fill(10)
        await w.log.follow("orders", 0)
        await w.kafka.storage.delete_records("orders", 0, 100)

        with pytest.raises(OffsetOutOfRange):
            await w.log.read("orders", 0, 0, max_bytes=100)
        assert w.log.offsets("orders", 0).log_start == 100


@scenario
async def test_a_partition_is_followed_until_the_last_has_let_go():
    async with world() as w:
        await w.topic()
        await asyncio.gather(*(w.log.follow("orders", 0) for _ in range(3)))
        w.log.unfollow("orders", 0)
        w.log.unfollow("orders", 0)
        assert w.log.offsets("orders", 0).high_watermark == 0

        w.log.unfollow("orders", 0)
        w.log.unfollow("orders", 0)

        with pytest.raises(UnknownTopic):
            w.log.offsets("orders", 0)
        await w.passes(1)
        before = w.kafka.asked[m.FetchRequest]
        await w.passes(5)
        assert w.kafka.asked[m.FetchRequest] == before
        assert w.log._registry.memory.size == w.log._registry.memory.buffers == 0


@scenario
async def test_a_partition_that_is_let_go_while_it_is_read_is_unknown():
    async with world() as w:
        await w.topic()
        await w.fill(1)
        await w.log.follow("orders", 0)
        w.kafka.hold(m.FetchRequest)
        read = asyncio.create_task(w.log.read("orders", 0, 0, max_bytes=100))
        await w.passes(0.01)
        w.log.unfollow("orders", 0)
        w.kafka.release(m.FetchRequest)

        with pytest.raises(UnknownTopic):
            await read


@scenario
async def test_a_reader_that_goes_away_leaves_the_others_their_answer():
    async with world() as w:
        await w.topic()
        await w.fill(1)
        await w.log.follow("orders", 0)
        w.kafka.hold(m.FetchRequest)
        reads = [asyncio.create_task(w.log.read("orders", 0, 0, max_bytes=100)) for _ in range(2)]
        await w.passes(0.01)
        reads[0].cancel()
        w.kafka.release(m.FetchRequest)

        assert (await reads[1]).batches == (LogBatch(0, 9),)
        with pytest.raises(asyncio.CancelledError):
            await reads[0]


@scenario
async def test_an_isolation_level_that_nobody_reads_any_more_is_not_asked_for():
    async with world() as w:
        await w.topic()
        await w.fill(3)
        await w.log.follow("orders", 0)
        await w.read_all(committed=True)
        buffers = w.log._registry.find("orders", 0).buffers
        assert buffers[True].tail is not None

        for number in range(50):
            await w.produce(b"more")
            await w.passes(1)
            await w.read_all(30 + number, committed=True)

        assert buffers[False].tail is None
        assert buffers[True].tail is not None
        assert await w.read_all(0) == await w.read_all(0, committed=True)


@scenario
async def test_records_are_written_where_kafka_says():
    async with world() as w:
        await w.topic()
        await w.fill(1)

        done = await w.log.append("orders", 0, batch(*numbers(0, 3)))

        assert (done.base_offset, done.last_offset) == (10, 12)
        with pytest.raises(UnknownTopic):
            await w.log.append("orders", 7, batch(b"a"))


@scenario
async def test_a_time_and_bounds_are_found_without_following():
    async with world() as w:
        await w.topic()
        await w.fill(2)

        assert await w.log.offset_for_timestamp("orders", 0, 1) == (0, 1000)
        assert await w.log.offset_for_timestamp("orders", 0, 2**52) is None
        assert (await w.log.bounds("orders", 0)).high_watermark == 20
        with pytest.raises(UnknownTopic):
            await w.log.bounds("nothing", 0)


@scenario
async def test_a_topic_for_dead_letters_is_made():
    async with world() as w:
        made = await w.log.create_topic("orders-dlq", partitions=2)

        assert w.log.topics()["orders-dlq"] == made
        assert made.partitions == 2


@scenario
async def test_a_closed_log_answers_who_waits():
    async with world() as w:
        await w.topic()
        await w.fill(1)
        await w.log.follow("orders", 0)
        w.kafka.hold(m.FetchRequest)
        read = asyncio.create_task(w.log.read("orders", 0, 0, max_bytes=100))
        await w.passes(0.01)

        await w.log.close()

        with pytest.raises(StorageError):
            await read
