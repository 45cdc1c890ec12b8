"""Python's cyclic garbage collector, kept from what has no cycles: records, and what a process loads at its start.

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
"""Python's own, by version."""
THRESHOLD: Final = 20_000
"""New objects after which cycles are looked for. At Python's own that took 5 to 10 % of a no-op handler's time: each
record makes some, and they are never part of a cycle."""


@contextmanager
def collector_paused() -> Iterator[None]:
    """No collection of cycles inside the block; an application that turned the collector off finds it off."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


def keep_loaded() -> None:
    """Tell the collector of cycles that what is loaded stays; its next collections would look at all of it.

    It is among the old objects then, as it would be after two collections. An application that froze objects itself
    is left alone.
    """
    if not gc.get_freeze_count():
        gc.freeze()
        gc.unfreeze()


def freeze() -> None:
    """Leave what lives in this process, modules most of all, out of all later collections; once a process.

    For Spark's workers: PySpark's daemon collects everything after each task, beside Spark's own work for the next
    batch. With pyarrow and a client loaded, that made the commit log take twice as long (17 instead of 8 ms).
    """
    if not gc.get_freeze_count():
        gc.collect()
        gc.freeze()


class Tuning:
    """Settings of the interpreter while an app runs on two loops, or a server; one of a process holds them.

    What is there when it starts (modules, classes, the app itself) is looked at by no collection meanwhile: a full one
    took 80 ms, which records waited for. New objects are looked at in larger lots. And two loops, or a loop and what
    is done beside it, get the interpreter's lock from each other after 1 ms instead of 5. An application's own choice
    of each is left alone.
    """

    __slots__ = ("_undo",)

    def __init__(self) -> None:
        self._undo = ExitStack()

    def apply(self) -> None:
        """Set them."""
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
        """Set back what was set and is as it was set. Safe to call twice."""
        self._undo.close()


def _set_switch_back(before_s: float) -> None:
    if abs(sys.getswitchinterval() - SWITCH_S) < SWITCH_S / 10:
        sys.setswitchinterval(before_s)
