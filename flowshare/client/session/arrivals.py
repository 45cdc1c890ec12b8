"""`Arrivals`: results of fetches that the application has not taken yet, of one member or of two members read
together."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from flowshare.client.session.ranges import Fetched


class Arrivals:
    """Collects results of fetches. One task waits at a time, or a listener is called, also for a fetch without
    records."""

    def __init__(self) -> None:
        self._fetched: list[Fetched] = []
        self._errors: list[Exception] = []
        self._ended = False
        self._woken = False
        self._waiter: asyncio.Future[None] | None = None
        self.listener: Callable[[], object] | None = None
        """A callback in place of a waiting task, called as soon as a fetch has ended; it must not raise."""

    @property
    def ready(self) -> bool:
        """True if a fetch has ended since the last `take`."""
        return self._ended

    @property
    def awaited(self) -> bool:
        """True if a task waits, or a listener is set."""
        return self._waiter is not None or self.listener is not None

    @property
    def left(self) -> Iterable[Fetched]:
        """The fetched records that the application has not taken."""
        return tuple(self._fetched)

    def put(self, fetched: list[Fetched]) -> None:
        """Add the records, possibly none, of a fetch that has ended."""
        self._fetched += fetched
        self._end()

    def fail(self, error: Exception) -> None:
        """Add the error of a fetch that has failed."""
        self._errors.append(error)
        self._end()

    def wake(self) -> None:
        """End the current wait, or else the next one, without records."""
        if self._waiter is None:
            self._woken = True
        elif not self._waiter.done():
            self._waiter.set_result(None)

    def take_wake(self) -> bool:
        """Tell if `wake` was called since the last wait, and clear that mark."""
        woken, self._woken = self._woken, False
        return woken

    async def wait(self) -> None:
        """Wait until a fetch has ended or `wake` is called. A cancelled wait loses no records."""
        if self._ended:
            return
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def take(self) -> list[Fetched]:
        """Take all records. Raises: the error of a failed fetch, once, when there are no records."""
        fetched, self._fetched = self._fetched, []
        self._ended = bool(fetched and self._errors)
        if not fetched and self._errors:
            error = self._errors.pop(0)
            self._ended = bool(self._errors)
            raise error
        return fetched

    def _end(self) -> None:
        self._ended = True
        if self.listener is not None:
            self.listener()
        elif self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
