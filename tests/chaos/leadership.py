"""Who led a path, and when nobody did: seen from outside, by its owner file and whether that process lives."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from flowshare.log.owner import read_owner

LOOK_S = 0.02
TOGETHER_S = 1.0
"""Less than this between two times without a leader is too short for the locks of all to be renewed: members connect
again, and share-partitions are loaded."""

Stretch = tuple[float, float]


class Leadership:
    """Looks at a path until it is told to stop."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._look, name="leadership", daemon=True)
        self.led: list[tuple[int, float, float]] = []
        """Process, from when to when it was seen to lead."""

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End."""
        self._stopped.set()
        self._thread.join()

    def leader(self) -> int | None:
        """The process that leads now."""
        owner = read_owner(self._path)
        return None if owner is None or owner.listener is None or not _lives(owner.pid) else owner.pid

    def _look(self) -> None:
        while not self._stopped.wait(LOOK_S):
            now, pid = time.monotonic(), self.leader()
            if pid is None:
                continue
            if self.led and self.led[-1][0] == pid:
                self.led[-1] = (pid, self.led[-1][1], now)
            else:
                self.led.append((pid, now, now))

    def absences(self, stills: Iterable[tuple[int, float, float]], least_s: float) -> list[Stretch]:
        """When there was no leader, or it did not get on, for so long in all. stills: process, from when to when."""
        return absences(self.led, stills, least_s)


def absences(
    led: Sequence[tuple[int, float, float]], stills: Iterable[tuple[int, float, float]], least_s: float
) -> list[Stretch]:
    """See `Leadership.absences`; those with less than `TOGETHER_S` between them are one."""
    away = [(before[2], after[1]) for before, after in itertools.pairwise(led)]
    for pid, since, until in stills:
        away += [
            (max(since, begin), min(until, end))
            for leader, begin, end in led
            if leader == pid and begin < until and since < end
        ]
    found: list[tuple[float, float, float]] = []
    for since, until in sorted(stretch for stretch in away if stretch[1] > stretch[0]):
        if found and since - found[-1][1] < TOGETHER_S:
            begin, end, length = found[-1]
            found[-1] = (begin, max(end, until), length + max(0.0, until - max(end, since)))
        else:
            found.append((since, until, until - since))
    return [(since, until) for since, until, length in found if length > least_s]


def _lives(pid: int) -> bool:
    """True if a process runs; an ended process that was not waited for does not run."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:
            return stat.read().rpartition(b")")[2].split()[0] not in (b"Z", b"X")
    except OSError:
        return False
