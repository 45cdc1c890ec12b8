"""How one API crosses the wire: which versions, and the way between its plain messages and bytes."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.kafka import write_request

if TYPE_CHECKING:
    from collections.abc import Iterable

    from flowshare.protocol.kafka import ApiKey

K = TypeVar("K")
V = TypeVar("V")

LEFT_OUT: Final = "the answer leaves out the partition"


def no_needs(request: Any) -> int:
    """Every version will do."""
    del request
    return 0


def no_wait(request: Any) -> int:
    """The server answers as soon as it can."""
    del request
    return 0


Write = Callable[[int, str, Any, int], bytes]
"""(correlation id, client id, plain request, version) -> frame with its length."""


Read = Callable[[bytes, Any], Any]
"""(frame without its length, plain request) -> plain response."""


def alone(read: Callable[[bytes], Any]) -> Read:
    """Read an answer that says by itself what it is about."""
    return lambda frame, _: read(frame)


def by_kio(encode: Callable[[Any, int], Any]) -> Write:
    """Write what `encode` makes of (plain request, version): kio's request entity."""

    def write(number: int, client_id: str, request: Any, version: int) -> bytes:
        return write_request(number, client_id, encode(request, version))

    return write


@dataclass(frozen=True, slots=True, kw_only=True)
class Codec:
    """One API.

    name: kio's module. lowest, highest: versions that work. write: makes the frame of a request. decode: (kio's
    response entity, plain request) -> plain response. read: in place of both. needs: the lowest version that can say
    what this request says. wait_ms: how long the server may sit on this request by its own wish.
    """

    key: ApiKey
    name: str
    lowest: int
    highest: int
    write: Write
    decode: Callable[[Any, Any], Any] | None = None
    read: Read | None = None
    needs: Callable[[Any], int] = no_needs
    wait_ms: Callable[[Any], int] = no_wait


def code(number: Any) -> ErrorCode:
    """The error of a response field; a number that is not known yet becomes UNKNOWN_SERVER_ERROR."""
    return ErrorCode.known(int(number))


def text(message: str | None) -> str | None:
    """A message, None when there is nothing in it."""
    return message or None


def timedelta_ms(milliseconds: int) -> datetime.timedelta:
    """What kio's writers take for an int32 of milliseconds."""
    return datetime.timedelta(milliseconds=milliseconds)


def whole_ms(duration: datetime.timedelta) -> int:
    """Milliseconds of what kio's readers gave."""
    return duration // datetime.timedelta(milliseconds=1)


def epoch_ms(when: datetime.datetime) -> int:
    """Milliseconds since 1970 of a time that kio read."""
    return whole_ms(when - datetime.datetime.fromtimestamp(0, datetime.UTC))


def endpoints(nodes: Iterable[Any]) -> dict[int, tuple[str, int]]:
    """Node id -> host and port, of kio's brokers or node endpoints."""
    return {int(node.node_id): (str(node.host), int(node.port)) for node in nodes}


def grouped(pairs: Iterable[tuple[K, V]]) -> dict[K, list[V]]:
    """Values by key, in the order of their first coming: Kafka lists partitions below their topic."""
    found: dict[K, list[V]] = {}
    for key, value in pairs:
        found.setdefault(key, []).append(value)
    return found
