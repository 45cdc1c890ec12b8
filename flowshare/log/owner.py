"""The holder of a storage path: a lock that the system drops with its process, and `owner.json` that names the holder.

The lock is on an open file (flock), so it also keeps a second opening in the same process out. RocksDB has a lock of
its own, but its message names nobody and a read-only opening ignores it.

Not every file system keeps locks, and some network ones only among the processes of one machine: two holders ruin a
store. So each holder tries its lock with a second descriptor, and touches `owner.json` every `BEAT_S`:

    the second descriptor gets the lock, too    refused: nothing is locked here
    `owner.json` names nobody, or this machine  the lock is believed
    it names another machine's process, and     that one was killed, as far as `DOUBT_S` tells: the path is taken
      is not touched for `DOUBT_S`
    the same, and it is touched                 refused: that one lives, so locks do not reach from here to there
    a holder finds another's name               it writes nothing more
    a holder finds another directory, or none   the same: nobody would find later writes again

One case is not seen: a holder that stood still for longer than `DOUBT_S` on another machine, with locks that do not
reach there. Do not use such a mount for a path.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import secrets
import socket
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import orjson

from flowshare.forks import hold_alone
from flowshare.log.base import StorageError, StorageHeld, no_room
from flowshare.log.folder import OwnFolder

if TYPE_CHECKING:
    from collections.abc import Collection

LOCK_FILE: Final = "lock"
OWNER_FILE: Final = "owner.json"
WORKERS_DIRECTORY: Final = "workers"
BEAT_S: Final = 1.0
"""Seconds between two beats: a holder says that it lives, and checks that the path is still its own."""
DOUBT_S: Final = 3.0
"""Seconds that the holder on another machine has to show a beat."""
NO_LOCKS: Final = "keep it on a local disk, or mount this one with locks (NFS: lockd; neither nolock nor local_lock)"
STORE_DIRECTORY: Final = "store"
STORE_FILE: Final = "CURRENT"
"""One of RocksDB's files that each store has."""
GONE: Final = (
    "was removed or replaced while this process worked on it: put it back, or a backup, before you start this process "
    "again, which else begins anew on an empty one"
)
"""The error text for a path that is not `still_there`: its fate, and a remedy."""
OWN_NAMES: Final = frozenset({LOCK_FILE, OWNER_FILE, WORKERS_DIRECTORY, STORE_DIRECTORY, "confirmed"})
"""The names in a storage's directory (see `store.py` for the last two, `backend/path_workers.py` for the one
before)."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class PathOwner:
    """The holder of a path: its process, opening time (ms since 1970) and machine; token: tells it from any other.

    listener: `host:port` where it speaks Kafka's protocol, for the other processes on this path. secret: True if those
    have to prove the path's secret there (`backend.path_login`). alone: True if no process of the path may join: the
    listener is a server's (`flowshare serve`), for clients, and nobody else could take its place when it ends.
    """

    pid: int
    since_ms: int
    host: str
    listener: str | None = None
    secret: bool = False
    alone: bool = False
    token: str = ""

    def __str__(self) -> str:
        since = datetime.fromtimestamp(self.since_ms / 1000, UTC).isoformat(timespec="seconds")
        where = f", listening on {self.listener}" if self.listener else ""
        return f"process {self.pid} on {self.host} since {since}{where}"


class OwnerLock:
    """The lock, held from construction to `release`."""

    def __init__(self, path: Path, *, now_ms: int, doubt: bool = False) -> None:
        """Take the lock and write `owner.json`. Raises: StorageHeld, StorageError (NotPrivate, locks are not kept).

        doubt: if True and the lock is `doubtful`, nothing is written before `tell`.
        """
        self.before: PathOwner | None = None
        """The holder before, if it did not release the path in order."""
        self.untold = False
        """True if `owner.json` is missing because the disk has no room for it: nobody can join."""
        self.owner = PathOwner(pid=os.getpid(), since_ms=now_ms, host=socket.gethostname(), token=secrets.token_hex(8))
        self._doubt = doubt
        self._file = -1
        try:
            self.folder = OwnFolder.own(path, check=partial(_refuse_foreign, path))
        except OSError as error:
            raise StorageError(_unusable(path, error)) from error
        try:
            self._take()
        except BaseException as error:
            self._drop()
            if isinstance(error, OSError):
                raise StorageError(_unusable(path, error)) from error
            raise

    @property
    def path(self) -> Path:
        """The directory: the asked-for one, or a folder inside (`log.folder`)."""
        return self.folder.path

    @property
    def doubtful(self) -> bool:
        """True if the last holder was on another machine and did not release the path: the lock alone may not keep it
        out."""
        return self.before is not None and self.before.host != self.owner.host

    def pulse(self) -> tuple[bytes, int] | None:
        """Return a value that changes while the holder named in `owner.json` lives. Raises: OSError, NotPrivate."""
        return self.folder.look(OWNER_FILE)

    def beat(self) -> PathOwner | None:
        """Say that this holder lives; return another holder that `owner.json` names, or None. Raises: OSError,
        NotPrivate."""
        named = read_owner(self.path)
        if named is None:  # somebody removed the file
            self.tell()
        elif named.token != self.owner.token:
            return named
        else:
            self.folder.touch(OWNER_FILE)
        return None

    def set_listener(self, listener: str | None, *, secret: bool = False, alone: bool = False) -> None:
        """Change the holder's listening address, and who may join it there (`PathOwner`). Raises: OSError."""
        self.owner = replace(self.owner, listener=listener, secret=secret, alone=alone)
        self.tell()

    def tell(self) -> None:
        """Write `owner.json`; with a full disk that can stay undone (`untold`). Raises: OSError."""
        try:
            try:
                self._write()
            except OSError as error:
                if not no_room(error):
                    raise
                self.folder.remove(OWNER_FILE)  # its own room is enough
                self._write()
            self.untold = False
        except OSError as error:
            if not no_room(error):
                raise
            if not self.untold:
                logger.warning("%s has no room for %s: other processes cannot join this one", self.path, OWNER_FILE)
            self.untold = True

    def release(self) -> None:
        """Remove `owner.json`, if the disk allows it, and drop the lock; a forked child has neither."""
        named = read_owner(self.path)
        if os.getpid() == self.owner.pid and named is not None and named.token == self.owner.token:
            with contextlib.suppress(OSError):  # only the lock decides
                self.folder.remove(OWNER_FILE)
        self._drop()

    def _take(self) -> None:
        self._file = self.folder.open(LOCK_FILE, os.O_RDWR | os.O_CREAT)
        hold_alone(self._file)
        if not self._locked(self._file):
            raise StorageHeld(
                f"{self.path} is held by {read_owner(self.path) or 'another process'}: stop that one first, or wait "
                "until it ends"
            )
        second = self.folder.open(LOCK_FILE, os.O_RDWR)
        try:
            if self._locked(second):
                raise StorageError(
                    f"{self.path} cannot be used as a storage: its file system keeps no locks, so that two processes "
                    f"would ruin it; {NO_LOCKS}"
                )
        finally:
            os.close(second)
        self.before = read_owner(self.path)
        if not (self._doubt and self.doubtful):
            self.tell()

    def _locked(self, file: int) -> bool:
        """Try to lock the file for this descriptor; return True if the lock was free. Raises: StorageError (no locks
        here)."""
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError as error:
            raise StorageError(
                f"{self.path} cannot be used as a storage: its file system has no locks ({error.strerror}); {NO_LOCKS}"
            ) from error
        return True

    def _drop(self) -> None:
        self.folder.close()
        file, self._file = self._file, -1
        if file >= 0:
            os.close(file)

    def _write(self) -> None:
        self.folder.write(OWNER_FILE, orjson.dumps(asdict(self.owner)))


def still_there(folder: OwnFolder) -> bool:
    """Return True if an open directory is still in its place, with its store in it. Raises: OSError."""
    return folder.in_place() and (folder.path / STORE_DIRECTORY / STORE_FILE).exists()


def _refuse_foreign(path: Path, names: Collection[str]) -> None:
    """Raise StorageError for a directory with others' files in it and nothing of a storage: a path was mistyped."""
    others = sorted(name for name in names if not name.startswith(".") and name != "lost+found")
    if others and not OWN_NAMES.intersection(names):
        shown = ", ".join(others[:3]) + (", …" if len(others) > 3 else "")
        raise StorageError(
            f"{path} holds other files ({shown}) and no storage: name a new or empty directory in the broker URL"
        )


def exists(path: Path) -> bool:
    """Return True if something is at the path. Raises: StorageError (this user may not look there, a name too long)."""
    try:
        return path.exists()
    except OSError as error:
        raise StorageError(_unusable(path, error)) from error


def _unusable(path: Path, error: OSError) -> str:
    """Return the reason why the path cannot be used, and a remedy."""
    for place in (path, *path.parents):
        if os.path.exists(place) and not os.path.isdir(place):  # Path.exists raises where this user may not look
            return f"{path} cannot be used as a storage: {place} is a file; name a directory in the broker URL"
    if no_room(error):
        return f"{path} cannot be used as a storage: {error.strerror}; make room on that disk first"
    if error.errno == errno.ENAMETOOLONG:
        return f"{path} cannot be used as a storage: {error.strerror}; name a shorter path in the broker URL"
    advice = "mount it for writing" if error.errno == errno.EROFS else "give this user the right to write there"
    return (
        f"{path} cannot be used as a storage: {error.strerror}; {advice}, or name another directory in the broker URL"
    )


def holder(path: Path) -> PathOwner | None:
    """Return the holder of the path's lock; None: nobody, or another user's process."""
    folder = OwnFolder.found(path)
    if folder is None:
        return None
    with folder:
        try:
            lock = folder.open(LOCK_FILE, os.O_RDONLY)
        except (OSError, StorageError):
            return None
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return read_owner(path)
        finally:
            os.close(lock)
    return None


def read_owner(path: Path) -> PathOwner | None:
    """Return the holder named in `owner.json`; None when the file is missing, unreadable or not this user's. The name
    may be stale: only the lock decides."""
    folder = OwnFolder.found(path)
    if folder is None:
        return None
    with folder:
        try:
            return parse_owner(folder.read(OWNER_FILE))
        except (OSError, StorageError):
            return None


def parse_owner(content: bytes) -> PathOwner | None:
    """Parse `owner.json`'s content; None when it names no holder."""
    try:
        return PathOwner(**orjson.loads(content))
    except (ValueError, TypeError):
        return None
