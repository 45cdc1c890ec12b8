"""Spark sessions with the settings that the source, the sink and pipelines need to be fast and to survive a failure.

Measured: unix sockets between the JVM and Python take a Python task from 76 to 35 ms; the
checkpoint manager of plain file systems takes a batch's two log entries from 70 to 22 ms.
"""

from __future__ import annotations

import logging
import os
import re
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from flowshare.core_errors import FlowshareError
from flowshare.dev import DevFailure
from flowshare.dev.java import java_home
from flowshare.spark.errors import SparkGone, gone
from flowshare.spark.source.checkpoint import note_checkpoints

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MASTER: Final = "local[*,4]"
"""All cores of this machine; a task that fails is tried three more times."""
MANAGER: Final = "spark.sql.streaming.checkpointFileManagerClass"
LOCAL_MANAGER: Final = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
"""The manager that writes a checkpoint by renaming files, which is atomic on a machine's own file systems."""
SETTINGS: Final[Mapping[str, str]] = {
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.speculation": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.streaming.stopTimeout": "60s",
}
"""Default settings of `session`; on this machine LOCAL_MANAGER and SHUFFLES, too."""
SHUFFLES: Final = "spark.sql.shuffle.partitions"
"""The number of partitions of an aggregation; each is a task in every batch. Spark's 200 are for a cluster: on two
cores the sums of 5,000 records took 73 s. A query keeps the number with which its checkpoint began."""

logger = logging.getLogger("flowshare.spark")


class SparkMissing(FlowshareError, RuntimeError):
    """Spark cannot run here, or not in this session; the text says what to install or to start instead."""


OF_CONNECT: Final = (
    "this is a session of Spark Connect, which has no JVM of its own: flowshare's source, sink and pipelines need a "
    "session of Spark itself. Start the program by spark-submit, or make the session by "
    "SparkSession.builder.master(…), with neither SPARK_REMOTE nor spark.remote set"
)


def session(
    name: str = "flowshare", *, master: str | None = None, conf: Mapping[str, str | None] | None = None
) -> SparkSession:
    """Return the Spark session of this process, created if needed, with `format("flowshare")` registered.

    master: where Spark runs; None: the master of spark-submit or SPARK_MASTER, else MASTER. conf: settings on top of
    SETTINGS; the value None leaves Spark's own.
    Raises: SparkMissing (no pyspark, no Java 17 or newer, Spark Connect), SparkGone, any error of Spark.
    """
    need_spark()
    from py4j.protocol import Py4JNetworkError  # type: ignore[import-untyped]
    from pyspark import SparkConf
    from pyspark.sql import SparkSession, is_remote

    if is_remote():
        raise SparkMissing(OF_CONNECT)
    settings = SparkConf()
    chosen = master or os.environ.get("SPARK_MASTER") or settings.get("spark.master", None) or MASTER
    settings.setMaster(chosen)
    given = {**_defaults(chosen), **(conf or {})}
    if not settings.contains("spark.app.name"):
        settings.setAppName(name)
    for key, value in given.items():
        if value is not None and (key in (conf or {}) or not settings.contains(key)):
            settings.set(key, value)
    try:
        made = SparkSession.builder.config(conf=settings).getOrCreate()
        register(made)
        activate(made)
    except (ConnectionError, Py4JNetworkError) as error:
        raise SparkGone("Spark's JVM ended while it started; what it said is above, or in the system's log") from error
    return made


def _defaults(master: str) -> dict[str, str]:
    """Return the default settings of a session."""
    here = {MANAGER: LOCAL_MANAGER, SHUFFLES: str(_cores(master))} if master.startswith("local") else {}
    return {**SETTINGS, **here}


def _cores(master: str) -> int:
    """Return the number of tasks that run at a time on this machine, of a master such as `local[2]`, `local[*,4]`,
    `local`."""
    named = re.match(r"local(?:-cluster)?\[(\d+|\*)(?:,(\d+))?", master)
    if named is None:
        return 1
    each = int(named[2]) if master.startswith("local-cluster") and named[2] else 1
    return each * (os.cpu_count() or 1 if named[1] == "*" else int(named[1]))


@contextmanager
def closing(spark: SparkSession) -> Iterator[None]:
    """Stop a session at the end of the context, unless its JVM has ended."""
    try:
        yield
    finally:
        if gone(spark.sparkContext, "") is None:
            spark.stop()


def kill_after(spark: SparkSession, limit_s: float) -> threading.Timer:
    """Kill this process's JVM if it still runs after `limit_s` seconds; return the started timer.

    For a process that ends while Spark may never answer: callers that wait for Spark then get an error.
    """

    def kill() -> None:
        jvm = getattr(spark.sparkContext._gateway, "proc", None)  # noqa: SLF001 - Python has no name for it
        if jvm is None or jvm.poll() is not None:
            return
        logger.error("Spark has not ended within %g s and is killed; batches under way are run again", limit_s)
        jvm.kill()

    timer = threading.Timer(limit_s, kill)
    timer.daemon = True
    timer.start()
    return timer


def activate(spark: SparkSession) -> None:
    """Make a session the active one of the JVM thread that this thread uses.

    Spark looks for Python's data sources in the active session when a stream is written, and a thread started by Python
    has none. Needed once per thread, before `writeStream.format("flowshare")…start()`.
    """
    of_jvm = type(spark)._get_j_spark_session_class(spark._jvm)  # noqa: SLF001 - there is no other way
    of_jvm.setActiveSession(spark._jsparkSession)  # noqa: SLF001


def register(spark: SparkSession) -> None:
    """Register `format("flowshare")` with a session that was created elsewhere. Raises: SparkMissing (Spark
    Connect)."""
    if type(spark).__module__.startswith("pyspark.sql.connect"):
        raise SparkMissing(OF_CONNECT)
    from flowshare.spark.datasource import FlowshareSource

    spark.dataSource.register(FlowshareSource)
    note_checkpoints(spark)


def need_spark() -> None:
    """Check that pyspark and Java are installed, and set the Python and Java for Spark. Raises: SparkMissing."""
    try:
        import pyarrow  # noqa: F401
        import pyspark  # noqa: F401
    except ImportError as error:
        raise SparkMissing(f"{error.name} is not installed: pip install 'flowshare[spark]'") from None
    try:
        os.environ["JAVA_HOME"] = str(java_home())
    except DevFailure as error:
        raise SparkMissing(f"Spark runs on Java: {error}") from None
    # Otherwise Spark starts `python3` of the search path, which has neither flowshare nor pyarrow.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    here = [entry for entry in (os.getcwd(), *sys.path[:1]) if entry and Path(entry).is_dir()]
    before = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys([*here, *before]))
