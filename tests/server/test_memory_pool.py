"""Tests of the connections' shares in a listener's memory: parts, order, and which connection gives way."""

from __future__ import annotations

from flowshare.server.net.memory_pool import ARRIVING_BYTES, SMALL_BYTES, MemoryPool

MIB = 1024 * 1024


class Socket:
    """A connection that says of itself whether it reads."""

    def __init__(self, budget: MemoryPool, party: str = "a") -> None:
        self.budget = budget
        self.account = budget.open(self, party)
        self.arriving = True
        self.resumed = 0

    def resume(self) -> None:
        self.resumed += 1
        self.arriving = self.budget.allows(self.account)

    def send(self, count: int) -> bool:
        """Part of a request; whether more is read."""
        self.budget.received(self.account, count)
        self.arriving = self.budget.allows(self.account)
        return self.arriving

    def end(self, count: int) -> None:
        """The rest of a request, which is answered at once."""
        self.budget.received(self.account, count)
        whole = self.account.unfinished
        self.budget.accepted(self.account, whole)
        self.budget.finished(self.account, whole)


def filled(budget: MemoryPool, count: int, *, party: str = "a") -> list[Socket]:
    """Connections with begun requests of up to 2 MiB."""
    sockets = [Socket(budget, party) for _ in range(count)]
    for _ in range(8):
        for socket in sockets:
            if socket.arriving:
                socket.send(MIB // 4)
    return sockets


def crowded(budget: MemoryPool) -> Socket:
    """Four connections fill a pool of 4 MiB; the one of them that is read from to the end."""
    hogs = [Socket(budget) for _ in range(4)]
    for hog in hogs:
        hog.send(3 * MIB)
    (favoured,) = [hog for hog in hogs if hog.arriving]
    return favoured


def test_one_connection_alone_is_read_from_until_it_holds_what_is_left_to_its_part():
    budget = MemoryPool(64 * MIB)
    other = Socket(budget)
    other.send(MIB)
    assert all(other.send(MIB) for _ in range(14))


def test_whoever_comes_later_finds_room_however_many_hold_theirs():
    budget = MemoryPool(256 * MIB)
    filled(budget, 300)
    stranger = Socket(budget, "b")
    assert stranger.send(MIB)
    assert stranger.send(MIB)


def test_a_party_of_many_holds_no_more_than_half():
    budget = MemoryPool(256 * MIB)
    filled(budget, 300, party="many")
    assert budget.held <= 128 * MIB + 301 * MIB // 4 + 2 * MIB
    assert all(Socket(budget, f"other {number}").send(MIB) for number in range(5))


def test_small_requests_are_always_read():
    budget = MemoryPool(256 * MIB)
    filled(budget, 200)
    small = Socket(budget)
    for _ in range(100):
        assert small.send(SMALL_BYTES // 2)
        small.end(SMALL_BYTES // 2)


def test_one_of_those_that_wait_is_read_from_to_the_end_of_its_request():
    budget = MemoryPool(4 * MIB)
    sockets = [Socket(budget) for _ in range(4)]
    for socket in sockets:
        socket.send(3 * MIB)
    for _ in range(4):
        (favoured,) = [socket for socket in sockets if socket.arriving]
        assert favoured.send(8 * MIB)
        favoured.end(0)
        sockets.remove(favoured)
    assert budget.held == 0


def test_of_equals_those_go_on_first_who_had_a_request_answered_last():
    budget = MemoryPool(4 * MIB)
    good = Socket(budget)
    good.end(10)
    favoured = crowded(budget)
    favoured.send(MIB)
    assert not good.send(MIB)
    budget.left(favoured.account)
    assert good.arriving


def test_who_had_a_request_answered_does_not_wait_for_a_favoured_one_of_which_nothing_comes():
    budget = MemoryPool(4 * MIB)
    good = Socket(budget)
    good.end(10)
    for _ in range(4):
        Socket(budget).send(3 * MIB)
    assert good.send(MIB)


def test_nobody_comes_before_a_favoured_one_that_arrives():
    budget = MemoryPool(4 * MIB)
    good = Socket(budget)
    good.end(10)
    favoured = crowded(budget)
    favoured.send(MIB)
    assert not good.send(MIB)


def test_a_begun_request_that_stands_still_gives_way_while_others_wait():
    budget = MemoryPool(4 * MIB)
    favoured = crowded(budget)
    assert budget.look() == []
    assert budget.look() == [favoured]


def test_a_begun_request_that_arrives_does_not_give_way():
    budget = MemoryPool(4 * MIB)
    favoured = crowded(budget)
    for _ in range(5):
        favoured.send(ARRIVING_BYTES)
        assert favoured not in budget.look()


def test_a_trickle_gives_way_as_silence_does():
    budget = MemoryPool(4 * MIB)
    favoured = crowded(budget)
    budget.look()
    favoured.send(100)
    assert budget.look() == [favoured]


def test_those_that_wait_are_tried_so_that_all_who_only_hold_are_found():
    budget = MemoryPool(256 * MIB)
    filled(budget, 300)
    before = budget.waiting
    for _ in range(12):
        for still in budget.look():
            budget.left(still.account)
    assert budget.waiting < before // 4


def test_many_that_end_as_they_are_resumed_are_no_deep_recursion():
    budget = MemoryPool(4 * MIB)

    class Ending(Socket):
        def resume(self) -> None:
            self.budget.left(self.account)

    sockets = [Ending(budget) for _ in range(600)]
    for socket in sockets:
        socket.send(MIB)
    for socket in sockets:
        budget.left(socket.account)
    assert budget.held == budget.waiting == 0
