"""What every request is, and the connection it goes over."""

from __future__ import annotations

import uuid
from typing import Generic, NamedTuple, Protocol, TypeVar

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)


class Request(Generic[R_co]):
    """Base of all requests; the parameter is the response's class."""

    __slots__ = ()


class Connection(Protocol):
    """One connection to a server: in process, or a socket. Share sessions end with it.

    Requests may overlap; each is accepted in the order of the calls to `send` (before the first await).
    """

    async def send(self, request: Request[R]) -> R:
        """Answer of the server. Raises ConnectionError when the connection is or gets closed."""
        ...

    async def close(self) -> None:
        """Close; the server releases what this connection's share sessions hold."""


class TopicPartition(NamedTuple):
    """A topic's id and one of its partitions."""

    topic_id: uuid.UUID
    partition: int
