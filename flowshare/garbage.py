"""Control of Python's cyclic garbage collector: it skips objects without cycles, records and the modules loaded at
start.

A chunk of records is thousands of tuples that all live on. While they are made, the collector would run every 700 of
them and look at the same ones again and again: 1.2 µs a record, more than decoding itself. Paused meanwhile, it looks
once.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Final

SWITCH_S: Final = 0.001
USUAL_THRESHOLDS: Final = frozenset({700, 2_000})
"""Python's own thresholds, by version."""
THRESHOLD: Final = 20_000
"""New objects after which cycles are looked for. Python's own threshold took 5 to 10 % of a no-op handler's time: each
record makes some objects, and they are never part of a cycle."""


@contextmanager
def collector_paused() -> Iterator[None]:
    """Collect no cycles inside the block; a collector that the application turned off stays off."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


def keep_loaded() -> None:
    """Tell the collector of cycles that loaded objects stay; its next collections would look at all of them.

    They count as old objects then, as after two collections. An application that froze objects itself is left alone.
    """
    if not gc.get_freeze_count():
        gc.freeze()
        gc.unfreeze()


def freeze() -> None:
    """Leave living objects, modules most of all, out of all later collections; once a process.

    For Spark's workers: PySpark's daemon collects everything after each task, beside Spark's own work for the next
    batch. With pyarrow and a client loaded, that made the commit log take twice as long (17 instead of 8 ms).
    """
    if not gc.get_freeze_count():
        gc.collect()
        gc.freeze()


class Tuning:
    """Settings of the interpreter while an app runs on two loops, or a server; one object of a process holds them.

    No collection looks at objects from before its start (modules, classes, the app itself): a full one took 80 ms,
    which records waited for. New objects are looked at in larger lots. And two loops, or a loop and work beside it, get
    the interpreter's lock from each other after 1 ms instead of 5. An application's own choice of each is left alone.
    """

    __slots__ = ("_undo",)

    def __init__(self) -> None:
        self._undo = ExitStack()

    def apply(self) -> None:
        """Apply settings."""
        if gc.isenabled() and not gc.get_freeze_count():
            gc.freeze()
            self._undo.callback(gc.unfreeze)
        before = gc.get_threshold()
        if before[0] in USUAL_THRESHOLDS:
            gc.set_threshold(THRESHOLD, *before[1:])
            self._undo.callback(lambda: gc.set_threshold(*before) if gc.get_threshold()[0] == THRESHOLD else None)
        before_s = sys.getswitchinterval()
        if before_s > SWITCH_S:
            sys.setswitchinterval(SWITCH_S)
            self._undo.callback(_set_switch_back, before_s)

    def undo(self) -> None:
        """Restore the settings, unless changed since. Safe to call twice."""
        self._undo.close()


def _set_switch_back(before_s: float) -> None:
    if abs(sys.getswitchinterval() - SWITCH_S) < SWITCH_S / 10:
        sys.setswitchinterval(before_s)
