"""One worker in an executor's Python worker, run as one long task.

The task loads the application by import and runs it by `agents.host.host.Host`, as `flowshare worker` does, on an event
loop in the process's main thread. The differences:

- The worker does not end the process: the task ends. If a handler does not let it end, the driver has Spark end it.
- Orders come over the control channel, not by signals. SIGTERM still drains. SIGHUP, by which pyspark's daemon says
  that the executor is gone, makes the worker release its records and leave its groups within HURRY_S.
- The worker leads no share-partitions: the driver does, or the brokers do.
- The driver gives the ids of the worker's members (`<tag>-<number>-<agent>`), and takes these members out of their
  groups when this process dies.

The process is a fork of pyspark's daemon, made before any thread, and the task runs on its main thread. So signal
handlers and uvloop work as in any process. The process ends with its task. A task lives until it is told to drain, so
figures go over the control channel: nothing waits for the end of the task.

Settings and secrets. The driver's environment variables FLOWSHARE_* and the broker's URL with its password travel as
fields of `WorkerTask`, in the closure of the task. They are not on a command line and not in Spark's configuration,
which its web pages show. Spark keeps closures in memory and sends them to executors. `spark.authenticate` and
`spark.network.crypto.enabled` protect them on the way, `spark.io.encryption.enabled` where they are spilled to disk.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

from flowshare.agents.app.loading import AppNotFound, load_app
from flowshare.agents.handler.errors import AppFailed, UsageError
from flowshare.agents.handler.texts import TEXT_MAX, said
from flowshare.agents.host.host import HostSettings
from flowshare.agents.host.service import run_through
from flowshare.agents.worker.supervisor import PATIENCE_S
from flowshare.agents.worker.worker import EXIT_FAILED, EXIT_UNFINISHED, AppRun
from flowshare.clock import LoopClock, new_loop
from flowshare.garbage import collector_paused, keep_loaded
from flowshare.protocol.decoding import load_reader
from flowshare.spark.workers.control import ControlClient, DriverLost, Message, Who

if TYPE_CHECKING:
    from flowshare.agents.app.app import App

logger = logging.getLogger("flowshare.worker")

HURRY_S: Final = 3
"""The longest time, in seconds, that a worker takes to leave when its executor is gone."""
CANCEL_S: Final = 0.3
"""The seconds that handlers may go on then."""
ROWS_MAX: Final = 1000
"""The most records in flight that are reported, the oldest first."""
STACK_MAX: Final = 1500
"""The most characters of a handler's stack that are reported."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerTask:
    """The task of a worker; travels in the task's closure. Its repr has no secrets.

    app_path: `module:app`. number: of the worker, from 1. run: the name of this run. member_id: prefix of its members'
    ids. driver: address of the control channel. environment: variables to set. prepare: sets logging up, and gets the
    number. loaded, started: called when the application is loaded, and when it has started; both may set logging up as
    well. concurrency: None leaves the agents' own.
    """

    app_path: str
    number: int
    run: str
    member_id: str
    driver: tuple[str, int]
    token: bytes = field(repr=False)
    environment: Mapping[str, str] = field(repr=False)
    prepare: Callable[[int], object] | None = None
    loaded: Callable[[], object] | None = None
    started: Callable[[], object] | None = None
    concurrency: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskEnd:
    """The end of a task. code: as of `flowshare worker`, None when Spark only knows that the task is over.

    refused: True: the application could not be started, and the next try would not differ.
    """

    code: int | None
    why: str
    refused: bool = False


def run_task(task: WorkerTask, _rows: Iterator[Any]) -> Iterator[TaskEnd]:
    """Run a worker to its end and yield how it ended, for `mapPartitions`.

    The rows are not read, so that pyspark ends the process after the task even if it may reuse it.
    """
    from pyspark import TaskContext

    context = TaskContext.get()
    attempt = 0 if context is None else int(context.taskAttemptId())
    yield run_worker(task, attempt)


def run_worker(task: WorkerTask, attempt: int = 0) -> TaskEnd:
    """Run a worker on the calling thread, the main thread of its process, until it is told to drain."""
    with _environment(task.environment):
        if task.prepare is not None:
            task.prepare(task.number)
        return _TaskWorker(task, attempt).run()


class _TaskWorker:
    def __init__(self, task: WorkerTask, attempt: int) -> None:
        self._task = task
        self._run: AppRun | None = None
        self._lock = threading.Lock()
        self._wanted: tuple[float | None, str] | None = None
        """The time for draining and the reason, once drain was called."""
        self._client = ControlClient(
            task.driver,
            task.token,
            Who(number=task.number, run=task.run, attempt=attempt, pid=os.getpid(), host=socket.gethostname()),
            figures=self._figures,
            on_order=self._order,
            on_lost=lambda: self.drain(None, "the driver is gone"),
        )

    def run(self) -> TaskEnd:
        """Run the worker to its end."""
        try:
            self._client.connect()
        except DriverLost as error:
            return TaskEnd(code=EXIT_FAILED, why=str(error))
        ended = TaskEnd(code=EXIT_FAILED, why="it ended by an error")
        try:
            with self._signals():
                ended = self._run_app(self._load())
        except AppNotFound as error:
            ended = TaskEnd(code=EXIT_FAILED, why=str(error), refused=True)
        finally:
            if self._run is not None:
                self._run.ended.set()
            self._client.close({"say": "bye", **asdict(ended)})
        return ended

    def _load(self) -> App:
        """Load the app. Raises: AppNotFound."""
        with collector_paused():
            app = load_app(self._task.app_path)
            if self._task.loaded is not None:
                self._task.loaded()
            load_reader()
            keep_loaded()
        if self._task.concurrency is not None:
            for agent in app.share_agents.values():
                agent.options = replace(agent.options, concurrency=self._task.concurrency)
        return app

    def _run_app(self, app: App) -> TaskEnd:
        try:
            with asyncio.Runner(loop_factory=new_loop) as runner:
                loop = runner.get_loop()
                return run_through(loop, loop.create_task(self._main(app)))
        except Exception as error:  # whatever refused to start: the driver says it to the user
            logger.exception("worker %d did not start", self._task.number)
            text = " ".join(said(error, TEXT_MAX).split()) or "no message"
            plain = isinstance(error, UsageError) or type(error).__module__.startswith("flowshare.")
            return TaskEnd(code=EXIT_FAILED, why=text if plain else f"{type(error).__name__}: {text}", refused=True)

    # --- handler loop -----------------------------------------------------------------------------------------------

    async def _main(self, app: App) -> TaskEnd:
        settings = HostSettings(
            watchdog=True,
            patience_s=PATIENCE_S,
            lead=False,
            member_id=self._task.member_id,
            prepare=self._task.started,
        )
        run = AppRun(app, settings, LoopClock())
        run.loop = asyncio.get_running_loop()
        with self._lock:
            self._run = run
        if self._wanted is not None:  # told to drain before there was a loop
            run.stop()
        try:
            await run.until_stopped(self._on_ready)
        finally:
            await run.finish(None if self._wanted is None else self._wanted[0])
        return self._verdict(run.verdict(), run.host.failure())

    def _on_ready(self, took_s: float) -> None:
        logger.info("ready after %.2f s (process %d)", took_s, os.getpid())
        self._client.say({"say": "ready"}, lasting=True)

    def _verdict(self, code: int, failed: AppFailed | None) -> TaskEnd:
        why = "the app stopped by itself" if self._wanted is None else self._wanted[1]
        if failed is not None:
            why = str(failed)
        elif code == EXIT_UNFINISHED:
            why = f"{why}; handlers were cut off at the drain deadline"
        return TaskEnd(code=code, why=why)

    # --- being told to stop -----------------------------------------------------------------------------------------

    def drain(self, timeout_s: float | None, why: str) -> None:
        """Finish running handlers, for so many seconds (None: the agents' setting), and end; from any thread, once."""
        with self._lock:
            if self._wanted is not None:
                return
            self._wanted = (timeout_s, why)
            run = self._run
        if run is None:
            return  # `_main` looks
        logger.info("%s: finishing what is running", why)
        with contextlib.suppress(RuntimeError):  # it has stopped by itself
            if run.host.was_running and run.host.service.running:
                run.host.service.submit(lambda: self._drain(run, timeout_s))
            else:
                run.stop()

    async def _drain(self, run: AppRun, timeout_s: float | None) -> None:
        """Drain on the service loop, so that a blocked handler loop does not prevent it."""
        await run.drain(timeout_s)
        if not await run.ends("Spark is to end this worker"):
            why = "its handler loop is blocked: what it was running runs again"
            bye = {"say": "bye", "code": EXIT_UNFINISHED, "why": why, "refused": False, "stuck": True}
            self._client.say(bye, lasting=True)

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        """Handle signals within the context: SIGTERM drains, SIGHUP hurries; the earlier handlers are restored."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def on_term(_number: int, _frame: FrameType | None) -> None:
            self._soon(None, "SIGTERM")

        def on_hup(_number: int, _frame: FrameType | None) -> None:
            signal.alarm(HURRY_S)  # its default action ends the process, whatever runs by then
            self._soon(CANCEL_S, "the executor is gone")

        before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
        signal.signal(signal.SIGTERM, on_term)
        signal.signal(signal.SIGHUP, on_hup)
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _soon(self, timeout_s: float | None, why: str) -> None:
        """Call `drain` from a signal handler, which may interrupt a thread that has the lock."""
        threading.Thread(target=self.drain, args=(timeout_s, why), name="flowshare-signal", daemon=True).start()

    # --- the control channel's thread -------------------------------------------------------------------------------

    def _order(self, order: Message) -> None:
        match order.get("do"):
            case "drain":
                self.drain(order.get("timeout_s"), "told to drain")
            case "end":
                self.drain(CANCEL_S, "another worker has its place")
            case "heartbeat":
                with contextlib.suppress(RuntimeError):  # it ends at this moment
                    for runtime in tuple(self._run.host.runtimes.values()) if self._run is not None else ():
                        runtime.heartbeat()
            case "in flight":
                self._client.say({"say": "in flight", "number": order.get("number"), "rows": self._in_flight(order)})
            case _:
                pass  # `go on`, and what a later version may say

    def _in_flight(self, order: Message) -> list[dict[str, Any]]:
        if self._run is None:
            return []
        rows = self._run.host.in_flight(stacks=bool(order.get("stacks")))[:ROWS_MAX]
        return [{**row, **({"stack": row["stack"][-STACK_MAX:]} if "stack" in row else {})} for row in rows]

    def _figures(self) -> dict[str, Any]:
        host = None if self._run is None else self._run.host
        if host is None or not host.was_running:  # its agents are being made on another thread
            return {"problems": [], "agents": {}}
        return {
            "problems": list(host.ready()),
            "agents": {
                name: {
                    "stats": runtime.stats(),
                    "times": [count for _, count in runtime.handler_times.cumulative()],
                    "seconds": runtime.handler_times.sum_s,
                    "look": asdict(runtime.handler_look()),
                }
                for name, runtime in tuple(host.runtimes.items())
            },
        }


@contextlib.contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set these variables while the task runs: the process may serve other tasks after it."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
