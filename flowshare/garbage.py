"""Python's cyclic garbage collector and records.

A chunk is thousands of tuples that all live on. While they are made, the collector would run every 700 of them and
look at the same ones again and again: 1.2 µs a record, more than decoding itself. Paused meanwhile, it looks once.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

SWITCH_S: Final = 0.001
USUAL_THRESHOLDS: Final = frozenset({700, 2_000})
"""Python's own, by version."""
THRESHOLD: Final = 20_000
"""New objects after which cycles are looked for. At Python's own that took 5 to 10 % of a no-op handler's time: each
record makes some, and they are never part of a cycle."""


@contextmanager
def collector_paused() -> Iterator[None]:
    """No collection of cycles inside the block, unless the application turned the collector off altogether."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


class Tuning:
    """Settings of the interpreter while an app runs on two loops, or a server; one of a process holds them.

    What is there when it starts (modules, classes, the app itself) is looked at by no collection meanwhile: a full one
    took 80 ms, which records waited for. New objects are looked at in larger lots. And two loops, or a loop and what
    is done beside it, get the interpreter's lock from each other after 1 ms instead of 5. An application's own choice
    of each is left alone.
    """

    __slots__ = ("_frozen", "_switch_s", "_threshold")

    def __init__(self) -> None:
        self._frozen = False
        self._threshold: tuple[int, int, int] | None = None
        self._switch_s: float | None = None

    def apply(self) -> None:
        """Set them."""
        if gc.isenabled() and not gc.get_freeze_count():
            gc.freeze()
            self._frozen = True
        before = gc.get_threshold()
        if before[0] in USUAL_THRESHOLDS:
            gc.set_threshold(THRESHOLD, *before[1:])
            self._threshold = before
        before_s = sys.getswitchinterval()
        if before_s > SWITCH_S:
            sys.setswitchinterval(SWITCH_S)
            self._switch_s = before_s

    def undo(self) -> None:
        """Set back what was set. Safe to call twice."""
        if self._frozen:
            self._frozen = False
            gc.unfreeze()
        if self._threshold is not None:
            if gc.get_threshold()[0] == THRESHOLD:
                gc.set_threshold(*self._threshold)
            self._threshold = None
        if self._switch_s is not None:
            if abs(sys.getswitchinterval() - SWITCH_S) < SWITCH_S / 10:
                sys.setswitchinterval(self._switch_s)
            self._switch_s = None
