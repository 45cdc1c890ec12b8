"""A random world around one partition: members that hold, drain, pause past their leases, leave, and commit late.

Requests and answers are under way for a while, come in any order or not at all; writes fail; the owner restarts and
knows what was confirmed. Each member goes by its own lease, counted from when it sent what was answered.

Checked at every moment:
- each slot of hashes has at most one claim, and (but for drain time-outs) at most one member that may start a handler;
- a commit is let through if, and only if, its member's possession of the slot was never interrupted since the answer by
  which the member knew of it when the handler began. The world keeps a token for each possession, which knows nothing
  of epochs.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

from flowshare.cooperative.decisions import Decision
from flowshare.cooperative.partition import CooperativePartition
from flowshare.cooperative.stored import encode, load
from flowshare.cooperative.types import HASHES, CommitEntry, DrainMode, KeyRange, Terms
from flowshare.core_errors import FencedMemberEpoch

SLOTS = 8
UNIT = HASHES // SLOTS
LEASE_MS = 1_000
DRAIN_MS = 400


@dataclass
class Handler:
    """A record in work: its slot, the epoch that the member knew, and the world's token of the possession."""

    slot: int
    epoch: int
    token: int
    offset: int


@dataclass
class Member:
    """One member, as it sees things."""

    name: str
    generation: int = 0
    target: set[int] = field(default_factory=set)
    view: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Slot -> epoch, and the world's token of the possession of which the member was told."""
    until_ms: int = -1
    sequence: int = 0
    running: list[Handler] = field(default_factory=list)
    paused: bool = False
    again_ms: int = 0
    """When it asks again, though there was no answer."""

    def may_start(self, slot: int, now_ms: int) -> bool:
        """True if the member would start a handler in this slot."""
        return slot in self.view and now_ms < self.until_ms and not self.paused


@dataclass
class UnderWay:
    """A decision that is not settled, and what the world believed before it."""

    decision: Decision[Any]
    tokens: dict[int, tuple[str, int]]
    deadlines: dict[str, int]
    answer: Any = None


class World:
    """See the head of the module."""

    def __init__(self, seed: int, mode: DrainMode) -> None:
        self.random = random.Random(seed)
        self.terms = Terms(lease_ms=LEASE_MS, mode=mode, drain_timeout_ms=DRAIN_MS)
        self.now_ms = 0
        self.partition = CooperativePartition.new(0)
        self.store = {key: value for key, value in map(encode, self.partition.snapshot()) if value is not None}
        self.members: dict[str, Member] = {}
        self.generation = 0
        self.tokens: dict[int, tuple[str, int]] = {}
        self.deadlines: dict[str, int] = {}
        self.next_token = 0
        self.next_offset = 0
        self.mail: list[tuple[int, Any]] = []
        self.under_way: list[UnderWay] = []
        self.counts = dict.fromkeys(("granted", "blocked", "fenced", "passed", "taken", "rolled back", "late"), 0)

    # -- time and mail

    def send(self, what: Any) -> None:
        """It arrives after a while, or never."""
        if self.random.random() < 0.9:
            self.mail.append((self.now_ms + self.random.choice((0, 0, 0, 10, 10, 50, 50, 400, 1_500)), what))

    def step(self) -> None:
        """One thing happens, then everything is checked."""
        self.now_ms += self.random.choice((0, 1, 5, 10, 20, 60))
        due = [letter for letter in self.mail if letter[0] <= self.now_ms]
        if due and self.random.random() < 0.5:
            letter = self.random.choice(due)
            self.mail.remove(letter)
            letter[1]()
        else:
            actions = (self.rebalance, self.hold, self.hold, self.hold, self.hold, self.start, self.start, self.finish)
            more = (self.finish, self.settle, self.settle, self.settle, self.settle, self.lapse)
            self.random.choice((*actions, *more))()
            if self.random.random() < 0.05:
                self.random.choice((self.restart, self.fail, self.leave, self.pause, self.pause))()
        self.check()

    def check(self) -> None:
        """The invariants that hold at every moment."""
        before = 0
        for claim in self.partition.claims.state.claims:
            assert before <= claim.first < claim.end <= HASHES, "claims overlap"
            before = claim.end
        if self.terms.mode is DrainMode.STRICT:
            for slot in range(SLOTS):
                free = [one.name for one in self.members.values() if one.may_start(slot, self.now_ms)]
                assert len(free) <= 1, f"{free} may both start in slot {slot}"

    # -- members

    def some(self) -> Member | None:
        return self.random.choice(list(self.members.values())) if self.members else None

    def rebalance(self) -> None:
        """Who is here changes, and everybody learns of it at some time."""
        if self.random.random() < 0.5 and len(self.members) > 1:
            return
        self.generation += 1
        if len(self.members) < 4:
            self.members[f"m{self.generation}"] = Member(f"m{self.generation}")
        names = self.random.sample(sorted(self.members), self.random.randint(1, len(self.members)))
        target = {name: set[int]() for name in self.members}
        for slot in range(SLOTS):
            target[names[slot * len(names) // SLOTS]].add(slot)
        for member in self.members.values():
            self.send(lambda member=member, g=self.generation: self.assigned(member, g, target[member.name]))

    def assigned(self, member: Member, generation: int, target: set[int]) -> None:
        if generation > member.generation:
            member.generation, member.target = generation, target

    def hold(self) -> None:
        member = self.some()
        if member is None or member.paused or self.now_ms < member.again_ms:
            return
        member.again_ms = self.now_ms + 300
        self.expire(member)
        wanted = member.target | {handler.slot for handler in member.running}
        member.view = {slot: one for slot, one in member.view.items() if slot in wanted}
        member.sequence += 1
        ask = member.generation, member.sequence, sorted(wanted), self.now_ms
        owner = self.partition
        self.send(lambda: self.asked(member, *ask) if owner is self.partition else None)  # it died with the connection

    def expire(self, member: Member) -> None:
        """Its own lease is over: it drops all that it has; handlers that run go on and commit late."""
        if self.now_ms >= member.until_ms and member.view:
            member.view = {}
            for handler in member.running:
                self.send(lambda handler=handler: self.committed(member, handler))
            member.running = []

    def start(self) -> None:
        member = self.some()
        if member is None:
            return
        slots = [slot for slot in member.view if member.may_start(slot, self.now_ms)]
        if slots:
            slot = self.random.choice(slots)
            epoch, token = member.view[slot]
            possession = (self.under_way[0].tokens if self.under_way else self.tokens).get(slot)
            if self.terms.mode is DrainMode.STRICT:
                assert possession == (member.name, token), "a member starts where it holds nothing"
            member.running.append(Handler(slot, epoch, token, self.next_offset))
            self.next_offset += 1

    def finish(self) -> None:
        member = self.some()
        if member is None or not member.running or member.paused:
            return
        handler = member.running.pop(self.random.randrange(len(member.running)))
        self.send(lambda: self.committed(member, handler))

    def pause(self) -> None:
        member = self.some()
        if member is not None:
            member.paused = not member.paused and self.random.random() < 0.5
            if not member.paused:
                self.expire(member)

    def leave(self) -> None:
        """In order: it stops first."""
        member = self.some()
        if member is not None and not member.paused:
            del self.members[member.name]
            member.view = {}
            late = member.running
            member.running = []
            self.send(lambda: self.left(member, late))

    # -- the owner

    def decided(
        self,
        decision: Decision[Any],
        tokens: dict[int, tuple[str, int]],
        answer: Any = None,
        deadlines: dict[str, int] | None = None,
    ) -> None:
        """The world believes from now on what was decided; the answer leaves when it is settled."""
        self.under_way.append(UnderWay(decision, self.tokens, self.deadlines, answer))
        self.tokens = tokens
        self.deadlines = self.deadlines if deadlines is None else deadlines

    def alive(self) -> dict[int, tuple[str, int]]:
        """The possessions whose leases are not over."""
        return {slot: one for slot, one in self.tokens.items() if self.deadlines[one[0]] > self.now_ms}

    def asked(self, member: Member, generation: int, sequence: int, slots: list[int], sent_ms: int) -> None:
        tokens = self.alive()
        wanted = [(slot * UNIT, (slot + 1) * UNIT) for slot in slots]
        try:
            decision = self.partition.hold(
                member.name, generation, sequence, wanted, self.now_ms, terms=self.terms, ranges=True
            )
        except FencedMemberEpoch:
            self.counts["late"] += 1
            return
        held = {slot: claim.epoch for claim in decision.answer.held for slot in slots_of(claim)}
        lost = {slot for claim in decision.answer.taken for slot in slots_of(claim)}
        now: dict[int, tuple[str, int]] = {}
        for slot in range(SLOTS):
            before = tokens.get(slot)
            if slot in held:
                if before is None or before[0] != member.name:
                    assert before is None or slot in lost, "what another one has was granted"
                    self.next_token += 1
                    before = member.name, self.next_token
                now[slot] = before
            elif before is not None and before[0] != member.name:
                now[slot] = before
        self.counts["granted"] += len(decision.answer.granted)
        self.counts["blocked"] += len(decision.answer.blocked)
        self.counts["taken"] += len(lost)
        deadlines = {**self.deadlines, member.name: self.now_ms + LEASE_MS}

        view = {slot: (epoch, now[slot][1]) for slot, epoch in held.items()}

        def reply() -> None:
            self.send(lambda: self.answered(member, sequence, view, sent_ms))

        self.decided(decision, now, reply, deadlines)

    def answered(self, member: Member, sequence: int, view: dict[int, tuple[int, int]], sent_ms: int) -> None:
        """Apply an answer at the member: only the answer to its last request counts. A paused member does later."""
        if sequence != member.sequence or member.name not in self.members:
            return
        if member.paused:
            self.send(lambda: self.answered(member, sequence, view, sent_ms))
            return
        self.expire(member)
        member.again_ms = self.now_ms + 50
        member.view = view
        member.until_ms = sent_ms + LEASE_MS

    def committed(self, member: Member, handler: Handler) -> None:
        tokens = self.alive()
        keys = KeyRange(handler.slot * UNIT, (handler.slot + 1) * UNIT)
        entry = CommitEntry(keys, handler.epoch, [(handler.offset, handler.offset + 1)])
        decision = self.partition.commit(member.name, 0, [entry], self.now_ms)
        right = tokens.get(handler.slot) == (member.name, handler.token)
        assert (decision.answer.fenced == ()) == right, (member.name, handler, self.tokens.get(handler.slot))
        self.counts["passed" if right else "fenced"] += 1
        self.decided(decision, tokens)

    def left(self, member: Member, late: list[Handler]) -> None:
        decision = self.partition.leave(member.name, self.now_ms)
        self.decided(decision, {slot: one for slot, one in self.alive().items() if one[0] != member.name})
        for handler in late:
            self.send(lambda handler=handler: self.committed(member, handler))

    def lapse(self) -> None:
        self.decided(self.partition.lapse(self.now_ms), self.alive())

    def settle(self) -> None:
        """Some of what was decided is durable."""
        for _ in range(self.random.choice((0, 1, len(self.under_way), len(self.under_way)))):
            if not self.under_way:
                return
            one = self.under_way.pop(0)
            for mutation in one.decision.mutations:
                key, value = encode(mutation)
                if value is None:
                    self.store.pop(key, None)
                else:
                    self.store[key] = value
            self.partition.confirm(one.decision)
            if one.answer is not None:
                one.answer()

    def fail(self) -> None:
        """A write fails: that decision and all behind it are taken back."""
        unsettled = [one for one in self.under_way if one.decision.mutations]
        if unsettled:
            first = self.random.choice(unsettled)
            place = self.under_way.index(first)
            undone = self.partition.roll_back(first.decision)
            assert undone == tuple(one.decision for one in self.under_way[place:])
            self.tokens, self.deadlines = first.tokens, first.deadlines
            self.counts["rolled back"] += len(undone)
            del self.under_way[place:]

    def restart(self) -> None:
        """Another process owns the partition, and knows what is in the store; all leases begin anew."""
        loaded = load(self.store.items(), now_ms=self.now_ms)
        assert loaded is not None
        assert loaded.repair == ()
        self.partition = CooperativePartition(loaded.state)
        self.tokens = self.under_way[0].tokens if self.under_way else self.tokens
        self.under_way = []
        self.deadlines = dict.fromkeys(self.deadlines, self.now_ms + LEASE_MS)


def slots_of(claim: Any) -> range:
    """The slots that a claim covers; it covers whole ones."""
    assert claim.first % UNIT == claim.end % UNIT == 0
    return range(claim.first // UNIT, claim.end // UNIT)
