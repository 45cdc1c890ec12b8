"""The common parts of the codecs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from flowshare.protocol.kafka import read_response

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from flowshare.protocol.declaration import Api

LEFT_OUT: Final = "the answer leaves out the partition"

Write = Callable[[int, str, Any, int], bytes]
"""Writes (correlation id, client id, plain request, version) -> frame with its length."""
Read = Callable[[bytes, Any, int], Any]
"""Reads (frame without its length, plain request, version) -> plain response."""
Codecs = dict[type[Any], tuple[Write | None, Read | None]]
"""Request class -> functions that are written by hand."""


@dataclass(frozen=True, slots=True)
class Codec:
    """Writes and reads one kind of request on the wire."""

    api: Api
    write: Write
    read: Read

    @property
    def versions(self) -> tuple[int, int]:
        """The lowest and highest version that this client speaks."""
        assert self.api.client is not None
        return self.api.client


def by_kio(name: str, decode: Callable[[Any, Any], Any]) -> Read:
    """Make a reader that passes (kio's response entity, plain request) to `decode`."""
    return lambda frame, request, version: decode(read_response(name, version, frame)[1], request)


def text(message: str | None) -> str | None:
    """Return a message, None if it is empty."""
    return message or None


def endpoints(nodes: Iterable[Any]) -> Mapping[int, tuple[str, int]]:
    """Return node id -> host and port, of kio's brokers or node endpoints."""
    return {int(node.node_id): (str(node.host), int(node.port)) for node in nodes}
