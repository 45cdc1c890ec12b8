"""`Lease` says if this process runs the `on_leader` functions, by the answers of the app's lease group; `LeaseGuard`
runs them for as long as the lease is held.

The lease group is a consumer group in which each process of the app is a member. Each of its generations names one
member, in the assignment that the group's coordinator gives to all of them.

Invariant: at any moment at most one process of an app has `held`. It rests on two properties of a coordinator:
generations only grow, and a heartbeat of generation g is answered well only while g is the group's generation. So:

- the process named in g holds from a good answer on until HELD_S after that question was *sent*: no later than HELD_S
after g was over;
- a process named in another generation begins WAIT_S after it heard so, by its own clock, and WAIT_S is longer than
HELD_S by more than clocks run apart in that time;
- a process begins at once only if nobody else can hold: it was itself named in this generation or the last one, or
the group is new (generation 1).

Session and rebalance timeouts only decide how soon a dead process is replaced; two never run at once.

    state     event                                            next
    NONE      named in the first generation                    HELD
    NONE      named in a later one                             WAITING until WAIT_S from now
    WAITING   a good heartbeat, WAIT_S not over                WAITING
    WAITING   a good heartbeat, WAIT_S over                    HELD until HELD_S after it was sent
    HELD      a good heartbeat                                 HELD until HELD_S after it was sent
    WAITING,  named in the next generation, too                as it was; HELD for HELD_S more
    HELD
    HELD      no good answer for HELD_S                        LAPSED: not held; a good heartbeat: HELD again
    any       another one is named, the group gave it up,      NONE
              it ends

Time is taken from both clocks, as a suspended machine stops the monotonic clock, and the wall clock may be set: the
lease is over when either clock says so.

The guard's treatment of an `on_leader` function:

    state     event                                       next
    -         called while the lease is held              RUNNING
    -         called while it is not                      not run
    RUNNING   the function ends                           ended
    RUNNING   the lease lapses                            cancelled at the await where it is
    RUNNING   the process stood still; the lease lapsed   cancelled before its next step

A step is the code between two awaits. Nothing can stop a step under way: a function that blocks the loop, or that is in
the middle of a step while the process stands still, finishes that step.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import math
from collections.abc import Awaitable, Callable, Coroutine, Generator
from typing import Any, Final, NamedTuple

from flowshare.clock import Clock, LoopClock
from flowshare.tasks import cancelled

HELD_S: Final = 5.0
"""Seconds that a good answer lasts."""
WAIT_S: Final = 6.0
"""Seconds that a named process waits until nobody else can hold: HELD_S, and a fifth for clocks that run apart."""
FIRST: Final = 1
"""First generation of a group."""
LOOK_S: Final = 0.25
"""Seconds between two looks of a task that waits for the lease."""

logger = logging.getLogger("flowshare.agents")


class Moment(NamedTuple):
    """A time by both clocks: seconds that never go back, milliseconds since 1970."""

    monotonic_s: float
    now_ms: int

    @classmethod
    def of(cls, clock: Clock) -> Moment:
        """Now."""
        return cls(clock.monotonic(), clock.now_ms())


class Term(NamedTuple):
    """Time of holding: from `since_ms` to `until_ms` by the wall clock, and before `until_s` by the monotonic one."""

    until_s: float
    since_ms: float
    until_ms: float


NEVER: Final = Term(-math.inf, 0, 0)
ALWAYS: Final = Term(math.inf, -math.inf, math.inf)


class Lease:
    """One process's lease. Changed on one thread; `held` and `left_s` may be called on any thread."""

    def __init__(self) -> None:
        self._term = NEVER
        self._named: int | None = None
        """Last generation that named this process; None: the last one named another, or is unknown."""
        self._free_s = math.inf
        """Time from which on nobody else can hold."""

    def held(self, at: Moment) -> bool:
        """Tell if the lease is held at a moment, which must be now."""
        term = self._term
        return at.monotonic_s < term.until_s and term.since_ms <= at.now_ms < term.until_ms

    def left_s(self, at: Moment) -> float:
        """Return seconds that the lease is held without another answer; 0 when it is not held."""
        if not self.held(at):
            return 0.0
        return min(self._term.until_s - at.monotonic_s, (self._term.until_ms - at.now_ms) / 1000)

    def name(self, generation: int, *, asked: Moment, now: Moment) -> None:
        """Note that the group's generation names this process, as asked at `asked` and heard `now`."""
        if self._named is None or self._named not in (generation, generation - 1):
            self._term = NEVER
            self._free_s = -math.inf if generation == FIRST else now.monotonic_s + WAIT_S
        self._named = generation
        self._prove(asked)

    def beat(self, generation: int, *, asked: Moment) -> None:
        """Note a good answer to a heartbeat of this generation, sent at `asked`."""
        if generation == self._named:
            self._prove(asked)

    def drop(self) -> None:
        """Drop the lease: another process is named, the group gave this one up, or it ends."""
        self._named = None
        self._free_s = math.inf
        self._term = NEVER

    def keep(self) -> None:
        """Hold the lease for good: there can be no other process."""
        self._term = ALWAYS

    def _prove(self, asked: Moment) -> None:
        if asked.monotonic_s < self._free_s:
            return
        self._term = Term(asked.monotonic_s + HELD_S, asked.now_ms, asked.now_ms + HELD_S * 1000)


class LeaseGuard:
    """One app's guard. The lease is sought at first need: an app without `on_leader` functions has no lease group."""

    def __init__(self) -> None:
        self.lease = Lease()
        self.clock: Clock = LoopClock()
        self.wanted = False
        """True if something has asked for the lease, so that the process seeks the lease."""
        self._seek: Callable[[], object] | None = None

    @property
    def held(self) -> bool:
        """True if this process holds the lease now; the first call makes the process seek the lease. Any thread."""
        self._want()
        return self._held()

    def join(self, seek: Callable[[], object]) -> None:
        """Note that the app runs. seek: called when something wants the lease, from any thread."""
        self._seek = seek
        if self.wanted:
            seek()

    def leave(self) -> None:
        """Drop the lease as the app ends."""
        self._seek = None
        self.lease.drop()

    def _want(self) -> None:
        if not self.wanted:
            self.wanted = True
            if self._seek is not None:
                self._seek()

    def _held(self) -> bool:
        return self.lease.held(Moment.of(self.clock))

    def guard(self, function: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[None]]:
        """Wrap a function that is called again and again: it runs only while the lease is held."""
        self._want()

        @functools.wraps(function)
        async def guarded(*args: Any) -> None:
            if self._held():
                await self._run(function, args)

        return guarded

    def guard_task(self, function: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[None]]:
        """Wrap a function that begins as soon as the lease is held, and again after each lapse meanwhile."""
        self._want()

        @functools.wraps(function)
        async def guarded(*args: Any) -> None:
            while True:
                if self._held() and await self._run(function, args):
                    return
                await self.clock.sleep(LOOK_S)

        return guarded

    async def _run(self, function: Callable[..., Awaitable[Any]], args: tuple[Any, ...]) -> bool:
        """Run a function while the lease is held; return True if it ended by itself. Raises: its errors."""
        steps = _Steps(_call(function, args), self._held)
        task = asyncio.get_running_loop().create_task(steps, name=f"on_leader {_name(function)}")
        try:
            await self._while_held(task, steps)
        except asyncio.CancelledError:
            await cancelled(task)
            raise
        if not steps.lapsed:
            task.result()
            return True
        logger.warning("%s was cancelled: this process holds the app's lease no more", _name(function))
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("%s failed as it was cancelled", _name(function), exc_info=error)
        return False

    async def _while_held(self, task: asyncio.Task[Any], steps: _Steps) -> None:
        """Wait for the task, and cancel it when the lease lapses."""
        while not task.done():
            left_s = self.lease.left_s(Moment.of(self.clock))
            if left_s <= 0:
                steps.lapsed = True
                await cancelled(task)
                return
            try:
                await self.clock.wait_for(asyncio.wait({task}), left_s)
            except TimeoutError:
                continue  # the lease may be longer by now


class _Steps(Coroutine[Any, Any, Any]):
    """A coroutine that checks before each of its steps if it may go on, and is cancelled when it may not."""

    def __init__(self, coroutine: Coroutine[Any, Any, Any], held: Callable[[], bool]) -> None:
        self._coroutine = coroutine
        self._held = held
        self.lapsed = False

    def send(self, value: Any) -> Any:
        if self._lapses():
            return self._coroutine.throw(asyncio.CancelledError("the app's lease lapsed"))
        return self._coroutine.send(value)

    def throw(self, *error: Any) -> Any:
        self._lapses()
        return self._coroutine.throw(*error)

    def close(self) -> None:
        self._coroutine.close()

    def __await__(self) -> Generator[Any, Any, Any]:
        return self._coroutine.__await__()

    def _lapses(self) -> bool:
        """Tell if the lease lapsed just now; True only once, so that clean-up code in the coroutine may still await."""
        if self.lapsed or self._held():
            return False
        self.lapsed = True
        return True


async def _call(function: Callable[..., Awaitable[Any]], args: tuple[Any, ...]) -> Any:
    return await function(*args)


def _name(function: Callable[..., Any]) -> str:
    return str(getattr(function, "__qualname__", function))
