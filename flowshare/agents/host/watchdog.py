"""The watchdog notices a handler loop that stands still, and shows where it stands.

Two kinds of bad handler are seen in two ways:

- the handler blocks its loop but releases the GIL (a forgotten `time.sleep`, blocking I/O): the service thread goes on,
misses the handler loop's heartbeat and logs the stack of the blocked thread, with what to do about it;
- the handler holds the GIL (a catastrophic regex, a huge `json.loads`): no Python code runs in any thread. Then a timer
of the kernel has the handler loop's stack written to stderr (`StackTimer`). Both loops re-arm the timer, so that it
fires only when both stand still.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import faulthandler
import io
import logging
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from types import FrameType
from typing import Any, Final

from flowshare.clock import Clock, TimerHandle

logger = logging.getLogger("flowshare.watchdog")


NUMBER: Final = signal.SIGRTMAX - 3 if sys.platform == "linux" else 0
"""Number of the signal; left alone when the application has a handler for it."""
_MONOTONIC: Final = 1
_THREAD_ID: Final = 4
"""CLOCK_MONOTONIC and SIGEV_THREAD_ID."""
_INTERVAL_S: Final = 0.25
STALL_S: Final = 1.0
"""Seconds without a heartbeat of the handler loop until its stack is logged; again each time that has doubled."""
READY_S: Final = 5.0
"""Seconds of standstill from which on `/ready` answers 503."""
LIVE_S: Final = 300.0
"""Seconds from which on `/live` answers 503, so that an orchestrator restarts the process."""
_MACHINERY: Final = (
    "/asyncio/",
    "/click/",
    "/flowshare/agents/",
    "/flowshare/cli/",
    "/flowshare/spark/",
    "/pyspark",
    "<frozen ",
    "/bin/flowshare",
)
"""Files of the frames between a process's start and its handlers."""


class _Event(ctypes.Structure):
    """struct sigevent of Linux with 64 bits."""

    _fields_ = (
        ("value", ctypes.c_void_p),
        ("number", ctypes.c_int),
        ("notify", ctypes.c_int),
        ("thread_id", ctypes.c_int),
        ("rest", ctypes.c_char * 44),
    )


class _Time(ctypes.Structure):
    """struct itimerspec."""

    _fields_ = tuple((name, ctypes.c_long) for name in ("interval_s", "interval_ns", "s", "ns"))


class StackTimer:
    """Writes a thread's stack to stderr when nobody re-armed it in time, even while no Python code can run.

    The kernel's timer sends a signal to the thread that made the timer, and `faulthandler`'s C handler writes that
    thread's own stack from within it. `faulthandler.dump_traceback_later` writes from a thread of its own instead and
    reads the frames of threads that may run meanwhile: a process that had been paused (SIGSTOP, a machine that was
    moved) died of that by SIGSEGV. Linux with 64 bits only; elsewhere `arm` does nothing. Any thread.
    """

    def __init__(self) -> None:
        self._timer = ctypes.c_void_p()
        self._lock = threading.Lock()
        self._libc = _libc()
        self.works = self._libc is not None and _registered() and self._made()
        """True if this platform and this process allow the timer."""

    def arm(self, limit_s: float) -> None:
        """Write the stack in `limit_s` seconds, unless this or `close` is called before."""
        with self._lock:
            if self.works:
                whole, part = divmod(round(limit_s * 1e9), 1_000_000_000)
                self._libc.timer_settime(self._timer, 0, ctypes.byref(_Time(s=whole, ns=part)), None)

    def close(self) -> None:
        """Delete the timer; harmless when that was done."""
        with self._lock:
            if self.works:
                self.works = False
                self._libc.timer_delete(self._timer)

    def _made(self) -> bool:
        event = _Event(number=NUMBER, notify=_THREAD_ID, thread_id=threading.get_native_id())
        return bool(self._libc.timer_create(_MONOTONIC, ctypes.byref(event), ctypes.byref(self._timer)) == 0)


def _libc() -> Any:
    if sys.platform != "linux" or ctypes.sizeof(ctypes.c_void_p) != 8:
        return None
    for name in (None, "librt.so.1"):  # an older glibc has timers in librt
        with contextlib.suppress(OSError, AttributeError):
            found = ctypes.CDLL(name)
            found.timer_create.argtypes = (ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
            found.timer_settime.argtypes = (ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
            found.timer_delete.argtypes = (ctypes.c_void_p,)
            return found
    return None


def _registered() -> bool:
    """Register the signal to write the stack; False if that is not possible.

    The registration stays: without a handler a late signal would end the process.
    """
    if signal.getsignal(NUMBER) is not signal.SIG_DFL:
        return False
    file = sys.__stderr__ or sys.stderr
    try:
        faulthandler.register(NUMBER, file=file, all_threads=False)
    except (AttributeError, ValueError, OSError, RuntimeError, io.UnsupportedOperation):
        return False  # stderr is closed or has no descriptor
    return True


class Watchdog:
    """Heartbeat of the handler loop, checked from the service loop.

    `beat_from_here` is called on the handler loop, `watch_from_here` on the service loop, `stop` on any thread.
    """

    def __init__(self, clock: Clock, *, dump_to_stderr: bool = True) -> None:
        self._clock = clock
        self._dump = dump_to_stderr
        self._stack: StackTimer | None = None
        self._thread_id = 0
        self._beat = clock.monotonic()
        self._look = clock.monotonic()
        self._next_report_s = STALL_S
        self._timers: dict[str, tuple[asyncio.AbstractEventLoop, TimerHandle]] = {}
        self._stopped = False
        self.stalls = 0
        """Number of stalls since the start."""

    def beat_from_here(self) -> None:
        """Start the heartbeat on the running loop, which runs the handlers."""
        self._thread_id = threading.get_ident()
        if self._dump and self._stack is None:
            self._stack = StackTimer()
        self._heartbeat()

    def watch_from_here(self) -> None:
        """Start checking the heartbeat from the running loop, the service loop."""
        self._look = self._clock.monotonic()
        self._check()

    def stalled_s(self) -> float:
        """Return seconds since the last heartbeat beyond the usual interval; 0.0 while the handler loop runs."""
        if self._stopped or not self._thread_id:
            return 0.0
        return max(0.0, self._clock.monotonic() - self._beat - _INTERVAL_S)

    def ready(self) -> bool:
        """Tell if the handler loop answers."""
        return self.stalled_s() < READY_S

    def live(self) -> bool:
        """Tell if the handler loop may still answer again."""
        return self.stalled_s() < LIVE_S

    def blocking_stack(self) -> str:
        """Return the stack of the handler loop's thread, innermost call last; empty when not known."""
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
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(timer.cancel)

    def _arm(self) -> None:
        if self._stack is not None and not self._stopped:
            self._stack.arm(STALL_S)

    def _heartbeat(self) -> None:
        if self._stopped:
            return
        self._beat = self._clock.monotonic()
        self._next_report_s = STALL_S
        self._arm()
        self._later("beat", self._heartbeat)

    def _check(self) -> None:
        if self._stopped:
            return
        now = self._clock.monotonic()
        stood_still_s = now - self._look - _INTERVAL_S
        self._look = now
        self._arm()
        if stood_still_s >= STALL_S:
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
        if self._next_report_s == STALL_S:
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
    """Return the stack without the frames of the loop and of flowshare below every handler."""
    stack = list(traceback.extract_stack(frame))
    for index, entry in enumerate(stack):
        if not any(part in entry.filename for part in _MACHINERY):
            return stack[index:]
    return stack[-8:]
