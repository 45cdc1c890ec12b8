"""A producer for programs without an event loop: `topic.send_sync`, from any thread.

Where the app runs in this process (a `def` handler, a worker's thread), its producer sends. Elsewhere the first call
starts a producer on a thread of its own, which sends its records before it ends with the process. A fork starts another
one.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import contextlib
import os
import threading
from typing import Final

from flowshare.agents.handler.errors import UsageError
from flowshare.agents.host.host import Host, HostedApp, HostSettings
from flowshare.agents.host.service import ServiceLoop

END_S: Final = 10.0
"""Seconds that the end of the process waits for records on their way."""


class SendingThread:
    """Runs an app's producer alone, on a thread."""

    def __init__(self, app: HostedApp) -> None:
        self._app = app
        self._lock = threading.Lock()
        self._process = -1
        self._thread: ServiceLoop | None = None
        self._started: concurrent.futures.Future[Host] = concurrent.futures.Future()

    def host(self, timeout_s: float) -> Host:
        """Return the host that sends; start the host if needed.

        Raises: TimeoutError; UsageError on an event loop; the error of a start that fails.
        """
        refuse_on_loop()
        with self._lock:
            if self._process != os.getpid():
                if self._process != -1:
                    self._app.host = None  # the parent's, whose threads a fork does not have
                elif self._app.host is not None:
                    return self._app.host
                self._begin()
            thread, started = self._thread, self._started
        try:
            return started.result(timeout_s)
        except TimeoutError:
            raise TimeoutError(
                f"{self._app.broker_address} was not reached within {timeout_s:g} s, and nothing was sent: see whether "
                "the broker is up and its address right (`flowshare check`)"
            ) from None
        except BaseException:
            with self._lock:
                if started is self._started:
                    self._process = -1  # the next call tries again
            if thread is not None:
                thread.stop()
            raise

    def _begin(self) -> None:
        self._process, self._thread = os.getpid(), ServiceLoop(name="flowshare sending")
        self._thread.start()
        self._started = self._thread.submit(self._start)
        atexit.register(self._end, self._thread)

    async def _start(self) -> Host:
        host = Host(self._app, settings=HostSettings(threads=False, sends_only=True, lead=False))
        await host.start()
        return host

    async def give_way(self) -> None:
        """End the thread, if there is one, with all records sent: another host is to run the app.

        The next `send_sync` uses that host, or starts a new thread.
        """
        with self._lock:
            thread = self._thread
            if thread is None or self._process != os.getpid():
                return
        await asyncio.to_thread(concurrent.futures.wait, [self._started], END_S)
        await asyncio.to_thread(self._end, thread)
        with self._lock:
            if self._thread is thread and not thread.running:
                self._thread, self._process = None, -1

    def _end(self, thread: ServiceLoop) -> None:
        if self._process != os.getpid() or not thread.running or not self._started.done():
            return
        with contextlib.suppress(BaseException):  # a host that failed to start, or stops late, ends with its thread
            thread.submit(self._started.result().finish).result(END_S)
        thread.stop()


def refuse_on_loop() -> None:
    """Refuse to wait on an event loop. Raises: UsageError."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise UsageError("send_sync would block the event loop that runs here: write `await topic.send(…)`")
