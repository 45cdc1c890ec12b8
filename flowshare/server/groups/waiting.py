"""Joins and syncs of classic groups that wait for the other members."""

from __future__ import annotations

import itertools
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

from flowshare.core_errors import CoordinatorNotAvailable
from flowshare.groups.types import JoinAnswer, SyncAnswer, TicketAnswer
from flowshare.server.runtime.waiting import Waiter

if TYPE_CHECKING:
    from flowshare.server.runtime.connection import InProcess

A = TypeVar("A", JoinAnswer, SyncAnswer)


class WaitingRequest:
    """One request that may wait; `number` is its ticket."""

    __slots__ = ("answer", "number", "waiter")

    def __init__(self, number: int) -> None:
        self.number = number
        self.waiter = Waiter()
        self.answer: JoinAnswer | SyncAnswer | None = None

    async def answered(self, kind: type[A]) -> A:
        """Wait for the answer to a join or a sync; an error nobody will see if the connection is closed."""
        while self.answer is None and not self.waiter.abandoned:
            await self.waiter.wait()
        gone = CoordinatorNotAvailable("the connection was closed")
        return self.answer if isinstance(self.answer, kind) else kind(error=gone)


class WaitingRequests:
    """All waiting requests: at most one join and one sync a member; the group ends their waits."""

    def __init__(self) -> None:
        self._numbers = itertools.count()
        self._places: dict[int, WaitingRequest] = {}

    @contextmanager
    def place(self, connection: InProcess) -> Generator[WaitingRequest]:
        """Yield a place to wait in, until the connection is closed at the latest."""
        number = next(self._numbers)
        place = self._places[number] = WaitingRequest(number)
        connection.watch(place.waiter)
        try:
            yield place
        finally:
            connection.unwatch(place.waiter)
            del self._places[number]

    def deliver(self, answers: Iterable[TicketAnswer]) -> None:
        """Deliver answers; those that nobody waits for any more are dropped."""
        for ticket, answer in answers:
            place = self._places.get(ticket)
            if place is not None:
                place.answer = answer
                place.waiter.wake()


def refused(answers: Iterable[TicketAnswer]) -> list[TicketAnswer]:
    """Turn good join answers into errors, because the group could not be written; other answers stay."""
    error = CoordinatorNotAvailable("the group could not be written; try again")
    return [
        TicketAnswer(ticket, JoinAnswer(error=error) if isinstance(answer, JoinAnswer) and not answer.error else answer)
        for ticket, answer in answers
    ]
