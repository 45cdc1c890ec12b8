"""Leaders of one slot that settle with outputs, on the fake Kafka: they die, freeze and lose answers."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

from flowshare.client.errors import NotConnected
from flowshare.client.net.cluster import Cluster
from flowshare.fleet.log.kafka_log import KafkaLog
from flowshare.fleet.state.lane import OutputSettings
from flowshare.fleet.storage import FleetStorage
from flowshare.log.base import Output, StorageError
from flowshare.protocol import messages as m
from flowshare.protocol.batches import BatchBuilder
from flowshare.protocol.decoding import decode_all
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.headers import batch_headers
from flowshare.protocol.key_hash import KeyOrder
from flowshare.server.runtime.state import ShareKey, read_state
from flowshare.server.runtime.waiting import Waiter
from flowshare.server.share.loader import Loader
from flowshare.server.share.opened_log import OpenedBatches, OpenedLog
from flowshare.server.share.owner import PartitionOwner
from flowshare.server.share.partition_log import PartitionLog
from flowshare.server.share.stats import Stats
from flowshare.server.share.waiters import Want
from flowshare.share.config import GroupConfig
from flowshare.share.records import encode_update
from flowshare.share.types import AcknowledgeType, AckRange, AcquireMode, PartitionUpdate
from flowshare.slots.prepared import rows_in
from flowshare.testing.clock import LoopTimeClock
from flowshare.testing.virtual import run
from tests.fleet.kafka import HOST, PORT, refusal
from tests.fleet.slots import TOPIC, Process, fleet

GROUP, MEMBER = "g", "m"
INPUT, OUTPUT = "input", "output"
QUICK = OutputSettings(queue_s=20.0)
ONE = OutputSettings(lanes_max=1, queue_s=20.0)
NOTHING = encode_update(PartitionUpdate(start_offset=-1, delivery_complete_count=-1))
NEVER = -1
STEPS = (
    m.ProduceRequest,
    m.InitProducerIdRequest,
    m.OffsetFetchRequest,
    m.AddPartitionsToTxnRequest,
    m.AddOffsetsToTxnRequest,
    m.TxnOffsetCommitRequest,
    m.EndTxnRequest,
)
"""Requests that settle records or outputs, or that take over from an earlier writer."""


def records(*values, key=None):
    """A batch of them."""
    builder = BatchBuilder()
    for value in values:
        assert builder.add(key, value, [], timestamp_ms=1_000)
    return builder.build()


async def committed_in(kafka, topic, partition=0):
    """Return the values that a reader of committed records gets."""
    read = await kafka.storage.read(topic, partition, 0, max_bytes=1 << 20, committed=True)
    gone = {batch.first for batch in read.aborted}
    found = [
        read.records[header.position : header.position + header.size]
        for header in batch_headers(read.records)
        if not header.is_control and header.base_offset not in gone
    ]
    return [record.value for one in found for record in decode_all(one)]


def out(world, value, partition=0, topic=OUTPUT):
    """An output of one record."""
    return Output(topic, world.kafka.storage.topics()[topic].topic_id, partition, records(value))


async def written(leader, *outputs):
    """Outputs of a settle that changes nothing."""
    await leader.storage.settle_apart(leader.key.prefix, NOTHING, (), list(outputs))


class Leader:
    """One worker that leads the slot. `settings`: of its outputs."""

    def __init__(self, world, name, *, settings=QUICK, key_order=""):
        self.world = world
        self.name = name
        self.clock = world.clock
        self.dead = False
        self.connections = []
        self.settings = settings
        self.config = GroupConfig(auto_offset_reset="earliest", key_order=key_order)
        self.cluster = Cluster([f"{HOST}:{PORT}"], clock=self.clock, open_node=self._open_node)
        self.process = Process(name, self.cluster, self.clock)
        self.log = KafkaLog(self.cluster)
        self.stats = Stats()
        self.owner = self.storage = None
        self.fail_writes = 0
        self.dies()

    async def _open_node(self, host, port, client_id):
        if self.dead:
            raise NotConnected("this process is dead")
        connection = await self.world.kafka.open_node(host, port, client_id)
        self.connections.append(connection)
        send = connection.send

        async def mortal(request):
            at = self._counted(request)
            if self.dies_before in at:
                await self.kill()
            if self.world.stands_still(request):
                await connection.or_broken(asyncio.get_running_loop().create_future())
            answer = self.world.refusal(request) or await send(request)
            if self.dies_after in at:
                await self.kill()
                raise ConnectionError("this process is dead")
            return answer

        connection.send = mortal
        return connection

    def _counted(self, request):
        """How many of the requests that settle something were sent before this one, and its class."""
        if not isinstance(request, STEPS):
            return ()
        self.sent += 1
        return self.sent - 1, type(request)

    def dies(self, *, before=NEVER, after=NEVER):
        """It dies with one of the requests from now on that settle something: before or after it is carried out.

        Which: so many came before it, or the first of its class.
        """
        self.sent, self.dies_before, self.dies_after = 0, before, after

    async def lead(self):
        """Claim the slot and take its lanes over."""
        await self.cluster.start()
        await self.log.start()
        self.slot = await self.process.slot()
        self.storage = Failing(self)
        self.storage.write_outputs(self.cluster, TOPIC, self.settings)
        self.storage.take_over(0)
        return self

    async def begin(self):
        """Lead and load."""
        await self.lead()
        return await self.load()

    @property
    def outputs(self):
        return self.storage._outputs[0]

    @property
    def lanes(self):
        """The slot's lanes, with how far they are."""
        return self.outputs._lanes.used

    @property
    def key(self):
        return ShareKey(GROUP, self.world.kafka.storage.topics()[INPUT].topic_id, 0)

    async def load(self):
        """Load the share-partition, as a first fetch does."""
        await self.log.refresh((INPUT, OUTPUT))
        await self.log.follow(INPUT, 0)
        topic = self.log.topics()[INPUT]
        loader = Loader(self.storage, self.clock, updates_max=5, stats=self.stats)
        loaded = await loader.load(self.key, topic, self.config, living=lambda: ())
        log = PartitionLog(self.storage, topic=INPUT, topic_id=topic.topic_id, partition=0)
        order = KeyOrder.parse(self.config.key_order)
        self.owner = PartitionOwner(
            self.key,
            partition=loaded.partition,
            journal=loaded.journal,
            log=log,
            store=self.storage,
            clock=self.clock,
            stats=self.stats,
            config=self.config,
            durable_acquire=True,
            on_archiving=lambda owner: None,
            generation=loaded.generation,
            parked=loaded.parked,
            opened=None if order is None else OpenedLog(log, order, OpenedBatches(), self.key),
        )
        self.owner.configure(self.config)
        self.owner.start()
        return self

    async def take(self, count=1):
        """Acquire so many records; their offsets with their delivery counts."""
        want = Want(MEMBER, AcquireMode.RECORD_LIMIT, count, count, 1 << 20, True, Waiter())
        taken = await self.owner.take(want)
        if taken.durable is not None:
            await taken.durable
        return {at: one.delivery_count for one in taken.ranges for at in range(one.first, one.last + 1)}

    def settle(self, offset, *values, topic=OUTPUT, partition=0, kind=AcknowledgeType.ACCEPT, topic_id=None):
        """Accept a record with outputs; what is to be awaited."""
        if topic_id is None:
            topic_id = self.world.kafka.storage.topics()[topic].topic_id
        outputs = [Output(topic, topic_id, partition, records(*values))]
        batches = [AckRange(offset, offset, bytes([kind]))]
        decision = self.owner.partition.acknowledge(MEMBER, batches, now_ms=self.clock.steady_ms())
        durable = self.owner._writer.add(decision.update, decision=decision, batches=batches, outputs=outputs)
        self.owner._alarm.ring()
        self.owner.waiting.look()
        return durable

    async def ending(self, offset, *values, late=False, **where):
        """`settle` up to where it asks to commit, which is held until `kafka.release`; what is to be awaited."""
        self.world.kafka.hold(m.EndTxnRequest, late=late)
        durable = self.settle(offset, *values, **where)
        await self.world.asked(m.EndTxnRequest)
        return durable

    async def die_committed(self, offset, *values):
        """`settle`, and die before the answer that it is committed comes; what would be to be awaited."""
        self.dies(after=m.EndTxnRequest)
        durable = self.settle(offset, *values)
        await self.world.until(lambda: self.dead)
        return durable

    async def give_away(self, name):
        """Give the slot to another worker in order."""
        await self.storage.lay_down(0)
        await self.owner.close()
        await self.slot.hand_over(name)

    async def accept(self, offset):
        """Accept a record without outputs."""
        batches = [AckRange(offset, offset, bytes([AcknowledgeType.ACCEPT]))]
        await self.owner.acknowledge(MEMBER, batches).durable

    async def stored(self):
        """The state as it lies in the slot: (start offset, [(first, last, state's name, count)])."""
        stored = await read_state(self.storage, self.key)
        runs = [(run.first, run.last, run.state.name, run.delivery_count) for run in stored.state.runs]
        return stored.state.start_offset, runs

    def rows(self):
        """The rows in the slot's log."""
        return rows_in(self.slot.scan(b""))

    async def kill(self):
        """From now on nothing of it reaches anybody."""
        self.dead = True
        for connection in tuple(self.connections):
            await connection.break_off()

    async def close(self):
        """End what runs."""
        if self.storage is not None:
            await self.storage.lay_down(0)
        if self.owner is not None:
            await self.owner.close()
        await self.process.close()
        await self.log.close()
        await self.cluster.close()


class Failing(FleetStorage):
    """The storage of a leader some of whose writes fail: `fail_writes`."""

    def __init__(self, leader):
        super().__init__(leader.log, {0: leader.slot}, 1)
        self.leader = leader

    async def write(self, writes):
        """Raises: StorageError."""
        if self.leader.fail_writes:
            self.leader.fail_writes -= 1
            raise StorageError("made to fail")
        await super().write(writes)


class World:
    """The fake Kafka with an input of `inputs` records, and outputs."""

    def __init__(self, fleet):
        self.kafka = fleet.kafka
        self.clock = fleet.clock
        self.leaders = []
        self.forbidden = set()
        """(class of requests, topic)."""
        self.refused = {}
        """Class of requests -> the error with which the next one is answered, not carried out."""
        self.still = set()
        """Partitions, as (topic, number), and transactional ids whose broker gives no answer."""

    def refusal(self, request):
        """The answer of a broker that does not allow it; None: it does."""
        if not isinstance(request, STEPS):
            return None
        if type(request) in self.refused:
            error = self.refused.pop(type(request))
            if isinstance(request, m.TxnOffsetCommitRequest):
                return m.OffsetCommitResponse(partitions=(m.OffsetResult(*request.offsets[0][:2], error),))
            return refusal(request, error)
        topics = {part[0] for part in getattr(request, "partitions", None) or ()} | {getattr(request, "topic", None)}
        if any((type(request), topic) in self.forbidden for topic in topics):
            return refusal(request, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        return None

    def stands_still(self, request):
        """True if a request gets no answer."""
        if isinstance(request, m.ProduceRequest):
            return (request.topic, request.partition) in self.still
        return getattr(request, "transactional_id", None) in self.still

    async def unloaded(self, name, **options):
        """A worker that leads the slot from now on; nobody has asked for the share-partition yet."""
        leader = Leader(self, name, **options)
        self.leaders.append(leader)
        return await leader.lead()

    async def leader(self, name, *, take=0, **options):
        """A worker that leads the slot from now on, has loaded the share-partition, and lent so many records."""
        leader = await (await self.unloaded(name, **options)).load()
        if take:
            await leader.take(take)
        return leader

    def visible(self, topic=OUTPUT, partition=0):
        """Return the values that a reader of committed records gets."""
        return committed_in(self.kafka, topic, partition)

    def held_up(self, topic=OUTPUT, partition=0):
        """True if an open transaction keeps readers of committed records from the log's end."""
        offsets = self.kafka.storage.offsets(topic, partition)
        return offsets.last_stable < offsets.high_watermark

    async def until(self, condition):
        """Wait for it, in virtual time."""
        for _ in range(100_000):
            if condition():
                return
            await self.clock.sleep(0.001)
        raise AssertionError("that never came")

    async def asked(self, kind, times=1):
        """Wait until so many requests of a class have come."""
        await self.until(lambda: self.kafka.asked[kind] >= times)


@asynccontextmanager
async def _world(clock, keys, outputs, **options):
    async with fleet(clock, partitions=1, **options) as found:
        world = World(found)
        await world.kafka.storage.create_topic(INPUT)
        await world.kafka.storage.create_topic(OUTPUT, partitions=outputs)
        for number, key in enumerate(keys):
            await world.kafka.storage.append(INPUT, 0, records(b"in-%d" % number, key=key))
        try:
            yield world
        finally:
            await asyncio.gather(*(leader.close() for leader in world.leaders))


def on_outputs(scenario, *, keys=(None,) * 6, outputs=2, **options):
    """Run `scenario(world)` with an input whose records have these keys."""

    async def whole(clock):
        async with _world(clock, keys, outputs, **options) as world:
            await scenario(world)

    run(whole(LoopTimeClock()))
