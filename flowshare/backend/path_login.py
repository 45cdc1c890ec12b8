"""The login at the port of an embedded path: clients prove themselves to the leader, and the leader to them.

Every user of the machine can dial a loopback port, and take it when it is free. The path's directory is this user's
alone (`log.folder`), so its files prove an identity: `secret` is for flowshare's own processes, `client.properties` has
the login of other Kafka clients, ready for Java's. Both logins are SCRAM: each end proves that it knows the password,
and neither tells the password. PLAIN is not offered: it would tell the password to any listener.

Invariant: a client that cannot read the directory gets no answer but to ApiVersions and the login; and no process of
flowshare's sends anything but these to a listener that cannot read the directory.

    who dials                  who listens
    own process                the leader                        both prove the secret, then it is joined
    own process                another user, on the dead         it cannot sign: given up before anything else is sent
                               leader's port
    own process                the same, passing all on to       refused: the name that logs in has the port dialled
                               the leader at its new port
    own process                a leader with `?open=true`, or    nobody proves anything; `owner.json` says so
                               `flowshare serve` without users
    own process, old secret    the leader                        refused; the files are read anew at each try
    client with the login      the leader                        let in, with all rights
    client with the login      another user, on that port        its SCRAM finds out, as far as its library checks
    client with the login      the same, passing all on          not found out: its name has no port
    anybody else               the leader                        refused as a wrong password is

The case that is not found out needs a leader that was killed and a successor that did not get its port; serve the path
with TLS (`flowshare serve`) if that is not acceptable.

A file that is missing or torn is made anew by the next leader; only the holder of the path's lock writes these files.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from flowshare.backend.base import BackendError
from flowshare.client.net.security import Security
from flowshare.log.folder import NotPrivate, OwnFolder
from flowshare.log.owner import OWNER_FILE, parse_owner

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from flowshare.clock import Clock
    from flowshare.server.security.credentials import Credential
    from flowshare.server.security.sasl import Sasl
    from flowshare.server.security.users import Users

SECRET_FILE: Final = "secret"  # noqa: S105 - a file's name
CLIENT_FILE: Final = "client.properties"
OWN_USER: Final = "flowshare"
CLIENT_USER: Final = "client"
MECHANISMS: Final = ("SCRAM-SHA-512", "SCRAM-SHA-256")
_TOKEN: Final = re.compile(r"[A-Za-z0-9_-]{32,}")
_PASSWORD: Final = re.compile(r'^sasl\.jaas\.config=.*\busername="client" password="([^"\\]{16,})";\s*$', re.MULTILINE)


class NoLogin(BackendError):
    """The login of a path cannot be read; the text says what to do."""


@dataclass(frozen=True, slots=True)
class PathLogins:
    """The passwords of a path's port. secret: for flowshare's own processes. password: for other clients."""

    secret: str = field(repr=False)
    password: str = field(repr=False)


def make_logins(folder: OwnFolder, token: Callable[[], str]) -> PathLogins:
    """Return the path's logins, made where they are missing; the caller holds the path's lock. token: makes a new
    password.

    Raises: NotPrivate, OSError.
    """
    secret = _read(folder, SECRET_FILE, _TOKEN.fullmatch)
    if secret is None:
        secret = token()
        folder.write(SECRET_FILE, secret.encode(), lasting=True)
    password = _read(folder, CLIENT_FILE, _client_password)
    if password is None:
        password = token()
        folder.write(CLIENT_FILE, _properties(password).encode(), lasting=True)
    return PathLogins(secret, password)


@dataclass(frozen=True, slots=True)
class PathDoor:
    """The login at the port of a path that this process leads. Made by `open_door`. own: credential of flowshare's own
    user."""

    users: Users
    own: Credential
    secret: str = field(repr=False)

    def sasl(self) -> Sasl:
        """Return the SASL logins of the listener."""
        from flowshare.server.security.sasl import Sasl

        return Sasl(self.users, random=os.urandom, mechanisms=MECHANISMS, managed=False)

    def bound(self, address: str) -> Security:
        """Let this user's processes in at the listener's address, now known; return their login there."""
        security = _security(address, self.secret)
        self.users.fix(security.username, self.own)
        return security


async def open_door(logins: PathLogins, clock: Clock) -> PathDoor:
    """Make the users of a path's port. They are not the storage's: those have rights at `flowshare serve` only."""
    import asyncio

    from flowshare.log.memory import MemoryStorage
    from flowshare.server.security.credentials import hashed
    from flowshare.server.security.users import Users
    from flowshare.server.security.users_file import UsersFile

    users = Users(MemoryStorage(clock), UsersFile(passwords={CLIENT_USER: logins.password}, hashed={}))
    await users.start(os.urandom)
    own = await asyncio.to_thread(hashed, MECHANISMS[0], logins.secret, salt=os.urandom(16))
    return PathDoor(users, own, logins.secret)


def security_at(path: Path, address: str) -> Security | None:
    """Return this user's login at the path's port; None: no login is needed. Blocks. Raises: NoLogin."""
    folder = OwnFolder.found(path)
    if folder is None:
        raise NoLogin(f"{path} is no directory of this user's")
    with folder:
        try:
            owner = parse_owner(folder.read(OWNER_FILE))
        except (OSError, NotPrivate):
            owner = None
        if owner is not None and not owner.secret:
            return None
        secret = _told(folder, SECRET_FILE, _TOKEN.fullmatch)
    if secret is None:
        raise NoLogin(f"{path} has no file {SECRET_FILE}: stop all its processes and start one, which makes a new one")
    return _security(address, secret)


def client_security(path: Path) -> Security:
    """Return the login of other Kafka clients at the path's port. Blocks. Raises: NoLogin."""
    folder = OwnFolder.found(path)
    if folder is None:
        raise NoLogin(f"{path} is no directory of this user's: name one that was opened before")
    with folder:
        password = _told(folder, CLIENT_FILE, _client_password)
    if password is None:
        raise NoLogin(f"{path} has no {CLIENT_FILE}: it is made when a process opens the path")
    return Security(protocol="SASL_PLAINTEXT", mechanism=MECHANISMS[0], username=CLIENT_USER, password=password)


def _security(address: str, secret: str) -> Security:
    port = address.rpartition(":")[2]
    return Security(protocol="SASL_PLAINTEXT", mechanism=MECHANISMS[0], username=f"{OWN_USER}@{port}", password=secret)


def _properties(password: str) -> str:
    return (
        "# Kafka clients log in with this at the port of this path. Whoever has it may do everything there.\n"
        "security.protocol=SASL_PLAINTEXT\n"
        f"sasl.mechanism={MECHANISMS[0]}\n"
        "sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required "
        f'username="{CLIENT_USER}" password="{password}";\n'
    )


def _client_password(text: str) -> re.Match[str] | None:
    return _PASSWORD.search(text)


def _told(folder: OwnFolder, name: str, find: Callable[[str], re.Match[str] | None]) -> str | None:
    """Read a login file as `_read`, for a process that does not lead. Raises: NoLogin."""
    try:
        return _read(folder, name, find)
    except (OSError, NotPrivate) as error:
        raise NoLogin(f"{folder.path / name} cannot be read: {error}") from error


def _read(folder: OwnFolder, name: str, find: Callable[[str], re.Match[str] | None]) -> str | None:
    """Return the last group of a match in a file; None: the file does not exist, has no match, or was torn.

    Raises: NotPrivate, OSError.
    """
    try:
        found = find(folder.read(name).decode())
    except (FileNotFoundError, UnicodeDecodeError):
        return None
    return None if found is None else found[found.re.groups]
