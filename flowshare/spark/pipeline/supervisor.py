"""Runs an app's pipelines in one Spark session: restarts them after failures, reports their progress, ends them.

A query that fails is started again from its checkpoint after a pause that doubles (1 s to 60 s) while it keeps failing;
after a minute without failure the pause begins anew. All calls of Spark are in threads: the loop serves the health
pages and, for an embedded path or a fleet, the log itself.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from flowshare.agents.handler.texts import TEXT_MAX, named
from flowshare.agents.worker.keeper import pause
from flowshare.backoff import Backoff
from flowshare.client.admin.admin import ShareAdmin
from flowshare.client.errors import ClientError
from flowshare.spark.errors import SparkGone, brief, gone
from flowshare.spark.pipeline.query import HadoopFolder, checkpoint, start_query
from flowshare.spark.source.checkpoint import local_checkpoint
from flowshare.spark.source.microbatches import TROUBLES
from flowshare.spark.source.progress import backlog

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from flowshare.agents.app.pipeline import SharePipeline
    from flowshare.backend.base import Backend
    from flowshare.clock import Clock

PAUSES: Final = Backoff(1.0, 60.0)
WELL_S: Final = 60.0
"""The time, in seconds, after which a running query no longer counts as one that keeps failing."""
ONCE_TRIES: Final = 3
LOOK_S: Final = 0.25
NOTE_S: Final = 1.0
TELL_S: Final = 10.0
STOP_S: Final = 30.0
"""The longest time, in seconds, for the batch under way at the end."""
LEFT_S: Final = 12.0
"""The longest time, in seconds, for sources to accept committed records and to leave."""
LEFT_LOOK_S: Final = 0.05
BACKLOG_S: Final = 5.0
"""The time limit, in seconds, for the group's backlog: a broker that stands still must delay neither a stop nor a
query's restart."""

logger = logging.getLogger("flowshare.pipeline")


@dataclass(slots=True, kw_only=True)
class PipelineFigures:
    """Figures of one pipeline. Rates are in records per second, times in seconds; −1: not known."""

    name: str
    group: str
    state: str = "starting"
    batches: int = 0
    records: int = 0
    rate: float = 0.0
    batch_s: float = 0.0
    backlog: int = -1
    failures: int = 0
    records_lost: int = 0
    locks_lost: int = 0
    records_archived: int = 0
    last_error: str = ""


@dataclass(slots=True, kw_only=True)
class _Running:
    pipeline: SharePipeline
    figures: PipelineFigures
    query: StreamingQuery | None = None
    place: str = ""
    """The checkpoint with its file system; empty: the query was never started."""
    since_s: float = 0.0
    noted_s: float = 0.0
    again_s: float = 0.0
    in_a_row: int = 0
    """The number of failures since the query ran well."""
    tries: int = 0
    counted: tuple[str, int] = ("", -1)
    """The run and its last batch whose records are counted."""
    troubles: dict[tuple[str, str], int] = field(default_factory=dict[tuple[str, str], int])
    """The number of troubles that the sources of a run have reported, by run and kind."""


class PipelineSupervisor:
    """Supervises pipelines on the loop that calls `run`."""

    def __init__(
        self,
        pipelines: Sequence[SharePipeline],
        *,
        spark: SparkSession,
        backend: Backend,
        broker: str,
        clock: Clock,
        once: bool = False,
    ) -> None:
        """broker: URL for the queries. once: each pipeline reads the present records, and ends."""
        self._spark = spark
        self._backend = backend
        self._broker = broker
        self._clock = clock
        self._once = once
        self._stop = asyncio.Event()
        self._running = [
            _Running(pipeline=one, figures=PipelineFigures(name=one.name, group=one.group)) for one in pipelines
        ]

    @property
    def figures(self) -> list[PipelineFigures]:
        """The figures of each pipeline."""
        return [one.figures for one in self._running]

    def stop(self) -> None:
        """Make `run` end; batches under way are finished first."""
        self._stop.set()

    async def run(self) -> bool:
        """Run until `stop`, or with `once` until all have ended; True: none was given up. Raises: SparkGone."""
        admin = ShareAdmin(partial(self._backend.connect, "pipelines"), clock=self._clock, client_id="pipelines")
        told_s = self._clock.monotonic()
        try:
            while not self._stop.is_set() and not self._ended():
                await self._look_after_all()
                if self._clock.monotonic() >= told_s + TELL_S:
                    told_s = self._clock.monotonic()
                    await self._tell(admin)
                await pause(self._stop, LOOK_S)
            await self._tell(admin)
        finally:
            await asyncio.gather(*(asyncio.to_thread(self._end, one) for one in self._running))
            await asyncio.gather(*(self._see_left(one, admin) for one in self._running))
            await admin.close()
        return all(one.figures.state != "failed" for one in self._running)

    async def _look_after_all(self) -> None:
        """Look after each pipeline. Raises: SparkGone: no query can ever run again in this process."""
        try:
            for one in self._running:
                await self._look_after(one)
        finally:
            why = await asyncio.to_thread(gone, self._spark.sparkContext, "its context was stopped")
            if why is not None:
                raise SparkGone(f"{why}. Start the pipelines again: they go on from their checkpoints") from None

    def _ended(self) -> bool:
        return all(one.figures.state in ("ended", "failed") for one in self._running)

    # --- one pipeline -----------------------------------------------------------------------------------------------

    async def _look_after(self, one: _Running) -> None:
        if one.figures.state in ("ended", "failed"):
            return
        now_s = self._clock.monotonic()
        if one.query is None:
            if now_s >= one.again_s:
                await self._begin(one)
            return
        if now_s >= one.noted_s + NOTE_S:
            one.noted_s = now_s
            await asyncio.to_thread(self._note, one)
        if await asyncio.to_thread(lambda: one.query is not None and one.query.isActive):
            if now_s - one.since_s >= WELL_S:
                one.in_a_row = 0  # the tries of a run of the present records are counted in all
            return
        error = await asyncio.to_thread(one.query.exception)
        await asyncio.to_thread(self._note, one)
        one.query = None
        if error is None and self._once:
            one.figures.state = "ended"
        else:
            self._failed(one, "it ended by itself" if error is None else str(error))

    async def _begin(self, one: _Running) -> None:
        one.tries += 1
        one.since_s = self._clock.monotonic()
        try:
            one.query = await asyncio.to_thread(self._start, one)
        except Exception as error:  # noqa: BLE001 - the user's function and Spark may raise anything
            self._failed(one, named(error, TEXT_MAX))
        else:
            one.figures.state = "running"
            logger.info(
                "pipeline=%s group=%s runs, checkpoint %s",
                one.figures.name,
                one.figures.group,
                one.place,
            )

    def _start(self, one: _Running) -> StreamingQuery:
        """Start the query. Blocks. Raises: UsageError, any error of Spark."""
        one.place = HadoopFolder(self._spark, checkpoint(one.pipeline)).path
        return start_query(one.pipeline, self._spark, self._broker, once=self._once)

    def _failed(self, one: _Running, error: str) -> None:
        figures = one.figures
        logger.debug("pipeline=%s failed: %s", figures.name, error)
        error = brief(error)
        figures.failures += 1
        figures.last_error = error
        if self._once and one.tries >= ONCE_TRIES:
            figures.state = "failed"
            logger.error("pipeline=%s failed %d times and is given up: %s", figures.name, one.tries, error)
            return
        figures.state = "waiting"
        one.in_a_row += 1
        pause_s = PAUSES.after(one.in_a_row)
        one.again_s = self._clock.monotonic() + pause_s
        logger.error("pipeline=%s failed and starts again in %.0f s: %s", figures.name, pause_s, error)

    def _end(self, one: _Running) -> None:
        """Finish the batch under way, then stop the query; does nothing when Spark has ended. Blocks."""
        query = one.query
        if query is None or gone(self._spark.sparkContext, ""):
            return
        try:
            if not query.isActive:
                return
            self._finish_batch(one, query)
            query.stop()
        except Exception as error:  # noqa: BLE001 - Spark's own wait (stopTimeout) is over, or Spark is
            logger.warning(
                "pipeline=%s: its query does not end and goes down with Spark; its batch is run again next time: %s",
                one.figures.name,
                brief(str(error)),
            )
        one.figures.state = "stopped"

    def _finish_batch(self, one: _Running, query: StreamingQuery) -> None:
        deadline_s = self._clock.monotonic() + STOP_S
        while query.isActive and query.status.get("isTriggerActive") and query.status.get("isDataAvailable"):
            if self._clock.monotonic() >= deadline_s:
                logger.warning("pipeline=%s: its batch is cut off, and is run again next time", one.figures.name)
                return
            time.sleep(0.05)

    async def _see_left(self, one: _Running, admin: ShareAdmin) -> None:
        """Wait until the query's sources, in separate processes, have left their group: their last accepts need this
        process, which may lead the group, and a container ends with its first process."""
        place = local_checkpoint(one.place)
        sources = frozenset[str]() if place is None else await asyncio.to_thread(place.members)
        try:
            await self._clock.wait_for(self._until_left(one.figures.group, sources, admin), LEFT_S)
        except TimeoutError:
            logger.warning(
                "pipeline=%s: its source has not left group %s within %g s: what it committed last may not be "
                "accepted. This checkpoint leaves it out when it comes again, another one does not",
                one.figures.name,
                one.figures.group,
                LEFT_S,
            )

    async def _until_left(self, group: str, sources: frozenset[str], admin: ShareAdmin) -> None:
        while sources and await self._members(group, admin) & sources:
            await self._clock.sleep(LEFT_LOOK_S)

    async def _members(self, group: str, admin: ShareAdmin) -> frozenset[str]:
        try:
            return frozenset(member.member_id for member in (await admin.describe_group(group)).members)
        except (ClientError, OSError):
            return frozenset()  # nobody is in a group that is gone, or can do anything in one that is not reached

    # --- figures ----------------------------------------------------------------------------------------------------

    def _note(self, one: _Running) -> None:
        """Read Spark's progress reports of the batches that ended. Blocks."""
        assert one.query is not None
        for progress in one.query.recentProgress:
            found: Mapping[str, Any] = progress if isinstance(progress, dict) else {}
            run, batch = str(found.get("runId")), int(found.get("batchId", -1))
            rows = int(found.get("numInputRows") or 0)
            self._note_troubles(one, run, found.get("sources") or ())
            if not rows or (run == one.counted[0] and batch <= one.counted[1]):
                continue
            one.counted = (run, batch)
            one.figures.batches += 1
            one.figures.records += rows
            one.figures.rate = float(found.get("processedRowsPerSecond") or 0.0)
            one.figures.batch_s = float(found.get("batchDuration") or 0) / 1000

    def _note_troubles(self, one: _Running, run: str, sources: Sequence[Any]) -> None:
        """Read the sources' reports of troubles; a restarted source counts from 0."""
        for name, text in TROUBLES.items():
            count = sum(_trouble(source, name) for source in sources)
            before = one.troubles.get((run, name), 0)
            if count > before:
                setattr(one.figures, name, getattr(one.figures, name) + count - before)
                logger.error("pipeline=%s %s=%d more. %s", one.figures.name, name, count - before, text)
            one.troubles[run, name] = max(count, before)

    async def _look_up_backlog(self, one: _Running, admin: ShareAdmin) -> None:
        """Note the group's unfinished records; without an answer in time the number is unknown."""
        try:
            asked = backlog(admin, one.figures.group, one.pipeline.topics)
            one.figures.backlog = await self._clock.wait_for(asked, BACKLOG_S)
        except (ClientError, OSError) as error:
            one.figures.backlog = -1
            logger.debug("backlog of %s: %s", one.figures.group, error or type(error).__name__)

    async def _tell(self, admin: ShareAdmin) -> None:
        await asyncio.gather(*(self._look_up_backlog(one, admin) for one in self._running))
        for one in self._running:
            figures = one.figures
            logger.info(
                "pipeline=%s %s: %s records in %d batches, %s a second, last batch %.2f s, backlog %s",
                figures.name,
                figures.state,
                f"{figures.records:,}",
                figures.batches,
                f"{figures.rate:,.0f}",
                figures.batch_s,
                "unknown" if figures.backlog < 0 else f"{figures.backlog:,}",
            )


def _trouble(source: Any, name: str) -> int:
    """Return one of the counts in a source's progress; 0: none is reported."""
    told = source.get("latestOffset") if isinstance(source, dict) else None
    try:
        found = json.loads(told) if isinstance(told, str) else told
        return int(found.get(name, 0)) if isinstance(found, dict) else 0
    except (TypeError, ValueError):
        return 0
