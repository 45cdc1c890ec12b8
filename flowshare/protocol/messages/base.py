"""Base classes of requests and responses, and the connection that requests go over."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Generic, NamedTuple, Protocol, TypeVar

from flowshare.protocol.declaration import Api
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.private import OwnCall

NOT_ASKED: Final = -(2**31)
"""The value of authorized operations that were not asked for, or are not reported."""

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)


class FinishedRequest(Protocol):
    """A request that is done, with an answer or an error; a finished future is one."""

    def result(self) -> Any:
        """Return the answer. Raises: the error for which there is none."""


class Request(Generic[R_co]):
    """Base of all requests; the parameter is the response's class."""

    __slots__ = ()
    api: ClassVar[Api | None] = None
    """The API of the request; None: the request is flowshare's own, or used within a process only."""
    own: ClassVar[OwnCall | None] = None
    """The request as one of flowshare's own calls; None: it is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Response:
    """Base of answers about a request, or about one thing of many: done, or the error."""

    error: ErrorCode = ErrorCode.NONE
    message: str | None = None


class Connection(Protocol):
    """One connection to a server: in process, or a socket. Share sessions end with it.

    Requests may overlap; they are accepted in the order of the calls to `send` (before the first await).
    """

    @property
    def is_flowshare(self) -> bool:
        """True if the other end is one of flowshare's own servers: such a server takes acknowledgements beside a parked
        fetch, and the next leader knows which records its members hold."""
        ...

    @property
    def keeps_time(self) -> bool:
        """True if the connection ends by itself when an answer is overdue: then no request needs its own timer."""
        ...

    async def send(self, request: Request[R]) -> R:
        """Send a request and return the server's answer. Raises ConnectionError when the connection is or gets
        closed."""
        ...

    def begin(self, request: Request[Any], told: Callable[[FinishedRequest], object]) -> None:
        """Send as `send`, without waiting: accepted in the order of these calls; `told` is called once."""

    async def close(self) -> None:
        """Close; the server releases the records held by this connection's share sessions."""


class TopicPartition(NamedTuple):
    """A topic's id and one of its partitions."""

    topic_id: uuid.UUID
    partition: int
