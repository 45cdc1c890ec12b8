"""The embedded backend: one machine, no Kafka; log and state in a directory that several processes may share."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flowshare.backend.base import BackendError, Capabilities, KafkaAddress
from flowshare.clock import LoopClock

if TYPE_CHECKING:
    import os
    from collections.abc import Collection, Mapping

    from flowshare.backend.leading import Leading
    from flowshare.backend.path import SharedPath
    from flowshare.backend.url import Kind
    from flowshare.backend.workers import Registration
    from flowshare.clock import Clock
    from flowshare.protocol.messages import Connection
    from flowshare.server.settings import Settings


class EmbeddedBackend:
    """The share groups at `path`, led by this process or by another one that has the path.

    What was confirmed survives the death of the process (`kill -9`); with `fsync` also a power cut, at the price of
    one disk flush a group of writes.
    settings: of the broker, while this process leads.
    listen: let other processes join while this one leads; without it they wait until it has ended.
    open_to_all: while this one leads, everybody on this machine may join and read and write; else this user's processes
    only, and who has the login in `client.properties` (`backend.path_login`).
    patience_s: how long others come first when nobody leads the path and a worker lives that could.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        clock: Clock | None = None,
        fsync: bool = False,
        settings: Settings | None = None,
        listen: bool = True,
        patience_s: float = 0.0,
        open_to_all: bool = False,
    ) -> None:
        self.path = Path(path)
        self._clock = clock or LoopClock()
        self._fsync = fsync
        self._settings = settings
        self._listen = listen
        self._patience_s = patience_s
        self._open_to_all = open_to_all
        self._registration: Registration | None = None
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

    @property
    def kafka(self) -> KafkaAddress | None:
        """The leader of the path, on the loopback interface; whoever leads next takes its port."""
        if self._shared is None or self._shared.address is None:
            return None
        return KafkaAddress(hosts=(self._shared.address,), security=self._shared.security)

    async def start(self) -> None:
        """Lead the path, or join the process that does. Raises: BackendError, LogError."""
        from flowshare.backend.path import SharedPath

        if self._shared is not None:
            raise BackendError("the embedded backend is open already")
        shared = SharedPath(self.path, clock=self._clock, lead=self._lead, patience_s=self._patience_s)
        try:
            await shared.start()
        except BaseException:
            await shared.close()
            raise
        self._shared = shared

    async def close(self) -> None:
        """Close all connections, write what is queued, let go of the path; harmless when it is not open."""
        registration, self._registration = self._registration, None
        if registration is not None:
            await asyncio.to_thread(registration.remove)
        shared, self._shared = self._shared, None
        if shared is not None:
            await shared.close()

    async def connect(self, client_id: str) -> Connection:
        """A new connection to the leader. Raises: BackendError before `start` and after `close`, OSError."""
        if self._shared is None:
            raise BackendError("the embedded backend is not open")
        return await self._shared.connect(client_id)

    async def check_groups(self, groups: Collection[str]) -> None:
        """Nothing: they have no other place."""

    async def set_address(self, address: str) -> None:
        """Make this worker known in the path, where `flowshare inflight` finds it. Raises: OSError."""
        from flowshare.backend.workers import Registration

        before, self._registration = self._registration, None
        if before is not None:
            await asyncio.to_thread(before.remove)
        now_ms = self._clock.now_ms()
        self._registration = await asyncio.to_thread(Registration, self.path, address=address, now_ms=now_ms)

    def stats(self) -> Mapping[str, Any]:
        """Counters and gauges, see `Server.stats`; empty while another process leads."""
        leading = None if self._shared is None else self._shared.leading
        return {} if leading is None else leading.stats()

    async def _lead(self, preferred: str | None) -> Leading:
        from flowshare.backend.leading import lead
        from flowshare.server.settings import Settings

        return await lead(
            self.path,
            clock=self._clock,
            fsync=self._fsync,
            settings=self._settings or Settings.parse({}),
            listen=self._listen,
            preferred=preferred,
            open_to_all=self._open_to_all,
        )
