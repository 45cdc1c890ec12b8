"""Connections with TLS, accepted one by one: they count from their first byte on.

The loop's own servers report a connection only when its handshake is over. Until then nobody would count it, and a
client that opens many connections and sends nothing would use up the process's files.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from flowshare.forks import hold_alone

if TYPE_CHECKING:
    import socket
    import ssl
    from collections.abc import Callable

    from flowshare.agents.pages.site import PageConnection

logger = logging.getLogger("flowshare.pages")

AT_ONCE: Final = 32
"""Connections that are accepted in one turn of the loop."""
AGAIN_S: Final = 1.0
"""Seconds until the next try when none can be accepted, as the process may have no free files."""


class Handshakes:
    """Accepts on a listening socket, until `close`. make: a connection's protocol. limit_s: seconds for a handshake."""

    def __init__(
        self, listening: socket.socket, context: ssl.SSLContext, make: Callable[[], PageConnection], limit_s: float
    ) -> None:
        self._listening = listening
        self._context = context
        self._make = make
        self._limit_s = limit_s
        self._loop = asyncio.get_running_loop()
        self._again: asyncio.TimerHandle | None = None
        self._under_way: set[asyncio.Task[None]] = set()
        self._begin()

    def close(self) -> None:
        """Stop accepting; handshakes under way end. Harmless twice."""
        if self._again is not None:
            self._again.cancel()
        if self._listening.fileno() >= 0:
            self._loop.remove_reader(self._listening)
            self._listening.close()
        for task in tuple(self._under_way):
            task.cancel()

    def _begin(self) -> None:
        self._again = None
        self._loop.add_reader(self._listening, self._accept)

    def _accept(self) -> None:
        for _ in range(AT_ONCE):
            try:
                line, where = self._listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                logger.warning("a connection to the pages could not be accepted: %s", error)
                self._loop.remove_reader(self._listening)
                self._again = self._loop.call_later(AGAIN_S, self._begin)
                return
            hold_alone(line.fileno())
            line.setblocking(False)
            self._shake(line, where[0])

    def _shake(self, line: socket.socket, address: str) -> None:
        connection = self._make()
        if not connection.enter(address):
            line.close()
            return
        task = self._loop.create_task(self._connect(connection, line), name="flowshare-pages-handshake")
        connection.handshake = task
        self._under_way.add(task)
        # Not in the task's own code: a task that is cancelled before its first step never runs.
        task.add_done_callback(lambda _: self._ended(task, connection, line))

    async def _connect(self, connection: PageConnection, line: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(
                lambda: connection, line, ssl=self._context, ssl_handshake_timeout=self._limit_s
            )
        except OSError as error:  # ssl.SSLError and time-outs among them
            logger.debug("a handshake with the pages failed: %s", error)

    def _ended(self, task: asyncio.Task[None], connection: PageConnection, line: socket.socket) -> None:
        self._under_way.discard(task)
        connection.handshake = None
        if not connection.connected:
            connection.leave()
            line.close()
