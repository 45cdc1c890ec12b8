"""The source and the sink on Spark beside Spark's own Kafka connector, on one broker, in one run: ratios count.

    python benchmarks/spark.py [--parts read,stream,embedded,sink,latency] [--runs 3]

read      ranges of a topic to a no-op sink, all columns, beside the connector's batch read
stream    the source with acknowledgement (native groups), beside the connector's stream with as many records a batch
embedded  the source on an embedded path, 200,000 records a batch; what acknowledging takes of a batch
sink      a table into a topic, at least once, beside the connector's
latency   from the producer to a foreachBatch, ten records a second

Needs Java 17 and Maven; local[2], the broker on the same machine.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import arena
from common import embedded_url, fill, verdict
from flowshare.dev.jars import libraries
from flowshare.spark.sessions import session

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession

RECORDS = 1_000_000
BATCH = 1000
"""Records of a batch of the log."""
PER_TRIGGER = 16_000
"""Records per trigger: a native group of four partitions hands out as many (group.share.partition.max.record.locks
4,000)."""
EMBEDDED_PER_TRIGGER = 200_000
READ_LEAST, STREAM_LEAST, SINK_LEAST = 1.5, 0.8, 0.5
EMBEDDED_LEAST = 500_000
ACK_MOST = 5.0
LATENCY_MOST_MS = 150.0
LATENCY_RECORDS = 200
LIMIT_S = 300
BROKER = {
    "group.share.max.partition.max.record.locks": "4000",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
}


def connector() -> list[Path]:
    """The jars of Spark's own connector."""
    pom = (arena.SOURCES / "spark" / "pom.xml").read_bytes()
    return sorted(libraries("spark-connector", pom).glob("*.jar"))


def timed(work: Callable[[], object]) -> float:
    """Seconds that it takes."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def info(label: str, value: float, unit: str) -> None:
    """A figure that is held to nothing."""
    print(f"{label:<58} {value:>14,.2f} {unit}", flush=True)


class Bench:
    """One session, one broker, one full topic."""

    def __init__(self, spark: SparkSession, server: arena.Server, runs: int) -> None:
        self.spark, self.server, self.runs = spark, server, runs
        self.url = f"kafka://{server.bootstrap}?share=native"
        self._numbers = 0
        self._topic = ""

    @property
    def topic(self) -> str:
        """Four partitions, RECORDS records."""
        if not self._topic:
            self._topic = "spark-bench"
            fill_kafka(self.server, self._topic)
        return self._topic

    def name(self, what: str) -> str:
        """One that nobody has used."""
        self._numbers += 1
        return f"{what}-{self._numbers}"

    def ratio(self, label: str, ours: Callable[[], float], theirs: Callable[[], float], least: float) -> None:
        """Rates of both, interleaved, after one round that does not count; their ratio."""
        pairs = [(ours(), theirs()) for _ in range(self.runs + 1)][1:]
        info(label, statistics.median(mine for mine, _ in pairs), "records/s")
        info("  Spark's own connector", statistics.median(other for _, other in pairs), "records/s")
        verdict("  ratio", statistics.median(mine / other for mine, other in pairs), least, unit="×")

    # --- parts --------------------------------------------------------------------------------------------------

    def read(self) -> None:
        """Executors' part alone."""

        def noop(frame: DataFrame) -> float:
            return RECORDS / timed(lambda: frame.write.format("noop").mode("overwrite").save())

        def ours() -> float:
            options = {"broker": self.url, "topics": self.topic, "group": self.name("read"), "headers": "true"}
            return noop(self.spark.read.format("flowshare").options(**options, tasks="2").load())

        def theirs() -> float:
            options = {"kafka.bootstrap.servers": self.server.bootstrap, "subscribe": self.topic}
            return noop(self.spark.read.format("kafka").options(**options, includeHeaders="true").load())

        self.ratio("ranges of a topic to no-op, all columns", ours, theirs, READ_LEAST)

    def stream(self) -> None:
        """The whole source; what it waits for its group, when a batch fills the group's window and when it does not."""
        parts: dict[int, list[float]] = {PER_TRIGGER: [], PER_TRIGGER // 2: []}

        def run(records: int) -> float:
            options = {"broker": self.url, "topics": self.topic, "group": self.name("stream"), "tasks": "2"}
            frame = self.spark.readStream.format("flowshare").options(**options, records_per_trigger=records)
            rate, part = self.steady(frame.load())
            parts[records].append(part)
            return rate

        def ours() -> float:
            run(PER_TRIGGER // 2)
            return run(PER_TRIGGER)

        def theirs() -> float:
            options = {"kafka.bootstrap.servers": self.server.bootstrap, "subscribe": self.topic}
            options |= {"startingOffsets": "earliest", "maxOffsetsPerTrigger": str(PER_TRIGGER)}
            return self.steady(self.spark.readStream.format("kafka").options(**options).load())[0]

        self.ratio(f"stream to no-op, {PER_TRIGGER:,} records a batch", ours, theirs, STREAM_LEAST)
        for records, found in parts.items():
            info(f"  acquiring and acknowledging {records:,}", 100 * statistics.median(found[1:]), "%")

    def embedded(self) -> None:
        """On a path of this machine."""
        with embedded_url() as url:
            fill(url, "orders", [arena.VALUE] * RECORDS, partitions=2)
            rates, parts = [], []
            for _ in range(self.runs + 1):
                options = {"broker": url, "topics": "orders", "group": self.name("embedded"), "tasks": "2"}
                options["records_per_trigger"] = str(EMBEDDED_PER_TRIGGER)
                rate, part = self.steady(self.spark.readStream.format("flowshare").options(**options).load())
                rates.append(rate)
                parts.append(part)
        verdict("embedded, 200,000 records a batch", statistics.median(rates[1:]), EMBEDDED_LEAST, unit="records/s")
        verdict(
            "  acquiring and acknowledging, of a batch's time",
            100 * statistics.median(parts[1:]),
            ACK_MOST,
            unit="%",
            at_most=True,
        )

    def sink(self) -> None:
        """A table of 100-byte values into a topic."""
        rows = self.spark.range(RECORDS // 2).selectExpr("CAST(repeat('x', 100) AS BINARY) AS value").cache()
        count = rows.count()

        def ours() -> float:
            topic = self.server.topic(self.name("sink"))
            writer = rows.coalesce(2).write.format("flowshare").options(broker=self.url, topic=topic).mode("append")
            return count / timed(writer.save)

        def theirs() -> float:
            topic = self.server.topic(self.name("sink"))
            options = {"kafka.bootstrap.servers": self.server.bootstrap, "topic": topic}
            return count / timed(rows.coalesce(2).write.format("kafka").options(**options).save)

        self.ratio("sink, at least once", ours, theirs, SINK_LEAST)
        rows.unpersist()

    def latency(self) -> None:
        """End to end."""
        topic, seen = self.server.topic(self.name("latency")), dict[int, float]()
        done = threading.Event()

        def take(batch: DataFrame, _: int) -> None:
            now = time.perf_counter()
            seen.update({int(row.value): now for row in batch.select("value").collect()})
            if len(seen) >= LATENCY_RECORDS:
                done.set()

        options = {"broker": self.url, "topics": topic, "group": self.name("latency"), "tasks": "1"}
        frame = self.spark.readStream.format("flowshare").options(**options).load()
        with tempfile.TemporaryDirectory() as folder:
            query = frame.writeStream.foreachBatch(take).option("checkpointLocation", folder).start()
            try:
                sent = self._send_slowly(topic)
                if not done.wait(LIMIT_S):
                    raise SystemExit(f"only {len(seen)} of {LATENCY_RECORDS} records came: {query.exception()}")
            finally:
                query.stop()
        ms = sorted(1000 * (seen[number] - at) for number, at in sent.items() if number >= LATENCY_RECORDS // 4)
        verdict("latency p50, from send to foreachBatch", ms[len(ms) // 2], LATENCY_MOST_MS, unit="ms", at_most=True)
        info("  p95", ms[len(ms) * 95 // 100], "ms")

    def _send_slowly(self, topic: str) -> dict[int, float]:
        from confluent_kafka import Producer

        producer = Producer({"bootstrap.servers": self.server.bootstrap, "linger.ms": 0, "log_level": 0})
        sent: dict[int, float] = {}
        for number in range(LATENCY_RECORDS):
            sent[number] = time.perf_counter()
            producer.produce(topic, str(number).encode())
            producer.flush(30)
            time.sleep(0.1)
        return sent

    def steady(self, frame: DataFrame) -> tuple[float, float]:
        """Rate of the batches of an availableNow run but the first, and which part of their time the source took."""
        with tempfile.TemporaryDirectory() as folder:
            writer = frame.writeStream.format("noop").option("checkpointLocation", folder)
            query = writer.trigger(availableNow=True).start()
            if not query.awaitTermination(LIMIT_S):
                raise SystemExit("the stream did not end in time")
            found: list[Any] = [one for one in query.recentProgress if one["numInputRows"]][1:]
        rows = sum(one["numInputRows"] for one in found)
        spent = [one["durationMs"] for one in found]
        total = sum(one["triggerExecution"] for one in spent)
        return 1000 * rows / total, sum(one.get("latestOffset", 0) for one in spent) / total


def fill_kafka(server: arena.Server, topic: str) -> None:
    """Four partitions in batches of about BATCH records."""
    from confluent_kafka import Producer
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": server.bootstrap})
    admin.create_topics([NewTopic(topic, 4, 1)])[topic].result(60)
    producer = Producer(
        {"bootstrap.servers": server.bootstrap, "linger.ms": 50, "batch.num.messages": BATCH, "log_level": 0}
        | {"queue.buffering.max.messages": 200_000}
    )
    for number in range(RECORDS):
        while True:
            try:
                producer.produce(topic, arena.VALUE, partition=number // BATCH % 4)
                break
            except BufferError:
                producer.poll(0.1)
    producer.flush(60)


PARTS = ("read", "stream", "embedded", "sink", "latency")


def main() -> None:
    """Run the parts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args()
    os.environ["PYTHONPATH"] = str(Path(__file__).resolve().parent.parent)
    conf = {"spark.jars": ",".join(map(str, connector())), "spark.ui.enabled": "false"}
    spark = session("flowshare-bench", master="local[2,4]", conf=conf)
    spark.sparkContext.setLogLevel("ERROR")
    try:
        with arena.kafka(BROKER) as server:
            bench = Bench(spark, server, options.runs)
            for part in options.parts.split(","):
                getattr(bench, part)()
    finally:
        spark.stop()


if __name__ == "__main__":
    main()
