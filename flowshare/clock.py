"""Time for the shells: every wait in server, client and agents is on a `Clock`.

The cores take `now_ms` as an argument and know no clock. `LoopClock` is the real one; the test kit's clock stands still
until it is moved, which is why nothing outside this module may call `asyncio.sleep`, `asyncio.timeout` or
`loop.call_later` for flowshare's own delays.

A clock tells the time in three ways, because a machine's clock is set: by hand, by NTP, by days.

    monotonic   seconds from anywhere; within a process
    steady_ms   milliseconds since 1970 as of when this process began, and monotonic from then on
    now_ms      milliseconds since 1970, as the machine's clock is set now

Invariant: durations and their ends (locks, sessions, time-outs, leases, delays) are reckoned by `steady_ms` alone, so
that setting the clock ends nothing early and nothing late. `now_ms` is for times shown to people, and for times
compared over restarts and with the timestamps of records. Stored times of the former kind are turned into the latter
and back (`ahead_ms`), and bounded when they are read:

| | stored as | after a restart |
|---|---|---|
| lock of a record | its member | a lock duration from its partition's first use, if its member is expected back |
| session of a member, of a share or classic group | nothing | a whole session timeout |
| delay of a released record | due, `steady_ms` | no longer than `share.types.DELAY_MS_MAX` from then on |
| open transaction | begin, `now_ms` | no longer than its whole timeout from then on |
| time since which a group is empty, an id unused | `now_ms` | counted from then on where it would be in the future |
| last sign of a producer | `steady_ms` | the same |
| committed offset | commit, expiry, `now_ms` | the same: its retention is by the machine's clock |

While a machine is suspended, `monotonic` and `steady_ms` stand still; so do its members.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Final, Protocol, TypeVar

T = TypeVar("T")
_BEGUN_NS: Final = time.time_ns() - time.monotonic_ns()
"""When the monotonic clock was 0; one for all clocks of a process, which pass times to each other."""


class TimerHandle(Protocol):
    """A callback that is due later."""

    def cancel(self) -> None:
        """Forget the callback; harmless when it has run."""


class Clock(Protocol):
    """Wall-clock, monotonic time and waiting."""

    def now_ms(self) -> int:
        """Return milliseconds since 1970, UTC, as the machine's clock is set."""

    def steady_ms(self) -> int:
        """Return milliseconds since 1970, UTC, as if the clock had not been set since the process began; never going
        back."""

    def monotonic(self) -> float:
        """Return seconds from an unknown start, never going back."""

    def call_later(self, delay_s: float, callback: Callable[[], object]) -> TimerHandle:
        """Run `callback` on the running loop after `delay_s` seconds."""

    async def sleep(self, delay_s: float) -> None:
        """Wait `delay_s` seconds."""

    async def wait_for(self, awaitable: Awaitable[T], timeout_s: float | None) -> T:
        """Await with a limit. Raises TimeoutError; the awaitable is cancelled then."""


def ahead_ms(clock: Clock) -> int:
    """Return the milliseconds by which the machine's clock was set forward since the process began (back: negative)."""
    return clock.now_ms() - clock.steady_ms()


class LoopClock:
    """The real clock; timers run on the running loop."""

    def now_ms(self) -> int:
        """Return milliseconds since 1970, UTC, as the machine's clock is set."""
        return time.time_ns() // 1_000_000

    def steady_ms(self) -> int:
        """Return milliseconds since 1970, UTC, as if the clock had not been set since the process began; never going
        back."""
        return (_BEGUN_NS + time.monotonic_ns()) // 1_000_000

    monotonic = staticmethod(time.monotonic)
    """Seconds from an unknown start, never going back. The function itself: it is called for every record."""

    def call_later(self, delay_s: float, callback: Callable[[], object]) -> TimerHandle:
        """Run `callback` on the running loop after `delay_s` seconds."""
        return asyncio.get_running_loop().call_later(delay_s, callback)

    async def sleep(self, delay_s: float) -> None:
        """Wait `delay_s` seconds."""
        await asyncio.sleep(delay_s)

    async def wait_for(self, awaitable: Awaitable[T], timeout_s: float | None) -> T:
        """Await with a limit. Raises TimeoutError; the awaitable is cancelled then."""
        async with asyncio.timeout(timeout_s):
            return await awaitable


def new_loop() -> asyncio.AbstractEventLoop:
    """Return a new event loop: uvloop's where it exists, else asyncio's own."""
    try:
        import uvloop
    except ImportError:  # no uvloop on Windows
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()
