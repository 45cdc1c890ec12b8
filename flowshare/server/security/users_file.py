"""The file of users: one line a user.

    # comments and empty lines are left
    alice=her password
    bob: SCRAM-SHA-256=salt,iterations,storedkey,serverkey

The password stands behind `=`, to the line's end, without spaces around it. A hashed one stands behind `:`, salt and
keys in base64, as `entry` makes it; a user may have one line for each mechanism.
"""

from __future__ import annotations

import logging
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from flowshare.core_errors import FlowshareError
from flowshare.protocol.scram import DIGESTS, ScramError, prepared
from flowshare.server.security.credentials import ITERATIONS, Credential, hashed

USERS_MAX: Final = 10_000
"""Most users of a file: each costs some milliseconds at the start."""
NAME_MAX: Final = 255
LINE_MAX: Final = 1_024

_HASHED: Final = re.compile(rf"([^=:,\s]+):\s*((?:{'|'.join(DIGESTS)})=.*)")
_PLAIN: Final = re.compile(r"([^=:,\s]+)\s*=\s*(.+)")
logger = logging.getLogger(__name__)


class BadUsersFile(FlowshareError, ValueError):
    """A file of users that cannot be used; the text names file and line and shows no password."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UsersFile:
    """The contents of a file of users: passwords by name, and hashed ones by (mechanism, name)."""

    passwords: Mapping[str, str] = field(repr=False)
    hashed: Mapping[tuple[str, str], Credential]


def entry(name: str, password: str, *, mechanism: str, salt: bytes, iterations: int = ITERATIONS) -> str:
    """Return the line of a user with a hashed password. `salt`: fresh random bytes. Raises: ScramError,
    BadUsersFile."""
    check_name(name)
    return f"{name}: {hashed(mechanism, prepared(password), salt=salt, iterations=iterations)}"


def check_name(name: str) -> None:
    """Check a user's name. Raises: BadUsersFile."""
    if len(name) > NAME_MAX or not re.fullmatch(r"[^=:,\s]+", name):
        raise BadUsersFile(f"a user's name has 1 to {NAME_MAX} characters, none of '=', ':', ',' and no space")
    if _prepared(name) != name:
        raise BadUsersFile("a user's name is not in its normal form (Unicode NFKC); write it so")


def read_users(path: Path) -> UsersFile:
    """Read a file of users; warn in the log when it has passwords that others on the machine can read.

    Raises: BadUsersFile
    """
    try:
        mode = path.stat().st_mode
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no UTF-8"
        raise BadUsersFile(f"the file of users {path} cannot be read: {reason}") from None
    users = parse_users(text, where=str(path))
    if users.passwords and stat.S_IMODE(mode) & 0o077:
        logger.warning("file of users can be read by others on this machine: path=%s; run chmod 600 on it", path)
    return users


def parse_users(text: str, *, where: str) -> UsersFile:
    """Read the text of a file of users; `where` stands in the errors. Raises: BadUsersFile."""
    passwords: dict[str, str] = {}
    hashes: dict[tuple[str, str], Credential] = {}
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.strip()
        if not line or line.startswith("#"):
            continue
        try:
            _add(line, passwords, hashes)
        except (BadUsersFile, ScramError) as error:
            raise BadUsersFile(f"{where} line {number}: {error}") from None
    if not passwords and not hashes:
        raise BadUsersFile(f"{where} has no user; write a line name=password")
    return UsersFile(passwords=passwords, hashed=hashes)


def _add(line: str, passwords: dict[str, str], hashes: dict[tuple[str, str], Credential]) -> None:
    if len(line) > LINE_MAX:
        raise BadUsersFile(f"the line is longer than {LINE_MAX} characters")
    if len(passwords) + len(hashes) >= USERS_MAX:
        raise BadUsersFile(f"more than {USERS_MAX} users")
    match = _HASHED.fullmatch(line)
    if match is not None:
        name, credential = match[1], Credential.parse(match[2])
        check_name(name)
        if name in passwords or (credential.mechanism, name) in hashes:
            raise BadUsersFile(f"the user {name} stands here twice")
        hashes[credential.mechanism, name] = credential
        return
    match = _PLAIN.fullmatch(line)
    if match is None:
        raise BadUsersFile("write name=password or name: SCRAM-SHA-256=salt,iterations,storedkey,serverkey")
    name, password = match[1], match[2]
    check_name(name)
    if name in passwords or any((mechanism, name) in hashes for mechanism in DIGESTS):
        raise BadUsersFile(f"the user {name} stands here twice")
    if _prepared(password) != password:
        raise BadUsersFile(
            f"the password of {name} is not in its normal form (Unicode NFKC), and clients differ in what they "
            "make of it; choose another"
        )
    passwords[name] = password


def _prepared(text: str) -> str | None:
    try:
        return prepared(text)
    except ScramError:
        return None
