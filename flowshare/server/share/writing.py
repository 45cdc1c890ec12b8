"""Decided steps of one share-partition on their way into the store: queued, written together, then settled.

One write at a time, each with all queued steps. A step with a decision is committed when its write is durable and
aborted when the write failed. A step that stays is applied already, whatever becomes of its write: after a failed write
the whole state is written again, after a back-off or with the next step, whichever is first.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final, NamedTuple

from flowshare.backoff import SLOW
from flowshare.core_errors import InvalidRecordState
from flowshare.log.base import LogError, NotDecided, OutputRefused, SettlesApart, StorageError
from flowshare.server.runtime.state import cut, merge
from flowshare.server.share.settle_apart import ApartSettles

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from flowshare.clock import Clock
    from flowshare.log.base import CheckedOutput, Storage
    from flowshare.server.runtime.state import Journal, Write
    from flowshare.server.share.stats import Stats
    from flowshare.share.partition import Decision, SharePartition
    from flowshare.share.types import AckRange, PartitionUpdate

logger = logging.getLogger(__name__)

QUEUE_MAX: Final = 10_000
"""Most steps waiting to be written; each covers records of its own, so that the limits on records are met earlier."""
KNOWN_S: Final = 3.0
"""Seconds that a question for a member's records waits for settles under way; members wait 6 s for the answer."""
BEFORE_REFUSED: Final = "an output of what was settled before it was refused; try again"
LOST: Final = "the records were lost with the log's end while they were being acknowledged"


class Step(NamedTuple):
    """A step that waits to be written.

    settled: for who waits for the step. beside: writes in the same piece. done: called when the step is durable.
    outputs: of the settled records, written in one step with it or not at all. stays: True if the step is applied
    already and stays so if it cannot be written; its `beside` is written again, too.
    """

    update: PartitionUpdate | None
    decision: Decision | None
    settled: asyncio.Future[None] | None
    batches: Sequence[AckRange] = ()
    beside: Sequence[Write] = ()
    done: Callable[[], object] | None = None
    outputs: Sequence[CheckedOutput] = ()
    stays: bool = False

    def succeed(self) -> None:
        """End the step as durable."""
        if self.settled is not None and not self.settled.done():
            self.settled.set_result(None)

    def fail(self, error: Exception) -> None:
        """End the step as failed or in doubt."""
        if self.settled is not None and not self.settled.done():
            self.settled.set_exception(error)
            self.settled.exception()  # seen: the caller may be gone, and asyncio would report it


class StateWriter:
    """The queue of one share-partition. Its owner's task calls `write` when `due`."""

    def __init__(
        self,
        partition: SharePartition,
        *,
        journal: Journal,
        store: Storage,
        clock: Clock,
        stats: Stats,
        where: str,
        changed: Callable[[], object] = lambda: None,
    ) -> None:
        """changed: called when a settle beside the queue has queued a step or freed records."""
        self._partition = partition
        self._journal = journal
        self._store = store
        self._clock = clock
        self._stats = stats
        self._where = where
        self._queue: list[Step] = []
        self._owed: dict[bytes, bytes | None] = {}
        """Entries to be written beside the state for steps that stay, although their write failed."""
        self._writing = False
        self._undecided: set[asyncio.Future[None]] = set()
        """Futures of decisions with unknown outcome."""
        self._failures = 0
        self._apart: ApartSettles | None = None
        if isinstance(store, SettlesApart):
            self._apart = ApartSettles(
                store,
                journal.prefix,
                partition,
                clock=clock,
                stats=stats,
                before=self._before,
                keep=self.keep,
                lost=self._show_all,
                changed=changed,
            )
        self.retry_at_ms: int | None = None
        """Time of the next write after a failed one, in ms of the steady clock; None: none."""

    @property
    def full(self) -> bool:
        """True if no more steps are accepted for now."""
        return len(self._queue) >= QUEUE_MAX

    @property
    def idle(self) -> bool:
        """True if everything is written."""
        written = not self._queue and not self._writing and self.retry_at_ms is None
        return written and (self._apart is None or self._apart.idle)

    def due(self, *, closing: bool) -> bool:
        """Return True if there is something to write now; a closing owner does not wait for a back-off."""
        if self._queue:
            return True
        return self.retry_at_ms is not None and (closing or self.retry_at_ms <= self._clock.steady_ms())

    def add(
        self,
        update: PartitionUpdate | None,
        *,
        decision: Decision | None = None,
        batches: Sequence[AckRange] = (),
        beside: Sequence[Write] = (),
        done: Callable[[], object] | None = None,
        outputs: Sequence[CheckedOutput] = (),
        stays: bool = False,
    ) -> asyncio.Future[None]:
        """Queue a step; the future is done when the step is durable and raises StorageError when it could not be
        written, OutputRefused when some of its outputs are refused.

        beside, outputs: further writes, made in one piece with it or not at all. done: called just after the decision
        is committed. stays: the step is applied already; if it cannot be written now, it is written later.
        """
        settled: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if decision is not None:
            self._undecided.add(settled)
            settled.add_done_callback(self._undecided.discard)
        step = Step(update, decision, settled, batches, beside, done, outputs, stays)
        if outputs and self._apart is not None:
            self._apart.begin(step)
        else:
            self._queue.append(step)
        return settled

    def keep(self, update: PartitionUpdate | None, beside: Sequence[Write] = ()) -> None:
        """Queue a step that is applied and that nobody waits for; `update` and `beside` are written until they are
        durable."""
        self._queue.append(Step(update, None, None, (), beside, stays=True))

    def cut(self, end: int, update: PartitionUpdate) -> None:
        """Adjust queued steps to a log cut at `end`, which has changed the state by `update`; the next write has the
        whole state."""
        self._queue = [
            step if step.update is None else step._replace(update=cut(step.update, end)) for step in self._queue
        ]
        self._journal.snapshot_due = True
        self.keep(update)

    async def write(self, *, closing: bool) -> bool:
        """Write and settle all queued steps; return True if they are durable now."""
        steps, self._queue = self._queue, []
        self._stats.state_writes += 1
        self._writing = True
        began_s = self._clock.monotonic()
        try:
            steps, update = await self._written(steps)
        except LogError as error:
            self._not_written(steps, error, closing=closing)
            return False
        except BaseException as error:
            self._fail(steps, StorageError(f"{type(error).__name__}: {error}"))
            raise
        finally:
            self._writing = False
            self._stats.write_s.add(self._clock.monotonic() - began_s)
        self._journal.done(update)
        self._owed.clear()
        self.retry_at_ms = None
        self._failures = 0
        for step in steps:
            self._settle(step)
        return True

    async def _written(self, steps: list[Step]) -> tuple[list[Step], PartitionUpdate | None]:
        """Write the steps, failing those with refused outputs. Return the written steps, and their update. State and
        outputs are one write (SG-19.5).

        Raises: LogError: nothing is written, and all of `steps` that have not failed yet are to fail.
        """
        while True:
            updates = [step.update for step in steps if step.update is not None]
            update = merge(updates) if updates else None
            beside = {**self._owed, **dict(write for step in steps for write in step.beside)}
            writes = [*self._journal.plan(update, self._partition), *beside.items()]
            outputs = [output for step in steps for output in step.outputs]
            try:
                if outputs:
                    await self._store.settle(outputs, writes)
                else:
                    await self._store.write(writes)
            except OutputRefused as error:
                self._journal.undone()
                left = self._without_refused(steps, error)
                if len(left) == len(steps):
                    raise StorageError(f"outputs that nobody sent are refused: {error}") from error
                steps[:] = left
                continue
            return steps, update

    def _without_refused(self, steps: list[Step], error: OutputRefused) -> list[Step]:
        """Return the steps without refused outputs; fail the others, each with its own refusals."""
        left: list[Step] = []
        begin = 0
        for step in steps:
            end = begin + len(step.outputs)
            places = {index - begin: why for index, why in error.places.items() if begin <= index < end}
            begin = end
            if not places:
                left.append(step)
                continue
            self._fail([step], OutputRefused(places))
        if len(left) < len(steps) and self._partition.ordered:
            # Later steps of a chain are settled in order, and the next of a key is handed out after it, or not at all.
            behind, self._queue = self._queue, [step for step in self._queue if step.stays]
            undone = [step for step in (*left, *behind) if not step.stays]
            self._fail(undone, StorageError(BEFORE_REFUSED))
            return [step for step in left if step.stays]
        return left

    def _settle(self, step: Step) -> None:
        """End a durable step."""
        if step.decision is not None:
            self._partition.commit(step.decision)
            self._stats.count_acks(step.batches)
        if step.done is not None:
            step.done()
        if step.decision is not None and step.decision.lost:
            step.fail(InvalidRecordState(LOST))
        else:
            step.succeed()

    async def all_known(self) -> None:
        """Wait until each decision so far is durable, or known not to be. The wait has a limit where decisions depend
        on coordinators of transactions. Raises: NotDecided."""
        if not self._undecided:
            return
        known = asyncio.wait(tuple(self._undecided))
        if self._apart is None:
            await known
            return
        try:
            await self._clock.wait_for(known, KNOWN_S)
        except TimeoutError:
            raise NotDecided(f"whether settles are written is not known yet {self._where}") from None

    async def decided(self) -> None:
        """Wait for settles beside the queue, with a limit; then their results are queued."""
        if self._apart is not None and not self._apart.idle:
            await self._apart.close()

    def _before(self) -> Awaitable[None] | None:
        """Return a future, done when all queued steps are durable; None: they are."""
        return self.add(None) if self._queue or self._writing or self.retry_at_ms is not None else None

    def _show_all(self) -> None:
        """Have the next write show the whole state."""
        self._journal.snapshot_due = True

    def give_up(self, error: Exception) -> None:
        """Fail queued steps: nothing will be written any more."""
        steps, self._queue = self._queue, []
        self._fail(steps, StorageError(f"{type(error).__name__}: {error}"))

    def _not_written(self, steps: list[Step], error: LogError, *, closing: bool) -> None:
        logger.error("share-partition state could not be written: %s %s", error, self._where)
        self._stats.failed_state_writes += 1
        if self._partition.ordered:  # a chain is settled in order, or not at all
            behind, self._queue = self._queue, []
            steps = [*steps, *behind]
        self._fail(steps, error)
        self._owed.update(write for step in steps if step.stays for write in step.beside)
        if closing:
            self.retry_at_ms = None
            return
        self._journal.snapshot_due = True
        self._failures += 1
        self.retry_at_ms = self._clock.steady_ms() + round(SLOW.after(self._failures) * 1000)

    def _fail(self, steps: list[Step], error: LogError) -> None:
        for step in steps:
            now_ms = self._clock.steady_ms()
            if step.decision is not None and self._partition.abort(step.decision, now_ms=now_ms) is not None:
                # Changes of the abort beyond the decision are in memory and go out with the next snapshot.
                self._journal.snapshot_due = True
            if step.settled is not None and not step.settled.done():
                step.settled.set_exception(error)
                step.settled.exception()  # seen: the caller may be gone, and asyncio would report it
