"""One declared pipeline as a streaming query: its source, the user's function, its sinks."""

from __future__ import annotations

import json
import logging
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from flowshare.agents.ddl import NoColumn, struct_fields
from flowshare.agents.errors import UsageError
from flowshare.agents.send import topic_name
from flowshare.agents.sinks import Console, Folder, Jdbc, Produce
from flowshare.spark.jdbc import write_table
from flowshare.spark.session import activate

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from flowshare.agents.pipeline import SharePipeline
    from flowshare.agents.sinks import Sink

BATCH_COLUMN: Final = "flowshare_batch"
RECORD: Final = frozenset({"key", "headers", "partition", "timestamp"})
"""Columns that say something of a produced record beside its value."""

logger = logging.getLogger("flowshare.spark")


def start_query(pipeline: SharePipeline, spark: SparkSession, broker: str, *, once: bool) -> StreamingQuery:
    """Start a pipeline's query. once: read what is there, and end. Raises: UsageError, what Spark raises."""
    activate(spark)  # this is a thread of the supervisor's
    stream = source(pipeline, spark, broker)
    sinks = pipeline.options.sink
    if sinks is None:
        writer = _each_batch(pipeline, stream)
    else:
        rows = pipeline.fun(stream)
        if rows is None or not hasattr(rows, "writeStream"):
            raise UsageError(f"pipeline {pipeline.name}: the function returns {rows!r}, and sinks need a DataFrame")
        writer = _writer(pipeline, rows, sinks, broker)
    writer = writer.queryName(pipeline.name).option("checkpointLocation", checkpoint(pipeline))
    if once:
        writer = writer.trigger(availableNow=True)
    elif pipeline.options.trigger is not None:
        writer = writer.trigger(processingTime=pipeline.options.trigger)
    return writer.start()


def source(pipeline: SharePipeline, spark: SparkSession, broker: str) -> DataFrame:
    """The stream of a pipeline's records; values are columns where the topic says what they are."""
    options: dict[str, str] = {"broker": broker, "group": pipeline.group, "topics": ",".join(pipeline.topics)}
    options["checkpoint"] = checkpoint(pipeline)
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


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return value if isinstance(value, str) else json.dumps(value)


# --- writers ------------------------------------------------------------------------------------------------------


def _each_batch(pipeline: SharePipeline, stream: DataFrame) -> DataStreamWriter:
    def call(batch: DataFrame, number: int) -> None:
        pipeline.fun(*(batch, number)[: pipeline.arguments])

    return stream.writeStream.outputMode(pipeline.options.output_mode).foreachBatch(call)


def _writer(pipeline: SharePipeline, rows: DataFrame, sinks: Sequence[Sink], broker: str) -> DataStreamWriter:
    """Spark's own sink where there is one that knows its batches, else each batch to each sink."""
    mode = pipeline.options.output_mode
    writer = rows.writeStream.outputMode(mode)
    (first, *others) = sinks
    if not others and mode == "append" and isinstance(first, Folder):
        writer = writer.format(first.format).options(**first.options).option("path", first.path)
        return writer.partitionBy(*first.partition_by) if first.partition_by else writer
    if not others and isinstance(first, Produce) and mode != "complete":
        writer = for_topic(rows).writeStream.outputMode(mode)
        return writer.format("flowshare").options(delivery=first.delivery, **_to_topic(first, broker))
    return writer.foreachBatch(partial(_write_all, pipeline.name, tuple(sinks), broker, mode))


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
            path = sink.path if mode == "complete" else f"{sink.path.rstrip('/')}/{BATCH_COLUMN}={number}"
            writer = batch.write.mode("overwrite").format(sink.format).options(**sink.options)
            (writer.partitionBy(*sink.partition_by) if sink.partition_by else writer).save(path)
        case Jdbc():
            write_table(name, sink, batch, number, replace=mode == "complete")
        case Console():
            print(f"--- {name}: batch {number}")  # noqa: T201 - that is what it is for
            batch.show(sink.rows, truncate=False)
        case Produce():
            writer = for_topic(batch).write.format("flowshare").options(**_to_topic(sink, broker))
            writer.mode("append").save()


def for_topic(rows: DataFrame) -> DataFrame:
    """Rows without a `value` become JSON objects of all columns but those that the sink knows."""
    if "value" in rows.columns:
        return rows
    inside = [f"`{name}`" for name in rows.columns if name not in RECORD]
    beside = [f"`{name}`" for name in rows.columns if name in RECORD]
    return rows.selectExpr(*beside, f"to_json(struct({', '.join(inside)})) AS value")
