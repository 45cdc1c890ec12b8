"""The pool: `concurrency` slots that run one agent's handler, fed with chunks, handing back outcomes in bulk.

Three kinds share this base: `async def` handlers in long-lived tasks (`runner.py`), `def` handlers in threads
(`threads.py`), batch handlers (`batches.py`). Whichever finishes records appends to the chunk's lists and calls
`mark`; once per loop iteration everything finished goes to the service loop in one call.
"""

from __future__ import annotations

import abc
import asyncio
import contextvars
import logging
import sys
from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

from flowshare.agents.chunk import Chunk
from flowshare.agents.errors import UndecodableValue
from flowshare.agents.logs import where
from flowshare.agents.outcomes import Kind, Outcome, of_exception
from flowshare.agents.slots import GRACE_S, Held, Slot
from flowshare.agents.standstill import Gate
from flowshare.agents.texts import REASON_MAX, clip, of_user, place_of
from flowshare.agents.times import HandlerTimes
from flowshare.protocol.decoding import DecodedRecord, RawRecord

if TYPE_CHECKING:
    from flowshare.agents.agent import ShareAgent
    from flowshare.agents.stats import AgentStats
    from flowshare.clock import Clock, TimerHandle

logger = logging.getLogger("flowshare.agents")

HAND_OVER_S: Final = 0.005
"""Time between two hand-overs of few records from the handler loop to the service loop."""
HAND_OVER_RECORDS: Final = 1_000
"""So many finished records are handed over at once: the next fetch may wait for the room."""
_LOOK_S: Final = 0.001

Handed = list[tuple[Chunk, list[int], list[tuple[DecodedRecord, Outcome]]]]
"""Finished work: chunk, accepted offsets, other outcomes."""


class Pool(abc.ABC):
    """What the three kinds of pool have in common. `start`, `cancel` and `stop` run on the handler loop."""

    cancels = True
    """Whether `timeout` can end a handler (a thread cannot be stopped)."""
    fed_anywhere = False
    """Whether `feed` may be called on any thread, so that a blocked handler loop does not hold it up."""

    def __init__(
        self,
        agent: ShareAgent,
        *,
        clock: Clock,
        service_loop: asyncio.AbstractEventLoop,
        handler_loop: asyncio.AbstractEventLoop,
        stats: AgentStats,
    ) -> None:
        self.agent = agent
        self.clock = clock
        self.stats = stats
        self.times = HandlerTimes()
        self.queue: deque[Chunk] = deque()
        self.slots = [Slot(index) for index in range(agent.options.concurrency)]
        self.finished: Callable[[Handed], None] = _nobody
        """Set by the feeder; called on the service loop."""
        self.gate = Gate()
        """Handlers begin only while it is open; the feeder closes it."""
        self.renew: Callable[[Chunk, int], object] | None = None
        """Set by the feeder; callable from any thread."""
        self.context = contextvars.Context()
        self.stopping = False
        self._service_loop = service_loop
        self._handler_loop = handler_loop
        self._dirty: list[Chunk] = []
        self._flush_due = False
        self._handed_at = -1.0
        self._timer: TimerHandle | None = None

    # --- what kinds do ------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Be ready for chunks."""
        self.context = contextvars.copy_context()
        if "decimal" in sys.modules:
            # decimal makes its context at first use; made here, a handler's use of it changes no context variable.
            self.context.run(sys.modules["decimal"].getcontext)

    def feed(self, chunks: Iterable[Chunk]) -> None:
        """More to do; called on the handler loop."""
        for chunk in chunks:
            chunk.open()
            self.queue.append(chunk)
        self.wake()

    @abc.abstractmethod
    def wake(self) -> None:
        """Let idle slots look at the queue."""

    @abc.abstractmethod
    async def cancel(self) -> None:
        """The drain deadline has come: cancel what still runs, release it."""

    async def stop(self) -> None:
        """End all slots; nothing is handed over after that."""
        self.stopping = True
        self._disarm()

    # --- what is seen from outside ------------------------------------------------------------------------------

    @property
    def busy(self) -> int:
        """Slots at work."""
        return sum(slot.held is not None for slot in self.slots)

    def working_s(self) -> float:
        """How long the handlers that are at work have worked, together."""
        now = self.clock.monotonic()
        return sum(max(0.0, now - slot.started) for slot in self.slots if slot.held is not None)

    @property
    def overdue(self) -> int:
        """Handlers that run past their timeout and did not end when cancelled, or cannot be cancelled."""
        now, grace_s = self.clock.monotonic(), GRACE_S if self.cancels else 0.0
        timeout_s = self.agent.options.timeout
        return sum(slot.over_s(timeout_s, now) > grace_s for slot in self.slots)

    def problems(self) -> list[str]:
        """Why the agent is not healthy, one sentence each."""
        now, timeout_s = self.clock.monotonic(), self.agent.options.timeout
        grace_s = GRACE_S if self.cancels else 0.0
        found = []
        for slot in self.slots:
            if slot.over_s(timeout_s, now) > grace_s:
                records = slot.records()
                if records:
                    chunk, record = records[0]
                    at = where(chunk.agent, chunk.topic, chunk.partition, record.offset, record.delivery_count)
                    found.append(f"a handler runs past its timeout of {timeout_s} s and cannot be stopped: {at}")
        return found

    def running(self) -> list[Slot]:
        """Slots at work, as a snapshot."""
        return [slot for slot in self.slots if slot.held is not None]

    def abandoned(self, limit_s: float) -> set[tuple[int, int]]:
        """(id of chunk, offset) of cancellable handlers that are `limit_s` past their timeout: not to be renewed."""
        now, timeout_s = self.clock.monotonic(), self.agent.options.timeout
        if timeout_s is None or not self.cancels:
            return set()
        return {
            (id(chunk), record.offset)
            for slot in self.slots
            if slot.over_s(timeout_s, now) > limit_s
            for chunk, record in slot.records()
        }

    # --- finishing records --------------------------------------------------------------------------------------

    def mark(self, chunk: Chunk) -> None:
        """Something of this chunk is finished (or will be before the loop's next iteration)."""
        self._dirty.append(chunk)
        if not self._flush_due:
            self._flush_due = True
            self._handler_loop.call_soon(self.flush)

    def flush(self) -> None:
        """Hand what is finished to the service loop, as each time costs a thread switch: when it is much, when there
        is nothing else to do, or every 5 ms."""
        if self._service_loop is not self._handler_loop:
            now = self.clock.monotonic()
            early_s = self._handed_at + HAND_OVER_S - now
            if early_s > 0 and self.queue and not self.stopping and self._finished_now < HAND_OVER_RECORDS:
                self.clock.call_later(min(early_s, _LOOK_S), self.flush)
                return
            self._handed_at = now
        self._flush_due = False
        dirty, self._dirty = self._dirty, []
        handed: Handed = []
        for chunk in dirty:
            accepted, chunk.accepted = chunk.accepted, []
            others, chunk.others = chunk.others, []
            if accepted or others:
                handed.append((chunk, accepted, others))
        self.hand_over(handed)

    @property
    def _finished_now(self) -> int:
        return sum(len(chunk.accepted) for chunk in self._dirty)

    def hand_over(self, handed: Handed) -> None:
        """Call `finished` on the service loop."""
        if not handed:
            return
        if self._service_loop is self._handler_loop:
            self.finished(handed)
        elif not self._service_loop.is_closed():
            self._service_loop.call_soon_threadsafe(self.finished, handed)

    def finish(self, chunk: Chunk, record: RawRecord, outcome: Outcome) -> None:
        """Record an outcome other than the plain accept, which the workers do themselves."""
        self.mark(chunk)
        if outcome.kind is Kind.ACCEPT and not outcome.sends:
            chunk.accepted.append(record.offset)
        else:
            chunk.others.append((chunk.whole(record), outcome))

    def undecodable(self, chunk: Chunk, record: RawRecord, error: BaseException) -> None:
        """The value does not fit the annotation: to the dead letter."""
        self.stats.undecodable += 1
        explained = error if isinstance(error, UndecodableValue) else self.agent.explain(record.value, error)
        logger.error("%s: undecodable: %s", self._where(chunk, record), explained)
        self.finish(chunk, record, of_exception(self.agent, explained, chunk.attempt(record.offset)))

    def failed(self, chunk: Chunk, record: RawRecord, error: BaseException) -> Outcome:
        """Count and log an exception out of user code; returns its outcome."""
        outcome = of_exception(self.agent, error, chunk.attempt(record.offset), ending=self.stopping)
        if outcome.error is None:
            return outcome
        if outcome.kind is Kind.RELEASE:
            self.stats.cancelled += 1
        else:
            self.stats.handler_errors += 1
        if outcome.kind is Kind.DEAD:
            said = clip(outcome.reason, REASON_MAX)
            if isinstance(error, self.agent.options.reject):  # what the app expects, and says with `reject=`
                logger.info("%s: %s (%s)", self._where(chunk, record), said, place_of(error))
            else:
                exc_info = (type(error), error, of_user(error))
                logger.error("%s: %s", self._where(chunk, record), said, exc_info=exc_info)
        return outcome

    def timed_out(self, slot: Slot) -> None:
        """Count and log that a handler is past its timeout."""
        slot.timed_out = True
        self.stats.timed_out += len(slot.records())
        for chunk, record in slot.records()[:1]:
            logger.warning(
                "%s: the handler is past its timeout of %s s%s",
                self._where(chunk, record),
                self.agent.options.timeout,
                "" if self.cancels else "; a thread cannot be stopped, its lock is renewed until it ends",
            )

    # --- timeouts -----------------------------------------------------------------------------------------------

    def arm(self) -> None:
        """See to it that timeouts are looked at; one timer a pool, not one a record."""
        timeout_s = self.agent.options.timeout
        if timeout_s is not None and self._timer is None:
            self._timer = self.clock.call_later(timeout_s, self._look_at_timeouts)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look_at_timeouts(self) -> None:
        self._timer = None
        timeout_s = self.agent.options.timeout
        assert timeout_s is not None
        now = self.clock.monotonic()
        wait_s: float | None = None
        for slot in self.slots:
            if slot.held is None:
                continue
            left_s = slot.started + timeout_s - now
            if left_s <= 1e-6:
                self._expire(slot, now)
                left_s = min(GRACE_S, timeout_s)  # a record that begins now may be due that soon
            wait_s = left_s if wait_s is None else min(wait_s, left_s)
        if wait_s is not None and not self.stopping:
            self._timer = self.clock.call_later(wait_s, self._look_at_timeouts)

    def _expire(self, slot: Slot, now: float) -> None:
        if not slot.timed_out:
            self.timed_out(slot)
        elif now - slot.cancelled_at < GRACE_S:
            return
        slot.cancelled_at = now
        if self.cancels and slot.task is not None:
            slot.task.cancel()

    def _where(self, chunk: Chunk, record: RawRecord | DecodedRecord) -> str:
        offset = record.offset
        return where(chunk.agent, chunk.topic, chunk.partition, chunk.place(offset), chunk.attempt(offset))


def _nobody(handed: Handed) -> None:
    raise AssertionError("a pool without feeder finished something")


def make_pool(
    agent: ShareAgent,
    *,
    clock: Clock,
    service_loop: asyncio.AbstractEventLoop,
    handler_loop: asyncio.AbstractEventLoop,
    inline_threads: bool,
    stats: AgentStats,
) -> Pool:
    """The pool for this agent's kind of handler."""
    from flowshare.agents.batches import BatchPool
    from flowshare.agents.runner import TaskPool
    from flowshare.agents.threads import ThreadPool

    if agent.options.batch is not None:
        return BatchPool(
            agent, clock=clock, service_loop=service_loop, handler_loop=handler_loop, stats=stats, inline=inline_threads
        )
    kind = TaskPool if agent.is_async or inline_threads else ThreadPool
    return kind(agent, clock=clock, service_loop=service_loop, handler_loop=handler_loop, stats=stats)


__all__ = ["Handed", "Held", "Pool", "make_pool"]
