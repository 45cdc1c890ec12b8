"""One declared pipeline as a streaming query: its source, the user's function, its sinks."""

from __future__ import annotations

import json
import logging
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeGuard

from flowshare.agents.ddl import NoColumn, struct_fields
from flowshare.agents.errors import UsageError
from flowshare.agents.send import topic_name
from flowshare.agents.sinks import Console, Folder, Jdbc, Produce
from flowshare.log.folder import make_private
from flowshare.spark.checkpoint import ASYNC_PROGRESS
from flowshare.spark.claims import Files, check_claim, claim
from flowshare.spark.jdbc import write_table
from flowshare.spark.outcomes import settling
from flowshare.spark.session import LOCAL_MANAGER, MANAGER, activate

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from flowshare.agents.pipeline import SharePipeline
    from flowshare.agents.sinks import Sink

QUERY_COLUMN: Final = "flowshare_query"
BATCH_COLUMN: Final = "flowshare_batch"
EXECUTORS_S: Final = 10.0
"""How long a query waits for the cluster's first executor, to know how many tasks run at a time."""
RECORD: Final = frozenset({"key", "headers", "partition", "timestamp"})
"""Columns that say something of a produced record beside its value."""

logger = logging.getLogger("flowshare.spark")


def start_query(pipeline: SharePipeline, spark: SparkSession, broker: str, *, once: bool) -> StreamingQuery:
    """Start a pipeline's query. once: read what is there, and end. Raises: UsageError, what Spark raises."""
    activate(spark)  # this is a thread of the supervisor's
    check(pipeline, spark, broker)
    stream = source(pipeline, spark, broker)
    sinks = pipeline.options.sink
    if sinks is None:
        writer = _each_batch(pipeline, stream, broker)
    else:
        rows = pipeline.fun(stream)
        if rows is None or not hasattr(rows, "writeStream"):
            raise UsageError(f"pipeline {pipeline.name}: the function returns {rows!r}, and sinks need a DataFrame")
        writer = _writer(pipeline, rows, sinks, broker)
    place = Files(spark, checkpoint(pipeline))
    _checkpoint_manager(spark, place)
    if place.local and not pipeline.options.checkpoint:
        make_private(Path(checkpoint(pipeline)))  # Spark's own files in it are open to all
    output = Files(spark, sinks[0].path) if sinks and _alone(sinks, pipeline.options.output_mode) else None
    if output is not None:
        check_claim(pipeline.name, output, place)
    writer = writer.queryName(pipeline.name).option("checkpointLocation", checkpoint(pipeline))
    if once:
        writer = writer.trigger(availableNow=True)
    elif pipeline.options.trigger is not None:
        writer = writer.trigger(processingTime=pipeline.options.trigger)
    query = writer.start()
    if output is not None:
        claim(output, place, query.id)
    return query


def check(pipeline: SharePipeline, spark: SparkSession, broker: str) -> None:
    """See that what is promised of the pipeline can be kept there. Raises: UsageError with what to do."""
    master = str(spark.sparkContext.master)
    if broker.startswith("embedded:") and not master.startswith("local"):
        raise UsageError(
            f"pipeline {pipeline.name}: an embedded path is one machine's, and the tasks on {master} run on others, "
            "which cannot read it: serve it (`flowshare serve --data PATH --listen HOST:9092`) and use "
            "kafka://HOST:9092 as the broker, or run the pipeline with --master local[N]"
        )
    for sink in pipeline.options.sink or ():
        for name in getattr(sink, "options", ()):
            if name.lower().lstrip("_").startswith("asyncprogresstracking"):
                raise UsageError(f"pipeline {pipeline.name}: {name} is refused. {ASYNC_PROGRESS}")


def tasks(spark: SparkSession) -> int:
    """How many tasks the session's executors run at a time; waits a moment for the first of a cluster's. Blocks."""
    context = spark.sparkContext
    until_s = time.monotonic() + EXECUTORS_S
    while not str(context.master).startswith("local") and time.monotonic() < until_s:
        if context._jsc.sc().getExecutorMemoryStatus().size() > 1:  # noqa: SLF001 - the driver is one of them
            break
        time.sleep(0.1)
    return max(1, int(context.defaultParallelism))


def source(pipeline: SharePipeline, spark: SparkSession, broker: str) -> DataFrame:
    """The stream of a pipeline's records; values are columns where the topic says what they are."""
    options: dict[str, str] = {"broker": broker, "group": pipeline.group, "topics": ",".join(pipeline.topics)}
    options |= {"checkpoint": checkpoint(pipeline), "tasks": str(tasks(spark))}
    if "value" not in pipeline.options.source and pipeline.value_type not in (None, bytes):
        try:
            schema = struct_fields(pipeline.value_type)
        except NoColumn as error:
            raise UsageError(f"pipeline {pipeline.name}: {error}") from error
        if schema is not None:
            options |= {"value": "json", "value_schema": schema}
    for name, value in pipeline.options.source.items():
        options[name] = _text(value)
    return spark.readStream.format("flowshare").options(**options).load()


def checkpoint(pipeline: SharePipeline) -> str:
    """Where the query's write-ahead log is."""
    given = pipeline.options.checkpoint
    return given or str(Path(pipeline.app.conf.datadir).absolute() / "pipelines" / pipeline.name)


def _checkpoint_manager(spark: SparkSession, place: Files) -> None:
    """Write the checkpoint by renaming files, which is quick, only where that is atomic."""
    if place.local:
        spark.conf.set(MANAGER, LOCAL_MANAGER)
    elif spark.conf.get(MANAGER, "") == LOCAL_MANAGER:
        spark.conf.unset(MANAGER)


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return value if isinstance(value, str) else json.dumps(value)


# --- writers ------------------------------------------------------------------------------------------------------


def _each_batch(pipeline: SharePipeline, stream: DataFrame, broker: str) -> DataStreamWriter:
    def call(batch: DataFrame, number: int) -> None:
        with settling(broker, pipeline.group):
            pipeline.fun(*(batch, number)[: pipeline.arguments])

    return stream.writeStream.outputMode(pipeline.options.output_mode).foreachBatch(call)


def _writer(pipeline: SharePipeline, rows: DataFrame, sinks: Sequence[Sink], broker: str) -> DataStreamWriter:
    """Spark's own sink where there is one that knows its batches, else each batch to each sink."""
    mode = pipeline.options.output_mode
    writer = rows.writeStream.outputMode(mode)
    (first, *others) = sinks
    if isinstance(first, Folder) and _alone(sinks, mode):
        writer = writer.format(first.format).options(**first.options).option("path", first.path)
        return writer.partitionBy(*first.partition_by) if first.partition_by else writer
    if not others and isinstance(first, Produce) and mode != "complete":
        writer = for_topic(rows).writeStream.outputMode(mode)
        return writer.format("flowshare").options(delivery=first.delivery, **_to_topic(first, broker))
    return writer.foreachBatch(partial(_write_all, pipeline.name, tuple(sinks), broker, mode))


def _alone(sinks: Sequence[Sink], mode: str) -> TypeGuard[tuple[Folder]]:
    """Whether Spark's own file sink writes, which knows its batches."""
    return len(sinks) == 1 and mode == "append" and isinstance(sinks[0], Folder)


def _to_topic(sink: Produce, broker: str) -> dict[str, str]:
    return {**sink.options, "broker": broker, "topic": topic_name(sink.topic)}


def _write_all(name: str, sinks: Sequence[Sink], broker: str, mode: str, batch: DataFrame, number: int) -> None:
    """One batch to all sinks; it is computed once."""
    kept = batch.persist() if len(sinks) > 1 else batch
    try:
        for sink in sinks:
            _write(name, sink, broker, mode, kept, number)
    finally:
        if len(sinks) > 1:
            kept.unpersist()


def _write(name: str, sink: Sink, broker: str, mode: str, batch: DataFrame, number: int) -> None:
    match sink:
        case Folder():
            query = query_id(batch)
            path = f"{sink.path.rstrip('/')}/{QUERY_COLUMN}={query}/{BATCH_COLUMN}={number}"
            path = sink.path if mode == "complete" else path
            writer = batch.write.mode("overwrite").format(sink.format).options(**sink.options)
            (writer.partitionBy(*sink.partition_by) if sink.partition_by else writer).save(path)
        case Jdbc():
            write_table(name, sink, batch, query_id(batch), number, replace=mode == "complete")
        case Console():
            print(f"--- {name}: batch {number}")  # noqa: T201 - that is what it is for
            batch.show(sink.rows, truncate=False)
        case Produce():
            writer = for_topic(batch).write.format("flowshare").options(**_to_topic(sink, broker))
            writer.mode("append").save()


def query_id(batch: DataFrame) -> str:
    """The id of the query whose micro-batch this is: a new checkpoint is another query, which counts from 0 again."""
    found = batch.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
    assert found is not None, "only a streaming query has micro-batches"
    return str(found)


def for_topic(rows: DataFrame) -> DataFrame:
    """Rows without a `value` become JSON objects of all columns but those that the sink knows."""
    if "value" in rows.columns:
        return rows
    inside = [f"`{name}`" for name in rows.columns if name not in RECORD]
    beside = [f"`{name}`" for name in rows.columns if name in RECORD]
    return rows.selectExpr(*beside, f"to_json(struct({', '.join(inside)})) AS value")
