"""Long work in turns: a task that goes through many small things lets others run after every few of them.

A request may name tens of thousands of topics or groups, and as many groups with offsets may have to be visited. Each
is quick; all of them without a break would hold up every other connection. The requests of one connection share its
turn of a round of the loop. When that is used up they stand in line with those of the other connections, and each round
of the loop one request goes on, the connections in turn: however many do long work, it is one turn a round.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from itertools import islice
from typing import TYPE_CHECKING, Final, Generic, TypeVar

if TYPE_CHECKING:
    from flowshare.clock import Clock

T = TypeVar("T")
R = TypeVar("R")
K = TypeVar("K")

TURN: Final = 2_000
"""Small things done at once, a few milliseconds' work."""
TOGETHER: Final = 10
"""Number of the smallest things done between two looks at the clock."""
TURN_S: Final = 0.005
"""Longest work of one connection in a round, in seconds; checked between things."""


class _Line(Generic[K]):
    """Waiting requests by owner: owners have their turns one after the other, the requests of one in their order."""

    def __init__(self) -> None:
        self._waiting: dict[K, deque[asyncio.Future[None]]] = {}

    def stand(self, whose: K) -> asyncio.Future[None]:
        """Return the request's turn, to be awaited."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(whose, deque()).append(turn)
        return turn

    def go_on(self) -> bool:
        """Give the next request its turn; return False if none waits. A cancelled request has none."""
        while self._waiting:
            whose = next(iter(self._waiting))
            requests = self._waiting.pop(whose)
            turn = requests.popleft()
            if requests:
                self._waiting[whose] = requests  # behind the others
            if not turn.done():
                turn.set_result(None)
                return True
        return False


class TurnLine:
    """Connections that have used up their turn: each round of the loop one goes on."""

    def __init__(self) -> None:
        self._line = _Line[Turns]()
        self._moving = False

    async def wait(self, turns: Turns) -> None:
        """Wait for the next turn; requests of one connection have theirs in the order in which they came."""
        turn = self._line.stand(turns)
        if not self._moving:
            self._moving = True
            asyncio.get_running_loop().call_soon(self._move)
        await turn

    def _move(self) -> None:
        self._moving = self._line.go_on()
        if self._moving:
            asyncio.get_running_loop().call_soon(self._move)


class Turns:
    """Counts the work of one connection in a round of the loop, and gives way when it was enough."""

    __slots__ = ("_again", "_clock", "_in_round", "_left", "_line", "_scheduled", "_since", "_waiting")

    def __init__(self, clock: Clock, line: TurnLine | None = None) -> None:
        """line: the listener's; None: work that gives way goes on in the next round."""
        self._clock = clock
        self._line = line
        self._left = TURN
        self._since = 0.0
        self._in_round = False
        self._waiting = 0
        self._again: Callable[[], object] | None = None
        self._scheduled = False

    @property
    def over(self) -> bool:
        """True if the turn is used up, so that nothing new may begin; call `begin` first."""
        return self._waiting > 0 or self._left < 0 or self._clock.monotonic() - self._since > TURN_S

    def begin(self) -> None:
        """Begin work; the first work of a round begins the turn."""
        if not self._in_round:
            self._in_round = True
            self._left = TURN
            self._since = self._clock.monotonic()
            asyncio.get_running_loop().call_soon(self._end)

    def call_next(self, again: Callable[[], object]) -> None:
        """Call `again` in the next round, behind ready work, and not while a request waits for its turn."""
        self._again = again
        self._schedule()

    async def take(self, things: int = 1) -> None:
        """Count `things` that come next; let others run first if this round's work was long."""
        self.begin()
        self._left -= things
        if not self.over:
            return
        self._waiting += 1
        try:
            if self._line is None:
                await self._clock.sleep(0)
            else:
                await self._line.wait(self)
        finally:
            self._waiting -= 1
            self.begin()
            if self._again is not None:
                self._schedule()
        self._left = max(TURN - things, 0)
        self._since = self._clock.monotonic()

    async def each(self, do: Callable[[T], R], things: Iterable[T]) -> tuple[R, ...]:
        """Call `do` with each of the things and return the results; others run in between if the things are many."""
        if isinstance(things, tuple | list) and len(things) <= TOGETHER:
            await self.take(len(things))
            return tuple(map(do, things))
        made: list[R] = []
        async for some in self.few(things):
            made += map(do, some)
        return tuple(made)

    def few(self, things: Iterable[T]) -> Few[T]:
        """Return the things, a few at a time, others running between; an iterator makes the next ones in their turn."""
        return Few(self, things)

    def _end(self) -> None:
        self._in_round = False

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._next)

    def _next(self) -> None:
        self._scheduled = False
        if self._again is not None and not self._waiting:
            again, self._again = self._again, None
            again()


class Places:
    """Places for work that takes much memory; waiting parties have their turns one after the other."""

    def __init__(self, count: int) -> None:
        self.free = count
        """Free places."""
        self._line = _Line[str]()

    async def take(self, party: str) -> None:
        """Wait for a place, to be given back by `give`; a party's requests get places in their order."""
        if self.free:
            self.free -= 1
            return
        turn = self._line.stand(party)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.give()
            raise

    def give(self) -> None:
        """Give a place back."""
        if not self._line.go_on():
            self.free += 1


class Few(Generic[T]):
    """An iterator over tuples; an async generator would cost a short request more than its work."""

    __slots__ = ("_over", "_rest", "_turns")

    def __init__(self, turns: Turns, things: Iterable[T]) -> None:
        self._turns = turns
        self._rest = iter(things)
        self._over = False

    def __aiter__(self) -> Few[T]:
        return self

    async def __anext__(self) -> tuple[T, ...]:
        if self._over:
            raise StopAsyncIteration
        await self._turns.take(TOGETHER)
        some = tuple(islice(self._rest, TOGETHER))
        self._over = len(some) < TOGETHER
        if not some:
            raise StopAsyncIteration
        return some
