"""A broker by itself: storage, server, listener and rights, opened and closed in order."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from flowshare.core_errors import FlowshareError
from flowshare.server.edge.base import AdvertisedNode
from flowshare.server.security.guesses import is_loopback
from flowshare.server.settings import Settings

if TYPE_CHECKING:
    from flowshare.clock import Clock
    from flowshare.log.storage import BrokerStorage
    from flowshare.server.net.listener import Listener
    from flowshare.server.security.acl_store import AclStore
    from flowshare.server.security.acls import Acl
    from flowshare.server.security.sasl import Sasl
    from flowshare.server.security.tls import ServerTls
    from flowshare.server.security.users_file import UsersFile
    from flowshare.server.server import Server


WILDCARDS: Final = frozenset({"", "0.0.0.0", "::"})  # noqa: S104 - compared with, not bound to
"""Addresses to listen on that no client can connect to."""


class StandaloneError(FlowshareError):
    """A broker cannot be opened with these options; the text names a remedy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """An address to listen at, or that clients connect to."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> Address:
        """Parse `host:port`, an IPv6 host in brackets. Raises: StandaloneError."""
        host, colon, port = text.rpartition(":")
        if host.startswith("[") and host.endswith("]"):
            host = host[1:-1]
        elif ":" in host:
            colon = ""
        if not colon or not port.isascii() or not port.isdigit() or int(port) > 65_535:
            raise StandaloneError(f"{text!r} is no address; write host:port, for example 127.0.0.1:9092 or [::1]:9092")
        return cls(host=host, port=int(port))

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def loopback(self) -> bool:
        """True if only this machine can reach the address."""
        return is_loopback(self.host)


@dataclass(frozen=True, slots=True, kw_only=True)
class StandaloneOptions:
    """The options of a server that is to be opened.

    data: directory of the log and all state; None: in memory, nothing is kept.
    listen: the address to listen at; advertise: the address that clients are told, None: the same.
    settings: names and values of a server.properties, see `Settings`.
    mechanisms: SASL mechanisms by which users log in; None: SCRAM, and with TLS PLAIN.
    insecure: listen beyond this machine without TLS, logins and ACLs.
    """

    data: Path | None
    listen: Address
    advertise: Address | None = None
    settings: Mapping[str, str] = field(default_factory=dict[str, str])
    tls: ServerTls | None = None
    users_file: Path | None = None
    mechanisms: Collection[str] | None = None
    acl_file: Path | None = None
    super_users: Collection[str] = ()
    insecure: bool = False

    def check(self) -> None:
        """Refuse settings that open the server to others by mistake. Raises: StandaloneError."""
        if self.listen.host in WILDCARDS and self.advertise is None:
            raise StandaloneError(
                f"clients cannot connect to {self.listen}: name the address they are to use with --advertise host:port"
            )
        if self.super_users and self.acl_file is None:
            raise StandaloneError("--super-user goes with --acls: without ACLs everybody may do everything")
        if self.mechanisms is not None and self.users_file is None:
            raise StandaloneError("--sasl-mechanisms goes with --sasl-users: without users nobody logs in")
        self.offered()
        missing = self._missing()
        if missing and not self.insecure and not self.listen.loopback:
            raise StandaloneError(
                f"{self.listen} can be reached from other machines: add {', '.join(missing)}, or listen on 127.0.0.1, "
                "or say --insecure"
            )

    def offered(self) -> tuple[str, ...]:
        """Return the SASL mechanisms of the listener. Raises: StandaloneError."""
        from flowshare.server.security.sasl import UnknownMechanism, offered

        named = None if self.mechanisms is None else tuple(self.mechanisms)
        try:
            return offered(named, tls=self.tls is not None)
        except UnknownMechanism as error:
            raise StandaloneError(f"--sasl-mechanisms: {error}") from None

    def _missing(self) -> list[str]:
        certain = self.tls is not None and self.tls.client_certificates == "required"
        return [
            option
            for option, given in (
                ("TLS (--tls-cert)", self.tls is not None),
                ("logins (--sasl-users)", self.users_file is not None or certain),
                ("ACLs (--acls)", self.acl_file is not None),
            )
            if not given
        ]


class Standalone:
    """One broker, from `start` to `close`."""

    def __init__(self, options: StandaloneOptions, *, clock: Clock) -> None:
        """Check the options. Raises: StandaloneError, InvalidConfig."""
        options.check()
        self._options = options
        self._settings = Settings.parse(options.settings)
        self._clock = clock
        self._storage: BrokerStorage | None = None
        self._server: Server | None = None
        self._listener: Listener | None = None

    @property
    def address(self) -> Address:
        """The address that clients are told. Only after `start`."""
        assert self._listener is not None
        node = self._listener.node
        return Address(host=node.host, port=node.port)

    def stats(self) -> Mapping[str, Any]:
        """Return counters and gauges, see `Server.stats`; empty while the broker is closed."""
        return {} if self._server is None else self._server.stats()

    async def until_lost(self) -> str:
        """Wait until the directory is gone, or another process leads it, too; return the reason with a remedy."""
        from flowshare.log.embedded import EmbeddedStorage

        storage = self._storage
        if isinstance(storage, EmbeddedStorage):
            await storage.lost.wait()
            return storage.why_lost
        never: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        return await never

    async def start(self) -> None:
        """Open everything, the socket last.

        Raises: LogError (StorageHeld names the holder), ListenerError, BadTls, BadUsersFile, BadAclFile.
        """
        try:
            await self._start()
        except BaseException:
            await asyncio.shield(self.close())
            raise

    async def close(self) -> None:
        """Close the socket first, the storage last; harmless when the broker is closed."""
        listener, self._listener = self._listener, None
        server, self._server = self._server, None
        storage, self._storage = self._storage, None
        try:
            if server is not None:
                server.prepare_close()
            if listener is not None:
                await listener.close()
        finally:
            if storage is not None:
                storage.prepare_close()
            try:
                if server is not None:
                    await server.close()
            finally:
                if storage is not None:
                    await storage.close()

    async def _start(self) -> None:
        from flowshare.log.embedded import EmbeddedStorage
        from flowshare.log.memory import MemoryStorage
        from flowshare.server.net.listener import Listener
        from flowshare.server.security.acl_file import read_acls
        from flowshare.server.security.users_file import read_users
        from flowshare.server.server import Server, cluster_id

        options = self._options
        # First, so that a wrong file is found before anything is opened.
        tls = options.tls.context() if options.tls is not None else None
        users = read_users(options.users_file) if options.users_file is not None else None
        acls = read_acls(options.acl_file) if options.acl_file is not None else None
        storage: BrokerStorage
        if options.data is None:
            storage = MemoryStorage(self._clock)
        else:
            storage = await EmbeddedStorage.open(options.data, clock=self._clock)
        self._storage = storage
        server = self._server = Server(
            storage=storage,
            config=self._settings.server,
            clock=self._clock,
            classic=self._settings.classic,
            consumer=self._settings.consumer,
            transactions=self._settings.transactions,
        )
        await server.start()
        told = options.advertise or options.listen
        listener = Listener(
            server,
            node=AdvertisedNode(host=told.host, port=told.port, cluster_id=await cluster_id(storage)),
            clock=self._clock,
            limits=self._settings.limits,
            tls=tls,
            sasl=await open_sasl(users, storage, options.offered()),
            authorizer=await self._authorizer(acls, storage),
        )
        await listener.load()
        await listener.start(options.listen.host, options.listen.port)
        self._listener = listener
        if isinstance(storage, EmbeddedStorage):
            await storage.set_listener(str(self.address), alone=True)

    async def _authorizer(self, acls: tuple[Acl, ...] | None, storage: BrokerStorage) -> AclStore | None:
        if acls is None:
            return None
        from flowshare.server.security.acl_store import AclStore

        store = AclStore(storage, file=acls, super_users=self._options.super_users)
        await store.start()
        return store


async def open_sasl(file: UsersFile | None, storage: BrokerStorage, mechanisms: tuple[str, ...]) -> Sasl | None:
    """Return the logins of a file's and `storage`'s users; None without a file."""
    if file is None:
        return None
    from flowshare.server.security.sasl import Sasl
    from flowshare.server.security.users import Users

    users = Users(storage, file)
    await users.start(os.urandom)
    return Sasl(users, random=os.urandom, mechanisms=mechanisms)
