"""A path that this process leads: storage, server and, if others may join, a listener on a loopback port."""

from __future__ import annotations

import asyncio
import importlib
import logging
from typing import TYPE_CHECKING, Any, Final

from flowshare.log.owner import Owner

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

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
        self, storage: EmbeddedStorage, server: Server, listener: Listener | None, address: str | None
    ) -> None:
        self.storage = storage
        self.server = server
        self.address = address
        self._listener = listener

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
    path: Path, *, clock: Clock, fsync: bool, settings: Settings, listen: bool, preferred: str | None
) -> Leading:
    """Take the path's lock, open and serve it.

    listen: let other processes join. preferred: `host:port` to listen on if it is free; else the port of a holder that
    was killed, else any. Raises: StorageHeld, LogError.
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
    listener = None
    address = None
    try:
        await server.start()
        if listen:
            ports = _ports(preferred, storage.owner_before)
            listener, address = await _listen(storage, server, clock, settings.limits, ports)
            await storage.set_listener(address)
    except BaseException:
        await asyncio.shield(Leading(storage, server, listener, address).close())
        raise
    return Leading(storage, server, listener, address)


async def _listen(
    storage: EmbeddedStorage, server: Server, clock: Clock, limits: ListenerLimits, ports: tuple[int, ...]
) -> tuple[Listener, str]:
    from flowshare.server.cluster import cluster_id
    from flowshare.server.edge.base import Node
    from flowshare.server.listener import Listener, ListenerError

    node = Node(host=LOOPBACK, port=0, cluster_id=await cluster_id(storage))
    for port in ports:
        listener = Listener(server, node=node, clock=clock, limits=limits)
        try:
            host, bound = await listener.start(LOOPBACK, port)
        except ListenerError as error:
            if port == ports[-1]:
                raise
            logger.warning("port %d of before is taken, another one is used: %s", port, error)
            continue
        return listener, f"{host}:{bound}"
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
