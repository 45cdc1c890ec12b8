"""A `KafkaLog` on the Kafka in memory, and batches to put there."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

from flowshare.client.settings import LinkSettings
from flowshare.fleet.log.kafka_log import KafkaLog
from flowshare.protocol.batches import BatchBuilder
from flowshare.testing.clock import LoopTimeClock, settle
from flowshare.testing.virtual import run
from tests.fleet.kafka import FakeKafka


def batch(*values, size=0, timestamp_ms=1_000):
    """One batch; each value is padded to `size`."""
    builder = BatchBuilder(size_max=64 << 20)
    for value in values:
        assert builder.add(None, value.ljust(size, b"."), [], timestamp_ms=timestamp_ms)
    return builder.build()


def numbers(first, count):
    """Values of one batch."""
    return [b"%d" % number for number in range(first, first + count)]


class World:
    """One Kafka, one log that reads it."""

    def __init__(self, kafka, cluster, log, clock):
        self.kafka = kafka
        self.cluster = cluster
        self.log = log
        self.clock = clock
        self.moves = []
        log.on_append(lambda topic, partition: self.moves.append((topic, partition)))

    async def topic(self, name="orders", partitions=1, **configs):
        return await self.kafka.storage.create_topic(name, partitions=partitions, configs=configs)

    async def produce(self, *values, topic="orders", partition=0, size=0):
        """One batch straight into Kafka."""
        return await self.kafka.storage.append(topic, partition, batch(*values, size=size))

    async def fill(self, batches, *, each=10, size=0, topic="orders", partition=0):
        """Many batches of numbers."""
        for index in range(batches):
            await self.produce(*numbers(index * each, each), topic=topic, partition=partition, size=size)

    async def read_all(self, offset=0, *, topic="orders", partition=0, committed=False, max_bytes=1 << 20):
        """(first, last) of every batch up to the log's end."""
        found = []
        while True:
            read = await self.log.read(topic, partition, offset, max_bytes=max_bytes, committed=committed)
            if not read.batches:
                return found
            found += read.batches
            offset = read.batches[-1].last + 1

    async def until(self, condition, limit_s=30.0):
        """Let time pass until something holds."""
        async with asyncio.timeout(limit_s):
            while not condition():
                await self.clock.sleep(0.01)

    async def passes(self, seconds):
        """Let time pass."""
        await self.clock.sleep(seconds)
        await settle()


@asynccontextmanager
async def world(settings=None, kafka=FakeKafka, **options):
    """Inside `scenario`."""
    clock = LoopTimeClock()
    async with kafka(clock, **options) as fake:
        cluster = fake.cluster(settings=LinkSettings(request_timeout=5))
        await cluster.start()
        log = KafkaLog(cluster, settings=settings)
        await log.start()
        try:
            yield World(fake, cluster, log, clock)
        finally:
            await log.close()
            await cluster.close()


def scenario(function):
    """A test whose time is virtual; its argument comes from `world`."""

    def test():
        run(function())

    test.__name__, test.__doc__ = function.__name__, function.__doc__
    return test
