"""What fetches brought and nobody has taken yet, for one member or for two that are taken from together."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from flowshare.client.session.ranges import Fetched


class Arrivals:
    """One task waits at a time, or a listener is called; a fetch that brought nothing is told too."""

    def __init__(self) -> None:
        self._fetched: list[Fetched] = []
        self._errors: list[Exception] = []
        self._ended = False
        self._woken = False
        self._waiter: asyncio.Future[None] | None = None
        self.listener: Callable[[], object] | None = None
        """Called in place of a task that waits, as soon as a fetch has ended; it must not raise."""

    @property
    def ready(self) -> bool:
        """Whether a fetch has ended since the last `take`."""
        return self._ended

    @property
    def awaited(self) -> bool:
        """Whether somebody waits."""
        return self._waiter is not None or self.listener is not None

    @property
    def left(self) -> Iterable[Fetched]:
        """What nobody has taken."""
        return tuple(self._fetched)

    def put(self, fetched: list[Fetched]) -> None:
        """A fetch has ended, with this or with nothing."""
        self._fetched += fetched
        self._end()

    def fail(self, error: Exception) -> None:
        """A fetch has failed."""
        self._errors.append(error)
        self._end()

    def wake(self) -> None:
        """End the wait, or else the next one, with nothing."""
        if self._waiter is None:
            self._woken = True
        elif not self._waiter.done():
            self._waiter.set_result(None)

    def take_wake(self) -> bool:
        """Whether `wake` was called since the last wait; asked once."""
        woken, self._woken = self._woken, False
        return woken

    async def wait(self) -> None:
        """Wait until a fetch has ended, or `wake` is called. When cancelled, what came stays."""
        if self._ended:
            return
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def take(self) -> list[Fetched]:
        """All of it. Raises: what a fetch failed with, once, when there is nothing else."""
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
