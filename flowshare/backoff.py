"""Pauses between tries of what failed, one rule for all: pure values, without a clock and without randomness."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Backoff:
    """Pauses that grow while one thing fails again and again, and begin anew after it has succeeded.

    first, most: the pause, in seconds, after one failure, and the longest one. factor: each pause is so many times as
    long as the one before; 1: all are the same. jitter: the part of a pause that `after` may take off at random, 0 to
    1, so that those which failed together do not come back together. Raises: ValueError.
    """

    first: float = 0.1
    most: float = 5.0
    factor: float = 2.0
    jitter: float = 0.0

    def __post_init__(self) -> None:
        """Check the values. Raises: ValueError."""
        if not (self.first >= 0 and self.most >= 0 and self.factor >= 1 and 0 <= self.jitter <= 1):
            raise ValueError(f"pauses are 0 or more, their factor 1 or more, their jitter 0 to 1: not {self}")

    def after(self, failures: int, random: float = 0.0) -> float:
        """Return the pause, in seconds, after so many failures in a row; 0 after none.

        random: from 0 to 1, the part of the jitter that is taken off.
        """
        if failures <= 0 or not self.first:
            return 0.0
        try:
            pause = min(self.first * self.factor ** (failures - 1), self.most)
        except OverflowError:
            pause = self.most
        return pause * (1 - self.jitter * random)


USUAL: Final = Backoff()
"""For work that waits for another process: a leader that moves, a broker that restarts."""
QUICK: Final = Backoff(0.05, 1.0)
"""For what others wait for: a place in a group, a slot, the bounds of a log."""
SLOW: Final = Backoff(1.0, 30.0)
"""For what a person may have to mend: a topic that refuses records, a full disk."""
