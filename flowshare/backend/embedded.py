"""The embedded backend: one machine, no Kafka; log and state in a directory that several processes may share."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from flowshare.backend.base import BackendError, Capabilities
from flowshare.clock import LoopClock

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

    from flowshare.backend.leading import Leading
    from flowshare.backend.path import SharedPath
    from flowshare.backend.url import Kind
    from flowshare.clock import Clock
    from flowshare.protocol.messages import Connection
    from flowshare.share.config import ServerConfig


class EmbeddedBackend:
    """The share groups at `path`, led by this process or by another one that has the path.

    What was confirmed survives the death of the process (`kill -9`); with `fsync` also a power cut, at the price of
    one disk flush a group of writes. listen: let other processes join while this one leads.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        clock: Clock | None = None,
        fsync: bool = False,
        server_config: ServerConfig | None = None,
        listen: bool = True,
    ) -> None:
        self.path = Path(path)
        self._clock = clock or LoopClock()
        self._fsync = fsync
        self._config = server_config
        self._listen = listen
        self._shared: SharedPath | None = None

    @property
    def kind(self) -> Kind:
        """`embedded`."""
        return "embedded"

    @property
    def capabilities(self) -> Capabilities:
        """Everything."""
        return Capabilities(durable=True)

    @property
    def leading(self) -> bool:
        """Whether this process leads the path now."""
        return self._shared is not None and self._shared.leading is not None

    @property
    def bootstrap(self) -> str | None:
        """`host:port` where Kafka clients reach the leader of the path; None while it is not known."""
        return None if self._shared is None else self._shared.address

    async def start(self) -> None:
        """Lead the path, or join the process that does. Raises: BackendError, LogError."""
        from flowshare.backend.path import SharedPath

        if self._shared is not None:
            raise BackendError("the embedded backend is open already")
        shared = SharedPath(self.path, clock=self._clock, lead=self._lead)
        try:
            await shared.start()
        except BaseException:
            await shared.close()
            raise
        self._shared = shared

    async def close(self) -> None:
        """Close all connections, write what is queued, let go of the path; harmless when it is not open."""
        shared, self._shared = self._shared, None
        if shared is not None:
            await shared.close()

    async def connect(self, client_id: str) -> Connection:
        """A new connection to the leader. Raises: BackendError before `start` and after `close`, OSError."""
        if self._shared is None:
            raise BackendError("the embedded backend is not open")
        return await self._shared.connect(client_id)

    async def set_address(self, address: str) -> None:
        """Write the address into the path's `owner.json` if this process leads: `flowshare inflight` finds it there."""
        leading = None if self._shared is None else self._shared.leading
        if leading is not None:
            await leading.storage.set_address(address)

    def stats(self) -> Mapping[str, Any]:
        """Counters and gauges, see `Server.stats`; empty while another process leads."""
        leading = None if self._shared is None else self._shared.leading
        return {} if leading is None else leading.stats()

    async def _lead(self, preferred: str | None) -> Leading:
        from flowshare.backend.leading import lead
        from flowshare.share.config import ServerConfig

        return await lead(
            self.path,
            clock=self._clock,
            fsync=self._fsync,
            config=self._config or ServerConfig.embedded(),
            listen=self._listen,
            preferred=preferred,
        )
