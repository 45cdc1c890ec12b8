"""Agents and clients on a real broker's share groups."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import pytest

import flowshare as fs
from flowshare.agents.handler.errors import UsageError
from flowshare.agents.host.host import Host, HostSettings
from flowshare.backend import open_backend
from flowshare.client.admin.admin import ShareAdmin
from flowshare.client.errors import RecordTooLarge, ServerError
from flowshare.client.producer.producer import Message, Producer
from flowshare.clock import LoopClock
from tests.waiting import until

pytestmark = [pytest.mark.asyncio, pytest.mark.java]
LIMIT_S = 60


def url(kafka):
    return f"kafka://{','.join(kafka.addresses)}"


@asynccontextmanager
async def running(*apps):
    hosts = []
    try:
        for app in apps:
            host = Host(app, settings=HostSettings(threads=False))
            await host.start()
            hosts.append(host)
        yield hosts
    finally:
        for host in hosts:
            await host.drain(5)
        for host in hosts:
            await host.stop()


@asynccontextmanager
async def cluster(kafka):
    backend = open_backend(url(kafka))
    await backend.start()
    clock = LoopClock()
    admin = ShareAdmin(lambda: backend.connect("test"), clock=clock)
    producer = Producer(lambda: backend.connect("test"), clock=clock)
    try:
        yield admin, producer
    finally:
        await producer.close()
        await admin.close()
        await backend.close()


async def test_every_record_is_handled_once_by_the_workers_of_a_group(kafka, unique):
    topic, seen = unique("native"), []

    def worker():
        app = fs.App(topic, broker=url(kafka), share="native")

        @app.share_agent(topic, name="work", dead_letter=None)
        async def work(value: bytes) -> None:
            seen.append(value)

        return app

    async with cluster(kafka) as (admin, producer):
        await admin.create_topic(topic, partitions=3)
        await producer.send_many(topic, [Message(b"%d" % n, key=b"%d" % n) for n in range(5000)])
        async with running(worker(), worker()):
            await until(lambda: len(seen) >= 5000)
            group = await admin.describe_group(f"{topic}.work")
        lags = {part.lag for part in await admin.group_offsets(f"{topic}.work", [topic])}

    assert sorted(map(int, seen)) == list(range(5000))
    assert len(group.members) == 4, "each worker has a second member for the retry topic"
    assert lags == {0}


async def test_a_worker_that_stops_has_no_partition_any_more_and_finishes_what_it_runs(kafka, unique):
    topic, begun, end = unique("stops"), asyncio.Event(), asyncio.Event()
    app = fs.App(topic, broker=url(kafka))

    @app.share_agent(topic, name="work")
    async def work(value: bytes) -> None:
        begun.set()
        await end.wait()

    async with cluster(kafka) as (admin, producer), running(app) as [host]:
        await producer.send(topic, b"x")
        async with asyncio.timeout(LIMIT_S):
            await begun.wait()
            draining = asyncio.ensure_future(host.drain(LIMIT_S))
            await until(lambda: assignments(admin, f"{topic}.work"), good=lambda found: not any(found.values()))
            assert not draining.done()
            end.set()
            assert await draining
        assert host.runtimes["work"].stats()["accepted"] == 1
        lags = {part.lag for part in await admin.group_offsets(f"{topic}.work", [topic])}

    assert lags == {0}


async def assignments(admin, group):
    """Partitions of each member by its id."""
    found = await admin.describe_group(group)
    return {
        member.member_id: [number for numbers in member.assignment.values() for number in numbers]
        for member in found.members
    }


async def test_a_failing_record_is_retried_by_lock_and_by_topic_and_dies_as_itself(kafka, unique):
    topic, seen = unique("retry"), []
    app = fs.App(topic, broker=url(kafka))
    retry = fs.Retry(max_attempts=3, delay=lambda attempt: 0.2 if attempt == 1 else 6.0)

    @app.share_agent(topic, name="work", retry=retry)
    async def work(value: bytes, delivery: fs.Delivery) -> None:
        seen.append((delivery.topic, delivery.offset, delivery.attempt))
        raise RuntimeError("no")

    async with cluster(kafka) as (admin, producer):
        await producer.send(topic, b"x")
        async with running(app) as [host]:
            await until(lambda: host.runtimes["work"].stats()["dead_lettered"] == 1)
        (letter,) = await admin.read(f"{topic}.work.dlq", 0)
        (waited,) = await admin.read(f"{topic}.work.retry", 0)

    assert seen == [(topic, 0, attempt) for attempt in (1, 2, 3)]
    headers = dict(letter.headers)
    assert (headers["flowshare.dlq.topic"], headers["flowshare.dlq.offset"]) == (topic.encode(), b"0")
    assert dict(waited.headers)["flowshare.retry.attempts"] == b"2"


@pytest.mark.parametrize("own", [True, False])
async def test_each_reject_has_one_letter_where_the_brokers_write_letters_too(kafka_with_letters, unique, own):
    topic = unique("letters")
    brokers, app = f"dlq.{topic}", fs.App(topic, broker=url(kafka_with_letters), share="native")

    @app.share_agent(topic, name="work", dead_letter=True if own else None)
    async def work(value: bytes) -> None:
        raise fs.Reject("no")

    async with cluster(kafka_with_letters) as (admin, producer):
        await admin.create_topic(topic, partitions=1)
        await admin.create_topic(brokers, partitions=1, configs={"errors.deadletterqueue.group.enable": "true"})
        await admin.alter_group_configs(f"{topic}.work", {"errors.deadletterqueue.topic.name": brokers})
        await producer.send_many(topic, [Message(b"%d" % n) for n in range(10)])
        async with running(app) as [host]:
            await until(lambda: host.runtimes["work"].stats()["dead_lettered" if own else "rejected"] == 10)
            # The group is past the records once the brokers have written what they write.
            await until(lambda: admin.group_offsets(f"{topic}.work", [topic]), good=lambda parts: parts[0].lag == 0)
        letters = await admin.read(brokers, 0)
        mine = await admin.read(f"{topic}.work.dlq", 0) if own else []

    assert (len(mine), len(letters)) == ((10, 0) if own else (0, 10))


async def test_a_record_that_killed_its_worker_each_time_is_dead_lettered_unrun(kafka, unique):
    topic, seen = unique("killer"), []
    app = fs.App(topic, broker=url(kafka))

    @app.share_agent(topic, name="work", retry=fs.Retry(max_attempts=2))
    async def work(value: bytes) -> None:
        seen.append(value)

    async with cluster(kafka) as (admin, producer):
        await producer.send(topic, b"x")
        await admin.alter_group_configs(f"{topic}.work", {"share.auto.offset.reset": "earliest"})
        backend = open_backend(url(kafka))
        await backend.start()
        for _ in range(2):  # members that get the record and are gone
            from flowshare.client.session.member import ShareMember

            member = ShareMember(
                lambda: backend.connect("dies"), group_id=f"{topic}.work", topics=[topic], clock=LoopClock()
            )
            await member.start()
            async with asyncio.timeout(LIMIT_S):
                while not await member.fetch(records_max=1):
                    pass
            await member.close()
        await backend.close()
        async with running(app) as [host]:
            await until(lambda: host.runtimes["work"].stats()["dead_lettered"] == 1)

    assert seen == []


async def test_what_the_broker_cannot_do_is_refused_at_the_start(kafka, unique):
    app = fs.App(unique("limits"), broker=url(kafka))

    @app.share_agent("never", retry=fs.Retry(max_attempts=50))
    async def work(value: bytes) -> None: ...

    with pytest.raises(UsageError, match=r"group\.share\.max\.delivery\.count\.limit"):
        async with running(app):
            pass


async def test_the_producer_confirms_where_each_record_is_and_says_what_it_refuses(kafka, unique):
    topic = unique("producer")

    async with cluster(kafka) as (admin, producer):
        first = await producer.send(topic, None, headers=[("h", None)])
        many = await producer.send_many(topic, [b"%d" % n for n in range(3000)])
        with pytest.raises(RecordTooLarge):
            await producer.send(topic, bytes(2 << 20))
        with pytest.raises(ServerError, match="no partition 9"):
            await producer.send(topic, b"x", partition=9)
        with pytest.raises(ServerError, match="INVALID_TOPIC"):
            await producer.send("no topic!", b"x")
        records = await admin.read(topic, 0, 0, limit=5000)

    assert (first.partition, first.offset) == (0, 0)
    assert [one.offset for one in many] == list(range(1, 3001))
    assert [record.value for record in records] == [None, *(b"%d" % n for n in range(3000))]


async def test_consumers_tell_who_leads_and_has_a_topics_partitions(kafka, unique):
    topic = unique("facts")
    async with fs.Broker(f"{url(kafka)}?share=native") as broker:
        await fs.ShareAdmin(broker).create_topic(topic, partitions=2)
        consumer = fs.ShareConsumer(broker, [topic], group_id=topic)
        found = await consumer.partitions_for(topic)
        with pytest.raises(ServerError, match="there is no topic"):
            await consumer.partitions_for(unique("missing"))

    assert [one.partition for one in found] == [0, 1]
    for one in found:
        assert (one.replicas, one.in_sync) == ((one.leader,), (one.leader,))
        assert f"{one.leader.host}:{one.leader.port}" == kafka.addresses[0]


async def test_members_of_two_brokers_partitions_handle_all_of_them(kafka_pair, unique):
    topic, seen = unique("pair"), []
    app = fs.App(topic, broker=url(kafka_pair))

    @app.share_agent(topic, name="work", dead_letter=None)
    async def work(value: bytes) -> None:
        seen.append(value)

    async with cluster(kafka_pair) as (admin, producer):
        await admin.create_topic(topic, partitions=4)
        leaders = set((await admin.describe_topic(topic)).leaders)
        await producer.send_many(topic, [Message(b"%d" % n, partition=n % 4) for n in range(2000)])
        async with running(app):
            await until(lambda: len(seen) >= 2000)

    assert len(leaders) == 2
    assert sorted(map(int, seen)) == list(range(2000))


async def test_what_a_topic_finds_too_large_holds_up_nothing_else(kafka, unique):
    """Brokers refuse a partition's batches behind a refused one: their sequence numbers have a gap."""
    topic = unique("small")
    async with cluster(kafka) as (admin, producer):
        await admin.create_topic(topic, partitions=1, configs={"max.message.bytes": "1000"})
        await producer.send(topic, b"first")

        with pytest.raises(RecordTooLarge, match=r"max\.message\.bytes"):
            await producer.send(topic, bytes(2000))
        sent = await producer.send_many(topic, [b"%d" % number * 50 for number in range(10, 60)])
        after = await producer.send(topic, b"after")

    assert [one.offset for one in sent] == list(range(1, 51))
    assert after.offset == 51
