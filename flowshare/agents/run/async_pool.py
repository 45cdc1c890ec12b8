"""The pool for `async def` handlers of single records: the fast path.

Every record is awaited inside a real task, so `asyncio.timeout`, TaskGroup, anyio, `current_task` and cancellation work
as anywhere. A record costs one pop, one context variable, one check if the handler left context variables behind (then
the task is replaced), one append. Everything else happens only on the paths that need it.
"""

from __future__ import annotations

import abc
import asyncio
import types
from collections import deque
from collections.abc import Awaitable, Callable, Generator, Iterable
from contextvars import copy_context
from typing import TYPE_CHECKING, Any, Final

from flowshare.agents.handler.awaiting import SENT_LATER, awaited
from flowshare.agents.handler.chunk import Chunk
from flowshare.agents.handler.codec import CodecDecoder
from flowshare.agents.handler.delivery import Delivery, current
from flowshare.agents.handler.middleware import call_async, call_inline
from flowshare.agents.run.pool import Held, Pool, Runner
from flowshare.protocol.decoding import RawRecord
from flowshare.tasks import cancelled

if TYPE_CHECKING:
    from flowshare.agents.handler.agent import ShareAgent
    from flowshare.agents.telemetry.processing import ProcessSpans

SLICE_S: Final = 0.002
"""Seconds that handlers which never wait may keep the loop before others get a turn."""


def is_closing(runner: Runner, error: BaseException) -> bool:
    """Tell if the runner's task is being destroyed; then nothing may be awaited any more.

    A GeneratorExit that is raised while the task runs is the handler's own.
    """
    if not isinstance(error, GeneratorExit):
        return False
    try:
        return asyncio.current_task() is not runner.task
    except RuntimeError:  # no loop runs
        return True


@types.coroutine
def yield_to_loop() -> Generator[None, None, None]:
    """Let the loop run all other tasks once."""
    yield


class TaskBasedPool(Pool):
    """Runners that are long-lived tasks on the handler loop."""

    _waiting: deque[asyncio.Future[None]]

    async def start(self) -> None:
        """Make the tasks."""
        await super().start()
        self._waiting = deque()
        for runner in self.runners:
            self.spawn(runner)

    def spawn(self, runner: Runner) -> None:
        """Make a new task for the runner, with context variables as they were at the start."""
        runner.held = runner.lost_in = None
        runner.timed_out = False
        if not self.stopping:
            runner.task = self._handler_loop.create_task(
                self.work(runner), name=f"{self.agent.name}-{runner.index}", context=self.context.copy()
            )

    @abc.abstractmethod
    async def work(self, runner: Runner) -> None:
        """Take and handle records until the pool stops or the task must be replaced."""

    def wake(self) -> None:
        """Wake as many idle tasks as there are records for."""
        wanted = sum(len(chunk.records) for chunk in self.queue) if len(self.queue) < 8 else len(self.runners)
        while self._waiting and wanted > 0:
            future = self._waiting.popleft()
            if not future.done():
                future.set_result(None)
                wanted -= 1

    async def idle(self) -> None:
        """Wait until there may be a record."""
        future: asyncio.Future[None] = self._handler_loop.create_future()
        self._waiting.append(future)
        await future

    async def cancel(self) -> None:
        """Cancel running handlers and wait for their end, as long as the caller waits."""
        self.stopping = True
        await self._end(self.running())

    async def stop(self) -> None:
        """Cancel all tasks."""
        await super().stop()
        await self._end(self.runners)

    def of_timeout(self, runner: Runner, error: BaseException) -> BaseException:
        """Return the handler's error, or a TimeoutError in its place if the timeout cancelled the handler: raised where
        the handler waited then."""
        if not (runner.timed_out and isinstance(error, asyncio.CancelledError)):
            return error
        late = TimeoutError(f"the handler took longer than its timeout of {self.agent.options.timeout:g} s")
        late.__cause__ = error
        return late.with_traceback(error.__traceback__)

    async def _end(self, runners: Iterable[Runner]) -> None:
        await cancelled(*(runner.task for runner in runners))
        self.flush()


class TaskPool(TaskBasedPool):
    """Runs `async def` handlers; plain `def` ones too, on the loop itself, for the test kit."""

    async def start(self) -> None:
        """Make the tasks."""
        self._call = self._when_known(self.make_call())
        self._last: list[Runner | None] = [None]
        """The runner that worked last, as noted by runners."""
        await super().start()

    def make_call(self) -> Callable[[Held], Awaitable[Any]]:
        """Return the function that handles a record."""
        call = make_call(self.agent, self)
        return call if self.spans is None else _in_a_span(self.spans, call)

    def _when_known(self, call: Callable[[Held], Awaitable[Any]]) -> Callable[[Held], Awaitable[Any]]:
        """Wrap a call: look up what codecs need for the record before the handler, and for its result after it. The
        handler's timeout does not run meanwhile."""
        lookups, agent = self.lookups, self.agent
        if lookups is None:
            return call

        async def when_known(held: Held) -> Any:
            chunk, record = held
            if lookups.missing(chunk, record) is not None:
                with self.waiting(held):
                    await lookups.until_known(lambda: lookups.missing(chunk, record), chunk)
            result = await call(held)
            if result is not None and agent.is_awaitable(result):
                result = await _there(result)
            if result is not None and agent.missing_outputs(result) is not None:
                with self.waiting(held):
                    await lookups.until_known(lambda: agent.missing_outputs(result), chunk, begun=True)
            return result

        return when_known

    async def work(self, runner: Runner) -> None:  # noqa: C901 - the hot loop: a call here costs 5 %
        """Take records off the queue and handle them, until the pool stops or the task must be replaced."""
        queue, call, mark, times, last, permit = self.queue, self._call, self.mark, self.times, self._last, self.permit
        monotonic, set_current = self.clock.monotonic, current.set
        is_awaitable = self.agent.is_awaitable
        timed = self.agent.options.timeout is not None
        began = started = monotonic()
        count = 0
        while not self.stopping:
            if not queue or started > permit.until_s:
                permit.wanted |= bool(queue)
                if count:
                    times.add(started - began - runner.take_waited(), count)
                    count = 0
                await self.idle()
                began = started = monotonic()
                last[0] = runner
                continue
            chunk = queue[0]
            try:
                record = chunk.records.pop()
            except IndexError:
                if not chunk.open():
                    queue.popleft()
                continue
            runner.started = started
            runner.held = held = (chunk, record)
            if timed and self._timer is None:
                self.arm()
            set_current(held)
            before = copy_context()
            try:
                result = await call(held)
                if result is not None and is_awaitable(result):
                    result = await _there(result)
            except BaseException as error:
                if is_closing(runner, error):
                    raise
                if self._failed(runner, held, error):
                    break
            else:
                if result is None and not chunk.sends:
                    if not chunk.accepted:
                        mark(chunk)
                    chunk.accepted.append(record.offset)
                else:
                    self._returned(chunk, record, result)
            count += 1
            if copy_context() != before or runner.timed_out:
                break
            runner.held = None
            started = monotonic()
            if started - began >= SLICE_S:
                times.add(started - began - runner.take_waited(), count)
                count = 0
                if last[0] is runner:  # else another runner worked meanwhile: all had a turn
                    await yield_to_loop()
                    started = monotonic()
                last[0] = runner
                began = started
        times.add(monotonic() - began - runner.take_waited(), count)
        self.spawn(runner)

    def _returned(self, chunk: Chunk, record: RawRecord, result: Any) -> None:
        self.finish(chunk, record, self.returned(chunk, record, result))

    def _failed(self, runner: Runner, held: Held, error: BaseException) -> bool:
        """Turn a handler's exception into an outcome; return True if the task must be replaced."""
        chunk, record = held
        if isinstance(error, _Undecodable):
            assert error.__cause__ is not None
            self.undecodable(chunk, record, error.__cause__)
            return False
        self.finish(chunk, record, self.failed(chunk, record, self.of_timeout(runner, error)))
        return isinstance(error, asyncio.CancelledError)


async def _there(result: Any) -> Any:
    """Await the result of a handler call.

    A result of None becomes `SENT_LATER`: callers in between saw that the call had not ended, and `finish` does the
    remaining work.
    """
    made = await awaited(result)
    return SENT_LATER if made is None else made


class _Undecodable(Exception):
    """The value could not be decoded; the cause is the decoder's error, apart from handlers' errors."""


def make_call(agent: ShareAgent, pool: TaskPool) -> Callable[[Held], Awaitable[Any]]:
    """Make the shortest way from a held record to the handler's result, for this handler's signature."""
    bare = _bare(agent, pool)
    if agent.middleware:
        return _through_middleware(agent, pool, bare)
    if agent.is_async:
        return bare

    async def inline(held: Held) -> Any:
        return bare(held)

    return inline


def _in_a_span(spans: ProcessSpans, call: Callable[[Held], Awaitable[Any]]) -> Callable[[Held], Awaitable[Any]]:
    """Wrap a call in a span, which ends here at a plain accept, at any other outcome in `Pool.finish`."""

    async def traced(held: Held) -> Any:
        chunk, record = held
        spans.begin(chunk, record)
        result = await call(held)
        if result is None and not chunk.sends:
            spans.accepted(chunk, record.offset)
        return result

    return traced


def _bare(agent: ShareAgent, pool: TaskPool) -> Callable[[Held], Any]:
    """Return a function that calls the handler with the decoded value, and with a `Delivery` if wanted."""
    fun, signature = agent.fun, agent.signature
    name, positional = signature.delivery_name, signature.delivery_positional

    def plain(held: Held) -> Any:
        chunk, record = held
        if chunk.decode is None and (raw := record.value) is not None:  # most of the time, and without another call
            return fun(raw)
        return fun(_decoded(held))

    def with_delivery(held: Held) -> Any:
        value = _decoded(held)
        delivery = Delivery(held[0], held[1], pool.renew)  # type: ignore[arg-type]
        return fun(value, delivery) if positional else fun(value, **{str(name): delivery})

    return plain if name is None else with_delivery


def _decoded(held: Held) -> Any:
    chunk, record = held
    decode = chunk.decode
    try:
        if decode is None or type(decode) is CodecDecoder or (raw := record.value) is None:
            return chunk.value(record)
        return decode(raw)
    except Exception as error:
        raise _Undecodable from error


def _through_middleware(agent: ShareAgent, pool: TaskPool, bare: Callable[[Held], Any]) -> Callable[[Held], Any]:
    middleware = agent.middleware

    async def call(held: Held) -> Any:
        delivery = Delivery(held[0], held[1], pool.renew)  # type: ignore[arg-type]
        if agent.is_async:
            return await call_async(middleware, delivery, lambda: bare(held))
        return await call_inline(middleware, delivery, lambda: bare(held))

    return call
