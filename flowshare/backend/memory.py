"""The memory backend: everything as on embedded, nothing kept. For tests and for trying things out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flowshare.backend.base import Capabilities
from flowshare.backend.local import LocalBackend

if TYPE_CHECKING:
    from flowshare.backend.url import Kind
    from flowshare.clock import Clock
    from flowshare.log.base import Storage
    from flowshare.share.config import ServerConfig


class MemoryBackend(LocalBackend):
    """A server over a `MemoryStorage`. `storage`: one that outlives this backend, for tests of a restart."""

    def __init__(
        self,
        *,
        clock: Clock | None = None,
        server_config: ServerConfig | None = None,
        storage: Storage | None = None,
    ) -> None:
        super().__init__(clock=clock, server_config=server_config)
        self._given = storage

    @property
    def kind(self) -> Kind:
        """`memory`."""
        return "memory"

    @property
    def capabilities(self) -> Capabilities:
        """All but durability."""
        return Capabilities(durable=False)

    @property
    def kafka(self) -> None:
        """Nowhere: it has no address."""

    async def set_address(self, address: str) -> None:
        """Nothing: other processes cannot reach what is in this one's memory."""

    async def _open(self) -> Storage:
        from flowshare.log.memory import MemoryStorage

        return self._given or MemoryStorage(self._clock)

    async def _let_go(self, storage: Storage) -> None:
        if storage is not self._given:
            await storage.close()
