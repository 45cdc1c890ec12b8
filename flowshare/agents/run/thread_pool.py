"""The pool for `def` handlers of single records: a runner is a thread, each taking the next record by itself.

No record hops through an executor: threads pull from the same chunks as tasks do, and finished records go straight to
the service loop, so that a blocked handler loop holds up nothing. A thread cannot be stopped: a handler past its
timeout keeps its runner and its lock until it ends.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any

from flowshare.agents.handler.awaiting import awaited_on
from flowshare.agents.handler.chunk import Chunk
from flowshare.agents.handler.delivery import Delivery, current
from flowshare.agents.handler.middleware import call_sync
from flowshare.agents.handler.outcomes import Outcome, OutcomeKind
from flowshare.agents.run.lookups import GivenBack
from flowshare.agents.run.pool import Held, Pool, Runner

_ACCEPT = Outcome(OutcomeKind.ACCEPT)


class ThreadPool(Pool):
    """Runs `def` handlers in `concurrency` daemon threads."""

    cancels = False
    fed_anywhere = True

    async def start(self) -> None:
        """Start the threads."""
        await super().start()
        self._ready = threading.Condition(threading.Lock())
        self._done = threading.Lock()
        self._handle = self._make_handle()
        for runner in self.runners:
            threading.Thread(
                target=self._work, args=(runner,), name=f"{self.agent.name}-{runner.index}", daemon=True
            ).start()

    def feed(self, chunks: Iterable[Chunk]) -> None:
        """Add chunks; callable from any thread."""
        chunks = list(chunks)
        for chunk in chunks:
            chunk.open()
        with self._ready:
            self.queue.extend(chunks)
            self._ready.notify(sum(chunk.waiting for chunk in self.queue))

    async def cancel(self) -> None:
        """Do nothing: threads cannot be cancelled, and their records keep their locks until they end, or the process
        does."""

    async def stop(self) -> None:
        """Tell the threads to end; a thread inside a handler ends when the handler does."""
        await super().stop()
        with self._ready:
            self._ready.notify_all()

    def mark(self, chunk: Chunk) -> None:
        """Note that a record of this chunk is finished; `_done` is held."""
        self._dirty.append(chunk)
        if not self._flush_due:
            self._flush_due = True
            if not self._service_loop.is_closed():
                self._service_loop.call_soon_threadsafe(self.flush)

    def flush(self) -> None:
        """Hand finished records to the feeder; on the service loop."""
        with self._done:
            handed = self._take_finished()
        if handed:
            self.finished(handed)

    def finish(self, chunk: Chunk, record: Any, outcome: Outcome) -> None:
        """Record an outcome; callable from any thread."""
        with self._done:
            super().finish(chunk, record, outcome)

    def wake(self) -> None:
        """Let idle threads look at the queue."""
        with self._ready:
            self._ready.notify_all()

    def _take(self, runner: Runner) -> Held | None:
        with self._ready:
            while True:
                if self.stopping:
                    return None
                while self.queue:
                    if self.clock.monotonic() > self.permit.until_s:
                        self.permit.wanted = True
                        break
                    chunk = self.queue[0]
                    try:
                        runner.held = held = (chunk, chunk.records.pop())
                    except IndexError:
                        if not chunk.open():
                            self.queue.popleft()
                        continue
                    return held
                self._ready.wait()

    def _work(self, runner: Runner) -> None:
        runner.thread_id = threading.get_ident()
        monotonic = self.clock.monotonic
        while (held := self._take(runner)) is not None:
            runner.started = monotonic()
            self.rearm()
            self.context.copy().run(self._run, held)
            with self._done:
                self.times.add(monotonic() - runner.started)
            runner.held = None
            runner.timed_out = False

    def _run(self, held: Held) -> None:
        chunk, record = held
        current.set(held)
        if self.lookups is not None and not self._known(held):
            return
        if (value := self.value(chunk, record)) is None:
            return
        try:
            result = self._handle(value[0], held)
            if self.lookups is not None and result is not None and self.agent.missing_outputs(result) is not None:
                with self.waiting(held):
                    self.lookups.until_known_here(lambda: self.agent.missing_outputs(result), chunk, begun=True)
        except BaseException as error:  # noqa: BLE001 - every outcome of user code is one of the table's rows
            self.finish(chunk, record, self.failed(chunk, record, error))
            return
        if result is None:
            self.finish(chunk, record, _ACCEPT)
        else:
            self.finish(chunk, record, self.returned(chunk, record, result))

    def rearm(self) -> None:
        """Check timeouts later; callable from any thread."""
        if self.agent.options.timeout is not None and not self._handler_loop.is_closed():
            self._service_loop.call_soon_threadsafe(self.arm)

    def _known(self, held: Held) -> bool:
        """Wait for the look-ups that codecs need for this record; False: it is released."""
        lookups, (chunk, record) = self.lookups, held
        assert lookups is not None
        if lookups.missing(chunk, record) is None:
            return True
        try:
            with self.waiting(held):
                lookups.until_known_here(lambda: lookups.missing(chunk, record), chunk)
        except GivenBack as error:
            self.finish(chunk, record, error.outcome)
            return False
        return True

    def _make_handle(self) -> Callable[[Any, Held], Any]:
        call = self._make_call()
        spans = self.spans
        if spans is None:
            return call

        def traced(value: Any, held: Held) -> Any:
            spans.begin(*held)
            return call(value, held)

        return traced

    def _make_call(self) -> Callable[[Any, Held], Any]:
        fun, signature, middleware = self.agent.fun, self.agent.signature, self.agent.middleware
        name, positional = signature.delivery_name, signature.delivery_positional
        is_awaitable, loop = self.agent.is_awaitable, self._handler_loop

        def of_value(value: Any, held: Held) -> Any:
            result = fun(value)
            return result if result is None or not is_awaitable(result) else awaited_on(loop, result)

        if name is None and not middleware:
            return of_value

        def handle(value: Any, held: Held) -> Any:
            delivery = Delivery(held[0], held[1], self.renew)  # type: ignore[arg-type]

            def call() -> Any:
                if name is None:
                    return fun(value)
                return fun(value, delivery) if positional else fun(value, **{name: delivery})

            result = call_sync(middleware, delivery, call, loop) if middleware else call()
            return result if result is None or not is_awaitable(result) else awaited_on(loop, result)

        return handle
