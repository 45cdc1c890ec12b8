"""`Lease`: whether this process is the one that runs what is `on_leader`, by what the app's lease group answered; and
`LeaseGuard`, which runs that for as long as the lease is held.

The lease group is a consumer group in which each process of the app is a member. Each of its generations names one
member, in the assignment that the group's coordinator gives to all of them.

Invariant: at any moment at most one process of an app has `held`. It rests on two things that a coordinator keeps:
generations only grow, and a heartbeat of generation g is answered well only while g is the group's generation. So:

- who is named in g holds from a good answer on until HELD_S after that question was *sent*: no later than HELD_S
  after g was over;
- who is named in another generation begins WAIT_S after it heard so, by its own clock, and WAIT_S is longer, by more
  than what clocks run apart in that time;
- it begins at once only where nobody else can hold: it was itself the one of this generation or of the last one, or
  the group is new (generation 1).

Session and rebalance timeouts decide how soon a dead process is replaced, not whether two run at once.

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

Time is taken from both clocks, as a machine that is suspended stops the monotonic one and the other one may be set:
the lease is over when either says so.

What the guard does with a function that is `on_leader`:

    state     event                                       next
    -         called while the lease is held              RUNNING
    -         called while it is not                      not run
    RUNNING   the function ends                           ended
    RUNNING   the lease lapses                            cancelled at the await where it is
    RUNNING   the process stood still; the lease lapsed   cancelled before its next step

A step is what runs between two awaits. Nothing can stop a step under way: a function that blocks the loop, or that is
in the middle of a step while the process stands still, finishes that step.
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
"""How long a good answer lasts."""
WAIT_S: Final = 6.0
"""How long who is named waits until nobody else can hold: HELD_S, and a fifth for clocks that run apart."""
FIRST: Final = 1
"""The first generation of a group."""
LOOK_S: Final = 0.25
"""How often a task that waits for the lease looks."""

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
    """When the lease is held: from `since_ms` to `until_ms` by one clock, and before `until_s` by the other."""

    until_s: float
    since_ms: float
    until_ms: float


NEVER: Final = Term(-math.inf, 0, 0)
ALWAYS: Final = Term(math.inf, -math.inf, math.inf)


class Lease:
    """One process's. Changed on one thread; `held` and `left_s` may be asked on any."""

    def __init__(self) -> None:
        self._term = NEVER
        self._named: int | None = None
        """The last generation that named this process; None: the last one named another, or is not known."""
        self._free_s = math.inf
        """From when on nobody else can hold."""

    def held(self, at: Moment) -> bool:
        """Whether it is held at a moment: now."""
        term = self._term
        return at.monotonic_s < term.until_s and term.since_ms <= at.now_ms < term.until_ms

    def left_s(self, at: Moment) -> float:
        """Seconds that it is held for without another answer; 0 when it is not."""
        if not self.held(at):
            return 0.0
        return min(self._term.until_s - at.monotonic_s, (self._term.until_ms - at.now_ms) / 1000)

    def name(self, generation: int, *, asked: Moment, now: Moment) -> None:
        """The group's generation names this process, as was asked at `asked` and heard `now`."""
        if self._named is None or self._named not in (generation, generation - 1):
            self._term = NEVER
            self._free_s = -math.inf if generation == FIRST else now.monotonic_s + WAIT_S
        self._named = generation
        self._prove(asked)

    def beat(self, generation: int, *, asked: Moment) -> None:
        """A heartbeat of this generation, sent at `asked`, was answered well."""
        if generation == self._named:
            self._prove(asked)

    def drop(self) -> None:
        """Another process is named, the group gave this one up, or it ends: not held from now on."""
        self._named = None
        self._free_s = math.inf
        self._term = NEVER

    def keep(self) -> None:
        """No other process can be there: held for good."""
        self._term = ALWAYS

    def _prove(self, asked: Moment) -> None:
        if asked.monotonic_s < self._free_s:
            return
        self._term = Term(asked.monotonic_s + HELD_S, asked.now_ms, asked.now_ms + HELD_S * 1000)


class LeaseGuard:
    """One app's. The lease is sought when something wants it: an app without anything `on_leader` has no such group."""

    def __init__(self) -> None:
        self.lease = Lease()
        self.clock: Clock = LoopClock()
        self.wanted = False
        """Whether something has asked for the lease, so that the process seeks it."""
        self._seek: Callable[[], object] | None = None

    @property
    def held(self) -> bool:
        """Whether this process holds the lease now; the first question makes it ask for it. Any thread."""
        self._want()
        return self._held()

    def join(self, seek: Callable[[], object]) -> None:
        """The app runs; seek: called when something wants the lease, from any thread."""
        self._seek = seek
        if self.wanted:
            seek()

    def leave(self) -> None:
        """The app ends: the lease is not held any more."""
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
        """The function, run only while the lease is held: for what is called again and again."""
        self._want()

        @functools.wraps(function)
        async def guarded(*args: Any) -> None:
            if self._held():
                await self._run(function, args)

        return guarded

    def guard_task(self, function: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[None]]:
        """The function, begun as soon as the lease is held, and once more each time that it lapsed meanwhile."""
        self._want()

        @functools.wraps(function)
        async def guarded(*args: Any) -> None:
            while True:
                if self._held() and await self._run(function, args):
                    return
                await self.clock.sleep(LOOK_S)

        return guarded

    async def _run(self, function: Callable[..., Awaitable[Any]], args: tuple[Any, ...]) -> bool:
        """Run it for as long as the lease is held; whether it ended by itself. Raises: what it raises."""
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
                continue  # it may have been made longer meanwhile


class _Steps(Coroutine[Any, Any, Any]):
    """A coroutine that looks before each of its steps whether it may go on, and is cancelled when it may not."""

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
        """Whether it lapsed just now: once, so that what cleans up afterwards may wait."""
        if self.lapsed or self._held():
            return False
        self.lapsed = True
        return True


async def _call(function: Callable[..., Awaitable[Any]], args: tuple[Any, ...]) -> Any:
    return await function(*args)


def _name(function: Callable[..., Any]) -> str:
    return str(getattr(function, "__qualname__", function))
