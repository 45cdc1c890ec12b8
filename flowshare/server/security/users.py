"""All users who can log in: those of a file, and those that were made over the wire and lie in the state store."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Final

from flowshare.log.base import StorageDamaged
from flowshare.protocol.scram import DIGESTS, ScramError, prepared
from flowshare.server.security.credentials import Credential, decoy, hashed, salt_for

if TYPE_CHECKING:
    from flowshare.log.base import StateStore
    from flowshare.server.security.users_file import UsersFile

PREFIX: Final = b"x/user/"
SECRET: Final = b"x/secret"
STORED_MAX: Final = 10_000
"""Credentials that may be made over the wire."""


class Users:
    """Names and hashed passwords. What a file says cannot be changed over the wire and goes before what is stored."""

    def __init__(self, store: StateStore, file: UsersFile | None = None) -> None:
        self._store = store
        self._file = file
        self._fixed: dict[tuple[str, str], Credential] = {}
        self._stored: dict[tuple[str, str], Credential] = {}
        self._secret = b""
        self._changing = asyncio.Lock()

    async def start(self, random: Callable[[int], bytes]) -> None:
        """Read what is stored and hash the file's passwords, in a thread: some milliseconds a user.

        Raises: LogError (StorageDamaged: a stored user cannot be read).
        """
        self._secret = await self._durable_secret(random)
        for key, value in await self._store.scan(PREFIX):
            try:
                credential = Credential.parse(value.decode())
                name = key[len(PREFIX) :].decode().removeprefix(f"{credential.mechanism}/")
            except ValueError as error:
                raise StorageDamaged(f"a stored user cannot be read ({key!r}): {error}") from error
            self._stored[credential.mechanism, name] = credential
        if self._file is not None:
            self._fixed = await asyncio.to_thread(_hash_all, self._file, self._secret)
            self._file = None

    def credential(self, mechanism: str, name: str) -> tuple[Credential, bool]:
        """A user's credential and True; for a name without one a decoy and False."""
        key = (mechanism, name)
        found = self._fixed.get(key) or self._stored.get(key)
        return (found, True) if found is not None else (decoy(self._secret, mechanism, name), False)

    def password_fits(self, name: str, password: str) -> bool:
        """Whether this is the user's password; takes as long when there is no such user. Blocks for milliseconds."""
        found = [self.credential(mechanism, name) for mechanism in DIGESTS]
        credential, known = next((pair for pair in found if pair[1]), found[0])
        try:
            password = prepared(password)
        except ScramError:
            known = False
        return credential.matches(password) and known

    def all(self) -> Mapping[str, tuple[Credential, ...]]:
        """Credentials by name."""
        merged = {**self._stored, **self._fixed}
        names: dict[str, list[Credential]] = {}
        for (_, name), credential in merged.items():
            names.setdefault(name, []).append(credential)
        return {name: tuple(credentials) for name, credentials in names.items()}

    def fixed(self, name: str) -> bool:
        """Whether a file says what this user's password is."""
        return any((mechanism, name) in self._fixed for mechanism in DIGESTS)

    @property
    def full(self) -> bool:
        """Whether no further credential can be stored."""
        return len(self._stored) >= STORED_MAX

    def stored(self, mechanism: str, name: str) -> bool:
        """Whether a credential of this kind was made over the wire."""
        return (mechanism, name) in self._stored

    async def alter(self, puts: Iterable[tuple[str, Credential]], removals: Iterable[tuple[str, str]]) -> None:
        """Store (name, credential) pairs and drop (mechanism, name) pairs, all or none. Raises: LogError."""
        puts, removals = tuple(puts), tuple(removals)
        async with self._changing:
            await self._store.write(
                [
                    *((_key(mechanism, name), None) for mechanism, name in removals),
                    *((_key(item.mechanism, name), str(item).encode()) for name, item in puts),
                ]
            )
            for key in removals:
                self._stored.pop(key, None)
            self._stored.update({(item.mechanism, name): item for name, item in puts})

    async def _durable_secret(self, random: Callable[[int], bytes]) -> bytes:
        """Salts come from it, so that a name has the same one after a restart, whether a user has it or not."""
        found = await self._store.scan(SECRET)
        if found:
            return found[0][1]
        secret = random(32)
        await self._store.write([(SECRET, secret)])
        return secret


def _key(mechanism: str, name: str) -> bytes:
    return PREFIX + f"{mechanism}/{name}".encode()


def _hash_all(file: UsersFile, secret: bytes) -> dict[tuple[str, str], Credential]:
    made = {
        (mechanism, name): hashed(mechanism, password, salt=salt_for(secret, mechanism, name))
        for name, password in file.passwords.items()
        for mechanism in DIGESTS
    }
    return {**made, **file.hashed}
