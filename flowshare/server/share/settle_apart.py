"""Settles whose outputs lie elsewhere than the state (`log.base.SettlesApart`), beside the writes of a share-partition.

    decided, PENDING --its outputs are committed--> committed; its update is queued as one that stays
                     --refused, or certainly not written--> aborted
                     --not known here, and never will be--> PENDING for good: the next leader finds out

A settle waits for no write of the share-partition, and none waits for it: snapshots show its records as acquired until
it is committed, and the update that follows comes after each of those. In an ordered group the settle begins when
earlier decisions are durable, because it may stand in a chain behind them; and the next records of its keys wait for
its end.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from flowshare.core_errors import InvalidRecordState
from flowshare.log.base import LogError, Undecided
from flowshare.server.runtime.settled import encode_settled
from flowshare.tasks import cancelled

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from flowshare.clock import Clock
    from flowshare.log.base import SettlesApart
    from flowshare.server.runtime.state import Write
    from flowshare.server.share.stats import Stats
    from flowshare.server.share.writing import Step
    from flowshare.share.partition import Decision, SharePartition
    from flowshare.share.types import PartitionUpdate

CLOSE_S: Final = 5.0
"""Seconds that a closing owner waits for settles under way; the next load finds out the rest."""
LOST: Final = "the records were lost with the log's end while they were being settled"

logger = logging.getLogger(__name__)


class ApartSettles:
    """The settles of one share-partition.

    share: start of its state keys. before: waits until all queued steps are durable (None: they are); raises
    StorageError. keep: queues an update that stays, with the writes beside it. lost: called when a decision is told as
    lost, so that the next write has to show all. changed: called after each end.
    """

    def __init__(
        self,
        store: SettlesApart,
        share: bytes,
        partition: SharePartition,
        *,
        clock: Clock,
        stats: Stats,
        before: Callable[[], Awaitable[None] | None],
        keep: Callable[[PartitionUpdate | None, Sequence[Write]], None],
        lost: Callable[[], None],
        changed: Callable[[], object],
    ) -> None:
        self._store = store
        self._share = share
        self._partition = partition
        self._clock = clock
        self._stats = stats
        self._before = before
        self._keep = keep
        self._lost = lost
        self._changed = changed
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def idle(self) -> bool:
        """True if no settle is under way."""
        return not self._tasks

    def begin(self, step: Step) -> None:
        """Carry out a settle; its future is done when the outcome is known."""
        assert step.decision is not None, "outputs are written with what settles their inputs"
        self._partition.hold_back(step.decision)
        before = self._before() if self._partition.ordered else None
        task = asyncio.get_running_loop().create_task(self._carry_out(step, step.decision, before), name="settle apart")
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    async def close(self) -> None:
        """Wait for settles under way, with a limit."""
        if self._tasks:
            try:
                await self._clock.wait_for(asyncio.wait(set(self._tasks)), CLOSE_S)
            except TimeoutError:
                logger.warning("%d settles of a share-partition are left undecided", len(self._tasks))
        await cancelled(*self._tasks)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._changed()

    async def _carry_out(self, step: Step, decision: Decision, before: Awaitable[None] | None) -> None:
        try:
            if before is not None:
                await before
            following = await self._store.settle_apart(self._share, encode_settled(decision), step.beside, step.outputs)
        except Undecided as error:
            step.fail(error)
        except LogError as error:
            self._abort(step, decision, error)
        except asyncio.CancelledError:
            step.fail(Undecided("the share-partition was closed before its settle was decided"))
            raise
        except Exception as error:
            logger.exception("a settle failed unexpectedly")
            step.fail(Undecided(f"{type(error).__name__}: {error}"))
        else:
            self._commit(step, decision, following)

    def _abort(self, step: Step, decision: Decision, error: LogError) -> None:
        lapsed = self._partition.abort(decision, now_ms=self._clock.steady_ms())
        if lapsed is not None:
            self._keep(lapsed, ())
        step.fail(error)

    def _commit(self, step: Step, decision: Decision, following: Sequence[Write]) -> None:
        self._partition.commit(decision)
        self._stats.count_acks(step.batches)
        beside = [*step.beside, *following]
        if decision.lost:
            self._lost()
            self._keep(None, beside)
            step.fail(InvalidRecordState(LOST))
        else:
            self._keep(self._partition.committed(decision), beside)
            step.succeed()
        if step.done is not None:
            step.done()
