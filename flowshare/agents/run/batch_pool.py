"""The pool for batch handlers: a runner takes up to `size` records at once, or fewer after `within` seconds."""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Callable, Iterable, Sequence
from contextvars import copy_context
from functools import partial
from typing import TYPE_CHECKING, Any

from flowshare.agents.handler.batch import BatchRecord, Records
from flowshare.agents.handler.delivery import Delivery, current
from flowshare.agents.handler.middleware import call_async, call_inline, call_sync
from flowshare.agents.handler.outcomes import Outcome, OutcomeKind, given_up, of_exception
from flowshare.agents.handler.send import SendGroup
from flowshare.agents.handler.texts import named
from flowshare.agents.handler.tracing import current_headers
from flowshare.agents.run.async_pool import TaskBasedPool, is_closing
from flowshare.agents.run.lookups import GivenBack, Lookups
from flowshare.agents.run.pool import Environment, Held, Runner

if TYPE_CHECKING:
    from flowshare.agents.handler.agent import ShareAgent
    from flowshare.agents.handler.chunk import Chunk
    from flowshare.clock import TimerHandle

_ACCEPT = Outcome(OutcomeKind.ACCEPT)
Said = BaseException | None
"""A batch handler's verdict on one record; None: no verdict."""


class BatchPool(TaskBasedPool):
    """Runs batch handlers: `async def` in tasks, `def` in an executor's threads, one hop a batch."""

    def __init__(self, agent: ShareAgent, environment: Environment) -> None:
        super().__init__(agent, environment)
        assert agent.options.batch is not None
        self._batch = agent.options.batch
        self._inline = environment.inline_threads
        self.cancels = agent.is_async or self._inline
        self._executor: concurrent.futures.ThreadPoolExecutor | None = None
        self._due_timer: TimerHandle | None = None

    async def start(self) -> None:
        """Make the tasks, and threads for a `def` handler."""
        if not self.agent.is_async and not self._inline:
            self._executor = concurrent.futures.ThreadPoolExecutor(len(self.runners), f"{self.agent.name}")
        self._middleware = self.agent.middleware
        await super().start()

    async def stop(self) -> None:
        """Cancel all tasks; those of handlers in threads, and the threads, end when their handlers end."""
        await super().stop()
        if self._due_timer is not None:
            self._due_timer.cancel()
        if self._executor is not None:
            self._executor.shutdown(wait=False, cancel_futures=True)

    async def _end(self, runners: Iterable[Runner]) -> None:
        """End tasks; the one of a handler in a thread goes on, as the thread does: its records keep their locks until
        it ends, or the process does."""
        await super()._end([one for one in runners if self.cancels or one.held is None or one.waits])

    def wake(self) -> None:
        """Wake one idle runner when a batch is due, else set a timer for that time."""
        due_s = self._due_s()
        if due_s is None:
            return
        if due_s > 0:
            if self._due_timer is None:
                self._due_timer = self.clock.call_later(due_s, self._became_due)
            return
        while self._waiting:
            future = self._waiting.popleft()
            if not future.done():
                future.set_result(None)
                return

    def _became_due(self) -> None:
        self._due_timer = None
        self.wake()

    def _due_s(self) -> float | None:
        """Return seconds until a batch is due: 0 or less when full or old enough, None without records."""
        while self.queue and not self.queue[0].open():
            self.queue.popleft()
        if not self.queue:
            return None
        eldest = self.queue[0]
        if eldest.exactly_once:  # a share-partition with full batches all the time holds up no other's
            eldest = min(self.queue, key=lambda chunk: chunk.arrived)
        due_s = eldest.arrived + self._batch.within_s - self.clock.monotonic()
        if due_s > 0:
            return 0.0 if self._has_full_batch() else due_s
        if eldest is not self.queue[0]:
            self._bring_forward(eldest)
        return due_s

    def _has_full_batch(self) -> bool:
        counts: dict[Any, int] = {}
        for chunk in self.queue:
            apart = chunk.settles_with if chunk.exactly_once else None
            count = counts[apart] = counts.get(apart, 0) + self.startable(chunk)
            if count >= self._batch.size:
                if apart is not None and self.queue[0].settles_with != apart:
                    self._bring_forward(chunk)
                return True
        return False

    def _bring_forward(self, chunk: Chunk) -> None:
        """Put a chunk first; older ones keep their places behind it."""
        self.queue.remove(chunk)
        self.queue.appendleft(chunk)

    def startable(self, chunk: Chunk) -> int:
        """Count the records of this chunk that a batch could take."""
        return chunk.waiting

    def next_chunk(self, taken: list[Held]) -> bool:
        """Bring a chunk to the front that can continue this batch; return True if there is one.

        With exactly-once outcomes a batch's output is settled in one step with all its records, which must be of one
        share-partition.
        """
        if not self.queue or not taken or not taken[0][0].exactly_once:
            return bool(self.queue)
        wanted = taken[0][0].settles_with
        for at, chunk in enumerate(self.queue):
            if chunk.settles_with == wanted:
                if at:
                    self._bring_forward(chunk)
                return True
        return False

    def take(self) -> list[Held]:
        """Take the records of a batch, which are begun now."""
        taken: list[Held] = []
        while len(taken) < self._batch.size and self.next_chunk(taken):
            chunk = self.queue[0]
            try:
                taken.append((chunk, chunk.records.pop()))
            except IndexError:
                if not chunk.open():
                    self.queue.popleft()
        return taken

    def _end_spans(self, handling: Any) -> None:
        """End a batch's spans; None: the batch has none."""
        if self.spans is not None and handling is not None:
            self.spans.end_batch(handling)

    async def work(self, runner: Runner) -> None:
        """Take and handle batches until the pool stops or the task must be replaced."""
        while not self.stopping:
            due_s = self._due_s()
            closed = self.clock.monotonic() > self.permit.until_s
            taken = self.take() if due_s is not None and due_s <= 1e-6 and not closed else []
            if not taken:
                if closed:
                    self.permit.wanted = True
                else:
                    self.wake()
                await self.idle()
                continue
            runner.held = taken
            runner.started = self.clock.monotonic()
            self.wake()
            self.arm()
            current.set(taken[0])
            before = copy_context()
            if self.lookups is not None:
                taken = runner.held = await self._known(self.lookups, taken)
            held, records = self.decode(taken)
            result, error = None, None
            handling = None if self.spans is None or not held else self.spans.begin_batch(held)
            if held:
                try:  # here, not further in: awaiting a call that ended by GeneratorExit closes all coroutines between
                    result = await self._call(records)
                    if self.lookups is not None and self.agent.missing_outputs(result) is not None:
                        with self.waiting(taken):
                            ask = partial(self.agent.missing_outputs, result)
                            await self.lookups.until_known(ask, taken[0][0], begun=True)
                except BaseException as raised:
                    if is_closing(runner, raised):
                        raise
                    error = raised
                late = None if error is None else self.of_timeout(runner, error)
                self._finish_all(held, records, result, late)
            self._end_spans(handling)
            cancelled = isinstance(error, asyncio.CancelledError)
            error = late = result = None  # else this frame, in the error's traceback, would keep the error alive
            self.times.add(self.clock.monotonic() - runner.started)
            if cancelled or runner.timed_out or runner.lost_in is not None or copy_context() != before:
                break
            runner.held = None
        else:
            return
        self.spawn(runner)

    async def _known(self, lookups: Lookups, taken: list[Held]) -> list[Held]:
        """Wait for codecs' look-ups; return the records whose look-ups succeeded, the others are released; all of them
        when the wait is cancelled."""
        if all(lookups.missing(*held) is None for held in taken):
            return taken
        known: list[Held] = []
        with self.waiting(taken):
            for at, (chunk, record) in enumerate(taken):
                try:
                    # With an order, records are released at the batch's end, not one by one.
                    await lookups.until_known(
                        partial(lookups.missing, chunk, record), None if chunk.chains is not None else chunk
                    )
                except GivenBack as error:
                    self.finish(chunk, record, error.outcome)
                except asyncio.CancelledError:
                    left = [*known, *taken[at:]]
                    self.settle(left, [None] * len(left), _ACCEPT, GivenBack("its batch's look-ups", 0.0, unrun=True))
                    return []
                else:
                    known.append((chunk, record))
        return known

    def decode(self, taken: list[Held]) -> tuple[list[Held], Records[Any]]:
        """Return the readable records, and the `Records` for the handler; the other records are decided here."""
        held: list[Held] = []
        records: list[BatchRecord[Any]] = []
        for chunk, record in taken:
            if (value := self.value(chunk, record)) is None:
                continue
            held.append((chunk, record))
            records.append(BatchRecord(value[0], Delivery(chunk, record, self.renew)))  # type: ignore[arg-type]
        return held, Records(records)

    async def _call(self, records: Records[Any]) -> Any:
        fun, middleware = self.agent.fun, self._middleware
        if self.agent.is_async:
            return await call_async(middleware, records, lambda: fun(records))
        if self._executor is None:
            return await call_inline(middleware, records, lambda: fun(records))
        context = copy_context()
        call = partial(call_sync, middleware, records, lambda: fun(records), self._handler_loop)
        return await self._handler_loop.run_in_executor(self._executor, context.run, _carried, call)

    def _finish_all(self, held: list[Held], records: Records[Any], result: Any, error: BaseException | None) -> None:
        """Finish a batch: outcomes by record stand; the others get the error's outcome, or the result's."""
        accepted = _ACCEPT
        if error is None:
            try:
                accepted, error = self._accepted(result)
            except BaseException as unencodable:  # noqa: BLE001 - an output that cannot be encoded is the handler's fault
                error = unencodable
        self.settle(held, records.outcomes, accepted, error)

    def settle(self, held: list[Held], said: Sequence[Said], accepted: Outcome, error: BaseException | None) -> None:
        """Finish records: by the handler's verdict on each, else by the error, else as `accepted`."""
        logged: Outcome | None = None
        if accepted.shared is not None:
            accepted.shared.records = sum(decided is None for decided in said) if error is None else 0
        for (chunk, record), decided in zip(held, said, strict=True):
            if decided is not None:
                outcome = self.failed(chunk, record, decided)
            elif error is None:
                outcome = accepted
            elif isinstance(error, GivenBack):
                outcome = error.outcome
            elif logged is None:
                outcome = logged = self.failed(chunk, record, error)
            else:
                outcome = of_exception(self.agent, error, chunk.attempt(record.offset), ending=self.stopping)
                outcome = outcome._replace(told=True)
            self.finish(chunk, record, outcome)

    def _accepted(self, result: Any) -> tuple[Outcome, BaseException | None]:
        instead = given_up(result)
        if instead is not None:
            return _ACCEPT, instead
        sends = self.agent.outputs(result, current_headers())
        return (Outcome(OutcomeKind.ACCEPT, shared=SendGroup(sends)) if sends else _ACCEPT), None


def _carried(call: Callable[[], Any]) -> Any:
    """Call a function so that a future can carry its error: a future takes no StopIteration, and its waiter would wait
    for ever."""
    try:
        return call()
    except StopIteration as error:
        raise RuntimeError(f"the handler raised {named(error)}") from error
