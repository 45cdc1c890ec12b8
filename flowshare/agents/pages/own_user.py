"""The way to a process's pages that only its own user has: a Unix socket beside the port, whose peers the system names.

No browser reaches the socket, nothing has to be kept secret or found in a file system that may be read-only, and any
process that can reach 127.0.0.1 of this one can reach it, as it lies in the same network namespace. Its name is the
listening address, so the name is free when the address is. A peer counts as the own user if the system says that it
runs as this process's user, or as root, and is visible from here as a process: a neighbour in a pod has the same user
number sooner or later, but lives among other processes. The owner of the name is believed only if the port is that
user's, too, whoever asks: any user may bind any name.

Linux only. Elsewhere operators show the token.
"""

from __future__ import annotations

import http.client
import ipaddress
import os
import socket
import struct
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

_CREDENTIALS: Final = struct.Struct("3i")
"""Process, user, group (`struct ucred`)."""
_PREFIX: Final = "\0flowshare-pages/"
ANSWER_MAX: Final = 64 * 1024 * 1024
"""Most bytes of a page."""
_LISTENS: Final = "0A"
_ANY: Final = ("0" * 8, "0" * 32)
"""All addresses of the machine, as the system lists them."""
_MAPPED: Final = b"\0" * 10 + b"\xff\xff"
_LOOPBACK: Final = ("localhost", "127.0.0.1", "[::1]")


class OtherUser(Exception):
    """Another user listens where this user's process is looked for."""


def names(address: str) -> tuple[str, ...]:
    """Return the sockets' names for the pages at `host:port`, the likeliest first."""
    host, _, port = address.rpartition(":")
    hosts = [host]
    if host in _LOOPBACK:
        hosts += [one for one in (*_LOOPBACK[1:], "0.0.0.0", "[::]") if one != host]  # noqa: S104 - names, not bound
    return tuple(f"{_PREFIX}{one}:{port}" for one in hosts if len(one) < 80)


def listen(address: str) -> socket.socket | None:
    """Open a socket for this user's own processes, beside the pages at `host:port`; None: the system has none.

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


def port_owner(address: str) -> int | None:
    """Return the number of the user who listens on the TCP port `host:port`; None: nobody, or more than one."""
    host, _, port = address.rpartition(":")
    wanted = {f"{one}:{int(port):04X}" for one in (*_as_listed(host), *_ANY)} if port.isdecimal() else set[str]()
    found: dict[str, set[int]] = {}
    for table in ("tcp", "tcp6"):
        try:
            lines = Path(f"/proc/net/{table}").read_text(encoding="ascii").splitlines()[1:]
        except OSError:
            continue
        for fields in map(str.split, lines):
            if fields[1] in wanted and fields[3] == _LISTENS:
                found.setdefault(fields[1], set()).add(int(fields[7]))
    exact = {user for at, users in found.items() if at.partition(":")[0] not in _ANY for user in users}
    users = exact or {user for users in found.values() for user in users}
    return users.pop() if len(users) == 1 else None


def _as_listed(host: str) -> list[str]:
    """Return a host's addresses as the system lists them: words of four bytes, each in the machine's order."""
    hosts = ("127.0.0.1", "::1") if host == "localhost" else (host.strip("[]"),)
    listed: list[str] = []
    for one in hosts:
        try:
            packed = ipaddress.ip_address(one).packed
        except ValueError:
            continue
        forms = [packed] if len(packed) == 16 else [packed, _MAPPED + packed]  # the second: a socket for IPv4 and IPv6
        listed += ["".join(f"{word:08X}" for word in struct.unpack(f"={len(form) // 4}I", form)) for form in forms]
    return listed


def connect(address: str, timeout_s: float) -> socket.socket | None:
    """Connect to this user's process with pages at `host:port`; None: there is none here.

    timeout_s: seconds that it blocks while the process accepts nothing; 0: not at all. Raises: OtherUser.
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
        owner = port_owner(address)
        if user != owner:  # any user may bind any name: the port's owner counts
            sock.close()
            continue
        if user != os.geteuid() and os.geteuid() != 0:
            sock.close()
            raise OtherUser(f"the process at {address} is another user's (number {user}): run this as that user")
        return sock
    return None


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer of a page."""

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
    """Ask a page of the process at `host:port`: as the own user (`connect`), else over TCP with the token. Blocks.

    timeout_s: seconds for the whole answer, however many pieces it comes in. bytes_max: largest size of the answer.

    Raises: OSError, http.client.HTTPException, OtherUser.
    """
    until_s = time.monotonic() + timeout_s
    connected = connect(address, timeout_s)
    show = connected is None and token is not None
    connection: Any = http.client.HTTPConnection(address, timeout=timeout_s)
    connection.sock = connected  # None: the client connects by itself
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
    """The same connection with a deadline for reading, so that a sender of one byte a second cannot hold it open."""

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
    """Tell if a process of this user, or of root, is at the other end of a socket of `listen`."""
    process, user = _peer(sock)
    return process > 0 and user in (0, os.geteuid())


def _peer(sock: socket.socket) -> tuple[int, int]:
    """Return process and user at the other end."""
    option: Any = getattr(socket, "SO_PEERCRED", 0)
    process, user, _ = _CREDENTIALS.unpack(sock.getsockopt(socket.SOL_SOCKET, option, _CREDENTIALS.size))
    return process, user
