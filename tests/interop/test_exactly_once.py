"""Outputs of an exactly_once agent, read by other people's clients: each output once, whoever died while it wrote.

On a path that `flowshare serve` serves before and afterwards, and by a fleet on a real Kafka. A worker is killed while
it has outputs under way, and each output topic has a transaction besides that somebody else aborted.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition
from confluent_kafka import Producer

from tests.chaos.journal import NUMBER_SIZE, Journals, poisoned
from tests.chaos.once_judge import EXACTLY_ONCE, Output, output_topics
from tests.chaos.once_reader import read_committed
from tests.chaos.once_steps import OUTPUTS_WRITTEN, WRITTEN, Steps
from tests.chaos.once_world import LEADER, World
from tests.chaos.traffic import lag
from tests.interop import golang
from tests.interop.servers import CALL_LIMIT_S, FlowshareProcess, Server
from tests.interop.test_producers import asyncio_run
from tests.waiting import blocking_until

pytestmark = [
    pytest.mark.java,
    pytest.mark.timeout(300),
]
SEED, RECORDS = 11, 400
PARTITIONS, OUTPUT_PARTITIONS = 4, 3
ACCEPTED = [number for number in range(RECORDS) if not poisoned(SEED, number)]
ABORTED = "aborted"
END = "end"
"""The last record of each partition: who has no end of a topic reads until so many records have come. One output too
many, and one of these is missing."""
COUNT = len(ACCEPTED) + OUTPUT_PARTITIONS
LIMIT_S = 60


class Outputs(NamedTuple):
    """Where the outputs lie when the run is over."""

    bootstrap: str
    topics: tuple[str, str]


def environment(topic: str, backend: str, folder: Path) -> dict[str, str]:
    return {
        "TOPIC": topic,
        "SEED": str(SEED),
        "ONCE": EXACTLY_ONCE,
        "LOCK_S": "3",
        "SHORT_S": "0.01",
        "STEP_BACKEND": backend,
        "STEP_FOLDER": str(folder / "steps"),
    }


def prepare(server: Server, topic: str) -> None:
    """Topics, inputs, and an aborted transaction in each output topic."""
    server.topic(topic, PARTITIONS)
    for name in output_topics(topic):
        server.topic(name, OUTPUT_PARTITIONS)
        abort(server, name)
    for partition in range(PARTITIONS):
        values = [f"{number:0{NUMBER_SIZE}}" for number in range(partition, RECORDS, PARTITIONS)]
        server.produce(topic, *values, partition=partition)


def abort(server: Server, topic: str) -> None:
    producer = Producer({"bootstrap.servers": server.records, "transactional.id": f"{topic}-foreign"})
    producer.init_transactions(CALL_LIMIT_S)
    producer.begin_transaction()
    for partition in range(OUTPUT_PARTITIONS):
        producer.produce(topic, ABORTED, partition=partition)
    producer.flush(CALL_LIMIT_S)
    producer.abort_transaction(CALL_LIMIT_S)


def work(world: World, steps: Steps, topic: str, step: str) -> None:
    """Workers handle all records, and one dies at a step at which it has outputs under way."""
    journals = Journals(world.workers.journals)

    def decided() -> int:
        world.workers.check()
        journals.go_on()
        return len(journals.decided)

    try:
        steps.arm(step)  # the first that are written: of so few records there may be no others when all are ready
        world.start()
        stopped = blocking_until(steps.reached)
        world.hit(LEADER, stopped)
        steps.release()
        world.back()
        blocking_until(decided, good=lambda count: count == RECORDS)
        blocking_until(lambda: lag(world.url, topic), good=lambda left: left == 0)
        world.stop()
    finally:
        world.workers.end()


def made(brokers: Any, folder: Path, topic: str, backend: str) -> World:
    told = environment(topic, backend, folder)
    return World(folder, brokers, topic=topic, environment=told, dice=random.Random(SEED))


@pytest.fixture(scope="module", params=["flowshare", "workers"])
def outputs(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("once")
    topic = f"once-{folder.name}-{random.SystemRandom().randrange(1 << 32):x}"
    steps = Steps(folder / "steps")
    if request.param == "workers":
        kafka = request.getfixturevalue("kafka")
        server = Server("workers", kafka.bootstrap)
        prepare(server, topic)
        work(made(kafka, folder, topic, "workers"), steps, topic, OUTPUTS_WRITTEN)
        yield finished(server, topic)
        return
    serve = FlowshareProcess(folder, data="broker")
    serve.start()
    prepare(serve.server, topic)
    serve.stop()
    work(made(None, folder, topic, "embedded"), steps, topic, WRITTEN)
    serve.start()
    yield finished(serve.server, topic)
    serve.stop()


def finished(server: Server, topic: str) -> Outputs:
    """One more aborted transaction behind the outputs, and the ends."""
    topics = output_topics(topic)
    for name in topics:
        abort(server, name)
        for partition in range(OUTPUT_PARTITIONS):
            server.produce(name, END, partition=partition)
    return Outputs(server.bootstrap, topics)


def each_once(outputs: Outputs, read: Callable[[str], list[str]]) -> None:
    """Assert that `read` finds, in each topic, one output of each accepted record, and nothing else."""
    for topic in outputs.topics:
        values = read(topic)
        assert [value for value in values if value == ABORTED] == []
        seen = Counter(Output.decode(value.encode()).number for value in values if value != END)
        assert sorted(seen) == ACCEPTED, topic
        assert {number: count for number, count in seen.items() if count > 1} == {}, topic
        assert values.count(END) == OUTPUT_PARTITIONS, topic


def test_java_reads_each_output_once(outputs, toolbox):
    def read(topic: str) -> list[str]:
        told = toolbox("committed-client", f"bootstrap={outputs.bootstrap}", f"topic={topic}")
        assert told.code == 0, told.err
        return [record["value"] for record in told.records]

    each_once(outputs, read)


def test_the_console_consumer_reads_each_output_once(outputs, toolbox):
    def read(topic: str) -> list[str]:
        where = ("--bootstrap-server", outputs.bootstrap, "--topic", topic, "--from-beginning")
        until = ("--max-messages", f"{COUNT}", "--timeout-ms", f"{LIMIT_S}000")
        told = toolbox("kafka-console-consumer", *where, "--isolation-level", "read_committed", *until)
        return told.out.splitlines()

    each_once(outputs, read)


def test_librdkafka_reads_each_output_once(outputs):
    each_once(outputs, lambda topic: [one.value.decode() for one in read_committed(outputs.bootstrap, topic)])


def test_franz_go_reads_each_output_once(outputs, unique):
    franz = golang.program()

    def read(topic: str) -> list[str]:
        words = f"topic={topic}", f"group={unique(topic)}", f"count={COUNT}", f"seconds={LIMIT_S}"
        return [record["value"] for record in golang.run(franz, outputs.bootstrap, "group", *words).records]

    each_once(outputs, read)


def test_aiokafka_reads_each_output_once(outputs):
    async def read(topic: str) -> list[str]:
        async with AIOKafkaConsumer(
            bootstrap_servers=outputs.bootstrap, isolation_level="read_committed", enable_auto_commit=False
        ) as consumer:
            places = [TopicPartition(topic, partition) for partition in range(OUTPUT_PARTITIONS)]
            consumer.assign(places)
            await consumer.seek_to_beginning(*places)
            ends = await consumer.end_offsets(places)
            found: list[str] = []
            while any([await consumer.position(place) < ends[place] for place in places]):
                for records in (await consumer.getmany(timeout_ms=200)).values():
                    found += [record.value.decode() for record in records]
            return found

    each_once(outputs, lambda topic: asyncio_run(read(topic)))
