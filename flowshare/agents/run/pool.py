"""The pool: `concurrency` runners that run one agent's handler, fed with chunks, handing back outcomes in bulk.

Three kinds share this base: `async def` handlers in long-lived tasks (`async_pool`), `def` handlers in threads
(`thread_pool`), batch handlers (`batch_pool`), and each of them again for agents with an order (`in_order`). The
finisher of records appends to the chunk's lists and calls `mark`; once per loop iteration all finished records go to
the service loop in one call.
"""

from __future__ import annotations

import abc
import asyncio
import contextvars
import logging
import sys
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from flowshare.agents.handler.chunk import Chunk
from flowshare.agents.handler.codec import CodecUnavailable
from flowshare.agents.handler.errors import UndecodableValue
from flowshare.agents.handler.outcomes import Outcome, OutcomeKind, of_exception, of_result
from flowshare.agents.handler.texts import REASON_MAX, clip, of_user, place_of, said
from flowshare.agents.handler.tracing import current_headers
from flowshare.agents.run.lookups import BACK_S, GivenBack, Lookups
from flowshare.agents.run.stats import AgentStats, ExceptionCounts, HandlerTimes
from flowshare.protocol.decoding import DecodedRecord, RawRecord

if TYPE_CHECKING:
    import random as random_module

    from flowshare.agents.handler.agent import ShareAgent
    from flowshare.agents.telemetry.telemetry import Telemetry
    from flowshare.backend.base import Capabilities
    from flowshare.client.admin.admin import ShareAdmin
    from flowshare.client.producer.producer import Producer
    from flowshare.clock import Clock, TimerHandle
    from flowshare.protocol.messages import Connection

logger = logging.getLogger("flowshare.agents")


GRACE_S: Final = 5.0
"""Seconds for a cancelled `async def` handler to end before the agent is called unhealthy."""

Held = tuple[Chunk, RawRecord]
"""A record being handled, as it was read: `chunk.whole` has its other fields."""
HAND_OVER_S: Final = 0.005
"""Seconds between two hand-overs of few records from the handler loop to the service loop."""
HAND_OVER_RECORDS: Final = 1_000
"""Number of finished records that are handed over at once: the next fetch may wait for the room."""
_LOOK_S: Final = 0.001
FinishedWork = list[tuple[Chunk, list[int], list[tuple[DecodedRecord | RawRecord, Outcome]]]]
"""Finished work: chunk, accepted offsets, other outcomes."""


class Runner:
    """One of the `concurrency` places where a handler runs, and its current work.

    Written by the thread that runs the handler, read from any thread.
    """

    __slots__ = (
        "cancelled_at",
        "held",
        "index",
        "lost_in",
        "started",
        "task",
        "thread_id",
        "timed_out",
        "waited_s",
        "waits",
    )

    def __init__(self, index: int) -> None:
        self.index = index
        self.held: Held | list[Held] | None = None
        """The record being handled, the records of a batch, or None."""
        self.lost_in: Held | list[Held] | None = None
        """`held` when the task was cancelled because one of them had lost its lock."""
        self.started = 0.0
        self.timed_out = False
        self.waits = False
        """True if the runner waits for a codec's look-up: then no handler runs, and no timeout."""
        self.waited_s = 0.0
        """Seconds that the runner has waited for look-ups."""
        self.cancelled_at = 0.0
        self.task: asyncio.Task[None] | None = None
        self.thread_id: int | None = None

    def records(self) -> list[tuple[Chunk, DecodedRecord]]:
        """Return the records that are handled now, as a list."""
        held = self.held
        if held is None:
            return []
        return [(chunk, chunk.whole(record)) for chunk, record in (held if isinstance(held, list) else [held])]

    def take_waited(self) -> float:
        """Return seconds waited since the last call: they are not the handler's."""
        waited_s, self.waited_s = self.waited_s, 0.0
        return waited_s

    def over_s(self, timeout_s: float | None, now: float) -> float:
        """Return seconds that the handler is past its timeout; 0 or less when it is not."""
        return 0.0 if timeout_s is None or self.held is None or self.waits else now - self.started - timeout_s


class StartPermit:
    """Permission for handlers to begin: checked by a pool before each record, from any thread."""

    __slots__ = ("until_s", "wanted")

    def __init__(self) -> None:
        self.until_s = float("inf")
        """End of the permission, in the clock's monotonic seconds."""
        self.wanted = False
        """True if a pool waits for a later permission."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """The shared environment of all agents of one process; made by their host.

    clock: rules all of flowshare's own waiting. service_loop: the loop on which agents fetch, renew, produce and
    acknowledge; handler_loop: the loop on which handlers run; both may be the same loop (test kit). connect: opens a
    connection to the backend; capabilities: the backend's abilities. producer, admin: shared by all agents, on the
    service loop. random: source of the jitter of retry delays. inline_threads: run `def` handlers on the handler loop
    instead of in threads (test kit). trackers: run a tracker of each KMQ queue, whatever its agent says (test kit).
    virtual_time: the clock jumps, which does not mean that the process stood still, and periodic checks are rare (test
    kit). telemetry: receives spans and metrics; None: nothing is sent.
    """

    clock: Clock
    service_loop: asyncio.AbstractEventLoop
    handler_loop: asyncio.AbstractEventLoop
    connect: Callable[[], Awaitable[Connection]]
    capabilities: Capabilities
    producer: Producer
    admin: ShareAdmin
    random: random_module.Random
    inline_threads: bool = False
    trackers: bool = False
    virtual_time: bool = False
    telemetry: Telemetry | None = None


class Pool(abc.ABC):
    """The common part of the three kinds of pool. `start`, `cancel` and `stop` run on the handler loop."""

    cancels = True
    """True if `timeout` can end a handler (a thread cannot be stopped)."""
    fed_anywhere = False
    """True if `feed` may be called on any thread, so that a blocked handler loop does not hold up records."""

    def __init__(self, agent: ShareAgent, environment: Environment) -> None:
        self.agent = agent
        self.clock = environment.clock
        self.stats = AgentStats()
        self.times = HandlerTimes()
        self.exceptions = ExceptionCounts()
        self.queue: deque[Chunk] = deque()
        self.runners = [Runner(index) for index in range(agent.options.concurrency)]
        self.finished: Callable[[FinishedWork], None]
        """Set by the feeder; called on the service loop."""
        self.permit = StartPermit()
        """Permission to begin handlers; the feeder sets its end."""
        self.renew: Callable[[Chunk, int], object] | None = None
        """Set by the feeder; callable from any thread."""
        telemetry = environment.telemetry
        self.spans = None if telemetry is None else telemetry.process(agent)
        self.context = contextvars.Context()
        self.stopping = False
        self.lookups = Lookups(agent, environment) if agent.looks_up else None
        """Look-ups of the agent's codecs; None: no codec needs any."""
        self._service_loop = environment.service_loop
        self._handler_loop = environment.handler_loop
        self._dirty: list[Chunk] = []
        self._flush_due = False
        self._handed_at = -1.0
        self._probed = False
        self._told_of_missing = False
        self._timer: TimerHandle | None = None

    # --- what kinds do ------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Get ready for chunks."""
        self.context = contextvars.copy_context()
        if "decimal" in sys.modules:
            # decimal makes its context at first use; made here, a handler's use of it changes no context variable.
            self.context.run(sys.modules["decimal"].getcontext)

    def feed(self, chunks: Iterable[Chunk]) -> None:
        """Add chunks; called on the handler loop."""
        for chunk in chunks:
            chunk.open()
            self.queue.append(chunk)
        self.wake()

    @abc.abstractmethod
    def wake(self) -> None:
        """Let idle runners look at the queue."""

    @abc.abstractmethod
    async def cancel(self) -> None:
        """Cancel running handlers at the drain deadline, and release their records."""

    def lost(self, chunk: Chunk, offsets: Collection[int]) -> None:  # noqa: B027 - most kinds do nothing
        """Note lost locks. Without an order running handlers go on, and their outcomes are discarded."""

    async def stop(self) -> None:
        """End all runners; no more work is handed over after that."""
        self.stopping = True
        self._disarm()

    # --- what is seen from outside ------------------------------------------------------------------------------

    def running(self) -> list[Runner]:
        """Return the runners at work, as a snapshot."""
        return [runner for runner in self.runners if runner.held is not None]

    @property
    def busy(self) -> int:
        """Number of runners at work."""
        return len(self.running())

    def working_s(self) -> float:
        """Return the seconds that running handlers have worked, together."""
        now = self.clock.monotonic()
        return sum(max(0.0, now - runner.started) for runner in self.running() if not runner.waits)

    def probe(self, answered: Callable[[], object]) -> None:
        """Have `answered` called on the service loop once the handlers' loop runs again; on the service loop."""

        def gets_on() -> None:
            self._probed = False
            if not self._service_loop.is_closed():
                self._service_loop.call_soon_threadsafe(answered)

        if self._service_loop is self._handler_loop or self.fed_anywhere:
            answered()
        elif not self._probed and not self._handler_loop.is_closed():
            self._probed = True
            self._handler_loop.call_soon_threadsafe(gets_on)

    @property
    def overdue(self) -> int:
        """Number of handlers past their timeout that did not end when cancelled, or cannot be cancelled."""
        return len(self._late(GRACE_S if self.cancels else 0.0))

    def draining(self) -> None:
        """Release records that wait for a codec's look-up, as the worker stops. Any thread."""
        if self.lookups is not None:
            self.lookups.stop()

    def problems(self) -> list[str]:
        """Return the reasons why the agent is not healthy, one sentence each."""
        waits = [] if self.lookups is None or self.lookups.trouble is None else [self.lookups.trouble]
        return waits + [
            f"a handler runs past its timeout of {self.agent.options.timeout} s and cannot be stopped: "
            + chunk.where(record.offset)
            for runner in self._late(GRACE_S if self.cancels else 0.0)
            for chunk, record in runner.records()[:1]
        ]

    def abandoned(self, limit_s: float) -> set[tuple[int, int]]:
        """Return (id of chunk, offset) of cancellable handlers that are `limit_s` past their timeout: locks not to be
        renewed."""
        late = self._late(limit_s) if self.cancels else []
        return {(id(chunk), record.offset) for runner in late for chunk, record in runner.records()}

    def _late(self, limit_s: float) -> list[Runner]:
        """Return runners whose handlers are more than `limit_s` past their timeout."""
        now, timeout_s = self.clock.monotonic(), self.agent.options.timeout
        return [runner for runner in self.runners if runner.over_s(timeout_s, now) > limit_s]

    # --- finishing records --------------------------------------------------------------------------------------

    def mark(self, chunk: Chunk) -> None:
        """Note that a record of this chunk is finished (or will be before the loop's next iteration)."""
        self._dirty.append(chunk)
        if not self._flush_due:
            self._flush_due = True
            self._handler_loop.call_soon(self.flush)

    def flush(self) -> None:
        """Hand finished records to the service loop, which costs a thread switch: when they are many, when the queue is
        empty, or every 5 ms."""
        if self._service_loop is not self._handler_loop:
            now = self.clock.monotonic()
            early_s = self._handed_at + HAND_OVER_S - now
            if early_s > 0 and self.queue and not self.stopping and self._finished_now < HAND_OVER_RECORDS:
                self.clock.call_later(min(early_s, _LOOK_S), self.flush)
                return
            self._handed_at = now
        self.hand_over(self._take_finished())

    def _take_finished(self) -> FinishedWork:
        """Take the finished records out of their chunks."""
        self._flush_due = False
        dirty, self._dirty = self._dirty, []
        taken: FinishedWork = []
        for chunk in dirty:
            accepted, chunk.accepted = chunk.accepted, []
            others, chunk.others = chunk.others, []
            if chunk.repeated and accepted and self.agent.sinks:
                self._warn_of_missing_output(chunk, accepted)
            if accepted or others:
                taken.append((chunk, accepted, others))
        return taken

    def _warn_of_missing_output(self, chunk: Chunk, accepted: list[int]) -> None:
        """Warn once of a repeated record that was accepted without an output, which may never have been produced."""
        offset = next((one for one in accepted if one in chunk.repeated), None)
        if offset is None or self._told_of_missing:
            return
        self._told_of_missing = True
        logger.warning(
            "%s: fs.Once said that its effects are there, and the handler returned nothing for %s. A worker that dies "
            "between the database's commit and the accept has produced nothing: return the same value whatever "
            "`first` says.",
            chunk.where(offset),
            ", ".join(self.agent.sinks),
        )

    @property
    def hands_over(self) -> bool:
        """True if the finished records reach the service loop in the handler loop's next turn."""
        return self._flush_due and not self.queue

    @property
    def _finished_now(self) -> int:
        return sum(len(chunk.accepted) for chunk in self._dirty)

    def hand_over(self, handed: FinishedWork) -> None:
        """Call `finished` on the service loop."""
        if not handed:
            return
        if self._service_loop is self._handler_loop:
            self.finished(handed)
        elif not self._service_loop.is_closed():
            self._service_loop.call_soon_threadsafe(self.finished, handed)

    def finish(self, chunk: Chunk, record: RawRecord, outcome: Outcome) -> None:
        """Record an outcome other than the plain accept, which the runners record themselves."""
        if self.spans is not None:
            self.spans.ended(chunk, record.offset, outcome)
        if chunk.sends and (sent := chunk.sends.pop(record.offset, None)) and outcome.kind is OutcomeKind.ACCEPT:
            outcome = outcome._replace(outputs=(*outcome.outputs, *sent))
        self.mark(chunk)
        if outcome.kind is not OutcomeKind.ACCEPT:
            chunk.others.append((chunk.whole(record), outcome))
        elif outcome.has_outputs:
            chunk.others.append((record, outcome))  # an accepted record hardly ever needs more than its offset
        else:
            chunk.accepted.append(record.offset)

    def value(self, chunk: Chunk, record: RawRecord) -> tuple[Any] | None:
        """Return the record's value as its handler gets it; None: it cannot be had, and the record's outcome is
        decided."""
        try:
            return (chunk.value(record),)
        except Exception as error:  # noqa: BLE001 - whatever the decoder raised
            self.undecodable(chunk, record, error)
        except BaseException as error:  # noqa: BLE001 - sys.exit() says nothing of the value: as in a handler
            self.finish(chunk, record, self.failed(chunk, record, error))
        return None

    def undecodable(self, chunk: Chunk, record: RawRecord, error: BaseException) -> None:
        """Send a record whose value does not fit the annotation to the dead letter."""
        if isinstance(error, CodecUnavailable):
            logger.warning("%s: %s; it comes again in %g s", chunk.where(record.offset), said(error), BACK_S)
            self.finish(chunk, record, Outcome(OutcomeKind.RELEASE, None, said(error), BACK_S, unrun=True))
            return
        if self.spans is not None:
            self.spans.refused(chunk, record)
        self.stats.undecodable += 1
        explained = error if isinstance(error, UndecodableValue) else self.agent.explain(record.value, error)
        logger.error("%s: undecodable: %s", chunk.where(record.offset), explained)
        self.finish(chunk, record, of_exception(self.agent, explained, chunk.attempt(record.offset)))

    def returned(self, chunk: Chunk, record: RawRecord, result: Any) -> Outcome:
        """Return the outcome of a handler's result; an output that cannot be encoded counts as the handler's error."""
        outcome = of_result(self.agent, result, chunk.attempt(record.offset), current_headers())
        return outcome if outcome.error is None else self.failed(chunk, record, outcome.error)

    def failed(self, chunk: Chunk, record: RawRecord, error: BaseException) -> Outcome:
        """Count and log an exception of user code; return its outcome."""
        if isinstance(error, GivenBack):
            return error.outcome
        outcome = of_exception(self.agent, error, chunk.attempt(record.offset), ending=self.stopping)
        if outcome.error is None:
            return outcome
        if outcome.kind is OutcomeKind.RELEASE:
            self.stats.cancelled += 1
        else:
            self.stats.handler_errors += 1
            self.exceptions.add(error, self.clock.monotonic())
        if outcome.kind is OutcomeKind.DEAD:
            text = clip(outcome.reason, REASON_MAX)
            if isinstance(outcome.error, self.agent.options.reject):  # an error that the app expects, by `reject=`
                logger.info("%s: %s (%s)", chunk.where(record.offset), text, place_of(outcome.error))
            else:
                exc_info = (type(error), error, of_user(error))
                logger.error("%s: %s", chunk.where(record.offset), text, exc_info=exc_info)
        return outcome

    def timed_out(self, runner: Runner) -> None:
        """Count and log that a handler is past its timeout."""
        runner.timed_out = True
        self.stats.timed_out += len(runner.records())
        for chunk, record in runner.records()[:1]:
            logger.warning(
                "%s: the handler is past its timeout of %s s%s",
                chunk.where(record.offset),
                self.agent.options.timeout,
                "" if self.cancels else "; a thread cannot be stopped, its lock is renewed until it ends",
            )

    @contextmanager
    def waiting(self, held: Held | list[Held]) -> Iterator[None]:
        """Stop the clock of a handler's time while its runner waits for a codec's look-up."""
        runner = next(one for one in self.runners if one.held is held)
        began_s = self.clock.monotonic()
        runner.waits = True
        try:
            yield
        finally:
            runner.started = self.clock.monotonic()
            runner.waited_s += runner.started - began_s
            runner.waits = False
            self.rearm()

    def rearm(self) -> None:
        """Check timeouts again later; called by the thread that runs handlers."""
        self.arm()

    # --- timeouts -----------------------------------------------------------------------------------------------

    def arm(self) -> None:
        """Check timeouts later; one timer for each pool, not for each record."""
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
        for runner in self.runners:
            if runner.held is None or runner.waits:
                continue
            left_s = runner.started + timeout_s - now
            if left_s <= 1e-6:
                self._expire(runner, now)
                left_s = min(GRACE_S, timeout_s)  # a record that begins now may be due that soon
            wait_s = left_s if wait_s is None else min(wait_s, left_s)
        if wait_s is not None and not self.stopping:
            self._timer = self.clock.call_later(wait_s, self._look_at_timeouts)

    def _expire(self, runner: Runner, now: float) -> None:
        if not runner.timed_out:
            self.timed_out(runner)
        elif now - runner.cancelled_at < GRACE_S:
            return
        runner.cancelled_at = now
        if self.cancels and runner.task is not None:
            runner.task.cancel()


def make_pool(agent: ShareAgent, environment: Environment) -> Pool:
    """Make the pool for this agent's kind of handler."""
    from flowshare.agents.run.async_pool import TaskPool
    from flowshare.agents.run.batch_pool import BatchPool
    from flowshare.agents.run.in_order import OrderedBatchPool, OrderedTaskPool, OrderedThreadPool
    from flowshare.agents.run.thread_pool import ThreadPool

    in_order = agent.options.order is not None
    if agent.options.batch is not None:
        return (OrderedBatchPool if in_order else BatchPool)(agent, environment)
    if agent.is_async or environment.inline_threads:
        return (OrderedTaskPool if in_order else TaskPool)(agent, environment)
    return (OrderedThreadPool if in_order else ThreadPool)(agent, environment)
