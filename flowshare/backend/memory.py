"""The memory backend does everything as on embedded, and keeps nothing. For tests and for trying things out."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from flowshare.backend.base import MEMORY, Backend, BackendError
from flowshare.clock import LoopClock

if TYPE_CHECKING:
    from flowshare.clock import Clock
    from flowshare.log.memory import MemoryStorage
    from flowshare.protocol.messages import Connection
    from flowshare.server.server import Server
    from flowshare.share.config import ServerConfig


class MemoryBackend(Backend):
    """A server in this process over a `MemoryStorage`."""

    kind = "memory"
    capabilities = MEMORY

    def __init__(self, *, clock: Clock | None = None, config: ServerConfig | None = None) -> None:
        """config: of the backend's server; None: as on an embedded path."""
        self._config = config
        self._clock = clock or LoopClock()
        self._storage: MemoryStorage | None = None
        self._server: Server | None = None

    async def start(self) -> None:
        """Open storage and server. Raises: BackendError when they are open already, LogError."""
        if self._server is not None:
            raise BackendError("the memory backend is open already")
        from flowshare.log.memory import MemoryStorage
        from flowshare.server.server import Server
        from flowshare.share.config import ServerConfig

        storage = MemoryStorage(self._clock)
        server = Server(storage=storage, config=self._config or ServerConfig.embedded(), clock=self._clock)
        try:
            await server.start()
        except BaseException:
            await asyncio.shield(storage.close())
            raise
        self._storage, self._server = storage, server

    async def close(self) -> None:
        """Close all connections, write what is queued, release the storage; harmless when it is not open."""
        server, self._server = self._server, None
        storage, self._storage = self._storage, None
        try:
            if server is not None:
                await server.close()
        finally:
            if storage is not None:
                await storage.close()

    async def connect(self, client_id: str) -> Connection:
        """Open a connection. Raises: BackendError before `start` and after `close`."""
        if self._server is None:
            raise BackendError("the memory backend is not open")
        return self._server.connect(client_id=client_id)

    def stats(self) -> Mapping[str, Any]:
        """Return counters and gauges, see `Server.stats`; empty when the backend is not open."""
        return {} if self._server is None else self._server.stats()
