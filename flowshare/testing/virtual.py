"""A whole event loop on virtual time: when every task waits, time jumps to the next timer.

Waiting for ever raises `Deadlock`, so the test does not hang. The loop cannot wait for threads or for sockets of other
processes, as no time would pass meanwhile. So a call given to a thread (`asyncio.to_thread`, `run_in_executor`) runs at
once, on the loop's thread.
"""

from __future__ import annotations

import asyncio
import selectors
import time
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Executor
from contextlib import contextmanager
from typing import Any, TypeVar, TypeVarTuple

from flowshare.agents.host.service import run_through

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class Deadlock(Exception):
    """Every task waits and no timer is set, so nothing could ever happen again."""


class _JumpingSelector(selectors.DefaultSelector):
    """A selector that moves the loop's time by its timeout, and does not wait."""

    now_s = 0.0
    limits: tuple[tuple[float, Callable[[], object]], ...] = ()
    """Real times (`time.monotonic`), and what is called then."""

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if self.limits:
            real_s = time.monotonic()
            for until_s, callback in self.limits:
                if real_s >= until_s:
                    callback()
                    timeout = 0  # the callback may have made a task ready
        ready = super().select(0)
        if ready or timeout == 0:
            return ready
        if timeout is None:
            raise Deadlock("every task waits and no timer is set: something is awaited that can never happen")
        self.now_s += max(0.0, timeout)
        return []


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """An asyncio loop whose `time()` is virtual: sleeps and timeouts take no real time."""

    def __init__(self) -> None:
        self._virtual = _JumpingSelector()
        super().__init__(self._virtual)

    def time(self) -> float:
        """Return virtual seconds since the loop was made."""
        return self._virtual.now_s

    @contextmanager
    def real_limit(self, until_s: float, callback: Callable[[], object]) -> Iterator[None]:
        """Call `callback` in each round of the loop from the real time `until_s` (of `time.monotonic`) on.

        Virtual time stands still while a task is ready, so among tasks that never wait no timer would be due.
        """
        limit = (until_s, callback)
        self._virtual.limits += (limit,)
        try:
            yield
        finally:
            self._virtual.limits = tuple(one for one in self._virtual.limits if one is not limit)

    def run_in_executor(self, executor: Executor | None, func: Callable[[*Ts], T], *args: *Ts) -> asyncio.Future[T]:
        """Call `func(*args)` now and return a future of its result; no virtual time passes meanwhile."""
        del executor
        future: asyncio.Future[T] = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:  # noqa: BLE001 - the caller's, as from a thread
            future.set_exception(error)
        return future


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on a loop with virtual time, as `asyncio.run` would on a real one. Raises: Deadlock."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        loop = runner.get_loop()
        return run_through(loop, loop.create_task(coroutine))
