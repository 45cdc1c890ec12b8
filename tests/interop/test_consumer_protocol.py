"""Consumer groups of the consumer protocol (KIP-848) of librdkafka and Java, and kafka-consumer-groups on them."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from confluent_kafka import Producer
from confluent_kafka import TopicPartition as Place

from flowshare.dev.processes import tied_to_parent
from tests.interop.servers import CALL_LIMIT_S
from tests.interop.test_consumer_groups import librdkafka, take
from tests.waiting import blocking_until

LIMIT_S = 60
"""Of Kafka's own members, which beat every five seconds."""
COUNT = 100


@pytest.fixture
def topic(server, unique):
    topic = server.topic(unique("orders"), partitions=4)
    for partition in range(4):
        server.produce(topic, *(f"{partition}-{number}" for number in range(COUNT // 4)), partition=partition)
    return topic


def member(server, group, topic, **settings):
    """A member whose server says how often it beats and when its session is over."""
    own = {"group_protocol": "consumer", "session_timeout_ms": None, "heartbeat_interval_ms": None, **settings}
    return librdkafka(server, group, topic, **own)


def shared(*members, among=4):
    """Their partitions, once each has as many."""

    def assigned():
        for one in members:
            one.poll(0.05)
        found = [frozenset((place.topic, place.partition) for place in one.assignment()) for one in members]
        assert sum(map(len, found)) == len(frozenset().union(*found)), "a partition has two owners"
        return found

    share = among // len(members)
    return blocking_until(
        assigned, good=lambda found: [len(one) for one in found] == [share] * len(members), limit_s=LIMIT_S
    )


@pytest.mark.parametrize("assignor", ["uniform", "range"])
def test_two_members_share_the_partitions_and_one_takes_over_when_the_other_leaves(server, unique, topic, assignor):
    group = unique("group")
    one = member(server, group, topic, group_remote_assignor=assignor)
    taken = take(one, COUNT, limit_s=LIMIT_S)
    one.commit(asynchronous=False)
    two = member(server, group, topic, group_remote_assignor=assignor)
    both = shared(one, two)
    described = server.admin.describe_consumer_groups([group])[group].result(CALL_LIMIT_S)
    two.close()
    (alone,) = shared(one)
    server.produce(topic, "later", partition=3)
    later = take(one, 1, limit_s=LIMIT_S)
    one.close()

    assert len({(message.partition(), message.offset()) for message in taken}) == len(taken) == COUNT
    assert frozenset().union(*both) == alone
    assert (described.type.name, len(described.members)) == ("CONSUMER", 2)
    assert [message.value() for message in later] == [b"later"]


def test_a_static_member_that_comes_back_gets_its_partitions_and_the_others_keep_theirs(server, unique, topic):
    group = unique("group")
    stays = member(server, group, topic, group_instance_id="stays")
    leaves = member(server, group, topic, group_instance_id="leaves")
    before = shared(stays, leaves)
    leaves.close()
    leaves = member(server, group, topic, group_instance_id="leaves")
    after = shared(stays, leaves)
    leaves.close()
    stays.close()

    assert after == before


def test_a_pattern_takes_in_topics_that_are_made_later(server, unique):
    name, group = unique("orders"), unique("group")
    first = server.topic(f"{name}-1", partitions=2)
    one = member(server, group, f"^{name}-.*")
    shared(one, among=2)
    second = server.topic(f"{name}-2", partitions=2)
    (found,) = shared(one, among=4)
    one.close()

    assert {topic for topic, _ in found} == {first, second}


def test_offsets_in_a_transaction_count_with_it(server, unique, topic):
    group = unique("group")
    consumer = member(server, group, topic)
    take(consumer, COUNT, limit_s=LIMIT_S)
    producer = Producer({"bootstrap.servers": server.bootstrap, "transactional.id": unique("id")})
    producer.init_transactions(CALL_LIMIT_S)
    committed = []
    for offset, end in ((20, producer.abort_transaction), (10, producer.commit_transaction)):
        producer.begin_transaction()
        metadata = consumer.consumer_group_metadata()
        producer.send_offsets_to_transaction([Place(topic, 0, offset)], metadata, CALL_LIMIT_S)
        end(CALL_LIMIT_S)
        (place,) = consumer.committed([Place(topic, 0)], CALL_LIMIT_S)
        committed.append(place.offset)
    consumer.close()

    assert committed[1] == 10
    assert committed[0] < 0


def test_an_empty_group_goes_on_in_the_other_protocol(server, unique, topic):
    group = unique("group")
    taken = []
    for number, make in enumerate((librdkafka, member, librdkafka)):
        server.produce(topic, f"round {number}")
        one = make(server, group, topic)
        taken.append(len(take(one, COUNT + 1 if number == 0 else 1, limit_s=LIMIT_S)))
        one.commit(asynchronous=False)
        one.close()

    assert taken == [COUNT + 1, 1, 1]


KILLED = """
import sys
from confluent_kafka import Consumer
one = Consumer({"bootstrap.servers": sys.argv[1], "group.id": sys.argv[2], "group.protocol": "consumer"})
one.subscribe([sys.argv[3]])
while True:
    one.poll(0.1)
    print(len(one.assignment()), flush=True)
"""


def test_a_member_that_is_killed_is_missed_and_the_others_take_over(server, unique, topic):
    group = unique("group")
    stays = member(server, group, topic)
    shared(stays)
    killed = subprocess.Popen(
        [sys.executable, "-c", KILLED, server.bootstrap, group, topic],
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=tied_to_parent(),
    )
    try:
        shared(stays, among=2)
        blocking_until(lambda: killed.stdout.readline().strip(), good=lambda line: line == "2", limit_s=LIMIT_S)
    finally:
        killed.kill()
        killed.wait()
        killed.stdout.close()
    (alone,) = shared(stays)
    stays.close()

    assert len(alone) == 4


# --- Java -------------------------------------------------------------------------------------------------------------


def steps(told):
    return [json.loads(line) for line in told.out.splitlines()]


@pytest.mark.java
@pytest.mark.parametrize("more", [(), ("assignor=range",), ("instance=java-",)], ids=["uniform", "range", "static"])
def test_javas_members_share_a_topic_and_take_over(run, unique, topic, more):
    # A static member that is closed keeps its partitions for its session, so nobody takes over from it here.
    leave = "leave=0" if more == ("instance=java-",) else "leave=1"
    words = (f"topic={topic}", "members=3", "partitions=4", f"count={COUNT}", leave, "seconds=80")
    both, rest = steps(run("group-client", f"group={unique('group')}", *words, *more))

    assert {one["value"] for one in both["records"]} == {f"{p}-{n}" for p in range(4) for n in range(COUNT // 4)}
    assert sorted(place for one in both["assigned"] for place in one) == [f"{topic}-{number}" for number in range(4)]
    assert sum(map(len, rest["assigned"])) == 4


@pytest.mark.java
def test_javas_pattern_is_matched_by_the_server(server, run, unique):
    name = unique("orders")
    for number in (1, 2):
        server.produce(server.topic(f"{name}-{number}"), "one")
    server.topic(f"other-{name}")

    words = (f"pattern={name}-[0-9]+", "members=1", "partitions=2", "count=2", "leave=0")
    told, _ = steps(run("group-client", f"group={unique('group')}", *words))

    assert sorted(told["assigned"][0]) == [f"{name}-1-0", f"{name}-2-0"]


@pytest.mark.java
def test_a_pattern_that_cannot_be_read_is_refused(run, unique):
    told = run("group-client", f"group={unique('group')}", "pattern=orders(", "members=1", "seconds=20", code=None)

    assert told.code != 0
    assert "InvalidRegularExpression" in told.err


# --- kafka-consumer-groups --------------------------------------------------------------------------------------------


@pytest.fixture
def used(server, unique, topic):
    """A group that has committed the end of each partition, and is empty."""
    group = unique("group")
    consumer = member(server, group, topic)
    take(consumer, COUNT, limit_s=LIMIT_S)
    consumer.commit(asynchronous=False)
    consumer.close()
    return group


@pytest.mark.java
def test_the_tool_describes_a_group_and_its_state(server, run, used, topic):
    server.produce(topic, "later")

    rows = run("kafka-consumer-groups", "--describe", "--group", used).rows
    state = run("kafka-consumer-groups", "--describe", "--group", used, "--state")
    listed = run("kafka-consumer-groups", "--list", "--type", "consumer", "--state")

    assert sorted(row[:6] for row in rows if row[0] == used) == [
        [used, topic, "0", "25", "26", "1"],
        *([used, topic, str(partition), "25", "25", "0"] for partition in (1, 2, 3)),
    ]
    assert "Empty" in state.out
    assert next(row for row in listed.rows if row[0] == used)[1:] == ["Consumer", "Empty"]


@pytest.mark.java
def test_the_tool_names_the_members_of_a_group(server, run, unique, topic):
    group = unique("group")
    consumer = member(server, group, topic, client_id="warehouse")
    try:
        take(consumer, COUNT, limit_s=LIMIT_S)
        told = run("kafka-consumer-groups", "--describe", "--group", group, "--members", "--verbose")
        state = run("kafka-consumer-groups", "--describe", "--group", group, "--state")
        refused = run("kafka-consumer-groups", "--delete", "--group", group, code=None)
    finally:
        consumer.close()

    (row,) = [row for row in told.rows if row[0] == group]
    assert "warehouse" in row
    assert f"{topic}:0,1,2,3" in told.out
    assert "Stable" in state.out
    assert "uniform" in state.out
    assert "not empty" in refused.out + refused.err


@pytest.mark.java
def test_the_tool_resets_a_group(server, run, used, topic):
    reset = ("kafka-consumer-groups", "--reset-offsets", "--group", used, "--topic", topic)

    run(*reset, "--to-offset", "5", "--execute")
    consumer = member(server, used, topic)
    taken = take(consumer, 80, limit_s=LIMIT_S)
    consumer.close()

    assert len(taken) == 80


@pytest.mark.java
def test_the_tool_deletes_offsets_and_the_group(run, used, topic):
    run("kafka-consumer-groups", "--delete-offsets", "--group", used, "--topic", topic)
    described = run("kafka-consumer-groups", "--describe", "--group", used, code=None)
    deleted = run("kafka-consumer-groups", "--delete", "--group", used, code=None)

    assert topic not in described.out
    assert used not in run("kafka-consumer-groups", "--list").out.split()
    assert deleted.code in (0, 1)
