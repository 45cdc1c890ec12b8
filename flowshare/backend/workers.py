"""Which worker processes a path has: `workers/<pid>.json` beside `owner.json`, one file each.

A file is locked by its process for as long as that lives, so that one which was left behind is told from a living
one's, whatever process has the number by now.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import orjson

from flowshare.log.owner import WORKERS_DIRECTORY

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerEntry:
    """A worker: process, machine, `host:port` of its health pages, when it made itself known (ms since 1970)."""

    pid: int
    host: str
    address: str
    since_ms: int


class Registration:
    """This process's file, from construction to `remove`. The calls block for a moment."""

    def __init__(self, path: Path, *, address: str, now_ms: int) -> None:
        """Make this process known at the path. Raises: OSError."""
        self.entry = WorkerEntry(pid=os.getpid(), host=socket.gethostname(), address=address, since_ms=now_ms)
        folder = path / WORKERS_DIRECTORY
        folder.mkdir(exist_ok=True)
        self._file = folder / f"{self.entry.pid}.json"
        draft = folder / f"{self.entry.pid}.new"
        self._locked = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        try:
            # Locked and complete before it can be seen under its name.
            fcntl.flock(self._locked, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.write(self._locked, orjson.dumps(asdict(self.entry)))
            draft.replace(self._file)
        except OSError:
            os.close(self._locked)
            raise

    def remove(self) -> None:
        """Take the file away; harmless when it is gone."""
        self._file.unlink(missing_ok=True)
        os.close(self._locked)


def running_workers(path: Path) -> list[WorkerEntry]:
    """The path's workers that live, the first to come first. Files of dead ones are removed on the way."""
    found: list[WorkerEntry] = []
    with contextlib.suppress(OSError):  # no worker ever was here, or the path cannot be read
        for file in (path / WORKERS_DIRECTORY).glob("*.json"):
            entry = _living(file)
            if entry is not None:
                found.append(entry)
    return sorted(found, key=lambda entry: (entry.since_ms, entry.pid))


def _living(file: Path) -> WorkerEntry | None:
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return _read(descriptor)
    else:
        with contextlib.suppress(OSError):  # nothing but tidiness depends on it
            file.unlink(missing_ok=True)
        return None
    finally:
        os.close(descriptor)


def _read(descriptor: int) -> WorkerEntry | None:
    try:
        return WorkerEntry(**orjson.loads(os.read(descriptor, 4096)))
    except (OSError, ValueError, TypeError):
        return None
