"""The state topic is made once, and a fleet does not start on one that can lose what it needs."""

from __future__ import annotations

import asyncio
import logging
from types import SimpleNamespace

import pytest

from flowshare.client.errors import ClientError, ServerError
from flowshare.client.net.cluster import Cluster
from flowshare.clock import LoopClock
from flowshare.dev.broker import Wanted, running
from flowshare.fleet.state.topic import StateTopic, StateTopicRefused, check_formats, slot_group, state_topic
from flowshare.protocol import messages as m
from flowshare.protocol.errors import ErrorCode
from flowshare.testing.clock import LoopTimeClock
from flowshare.testing.virtual import run
from tests.waiting import until

NAME = "__flowshare_state.orders"
DEFAULTS = {
    "cleanup.policy": "delete",
    "retention.ms": "604800000",
    "retention.bytes": "-1",
    "unclean.leader.election.enable": "false",
    "min.insync.replicas": "1",
    "max.message.bytes": "1048588",
}


WRITER = f"{NAME}.0"
"""The transactional id of the writer of slot 0."""


class Brokers:
    """A cluster's answers about one topic.

    errors: request class -> error of its answers. late: number of look-ups that do not find the topic. writers:
    transactional ids that the cluster knows.
    """

    def __init__(self, clock, *, replicas=1, partitions=0, errors=None, late=0, writers=(), **settings):
        self.cluster = SimpleNamespace(clock=clock, topology=SimpleNamespace(nodes={3: ("c", 3), 1: ("a", 9092)}))
        self.replicas = replicas
        self.partitions = partitions
        self.errors = errors or {}
        self.late = late
        self.writers = writers
        self.settings = {**DEFAULTS, **{name.replace("_", "."): value for name, value in settings.items()}}
        self.asked = []

    async def send(self, request):
        self.asked.append(request)
        error = self.errors.get(type(request), ErrorCode.NONE)
        match request:
            case m.MetadataRequest():
                if not error and (not self.partitions or self.late > 0):
                    self.late -= self.partitions > 0
                    error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                topic = m.TopicMetadata(name=NAME, error=error, partitions=self.partitions, replicas=self.replicas)
                return m.MetadataResponse(topics=(topic,))
            case m.CreateTopicRequest():
                if not error:
                    self.partitions = request.partitions
                    self.settings |= request.configs
                return m.TopicResult(topic=NAME, error=error)
            case m.DescribeConfigsRequest():
                entries = [
                    m.ConfigEntry(name=name, value=text, is_default=True) for name, text in self.settings.items()
                ]
                return m.DescribeConfigsResponse(error=error, entries=() if error else tuple(entries))
            case m.DescribeTransactionRequest():
                known = request.transactional_id in self.writers
                return m.DescribeTransactionResponse(
                    error=error if known or error else ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
                )
            case m.IncrementalAlterConfigsRequest():
                self.settings |= {} if error else request.configs
                return m.Response(error=error)

    def count(self, kind):
        return sum(isinstance(one, kind) for one in self.asked)


RIGHT = {"partitions": 8, "retention_ms": "-1"}


def ensure(slots=8, **state):
    """Ensure the topic on such brokers; the brokers afterwards."""

    async def scenario(clock):
        brokers = Brokers(clock, **state)
        assert await StateTopic(brokers, "orders").ensure(slots) == slots
        return brokers

    return run(scenario(LoopTimeClock()))


def test_a_topic_that_is_not_there_is_made_so_that_nothing_in_it_expires():
    brokers = ensure()

    (made,) = [one for one in brokers.asked if isinstance(one, m.CreateTopicRequest)]
    assert (made.name, made.partitions) == (NAME, 8)
    assert made.configs["cleanup.policy"] == "delete"
    assert made.configs["retention.ms"] == made.configs["retention.bytes"] == "-1"
    assert brokers.count(m.IncrementalAlterConfigsRequest) == 0


def warnings_of_loss(caplog):
    return [record.getMessage() for record in caplog.records if "was deleted" in record.getMessage()]


def test_a_topic_that_was_deleted_and_is_made_anew_is_told_once_with_what_comes_of_it(caplog):
    ensure(writers=(WRITER,), late=3)

    (text,) = warnings_of_loss(caplog)
    assert "records that were finished run again" in text
    assert "docs/operations.md (the state topic is lost)" in text
    assert text.endswith(f"topic={NAME}")


@pytest.mark.parametrize(
    "state",
    [
        {},
        {"writers": ("__flowshare_state.others.0",)},
        {"writers": (WRITER,), **RIGHT},
        {"writers": (WRITER,), "errors": {m.DescribeTransactionRequest: ErrorCode.COORDINATOR_NOT_AVAILABLE}},
    ],
    ids=["new", "another fleet's", "there", "not known"],
)
def test_nobody_is_told_of_a_loss_where_nothing_is_known_to_be_lost(caplog, state):
    ensure(**state)

    assert warnings_of_loss(caplog) == []


def test_a_coordinator_that_does_not_say_whether_there_was_one_is_not_waited_for_for_ever():
    class Silent(Brokers):
        async def send(self, request):
            if isinstance(request, m.DescribeTransactionRequest):
                await asyncio.Event().wait()
            return await super().send(request)

    async def scenario(clock):
        brokers = Silent(clock)
        await StateTopic(brokers, "orders").ensure(8)
        assert brokers.count(m.CreateTopicRequest) == 1

    run(scenario(LoopTimeClock()))


def test_with_three_replicas_two_must_have_a_record():
    brokers = ensure(replicas=3)

    assert brokers.settings["min.insync.replicas"] == "2"


def test_a_topic_that_is_as_it_has_to_be_is_left_alone():
    brokers = ensure(**RIGHT)

    assert brokers.count(m.CreateTopicRequest) == brokers.count(m.IncrementalAlterConfigsRequest) == 0


def test_brokers_that_learn_of_the_topic_late_are_waited_for_and_it_is_made_once():
    assert ensure(late=7).count(m.CreateTopicRequest) == 1


def test_another_worker_that_is_just_making_it_is_waited_for():
    async def scenario(clock):
        brokers = Brokers(clock, replicas=3, **RIGHT)
        clock.call_later(1.0, lambda: brokers.settings.update({"min.insync.replicas": "2"}))
        await StateTopic(brokers, "orders").ensure(8)
        assert brokers.count(m.IncrementalAlterConfigsRequest) == 0

    run(scenario(LoopTimeClock()))


@pytest.mark.parametrize(
    ("state", "pair"),
    [
        ({"cleanup_policy": "compact"}, "cleanup.policy=delete"),
        ({"cleanup_policy": "compact,delete"}, "cleanup.policy=delete"),
        ({"retention_ms": "604800000"}, "retention.ms=-1"),
        ({"retention_bytes": "1000000"}, "retention.bytes=-1"),
        ({"unclean_leader_election_enable": "true"}, "unclean.leader.election.enable=false"),
        ({"max_message_bytes": "100000"}, "max.message.bytes=1048588"),
        ({"replicas": 3}, "min.insync.replicas=2"),
        ({"retention_ms": "1", "retention_bytes": "1"}, "retention.ms=-1,retention.bytes=-1"),
    ],
)
def test_a_setting_that_loses_records_is_refused_with_the_command_that_mends_it(state, pair):
    with pytest.raises(StateTopicRefused) as refused:
        ensure(**{**RIGHT, **state})

    command = (
        "kafka-configs.sh --bootstrap-server a:9092 --alter --entity-type topics --entity-name "
        f"{NAME} --add-config {pair}"
    )
    assert str(refused.value).endswith(command)


def test_another_number_of_partitions_is_refused_with_both_ways_out():
    with pytest.raises(StateTopicRefused) as refused:
        ensure(slots=32, **RIGHT)

    assert "start all workers of the fleet with 8" in str(refused.value)
    assert f"kafka-topics.sh --bootstrap-server a:9092 --delete --topic {NAME}" in str(refused.value)


@pytest.mark.parametrize("error", [ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.INVALID_REPLICATION_FACTOR])
def test_a_topic_that_may_not_be_made_is_refused_with_the_command_that_makes_it(error):
    with pytest.raises(StateTopicRefused) as refused:
        ensure(errors={m.CreateTopicRequest: error})

    assert error.name in str(refused.value)
    assert f"kafka-topics.sh --bootstrap-server a:9092 --create --topic {NAME} --partitions 8" in str(refused.value)
    assert "--config cleanup.policy=delete --config retention.ms=-1" in str(refused.value)


def test_settings_that_may_not_be_made_are_refused_with_the_command():
    with pytest.raises(StateTopicRefused, match=r"--add-config min\.insync\.replicas=2"):
        ensure(replicas=3, errors={m.IncrementalAlterConfigsRequest: ErrorCode.TOPIC_AUTHORIZATION_FAILED})


def test_settings_that_may_not_be_read_are_believed_with_a_warning(caplog):
    ensure(partitions=8, errors={m.DescribeConfigsRequest: ErrorCode.TOPIC_AUTHORIZATION_FAILED})

    assert "DESCRIBE_CONFIGS" in caplog.text


def test_one_replica_is_warned_of_once(caplog):
    with caplog.at_level(logging.WARNING):
        ensure()

    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "one replica only" in caplog.text


@pytest.mark.parametrize("kind", [m.MetadataRequest, m.DescribeConfigsRequest])
def test_what_else_the_brokers_refuse_is_raised(kind):
    with pytest.raises(ServerError, match="INVALID_REQUEST"):
        ensure(**RIGHT, errors={kind: ErrorCode.INVALID_REQUEST})


@pytest.mark.parametrize("kind", [m.CreateTopicRequest, m.DescribeConfigsRequest])
def test_brokers_that_never_tell_of_the_topic_are_not_waited_for_for_ever(kind):
    error = ErrorCode.REQUEST_TIMED_OUT if kind is m.CreateTopicRequest else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    with pytest.raises(StateTopicRefused, match="look at their logs"):
        ensure(errors={kind: error})


@pytest.mark.parametrize("fleet", ["", "a b", "a/b", "ä", "x" * 201])
def test_a_fleet_that_kafka_has_no_name_for_is_refused(fleet):
    with pytest.raises(ClientError, match="cannot be called"):
        state_topic(fleet)


def test_all_names_of_a_fleet_begin_alike():
    assert {state_topic("a.b-c_1"), slot_group("a.b-c_1")} == {"__flowshare_state.a.b-c_1"}


# --- real brokers -------------------------------------------------------------------------------------------------


async def twice(bootstrap, fleet, slots):
    """Two workers start at the same time; the topic's metadata and settings afterwards."""
    clock = LoopClock()
    clusters = [Cluster(bootstrap.split(","), clock=clock) for _ in range(2)]
    await asyncio.gather(*(cluster.start() for cluster in clusters))
    kafkas = [cluster.connect("worker") for cluster in clusters]
    try:
        await asyncio.gather(*(StateTopic(kafka, fleet).ensure(slots) for kafka in kafkas))
        told = await kafkas[0].send(m.MetadataRequest(topics=(state_topic(fleet),)))
        asked = m.DescribeConfigsRequest(resource_type="topic", resource=state_topic(fleet))
        settings = await kafkas[1].send(asked)
        return told.topics[0], {one.name: one.value for one in settings.entries}
    finally:
        await asyncio.gather(*(one.close() for one in (*kafkas, *clusters)))


@pytest.mark.java
def test_two_workers_that_start_at_once_make_it_at_kafka(each_kafka, unique):
    topic, settings = asyncio.run(twice(each_kafka.bootstrap, unique("orders"), 8))

    assert (topic.partitions, topic.replicas) == (8, 1)
    assert settings["cleanup.policy"] == "delete"
    assert settings["retention.ms"] == settings["retention.bytes"] == "-1"


async def deleted_and_made_anew(bootstrap, fleet):
    """A fleet's first life, as far as brokers notice it, and the start after its state topic was deleted."""
    clock = LoopClock()
    cluster = Cluster(bootstrap.split(","), clock=clock)
    await cluster.start()
    kafka = cluster.connect("worker")
    try:
        await StateTopic(kafka, fleet).ensure(2)
        topic = state_topic(fleet)
        await kafka.send(m.InitProducerIdRequest(transactional_id=f"{topic}.0", timeout_ms=60_000))
        deleted = await kafka.send(m.DeleteTopicRequest(name=topic))
        assert deleted.error is ErrorCode.NONE
        await until(lambda: kafka.send(m.MetadataRequest(topics=(topic,))), good=lambda told: told.topics[0].error)
        await StateTopic(kafka, fleet).ensure(2)
    finally:
        await kafka.close()
        await cluster.close()


@pytest.mark.java
def test_kafka_remembers_that_a_fleet_had_a_state_topic(each_kafka, unique, caplog):
    asyncio.run(deleted_and_made_anew(each_kafka.bootstrap, unique("orders")))

    # Brokers before 3.0 cannot be asked.
    assert len(warnings_of_loss(caplog)) == (0 if each_kafka.version.startswith("2.") else 1)


@pytest.mark.java
def test_the_cluster_decides_how_many_replicas_there_are(kafka_trio, unique):
    topic, settings = asyncio.run(twice(kafka_trio.bootstrap, unique("orders"), 4))

    assert topic.replicas == 3
    assert settings["min.insync.replicas"] == "2"


@pytest.fixture(scope="module")
def kafka_trio():
    """Three nodes that keep every partition three times."""
    with running(Wanted(nodes=3, heap="256m", settings={"default.replication.factor": "3"})) as found:
        yield found


@pytest.mark.asyncio
async def test_a_slot_that_has_no_leader_yet_keeps_no_worker_from_starting():
    class Kafka:
        async def send(self, request):
            return m.ListOffsetsResponse(error=self.error)

    kafka = Kafka()
    kafka.error = ErrorCode.NOT_LEADER_OR_FOLLOWER
    await check_formats(kafka, "state", 2)

    kafka.error = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    with pytest.raises(ServerError, match="looking for the ends of state"):
        await check_formats(kafka, "state", 2)
