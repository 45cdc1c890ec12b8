"""Worker processes of a path: `workers/<pid>.json` beside `owner.json`, one file each.

A process locks its file for as long as it lives. So the file of a dead process is told from that of a living one, even
if another process has the number by now.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import orjson

from flowshare.forks import hold_alone
from flowshare.log.folder import NotPrivate, OwnFolder
from flowshare.log.owner import WORKERS_DIRECTORY

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerEntry:
    """A worker: process, machine, `host:port` of its health pages, time of its registration (ms since 1970).

    supervisor: `host:port` of its supervisor's pages; empty: no supervisor, or one without pages.
    """

    pid: int
    host: str
    address: str
    since_ms: int
    supervisor: str = ""


class Registration:
    """This process's registration: a file from construction to `remove`. The calls block for a moment."""

    def __init__(self, path: Path, *, address: str, now_ms: int, supervisor: str = "") -> None:
        """Make this process known at the path. Raises: OSError, NotPrivate (the directory is another user's)."""
        self.entry = WorkerEntry(
            pid=os.getpid(), host=socket.gethostname(), address=address, since_ms=now_ms, supervisor=supervisor
        )
        with OwnFolder.own(path) as own, own.below(WORKERS_DIRECTORY) as folder:
            self._file = folder.path / f"{self.entry.pid}.json"
            draft = folder.path / f"{self.entry.pid}.new"
            self._locked = folder.open(draft.name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        hold_alone(self._locked)
        try:
            # The file is locked and complete before it gets its name.
            fcntl.flock(self._locked, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.write(self._locked, orjson.dumps(asdict(self.entry)))
            draft.replace(self._file)
        except OSError:
            os.close(self._locked)
            raise

    def remove(self) -> None:
        """Remove the file, unless this process is a forked child; harmless when the file is gone or cannot be
        removed."""
        if os.getpid() == self.entry.pid:
            with contextlib.suppress(OSError):  # a file without a lock counts as dead anyway
                self._file.unlink(missing_ok=True)
        os.close(self._locked)


def running_workers(path: Path) -> list[WorkerEntry]:
    """Return the path's living workers, the first registered first, and remove the files of dead ones.

    The list is empty where the path is another user's: files there are not trusted.
    """
    found: list[WorkerEntry] = []
    folder = OwnFolder.found(path)
    if folder is None:
        return found
    with folder, contextlib.suppress(OSError):  # no worker ever was here, or the path cannot be read
        workers = OwnFolder.found(folder.path / WORKERS_DIRECTORY)
        if workers is not None:
            with workers:
                found = [entry for name in workers.names(".json") if (entry := _living(workers, name)) is not None]
    return sorted(found, key=lambda entry: (entry.since_ms, entry.pid))


def _living(folder: OwnFolder, name: str) -> WorkerEntry | None:
    try:
        descriptor = folder.open(name, os.O_RDONLY)
    except (OSError, NotPrivate):
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return _read(descriptor)
    else:
        with contextlib.suppress(OSError):  # only tidiness depends on it
            folder.remove(name)
        return None
    finally:
        os.close(descriptor)


def _read(descriptor: int) -> WorkerEntry | None:
    try:
        return WorkerEntry(**orjson.loads(os.read(descriptor, 4096)))
    except (OSError, ValueError, TypeError):
        return None
