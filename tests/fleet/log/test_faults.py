"""The log that workers read, when brokers die, move, lie, and lose records."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace

import pytest

from flowshare.fleet.log.settings import LogSettings
from flowshare.log.base import CorruptBatches, StorageError
from flowshare.protocol import messages as m
from flowshare.protocol.errors import ErrorCode
from flowshare.share.types import LogBatch
from tests.fleet.log.faulty import LyingKafka, PairKafka
from tests.fleet.log.test_chunk import transactional
from tests.fleet.log.worlds import scenario, world


@scenario
async def test_news_come_again_after_all_connections_broke():
    async with world() as w:
        await w.topic()
        await w.log.follow("orders", 0)
        await w.passes(1)
        for number in range(5):
            await w.kafka.cut()
            await w.produce(b"x")
            await w.until(lambda: w.log.offsets("orders", 0).high_watermark == number + 1)  # noqa: B023

        assert len(await w.read_all()) == 5


@scenario
async def test_a_broker_that_is_away_for_long_is_tried_at_bounded_pace():
    async with world() as w:
        await w.topic()
        await w.fill(1)
        await w.log.follow("orders", 0)
        w.kafka.down = True
        await w.kafka.cut()
        with pytest.raises(StorageError, match="Kafka does not answer now"):
            await w.log.read("orders", 0, 0, max_bytes=100)
        assert w.log.offsets("orders", 0).high_watermark == 10
        await w.passes(300)

        w.kafka.down = False
        await w.produce(b"x")
        await w.until(lambda: w.log.offsets("orders", 0).high_watermark == 11, limit_s=5)
        assert await w.read_all() == [LogBatch(0, 9), LogBatch(10, 10)]


@scenario
async def test_bounds_that_were_refused_for_an_hour_are_still_asked_for():
    async with world() as w:
        await w.topic()
        await w.fill(1)
        await w.log.follow("orders", 0)
        await w.kafka.storage.delete_topic("orders")
        w.kafka.refuse(m.ListOffsetsRequest, ErrorCode.UNKNOWN_SERVER_ERROR, 30)
        followed = w.log._registry.find("orders", 0)
        followed.failures = 2_000
        await w.topic()

        await w.until(lambda: followed.known and followed.offsets().high_watermark == 0)


@scenario
async def test_a_lost_answer_is_asked_for_again():
    async with world() as w:
        await w.topic()
        await w.log.follow("orders", 0)
        await w.passes(1)
        w.kafka.drop_answers(m.FetchRequest, 2)

        await w.produce(b"x")
        await w.until(lambda: w.log.offsets("orders", 0).high_watermark == 1)

        assert await w.read_all() == [LogBatch(0, 0)]


@scenario
async def test_a_moved_leader_is_found_and_what_was_read_stays():
    async with world(kafka=PairKafka) as w:
        await w.topic(partitions=2)
        await w.fill(3)
        await w.log.follow("orders", 0)
        await w.read_all()
        w.kafka.leaders[0] = 2

        await w.produce(b"x")
        await w.until(lambda: w.log.offsets("orders", 0).high_watermark == 31, limit_s=3)

        before = w.kafka.asked[m.FetchRequest]
        assert len(await w.read_all(0)) == 4
        assert w.kafka.asked[m.FetchRequest] == before


@scenario
async def test_a_dead_broker_does_not_hold_up_what_others_lead():
    async with world(kafka=PairKafka) as w:
        await w.topic(partitions=4)
        for number in range(4):
            await w.log.follow("orders", number)
        await w.passes(1)
        await w.kafka.kill(2)
        await w.passes(0.01)

        for number in range(20):
            w.moves.clear()
            await w.produce(b"x", partition=2)
            await w.passes(0.001)
            assert w.moves == [("orders", 2)], number
            await w.passes(0.3)
        w.kafka.leaders.update({1: 1, 3: 1})
        await w.produce(b"x", partition=3)
        await w.until(lambda: w.log.offsets("orders", 3).high_watermark == 1, limit_s=5)


@scenario
async def test_a_slow_broker_does_not_hold_up_what_others_lead():
    async with world(kafka=PairKafka) as w:
        await w.topic(partitions=2)
        await w.fill(2, partition=0)
        for number in range(2):
            await w.log.follow("orders", number)
        await w.passes(1)
        w.kafka.slow.add(2)
        await w.produce(b"x", partition=1)

        for number in range(10):
            await w.produce(b"x", partition=0)
            await w.passes(0.001)
            assert w.log.offsets("orders", 0).high_watermark == 21 + number
        assert len(await w.read_all(partition=0)) == 12
        w.kafka.slow.clear()
        await w.until(lambda: w.log.offsets("orders", 1).high_watermark == 1, limit_s=2)


@scenario
async def test_a_follower_waits_until_there_is_a_leader():
    async with world(kafka=PairKafka) as w:
        await w.topic()
        w.kafka.leaders[0] = -1
        following = asyncio.create_task(w.log.follow("orders", 0))
        await w.passes(1)
        assert not following.done()

        w.kafka.leaders[0] = 2
        await following
        await w.produce(b"x")
        await w.until(lambda: w.log.offsets("orders", 0).high_watermark == 1)


@scenario
async def test_a_refused_partition_is_asked_for_again_later():
    async with world() as w:
        await w.topic()
        await w.log.follow("orders", 0)
        await w.passes(1)
        w.kafka.refuse(m.FetchRequest, ErrorCode.KAFKA_STORAGE_ERROR, 6)

        await w.produce(b"x")
        await w.passes(0.01)
        await w.fill(1)
        await w.until(lambda: w.log.offsets("orders", 0).high_watermark == 11, limit_s=15)
        assert await w.read_all() == [LogBatch(0, 0), LogBatch(1, 10)]


@scenario
async def test_a_reader_is_told_which_right_is_missing():
    async with world() as w:
        await w.topic()
        await w.fill(1)
        await w.log.follow("orders", 0)
        await w.passes(0.1)
        w.kafka.refuse(m.FetchRequest, ErrorCode.TOPIC_AUTHORIZATION_FAILED)

        with pytest.raises(Exception, match="grant the workers' user READ"):
            await w.log.read("orders", 0, 0, max_bytes=100)


@scenario
async def test_aborted_transactions_are_told_to_readers_of_committed_records():
    async with world() as w:
        await w.topic()
        storage = w.kafka.storage
        await storage.append("orders", 0, transactional(0, 7, count=3))
        await storage.append("orders", 0, transactional(0, 8))
        await w.log.follow("orders", 0)
        assert w.log.offsets("orders", 0).last_stable == 0
        assert await w.read_all(committed=True) == []

        await storage.append_control("orders", 0, 7, 0, committed=False)
        await w.passes(0.01)
        read = await w.log.read("orders", 0, 0, max_bytes=1000, committed=True)
        assert w.log.offsets("orders", 0).last_stable == 3
        assert read.batches == read.aborted == (LogBatch(0, 2),)
        plain = await w.log.read("orders", 0, 0, max_bytes=1000)
        assert plain.batches == (LogBatch(0, 2), LogBatch(3, 3), LogBatch(4, 4))
        assert plain.aborted == ()

        w.moves.clear()
        await storage.append_control("orders", 0, 8, 0, committed=True)
        await w.passes(0.01)
        assert w.moves
        assert w.log.offsets("orders", 0).last_stable == 6
        rest = await w.log.read("orders", 0, 3, max_bytes=1000, committed=True)
        assert rest.batches == (LogBatch(3, 3), LogBatch(4, 4), LogBatch(5, 5))
        assert rest.aborted == ()


@scenario
async def test_damaged_records_are_refused_and_what_comes_before_is_read():
    async with world(kafka=LyingKafka) as w:
        await w.topic()
        await w.fill(3)
        await w.log.follow("orders", 0)

        def damage(asked, answer):
            if not asked.offset <= 29 or not answer.records:
                return answer
            bad = bytearray(answer.records)
            bad[-1] ^= 1
            return replace(answer, records=bytes(bad))

        w.kafka.change = damage
        read = await w.log.read("orders", 0, 0, max_bytes=1 << 20)
        assert read.batches == (LogBatch(0, 9), LogBatch(10, 19))
        for _ in range(2):
            with pytest.raises(CorruptBatches, match="orders-0: what Kafka gives for offset 20 is damaged: checksum"):
                await w.log.read("orders", 0, 20, max_bytes=1 << 20)

        w.kafka.change = lambda _, answer: answer
        assert await w.read_all(20) == [LogBatch(20, 29)]


@scenario
async def test_damage_at_the_end_of_the_log_is_logged_once_and_read_again_at_a_bounded_pace():
    async with world(kafka=LyingKafka) as w:
        await w.topic()
        await w.log.follow("orders", 0)
        heard = []
        handler = logging.Handler()
        handler.emit = heard.append
        logging.getLogger("flowshare.fleet.log").addHandler(handler)
        w.kafka.change = lambda _, answer: (
            replace(answer, records=answer.records[:-1] + b"?") if answer.records else answer
        )
        before = w.kafka.asked[m.FetchRequest]
        try:
            await w.produce(b"x")
            await w.passes(20)
        finally:
            logging.getLogger("flowshare.fleet.log").removeHandler(handler)

        assert len([one for one in heard if one.levelno == logging.ERROR]) == 1
        assert w.kafka.asked[m.FetchRequest] - before < 40
        assert w.log.offsets("orders", 0).high_watermark == 1
        w.kafka.change = lambda _, answer: answer
        assert await w.read_all() == [LogBatch(0, 0)]


@scenario
async def test_garbage_is_never_given_on():
    async with world(kafka=LyingKafka) as w:
        await w.topic()
        await w.fill(2)
        await w.log.follow("orders", 0)
        w.kafka.change = lambda _, answer: replace(answer, records=bytes(range(256)) * 4)

        with pytest.raises(CorruptBatches):
            await w.log.read("orders", 0, 0, max_bytes=100)


@scenario
async def test_a_log_that_was_cut_is_told_and_read_anew():
    async with world(kafka=LyingKafka) as w:
        cuts = []
        w.log.on_cut(lambda *where: cuts.append(where))
        await w.topic()
        await w.log.follow("orders", 0)
        for _ in range(3):
            await w.produce(*[b"old"] * 10)
            await w.passes(0.01)
        assert len(await w.read_all()) == 3
        asked_epochs = []

        def cut(asked, answer):
            asked_epochs.append(asked.last_epoch)
            if asked.last_epoch >= 0:
                w.kafka.change = lambda _, later: later
                return replace(answer, records=b"", high_watermark=-1, diverging=(0, 10))
            return answer

        w.kafka.change = cut
        await w.passes(1)

        assert cuts == [("orders", 0, 10)]
        assert asked_epochs == [0]
        await w.until(lambda: w.log.offsets("orders", 0).high_watermark == 30)
        assert await w.read_all() == [LogBatch(0, 9), LogBatch(10, 19), LogBatch(20, 29)]


@scenario
async def test_a_log_that_ends_before_what_was_read_was_cut():
    async with world(kafka=LyingKafka) as w:
        cuts = []
        w.log.on_cut(lambda *where: cuts.append(where))
        await w.topic()
        await w.fill(3)
        await w.log.follow("orders", 0)
        # The leader that took over never had more: a shorter log under the same topic.
        shorter = await w.kafka.storage.create_topic("shorter")
        await w.produce(b"only", topic="shorter")
        partitions = w.kafka.storage._partitions
        partitions["orders"] = partitions["shorter"]
        assert shorter.partitions == 1

        await w.until(lambda: cuts)

        assert cuts == [("orders", 0, 1)]
        assert w.log.offsets("orders", 0).high_watermark == 1
        assert await w.read_all() == [LogBatch(0, 0)]


@scenario
async def test_an_epoch_that_brokers_know_nothing_of_any_more_is_not_asked_for_again():
    async with world(kafka=LyingKafka) as w:
        await w.topic()
        await w.log.follow("orders", 0)
        await w.produce(b"x")
        await w.passes(0.01)
        refused = ErrorCode.OFFSET_OUT_OF_RANGE
        w.kafka.change = lambda asked, answer: answer if asked.last_epoch < 0 else replace(answer, error=refused)
        await w.passes(1)

        await w.produce(b"y")
        await w.passes(1)

        assert w.log.offsets("orders", 0).high_watermark == 2
        assert await w.read_all() == [LogBatch(0, 0), LogBatch(1, 1)]


@scenario
async def test_a_leader_that_knows_less_for_a_moment_moves_nothing_back():
    async with world(kafka=LyingKafka) as w:
        await w.topic()
        await w.fill(2)
        await w.log.follow("orders", 0)
        w.kafka.change = lambda _, answer: replace(answer, records=b"", high_watermark=5, last_stable=5)

        assert (await w.log.read("orders", 0, 0, max_bytes=100)).batches == ()
        await w.passes(1)

        assert w.log.offsets("orders", 0).high_watermark == 20
        w.kafka.change = lambda _, answer: answer
        assert len(await w.read_all()) == 2


@scenario
async def test_batches_larger_than_what_is_asked_for_come_all_the_same():
    small = LogSettings(stretch_bytes=2_000, watch_bytes=5_000, ahead_partition_bytes=100_000)
    async with world(small) as w:
        await w.topic(partitions=3)
        for number in range(3):
            await w.log.follow("orders", number)
        for _ in range(4):
            for number in range(3):
                await w.produce(*[b"x"] * 10, partition=number, size=600)
        await w.passes(2)

        before = w.kafka.asked[m.FetchRequest]
        for number in range(3):
            assert len(await w.read_all(partition=number)) == 4
        assert w.kafka.asked[m.FetchRequest] == before, "all of it was read ahead"


@scenario
async def test_an_answer_that_is_no_answer_ends_nothing_for_good():
    async with world(kafka=LyingKafka) as w:
        await w.topic()
        await w.log.follow("orders", 0)
        await w.passes(1)
        w.kafka.change = lambda _, answer: replace(answer, high_watermark=None)
        await w.passes(3)

        w.kafka.change = lambda _, answer: answer
        await w.produce(b"x")
        await w.until(lambda: w.log.offsets("orders", 0).high_watermark == 1, limit_s=5)
