"""Where a log was cut since a step was decided.

A decision keeps the fence that stood when it was made. A cut makes that one fall, at the offset of the cut, and puts up
the next; so a decision that is settled later sees over how much of it the cut went, and fences that nobody keeps any
more are gone by themselves. Offsets behind a cut come again as other records: a decision must not touch them.
"""

from __future__ import annotations


class Fence:
    """Stands until the log is cut."""

    __slots__ = ("_fell_at", "_next")

    def __init__(self) -> None:
        self._fell_at = 0
        self._next: Fence | None = None

    def fall(self, end: int) -> Fence:
        """The log was cut at `end`; the fence that stands from now on."""
        assert self._next is None, "a fence falls once"
        self._fell_at, self._next = end, Fence()
        return self._next

    def lowest(self) -> int | None:
        """The lowest offset at which the log was cut since this one was put up; None: it was not."""
        lowest: int | None = None
        fence = self
        while fence._next is not None:
            lowest = fence._fell_at if lowest is None else min(lowest, fence._fell_at)
            fence = fence._next
        return lowest
