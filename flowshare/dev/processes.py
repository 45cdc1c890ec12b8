"""Processes by number *and* birth, so that a number that was given out again is never mistaken for the old process."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from flowshare import processes

POLL_S: Final = 0.02
_PR_SET_PDEATHSIG: Final = 1


@dataclass(frozen=True, slots=True)
class Process:
    """A process: its number, and what tells it from any other that had this number (boot and time of birth)."""

    pid: int
    birth: str

    @property
    def runs(self) -> bool:
        """True if the process is still there. One that has ended and waits to be collected by its parent is not."""
        return birth(self.pid) == self.birth

    def end(self, grace_s: float) -> bool:
        """SIGTERM, up to `grace_s` seconds of waiting, then SIGKILL; 0 kills at once. Returns whether it is gone."""
        if grace_s > 0:
            self._signal(signal.SIGTERM)
            if self.gone_within(grace_s):
                return True
        self._signal(signal.SIGKILL)
        return self.gone_within(10.0)

    def gone_within(self, seconds: float) -> bool:
        """Wait up to so many seconds for its end. Returns whether it has ended."""
        deadline = time.monotonic() + seconds
        while self.runs:
            if time.monotonic() >= deadline:
                return False
            time.sleep(POLL_S)
        return True

    def _signal(self, number: signal.Signals) -> None:
        if self.runs:
            try:
                os.kill(self.pid, number)
            except ProcessLookupError:
                return


def process(pid: int) -> Process | None:
    """The process that has this number now, None when there is none."""
    found = birth(pid)
    return None if found is None else Process(pid, found)


def birth(pid: int) -> str | None:
    """When and in which boot the process was born; None when it is not there, or has ended and was not collected."""
    if sys.platform != "linux":
        asked = said(["ps", "-o", "stat=,lstart=", "-p", str(pid)], 10)
        state, _, since = asked.stdout.strip().partition(" ")
        return None if not since or state.startswith("Z") else since.strip()
    born = processes.birth(pid)
    return None if born is None else f"{Path('/proc/sys/kernel/random/boot_id').read_text().strip()}/{born}"


def tied_to_parent() -> Callable[[], None] | None:
    """Return a `preexec_fn` for Popen: the system kills the child when the thread that starts the child is gone.

    Linux only. Elsewhere the result is None, and a parent that is killed leaves the child behind.
    """
    if sys.platform != "linux":
        return None
    libc = ctypes.CDLL(None, use_errno=True)  # loaded before the fork: the child may only make system calls
    parent = os.getpid()

    def tie() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)

    return tie


def said(command: Sequence[str], limit_s: float, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run a tool to its end, and what it wrote. Raises: OSError, TimeoutExpired."""
    return subprocess.run(
        command, cwd=cwd, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=limit_s
    )


def tail(log: Path, lines: int = 40) -> str:
    """The last lines of a log file, each indented; a note when there is nothing in it."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - 16_384))
            found = file.read().decode(errors="replace").splitlines()[-lines:]
    except OSError:
        found = []
    return "\n".join(f"  {line}" for line in found) or f"  (nothing in {log})"
