"""The sink: writes a DataFrame, or a streaming query's batches, to topics.

`write` runs in executors' Python workers, once for each task attempt; `commit` and `abort` of a stream run in a process
at the driver's side, once for each batch. At least once: `write` returns when every row is confirmed by the broker, and
Spark tries a failed task again, with the rows it had sent already. Exactly once is in `transactions.py`.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    DataSourceStreamWriter,
    DataSourceWriter,
    WriterCommitMessage,
)

from flowshare.agents.handler.errors import OptionError
from flowshare.spark.checks import FORMAT
from flowshare.spark.registry import ValueEncoder
from flowshare.spark.sink.broker import SinkError, open_broker
from flowshare.spark.sink.columns import Layout
from flowshare.spark.sink.options import SinkOptions
from flowshare.spark.sink.producing import BatchQueue, Encoder
from flowshare.spark.sink.transactions import Prepared, TaskOrigin, TaskTransaction, decided, end, settle

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from flowshare.spark.sink.broker import OpenBroker

QUERY, BATCH = "sql.streaming.queryId", "streaming.sql.batchId"
"""Names of a task's query and batch among the properties that Spark hands to it."""
OUTCOME = "outcome"

logger = logging.getLogger("flowshare.spark")


def batch_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> DataSourceWriter:
    """Return the writer of `df.write`. Raises: OptionError."""
    if overwrite:
        raise OptionError(f'{FORMAT} adds to topics and replaces nothing: write .mode("append")')
    if _has_outcome(schema):
        from flowshare.spark.sink.outcomes import BatchOutcomeWriter

        return BatchOutcomeWriter(options, schema)
    parsed = SinkOptions.parse(options)
    if parsed.exactly_once or parsed.batch_header:
        name = "delivery=exactly_once" if parsed.exactly_once else "batch_header=true"
        raise OptionError(
            f"{name} takes a streaming query, whose batches have numbers: use df.writeStream (a finite source with "
            ".trigger(availableNow=True)), or leave it out"
        )
    return BatchWriter(parsed, Layout.of(schema, parsed))


def stream_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
    """Return the writer of `df.writeStream`, which adds rows to the rows in the topics. Raises: OptionError."""
    del overwrite  # that is output mode `complete`: each batch's whole result is sent, as Spark's own Kafka sink does
    if _has_outcome(schema):
        from flowshare.spark.sink.outcomes import OutcomeWriter

        return OutcomeWriter(options, schema)
    parsed = SinkOptions.parse(options)
    if parsed.exactly_once and not parsed.ledger_topic:
        raise OptionError(
            "exactly_once with a column 'topic' needs .option(\"batches_topic\", …), an existing topic under whose "
            "name it is kept which batches are finished; nothing is written to it"
        )
    return StreamWriter(parsed, Layout.of(schema, parsed))


def _has_outcome(schema: StructType) -> bool:
    return any(column.name.lower() == OUTCOME for column in schema.fields)


@dataclass(frozen=True)
class TaskWritten(WriterCommitMessage):
    """The report of a task to the driver. rows: rows sent. prepared: its open transaction, if there is one."""

    rows: int
    query: str = ""
    prepared: Prepared | None = None


class _TopicWriter:
    def __init__(self, options: SinkOptions, layout: Layout) -> None:
        self._options = options
        self._layout = layout

    def _encoded(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the batches with values as bytes."""
        if self._options.value == "bytes":
            return batches
        places = self._layout.places
        encoder = ValueEncoder(self._options, self._options.subject)
        return encoder.batches(batches, places["value"], self._layout.topic, places.get("topic", -1))


class BatchWriter(_TopicWriter, DataSourceArrowWriter):
    """Writes a DataFrame, at least once."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskWritten:
        """Send a task's rows. Raises: SinkError, ClientError: the task fails, and is tried again."""
        return TaskWritten(write_rows(self._options, self._layout, self._encoded(iterator), None))


class StreamWriter(_TopicWriter, DataSourceStreamArrowWriter):
    """Writes a streaming query's batches."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskWritten:
        """Send a task's rows; with exactly_once they count when the driver has committed the batch.

        Raises: SinkError, ClientError: the task fails, and is tried again.
        """
        origin = task_origin()
        iterator = self._encoded(iterator)
        if self._options.exactly_once:
            return write_once(self._options, self._layout, iterator, origin)
        return TaskWritten(write_rows(self._options, self._layout, iterator, origin), origin.query)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Commit the transactions of all tasks, which have written. Raises: SinkError, ClientError: the query fails."""
        query, prepared = _told(messages)
        if self._options.exactly_once and query:
            with open_broker(self._options) as broker:
                broker.call(settle(broker, query, batchId, prepared))

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Abort a failed batch. Spark calls this also when `commit` failed: a batch that may be decided is left
        alone."""
        query, prepared = _told(messages)
        if not prepared or None not in messages:
            return
        logger.warning("batch %d of query %s failed; its %d transactions are aborted", batchId, query, len(prepared))
        with open_broker(self._options) as broker:
            broker.call(end(broker, query, prepared, commit=False))


def _told(messages: Sequence[WriterCommitMessage | None]) -> tuple[str, list[Prepared]]:
    """Return the query id (empty: nothing was written) and the transactions of a batch's tasks."""
    written = [one for one in messages if isinstance(one, TaskWritten)]
    query = next((one.query for one in written if one.query), "")
    return query, [one.prepared for one in written if one.prepared is not None]


def task_origin() -> TaskOrigin:
    """Return query, batch and number of this task. Raises: SinkError (no task of a streaming query)."""
    context = TaskContext.get()
    query = None if context is None else context.getLocalProperty(QUERY)
    batch = None if context is None else context.getLocalProperty(BATCH)
    if context is None or not query or not batch:
        raise SinkError("this is no task of a streaming query: Spark named neither query nor batch")
    return TaskOrigin(query, int(batch), context.partitionId())


# --- a task's rows ------------------------------------------------------------------------------------------------


def write_rows(
    options: SinkOptions, layout: Layout, iterator: Iterator[pa.RecordBatch], origin: TaskOrigin | None
) -> int:
    """Send rows; return their number when all are confirmed. Raises: SinkError, ClientError."""
    batches = _filled(iterator)
    if batches is None:
        return 0
    with open_broker(options) as broker:
        queue = BatchQueue(broker, broker.call(broker.producer()))
        return _send(broker, layout, queue, batches, origin)


def write_once(
    options: SinkOptions, layout: Layout, iterator: Iterator[pa.RecordBatch], origin: TaskOrigin
) -> TaskWritten:
    """Send rows in a transaction that is left open, unless their batch was decided already.

    Raises: SinkError, ClientError.
    """
    batches = _filled(iterator)
    if batches is None:
        return TaskWritten(0, origin.query)
    with open_broker(options) as broker:
        before = broker.call(decided(broker, origin.query))
        if before.batch >= origin.batch:
            logger.warning("%s was written before (batch %d is): nothing is sent", origin, before.batch)
            for _ in batches:  # Spark's worker expects its input to be taken
                pass
            return TaskWritten(0, origin.query)
        transaction = TaskTransaction(broker, origin)
        try:
            broker.call(transaction.begin())
            queue = BatchQueue(broker, transaction.producer)
            rows = _send(broker, layout, queue, batches, origin)
            prepared = broker.call(transaction.prepared(queue.places[0]))
        except BaseException:
            broker.call(transaction.abort())
            raise
        return TaskWritten(rows, origin.query, prepared)


def _filled(iterator: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch] | None:
    """Return the batches with rows; None: there are none, and no broker need be opened."""
    batches = (batch for batch in iterator if batch.num_rows)
    first = next(batches, None)
    return None if first is None else itertools.chain((first,), batches)


def _send(
    broker: OpenBroker,
    layout: Layout,
    queue: BatchQueue,
    batches: Iterator[pa.RecordBatch],
    origin: TaskOrigin | None,
) -> int:
    encoder = Encoder(layout, queue, str(origin) if broker.options.batch_header else None)
    for batch in batches:
        encoder.add(batch)
    encoder.close()
    queue.finish()
    return encoder.rows
