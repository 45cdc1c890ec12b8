"""One call of a consumer at a time, and ending what it waits for from elsewhere."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from flowshare.client.errors import Closed, Wakeup

if TYPE_CHECKING:
    from typing import Any

    from flowshare.clock import Clock


class Busy:
    """Set while a call of the consumer is under way."""

    __slots__ = ("now",)

    def __init__(self) -> None:
        self.now = False

    def __enter__(self) -> None:
        self.now = True

    def __exit__(self, *_: object) -> None:
        self.now = False


class Waker:
    """Waits for a future, for a time, or for `wake`; one that comes while nothing waits counts for the next call."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._waiting: asyncio.Future[None] | None = None
        self._woken = False
        self._closed = False

    def wake(self) -> None:
        """End the wait under way, or the next one."""
        self._woken = True
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    def close(self) -> None:
        """From now on `raise_if_woken` raises Closed."""
        self._closed = True

    def raise_if_woken(self) -> None:
        """Raises: Closed, Wakeup (once for all wake-ups so far)."""
        if self._closed:
            raise Closed("the consumer was closed")
        if self._woken:
            self._woken = False
            raise Wakeup("wakeup() was called")

    async def wait(self, awaited: asyncio.Future[Any], timeout_s: float) -> bool:
        """Wait for it, for the time, or for a wake-up; whether it is done. Raises: Wakeup, Closed."""
        self._waiting = asyncio.get_running_loop().create_future()
        both: set[asyncio.Future[Any]] = {awaited, self._waiting}
        try:
            await self._clock.wait_for(asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED), timeout_s)
        except TimeoutError:
            return awaited.done()
        finally:
            self._waiting = None
        if not awaited.done():
            self.raise_if_woken()
        return awaited.done()
