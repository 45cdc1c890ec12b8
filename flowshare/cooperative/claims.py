"""Who holds which keys of one partition: claims on ranges of hashes.

Invariant (K): each hash lies in at most one claim, and a claim that ended never counts again, not even when the same
member gets the same hashes back: each tenure has an epoch of its own, larger than all before.

    hash is       asked for by               it becomes
    free          the newest generation      the asker's claim
    free          an older generation        stays free; the asker is told that it is superseded
    held          its holder                 stays; its lease is renewed with all that the member holds
    held          another member             stays; the asker is told by whom it is blocked, and its wait begins
    held          nobody any more: a `hold`  free: the holder stopped, and committed what it had done
                  of its holder without it
    held          its holder's lease ended   free: fenced, the holder may not know it
    held          another member that waited the asker's claim, in mode `available`: fenced, and counted, because the
                  `drain_timeout_ms`         holder's handlers may be at work
    held          its holder leaves          free

`hold` says all that a member wants from now on: what it was assigned, and what it was assigned before and has not
finished. So one call renews, gives back and asks.

The newest generation is that of the members that are here (hold or wait), each as it said last; who left does not
count. So a group that begins at generation 1 again does not wait for one that is gone for ever.

A tenure is what a member was granted since it last lost or gave back anything. It has one epoch, so that what a member
gets piece by piece, as its predecessor finishes keys, is one claim in the end. That is safe: a commit of an older
tenure names a smaller epoch than every grant that came after the loss.

`holds(member, epoch, keys)`: whether a commit is let through: each of its hashes lies in a claim of the member that was
granted under this epoch or an older one. The epoch is the one (or the largest) that the member knew of these hashes
when it started the handler.

Calls of one member carry a `sequence` that grows, so that one that was under way on a connection that broke does not
take back what a later one asked for. An owner that has just begun takes any: what was under way to the one before died
with its connections.

Leases are counted from when the call arrived, which is after the member sent it; the member counts from there, so it
stops first. Who loads stored claims gives each a whole lease.

State is replaced, never changed in place: `state` before a step is what undoes it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Final, NamedTuple

from flowshare.cooperative.ranges import Pair, minus, overlaps, total
from flowshare.cooperative.types import (
    HASHES,
    WHOLE,
    Blocked,
    Claim,
    DrainMode,
    Holder,
    KeyRange,
    KeyRanges,
    PutClaims,
    Terms,
)
from flowshare.core_errors import FencedMemberEpoch

CLAIMS_MAX: Final = 16_384
"""Claims of one partition; nothing is granted that makes more. They are stored as one record."""


class Standing(NamedTuple):
    """A member that holds or waits. tenure: the epoch of its next grants, 0: a new one. waits: since when for what."""

    generation: int
    sequence: int
    lease_ms: int
    deadline_ms: int
    tenure: int = 0
    waits: tuple[Blocked, ...] = ()


NOBODY: Final = Standing(0, 0, 0, 0)


class ClaimCounts(NamedTuple):
    """Counters, since this object began. blocked: ranges that a `hold` asked for and others held. lapsed, taken: claims
    that ended against their holder's will, by lease or by a drain time-out."""

    blocked: int = 0
    lapsed: int = 0
    taken: int = 0


class ClaimsState(NamedTuple):
    """All claims ascending, members, the newest epoch."""

    claims: tuple[Claim, ...]
    members: Mapping[str, Standing]
    epoch: int
    counts: ClaimCounts = ClaimCounts()


class Reserved(NamedTuple):
    """Keys that nobody may be granted now, and why: a transaction of records of these keys is open."""

    keys: KeyRange
    reason: str


class Held(NamedTuple):
    """The result of a `hold`. held: all that the member holds now. granted: the new part of it; S and R must be read
    again before a handler starts there. taken: claims that were taken from others before they gave them back.
    superseded: there is a newer generation, join again."""

    held: tuple[Claim, ...]
    granted: KeyRanges
    blocked: tuple[Blocked, ...]
    taken: tuple[Claim, ...]
    superseded: bool


class Claims:
    """The claims of one partition. A step changes `state` at once; `changed_since` says what is to be written."""

    __slots__ = ("state",)

    def __init__(
        self, epoch: int = 0, holders: Iterable[Holder] = (), claims: Iterable[Claim] = (), *, now_ms: int = 0
    ) -> None:
        """Start from what was stored; every lease begins now."""
        stored = tuple(sorted(claims))
        members = {name: Standing(generation, 0, lease, now_ms + lease) for name, generation, lease in holders}
        self.state = ClaimsState(stored, members, max([epoch, *(claim.epoch for claim in stored)]))

    # -- what is held

    def __bool__(self) -> bool:
        return bool(self.state.claims)

    def of(self, member: str) -> tuple[Claim, ...]:
        """Return the claims of a member, ascending."""
        return tuple(claim for claim in self.state.claims if claim.member == member)

    def holds(self, member: str, epoch: int, keys: Pair) -> bool:
        """True if a commit of the member for these keys, under this epoch, is accepted."""
        at, end = keys
        claims = self.state.claims
        place = max(0, bisect_right(claims, at, key=itemgetter(0)) - 1)
        while at < end and place < len(claims):
            claim = claims[place]
            if not claim.first <= at < claim.end or claim.member != member or claim.epoch > epoch:
                return False
            at = claim.end
            place += 1
        return keys[0] < end <= at

    @property
    def unowned(self) -> int:
        """How many hashes nobody holds."""
        return HASHES - total(_pairs(self.state.claims))

    def waiting_ms(self, now_ms: int) -> int:
        """For how long the longest wait for a holder goes on; 0: nobody waits."""
        since = [wait.since_ms for standing in self.state.members.values() for wait in standing.waits]
        return now_ms - min(since) if since else 0

    def next_deadline_ms(self) -> int | None:
        """When the next lease ends; None: there is none."""
        return min((standing.deadline_ms for standing in self.state.members.values()), default=None)

    def changed_since(self, before: ClaimsState) -> PutClaims | None:
        """Return the mutation to write after a step; None: nothing. A lease is stored by its length, not by its end."""
        if self.state is before:
            return None
        holders = _holders(self.state)
        if self.state.claims == before.claims and {one[::2] for one in holders} == {
            one[::2] for one in _holders(before)
        }:
            return None
        return PutClaims(self.state.epoch, holders, self.state.claims)

    # -- steps

    def hold(
        self,
        member: str,
        generation: int,
        sequence: int,
        wanted: KeyRanges,
        now_ms: int,
        *,
        terms: Terms,
        reserved: Sequence[Reserved] = (),
    ) -> Held:
        """Say all that a member wants to hold from now on; nothing (()) is `leave`.

        wanted: as `ranges.checked` makes them. reserved: what cannot be granted now, ascending and disjoint.

        Raises: FencedMemberEpoch for a sequence that is not larger than the member's last one; nothing is changed then.
        """
        known = self.state.members.get(member)
        if known is not None and sequence <= known.sequence:
            raise FencedMemberEpoch(f"member {member} has asked with sequence {known.sequence} since: this is too late")
        self.lapse(now_ms)
        claims, members, epoch, counts = self.state
        before = members.get(member, NOBODY)
        mine = [claim for claim in claims if claim.member == member]
        others = [claim for claim in claims if claim.member != member]
        kept = [Claim(first, end, *mine[at][2:]) for first, end, _, at in overlaps(wanted, _pairs(mine))]
        missing = minus(wanted, _pairs(kept))
        superseded = any(generation < one.generation for name, one in members.items() if name != member)
        waits = _waits(missing, others, reserved, before.waits, now_ms)
        overdue = [] if superseded else _overdue(waits, members, terms, now_ms)
        others, taken = _without(others, overdue)
        blocked = minus(_pairs(waits), _pairs(overdue))
        free = minus(minus(missing, blocked), [one.keys for one in reserved])
        granted = [] if superseded or len(others) + len(kept) + len(free) > CLAIMS_MAX else free
        tenure = before.tenure if total(_pairs(kept)) == total(_pairs(mine)) else 0
        if granted and not tenure:
            tenure = epoch = epoch + 1
        held = _joined([*kept, *(Claim(first, end, member, tenure) for first, end in granted)])
        left = tuple(wait for wait in waits if wait not in overdue) if overdue else tuple(waits)
        standing = Standing(
            generation, sequence, terms.lease_ms, now_ms + terms.lease_ms, tenure, () if superseded else left
        )
        now = {**_closed(members, taken), member: standing}
        if not wanted:
            del now[member]
        counts = counts._replace(blocked=counts.blocked + len(left), taken=counts.taken + len(taken))
        self.state = ClaimsState(tuple(sorted([*others, *held])), now, epoch, counts)
        ranges = tuple(KeyRange(first, end) for first, end in granted)
        return Held(tuple(held), ranges, left, tuple(taken), superseded)

    def lapse(self, now_ms: int) -> tuple[Claim, ...]:
        """End what is held past its lease; what ended. Who stood still itself takes what had come before it calls."""
        claims, members, epoch, counts = self.state
        gone = {name for name, standing in members.items() if standing.deadline_ms <= now_ms}
        if not gone:
            return ()
        lapsed = tuple(claim for claim in claims if claim.member in gone)
        left = tuple(claim for claim in claims if claim.member not in gone) if lapsed else claims
        here = {name: one for name, one in members.items() if name not in gone}
        self.state = ClaimsState(left, here, epoch, counts._replace(lapsed=counts.lapsed + len(lapsed)))
        return lapsed

    def leave(self, member: str) -> None:
        """The member is gone, in order: what it holds is free."""
        claims, members, _, _ = self.state
        if member in members:
            left = tuple(claim for claim in claims if claim.member != member)
            here = {name: one for name, one in members.items() if name != member}
            self.state = self.state._replace(claims=left, members=here)


def _pairs(ranges: Iterable[Claim | Blocked]) -> list[Pair]:
    return [(one.first, one.end) for one in ranges]


def _holders(state: ClaimsState) -> tuple[Holder, ...]:
    names = dict.fromkeys(claim.member for claim in state.claims)
    return tuple(Holder(name, state.members[name].generation, state.members[name].lease_ms) for name in names)


def _waits(
    missing: Sequence[Pair],
    others: Sequence[Claim],
    reserved: Sequence[Reserved],
    before: Sequence[Blocked],
    now_ms: int,
) -> list[Blocked]:
    """List the parts of `missing` that others hold or that are reserved, ascending. If the member waited for the same
    holder before, it has waited since then."""
    found = [Blocked(first, end, others[at].member, now_ms) for first, end, _, at in overlaps(missing, _pairs(others))]
    if reserved:
        free = minus(missing, _pairs(others))
        keys = [one.keys for one in reserved]
        found += [Blocked(first, end, reserved[at].reason, now_ms) for first, end, _, at in overlaps(free, keys)]
        found.sort()
    if not before:
        return found
    old = [
        Blocked(first, end, before[right].holder, before[right].since_ms)
        for first, end, left, right in overlaps(_pairs(found), _pairs(before))
        if found[left].holder == before[right].holder
    ]
    new = minus(_pairs(found), _pairs(old))
    holders = overlaps(new, _pairs(found))
    return sorted([*old, *(Blocked(first, end, found[at].holder, now_ms) for first, end, _, at in holders)])


def _overdue(waits: Iterable[Blocked], members: Mapping[str, Standing], terms: Terms, now_ms: int) -> list[Blocked]:
    """List the keys for which the member has waited so long that it may take them."""
    if terms.mode is DrainMode.STRICT:
        return []
    since_ms = now_ms - terms.drain_timeout_ms
    return [wait for wait in waits if wait.since_ms <= since_ms and wait.holder in members]


def _without(claims: list[Claim], overdue: Sequence[Blocked]) -> tuple[list[Claim], list[Claim]]:
    """The claims without what is taken, and that."""
    if not overdue:
        return claims, []
    keys, pairs = _pairs(overdue), _pairs(claims)
    taken = [Claim(first, end, *claims[at][2:]) for first, end, _, at in overlaps(keys, pairs)]
    left = [Claim(first, end, *claims[at][2:]) for first, end, _, at in overlaps(minus(WHOLE, keys), pairs)]
    return left, taken


def _closed(members: Mapping[str, Standing], taken: Iterable[Claim]) -> dict[str, Standing]:
    """The members; who lost something begins a new tenure with its next grant."""
    left = dict(members)
    for claim in taken:
        left[claim.member] = left[claim.member]._replace(tenure=0)
    return left


def _joined(claims: Iterable[Claim]) -> list[Claim]:
    """A member's claims, ascending, neighbours of one epoch in one."""
    joined: list[Claim] = []
    for claim in sorted(claims):
        if joined and joined[-1].end == claim.first and joined[-1].epoch == claim.epoch:
            joined[-1] = joined[-1]._replace(end=claim.end)
        else:
            joined.append(claim)
    return joined
