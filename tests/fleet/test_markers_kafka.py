"""A transaction that a real Kafka calls ended while a partition of it has no leader, told to that partition later."""

from __future__ import annotations

import asyncio
from functools import partial
from itertools import product
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from flowshare.client.errors import ClientError
from flowshare.client.net.cluster import Cluster
from flowshare.client.net.topology import NOBODY
from flowshare.clock import LoopClock
from flowshare.fleet.state.lane import EMPTY, Lane, OutputSettings, pieces_of
from flowshare.log.base import Output
from flowshare.protocol import messages as m
from flowshare.protocol.errors import ErrorCode
from tests.chaos.once_world import Brokers
from tests.fleet.outputs_world import records
from tests.waiting import until

pytestmark = [pytest.mark.asyncio, pytest.mark.java, pytest.mark.slow]
OUTPUT = "paid"
SLOTS = 4
LATEST = -1


async def is_there(output, anew):
    """As `Lane` asks whether what an output was made for is there."""


async def kept(note):
    """As if the slot's log had taken it in."""


class Kafka:
    """The test's access to two brokers, one of which is to be killed."""

    def __init__(self, brokers, cluster):
        self.brokers = brokers
        self.cluster = cluster
        self.connection = cluster.connect("test")

    def lane(self, topic, slot, note=EMPTY):
        """The first lane of a slot, of another process each time."""
        return Lane(
            0,
            topic=topic,
            slot=slot,
            epoch=1,
            connect=self.cluster.connect,
            exists=is_there,
            clock=self.cluster.clock,
            settings=OutputSettings(),
            keep=kept,
            note=note,
        )

    async def leader(self, place):
        """Node that leads a partition now."""
        await self.cluster.look_for((place[0],))
        return self.cluster.topology.leader(*place)

    async def end(self, place, *, committed):
        """Where a log ends: of what is committed, or of all."""
        request = m.ListOffsetsRequest(topic=place[0], partition=place[1], timestamp_ms=LATEST, committed=committed)
        answer = await self.cluster.connect("end").send(request)
        assert answer.error is ErrorCode.NONE
        return answer.offset

    async def slot_beside(self, node):
        """State topic and slot whose lane and ledger have coordinators on the other node."""
        for topic, slot in product((f"state-{n}" for n in range(4)), range(SLOTS)):
            lane = self.lane(topic, slot)
            of = (lane.transactional_id, "transaction"), (lane.ledger, "group")
            await lane.close()
            found = {await until(partial(self.cluster.coordinator, *one), good=lambda on: on != NOBODY) for one in of}
            if node not in found:
                made = await self.connection.send(m.CreateTopicRequest(name=topic, partitions=SLOTS))
                assert made.error is ErrorCode.NONE
                return topic, slot
        raise AssertionError("all coordinators are on one node")


async def taken_over(lane):
    """Its ledger; None: it is to be tried again."""
    try:
        return await lane.take_over()
    except (OSError, ClientError):
        return None


async def place_on(kafka, node):
    """A partition that has its only replica there."""
    admin = AdminClient({"bootstrap.servers": kafka.brokers.bootstrap, "log_level": 0})
    made = admin.create_topics([NewTopic(OUTPUT, num_partitions=4, replication_factor=1)])
    await asyncio.to_thread(made[OUTPUT].result, 30)
    await until(lambda: kafka.leader((OUTPUT, 3)), good=lambda on: on != NOBODY)
    return next((OUTPUT, n) for n in range(4) if kafka.cluster.topology.leader(OUTPUT, n) == node)


async def test_a_partition_that_had_no_leader_when_its_transaction_was_committed_is_told_by_the_next_leader(
    tmp_path: Path,
):
    brokers = Brokers(tmp_path, 2)
    brokers.start()
    cluster = Cluster(brokers.bootstrap.split(","), clock=LoopClock())
    try:
        await cluster.start()
        kafka = Kafka(brokers, cluster)
        mortal = max(cluster.topology.nodes)  # the first one is the controller, too
        slot = await kafka.slot_beside(mortal)
        place = await place_on(kafka, mortal)
        first = kafka.lane(*slot)
        await first.take_over()
        pieces = pieces_of(Output(*place[:1], None, place[1], records(b"out")), 0)
        note = first.will_write(pieces)
        await first.send(1, pieces)
        brokers.kill(every=False)
        await until(lambda: kafka.leader(place), good=lambda on: on == NOBODY)
        await first.end()
        await first.close()
        brokers.back()
        await until(lambda: kafka.leader(place), good=lambda on: on != NOBODY)

        second = kafka.lane(*slot, note)
        assert await until(partial(taken_over, second), good=lambda ledger: ledger is not None) == 1
        await second.close()
        end = await kafka.end(place, committed=False)
        assert end > 1
        await until(lambda: kafka.end(place, committed=True), good=lambda stable: stable == end)
        await kafka.connection.close()
    finally:
        await cluster.close()
        brokers.end()
