"""`Leader`: runs what is `on_leader` in the one process of an app that holds the app's lease.

    state     event                                       next
    -         called while the lease is held              RUNNING
    -         called while it is not                      not run
    RUNNING   the function ends                           ended
    RUNNING   the lease lapses                            cancelled at the await where it is
    RUNNING   the process stood still; the lease lapsed   cancelled before its next step

A step is what runs between two awaits. Nothing can stop a step under way: a function that blocks the loop, or that is
in the middle of a step while the process stands still, finishes that step.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Awaitable, Callable, Coroutine, Generator
from typing import TYPE_CHECKING, Any, Final

from flowshare.agents.lease import Lease, Moment
from flowshare.clock import LoopClock

if TYPE_CHECKING:
    from flowshare.clock import Clock

LOOK_S: Final = 0.25
"""How often a task that waits for the lease looks."""

logger = logging.getLogger("flowshare.agents")


class Leader:
    """One app's. The lease is sought when something wants it: an app without anything `on_leader` has no such group."""

    def __init__(self) -> None:
        self.lease = Lease()
        self.clock: Clock = LoopClock()
        self._wanted = False
        self._seek: Callable[[], object] | None = None

    @property
    def wanted(self) -> bool:
        """Whether something has asked for the lease, so that the process seeks it."""
        return self._wanted

    @property
    def held(self) -> bool:
        """Whether this process holds the lease now; the first question makes it ask for it. Any thread."""
        self._want()
        return self._held()

    def join(self, seek: Callable[[], object]) -> None:
        """The app runs; seek: called when something wants the lease, from any thread."""
        self._seek = seek
        if self._wanted:
            seek()

    def leave(self) -> None:
        """The app ends: the lease is not held any more."""
        self._seek = None
        self.lease.drop()

    def _want(self) -> None:
        if not self._wanted:
            self._wanted = True
            if self._seek is not None:
                self._seek()

    def _held(self) -> bool:
        return self.lease.held(self._moment())

    def _moment(self) -> Moment:
        return Moment(self.clock.monotonic(), self.clock.now_ms())

    def guard(self, function: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[None]]:
        """The function, run only while the lease is held: for what is called again and again."""
        self._want()

        @functools.wraps(function)
        async def guarded(*args: Any) -> None:
            if self._held():
                await self._run(function, args)

        return guarded

    def guard_task(self, function: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[None]]:
        """The function, begun as soon as the lease is held, and once more each time that it lapsed meanwhile."""
        self._want()

        @functools.wraps(function)
        async def guarded(*args: Any) -> None:
            while True:
                if self._held() and await self._run(function, args):
                    return
                await self.clock.sleep(LOOK_S)

        return guarded

    async def _run(self, function: Callable[..., Awaitable[Any]], args: tuple[Any, ...]) -> bool:
        """Run it for as long as the lease is held; whether it ended by itself. Raises: what it raises."""
        steps = _Steps(_call(function, args), self._held)
        task = asyncio.get_running_loop().create_task(steps, name=f"on_leader {_name(function)}")
        try:
            await self._while_held(task, steps)
        except asyncio.CancelledError:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            raise
        if not steps.lapsed:
            task.result()
            return True
        logger.warning("%s was cancelled: this process holds the app's lease no more", _name(function))
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("%s failed as it was cancelled", _name(function), exc_info=error)
        return False

    async def _while_held(self, task: asyncio.Task[Any], steps: _Steps) -> None:
        """Wait for the task, and cancel it when the lease lapses."""
        while not task.done():
            left_s = self.lease.left_s(self._moment())
            if left_s <= 0:
                steps.lapsed = True
                task.cancel()
                await asyncio.wait({task})
                return
            try:
                await self.clock.wait_for(asyncio.wait({task}), left_s)
            except TimeoutError:
                continue  # it may have been made longer meanwhile


class _Steps(Coroutine[Any, Any, Any]):
    """A coroutine that looks before each of its steps whether it may go on, and is cancelled when it may not."""

    def __init__(self, coroutine: Coroutine[Any, Any, Any], held: Callable[[], bool]) -> None:
        self._coroutine = coroutine
        self._held = held
        self.lapsed = False

    def send(self, value: Any) -> Any:
        if self._lapses():
            return self._coroutine.throw(asyncio.CancelledError("the app's lease lapsed"))
        return self._coroutine.send(value)

    def throw(self, *error: Any) -> Any:
        self._lapses()
        return self._coroutine.throw(*error)

    def close(self) -> None:
        self._coroutine.close()

    def __await__(self) -> Generator[Any, Any, Any]:
        return self._coroutine.__await__()

    def _lapses(self) -> bool:
        """Whether it lapsed just now: once, so that what cleans up afterwards may wait."""
        if self.lapsed or self._held():
            return False
        self.lapsed = True
        return True


async def _call(function: Callable[..., Awaitable[Any]], args: tuple[Any, ...]) -> Any:
    return await function(*args)


def _name(function: Callable[..., Any]) -> str:
    return str(getattr(function, "__qualname__", function))
