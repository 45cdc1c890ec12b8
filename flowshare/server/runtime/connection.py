"""A connection within the process: requests go to the server's handlers as objects, without socket or bytes."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar, cast

from flowshare.server.runtime.failures import refusing
from flowshare.server.runtime.waiting import Ended

if TYPE_CHECKING:
    from flowshare.protocol.messages import Request
    from flowshare.protocol.messages.base import FinishedRequest
    from flowshare.server.runtime.waiting import Waiter

logger = logging.getLogger(__name__)

R = TypeVar("R")
F = TypeVar("F", bound=Callable[..., Awaitable[Any]])

IN_PROCESS: Final = "in-process"
"""Host of connections within the process."""

Handler = Callable[[Any, "InProcess"], Awaitable[Any]]
Handlers = dict[type[Any], Handler]
"""Request class -> its handler. A handler accepts its request before its first await."""


def handles(request: type[Any], refused: Callable[..., Any] | None = None) -> Callable[[F], F]:
    """Mark a family's method as the handler of these requests. refused: makes answers of `EXPECTED` errors
    (`refusal`)."""

    def mark(handler: F) -> F:
        answering = handler if refused is None else cast("F", refusing(refused)(handler))
        marks = vars(answering)
        marks["handles"] = (*marks.get("handles", ()), request)
        return answering

    return mark


class Family(Protocol):
    """Answers several kinds of requests."""

    def handlers(self) -> Handlers:
        """Return the handlers of this family, by the marks on its methods."""
        methods = vars(type(self)).items()
        return {one: getattr(self, name) for name, method in methods for one in getattr(method, "handles", ())}


class Table(dict[type[Any], Handler]):
    """All handlers of a server by class of request.

    later: makers of families that most processes never use, called one after the other until one has a handler.
    """

    def __init__(self, families: Iterable[Family], later: Iterable[Callable[[], Iterable[Family]]] = ()) -> None:
        super().__init__()
        self._later = deque(later)
        self._add(families)

    def __missing__(self, request: type[Any]) -> Handler:
        """Make later families until one handles it. Raises: KeyError."""
        while self._later and request not in self:
            self._add(self._later.popleft()())
        if request not in self:
            raise KeyError(request)
        return self[request]

    def _add(self, families: Iterable[Family]) -> None:
        for family in families:
            self.update(family.handlers())


class InProcess:
    """One connection; `protocol.messages.Connection` states its promises."""

    def __init__(
        self, handlers: Handlers, *, client_id: str, host: str, on_close: Callable[[InProcess], Awaitable[None]]
    ) -> None:
        self.is_flowshare = True
        self.keeps_time = False
        self.client_id = client_id
        self.host = host
        self.own = False
        """True if flowshare's own client is at the other end: if the connection ends, the client's process is gone."""
        self.worker: int | None = None
        """Node id of the fleet's worker whose process is at the other end; None: no worker, or not told."""
        self.process: tuple[int, int] | None = None
        """Number and birth of the process of this machine at the other end; None: no such process, or not told."""
        self.closed = False
        self.counts_as: Callable[[], str | None] = lambda: None
        """Returns the peer's name where limits are shared; None: this process, which may have all."""
        self.may_read: Callable[[str], bool] | None = None
        """Returns True if the peer may read the topic of this name now; None: it may read all topics."""
        self.may_describe: Callable[[str], bool] | None = None
        """Returns True if the peer may know of the topic of this name now; None: it may know of all topics."""
        self.may_share: Callable[[str], bool] | None = None
        """Returns True if the peer may read in the group of this id now; None: it may read in all groups."""
        self._handlers = handlers
        self._on_close = on_close
        self._waiters: set[Waiter] = set()
        self._heard: list[Callable[[str], object]] = []

    def answers(self, request: type[Any]) -> bool:
        """Return True if the server has a handler for requests of this class."""
        try:
            return self._handlers[request] is not None
        except KeyError:
            return False

    async def send(self, request: Request[R]) -> R:
        """Send a request and return the answer. Raises: ConnectionError when the connection is or gets closed, or the
        handler fails."""
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

    def begin(self, request: Request[Any], told: Callable[[FinishedRequest], object]) -> None:
        """Begin a request, as `Connection.begin`."""
        asyncio.ensure_future(self.send(request)).add_done_callback(told)

    async def close(self) -> None:
        """Close; the server releases the records of this connection's share sessions."""
        if self.closed:
            return
        self.closed = True
        for waiter in tuple(self._waiters):
            waiter.end(Ended.CONNECTION)
        for listener in self._heard:
            listener("the connection was closed")
        await self._on_close(self)

    def on_closed(self, listener: Callable[[str], object]) -> None:
        """Call `listener` with the reason when either end closes the connection."""
        self._heard.append(listener)

    def watch(self, waiter: Waiter) -> None:
        """End `waiter` when the connection closes, or at once if it is closed."""
        self._waiters.add(waiter)
        if self.closed:
            waiter.end(Ended.CONNECTION)

    def unwatch(self, waiter: Waiter) -> None:
        """Stop watching `waiter`."""
        self._waiters.discard(waiter)
