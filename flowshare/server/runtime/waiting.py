"""Waiting: a request that waits to be woken (Kafka's purgatory), a task that sleeps until a deadline.

`Waiter` is one waiting request, mostly a fetch for records; `WaitQueue` has those at one share-partition, `Purgatory`
bounds those of all. `Alarm` is for a task that does work when due.

A parked fetch waits at each share-partition of its session. Records that become available there wake one waiter, the
longest waiting; when that waiter is done and records are left, the next is woken. So an append of a few records does
not wake every member of a group to find nothing.

Where keys have an order, records that a member holds ahead keep their key from the others. There, members that hold
nothing go first, also before a fetch that just comes: that fetch leaves one key for each of them.
"""

from __future__ import annotations

import asyncio
import enum
import itertools
from typing import TYPE_CHECKING, Any, NamedTuple

from flowshare.server.runtime import answers

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Iterator

    from flowshare.clock import Clock, TimerHandle


class Ended(enum.Enum):
    """Reason why a fetch stops waiting for good."""

    NO = "it goes on"
    TIMEOUT = "its wait limit came, or its session asked for its answer"
    SESSION = "its session was closed or replaced"
    CONNECTION = "its connection was closed"


class Waiter:
    """One fetch, parked or about to look again."""

    __slots__ = ("_future", "_woken", "at", "ended", "keys", "min_bytes")

    def __init__(self) -> None:
        self.min_bytes = 1
        """The fetch waits for so many bytes of records (MinBytes), of all its share-partitions together."""
        self.keys: frozenset[Any] = frozenset()
        """Its share-partitions."""
        self.ended = Ended.NO
        self.at: WaitQueue | None = None
        """The queue where the fetch takes records just now; it comes to the other share-partitions later."""
        self._woken = False
        self._future: asyncio.Future[None] | None = None

    @property
    def abandoned(self) -> bool:
        """True if nobody is left to give records to: the fetch's session or connection has ended."""
        return self.ended in (Ended.SESSION, Ended.CONNECTION)

    def wake(self) -> None:
        """Let the fetch look again, at once or as soon as it is about to wait."""
        self._woken = True
        if self._future is not None and not self._future.done():
            self._future.set_result(None)

    def end(self, reason: Ended) -> None:
        """Let the fetch answer with its present records; the first reason stands, but an ended session or connection
        replaces TIMEOUT."""
        if self.ended in (Ended.NO, Ended.TIMEOUT):
            self.ended = reason
        self.wake()

    def end_after(self, clock: Clock, limit_ms: int) -> TimerHandle:
        """Let the fetch answer after `limit_ms`; cancel the returned timer when the fetch is over."""
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
    """Place of a waiting fetch: its member. singles: True if the fetch takes records of parked keys, too."""

    member_id: str
    singles: bool


class WaitQueue:
    """The fetches that wait at one share-partition, longest waiting first, each with its member.

    A woken fetch leaves the line, and is *called* until it looks or ends. A *poor* fetch's member holds nothing.
    """

    __slots__ = ("_called", "_waiters")

    def __init__(self) -> None:
        self._waiters: dict[Waiter, Standing] = {}
        self._called: dict[Waiter, Standing] = {}

    def __len__(self) -> int:
        """Return how many fetches wait, without called ones."""
        return len(self._waiters)

    def __iter__(self) -> Iterator[Waiter]:
        """Iterate over the fetches that wait, without called ones, longest waiting first."""
        return iter(self._waiters)

    @property
    def called(self) -> int:
        """Number of woken fetches that have not looked yet."""
        return len(self._called)

    def park(self, waiter: Waiter, member_id: str, *, singles: bool = False) -> None:
        """Put a fetch in line; a fetch in line already keeps its place."""
        self._called.pop(waiter, None)
        if waiter not in self._waiters:
            self._waiters[waiter] = Standing(member_id, singles)

    def leave(self, waiter: Waiter) -> bool:
        """Take a fetch out of the line, if it is there. Return True if the fetch was called and had not looked."""
        self._waiters.pop(waiter, None)
        return self._called.pop(waiter, None) is not None

    def poor(self, held: Container[str], but: str, most: int, *, singles: bool | None = None) -> int:
        """Return how many poor fetches wait or are called, at most `most`; without the member `but`.

        singles: only fetches that do (True) or do not (False) take records of parked keys; None: all. Fetches that are
        busy at another share-partition do not count: their reads may take long.
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

    def wake_by(self, place: Callable[[str], Any], but: Container[Waiter] = ()) -> None:
        """Wake the fetch whose member has the lowest place, among equals the longest waiting; none of `but`."""
        left = [waiter for waiter in self._waiters if waiter not in but]
        if left:
            self._wake(min(left, key=lambda waiting: place(self._waiters[waiting].member_id)))

    def wake_poor(self, held: Container[str], count: int, *, apart: bool = False) -> None:
        """Wake the `count` longest waiting poor fetches, or without any the longest waiting fetch.

        apart: do so among fetches that take records of parked keys, and among those that do not: one of the two fits.
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
        """Return the line, longest waiting first; fetches busy at another share-partition last, as they come later."""
        line = self._waiters.items()
        if all(waiter.at is None for waiter in self._waiters):
            return line
        return sorted(line, key=lambda item: item[0].at not in (None, self))

    def wake_some(self, count: int, but: Container[Waiter] = ()) -> None:
        """Wake the `count` longest waiting fetches, none of `but`; they leave the line."""
        for waiter in tuple(itertools.islice((waiter for waiter in self._waiters if waiter not in but), count)):
            self._wake(waiter)

    def wake_all(self) -> None:
        """Wake all fetches: the share-partition is no longer served here."""
        self.wake_some(len(self._waiters))

    def _wake(self, waiter: Waiter) -> None:
        self._called[waiter] = self._waiters.pop(waiter)
        waiter.wake()


class Purgatory:
    """The waiting fetches and their partitions; with too many partitions, the largest fetches are ended."""

    def __init__(self, parts_max: int) -> None:
        """parts_max: most partitions of all fetches together."""
        self._parts_max = parts_max
        self._parts = 0
        self._sizes: dict[Waiter, int] = {}
        self._alike: dict[int, dict[Waiter, None]] = {}
        """Fetches by about the same size, longest waiting first."""

    def __len__(self) -> int:
        """Return the partitions of all waiting fetches."""
        return self._parts

    def add(self, waiter: Waiter, parts: int) -> None:
        """Add a fetch of `parts` partitions; over the limit, end the largest fetches, which may include this one."""
        self._parts += parts
        self._sizes[waiter] = parts
        self._alike.setdefault(parts.bit_length(), {})[waiter] = None
        while self._parts > self._parts_max and len(self._sizes) > 1:
            largest = next(iter(self._alike[max(self._alike)]))
            self.remove(largest)
            largest.end(Ended.TIMEOUT)

    def remove(self, waiter: Waiter) -> None:
        """Remove a fetch whose wait has ended; harmless for one that does not wait."""
        parts = self._sizes.pop(waiter, None)
        if parts is None:
            return
        self._parts -= parts
        alike = self._alike[parts.bit_length()]
        del alike[waiter]
        if not alike:
            del self._alike[parts.bit_length()]


class Alarm:
    """Sleep until a deadline or an event, whichever is first.

    One task sleeps on the alarm, anybody rings it; a ring while nobody sleeps ends the next sleep at once.
    """

    __slots__ = ("_clock", "_future", "_rung", "due_ms")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._future: asyncio.Future[None] | None = None
        self._rung = False
        self.due_ms: int | None = None
        """The deadline of the sleeper, in ms of the steady clock; None: the task does not sleep or has no deadline."""

    def ring(self) -> None:
        """Wake the sleeper."""
        self._rung = True
        if self._future is not None and not self._future.done():
            self._future.set_result(None)

    async def sleep_until(self, due_ms: int | None) -> None:
        """Sleep until `due_ms` (None: for ever) or until rung; at least a millisecond if `due_ms` has passed."""
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
