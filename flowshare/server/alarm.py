"""Sleeping until something is due or something happens, whichever is first."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from flowshare.clock import Clock


class Alarm:
    """One task sleeps on it, anybody rings it; a ring while nobody sleeps ends the next sleep at once."""

    __slots__ = ("_clock", "_future", "_rung", "due_ms")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._future: asyncio.Future[None] | None = None
        self._rung = False
        self.due_ms: int | None = None
        """What the sleeper waits for, None when it does not sleep or has no deadline."""

    def ring(self) -> None:
        """Wake the sleeper."""
        self._rung = True
        if self._future is not None and not self._future.done():
            self._future.set_result(None)

    async def sleep_until(self, due_ms: int | None) -> None:
        """Sleep until `due_ms` (None: for ever) or until rung; a millisecond at least if it is due already."""
        if self._rung:
            self._rung = False
            return
        self._future = asyncio.get_running_loop().create_future()
        self.due_ms = due_ms
        timer = None
        if due_ms is not None:
            timer = self._clock.call_later(max(1, due_ms - self._clock.steady_ms()) / 1000, self.ring)
        try:
            await self._future
        finally:
            self._future = None
            self._rung = False
            self.due_ms = None
            if timer is not None:
                timer.cancel()
