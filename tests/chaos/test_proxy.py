"""The proxy of the chaos tests does what its faults say."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest

from tests.chaos.proxy import HOST, Proxy, Wires


def _echo(server: socket.socket) -> None:
    while True:
        try:
            line, _ = server.accept()
        except OSError:
            return
        threading.Thread(target=_answer, args=(line,), daemon=True).start()


def _answer(line: socket.socket) -> None:
    with line:
        try:
            while data := line.recv(1024):
                line.sendall(data)
        except OSError:
            return


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    """In front of a server that says what it hears."""
    with socket.create_server((HOST, 0)) as server, Wires() as wires:
        thread = threading.Thread(target=_echo, args=(server,), daemon=True)
        thread.start()
        yield wires.proxy(server.getsockname()[1])
        server.shutdown(socket.SHUT_RDWR)
        thread.join(5)


def _say(proxy: Proxy) -> None:
    """Raises: OSError when nobody answers."""
    with socket.create_connection((HOST, proxy.port), 5) as line:
        line.sendall(b"x")
        if not line.recv(100):
            raise ConnectionResetError("reset")  # an orderly end is one, too


def test_bytes_pass_both_ways(proxy: Proxy) -> None:
    with socket.create_connection((HOST, proxy.port), 5) as line:
        line.sendall(b"there and back")
        assert line.recv(100) == b"there and back"
        assert proxy.connections == 1


def test_a_cut_breaks_what_there_is_and_lets_new_connections_in(proxy: Proxy) -> None:
    with socket.create_connection((HOST, proxy.port), 5) as old:
        old.sendall(b"one")
        old.recv(100)

        proxy.cut()

        with pytest.raises(ConnectionResetError):
            old.recv(100)
    assert proxy.broken == 1
    test_bytes_pass_both_ways(proxy)


def test_what_refuses_lets_nobody_in_until_it_is_mended(proxy: Proxy) -> None:
    proxy.refuse()
    with pytest.raises(OSError, match=r"reset|Broken"):
        _say(proxy)

    proxy.mend()

    test_bytes_pass_both_ways(proxy)


def test_what_is_stalled_comes_when_it_is_mended(proxy: Proxy) -> None:
    with socket.create_connection((HOST, proxy.port), 5) as line:
        line.sendall(b"one")
        line.recv(100)
        proxy.stall()
        line.sendall(b"two")
        line.settimeout(0.02)
        with pytest.raises(TimeoutError):
            line.recv(100)

        proxy.mend()

        line.settimeout(5)
        assert line.recv(100) == b"two"
