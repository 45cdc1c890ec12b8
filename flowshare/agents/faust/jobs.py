"""`Jobs` runs an app's timers, cron jobs and tasks beside its agents, and handles their errors.

    kind       begins                                   an exception of it
    timer      at each interval after the start         costs this tick; logged by the timer's name
    cron job   when its local time has come (`cron.py`) the same
    task       once, when the app has started           ends the task: logged by its name, kept in `failure`, and
                                                        the app's host is told

A timer or cron job runs one tick at a time; ticks that fall due meanwhile are left out. The clock is the host's, so the
test kit moves it. No tick begins after the app was told to stop.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import logging
import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from flowshare.agents.faust.cron import Cron
from flowshare.agents.handler.errors import AppFailed, OptionError
from flowshare.agents.handler.texts import age, named, place_of, shown
from flowshare.clock import Clock, LoopClock

if TYPE_CHECKING:
    from flowshare.agents.faust.app import FaustApp

logger = logging.getLogger("flowshare.agents")

LOOK_S: Final = 60.0
"""Seconds between two looks of a waiting cron job at the machine's clock, which may be set, or have gone on in
sleep."""
SET_BACK_MS: Final = 3 * 3_600_000
"""Milliseconds: a clock set back by more was wrong before, and cron jobs begin anew; after less they wait, so that none
runs twice."""


@dataclass(frozen=True, slots=True)
class Job:
    """A timer, cron job or task. call: calls its function, with the app if that takes an argument."""

    kind: str
    name: str
    call: Callable[[], Awaitable[object]]

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


class Jobs:
    """One app's jobs. All run on the handler loop."""

    def __init__(self, app: FaustApp) -> None:
        self._app = app
        self.failure: AppFailed | None = None
        """Error of the first task that ended and should not have."""

    def begin(self) -> None:
        """Forget the last run's failure, as the app starts."""
        self.failure = None

    def timer(self, job: Job, interval_s: float) -> Callable[[], Awaitable[None]]:
        """Return a coroutine function that runs a timer until the app stops."""

        async def run() -> None:
            clock, late = self._clock, False
            due_s = clock.monotonic() + interval_s

            def left_s() -> float:
                return due_s - clock.monotonic()

            while await self._wait(left_s, clock):
                await self._tick(job)
                due_s += interval_s
                if (late_s := clock.monotonic() - due_s) > 0:
                    due_s += math.ceil(late_s / interval_s) * interval_s
                    if not late:
                        logger.warning(
                            "%s: a tick took longer than its interval of %s; what fell due meanwhile is left out",
                            job,
                            age(interval_s),
                        )
                late = late_s > 0

        return run

    def cron(self, job: Job, cron: Callable[[], Cron]) -> Callable[[], Awaitable[None]]:
        """Return a coroutine function that runs a cron job until the app stops.

        cron: makes the job's times; called when the app has started, because the time zone may be set until then.
        """

        async def run() -> None:
            clock, times = self._clock, cron()
            since_ms: float = clock.now_ms()
            while (due_ms := times.after_ms(since_ms)) is not None:
                begun_ms = since_ms

                def left_s(due_ms: int = due_ms, begun_ms: float = begun_ms) -> float:
                    now_ms = clock.now_ms()
                    return 0.0 if now_ms < begun_ms - SET_BACK_MS else min((due_ms - now_ms) / 1000, LOOK_S)

                if not await self._wait(left_s, clock):
                    return
                now_ms = clock.now_ms()
                if now_ms >= due_ms:
                    await self._tick(job)
                    since_ms = max(due_ms, clock.now_ms())
                else:
                    since_ms = now_ms
            logger.warning("%s: %s is never due again, so it has ended", job, shown(times.expression))

        return run

    def task(self, job: Job) -> Callable[[], Awaitable[None]]:
        """Return a coroutine function that runs a task to its end."""

        async def run() -> None:
            try:
                await job.call()
            except BaseException as error:
                if _ends_us(error) or self._app.host is None:
                    raise
                self._failed(job, error)

        return run

    @property
    def _clock(self) -> Clock:
        host = self._app.host
        return LoopClock() if host is None else host.clock

    async def _wait(self, left_s: Callable[[], float], clock: Clock) -> bool:
        """Wait until no time is left, however early the loop wakes up; return True if the app goes on."""
        while not self._app.should_stop and (seconds := left_s()) > 0:
            await clock.sleep(seconds)
        return not self._app.should_stop

    async def _tick(self, job: Job) -> None:
        try:
            await job.call()
        except BaseException as error:
            if _ends_us(error):
                raise
            why = f"{named(error)} ({place_of(error)})"
            logger.exception("%s failed: %s; it runs again when it is due", job, why)

    def _failed(self, job: Job, error: BaseException) -> None:
        failure = AppFailed(f"{job} failed: {named(error)} ({place_of(error)})")
        failure.__cause__ = error
        logger.error("%s", failure, exc_info=error)
        if self.failure is None:
            self.failure = failure
        if self._app.host is not None:
            self._app.host.on_failed()


def _ends_us(error: BaseException) -> bool:
    """Tell if the error ends the job from outside; False if the job's own function raised it."""
    task = asyncio.current_task() if asyncio._get_running_loop() is not None else None  # noqa: SLF001
    if isinstance(error, GeneratorExit):
        return task is None
    return isinstance(error, asyncio.CancelledError) and (task is None or task.cancelling() > 0)


def job_of(app: FaustApp, kind: str, function: Any, *, name: str | None, on_leader: bool, traced: bool) -> Job:
    """Make a job of a function. Raises: OptionError: its call cannot be awaited."""
    inner = function
    while isinstance(inner, functools.partial):
        inner = inner.func
    called = name or str(getattr(inner, "__name__", type(inner).__name__))
    if not callable(function) or inspect.isgeneratorfunction(inner) or inspect.isasyncgenfunction(inner):
        raise OptionError(f"{kind} {called} is no function to await: write `async def`, without `yield`")
    takes_app = bool(inspect.signature(function).parameters)

    async def plain(*args: Any) -> None:
        made = function(*args)
        if inspect.isawaitable(made):
            await made

    functools.update_wrapper(plain, inner)
    runs = app.lease_guard.guard(plain) if on_leader and kind != "task" else plain
    runs = app.lease_guard.guard_task(plain) if on_leader and kind == "task" else runs

    async def call() -> None:
        with app.trace(called, trace_enabled=traced):
            await (runs(app) if takes_app else runs())

    return Job(kind, called, call)


def interval_of(given: Any) -> float:
    """Return an interval in seconds. Raises: OptionError."""
    seconds = given.total_seconds() if isinstance(given, timedelta) else given
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not 0 < seconds < math.inf:
        raise OptionError(f"an interval is a number of seconds above 0, or a timedelta, not {shown(given)}")
    return float(seconds)
