"""A `flowshare serve` that is killed and started again under clients that do not know it."""

from __future__ import annotations

import pytest
from confluent_kafka import AcknowledgeType, KafkaException, Producer

from flowshare.dev.probe import free_ports
from tests.interop.servers import CALL_LIMIT_S, FlowshareProcess
from tests.interop.test_confluent_share import accept_all, member, take, values
from tests.interop.test_consumer_groups import librdkafka
from tests.interop.test_consumer_groups import take as group_take
from tests.interop.test_consumer_protocol import member as member_of_group
from tests.interop.test_consumer_protocol import shared
from tests.waiting import blocking_until


@pytest.fixture
def process(tmp_path):
    """A flowshare serve on a port that stays its own."""
    found = FlowshareProcess(tmp_path, port=free_ports(1)[0])
    found.start()
    yield found
    found.stop()


def test_a_share_consumer_goes_on_after_kill_9_and_every_record_ends(process, unique):
    server = process.server
    topic, group = server.topic(unique("orders")), server.share_group(unique("group"))
    server.produce(topic, "before", "held")

    with member(server, group, topic, "explicit") as consumer:
        before, held = take(consumer, 2)
        consumer.acknowledge(before, AcknowledgeType.ACCEPT)
        assert list(consumer.commit_sync(CALL_LIMIT_S).values()) == [None]
        process.kill()
        process.start()
        server.produce(topic, "after")
        consumer.acknowledge(held, AcknowledgeType.ACCEPT)
        (refused,) = consumer.commit_sync(CALL_LIMIT_S).values()
        after = take(consumer, 1, each=accept_all(consumer))
        consumer.commit_sync(CALL_LIMIT_S)
    with member(server, group, topic, "explicit") as other:
        left = take(other, 1, limit_s=2, each=accept_all(other))

    # The client gives its session up with the connection, and tells so; the record stays locked until it leaves.
    assert isinstance(refused, KafkaException)
    assert values(after) == ["after"]
    assert [(message.value(), message.delivery_count()) for message in left] == [(b"held", 2)]


def test_an_idempotent_producer_that_is_cut_off_writes_every_record_once(process, unique):
    topic = process.server.topic(unique("orders"))
    producer = Producer(
        {"bootstrap.servers": process.server.bootstrap, "enable.idempotence": True, "linger.ms": 1, "log_level": 0}
    )
    for number in range(2000):
        producer.produce(topic, str(number))
        producer.poll(0)
        if number == 1000:
            process.kill()
    process.start()
    assert producer.flush(CALL_LIMIT_S * 2) == 0

    consumer = librdkafka(process.server, unique("group"), topic)
    found = group_take(consumer, 2000)
    consumer.close()
    assert [int(message.value()) for message in found] == list(range(2000))


def test_a_consumer_group_goes_on_where_it_committed(process, unique):
    topic, group = process.server.topic(unique("orders")), unique("group")
    process.server.produce(topic, "one", "two")
    consumer = librdkafka(process.server, group, topic)
    assert len(group_take(consumer, 2)) == 2
    consumer.commit(asynchronous=False)

    process.kill()
    process.start()
    process.server.produce(topic, "three")
    found = []
    blocking_until(
        lambda: found.extend(consumer.consume(10, timeout=0.2)), good=lambda _: any(not one.error() for one in found)
    )
    consumer.close()

    assert [message.value() for message in found if not message.error()] == [b"three"]


def test_members_of_the_consumer_protocol_keep_their_partitions_through_kill_9_of_the_server(process, unique):
    topic, group = process.server.topic(unique("orders"), partitions=4), unique("group")
    one, other = (member_of_group(process.server, group, topic) for _ in range(2))
    before = shared(one, other)

    process.kill()
    process.start()
    for partition in range(4):
        process.server.produce(topic, "after", partition=partition)
    found = []

    def read():
        found.extend(message for each in (one, other) for message in each.consume(10, timeout=0.1))
        return [message for message in found if not message.error()]

    taken = blocking_until(read, good=lambda messages: len(messages) >= 4, limit_s=CALL_LIMIT_S)
    after = shared(one, other)
    one.commit(asynchronous=False)
    one.close()
    (alone,) = shared(other)
    other.close()

    assert after == before
    assert sorted(message.partition() for message in taken) == [0, 1, 2, 3]
    assert len(alone) == 4
