"""Time for the shells: everything that waits in server, client and agents waits on a `Clock`.

The cores take `now_ms` as an argument and know no clock. `LoopClock` is the real one; the test kit's clock stands
still until it is moved, which is why nothing outside this module may call `asyncio.sleep`, `asyncio.timeout` or
`loop.call_later` for flowshare's own delays.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

T = TypeVar("T")


class TimerHandle(Protocol):
    """A callback that is due later."""

    def cancel(self) -> None:
        """Forget the callback; harmless when it has run."""


class Clock(Protocol):
    """Wall-clock, monotonic time and waiting."""

    def now_ms(self) -> int:
        """Milliseconds since 1970, UTC."""
        ...

    def monotonic(self) -> float:
        """Seconds from an unknown start, never going back."""
        ...

    def call_later(self, delay_s: float, callback: Callable[[], object]) -> TimerHandle:
        """Run `callback` on the running loop after `delay_s` seconds."""
        ...

    async def sleep(self, delay_s: float) -> None:
        """Wait `delay_s` seconds."""

    async def wait_for(self, awaitable: Awaitable[T], timeout_s: float | None) -> T:
        """Await with a limit. Raises TimeoutError; the awaited thing is cancelled then."""
        ...


class LoopClock:
    """The real clock; timers run on whichever loop is running."""

    def now_ms(self) -> int:
        """Milliseconds since 1970, UTC."""
        return time.time_ns() // 1_000_000

    monotonic = staticmethod(time.monotonic)
    """Seconds from an unknown start, never going back. The function itself: it is called for every record."""

    def call_later(self, delay_s: float, callback: Callable[[], object]) -> TimerHandle:
        """Run `callback` on the running loop after `delay_s` seconds."""
        return asyncio.get_running_loop().call_later(delay_s, callback)

    async def sleep(self, delay_s: float) -> None:
        """Wait `delay_s` seconds."""
        await asyncio.sleep(delay_s)

    async def wait_for(self, awaitable: Awaitable[T], timeout_s: float | None) -> T:
        """Await with a limit. Raises TimeoutError; the awaited thing is cancelled then."""
        async with asyncio.timeout(timeout_s):
            return await awaitable
