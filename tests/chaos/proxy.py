"""A TCP proxy with faults, for what lies between a worker and a broker, or between two workers.

All proxies of a process share one event loop in a thread of their own (`Wires`); their faults are plain attributes and
calls from any thread. Nothing is rewritten: what advertises an address must advertise the proxy's.

    cut        all connections break, new ones are taken
    refuse     all connections break, new ones are closed at once until `mend`
    stall      bytes stay where they are, both ways, until `mend`: neither side hears of it
    delay_s    each piece of bytes is held for so long before it goes on
"""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from concurrent.futures import Future
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing import Self

PIECE = 1 << 16
HOST = "127.0.0.1"
RESET = struct.pack("ii", 1, 0)
"""SO_LINGER by which a close is a reset: what was under way is gone."""


class Wires:
    """The event loop of all proxies of this process; a context manager."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="wires", daemon=True)
        self.servers: list[asyncio.Server] = []

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.run(self._end()).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    def run(self, work: Any) -> Future[Any]:
        """Run a coroutine on the loop."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    async def _end(self) -> None:
        for server in self.servers:
            server.close()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.sleep(0)  # the transports' sockets are closed in the turn after

    def proxy(self, target: int = 0) -> Proxy:
        """A new proxy in front of a port of this machine, which may be named later."""
        made = Proxy(self, target)
        self.run(made.open()).result(10)
        return made


class Proxy:
    """One proxy. `port`: where it listens. `target`: the port that it leads to."""

    def __init__(self, wires: Wires, target: int) -> None:
        self._wires = wires
        self._lines: set[asyncio.Task[None]] = set()
        self._flows = asyncio.Event()
        self._flows.set()
        self.target = target
        self.port = 0
        self.refusing = False
        self.delay_s = 0.0
        self.broken = 0
        """Connections that a fault broke."""
        self.passed = 0
        """Bytes that went through."""

    async def open(self) -> None:
        """Listen; on the wires' loop."""
        server = await asyncio.start_server(self._serve, HOST, 0, backlog=128)
        self._wires.servers.append(server)
        self.port = server.sockets[0].getsockname()[1]

    @property
    def connections(self) -> int:
        """How many there are now."""
        return len(self._lines)

    def cut(self) -> None:
        """Break all connections; returns when that is done."""
        self._wires.run(self._cut()).result(10)

    def refuse(self) -> None:
        """Break all connections and take no new ones until `mend`."""
        self.refusing = True
        self.cut()

    def stall(self) -> None:
        """Let nothing pass until `mend`."""
        self._wires.run(self._call(self._flows.clear)).result(10)

    def mend(self) -> None:
        """No fault is in force any more."""
        self.refusing = False
        self.delay_s = 0.0
        self._wires.run(self._call(self._flows.set)).result(10)

    async def _call(self, what: Any) -> None:
        what()

    async def _cut(self) -> None:
        lines = list(self._lines)
        self.broken += len(lines)
        for line in lines:
            line.cancel()
        await asyncio.gather(*lines, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        line = asyncio.current_task()
        assert line is not None
        self._lines.add(line)
        ends = [writer]
        try:
            if self.refusing:
                return
            far_reader, far_writer = await asyncio.open_connection(HOST, self.target)
            ends.append(far_writer)
            ways = [
                asyncio.ensure_future(self._carry(reader, far_writer)),
                asyncio.ensure_future(self._carry(far_reader, writer)),
            ]
            try:
                await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for way in ways:
                    way.cancel()
                await asyncio.gather(*ways, return_exceptions=True)
        except (OSError, asyncio.CancelledError):
            return  # asyncio's server logs a handler that was cancelled
        finally:
            self._lines.discard(line)
            for end in ends:
                with suppress(OSError):  # it is closed already
                    end.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
                end.transport.abort()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        line = writer.get_extra_info("socket")
        line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while data := await reader.read(PIECE):
            if self.delay_s:
                await asyncio.sleep(self.delay_s)
            await self._flows.wait()
            writer.write(data)
            self.passed += len(data)
            await writer.drain()
