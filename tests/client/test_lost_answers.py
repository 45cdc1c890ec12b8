"""Connections that are cut before, in and after a write: each record is in the log exactly once, on every backend.

The log is a real server's, behind a real socket: of the process that leads an embedded path, of a server as `flowshare
serve` has one, of a Kafka, and of a Kafka as a fleet's members reach it.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from contextlib import asynccontextmanager

import pytest

from flowshare.backend.embedded import EmbeddedBackend
from flowshare.backend.fleet import FleetConnection
from flowshare.backoff import Backoff
from flowshare.client.admin.admin import ShareAdmin
from flowshare.client.errors import ConnectionLost
from flowshare.client.net.cluster import Cluster
from flowshare.client.net.tcp import open_tcp
from flowshare.client.producer.producer import Message, Producer
from flowshare.client.settings import LinkSettings, ProducerSettings
from flowshare.clock import LoopClock
from flowshare.protocol.batches import batch_headers, decode_all
from flowshare.protocol.messages import FetchPartition, FetchRequest, ProduceRequest
from flowshare.server.standalone import Address, Standalone, StandaloneOptions
from tests.waiting import until

pytestmark = [pytest.mark.asyncio, pytest.mark.slow]

LINK = LinkSettings(backoff=Backoff(0.001, 0.01))
SETTINGS = ProducerSettings(link=LINK, batch_size=500)
PARTITIONS = 2
CUTS = ("before", "in", "after")


class Scissors:
    """Cuts connections around their writes; `kinds`: where. `cut`: how often it did."""

    def __init__(self, seed, kinds=CUTS, rate=0.3):
        self._random = random.Random(seed)
        self._kinds = kinds
        self._rate = rate
        self.cut = Counter()

    def chosen(self):
        if self._random.random() >= self._rate:
            return None
        kind = self._random.choice(self._kinds)
        self.cut[kind] += 1
        return kind


class Cut:
    """A connection that may end at a write: before it is sent, when it was sent, when it was answered."""

    def __init__(self, connection, scissors):
        self._connection = connection
        self._scissors = scissors
        self.api_versions = connection.api_versions
        self.is_flowshare = connection.is_flowshare
        self.keeps_time = True
        self.close, self.on_closed = connection.close, connection.on_closed

    async def send(self, request):
        kind = self._scissors.chosen() if type(request) is ProduceRequest else None
        if kind is None:
            return await self._connection.send(request)
        if kind != "before":
            sending = asyncio.ensure_future(self._connection.send(request))
            await (sending if kind == "after" else asyncio.sleep(0))
            if kind == "in":
                sending.cancel()
        await self._connection.close()
        raise ConnectionLost(f"cut {kind} the write")


@asynccontextmanager
async def to_embedded(tmp_path, scissors, _):
    leader, joined = EmbeddedBackend(tmp_path / "shop"), EmbeddedBackend(tmp_path / "shop")
    await leader.start()
    await joined.start()

    async def connect():
        return Cut(await joined.connect("test"), scissors)

    try:
        yield connect
    finally:
        await joined.close()
        await leader.close()


@asynccontextmanager
async def to_serve(tmp_path, scissors, _):
    server = Standalone(
        StandaloneOptions(data=tmp_path / "data", listen=Address(host="127.0.0.1", port=0)), clock=LoopClock()
    )
    await server.start()

    async def connect():
        opened = open_tcp(server.address.host, server.address.port, client_id="test", clock=LoopClock(), settings=LINK)
        return Cut(await opened, scissors)

    try:
        yield connect
    finally:
        await server.close()


@asynccontextmanager
async def to_kafka(_, scissors, kafka, *, fleet=False):
    clock = LoopClock()

    async def open_node(host, port, client_id):
        return Cut(await open_tcp(host, port, client_id=client_id, clock=clock, settings=LINK), scissors)

    cluster = Cluster(kafka.bootstrap.split(","), clock=clock, open_node=open_node, settings=LINK)
    await cluster.start()

    async def connect():
        brokers = cluster.connect("test")
        return FleetConnection(cluster, "test", brokers) if fleet else brokers

    try:
        yield connect
    finally:
        await cluster.close()


def to_fleet(tmp_path, scissors, kafka):
    return to_kafka(tmp_path, scissors, kafka, fleet=True)


@pytest.fixture(
    params=[to_embedded, to_serve, *(pytest.param(place, marks=pytest.mark.real) for place in (to_kafka, to_fleet))],
    ids=lambda place: place.__name__[3:],
)
def place(request, tmp_path):
    """Opens a place: what connects to it, of which the scissors cut."""
    real = request.param in (to_kafka, to_fleet)
    kafka = request.getfixturevalue("kafka") if real else None
    return lambda scissors: request.param(tmp_path, scissors, kafka)


async def read(connect, topic):
    """The values of each partition, in order, that a reader of committed records sees."""
    connection, found = await connect(), []
    for partition in range(PARTITIONS):
        values, aborted, offset = [], set(), 0
        while True:
            part = FetchPartition(topic, partition, offset)
            (log,) = (await connection.send(FetchRequest(partitions=(part,), committed=True))).partitions
            batches = [one for one in batch_headers(log.records) if one.base_offset >= offset]
            if not batches:
                break
            for one in batches:
                aborted |= {producer for producer, first in log.aborted if first == one.base_offset}
                if one.is_control:
                    aborted.discard(one.producer_id)
                elif one.producer_id not in aborted:
                    records = decode_all(log.records[one.position : one.position + one.size])
                    values += [int(record.value) for record in records]
                offset = one.last_offset + 1
        found.append(values)
    await connection.close()
    return found


async def make(connect, topic):
    admin = ShareAdmin(connect, clock=LoopClock())
    await admin.create_topic(topic, partitions=PARTITIONS)
    await admin.close()


@pytest.mark.parametrize("kinds", [*((one,) for one in CUTS), CUTS], ids="-".join)
async def test_each_record_is_in_the_log_once_and_in_order_whatever_is_cut(place, unique, kinds):
    topic, scissors, seed = unique("cut"), Scissors(1, kinds), random.Random(2)
    async with place(scissors) as connect:
        await make(connect, topic)
        producer = Producer(connect, clock=LoopClock(), settings=SETTINGS)
        await producer.partitions(topic)
        sent, count = [], 0
        for _ in range(60):
            many = range(count, count + seed.choice((1, 1, 3, 150)))
            count = many.stop
            messages = [Message(b"%d" % number, partition=number % PARTITIONS) for number in many]
            sent.append(asyncio.ensure_future(producer.send_many(topic, messages)))
            await asyncio.sleep(0)
        told = [one for many in await asyncio.gather(*sent) for one in many]
        await producer.close()
        found = await read(connect, topic)

    assert found == [list(range(first, count, PARTITIONS)) for first in range(PARTITIONS)]
    assert [found[one.partition][one.offset] for one in told] == list(range(count))
    assert set(scissors.cut) == set(kinds)


async def test_a_transaction_counts_as_a_whole_whatever_is_cut(place, unique):
    topic, scissors = unique("cut"), Scissors(3)
    async with place(scissors) as connect:
        await make(connect, topic)
        producer = Producer(connect, clock=LoopClock(), settings=SETTINGS, transactional_id=unique("id"))
        for number in range(8):
            await producer.begin()
            messages = [Message(b"%d" % value, partition=value % PARTITIONS) for value in range(200)]
            await producer.send_many(topic, messages)
            await (producer.commit() if number in (2, 5) else producer.abort())
        await producer.close()
        # A broker says that a transaction has ended a moment before readers see it.
        found = await until(lambda: read(connect, topic), good=lambda found: sum(map(len, found)) >= 400)

    assert found == [[*range(first, 200, PARTITIONS)] * 2 for first in range(PARTITIONS)]
    assert scissors.cut.total()


@pytest.mark.java
async def test_what_is_on_its_way_when_a_partitions_leader_is_killed_is_in_the_log_once(mortal_pair, unique):
    topic, doomed, sent = unique("moved"), 2, []
    async with to_kafka(None, Scissors(5, rate=0.02), mortal_pair) as connect:
        admin = ShareAdmin(connect, clock=LoopClock())
        await admin.create_topic(topic, partitions=PARTITIONS)
        assert doomed in (await admin.describe_topic(topic)).leaders
        producer = Producer(connect, clock=LoopClock(), settings=SETTINGS)
        await producer.partitions(topic)
        while len(sent) < 20_000:
            for number in range(len(sent), len(sent) + 100):
                sent.append(producer.send_nowait(topic, b"%d" % number, partition=number % PARTITIONS))
            if len(sent) == 10_000:
                await asyncio.wait([sent[-1000]])
                mortal_pair.processes[doomed - 1].end(0)
            await asyncio.sleep(0)
        told = await asyncio.gather(*sent)
        assert set((await admin.describe_topic(topic)).leaders) == {1}
        await producer.close()
        await admin.close()
        found = await read(connect, topic)

    assert found == [list(range(first, len(sent), PARTITIONS)) for first in range(PARTITIONS)]
    assert [one.offset for one in told] == [number // PARTITIONS for number in range(len(sent))]
