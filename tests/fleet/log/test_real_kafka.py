"""The log of a real Kafka: what a broker really says of transactions, compaction, deleted records and new topics."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import pytest
from confluent_kafka import Producer

from flowshare.client.net.cluster import Cluster
from flowshare.clock import LoopClock
from flowshare.fleet.log.kafka_log import KafkaLog
from flowshare.fleet.log.settings import LogSettings
from flowshare.log.base import OffsetOutOfRange, UnknownTopic
from flowshare.protocol import messages as m
from flowshare.protocol.batches import decode_all
from flowshare.share.types import LogBatch
from tests.waiting import pause, until

pytestmark = [pytest.mark.asyncio, pytest.mark.java]
LIMIT_S = 60
QUICK = LogSettings(refresh_s=0.3, gone_s=0.3)


@asynccontextmanager
async def reading(kafka, settings=None):
    cluster = Cluster(kafka.addresses, clock=LoopClock())
    await cluster.start()
    client = cluster.connect("test")
    log = KafkaLog(cluster, settings=settings)
    await log.start()
    try:
        async with asyncio.timeout(LIMIT_S):
            yield log, client
    finally:
        await log.close()
        await client.close()
        await cluster.close()


async def produce(kafka, topic, values, *, key=None, **settings):
    """By librdkafka, in one batch if it can."""
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "linger.ms": 50, **settings})
    for value in values:
        producer.produce(topic, value, key=key, partition=0)
    assert await asyncio.to_thread(producer.flush, 30) == 0


class Transactions:
    """A transactional producer."""

    def __init__(self, kafka, name):
        self._producer = Producer({"bootstrap.servers": kafka.bootstrap, "transactional.id": name, "linger.ms": 0})

    async def begin(self):
        await asyncio.to_thread(self._producer.init_transactions, 30)
        return self

    async def write(self, topic, *values):
        self._producer.begin_transaction()
        await self.more(topic, *values)

    async def more(self, topic, *values):
        for value in values:
            self._producer.produce(topic, value, partition=0)
        assert await asyncio.to_thread(self._producer.flush, 30) == 0

    async def commit(self):
        await asyncio.to_thread(self._producer.commit_transaction, 30)

    async def abort(self):
        await asyncio.to_thread(self._producer.abort_transaction, 30)


async def read_all(log, topic, offset=0, *, committed=False, max_bytes=1 << 20):
    """Results up to the log's end."""
    found = []
    while True:
        read = await log.read(topic, 0, offset, max_bytes=max_bytes, committed=committed)
        if not read.batches:
            return found
        found.append(read)
        offset = read.batches[-1].last + 1


def values(results, *, skip_aborted=False):
    """The records' values."""
    gone = [batch for read in results for batch in read.aborted] if skip_aborted else []
    return [
        record.value
        for read in results
        for record in decode_all(read.records)
        if not any(batch.first <= record.offset <= batch.last for batch in gone)
    ]


async def test_what_is_produced_is_told_and_read(kafka, unique):
    topic, news = unique("orders"), []
    async with reading(kafka) as (log, client):
        await client.send(m.CreateTopicRequest(name=topic))
        await produce(kafka, topic, [b"%d" % n for n in range(1000)])
        await log.follow(topic, 0)
        assert log.offsets(topic, 0).high_watermark == 1000
        assert values(await read_all(log, topic)) == [b"%d" % n for n in range(1000)]

        log.on_append(lambda *place: news.append(place))
        await produce(kafka, topic, [b"new"])
        await until(lambda: news)

        assert log.offsets(topic, 0).high_watermark == log.offsets(topic, 0).last_stable == 1001
        assert values(await read_all(log, topic, 1000)) == [b"new"]


@pytest.mark.parametrize("level", ["committed", "uncommitted"])
async def test_open_and_aborted_transactions_are_told_apart(kafka, unique, level):
    topic, committed = unique("orders"), level == "committed"
    async with reading(kafka) as (log, client):
        await client.send(m.CreateTopicRequest(name=topic))
        await log.follow(topic, 0, committed=committed)
        one, two = await Transactions(kafka, unique("one")).begin(), await Transactions(kafka, unique("two")).begin()

        await one.write(topic, b"a")
        await two.write(topic, b"b")
        await one.abort()
        await until(lambda: log.offsets(topic, 0).high_watermark == 3)

        # The second transaction is open; the first one's record lies before it, its marker behind.
        assert log.offsets(topic, 0).last_stable == 1
        (first,) = await read_all(log, topic, committed=True)
        assert first.batches == first.aborted == (LogBatch(0, 0),)
        assert [one.batches for one in await read_all(log, topic)] == [(LogBatch(0, 0), LogBatch(1, 1), LogBatch(2, 2))]

        await two.more(topic, b"c")
        await two.commit()
        await until(lambda: log.offsets(topic, 0).last_stable == 5)
        results = await read_all(log, topic, committed=True)
        assert values(results, skip_aborted=True) == [b"b", b"c"]
        assert [batch for read in results for batch in read.aborted] == [LogBatch(0, 0)]


async def test_a_compacted_topic_is_read_over_its_holes(kafka, unique):
    topic = unique("orders")
    async with reading(kafka) as (log, client):
        configs = {
            "cleanup.policy": "compact",
            "segment.ms": "100",
            "min.cleanable.dirty.ratio": "0.01",
            "delete.retention.ms": "0",
        }
        await client.send(m.CreateTopicRequest(name=topic, configs=configs))
        for number in range(20):
            await produce(kafka, topic, [b"%d" % number], key=b"same", **{"linger.ms": 0})
        await log.follow(topic, 0)
        while len(found := values(await read_all(log, topic))) > 10:
            # Only closed segments are cleaned, and one is closed when something is written.
            await produce(kafka, topic, [b"more"], key=b"same", **{"linger.ms": 0})
            await pause(0.5, "the cleaner has its own clock, and each write makes it more to clean")
            log.unfollow(topic, 0)
            await log.follow(topic, 0)

        end = log.offsets(topic, 0).high_watermark
        assert 0 < len(found) <= 10 < 20 <= end
        assert b"0" not in found, "what is missing is passed over"
        first = (await log.read(topic, 0, 0, max_bytes=1)).batches[0]
        assert first.last > 0, f"the first batch is {first.first} to {first.last}, found {sorted(found)}"


async def test_deleted_records_move_the_start_of_the_log(kafka, unique):
    topic, news = unique("orders"), []
    async with reading(kafka) as (log, client):
        await client.send(m.CreateTopicRequest(name=topic))
        await produce(kafka, topic, [b"%d" % n for n in range(100)])
        await log.follow(topic, 0)
        log.on_append(lambda *place: news.append(place))

        await client.send(m.DeleteRecordsRequest(topic=topic, partition=0, before=60))
        await until(lambda: log.offsets(topic, 0).log_start == 60)

        assert news
        with pytest.raises(OffsetOutOfRange):
            await log.read(topic, 0, 59, max_bytes=1000)
        assert values(await read_all(log, topic, 60))[-1] == b"99"


async def test_a_topic_that_is_made_anew_is_another_one(kafka, unique):
    topic, changed = unique("orders"), []
    async with reading(kafka, QUICK) as (log, client):
        log.on_topics(lambda names: changed.append((names, log.topics().get(topic))))
        await client.send(m.CreateTopicRequest(name=topic))
        await produce(kafka, topic, [b"old"] * 50)
        await log.follow(topic, 0)
        old = log.topics()[topic]

        await client.send(m.DeleteTopicRequest(name=topic))
        await until(lambda: topic not in log.topics())
        with pytest.raises(UnknownTopic):
            log.offsets(topic, 0)
        await client.send(m.CreateTopicRequest(name=topic, partitions=2))
        await produce(kafka, topic, [b"new"])
        await until(lambda: topic in log.topics())
        await log.follow(topic, 0)

        assert log.topics()[topic].topic_id != old.topic_id
        await until(lambda: log.offsets(topic, 0).high_watermark == 1)
        assert values(await read_all(log, topic)) == [b"new"]
        await client.send(m.CreatePartitionsRequest(name=topic, total=3))
        await until(lambda: log.topics()[topic].partitions == 3)
        await log.refresh(ids=[log.topics()[topic].topic_id])
        assert len(changed) >= 3


async def test_a_time_and_a_leader_epoch_are_found(kafka, unique):
    topic = unique("orders")
    async with reading(kafka) as (log, client):
        await client.send(m.CreateTopicRequest(name=topic))
        await produce(kafka, topic, [b"a", b"b"])

        assert (await log.bounds(topic, 0)).high_watermark == 2
        assert await log.offset_for_timestamp(topic, 0, 0) is not None
        assert await log.offset_for_timestamp(topic, 0, 2**52) is None
        assert await log.divergence(topic, 0, 0) == (0, 2)
        assert (await log.append(topic, 0, (await _one(log, topic)))).base_offset == 2


async def _one(log, topic):
    """The bytes of the first batch, to be written again."""
    await log.follow(topic, 0)
    return (await log.read(topic, 0, 0, max_bytes=1)).records
