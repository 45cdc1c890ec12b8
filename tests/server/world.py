"""A server over memory on a clock that stands still, and short ways to talk to it."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import replace
from uuid import UUID

from flowshare.log.memory import MemoryStorage
from flowshare.protocol.batches import BatchBuilder
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.messages import (
    CreateTopicRequest,
    IncrementalAlterConfigsRequest,
    ProduceRequest,
    ShareAcknowledgeRequest,
    ShareFetchRequest,
    ShareGroupDescribeRequest,
    ShareGroupHeartbeatRequest,
    SharePartitionRequest,
    TopicPartition,
)
from flowshare.server.server import Server
from flowshare.share.config import ServerConfig
from flowshare.share.types import AckRange
from flowshare.testing.clock import ManualClock, settle

EARLIEST = {"share.auto.offset.reset": "earliest"}


def batch(count: int, *, size: int = 10, timestamp_ms: int = 1_000) -> bytes:
    """A record batch of `count` records with values of `size` bytes."""
    builder = BatchBuilder()
    for number in range(count):
        assert builder.add(b"key", b"v" * size, [], timestamp_ms=timestamp_ms + number)
    return builder.build()


class Client:
    """One member that counts its session's epoch; every method says what the server answered.

    own: flowshare's own client is at the other end.
    """

    def __init__(self, world: World, member_id: str, group_id: str, *, own: bool) -> None:
        self.world = world
        self.member_id = member_id
        self.group_id = group_id
        self.own = own
        self.member_epoch = 0
        self.reconnect()

    def reconnect(self) -> None:
        """Connect, to the server of now; a session begins anew."""
        self.connection = self.world.server.connect(client_id=f"client-{self.member_id}", host="10.0.0.1")
        self.connection.own = self.own
        self.epoch = 0

    async def fetch(self, *added: TopicPartition, acks=None, epoch=None, **fields):
        """ShareFetch with the next epoch; waits for nothing unless `max_wait_ms` is given."""
        partitions = [SharePartitionRequest(*at, ()) for at in added]
        partitions += [SharePartitionRequest(*at, tuple(batches)) for at, batches in (acks or {}).items()]
        epoch = self._next(epoch)
        request = ShareFetchRequest(
            group_id=self.group_id, member_id=self.member_id, session_epoch=epoch, max_wait_ms=0
        )
        return await self.connection.send(replace(request, partitions=tuple(partitions), **fields))

    async def acknowledge(self, acks, *, epoch=None, **fields):
        """ShareAcknowledge with the next epoch."""
        partitions = tuple(SharePartitionRequest(*at, tuple(batches)) for at, batches in acks.items())
        return await self.connection.send(
            ShareAcknowledgeRequest(
                group_id=self.group_id,
                member_id=self.member_id,
                session_epoch=self._next(epoch),
                partitions=partitions,
                **fields,
            )
        )

    async def heartbeat(self, *topics: str, epoch=None, **fields):
        """ShareGroupHeartbeat; takes over the epoch of the answer."""
        answer = await self.connection.send(
            ShareGroupHeartbeatRequest(
                group_id=self.group_id,
                member_id=self.member_id,
                member_epoch=self.member_epoch if epoch is None else epoch,
                subscribed_topics=topics or None,
                **fields,
            )
        )
        if answer.error is ErrorCode.NONE:
            self.member_epoch = answer.member_epoch
        return answer

    def _next(self, epoch):
        if epoch is not None:
            return epoch
        self.epoch += 1
        return self.epoch - 1


class World:
    """Server, storage and clock."""

    def __init__(self, storage: MemoryStorage, clock: ManualClock, config: ServerConfig) -> None:
        self.storage = storage
        self.clock = clock
        self.config = config
        self.server = Server(storage=storage, config=config, clock=clock)

    async def start(self) -> None:
        """Start the server."""
        await self.server.start()
        self.admin = self.server.connect(client_id="admin")

    async def close(self) -> None:
        """End the server; a test may have left its writes failing or held up."""
        self.storage.before_write = None
        await self.server.close()
        await self.storage.close()

    async def restart(self, *, config: ServerConfig | None = None) -> None:
        """Another server over the same storage, as after the end of a process that closed in order."""
        await self.server.close()
        self.server = Server(storage=self.storage, config=config or self.config, clock=self.clock)
        await self.start()

    async def die(self) -> None:
        """The same after an end as by kill -9: nothing is released."""
        self.server.share.sessions.disconnected = lambda _: None
        await self.restart()

    def member(self, member_id: str, group_id: str = "g", *, own: bool = False) -> Client:
        """A member with a connection of its own."""
        return Client(self, member_id, group_id, own=own)

    async def topic(self, name: str = "t", partitions: int = 1) -> UUID:
        """A new topic's id."""
        made = await self.admin.send(CreateTopicRequest(name=name, partitions=partitions))
        assert made.error is ErrorCode.NONE, made.message
        assert made.topic_id is not None
        return made.topic_id

    async def produce(self, records: bytes | int, topic: str = "t", partition: int = 0) -> int:
        """Base offset of a produced batch."""
        records = batch(records) if isinstance(records, int) else records
        done = await self.admin.send(ProduceRequest(topic=topic, partition=partition, records=records))
        assert done.error is ErrorCode.NONE, done.message
        return done.base_offset

    async def logs(self, *records: bytes | int) -> list[TopicPartition]:
        """The partitions of a new topic `t`, each with one batch."""
        topic = await self.topic(partitions=len(records))
        for number, batched in enumerate(records):
            await self.produce(batched, partition=number)
        return [TopicPartition(topic, number) for number in range(len(records))]

    async def log(self, records: bytes | int) -> TopicPartition:
        """The only partition of a new topic `t`, with one batch."""
        (at,) = await self.logs(records)
        return at

    async def held(
        self, records: bytes | int, *, joined: bool = False, own: bool = False
    ) -> tuple[TopicPartition, Client]:
        """The same, and member `m1`, which holds all of it.

        joined: it has joined group `g` by a heartbeat before; own: it has as flowshare's own client.
        """
        at, m1 = await self.log(records), self.member("m1", own=own)
        if joined or own:
            await m1.heartbeat("t")
        await m1.fetch(at)
        return at, m1

    async def members(self) -> list[str]:
        """Ids of the members of group `g`, once the server has done what it can."""
        await settle()
        group = await self.admin.send(ShareGroupDescribeRequest(group_id="g"))
        return [member.member_id for member in group.members]

    async def configure(self, configs, group_id: str = "g"):
        """Set a group's settings."""
        return await self.admin.send(
            IncrementalAlterConfigsRequest(resource_type="group", resource=group_id, configs=configs)
        )


@asynccontextmanager
async def world(*, config: ServerConfig | None = None, configs=EARLIEST):
    """A started server whose group `g` begins at the log's start."""
    clock = ManualClock()
    made = World(MemoryStorage(clock), clock, config or ServerConfig.embedded())
    await made.start()
    if configs:
        answer = await made.configure(configs)
        assert answer.error is ErrorCode.NONE, answer.message
    try:
        yield made
    finally:
        await made.close()


async def parked(request):
    """A request under way that waits for something."""
    task = asyncio.ensure_future(request)
    await settle()
    assert not task.done()
    return task


async def given_up(storage, request) -> None:
    """Carry out a request whose caller gives up while its write is stored and not confirmed yet."""
    write, confirmed = storage.write, asyncio.Event()

    async def slow(writes) -> None:
        await write(writes)
        await confirmed.wait()

    storage.write = slow
    asking = await parked(request)
    asking.cancel()
    await settle()
    del storage.write
    confirmed.set()
    await settle()


def ranges(answer):
    """Acquired ranges of an answer's only partition, as tuples."""
    (partition,) = answer.partitions
    return [tuple(part) for part in partition.acquired]


def accept(first: int, last: int | None = None) -> AckRange:
    """An accept of a range."""
    return AckRange(first, first if last is None else last, b"\x01")


def release(first: int, last: int | None = None, **fields) -> AckRange:
    """A release of a range."""
    return AckRange(first, first if last is None else last, b"\x02", **fields)


def reject(first: int, last: int | None = None) -> AckRange:
    """A reject of a range."""
    return AckRange(first, first if last is None else last, b"\x03")
