"""Joins and syncs that wait for the other members of their group."""

from __future__ import annotations

import itertools
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from typing import TYPE_CHECKING

from flowshare.groups.errors import CoordinatorNotAvailable
from flowshare.groups.types import JoinAnswer, SyncAnswer
from flowshare.server.parking import Waiter

if TYPE_CHECKING:
    from flowshare.groups.types import Answered
    from flowshare.server.connection import InProcess


class Place:
    """One request that may wait; `number` is its ticket."""

    __slots__ = ("answer", "number", "waiter")

    def __init__(self, number: int) -> None:
        self.number = number
        self.waiter = Waiter()
        self.answer: JoinAnswer | SyncAnswer | None = None

    async def join_answer(self) -> JoinAnswer:
        """The answer to a join; an error nobody will see if the connection is closed."""
        answer = await self._wait()
        return answer if isinstance(answer, JoinAnswer) else JoinAnswer(error=_gone())

    async def sync_answer(self) -> SyncAnswer:
        """The answer to a sync; an error nobody will see if the connection is closed."""
        answer = await self._wait()
        return answer if isinstance(answer, SyncAnswer) else SyncAnswer(error=_gone())

    async def _wait(self) -> JoinAnswer | SyncAnswer | None:
        while self.answer is None and not self.waiter.abandoned:
            await self.waiter.wait()
        return self.answer


class Waiting:
    """All requests that wait: at most one join and one sync a member; how long is the group's to say."""

    def __init__(self) -> None:
        self._numbers = itertools.count()
        self._places: dict[int, Place] = {}

    def __len__(self) -> int:
        return len(self._places)

    @contextmanager
    def place(self, connection: InProcess) -> Generator[Place]:
        """A place to wait in, until the connection is closed at the latest."""
        number = next(self._numbers)
        place = self._places[number] = Place(number)
        connection.watch(place.waiter)
        try:
            yield place
        finally:
            connection.unwatch(place.waiter)
            del self._places[number]

    def deliver(self, answers: Iterable[Answered]) -> None:
        """Hand out answers; those that nobody waits for any more are dropped."""
        for ticket, answer in answers:
            place = self._places.get(ticket)
            if place is not None:
                place.answer = answer
                place.waiter.wake()


def _gone() -> CoordinatorNotAvailable:
    return CoordinatorNotAvailable("the connection was closed")
