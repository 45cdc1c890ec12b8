"""`Keeper` keeps a number of workers running, wherever they run: it numbers them, starts each again, and ends all.

A place is a worker's number with the task that keeps a worker there:

    resize up       → kept       the lowest numbers that are free
    resize down     kept → leaving    the highest numbers; the worker drains, as at the end, and is not started again
    its end         leaving → free    (kept: started again)
    stop            all → leaving

so `resize` holds for places that are kept, and while old ones still drain there may be more workers than that.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import signal
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Final, Generic, Self, TypeVar

from flowshare.agents.worker.signals import EXIT_INTERRUPTED
from flowshare.backoff import Backoff

logger = logging.getLogger("flowshare.supervisor")

PAUSES: Final = Backoff(0.5, 30.0)
SETTLED_S: Final = 10.0
"""Seconds after which a worker counts as started well: its next pause is the first one again."""
KILL_AFTER_S: Final = 10.0
"""Seconds after its drain time when a worker is killed; by itself it ends within 9 s."""
EXIT_CUT_OFF: Final = 3
"""Exit code: at least one worker did not drain."""


@dataclass(slots=True, kw_only=True)
class Place:
    """A worker's number and its keeper. leaving: set when the place is given up. keeper: task that starts it again."""

    number: int
    leaving: asyncio.Event = field(default_factory=asyncio.Event)
    keeper: asyncio.Task[None] | None = None


P = TypeVar("P", bound=Place)


class Keeper(ABC, Generic[P]):
    """Keeps workers running until it is stopped: as many as the last `resize` asked for. All on one loop."""

    def __init__(self, make_place: Callable[..., P]) -> None:
        """make_place: makes a subclass's record of a worker, by its `number`."""
        self._make_place = make_place
        self._places: dict[int, P] = {}
        self._stop = asyncio.Event()
        self._hurry = asyncio.Event()
        self._codes: dict[int, int] = {}
        """Exit codes of workers that left, by number."""
        self._failed: int | None = None
        self._group: asyncio.TaskGroup | None = None
        self._scaling: asyncio.Task[None] | None = None

    @property
    def size(self) -> int:
        """Number of workers kept; those that drain do not count."""
        return len(self._kept)

    def stop(self, number: int = signal.SIGTERM) -> None:
        """Drain all workers and end; a second Ctrl-C ends them at once."""
        if self._stop.is_set() and number == signal.SIGINT:
            self._hurry.set()
        self._stop.set()
        self._leave_all()

    def resize(self, count: int) -> None:
        """Keep `count` workers (at least 1): start some, or drain those with the highest numbers."""
        assert count >= 1
        if self._group is None or self._closed:
            return
        kept = self._kept
        for number in kept[count:]:
            logger.info("worker %d drains: %d are enough", number, count)
            self._places[number].leaving.set()
        number = 0
        for _ in range(count - len(kept)):
            number = next(free for free in itertools.count(number + 1) if free not in self._places)
            place = self._places[number] = self._make_place(number=number)
            place.keeper = self._group.create_task(self._keep(place), name=f"worker {number}")

    async def _run(self, count: int, beside: Callable[[Self], Awaitable[None]] | None) -> int:
        """Keep workers until `stop`; return the exit code. beside: runs meanwhile, and may resize."""
        async with asyncio.TaskGroup() as group:
            self._group = group
            self.resize(count)
            if beside is not None:
                self._scaling = group.create_task(logged(lambda: beside(self), "scaling"), name="scaling")
            await self._stop.wait()
            if self._scaling is not None:
                self._scaling.cancel()
            await self._until_empty()
            self._group = None
        return self._verdict()

    @abstractmethod
    async def _run_again(self, place: P) -> None:
        """Run one worker, again and again, until it must leave."""

    def fail(self, code: int, why: str) -> None:
        """Drain all workers and end with this code: there is nothing to look after any more."""
        if self._failed is None:
            self._failed = code
            logger.error("%s; stopping", why)
        self.stop()

    # --- for subclasses ---------------------------------------------------------------------------------------------

    @property
    def _closed(self) -> bool:
        """True if no worker is started any more."""
        return self._stop.is_set()

    @property
    def _kept(self) -> list[int]:
        return sorted(number for number, place in self._places.items() if not place.leaving.is_set())

    def _leave_all(self) -> None:
        for place in self._places.values():
            place.leaving.set()

    async def _until_empty(self) -> None:
        while tasks := [place.keeper for place in self._places.values() if place.keeper is not None]:
            await asyncio.wait(tasks)

    async def _late(self, ended: asyncio.Future[Any], limit_s: float) -> str | None:
        """Wait for the end of a draining worker; return the reason to end it by force, None: it has ended."""
        await either(ended, self._hurry, limit_s)
        if ended.done():
            return None
        return "ending at once" if self._hurry.is_set() else f"it did not drain within {limit_s:.0f} s"

    # --- its own ----------------------------------------------------------------------------------------------------

    async def _keep(self, place: P) -> None:
        try:
            await self._run_again(place)
        finally:
            del self._places[place.number]

    def _verdict(self) -> int:
        if self._failed is not None:
            return self._failed
        if self._hurry.is_set():
            return EXIT_INTERRUPTED
        cut_off = sorted(number for number, code in self._codes.items() if code)
        if cut_off:
            logger.warning("stopped; workers %s were cut off, their records run again", cut_off)
            return EXIT_CUT_OFF
        logger.info("stopped: all workers drained")
        return 0


async def either(ended: asyncio.Future[Any], event: asyncio.Event, limit_s: float | None = None) -> None:
    """Wait for the future or the event, `limit_s` seconds at most; `ended` goes on."""
    told: asyncio.Future[Any] = asyncio.ensure_future(event.wait())
    try:
        await asyncio.wait({ended, told}, timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
    finally:
        told.cancel()


async def pause(event: asyncio.Event, limit_s: float) -> None:
    """Wait for `limit_s` seconds, or until an event comes."""
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(event.wait(), limit_s)


async def logged(work: Callable[[], Awaitable[None]], name: str) -> None:
    """Run some work beside the workers; log its error, so that the error does not end the workers."""
    try:
        await work()
    except Exception:
        logger.exception("%s failed", name)
