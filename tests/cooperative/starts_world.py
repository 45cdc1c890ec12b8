"""A random world of one partition whose members begin records, die with them, and give back.

Members obey the rules of `flowshare.cooperative.attempts`. Writes fail; the owner ends in the middle of a write, and
the next one knows any beginning of it.

Checked whenever a member is given something: it is told of each record at least as many starts as there were, and no
more than the rules allow: exactly as many where nobody died with it, and where somebody did, one more if it was not
begun, or was told of and not begun.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from flowshare.cooperative.attempts import Begun, starts_of
from flowshare.cooperative.decisions import Decision
from flowshare.cooperative.partition import CooperativePartition
from flowshare.cooperative.stored import encode, load
from flowshare.cooperative.types import (
    HASHES,
    CommitEntry,
    KeyRange,
    StartEntry,
    Terms,
)

RECORDS = 24
LEASE_MS = 1_000
HALVES = (KeyRange(0, HASHES // 2), KeyRange(HASHES // 2, HASHES))


@dataclass
class Member:
    """One member: what it may begin, by offset (epoch of the claim, its keys), and how often it counts."""

    name: str
    exact: bool
    horizon: int = 0
    has: dict[int, tuple[int, KeyRange]] = field(default_factory=dict)
    counts: dict[int, int] = field(default_factory=dict)
    told: dict[int, int] = field(default_factory=dict)
    doubt: dict[int, int] = field(default_factory=dict)
    """Counts that the member told, and that may not be durable."""
    in_flight: set[int] = field(default_factory=set)


class StartsWorld:
    """See the head of the module."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.now_ms = self.sequence = self.named = 0
        self.partition = CooperativePartition.new(0)
        self.store = {key: value for key, value in map(encode, self.partition.snapshot()) if value is not None}
        self.hashes = [self.random.randrange(HASHES) for _ in range(RECORDS)]
        self.members: list[Member] = []
        self.begun = Counter[int]()
        self.most = Counter[int]()
        """By offset: as how many starts it may count at most."""
        self.seen = Counter[str]()

    # -- the owner

    def decided(self, decide: Any) -> Any:
        """The answer; None: it was not made durable, and nobody was told."""
        decision: Decision[Any] = decide()
        chance = self.random.random()
        if chance < 0.04:
            self.partition.roll_back(decision)
            self.seen["rolled back"] += bool(decision.mutations)
            return None
        kept = len(decision.mutations) if chance > 0.08 else self.random.randint(0, len(decision.mutations))
        for mutation in decision.mutations[:kept]:
            key, value = encode(mutation)
            if value is None:
                self.store.pop(key, None)
            else:
                self.store[key] = value
        if kept == len(decision.mutations):
            self.partition.confirm(decision)
            return decision.answer
        self.restart()
        return None

    def restart(self) -> None:
        """Another process owns the partition, and knows what is in the store."""
        loaded = load(self.store.items(), now_ms=self.now_ms)
        assert loaded is not None
        self.partition = CooperativePartition(loaded.state)
        self.seen["restarts"] += 1

    def committed(self, offset: int) -> bool:
        return self.partition.offsets.is_committed(offset)

    # -- members

    def step(self) -> None:
        """One thing happens."""
        if not self.members or (len(self.members) < 3 and self.random.random() < 0.1):
            self.named += 1
            self.members.append(Member(f"m{self.named}", self.random.random() < 0.3))
        member = self.random.choice(self.members)
        actions = [self.hold] * 2 + [self.begin] * 5 + [self.retry] * 2 + [self.finish, self.leave, self.die]
        self.random.choice(actions)(member)

    def unknown(self, member: Member) -> None:
        """The member may have been given something and does not know of it; its lease ends."""
        if not member.exact:
            for at in range(RECORDS):
                self.most[at] = max(self.most[at], 1)

    def hold(self, member: Member) -> bool:
        """Say what it wants to hold; whether there was an answer."""
        keys = {one.has[at][1] for one in self.members for at in one.has if one is not member}
        wanted = [half for half in HALVES if half not in keys]
        self.sequence += 1
        terms = Terms(lease_ms=LEASE_MS, exact_starts=member.exact)
        answer = self.decided(
            lambda: self.partition.hold(member.name, 1, self.sequence, wanted, self.now_ms, terms=terms, ranges=True)
        )
        if answer is None:
            self.unknown(member)
            return False
        member.horizon = answer.horizon
        new = {
            at: (claim.epoch, half)
            for claim in answer.held
            for half in HALVES
            for at, hash_ in enumerate(self.hashes)
            if claim.first <= half.first < claim.end and half.first <= hash_ < half.end
        }
        self.given(member, {at: one for at, one in new.items() if at not in member.has}, answer.begun)
        return True

    def given(self, member: Member, new: dict[int, tuple[int, KeyRange]], begun: Begun) -> None:
        for at, place in new.items():
            if self.committed(at):
                continue
            told = starts_of(begun.reaches, dict(begun.starts), at, self.hashes[at])
            were = self.begun[at]
            assert told >= were, f"{at} was begun {were} times, and counts as {told}"
            assert told <= max(were, self.most[at]), f"{at} was begun {were} times, and counts as {told}"
            self.seen["told more"] += told > were
            self.seen["told"] += told > 0
            member.has[at], member.counts[at], member.told[at] = place, told, told

    def tell(self, member: Member, starts: dict[int, int]) -> bool:
        """Tell of starts; whether that is durable."""
        by_place: dict[tuple[int, KeyRange], list[tuple[int, int]]] = {}
        for at, count in starts.items():
            by_place.setdefault(member.has[at], []).append((at, count))
        entries = [StartEntry(keys, epoch, told, 0) for (epoch, keys), told in by_place.items()]
        answer = self.decided(lambda: self.partition.commit(member.name, 0, entries, self.now_ms))
        if answer is None:
            member.doubt.update(starts)
            return False
        for at in starts:
            member.doubt.pop(at, None)
        assert answer.fenced == ()
        member.told.update(starts)
        return True

    def begin(self, member: Member) -> None:
        """Begin a record, if that is known, or after it was told."""
        waiting = sorted(set(member.has) - member.in_flight)
        if not waiting:
            return
        at = self.random.choice(waiting)
        attempt = member.counts[at] + 1
        first = attempt == 1 and not member.exact and at < member.horizon
        if not first and member.told[at] < attempt and not self.tell(member, {at: attempt}):
            return
        member.counts[at] = attempt
        member.in_flight.add(at)
        self.begun[at] += 1

    def retry(self, member: Member) -> None:
        """One ends badly: it waits."""
        if member.in_flight:
            member.in_flight.discard(self.random.choice(sorted(member.in_flight)))

    def finish(self, member: Member) -> None:
        """One ends well: it is committed."""
        if not member.in_flight:
            return
        at = self.random.choice(sorted(member.in_flight))
        epoch, keys = member.has[at]
        entry = CommitEntry(keys, epoch, [(at, at + 1)])
        if self.decided(lambda: self.partition.commit(member.name, 0, [entry], self.now_ms)) is not None:
            del member.has[at]
            member.in_flight.discard(at)
            self.seen["committed"] += 1

    def drop_committed(self, member: Member) -> None:
        """Drop committed records from the member, after a commit whose answer was lost."""
        gone = [at for at in member.has if self.committed(at)]
        self.lets_go(member, gone, known=True)
        member.in_flight.difference_update(gone)

    def owed(self, member: Member, offsets: list[int]) -> bool:
        owed = {at: member.counts[at] for at in offsets if member.counts[at] != member.told[at]}
        return not owed or self.tell(member, owed)

    def leave(self, member: Member) -> None:
        """In order, with what is in flight: it tells how often that was begun."""
        if self.owed(member, list(member.has)):
            answer = self.decided(lambda: self.partition.leave(member.name, self.now_ms))
            self.lets_go(member, list(member.has), known=answer is not None)
            self.members.remove(member)
            self.seen["left"] += 1

    def lets_go(self, member: Member, offsets: list[int], *, known: bool) -> None:
        """It begins nothing of them any more. known: by the owner, too; else what was not begun may count."""
        for at in offsets:
            unknown = int(not known and member.counts[at] == 0 and not member.exact)
            self.most[at] = max(member.counts[at], member.doubt.pop(at, 0), unknown)
            del member.has[at]

    def die(self, member: Member) -> None:
        """Nobody hears of it any more, and its lease ends; the others renew theirs, if they are heard."""
        survivors = [one for one in self.members if one is not member]
        for _ in range(2):
            self.now_ms += LEASE_MS * 6 // 10
            survivors = [one for one in survivors if self.hold(one)]
        for one in [one for one in self.members if one not in survivors]:
            self.seen["died"] += 1
            self.lets_go(one, list(one.has), known=False)
        self.members = survivors
        while self.decided(lambda: self.partition.lapse(self.now_ms)) is None:
            self.seen["lapsed late"] += 1
