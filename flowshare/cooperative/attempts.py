"""How often the records of one partition were begun by members that are gone.

Members begin records without asking, so a member that dies with its process takes what it knew with it. Invariant: who
is granted keys is told of each of their records at least as many starts as there were by members before, and exactly
as many where these gave their keys back in order and had all answers to what they told. It costs no write a record,
because of two rules for members:

    the first start of a record      only before the member's *horizon*, which is durable; it is moved on ahead of time,
                                     with one write for `HORIZON_STEP` offsets
    each later one, and each start   written before it is made, with how many there were then: retries, and what a dead
    of a record that was told of     member may have begun

So what a dead member can have begun without a trace was begun once, and lies before its horizon:

    a claim ends                     of its keys is kept
    given back                       nothing more: the member wrote before how often it had begun what it did not finish
    its lease ended, or it was       the horizon, in `reaches`: each record before it that is not committed counts as
    taken                            begun once, if nothing was written of it (`told`)

A member that says each first start, too (`Terms.exact_starts`), has no horizon: then a death counts for what was in
flight alone, at the price of a write each time that it begins something.

A record that was not in flight counts once too often at most, however many members die, since from then on each of its
starts is written. Bounds: of `STARTS_MAX` records starts are kept, further ones wait; `REACHES_MAX` ranges of keys are
kept apart, those beyond are joined with their neighbours, which counts too many and never too few. What is committed is
dropped.

State is replaced, never changed in place: `state` before a step is what undoes it. What counts more is written before
what it follows from, what counts less behind that (`counted_since`, `dropped_since`): so of every beginning of a step's
mutations the invariant is true, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from flowshare.cooperative.ranges import Pair, minus, overlaps
from flowshare.cooperative.types import (
    HORIZON_STEP,
    WHOLE,
    Claim,
    DropStarts,
    Horizon,
    Mutation,
    PutReaches,
    PutStarts,
    Reach,
)
from flowshare.core_errors import BoundReached, InvalidRequest

if TYPE_CHECKING:
    from flowshare.cooperative.offsets import CommittedOffsets

STARTS_MAX: Final = 20_000
REACHES_MAX: Final = 1_000
STARTS_OF_ONE_MAX: Final = 1_000_000
HORIZON_MAX: Final = 1_000_000
"""So far behind what is committed a horizon may lie."""


class Begun(NamedTuple):
    """Starts that other members may have made. A member that takes over keys counts from there
    (`attempts.starts_of`)."""

    reaches: tuple[Reach, ...] = ()
    starts: tuple[Pair, ...] = ()


class AttemptsState(NamedTuple):
    """reaches: ascending and disjoint. starts: by offset. horizons: by member."""

    reaches: tuple[Reach, ...] = ()
    starts: Mapping[int, int] = {}
    horizons: Mapping[str, int] = {}


class Attempts:
    """The starts of one partition. A step changes `state` at once; `changed_since` says what is to be written."""

    __slots__ = ("state",)

    def __init__(
        self,
        reaches: Iterable[Reach] = (),
        starts: Mapping[int, int] | None = None,
        horizons: Iterable[Horizon] = (),
    ) -> None:
        """Start from what was stored."""
        self.state = AttemptsState(tuple(sorted(reaches)), dict(starts or {}), dict(horizons))

    def told(self, offset: int, hash_: int) -> int:
        """How often a record counts as begun by others."""
        reaches, starts, _ = self.state
        return starts_of(reaches, starts, offset, hash_)

    @property
    def begun(self) -> Begun:
        """The starts by others, as told to members that are granted keys."""
        reaches, starts, _ = self.state
        return Begun(reaches, tuple(starts.items()))

    def horizon(self, member: str) -> int:
        """Where the member may begin nothing that it has not said before."""
        return self.state.horizons.get(member, 0)

    def counted_since(self, before: AttemptsState) -> tuple[Mutation, ...]:
        """Return the mutations that count more starts after a step. They are written before the change that caused
        them."""
        state, old = self.state, before.starts
        if state is before:
            return ()
        starts = state.starts.items() if state.starts is not old else ()
        puts = [PutStarts(at, count) for at, count in starts if old.get(at) != count]
        return (*puts, *([self._table] if self.grew_since(before) else []))

    def dropped_since(self, before: AttemptsState) -> tuple[Mutation, ...]:
        """The rest: to be written behind what it follows from."""
        state, old = self.state, before.starts
        if state is before:
            return ()
        drops = [DropStarts(at) for at in old if at not in state.starts] if state.starts is not old else []
        changed = _tables(state) != _tables(before) and not self.grew_since(before)
        return (*drops, *([self._table] if changed else []))

    def changed_since(self, before: AttemptsState) -> tuple[Mutation, ...]:
        """Both together."""
        return (*self.counted_since(before), *self.dropped_since(before))

    def grew_since(self, before: AttemptsState) -> bool:
        """True if members that are gone have left more since."""
        new, old = self.state.reaches, before.reaches
        return new is not old and not set(old).issuperset(new)

    @property
    def _table(self) -> PutReaches:
        reaches, _, horizons = self.state
        return PutReaches(reaches, tuple(Horizon(*one) for one in horizons.items()))

    # -- steps

    def granted(self, member: str, furthest: int) -> None:
        """The member holds something more. furthest: M."""
        self._move(member, furthest + HORIZON_STEP)

    def begin(self, member: str, starts: Sequence[Pair], horizon: int, committed: CommittedOffsets) -> None:
        """Count starts that the member is about to make, or has made: (offset, how often then; 0: never).

        Raises: InvalidRequest, BoundReached; nothing is changed then.
        """
        if not 0 <= horizon <= committed.furthest + HORIZON_MAX:
            raise InvalidRequest(f"a horizon of {horizon}: it lies at most {HORIZON_MAX} behind what is committed")
        if any(offset < 0 or not 0 <= count <= STARTS_OF_ONE_MAX for offset, count in starts):
            raise InvalidRequest(f"a record has an offset, and 0 to {STARTS_OF_ONE_MAX} starts")
        new = {offset: count for offset, count in starts if not committed.is_committed(offset)}
        if new:
            known = {at: count for at, count in {**self.state.starts, **new}.items() if count}
            if len(known) > max(STARTS_MAX, len(self.state.starts)):
                raise BoundReached(
                    f"{len(known)} records were begun and are not finished, at most {STARTS_MAX} are counted: commit "
                    "some of them first"
                )
            self.state = self.state._replace(starts=known)
        self._move(member, horizon)

    def ended(self, claims: Iterable[Claim]) -> None:
        """These claims ended against their members' will."""
        for claim in claims:
            self.reach(claim.first, claim.end, self.horizon(claim.member))

    def reach(self, first: int, end: int, before: int) -> None:
        """Count all records before an offset, with hashes from `first` up to `end`, as begun at least once."""
        if before <= 0:
            return
        reaches, keys = self.state.reaches, [(first, end)]
        known = [one[:2] for one in reaches]
        inside = [Reach(low, high, max(before, reaches[at].before)) for low, high, _, at in overlaps(keys, known)]
        outside = [
            Reach(low, high, reaches[at].before)
            for low, high, _, at in overlaps(known, minus(WHOLE, keys))
            for at in (_place(reaches, low),)
        ]
        new = [Reach(low, high, before) for low, high in minus(keys, known)]
        self.state = self.state._replace(reaches=_bounded([*inside, *outside, *new]))

    def follow(self, holders: Iterable[str]) -> None:
        """Only these hold something still."""
        known = self.state.horizons
        left = {member: known[member] for member in holders if member in known}
        if len(left) < len(known):
            self.state = self.state._replace(horizons=left)

    def shrink(self, committed: CommittedOffsets, touched: Sequence[Pair]) -> None:
        """Follow a commit of these offsets."""
        starts = self.state.starts
        if starts and any(_touches(starts, pair) for pair in touched):
            left = {at: count for at, count in starts.items() if not committed.is_committed(at)}
            self.state = self.state._replace(starts=left)

    def forget(self, stable: int) -> None:
        """All before this offset is committed."""
        reaches = self.state.reaches
        if reaches and any(one.before <= stable for one in reaches):
            self.state = self.state._replace(reaches=tuple(one for one in reaches if one.before > stable))

    def cut(self, end: int) -> None:
        """Forget the starts at `end` and behind: other records lie there now."""
        reaches, starts, _ = self.state
        kept = {at: count for at, count in starts.items() if at < end}
        if len(kept) < len(starts):
            self.state = self.state._replace(starts=kept)
        if any(one.before > end for one in reaches):
            self.state = self.state._replace(
                reaches=tuple(one._replace(before=min(one.before, end)) for one in reaches if end)
            )

    def clear(self) -> None:
        """Nothing was begun."""
        reaches, starts, horizons = self.state
        if starts or reaches:
            self.state = AttemptsState(horizons=horizons)

    # -- inside

    def _move(self, member: str, horizon: int) -> None:
        if horizon > self.horizon(member):
            self.state = self.state._replace(horizons={**self.state.horizons, member: horizon})


def starts_of(reaches: Sequence[Reach], starts: Mapping[int, int], offset: int, hash_: int) -> int:
    """How often a record counts as begun: for members, which are told both."""
    count = starts.get(offset, 0)
    if count or not reaches:
        return count
    at = _place(reaches, hash_)
    return int(at >= 0 and hash_ < reaches[at].end and offset < reaches[at].before)


def _tables(state: AttemptsState) -> tuple[object, ...]:
    return state.reaches, state.horizons


def _place(reaches: Sequence[Reach], hash_: int) -> int:
    low, high = 0, len(reaches)
    while low < high:
        middle = (low + high) // 2
        if reaches[middle].first <= hash_:
            low = middle + 1
        else:
            high = middle
    return low - 1


def _touches(starts: Mapping[int, int], pair: Pair) -> bool:
    first, end = pair
    if end - first <= len(starts):
        return any(at in starts for at in range(first, end))
    return any(first <= at < end for at in starts)


def _bounded(reaches: Iterable[Reach]) -> tuple[Reach, ...]:
    """Ascending, neighbours of one offset in one, and no more than REACHES_MAX."""
    joined: list[Reach] = []
    for one in sorted(reaches):
        last = joined[-1] if joined else None
        if last is not None and last.end == one.first and last.before == one.before:
            joined[-1] = last._replace(end=one.end)
        else:
            joined.append(one)
    while len(joined) > REACHES_MAX:
        joined = [
            Reach(pair[0].first, pair[-1].end, max(one.before for one in pair))
            for pair in (joined[at : at + 2] for at in range(0, len(joined), 2))
        ]
    return tuple(joined)
