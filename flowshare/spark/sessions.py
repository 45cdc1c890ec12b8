"""Spark sessions with the settings that the source, the sink and pipelines need to be fast and to survive a failure.

Measured: unix sockets between the JVM and Python take a Python task from 76 to 35 ms; the
checkpoint manager of plain file systems takes a batch's two log entries from 70 to 22 ms.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from flowshare.dev import DevFailure
from flowshare.dev.java import java_home
from flowshare.errors import FlowshareError
from flowshare.spark.errors import SparkGone, gone
from flowshare.spark.source.checkpoint import note_checkpoints

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MASTER: Final = "local[*,4]"
"""All cores of this machine; a task that fails is tried three times more."""
MANAGER: Final = "spark.sql.streaming.checkpointFileManagerClass"
LOCAL_MANAGER: Final = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
"""Writes a checkpoint by renaming files, which is atomic on a machine's own file systems."""
SETTINGS: Final[Mapping[str, str]] = {
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.speculation": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.streaming.stopTimeout": "60s",
}
"""What `session` sets unless told otherwise; on this machine, where checkpoints are its files, LOCAL_MANAGER, too."""

logger = logging.getLogger("flowshare.spark")


class SparkMissing(FlowshareError, RuntimeError):
    """Spark cannot run here; the text says what to install."""


def session(
    name: str = "flowshare", *, master: str | None = None, conf: Mapping[str, str | None] | None = None
) -> SparkSession:
    """The Spark session of this process, made if need be, in which `format("flowshare")` is known.

    master: where Spark runs; None: as spark-submit or SPARK_MASTER says, else MASTER. conf: settings on top of
    SETTINGS; None as a value leaves Spark's own.
    Raises: SparkMissing (no pyspark, no Java 17 or newer), SparkGone, what Spark raises.
    """
    need_spark()
    from py4j.protocol import Py4JNetworkError  # type: ignore[import-untyped]
    from pyspark import SparkConf
    from pyspark.sql import SparkSession

    given = {**SETTINGS, **(conf or {})}
    settings = SparkConf()
    chosen = master or os.environ.get("SPARK_MASTER") or settings.get("spark.master", None) or MASTER
    settings.setMaster(chosen)
    if chosen.startswith("local"):
        given = {MANAGER: LOCAL_MANAGER, **given}
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


@contextmanager
def closing(spark: SparkSession) -> Iterator[None]:
    """Stops a session at the end; one whose JVM is gone has nothing to stop."""
    try:
        yield
    finally:
        if gone(spark.sparkContext, "") is None:
            spark.stop()


def kill_after(spark: SparkSession, limit_s: float) -> threading.Timer:
    """Kill the JVM that this process started when it still runs in `limit_s` seconds, for who ends now and has asked
    Spark things that it may never answer: whoever waits for it then gets an error. The timer, which is started."""

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
    """Make a session the active one of the JVM's thread that this thread talks to.

    Spark looks for Python's data sources in the active session when a stream is written, and a thread that Python
    started has none. Needed once per thread, before `writeStream.format("flowshare")…start()`.
    """
    of_jvm = type(spark)._get_j_spark_session_class(spark._jvm)  # noqa: SLF001 - there is no other way
    of_jvm.setActiveSession(spark._jsparkSession)  # noqa: SLF001


def register(spark: SparkSession) -> None:
    """Make `format("flowshare")` known to a session that was made elsewhere."""
    from flowshare.spark.datasource import FlowshareSource

    spark.dataSource.register(FlowshareSource)
    note_checkpoints(spark)


def need_spark() -> None:
    """See that pyspark and a Java are there, and tell Spark which Python and Java to run. Raises: SparkMissing."""
    try:
        import pyarrow  # noqa: F401
        import pyspark  # noqa: F401
    except ImportError as error:
        raise SparkMissing(f"{error.name} is not installed: pip install 'flowshare[spark]'") from None
    try:
        os.environ["JAVA_HOME"] = str(java_home())
    except DevFailure as error:
        raise SparkMissing(f"Spark runs on Java: {error}") from None
    # Spark starts `python3` of the search path otherwise, which has neither flowshare nor pyarrow.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    here = [entry for entry in (os.getcwd(), *sys.path[:1]) if entry and Path(entry).is_dir()]
    before = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys([*here, *before]))
