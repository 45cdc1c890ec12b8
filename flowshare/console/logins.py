"""The logins of the console: a file with a line for each, `name role salt hash`.

Passwords are stored as scrypt's (RFC 7914) with N = 2^15, r = 8, p = 1, 32 MB and about 80 ms a guess. `flowshare
console-login` writes the file; it is read again when it has changed, and only its owner may read it.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import stat
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Final

from flowshare.core_errors import FlowshareError

if TYPE_CHECKING:
    from collections.abc import Mapping

NAME: Final = re.compile(r"[A-Za-z0-9._@-]{1,64}")
PASSWORD_MIN: Final = 8
PASSWORD_MAX: Final = 1024
"""Most characters."""
LOGINS_MAX: Final = 10_000
_N: Final = 2**15
_MEMORY: Final = 64 * 1024 * 1024
_SALT: Final = 16


class BadLogins(FlowshareError, ValueError):
    """Error: the file of logins, or one of them, cannot be used; the text has the remedy."""


class Role(Enum):
    """Rights of a user. A viewer sees everything that is shown, and changes nothing."""

    VIEWER = "viewer"
    OPERATOR = "operator"


@dataclass(frozen=True, slots=True)
class Login:
    """One login. salt, hashed: of the password."""

    name: str
    role: Role
    salt: bytes
    hashed: bytes

    def line(self) -> str:
        """Return the login's line in the file."""
        return f"{self.name} {self.role.value} {self.salt.hex()} {self.hashed.hex()}\n"


def make(name: str, role: Role, password: str, *, salt: bytes | None = None) -> Login:
    """Make a login. Takes 80 ms. Raises BadLogins (name or password not allowed)."""
    if not NAME.fullmatch(name):
        raise BadLogins(f"{name!r} is no name: 1 to 64 letters, digits and . _ - @")
    if not PASSWORD_MIN <= len(password) <= PASSWORD_MAX:
        raise BadLogins(f"a password has {PASSWORD_MIN} to {PASSWORD_MAX} characters")
    salt = os.urandom(_SALT) if salt is None else salt
    return Login(name, role, salt, _hash(password, salt))


def matches(login: Login | None, password: str) -> bool:
    """True if this is the login's password. False if there is no such login, after as much time."""
    asked = _NOBODY if login is None else login
    same = hmac.compare_digest(_hash(password[:PASSWORD_MAX], asked.salt), asked.hashed)
    return same and login is not None


def parse(text: str, where: str) -> dict[str, Login]:
    """Return the logins by name. Raises BadLogins."""
    found: dict[str, Login] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        try:
            name, role, salt, hashed = line.split()
            login = Login(name, Role(role), bytes.fromhex(salt), bytes.fromhex(hashed))
        except ValueError:
            raise BadLogins(
                f"line {number} of {where} is no login (name, viewer or operator, salt, hash): write it by "
                "flowshare console-login"
            ) from None
        if not NAME.fullmatch(name) or name in found or len(login.hashed) != 32:
            raise BadLogins(f"line {number} of {where}: the name is there twice, or it or the hash is none")
        found[name] = login
        if len(found) > LOGINS_MAX:
            raise BadLogins(f"{where} has more than {LOGINS_MAX} logins")
    return found


class LoginFile:
    """The file of logins, read again when it has changed. Blocks."""

    def __init__(self, path: Path, *, empty: bool = False) -> None:
        """empty: True: the file may have no login yet. Raises BadLogins."""
        self.path = path
        self._stamp: tuple[int, int, int] | None = None
        self._logins: Mapping[str, Login] = {}
        if not self.logins() and not empty:
            raise BadLogins(f"{path} has no login: flowshare console-login NAME --role operator --file {path}")

    def logins(self) -> Mapping[str, Login]:
        """Return the logins by name. Raises BadLogins."""
        try:
            with self.path.open(encoding="utf-8") as file:
                facts = os.fstat(file.fileno())
                if stat.S_IMODE(facts.st_mode) & 0o077:
                    raise BadLogins(f"others may read {self.path}: chmod 600 it")
                if facts.st_uid not in _own():
                    raise BadLogins(f"{self.path} is another user's, who could let anybody in: chown it")
                stamp = facts.st_mtime_ns, facts.st_size, facts.st_ino
                if stamp != self._stamp:
                    self._logins, self._stamp = parse(file.read(), str(self.path)), stamp
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
            raise BadLogins(f"the logins in {self.path} cannot be read: {reason}") from None
        return self._logins


def write(path: Path, logins: Mapping[str, Login]) -> None:
    """Write the file. Raises: OSError."""
    draft = path.with_name(f"{path.name}.new")
    draft.unlink(missing_ok=True)  # left behind, or prepared by another user
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        file.writelines(login.line() for login in logins.values())
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)


def _own() -> tuple[int, ...]:
    """Return the users that may own the file: this user, or root, who can do anything else, too."""
    return os.geteuid(), 0


def _hash(password: str, salt: bytes) -> bytes:
    data = password.encode("utf-8", "surrogatepass")
    return hashlib.scrypt(data, salt=salt, n=_N, r=8, p=1, maxmem=_MEMORY, dklen=32)


_NOBODY: Final = Login("", Role.VIEWER, bytes(_SALT), bytes(32))
"""A login without a password, so that checking an unknown name takes as long as checking a known one."""
