"""Classic consumer groups of aiokafka, librdkafka and Java, and kafka-consumer-groups."""

from __future__ import annotations

import asyncio

import pytest
from aiokafka import AIOKafkaConsumer
from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions
from confluent_kafka import TopicPartition as Place

from tests.interop.servers import CALL_LIMIT_S
from tests.interop.test_producers import asyncio_run
from tests.waiting import blocking_until, until


@pytest.fixture
def topic(server, unique):
    topic = server.topic(unique("orders"), partitions=4)
    for partition in range(4):
        server.produce(topic, *(f"{partition}-{number}" for number in range(25)), partition=partition)
    return topic


def librdkafka(server, group, topic, **settings):
    """Settings by librdkafka's names, with `_` for `.`; None: librdkafka's own."""
    wanted = {
        "bootstrap.servers": server.bootstrap,
        "group.id": group,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "session.timeout.ms": 10000,
        "heartbeat.interval.ms": 300,
        **{key.replace("_", "."): value for key, value in settings.items()},
    }
    consumer = Consumer({key: value for key, value in wanted.items() if value is not None})
    consumer.subscribe([topic])
    return consumer


def take(consumer, count, limit_s=CALL_LIMIT_S):
    found = []
    blocking_until(
        lambda: found.extend(consumer.consume(500, timeout=0.2)) or len(found),
        good=lambda seen: seen >= count,
        limit_s=limit_s,
        or_last=True,
    )
    assert [message.error() for message in found] == [None] * len(found)
    return found


def test_a_group_goes_on_where_it_committed(server, unique, topic):
    group = unique("group")
    first = librdkafka(server, group, topic)
    taken = take(first, 100)
    first.commit(asynchronous=False)
    first.close()

    server.produce(topic, "later", partition=2)
    second = librdkafka(server, group, topic)
    later = take(second, 1)
    second.close()

    assert len({(message.partition(), message.offset()) for message in taken}) == len(taken) == 100
    assert [message.value() for message in later] == [b"later"]


@pytest.mark.parametrize("strategy", ["range", "roundrobin", "cooperative-sticky"])
def test_two_members_share_the_partitions_and_one_takes_over_when_the_other_leaves(server, unique, topic, strategy):
    group = unique("group")
    one = librdkafka(server, group, topic, partition_assignment_strategy=strategy)
    two = librdkafka(server, group, topic, partition_assignment_strategy=strategy)

    def assigned():
        one.poll(0.1), two.poll(0.1)
        return len(one.assignment()), len(two.assignment())

    both = blocking_until(assigned, good=lambda found: found == (2, 2))
    two.close()

    def left():
        one.poll(0.1)
        return len(one.assignment())

    alone = blocking_until(left, good=lambda count: count == 4)
    one.close()

    assert both == (2, 2)
    assert alone == 4


def test_a_static_member_that_comes_back_gets_its_partitions_and_the_others_keep_theirs(server, unique, topic):
    group = unique("group")
    stays = librdkafka(server, group, topic, group_instance_id="stays")
    leaves = librdkafka(server, group, topic, group_instance_id="leaves")

    def assigned():
        stays.poll(0.1), leaves.poll(0.1)
        return [{place.partition for place in consumer.assignment()} for consumer in (stays, leaves)]

    before = blocking_until(assigned, good=lambda found: [len(one) for one in found] == [2, 2])
    leaves.close()
    kept = {place.partition for place in stays.assignment()}
    leaves = librdkafka(server, group, topic, group_instance_id="leaves")
    after = blocking_until(assigned, good=lambda found: len(found[1]) == 2)
    leaves.close()
    stays.close()

    assert [len(one) for one in before] == [2, 2]
    assert after == before
    assert kept == before[0]


def test_members_of_different_clients_share_one_group(server, unique, topic):
    group = unique("group")

    async def poll(consumer):
        # librdkafka gives partitions up inside of poll(): unless it goes on, whoever joins later waits for it.
        while True:
            await asyncio.to_thread(consumer.poll, 0.1)

    async def share():
        other = librdkafka(server, group, topic, partition_assignment_strategy="roundrobin")
        polling = asyncio.create_task(poll(other))
        try:
            async with AIOKafkaConsumer(
                topic,
                bootstrap_servers=server.bootstrap,
                group_id=group,
                auto_offset_reset="earliest",
                heartbeat_interval_ms=300,
                partition_assignment_strategy=[RoundRobinPartitionAssignor],
            ) as consumer:
                await until(lambda: len(consumer.assignment()) == len(other.assignment()) == 2)
                mine = {place.partition for place in consumer.assignment()}
                theirs = {place.partition for place in other.assignment()}
                return mine, theirs
        finally:
            polling.cancel()
            await asyncio.wait([polling])
            await asyncio.to_thread(other.close)

    mine, theirs = asyncio_run(share())

    assert len(mine) == len(theirs) == 2
    assert mine | theirs == {0, 1, 2, 3}


def test_aiokafka_commits_and_goes_on(server, unique, topic):
    group = unique("group")

    async def consume(count):
        async with AIOKafkaConsumer(
            topic,
            bootstrap_servers=server.bootstrap,
            group_id=group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
        ) as consumer:
            found = [(await consumer.getone()).value for _ in range(count)]
            await consumer.commit()
            return found

    assert len(set(asyncio_run(consume(100)))) == 100
    server.produce(topic, "later")
    assert asyncio_run(consume(1)) == [b"later"]


def test_committed_offsets_are_listed_altered_and_the_group_deleted_by_librdkafkas_admin(server, unique, topic):
    group = unique("group")
    consumer = librdkafka(server, group, topic)
    take(consumer, 100)
    consumer.commit(asynchronous=False)
    consumer.close()
    admin = server.admin

    described = admin.describe_consumer_groups([group])[group].result(CALL_LIMIT_S)
    altered = admin.alter_consumer_group_offsets([ConsumerGroupTopicPartitions(group, [Place(topic, 1, 7)])])
    altered[group].result(CALL_LIMIT_S)
    listed = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])[group].result(CALL_LIMIT_S)
    admin.delete_consumer_groups([group])[group].result(CALL_LIMIT_S)
    groups = admin.list_consumer_groups().result(CALL_LIMIT_S)

    assert described.state.name == "EMPTY"
    assert {place.partition: place.offset for place in listed.topic_partitions} == {0: 25, 1: 7, 2: 25, 3: 25}
    assert group not in [one.group_id for one in groups.valid]


# --- kafka-consumer-groups ----------------------------------------------------------------------------------------


@pytest.fixture
def used(server, unique, topic):
    """A group that has committed the end of each partition, and is empty."""
    group = unique("group")
    consumer = librdkafka(server, group, topic)
    take(consumer, 100)
    consumer.commit(asynchronous=False)
    consumer.close()
    return group


@pytest.mark.java
def test_the_tool_describes_a_group(server, run, used, topic):
    server.produce(topic, "later")

    rows = run("kafka-consumer-groups", "--describe", "--group", used).rows
    state = run("kafka-consumer-groups", "--describe", "--group", used, "--state")

    assert sorted(row[:6] for row in rows if row[0] == used) == [
        [used, topic, "0", "25", "26", "1"],
        *([used, topic, str(partition), "25", "25", "0"] for partition in (1, 2, 3)),
    ]
    assert "Empty" in state.out
    assert used in run("kafka-consumer-groups", "--list").out.split()


@pytest.mark.java
def test_the_tool_names_the_members_of_a_group(server, run, unique, topic):
    group = unique("group")
    consumer = librdkafka(server, group, topic, client_id="warehouse")
    try:
        take(consumer, 100)
        told = run("kafka-consumer-groups", "--describe", "--group", group, "--members", "--verbose")
    finally:
        consumer.close()

    (row,) = [row for row in told.rows if row[0] == group]
    assert "warehouse" in row
    assert f"{topic}(0,1,2,3)" in told.out or f"{topic}:0,1,2,3" in told.out


@pytest.mark.java
def test_the_tool_resets_a_group(server, run, used, topic):
    reset = ("kafka-consumer-groups", "--reset-offsets", "--group", used, "--topic", topic)

    shown = run(*reset, "--to-offset", "5", "--dry-run")
    before = run("kafka-consumer-groups", "--describe", "--group", used).rows
    run(*reset, "--to-offset", "5", "--execute")
    consumer = librdkafka(server, used, topic)
    taken = take(consumer, 80)
    consumer.close()

    assert [used, topic, "0", "5"] in shown.rows
    assert {row[3] for row in before if row[0] == used} == {"25"}
    assert len(taken) == 80


@pytest.mark.java
def test_the_tool_deletes_offsets_and_the_group(run, used, topic):
    run("kafka-consumer-groups", "--delete-offsets", "--group", used, "--topic", topic)
    described = run("kafka-consumer-groups", "--describe", "--group", used, code=None)
    deleted = run("kafka-consumer-groups", "--delete", "--group", used, code=None)

    assert topic not in described.out
    assert used not in run("kafka-consumer-groups", "--list").out.split()
    assert deleted.code in (0, 1)


@pytest.mark.java
def test_javas_consumer_works_in_a_group(server, run, unique, topic):
    group = unique("group")
    consume = ("kafka-console-consumer", "--topic", topic, "--group", group, "--from-beginning")

    first = run(*consume, "--max-messages", "100", "--timeout-ms", "15000")
    server.produce(topic, "later")
    second = run(*consume, "--max-messages", "1", "--timeout-ms", "15000")

    assert len(set(first.out.split())) == 100
    assert second.out.split() == ["later"]
