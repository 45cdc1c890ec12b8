"""Transactions of librdkafka and aiokafka, read by consumers and share consumers of both isolation levels."""

from __future__ import annotations

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, KafkaException, Producer
from confluent_kafka import TopicPartition as Place

from tests.interop.servers import CALL_LIMIT_S
from tests.interop.test_confluent_share import member
from tests.interop.test_confluent_share import take as share_take
from tests.interop.test_consumer_groups import librdkafka, take
from tests.interop.test_producers import asyncio_run


@pytest.fixture
def topic(server, unique):
    return server.topic(unique("orders"))


def transactional(server, name, **settings):
    producer = Producer({"bootstrap.servers": server.bootstrap, "transactional.id": name, **settings})
    producer.init_transactions(CALL_LIMIT_S)
    return producer


def read(server, topic, count, *, committed, limit_s=CALL_LIMIT_S):
    consumer = Consumer(
        {
            "bootstrap.servers": server.bootstrap,
            "group.id": "none",
            "enable.auto.commit": False,
            "isolation.level": "read_committed" if committed else "read_uncommitted",
        }
    )
    consumer.assign([Place(topic, 0, 0)])
    found = take(consumer, count, limit_s)
    consumer.close()
    return [message.value().decode() for message in found]


def write_one_and_three(producer, topic):
    """Three transactions of one record, of which the second is aborted."""
    for name, end in (
        ("one", producer.commit_transaction),
        ("two", producer.abort_transaction),
        ("three", producer.commit_transaction),
    ):
        producer.begin_transaction()
        producer.produce(topic, name)
        producer.flush(CALL_LIMIT_S)
        end(CALL_LIMIT_S)


def test_committed_records_are_read_and_aborted_ones_are_not(server, unique, topic):
    write_one_and_three(transactional(server, unique("txn")), topic)

    assert read(server, topic, 2, committed=True) == ["one", "three"]
    assert read(server, topic, 3, committed=False) == ["one", "two", "three"]


def test_an_open_transaction_holds_back_what_comes_after_it_from_read_committed(server, unique, topic):
    producer = transactional(server, unique("txn"))
    producer.begin_transaction()
    producer.produce(topic, "open")
    producer.flush(CALL_LIMIT_S)
    server.produce(topic, "after")

    before = read(server, topic, 1, committed=True, limit_s=1.5)
    uncommitted = read(server, topic, 2, committed=False)
    producer.commit_transaction(CALL_LIMIT_S)
    after = read(server, topic, 2, committed=True)

    assert before == []
    assert uncommitted == after == ["open", "after"]


def test_a_second_producer_with_the_same_id_fences_the_first_and_its_records_are_aborted(server, unique, topic):
    first = transactional(server, unique("txn"))
    first.begin_transaction()
    first.produce(topic, "zombie")
    first.flush(CALL_LIMIT_S)

    second = transactional(server, unique("txn"))
    second.begin_transaction()
    second.produce(topic, "alive")
    second.commit_transaction(CALL_LIMIT_S)
    with pytest.raises(KafkaException) as refused:
        first.commit_transaction(CALL_LIMIT_S)

    assert refused.value.args[0].name() in {"_FENCED", "PRODUCER_FENCED", "INVALID_PRODUCER_EPOCH"}
    assert read(server, topic, 1, committed=True) == ["alive"]


def test_a_transaction_that_takes_too_long_is_aborted(server, unique, topic):
    producer = transactional(server, unique("txn"), **{"transaction.timeout.ms": 1000})
    producer.begin_transaction()
    producer.produce(topic, "too slow")
    producer.flush(CALL_LIMIT_S)
    server.produce(topic, "after")

    assert read(server, topic, 1, committed=True) == ["after"]


def test_offsets_are_committed_with_the_transaction_or_not_at_all(server, unique, topic):
    target, group = server.topic(unique("results")), unique("group")
    server.produce(topic, *(str(number) for number in range(10)))
    producer = transactional(server, unique("txn"))

    def work(end):
        consumer = librdkafka(server, group, topic)
        taken = take(consumer, 1)
        producer.begin_transaction()
        for message in taken:
            producer.produce(target, message.value())
        position = consumer.position(consumer.assignment())
        producer.send_offsets_to_transaction(position, consumer.consumer_group_metadata(), CALL_LIMIT_S)
        end(CALL_LIMIT_S)
        consumer.close()
        return len(taken)

    assert work(producer.abort_transaction) == 10
    assert work(producer.commit_transaction) == 10
    consumer = librdkafka(server, group, topic)
    left = take(consumer, 1, limit_s=2)
    consumer.close()

    assert left == []
    assert read(server, target, 10, committed=True) == [str(number) for number in range(10)]


def test_aiokafkas_transactions(server, unique, topic):
    async def work():
        async with AIOKafkaProducer(bootstrap_servers=server.bootstrap, transactional_id=unique("txn")) as producer:
            async with producer.transaction():
                await producer.send_and_wait(topic, b"one", partition=0)
            await producer.begin_transaction()
            await producer.send_and_wait(topic, b"two", partition=0)
            await producer.abort_transaction()
            async with producer.transaction():
                await producer.send_and_wait(topic, b"three", partition=0)
        async with AIOKafkaConsumer(
            bootstrap_servers=server.bootstrap, isolation_level="read_committed", enable_auto_commit=False
        ) as consumer:
            place = TopicPartition(topic, 0)
            consumer.assign([place])
            consumer.seek(place, 0)
            return [(await consumer.getone()).value for _ in range(2)]

    assert asyncio_run(work()) == [b"one", b"three"]


@pytest.mark.parametrize(
    ("isolation", "seen"), [("read_committed", ["one", "three"]), ("read_uncommitted", ["one", "three", "two"])]
)
def test_share_groups_follow_their_isolation_level(server, unique, topic, isolation, seen):
    group = server.share_group(unique("group"), share_isolation_level=isolation)
    write_one_and_three(transactional(server, unique("txn")), topic)

    with member(server, group, topic) as consumer:
        taken = share_take(consumer, len(seen)) + share_take(consumer, 1, limit_s=1)

    assert sorted(message.value().decode() for message in taken) == seen


@pytest.mark.java
def test_javas_transactions_and_their_offsets(server, run, unique, topic):
    group = unique("group")

    told = run(
        "transaction-client", f"id={unique('txn')}", f"topic={topic}", f"group={group}",
        "commit=one,two", "offset=1", "abort=three", "offset=2", "commit=four",
    )  # fmt: skip
    committed = [ConsumerGroupTopicPartitions(group, [Place(topic, 0)])]
    listed = server.admin.list_consumer_group_offsets(committed)[group].result(CALL_LIMIT_S)

    # Each transaction ends in a control record, which takes an offset.
    assert told.out.splitlines() == ["one 0", "two 1", "three 3", "four 5"]
    assert read(server, topic, 3, committed=True) == ["one", "two", "four"]
    assert [place.offset for place in listed.topic_partitions] == [2]
