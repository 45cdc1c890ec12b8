"""Tests of changes under a query: its checkpoint, its schema, time; and Spark's own joins over the source."""

from __future__ import annotations

import json

import pytest

from tests.spark.serving import serving
from tests.waiting import blocking_until

LIMIT_S = 150


@pytest.fixture
def topic(broker, unique):
    return broker.topic(unique("orders"), partitions=2)


def run(rows, out, checkpoint, mode="append"):
    """One run over what is there, into Parquet."""
    writer = rows.writeStream.format("parquet").outputMode(mode).option("path", str(out))
    query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    assert query.awaitTermination(LIMIT_S), "the query did not end in time"
    assert query.exception() is None


def numbers(first, behind):
    return [b"%d" % number for number in range(first, behind)]


def test_a_query_whose_checkpoint_is_gone_goes_on_with_what_the_group_has_not_finished(
    spark, broker, topic, stream, unique, tmp_path
):
    group = unique("etl")
    rows = stream(group).selectExpr("CAST(value AS STRING) AS value")
    broker.produce(topic, numbers(0, 1000))
    run(rows, tmp_path / "one", tmp_path / "cp one")
    broker.produce(topic, numbers(1000, 1500))

    run(rows, tmp_path / "two", tmp_path / "cp two")
    found = [
        sorted(int(row.value) for row in spark.read.parquet(str(tmp_path / name)).collect()) for name in ("one", "two")
    ]
    last = broker.backlog(group)

    # The last batch of the first run is accepted when a later one proves it done, and nobody ever came to do that.
    assert found[0] == list(range(1000))
    assert set(found[1]) >= set(range(1000, 1500))
    assert len(found[1]) == len(set(found[1]))
    assert last == 0


def test_a_query_goes_on_with_more_columns_than_before(spark, broker, topic, stream, unique, tmp_path):
    group = unique("etl")

    def go(schema):
        rows = stream(group, value="json", value_schema=schema).select("value.*")
        run(rows, tmp_path / "out", tmp_path / "cp")

    broker.produce(topic, [json.dumps({"id": number}).encode() for number in range(100)])
    go("id INT")
    broker.produce(topic, [json.dumps({"id": number, "name": f"n{number}"}).encode() for number in range(100, 200)])
    go("id INT, name STRING")
    found = spark.read.schema("id INT, name STRING").parquet(str(tmp_path / "out")).collect()

    assert sorted((row.id, row.name) for row in found) == [
        (number, f"n{number}" if number >= 100 else None) for number in range(200)
    ]
    assert broker.backlog(group) == 0


def test_windows_are_closed_by_the_watermark_and_joined_with_a_table(spark, broker, topic, stream, unique, tmp_path):
    group = unique("windows")
    shops = spark.createDataFrame([(0, "north"), (1, "south")], "shop INT, name STRING")
    rows = (
        stream(group, value="json", value_schema="shop INT, at TIMESTAMP")
        .selectExpr("value.shop AS shop", "value.at AS at")
        .join(shops, "shop")
        .withWatermark("at", "10 seconds")
    )
    from pyspark.sql.functions import window

    sums = rows.groupBy("name", window("at", "1 minute")).count().selectExpr("name", "window.start AS minute", "count")

    def sale(number):
        return json.dumps({"shop": number % 2, "at": f"2026-03-01T10:{number // 60:02d}:{number % 60:02d}Z"}).encode()

    broker.produce(topic, [sale(number) for number in range(180)])  # three minutes, a sale a second
    run(sums, tmp_path / "out", tmp_path / "cp")
    broker.produce(topic, [sale(240)])  # the watermark passes the third
    run(sums, tmp_path / "out", tmp_path / "cp")
    found = spark.read.parquet(str(tmp_path / "out")).selectExpr("name", "minute(minute) AS minute", "count").collect()

    assert sorted(map(tuple, found)) == [(name, minute, 30) for name in ("north", "south") for minute in range(3)]
    assert broker.backlog(group) == 0


def test_a_query_goes_on_when_the_leader_of_half_the_partitions_is_killed(spark, mortal_pair, unique, tmp_path):
    url = f"kafka://{','.join(mortal_pair.addresses)}?share=native"
    topic, group, count = unique("orders"), unique("etl"), 12_000
    out, checkpoint = str(tmp_path / "out"), str(tmp_path / "cp")

    def start():
        rows = spark.readStream.format("flowshare").options(
            broker=url, topics=topic, group=group, tasks="2", records_per_trigger="500", lock_duration="15"
        )
        writer = rows.load().selectExpr("CAST(value AS STRING) AS value").writeStream.format("parquet")
        return writer.option("path", out).option("checkpointLocation", checkpoint).start()

    def written():
        return sorted(int(row.value) for row in spark.read.schema("value STRING").parquet(out).collect())

    with serving(url) as broker:
        broker.topic(topic, partitions=4)
        for first in range(0, count, 500):
            broker.produce(topic, numbers(first, first + 500))
    queries = [start()]

    def rows_there():
        if not queries[-1].isActive:  # `flowshare pipeline` starts it again, too
            queries.append(start())
        return len(written())

    try:
        blocking_until(lambda: [one for one in queries[0].recentProgress if one["numInputRows"]], limit_s=LIMIT_S)
        mortal_pair.processes[1].end(0)
        blocking_until(rows_there, good=lambda there: there >= count, limit_s=LIMIT_S)
    finally:
        queries[-1].stop()

    assert written() == list(range(count))
    assert len(queries) <= 4
