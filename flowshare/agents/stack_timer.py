"""`StackTimer`: writes a thread's stack to stderr when nobody re-armed it in time, even while no Python code can run.

The kernel's timer sends the thread a signal, and `faulthandler`'s C handler for it writes that thread's own stack from
within it. `faulthandler.dump_traceback_later` writes from a thread of its own instead and reads the frames of threads
that may run meanwhile: a process that had been paused (SIGSTOP, a machine that was moved) died of that by SIGSEGV.

Linux with 64 bits only; elsewhere `arm` does nothing.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import io
import signal
import sys
import threading
from typing import Any, Final

NUMBER: Final = signal.SIGRTMAX - 3 if sys.platform == "linux" else 0
"""Of the signal; left alone when the application has a handler for it."""
_MONOTONIC: Final = 1
_THREAD_ID: Final = 4
"""CLOCK_MONOTONIC and SIGEV_THREAD_ID."""


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

    _fields_ = (
        ("interval_s", ctypes.c_long),
        ("interval_ns", ctypes.c_long),
        ("s", ctypes.c_long),
        ("ns", ctypes.c_long),
    )


class StackTimer:
    """One timer of this process, for the thread that makes it. All methods may be called on any thread."""

    def __init__(self) -> None:
        self._timer = ctypes.c_void_p()
        self._lock = threading.Lock()
        self._libc = _libc()
        self.works = self._libc is not None and _registered() and self._made()
        """Whether this platform and this process allow it."""

    def arm(self, limit_s: float) -> None:
        """Write the stack in so many seconds, unless this or `close` is called before."""
        with self._lock:
            if self.works:
                whole, part = divmod(round(limit_s * 1e9), 1_000_000_000)
                self._libc.timer_settime(self._timer, 0, ctypes.byref(_Time(s=whole, ns=part)), None)

    def close(self) -> None:
        """Give the timer back; harmless when that was done."""
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
    for name in (None, "librt.so.1"):  # an older glibc has timers there
        with contextlib.suppress(OSError, AttributeError):
            found = ctypes.CDLL(name)
            found.timer_create.argtypes = (ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
            found.timer_settime.argtypes = (ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
            found.timer_delete.argtypes = (ctypes.c_void_p,)
            return found
    return None


def _registered() -> bool:
    """Whether the signal leads to the stack. It stays so: without a handler a late one would end the process."""
    if signal.getsignal(NUMBER) is not signal.SIG_DFL:
        return False
    file = sys.__stderr__ or sys.stderr
    try:
        faulthandler.register(NUMBER, file=file, all_threads=False)
    except (AttributeError, ValueError, OSError, RuntimeError, io.UnsupportedOperation):
        return False  # stderr is closed or has no descriptor
    return True
