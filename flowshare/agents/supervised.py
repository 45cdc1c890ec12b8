"""A worker's side of `flowshare worker --procs N`: whose it is, which one it is, and telling that it is ready."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Final

SUPERVISOR_PID: Final = "FLOWSHARE_SUPERVISOR_PID"
"""Environment variable that tells a worker whose it is."""
WORKER_NUMBER: Final = "FLOWSHARE_WORKER_NUMBER"
"""Environment variable with the worker's number, 1 to N; it is the same after a restart."""
READY_FD: Final = "FLOWSHARE_READY_FD"
REFUSED: Final = "refused: "
"""How the word begins that a worker gives its supervisor instead of an address when it cannot start."""
WHY_MAX: Final = 500
"""Characters of why."""
"""Environment variable with the descriptor on which a worker tells, once, where its health pages are."""
OF_SUPERVISOR: Final = ("--procs", "--web-port", "--web-bind")
"""Options, each with a value, that workers do not get: their own pages are on free ports of this machine."""
PATIENCE_S: Final = 0.75
"""How long a worker leaves an embedded path that nobody leads to its supervisor, which runs no handlers."""


def supervised() -> bool:
    """Whether this process is a supervisor's worker."""
    return SUPERVISOR_PID in os.environ


def orphaned() -> bool:
    """Whether this process is a supervisor's worker and the supervisor is gone."""
    supervisor = os.environ.get(SUPERVISOR_PID)
    return supervisor is not None and supervisor != str(os.getppid())


def worker_number() -> int | None:
    """Which of the supervisor's workers this process is; None when it is nobody's."""
    number = os.environ.get(WORKER_NUMBER, "")
    return int(number) if supervised() and number.isdecimal() else None


def report_ready(address: str) -> None:
    """Tell the supervisor that this worker runs, and `host:port` of its health pages (or an empty text)."""
    _report(address)


def report_refused(why: str) -> None:
    """Tell the supervisor why this worker cannot start; harmless once it has started."""
    _report(f"{REFUSED}{why[:WHY_MAX]}")


def _report(text: str) -> None:
    descriptor = os.environ.pop(READY_FD, "")
    if not descriptor.isdecimal():
        return
    try:
        os.write(int(descriptor), f"{text}\n".encode(errors="replace"))
        os.close(int(descriptor))
    except OSError:
        return  # the supervisor is gone


def worker_command(arguments: Sequence[str]) -> list[str]:
    """A worker's command line from the supervisor's arguments: the same without what is the supervisor's own."""
    kept: list[str] = []
    skip = False
    for argument in arguments:
        if skip:
            skip = False
        elif argument in OF_SUPERVISOR:
            skip = True
        elif not argument.startswith(tuple(f"{name}=" for name in OF_SUPERVISOR)):
            kept.append(argument)
    return [sys.executable, "-m", "flowshare.cli", *kept]
