"""The embedded backend: one machine, no Kafka; log and state in a directory, the server in this process."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from flowshare.backend.base import Capabilities
from flowshare.backend.local import LocalBackend

if TYPE_CHECKING:
    import os

    from flowshare.backend.url import Kind
    from flowshare.clock import Clock
    from flowshare.log.base import Storage
    from flowshare.log.embedded import EmbeddedStorage
    from flowshare.share.config import ServerConfig


class EmbeddedBackend(LocalBackend):
    """A server over an `EmbeddedStorage` at `path`.

    What was confirmed survives the death of the process (`kill -9`); with `fsync` also a power cut, at the price of
    one disk flush a group of writes.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        clock: Clock | None = None,
        fsync: bool = False,
        server_config: ServerConfig | None = None,
    ) -> None:
        super().__init__(clock=clock, server_config=server_config)
        self.path = Path(path)
        self._fsync = fsync
        self._embedded: EmbeddedStorage | None = None

    @property
    def kind(self) -> Kind:
        """`embedded`."""
        return "embedded"

    @property
    def capabilities(self) -> Capabilities:
        """Everything."""
        return Capabilities(durable=True)

    async def _open(self) -> Storage:
        from flowshare.log.embedded import EmbeddedStorage

        self._embedded = await EmbeddedStorage.open(self.path, clock=self._clock, fsync=self._fsync)
        return self._embedded

    async def set_address(self, address: str) -> None:
        """Write the address into the path's `owner.json`, where `flowshare lag` and `inflight` find it."""
        if self._embedded is not None:
            await self._embedded.set_address(address)

    async def close(self) -> None:
        """Close all connections, write what is queued, let go of the path; harmless when it is not open."""
        self._embedded = None
        await super().close()
