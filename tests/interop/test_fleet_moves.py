"""Foreign share clients while the leaders of their partitions move: a worker leaves in order, another one comes.

They drop their acknowledgements when a leader moves (flowshare's own client does not), so records may come twice; none
may be lost, and an accept that was confirmed stays.
"""

from __future__ import annotations

import threading
import time
from collections import Counter

import pytest
from confluent_kafka import AcknowledgeType

from tests.fleet.processes import FleetProcesses
from tests.interop.servers import CALL_LIMIT_S, Server
from tests.interop.test_confluent_share import accept_all, member, take, values

pytestmark = pytest.mark.java
PARTITIONS = 6
EACH = 20
"""Records for a partition at a time."""
PAUSE_S = 0.2
LIMIT_S = 60


@pytest.fixture
def own_fleet(kafka, tmp_path):
    processes = FleetProcesses(kafka, tmp_path)
    yield processes
    processes.close()


@pytest.fixture
def workers(own_fleet):
    return Server("workers", own_fleet.bootstrap, records=own_fleet.kafka.bootstrap)


class Moves:
    """One worker leaves in order and another one joins; records are produced before, all the while, and after."""

    def __init__(self, fleet, workers, topic):
        self.values = []
        self._fleet, self._workers, self._topic = fleet, workers, topic
        self._problems = []
        self._moved = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(work,)) for work in (self._move, self._produce)]

    def _move(self):
        try:
            self._fleet.stop(self._fleet.workers[0])
            self._fleet.add()
            self._fleet.settled()
        finally:
            self._moved.set()

    def _produce(self):
        last = False
        while not last:
            last = self._moved.wait(PAUSE_S)
            self._send()

    def _send(self):
        for partition in range(PARTITIONS):
            part = [f"{partition}-{len(self.values)}-{number}" for number in range(EACH)]
            self._workers.produce(self._topic, *part, partition=partition)
            self.values += part

    def _run(self, work):
        try:
            work()
        except Exception as error:  # noqa: BLE001 - told by the test
            self._problems.append(error)

    def __enter__(self):
        self._send()
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_):
        for thread in self._threads:
            thread.join()
        assert self._problems == []

    @property
    def under_way(self):
        return any(thread.is_alive() for thread in self._threads)


def shown(record_property, name, seen, values):
    """State how many came more often than they were released."""
    twice = sum(count > (2 if value.endswith("7") and name == "librdkafka" else 1) for value, count in seen.items())
    record_property(f"{name}: records that came twice", twice)
    print(f"{name}: {twice} of {len(values)} records came more than once while leaders moved")


def test_librdkafka_loses_nothing_while_leaders_move(own_fleet, workers, unique, record_property):
    topic, group = workers.topic(unique("orders"), PARTITIONS), workers.share_group(unique("group"))
    seen = Counter()

    with (
        member(workers, group, topic, "explicit", max_poll_records=20) as consumer,
        Moves(own_fleet, workers, topic) as moves,
    ):
        deadline = time.monotonic() + LIMIT_S
        while (moves.under_way or len(seen) < len(moves.values)) and time.monotonic() < deadline:
            for message in consumer.poll(timeout=0.2):
                if message.error() is None:
                    value = message.value().decode()
                    seen[value] += 1
                    again = message.delivery_count() == 1 and value.endswith("7")
                    consumer.acknowledge(message, AcknowledgeType.RELEASE if again else AcknowledgeType.ACCEPT)
            consumer.commit_sync(CALL_LIMIT_S)

    shown(record_property, "librdkafka", seen, moves.values)
    assert set(moves.values) - set(seen) == set()
    assert left_to_do(own_fleet, group, topic) == []


def test_java_loses_nothing_while_leaders_move(own_fleet, workers, toolbox, unique, record_property):
    topic, group = workers.topic(unique("orders"), PARTITIONS), workers.share_group(unique("group"))
    asked = (f"topic={topic}", f"group={group}", "mode=explicit", "max=20", "count=1000000")

    with Moves(own_fleet, workers, topic) as moves:
        told = toolbox("share-client", f"bootstrap={workers.bootstrap}", *asked, "seconds=25", "pause_ms=20")
    rest = toolbox("share-client", f"bootstrap={own_fleet.bootstrap}", *asked, "seconds=8")

    assert told.code == rest.code == 0, told.err + rest.err
    seen = Counter(record["value"] for record in (*told.records, *rest.records))
    shown(record_property, "Java", seen, moves.values)
    assert set(moves.values) - set(seen) == set()
    assert left_to_do(own_fleet, group, topic) == []


def left_to_do(own_fleet, group, topic):
    """Return the values that a newly joined client gets. It accepts them, so that only records that cannot be settled
    come again."""
    workers = Server("workers", own_fleet.bootstrap, records=own_fleet.kafka.bootstrap)
    found = []
    for _ in range(3):
        with member(workers, group, topic, "explicit") as consumer:
            found = take(consumer, 1_000_000, limit_s=3, each=accept_all(consumer))
            consumer.commit_sync(CALL_LIMIT_S)
        if not found:
            break
    return values(found)
