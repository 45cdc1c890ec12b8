"""The same server over TCP: every request of a step crosses a socket of the loopback, through flowshare's own client.

Server and client share one loop and one manual clock, which rules all waiting at both ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from flowshare.client.net.tcp import TcpConnection, open_tcp
from flowshare.client.settings import LinkSettings
from flowshare.client.wire import Codec
from flowshare.protocol.messages import Connection
from flowshare.protocol.messages.base import FinishedRequest
from flowshare.server.net.listener import Listener
from flowshare.server.server import Server
from tests.scenarios.language import Scenario
from tests.scenarios.server import ServerSubject
from tests.scenarios.sockets import CountingLoop, SocketClock
from tests.scenarios.world import World

NEVER_S = 1e6


class Wire:
    """A `TcpConnection` that also sends what only scenarios send: older versions of a request."""

    def __init__(self, connection: TcpConnection) -> None:
        self.connection = connection
        self.is_flowshare = connection.is_flowshare
        self.keeps_time = connection.keeps_time

    async def send(self, request: Any) -> Any:
        """Answer of the server."""
        if getattr(request, "version", 2) == 1:
            from flowshare.client.wire import codec_of

            return await self._in_version(codec_of(request), request, 1)
        return await self.connection.send(request)

    def begin(self, request: Any, told: Callable[[FinishedRequest], object]) -> None:
        """As `Connection.begin`."""
        asyncio.ensure_future(self.send(request)).add_done_callback(told)

    async def close(self) -> None:
        """Close the socket."""
        await self.connection.close()

    async def _in_version(self, codec: Codec, request: Any, version: int) -> Any:
        """Ask in this version, whether it can say all that the request says or not."""

        return await self.connection._pipeline.call(
            lambda number: codec.write(number, self.connection._client_id, request, version),
            lambda frame: codec.read(frame, request, version),
            name=codec.api.name,
            wait_s=NEVER_S,
        )


class TcpWorld(World):
    """A server behind a listener."""

    def __init__(self, scenario: Scenario) -> None:
        super().__init__(scenario, SocketClock())
        self.listener: Listener | None = None
        self.address = ("127.0.0.1", 0)
        self.starting = asyncio.Lock()

    async def start(self) -> Server:
        """The server, listening."""
        async with self.starting:
            server = await super().start()
            if self.listener is None:
                self.listener = Listener(server, clock=self.clock)
                self.address = await self.listener.start("127.0.0.1", 0)
        return server

    async def stop(self, *, crash: bool) -> None:
        """End the sockets, then the server."""
        if self.listener is not None and self.server is not None:
            self.seen.is_cut = crash
            self.persister.settle(good=True)
            self.server.prepare_close()
            await self.listener.close()
        self.listener = None
        await super().stop(crash=crash)

    async def connect(self, name: str) -> Connection:
        """A new socket. Time stands still for it, so that no answer is ever late."""
        await self.start()
        settings = LinkSettings(request_timeout=NEVER_S)
        return Wire(await open_tcp(*self.address, client_id=name, clock=self.clock, settings=settings))


class TcpSubject(ServerSubject):
    """Runs steps on a server over sockets."""

    new_loop = CountingLoop

    def __init__(self, scenario: Scenario) -> None:
        super().__init__(scenario, TcpWorld(scenario))
