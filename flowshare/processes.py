"""Identity of processes: a process of this machine, told from any other that had its number."""

from __future__ import annotations

import functools
import os
import sys
from pathlib import Path


def birth(pid: int) -> int | None:
    """Return the birth of a process, in the kernel's ticks; None: it is gone, has ended, or the system does not
    tell."""
    if sys.platform != "linux":
        return None
    try:
        # The name of the program stands in brackets and may hold anything, so the fields are counted from its end.
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return None
    return None if fields[0] in (b"Z", b"X") else int(fields[19])


@functools.cache
def _own(pid: int) -> tuple[int, int] | None:
    born = birth(pid)
    return None if born is None else (pid, born)


def own() -> tuple[int, int] | None:
    """Return this process: number and birth."""
    return _own(os.getpid())  # by number: a child that was forked is another one


def runs(process: tuple[int, int]) -> bool:
    """True if the process with this number and birth is still there."""
    return birth(process[0]) == process[1]
