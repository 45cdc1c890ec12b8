"""The same server over TCP: every request of a step crosses a socket of the loopback, through flowshare's own client.

Server and client share one loop and one manual clock, which rules all waiting at both ends.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

from flowshare.client.settings import LinkSettings
from flowshare.client.tcp import TcpConnection, open_tcp
from flowshare.client.wire import Codec
from flowshare.protocol.kafka import read_response
from flowshare.protocol.messages import Connection
from flowshare.server.listener import Listener
from flowshare.server.server import Server
from tests.scenarios import transaction_codecs
from tests.scenarios.language import Scenario
from tests.scenarios.server import ServerSubject
from tests.scenarios.sockets import CountingLoop, SocketClock
from tests.scenarios.world import World

NEVER_S = 1e6


class Wire:
    """A `TcpConnection` that also sends what only scenarios send: older versions of a request, transactions."""

    def __init__(self, connection: TcpConnection) -> None:
        self.connection = connection

    async def send(self, request: Any) -> Any:
        """Answer of the server."""
        codec = transaction_codecs.CODECS.get(type(request))
        if codec is not None:
            return await self._in_version(codec, request, codec.highest)
        if getattr(request, "version", 2) == 1:
            from flowshare.client.wire import codec_of

            return await self._in_version(codec_of(request), request, 1)
        return await self.connection.send(request)

    async def close(self) -> None:
        """Close the socket."""
        await self.connection.close()

    async def _in_version(self, codec: Codec, request: Any, version: int) -> Any:
        """Ask in this version, whether it can say all that the request says or not."""

        def read(frame: bytes) -> Any:
            return codec.decode(read_response(codec.name, version, frame)[1], request)

        write = partial(_write, codec, self.connection._client_id, request, version)
        return await self.connection._pipeline.call(write, read, name=codec.name, wait_s=NEVER_S)


def _write(codec: Codec, client_id: str, request: Any, version: int, number: int) -> bytes:
    return codec.write(number, client_id, request, version)


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
        settings = LinkSettings(request_timeout_s=NEVER_S)
        return Wire(await open_tcp(*self.address, client_id=name, clock=self.clock, settings=settings))


class TcpSubject(ServerSubject):
    """Runs steps on a server over sockets."""

    new_loop = CountingLoop

    def __init__(self, scenario: Scenario) -> None:
        super().__init__(scenario, TcpWorld(scenario))
