"""Outcomes record by record: a DataFrame with an `outcome` column, written to the `flowshare` sink, acknowledges.

    stream = spark.readStream.format("flowshare").option("outcomes", "true")…load()
    judged = stream.selectExpr("topic", "partition", "offset", "IF(ok, 'accept', 'release') AS outcome")
    judged.writeStream.format("flowshare").option("broker", …).option("group", …).start()

| column | |
|---|---|
| topic, partition, offset | the record, as the source gave it |
| outcome | accept, release or reject |
| delay | seconds that a released record waits (optional; Kafka's brokers release at once) |
| reason | why it is rejected, for its dead letter (optional) |

A batch's outcomes are sent when all of its tasks have ended, by the source's process, which holds the locks. Records
without a row are accepted when the batch is committed. After a crash records whose outcome was not confirmed come
again: at least once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage

from flowshare.agents.errors import OptionError, refuse_unknown
from flowshare.spark.agent import deliver

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from flowshare.spark.ranges import Place

NEEDED: Final = ("topic", "partition", "offset", "outcome")
OPTIONAL: Final = ("delay", "reason")
KINDS: Final = frozenset({"accept", "release", "reject"})


class Outcome(NamedTuple):
    """What became of offsets `first` to `last`. delay: seconds."""

    topic: str
    partition: int
    first: int
    last: int
    kind: str
    delay: float = 0.0
    reason: str = ""

    @property
    def place(self) -> Place:
        """Topic and partition."""
        return self.topic, self.partition


class OutcomesMessage(WriterCommitMessage):
    """The outcomes of one task."""

    def __init__(self, outcomes: list[Outcome]) -> None:
        self.outcomes = outcomes


def stream_writer(options: Mapping[str, str], schema: StructType) -> OutcomeWriter:
    """The sink of outcomes. Raises: OptionError (an option or a column that it needs is not there)."""
    names = schema.fieldNames()
    refuse_unknown("a sink with an outcome column", names, (*NEEDED, *OPTIONAL))
    for name in NEEDED:
        if name not in names:
            raise OptionError(f"a sink with an outcome column needs the column {name!r}, as the source gave it")
    given = {key.lower(): text for key, text in options.items()}
    for name in ("broker", "group"):
        if not given.get(name):
            raise OptionError(f'a sink with an outcome column needs .option("{name}", …), the same as the source')
    return OutcomeWriter(given["broker"], given["group"])


class OutcomeWriter(DataSourceStreamArrowWriter):
    """Takes outcomes in the executors, and hands them to the source's process when the batch's tasks have ended."""

    def __init__(self, broker: str, group: str) -> None:
        self._broker = broker
        self._group = group

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Take the rows of a task. Raises: OptionError for an outcome that is none."""
        return OutcomesMessage(runs(row for batch in iterator for row in _rows(batch)))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Acknowledge. Raises: OutcomesLost when no source of this group is there: the batch fails, and comes again."""
        found = [one for message in messages if isinstance(message, OutcomesMessage) for one in message.outcomes]
        if found:
            deliver(self._broker, self._group, [tuple(one) for one in found])

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Nothing: nothing was acknowledged."""


def runs(rows: Iterator[Outcome]) -> list[Outcome]:
    """Rows as runs of neighbours with the same outcome."""
    found: list[Outcome] = []
    for row in sorted(rows):
        if found and found[-1]._replace(first=row.first, last=row.last) == row and found[-1].last + 1 >= row.first:
            found[-1] = found[-1]._replace(last=row.last)
        else:
            found.append(row)
    return found


def _rows(batch: pa.RecordBatch) -> Iterator[Outcome]:
    columns: dict[str, list[Any]] = {name: batch.column(name).to_pylist() for name in batch.schema.names}
    size = batch.num_rows
    delays = columns.get("delay", [None] * size)
    reasons = columns.get("reason", [None] * size)
    for index in range(size):
        kind = columns["outcome"][index]
        if kind not in KINDS:
            raise OptionError(f"outcome is {kind!r}; it is accept, release or reject")
        offset = columns["offset"][index]
        yield Outcome(
            columns["topic"][index],
            columns["partition"][index],
            offset,
            offset,
            kind,
            float(delays[index] or 0.0) if kind == "release" else 0.0,
            str(reasons[index] or "") if kind == "reject" else "",
        )
