"""The pool for `async def` handlers of single records: the fast path.

Every record is awaited inside a real task, so `asyncio.timeout`, TaskGroup, anyio, `current_task` and cancellation
work as anywhere. Per record: one pop, one context variable, one look whether the handler left context variables
behind (then the task is replaced), one append. Everything else happens on the paths that ask for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextvars import copy_context
from typing import TYPE_CHECKING, Any

from flowshare.agents.chunk import Chunk
from flowshare.agents.delivery import Delivery, current
from flowshare.agents.middleware import call_async, call_inline
from flowshare.agents.outcomes import of_result
from flowshare.agents.slots import Held, Slot
from flowshare.agents.tasks import SLICE_S, TaskBasedPool, give_turn, is_closing
from flowshare.agents.tracing import current_headers
from flowshare.protocol.decoding import RawRecord

if TYPE_CHECKING:
    from flowshare.agents.agent import ShareAgent


class TaskPool(TaskBasedPool):
    """Runs `async def` handlers; plain `def` ones too, on the loop itself, for the test kit."""

    async def start(self) -> None:
        """Make the tasks."""
        self._call = make_call(self.agent, self)
        self._last: list[Slot | None] = [None]
        """The slot that ran last, as far as slots said."""
        await super().start()

    async def work(self, slot: Slot) -> None:  # noqa: C901 - the hot loop: a call here costs 5 %
        """Take records off the queue and handle them, until the pool stops or the task must be replaced."""
        queue, call, mark, times, last, gate = self.queue, self._call, self.mark, self.times, self._last, self.gate
        monotonic, set_current = self.clock.monotonic, current.set
        timed = self.agent.options.timeout is not None
        began = started = monotonic()
        count = 0
        while not self.stopping:
            if not queue or started > gate.until_s:
                gate.wanted |= bool(queue)
                if count:
                    times.add(started - began, count)
                    count = 0
                await self.idle()
                began = started = monotonic()
                last[0] = slot
                continue
            chunk = queue[0]
            try:
                record = chunk.records.pop()
            except IndexError:
                if not chunk.open():
                    queue.popleft()
                continue
            slot.started = started
            slot.held = held = (chunk, record)
            if timed and self._timer is None:
                self.arm()
            set_current(held)
            before = copy_context()
            try:
                result = await call(held)
            except BaseException as error:
                if is_closing(slot, error):
                    raise
                if self._failed(slot, held, error):
                    break
            else:
                if result is None:
                    if not chunk.accepted:
                        mark(chunk)
                    chunk.accepted.append(record.offset)
                else:
                    self._returned(chunk, record, result)
            count += 1
            if copy_context() != before or slot.timed_out:
                break
            slot.held = None
            started = monotonic()
            if started - began >= SLICE_S:
                times.add(started - began, count)
                count = 0
                if last[0] is slot:  # else another slot ran meanwhile: the handler waited, everybody had a turn
                    await give_turn()
                    started = monotonic()
                last[0] = slot
                began = started
        times.add(monotonic() - began, count)
        self.spawn(slot)

    def _returned(self, chunk: Chunk, record: RawRecord, result: Any) -> None:
        attempt = chunk.attempt(record.offset)
        self.finish(chunk, record, of_result(self.agent, result, attempt, current_headers()))

    def _failed(self, slot: Slot, held: Held, error: BaseException) -> bool:
        """Turn what the handler raised into an outcome; returns whether the task is to be replaced."""
        chunk, record = held
        if isinstance(error, _Undecodable):
            assert error.__cause__ is not None
            self.undecodable(chunk, record, error.__cause__)
            return False
        cancelled = isinstance(error, asyncio.CancelledError)
        if cancelled and slot.timed_out:
            late = TimeoutError(f"the handler took longer than timeout={self.agent.options.timeout}")
            late.__cause__ = error
            error = late
        self.finish(chunk, record, self.failed(chunk, record, error))
        return cancelled


class _Undecodable(Exception):
    """The value could not be decoded; the cause says why. Apart from what handlers raise."""


def make_call(agent: ShareAgent, pool: TaskPool) -> Callable[[Held], Awaitable[Any]]:
    """The shortest way from a held record to the handler's result, made for this handler's signature."""
    bare = _bare(agent, pool)
    if agent.middleware:
        return _through_middleware(agent, pool, bare)
    if agent.is_async:
        return bare

    async def inline(held: Held) -> Any:
        return bare(held)

    return inline


def _bare(agent: ShareAgent, pool: TaskPool) -> Callable[[Held], Any]:
    """Calls the handler with the decoded value, and with a `Delivery` if it takes one."""
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
    raw = record.value
    if decode is None:
        if raw is None:
            raise _Undecodable from ValueError("null")
        return raw
    try:
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
