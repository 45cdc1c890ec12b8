"""Tests of cases that lost or doubled records without a message, under Spark: a sink that fails or is stopped in the
middle of a batch, two sources of one query in one group, copies of a checkpoint, a topic made anew while a query runs,
retention."""

from __future__ import annotations

import json
import os
import shutil
import threading
import uuid

import pytest
from pyspark.errors import StreamingQueryException

from flowshare.spark.source.ledger import PREFIX
from tests.waiting import blocking_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]
LIMIT_S = 400
on_one_machine = pytest.mark.parametrize("broker", ["embedded"], indirect=True)
"""Without Spark the same is tried on all places in test_strange_checkpoints, in a tenth of the time."""


@pytest.fixture
def topic(broker, unique):
    return broker.topic(unique("orders"), partitions=2)


@pytest.fixture
def group(unique):
    return unique("etl")


def numbers(first, behind):
    return [b"%d" % number for number in range(first, behind)]


def rows_of(batch):
    return sorted(int(row.value) for row in batch.selectExpr("CAST(value AS STRING) AS value").collect())


class Query:
    """A query with a foreachBatch, run over what is there; `batches` has what each call was given, by its number."""

    def __init__(self, stream, group, folder, **options):
        self.batches: list[tuple[int, list[int]]] = []
        self.first: dict[int, list[int]] = {}
        """The first of two tables, keyed by the batch's number: what is there is not written again."""
        self.second: dict[int, list[int]] = {}
        self.fails = lambda number: False
        self._make, self._folder = lambda: stream(group, **options), folder

    def each(self, batch, number):
        rows = rows_of(batch)
        self.batches.append((number, rows))
        self.first.setdefault(number, rows)
        if self.fails(number):
            raise RuntimeError("the second table is away")
        self.second[number] = rows

    def start(self, once=True):
        writer = self._make().writeStream.foreachBatch(self.each).option("checkpointLocation", str(self._folder))
        return (writer.trigger(availableNow=True) if once else writer).start()

    def run(self):
        """Its error; none."""
        query = self.start()
        try:
            assert query.awaitTermination(LIMIT_S), "the query did not end in time"
        except StreamingQueryException as error:
            return error
        return None

    def rows(self, table):
        return sorted(row for rows in table.values() for row in rows)


# --- a batch that fails ---------------------------------------------------------------------------------------------


@on_one_machine
def test_a_batch_whose_sink_fails_comes_again_as_it_was_however_often(broker, topic, group, stream, tmp_path):
    broker.produce(topic, numbers(0, 800))
    query = Query(stream, group, tmp_path / "cp")
    failures = iter([True] * 4)
    query.fails = lambda number: next(failures, False)
    for _ in range(4):
        assert "the second table is away" in str(query.run())
    assert query.run() is None

    assert len({tuple(rows) for number, rows in query.batches if number == 0}) == 1
    assert query.rows(query.first) == query.rows(query.second) == list(range(800))
    assert len(query.second) <= 2
    assert broker.backlog(group) == 0


@on_one_machine
def test_clean_stops_in_the_middle_of_a_batch_are_no_failures(broker, topic, group, stream, tmp_path):
    broker.produce(topic, numbers(0, 800))
    query = Query(stream, group, tmp_path / "cp")
    each, begun, ended = query.each, threading.Event(), [False]

    def long(batch, number):
        rows = rows_of(batch)
        query.batches.append((number, rows))
        query.first.setdefault(number, rows)
        begun.set()
        if not ended[0]:
            batch.selectExpr("java_method('java.lang.Thread', 'sleep', 600000L * length(value))").collect()
        query.second[number] = rows

    query.each = long
    for _ in range(3):
        begun.clear()
        running = query.start(once=False)
        assert begun.wait(LIMIT_S)
        running.stop()
    ended[0], query.each = True, each
    assert query.run() is None

    assert query.rows(query.first) == query.rows(query.second) == list(range(800))
    assert broker.backlog(group) == 0


@on_one_machine
def test_a_record_that_kills_python_workers_becomes_a_dead_letter_unless_that_is_switched_off(
    spark, broker, topic, group, stream, tmp_path
):
    from pyspark.sql.functions import udf

    broker.topic(f"{group}.dlq")
    topic = broker.topic(f"{topic}.one")
    broker.produce(topic, numbers(0, 4))

    @udf("string", useArrow=False)
    def lethal(value):
        if bytes(value) == b"2":
            os._exit(9)
        return bytes(value).decode()

    def query(**options):
        made = Query(stream, group, tmp_path / "cp", topics=topic, tasks="1", **options)
        made.each = lambda batch, number: made.second.update(
            {number: sorted(int(row.value) for row in batch.select(lethal("value").alias("value")).collect())}
        )
        return made

    for _ in range(3):
        assert "Python worker exited" in str(query(narrowing="false").run())
    assert broker.read(f"{group}.dlq") == []
    one = query()
    runs = 0
    while one.run() is not None:
        runs += 1
        assert runs < 8

    assert [letter.value for letter in broker.read(f"{group}.dlq")] == [b"2"]
    assert one.rows(one.second) == [0, 1, 3]
    assert broker.backlog(group) == 0


# --- two sources, two members -----------------------------------------------------------------------------------------


def even_and_odd(even, odd):
    """The even rows of one stream and the odd ones of another."""
    number = "CAST(CAST(value AS STRING) AS INT)"
    return even.where(f"{number} % 2 = 0").union(odd.where(f"{number} % 2 = 1"))


@on_one_machine
def test_two_branches_of_one_load_are_one_source_and_have_all_records(broker, topic, group, stream, tmp_path):
    """Spark makes one source of one DataFrame, however often a query names it."""
    for first in range(0, 4000, 100):
        broker.produce(topic, numbers(first, first + 100))
    rows = stream(group, records_per_trigger="500")
    seen = []
    writer = even_and_odd(rows, rows).writeStream.foreachBatch(lambda batch, _: seen.extend(rows_of(batch)))
    query = writer.option("checkpointLocation", str(tmp_path / "cp")).trigger(availableNow=True).start()

    assert query.awaitTermination(LIMIT_S)
    assert sorted(seen) == list(range(4000))


@on_one_machine
def test_two_sources_of_one_query_in_one_group_are_refused_and_nothing_is_accepted(
    broker, topic, group, stream, tmp_path
):
    for first in range(0, 4000, 100):
        broker.produce(topic, numbers(first, first + 100))
    rows = [stream(group, records_per_trigger="500") for _ in range(2)]
    seen = []
    writer = even_and_odd(*rows).writeStream.foreachBatch(lambda batch, _: seen.extend(rows_of(batch)))
    query = writer.option("checkpointLocation", str(tmp_path / "cp")).trigger(availableNow=True).start()

    with pytest.raises(StreamingQueryException, match=f"group {group} is read by two sources of this query"):
        query.awaitTermination(LIMIT_S)
    assert all(part.start_offset <= 0 for part in broker.call(broker.admin.group_offsets(group)))


@on_one_machine
def test_two_sources_of_one_query_in_groups_of_their_own_have_all_records_each(broker, topic, group, stream, tmp_path):
    broker.produce(topic, numbers(0, 1000))
    rows = [stream(f"{group}.{name}").where(f"CAST(CAST(value AS STRING) AS INT) % 2 = {name}") for name in (0, 1)]
    seen = []
    writer = rows[0].union(rows[1]).writeStream.foreachBatch(lambda batch, _: seen.extend(rows_of(batch)))
    query = writer.option("checkpointLocation", str(tmp_path / "cp")).trigger(availableNow=True).start()
    assert query.awaitTermination(LIMIT_S)

    assert sorted(seen) == list(range(1000))


# --- checkpoints ------------------------------------------------------------------------------------------------------


@on_one_machine
def test_a_copy_of_a_checkpoint_that_went_on_is_refused_and_disturbs_nobody(broker, topic, group, stream, tmp_path):
    broker.produce(topic, numbers(0, 500))
    original = Query(stream, group, tmp_path / "cp")
    assert original.run() is None
    shutil.copytree(tmp_path / "cp", tmp_path / "copy")
    broker.produce(topic, numbers(500, 1000))
    assert original.run() is None
    copy = Query(stream, group, tmp_path / "copy")
    broker.produce(topic, numbers(1000, 1500))
    error = str(copy.run())
    assert original.run() is None

    assert "the checkpoint of this query is older than the group" in error
    assert "flowshare groups delete flowshare-spark-" in error
    assert copy.batches == []
    assert original.rows(original.second) == list(range(1500))
    assert broker.backlog(group) == 0


@on_one_machine
def test_an_older_copy_in_the_same_folder_is_refused_and_goes_on_when_it_is_told_to(
    broker, topic, group, stream, tmp_path
):
    broker.produce(topic, numbers(0, 500))
    query = Query(stream, group, tmp_path / "cp")
    assert query.run() is None
    shutil.copytree(tmp_path / "cp", tmp_path / "backup")
    broker.produce(topic, numbers(500, 1000))
    assert query.run() is None
    shutil.rmtree(tmp_path / "cp")
    shutil.copytree(tmp_path / "backup", tmp_path / "cp")
    broker.produce(topic, numbers(1000, 1500))

    error = str(query.run())
    assert "the checkpoint of this query is older than the group" in error
    assert query.rows(query.second) == list(range(1000))

    name = error[error.index(PREFIX) :].split("`")[0]
    broker.call(broker.admin.delete_group(name))
    assert query.run() is None
    assert set(range(1000, 1500)) <= set(query.batches[-1][1])


@on_one_machine
def test_of_two_queries_on_copies_of_one_checkpoint_one_goes_on_and_no_record_is_missing(
    broker, topic, group, stream, tmp_path
):
    broker.produce(topic, numbers(0, 500))
    first = Query(stream, group, tmp_path / "cp", records_per_trigger="100")
    assert first.run() is None
    shutil.copytree(tmp_path / "cp", tmp_path / "copy")
    as_another_query(tmp_path / "copy")
    second = Query(stream, group, tmp_path / "copy", records_per_trigger="100")
    running, said = {}, []

    def goes():
        """Starts what has ended again, as a supervisor does; whether all is in one of the outputs, and accepted."""
        for query in (first, second):
            old = running.get(query)
            if old is None or not old.isActive:
                if old is not None:
                    said.append(str(old.exception()))
                running[query] = query.start(once=False)
        seen = {*query_rows(first), *query_rows(second)}
        return seen >= set(range(3000)) and any("copy" in text or "older" in text for text in said)

    try:
        for at in range(500, 3000, 250):
            broker.produce(topic, numbers(at, at + 250))
            goes()
        blocking_until(goes, lambda: said, limit_s=LIMIT_S)
    finally:
        for query in running.values():
            query.stop()

    assert not any("asyncProgress" in text for text in said)
    assert None in [query.run() for query in (first, second)], "one goes on, and finishes what it was stopped in"
    assert broker.backlog(group) == 0


def as_another_query(checkpoint):
    """Give the query a new id for Spark, which ends a query when one of the same id is started in its driver."""
    (checkpoint / "metadata").write_text(json.dumps({"id": str(uuid.uuid4())}))
    (checkpoint / ".metadata.crc").unlink(missing_ok=True)


def query_rows(query):
    return query.rows(dict(query.second))


# --- topics and retention ---------------------------------------------------------------------------------------------


@on_one_machine
def test_a_topic_that_is_made_anew_while_a_query_runs_is_read_from_its_beginning(
    broker, topic, group, stream, tmp_path
):
    broker.produce(topic, numbers(0, 300))
    query = Query(stream, group, tmp_path / "cp", on_data_loss="continue")
    running = query.start(once=False)
    try:
        blocking_until(lambda: query_rows(query), good=lambda rows: len(rows) >= 300, limit_s=LIMIT_S)
        broker.call(broker.admin.delete_topic(topic))
        blocking_until(
            lambda: topic in [one.name for one in broker.call(broker.admin.list_topics())],
            good=lambda there: not there,
            limit_s=LIMIT_S,
        )
        broker.topic(topic, partitions=2)
        broker.produce(topic, numbers(1000, 1300))

        def all_there():
            nonlocal running
            if not running.isActive:
                running = query.start(once=False)
            return set(range(1000, 1300)) <= set(query_rows(query))

        blocking_until(all_there, lambda: query_rows(query), limit_s=LIMIT_S)
    finally:
        running.stop()

    assert query.run() is None, "it finishes the batch that it was stopped in"
    assert query_rows(query) == [*range(300), *range(1000, 1300)]
    assert broker.backlog(group) == 0


@pytest.mark.parametrize("broker", ["embedded", "native"], indirect=True)
@pytest.mark.parametrize("settled", [True, False], ids=["start offsets noted", "just begun"])
def test_records_that_retention_took_while_a_query_was_down_are_an_error_or_counted(
    broker, topic, group, stream, tmp_path, settled
):
    topic = broker.topic(f"{topic}.one")

    def query(**options):
        return Query(stream, group, tmp_path / "cp", topics=topic, **options)

    first = query()
    broker.produce(topic, numbers(0, 300))
    assert first.run() is None
    if settled:
        broker.produce(topic, numbers(300, 400))
        assert first.run() is None
    broker.produce(topic, numbers(400, 1000))
    taken = 700 if settled else 600
    broker.call(broker.admin.delete_records(topic, 0, taken))

    error = str(query().run())
    assert "300 records are gone from the log" in error
    assert "'on_data_loss', 'continue'" in error
    lossy = query(on_data_loss="continue")
    running = lossy.start()
    assert running.awaitTermination(LIMIT_S)
    told = [one["sources"][0]["latestOffset"] for one in running.recentProgress]

    assert '"records_lost": 300' in str(told[-1]).replace("'", '"').replace('":', '": ').replace(":  ", ": ")
    assert len(lossy.rows(lossy.second)) == 300
    assert query().run() is None, "it is told once"
    assert broker.backlog(group) == 0
