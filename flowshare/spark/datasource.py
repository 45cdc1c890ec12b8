"""`format("flowshare")`: registers source and sink with Spark, and reads a share group as a stream.

Spark runs the stream reader's methods in one process on the driver's machine, one after the other, and `read` in
executors. `flowshare.spark.source.microbatches` handles the group's records.

`spark.read` shows the group's unfinished records without acquiring: a batch query's source is not told the query's end,
so nothing is acquired and nothing acknowledged, and `attempt` is 0. To consume all present records and end, use
`readStream` with `trigger(availableNow=True)`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from flowshare.backend import open_backend
from flowshare.backend.embedded import EmbeddedBackend
from flowshare.client.admin.admin import ShareAdmin
from flowshare.client.errors import ClientError, ServerError
from flowshare.clock import LoopClock
from flowshare.garbage import freeze
from flowshare.share.ranges import merged, minus
from flowshare.spark.source.columns import source_schema, value_decoder
from flowshare.spark.source.dead_letters import bury
from flowshare.spark.source.group import topics_of
from flowshare.spark.source.microbatches import MicroBatches
from flowshare.spark.source.options import SourceOptions
from flowshare.spark.source.ranges import Offset, Range, share_out
from flowshare.spark.source.reading import ReadTask, read

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.datasource import DataSourceStreamWriter, DataSourceWriter
    from pyspark.sql.types import StructType

    from flowshare.backend.base import Backend
    from flowshare.protocol.messages import SharePartitionOffsets

logger = logging.getLogger("flowshare.spark")


class FlowshareSource(DataSource):
    """The data source: `spark.readStream`, `spark.read`, `df.writeStream` and `df.write` with `format("flowshare")`."""

    @classmethod
    def name(cls) -> str:
        """Return `flowshare`."""
        return "flowshare"

    def schema(self) -> str:
        """Return the source's columns. Raises: OptionError."""
        return source_schema(SourceOptions.parse(self.options).with_schema())

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        """Return the share group's stream. Raises: OptionError."""
        return ShareStreamReader(_checked(self.options, schema), schema)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return a reader of the records that the group has not finished. Reading acquires none of them. Raises:
        OptionError."""
        return BrowsingReader(_checked(self.options, schema), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return the sink of a batch. Raises: OptionError."""
        from flowshare.spark.sink.sink import batch_writer

        return batch_writer(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802 - Spark's name
        """Return the sink of a stream. Raises: OptionError."""
        from flowshare.spark.sink.sink import stream_writer

        return stream_writer(self.options, schema, overwrite)


def _checked(given: Mapping[str, str], schema: StructType) -> SourceOptions:
    """Parse options and check that their values fit the schema, before a task finds out. Raises: OptionError."""
    options = SourceOptions.parse(given).with_schema()
    value_decoder(options, to_arrow_schema(schema, timezone="UTC"))
    return options


def read_task(
    options: SourceOptions, schema: StructType, partition: InputPartition, *, takes: bool = True
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a task, in an executor; unreadable records become dead letters.

    takes: True: the records are acquired. False: unreadable records are only logged: the group still delivers them.
    """
    arrow_schema = to_arrow_schema(schema, timezone="UTC")
    task: ReadTask = partition.value
    for rows in read(task, arrow_schema, value_decoder(options, arrow_schema)):
        if rows.poison or rows.damaged:
            bury(task, rows, options if takes else replace(options, dead_letter="none"))
        yield from rows.batches
    freeze()


def _end(*_: object) -> None:
    """End the process on Spark's SIGTERM, which may come twice, in order: else held records would stay locked."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.exit(0)


class ShareStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A share group's records as a stream, acknowledged batch by batch."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._batches: MicroBatches | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Return options and schema: executors need no more, and threads cannot be pickled."""
        return {"_options": self._options, "_schema": self._schema, "_batches": None}

    @property
    def _here(self) -> MicroBatches:
        if self._batches is None:
            self._batches = MicroBatches(self._options)
            signal.signal(signal.SIGTERM, _end)
        return self._batches

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return the offset before the first acquire."""
        return self._here.initial.to_json()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """Return `records_per_trigger`."""
        return ReadMaxRows(self._options.records_per_trigger)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Read the records that are present now, and end."""
        self._here.emptying = True

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Accept the committed batch `start` and acquire the next one; return `start` when there is nothing to
        acquire."""
        del limit  # it is the option's, which is read where it is used
        begun = Offset.from_json(start)
        following = self._here.next(begun)
        return start if following is None else following.to_json()

    def reportLatestOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return figures for the query's progress (`sources[…].latestOffset`): the group's backlog, and how many
        records of this run were lost, lost their lock, or were archived."""
        return self._here.told()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Return the tasks that read the batch `end`."""
        if start["number"] == end["number"]:
            return []
        return [InputPartition(task) for task in self._here.tasks(Offset.from_json(end), Offset.from_json(start))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one task."""
        return read_task(self._options, self._schema, partition)

    def commit(self, end: dict[str, Any]) -> None:
        """Do nothing: Spark calls this no earlier than `latestOffset`, which proves the commit, too, and can be called
        again if the group is not reached. Until then the checkpoint has the proof
        (`flowshare.spark.source.checkpoint`)."""

    def stop(self) -> None:
        """Accept committed records, give back all other held ones, and leave the group."""
        if self._batches is not None:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)  # it is ending: half of it would be worse than a late end
            self._batches.close()


class BrowsingReader(DataSourceReader):
    """The unfinished records of a group at the moment when the query is planned."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        """Return the tasks. Raises: OptionError, BackendError, ClientError."""
        return [InputPartition(task) for task in asyncio.run(_parts(self._options))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one task."""
        if partition.value is None:  # what Spark makes of no tasks
            return iter(())
        return read_task(self._options, self._schema, partition, takes=False)


async def _parts(options: SourceOptions) -> list[ReadTask]:
    clock = LoopClock()
    backend = open_backend(options.broker, clock=clock, asked={options.group: ()})

    async with contextlib.AsyncExitStack() as stack:
        await backend.start()
        stack.push_async_callback(backend.close)
        admin = ShareAdmin(partial(backend.connect, "spark-browse"), clock=clock, client_id="spark")
        stack.push_async_callback(admin.close)
        topics = await topics_of(options, admin)
        ids = {name: str((await admin.describe_topic(name)).topic_id) for name in topics}
        committed = options.isolation == "read_committed"
        ranges = [one for name in topics for one in await _unfinished(options, admin, name, committed=committed)]
        return [
            ReadTask(
                broker=options.broker,
                hosts=_hosts(backend),
                ranges=tuple(part),
                topics=ids,
                committed=committed,
                lossy=True,  # nothing is taken, and retention goes on while one looks
            )
            for part in share_out(ranges, options.task_count)
        ]


def _hosts(backend: Backend) -> tuple[str, ...]:
    """Return the addresses from which tasks read the log; empty if this process leads an embedded path: it ends before
    they begin."""
    alone = isinstance(backend, EmbeddedBackend) and backend.leading
    return () if alone or backend.kafka is None else backend.kafka.hosts


async def _unfinished(options: SourceOptions, admin: ShareAdmin, topic: str, *, committed: bool) -> list[Range]:
    """Return the ranges between the group's start offset and the end of the log that the group has not finished.

    committed: the end is where the first open transaction begins.
    """
    try:
        parts = await admin.group_offsets(options.group, [topic])
    except ServerError:  # there is no such group yet
        parts = []
    known = {part.partition: part for part in parts if part.start_offset >= 0}
    found: list[Range] = []
    for partition in range((await admin.describe_topic(topic)).partitions):
        bounds = await admin.offsets(topic, partition, committed=committed)
        part = known.get(partition)
        first = bounds.log_start if part is None else max(bounds.log_start, part.start_offset)
        if first >= bounds.high_watermark:
            continue
        finished = [] if part is None else await _finished(options, admin, part)
        open_ = minus([(first, bounds.high_watermark - 1)], merged(finished))
        found += [Range(topic, partition, low, high, 0) for low, high in open_]
    return found


async def _finished(options: SourceOptions, admin: ShareAdmin, part: SharePartitionOffsets) -> list[tuple[int, int]]:
    """Return the finished ranges behind the start offset; empty, with a warning, if the brokers do not report them."""
    try:
        return await admin.finished_ranges(options.group, part)
    except ClientError as error:
        logger.warning("what of %s-%d is finished is not known: %s", part.topic, part.partition, error)
        return []
