"""`Link`: one connection that is opened again when it ends, used by the member, the producer and the admin client.

A link never sends a request twice: one that may have reached the server fails with `ConnectionLost`, one that never
left with `NotConnected`, and the caller decides. Opening is tried for as long as a caller may want it, with a pause
between tries that doubles up to a bound and is spread between clients by their names.
"""

from __future__ import annotations

import asyncio
import logging
import zlib
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final, TypeVar

from flowshare.client.errors import Closed, ConnectionLost, NotConnected
from flowshare.client.net.routing import ClusterConnection
from flowshare.tasks import cancelled

if TYPE_CHECKING:
    from flowshare.client.settings import LinkSettings
    from flowshare.clock import Clock
    from flowshare.protocol.messages import Connection, Request

R = TypeVar("R")
Connect = Callable[[], Awaitable["Connection"]]
"""Opens a new connection, in process or a socket. Raises OSError (such as ConnectionError) on failure."""
SPREAD: Final = 0.3
"""The largest part of a pause that a client leaves out, by its name."""
REMINDER: Final = 16
"""The number of failures in a row after which an outage is logged again."""

logger = logging.getLogger(__name__)


class Link:
    """Keeps one connection; `generation` counts the lost ones."""

    def __init__(
        self,
        connect: Connect,
        *,
        clock: Clock,
        settings: LinkSettings,
        name: str,
        on_lost: Callable[[], object] | None = None,
        on_open: Callable[[Connection], object] | None = None,
    ) -> None:
        """on_open: called with each new connection before any other use."""
        self._connect = connect
        self._clock = clock
        self._settings = settings
        self._name = name
        self._on_lost = on_lost
        self._on_open = on_open
        self._spread = zlib.crc32(name.encode()) / 0xFFFFFFFF
        self._opening: asyncio.Task[Connection] | None = None
        self._failures = 0
        self._closed = False
        self.current: Connection | None = None
        self.generation = 0
        self.trouble: str | None = None

    def pause_s(self, failures: int) -> float:
        """Return the pause, in seconds, after so many failures in a row: spread between clients."""
        return self._settings.backoff.after(failures) * (1 - SPREAD * self._spread)

    async def connection(self, timeout_s: float | None = None) -> Connection:
        """Return the connection, opened if needed, within `timeout_s` (default: the settings' connect_timeout).

        Raises: NotConnected, Closed; errors of `connect` that are no OSError.
        """
        if self._closed:
            raise Closed(f"{self._name} is closed")
        if self.current is not None:
            return self.current
        limit_s = self._settings.connect_timeout if timeout_s is None else timeout_s
        opening = self._open_soon()
        try:
            return await self._clock.wait_for(asyncio.shield(opening), limit_s)
        except TimeoutError:
            raise NotConnected(f"{self._name}: no connection within {limit_s:g} s: {self.trouble}") from None
        except asyncio.CancelledError:
            waiting = asyncio.current_task()
            if waiting is not None and waiting.cancelling():  # it is the caller who was cancelled
                raise
            if self._closed:
                raise Closed(f"{self._name} is closed") from None
            if opening is not self._opening and opening.cancelled():
                raise NotConnected(f"{self._name}: nobody needs it any longer") from None
            raise

    def open(self) -> asyncio.Task[Connection] | None:
        """Begin to open a connection, without waiting: return the task; None: it is under way or done."""
        if self._closed or self.current is not None or self._opening is not None:
            return None
        return self._open_soon()

    def _open_soon(self) -> asyncio.Task[Connection]:
        if self._opening is None:
            self._opening = asyncio.create_task(self._open(), name=f"{self._name}: connect")
        return self._opening

    async def send(self, request: Request[R], *, wait_s: float = 0.0, connect_timeout: float | None = None) -> R:
        """Send a request and return the server's answer. wait_s: seconds that the request itself may wait there.

        Raises: NotConnected, ConnectionLost, Closed.
        """
        connection = await self.connection(connect_timeout)
        return await self.send_on(connection, request, wait_s=wait_s)

    async def send_on(self, connection: Connection, request: Request[R], *, wait_s: float = 0.0) -> R:
        """Send as `send`, over this connection, at once, before the first await. Raises: ConnectionLost, NotConnected
        (a cluster's only: one of its brokers is not reached)."""
        limit_s = self._settings.request_timeout + wait_s
        sending = connection.send(request)
        try:
            answer = await (sending if connection.keeps_time else self._clock.wait_for(sending, limit_s))
        except TimeoutError:
            await self._drop(connection, f"no answer to {type(request).__name__} within {limit_s:g} s")
            raise ConnectionLost(f"{self._name}: {self.trouble}") from None
        except OSError as error:
            if isinstance(error, NotConnected) and isinstance(connection, ClusterConnection):
                self.trouble = str(error)
                raise  # requests under way to the other brokers go on
            await self._drop(connection, str(error) or type(error).__name__)
            raise ConnectionLost(f"{self._name}: the connection ended: {error}") from error
        self._failures = 0
        self.trouble = None
        return answer

    def heard(self) -> None:
        """Reset the count of failures: an answer came over the connection."""
        self._failures = 0

    def rest(self) -> None:
        """Stop trying to open the connection, until a caller needs it again."""
        opening, self._opening = self._opening, None
        self._failures = 0
        if opening is not None:
            opening.cancel()

    def lost(self, connection: Connection, reason: str) -> None:
        """Take in that a connection has ended by itself; ignored if it is not this link's any more."""
        if self.current is not connection:
            return
        self.current = None
        self.generation += 1
        self._failures += 1
        self.trouble = reason
        logger.log(self._level(), "%s lost its connection: %s", self._name, reason)
        if self._on_lost is not None:
            self._on_lost()

    async def close(self) -> None:
        """Close the connection and stop opening a new one."""
        self._closed = True
        await cancelled(self._opening)
        connection, self.current = self.current, None
        if connection is not None:
            await connection.close()

    async def _open(self) -> Connection:
        try:
            while True:
                await self._clock.sleep(self.pause_s(self._failures))
                try:
                    connection = await self._connect()
                except OSError as error:
                    self._failures += 1
                    self.trouble = str(error) or type(error).__name__
                    logger.log(self._level(), "%s cannot connect, try %d: %s", self._name, self._failures, self.trouble)
                    continue
                self.current = connection
                self.trouble = None
                if self._on_open is not None:
                    self._on_open(connection)
                return connection
        finally:
            if self._opening is asyncio.current_task():
                self._opening = None

    def _level(self) -> int:
        """Return the log level of a failure: WARNING for the first, and again each time the number of tries has
        doubled."""
        failures = self._failures
        again = failures >= REMINDER and failures.bit_count() == 1
        return logging.WARNING if failures == 1 or again else logging.DEBUG

    async def _drop(self, connection: Connection, reason: str) -> None:
        """Forget a connection that cannot be used any more, once, and close it; requests that wait for an answer over
        it get ConnectionLost."""
        if self.current is not connection:
            return
        self.lost(connection, reason)
        try:
            await connection.close()
        except OSError as error:
            logger.debug("%s: closing the lost connection: %s", self._name, error)
