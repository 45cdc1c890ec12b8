"""Virtual time of worlds without tasks: whatever is due next happens next."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable

Event = Callable[[], object]


class Violation(AssertionError):
    """An invariant of a world does not hold."""


class Timeline:
    """Events in the order of their due times; of those due at once, the first that was asked for comes first.

    Times are in the world's own unit. Time moves by events alone, and by whatever the world sets `now` to.
    """

    def __init__(self, now: float = 0) -> None:
        self.now = now
        self._events: list[tuple[float, int, Event]] = []
        self._order = itertools.count()

    def at(self, due: float, event: Event) -> None:
        """Have an event happen at `due`; what is due in the past happens now."""
        heapq.heappush(self._events, (max(due, self.now), next(self._order), event))

    def after(self, delay: float, event: Event) -> None:
        """Have an event happen when `delay` has passed."""
        self.at(self.now + delay, event)

    @property
    def next_due(self) -> float | None:
        """Return the time of the next event; None: there is none."""
        return self._events[0][0] if self._events else None

    def step(self) -> None:
        """Move time to the next event, and have it happen. Raises: IndexError: there is none."""
        due, _, event = heapq.heappop(self._events)
        self.now = max(self.now, due)
        event()

    def advance(self, length: float) -> None:
        """Let `length` pass, with all that is due on the way."""
        end = self.now + length
        while self._events and self._events[0][0] <= end:
            self.step()
        self.now = end


def until_quiet(quiet: Callable[[], object], step: Event, *, steps_max: int, stuck: Callable[[], str]) -> None:
    """Step until the world is quiet. Raises: Violation: it never is in `steps_max` steps, with what `stuck` says."""
    for _ in range(steps_max):
        if quiet():
            return
        step()
    raise Violation(f"no end after {steps_max} steps: {stuck()}")
