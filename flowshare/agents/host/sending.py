"""A producer for programs without an event loop: `topic.send_sync`, from any thread.

Where the app runs in this process (a `def` handler, a worker's thread), its producer sends. Elsewhere the first call
starts one on a thread of its own, which sends what it has and ends with the process. A fork starts its own.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import contextlib
import os
import threading
from typing import TYPE_CHECKING, Final

from flowshare.agents.errors import UsageError

if TYPE_CHECKING:
    from flowshare.agents.app import App
    from flowshare.agents.host import Host

END_S: Final = 10.0
"""How long the end of the process waits for what is on its way."""


class SendingThread:
    """Runs an app's producer, and nothing else of it, on a thread."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._lock = threading.Lock()
        self._process = -1
        self._started: concurrent.futures.Future[Host] = concurrent.futures.Future()
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop
        self._ending: asyncio.Event

    def host(self, timeout_s: float) -> Host:
        """What sends, started if need be. Raises: TimeoutError, UsageError on an event loop, what refuses to start."""
        refuse_on_loop()
        with self._lock:
            if self._process != os.getpid():
                if self._process != -1:
                    self._app.host = None  # the parent's, whose threads a fork does not have
                elif self._app.host is not None:
                    return self._app.host
                self._begin()
        try:
            return self._started.result(timeout_s)
        except TimeoutError:
            raise TimeoutError(
                f"{self._app.broker_url} was not reached within {timeout_s:g} s, and nothing was sent: see whether the "
                "broker is up and its address right (`flowshare check`)"
            ) from None
        except BaseException:
            with self._lock:
                self._process = -1  # the next call tries again
            raise

    def _begin(self) -> None:
        self._process, self._started = os.getpid(), concurrent.futures.Future()
        thread = threading.Thread(target=self._main, args=(self._started,), name="flowshare sending", daemon=True)
        self._thread = thread
        thread.start()
        atexit.register(self._end, thread)

    async def give_way(self) -> None:
        """End the thread, if there is one and this is not it, with all of it sent: something else is to run the app.

        The next `send_sync` sends through that, or starts a new thread.
        """
        with self._lock:
            thread, ours = self._thread, self._process == os.getpid()
            if thread is None or not ours or thread is threading.current_thread():
                return
        await asyncio.to_thread(concurrent.futures.wait, [self._started], END_S)
        await asyncio.to_thread(self._end, thread)
        with self._lock:
            if self._thread is thread and not thread.is_alive():
                self._thread, self._process = None, -1

    def _main(self, started: concurrent.futures.Future[Host]) -> None:
        with contextlib.suppress(BaseException), asyncio.Runner() as runner:
            runner.run(self._serve(started))

    async def _serve(self, started: concurrent.futures.Future[Host]) -> None:
        self._loop, self._ending = asyncio.get_running_loop(), asyncio.Event()
        try:
            async with self._app.sending():
                started.set_result(self._app.running_host())
                await self._ending.wait()
        except BaseException as error:
            if not started.done():
                started.set_exception(error)
            raise

    def _end(self, thread: threading.Thread) -> None:
        if self._process == os.getpid() and thread.is_alive() and self._started.done():
            with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
                self._loop.call_soon_threadsafe(self._ending.set)
            thread.join(END_S)


def refuse_on_loop() -> None:
    """Raises: UsageError on an event loop, which must not wait."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise UsageError("send_sync would block the event loop that runs here: write `await topic.send(…)`")
