"""The way to a process's pages that only its own user has: a Unix socket beside the port, whose peers the system names.

No browser reaches it, nothing has to be kept secret or found in a file system that may be read-only, and whoever can
reach 127.0.0.1 of the process can reach it, as it lies in the same network namespace. It has the name of the address
that is listened on, so it is free when that is. A peer counts as the own user if the system says that it runs as this
process's user, or as root, and is seen from here as a process: a neighbour in a pod has the same user number sooner or
later, but lives among other processes.

Linux only. Elsewhere the token is what operators show.
"""

from __future__ import annotations

import http.client
import os
import socket
import struct
import sys
import time
from dataclasses import dataclass
from typing import Any, Final

_CREDENTIALS: Final = struct.Struct("3i")
"""Process, user, group (`struct ucred`)."""
_PREFIX: Final = "\0flowshare-pages/"
ANSWER_MAX: Final = 64 * 1024 * 1024
"""Bytes of a page."""
_LOOPBACK: Final = ("localhost", "127.0.0.1", "[::1]")


class OtherUser(Exception):
    """Somebody else listens where this user's process is looked for."""


def names(address: str) -> tuple[str, ...]:
    """Where the process may be reached whose pages are at `host:port`, the likeliest first."""
    host, _, port = address.rpartition(":")
    hosts = [host]
    if host in _LOOPBACK:
        hosts += [one for one in (*_LOOPBACK[1:], "0.0.0.0", "[::]") if one != host]  # noqa: S104 - names, not bound
    return tuple(f"{_PREFIX}{one}:{port}" for one in hosts if len(one) < 80)


def listen(address: str) -> socket.socket | None:
    """A socket for this user's own processes, beside the pages at `host:port`; None: the system has none.

    Raises: OSError when the name is taken.
    """
    if sys.platform != "linux":
        return None
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.bind(f"{_PREFIX}{address}")
        sock.setblocking(False)
    except OSError:
        sock.close()
        raise
    return sock


def connect(address: str, timeout_s: float) -> socket.socket | None:
    """A connection to this user's process whose pages are at `host:port`; None: there is none here.

    timeout_s: how long it blocks while the process accepts nothing; 0: not at all. Raises: OtherUser.
    """
    if sys.platform != "linux":
        return None
    for name in names(address):
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.settimeout(timeout_s)
            sock.connect(name)
        except OSError:
            sock.close()
            continue
        _, user = _peer(sock)
        if user != os.geteuid() and os.geteuid() != 0:
            sock.close()
            raise OtherUser(f"the process at {address} is another user's (number {user}): run this as that user")
        return sock
    return None


@dataclass(frozen=True, slots=True)
class Answer:
    """What a page answered."""

    status: int
    content_type: str
    body: bytes


def ask(
    address: str,
    page: str,
    *,
    method: str = "GET",
    timeout_s: float,
    token: bytes | None = None,
    bytes_max: int = ANSWER_MAX,
) -> Answer:
    """What a page of the process at `host:port` answers: by this way, else over TCP with the token. Blocks.

    timeout_s: for the whole answer, however many pieces it comes in. bytes_max: of the answer.
    Raises: OSError, http.client.HTTPException, OtherUser.
    """
    until_s = time.monotonic() + timeout_s
    connected = connect(address, timeout_s)
    show = connected is None and token is not None
    connection: Any = http.client.HTTPConnection(address, timeout=timeout_s)
    connection.sock = connected  # None: it connects by itself
    try:
        if connected is None:
            connection.connect()
        connection.sock = _Until(connection.sock, until_s)
        connection.request(method, page, headers={"Authorization": f"Bearer {(token or b'').decode()}"} if show else {})
        answer = connection.getresponse()
        body = answer.read(bytes_max + 1)
        if len(body) > bytes_max:
            raise OSError("the page is too long")
        return Answer(answer.status, answer.headers.get_content_type(), body)
    finally:
        connection.close()


class _Until(socket.socket):
    """The same connection, from which is read until a moment only: who sends a byte a second sends for no longer."""

    def __init__(self, sock: socket.socket, until_s: float) -> None:
        family, kind, proto, timeout_s = sock.family, sock.type, sock.proto, sock.gettimeout()
        super().__init__(family, kind, proto, fileno=sock.detach())
        self.settimeout(timeout_s)
        self._until_s = until_s

    def recv_into(self, *args: Any, **kwargs: Any) -> int:
        """socket's."""
        left_s = self._until_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError("the answer has not come in time")
        self.settimeout(left_s)
        return super().recv_into(*args, **kwargs)


def is_own(sock: socket.socket) -> bool:
    """Whether this user, or root, is at the other end of a socket of `listen`."""
    process, user = _peer(sock)
    return process > 0 and user in (0, os.geteuid())


def _peer(sock: socket.socket) -> tuple[int, int]:
    """Process and user at the other end."""
    option: Any = getattr(socket, "SO_PEERCRED", 0)
    process, user, _ = _CREDENTIALS.unpack(sock.getsockopt(socket.SOL_SOCKET, option, _CREDENTIALS.size))
    return process, user
