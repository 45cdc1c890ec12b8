"""Who is let in at the port of an embedded path, and whom this user's processes trust there.

A loopback port can be dialled, and taken when it is free, by every user of the machine. The path's directory is this
user's alone (`log.folder`), so what stands in it proves who somebody is: `secret` is for flowshare's own processes,
`client.properties` has the login of other Kafka clients, ready for Java's. Both ways are SCRAM, in which either end
proves that it knows the password and neither tells it. PLAIN is not offered: it would tell it to whoever listens.

Invariant: whoever cannot read the directory gets no answer but to ApiVersions and the login; and no process of
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

What is not found out takes a leader that was killed and a successor that did not get its port; who cannot accept it
serves the path with TLS (`flowshare serve`).

A file that is missing or torn is made anew by the next leader, which alone writes them: the path's lock is its.
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
    """What a path's port asks for. secret: of flowshare's own processes. password: of other clients."""

    secret: str = field(repr=False)
    password: str = field(repr=False)


def make_logins(folder: OwnFolder, token: Callable[[], str]) -> PathLogins:
    """The path's logins, made where they are missing; for whoever holds its lock. token: makes a new password.

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
    """The login at the port of a path that this process leads. Made by `open_door`. own: of flowshare's own user."""

    users: Users
    own: Credential
    secret: str = field(repr=False)

    def sasl(self) -> Sasl:
        """What the listener is given."""
        from flowshare.server.security.sasl import Sasl

        return Sasl(self.users, random=os.urandom, mechanisms=MECHANISMS, managed=False)

    def bound(self, address: str) -> Security:
        """The listener's address is known: this user's processes are let in. How they log in there."""
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
    """How this user's processes log in at the path's port; None: nobody has to. Blocks. Raises: NoLogin."""
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
    """How other Kafka clients log in at the path's port. Blocks. Raises: NoLogin."""
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
    """The same for who asks only. Raises: NoLogin."""
    try:
        return _read(folder, name, find)
    except (OSError, NotPrivate) as error:
        raise NoLogin(f"{folder.path / name} cannot be read: {error}") from error


def _read(folder: OwnFolder, name: str, find: Callable[[str], re.Match[str] | None]) -> str | None:
    """What is found in a file, its last group; None: there is no such file, or it was torn.

    Raises: NotPrivate, OSError.
    """
    try:
        found = find(folder.read(name).decode())
    except (FileNotFoundError, UnicodeDecodeError):
        return None
    return None if found is None else found[found.re.groups]
