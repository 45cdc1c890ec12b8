"""All users that can log in: those of a file, and those that were made over the wire and lie in the state store."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Final

from flowshare.log.base import StorageDamaged, StorageFull
from flowshare.protocol.scram import DIGESTS, ScramError, prepared
from flowshare.server.security.credentials import Credential, Shape, decoy, drawn, hashed, plain_shape, salt_for

if TYPE_CHECKING:
    from flowshare.log.base import StateStore
    from flowshare.server.security.users_file import UsersFile

PLAIN: Final = "PLAIN"
PREFIX: Final = b"x/user/"
SECRET: Final = b"x/secret"
STORED_MAX: Final = 10_000
"""Most credentials made over the wire."""
logger = logging.getLogger(__name__)


class Users:
    """Names and hashed passwords. A file's users cannot be changed over the wire and go before stored ones."""

    def __init__(self, store: StateStore, file: UsersFile | None = None) -> None:
        self._store = store
        self._file = file
        self._fixed: dict[tuple[str, str], Credential] = {}
        self._stored: dict[tuple[str, str], Credential] = {}
        self._secret = b""
        self._shapes: dict[str, Counter[Shape]] = {}
        """Counts of the shapes of each mechanism's credentials; under PLAIN: of those that PLAIN checks."""
        self._changing = asyncio.Lock()

    async def start(self, random: Callable[[int], bytes]) -> None:
        """Read the stored users and hash the file's passwords, in a thread: some milliseconds a user.

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
        self._look()

    def credential(self, mechanism: str, name: str) -> tuple[Credential, bool]:
        """Return a user's credential and True; for a name without one a decoy and False.

        A decoy looks like one of many (`credentials.drawn`): nothing tells it from a user's.
        """
        found = self._known(mechanism, name)
        return (found, True) if found is not None else (self._decoy(mechanism, name), False)

    def fix(self, name: str, credential: Credential) -> None:
        """Add a user of this process's own: not stored, and not changed over the wire."""
        self._fixed[credential.mechanism, name] = credential
        self._look()

    def password_fits(self, name: str, password: str) -> bool:
        """Return True if this is the user's password; takes as long if there is no such user. Blocks for
        milliseconds."""
        known = True
        credential = next((found for kind in DIGESTS if (found := self._known(kind, name)) is not None), None)
        if credential is None:
            credential, known = self._decoy(PLAIN, name), False
        try:
            password = prepared(password)
        except ScramError:
            known = False
        return credential.matches(password) and known

    def all(self) -> Mapping[str, tuple[Credential, ...]]:
        """Return credentials by name."""
        merged = {**self._stored, **self._fixed}
        names: dict[str, list[Credential]] = {}
        for (_, name), credential in merged.items():
            names.setdefault(name, []).append(credential)
        return {name: tuple(credentials) for name, credentials in names.items()}

    def fixed(self, name: str) -> bool:
        """Return True if a file fixes this user's password."""
        return any((mechanism, name) in self._fixed for mechanism in DIGESTS)

    @property
    def count(self) -> int:
        """Number of credentials made over the wire."""
        return len(self._stored)

    def stored(self, mechanism: str, name: str) -> bool:
        """Return True if a credential of this kind was made over the wire."""
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
            self._look()

    def _known(self, mechanism: str, name: str) -> Credential | None:
        key = (mechanism, name)
        return self._fixed.get(key) or self._stored.get(key)

    def _decoy(self, mechanism: str, name: str) -> Credential:
        shapes = self._shapes.get(mechanism)
        if shapes:
            return decoy(self._secret, name, drawn(self._secret, name, shapes))
        return decoy(self._secret, name, plain_shape(next(iter(DIGESTS)) if mechanism == PLAIN else mechanism))

    def _look(self) -> None:
        """Count the shapes of credentials anew; some milliseconds for the most that there can be."""
        shapes: dict[str, Counter[Shape]] = {kind: Counter() for kind in (*DIGESTS, PLAIN)}
        for credentials in self.all().values():
            by_kind = {credential.mechanism: credential for credential in credentials}
            for kind, credential in by_kind.items():
                shapes[kind][Shape.of(credential)] += 1
            first = next(by_kind[kind] for kind in DIGESTS if kind in by_kind)
            shapes[PLAIN][Shape.of(first)] += 1
        self._shapes = shapes

    async def _durable_secret(self, random: Callable[[int], bytes]) -> bytes:
        """Return the stored secret of the salts, so that a name has the same salt after a restart, user or not."""
        found = await self._store.scan(SECRET)
        if found:
            return found[0][1]
        secret = random(32)
        try:
            await self._store.write([(SECRET, secret)])
        except StorageFull as error:
            logger.warning("the secret of unknown users' salts is not kept, the next start has another: %s", error)
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
