"""A seeded world around one share-partition with an order by key: members that run chains, faults, a log that changes.

The members' handlers keep a journal: when one begins, everything before it in its key must be settled for good, or have
been accepted just before in the same chain; and no other handler of that key may run, unless its lock has lapsed. After
each step the window is looked at: of each key's unsettled records the first is not blocked, and all others are, or are
held in a chain. At the end every record was settled, within a bounded number of steps.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from flowshare.core_errors import CoreError
from flowshare.share.acquire_by_key import Picked
from flowshare.share.heads import Heads, KeyedBatch
from flowshare.share.intervene import Act
from flowshare.share.partition import Decision, SharePartition
from flowshare.share.records import replay
from flowshare.share.types import (
    ACKNOWLEDGED,
    ACQUIRED,
    ARCHIVED,
    ARCHIVING,
    AVAILABLE,
    BLOCKED,
    HOLE,
    PENDING,
    STATES,
    AcknowledgeType,
    AckRange,
    Limits,
    PartitionState,
    PartitionUpdate,
    Priority,
)
from tests.sim.faults import Faults
from tests.sim.timeline import Timeline, Violation, until_quiet

STEPS_MAX = 600_000
RECORDS = 150
ACCEPT, RELEASE, REJECT = (bytes([kind]) for kind in (AcknowledgeType.ACCEPT, AcknowledgeType.RELEASE, 3))


@dataclass(slots=True)
class Step:
    """An update that waits to be written, and the action after the write."""

    update: PartitionUpdate
    settle: Callable[[bool], None]
    decides: bool = False


@dataclass(slots=True)
class Chain:
    """Records of one key that a member handles one after the other. `until_ms`: when their lock lapses."""

    member: str
    offsets: list[int]
    until_ms: int
    life: int
    attempts: dict[int, int]
    accepted: list[int] = field(default_factory=list)

    def batch(self, offset: int, types: bytes, **more: object) -> AckRange:
        """Return the acknowledgement of one of the chain's records, for the delivery that the chain has."""
        return AckRange(offset, offset, types, attempt=self.attempts[offset], **more)  # type: ignore[arg-type]


class OrderWorld:
    """The shell's part and the members', played by one object."""

    def __init__(self, seed: int) -> None:
        self.dice = dice = random.Random(seed)
        self.timeline = Timeline(1_000_000)
        self.at = self.timeline.after
        self.limits = Limits(
            lock_duration_ms=dice.choice((500, 1000, 5000)),
            delivery_count_max=dice.choice((2, 3, 5, 8, 1_000_000)),
            record_locks_max=dice.randint(2, 60),
            window_max=dice.choice((None, 10, 40, 300)),
            dead_letter_on_limit=dice.random() < 0.5,
            dead_letter_on_reject=dice.random() < 0.5,
            priority=dice.choice(list(Priority)),
        )
        self.keys = dice.choice((1, 2, 5, 20, 200))
        self.chain = dice.choice((1, 2, 4, 16))
        self.faults = Faults(
            dice,
            dies=(0, 0.02, 0.1),
            gone=(0, 0.02),
            leaves=(0, 0.03),
            late=(0, 0.05),
            fails=(0, 0.05, 0.3),
            restart=(0, 0.003, 0.01),
            unread=(0, 0.1),
            release=(0, 0.1, 0.5),
            reject=(0, 0.05, 0.2),
            out_of_turn=(0, 0.2),
            compaction=(0, 0.01),
            retention=(0, 0.005),
            cut=(0, 0.003),
            renew=(0, 0.1),
        )
        self.operator = random.Random(seed * 7919)
        self.revoked: set[tuple[int, int]] = set()
        """Deliveries that the operator took back, maybe before their member has them."""
        self.operates = self.operator.choice((0, 0, 0.02, 0.2))
        self.hash_of: dict[int, int] = {}
        self.key_of: dict[int, int] = {}
        """The same, of records that the log has lost, too."""
        self.batches: list[tuple[int, int, bool]] = []
        self.log_start = self.log_end = 0
        while self.log_end < RECORDS:
            self.append()
        self.snapshot = PartitionState(start_offset=0)
        self.updates: list[PartitionUpdate] = []
        self.queue: list[Step] = []
        self.writing: list[Step] = []
        self.snapshot_due = False
        self.settling = False
        self.cuts: list[int] = []
        """Where the log was cut, as far as the store does not know."""
        self.life = 0
        self.partition = self.loaded(())
        self.members = [f"m{n}" for n in range(dice.randint(1, 5))]
        self.chains: dict[str, list[Chain]] = {member: [] for member in self.members}
        self.sessions = dict.fromkeys(self.members, 0)
        self.running: dict[int, tuple[str, int, int]] = {}
        """Key -> member, offset, when its lock lapses."""
        self.settled: set[int] = set()
        self.lost: set[int] = set()
        """Offsets that the log lost by compaction, retention or a cut."""
        self.attempts: dict[int, int] = {}
        self.begun = 0

    # -- the log ---------------------------------------------------------------------------------------------

    def append(self) -> None:
        first, size = self.log_end + (self.dice.random() < 0.1), self.dice.randint(1, self.dice.choice((1, 5, 30)))
        opened = self.dice.random() >= 0.02
        for offset in range(first, first + size):
            if self.dice.random() >= 0.03:
                known = opened and self.dice.random() >= 0.1
                self.hash_of[offset] = self.key_of[offset] = 1 + self.dice.randrange(self.keys) if known else 0
        self.batches.append((first, first + size - 1, opened))
        self.log_end = first + size

    def key(self, offset: int) -> int:
        return self.key_of.get(offset, 0)

    def read(self, offset: int) -> list[KeyedBatch]:
        found: list[KeyedBatch] = []
        for first, last, opened in self.batches:
            if last < max(offset, self.log_start):
                continue
            there = [one for one in range(first, last + 1) if one in self.hash_of and one >= self.log_start]
            found.append(KeyedBatch(first, last, there if opened else None, [self.hash_of[one] for one in there]))
            if len(found) == self.dice.randint(1, 4):
                break
        return found

    def lose(self, offsets: Iterable[int]) -> None:
        for offset in offsets:
            if self.hash_of.pop(offset, None) is not None:
                self.lost.add(offset)

    def change_log(self) -> None:
        faults, dice = self.faults, self.dice
        if faults("compaction"):
            last = {key: offset for offset, key in self.hash_of.items() if key}
            old = [offset for offset, key in self.hash_of.items() if key and last[key] != offset]
            closed = {o for first, end, opened in self.batches if not opened for o in range(first, end + 1)}
            self.lose(o for o in old if o not in closed and dice.random() < 0.3)
        if faults("retention"):
            self.log_start = min(self.log_end, self.log_start + dice.randint(1, 40))
            self.lose([offset for offset in self.hash_of if offset < self.log_start])
            update = self.partition.move_log_start(self.log_start)
            if update is not None:
                self.keep(update)
        if faults("cut"):
            self.cut(max(self.log_start, self.log_end - dice.randint(1, 20)))

    def cut(self, end: int) -> None:
        self.lose([offset for offset in self.hash_of if offset >= end])
        self.lost = {offset for offset in self.lost if offset < end}
        self.settled = {offset for offset in self.settled if offset < end}
        self.revoked = {one for one in self.revoked if one[0] < end}
        self.batches = [(f, min(last, end - 1), opened) for f, last, opened in self.batches if f < end]
        self.log_end = end
        for chains in self.chains.values():
            for chain in chains:
                chain.offsets = [offset for offset in chain.offsets if offset < end]
        for member in self.members:
            self.sessions[member] += 1  # what is on its way may be lost
        self.running = {key: one for key, one in self.running.items() if one[1] < end}
        update = self.partition.cut(end)
        self.cuts.append(end)
        self.snapshot_due = True
        if update is not None:
            kept = [
                replace(
                    s.update,
                    start_offset=min(s.update.start_offset, end),
                    runs=tuple(r for r in s.update.runs if r.last < end),
                )
                for s in self.queue
            ]
            for step, better in zip(self.queue, kept, strict=True):
                step.update = better
            self.keep(update)
        while self.log_end < RECORDS:
            self.append()

    # -- the run ---------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Play until every record is settled. Raises: Violation."""
        for member in self.members:
            self.at(self.dice.randint(0, 20), lambda member=member: self.poll(member))
        until_quiet(
            lambda: self.partition.start_offset >= self.log_end and not self.queue and not self.writing,
            self.step,
            steps_max=STEPS_MAX,
            stuck=lambda: f"start offset {self.partition.start_offset} of {self.log_end}",
        )
        left = sorted(set(self.hash_of) - self.settled - self.lost)
        if left:
            raise Violation(f"never settled: {left}")

    @property
    def now_ms(self) -> int:
        return int(self.timeline.now)

    def step(self) -> None:
        deadline_ms, due_ms = self.partition.next_deadline_ms(), self.timeline.next_due
        if deadline_ms is not None and (due_ms is None or deadline_ms <= due_ms):
            self.timeline.now = max(self.now_ms, deadline_ms)
            update = self.partition.lapse(self.now_ms)
            if update is not None:
                self.keep(update)
        else:
            self.timeline.step()
            self.change_log()
            if self.operator.random() < self.operates:
                self.operate()
            # Each restart gives locks their whole time again: without an end of them there would be none of the run.
            if self.life < 20 and self.faults("restart"):
                self.restart()
        self.check()

    def check(self) -> None:
        window = self.partition._window
        heads = window.heads
        assert heads is not None
        states, base = window.states, window.base
        if self.counted() != window.tally:
            raise Violation(f"the tally is {window.tally}, counted are {self.counted()}")
        first_of: dict[int, int] = {}
        unsettled_keys: set[int] = set()
        for offset in range(window.start, window.end):
            state = states[offset - base]
            key = self.hash_of.get(offset, heads.hashes[offset - base])
            unsettled = state not in (ACKNOWLEDGED, ARCHIVED, HOLE) and offset < heads.known_end
            if not (key and unsettled and heads.hashes[offset - base]):  # without: of a batch that was not opened
                continue
            unsettled_keys.add(key)
            if offset in heads.ending:
                if state != PENDING:
                    raise Violation(f"{offset} is ending, and in state {state}")
                continue
            first = first_of.setdefault(key, offset)
            self.check_one(offset, state, first, key)
        self.check_edges(heads, unsettled_keys)

    def check_edges(self, heads: Heads, unsettled_keys: set[int]) -> None:
        window = self.partition._window
        states, base = window.states, window.base
        for offset in heads.chained:
            if offset >= window.end or (offset >= window.start and states[offset - base] in (AVAILABLE, BLOCKED)):
                raise Violation(f"{offset} is in a chain, and nobody's")
        if set(heads.tails) != unsettled_keys:
            raise Violation(f"tails of {sorted(heads.tails)}, unsettled are {sorted(unsettled_keys)}")
        for name in ("hashes", "following"):
            if len(getattr(heads, name)) != len(states):
                raise Violation(f"{name} is {len(getattr(heads, name))} long, the window {len(states)}")

    def check_one(self, offset: int, state: int, first: int, key: int) -> None:
        window = self.partition._window
        heads = window.heads
        assert heads is not None
        if state in (AVAILABLE, BLOCKED) and window.hold_ids[offset - window.base]:
            raise Violation(f"{offset} is free and has a hold")
        if first == offset and state == BLOCKED:
            raise Violation(f"{offset} is blocked and is the first of key {key}")
        if first != offset and state not in (BLOCKED, ACQUIRED, PENDING, ARCHIVING):
            raise Violation(f"{offset} is in state {state} behind {first} of key {key}")
        if first != offset and state in (ACQUIRED, PENDING) and not heads.waits(offset):
            raise Violation(f"{offset} is held beside {first} of key {key} and waits for nothing")

    def counted(self) -> list[int]:
        window = self.partition._window
        return [window.states.count(state, window.start - window.base) for state in range(STATES)]

    def known_end(self) -> int:
        heads = self.partition._window.heads
        assert heads is not None
        return heads.known_end

    # -- the store -------------------------------------------------------------------------------------------

    def keep(self, update: PartitionUpdate) -> None:
        for run in update.runs:
            if run.state.terminal:
                self.settled.update(range(run.first, run.last + 1))
        limit = self.limits.delivery_count_max  # what the start offset has passed is not among the runs
        self.settled.update(o for o, n in self.attempts.items() if n >= limit and o < update.start_offset)
        self.write(update, lambda written: None)

    def write(self, update: PartitionUpdate, settle: Callable[[bool], None], *, decides: bool = False) -> None:
        self.queue.append(Step(update, settle, decides))
        if not self.writing and not self.settling:
            self.begin_write()

    def begin_write(self) -> None:
        self.writing, self.queue = self.queue, []
        life, plan, cuts = self.life, self.plan(), len(self.cuts) if self.snapshot_due else 0
        self.at(self.dice.randint(0, 30), lambda: self.written(plan, life, cuts))

    def plan(self) -> PartitionState:
        """Return the state that is stored if this write succeeds."""
        if self.snapshot_due:
            partition = self.partition
            whole = PartitionState(start_offset=partition.start_offset, runs=partition.state())
            return replay(whole, [step.update for step in self.writing if step.decides])
        return replay(self.snapshot, [step.update for step in self.writing])

    def written(self, plan: PartitionState, life: int, cuts: int) -> None:
        if life != self.life:
            return
        steps, self.writing = self.writing, []
        good = not self.faults("fails")
        if good:
            del self.cuts[:cuts]
            self.snapshot, self.snapshot_due = plan, bool(self.cuts)
        else:
            # What was decided behind a write that failed fails with it: a chain is settled in order or not at all.
            steps += self.queue
            self.queue = []
            self.snapshot_due = True
        self.settling = True
        for step in steps:
            step.settle(good)
        self.settling = False
        if self.queue:
            self.begin_write()
        elif not good:
            self.write(PartitionUpdate(start_offset=self.partition.start_offset, delivery_complete_count=0), bool)

    def restart(self) -> None:
        """The leader dies; what was being written is in the store, or is not."""
        if self.writing and self.dice.random() < 0.5:
            self.snapshot = self.plan()
            for step in self.writing:
                step.settle(True) if step.decides else None
        self.life += 1
        self.revoked.clear()
        self.queue, self.writing, self.snapshot_due = [], [], bool(self.cuts)
        living = [member for member in self.members if self.dice.random() < 0.7]
        self.partition = self.loaded(living)
        if self.log_start > self.partition.start_offset:
            self.partition.move_log_start(self.log_start)
        self.partition.cut(min([self.log_end, *self.cuts]))

    def loaded(self, living: Iterable[str]) -> SharePartition:
        return SharePartition(
            start_offset=self.snapshot.start_offset,
            limits=self.limits,
            runs=self.snapshot.runs,
            living=list(living),
            now_ms=self.now_ms,
            ordered=True,
        )

    # -- the operator ----------------------------------------------------------------------------------------

    def operate(self) -> None:
        """Somebody acts on what members hold, or what waits."""
        window, dice = self.partition._window, self.operator
        first = dice.randint(max(0, window.start - 2), window.end + 1)
        last, act = first + dice.randint(0, 6), dice.choice(list(Act))
        before = {o: window.states[o - window.base] for o in range(window.start, window.end)}
        start = window.start
        told = self.partition.intervene(act, [(first, last)], dry_run=True)
        if told.update is not None or before != {o: window.states[o - window.base] for o in range(start, window.end)}:
            raise Violation(f"a dry run of {act} at {first}-{last} changed something")
        done = self.partition.intervene(act, [(first, last)])
        if done.found != told.found or sum(done.found[0][2:]) != last - first + 1:
            raise Violation(f"{act} at {first}-{last} did {done.found}, and {told.found} was told")
        if done.update is None:
            return
        now = {o: ARCHIVED if o < window.start else window.states[o - window.base] for o in before}
        gone = {o for o, state in before.items() if state == ACQUIRED != now[o]}
        self.revoked.update((o, self.attempts.get(o, 0)) for o in gone)
        self.take_away(gone, go_on=act is Act.REJECT)
        if act is Act.REJECT:
            self.settled.update(o for o, state in before.items() if state != now[o] == ARCHIVED)
        self.keep(done.update)

    def take_away(self, offsets: set[int], *, go_on: bool) -> None:
        """Members hear of it. go_on: they may go on with the key."""
        self.running = {key: one for key, one in self.running.items() if one[1] not in offsets}
        for chains in self.chains.values():
            for chain in [one for one in chains if offsets.intersection(one.offsets)]:
                chain.offsets = [one for one in chain.offsets if one not in offsets]
                if not go_on or not chain.offsets:
                    chain.life = -1
                    chains.remove(chain)
                    self.running = {k: one for k, one in self.running.items() if one[0] != chain.member or go_on}

    # -- members ---------------------------------------------------------------------------------------------

    def poll(self, member: str) -> None:
        self.at(self.dice.randint(1, 60), lambda: self.poll(member))
        if self.chains[member]:
            for what, died, gone in (("dies", True, False), ("gone", True, True), ("leaves", False, False)):
                if self.faults(what):
                    # One that dies is cut off: its handlers go on until they know.
                    if not died or gone:
                        self.end_handlers(member)
                    update = self.partition.release_member(member, died=died, gone=gone)
                    if update is not None:
                        self.keep(update)
                    return
        for first, last, *_ in self.partition.archiving():
            if self.dice.random() < 0.5:
                self.bury(first, last)
        self.fetch(member)

    def bury(self, first: int, last: int) -> None:
        update = self.partition.finish_archiving(first, last)
        if update is not None:
            self.write(update, lambda written: self.settled.update(range(first, last + 1)))
            self.settled.update(range(first, last + 1))

    def end_handlers(self, member: str) -> None:
        for chain in self.chains[member]:
            chain.life = -1
        self.chains[member] = []
        self.sessions[member] += 1
        self.running = {key: one for key, one in self.running.items() if one[0] != member}

    def fetch(self, member: str) -> None:
        partition, wanted = self.partition, self.dice.randint(1, 20)
        while partition.can_acquire() and not partition.has_free_heads():
            at = partition.next_place_offset(self.log_end)
            if at < 0:
                break
            update = partition.place(self.read(at))
            if update is not None:
                self.keep(update)
            if partition.next_place_offset(self.log_end) == at:
                break
        if not partition.can_acquire():
            return
        heads_max = self.dice.choice((0, 0, 1, 3))
        picked = partition.pick(member, records_max=wanted, heads_max=heads_max, chain=self.chain, now_ms=self.now_ms)
        if not picked.ranges:
            return
        self.attempts.update((o, count) for first, last, count in picked.ranges for o in range(first, last + 1))
        until_ms, life = self.now_ms + self.limits.lock_duration_ms, (self.life, self.sessions[member])
        self.at(self.dice.randint(0, 3), lambda: self.confirm(member, picked, until_ms, life))

    def confirm(self, member: str, picked: Picked, until_ms: int, life: tuple[int, int]) -> None:
        if life[0] != self.life:
            return
        if self.faults("unread"):
            self.partition.put_back(picked)
            return
        offsets = [offset for first, last, _ in picked.ranges for offset in range(first, last + 1)]
        closed = {o for first, last, opened in self.batches if not opened for o in range(first, last + 1)}
        gone = [offset for offset in offsets if offset not in self.hash_of and offset not in closed]
        got = self.partition.confirm(member, picked, missing=gone)
        self.settled.update(gone)
        if got.update is not None:
            found = {offset: count for first, last, count in got.ranges for offset in range(first, last + 1)}
            self.write(got.update, lambda written: self.delivered(member, found, until_ms, life, written))

    def delivered(
        self, member: str, attempts: dict[int, int], until_ms: int, life: tuple[int, int], written: bool
    ) -> None:
        offsets = [one for one in attempts if (one, attempts[one]) not in self.revoked]
        if life != (self.life, self.sessions[member]) or not written or until_ms <= self.now_ms or not offsets:
            if life[0] == self.life and not written:
                self.give_back(member, offsets)
            return
        rows: dict[object, list[int]] = {}
        for offset in offsets:
            rows.setdefault(self.key(offset) or (offset,), []).append(offset)
        for row in rows.values():
            chain = Chain(member, row, until_ms, self.life, attempts)
            self.chains[member].append(chain)
            self.at(self.dice.randint(0, 5), lambda chain=chain: self.begin(chain))

    def give_back(self, member: str, offsets: list[int]) -> None:
        for offset in offsets:
            try:
                decision = self.partition.acknowledge(
                    member, [AckRange(offset, offset, RELEASE, unrun=True)], now_ms=self.now_ms
                )
            except CoreError:
                continue
            if decision.update is not None:
                self.partition.commit(decision)

    def begin(self, chain: Chain) -> None:
        """The handler of the chain's next record begins, if its member may still begin one."""
        if chain.life < 0 or not chain.offsets:
            return
        if chain.until_ms <= self.now_ms or (chain.life != self.life and self.dice.random() < 0.5):
            self.drop(chain)
            return
        offset = chain.offsets[0]
        key = self.key(offset)
        self.begun += 1
        if key:
            before = [o for o, k in self.hash_of.items() if k == key and o < offset]
            still_open = [o for o in before if o not in self.settled and o not in chain.accepted]
            if still_open:
                raise Violation(f"{chain.member} begins {offset} of key {key} while {still_open} are open")
            name, other, until_ms = self.running.get(key, ("", -1, 0))
            if until_ms > self.now_ms and (name != chain.member or other != offset):
                raise Violation(
                    f"{chain.member} begins {offset} of key {key} beside {other} of {name}, locked to {until_ms}"
                )
            self.running[key] = (chain.member, offset, chain.until_ms)
        late = self.faults("late")
        delay_ms = self.limits.lock_duration_ms + 50 if late else self.dice.randint(1, 80)
        self.at(delay_ms, lambda: self.finish(chain))

    def drop(self, chain: Chain) -> None:
        if chain in self.chains[chain.member]:
            self.chains[chain.member].remove(chain)

    def finish(self, chain: Chain) -> None:
        if chain.life < 0 or not chain.offsets:
            return
        offset = chain.offsets.pop(0)
        if self.running.get(self.key(offset), ("", -1, 0))[:2] == (chain.member, offset):
            del self.running[self.key(offset)]
        if chain.until_ms <= self.now_ms and any(offset in one.offsets for one in self.chains[chain.member]):
            self.drop(chain)  # it knows that it has lost it, and got it anew
            return
        # A leader knows no order of what it has not read, or can read no more.
        there = bool(chain.offsets) and all(
            one in self.hash_of and self.partition.start_offset <= one < self.known_end()
            for one in (offset, chain.offsets[-1])
        )
        if there and self.faults("out_of_turn"):
            self.acknowledge(chain, [chain.batch(chain.offsets[-1], ACCEPT)], must_fail=True)
        if self.faults("renew"):
            self.renew(chain, [offset, *chain.offsets])
        roll = self.dice.random()
        if roll < self.faults["release"] + self.faults["reject"]:
            reject = roll < self.faults["reject"]
            delay_ms = 0 if reject else self.dice.choice((0, 0, 200))
            batches = [chain.batch(offset, REJECT if reject else RELEASE, delay_ms=delay_ms)]
            batches += [chain.batch(rest, RELEASE, unrun=True) for rest in chain.offsets]
            chain.offsets = []
            self.drop(chain)
            self.acknowledge(chain, batches)
            return
        chain.accepted.append(offset)
        self.acknowledge(chain, [chain.batch(offset, ACCEPT)])
        if chain.offsets:
            self.begin(chain)
        else:
            self.drop(chain)

    def renew(self, chain: Chain, offsets: list[int]) -> None:
        try:
            said = self.partition.acknowledge(
                chain.member, [chain.batch(one, b"\x04") for one in offsets], now_ms=self.now_ms
            )
        except CoreError:
            return
        if said.refused is not None:
            return
        chain.until_ms = self.now_ms + self.limits.lock_duration_ms

    def acknowledge(self, chain: Chain, batches: list[AckRange], *, must_fail: bool = False) -> None:
        try:
            decision = self.partition.acknowledge(chain.member, batches, now_ms=self.now_ms)
        except CoreError:
            return
        if must_fail:
            raise Violation(f"{chain.member} settled {batches} out of turn")
        if decision.update is None:
            return
        life = self.life
        self.write(decision.update, lambda written: self.done(decision, life, written), decides=True)

    def done(self, decision: Decision, life: int, written: bool) -> None:
        changes = [run for run in decision.changes if run.state.terminal]
        if written:
            self.settled.update(offset for run in changes for offset in range(run.first, run.last + 1))
        if life != self.life:
            return
        if not written:
            update = self.partition.abort(decision, now_ms=self.now_ms)
            if update is not None:
                self.keep(update)
            return
        self.partition.commit(decision)
