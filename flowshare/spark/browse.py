"""`spark.read.format("flowshare")`: a look at what the group has not finished, without taking anything.

A batch query has no end that its source would hear of, so nothing is acquired and nothing acknowledged, and
`delivery_count` is 0. To take what is there and end, use `readStream` with `trigger(availableNow=True)`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition

from flowshare.backend import open_backend
from flowshare.backend.base import Asked
from flowshare.client.admin import ShareAdmin
from flowshare.client.errors import ClientError, ServerError
from flowshare.clock import LoopClock
from flowshare.spark.group import ISOLATION, topics_of
from flowshare.spark.ranges import Range, share_out
from flowshare.spark.reading import Part

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from flowshare.protocol.messages import Connection, SharePartitionOffsets
    from flowshare.spark.options import SourceOptions

logger = logging.getLogger("flowshare.spark")


class BrowsingReader(DataSourceReader):
    """The unfinished records of a group as they are when the query is planned."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        """The tasks. Raises: OptionError, BackendError, ClientError."""
        from flowshare.spark.source import TaskPart

        return [TaskPart(part) for part in asyncio.run(_parts(self._options))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one task."""
        from flowshare.spark.source import read_part

        if partition.value is None:  # what Spark makes of no tasks
            return iter(())
        return read_part(self._options, self._schema, partition)


async def _parts(options: SourceOptions) -> list[Part]:
    clock = LoopClock()
    backend = open_backend(options.broker, clock=clock, asked=Asked({options.group: ()}))
    await backend.start()
    try:

        async def connect() -> Connection:
            return await backend.connect("spark-browse")

        admin = ShareAdmin(connect, clock=clock, client_id="spark")
        try:
            topics = await topics_of(options, admin)
            ids = {name: str((await admin.describe_topic(name)).topic_id) for name in topics}
            configs = {entry.name: entry.value for entry in await admin.group_configs(options.group)}
            committed = configs.get(ISOLATION) == "read_committed"
            ranges = [one for name in topics for one in await _unfinished(options, admin, name, committed=committed)]
            return [
                Part(
                    broker=options.broker,
                    hosts=() if backend.kafka is None else backend.kafka.hosts,
                    ranges=tuple(part),
                    topics=ids,
                    committed=committed,
                    lossy=True,  # nothing is taken, and retention goes on while one looks
                )
                for part in share_out(ranges, options.task_count)
            ]
        finally:
            await admin.close()
    finally:
        await backend.close()


async def _unfinished(options: SourceOptions, admin: ShareAdmin, topic: str, *, committed: bool) -> list[Range]:
    """What lies between the group's start offset and the end of the log, but for what is finished.

    committed: the end is where the first open transaction begins.
    """
    try:
        known = {part.partition: part for part in await admin.group_offsets(options.group, [topic])}
    except ServerError:  # there is no such group yet
        known = {}
    found: list[Range] = []
    for partition in range((await admin.describe_topic(topic)).partitions):
        bounds = await admin.offsets(topic, partition, committed=committed)
        part = known.get(partition)
        begun = part is not None and part.start_offset >= 0
        first = max(bounds.log_start, part.start_offset if begun and part is not None else bounds.log_start)
        if first >= bounds.high_watermark:
            continue
        finished = await _finished(options, admin, part) if begun and part is not None else []
        at = first
        for low, high in sorted(finished):
            if low > at:
                found.append(Range(topic, partition, at, low - 1, 0))
            at = max(at, high + 1)
        if at < bounds.high_watermark:
            found.append(Range(topic, partition, at, bounds.high_watermark - 1, 0))
    return found


async def _finished(options: SourceOptions, admin: ShareAdmin, part: SharePartitionOffsets) -> list[tuple[int, int]]:
    """What behind the start offset is finished; nothing where the brokers keep it to themselves."""
    try:
        return await admin.finished_ranges(options.group, part)
    except ClientError as error:
        logger.warning("what of %s-%d is finished is not known: %s", part.topic, part.partition, error)
        return []
