"""`Ender` ends spans on a thread of its own.

Ending a span calls the application's processors in the thread that ends it; a `SimpleSpanProcessor` sends from there.
So that thread is neither the handlers' loop nor the one that renews locks: a processor that does not return holds up
only the spans behind it. The number of waiting spans is bounded; spans beyond that are dropped and counted.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import Final

logger = logging.getLogger("flowshare.telemetry")

WAITING_MAX: Final = 10_000
"""Most spans that wait to be ended."""
END_S: Final = 1.0
"""Seconds that the end of the process waits for them."""


class Ender:
    """Calls functions one after the other, on its thread; `put` from any thread."""

    def __init__(self, waiting_max: int = WAITING_MAX) -> None:
        self.dropped = 0
        """Number of spans that found no room."""
        self._max = waiting_max
        self._waiting: deque[Callable[[], object]] = deque()
        self._wake = threading.Event()
        self._failed = False
        self._closed = False
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()

    def put(self, end: Callable[[], object]) -> None:
        """Call `end` soon. Never waits, never raises."""
        if len(self._waiting) >= self._max:
            self._drop()
            return
        self._waiting.append(end)
        if not self._wake.is_set():
            self._wake.set()
        if self._thread is None:
            self._start()

    def flush(self, limit_s: float = END_S) -> bool:
        """Wait until all given functions are done, `limit_s` seconds at most; return True if they are."""
        if self._thread is None:
            return True
        done = threading.Event()
        self._waiting.append(done.set)
        self._wake.set()
        return done.wait(limit_s)

    def close(self) -> None:
        """End the thread when its functions are done, or given up. Waits END_S at most."""
        self.flush()
        self._closed = True
        self._wake.set()

    def _start(self) -> None:
        with self._starting:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="flowshare-telemetry", daemon=True)
                self._thread.start()

    def _drop(self) -> None:
        self.dropped += 1
        if self.dropped == 1:
            logger.warning(
                "%d spans wait to be ended, and further ones are dropped: a span processor of the application does not "
                "get on. Export with a BatchSpanProcessor",
                self._max,
            )

    def _run(self) -> None:
        while not self._closed:
            self._wake.wait()
            self._wake.clear()
            while self._waiting and not self._closed:
                self._call(self._waiting.popleft())

    def _call(self, end: Callable[[], object]) -> None:
        try:
            end()
        except BaseException:
            if not self._failed:
                self._failed = True
                logger.exception("a span could not be ended; this is said once")
