"""`flowshare worker`: one process that runs an app until a signal, and ends in time whatever the handlers do.

The handler loop is the main thread's; signals, the drain deadline and the end of the process are decided elsewhere
(`signals.py`, the service loop), so that a handler that blocks cannot hold them off.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Final

from flowshare.agents.app.app import App
from flowshare.agents.handler.texts import amount
from flowshare.agents.host import inflight
from flowshare.agents.host.host import Host, HostSettings, PartFactory
from flowshare.agents.host.service import run_through
from flowshare.agents.worker.keeper import either
from flowshare.agents.worker.signals import EXIT_INTERRUPTED, Signals
from flowshare.agents.worker.supervisor import (
    PATIENCE_S,
    orphaned,
    report_ready,
    supervised,
    supervisor_pages,
    worker_number,
)
from flowshare.clock import Clock, LoopClock, new_loop

logger = logging.getLogger("flowshare.worker")

EXIT_CLEAN: Final = 0
EXIT_FAILED: Final = 1
EXIT_UNFINISHED: Final = 3
"""Exit code: handlers had to be left behind at the drain deadline; their records run again."""

_BLOCKED_S: Final = 0.5
"""Seconds of lateness from which on a handler loop counts as blocked when the drain has ended: the end does not wait
for it then. Any loop is late by less at times."""
_BLOCKED_GRACE_S: Final = 0.25
"""Seconds that the end waits for a blocked handler loop."""
_STOP_GRACE_S: Final = 8.0
"""Seconds that the end waits for the app's own stop (its `on_drain` functions, timers, web), for its members to leave
and for a fleet's slots to find others."""
_OVER_S: Final = 1.0
"""Seconds after that until the process ends even when no Python code can run by then."""
_EXIT_GRACE_S: Final = 0.2
"""Seconds for the interpreter to end (threads that never return, atexit functions)."""
_ORPHAN_LOOK_S: Final = 0.5
"""Seconds between two looks of a worker for its supervisor."""
_LAST_CALL_S: Final = 4.0
"""Seconds after the drain deadline until the process ends when no Python code can run."""


class AppRun:
    """An app in this process, on the loop of its handlers: its owner has it started, drained and stopped."""

    def __init__(self, app: App, settings: HostSettings, clock: Clock, parts: Sequence[PartFactory] = ()) -> None:
        self.host = Host(app, clock=clock, settings=settings, parts=parts)
        self.host.on_lost = self.stop
        self.host.on_failed = self.stop
        self.loop: asyncio.AbstractEventLoop
        """Loop of the handlers; its owner sets it."""
        self.ended = threading.Event()
        """Set by its owner when that loop has ended."""
        self._clock = clock
        self._stop = asyncio.Event()
        self._clean = True

    # --- handler loop ------------------------------------------------------------------------------------------------

    async def until_stopped(self, on_ready: Callable[[float], object]) -> None:
        """Start the app, and wait for the order to stop, for its crash or for the end of a task by an error.

        on_ready: called with the seconds that the start took. Raises: the errors of the start.
        """
        begun_s = self._clock.monotonic()
        starting = asyncio.ensure_future(self.host.start())
        await either(starting, self._stop)
        if not starting.done():  # asked to stop while starting
            starting.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await starting
        if self.host.was_running:
            on_ready(self._clock.monotonic() - begun_s)
        app = asyncio.ensure_future(self.host.app.wait_until_stopped())
        await either(app, self._stop)
        app.cancel()

    async def finish(self, timeout_s: float | None) -> None:
        """Drain, if nobody has drained, and stop the app."""
        if self.host.service.running:
            self._clean = await self.host.drain(timeout_s)
        await self.host.stop()

    def verdict(self) -> int:
        """Return the exit code and log its reason."""
        if (failed := self.host.failure()) is not None:
            told = failed is self.host.app.jobs.failure
            logger.error("stopped: %s", failed, exc_info=None if told else failed.__cause__)
            return EXIT_FAILED
        if self.host.lost is not None:
            logger.error("stopped: there is nothing left to work on")
            return EXIT_FAILED
        if self.host.state == "stopped" and not (self.host.runtimes or self.host.was_running):
            logger.info("stopped before it had started")
            return EXIT_CLEAN
        if not self._clean:
            logger.warning("stopped; handlers were cut off at the drain deadline and their records run again")
            return EXIT_UNFINISHED
        logger.info("stopped: everything that was begun is finished")
        return EXIT_CLEAN

    def stop(self) -> None:
        """Have `until_stopped` return; from any thread."""
        self.loop.call_soon_threadsafe(self._stop.set)

    # --- service loop ------------------------------------------------------------------------------------------------

    async def drain(self, timeout_s: float | None) -> None:
        """Drain, then have the handler loop stop the app."""
        self._clean = await self.host.drain(timeout_s)
        self.stop()

    async def ends(self, otherwise: str) -> bool:
        """Wait for the handler loop to end; True if it ends in time.

        If the loop does not end, log its stack. otherwise: the consequence, for the log.
        """
        watchdog = self.host.watchdog
        late_s = 0.0 if watchdog is None else watchdog.stalled_s()
        if await ends(self.ended, _BLOCKED_GRACE_S if late_s > _BLOCKED_S else _STOP_GRACE_S, self._clock):
            return True
        stack = "" if watchdog is None else watchdog.blocking_stack().rstrip()
        logger.error("the handler loop does not end; %s. It is here:\n%s", otherwise, stack)
        await self.host.close_service()
        return False


def run_worker(
    app: App,
    *,
    drain_timeout_s: float | None = None,
    parts: Sequence[PartFactory] = (),
    prepare: Callable[[], object] | None = None,
) -> int:
    """Run the app on the calling (main) thread until SIGTERM, SIGINT or a crash; return the exit code.

    drain_timeout_s: overrides the agents' own. parts: started on the service loop (the health pages). prepare: as in
    `HostSettings`.
    0: drained and left in order. 3: handlers were left behind at the drain deadline. 1: the app crashed, a task of it
    (`@app.task`) ended by an error, or the place of its groups is gone (`Backend.on_lost`).
    Raises: the errors of the start (see `Host.start`).
    """
    return _Worker(app, drain_timeout_s, parts, prepare, LoopClock()).run()


class _Worker:
    def __init__(
        self,
        app: App,
        drain_timeout_s: float | None,
        parts: Sequence[PartFactory],
        prepare: Callable[[], object] | None,
        clock: Clock,
    ) -> None:
        self._drain_timeout_s = drain_timeout_s
        self._clock = clock
        supervisor = supervised()
        settings = HostSettings(
            watchdog=True,
            patience_s=PATIENCE_S if supervisor else 0.0,
            lead=not supervisor,
            supervisor=supervisor_pages(),
            prepare=prepare,
        )
        self._run = AppRun(app, settings, clock, parts)
        self._host = self._run.host
        self._host.on_lost = self._on_lost
        self._signals = Signals(
            on_stop=self._on_stop,
            on_second=self._on_second,
            on_show=self._on_show,
            on_main=self._last_call,
            clock=clock,
        )

    def run(self) -> int:
        """Run to the end."""
        self._signals.install()
        try:
            with asyncio.Runner(loop_factory=new_loop) as runner:
                loop = runner.get_loop()
                code = run_through(loop, loop.create_task(self._main()), again=self._on_again)
                self._guard_exit(code)
            return code
        finally:
            self._run.ended.set()
            self._signals.restore()

    def _on_again(self) -> None:
        """Go on after the loop had been ended: it sets its own wakeup descriptor again as it begins."""
        self._signals.outlive_loop()
        self._run.loop.call_soon(self._signals.take)

    # --- handler loop ------------------------------------------------------------------------------------------------

    async def _main(self) -> int:
        self._run.loop = asyncio.get_running_loop()
        self._signals.take()
        try:
            await self._run.until_stopped(self._on_ready)
        finally:
            self._signals.let_go()
        await self._run.finish(self._drain_timeout_s)
        return self._run.verdict()

    def _on_ready(self, took_s: float) -> None:
        at = f", health and metrics at http://{self._host.address}" if self._host.address else ""
        agents = amount(len(self._host.runtimes), "agent")
        logger.info("ready after %.2f s: %s%s (process %d)", took_s, agents, at, os.getpid())
        report_ready(self._host.address)
        if supervised():
            self._host.service.submit(self._end_when_orphaned)

    def _on_lost(self) -> None:
        """End as with SIGTERM: handlers may end their effects elsewhere, though their records are not settled."""
        self._last_call(signal.SIGTERM)
        self._host.service.submit(self._drain_and_end)

    async def _end_when_orphaned(self) -> None:
        """Drain when the supervisor is gone: a restarted supervisor would have this worker twice."""
        while not self._run.ended.is_set():
            if orphaned():
                logger.warning("the supervisor is gone")
                self._on_stop(signal.SIGTERM)
                return
            await self._clock.sleep(_ORPHAN_LOOK_S)

    # --- signals thread ----------------------------------------------------------------------------------------------

    def _on_stop(self, number: signal.Signals) -> None:
        if not self._host.service.running:
            self._exit(EXIT_CLEAN, f"{number.name} before anything was begun")
            return
        self._last_call(number)
        self._host.service.submit(self._drain_and_end)
        logger.info("%s: finishing what is running (a second Ctrl-C ends at once)", number.name)

    def _last_call(self, _number: signal.Signals) -> None:
        if self._host.watchdog is not None:
            given = self._drain_timeout_s
            self._host.watchdog.end_after((self._host.app.drain_timeout_s if given is None else given) + _LAST_CALL_S)

    def _on_second(self, number: signal.Signals) -> None:
        self._exit(EXIT_INTERRUPTED, f"{number.name} again: ending at once; what was running runs again")

    def _on_show(self) -> None:
        sys.stderr.write(inflight.text(self._host.in_flight(stacks=True), worker=worker_number()))
        sys.stderr.flush()

    # --- service loop ------------------------------------------------------------------------------------------------

    async def _drain_and_end(self) -> None:
        """Drain, then have the handler loop stop the app; end the process if it does not."""
        await self._run.drain(self._drain_timeout_s)
        if self._host.watchdog is not None:
            self._host.watchdog.end_after(_STOP_GRACE_S + _OVER_S)  # Python runs, so the rest has its time
        if not await self._run.ends("ending without it"):
            self._exit(EXIT_UNFINISHED)

    # --- the end -----------------------------------------------------------------------------------------------------

    def _guard_exit(self, code: int) -> None:
        """End the process by force when something keeps the interpreter (a thread that never returns)."""

        def guard() -> None:
            if not self._run.ended.wait(_EXIT_GRACE_S):
                self._exit(code)

        threading.Thread(target=guard, name="flowshare-exit", daemon=True).start()

    def _exit(self, code: int, last_words: str = "") -> None:
        flush_output(last_words)
        os._exit(code)


async def ends(ended: threading.Event, limit_s: float, clock: Clock) -> bool:
    """Wait for the handler loop to end; True if it ends within `limit_s` seconds."""
    step_s = 0.05
    for _ in range(round(limit_s / step_s)):
        if ended.is_set():
            break
        await clock.sleep(step_s)
    return ended.is_set()


def flush_output(last_words: str = "", *, limit_s: float = 0.2) -> None:
    """Log `last_words`, write out log handlers and streams, for a limited time: a blocked thread may hold one."""

    def flush() -> None:
        if last_words:
            logger.warning("%s", last_words)
        for handler in logging.getLogger().handlers:
            handler.flush()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(ValueError, OSError):
                stream.flush()

    thread = threading.Thread(target=flush, daemon=True)
    thread.start()
    thread.join(limit_s)
