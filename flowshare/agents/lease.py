"""`Lease`: whether this process is the one that runs what is `on_leader`, by what the app's leader group answered.

The leader group is a consumer group in which each process of the app is a member. Each of its generations names one
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
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

HELD_S: Final = 5.0
"""How long a good answer lasts."""
WAIT_S: Final = 6.0
"""How long who is named waits until nobody else can hold: HELD_S, and a fifth for clocks that run apart."""
FIRST: Final = 1
"""The first generation of a group."""


class Moment(NamedTuple):
    """A time by both clocks: seconds that never go back, milliseconds since 1970."""

    monotonic_s: float
    now_ms: int


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

    @property
    def named(self) -> bool:
        """Whether this process is the one of the group's generation, as far as it knows."""
        return self._named is not None

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
