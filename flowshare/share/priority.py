"""The turns of redelivered and new records: `share.delivery.priority` (SG-4.2).

| priority     | a turn of the redeliveries is followed by | a turn of the new ones is followed by          |
|--------------|--------------------------------------------|-------------------------------------------------|
| redeliveries | redeliveries                               | –                                               |
| new          | new                                        | new; redeliveries if the turn gave nothing      |
| mixed        | new                                        | redeliveries                                    |

A turn is one acquire. It counts only where both kinds are available: new records that are missing, or find no room in
the window, leave their turn to the redeliveries. So with `new`, too, a redelivery waits at most until the window is
full.
"""

from __future__ import annotations

from flowshare.share.types import Priority


class Alternation:
    """The turns in one share-partition. `new`: the next turn is that of records never delivered."""

    __slots__ = ("_priority", "new")

    def __init__(self) -> None:
        self._priority: Priority = Priority.REDELIVERIES
        self.new = False

    def follow(self, priority: Priority) -> None:
        """Follow this priority from now on."""
        if priority is not self._priority:
            self._priority = priority
            self.new = priority is Priority.NEW

    def took(self, *, new: bool, nothing: bool) -> None:
        """Note the turn of an acquire (`new`: of the new records) and if it gave nothing."""
        if self._priority is Priority.NEW:
            self.new = not (new and nothing)
        elif self._priority is Priority.MIXED:
            self.new = not new
