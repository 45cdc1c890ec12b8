"""An API as a socket needs it, and one request's place among the others of its socket."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from flowshare.protocol.kafka import (
    REQUEST_PARTS_MAX,
    RequestStart,
    read_request,
    request_body,
    write_response,
)

if TYPE_CHECKING:
    from flowshare.server.answers import Room
    from flowshare.server.edge.base import Answer, Api


@dataclass(frozen=True, slots=True)
class Route:
    """How requests of one API are read, answered and written."""

    name: str
    lowest: int
    highest: int
    answer: Answer
    decode: Callable[..., tuple[str | None, Any]]
    """(start, frame, parts_max=REQUEST_PARTS_MAX) -> client id and request. Raises: as `read_request`."""
    encode: Callable[[int, int, Any], bytes]

    @classmethod
    def of(cls, api: Api) -> Route:
        """With kio's reader and writer where the API has none of its own."""
        name = api.key.name.lower()
        own_decode = api.decode

        def decode(start: RequestStart, frame: bytes, parts_max: int = REQUEST_PARTS_MAX) -> tuple[str | None, Any]:
            if own_decode is None:
                header, body = read_request(name, start, frame, parts_max=parts_max)
            else:
                header, position = request_body(name, start, frame)
                body = own_decode(frame, position, start.version)
            return header.client_id, body

        return cls(name, api.lowest, api.highest, api.answer, decode, api.encode or _encode)


def _encode(correlation_id: int, _version: int, answer: Any) -> bytes:
    return write_response(correlation_id, answer)


class Slot:
    """One request under way and, when its turn has not come, its answer."""

    __slots__ = ("frame", "ordered", "room", "size")

    def __init__(self, size: int, room: Room, *, ordered: bool) -> None:
        """size: of the request. room: of its answer."""
        self.size = size
        self.room = room
        self.ordered = ordered
        self.frame: bytes | None = None
