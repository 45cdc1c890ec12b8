"""Tests of the memory of a listener's answers: reserved before they are read, counted while they are built."""

from __future__ import annotations

import asyncio

import pytest

from flowshare.server.runtime import answers
from flowshare.server.runtime.answers import (
    KIB,
    LARGE_BYTES,
    LEAST_BYTES,
    Answers,
    AnswerSpace,
    AnswerTooLarge,
    granted,
)

MIB = 1024 * KIB


class Connection:
    """A holder that says what a test wants."""

    def __init__(self, *, first: bool = True, ahead: int = 0) -> None:
        self.first = first
        self.bytes_ahead = ahead

    def ahead(self, space):
        return self.first, self.bytes_ahead

    def starved(self, waiter):
        raise AssertionError


def test_a_fetch_alone_gets_all_that_it_wants():
    assert granted(64 * MIB, first=True, ahead=0, ahead_max=4 * MIB, left=256 * MIB) == 64 * MIB


def test_a_fetch_gets_less_the_less_is_left_and_never_nothing_when_it_is_its_turn():
    given = [granted(64 * MIB, first=True, ahead=0, ahead_max=MIB, left=left * MIB) for left in (256, 64, 1, 0, -9)]
    assert given == [64 * MIB, 16 * MIB, MIB // 4, LEAST_BYTES, LEAST_BYTES]


def test_a_fetch_behind_others_gets_what_its_client_may_have_unread_or_waits():
    def behind(ahead: int, wanted: int = 64 * MIB) -> int:
        return granted(wanted, first=False, ahead=ahead, ahead_max=4 * MIB, left=256 * MIB)

    assert [behind(0), behind(3 * MIB), behind(4 * MIB), behind(5 * MIB)] == [4 * MIB, MIB, 0, 0]
    assert behind(4 * MIB - 100) == 0  # less than a fetch is worth
    assert behind(4 * MIB - 100, wanted=50) == 50


def test_a_client_that_reads_nothing_gets_nothing_more_though_it_is_its_turn():
    assert granted(MIB, first=True, ahead=4 * MIB + 1, ahead_max=4 * MIB, left=256 * MIB) == 0


def test_all_fetches_together_reserve_no_more_than_there_may_be_and_the_least_each():
    account = Answers(8 * MIB, 4 * MIB, MIB)
    given = [AnswerSpace(account, Connection()).reserve(64 * MIB) for _ in range(100)]
    assert all(one >= LEAST_BYTES for one in given)
    assert account.reserved == sum(given) <= 8 * MIB + 100 * LEAST_BYTES


def test_what_was_reserved_and_not_read_is_given_back():
    account = Answers(8 * MIB, 4 * MIB, MIB)
    space = AnswerSpace(account, Connection())
    space.settle(space.reserve(MIB), 1_000)
    assert account.reserved == space.held == 1_000
    space.finish()
    assert account.reserved == 0


def test_what_clients_have_not_read_counts():
    account = Answers(8 * MIB, 4 * MIB, MIB)
    account.unread = lambda: 8 * MIB
    assert AnswerSpace(account, Connection(first=False)).reserve(MIB) == 0
    assert AnswerSpace(account, Connection()).reserve(MIB) == LEAST_BYTES


def test_an_answer_that_grows_beyond_its_limit_is_refused():
    account = Answers(8 * MIB, 4 * MIB, 1_000)
    space = AnswerSpace(account, Connection())
    space.add(1_000)
    with pytest.raises(AnswerTooLarge, match=r"more than 1000 bytes \(response\.max\.bytes\); ask for less"):
        space.add(1)


def test_a_long_answer_is_refused_while_too_many_bytes_wait_and_a_short_one_is_not():
    account = Answers(8 * MIB, 4 * MIB, 64 * MIB)
    account.unread = lambda: 9 * MIB
    space = AnswerSpace(account, Connection())
    for _ in range(LARGE_BYTES // KIB):
        space.add(KIB)
    with pytest.raises(AnswerTooLarge, match=r"queued\.max\.response\.bytes"):
        space.add(LARGE_BYTES)


def test_a_name_that_does_not_fit_is_refused_and_the_others_are_told():
    account = Answers(8 * MIB, 4 * MIB, 1_000)

    async def told(size: int) -> str:
        async def make() -> str:
            answers.space().add(size)
            return "told"

        def refuse(error) -> str:
            answers.space().add(100)
            return error.code.name

        return await answers.space().fitting(make, refuse)

    async def request() -> list[str]:
        answers.enter(AnswerSpace(account, Connection()))
        found = [await told(size) for size in (400, 5_000, 400, 400, 100)]
        answers.space().finish()
        return found

    assert asyncio.run(request()) == ["told", "INVALID_REQUEST", "told", "INVALID_REQUEST", "INVALID_REQUEST"]
    assert account.reserved == 0


def test_within_the_process_there_is_no_limit():
    space = answers.space()
    space.add(1 << 60)
    assert space.reserve(1 << 60) == 1 << 60
    space.settle(1 << 60, 5)
