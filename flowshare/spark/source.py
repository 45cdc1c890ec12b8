"""`format("flowshare")`: Spark's names for the source and the sink, and the stream reader that a share group feeds.

Spark runs the reader's methods in one process on the driver's machine, one after the other, and `read` in executors
(reference spark.md §1). Invariants of the stream reader:

1. A record is accepted only when the batch it was in is in Spark's commit log. `latestOffset(start)` proves that of
   `start`; `commit` may come late or never.
2. Nothing is acquired that the offset which is returned does not hold.
3. A record in a committed batch whose accept was refused is in `done` until it is accepted or finished, and never in a
   second batch.

| state at a crash | what a restart finds |
|---|---|
| acquired, not in the write-ahead log | the locks lapse or go with the connection; delivered again; in one batch |
| in the log, not committed | Spark runs the batch again, from the log; accepted when it is committed |
| committed, not accepted | `latestOffset(start)` accepts; what is refused is `done`: swallowed when it comes again |
| accepted | nothing of it comes again |

With `recovery=drop`, and with outcomes, a batch that this process did not run is nobody's: it is neither read again
nor accepted, and the group delivers its records again.
"""

from __future__ import annotations

import logging
import signal
import sys
import time
import uuid
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from flowshare.agents.limits import DELIVERIES_MAX
from flowshare.client.errors import ClientError
from flowshare.spark.agent import OutcomeListener
from flowshare.spark.columns import source_schema, value_decoder
from flowshare.spark.garbage import freeze
from flowshare.spark.judge import Judge
from flowshare.spark.member import GroupMember
from flowshare.spark.options import SourceOptions
from flowshare.spark.passed import Passed
from flowshare.spark.poison import bury
from flowshare.spark.ranges import Done, Offset, Range, merged, records_in, share_out
from flowshare.spark.rate import Rate
from flowshare.spark.reading import Part, read

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.datasource import DataSourceStreamWriter, DataSourceWriter
    from pyspark.sql.types import StructType

PRUNE_S: Final = 10.0
"""How often `done` is held against the group's start offsets."""
EMPTY_S: Final = 5.0
"""How long past a lock's duration a run that empties the backlog waits for what others hold."""

logger = logging.getLogger("flowshare.spark")


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


class ShareStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A share group's records as a stream, acknowledged batch by batch."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._driver: _Driver | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Options and schema: executors need no more, and threads cannot be pickled."""
        return {"_options": self._options, "_schema": self._schema, "_driver": None}

    @property
    def _here(self) -> _Driver:
        if self._driver is None:
            self._driver = _Driver(self._options)
            # Spark ends this process with SIGTERM, which would leave what is held to lapse.
            signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
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

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """The tasks that read the batch `end`."""
        if start["number"] == end["number"]:
            return []
        return [TaskPart(part) for part in self._here.parts(Offset.from_json(end))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one task."""
        return read_part(self._options, self._schema, partition)

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing: `latestOffset` proves it, too, and can be called again when the group is not reached."""

    def stop(self) -> None:
        """Give back what is held, and leave the group."""
        if self._driver is not None:
            self._driver.close()


class _Driver:
    """The part that lives in the query's own process: one member, and what it knows of the batches."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self.initial = Offset(member=str(uuid.uuid4()))
        self.emptying = False
        self._member: GroupMember | None = None
        self._listener: OutcomeListener | None = None
        self._done: Done | None = None
        self._passed: Passed | None = None
        """Only where records can be archived unread."""
        self._unread: list[Range] = []
        """Finished by no batch, and not told yet."""
        self._completed = 0
        self._mine: set[int] = set()
        """Numbers of the batches that were acquired by this process."""
        self._rate = Rate(options.records_per_second, options.records_per_trigger)
        self._prune_s = 0.0

    def next(self, begun: Offset) -> Offset | None:
        """The offset behind `begun`, which is committed; None: there is nothing at the moment."""
        member = self._open(begun)
        try:
            self.complete(begun)
            self._prune(member)
            fresh = self._fresh(member)
        except (ClientError, OSError) as error:
            logger.warning("group %s: %s", self._options.group, error)
            time.sleep(self._options.wait)  # a broker that is away is waited for, not a reason to fail
            return None
        if not fresh:
            return None
        self._mine.add(begun.number + 1)
        assert self._done is not None
        return Offset(
            number=begun.number + 1,
            member=member.member_id,
            ranges=tuple(fresh),
            done=tuple(self._done.ranges()),
            topics=member.topics,
            starts=self._passed.starts if self._passed else {},
            passed=tuple(self._passed.ranges()) if self._passed else (),
        )

    def complete(self, offset: Offset) -> None:
        """Accept the batch `offset`, whose completion is proven."""
        member = self._open(offset)
        if self._done is None:
            self._done = Done(offset.done)
        if offset.number <= self._completed:
            return
        if self._ours(offset):
            self._accept(member, self._done, offset)
            if self._passed is not None:
                self._passed.add(offset.ranges)
        self._completed = offset.number  # not before: what raises on the way is tried again with the next trigger

    def _accept(self, member: GroupMember, done: Done, offset: Offset) -> None:
        # With outcomes some are settled already: what is left had no row.
        left = [piece for one in offset.ranges for piece in member.held(one)] if self._options.outcomes else None
        refused = member.accept(offset.ranges if left is None else left)
        if refused:
            logger.warning(
                "group %s: %d records of batch %d are not accepted, their locks were lost; they are left out when they "
                "come again",
                self._options.group,
                records_in(refused),
                offset.number,
            )
        if not self._options.outcomes:
            for one in refused:
                done.add(one)

    def parts(self, offset: Offset) -> list[Part]:
        """What the tasks of a batch read."""
        member = self._open(offset)
        if not self._ours(offset):
            return []
        return [
            Part(
                broker=self._options.broker,
                hosts=member.hosts,
                ranges=tuple(ranges),
                topics=dict(offset.topics),
                committed=member.facts.committed,
            )
            for ranges in share_out(offset.ranges, self._options.task_count)
        ]

    def close(self) -> None:
        """Give back what is held, and leave the group."""
        if self._listener is not None:
            self._listener.close()
        member, self._member = self._member, None
        if member is not None:
            member.close()

    # --- helpers --------------------------------------------------------------------------------------------------

    def _open(self, known: Offset) -> GroupMember:
        if self._member is None:
            member = GroupMember(self._options, known.member or self.initial.member)
            member.open()
            self._member = member
            if not member.facts.endless:
                self._passed = Passed(known.starts, known.passed)
            if known.member != self.initial.member:  # this process takes another one's place
                member.adopt(known.ranges if self._ours(known) else ())
            if self._options.outcomes:
                self._listener = OutcomeListener(
                    self._options.broker, self._options.group, Judge(self._options, member).take
                )
        return self._member

    def _ours(self, offset: Offset) -> bool:
        """Whether a batch is to be finished, whoever acquired it."""
        again = self._options.recovery == "rerun" and not self._options.outcomes
        return again or offset.number in self._mine

    def _fresh(self, member: GroupMember) -> list[Range]:
        """Ranges for a batch, none of which was in one that is committed."""
        deadline = time.monotonic() + EMPTY_S + member.lock_s if self.emptying else 0.0
        room = self._rate.room(time.monotonic())
        if room <= 0:
            time.sleep(self._options.wait)
            return []
        while True:
            got = member.acquire(room, self._options.wait)
            fresh = self._swallow(member, got)
            if fresh:
                if self._passed is not None:
                    self._passed.begin(got)
                self._rate.took(records_in(fresh), time.monotonic())
                self._warn_of_end(member, fresh)
                return merged(fresh)
            if not got and not (time.monotonic() < deadline and member.backlog()):
                return []

    def _swallow(self, member: GroupMember, got: list[Range]) -> list[Range]:
        """Accept what comes again of committed batches; the rest."""
        assert self._done is not None
        fresh: list[Range] = []
        again: list[Range] = []
        for one in got:
            inside, outside = self._done.split(one)
            again += inside
            fresh += outside
        if again:
            refused = Done(member.accept(again))
            for one in again:
                for accepted in refused.split(one)[1]:
                    self._done.remove(accepted)
        return fresh

    def _prune(self, member: GroupMember) -> None:
        """Forget what the group has finished; tell of what it finished unread."""
        assert self._done is not None
        if not (self._done or self._passed) or time.monotonic() < self._prune_s:
            return
        self._prune_s = time.monotonic() + PRUNE_S
        starts = member.starts()
        self._done.prune(starts)
        if self._passed is not None:
            self._unread += self._passed.advance(starts)
        # Kept until they are counted: the group may not be reached just now.
        count = member.count_unread(self._unread) if self._unread else 0
        unread, self._unread = self._unread, []
        if count:
            first = unread[0]
            logger.error(
                "group %s: the brokers archived %d records that were in no batch, the first at %s-%d@%d: they were "
                "delivered %d times to a query that died before it had written them down. They are still in the log; "
                "raise %s, and see why the query died",
                self._options.group,
                count,
                first.topic,
                first.partition,
                first.first,
                member.facts.deliveries,
                DELIVERIES_MAX,
            )

    def _warn_of_end(self, member: GroupMember, fresh: list[Range]) -> None:
        if member.facts.endless:
            return
        last = [one for one in fresh if one.delivery >= member.facts.deliveries - 1]
        if last:
            logger.error(
                "group %s: %d records are at delivery %d of %d, after which the brokers archive them unread; the query "
                "fails again and again between an acquire and its write-ahead log: see its log, and raise %s",
                self._options.group,
                records_in(last),
                max(one.delivery for one in last),
                member.facts.deliveries,
                DELIVERIES_MAX,
            )
