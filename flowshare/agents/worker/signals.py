"""Signals that reach the worker whatever its handlers do.

A signal's number is written to a socket by the interpreter's C code (`signal.set_wakeup_fd`) and read by a thread of
its own, so that neither a blocked handler loop nor a busy service loop keeps a Ctrl-C waiting. Only code that holds the
GIL delays it. The numbers are passed on to the earlier owner of the wakeup descriptor (uvloop's main loop, say), so
that handlers which an application adds to its loop go on working.

First SIGTERM, SIGINT or SIGHUP (a terminal that is closed): `on_stop`. A Ctrl-C after that: `on_second`, which ends the
process; further SIGTERMs change nothing (supervisors repeat them). SIGUSR1: `on_show`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import threading
from collections.abc import Callable, Generator
from types import FrameType
from typing import Final

from flowshare.clock import Clock
from flowshare.forks import hold_alone

STOP_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
SHOW_SIGNAL: Final = getattr(signal, "SIGUSR1", None)
EXIT_INTERRUPTED: Final = 130
"""Exit code of a process ended by the second Ctrl-C (shell convention: 128 + SIGINT)."""
_SAME_EVENT_S: Final = 0.5
"""Seconds within which two signals count as one: a parent may pass on SIGTERM while the terminal sends SIGINT to
all."""


def stop_signals() -> tuple[signal.Signals, ...]:
    """Return the signals that stop this process in order: without SIGHUP if the starter had it ignored (nohup)."""
    return tuple(one for one in STOP_SIGNALS if one != signal.SIGHUP or signal.getsignal(one) != signal.SIG_IGN)


@contextlib.contextmanager
def on_loop(stop: Callable[[signal.Signals], object], show: Callable[[], object]) -> Generator[None]:
    """Have the running loop call these at the stop signals and at SIGUSR1, in processes that run no handlers."""
    loop, stops = asyncio.get_running_loop(), stop_signals()
    for number in stops:
        loop.add_signal_handler(number, stop, number)
    loop.add_signal_handler(signal.SIGUSR1, show)
    try:
        yield
    finally:
        for number in (*stops, signal.SIGUSR1):
            loop.remove_signal_handler(number)


class Signals:
    """Watch over the worker's signals from `install` to `restore`; both are called on the main thread."""

    def __init__(
        self,
        *,
        on_stop: Callable[[signal.Signals], object],
        on_second: Callable[[signal.Signals], object],
        on_show: Callable[[], object],
        clock: Clock,
        on_main: Callable[[signal.Signals], object] | None = None,
    ) -> None:
        """on_stop, on_second and on_show are called on the signals thread; `on_main` on the main thread for a stop
        signal, which C code (`re`) that handles signals without releasing the GIL still calls."""
        self._on_main = on_main
        self._clock = clock
        self._on_stop = on_stop
        self._on_second = on_second
        self._on_show = on_show
        self._stopped_at: float | None = None
        self._interrupts = 0
        self._previous: dict[int, object] = {}
        self._forward = -1
        self._outlived = False
        self._reader, self._writer = socket.socketpair()
        self._writer.setblocking(False)
        hold_alone(self._reader.fileno())
        hold_alone(self._writer.fileno())  # a forked child's signals are not this process's
        self._pid = os.getpid()
        self._thread = threading.Thread(target=self._watch, name="flowshare-signals", daemon=True)

    def install(self) -> None:
        """Take the signals. Raises: ValueError when not on the main thread."""
        for number in (*stop_signals(), *((SHOW_SIGNAL,) if SHOW_SIGNAL else ())):
            self._previous[number] = signal.signal(number, self._in_main)
        self.take()
        self._thread.start()

    def take(self) -> None:
        """Take the wakeup descriptor (again): a loop that starts on the main thread puts its own there."""
        previous = signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        if previous != self._writer.fileno():
            self._forward = previous
        self._outlived = False

    def outlive_loop(self) -> None:
        """Take signals by their Python handler until `take`: the loop on the main thread has ended, and will go on and
        call that."""
        self.let_go()
        self._outlived = True

    def let_go(self) -> None:
        """Stop passing signals on: the loop that owns the descriptor is about to end, and its number may be reused."""
        self._forward = -1

    def restore(self) -> None:
        """Restore the signals and end the thread."""
        self.let_go()
        current = signal.set_wakeup_fd(-1)
        if current not in (self._writer.fileno(), -1):
            signal.set_wakeup_fd(current)  # another owner's by now
        for number, handler in self._previous.items():
            signal.signal(number, handler)  # type: ignore[arg-type]  # what signal.signal returned
        self._previous.clear()
        self._writer.setblocking(True)
        self._writer.close()
        if self._thread.is_alive():
            self._thread.join(1.0)
        self._reader.close()

    def _in_main(self, number: int, _frame: FrameType | None) -> None:
        """Handle a signal in Python: without such a handler the C handler that writes to the descriptor is not
        there."""
        if os.getpid() != self._pid:  # a forked child has no listener: take the default action
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
            return
        if self._outlived:
            with contextlib.suppress(OSError):
                self._writer.send(bytes((number,)))
        if self._on_main is not None and number in STOP_SIGNALS:
            self._on_main(signal.Signals(number))

    def _watch(self) -> None:
        while data := self._receive():
            for number in data:
                if number == SHOW_SIGNAL:
                    self._on_show()
                elif number in STOP_SIGNALS:
                    self._stop(signal.Signals(number))
            self._pass_on(data)

    def _receive(self) -> bytes:
        try:
            return self._reader.recv(64)
        except OSError:
            return b""

    def _pass_on(self, data: bytes) -> None:
        if self._forward < 0:
            return
        try:
            os.write(self._forward, data)
        except OSError:
            self._forward = -1  # the loop is gone

    def _stop(self, number: signal.Signals) -> None:
        now = self._clock.monotonic()
        self._interrupts += number == signal.SIGINT
        if self._stopped_at is None:
            self._stopped_at = now
            self._on_stop(number)
        elif number == signal.SIGINT and (self._interrupts > 1 or now - self._stopped_at > _SAME_EVENT_S):
            self._on_second(number)
