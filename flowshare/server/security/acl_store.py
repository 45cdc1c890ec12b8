"""The authorizer of a listener: super users, a file's bindings, and durable ones made over the wire."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

import orjson

from flowshare.log.base import StorageDamaged
from flowshare.protocol.rights import Operation, ResourceType
from flowshare.server.security.acls import Acl, Acls

if TYPE_CHECKING:
    from flowshare.log.base import StateStore

PREFIX: Final = b"x/acl/"
STORED_MAX: Final = 100_000
"""Most bindings made over the wire."""


class TooManyAcls(Exception):
    """The bindings would be more than `STORED_MAX`."""


class AclStore(Acls):
    """Decides by super users and all bindings. A file's bindings cannot be removed over the wire."""

    def __init__(self, store: StateStore, *, file: Iterable[Acl] = (), super_users: Collection[str] = ()) -> None:
        self._store = store
        self._super_users = frozenset(super_users)
        self._file = frozenset(file)
        self._stored: set[Acl] = set()
        self._changing = asyncio.Lock()
        super().__init__(self._file)

    async def start(self) -> None:
        """Read the stored bindings.

        Raises: LogError (StorageDamaged: a binding cannot be read; leaving it out could permit what it denies).
        """
        for key, _ in await self._store.scan(PREFIX):
            try:
                acl = _decode(key)
            except (ValueError, TypeError) as error:
                raise StorageDamaged(f"a stored ACL cannot be read ({key!r}): {error}") from error
            self._stored.add(acl)
            self.add(acl)

    def allowed(self, principal: str, host: str, operation: Operation, resource: ResourceType, name: str) -> bool:
        """Return True if the bindings permit `operation`, or `principal` is a super user."""
        return principal in self._super_users or super().allowed(principal, host, operation, resource, name)

    def allowed_somewhere(self, principal: str, host: str, operation: Operation, resource: ResourceType) -> bool:
        """Return True if `operation` is permitted on some resource of this kind, or `principal` is a super user."""
        return principal in self._super_users or super().allowed_somewhere(principal, host, operation, resource)

    def from_file(self, acl: Acl) -> bool:
        """Return True if the file has this binding."""
        return acl in self._file

    async def create(self, acls: Sequence[Acl]) -> None:
        """Store bindings, all or none; present ones stay. Raises: TooManyAcls, LogError."""
        async with self._changing:
            new = {acl for acl in acls if acl not in self}
            if len(self._stored) + len(new) > STORED_MAX:
                raise TooManyAcls(f"there would be more than {STORED_MAX} ACLs; delete some first")
            await self._store.write([(_encode(acl), b"") for acl in new])
            self._stored |= new
            for acl in new:
                self.add(acl)

    async def delete(self, acls: Collection[Acl]) -> None:
        """Remove stored bindings, all or none; the file's stay. Raises: LogError."""
        async with self._changing:
            gone = self._stored.intersection(acls)
            await self._store.write([(_encode(acl), None) for acl in gone])
            self._stored -= gone
            for acl in gone - self._file:
                self.remove(acl)


def _encode(acl: Acl) -> bytes:
    """Return a binding's key, which is the whole binding; the value is empty."""
    parts = [acl.resource, acl.name, acl.prefixed, acl.principal, acl.host, acl.operation, acl.allow]
    return PREFIX + orjson.dumps(parts)


def _decode(key: bytes) -> Acl:
    parts: list[Any] = orjson.loads(key[len(PREFIX) :])
    resource, name, prefixed, principal, host, operation, allow = parts
    return Acl(
        principal=str(principal),
        operation=Operation(operation),
        resource=ResourceType(resource),
        name=str(name),
        prefixed=bool(prefixed),
        host=str(host),
        allow=bool(allow),
    )
