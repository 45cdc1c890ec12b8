"""A seeded world around one share-partition: members, faults and restarts on a virtual clock.

One timeline and one `random.Random(seed)`; the seed draws the limits and the rates of the faults. The store is a
list of updates in the order they were decided; what was not confirmed at a restart may or may not be in it. Checked at
every step: never two holders of a record, never more deliveries than the limit, nothing delivered again after its
accept was confirmed. Checked at the end: every record was delivered and ended, within a bounded number of steps.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from flowshare.core_errors import CoreError
from flowshare.share.intervene import Act
from flowshare.share.partition import Decision, SharePartition
from flowshare.share.records import replay
from flowshare.share.types import (
    AcknowledgeType,
    AckRange,
    AcquireMode,
    Limits,
    LogBatch,
    PartitionState,
    PartitionUpdate,
)
from tests.sim.faults import Faults
from tests.sim.timeline import Timeline, Violation, until_quiet

STEPS_MAX = 60_000


@dataclass(slots=True)
class Write:
    """One update on its way into the store."""

    update: PartitionUpdate
    settle: Callable[[bool], None]
    ends: int | None = None
    """the offset that an accept or reject in this update ends"""
    settled: bool = False


@dataclass
class World:
    """The shell's part, played by one object."""

    seed: int
    trace: hashlib._Hash = field(default_factory=hashlib.sha256)

    def __post_init__(self) -> None:
        self.dice = dice = random.Random(self.seed)
        self.timeline = Timeline(1_000_000)
        self.at = self.timeline.after
        locks = dice.randint(4, 60)
        self.limits = Limits(
            lock_duration_ms=dice.choice((500, 1000, 5000)),
            delivery_count_max=dice.randint(2, 8),
            record_locks_max=locks,
            window_max=dice.choice((None, locks, locks * 4)),
        )
        self.faults = Faults(
            dice,
            dies=(0, 0.02, 0.1),  # a member forgets what it holds, the shell notices and releases it
            vanishes=(0, 0.02, 0.1),  # a member forgets what it holds and only its locks tell
            late=(0, 0.05),  # an acknowledgement comes after the lock lapsed
            twice=(0, 0.1),  # an acknowledgement is sent a second time
            foreign=(0, 0.1),  # a member acknowledges what another holds
            write_fails=(0, 0.05, 0.3),
            restart=(0, 0.005, 0.02),  # the leader restarts and reads the store
            release=(0, 0.1, 0.5),
            reject=(0, 0.05),
            renew=(0, 0.1),
            unrun=(0, 0.2),
        )
        self.log: list[LogBatch] = []
        end = 0
        while end < 150:
            size = dice.randint(1, dice.choice((1, 10, 40)))
            self.log.append(LogBatch(end, end + size - 1))
            end += size
        self.log_end = end
        self.partition = SharePartition(start_offset=0, limits=self.limits)
        self.snapshot = PartitionState(start_offset=0)
        self.updates: list[PartitionUpdate] = []
        self.writes: list[Write] = []
        self.life = 0
        self.held: dict[str, dict[int, int]] = {f"m{n}": {} for n in range(dice.randint(1, 4))}
        self.generation: dict[str, int] = dict.fromkeys(self.held, 0)
        self.holder: dict[int, tuple[str, int]] = {}
        self.attempts: dict[int, int] = {}
        self.accepted: set[int] = set()
        self.ended: set[int] = set()
        self.operator = random.Random(self.seed * 7919)
        self.operates = self.operator.choice((0, 0, 0.02, 0.2))
        self.revoked: set[tuple[int, int]] = set()
        """Deliveries that the operator took back, maybe before their member has them."""

    # -- the run --------------------------------------------------------------------------------------------

    def run(self) -> str:
        """Play until every record ended. Returns a digest of all that happened. Raises: Violation."""
        for member in self.held:
            self.at(self.dice.randint(0, 20), lambda member=member: self.poll(member))
        until_quiet(
            lambda: self.partition.start_offset >= self.log_end and not self.writes,
            self.step,
            steps_max=STEPS_MAX,
            stuck=lambda: f"start offset {self.partition.start_offset} of {self.log_end}",
        )
        for offset in range(self.log_end):
            attempts = self.attempts.get(offset, 0)
            if offset not in self.ended and attempts < self.limits.delivery_count_max:
                raise Violation(f"offset {offset} was skipped: acquired {attempts} times and never ended")
        return self.trace.hexdigest()

    @property
    def now_ms(self) -> int:
        return int(self.timeline.now)

    def step(self) -> None:
        deadline_ms, due_ms = self.partition.next_deadline_ms(), self.timeline.next_due
        if deadline_ms is not None and (due_ms is None or deadline_ms <= due_ms):
            self.timeline.now = max(self.now_ms, deadline_ms)
            update = self.partition.lapse(self.now_ms)
            if update is not None:
                self.write(update, lambda written: None)
            return
        self.timeline.step()
        if self.operator.random() < self.operates:
            self.operate()
        if self.faults("restart"):
            self.restart()

    def note(self, *what: object) -> None:
        self.trace.update(f"{self.now_ms} {what}\n".encode())

    # -- the store ------------------------------------------------------------------------------------------

    def write(self, update: PartitionUpdate, settle: Callable[[bool], None], ends: int | None = None) -> None:
        write = Write(update, settle, ends)
        self.writes.append(write)
        life = self.life
        self.at(self.dice.randint(0, 30), lambda: self.written(write, life))

    def written(self, write: Write, life: int) -> None:
        """Writes end in the order they were begun: this one takes all before it along."""
        if life != self.life or write.settled:
            return
        while True:
            first = self.writes.pop(0)
            first.settled = True
            good = not self.faults("write_fails")
            if good:
                self.updates.append(first.update)
            first.settle(good)
            if first is write:
                return

    def restart(self) -> None:
        """The leader dies: unconfirmed writes are in the store up to some point, or not at all."""
        lucky = self.dice.randint(0, len(self.writes))
        for write in self.writes[:lucky]:
            self.updates.append(write.update)
            if write.ends is not None:
                self.ended.add(write.ends)
        self.writes.clear()
        self.life += 1
        self.snapshot = replay(self.snapshot, self.updates)
        self.updates.clear()
        self.partition = SharePartition(
            start_offset=self.snapshot.start_offset, limits=self.limits, runs=self.snapshot.runs
        )
        self.holder.clear()
        self.revoked.clear()
        for held in self.held.values():
            held.clear()
        self.note("restart", lucky, self.partition.start_offset)

    def operate(self) -> None:
        """Somebody acts on what members hold, or what waits."""
        partition, dice = self.partition, self.operator
        first = dice.randint(max(0, partition.start_offset - 2), partition.end_offset + 1)
        last, act = first + dice.randint(0, 6), dice.choice(list(Act))
        held = {offset for run in partition.in_flight() for offset in range(run.first, run.last + 1)}
        done = partition.intervene(act, [(first, last)])
        if sum(done.found[0][2:]) != last - first + 1:
            raise Violation(f"{act} at {first}-{last} did {done.found}")
        if done.update is None:
            return
        still = {offset for run in partition.in_flight() for offset in range(run.first, run.last + 1)}
        self.revoked.update((offset, self.attempts[offset]) for offset in held - still)
        for offset in held - still:
            self.holder.pop(offset, None)
        if act is Act.REJECT:
            self.ended.update(range(first, last + 1))
        self.write(done.update, lambda written: None)

    # -- members --------------------------------------------------------------------------------------------

    def bury(self) -> None:
        """Write the dead letters that the operator asked for; the group's own settings ask for none."""
        for run in self.partition.archiving():
            if not run.by_operator:
                raise Violation(f"{run} is to be a dead letter, and no operator said so")
            self.ended.update(range(run.first, run.last + 1))
            buried = self.partition.finish_archiving(run.first, run.last)
            if buried is not None:
                self.write(buried, lambda written: None)

    def poll(self, member: str) -> None:
        self.at(self.dice.randint(1, 60), lambda: self.poll(member))
        self.bury()
        held = self.held[member]
        if held and self.faults("dies"):
            held.clear()
            self.generation[member] += 1
            update = self.partition.release_member(member)
            self.drop_holder(member)
            self.note("died", member)
            if update is not None:
                self.write(update, lambda written: None)
            return
        if held and self.faults("vanishes"):
            held.clear()
            self.note("vanished", member)
            return
        self.fetch(member)

    def drop_holder(self, member: str) -> None:
        for offset in [offset for offset, (name, _) in self.holder.items() if name == member]:
            del self.holder[offset]

    def fetch(self, member: str) -> None:
        fetch_offset = self.partition.next_fetch_offset()
        batches = [batch for batch in self.log if batch.last >= fetch_offset][: self.dice.randint(1, 6)]
        if not batches or not self.partition.can_acquire():
            return
        got = self.partition.acquire(
            member,
            mode=self.dice.choice(list(AcquireMode)),
            records_max=self.dice.randint(1, 40),
            batch_size=self.dice.randint(1, 20),
            fetch_offset=fetch_offset,
            batches=batches,
            now_ms=self.now_ms,
        )
        if got.update is None:
            return
        offsets = {offset: count for first, last, count in got.ranges for offset in range(first, last + 1)}
        self.attempts.update(offsets)
        deadline_ms = self.now_ms + self.limits.lock_duration_ms
        life = (self.life, self.generation[member])
        self.write(got.update, lambda written: self.delivered(member, offsets, deadline_ms, life, written))

    def delivered(
        self, member: str, offsets: dict[int, int], deadline_ms: int, life: tuple[int, int], written: bool
    ) -> None:
        """The acquire is durable, so the records leave; if it is not they stay behind until the lock lapses."""
        if life != (self.life, self.generation[member]) or not written or deadline_ms <= self.now_ms:
            return
        offsets = {offset: count for offset, count in offsets.items() if (offset, count) not in self.revoked}
        self.note("delivered", member, sorted(offsets.items()))
        for offset, count in offsets.items():
            name, until_ms = self.holder.get(offset, (member, 0))
            if until_ms > self.now_ms and name != member:
                raise Violation(
                    f"offset {offset} is held by {name} until {until_ms} and went to {member} at {self.now_ms}"
                )
            if offset in self.accepted:
                raise Violation(f"offset {offset} was delivered again after its accept was confirmed")
            if count > self.limits.delivery_count_max:
                raise Violation(
                    f"offset {offset} has delivery count {count}, the limit is {self.limits.delivery_count_max}"
                )
            self.holder[offset] = (member, deadline_ms)
            self.held[member][offset] = deadline_ms
        for offset in offsets:
            slow = self.faults("late")
            delay_ms = self.limits.lock_duration_ms + 50 if slow else self.dice.randint(1, 80)
            self.at(delay_ms, lambda offset=offset: self.finish(member, offset, life[0]))

    def finish(self, member: str, offset: int, life: int) -> None:
        if life != self.life or offset not in self.held[member]:
            return
        if self.faults("foreign"):
            self.attempt("foreign", [AckRange(offset, offset, b"\x01")], must_fail=True)
        roll, renew, release, reject = self.dice.random(), *(self.faults[one] for one in ("renew", "release", "reject"))
        kind, unrun, delay_ms = AcknowledgeType.ACCEPT, False, 0
        if roll < renew:
            kind = AcknowledgeType.RENEW
        elif roll < renew + release:
            kind = AcknowledgeType.RELEASE
            unrun = self.faults("unrun")
            delay_ms = self.dice.choice((0, 200))
        elif roll < renew + release + reject:
            kind = AcknowledgeType.REJECT
        batch = AckRange(offset, offset, bytes([kind]), delay_ms=delay_ms, unrun=unrun)
        decision = self.attempt(member, [batch])
        if kind is AcknowledgeType.RENEW:
            if decision is not None:
                deadline_ms = self.now_ms + self.limits.lock_duration_ms
                self.holder[offset] = (member, deadline_ms)
                self.at(self.dice.randint(1, 80), lambda: self.finish(member, offset, life))
            return
        self.held[member].pop(offset)
        if decision is None or decision.update is None:
            return
        if self.faults("twice"):
            self.attempt(member, [batch], must_fail=offset >= self.partition.start_offset)
        self.write(
            decision.update,
            lambda written: self.settled(decision, member, offset, kind, life, written),
            ends=None if kind is AcknowledgeType.RELEASE else offset,
        )

    def attempt(self, member: str, batches: list[AckRange], *, must_fail: bool = False) -> Decision | None:
        try:
            decision = self.partition.acknowledge(member, batches, now_ms=self.now_ms)
        except CoreError:
            return None
        if must_fail and batches[0].last >= self.partition.start_offset:
            raise Violation(f"{member} acknowledged {batches} which was not to be had")
        return decision

    def settled(
        self, decision: Decision, member: str, offset: int, kind: AcknowledgeType, life: int, written: bool
    ) -> None:
        if life != self.life:
            return
        self.note("settled", member, offset, int(kind), written)
        if not written:
            update = self.partition.abort(decision, now_ms=self.now_ms)
            if update is not None:
                self.write(update, lambda written: None)
            return
        self.partition.commit(decision)
        if self.holder.get(offset, ("", 0))[0] == member:
            del self.holder[offset]
        if kind is AcknowledgeType.RELEASE:
            return
        self.ended.add(offset)
        if kind is AcknowledgeType.ACCEPT:
            if offset in self.accepted:
                raise Violation(f"offset {offset} was accepted twice")
            self.accepted.add(offset)
