"""librdkafka's share consumer, through confluent-kafka."""

from __future__ import annotations

import subprocess
import sys
import time
from contextlib import contextmanager

import pytest
from confluent_kafka import AcknowledgeType, KafkaException, ShareConsumer

from tests.interop.servers import CALL_LIMIT_S


@contextmanager
def member(server, group, topic, mode="implicit", **settings):
    consumer = ShareConsumer(
        {
            "bootstrap.servers": server.bootstrap,
            "group.id": group,
            "share.acknowledgement.mode": mode,
            **{key.replace("_", "."): value for key, value in settings.items()},
        }
    )
    try:
        consumer.subscribe([topic])
        yield consumer
    finally:
        consumer.close()


def take(consumer, count, limit_s=CALL_LIMIT_S, each=None):
    """Poll until `count` records came; `each` is called with every one."""
    deadline = time.monotonic() + limit_s
    taken = []
    while len(taken) < count and time.monotonic() < deadline:
        for message in consumer.poll(timeout=0.2):
            assert message.error() is None, message.error()
            if each is not None:
                each(message)
            taken.append(message)
    return taken


def values(messages):
    return sorted(message.value().decode() for message in messages)


def accept_all(consumer):
    return lambda message: consumer.acknowledge(message, AcknowledgeType.ACCEPT)


@pytest.fixture
def topic(server, unique):
    return server.topic(unique("orders"))


def test_every_record_of_every_partition_comes_once_and_is_accepted_by_the_next_poll(server, unique):
    topic, group = server.topic(unique("orders"), partitions=3), server.share_group(unique("group"))
    sent = [f"{partition}-{number}" for partition in range(3) for number in range(200)]
    for partition in range(3):
        server.produce(topic, *(one for one in sent if one.startswith(f"{partition}-")), partition=partition)

    with member(server, group, topic) as consumer:
        taken = take(consumer, 600)
        consumer.commit_sync(CALL_LIMIT_S)
    with member(server, group, topic) as consumer:
        again = take(consumer, 1, limit_s=2)

    assert values(taken) == sorted(sent)
    assert again == []


def test_a_released_record_comes_again_and_a_rejected_or_accepted_one_does_not(server, unique, topic):
    group = server.share_group(unique("group"))
    server.produce(topic, "accept", "release", "reject")
    types = {b"accept": AcknowledgeType.ACCEPT, b"release": AcknowledgeType.RELEASE, b"reject": AcknowledgeType.REJECT}

    with member(server, group, topic, "explicit") as consumer:
        first = take(consumer, 3, each=lambda message: consumer.acknowledge(message, types[message.value()]))
        results = consumer.commit_sync(CALL_LIMIT_S)
        second = take(consumer, 1, each=accept_all(consumer))
        consumer.commit_sync(CALL_LIMIT_S)
        third = take(consumer, 1, limit_s=1.5)

    assert values(first) == ["accept", "reject", "release"]
    assert list(results.values()) == [None]
    assert values(second) == ["release"]
    assert third == []


def test_attempts_are_counted(server, unique, topic):
    group = server.share_group(unique("group"))
    server.produce(topic, "again")

    with member(server, group, topic, "explicit") as consumer:
        attempts = []
        for _ in range(5):
            for message in take(consumer, 1):
                attempts.append(message.delivery_count())
                consumer.acknowledge(message, AcknowledgeType.RELEASE)
            consumer.commit_sync(CALL_LIMIT_S)
        after_the_limit = take(consumer, 1, limit_s=1.5)

    assert attempts == [1, 2, 3, 4, 5]
    assert after_the_limit == []


def test_records_whose_locks_lapse_come_to_another_member_and_a_late_accept_is_refused(server, unique, topic):
    group = server.share_group(unique("group"), share_record_lock_duration_ms="1500")
    server.produce(topic, "first", "second")

    with member(server, group, topic, "explicit") as slow:
        _, late = take(slow, 2)
        with member(server, group, topic, "explicit") as other:
            first, second = take(other, 2)
            # The first stays open: below the group's start offset Kafka takes any acknowledgement in silence.
            other.acknowledge(second, AcknowledgeType.ACCEPT)
            assert list(other.commit_sync(CALL_LIMIT_S).values()) == [None]
            slow.acknowledge(late, AcknowledgeType.ACCEPT)
            (error,) = slow.commit_sync(CALL_LIMIT_S).values()

    assert [first.delivery_count(), second.delivery_count()] == [2, 2]
    assert isinstance(error, KafkaException)
    assert error.args[0].name() == "INVALID_RECORD_STATE"


def test_closing_frees_what_was_not_acknowledged_long_before_its_lock_lapses(server, unique, topic):
    group = server.share_group(unique("group"), share_record_lock_duration_ms="60000")
    server.produce(topic, "one", "two")

    with member(server, group, topic, "explicit") as first:
        held = take(first, 2)
    with member(server, group, topic, "explicit") as second:
        again = take(second, 2, each=accept_all(second))

    assert values(held) == values(again) == ["one", "two"]


HOLDER = """
import sys, time
from confluent_kafka import ShareConsumer
consumer = ShareConsumer({"bootstrap.servers": sys.argv[1], "group.id": sys.argv[2],
                          "share.acknowledgement.mode": "explicit"})
consumer.subscribe([sys.argv[3]])
while not (messages := list(consumer.poll(timeout=0.2))):
    pass
print([message.value().decode() for message in messages], flush=True)
time.sleep(60)
"""


def test_a_member_that_is_killed_gives_its_records_back_at_once(server, unique, topic):
    group = server.share_group(unique("group"), share_record_lock_duration_ms="60000")
    server.produce(topic, "one", "two")
    command = [sys.executable, "-c", HOLDER, server.bootstrap, group, topic]

    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as holder:
        assert holder.stdout is not None
        held = holder.stdout.readline()
        holder.kill()
    with member(server, group, topic, "explicit") as other:
        taken = take(other, 2, each=accept_all(other))

    assert held == "['one', 'two']\n"
    assert values(taken) == ["one", "two"]
    assert {message.delivery_count() for message in taken} == {2}


def test_two_members_share_one_partition_and_no_record_goes_to_both(server, unique, topic):
    group = server.share_group(unique("group"))
    with (
        member(server, group, topic, max_poll_records=20) as one,
        member(server, group, topic, max_poll_records=20) as two,
    ):
        taken = {"one": [], "two": []}
        deadline = time.monotonic() + CALL_LIMIT_S
        sent = 0
        while (not taken["one"] or not taken["two"]) and time.monotonic() < deadline:
            server.produce(topic, *(str(number) for number in range(sent, sent + 50)))
            sent += 50
            for name, consumer in (("one", one), ("two", two)):
                taken[name] += [message.offset() for message in consumer.poll(timeout=0.2)]
        while len(taken["one"]) + len(taken["two"]) < sent and time.monotonic() < deadline:
            for name, consumer in (("one", one), ("two", two)):
                taken[name] += [message.offset() for message in consumer.poll(timeout=0.2)]

    assert taken["one"]
    assert taken["two"]
    assert sorted(taken["one"] + taken["two"]) == list(range(sent))


def test_records_that_come_later_are_delivered_to_a_member_that_waits(server, unique, topic):
    group = server.share_group(unique("group"))

    with member(server, group, topic) as consumer:
        assert take(consumer, 1, limit_s=1) == []
        server.produce(topic, "late")
        assert values(take(consumer, 1)) == ["late"]


@pytest.mark.parametrize("compression", ["gzip", "snappy", "lz4", "zstd"])
def test_compressed_batches_arrive_whole(server, unique, topic, compression):
    from confluent_kafka import Producer

    group = server.share_group(unique("group"))
    producer = Producer({"bootstrap.servers": server.records, "compression.type": compression, "linger.ms": 50})
    for number in range(100):
        producer.produce(topic, b"x" * 200 + str(number).encode(), key=b"k", headers={"number": str(number)})
    assert producer.flush(CALL_LIMIT_S) == 0

    with member(server, group, topic) as consumer:
        taken = take(consumer, 100)

    assert [message.offset() for message in taken] == list(range(100))
    assert taken[7].headers() == [("number", b"7")]
    assert taken[7].key() == b"k"


def test_a_large_backlog_is_shared_by_two_members_without_loss_or_repetition(server, unique):
    topic, group = server.topic(unique("orders"), partitions=2), server.share_group(unique("group"))
    for partition in (0, 1):
        server.produce(topic, *(f"{partition}-{number:099}" for number in range(10_000)), partition=partition)

    seen = []
    with member(server, group, topic) as one, member(server, group, topic) as two:
        deadline = time.monotonic() + CALL_LIMIT_S
        while len(seen) < 20_000 and time.monotonic() < deadline:
            for consumer in (one, two):
                seen += [(message.partition(), message.offset()) for message in consumer.poll(timeout=0.05)]

    assert len(seen) == 20_000
    assert len(set(seen)) == 20_000


def test_records_of_a_megabyte_arrive(server, unique, topic):
    from confluent_kafka import Producer

    group = server.share_group(unique("group"))
    producer = Producer({"bootstrap.servers": server.records, "message.max.bytes": 1_000_000})
    for number in range(20):
        producer.produce(topic, bytes([number]) * 900_000)
    assert producer.flush(CALL_LIMIT_S) == 0

    with member(server, group, topic) as consumer:
        taken = take(consumer, 20)

    assert [message.value() == bytes([number]) * 900_000 for number, message in enumerate(taken)] == [True] * 20
