"""The process of a query, without Spark: its checkpoint is written here."""

from __future__ import annotations

import json

import pytest

from flowshare.spark.driver import Driver
from flowshare.spark.options import SourceOptions
from flowshare.spark.ranges import Offset
from tests.interop.servers import until

pytestmark = pytest.mark.slow
BATCH = 100


class Query:
    """What Spark does with the source: batch by batch, one checkpoint."""

    def __init__(self, folder, broker, topic, group):
        self._folder = folder
        for log in ("offsets", "commits"):
            (folder / log).mkdir(parents=True, exist_ok=True)
        given = {"broker": broker.url, "topics": topic, "group": group, "checkpoint": str(folder)}
        self.driver = Driver(SourceOptions.parse({**given, "records_per_trigger": str(BATCH)}))

    def plan(self, begun=None):
        """The next batch, in the write-ahead log."""
        offset = until(lambda: self.driver.next(begun or self.driver.initial), lambda found: found is not None)
        self._write("offsets", offset, json.dumps(offset.to_json()))
        return offset

    def run(self, offset):
        self.driver.parts(offset)
        self._write("commits", offset, "{}")
        return offset

    def newest(self):
        *_, path = sorted((self._folder / "offsets").iterdir(), key=lambda one: int(one.name))
        return Offset.from_json(json.loads(path.read_text().splitlines()[-1]))

    def die(self, offset):
        """Its broker takes the member for dead: what it held is the group's again, as delivered."""
        self.driver._closing.set()
        self.driver._member.close(run=[*offset.ranges, *offset.done])

    def _write(self, log, offset, line):
        (self._folder / log / str(offset.number - 1)).write_text(f"v1\n{{}}\n{line}\n")


def offsets(offset):
    return {(one.topic, one.partition, number) for one in offset.ranges for number in range(one.first, one.last + 1)}


def test_a_clean_stop_after_a_crash_accepts_what_was_committed_and_is_the_groups_again(broker, unique, tmp_path):
    topic, group = broker.topic(unique("orders")), unique("etl")
    for number in range(10):
        broker.produce(topic, [b"%d-%d" % (number, one) for one in range(BATCH)])
    first = Query(tmp_path / "old", broker, topic, group)
    committed = first.run(first.plan())
    under_way = first.plan(committed)
    first.die(under_way)

    second = Query(tmp_path / "old", broker, topic, group)
    second.run(second.newest())
    second.driver.close()

    other = Query(tmp_path / "new", broker, topic, group)
    fresh = offsets(other.plan())
    other.driver.close()
    assert not fresh & (offsets(committed) | offsets(under_way))
