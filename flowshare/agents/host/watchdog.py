"""Notices when the handler loop stands still, and shows where.

Two kinds of bad handler, two ways of seeing it:

- it blocks its loop but lets the GIL go (a forgotten `time.sleep`, blocking I/O): the service thread goes on, misses
  the handler loop's heartbeat and logs the stack of the thread that blocks, with what to do about it;
- it holds the GIL (a catastrophic regex, a huge `json.loads`): no Python code runs in any thread. A timer of the
  kernel's has the handler loop's stack written to stderr then (`stack_timer`). It is re-armed by both loops, so that
  it fires only when both stand still.
"""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import logging
import sys
import threading
import traceback
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from flowshare.agents.stack_timer import StackTimer

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from flowshare.clock import Clock, TimerHandle

logger = logging.getLogger("flowshare.watchdog")

_INTERVAL_S: Final = 0.25
_MACHINERY: Final = (
    "/asyncio/",
    "/click/",
    "/flowshare/cli/",
    "/flowshare/spark/",
    "/pyspark",
    "<frozen ",
    "/bin/flowshare",
)
"""Files with what lies between a process's start and its loop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchdogSettings:
    """Seconds without a heartbeat of the handler loop after which something is said or done.

    stall_s: the blocking stack is logged (again each time the stall has doubled).
    ready_s: `/ready` answers 503.
    live_s: `/live` answers 503, so that an orchestrator restarts the process.
    """

    stall_s: float = 1.0
    ready_s: float = 5.0
    live_s: float = 300.0


class Watchdog:
    """Heartbeat of the handler loop, looked at from the service loop.

    `beat_from_here` is called on the handler loop, `watch_from_here` on the service loop, `stop` on any thread.
    """

    def __init__(self, clock: Clock, settings: WatchdogSettings | None = None, *, dump_to_stderr: bool = True) -> None:
        self.settings = settings or WatchdogSettings()
        self._clock = clock
        self._dump = dump_to_stderr
        self._stack: StackTimer | None = None
        self._thread_id = 0
        self._beat = clock.monotonic()
        self._look = clock.monotonic()
        self._next_report_s = self.settings.stall_s
        self._timers: dict[str, tuple[asyncio.AbstractEventLoop, TimerHandle]] = {}
        self._stopped = False
        self.stalls = 0
        """Stalls seen since the start."""

    def beat_from_here(self) -> None:
        """Start the heartbeat on the running loop: the one that runs the handlers."""
        self._thread_id = threading.get_ident()
        if self._dump and self._stack is None:
            self._stack = StackTimer()
        self._heartbeat()

    def watch_from_here(self) -> None:
        """Start looking at the heartbeat from the running loop: the service loop."""
        self._look = self._clock.monotonic()
        self._check()

    def stalled_s(self) -> float:
        """Seconds since the last heartbeat beyond the usual interval; 0.0 while the handler loop runs."""
        if self._stopped or not self._thread_id:
            return 0.0
        return max(0.0, self._clock.monotonic() - self._beat - _INTERVAL_S)

    def ready(self) -> bool:
        """Whether the handler loop answers."""
        return self.stalled_s() < self.settings.ready_s

    def live(self) -> bool:
        """Whether there is hope that it answers again."""
        return self.stalled_s() < self.settings.live_s

    def blocking_stack(self) -> str:
        """Where the handler loop's thread is right now, innermost call last; empty when it is not known."""
        frame = sys._current_frames().get(self._thread_id)  # noqa: SLF001 - the documented way to another thread's stack
        return "".join(traceback.format_list(_relevant(frame))) if frame is not None else ""

    def end_after(self, limit_s: float) -> None:
        """End the process in `limit_s` seconds unless `stop` comes first, even when no Python code runs by then."""
        if self._stopped:
            return
        with contextlib.suppress(ValueError, OSError, RuntimeError):
            faulthandler.dump_traceback_later(limit_s, exit=True, file=sys.__stderr__ or sys.stderr)

    def stop(self) -> None:
        """End all timers."""
        self._stopped = True
        faulthandler.cancel_dump_traceback_later()
        if self._stack is not None:
            self._stack.close()
        for loop, timer in tuple(self._timers.values()):
            with contextlib.suppress(RuntimeError):  # that loop is closed
                loop.call_soon_threadsafe(timer.cancel)

    def _arm(self) -> None:
        if self._stack is not None and not self._stopped:
            self._stack.arm(self.settings.stall_s)

    def _heartbeat(self) -> None:
        if self._stopped:
            return
        self._beat = self._clock.monotonic()
        self._next_report_s = self.settings.stall_s
        self._arm()
        self._later("beat", self._heartbeat)

    def _check(self) -> None:
        if self._stopped:
            return
        now = self._clock.monotonic()
        stood_still_s = now - self._look - _INTERVAL_S
        self._look = now
        self._arm()
        if stood_still_s >= self.settings.stall_s:
            self.stalls += 1
            logger.warning(
                "every thread of this process stood still for %.1f s: code in a handler held the interpreter lock, "
                "or the machine was paused; heartbeats and lock renewals waited too.%s Give such work to a process "
                "pool, or bound its input",
                stood_still_s,
                " The stack is on stderr above." if self._stack is not None and self._stack.works else "",
            )
        elif (stalled := self.stalled_s()) >= self._next_report_s:
            self._report(stalled)
        self._later("look", self._check)

    def _later(self, name: str, callback: Callable[[], None]) -> None:
        self._timers[name] = (asyncio.get_running_loop(), self._clock.call_later(_INTERVAL_S, callback))

    def _report(self, stalled: float) -> None:
        if self._next_report_s == self.settings.stall_s:
            self.stalls += 1
        self._next_report_s = stalled * 2
        logger.warning(
            "the handler loop has been blocked for %.1f s; no handler runs meanwhile (heartbeats, lock renewals and "
            "health go on). Await instead of blocking, write the handler as a plain `def` (it runs in a thread), or "
            "use asyncio.to_thread. It is here:\n%s",
            stalled,
            self.blocking_stack().rstrip() or "  (no Python stack)",
        )


def _relevant(frame: FrameType) -> list[traceback.FrameSummary]:
    """The stack without the frames of the loop and of this package that every handler has below it."""
    stack = list(traceback.extract_stack(frame))
    for index, entry in enumerate(stack):
        if "/flowshare/agents/" not in entry.filename and not _machinery(entry.filename):
            return stack[index:]
    return stack[-8:]


def _machinery(filename: str) -> bool:
    return any(part in filename for part in _MACHINERY)
