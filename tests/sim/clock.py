"""Clocks of tests on a real loop; where the whole loop's time can be virtual, `flowshare.testing` has them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from flowshare.clock import LoopClock, TimerHandle


class HastyClock(LoopClock):
    """The real clock, on which no wait is longer than `most_s`: who looks each minute looks soon."""

    def __init__(self, most_s: float) -> None:
        self._most_s = most_s

    async def sleep(self, delay_s: float) -> None:
        """Wait `delay_s`, or `most_s` if that is less."""
        await asyncio.sleep(min(delay_s, self._most_s))


class HandTimer:
    """A callback that waits for `HandClock.run`."""

    def __init__(self, callback: Callable[[], object]) -> None:
        self.callback: Callable[[], object] | None = callback

    def cancel(self) -> None:
        """Forget the callback."""
        self.callback = None


class HandClock(LoopClock):
    """A clock whose time is what `now_s` says, and whose timers run when the test says so."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.timers: dict[float, list[HandTimer]] = {}

    def monotonic(self) -> float:  # type: ignore[override]
        """Return what `now_s` says."""
        return self.now_s

    def now_ms(self) -> int:
        """Return the same in milliseconds."""
        return int(self.now_s * 1_000)

    steady_ms = now_ms

    def call_later(self, delay_s: float, callback: Callable[[], object]) -> TimerHandle:
        """Keep the callback with all that wait so long."""
        timer = HandTimer(callback)
        self.timers.setdefault(delay_s, []).append(timer)
        return timer

    def run(self, delay_s: float) -> None:
        """Let all that wait so long be due."""
        for timer in self.timers.pop(delay_s, []):
            if timer.callback is not None:
                timer.callback()
