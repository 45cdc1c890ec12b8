"""Clocks that do not wait: `ManualClock` moves when told, `LoopTimeClock` follows a loop whose time is virtual.

Timers of a `ManualClock` run in the order of their due times; between two of them everything that became ready runs
first, so that what a timer causes happens at that timer's time.
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
"""Where virtual time begins: 2023-11-14 22:13:20 UTC."""
SETTLE_ROUNDS: Final = 50
"""Loop rounds given to tasks to finish what is ready before time moves on, where readiness cannot be seen."""
SETTLE_ROUNDS_MAX: Final = 10_000
"""The same where it can: tasks that never wait do not hold time up for ever."""


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
    """Time stands still until `advance` is awaited."""

    def __init__(self, start_ms: int = START_MS) -> None:
        self._start_ms = start_ms
        self._elapsed_s = 0.0
        self._ahead_ms = 0
        self._order = itertools.count()
        self._timers: list[tuple[float, int, ManualTimer]] = []

    def now_ms(self) -> int:
        """Milliseconds since 1970, UTC, as the clock is set."""
        return self._start_ms + self._ahead_ms + round(self._elapsed_s * 1000)

    def steady_ms(self) -> int:
        """Milliseconds since 1970, UTC, as if the clock had never been set."""
        return self._start_ms + round(self._elapsed_s * 1000)

    def set_wall(self, seconds: float) -> None:
        """Set the wall clock forward by so many seconds (negative: back), as an administrator or NTP does."""
        self._ahead_ms += round(seconds * 1000)

    def monotonic(self) -> float:
        """Seconds since the clock was made."""
        return self._elapsed_s

    def call_later(self, delay_s: float, callback: Callable[[], object]) -> TimerHandle:
        """Run `callback` when time has been advanced by `delay_s` seconds."""
        timer = ManualTimer(callback)
        heapq.heappush(self._timers, (self._elapsed_s + max(0.0, delay_s), next(self._order), timer))
        return timer

    async def sleep(self, delay_s: float) -> None:
        """Wait until time has been advanced by `delay_s` seconds; 0 lets others run."""
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
        """Await with a limit in this clock's time. Raises TimeoutError; the awaited thing is cancelled then."""
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
        """Seconds until the next timer, None when there is none."""
        while self._timers and self._timers[0][2].cancelled:
            heapq.heappop(self._timers)
        return max(0.0, self._timers[0][0] - self._elapsed_s) if self._timers else None

    async def advance(self, seconds: float) -> None:
        """Move time forward by `seconds`, running what falls due on the way, each at its own time."""
        end_s = self._elapsed_s + seconds
        await settle()
        while (due_s := self.next_due_s()) is not None and self._elapsed_s + due_s <= end_s:
            self._elapsed_s += due_s
            heapq.heappop(self._timers)[2].callback()
            await settle()
        self._elapsed_s = max(self._elapsed_s, end_s)
        await settle()


class LoopTimeClock(LoopClock):
    """Tells the running loop's own time: for loops whose time is virtual (`fs.testing.run`)."""

    def now_ms(self) -> int:
        """Milliseconds since 1970, UTC."""
        return START_MS + round(asyncio.get_running_loop().time() * 1000)

    steady_ms = now_ms
    """The same: nobody sets it."""

    @staticmethod
    def monotonic() -> float:
        """The loop's time in seconds."""
        return asyncio.get_running_loop().time()

    async def advance(self, seconds: float) -> None:
        """Wait until so much of the loop's time has passed."""
        await asyncio.sleep(seconds)

    def next_due_s(self) -> float:
        """Seconds until the loop's next timer; a little when there is none."""
        loop = asyncio.get_running_loop()
        timers = [timer.when() for timer in getattr(loop, "_scheduled", ()) if not timer.cancelled()]
        return max(0.0, min(timers, default=loop.time() + 0.05) - loop.time())


async def settle() -> None:
    """Let every task run until it waits for something that is not ready, for a bounded number of rounds."""
    ready = getattr(asyncio.get_running_loop(), "_ready", None)  # uvloop keeps its own: then a fixed number of rounds
    for _ in range(SETTLE_ROUNDS if ready is None else SETTLE_ROUNDS_MAX):
        await asyncio.sleep(0)
        if ready is not None and not ready:
            return


def _finish(due: asyncio.Future[None]) -> None:
    if not due.done():
        due.set_result(None)
