"""What a forked child does not keep: locks, listening ports and connections of the process that it was forked from.

A fork (`os.fork`, multiprocessing's `fork`) has the descriptors of its parent, and what they stand for ends with the
last of them: while a child lives, a parent that was killed would keep its path's lock and its port, its members' and
clients' connections would stay open, and nobody would take its place. So whatever says by its end that this process
has ended is held alone: `hold_alone`.

In a child the descriptors lead nowhere (to /dev/null) from the fork on. They are not closed: objects of the parent's
that the child has copies of close them some time, when the numbers may be something else's. A program that is started
(subprocess) gets none of them anyway, they are closed on exec. A fork that C code makes by itself is not heard of.
"""

from __future__ import annotations

import os
from typing import Final

_held: Final[dict[int, tuple[int, int]]] = {}
"""Descriptor -> which file it was. No entry is taken out: another file that has the number by now is told from it."""


def hold_alone(descriptor: int) -> None:
    """Keep an open descriptor from children that are forked from now on. Raises: OSError."""
    found = os.fstat(descriptor)
    _held[descriptor] = found.st_dev, found.st_ino


def _forget() -> None:
    held = dict(_held)
    _held.clear()
    if not held:
        return
    nowhere = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for descriptor, file in held.items():
        try:
            found = os.fstat(descriptor)
            if (found.st_dev, found.st_ino) == file:
                os.dup2(nowhere, descriptor, inheritable=False)
        except OSError:
            continue  # closed by now
    os.close(nowhere)


if hasattr(os, "register_at_fork"):  # not there on Windows
    os.register_at_fork(after_in_child=_forget)
