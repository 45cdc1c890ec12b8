"""A fleet's jobs on Spark: its context with the settings that long tasks need, and one job of one task a worker.

A job is submitted from a thread of its own (`InheritableThread`: Spark keeps a job's group by thread); jobs are
scheduled FAIR, so that none waits for another one's end. Spark does not try a task again (`spark.task.maxFailures` 1):
a worker that ends is a job that ends, and the fleet starts the next one, as it alone knows how long to wait and whom to
tell. Where Spark starts a task anew by itself all the same (an executor was preempted), that worker calls as the same
run, and takes the place of the old one.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from flowshare.spark.gone import PYTHON_ERROR, WHY_MAX, SparkGone, gone
from flowshare.spark.task import Ended, WorkerTask, run_task

if TYPE_CHECKING:
    from pyspark import SparkContext

    from flowshare.spark.masters import Master

logger = logging.getLogger("flowshare.spark")

SHELL: Final = "pyspark-shell"
"""What Spark calls an application that has no name."""
PORT: Final = "spark.flowshare.control.port"
"""Spark setting: where the driver listens for its workers; 0 or not set: a free port."""
NEEDED: Final[Mapping[str, str]] = {
    "spark.task.maxFailures": "1",
    "spark.speculation": "false",  # a second copy of a worker would have its members' ids
    "spark.excludeOnFailure.enabled": "false",  # a node is not to blame for what a handler does
    "spark.python.worker.reuse": "false",  # nothing of a worker is left behind its task
    "spark.python.worker.idleTimeoutSeconds": "0",  # a worker has nothing to say to Spark
}
"""Settings that hold whatever a user's configuration says."""
WANTED: Final[Mapping[str, str]] = {
    "spark.python.unix.domain.socket.enabled": "true",
    # A cluster gives an application up when its executors end often; a fleet is to go on.
    "spark.executor.maxNumFailures": "1000000",
    "spark.deploy.maxExecutorRetries": "-1",
    "spark.scheduler.mode": "FAIR",
}
"""Settings unless the configuration has them."""
STOP_S: Final = 20.0


class Jobs(Protocol):
    """Where workers run; `SparkJobs`, or a test's own."""

    async def run(self, task: WorkerTask) -> Ended:
        """Run a worker to its end. Raises: SparkGone."""
        ...

    async def cancel(self, task: WorkerTask) -> None:
        """End a worker whatever it does; `run` returns then."""

    async def gone(self) -> str | None:
        """What is to be said when no worker can run any more; None: all is well."""
        ...


def start_spark(master: Master, name: str) -> SparkContext:
    """The context of a fleet, made now. Blocks for seconds. Raises: SparkMissing, what Spark raises."""
    from flowshare.spark.session import need_spark

    need_spark()
    import pyspark
    from pyspark import SparkConf, SparkContext

    SparkContext._ensure_initialized()  # noqa: SLF001 - the way to see the configuration of spark-submit and its files
    conf = SparkConf()
    if master.spark is not None:
        conf.setMaster(master.spark)
    for key, value in NEEDED.items():
        if conf.get(key, value) != value:
            logger.warning("%s=%s is not for a fleet of long tasks: it is %s", key, conf.get(key), value)
        conf.set(key, value)
    for key, value in WANTED.items():
        conf.setIfMissing(key, value)
    if conf.get("spark.app.name", SHELL) == SHELL:
        conf.setAppName(f"flowshare {name}")
    conf.set("spark.ui.showConsoleProgress", "false")  # spark-submit turns it on for a shell, for which it takes this
    if not logging.getLogger().isEnabledFor(logging.DEBUG):
        logging.getLogger("py4j").setLevel(logging.WARNING)
    if master.local:
        conf.setIfMissing("spark.executorEnv.PYTHONPATH", os.environ.get("PYTHONPATH", ""))
        conf.setIfMissing("spark.driver.host", "127.0.0.1")
    made = SparkContext.getOrCreate(conf)
    if master.shown.startswith("local-cluster"):  # Spark asks nobody where to put them
        home = Path(os.environ.get("SPARK_HOME") or next(iter(pyspark.__path__)))
        logger.info("the executors' logs are below %s", home / "work" / str(made.applicationId))
    return made


class SparkJobs:
    """Runs workers as jobs of a context. All methods on one loop; what blocks is done in threads."""

    def __init__(self, context: SparkContext) -> None:
        self._context = context

    @property
    def application(self) -> str:
        """Spark's id of the application."""
        return str(self._context.applicationId)

    def address(self, master: Master) -> tuple[str, str, int]:
        """Where the control channel listens: the address to bind, the one that executors use, and the port."""
        conf = self._context.getConf()
        port = int(conf.get(PORT, "0") or 0)
        if master.local:
            return "127.0.0.1", "127.0.0.1", port
        host = conf.get("spark.driver.host", None) or "127.0.0.1"
        return conf.get("spark.driver.bindAddress", None) or host, host, port

    def add_file(self, path: Path) -> None:
        """Give executors a zip to import from. Blocks."""
        self._context.addPyFile(str(path))

    async def run(self, task: WorkerTask) -> Ended:
        """Run a worker to its end. Raises: SparkGone."""
        from pyspark import InheritableThread

        loop = asyncio.get_running_loop()
        done: asyncio.Future[Ended] = loop.create_future()

        def tell(set_it: Callable[[Any], None], value: Any) -> None:
            def here() -> None:
                if not done.done():
                    set_it(value)

            loop.call_soon_threadsafe(here)

        def work() -> None:
            try:
                tell(done.set_result, self._collect(task))
            except Exception as error:  # noqa: BLE001 - py4j's and Spark's; it is told
                ended = ended_by(str(error))
                over = gone(self._context, ended.why)
                if over is None:
                    tell(done.set_result, ended)
                else:
                    tell(done.set_exception, SparkGone(over))

        def start() -> None:
            InheritableThread(target=work, name=f"worker {task.slot}", daemon=True).start()

        await asyncio.to_thread(start)
        return await done

    async def cancel(self, task: WorkerTask) -> None:
        """Have Spark end a worker's job; its Python process is killed. Safe to call when it has ended."""
        await asyncio.to_thread(self._cancel, task)

    async def gone(self) -> str | None:
        """What is to be said when Spark has ended; None: it has not."""
        return await asyncio.to_thread(gone, self._context, "its context was stopped")

    def stop(self) -> None:
        """End the context. Blocks."""
        self._context.stop()

    # --- in threads -------------------------------------------------------------------------------------------------

    def _collect(self, task: WorkerTask) -> Ended:
        context = self._context
        context.setJobGroup(_group(task), f"flowshare {task.app_path} worker {task.slot}", interruptOnCancel=True)
        rows = context.parallelize([task.slot], 1).mapPartitions(partial(run_task, task)).collect()
        return Ended.read(rows[0])

    def _cancel(self, task: WorkerTask) -> None:
        try:
            self._context.cancelJobGroup(_group(task))
        except Exception as error:  # noqa: BLE001 - of py4j when Spark is gone: then the job is, too
            logger.debug("worker %d cannot be cancelled: %r", task.slot, error)


def _group(task: WorkerTask) -> str:
    return f"flowshare-{task.slot}-{task.run}"


_LOST_TASK: Final = re.compile(r"Lost task [\d.]+ in stage [\d.]+ \(TID \d+\)(?: \([^)]*\))?: (.*?)(?:\n|$)")


def ended_by(text: str) -> Ended:
    """What matters of what a failed job raises: pages of stacks of the JVM.

    A Python error of the task's own is raised again whenever it is tried: flowshare is not installed there, for one.
    """
    if found := PYTHON_ERROR.search(text):
        return Ended(code=None, why=found[1].strip().splitlines()[-1][:WHY_MAX], refused=True)
    if "Python worker exited unexpectedly" in text or "Python worker failed to connect" in text:
        return Ended(code=None, why="its Python process ended")
    if found := _LOST_TASK.search(text):
        return Ended(code=None, why=" ".join(found[1].split())[:WHY_MAX])
    if "cancelled" in text:
        return Ended(code=None, why="its job was cancelled")
    first = next((line.strip() for line in text.splitlines() if line.strip()), "no message")
    return Ended(code=None, why=first[:WHY_MAX])
