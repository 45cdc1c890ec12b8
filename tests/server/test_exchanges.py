"""The requests of one socket: the order of their answers, and what each of them may read meanwhile."""

from __future__ import annotations

from flowshare.server.net.requests import OpenRequest, OpenRequests
from flowshare.server.runtime.answers import Answers, AnswerSpace
from flowshare.server.runtime.waiting import Waiter


class Socket:
    def __init__(self) -> None:
        self.unwritten = 0
        self.account = Answers(1_000_000, 1_000_000, 1_000_000)
        self.under_way = OpenRequests(lambda: self.unwritten)

    def asks(self, size: int = 10, *, ordered: bool = True) -> OpenRequest:
        one = OpenRequest(size, AnswerSpace(self.account, self.under_way), ordered=ordered)
        self.under_way.begin(one)
        return one

    def answers(self, one: OpenRequest, frame: bytes) -> list[bytes]:
        """End a request with this answer, and return the frames that are written then."""
        self.under_way.end(one)
        return list(self.under_way.answer(one, frame))


def test_ordered_answers_leave_in_the_order_of_their_requests_whatever_is_ready_first():
    socket = Socket()
    first, second, third = (socket.asks() for _ in range(3))
    assert socket.answers(second, b"2") == []
    assert socket.answers(third, b"33") == []
    assert (len(socket.under_way), socket.under_way.held) == (1, 3)
    assert socket.answers(first, b"1") == [b"1", b"2", b"33"]
    assert (len(socket.under_way), socket.under_way.held, socket.under_way.request_bytes) == (0, 0, 0)


def test_a_request_without_an_answer_keeps_the_place_of_nobody():
    socket = Socket()
    silent, next_ = socket.asks(), socket.asks()
    assert socket.answers(next_, b"n") == []
    assert socket.answers(silent, b"") == [b"n"]


def test_answers_without_an_order_leave_at_once():
    socket = Socket()
    first, second = socket.asks(ordered=False), socket.asks(ordered=False)
    assert socket.answers(second, b"2") == [b"2"]
    assert socket.answers(first, b"") == []


def test_an_answer_has_before_it_what_is_unread_and_all_that_comes_first():
    socket = Socket()
    first, second = socket.asks(), socket.asks()
    socket.unwritten = 5
    first.space.add(7)
    assert socket.under_way.ahead(first.space) == (True, 5)
    assert socket.under_way.ahead(second.space) == (False, 12)


def test_without_an_order_every_answer_is_the_next_one_while_no_other_has_bytes():
    socket = Socket()
    first, second = socket.asks(ordered=False), socket.asks(ordered=False)
    assert socket.under_way.ahead(second.space) == (True, 0)
    first.space.add(7)
    assert socket.under_way.ahead(second.space) == (False, 7)
    assert socket.under_way.ahead(first.space) == (True, 0)


def test_what_a_socket_that_is_gone_held_counts_no_more():
    socket = Socket()
    socket.asks().space.add(7)
    done = socket.asks()
    socket.answers(done, b"done")
    socket.under_way.clear()
    assert socket.account.reserved == 0


class Fetch(Waiter):
    """Counts how often it is to look again."""

    woken = 0

    def wake(self) -> None:
        self.woken += 1


def test_a_starved_fetch_is_woken_once():
    socket, fetch = Socket(), Fetch()
    socket.under_way.starved(fetch)
    socket.under_way.feed()
    socket.under_way.feed()
    assert fetch.woken == 1
