"""A client's connection to one node, in the same process or over a socket, and how to open one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, Protocol

from flowshare.protocol.kafka import ApiKey
from flowshare.protocol.messages.base import Connection

LOCAL_VERSIONS: Final[Mapping[int, tuple[int, int]]] = {int(key): (0, 0x7FFF) for key in ApiKey}


class InProcessConnection(Connection, Protocol):
    """A connection within the process."""

    def on_closed(self, listener: Callable[[str], object]) -> None:
        """Call `listener` with the reason when the connection ends, from whichever end."""


class NodeConnection(InProcessConnection, Protocol):
    """A connection to one broker, with its APIs and versions."""

    api_versions: Mapping[int, tuple[int, int]]


class LocalConnection:
    """A connection to a server of this process, which is one of flowshare's own and offers all of its APIs."""

    def __init__(self, connection: InProcessConnection) -> None:
        self.api_versions: Mapping[int, tuple[int, int]] = LOCAL_VERSIONS
        self.is_flowshare = connection.is_flowshare
        self.keeps_time = connection.keeps_time
        self.send = connection.send
        self.begin = connection.begin
        self.close = connection.close
        self.on_closed = connection.on_closed


OpenNode = Callable[[str, int, str], Awaitable[NodeConnection]]
"""Opens a connection to (host, port) for a client id. Raises OSError when a retry may help, else ClientError."""
Local = Callable[[str], Awaitable[InProcessConnection]]
"""Opens a connection to a server of this process for a client id. Raises OSError while there is no server."""
Who = Callable[[NodeConnection], Awaitable[int]]
"""Asks a server of a fleet for its node id. Raises: OSError, ClientError."""
FreshAddresses = Callable[[], Awaitable[Sequence[str]]]
"""Returns `host:port` of brokers that are reachable now. Raises OSError, ClientError."""
