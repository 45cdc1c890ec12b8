"""`format("flowshare")`: Spark's names for the source and the sink, and the stream reader that a share group feeds.

Spark runs the reader's methods in one process on the driver's machine, one after the other, and `read` in executors
(reference spark.md §1). What happens to the group's records is in `flowshare.spark.driver`.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from flowshare.spark.columns import source_schema, value_decoder
from flowshare.spark.driver import Driver
from flowshare.spark.garbage import freeze
from flowshare.spark.options import SourceOptions
from flowshare.spark.poison import bury
from flowshare.spark.ranges import Offset
from flowshare.spark.reading import Part, read

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.datasource import DataSourceStreamWriter, DataSourceWriter
    from pyspark.sql.types import StructType


class FlowshareSource(DataSource):
    """The data source: `spark.readStream`, `spark.read`, `df.writeStream` and `df.write` with `format("flowshare")`."""

    @classmethod
    def name(cls) -> str:
        """`flowshare`."""
        return "flowshare"

    def schema(self) -> str:
        """The source's columns. Raises: OptionError."""
        return source_schema(SourceOptions.parse(self.options))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        """The share group's stream. Raises: OptionError."""
        return ShareStreamReader(SourceOptions.parse(self.options), schema)

    def reader(self, schema: StructType) -> DataSourceReader:
        """What the group has not finished, looked at and not taken. Raises: OptionError."""
        from flowshare.spark.browse import BrowsingReader

        return BrowsingReader(SourceOptions.parse(self.options), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """The sink of a batch. Raises: OptionError."""
        from flowshare.spark.sink import batch_writer

        return batch_writer(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802 - Spark's name
        """The sink of a stream. Raises: OptionError."""
        from flowshare.spark.sink import stream_writer

        return stream_writer(self.options, schema, overwrite)


class TaskPart(InputPartition):
    """What one task reads."""

    def __init__(self, part: Part) -> None:
        super().__init__(part)


def read_part(options: SourceOptions, schema: StructType, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    """The rows of a task's part, in an executor; what cannot be read becomes dead letters."""
    from pyspark.sql.pandas.types import to_arrow_schema

    arrow_schema = to_arrow_schema(schema, timezone="UTC")
    part: Part = partition.value
    for rows in read(part, arrow_schema, value_decoder(options, arrow_schema)):
        if rows.poison or rows.damaged:
            bury(part, rows, options)
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
        self._driver: Driver | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Options and schema: executors need no more, and threads cannot be pickled."""
        return {"_options": self._options, "_schema": self._schema, "_driver": None}

    @property
    def _here(self) -> Driver:
        if self._driver is None:
            self._driver = Driver(self._options)
            signal.signal(signal.SIGTERM, _end)
        return self._driver

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
        return [TaskPart(part) for part in self._here.parts(Offset.from_json(end))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one task."""
        return read_part(self._options, self._schema, partition)

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing: Spark calls it no earlier than `latestOffset`, which proves it, too, and can be called again when
        the group is not reached. Between the two the checkpoint tells (`flowshare.spark.checkpoint`)."""

    def stop(self) -> None:
        """Accept what is committed, give back what is held besides, and leave the group."""
        if self._driver is not None:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)  # it is ending: half of it would be worse than a late end
            self._driver.close()
