"""`format("flowshare")`: Spark's names for the source and the sink, and the stream reader that a share group feeds.

Spark runs the stream reader's methods in one process on the driver's machine, one after the other, and `read` in
executors. What happens to the group's records is in `flowshare.spark.source.microbatches`.

`spark.read` is a look at what the group has not finished, without taking anything: a batch query has no end that its
source would hear of, so nothing is acquired and nothing acknowledged, and `attempt` is 0. To take what is there
and end, use `readStream` with `trigger(availableNow=True)`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from flowshare.backend import open_backend
from flowshare.client.admin.admin import ShareAdmin
from flowshare.client.errors import ClientError, ServerError
from flowshare.clock import LoopClock
from flowshare.garbage import freeze
from flowshare.share.ranges import merged, minus
from flowshare.spark.source.columns import source_schema, value_decoder
from flowshare.spark.source.dead_letters import bury
from flowshare.spark.source.group import ISOLATION, topics_of
from flowshare.spark.source.microbatches import MicroBatches
from flowshare.spark.source.options import SourceOptions
from flowshare.spark.source.ranges import Offset, Range, share_out
from flowshare.spark.source.reading import ReadTask, read

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.datasource import DataSourceStreamWriter, DataSourceWriter
    from pyspark.sql.types import StructType

    from flowshare.protocol.messages import SharePartitionOffsets

logger = logging.getLogger("flowshare.spark")


class FlowshareSource(DataSource):
    """The data source: `spark.readStream`, `spark.read`, `df.writeStream` and `df.write` with `format("flowshare")`."""

    @classmethod
    def name(cls) -> str:
        """`flowshare`."""
        return "flowshare"

    def schema(self) -> str:
        """The source's columns. Raises: OptionError."""
        return source_schema(SourceOptions.parse(self.options).with_schema())

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        """The share group's stream. Raises: OptionError."""
        return ShareStreamReader(SourceOptions.parse(self.options).with_schema(), schema)

    def reader(self, schema: StructType) -> DataSourceReader:
        """What the group has not finished, looked at and not taken. Raises: OptionError."""
        return BrowsingReader(SourceOptions.parse(self.options).with_schema(), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """The sink of a batch. Raises: OptionError."""
        from flowshare.spark.sink.sink import batch_writer

        return batch_writer(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802 - Spark's name
        """The sink of a stream. Raises: OptionError."""
        from flowshare.spark.sink.sink import stream_writer

        return stream_writer(self.options, schema, overwrite)


def read_task(options: SourceOptions, schema: StructType, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    """The rows of a task, in an executor; what cannot be read becomes dead letters."""
    arrow_schema = to_arrow_schema(schema, timezone="UTC")
    task: ReadTask = partition.value
    for rows in read(task, arrow_schema, value_decoder(options, arrow_schema)):
        if rows.poison or rows.damaged:
            bury(task, rows, options)
        yield from rows.batches
    freeze()


def _end(*_: object) -> None:
    """Spark ends the source's process with SIGTERM, sometimes twice, which would leave what is held to lapse."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.exit(0)


class ShareStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A share group's records as a stream, acknowledged batch by batch."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._batches: MicroBatches | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Options and schema: executors need no more, and threads cannot be pickled."""
        return {"_options": self._options, "_schema": self._schema, "_batches": None}

    @property
    def _here(self) -> MicroBatches:
        if self._batches is None:
            self._batches = MicroBatches(self._options)
            signal.signal(signal.SIGTERM, _end)
        return self._batches

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Before the first acquisition."""
        return self._here.initial.to_json()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """`records_per_trigger`."""
        return ReadMaxRows(self._options.records_per_trigger)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Read what is there now, and end."""
        self._here.emptying = True

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Accept the batch `start`, which is committed, and acquire the next one; `start` when there is nothing."""
        del limit  # it is the option's, which is read where it is used
        begun = Offset.from_json(start)
        following = self._here.next(begun)
        return start if following is None else following.to_json()

    def reportLatestOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """What went wrong in this run so far, in the query's progress (`sources[…].latestOffset`): records that were
        lost, lost their lock, or were archived."""
        return self._here.told()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """The tasks that read the batch `end`."""
        if start["number"] == end["number"]:
            return []
        return [InputPartition(task) for task in self._here.tasks(Offset.from_json(end))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one task."""
        return read_task(self._options, self._schema, partition)

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing: Spark calls it no earlier than `latestOffset`, which proves it, too, and can be called again when
        the group is not reached. Between the two the checkpoint tells (`flowshare.spark.source.checkpoint`)."""

    def stop(self) -> None:
        """Accept what is committed, give back what is held besides, and leave the group."""
        if self._batches is not None:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)  # it is ending: half of it would be worse than a late end
            self._batches.close()


class BrowsingReader(DataSourceReader):
    """The unfinished records of a group as they are when the query is planned."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        """The tasks. Raises: OptionError, BackendError, ClientError."""
        return [InputPartition(task) for task in asyncio.run(_parts(self._options))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one task."""
        if partition.value is None:  # what Spark makes of no tasks
            return iter(())
        return read_task(self._options, self._schema, partition)


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
        configs = {entry.name: entry.value for entry in await admin.group_configs(options.group)}
        committed = configs.get(ISOLATION) == "read_committed"
        ranges = [one for name in topics for one in await _unfinished(options, admin, name, committed=committed)]
        return [
            ReadTask(
                broker=options.broker,
                hosts=() if backend.kafka is None else backend.kafka.hosts,
                ranges=tuple(part),
                topics=ids,
                committed=committed,
                lossy=True,  # nothing is taken, and retention goes on while one looks
            )
            for part in share_out(ranges, options.task_count)
        ]


async def _unfinished(options: SourceOptions, admin: ShareAdmin, topic: str, *, committed: bool) -> list[Range]:
    """What lies between the group's start offset and the end of the log, but for what is finished.

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
    """What behind the start offset is finished; nothing where the brokers keep it to themselves."""
    try:
        return await admin.finished_ranges(options.group, part)
    except ClientError as error:
        logger.warning("what of %s-%d is finished is not known: %s", part.topic, part.partition, error)
        return []
