"""Keeps a forked child from holding its parent's locks, listening ports and connections.

A fork (`os.fork`, multiprocessing's `fork`) has the descriptors of its parent. A lock, port or connection ends only
with its last descriptor. So while a child lives, a parent that was killed would keep its path's lock and its port, and
its members' and clients' connections would stay open: no other process would take its place. Therefore this process
alone holds a descriptor whose end tells that the process has ended: `hold_alone`.

In a child such descriptors lead nowhere (to /dev/null) from the fork on. The descriptors are not closed: the child has
copies of the parent's objects, which close the descriptors some time, when other files may have the numbers. A program
that is started (subprocess) gets none of them anyway: they are closed on exec. A fork that C code makes by itself is
not noticed.
"""

from __future__ import annotations

import os
from typing import Final

_held: Final[dict[int, tuple[int, int]]] = {}
"""Descriptor -> device and inode of its file. Entries are never removed: another file under the number differs from
them."""


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
