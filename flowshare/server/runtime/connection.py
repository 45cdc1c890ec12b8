"""A connection within the process: requests are handed to the server's handlers as they are, no socket, no bytes."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar

from flowshare.server.parking import Ended

if TYPE_CHECKING:
    from flowshare.protocol.messages import Request
    from flowshare.server.parking import Waiter

logger = logging.getLogger(__name__)

R = TypeVar("R")

Handler = Callable[[Any, "InProcess"], Awaitable[Any]]
Handlers = dict[type[Any], Handler]
"""Request class -> what answers it. A handler accepts its request before its first await."""


class InProcess:
    """One connection; `protocol.messages.Connection` says what it promises."""

    def __init__(
        self, handlers: Handlers, *, client_id: str, host: str, on_close: Callable[[InProcess], Awaitable[None]]
    ) -> None:
        self.client_id = client_id
        self.host = host
        self.own = False
        """Whether flowshare's own client is at the other end: then its end means that its process is gone."""
        self.worker: int | None = None
        """Node id of the fleet's worker whose process is at the other end; None: none is, or it does not say."""
        self.closed = False
        self.party: Callable[[], str] | None = None
        """Who the peer counts as where something is divided among all; None: this process, which may have all."""
        self.may_read: Callable[[str], bool] | None = None
        """Whether the peer may read a topic at this moment, by its name; None: all topics."""
        self.may_share: Callable[[str], bool] | None = None
        """Whether the peer may read in a group at this moment, by its id; None: in all groups."""
        self._handlers = handlers
        self._on_close = on_close
        self._waiters: set[Waiter] = set()
        self._heard: list[Callable[[str], object]] = []

    def counts_as(self) -> str | None:
        """`party`, now."""
        return None if self.party is None else self.party()

    async def send(self, request: Request[R]) -> R:
        """Answer of the server. Raises ConnectionError when the connection is or gets closed."""
        if self.closed:
            raise ConnectionError("the connection is closed")
        handler = self._handlers[type(request)]
        try:
            answer: R = await handler(request, self)
        except Exception as error:
            logger.exception("request failed: %s client=%s", type(request).__name__, self.client_id)
            raise ConnectionError(f"the server failed at {type(request).__name__}; see its log") from error
        if self.closed:
            raise ConnectionError("the connection was closed before the answer")
        return answer

    async def close(self) -> None:
        """Close; the server releases what this connection's share sessions hold."""
        if self.closed:
            return
        self.closed = True
        for waiter in tuple(self._waiters):
            waiter.end(Ended.CONNECTION)
        for listener in self._heard:
            listener("the connection was closed")
        await self._on_close(self)

    def on_closed(self, listener: Callable[[str], object]) -> None:
        """Call `listener` with the reason when the connection ends, from whichever end."""
        self._heard.append(listener)

    def watch(self, waiter: Waiter) -> None:
        """End `waiter` when the connection closes."""
        self._waiters.add(waiter)

    def unwatch(self, waiter: Waiter) -> None:
        """Forget `waiter`."""
        self._waiters.discard(waiter)
