"""What runs in an executor's Python worker: one worker, as one long task.

The task loads the application by import and runs it by `agents.host.host.Host`, as `flowshare worker` does, on an event
loop of the process's main thread. What differs:

- No end of the process by itself: the task ends, and when a handler does not let it, the driver has Spark end it.
- Orders come over the control channel, not by signals. SIGTERM still drains, and SIGHUP, by which pyspark's daemon says
  that the executor is gone, makes the worker give back what it has and leave its groups within HURRY_S.
- It leads no share-partitions: the driver does, or the brokers do.
- Its members' ids are told by the driver (`<tag>-<number>-<agent>`), which takes them out of their groups when this
  process dies.

The process is a fork of pyspark's daemon, made before any thread, and the task runs on its main thread: signal handlers
and uvloop work as in any process. It ends with its task. A task lives until it is told to drain: figures go over the
control channel, so nothing waits for its end.

Settings and secrets. The driver's environment variables FLOWSHARE_* and the broker's URL with its password travel as
fields of `WorkerTask`, in the closure of the task: not on a command line, not in Spark's configuration, which its web
pages show. Spark keeps closures in memory and sends them to executors; `spark.authenticate` and
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
from flowshare.agents.handler.errors import UsageError
from flowshare.agents.handler.texts import TEXT_MAX, named, said
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
"""How long a worker takes at most to leave when its executor is gone."""
CANCEL_S: Final = 0.3
"""How long handlers may go on then."""
ROWS_MAX: Final = 1000
"""Records in flight that are told, the oldest first."""
STACK_MAX: Final = 1500
"""Characters of a handler's stack that are told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerTask:
    """All that a worker is told; travels in the task's closure. What is secret is not in its repr.

    app_path: `module:app`. number: number of the worker, from 1. run: which of its runs this is. member_id: begins
    its members' ids. driver: address of the control channel. environment: variables to set. prepare: sets logging up,
    told the number. concurrency: None leaves the agents' own.
    """

    app_path: str
    number: int
    run: str
    member_id: str
    driver: tuple[str, int]
    token: bytes = field(repr=False)
    environment: Mapping[str, str] = field(repr=False)
    prepare: Callable[[int], object] | None = None
    concurrency: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskEnd:
    """How a task ended. code: as of `flowshare worker`, None when Spark only knows that it is over.

    refused: the application could not be started, which will not be different the next time.
    """

    code: int | None
    why: str
    refused: bool = False


def run_task(task: WorkerTask, _rows: Iterator[Any]) -> Iterator[TaskEnd]:
    """For `mapPartitions`: run a worker to its end; yields how it ended.

    The rows are not read, for which pyspark ends the process after the task even where it is told to use it again.
    """
    from pyspark import TaskContext

    context = TaskContext.get()
    attempt = 0 if context is None else int(context.taskAttemptId())
    yield run_worker(task, attempt)


def run_worker(task: WorkerTask, attempt: int = 0) -> TaskEnd:
    """Run a worker on the calling thread, the main one of its process, until it is told to drain."""
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
        """How long to drain and why, once that is known."""
        self._client = ControlClient(
            task.driver,
            task.token,
            Who(number=task.number, run=task.run, attempt=attempt, pid=os.getpid(), host=socket.gethostname()),
            figures=self._figures,
            on_order=self._order,
            on_lost=lambda: self.drain(None, "the driver is gone"),
        )

    def run(self) -> TaskEnd:
        """Run to the end."""
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
        """The app. Raises: AppNotFound."""
        with collector_paused():
            app = load_app(self._task.app_path)
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
        settings = HostSettings(watchdog=True, patience_s=PATIENCE_S, lead=False, member_id=self._task.member_id)
        run = AppRun(app, settings, LoopClock())
        run.loop = asyncio.get_running_loop()
        with self._lock:
            self._run = run
        if self._wanted is not None:  # told to drain before there was a loop
            run.stop()
        try:
            crash = await run.until_stopped(self._on_ready)
        finally:
            await run.finish(None if self._wanted is None else self._wanted[0])
        return self._verdict(run.verdict(crash), crash)

    def _on_ready(self, took_s: float) -> None:
        logger.info("ready after %.2f s (process %d)", took_s, os.getpid())
        self._client.say({"say": "ready"})

    def _verdict(self, code: int, crash: BaseException | None) -> TaskEnd:
        why = "the app stopped by itself" if self._wanted is None else self._wanted[1]
        if crash is not None:
            why = f"the app crashed: {named(crash)}"
        elif code == EXIT_UNFINISHED:
            why = f"{why}; handlers were cut off at the drain deadline"
        return TaskEnd(code=code, why=why)

    # --- being told to stop -----------------------------------------------------------------------------------------

    def drain(self, timeout_s: float | None, why: str) -> None:
        """Finish what runs, for so many seconds (None: what the agents say), and end; from any thread, and once."""
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
        """On the service loop, so that a blocked handler loop does not keep it."""
        await run.drain(timeout_s)
        if not await run.ends("Spark is to end this worker"):
            why = "its handler loop is blocked: what it was running runs again"
            self._client.say({"say": "bye", "code": EXIT_UNFINISHED, "why": why, "refused": False, "stuck": True})

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        """SIGTERM drains, SIGHUP hurries; what was there before is put back."""
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
        """`drain` from a signal handler, which may interrupt a thread that has the lock."""
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
    """These variables for as long as the task runs: the process may serve others after it."""
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
