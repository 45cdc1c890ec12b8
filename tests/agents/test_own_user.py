"""The way to a process's pages that only its own user has."""

from __future__ import annotations

import os
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


def free_address() -> str:
    """`host:port` of a port that is taken by nobody, so that its name is free, too."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"127.0.0.1:{server.getsockname()[1]}"


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


def test_there_is_one_listener_for_an_address_and_none_without_any():
    address = free_address()
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


def test_who_listens_in_another_users_place_is_told_of(monkeypatch):
    address = free_address()
    sock = own_user.listen(address)
    assert sock is not None
    with sock:
        sock.listen()
        monkeypatch.setattr(os, "geteuid", lambda: 4711)
        with pytest.raises(own_user.OtherUser, match="another user"):
            own_user.connect(address, 1.0)


def test_a_process_that_accepts_nothing_holds_nobody_who_will_not_wait():
    address = free_address()
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
