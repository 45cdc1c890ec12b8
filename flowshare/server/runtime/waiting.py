"""Waiting: a request that waits to be woken (Kafka's purgatory), a task that sleeps until something is due.

`Waiter` is one request that waits, mostly a fetch for records; `WaitQueue` those at one share-partition, `Purgatory`
bounds those of all. `Alarm` is for a task that carries out what is due.

A parked fetch waits at each share-partition of its session. Whatever makes records available there wakes one waiter,
the one that has waited longest; when that one is done and something is left, the next is woken. So an append of a
few records does not wake every member of a group to find nothing.

Where keys have an order, what a member holds ahead keeps its key from the others. There those go first whose members
hold nothing, before a fetch that just comes, too: it leaves one key for each of them.
"""

from __future__ import annotations

import asyncio
import enum
import itertools
from typing import TYPE_CHECKING, Any, NamedTuple

from flowshare.server.runtime import answers

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable

    from flowshare.clock import Clock, TimerHandle


class Ended(enum.Enum):
    """Why a fetch stops waiting for good."""

    NO = "it goes on"
    TIMEOUT = "its wait limit came, or its session asked for its answer"
    SESSION = "its session was closed or replaced"
    CONNECTION = "its connection was closed"


class Waiter:
    """One fetch, parked or about to look again."""

    __slots__ = ("_future", "_woken", "at", "ended")

    def __init__(self) -> None:
        self.ended = Ended.NO
        self.at: WaitQueue | None = None
        """Where it takes something just now; it comes to the other share-partitions later."""
        self._woken = False
        self._future: asyncio.Future[None] | None = None

    @property
    def abandoned(self) -> bool:
        """Whether nobody is there any more to give records to."""
        return self.ended in (Ended.SESSION, Ended.CONNECTION)

    def wake(self) -> None:
        """Let the fetch look again, at once or as soon as it is about to wait."""
        self._woken = True
        if self._future is not None and not self._future.done():
            self._future.set_result(None)

    def end(self, reason: Ended) -> None:
        """Let the fetch answer with what it has; the first reason stands, unless nobody is there to be answered."""
        if self.ended in (Ended.NO, Ended.TIMEOUT):
            self.ended = reason
        self.wake()

    def end_after(self, clock: Clock, limit_ms: int) -> TimerHandle:
        """Let the fetch answer after this time; the timer is to be cancelled when the fetch is over."""
        return clock.call_later(limit_ms / 1000, lambda: self.end(Ended.TIMEOUT))

    async def wait(self) -> None:
        """Wait until woken or ended."""
        if not self._woken:
            answers.space().give_place()
            self._future = asyncio.get_running_loop().create_future()
            try:
                await self._future
            finally:
                self._future = None
        self._woken = False


class Standing(NamedTuple):
    """Of whom a fetch is that waits. singles: it takes records of parked keys, too."""

    member_id: str
    singles: bool


class WaitQueue:
    """The fetches that wait at one share-partition, longest waiting first, each with its member.

    One that is woken leaves the line, and is *called* until it has come to look, or has gone. A *poor* one's member
    holds nothing.
    """

    __slots__ = ("_called", "_waiters")

    def __init__(self) -> None:
        self._waiters: dict[Waiter, Standing] = {}
        self._called: dict[Waiter, Standing] = {}

    def __len__(self) -> int:
        """How many wait, without those that are called."""
        return len(self._waiters)

    @property
    def called(self) -> int:
        """How many are woken and have not come yet."""
        return len(self._called)

    def park(self, waiter: Waiter, member_id: str, *, singles: bool = False) -> None:
        """Stand in line, keeping the place of one who already does."""
        self._called.pop(waiter, None)
        if waiter not in self._waiters:
            self._waiters[waiter] = Standing(member_id, singles)

    def leave(self, waiter: Waiter) -> None:
        """Stand in line no more; harmless for one who does not."""
        self._called.pop(waiter, None)
        self._waiters.pop(waiter, None)

    def poor(self, held: Container[str], but: str, most: int, *, singles: bool | None = None) -> int:
        """How many poor ones wait, or are called, counted up to `most`; without the member `but`.

        singles: only those that do (True) or do not (False) take records of parked keys; None: all. Without those that
        are busy elsewhere: what they read there may take long.
        """
        if not self._waiters and not self._called:
            return 0
        standing = itertools.chain(self._called.items(), self._waiters.items())
        found = (
            True
            for waiter, (member_id, takes) in standing
            if member_id not in held and member_id != but and singles in (None, takes) and waiter.at in (None, self)
        )
        return sum(itertools.islice(found, most))

    def wake_by(self, place: Callable[[str], Any]) -> None:
        """Wake the one whose member has the lowest place, among equals the one that has waited longest."""
        if self._waiters:
            self._wake(min(self._waiters, key=lambda waiting: place(self._waiters[waiting].member_id)))

    def wake_poor(self, held: Container[str], count: int, *, apart: bool = False) -> None:
        """Wake the `count` poor ones that have waited longest, or if there is none the one that has.

        apart: of those that take records of parked keys, and of those that do not, each: one of them is the right one.
        """
        for singles in (True, False) if apart else (None,):
            line = (item for item in self._line() if singles in (None, item[1].singles))
            first = next(line, None)
            if first is None:
                continue
            poor = (one for one, (member_id, _) in itertools.chain((first,), line) if member_id not in held)
            for waiter in list(itertools.islice(poor, max(1, count))) or [first[0]]:
                self._wake(waiter)

    def _line(self) -> Iterable[tuple[Waiter, Standing]]:
        """Longest waiting first; those that take something elsewhere last, as they come later."""
        line = self._waiters.items()
        if all(waiter.at is None for waiter in self._waiters):
            return line
        return sorted(line, key=lambda item: item[0].at not in (None, self))

    def wake_some(self, count: int) -> None:
        """Wake the `count` that have waited longest; they leave the line."""
        for waiter in tuple(itertools.islice(self._waiters, count)):
            self._wake(waiter)

    def wake_all(self) -> None:
        """Wake everyone: the share-partition is no longer served here."""
        self.wake_some(len(self._waiters))

    def _wake(self, waiter: Waiter) -> None:
        self._called[waiter] = self._waiters.pop(waiter)
        waiter.wake()


class Purgatory:
    """Fetches that wait, and how much they take together; when that is too much, those go that take most."""

    def __init__(self, parts_max: int) -> None:
        """parts_max: partitions of all of them."""
        self._parts_max = parts_max
        self._parts = 0
        self._sizes: dict[Waiter, int] = {}
        self._alike: dict[int, dict[Waiter, None]] = {}
        """Those of about the same size, longest waiting first."""

    def __len__(self) -> int:
        """Partitions of all that wait."""
        return self._parts

    def add(self, waiter: Waiter, parts: int) -> None:
        """A fetch of so many partitions waits; it is ended with others, or itself, when there are too many."""
        self._parts += parts
        self._sizes[waiter] = parts
        self._alike.setdefault(parts.bit_length(), {})[waiter] = None
        while self._parts > self._parts_max and len(self._sizes) > 1:
            largest = next(iter(self._alike[max(self._alike)]))
            self.remove(largest)
            largest.end(Ended.TIMEOUT)

    def remove(self, waiter: Waiter) -> None:
        """It waits no more; harmless for one that does not."""
        parts = self._sizes.pop(waiter, None)
        if parts is None:
            return
        self._parts -= parts
        alike = self._alike[parts.bit_length()]
        del alike[waiter]
        if not alike:
            del self._alike[parts.bit_length()]


class Alarm:
    """Sleeping until something is due or something happens, whichever is first.

    One task sleeps on it, anybody rings it; a ring while nobody sleeps ends the next sleep at once.
    """

    __slots__ = ("_clock", "_future", "_rung", "due_ms")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._future: asyncio.Future[None] | None = None
        self._rung = False
        self.due_ms: int | None = None
        """What the sleeper waits for, None when it does not sleep or has no deadline."""

    def ring(self) -> None:
        """Wake the sleeper."""
        self._rung = True
        if self._future is not None and not self._future.done():
            self._future.set_result(None)

    async def sleep_until(self, due_ms: int | None) -> None:
        """Sleep until `due_ms` (None: for ever) or until rung; a millisecond at least if it is due already."""
        if self._rung:
            self._rung = False
            return
        self._future = asyncio.get_running_loop().create_future()
        self.due_ms = due_ms
        timer = None
        if due_ms is not None:
            timer = self._clock.call_later(max(1, due_ms - self._clock.steady_ms()) / 1000, self.ring)
        try:
            await self._future
        finally:
            self._future = None
            self._rung = False
            self.due_ms = None
            if timer is not None:
                timer.cancel()
