"""A path that this process leads: storage, server and, if others may join, a listener on a loopback port."""

from __future__ import annotations

import asyncio
import importlib
import logging
import secrets
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from flowshare.log.base import StorageError
from flowshare.log.owner import Owner

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from flowshare.backend.path_login import Door
    from flowshare.client.security import Security
    from flowshare.clock import Clock
    from flowshare.log.embedded import EmbeddedStorage
    from flowshare.protocol.messages import Connection
    from flowshare.server.limits import ListenerLimits
    from flowshare.server.listener import Listener
    from flowshare.server.server import Server
    from flowshare.server.settings import Settings

logger = logging.getLogger(__name__)

LOOPBACK: Final = "127.0.0.1"


class Leading:
    """An opened path. Made by `lead`."""

    def __init__(
        self,
        storage: EmbeddedStorage,
        server: Server,
        listener: Listener | None = None,
        address: str | None = None,
        security: Security | None = None,
    ) -> None:
        self.storage = storage
        self.server = server
        self.address = address
        self.security = security
        """How this user's processes log in at the address; None: nobody has to."""
        self._listener = listener

    @property
    def lost(self) -> asyncio.Event:
        """Set when another process leads the path, too, because its file system keeps no locks."""
        return self.storage.lost

    def connect(self, client_id: str) -> Connection:
        """A connection within this process."""
        return self.server.connect(client_id=client_id)

    def stats(self) -> Mapping[str, Any]:
        """Counters and gauges, see `Server.stats`."""
        return self.server.stats()

    async def close(self) -> None:
        """Hand over in order: members elsewhere keep what they hold, then the lock is let go."""
        self.server.prepare_close()
        try:
            if self._listener is not None:
                await self._listener.close()
        finally:
            try:
                await self.server.close()
            finally:
                await self.storage.close()


async def lead(
    path: Path,
    *,
    clock: Clock,
    fsync: bool,
    settings: Settings,
    listen: bool,
    preferred: str | None,
    open_to_all: bool = False,
) -> Leading:
    """Take the path's lock, open and serve it.

    listen: let other processes join. open_to_all: everybody on this machine, without a login. preferred: `host:port`
    to listen on if it is free; else the port of a holder that was killed, else any. Raises: StorageHeld, LogError.
    """
    await asyncio.to_thread(_import, listen=listen)  # this loop may have timers to keep
    from flowshare.log.embedded import EmbeddedStorage
    from flowshare.server.server import Server

    storage = await EmbeddedStorage.open(path, clock=clock, fsync=fsync)
    server = Server(
        storage=storage,
        config=settings.server,
        clock=clock,
        classic=settings.classic,
        transactions=settings.transactions,
    )
    leading = Leading(storage, server)
    try:
        await server.start()
        if listen:
            door = None if open_to_all else await _door(storage, clock)
            ports = _ports(preferred, storage.owner_before)
            leading = await _listen(storage, server, clock, settings.limits, ports, door)
            await storage.set_listener(leading.address, secret=door is not None)
    except BaseException as error:
        await asyncio.shield(leading.close())
        if isinstance(error, OSError):
            raise StorageError(f"{path} cannot be used as a storage: {error}") from error
        raise
    return leading


async def _door(storage: EmbeddedStorage, clock: Clock) -> Door:
    from flowshare.backend.path_login import make_logins, open_door

    logins = await asyncio.to_thread(make_logins, storage.folder, secrets.token_urlsafe)
    return await open_door(logins, clock)


async def _listen(
    storage: EmbeddedStorage,
    server: Server,
    clock: Clock,
    limits: ListenerLimits,
    ports: tuple[int, ...],
    door: Door | None,
) -> Leading:
    from flowshare.server.cluster import cluster_id
    from flowshare.server.edge.base import Node
    from flowshare.server.listener import Listener, ListenerError

    # A path's logins change only while nobody leads it, and aiokafka, Faust's client, cannot log in again (KIP-368).
    limits = replace(limits, reauth_max_ms=None)
    node = Node(host=LOOPBACK, port=0, cluster_id=await cluster_id(storage))
    for port in ports:
        listener = Listener(server, node=node, clock=clock, limits=limits, sasl=None if door is None else door.sasl())
        try:
            host, bound = await listener.start(LOOPBACK, port)
        except ListenerError as error:
            if port == ports[-1]:
                raise
            logger.warning("port %d of before is taken, another one is used: %s", port, error)
            continue
        # Nobody was let in yet: sockets are accepted when this loop goes on.
        address = f"{host}:{bound}"
        return Leading(storage, server, listener, address, None if door is None else door.bound(address))
    raise AssertionError("the last port is any free one")


def _ports(preferred: str | None, before: Owner | None) -> tuple[int, ...]:
    """Ports to try: that of before, then any."""
    known = preferred or (before.listener if before is not None else None)
    return (int(known.rpartition(":")[2]), 0) if known else (0,)


def _import(*, listen: bool) -> None:
    importlib.import_module("flowshare.log.embedded")
    importlib.import_module("flowshare.server.server")
    if listen:
        importlib.import_module("flowshare.server.listener")
