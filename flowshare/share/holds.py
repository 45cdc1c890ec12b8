"""Holds keep offsets until a time: a member's acquisition lock, or the delay of a release.

One `Hold` stands for all offsets of one acquire, one renewal or one delayed release; the window stores the hold's id
beside each offset. Deadlines are a heap of (time, id). Dead entries are dropped when they come up, so that neither a
record nor a hold needs a timer.
"""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heapify, heappop, heappush

from flowshare.share.allotment import Tally

_SLACK = 64


@dataclass(slots=True, kw_only=True)
class Hold:
    """Offsets within `first`..`last` (inclusive, not necessarily all) kept for `member_id` until `due_ms`.

    member_id: the owner of the lock; None for the delay of a release.
    remaining: offsets that still carry this hold; the hold ends with the last of them.
    lapsed: its time came (or its member left) while a write was pending on some of its offsets.
    orphan: its member is gone without leaving, but its lock still runs until its time.
    unconfirmed: its records are being read, nothing of it is written, and no member has seen them: it counts no
        delivery.
    """

    hold_id: int
    member_id: str | None
    due_ms: int
    first: int
    last: int
    remaining: int
    lapsed: bool = False
    orphan: bool = False
    unconfirmed: bool = False


class Holds:
    """All holds of one share-partition, by id and by deadline. `tally`: the number of offsets that each member
    holds."""

    def __init__(self) -> None:
        self.by_id: dict[int, Hold] = {}
        self.tally = Tally()
        self._heap: list[tuple[int, int]] = []
        self._next_id = 1  # 0 beside an offset means: not held

    def open(self, member_id: str | None, due_ms: int, first: int, last: int, remaining: int) -> Hold:
        """Begin to hold `remaining` offsets within `first`..`last`."""
        hold = Hold(
            hold_id=self._next_id, member_id=member_id, due_ms=due_ms, first=first, last=last, remaining=remaining
        )
        self._next_id += 1
        self.by_id[hold.hold_id] = hold
        if member_id is not None:
            self.tally.add(member_id, remaining)
        if len(self._heap) > 2 * len(self.by_id) + _SLACK:
            # Renewals and acknowledgements leave dead entries behind; they are swept once they outweigh the live ones.
            self._heap = [(held.due_ms, held.hold_id) for held in self.by_id.values() if not held.lapsed]
            heapify(self._heap)
        else:
            heappush(self._heap, (due_ms, hold.hold_id))
        return hold

    def let_go(self, hold_id: int, count: int) -> None:
        """Take `count` offsets off a hold."""
        hold = self.by_id[hold_id]
        hold.remaining -= count
        if hold.member_id is not None:
            self.tally.add(hold.member_id, -count)
        if hold.remaining < 0:
            raise RuntimeError(f"a hold of {hold.member_id} gave back more offsets than it had")
        if not hold.remaining:
            del self.by_id[hold_id]

    def take_due(self, now_ms: int) -> list[Hold]:
        """Take off the heap every hold whose time has come; the caller settles their offsets."""
        due: list[Hold] = []
        while self._heap and self._heap[0][0] <= now_ms:
            hold = self.by_id.get(heappop(self._heap)[1])
            if hold is not None and not hold.lapsed:
                due.append(hold)
        return due

    def put_off(self, now_ms: int, by_ms: int) -> None:
        """Put off the locks: none lapses before `now_ms` + `by_ms`, because their keeper could not hear renewals."""
        until_ms = now_ms + by_ms
        for hold in self.by_id.values():
            if hold.member_id is not None and not hold.lapsed and hold.due_ms < until_ms:
                hold.due_ms = until_ms
        self._heap = [(held.due_ms, held.hold_id) for held in self.by_id.values() if not held.lapsed]
        heapify(self._heap)

    def take_member(self, member_id: str) -> list[Hold]:
        """Return the holds of a member; the caller settles their offsets."""
        return [hold for hold in self.by_id.values() if hold.member_id == member_id and not hold.lapsed]

    def next_due_ms(self) -> int | None:
        """Return the earliest deadline, None without holds."""
        while self._heap:
            due_ms, hold_id = self._heap[0]
            hold = self.by_id.get(hold_id)
            if hold is not None and not hold.lapsed:
                return due_ms
            heappop(self._heap)
        return None

    def clear(self) -> None:
        """Forget all holds."""
        self.by_id.clear()
        self.tally.clear()
        self._heap.clear()
