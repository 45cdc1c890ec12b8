"""Processes that follow and lead slots on the fake Kafka."""

from __future__ import annotations

import zlib
from contextlib import asynccontextmanager

from flowshare.client.net.cluster import Cluster
from flowshare.clock import LoopClock
from flowshare.fleet.state.reading import SlotSettings, SlotTails
from flowshare.fleet.state.slot import Slot, SlotOwner
from flowshare.protocol import messages as m
from flowshare.protocol.errors import ErrorCode
from flowshare.slots.records import RecordKind
from flowshare.testing.clock import LoopTimeClock
from flowshare.testing.virtual import run
from tests.fleet.kafka import FakeKafka

TOPIC = "__flowshare_state.test"
NAMES = "abcdef"


class Process:
    """One worker process, as far as its slots are concerned."""

    def __init__(self, name, cluster, clock, topic=TOPIC):
        self.topic = topic
        self.name = name
        self.clock = clock
        self.kafka = cluster.connect(name)
        self.follow = cluster.connect(f"{name}-follow")
        self.tails = SlotTails(self.follow, topic=topic, clock=clock)
        self.owner = SlotOwner(node_id=NAMES.index(name) + 1, instance=name, host=f"{name}.example", port=9000)
        self.slots = []
        self.lost = []
        self.leased = True

    async def slot(self, number=0, *, lead=True, **options):
        slot = Slot(
            self.kafka,
            topic=self.topic,
            slot=number,
            clock=self.clock,
            tails=self.tails,
            lease=lambda: self.leased,
            on_lost=self.lost.append,
            **options,
        )
        self.slots.append(slot)
        await slot.standby()
        if lead:
            await slot.lead(self.owner)
        return slot

    async def close(self):
        for slot in self.slots:
            await slot.close()
        await self.tails.close()
        await self.follow.close()
        await self.kafka.close()


class Fleet:
    """Processes on one Kafka."""

    def __init__(self, clock, kafka, cluster, topic=TOPIC):
        self.topic = topic
        self.clock = clock
        self.kafka = kafka
        self.cluster = cluster
        self.processes = []

    def process(self, name="a"):
        process = Process(name, self.cluster, self.clock, self.topic)
        self.processes.append(process)
        return process

    def end(self, slot=0):
        return self.kafka.storage.offsets(TOPIC, slot).high_watermark


@asynccontextmanager
async def fleet(clock, *, partitions=2, **options):
    """A Kafka with a state topic."""
    async with FakeKafka(clock, **options) as kafka:
        await kafka.storage.create_topic(TOPIC, partitions=partitions, internal=True)
        cluster = kafka.cluster()
        await cluster.start()
        world = Fleet(clock, kafka, cluster)
        try:
            yield world
        finally:
            for process in world.processes:
                await process.close()
            await cluster.close()


@asynccontextmanager
async def real_fleet(broker, topic, *, partitions=1):
    """A state topic of this name on a real Kafka."""
    clock = LoopClock()
    cluster = Cluster([broker.bootstrap], clock=clock)
    await cluster.start()
    maker = cluster.connect("maker")
    made = await maker.send(m.CreateTopicRequest(name=topic, partitions=partitions))
    assert made.error in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS)
    world = Fleet(clock, maker, cluster, topic)
    try:
        yield world
    finally:
        for process in world.processes:
            await process.close()
        await maker.close()
        await cluster.close()


def on_virtual_time(scenario, **options):
    """Run `scenario(fleet)`."""

    async def whole(clock):
        async with fleet(clock, **options) as world:
            await scenario(world)

    run(whole(LoopTimeClock()))


def sealed_as(version):
    """Key and value of a record of another format: nothing is known of it but where its checksum is."""
    key, rest = bytes((RecordKind.CLAIM, version)), b"whatever a later release writes"
    return key, zlib.crc32(rest, zlib.crc32(key)).to_bytes(4, "big") + rest


def content(slot):
    return dict(slot.scan(b""))


def quick(**options):
    """Settings that give up soon."""
    return SlotSettings(**{"deadline_s": 5.0, **options})
