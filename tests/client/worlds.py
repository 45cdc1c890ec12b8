"""A real server over a storage in memory, and clients on it."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

from flowshare.client.admin.admin import ShareAdmin
from flowshare.client.consumer.consumer import ShareConsumer
from flowshare.client.producer.producer import Message, Producer
from flowshare.log.memory import MemoryStorage
from flowshare.server.server import Server
from flowshare.share.config import ServerConfig
from flowshare.testing.clock import settle


class World:
    """A server, and clients on it."""

    def __init__(self, clock, server, storage):
        self.clock = clock
        self.server = server
        self.storage = storage
        self.admin = ShareAdmin(self.connect, clock=clock)
        self.producer = Producer(self.connect, clock=clock, linger=0)
        self.consumers = []
        self.connections = []

    async def connect(self):
        connection = self.server.connect(client_id="test")
        self.connections.append(connection)
        return connection

    def consumer(self, settings=None, **kwargs):
        consumer = ShareConsumer(self.connect, group_id="g", clock=self.clock, settings=settings, **kwargs)
        consumer.subscribe(["orders"])
        self.consumers.append(consumer)
        return consumer

    async def send(self, *values, partition=0):
        await self.producer.send_many("orders", [Message(value, partition=partition) for value in values])

    async def lag(self):
        return sum(part.lag for part in await self.admin.group_offsets("g"))


@asynccontextmanager
async def world_on(clock, partitions=1):
    storage = MemoryStorage(clock)
    server = Server(storage=storage, config=ServerConfig.embedded(), clock=clock)
    await server.start()
    world = World(clock, server, storage)
    await world.admin.create_topic("orders", partitions=partitions)
    await world.admin.alter_group_configs("g", {"share.auto.offset.reset": "earliest"})
    try:
        yield world
    finally:
        for consumer in world.consumers:
            await consumer.close()
        await world.producer.close()
        await world.admin.close()
        await server.close()


async def within(clock, seconds, work):
    """Run `work` while time moves on by `seconds`."""
    task = asyncio.ensure_future(work)
    await settle()
    while not task.done() and seconds > 0:
        await clock.advance(min(0.1, seconds))
        seconds -= 0.1
    return await task
