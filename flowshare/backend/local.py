"""What embedded and memory share: a server in this process over a storage that is opened at the start."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from flowshare.backend.base import BackendError, Capabilities
from flowshare.clock import LoopClock

if TYPE_CHECKING:
    from flowshare.backend.url import Kind
    from flowshare.clock import Clock
    from flowshare.log.base import Storage
    from flowshare.protocol.messages import Connection
    from flowshare.server.server import Server
    from flowshare.share.config import ServerConfig


class LocalBackend(ABC):
    """A server in this process; what it runs on is the subclass's business."""

    def __init__(self, *, clock: Clock | None = None, server_config: ServerConfig | None = None) -> None:
        self._clock = clock or LoopClock()
        self._config = server_config
        self._storage: Storage | None = None
        self._server: Server | None = None

    @property
    @abstractmethod
    def kind(self) -> Kind:
        """Which backend it is: the scheme of its URL."""

    @property
    @abstractmethod
    def capabilities(self) -> Capabilities:
        """What it can do."""

    @abstractmethod
    async def _open(self) -> Storage:
        """The storage, opened."""

    async def _let_go(self, storage: Storage) -> None:
        """Close what `_open` opened."""
        await storage.close()

    async def start(self) -> None:
        """Open storage and server. Raises: BackendError when it is open, LogError."""
        if self._server is not None:
            raise BackendError(f"the {self.kind} backend is open already")
        from flowshare.server.server import Server
        from flowshare.share.config import ServerConfig

        storage = await self._open()
        server = Server(storage=storage, config=self._config or ServerConfig.embedded(), clock=self._clock)
        try:
            await server.start()
        except BaseException:
            await asyncio.shield(self._let_go(storage))
            raise
        self._storage, self._server = storage, server

    async def close(self) -> None:
        """Close all connections, write what is queued, let go of the storage; harmless when it is not open."""
        server, self._server = self._server, None
        storage, self._storage = self._storage, None
        try:
            if server is not None:
                await server.close()
        finally:
            if storage is not None:
                await self._let_go(storage)

    async def connect(self, client_id: str) -> Connection:
        """A new connection. Raises: BackendError before `start` and after `close`."""
        if self._server is None:
            raise BackendError(f"the {self.kind} backend is not open")
        return self._server.connect(client_id=client_id)

    async def check_groups(self, groups: Collection[str]) -> None:
        """They have no other place."""
        del groups

    @abstractmethod
    async def set_address(self, address: str) -> None:
        """Make known to other processes where this one's health pages answer (`host:port`), where that is possible."""

    def stats(self) -> Mapping[str, Any]:
        """Counters and gauges, see `Server.stats`; empty when it is not open."""
        return {} if self._server is None else self._server.stats()
