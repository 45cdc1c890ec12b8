"""The service loop: a second thread with its own event loop, or the running loop itself (test kit).

Everything that must go on while a handler blocks lives there: client, producer, embedded server, metrics, health.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future as ThreadFuture
from typing import Final, TypeVar

from flowshare.agents.handler.texts import named, place_of
from flowshare.clock import new_loop
from flowshare.protocol.decoding import load_reader

T = TypeVar("T")

logger = logging.getLogger("flowshare.host")

_START_LIMIT_S: Final = 10.0


def run_through(
    loop: asyncio.AbstractEventLoop, task: asyncio.Task[T], *, again: Callable[[], object] | None = None
) -> T:
    """Run the loop until the task ends; return its result. Raises: the task's errors.

    asyncio lets a SystemExit or KeyboardInterrupt of any task (of a handler, say) end the loop for all tasks. Here the
    loop goes on: that task has ended, and its waiter gets the exception. A real Ctrl-C is passed on, if nobody took
    over its signal. again: called before the loop goes on.
    """
    while True:
        try:
            return loop.run_until_complete(task)
        except (SystemExit, KeyboardInterrupt) as error:
            if task.done() or _is_signal(error):
                raise
            _tell_of_passing(error)
            if again is not None:
                again()


def _is_signal(error: BaseException) -> bool:
    """Tell if the error may come from a Ctrl-C, not from code that raised it."""
    return (
        isinstance(error, KeyboardInterrupt)
        and threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    )


def _tell_of_passing(error: BaseException) -> None:
    logger.error(
        "a task or a callback of the application raised %s (%s), which would have ended the process: it goes on, and "
        "whoever awaits the task gets the exception",
        named(error),
        place_of(error),
    )


class ServiceLoop:
    """Runs coroutines on the service loop for callers on any loop.

    threads=False: the service loop is the loop that `start` is called on, and nothing crosses a thread.
    """

    def __init__(self, *, threads: bool = True, name: str = "flowshare-service") -> None:
        """name: of the thread."""
        self._threads = threads
        self._name = name
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The loop. Raises: RuntimeError before `start`."""
        if self._loop is None:
            raise RuntimeError("the service loop does not run")
        return self._loop

    @property
    def running(self) -> bool:
        """True if `start` was called and `stop` was not."""
        return self._loop is not None

    def start(self) -> None:
        """Start the thread and wait until its loop runs; without threads: take the running loop."""
        if self._loop is not None:
            return
        if not self._threads:
            self._loop = asyncio.get_running_loop()
            return
        load_reader()  # two threads that import aiokafka at once get a half-made module
        up = threading.Event()
        loop = new_loop()
        self._thread = threading.Thread(target=_run, args=(loop, up), name=self._name, daemon=True)
        self._thread.start()
        if not up.wait(_START_LIMIT_S):
            raise RuntimeError("the service thread did not start")
        self._loop = loop

    async def call(self, function: Callable[[], Awaitable[T]]) -> T:
        """Await `function()` on the service loop; cancelling the caller cancels the call."""
        if self.loop is asyncio.get_running_loop():
            return await function()
        return await asyncio.wrap_future(self.submit(function))

    def submit(self, function: Callable[[], Awaitable[T]]) -> ThreadFuture[T]:
        """Start `function()` on the service loop from any thread."""

        async def run() -> T:
            return await function()

        return asyncio.run_coroutine_threadsafe(run(), self.loop)

    def stop(self, *, limit_s: float = 2.0) -> None:
        """End the thread and cancel its tasks. From another thread. Safe to call twice."""
        loop, self._loop = self._loop, None
        if self._thread is None or loop is None:
            return
        loop.call_soon_threadsafe(loop.stop)
        self._thread.join(limit_s)
        self._thread = None


def _run(loop: asyncio.AbstractEventLoop, up: threading.Event) -> None:
    asyncio.set_event_loop(loop)
    loop.call_soon(up.set)
    try:
        while True:
            try:
                loop.run_forever()
                break
            except (SystemExit, KeyboardInterrupt) as error:
                _tell_of_passing(error)
    finally:
        tasks = asyncio.all_tasks(loop)
        for task in tasks:
            task.cancel()
        if tasks:
            loop.run_until_complete(asyncio.wait(tasks, timeout=1.0))
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()
