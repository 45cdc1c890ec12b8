"""`OwnFolder`: a directory of this user's alone, in which other users of the machine read, prepare and replace nothing.

Everything that flowshare keeps on a disk lies in one. Directories are 0700 and files 0600, whatever the umask.
Treatment of a wanted path by its present state:

    nothing                                     made, with the parents that are missing
    a directory of this user                    used; others' rights there are taken away, with a line in the log
    the same with the sticky bit, like /tmp     others are meant to use it: a folder of our own inside is used
    root's, and this user is not root           a mount, in a container: a folder of our own inside is used
    another user's                              refused: its owner can change all that lies in it
    a symbolic link                             refused, also to a directory of this user: its maker can turn it
    a link of another user's on the way there   refused
    a parent that everybody may rename in       used, with a warning

Files are opened below the directory's descriptor, never through a link, and have to be this user's. A file with a
second name is not made private: that would change the purpose of the other name.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import secrets
import stat
import struct
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

from flowshare.log.base import StorageError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

logger = logging.getLogger(__name__)

DIRECTORY_MODE: Final = 0o700
FILE_MODE: Final = 0o600
OTHERS: Final = 0o077
_ACL: Final = struct.pack("<I", 2) + b"".join(
    struct.pack("<HHI", tag, rights, 0xFFFFFFFF) for tag, rights in ((0x01, 7), (0x04, 0), (0x20, 0))
)
"""Default ACL for new files of a directory: all rights for the owner, none for the group and others."""
READ_MAX: Final = 16 * 1024 * 1024
"""Longest file that is read whole, in bytes; flowshare's own files are much shorter."""
_OPEN_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class NotPrivate(StorageError):
    """A file or directory that another user can change; the text says how to mend that."""


class OwnFolder:
    """An open directory. Made by `own` or `below`; methods block."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        """Path of the directory: the asked-for one, or a folder inside."""
        self._descriptor = descriptor

    @classmethod
    def own(cls, path: Path, *, check: Callable[[Collection[str]], None] | None = None) -> OwnFolder:
        """Open a directory of this user's alone, or make it.

        check: called with the names in an existing directory before anything is changed there; may raise.
        Raises: NotPrivate, OSError.
        """
        path = Path(os.path.abspath(path))
        _check_way(path)
        _make_parents(path.parent)
        folder = _entered(path, None, path)
        try:
            if check is not None:
                check(folder.names())
            folder.tighten()
        except BaseException:
            folder.close()
            raise
        return folder

    @classmethod
    def found(cls, path: Path) -> OwnFolder | None:
        """Return the directory at `place_of(path)`, or None if it is missing or not this user's; nothing is made or
        changed."""
        path = place_of(path)
        try:
            folder = OwnFolder(path, _open_directory(path, None, path))
        except (OSError, NotPrivate):
            return None
        if os.fstat(folder._descriptor).st_uid != os.geteuid():
            folder.close()
            return None
        return folder

    def below(self, name: str) -> OwnFolder:
        """Open or make a directory in this one. Raises: NotPrivate, OSError."""
        folder = _entered(Path(name), self._descriptor, self.path / name)
        try:
            folder.tighten()
        except BaseException:
            folder.close()
            raise
        return folder

    def open(self, name: str, flags: int) -> int:
        """Open a file of the folder, made with O_CREAT if missing; the descriptor is not inherited by programs.

        Raises: NotPrivate, OSError.
        """
        return _open_file(name, flags, self._descriptor, self.path / name)

    def write(self, name: str, content: bytes, *, lasting: bool = False) -> None:
        """Put a file into the folder; readers always see it whole. lasting: also after a power cut. Raises: OSError."""
        draft = self._draft(name, content, lasting=lasting)
        try:
            os.replace(draft, name, src_dir_fd=self._descriptor, dst_dir_fd=self._descriptor)
        except BaseException:
            self.remove(draft)
            raise
        if lasting:
            os.fsync(self._descriptor)

    def make(self, name: str, content: bytes) -> bool:
        """Put a file into the folder durably, if there is none; return True if it was made. Raises: OSError."""
        draft = self._draft(name, content, lasting=True)
        try:
            os.link(draft, name, src_dir_fd=self._descriptor, dst_dir_fd=self._descriptor)
        except FileExistsError:
            return False
        finally:
            self.remove(draft)
        os.fsync(self._descriptor)
        return True

    def read(self, name: str) -> bytes:
        """Return a file's content. Raises: NotPrivate, OSError (EFBIG: the file is longer than `READ_MAX`)."""
        with os.fdopen(self.open(name, os.O_RDONLY), "rb") as file:
            content = file.read(READ_MAX + 1)
        if len(content) > READ_MAX:
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), str(self.path / name))
        return content

    def look(self, name: str) -> tuple[bytes, int] | None:
        """Return a file's content and its modification time in ns; None: there is no such file.

        Raises: NotPrivate, OSError.
        """
        try:
            descriptor = self.open(name, os.O_RDONLY)
        except FileNotFoundError:
            return None
        with os.fdopen(descriptor, "rb") as file:
            return file.read(READ_MAX), os.fstat(descriptor).st_mtime_ns

    def touch(self, name: str) -> None:
        """Set the time of a file to now. Raises: OSError."""
        os.utime(name, dir_fd=self._descriptor, follow_symlinks=False)

    def remove(self, name: str) -> None:
        """Remove a file; harmless when it is missing. Raises: OSError."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name, dir_fd=self._descriptor)

    def names(self, ending: str = "") -> list[str]:
        """Return the sorted names in the folder with this ending. Raises: OSError."""
        return sorted(name for name in os.listdir(self._descriptor) if name.endswith(ending))

    def close(self) -> None:
        """Close the directory; harmless when it is closed."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def __enter__(self) -> Self:
        """Return the folder; `close` at the end."""
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _draft(self, name: str, content: bytes, *, lasting: bool) -> str:
        draft = f"{name}.{secrets.token_hex(4)}.new"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        descriptor = os.open(draft, flags, FILE_MODE, dir_fd=self._descriptor)
        try:
            os.fchmod(descriptor, FILE_MODE)
            _write_all(descriptor, content)
            if lasting:
                os.fsync(descriptor)
        except BaseException:
            self.remove(draft)
            raise
        finally:
            os.close(descriptor)
        return draft

    def in_place(self) -> bool:
        """Return True if the folder's path still leads to it: nobody has removed or replaced it. Raises: OSError."""
        try:
            return os.path.samestat(os.stat(self.path), os.fstat(self._descriptor))
        except FileNotFoundError:
            return False

    def tighten(self) -> None:
        """Take others' rights on the folder away, with a line in the log. Raises: OSError."""
        self._close_files()
        mode = stat.S_IMODE(os.fstat(self._descriptor).st_mode)
        if mode == DIRECTORY_MODE:
            return
        os.fchmod(self._descriptor, DIRECTORY_MODE)
        now = stat.S_IMODE(os.fstat(self._descriptor).st_mode)
        if now & OTHERS:
            logger.warning(
                "%s cannot be closed to others, its file system keeps no permissions (mode %04o): keep it on another "
                "one where the machine has users that may not read it",
                self.path,
                now,
            )
        elif mode & OTHERS:
            logger.warning("%s was open to other users of this machine (mode %04o); it is 0700 now", self.path, mode)

    def _close_files(self) -> None:
        """Make files in the folder this user's alone: those that libraries make later, and those there already."""
        with contextlib.suppress(
            OSError, AttributeError
        ):  # elsewhere than on Linux, or without ACLs: as the umask says
            os.setxattr(self._descriptor, "system.posix_acl_default", _ACL)
        with os.scandir(self._descriptor) as entries:
            open_to_others = [one.name for one in entries if _is_open_file(one)]
        for name in open_to_others:
            with contextlib.suppress(OSError, NotPrivate):  # somebody else's, or with a second name: its opening raises
                os.close(self.open(name, os.O_RDONLY))


def _is_open_file(entry: os.DirEntry[str]) -> bool:
    """Return True if other users have rights on a file; False also for a name that is gone by now."""
    try:
        found = entry.stat(follow_symlinks=False)
    except OSError:
        return False
    return stat.S_ISREG(found.st_mode) and bool(stat.S_IMODE(found.st_mode) & OTHERS)


def place_of(path: Path) -> Path:
    """Return the path where flowshare keeps data meant for `path`: `path`, or this user's folder inside. Changes
    nothing."""
    try:
        found = os.lstat(path)
    except OSError:
        return path
    return path / _inner() if stat.S_ISDIR(found.st_mode) and _meant_for_all(found) else path


def make_private(path: Path) -> None:
    """Make a directory if missing, 0700 with its missing parents; an existing one is left as it is.

    For directories that the user names, and whose rights are the user's to give. Raises: OSError.
    """
    _make_parents(Path(os.path.abspath(path)))


def open_private(path: Path, flags: int) -> int:
    """Open a file of this user's alone by its path: see `OwnFolder.open`. Raises: NotPrivate, OSError."""
    return _open_file(path.name, flags, None, path, parent=path.parent)


def _entered(path: Path, above: int | None, shown: Path) -> OwnFolder:
    """Open the directory, or this user's directory inside it; made if missing."""
    with contextlib.suppress(FileExistsError):
        os.mkdir(path, DIRECTORY_MODE, dir_fd=above)
    descriptor = _open_directory(path, above, shown)
    try:
        found = os.fstat(descriptor)
        if above is None and _meant_for_all(found):
            return _entered(_inside(descriptor, shown), descriptor, shown / _inner())
        if found.st_uid != os.geteuid():
            raise _of_another(shown, found.st_uid)
        folder, descriptor = OwnFolder(shown, descriptor), -1
        return folder
    finally:
        if descriptor >= 0:
            os.close(descriptor)


def _inside(descriptor: int, shown: Path) -> Path:
    """Return the own folder's name in a directory meant for all. Raises: NotPrivate."""
    names = set(os.listdir(descriptor))
    if _inner() not in names and {"lock", "store"} <= names:
        raise NotPrivate(
            f"{shown} holds a storage, but the directory is not this user's alone: move what is in it into "
            f"{shown / _inner()} (mode 0700), or change the directory's owner"
        )
    return Path(_inner())


def _meant_for_all(found: os.stat_result) -> bool:
    return (found.st_uid == 0 and os.geteuid() != 0) or bool(found.st_mode & stat.S_ISVTX)


def _inner() -> str:
    return f"flowshare-{os.geteuid()}"


def _open_directory(name: str | Path, above: int | None, shown: Path) -> int:
    try:
        return os.open(name, _OPEN_DIRECTORY, dir_fd=above)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR) and _is_link(name, above):
            raise NotPrivate(
                f"{shown} is a symbolic link: name the directory itself ({_target(name, above)}), since whoever can "
                "change the link could have flowshare write somewhere else"
            ) from None
        raise


def _open_file(name: str, flags: int, above: int | None, shown: Path, *, parent: Path | None = None) -> int:
    at = name if parent is None else str(parent / name)
    try:
        # Opened without waiting: a prepared pipe would hold the process.
        descriptor = os.open(
            at, flags & ~os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, FILE_MODE, dir_fd=above
        )
    except OSError as error:
        if error.errno == errno.ELOOP and _is_link(at, above):
            raise NotPrivate(
                f"{shown} is a symbolic link, which nobody but another user would make: remove it"
            ) from None
        raise
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise NotPrivate(f"{shown} is no file: remove it")
        if found.st_uid != os.geteuid():
            raise _of_another(shown, found.st_uid)
        if stat.S_IMODE(found.st_mode) != FILE_MODE:
            if found.st_nlink > 1:
                raise NotPrivate(
                    f"{shown} can be read by others and has a second name (a hard link): remove one of both"
                )
            os.fchmod(descriptor, FILE_MODE)
        os.set_blocking(descriptor, True)
        if flags & os.O_TRUNC:
            os.ftruncate(descriptor, 0)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _of_another(path: Path, owner: int) -> NotPrivate:
    return NotPrivate(
        f"{path} belongs to another user (uid {owner}, this process is uid {os.geteuid()}): run as that user, name "
        f"another directory, or give it to this one (chown -R {os.geteuid()} {path})"
    )


def _make_parents(path: Path) -> None:
    if path.exists():
        return
    _make_parents(path.parent)
    try:
        path.mkdir(DIRECTORY_MODE)
    except FileExistsError:
        return
    descriptor = os.open(path, _OPEN_DIRECTORY)
    try:
        os.fchmod(descriptor, DIRECTORY_MODE)  # the umask may have taken the owner's own rights
    finally:
        os.close(descriptor)


def _check_way(path: Path) -> None:
    """Check the parents of a directory. Raises: NotPrivate."""
    for place in path.parents:
        with contextlib.suppress(OSError):
            found = os.lstat(place)
            if stat.S_ISLNK(found.st_mode) and found.st_uid not in (0, os.geteuid()):
                raise NotPrivate(
                    f"{place}, on the way to {path}, is a symbolic link of another user (uid {found.st_uid}): name the "
                    "directory without it"
                )
    for place in Path(os.path.realpath(path.parent), "_").parents:
        with contextlib.suppress(OSError):
            mode = os.stat(place).st_mode
            if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
                logger.warning(
                    "every user of this machine may put another directory in the place of %s: take the right away "
                    "(chmod o-w %s)",
                    path,
                    place,
                )


def _is_link(name: str | Path, above: int | None) -> bool:
    try:
        return stat.S_ISLNK(os.stat(name, dir_fd=above, follow_symlinks=False).st_mode)
    except OSError:
        return False


def _target(name: str | Path, above: int | None) -> str:
    try:
        return os.readlink(name, dir_fd=above)
    except OSError:
        return "its target"


def _write_all(descriptor: int, content: bytes) -> None:
    left = memoryview(content)
    while left:
        left = left[os.write(descriptor, left) :]
