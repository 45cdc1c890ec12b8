"""Free ports, and whether a broker answers: two small requests over a plain socket, without a client library."""

from __future__ import annotations

import io
import socket
import struct
from contextlib import ExitStack
from typing import Final

HOST: Final = "127.0.0.1"
_API_VERSIONS, _METADATA = 18, 3
_ANSWER_MAX: Final = 1 << 20


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on at this moment, all different."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind((HOST, 0))
        return [int(one.getsockname()[1]) for one in sockets]


def is_free(port: int) -> bool:
    """True if a server could listen on this port of the loopback."""
    with socket.socket() as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            one.bind((HOST, port))
        except OSError:
            return False
    return True


def nodes_seen(host: str, port: int, timeout_s: float = 2.0) -> int:
    """How many brokers the one at this address knows as living; 0 while it does not answer ApiVersions.

    A broker that answers but is not yet let in by its controller is not in its own list: then topics cannot be made.
    """
    try:
        with socket.create_connection((host, port), timeout_s) as opened, opened.makefile("rwb") as stream:
            (error,) = struct.unpack_from(">h", _ask(stream, _API_VERSIONS, 0, b""), 4)
            if error:
                return 0
            # Metadata v1 with an empty list of topics: the answer begins with the list of brokers.
            (count,) = struct.unpack_from(">i", _ask(stream, _METADATA, 1, struct.pack(">i", 0)), 4)
            return int(count)
    except (OSError, struct.error):
        return 0


def _ask(stream: io.BufferedRWPair, key: int, version: int, body: bytes) -> bytes:
    """The answer; a shorter one than it says when the connection was closed."""
    client = b"flowshare-dev"
    frame = struct.pack(">hhih", key, version, 1, len(client)) + client + body
    stream.write(struct.pack(">i", len(frame)) + frame)
    stream.flush()
    (size,) = struct.unpack(">i", stream.read(4))
    if not 4 <= size <= _ANSWER_MAX:
        raise OSError(f"an answer of {size} bytes")
    return stream.read(size)
