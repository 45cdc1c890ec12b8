"""Decided steps of one share-partition on their way into the store: queued, written together, then settled.

One write at a time, everything that is queued in each. A step with a decision is committed when its write is durable
and aborted when it failed. A step without one is applied already and stays so: after a failed write the whole state
is written again, after a back-off or with the next step, whichever is first.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final, NamedTuple

from flowshare.core_errors import InvalidRecordState
from flowshare.log.base import LogError, StorageError
from flowshare.server.runtime.state import cut, merge

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from flowshare.clock import Clock
    from flowshare.log.base import StateStore
    from flowshare.server.runtime.state import Journal, Write
    from flowshare.server.share.stats import Stats
    from flowshare.share.partition import Decision, SharePartition
    from flowshare.share.types import AcknowledgeBatch, PartitionUpdate

logger = logging.getLogger(__name__)

QUEUE_MAX: Final = 10_000
"""Steps waiting to be written; each covers records of its own, so that the limits on records are met before this."""
RETRY_FIRST_MS: Final = 1_000
RETRY_LAST_MS: Final = 30_000
LOST: Final = "the records were lost with the log's end while they were being acknowledged"


class _Step(NamedTuple):
    """A step that waits to be written. Without a decision it is applied already and stays so.

    beside: what is written with it. done: called when it is durable.
    """

    update: PartitionUpdate | None
    decision: Decision | None
    settled: asyncio.Future[None] | None
    batches: Sequence[AcknowledgeBatch] = ()
    beside: Sequence[Write] = ()
    done: Callable[[], object] | None = None


class StateWriter:
    """The queue of one share-partition. Its owner's task calls `write` whenever `due`."""

    def __init__(
        self,
        partition: SharePartition,
        *,
        journal: Journal,
        store: StateStore,
        clock: Clock,
        stats: Stats,
        where: str,
    ) -> None:
        self._partition = partition
        self._journal = journal
        self._store = store
        self._clock = clock
        self._stats = stats
        self._where = where
        self._queue: list[_Step] = []
        self._owed: dict[bytes, bytes | None] = {}
        """What is to be written beside the state of steps that stay, and could not be."""
        self._writing = False
        self._retry_ms = RETRY_FIRST_MS
        self.retry_at_ms: int | None = None
        """When what a failed write left out is written again."""

    @property
    def full(self) -> bool:
        """Whether no more steps are taken for now."""
        return len(self._queue) >= QUEUE_MAX

    @property
    def idle(self) -> bool:
        """Whether everything is written."""
        return not self._queue and not self._writing and self.retry_at_ms is None

    def due(self, *, closing: bool) -> bool:
        """Whether there is something to write now; an owner that closes waits for no back-off."""
        if self._queue:
            return True
        return self.retry_at_ms is not None and (closing or self.retry_at_ms <= self._clock.steady_ms())

    def add(
        self,
        update: PartitionUpdate | None,
        *,
        decision: Decision | None = None,
        batches: Sequence[AcknowledgeBatch] = (),
        beside: Sequence[Write] = (),
        done: Callable[[], object] | None = None,
    ) -> asyncio.Future[None]:
        """Queue a step; the future is done when it is durable and raises StorageError when it could not be written.

        beside: further writes, made in one piece with it or not at all. done: called just after the decision is
        committed.
        """
        settled: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.append(_Step(update, decision, settled, batches, beside, done))
        return settled

    def keep(self, update: PartitionUpdate | None, beside: Sequence[Write] = ()) -> None:
        """Queue a step that is applied and that nobody waits for; both are written until they are durable."""
        self._queue.append(_Step(update, None, None, (), beside))

    def cut(self, end: int, update: PartitionUpdate) -> None:
        """The log was cut at `end`, by which the state has changed as `update` says; the next write tells all of it."""
        self._queue = [
            step if step.update is None else step._replace(update=cut(step.update, end)) for step in self._queue
        ]
        self._journal.snapshot_due = True
        self.keep(update)

    async def write(self, *, closing: bool) -> bool:
        """Write all that is queued and settle it; whether it is durable now."""
        steps, self._queue = self._queue, []
        updates = [step.update for step in steps if step.update is not None]
        update = merge(updates) if updates else None
        beside = {**self._owed, **dict(write for step in steps for write in step.beside)}
        self._stats.state_writes += 1
        self._writing = True
        try:
            await self._store.write([*self._journal.plan(update, self._partition), *beside.items()])
        except LogError as error:
            self._not_written(steps, error, closing=closing)
            return False
        except BaseException as error:
            self._fail(steps, StorageError(f"{type(error).__name__}: {error}"))
            raise
        finally:
            self._writing = False
        self._journal.done(update)
        self._owed.clear()
        self.retry_at_ms = None
        self._retry_ms = RETRY_FIRST_MS
        for step in steps:
            if step.decision is not None:
                self._partition.commit(step.decision)
                self._stats.count_acks(step.batches)
            if step.done is not None:
                step.done()
            if step.settled is None or step.settled.done():
                continue
            if step.decision is not None and step.decision.lost:
                step.settled.set_exception(InvalidRecordState(LOST))
                step.settled.exception()  # seen, as in `_fail`
            else:
                step.settled.set_result(None)
        return True

    def give_up(self, error: Exception) -> None:
        """Nothing will be written any more: fail what is queued."""
        steps, self._queue = self._queue, []
        self._fail(steps, StorageError(f"{type(error).__name__}: {error}"))

    def _not_written(self, steps: list[_Step], error: LogError, *, closing: bool) -> None:
        logger.error("share-partition state could not be written: %s %s", error, self._where)
        self._stats.failed_state_writes += 1
        if self._partition.ordered:  # a chain is settled in order, or not at all
            behind, self._queue = self._queue, []
            steps = [*steps, *behind]
        self._fail(steps, error)
        self._owed.update(write for step in steps if step.settled is None for write in step.beside)
        if closing:
            self.retry_at_ms = None
            return
        self._journal.snapshot_due = True
        self.retry_at_ms = self._clock.steady_ms() + self._retry_ms
        self._retry_ms = min(self._retry_ms * 2, RETRY_LAST_MS)

    def _fail(self, steps: list[_Step], error: LogError) -> None:
        for step in steps:
            if step.decision is not None:
                # What the abort changed beyond the decision is in memory and goes out with the next snapshot.
                self._partition.abort(step.decision, now_ms=self._clock.steady_ms())
            if step.settled is not None and not step.settled.done():
                step.settled.set_exception(error)
                step.settled.exception()  # seen: whoever asked may be gone, and asyncio would report it
