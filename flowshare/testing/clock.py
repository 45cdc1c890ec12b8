"""Clocks that do not wait: `ManualClock` moves when told, `LoopTimeClock` follows a loop whose time is virtual.

Timers of a `ManualClock` run in the order of their due times. Between two timers, every task that became ready runs
first, so that the effects of a timer happen at that timer's time.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from flowshare.clock import LoopClock, TimerHandle

T = TypeVar("T")
START_MS: Final = 1_700_000_000_000
"""Start of virtual time: 2023-11-14 22:13:20 UTC, in milliseconds since 1970."""
SETTLE_ROUNDS: Final = 50
"""Loop rounds that ready tasks get before time moves on, on a loop that does not show which tasks are ready."""
SETTLE_ROUNDS_MAX: Final = 10_000
"""Limit of such rounds on a loop that shows ready tasks, so that tasks that never wait cannot stop time."""


class ManualTimer:
    """A callback that is due at a time of a `ManualClock`."""

    __slots__ = ("callback", "cancelled")

    def __init__(self, callback: Callable[[], object]) -> None:
        self.callback = callback
        self.cancelled = False

    def cancel(self) -> None:
        """Forget the callback."""
        self.cancelled = True


class ManualClock:
    """A clock that stands still until `advance` is awaited."""

    def __init__(self, start_ms: int = START_MS) -> None:
        self._start_ms = start_ms
        self._elapsed_s = 0.0
        self._ahead_ms = 0
        self._order = itertools.count()
        self._timers: list[tuple[float, int, ManualTimer]] = []

    def now_ms(self) -> int:
        """Return milliseconds since 1970, UTC, as the clock is set."""
        return self._start_ms + self._ahead_ms + round(self._elapsed_s * 1000)

    def steady_ms(self) -> int:
        """Return milliseconds since 1970, UTC, as if the clock had never been set."""
        return self._start_ms + round(self._elapsed_s * 1000)

    def set_wall(self, seconds: float) -> None:
        """Set the wall clock forward by `seconds` (negative: back), as an administrator or NTP does."""
        self._ahead_ms += round(seconds * 1000)

    def monotonic(self) -> float:
        """Return seconds since the clock was made."""
        return self._elapsed_s

    def call_later(self, delay_s: float, callback: Callable[[], object]) -> TimerHandle:
        """Run `callback` when time has been advanced by `delay_s` seconds."""
        timer = ManualTimer(callback)
        heapq.heappush(self._timers, (self._elapsed_s + max(0.0, delay_s), next(self._order), timer))
        return timer

    async def sleep(self, delay_s: float) -> None:
        """Wait until time has been advanced by `delay_s` seconds; 0 lets other tasks run."""
        if delay_s <= 0:
            await asyncio.sleep(0)
            return
        due: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        timer = self.call_later(delay_s, lambda: _finish(due))
        try:
            await due
        finally:
            timer.cancel()

    async def wait_for(self, awaitable: Awaitable[T], timeout_s: float | None) -> T:
        """Await with a limit in this clock's time; None: no limit. Raises TimeoutError, after the awaitable was
        cancelled."""
        if timeout_s is None:
            return await awaitable
        async with asyncio.timeout(None) as scope:
            loop = asyncio.get_running_loop()
            timer = self.call_later(timeout_s, lambda: scope.reschedule(loop.time()))
            try:
                return await awaitable
            finally:
                timer.cancel()

    def next_due_s(self) -> float | None:
        """Return seconds until the next timer, None when there is none."""
        while self._timers and self._timers[0][2].cancelled:
            heapq.heappop(self._timers)
        return max(0.0, self._timers[0][0] - self._elapsed_s) if self._timers else None

    async def advance(self, seconds: float) -> None:
        """Move time forward by `seconds`. Each timer that falls due on the way runs at its own time."""
        end_s = self._elapsed_s + seconds
        await settle()
        while (due_s := self.next_due_s()) is not None and self._elapsed_s + due_s <= end_s:
            self._elapsed_s += due_s
            heapq.heappop(self._timers)[2].callback()
            await settle()
        self._elapsed_s = max(self._elapsed_s, end_s)
        await settle()


class LoopTimeClock(LoopClock):
    """A clock that shows the running loop's time, for loops on virtual time (`fs.testing.run`)."""

    def now_ms(self) -> int:
        """Return milliseconds since 1970, UTC."""
        return START_MS + round(asyncio.get_running_loop().time() * 1000)

    steady_ms = now_ms
    """Same as `now_ms`: nobody sets this clock."""

    @staticmethod
    def monotonic() -> float:
        """Return the loop's time in seconds."""
        return asyncio.get_running_loop().time()

    async def advance(self, seconds: float) -> None:
        """Wait until `seconds` of the loop's time have passed."""
        await asyncio.sleep(seconds)

    def next_due_s(self) -> float:
        """Return seconds until the loop's next timer; 0.05 when there is none."""
        loop = asyncio.get_running_loop()
        timers = [timer.when() for timer in getattr(loop, "_scheduled", ()) if not timer.cancelled()]
        return max(0.0, min(timers, default=loop.time() + 0.05) - loop.time())


async def settle() -> None:
    """Let every task run until the task waits for something that is not ready, for a bounded number of rounds."""
    ready = getattr(asyncio.get_running_loop(), "_ready", None)  # uvloop keeps its own: then a fixed number of rounds
    for _ in range(SETTLE_ROUNDS if ready is None else SETTLE_ROUNDS_MAX):
        await asyncio.sleep(0)
        if ready is not None and not ready:
            return


def _finish(due: asyncio.Future[None]) -> None:
    if not due.done():
        due.set_result(None)
