"""A real Kafka whose log start passes what a group has not finished: while it is led, and while its leader is dead."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import pytest

from flowshare.backend.fleet import FleetConnection
from flowshare.client.net.cluster import Cluster
from flowshare.client.session.member import ShareMember
from flowshare.clock import LoopClock
from flowshare.protocol import messages as m
from flowshare.protocol.errors import ErrorCode
from tests.fleet.log.test_real_kafka import produce
from tests.fleet.processes import FleetProcesses
from tests.fleet.test_worker import accept, take
from tests.fleet.world import EARLIEST

pytestmark = [pytest.mark.asyncio, pytest.mark.java]
LIMIT_S = 60


@asynccontextmanager
async def clients(kafka, fleet):
    """A connection to workers and brokers, and what makes members."""
    clock, members = LoopClock(), []
    workers, brokers = Cluster(fleet.addresses, clock=clock), Cluster(kafka.addresses, clock=clock)
    await workers.start()
    await brokers.start()
    connection = FleetConnection(workers, "test", brokers.connect("test"))

    async def connect():
        return workers.connect("member")

    async def member(topic, group):
        one = ShareMember(connect, group_id=group, topics=(topic,), clock=clock)
        members.append(one)
        await one.start()
        return one

    try:
        async with asyncio.timeout(LIMIT_S):
            yield connection, member
    finally:
        await asyncio.gather(*(one.close(timeout_s=5.0) for one in members))
        await connection.close()
        await workers.close()
        await brokers.close()


async def begin(kafka, connection, member, topic, group):
    """Three batches in a topic, of which a member has finished the first."""
    answer = await connection.send(m.CreateTopicRequest(name=topic))
    assert answer.error is ErrorCode.NONE, answer
    request = m.IncrementalAlterConfigsRequest(resource_type="group", resource=group, configs=EARLIEST)
    assert (await connection.send(request)).error is ErrorCode.NONE
    for _ in range(3):
        await produce(kafka, topic, [b"x"] * 5)
    taker = await member(topic, group)
    first = await taker.fetch(records_max=5, max_wait_s=30)
    assert [(one.first, one.last) for part in first for one in part.acquired] == [(0, 4)]
    await accept(taker, first)
    return taker


async def delete(connection, topic):
    """The first two batches go."""
    answer = await connection.send(m.DeleteRecordsRequest(topic=topic, partition=0, before=10))
    assert answer.error is ErrorCode.NONE, answer


async def rest(taker):
    """Offsets up to the log's end."""
    got = []
    while not got or got[-1] < 14:
        more, fetched = await take(taker, 1)
        got += [offset for _, offset in more]
        await accept(taker, fetched)
    return got


async def test_records_that_are_deleted_unfinished_while_they_are_led_are_passed(kafka, fleet, unique):
    topic, group = unique("orders"), unique("g")
    async with clients(kafka, fleet) as (connection, member):
        taker = await begin(kafka, connection, member, topic, group)

        await delete(connection, topic)
        got = await rest(taker)

        # The leader may still have the others in memory when it hears of it.
        assert got in (list(range(10, 15)), list(range(5, 15)))


async def test_records_that_were_deleted_while_nobody_led_are_passed(kafka, tmp_path, unique):
    topic, group = unique("orders"), unique("g")
    workers = FleetProcesses(kafka, tmp_path, workers=1, slots=2)
    try:
        async with clients(kafka, workers) as (connection, member):
            await begin(kafka, connection, member, topic, group)
            (worker,) = workers.workers
            await asyncio.to_thread(worker.kill)
            await delete(connection, topic)
        workers.workers.remove(worker)
        workers.add()
        await asyncio.to_thread(workers.settled)
        async with clients(kafka, workers) as (_, member):
            got = await rest(await member(topic, group))

        assert got == list(range(10, 15))
    finally:
        await asyncio.to_thread(workers.close)
