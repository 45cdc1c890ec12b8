"""Clients that others wrote, against a socket: confluent-kafka (librdkafka) and aiokafka; no classic groups here."""

from __future__ import annotations

import asyncio
import time

import pytest

from tests.server.edge.kit import batch, edge

pytestmark = [pytest.mark.asyncio, pytest.mark.slow]

WITHIN_S = 60.0
COUNT = 500


def librdkafka(e, **more):
    """Settings of a librdkafka client."""
    return {"bootstrap.servers": e.address, **{name.replace("_", "."): value for name, value in more.items()}}


def done(futures):
    """Results of an admin call, by what was asked for."""
    return {asked: future.result(WITHIN_S) for asked, future in futures.items()}


def produce(e, topic, *, compression="none", acks="all"):
    """Produce `COUNT` values with librdkafka, round-robin over two partitions."""
    from confluent_kafka import Producer

    failed = []
    producer = Producer(librdkafka(e, acks=acks, compression_type=compression, enable_idempotence=False))
    for number in range(COUNT):
        producer.produce(
            topic, b"%d" % number, partition=number % 2, callback=lambda error, _: error and failed.append(error)
        )
    assert producer.flush(WITHIN_S) == 0
    assert failed == []


def read(e, topic, **more):
    """All values of the topic's two partitions with librdkafka's plain consumer."""
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer(librdkafka(e, group_id="unused", enable_auto_commit=False, **more))
    try:
        consumer.assign([TopicPartition(topic, number, 0) for number in range(2)])
        values, until = [], time.monotonic() + WITHIN_S
        while len(values) < COUNT and time.monotonic() < until:
            for message in consumer.consume(COUNT, timeout=1):
                assert message.error() is None, message.error()
                values.append(message.value())
        ends = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=WITHIN_S)
    finally:
        consumer.close()
    return values, ends


@pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "lz4", "zstd"])
async def test_librdkafka_produces_and_reads(compression: str) -> None:
    async with edge() as e:
        await e.topic("t", partitions=2)

        await asyncio.to_thread(produce, e, "t", compression=compression)
        values, ends = await asyncio.to_thread(read, e, "t")

        assert sorted(values) == sorted(b"%d" % number for number in range(COUNT))
        assert ends == (0, COUNT // 2)


async def test_librdkafka_produces_without_acks() -> None:
    async with edge() as e:
        await e.topic("t", partitions=2)

        await asyncio.to_thread(produce, e, "t", acks="0")
        values, _ = await asyncio.to_thread(read, e, "t", isolation_level="read_committed")

        assert len(values) == COUNT


def administer(e):
    """Do an administrator's calls with librdkafka, and return the results."""
    from confluent_kafka import IsolationLevel, TopicPartition
    from confluent_kafka.admin import (
        AdminClient,
        AlterConfigOpType,
        ConfigEntry,
        ConfigResource,
        NewPartitions,
        NewTopic,
        OffsetSpec,
        ResourceType,
    )

    admin = AdminClient(librdkafka(e))
    seen = {}
    done(admin.create_topics([NewTopic("t", 1, 1, config={"retention.ms": "9000"})]))
    done(admin.create_partitions([NewPartitions("t", 2)]))
    produce(e, "t")
    topic, group = ConfigResource(ResourceType.TOPIC, "t"), ConfigResource(ResourceType.GROUP, "g")
    entry = ConfigEntry("share.auto.offset.reset", "earliest", incremental_operation=AlterConfigOpType.SET)
    group.add_incremental_config(entry)
    done(admin.incremental_alter_configs([group]))
    described = done(admin.describe_configs([topic, ConfigResource(ResourceType.GROUP, "g")]))
    seen["configs"] = {
        resource.name: {name: entry.value for name, entry in found.items()} for resource, found in described.items()
    }
    seen["cluster"] = admin.describe_cluster().result(WITHIN_S).cluster_id
    seen["partitions"] = len(admin.list_topics("t", timeout=WITHIN_S).topics["t"].partitions)
    at = TopicPartition("t", 0)
    latest = admin.list_offsets({at: OffsetSpec.latest()}, isolation_level=IsolationLevel.READ_COMMITTED)
    seen["latest"] = [result.offset for result in done(latest).values()]
    cut = done(admin.delete_records([TopicPartition("t", 0, 100)]))
    seen["cut"] = [result.low_watermark for result in cut.values()]
    done(admin.delete_topics(["t"]))
    seen["topics"] = set(admin.list_topics(timeout=WITHIN_S).topics)
    return seen


async def test_librdkafkas_admin_client_works() -> None:
    async with edge() as e:
        seen = await asyncio.to_thread(administer, e)

        configs = seen.pop("configs")
        assert configs["t"]["retention.ms"] == "9000"
        assert configs["g"]["share.auto.offset.reset"] == "earliest"
        assert seen == {
            "cluster": "flowshare",
            "partitions": 2,
            "latest": [COUNT // 2],
            "cut": [100],
            "topics": set(),
        }


def share(e, group_id, wanted, *, seen=None, verdict="ACCEPT", mode="explicit"):
    """(partition, offset, deliveries) of `wanted` records through librdkafka's share consumer. seen: by it and those
    beside it."""
    from confluent_kafka import AcknowledgeType, ShareConsumer

    settings = librdkafka(e, group_id=group_id)
    consumer = ShareConsumer({**settings, "share.acknowledgement.mode": mode})
    seen = [] if seen is None else seen
    try:
        consumer.subscribe(["t"])
        until = time.monotonic() + WITHIN_S
        while len(seen) < wanted and time.monotonic() < until:
            for message in consumer.poll(1.0):
                assert message.error() is None, message.error()
                if mode == "explicit":
                    consumer.acknowledge(message, AcknowledgeType[verdict])
                seen.append((message.partition(), message.offset(), message.delivery_count()))
        failed = [error for error in (consumer.commit_sync() or {}).values() if error is not None]
        assert failed == []
    finally:
        consumer.close()
    return seen


async def configured(e):
    """Topic t with records; group g reads it from the start."""
    await e.topic("t", partitions=2)
    for number in range(COUNT):
        await e.storage.append("t", number % 2, batch(b"%d" % number))
    await e.configure(share_auto_offset_reset="earliest")


async def lag(e):
    """Records of group g that are not finished."""
    from flowshare.protocol.messages import DescribeShareGroupOffsetsRequest

    answer = await e.admin.send(DescribeShareGroupOffsetsRequest(group_id="g"))
    return sum(one.lag for one in answer.partitions)


@pytest.mark.parametrize("mode", ["explicit", "implicit"])
async def test_librdkafkas_share_consumer_gets_every_record_once(mode: str) -> None:
    async with edge() as e:
        await configured(e)

        seen = await asyncio.to_thread(share, e, "g", COUNT, mode=mode)

        assert sorted((partition, offset) for partition, offset, _ in seen) == [
            (partition, offset) for partition in range(2) for offset in range(COUNT // 2)
        ]
        assert {count for *_, count in seen} == {1}
        assert await lag(e) == 0


async def test_what_librdkafka_releases_comes_again_and_what_it_rejects_does_not() -> None:
    async with edge() as e:
        await configured(e)

        await asyncio.to_thread(share, e, "g", COUNT, verdict="RELEASE")
        again = await asyncio.to_thread(share, e, "g", COUNT, verdict="REJECT")

        assert min(count for *_, count in again) >= 2
        assert len({(partition, offset) for partition, offset, _ in again}) == COUNT
        assert await lag(e) == 0


async def test_two_share_consumers_of_librdkafka_share_the_records() -> None:
    async with edge() as e:
        await configured(e)
        seen = []

        await asyncio.gather(*(asyncio.to_thread(share, e, "g", COUNT, seen=seen) for _ in range(2)))

        places = [(partition, offset) for partition, offset, _ in seen]
        assert len(places) == len(set(places)) == COUNT


async def test_aiokafka_produces_reads_and_administers() -> None:
    from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
    from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic

    async with edge() as e:
        admin = AIOKafkaAdminClient(bootstrap_servers=e.address)
        await admin.start()
        await admin.create_topics([NewTopic("t", 1, 1)])
        await admin.create_partitions({"t": NewPartitions(2)})
        producer = AIOKafkaProducer(bootstrap_servers=e.address, compression_type="lz4", enable_idempotence=False)
        await producer.start()
        for number in range(COUNT):
            await producer.send("t", b"%d" % number, partition=number % 2)
        await producer.stop()
        consumer = AIOKafkaConsumer(bootstrap_servers=e.address, enable_auto_commit=False)
        await consumer.start()
        places = [TopicPartition("t", number) for number in range(2)]
        consumer.assign(places)
        await consumer.seek_to_beginning()
        values = []
        async with asyncio.timeout(WITHIN_S):
            while len(values) < COUNT:
                found = await consumer.getmany(timeout_ms=500)
                values += [record.value for records in found.values() for record in records]
        ends = await consumer.end_offsets(places)
        by_time = await consumer.offsets_for_times({places[0]: 0})
        await consumer.stop()
        await admin.delete_topics(["t"])
        left = await admin.list_topics()
        await admin.close()

        assert sorted(values) == sorted(b"%d" % number for number in range(COUNT))
        assert ends == dict.fromkeys(places, COUNT // 2)
        assert by_time[places[0]].offset == 0
        assert left == []
