"""Whose turn it is where some records were delivered before and some were not: `share.delivery.priority` (SG-4.2).

| priority     | a turn of the redeliveries is followed by | a turn of the new ones is followed by          |
|--------------|--------------------------------------------|-------------------------------------------------|
| redeliveries | redeliveries                               | –                                               |
| new          | new                                        | new; redeliveries if the turn gave nothing      |
| mixed        | new                                        | redeliveries                                    |

A turn is one acquire. It counts only where both are to be had: new ones that are not there, or for which the window
has no room, leave their turn to the redeliveries. So with `new`, too, a redelivery waits at most until the window is
full.
"""

from __future__ import annotations

from flowshare.share.types import Priority


class Alternation:
    """Whose turn it is in one share-partition. `new`: the next one is that of records that were never delivered."""

    __slots__ = ("_priority", "new")

    def __init__(self) -> None:
        self._priority: Priority = Priority.REDELIVERIES
        self.new = False

    def follow(self, priority: Priority) -> None:
        """Keep to this priority from now on."""
        if priority is not self._priority:
            self._priority = priority
            self.new = priority is Priority.NEW

    def took(self, *, new: bool, nothing: bool) -> None:
        """An acquire was the turn of the new ones, or not, and gave nothing, or something."""
        if self._priority is Priority.NEW:
            self.new = not (new and nothing)
        elif self._priority is Priority.MIXED:
            self.new = not new
