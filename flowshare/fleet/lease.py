"""`Lease`: whether a worker may still act for its slots, by what its slot group's coordinator answered.

Invariant: `sure` is True only while the coordinator cannot have given the worker up by itself: a proof is an answer
that the coordinator gives to its members only, and it counts from when the question was sent. The lease is a brake, no
fence: who owns a slot is decided in its log. It is checked against the clock itself, so a process that was frozen
notices.

    off ──proved──▶ on, until the question was sent + session − margin ──proved──▶ on, until later
     ▲                │
     └── time is up, or `end` ──┘
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from flowshare.clock import Clock, TimerHandle


class Lease:
    """One worker's. length_s: session less margin. on_doubt: called with whether it is off, at each change."""

    def __init__(self, clock: Clock, length_s: float, on_doubt: Callable[[bool], object]) -> None:
        self._clock = clock
        self._length_s = length_s
        self._on_doubt = on_doubt
        self._until_s = -math.inf
        self._timer: TimerHandle | None = None

    @property
    def sure(self) -> bool:
        """Whether it is on; asked before each answer, so it costs next to nothing."""
        return self._clock.monotonic() < self._until_s

    def proved(self, sent_s: float) -> None:
        """The coordinator had this worker for a member at `sent_s` or later."""
        until_s = sent_s + self._length_s
        left_s = until_s - self._clock.monotonic()
        if left_s <= 0:
            return  # the answer came too late to prove anything
        if self._timer is not None and not self.sure:
            self.end()  # it ran out, and its timer is late
        timer, self._timer = self._timer, self._clock.call_later(left_s, self.end)
        self._until_s = until_s
        if timer is None:
            self._on_doubt(False)
        else:
            timer.cancel()

    def end(self) -> None:
        """It is off until the next proof."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._until_s = -math.inf
            self._on_doubt(True)
