"""Runs one declared pipeline as a streaming query: its source, the user's function, its sinks.

A folder of Spark's file sink belongs to one query with one checkpoint. Spark's file sink knows a batch by its number
alone. If a query counts from 0 again (its checkpoint is new, or older than the folder), the sink silently skips every
batch whose number is in the folder's `_spark_metadata`, and the records are accepted. So a folder is claimed for a
query before its first batch, by a file beside Spark's own, and a query whose checkpoint does not fit the folder is
refused before it acquires a record.

| the folder has | this query's checkpoint | |
|---|---|---|
| no batch | any | claimed |
| batches, and this query's claim | knows all of them | goes on |
| batches, and no claim | knows all of them | claimed: the query died before it could |
| batches, and another query's claim | any | refused |
| batches | is new, or knows fewer of them | refused |
"""

from __future__ import annotations

import json
import re
import time
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeGuard

from flowshare.agents.handler.ddl import NoColumn, struct_fields
from flowshare.agents.handler.errors import UsageError
from flowshare.agents.handler.send import topic_name
from flowshare.agents.handler.sinks import Console, Folder, Jdbc, Produce
from flowshare.log.folder import make_private
from flowshare.spark.registry import sink_options, source_options
from flowshare.spark.sessions import LOCAL_MANAGER, MANAGER, activate
from flowshare.spark.sink.outcomes import settling
from flowshare.spark.source.checkpoint import ASYNC_PROGRESS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from flowshare.agents.app.pipeline import SharePipeline
    from flowshare.agents.handler.sinks import Sink

EXECUTORS_S: Final = 10.0
"""The longest wait, in seconds, for the cluster's first executor, which tells how many tasks run at a time."""
RECORD: Final = frozenset({"key", "headers", "partition", "timestamp"})
"""Columns of a produced record besides its value."""


def start_query(pipeline: SharePipeline, spark: SparkSession, broker: str, *, once: bool) -> StreamingQuery:
    """Start a pipeline's query. once: read the present records, and end. Raises: UsageError, any error of Spark."""
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
    place = HadoopFolder(spark, checkpoint(pipeline))
    _checkpoint_manager(spark, place)
    if place.local and not pipeline.options.checkpoint:
        make_private(Path(checkpoint(pipeline)))  # Spark's own files in it are open to all
    output = HadoopFolder(spark, sinks[0].path) if sinks and _alone(sinks, pipeline.options.output_mode) else None
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
    """Check that the pipeline can run on this session's master. Raises: UsageError with what to do."""
    master = str(spark.sparkContext.master)
    if broker.startswith("embedded:") and not master.startswith("local"):
        raise UsageError(
            f"pipeline {pipeline.name}: an embedded path is one machine's, and the tasks on {master} run on others, "
            "which cannot read it: serve it (`flowshare serve --data PATH --listen HOST:9092`) and use "
            "kafka://HOST:9092 as the broker, or run the pipeline with --master local[N]"
        )
    check_sinks(pipeline)


def check_sinks(pipeline: SharePipeline) -> None:
    """Refuse options of sinks that would lose batches. Raises: UsageError."""
    for sink in pipeline.options.sink or ():
        for name in getattr(sink, "options", ()):
            if name.lower().lstrip("_").startswith("asyncprogresstracking"):
                raise UsageError(f"pipeline {pipeline.name}: {name} is refused. {ASYNC_PROGRESS}")


def tasks(spark: SparkSession) -> int:
    """Return the number of tasks that the session's executors run at a time; waits for a cluster's first executor.
    Blocks."""
    context = spark.sparkContext
    until_s = time.monotonic() + EXECUTORS_S
    while not str(context.master).startswith("local") and time.monotonic() < until_s:
        if context._jsc.sc().getExecutorMemoryStatus().size() > 1:  # noqa: SLF001 - the driver is one of them
            break
        time.sleep(0.1)
    return max(1, int(context.defaultParallelism))


def source(pipeline: SharePipeline, spark: SparkSession, broker: str) -> DataFrame:
    """Return the stream of a pipeline's records; values are columns if the topic declares their type."""
    place = HadoopFolder(spark, checkpoint(pipeline)).path
    options = source_options_of(pipeline, broker, tasks(spark), place)
    return spark.readStream.format("flowshare").options(**options).load()


def source_options_of(pipeline: SharePipeline, broker: str, task_count: int, place: str = "") -> dict[str, str]:
    """Return the options of the pipeline's source, as Spark takes them.

    place: the checkpoint with its file system, as the source cannot resolve it: it runs in another folder, and knows
    no default file system. Raises: UsageError: values cannot be columns.
    """
    options: dict[str, str] = {"broker": broker, "group": pipeline.group, "topics": ",".join(pipeline.topics)}
    options |= {"checkpoint": place, "tasks": str(task_count)}
    codecs = [getattr(channel, "value_codec", None) for channel in pipeline.channels]
    if "value" not in pipeline.options.source and any(codecs):
        options |= _of_codecs(pipeline, codecs)
    elif "value" not in pipeline.options.source and pipeline.value_type not in (None, bytes):
        try:
            schema = struct_fields(pipeline.value_type)
        except NoColumn as error:
            raise UsageError(f"pipeline {pipeline.name}: {error}") from error
        if schema is not None:
            options |= {"value": "json", "value_schema": schema}
    for name, value in pipeline.options.source.items():
        options[name] = _text(value)
    return options


def _of_codecs(pipeline: SharePipeline, codecs: Sequence[Any]) -> dict[str, str]:
    """Return the options to read values of the topics' codecs. Raises: UsageError."""
    try:
        found = [source_options(codec) for codec in codecs if codec is not None]
        if len(found) < len(codecs) or any(one != found[0] for one in found):
            raise UsageError("its topics have different codecs: give each a pipeline of its own")
    except (NoColumn, UsageError) as error:
        raise UsageError(f"pipeline {pipeline.name}: {error}") from error
    return found[0]


def checkpoint(pipeline: SharePipeline) -> str:
    """Return the folder of the query's write-ahead log, as it was given: `HadoopFolder` resolves it."""
    given = pipeline.options.checkpoint
    return given or str(Path(pipeline.app.conf.datadir).absolute() / "pipelines" / pipeline.name)


def _checkpoint_manager(spark: SparkSession, place: HadoopFolder) -> None:
    """Write the checkpoint by renaming files, which is fast, only where that is atomic."""
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
            pipeline.refuse_unrun(pipeline.fun(*(batch, number)[: pipeline.arguments]))

    return stream.writeStream.outputMode(pipeline.options.output_mode).foreachBatch(call)


def _writer(pipeline: SharePipeline, rows: DataFrame, sinks: Sequence[Sink], broker: str) -> DataStreamWriter:
    """Return Spark's own sink if it knows its batches, else a writer of each batch to each sink."""
    mode = pipeline.options.output_mode
    writer = rows.writeStream.outputMode(mode)
    (first, *others) = sinks
    if isinstance(first, Folder) and _alone(sinks, mode):
        writer = writer.format(first.format).options(**first.options).option("path", first.path)
        return writer.partitionBy(*first.partition_by) if first.partition_by else writer
    if not others and isinstance(first, Produce) and mode != "complete":
        writer = for_topic(rows, first).writeStream.outputMode(mode)
        return writer.format("flowshare").options(delivery=first.delivery, **_to_topic(first, broker))
    return writer.foreachBatch(partial(_write_all, pipeline.name, tuple(sinks), broker, mode))


def _alone(sinks: Sequence[Sink], mode: str) -> TypeGuard[tuple[Folder]]:
    """True if Spark's own file sink writes the rows: one folder, in append mode. That sink knows its batches."""
    return len(sinks) == 1 and mode == "append" and isinstance(sinks[0], Folder)


def _to_topic(sink: Produce, broker: str) -> dict[str, str]:
    codec = getattr(sink.topic, "value_codec", None)
    by_codec = {} if codec is None else sink_options(codec)
    return {**by_codec, **sink.options, "broker": broker, "topic": topic_name(sink.topic)}


def _write_all(name: str, sinks: Sequence[Sink], broker: str, mode: str, batch: DataFrame, number: int) -> None:
    """Write one batch to all sinks; the batch is computed once."""
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
            path = f"{sink.path.rstrip('/')}/{QUERY}={query}/{BATCH}={number}"
            path = sink.path if mode == "complete" else path
            writer = batch.write.mode("overwrite").format(sink.format).options(**sink.options)
            (writer.partitionBy(*sink.partition_by) if sink.partition_by else writer).save(path)
        case Jdbc():
            write_table(name, sink, batch, query_id(batch), number, replace=mode == "complete")
        case Console():
            print(f"--- {name}: batch {number}")  # noqa: T201 - that is what it is for
            batch.show(sink.rows, truncate=False)
        case Produce():
            writer = for_topic(batch, sink).write.format("flowshare").options(**_to_topic(sink, broker))
            writer.mode("append").save()


def query_id(batch: DataFrame) -> str:
    """Return the id of the query of a micro-batch; a new checkpoint is another query, which counts from 0 again."""
    found = batch.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
    assert found is not None, "only a streaming query has micro-batches"
    return str(found)


def for_topic(rows: DataFrame, sink: Produce) -> DataFrame:
    """Return rows with a `value`: without one, JSON objects of all columns but those that the sink knows; structs of
    them if the topic has a codec or the sink a registry."""
    if "value" in rows.columns:
        return rows
    inside = [f"`{name}`" for name in rows.columns if name not in RECORD]
    beside = [f"`{name}`" for name in rows.columns if name in RECORD]
    struct = f"struct({', '.join(inside)})"
    encoded = getattr(sink.topic, "value_codec", None) is not None or "registry" in sink.options
    return rows.selectExpr(*beside, f"{struct} AS value" if encoded else f"to_json({struct}) AS value")


CLAIM: Final = "_flowshare_query"
"""The file with a folder's claim; Spark's readers ignore names that begin with `_`."""
METADATA: Final = "_spark_metadata"


class HadoopFolder:
    """A folder on any file system that Spark reaches."""

    def __init__(self, spark: SparkSession, root: str) -> None:
        jvm: Any = spark._jvm  # noqa: SLF001 - py4j's way to Hadoop's file systems
        self._jvm = jvm
        self._root = jvm.org.apache.hadoop.fs.Path(root)
        self._system: Any = self._root.getFileSystem(spark._jsparkSession.sessionState().newHadoopConf())  # noqa: SLF001
        self.path = str(self._system.makeQualified(self._root).toString())
        """The path with the file system's scheme."""

    @property
    def local(self) -> bool:
        """True if the folder is on a file system of this machine."""
        return str(self._system.getScheme()) == "file"

    def newest(self, name: str) -> int:
        """Return the highest number among the files of one of Spark's logs; −1: no file."""
        folder = self._at(name)
        if not self._system.exists(folder):
            return -1
        names = [str(one.getPath().getName()).removesuffix(".compact") for one in self._system.listStatus(folder)]
        return max((int(one) for one in names if one.isdigit()), default=-1)

    def read(self, name: str) -> str | None:
        """Return a file's text; None: no file."""
        at = self._at(name)
        if not self._system.exists(at):
            return None
        with closing(self._system.open(at)) as stream:
            return str(self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))

    def write(self, name: str, text: str) -> None:
        """Write a file, over an existing one."""
        with closing(self._system.create(self._at(name), True)) as stream:
            stream.write(bytearray(text.encode()))

    def _at(self, name: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(self._root, name)


def query_of(checkpoint: HadoopFolder) -> str | None:
    """Return the id of a checkpoint's query; None: the checkpoint is new."""
    text = checkpoint.read("metadata")
    return None if text is None else str(json.loads(text)["id"])


def check_claim(name: str, folder: HadoopFolder, checkpoint: HadoopFolder) -> None:
    """Check, before a pipeline starts, that its folder fits its checkpoint. Raises: UsageError with what to do."""
    written = folder.newest(METADATA)
    if written < 0:
        return
    known, query = checkpoint.newest("offsets"), query_of(checkpoint)
    claim = json.loads(folder.read(CLAIM) or "{}")
    if written <= known and claim.get("query", query) == query:
        return
    what = f"its checkpoint {checkpoint.path} is new" if known < 0 else f"its checkpoint has {known + 1} of them"
    if query is not None and claim.get("query", query) != query:
        what = "they are another query's"
    where = f" It was written with the checkpoint {claim['checkpoint']}." if "checkpoint" in claim else ""
    raise UsageError(
        f"pipeline {name}: the folder {folder.path} has {written + 1} batches of a query, and {what}: Spark's file "
        f"sink would leave out batches of the same numbers, and their records would be lost.{where} Give the pipeline "
        "that checkpoint (checkpoint=…), or another folder, or delete the folder with what is in it"
    )


def claim(folder: HadoopFolder, checkpoint: HadoopFolder, query: str) -> None:
    """Claim a folder for a query."""
    text = json.dumps({"query": query, "checkpoint": checkpoint.path})
    if folder.read(CLAIM) != text:
        folder.write(CLAIM, text)


# --- tables of databases -------------------------------------------------------------------------------------------

PIPELINE, QUERY, BATCH = "flowshare_pipeline", "flowshare_query", "flowshare_batch"
TABLE: Final = re.compile(r"[A-Za-z_][\w$]*(\.[A-Za-z_][\w$]*){0,2}")


def write_table(name: str, sink: Jdbc, batch: DataFrame, query: str, number: int, *, replace: bool) -> None:
    """Write the rows of a query's batch, once. replace: the rows become the table's whole content.

    Rows carry the pipeline's name, the query's id and the batch's number; rows of an earlier try of the same batch are
    deleted first. A batch is repeated only when the query died before Spark had recorded it, so its number is the
    query's highest, and deleting by it finds all rows of the earlier try. A new checkpoint is a new query, which counts
    from 0 again and does not touch the rows of earlier ones.
    Raises: UsageError, any error of Spark.
    """
    from pyspark.sql.functions import lit

    if TABLE.fullmatch(sink.table) is None:
        raise UsageError(f"pipeline {name}: table {sink.table!r} is no name of a table")
    rows = batch.withColumns({PIPELINE: lit(name), QUERY: lit(query), BATCH: lit(number).cast("bigint")})
    options = {**sink.properties, "url": sink.url, "dbtable": sink.table}
    _prepare(sink, options, rows, query, number, delete=not replace)
    writer = rows.write.format("jdbc").options(**options)
    if replace:
        writer.option("truncate", "true").mode("overwrite").save()
    else:
        writer.mode("append").save()


def _prepare(sink: Jdbc, options: dict[str, str], rows: DataFrame, query: str, number: int, *, delete: bool) -> None:
    """Create the table if it is missing, else delete the rows of an earlier try; over a connection of the driver.

    Spark creates missing tables only in databases whose errors it can tell apart.
    """
    jvm: Any = rows.sparkSession._jvm  # noqa: SLF001 - py4j's way to java.sql
    jdbc = jvm.org.apache.spark.sql.execution.datasources.jdbc
    properties = jvm.java.util.Properties()
    for key, value in sink.properties.items():
        properties.setProperty(key, value)
    if "driver" in sink.properties:
        jdbc.DriverRegistry.register(sink.properties["driver"])
    connection = jvm.java.sql.DriverManager.getConnection(sink.url, properties)
    try:
        facts = connection.getMetaData()
        upper, lower = facts.storesUpperCaseIdentifiers(), facts.storesLowerCaseIdentifiers()
        name_kept = sink.table.upper() if upper else sink.table.lower() if lower else sink.table
        schema, _, table = name_kept.rpartition(".")
        found = facts.getTables(None, schema or None, table, None)
        there = found.next()
        found.close()
        if not there:
            made = jdbc.JdbcOptionsInWrite(jvm.PythonUtils.toScalaMap(options))
            columns = rows._jdf.schema()  # noqa: SLF001 - Java's own
            jdbc.JdbcUtils.createTable(connection, sink.table, columns, False, made)
        elif delete:
            statement = connection.prepareStatement(f"DELETE FROM {sink.table} WHERE {QUERY} = ? AND {BATCH} = ?")  # noqa: S608 - checked
            statement.setString(1, query)
            statement.setLong(2, number)
            statement.executeUpdate()
            statement.close()
    finally:
        connection.close()
