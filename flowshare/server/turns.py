"""Long work in turns: whoever goes through many small things lets others run after every few of them.

A request may name tens of thousands of topics or groups, and there may be as many groups with offsets to look at. Each
is quick; all of them without a break would hold up every other connection.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final, TypeVar

if TYPE_CHECKING:
    from flowshare.clock import Clock

T = TypeVar("T")
R = TypeVar("R")

TURN: Final = 500
"""Small things that are done at once, a few milliseconds' work."""


class Turns:
    """Counts what is done, and gives way when it was enough."""

    __slots__ = ("_clock", "_left")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._left = TURN

    async def take(self, things: int = 1) -> None:
        """So many things come next; others run first if many were done since they last did."""
        self._left -= things
        if self._left < 0:
            self._left = max(TURN - things, 0)
            await self._clock.sleep(0)

    async def each(self, do: Callable[[T], R], things: Iterable[T]) -> tuple[R, ...]:
        """What `do` makes of each of the things."""
        made: list[R] = []
        for thing in things:
            await self.take()
            made.append(do(thing))
        return tuple(made)
