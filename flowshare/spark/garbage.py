"""Python's search for cycles, kept from what has none: it takes time from Spark's workers in the middle of a batch."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

from pyspark import TaskContext


@contextmanager
def no_collections() -> Iterator[None]:
    """Records are many objects and no cycles: looking for some among them takes longer than reading them (1.0 instead
    of 0.3 µs a record)."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


def freeze() -> None:
    """Leave what lives in a worker process of Spark's, modules most of all, out of all later collections.

    PySpark's daemon collects everything after each task, beside Spark's own work for the next batch: with pyarrow and
    a client loaded, that made the commit log take twice as long (17 instead of 8 ms). Once a process; nothing outside
    a task, where the process is somebody else's.
    """
    if TaskContext.get() is not None and not gc.get_freeze_count():
        gc.collect()
        gc.freeze()
