"""What every request is, and the connection it goes over."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, NamedTuple, Protocol, TypeVar

from flowshare.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from flowshare.protocol.declaration import Api, Route

NOT_ASKED: Final = -(2**31)
"""Authorized operations that were not asked for, or are not told."""

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)


class FinishedRequest(Protocol):
    """What became of a request; a future that is done is one."""

    def result(self) -> Any:
        """The answer. Raises: why there is none."""


class Request(Generic[R_co]):
    """Base of all requests; the parameter is the response's class."""

    __slots__ = ()
    api: ClassVar[Api | None] = None
    """The API that it asks; None: it is flowshare's own, or asked within a process only."""
    route: ClassVar[Route | None] = None
    """Where it goes where it has no API; None: anywhere."""
    call: ClassVar[str | None] = None
    """Under which name it crosses a socket as one of flowshare's own calls (`protocol.cooperative_codec`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Response:
    """Base of what is answered about a request, or about one thing of many: whether it was done, or why not."""

    error: ErrorCode = ErrorCode.NONE
    message: str | None = None


class Connection(Protocol):
    """One connection to a server: in process, or a socket. Share sessions end with it.

    Requests may overlap; each is accepted in the order of the calls to `send` (before the first await).
    """

    @property
    def is_flowshare(self) -> bool:
        """Whether one of flowshare's own servers is at the other end: it takes acknowledgements beside a parked fetch,
        and the one that leads after it knows what its members hold."""
        ...

    @property
    def keeps_time(self) -> bool:
        """Whether it ends by itself when an answer is overdue: then nobody else needs a timer for each request."""
        ...

    async def send(self, request: Request[R]) -> R:
        """Answer of the server. Raises ConnectionError when the connection is or gets closed."""
        ...

    def begin(self, request: Request[Any], told: Callable[[FinishedRequest], object]) -> None:
        """As `send`, for who does not wait: accepted in the order of these calls; `told` is called once."""

    async def close(self) -> None:
        """Close; the server releases what this connection's share sessions hold."""


class TopicPartition(NamedTuple):
    """A topic's id and one of its partitions."""

    topic_id: uuid.UUID
    partition: int
