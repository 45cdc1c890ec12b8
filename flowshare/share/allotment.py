"""One limit of records in flight, and how it is shared out among the members that want more than it gives (SG-4.7).

A limit is the record locks of a share-partition, or `share.max.in.flight` of a group. As long as it is enough for
everyone it does nothing. A member that the limit kept from available records is *hungry*. While others are hungry, a
member that asks is held to this:

- the fair share is the limit divided by all that hold something or are hungry, rounded up; a hungry member needs the
  records that it lacks to its fair share;
- a member at its fair share gets the free records beyond the needs of all hungry others, so nothing while they lack
  more than is free: a slow member keeps the records that it holds, freed records go to the others first;
- a member below it gets up to its fair share of the free records beyond the needs of those hungry before it. Before it
  are those that hold less and, holding the same, those that were served longer ago. So they take turns even where the
  limit is smaller than the number of members.

| a hungry member …                                        | is hungry                                      |
|----------------------------------------------------------|------------------------------------------------|
| is kept from records there again, or from records elsewhere | on, there too                               |
| gets all it wants                                        | no more                                        |
| stops waiting there (its fetch ended)                    | for GRACE_MS, in which it may come back        |
| waits, or comes back, where no records are left          | no more there                                  |
| leaves the group, or its session ends                    | no more                                        |
| is not heard of for HUNGRY_MS                            | no more                                        |

So nothing is kept for a member that could not take it. `again_ms` of a grant is the latest time to look again.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Final, NamedTuple

HUNGRY_MS: Final = 10_000
GRACE_MS: Final = 250
AGAIN_MS: Final = 1_000
_SLACK: Final = 64


class Grant(NamedTuple):
    """The number of records that a member may acquire now. `again_ms`: the latest time until which it waits for hungry
    others."""

    records: int
    again_ms: int | None = None


class Tally:
    """The number of records that each member holds. `above`: a tally over several such tallies, kept in step."""

    __slots__ = ("above", "held", "total")

    def __init__(self) -> None:
        self.held: dict[str, int] = {}
        self.total = 0
        self.above: Tally | None = None

    def add(self, member_id: str, count: int) -> None:
        """Add `count` records; a negative `count` takes records away."""
        left = self.held.get(member_id, 0) + count
        if left > 0:
            self.held[member_id] = left
        elif left == 0:
            self.held.pop(member_id, None)
        else:
            raise RuntimeError(f"member {member_id} gave back {-left} records more than it held")
        self.total += count
        if self.above is not None:
            self.above.add(member_id, count)

    def clear(self) -> None:
        """Note that no member holds any record."""
        for member_id, count in tuple(self.held.items()):
            self.add(member_id, -count)

    def join(self, above: Tally | None) -> None:
        """Count in `above` from now on, and no longer in the tally above before."""
        for tally, sign in ((self.above, -1), (above, 1)):
            if tally is not None:
                for member_id, count in self.held.items():
                    tally.add(member_id, sign * count)
        self.above = above


class _Hunger(NamedTuple):
    """The places where a member waits for more, and the time until which its waiting counts."""

    places: set[Hashable]
    until_ms: int


class Allotment:
    """A limit, the records in flight under it, and the hungry members.

    limit: records in flight at once; None: no limit. It can be set at any time; records in flight beyond it stay.
    tally: the records that each member holds.
    """

    __slots__ = ("_due_ms", "_hungry", "_served", "_turn", "limit", "tally")

    def __init__(self, limit: int | None = None, tally: Tally | None = None) -> None:
        self.limit = limit
        self.tally = tally or Tally()
        self._hungry: dict[str, _Hunger] = {}
        self._due_ms = 0  # no hunger ends by itself before
        self._served: dict[str, int] = {}  # member -> its last turn, longest ago first
        self._turn = 0

    @property
    def used_up(self) -> bool:
        """True if the limit is used up: no member can get a record now."""
        return self.limit is not None and self.tally.total >= self.limit

    def plenty(self, wanted: int) -> bool:
        """True if a member can have this many records at once: they are free, and no member is hungry."""
        return not self._hungry and (self.limit is None or self.limit - self.tally.total >= wanted)

    def grant(self, member_id: str, wanted: int, now_ms: int) -> Grant:
        """Return how many of `wanted` records (at least 1) a member may acquire now."""
        if self.limit is None:
            return Grant(wanted)
        free = max(0, self.limit - self.tally.total)
        if not self._hungry:
            return Grant(min(wanted, free))
        return self._divided(member_id, min(wanted, free), free, now_ms)

    def cut(self, member_id: str, where: Hashable, now_ms: int) -> None:
        """Note that this limit gave a member fewer available records than it wanted: the member is hungry now."""
        places = self._hungry[member_id].places if member_id in self._hungry else set[Hashable]()
        places.add(where)
        self._end(member_id, _Hunger(places, now_ms + HUNGRY_MS))

    def satisfied(self, member_id: str) -> None:
        """Note that a member got all it wanted: it is hungry no more."""
        if self._hungry:
            self._hungry.pop(member_id, None)

    def leave(self, member_id: str, where: Hashable, now_ms: int) -> None:
        """Note that a member stopped waiting at a place; it may come back at once."""
        hunger = self._hungry.get(member_id) if self._hungry else None
        if hunger is not None and where in hunger.places:
            hunger.places.remove(where)
            if not hunger.places:
                self._end(member_id, hunger._replace(until_ms=min(hunger.until_ms, now_ms + GRACE_MS)))

    def dry(self, where: Hashable, member_id: str | None = None) -> None:
        """Note that a place has no records left, so no member is hungry there. member_id: the member that came to
        look."""
        for hungry_id, hunger in tuple(self._hungry.items()):
            if where in hunger.places or hungry_id == member_id:
                hunger.places.discard(where)
                if not hunger.places:
                    del self._hungry[hungry_id]

    def served(self, member_id: str) -> None:
        """Note that a member got records: among equals it is the last from now on."""
        if self.limit is None:
            return
        self._turn += 1
        self._served.pop(member_id, None)
        self._served[member_id] = self._turn
        if len(self._served) > 2 * len(self.tally.held) + _SLACK:
            # Members go without leaving; a member served longest ago is as good as never served.
            del self._served[next(iter(self._served))]

    def forget(self, member_id: str) -> None:
        """Drop all state of a member that is gone."""
        self._hungry.pop(member_id, None)
        self._served.pop(member_id, None)

    def contended(self, now_ms: int) -> bool:
        """True if a member is hungry."""
        if self._hungry and self._due_ms <= now_ms:
            self._hungry = {member: one for member, one in self._hungry.items() if one.until_ms > now_ms}
            self._due_ms = min((one.until_ms for one in self._hungry.values()), default=0)
        return bool(self._hungry)

    def places(self) -> Callable[[str], tuple[int, int]]:
        """Return a sort key for members: those that hold least first, among them those served longest ago."""
        served, held = self._served, self.tally.held
        return lambda member_id: (held.get(member_id, 0), served.get(member_id, 0))

    def _end(self, member_id: str, hunger: _Hunger) -> None:
        self._due_ms = hunger.until_ms if not self._hungry else min(self._due_ms, hunger.until_ms)
        self._hungry[member_id] = hunger

    def _divided(self, member_id: str, most: int, free: int, now_ms: int) -> Grant:
        """Return the part of `free` that a member gets while others may be hungry."""
        if not self.contended(now_ms) or (len(self._hungry) == 1 and member_id in self._hungry):
            return Grant(most)
        assert self.limit is not None
        held, served = self.tally.held, self._served
        share = -(-self.limit // len({*held, *self._hungry, member_id}))
        mine, turn = held.get(member_id, 0), served.get(member_id, 0)
        needed = needed_before = 0
        again_ms = now_ms + AGAIN_MS
        for rival, hunger in self._hungry.items():
            has = held.get(rival, 0)
            if has >= share or rival == member_id:
                continue
            needed += share - has
            if has < mine or (has == mine and served.get(rival, 0) < turn):
                needed_before += share - has
            if hunger.until_ms < again_ms:
                again_ms = hunger.until_ms
            if needed_before >= free:
                break  # the rest changes nothing
        got = max(min(share - mine, free - needed_before), free - needed, 0)
        return Grant(most) if got >= most else Grant(got, again_ms)
