"""The way to a process's pages that only its own user has."""

from __future__ import annotations

import os
import signal
import socket
import struct

import pytest

from flowshare.agents.pages import own_user


class Peer:
    """A connection whose other end the system describes so."""

    def __init__(self, pid: int, uid: int) -> None:
        self.found = struct.pack("3i", pid, uid, uid)

    def getsockopt(self, level: int, name: int, buflen: int) -> bytes:
        return self.found


@pytest.fixture
def address():
    """`host:port` at which this process listens; its name is free."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


def test_the_own_user_and_root_are_let_in_and_nobody_else():
    me = os.geteuid()

    assert own_user.is_own(Peer(4711, me))
    assert own_user.is_own(Peer(4711, 0))
    assert not own_user.is_own(Peer(4711, me + 1))


def test_a_neighbour_with_the_same_user_number_is_not_the_own_user():
    assert not own_user.is_own(Peer(0, os.geteuid())), "its process cannot be seen from here"


def test_a_process_is_found_by_the_address_it_listens_on():
    def hosts(address: str) -> list[str]:
        return [name.partition("/")[2] for name in own_user.names(address)]

    assert hosts("10.0.0.5:1") == ["10.0.0.5:1"]
    assert hosts("127.0.0.1:1") == ["127.0.0.1:1", "[::1]:1", "0.0.0.0:1", "[::]:1"]
    assert hosts("localhost:1")[1:3] == ["127.0.0.1:1", "[::1]:1"]
    assert not hosts("x" * 200 + ":1")


def test_there_is_one_listener_for_an_address_and_none_without_any(address):
    assert own_user.connect(address, 1.0) is None
    sock = own_user.listen(address)
    assert sock is not None
    with sock:
        sock.listen()
        with pytest.raises(OSError, match="in use"):
            own_user.listen(address)
        connected = own_user.connect(address, 1.0)
        assert connected is not None
        connected.close()


def test_who_listens_in_another_users_place_is_told_of(monkeypatch, address):
    sock = own_user.listen(address)
    assert sock is not None
    with sock:
        sock.listen()
        monkeypatch.setattr(os, "geteuid", lambda: 4711)
        with pytest.raises(own_user.OtherUser, match="another user"):
            own_user.connect(address, 1.0)


def test_a_process_that_accepts_nothing_holds_nobody_who_will_not_wait(address):
    sock = own_user.listen(address)
    assert sock is not None
    with sock:
        sock.listen(0)
        waiting = [own_user.connect(address, 0) for _ in range(4)]
    held = [one for one in waiting if one is not None]
    for one in held:
        one.close()

    assert len(held) == 1


def test_where_the_system_has_no_such_way_there_is_none(monkeypatch):
    monkeypatch.setattr("sys.platform", "darwin")

    assert own_user.listen("127.0.0.1:1") is None
    assert own_user.connect("127.0.0.1:1", 1.0) is None


def bound_by_nobody(name: str) -> int:
    """The process of another user that has a name, and waits."""
    ready, told = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.setuid(65_534)
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.bind(name)
        sock.listen()
        os.write(told, b"x")
        signal.pause()
        os._exit(0)
    os.read(ready, 1)
    os.close(ready)
    os.close(told)
    return pid


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
def test_who_has_the_name_and_not_the_port_is_not_believed_by_root_either():
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        pid = bound_by_nobody(own_user.names(address)[0])
        try:
            assert own_user.connect(address, 1.0) is None
            mine = own_user.listen(address.replace("127.0.0.1", "0.0.0.0"))
            assert mine is not None
            with mine:
                mine.listen()
                found = own_user.connect(address, 1.0)
                assert found is not None, "the port's owner is looked for under the other names"
                found.close()
        finally:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0", "::1"])
def test_the_owner_of_a_port_is_who_listens_there(host):
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, 0), family=family) as server:
        port = server.getsockname()[1]
        shown = "[::1]" if ":" in host else "127.0.0.1"
        assert own_user.port_owner(f"{shown}:{port}") == os.geteuid()
        assert own_user.port_owner(f"localhost:{port}") == os.geteuid()
        assert own_user.port_owner(f"10.1.2.3:{port}") == (os.geteuid() if host == "0.0.0.0" else None)
    assert own_user.port_owner(f"127.0.0.1:{port}") is None
    assert own_user.port_owner("nowhere") is None
