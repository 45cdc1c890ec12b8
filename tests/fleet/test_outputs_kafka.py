"""Settles with outputs on real Kafkas, seen by a foreign reader of committed records."""

from __future__ import annotations

import asyncio
import uuid

import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition

from flowshare.fleet.log.kafka_log import KafkaLog
from flowshare.fleet.state.lane import Lane
from flowshare.fleet.storage import FleetStorage
from flowshare.log.base import LogError, Output, OutputRefused, RecordsTooLarge
from flowshare.protocol import messages as m
from flowshare.server.runtime.state import ShareKey, initial_writes, read_state
from flowshare.share.records import encode_update
from flowshare.share.types import PartitionState, PartitionUpdate, RecordState, StateRun
from flowshare.slots.prepared import rows_in
from tests.fleet.outputs_world import records
from tests.fleet.slots import real_fleet
from tests.waiting import until

pytestmark = [pytest.mark.asyncio, pytest.mark.java, pytest.mark.slow]
RECORDS = 400
KEY = ShareKey("g", uuid.UUID(int=7), 0)


class Worker:
    """One that leads the slot and settles records of one share-partition, all of which are acquired."""

    def __init__(self, fleet, name, topic):
        self.fleet = fleet
        self.name = name
        self.topic = topic

    async def lead(self, *, fresh=False):
        """Claim the slot."""
        self.process = self.fleet.process(self.name)
        self.log = KafkaLog(self.fleet.cluster)
        await self.log.start()
        self.slot = await self.process.slot()
        self.storage = FleetStorage(self.log, {0: self.slot}, 1)
        self.storage.write_outputs(self.fleet.cluster, self.fleet.topic)
        self.storage.take_over(0)
        await self.log.refresh((self.topic,))
        self.topic_id = self.log.topics()[self.topic].topic_id
        if fresh:
            runs = (StateRun(0, RECORDS - 1, RecordState.ACQUIRED, 1, "m"),)
            await self.storage.write(initial_writes(KEY, PartitionState(start_offset=0, runs=runs)))
        return self

    async def settle(self, offset, value):
        """Accept a record with an output; what follows from it is written with the next load."""
        change = StateRun(offset, offset, RecordState.ACKNOWLEDGED, 1)
        update = encode_update(PartitionUpdate(start_offset=-1, delivery_complete_count=-1, runs=(change,)))
        outputs = [Output(self.topic, self.topic_id, 0, records(value))]
        await self.storage.settle_apart(KEY.prefix, update, (), outputs)

    async def settled(self):
        """Offsets that are settled, after a load."""
        await self.storage.decided(KEY.prefix)
        stored = await read_state(self.storage, KEY)
        runs = [run for run in stored.state.runs if run.state is RecordState.ACKNOWLEDGED]
        return [at for run in runs for at in range(run.first, run.last + 1)]

    async def close(self):
        """End it."""
        await self.storage.lay_down(0)
        await self.log.close()


async def committed(broker, topic):
    """Return the values that a foreign reader of committed records gets, up to the log's end."""
    consumer = AIOKafkaConsumer(
        bootstrap_servers=broker.bootstrap, isolation_level="read_committed", auto_offset_reset="earliest"
    )
    await consumer.start()
    try:
        place = TopicPartition(topic, 0)
        consumer.assign([place])
        (end,) = (await consumer.end_offsets([place])).values()
        found = []
        while await consumer.position(place) < end:
            for some in (await consumer.getmany(timeout_ms=500)).values():
                found += [record.value for record in some]
        return found
    finally:
        await consumer.stop()


async def test_outputs_are_committed_with_their_settles(each_kafka, unique):
    topic = unique("paid")
    async with real_fleet(each_kafka, unique("__flowshare_state.a")) as fleet:
        await fleet.kafka.send(m.CreateTopicRequest(name=topic, configs={"max.message.bytes": "10000"}))
        worker = await Worker(fleet, "a", topic).lead(fresh=True)
        try:
            await worker.settle(0, b"0")
            await asyncio.gather(*(worker.settle(n, b"%d" % n) for n in range(1, 50)))
            with pytest.raises(OutputRefused) as refused:
                await worker.settle(60, bytes(20_000))
            assert isinstance(refused.value.places[0], RecordsTooLarge)

            # The row of what was refused may come to the log after that was told: the next look takes it away.
            await until(worker.settled, good=lambda _: rows_in(worker.slot.scan(b"")) == [])
            assert await worker.settled() == list(range(50))
            found = await committed(each_kafka, topic)
            assert sorted(found, key=int) == [b"%d" % n for n in range(50)]
        finally:
            await worker.close()


async def test_the_next_leader_knows_what_was_committed_and_fences_the_last_one(each_kafka, unique):
    topic = unique("paid")
    async with real_fleet(each_kafka, unique("__flowshare_state.a")) as fleet:
        await fleet.kafka.send(m.CreateTopicRequest(name=topic))
        first = await Worker(fleet, "a", topic).lead(fresh=True)
        await first.settle(0, b"0")  # it dies before it writes what follows
        outputs = first.storage._outputs[0]
        lanes = [used.lane for used in outputs._lanes.used]
        ending = asyncio.Event()

        async def never():
            ending.set()
            await asyncio.Event().wait()

        for lane in lanes:
            lane.end = never
        late = asyncio.ensure_future(first.settle(1, b"1"))  # and this one before it commits
        await ending.wait()
        second = await Worker(fleet, "b", topic).lead()
        try:
            assert await second.settled() == [0]
            assert await committed(each_kafka, topic) == [b"0"]  # nobody waits for the open transaction
            (lane,) = [used.lane for used in outputs._under_way]
            with pytest.raises(Exception, match=r"FENCED|INVALID_PRODUCER_EPOCH"):
                await Lane.end(lane)
            await second.settle(1, b"again")
            assert await second.settled() == [0, 1]
            assert await committed(each_kafka, topic) == [b"0", b"again"]
        finally:
            await first.close()
            await second.close()
            with pytest.raises(LogError):
                await late


async def test_a_settle_takes_milliseconds(kafka, unique):
    topic = unique("paid")
    async with real_fleet(kafka, unique("__flowshare_state.a")) as fleet:
        await fleet.kafka.send(m.CreateTopicRequest(name=topic))
        worker = await Worker(fleet, "a", topic).lead(fresh=True)
        try:
            took = []
            for n in range(200):
                begun_s = fleet.clock.monotonic()
                await worker.settle(n, b"%d" % n)
                took.append(fleet.clock.monotonic() - begun_s)
            took.sort()
            print(f"p50 {took[100] * 1000:.1f} ms, p99 {took[197] * 1000:.1f} ms")
            assert took[100] < 0.2  # on a busy machine, too
        finally:
            await worker.close()


async def test_the_rows_of_a_dead_leader_are_noted_as_decided(kafka, unique):
    topic = unique("paid")
    async with real_fleet(kafka, unique("__flowshare_state.a")) as fleet:
        await fleet.kafka.send(m.CreateTopicRequest(name=topic))
        first = await Worker(fleet, "a", topic).lead(fresh=True)
        await first.settle(0, b"0")
        second = await Worker(fleet, "b", topic).lead()
        try:

            async def noted():
                return [kept.decided for kept in rows_in(second.slot.scan(b""))] == [True]

            await until(noted)
        finally:
            await first.close()
            await second.close()
