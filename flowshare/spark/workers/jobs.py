"""Workers as jobs of Spark: a context with settings for long tasks, and one job of one task for each worker.

`Master` and `Size` are `--on MASTER` and `--workers N`: where workers run, and how many. A worker keeps one core (as
Spark counts) for as long as it lives. Where the master says how many cores there are, more workers are refused: the
last ones would never start. On a cluster they wait for a core, which is logged.

A job is submitted from a separate thread (`InheritableThread`: Spark keeps a job's group by thread); jobs are scheduled
FAIR, so that none waits for another one's end. Spark does not try a task again (`spark.task.maxFailures` 1): a worker
that ends is a job that ends, and the supervisor, which knows the pause and whom to tell, starts the next one. If Spark
itself starts a task again (an executor was preempted), that worker calls as the same run and replaces the old one.

Executors that do not share this machine's files get the application as one zip on Spark's list of files. It has the
package that holds the module, or the module, and all else that was imported from the application's folder by then.
Installed code (site-packages) is expected where the executors run, as flowshare itself is; files of spark-submit
(`--py-files`) are there already. Modules that handlers import later from that folder, outside a shipped package, are
not found: import them at the top.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import hashlib
import logging
import os
import re
import sys
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Final, Self

from flowshare.agents.app.loading import split_path
from flowshare.core_errors import FlowshareError
from flowshare.spark.errors import PYTHON_ERROR, WHY_MAX, SparkGone, gone
from flowshare.spark.sessions import need_spark
from flowshare.spark.workers.task import TaskEnd, WorkerTask, run_task

if TYPE_CHECKING:
    from pyspark import SparkContext

logger = logging.getLogger("flowshare.spark")

SHELL: Final = "pyspark-shell"
"""Spark's name for an application that has no name."""
PORT: Final = "spark.flowshare.control.port"
"""Spark setting: the port on which the driver listens for its workers; 0 or not set: a free port."""
NEEDED: Final[Mapping[str, str]] = {
    "spark.task.maxFailures": "1",
    "spark.speculation": "false",  # a second copy of a worker would have its members' ids
    "spark.excludeOnFailure.enabled": "false",  # a node is not to blame for what a handler does
    "spark.python.worker.reuse": "false",  # nothing of a worker is left behind its task
    "spark.python.worker.idleTimeoutSeconds": "0",  # a worker has nothing to say to Spark
}
"""Settings that override the user's configuration."""
WANTED: Final[Mapping[str, str]] = {
    "spark.python.unix.domain.socket.enabled": "true",
    # A cluster gives an application up when its executors end often; the workers should go on.
    "spark.executor.maxNumFailures": "1000000",
    "spark.deploy.maxExecutorRetries": "-1",
    "spark.scheduler.mode": "FAIR",
}
"""Settings for keys that the user's configuration does not have."""


SUBMITTED: Final = "submit"
FORMS: Final = (
    "local[N], local-cluster[executors,cores,MiB], spark://host:7077, yarn, k8s://https://host:443, "
    f"or {SUBMITTED} for what spark-submit was told"
)
WORKERS_MAX: Final = 999
_LOCAL: Final = re.compile(r"local(?:\[\s*(\d+|\*)\s*(?:,\s*\d+\s*)?\])?")
_LOCAL_CLUSTER: Final = re.compile(r"local-cluster\[\s*(\d+)\s*,\s*(\d+)\s*,\s*(\d+)\s*\]")


class BadMaster(FlowshareError, ValueError):
    """`--on` or `--workers` cannot be used; the text says what to write instead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Master:
    """The place where the workers run.

    spark: the master for Spark; None: that of spark-submit. local: True: the executors are on this machine and share
    its files. cores: tasks that run at a time; None: the cluster decides. shown: the master as written.
    """

    shown: str
    spark: str | None
    local: bool
    cores: int | None

    @classmethod
    def read(cls, text: str) -> Self:
        """Parse `--on`. Raises: BadMaster."""
        if found := _LOCAL.fullmatch(text):
            cores = os.cpu_count() or 1
            cores = cores if found[1] == "*" else int(found[1] or 1)
            # One attempt: the supervisor restarts a worker that ends, with pauses between its tries.
            return cls(shown=text, spark=f"local[{cores}]", local=True, cores=cores)
        if found := _LOCAL_CLUSTER.fullmatch(text):
            return cls(shown=text, spark=text, local=True, cores=int(found[1]) * int(found[2]))
        if text == SUBMITTED:
            return cls(shown=text, spark=None, local=False, cores=None)
        if text == "yarn" or text.startswith(("spark://", "k8s://")):
            return cls(shown=text, spark=text, local=False, cores=None)
        raise BadMaster(f"--on {text!r} is no Spark master; write {FORMS}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """`--workers`: N, or MIN:MAX to follow the groups' need."""

    fewest: int
    most: int

    @property
    def follows(self) -> bool:
        """True if the number of workers changes by itself."""
        return self.fewest != self.most

    @classmethod
    def read(cls, text: str | None, master: Master) -> Self:
        """Parse `--workers`. Raises: BadMaster."""
        if text is None:
            if master.cores is None:
                raise BadMaster("say how many workers: --workers 8, or --workers 1:8 for as many as are needed")
            return cls(fewest=master.cores, most=master.cores)
        found = re.fullmatch(r"(\d+)(?::(\d+))?", text.strip())
        size = cls(fewest=int(found[1]), most=int(found[2] or found[1])) if found else None
        if size is None or not 1 <= size.fewest <= size.most <= WORKERS_MAX:
            raise BadMaster(f"--workers takes a number up to {WORKERS_MAX}, or MIN:MAX, not {text!r}")
        if master.cores is not None and size.most > master.cores:
            raise BadMaster(
                f"--workers {text}: each worker keeps one core, and {master.shown} has {master.cores}; write "
                f"--workers {master.cores}, or --on {_larger(master, size.most)}"
            )
        return size


def _larger(master: Master, workers: int) -> str:
    if found := _LOCAL_CLUSTER.fullmatch(master.shown):
        executors = -(-workers // int(found[2]))
        return f"local-cluster[{executors},{found[2]},{found[3]}]"
    return f"local[{workers}]"


def start_spark(master: Master, name: str) -> SparkContext:
    """Create the context of the workers. Blocks for seconds. Raises: SparkMissing, any error of Spark."""
    need_spark()
    import pyspark
    from pyspark import SparkConf, SparkContext

    SparkContext._ensure_initialized()  # noqa: SLF001 - the way to see the configuration of spark-submit and its files
    conf = SparkConf()
    if master.spark is not None:
        conf.setMaster(master.spark)
    for key, value in NEEDED.items():
        if conf.get(key, value) != value:
            logger.warning("%s=%s is not for workers, which are long tasks: it is %s", key, conf.get(key), value)
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
    """Runs workers as jobs of a context. Call all methods on one loop; blocking work is done in threads."""

    def __init__(self, context: SparkContext) -> None:
        self._context = context

    @property
    def application(self) -> str:
        """Spark's id of the application."""
        return str(self._context.applicationId)

    def address(self, master: Master) -> tuple[str, str, int]:
        """Return the addresses of the control channel: to bind, and for executors, and the port."""
        conf = self._context.getConf()
        port = int(conf.get(PORT, "0") or 0)
        if master.local:
            return "127.0.0.1", "127.0.0.1", port
        host = conf.get("spark.driver.host", None) or "127.0.0.1"
        return conf.get("spark.driver.bindAddress", None) or host, host, port

    async def run(self, task: WorkerTask) -> TaskEnd:
        """Run a worker to its end. Raises: SparkGone."""
        from pyspark import InheritableThread

        done: concurrent.futures.Future[TaskEnd] = concurrent.futures.Future()
        done.set_running_or_notify_cancel()  # who gives it up leaves the thread alone

        def work() -> None:
            try:
                done.set_result(self._collect(task))
            except Exception as error:  # noqa: BLE001 - py4j's and Spark's; it is told
                ended = ended_by(str(error))
                over = gone(self._context, ended.why)
                if over is None:
                    done.set_result(ended)
                else:
                    done.set_exception(SparkGone(over))

        def start() -> None:
            InheritableThread(target=work, name=f"worker {task.number}", daemon=True).start()

        await asyncio.to_thread(start)
        return await asyncio.wrap_future(done)

    async def cancel(self, task: WorkerTask) -> None:
        """Have Spark end a worker's job; its Python process is killed. Safe to call when the job has ended."""
        await asyncio.to_thread(self._cancel, task)

    async def gone(self) -> str | None:
        """Return the message to show when Spark has ended; None: it has not."""
        return await asyncio.to_thread(gone, self._context, "its context was stopped")

    def stop(self) -> None:
        """End the context. Blocks."""
        self._context.stop()

    # --- in threads -------------------------------------------------------------------------------------------------

    def _collect(self, task: WorkerTask) -> TaskEnd:
        context = self._context
        context.setJobGroup(_group(task), f"flowshare {task.app_path} worker {task.number}", interruptOnCancel=True)
        return context.parallelize([task.number], 1).mapPartitions(partial(run_task, task)).collect()[0]

    def _cancel(self, task: WorkerTask) -> None:
        try:
            self._context.cancelJobGroup(_group(task))
        except Exception as error:  # noqa: BLE001 - of py4j when Spark is gone: then the job is, too
            logger.debug("worker %d cannot be cancelled: %r", task.number, error)


def _group(task: WorkerTask) -> str:
    return f"flowshare-{task.number}-{task.run}"


_LOST_TASK: Final = re.compile(r"Lost task [\d.]+ in stage [\d.]+ \(TID \d+\)(?: \([^)]*\))?: (.*?)(?:\n|$)")


def ended_by(text: str) -> TaskEnd:
    """Return the important part of a failed job's error, which has pages of JVM stacks.

    A Python error of the task itself comes again at every try, for example when flowshare is not installed there.
    """
    if found := PYTHON_ERROR.search(text):
        return TaskEnd(code=None, why=found[1].strip().splitlines()[-1][:WHY_MAX], refused=True)
    if "Python worker exited unexpectedly" in text or "Python worker failed to connect" in text:
        return TaskEnd(code=None, why="its Python process ended")
    if found := _LOST_TASK.search(text):
        return TaskEnd(code=None, why=" ".join(found[1].split())[:WHY_MAX])
    if "cancelled" in text:
        return TaskEnd(code=None, why="its job was cancelled")
    first = next((line.strip() for line in text.splitlines() if line.strip()), "no message")
    return TaskEnd(code=None, why=first[:WHY_MAX])


SIZE_MAX: Final = 64 << 20
"""The most bytes of shipped files: more is no code, and belongs elsewhere."""
_INSTALLED: Final = frozenset({"site-packages", "dist-packages"})
_LEFT_OUT: Final = frozenset({"__pycache__", ".git", ".venv", "node_modules"})
_EPOCH: Final = (1980, 1, 1, 0, 0, 0)


class NotShipped(FlowshareError, RuntimeError):
    """The application cannot be shipped; the text says what to do."""


def ship(module: str, folder: Path) -> Path | None:
    """Write the zip of the application that was imported as `module` into `folder`; None: it needs no shipping.

    The same files make the same zip. Raises: NotShipped (too large), OSError.
    """
    root = root_of(module)
    if root is None:
        return None
    files = sorted(set(files_of(module, root)))
    size = sum(file.stat().st_size for file in files)
    if size > SIZE_MAX:
        raise NotShipped(
            f"the application's files below {root} are {size >> 20} MiB, and {SIZE_MAX >> 20} may be shipped: "
            "keep data out of its package, or install it where the executors run"
        )
    draft = folder / "draft.zip"
    with zipfile.ZipFile(draft, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in files:
            archive.writestr(zipfile.ZipInfo(file.relative_to(root).as_posix(), _EPOCH), file.read_bytes())
    digest = hashlib.sha256(draft.read_bytes()).hexdigest()[:12]
    return draft.rename(folder / f"flowshare-app-{digest}.zip")


def give_app(context: SparkContext, app_path: str, folder: Path) -> None:
    """Give executors the application at `module:app`, as a zip written into `folder`. Blocks. Raises: as `ship`."""
    module, _ = split_path(app_path)
    archive = ship(module, folder)
    if archive is None:
        logger.info("%s is installed, or was shipped by spark-submit: it is not shipped", module)
        return
    context.addPyFile(str(archive))
    logger.info("%s goes to the executors: %d KiB", module, archive.stat().st_size // 1024)


def root_of(module: str) -> Path | None:
    """Return the folder from which a loaded module was imported; None: the module is installed, or in an archive."""
    file = _file(sys.modules.get(module))
    if file is None:
        return None
    parts = module.count(".") + (file.name == "__init__.py")
    root = file.parents[parts]
    return None if _INSTALLED & set(root.parts) else root


def files_of(module: str, root: Path) -> Iterator[Path]:
    """Yield the files of the application below `root`: its whole packages, and its single modules."""
    names = {module.partition(".")[0]}
    for name, loaded in tuple(sys.modules.items()):
        file = _file(loaded)
        if file is not None and file.is_relative_to(root) and _own(file.relative_to(root)):
            names.add(name.partition(".")[0])
    for name in names - {"__main__", "flowshare"}:
        package = root / name
        if package.is_dir():
            yield from (one for one in package.rglob("*") if one.is_file() and _own(one.relative_to(root)))
        elif (root / f"{name}.py").is_file():
            yield root / f"{name}.py"


def _own(path: Path) -> bool:
    return not (_INSTALLED | _LEFT_OUT) & set(path.parts)


def _file(module: ModuleType | None) -> Path | None:
    name = getattr(module, "__file__", None)
    if not name:
        return None
    file = Path(name).resolve()
    return file if file.is_file() and file.suffix in (".py", ".so", ".pyd") else None
