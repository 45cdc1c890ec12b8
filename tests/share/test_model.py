"""The share-partition against the obvious model (model.py), step by step, by Hypothesis.

Invariants, in both directions: the offset below the start offset is finished and the one at it is not; states, counts,
acquired and complete counts are equal; the next offset to fetch is the first that is to be had; a refused request
changes nothing. The limits are never computed for the code under test.
"""

from __future__ import annotations

import os
from collections import Counter

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from flowshare.core_errors import CoreError
from flowshare.share.allotment import Allotment
from flowshare.share.partition import Decision, SharePartition
from flowshare.share.types import AcknowledgeType, AckRange, AcquireMode, Limits, LogBatch, Priority, StateRun
from tests.share.model import Model, Wanted

MEMBERS = ("m1", "m2", "m3")
members = st.sampled_from(MEMBERS)
LOCK_MS = 1000


class SharePartitionMachine(RuleBasedStateMachine):
    """Drives both and compares."""

    def __init__(self) -> None:
        super().__init__()
        self.now_ms = 1_000_000
        self.log: list[LogBatch] = []
        self.open: list[tuple[Decision, Wanted]] = []

    @initialize(
        deliveries=st.integers(2, 6),
        locks=st.integers(3, 25),
        window=st.none() | st.integers(4, 40),
        renew=st.booleans(),
        start=st.integers(0, 7),
        priority=st.sampled_from(Priority),
        quota=st.none() | st.integers(1, 20),
    )
    def begin(
        self,
        deliveries: int,
        locks: int,
        window: int | None,
        renew: bool,
        start: int,
        priority: Priority,
        quota: int | None,
    ) -> None:
        self.limits = Limits(
            lock_duration_ms=LOCK_MS,
            delivery_count_max=deliveries,
            record_locks_max=locks,
            window_max=window,
            renew_enabled=renew,
            priority=priority,
        )
        self.real = SharePartition(start_offset=start, limits=self.limits)
        self.quota = None if quota is None else Allotment(quota)
        self.real.allowance.quota = self.quota
        self.model = Model(self.limits, start)
        self.log_end = start

    # -- rules ----------------------------------------------------------------------------------------------

    @rule(sizes=st.lists(st.integers(1, 9), min_size=1, max_size=4))
    def extend(self, sizes: list[int]) -> None:
        for size in sizes:
            self.log.append(LogBatch(self.log_end, self.log_end + size - 1))
            self.log_end += size

    @precondition(lambda self: self.log)
    @rule(
        member=members,
        mode=st.sampled_from(AcquireMode),
        records_max=st.integers(1, 30),
        batch_size=st.integers(1, 12),
        fetched=st.integers(1, 5),
    )
    def acquire(self, member: str, mode: AcquireMode, records_max: int, batch_size: int, fetched: int) -> None:
        fetch_offset = self.real.next_fetch_offset(self.log_end)
        batches = [batch for batch in self.log if batch.last >= fetch_offset][:fetched]
        if not batches:
            return
        room, redelivers = self.model.room_for_new(), self.model.room_for_redelivery()
        to_be_had = [offset for offset in self.model.tiny if self.model.fetchable(offset, self.now_ms)]
        waits = self.kept_apart(member) or self.real.first_served(self.now_ms) is not None
        limit = 1_000_000 if self.quota is None or self.quota.limit is None else self.quota.limit
        left = max(0, limit - self.model.acquired_count)
        got = self.real.acquire(
            member,
            mode=mode,
            records_max=records_max,
            batch_size=batch_size,
            fetch_offset=fetch_offset,
            batches=batches,
            now_ms=self.now_ms,
        )
        window = {offset: run for run in self.real.state() for offset in range(run.first, run.last + 1)}
        self.model.acquired(member, got.ranges, batches, window, self.real.end_offset, self.now_ms)
        taken = sum(last - first + 1 for first, last, _ in got.ranges)
        if mode is AcquireMode.RECORD_LIMIT:
            assert taken <= records_max
        assert taken <= left, "the group's limit is kept to the record"
        if left and ((to_be_had and redelivers) or room) and not waits:
            assert taken > 0, "something was to be had and nothing was acquired"
        if taken:
            assert got.update is not None
            written = {offset for run in got.update.runs for offset in range(run.first, run.last + 1)}
            assert {offset for first, last, _ in got.ranges for offset in range(first, last + 1)} <= written

    @precondition(lambda self: self.model.tiny)
    @rule(data=st.data(), member=members)
    def acknowledge(self, data: st.DataObject, member: str) -> None:
        mine = sorted(o for o, tiny in self.model.tiny.items() if tiny.owner == member and not tiny.pending)
        if mine and data.draw(st.integers(0, 3)):
            first = data.draw(st.sampled_from(mine))
            last = first
            while last + 1 in mine and data.draw(st.booleans()):
                last += 1
        else:
            first = data.draw(st.integers(max(0, self.model.start - 3), self.model.end + 1))
            last = data.draw(st.integers(first, min(first + 6, self.model.end + 2)))
        kinds = st.sampled_from(AcknowledgeType).map(int)
        types = data.draw(
            st.lists(kinds, min_size=last - first + 1, max_size=last - first + 1) | kinds.map(lambda k: [k])
        )
        batches = [
            AckRange(
                first,
                last,
                bytes(types),
                delay_ms=data.draw(st.sampled_from([0, 500])),
                unrun=data.draw(st.booleans()),
            )
        ]
        if len(mine) > 1 and mine[-1] > last:
            batches.append(AckRange(mine[-1], mine[-1], bytes([data.draw(kinds)])))
        wanted = self.model.wanted(member, batches)
        before = self.real.state()
        if wanted is None:
            with pytest.raises(CoreError):
                self.real.acknowledge(member, batches, now_ms=self.now_ms)
            assert self.real.state() == before, "a refused request changed something"
            return
        decision = self.real.acknowledge(member, batches, now_ms=self.now_ms)
        left = self.model.decided(wanted, self.now_ms)
        assert (decision.update is not None) == bool(left)
        if left:
            self.open.append((decision, left))

    @precondition(lambda self: self.open)
    @rule(data=st.data(), written=st.booleans())
    def settle(self, data: st.DataObject, written: bool) -> None:
        decision, wanted = self.open.pop(data.draw(st.integers(0, len(self.open) - 1)))
        if written:
            decided = sum(change.last - change.first + 1 for change in decision.changes)
            self.real.commit(decision)
            self.model.committed(wanted)
            assert decision.lost == (decided > len(wanted)), "whether something was lost is told"
        else:
            self.real.abort(decision, now_ms=self.now_ms)
            self.model.aborted(wanted, self.now_ms)

    @rule(step_ms=st.sampled_from([1, 499, 500, LOCK_MS - 1, LOCK_MS, LOCK_MS + 1]))
    def tick(self, step_ms: int) -> None:
        self.now_ms += step_ms
        self.real.lapse(self.now_ms)
        self.model.expired(self.now_ms)

    @rule(member=members)
    def release_member(self, member: str) -> None:
        self.real.release_member(member)
        self.model.released(member)

    @precondition(lambda self: self.log)
    @rule(ahead=st.integers(-2, 12))
    def move_log_start(self, ahead: int) -> None:
        log_start = min(self.log_end, max(0, self.model.start + ahead))
        self.real.move_log_start(log_start)
        self.model.log_started_at(log_start)
        self.log = [batch for batch in self.log if batch.last >= log_start]

    @precondition(lambda self: self.log)
    @rule(lost=st.integers(0, 15))
    def cut(self, lost: int) -> None:
        end = max(self.log[0].first, self.log_end - lost)
        update = self.real.cut(end)
        assert (update is not None) == (end < self.model.end)
        self.model.cut(end)
        self.log_end = end
        self.log = [LogBatch(batch.first, min(batch.last, end - 1)) for batch in self.log if batch.first < end]
        # A decision that is settled later has no effect on what comes in the place of what was lost.
        self.open = [(decision, [one for one in wanted if one[0] < end]) for decision, wanted in self.open]

    @precondition(lambda self: getattr(self, "quota", None) is not None)
    @rule(limit=st.none() | st.integers(1, 20))
    def lease(self, limit: int | None) -> None:
        self.quota.limit = limit

    @precondition(lambda self: not self.open)
    @rule()
    def reload(self) -> None:
        self.real = SharePartition(start_offset=self.real.start_offset, limits=self.limits, runs=self.real.state())
        self.model.reloaded()
        self.quota = None if self.quota is None else Allotment(self.quota.limit)
        self.real.allowance.quota = self.quota

    def kept_apart(self, member: str) -> bool:
        """True if records of a dead process may keep this member waiting."""
        return bool(self.real._quarantine) and any(tiny.owner == member for tiny in self.model.tiny.values())

    # -- invariants -----------------------------------------------------------------------------------------

    @invariant()
    def equal(self) -> None:
        if not hasattr(self, "real"):
            return
        assert (self.real.start_offset, self.real.end_offset) == (self.model.start, self.model.end)
        seen: dict[int, tuple[object, int]] = {}
        last: StateRun | None = None
        for run in self.real.state():
            assert last is None or last.last < run.first, "runs overlap or are out of order"
            last = run
            seen |= dict.fromkeys(range(run.first, run.last + 1), (run.state, run.delivery_count))
        assert seen.keys() == self.model.tiny.keys()
        assert {o: seen[o] for o in self.model.runs()} == self.model.runs()
        if not any(tiny.pending for tiny in self.model.tiny.values()):
            assert self.real.acquired_count == self.model.acquired_count
            assert self.real.delivery_complete_count == self.model.complete_count

    @invariant()
    def next_fetch_offset_is_the_first_to_be_had(self) -> None:
        if not hasattr(self, "real"):
            return
        to_be_had = [offset for offset in self.model.tiny if self.model.fetchable(offset, self.now_ms)]
        if self.limits.priority is Priority.REDELIVERIES:
            assert self.real.next_fetch_offset() == min(to_be_had, default=self.model.end)
        else:
            assert self.real.next_fetch_offset(self.log_end) in (*to_be_had, self.model.end)
        used_up = self.quota is not None and self.quota.used_up
        assert self.real.can_acquire() == (
            not used_up and (bool(to_be_had and self.model.room_for_redelivery()) or self.model.room_for_new())
        )

    @invariant()
    def it_is_counted_who_holds_how_much(self) -> None:
        if not hasattr(self, "real"):
            return
        owners = Counter(tiny.owner for tiny in self.model.tiny.values() if tiny.owner is not None)
        assert self.real._window.holds.tally.held == dict(owners)
        assert self.real._window.holds.tally.total == self.real.acquired_count
        if self.quota is not None:
            assert (self.quota.tally.held, self.quota.tally.total) == (dict(owners), sum(owners.values()))

    @invariant()
    def the_next_deadline_is_the_earliest(self) -> None:
        if not hasattr(self, "real"):
            return
        due = [t.deadline_ms for t in self.model.tiny.values() if t.owner is not None and not t.pending]
        due += [t.not_before_ms for t in self.model.tiny.values() if not t.pending and t.not_before_ms > self.now_ms]
        asked = self.real.next_deadline_ms()
        if due:
            assert asked is not None
            assert asked <= min(due), "a lock would lapse or a delayed record be due unseen"


SharePartitionMachine.TestCase.settings = settings(
    max_examples=int(os.environ.get("MODEL_EXAMPLES", "120")),
    stateful_step_count=40,
    deadline=None,
    derandomize="MODEL_EXAMPLES" not in os.environ,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
TestSharePartitionAgainstTheModel = pytest.mark.slow(SharePartitionMachine.TestCase)
