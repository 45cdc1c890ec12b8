"""Outcomes record by record: a DataFrame with an `outcome` column, written to the `flowshare` sink, acknowledges.

    stream = spark.readStream.format("flowshare").option("outcomes", "true")…load()
    judged = stream.selectExpr("topic", "partition", "offset", "IF(ok, 'accept', 'release') AS outcome")
    judged.writeStream.format("flowshare").option("broker", …).option("group", …).start()

In `foreachBatch` a batch's rows go elsewhere as well, and `settle` takes its outcomes.

| column | |
|---|---|
| topic, partition, offset | the record, as the source gave it |
| outcome | accept, release or reject |
| delay | seconds that a released record waits (optional; Kafka's brokers release at once) |
| reason | why it is rejected, for its dead letter (optional) |

| when | what |
|---|---|
| a task has all its outcomes | it writes the dead letters of what it rejects, and waits until they are confirmed |
| all tasks have ended | the source's process, which holds the locks, sends the outcomes |
| the batch is committed | its records without a row are accepted |

A record is settled once, by its first outcome, even if its outcome is given again. After a crash, records without a
confirmed outcome come again: at least once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from flowshare.agents.handler.errors import OptionError, UsageError
from flowshare.spark.source.dead_letters import bury_rejected
from flowshare.spark.source.outcomes import TYPES, RangeOutcome, ask, deliver, no_source

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    from flowshare.spark.source.ranges import Place


NEEDED: Final = ("topic", "partition", "offset", "outcome")
OPTIONAL: Final = ("delay", "reason")


class OutcomesMessage(WriterCommitMessage):
    """The outcomes of one task."""

    def __init__(self, outcomes: list[RangeOutcome]) -> None:
        self.outcomes = outcomes


def _checked(options: Mapping[str, str], schema: StructType) -> tuple[str, str]:
    """Check columns and options, and return broker and group. Raises: OptionError."""
    names = schema.fieldNames()
    for name in names:
        if name not in (*NEEDED, *OPTIONAL):
            raise OptionError(
                f"a sink with an outcome column takes no column {name!r}: select {', '.join(NEEDED)}, and if need be "
                f"{' and '.join(OPTIONAL)}"
            )
    for name in NEEDED:
        if name not in names:
            raise OptionError(f"a sink with an outcome column needs the column {name!r}, as the source gave it")
    given = {key.lower(): text for key, text in options.items()}
    for name in ("broker", "group"):
        if not given.get(name):
            raise OptionError(f'a sink with an outcome column needs .option("{name}", …), the same as the source')
    return given["broker"], given["group"]


class _OutcomeSink:
    """Collects outcomes in the executors, and hands them to the source's process when the batch's tasks have ended."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        """Runs on the driver's machine, for each batch. Raises: OptionError (a needed option or column is missing),
        OutcomesLost."""
        self._broker, self._group = _checked(options, schema)
        self._sources = ask(self._broker, self._group)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Return the outcomes of a task, after the dead letters of its rejected records are written.

        Raises: OptionError (an unknown outcome); OutcomesLost (no source reads the group with outcomes), LogGone,
        ClientError, OSError: the task is tried again.
        """
        found = runs(row for batch in iterator for row in _rows(batch))
        rejected: dict[Place, dict[int, str]] = {}
        for one in found:
            if one.kind == "reject":
                of_place = rejected.setdefault(one.place, {})
                of_place |= dict.fromkeys(range(one.first, one.last + 1), one.reason)
        if rejected:
            if not self._sources:
                raise no_source(self._group)
            buried = bury_rejected(self._broker, self._group, self._sources, rejected)
            found = [one._replace(buried=buried and one.kind == "reject") for one in found]
        return OutcomesMessage(found)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int = -1) -> None:  # noqa: N803 - Spark's name
        """Acknowledge the batch. Raises: OutcomesLost: no source of this group is running: the batch fails, and comes
        again."""
        del batchId
        found = [one for message in messages if isinstance(message, OutcomesMessage) for one in message.outcomes]
        if found:
            deliver(self._broker, self._group, found)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int = -1) -> None:  # noqa: N803 - Spark's name
        """Do nothing: no record was acknowledged."""


class OutcomeWriter(_OutcomeSink, DataSourceStreamArrowWriter):
    """The sink of a streaming query's outcomes."""


class BatchOutcomeWriter(_OutcomeSink, DataSourceArrowWriter):
    """The sink of a micro-batch's outcomes, within foreachBatch."""


# --- in foreachBatch ----------------------------------------------------------------------------------------------

_home: ContextVar[tuple[str, str] | None] = ContextVar("flowshare_outcomes", default=None)
"""Broker and group of the declared pipeline whose function runs."""


@contextmanager
def settling(broker: str, group: str) -> Iterator[None]:
    """Make `settle` use this broker and group within the context."""
    token = _home.set((broker, group))
    try:
        yield
    finally:
        _home.reset(token)


def settle(judged: DataFrame, *, broker: str | None = None, group: str | None = None) -> None:
    """Settle records of the micro-batch of a foreachBatch function, and return when the outcomes are confirmed.

    judged: rows with the columns topic, partition, offset and outcome (accept, release or reject), and optionally delay
    and reason. Records without a row are accepted when the batch is committed. broker, group: as on the source, which
    has the option outcomes; within the function of a declared pipeline the pipeline's own are the default.
    Raises: UsageError (no broker or group), any error of Spark: let the batch fail then, its records come again.
    """
    own = _home.get() or (None, None)
    broker, group = broker or own[0], group or own[1]
    if broker is None or group is None:
        raise UsageError("outside of a declared pipeline, settle needs the source's broker=… and group=…")
    judged.write.format("flowshare").options(broker=broker, group=group).mode("append").save()


def runs(rows: Iterator[RangeOutcome]) -> list[RangeOutcome]:
    """Join rows to runs of neighbours with the same outcome."""
    found: list[RangeOutcome] = []
    for row in sorted(rows):
        if found and found[-1]._replace(first=row.first, last=row.last) == row and found[-1].last + 1 >= row.first:
            found[-1] = found[-1]._replace(last=row.last)
        else:
            found.append(row)
    return found


def _rows(batch: pa.RecordBatch) -> Iterator[RangeOutcome]:
    columns: dict[str, list[Any]] = {name: batch.column(name).to_pylist() for name in batch.schema.names}
    size = batch.num_rows
    delays = columns.get("delay", [None] * size)
    reasons = columns.get("reason", [None] * size)
    for index in range(size):
        kind = columns["outcome"][index]
        if kind not in TYPES:
            raise OptionError(f"outcome is {kind!r}; it is accept, release or reject")
        offset = columns["offset"][index]
        yield RangeOutcome(
            columns["topic"][index],
            columns["partition"][index],
            offset,
            offset,
            kind,
            float(delays[index] or 0.0) if kind == "release" else 0.0,
            str(reasons[index] or "") if kind == "reject" else "",
        )
