"""Sources on a real Kafka that brings nothing for a while: records in a slow remote tier, a quota of bytes."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from flowshare.client.net.routing import ClusterConnection
from flowshare.clock import LoopClock
from flowshare.dev.broker import Wanted, start
from flowshare.dev.jars import VERSION, class_path, jars
from flowshare.dev.java import javac
from flowshare.protocol.batches import BatchBuilder
from flowshare.spark.source import reading
from flowshare.spark.source.microbatches import MicroBatches
from flowshare.spark.source.options import SourceOptions
from tests.interop.toolbox import Toolbox, compiled
from tests.kafka.fixtures import require_java
from tests.spark.serving import close_readers, serving
from tests.spark.test_reading import ARROW
from tests.waiting import blocking_until

pytestmark = [pytest.mark.slow, pytest.mark.java, pytest.mark.timeout(300)]

JAVA = Path(__file__).with_name("java")
RECORDS = 6_000
VALUE = b"x" * 1_000
SLEEP_MS = 1_500
"""How long a slow read of the remote tier takes: three times what Kafka waits for one (remote.fetch.max.wait.ms)."""
SLOW_READS = 4
"""Of each segment, by whomever."""
TIERED_S = 60.0
RATE = 500_000
"""Bytes a second of the quota, of which there are six million to read."""


def tier() -> Path:
    """The directory with the compiled remote tier."""
    source = JAVA / "SlowTier.java"

    def command(target: Path) -> list[str]:
        return [str(javac()), "-cp", class_path(jars()), "-d", str(target), str(source)]

    return compiled("tier", source.read_bytes() + str(jars()).encode(), command, JAVA)


@pytest.fixture(scope="module")
def slow_kafka(tmp_path_factory):
    """A Kafka of its own, with a remote tier, and its data's folder."""
    require_java()
    folder = tmp_path_factory.mktemp("slow")
    settings = {
        "remote.log.storage.system.enable": "true",
        "remote.log.storage.manager.class.name": "SlowTier",
        "remote.log.storage.manager.class.path": str(tier()),
        "remote.log.metadata.manager.listener.name": "PLAINTEXT",
        "rlmm.config.remote.log.metadata.topic.replication.factor": "1",
        "rlmm.config.remote.log.metadata.topic.num.partitions": "1",
        "rsm.config.folder": str(folder / "remote"),
        "rsm.config.sleep.ms": str(SLEEP_MS),
        "rsm.config.slow.reads": str(SLOW_READS),
        "remote.log.manager.task.interval.ms": "500",
        "log.retention.check.interval.ms": "500",
        "log.initial.task.delay.ms": "100",
    }
    wanted = Wanted(version=VERSION, data=folder / "data", heap="512m", settings=settings)
    found = start(wanted, tied=True, how="jars")  # the tier's class is on this machine
    try:
        yield found, folder / "data"
    finally:
        found.end()


@pytest.fixture(params=["native", "workers"])
def broker(request, slow_kafka, tmp_path):
    found, _ = slow_kafka
    url = f"{found.url}?share={request.param}"
    with serving(url if request.param == "native" else f"{url}&fleet={tmp_path.name}") as made:
        yield made


@pytest.fixture(autouse=True)
def readers_of_its_own():
    yield
    close_readers()


def write(broker, topic):
    """Batches of a size that a segment holds many of."""
    from flowshare.protocol.messages import ProduceRequest

    now_ms = LoopClock().now_ms()

    async def send():
        connection = await broker.backend.connect("tests")
        for first in range(0, RECORDS, 100):
            builder = BatchBuilder()
            for number in range(first, first + 100):
                assert builder.add(b"%d" % number, VALUE, (), timestamp_ms=now_ms)
            answer = await connection.send(ProduceRequest(topic=topic, partition=0, records=builder.build()))
            assert not answer.error, answer
        await connection.close()

    broker.call(send())


def read_all(broker, topic, group):
    """Offsets of all rows of a query that reads the topic to its end, batch by batch, as Spark does."""
    options = {"broker": broker.url, "topics": topic, "group": group, "records_per_trigger": "2000", "wait": "1"}
    driver = MicroBatches(SourceOptions.parse(options))
    found, begun = [], driver.initial
    limit = time.monotonic() + 200
    while len(found) < RECORDS and time.monotonic() < limit:
        offset = driver.next(begun)
        if offset is None:
            continue
        for part in driver.tasks(offset, begun):
            for rows in reading.read(part, ARROW, None):
                found += [row["offset"] for batch in rows.batches for row in batch.to_pylist()]
        begun = offset
    driver.next(begun)  # proves the last batch
    told = driver.told()
    driver.close()
    return found, told


def test_records_in_a_slow_remote_tier_are_all_read_and_none_is_taken_for_gone(broker, slow_kafka, unique):
    _, data = slow_kafka
    topic = broker.topic(
        unique("tiered"),
        **{
            "remote.storage.enable": "true",
            "segment.bytes": str(1 << 20),
            "local.retention.bytes": "1",
            "retention.ms": "-1",
        },
    )
    write(broker, topic)
    local = lambda: list(data.glob(f"*/{topic}-0/*.log"))  # noqa: E731
    blocking_until(local, good=lambda found: len(found) == 1, limit_s=TIERED_S)
    assert len(local()) == 1, "all but the last segment are in the remote tier alone"

    group = unique("etl")
    found, told = read_all(broker, topic, group)

    assert sorted(found) == list(range(RECORDS))
    assert told["records_lost"] == 0
    assert broker.backlog(group) == 0


def test_a_quota_of_bytes_slows_a_source_down_and_takes_nothing(broker, slow_kafka, unique, monkeypatch):
    found, _ = slow_kafka
    throttled, ask = [], ClusterConnection._ask_leaders

    async def noted(self, request):
        answers, problem = await ask(self, request)
        throttled.extend(answer.throttle_ms for answer in answers)
        return answers, problem

    monkeypatch.setattr(ClusterConnection, "_ask_leaders", noted)
    topic = broker.topic(unique("throttled"))
    write(broker, topic)
    toolbox = Toolbox()
    # Not for all clients: brokers forget, for the time of its locks, what a throttled ShareFetch had acquired.
    entity = ("--bootstrap-server", found.bootstrap, "--entity-type", "clients", "--entity-name", reading.READER)
    try:
        told = toolbox("kafka-configs", "--alter", *entity, "--add-config", f"consumer_byte_rate={RATE}")
        assert told.code == 0, told
        group = unique("etl")
        rows, troubles = read_all(broker, topic, group)
        toolbox("kafka-configs", "--alter", *entity, "--delete-config", "consumer_byte_rate")
    finally:
        toolbox.close()

    assert any(throttled), "the quota held something back"
    assert sorted(rows) == list(range(RECORDS))
    assert troubles["records_lost"] == 0
    assert broker.backlog(group) == 0
