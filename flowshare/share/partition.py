"""The share-partition: which offsets of a log partition are free, with whom, or finished, for one group.

Plain data and rules, no I/O: time comes in as `now_ms`, deadlines go out as `next_deadline_ms()`. A change that must be
durable before it counts is decided, written by the caller, then committed or aborted:

    decision = partition.acknowledge(member_id, batches, now_ms=now)
    if decision.update is not None:
        await store(decision.update)       # on failure: partition.abort(decision, now_ms=…)
        partition.commit(decision)

The rules stand in the modules beside this one: `state` (the transitions), `window` (the offsets), `acquire`,
`acknowledge`, `lapse`. This module only ties them together.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterable, Sequence
from dataclasses import replace
from itertools import groupby
from typing import NamedTuple

from flowshare.share import acknowledge as acknowledging
from flowshare.share import acquire as acquiring
from flowshare.share import acquire_by_key as by_key
from flowshare.share import lapse
from flowshare.share.acknowledge import Decision
from flowshare.share.acquire import Acquisition, Read
from flowshare.share.acquire_by_key import Ask, Picked
from flowshare.share.allowance import Allowance
from flowshare.share.browse import Look
from flowshare.share.heads import Heads, KeyedBatch
from flowshare.share.intervene import OPERATOR, Act, Intervention, intervene
from flowshare.share.priority import Alternation
from flowshare.share.quarantine import SUSPECT_AT, Quarantine
from flowshare.share.reload import reload
from flowshare.share.state import Event, step
from flowshare.share.types import (
    ACQUIRED,
    ARCHIVED,
    ARCHIVING,
    AVAILABLE,
    BLOCKED,
    DELAYED,
    PENDING,
    AckRange,
    AcquireMode,
    BlockedKey,
    Limits,
    LogBatch,
    PartitionUpdate,
    RecordState,
    StateRun,
)
from flowshare.share.window import Window, merged

__all__ = ["Acquisition", "Archiving", "Decision", "MemberRun", "SharePartition"]

_STATES_TOLD = {ACQUIRED: "HELD", PENDING: "HELD", DELAYED: "DELAYED", ARCHIVING: "ARCHIVING"}


class MemberRun(NamedTuple):
    """Records that one member holds, with the deadline of their lock."""

    first: int
    last: int
    member_id: str
    delivery_count: int
    deadline_ms: int


class Archiving(NamedTuple):
    """Records that wait for their dead letter. by_limit: the deliveries are used up (False: rejected). by_operator: an
    operator gave the records up."""

    first: int
    last: int
    delivery_count: int
    by_limit: bool
    by_operator: bool = False


class SharePartition:
    """One group's view of one partition of a log (SG-1.1): the partition's leader decides by this object, one call
    after another.

    start_offset, runs: the durable state (`PartitionState`), sorted. Holes between the runs may have been delivered
        before and are acquired again (SG-2.5).
    living: members that keep their ACQUIRED runs for one lock duration from `now_ms`. The owners of all other runs are
        gone: those runs are AVAILABLE again with their delivery count (finished if the count is at the limit).
    gone: members whose processes are known to have ended. With an order, the runs of all other members stay locked for
        one lock duration, as their handlers may be at work.
    now_ms: used only for `living` and for delays that are over already.
    log_epoch: see `PartitionState`; a log that was cut and goes on has a higher epoch from then on (`cut`).
    ordered: records are handed out in the order of their keys (`heads`): use `place` and `pick` instead of `acquire`.

    `allowance`: the records that the partition's and the group's limit leave to each member.

    Raises StateCorrupt if a run starts below the start offset or before the end of the run before, or ends before its
    first offset, or if a run is further from the start offset than any window gets.
    """

    def __init__(
        self,
        *,
        start_offset: int,
        limits: Limits,
        runs: Sequence[StateRun] = (),
        living: Container[str] = (),
        gone: Container[str] = (),
        now_ms: int = 0,
        log_epoch: int = -1,
        ordered: bool = False,
    ) -> None:
        self.log_epoch = self._epoch_told = log_epoch
        self._window = Window(start_offset, ordered=ordered)
        self._quarantine = Quarantine()
        self.allowance = Allowance(self._window.holds.tally)
        self._alternation = Alternation()
        self._operated = {
            offset
            for run in runs
            if run.state is RecordState.ARCHIVING and run.member_id == OPERATOR
            for offset in range(run.first, run.last + 1)
        }
        """ARCHIVING offsets that an operator gave up; may contain offsets that are not ARCHIVING any more."""
        self.limits = limits
        reload(self._window, self._quarantine, limits, runs, living=living, gone=gone, now_ms=now_ms)

    @property
    def limits(self) -> Limits:
        """The group's settings; new settings count from the next step on."""
        return self._limits

    @limits.setter
    def limits(self, limits: Limits) -> None:
        self._limits = limits
        self._states_after = acknowledging.states_after(limits)
        self.allowance.limit(None if limits.window_max is None else limits.record_locks_max)
        self._alternation.follow(limits.priority)

    @property
    def start_offset(self) -> int:
        """The first unfinished offset: everything below is finished (SG-1.2)."""
        return self._window.start

    @property
    def end_offset(self) -> int:
        """The first offset never acquired; equal to `start_offset` when nothing is in the window."""
        return self._window.end

    @property
    def delivery_complete_count(self) -> int:
        """The number of finished offsets that the start offset has not passed (SG-1.6); such offsets are no lag
        (SG-13.1)."""
        return self._window.finished

    @property
    def acquired_count(self) -> int:
        """The number of offsets that members hold; an acknowledged offset is held until the acknowledgement is
        committed."""
        return self._window.acquired

    @property
    def delayed_count(self) -> int:
        """The number of released offsets whose delay is not over."""
        return self._window.tally[DELAYED]

    @property
    def ordered(self) -> bool:
        """True if records come in the order of their keys."""
        return self._window.heads is not None

    @property
    def blocked_count(self) -> int:
        """The number of offsets that wait for another offset of their key, those in a chain that a member holds
        included."""
        heads = self._window.heads
        return self._window.tally[BLOCKED] + (sum(1 for _ in heads.waiting()) if heads and heads.chained else 0)

    @property
    def archiving_count(self) -> int:
        """The number of offsets whose dead letter is to be written."""
        return self._window.tally[ARCHIVING]

    def most_blocked(self, count: int) -> tuple[BlockedKey, ...]:
        """Return the keys with the most waiting records, at most `count`; scans the window if any record waits."""
        if not self.blocked_count:
            return ()
        return tuple(self._blocked_key(offset, blocked) for offset, blocked in self._heads.most_blocked(count))

    def _blocked_key(self, offset: int, blocked: int) -> BlockedKey:
        window = self._window
        (run,) = window.runs(offset, offset)
        state = _STATES_TOLD.get(run.state, "AVAILABLE")
        holder = window.holds.by_id[run.hold_id].member_id if state == "HELD" else None
        return BlockedKey(offset, blocked, state, run.delivery_count, holder or "")

    @property
    def window_used(self) -> float:
        """The share of the window that the span from the first to the last unfinished offset takes, from 0 to 1."""
        window, limits = self._window, self._limits
        most = limits.record_locks_max if limits.window_max is None else limits.window_max
        return (window.end - window.start) / most

    def next_fetch_offset(self, log_end: int = 0) -> int:
        """Return the offset at which to read the log next: released records come before new ones (SG-4.1).

        With another `priority` new records may come first (SG-4.2). For that the core must know of new records: log_end
        is the offset after the last record that can be read.
        """
        window = self._window
        if self._alternation.new and (offset := self._next_new(log_end)) >= 0:
            return offset
        offset = window.next_available(window.start, window.end - 1)
        gap = window.next_gap(window.start, window.end - 1 if offset < 0 else offset)
        if gap >= 0:
            return gap
        return offset if offset >= 0 else window.end

    @property
    def choosy(self) -> bool:
        """True if some records may go to certain members only: records of dead processes come alone (`quarantine`)."""
        return bool(self._quarantine)

    @property
    def has_suspects(self) -> bool:
        """True if records wait to be delivered alone, which only this object knows."""
        return self._quarantine.waits(self._window)

    @property
    def holders(self) -> Container[str]:
        """The members that hold records."""
        return self._window.holds.tally.held

    def can_acquire(self) -> bool:
        """True if a fetch may return records (SG-4.3).

        With `window_max` None, as in Kafka (SG-4.4): the window holds a fetchable offset, or the window's span is below
        `record_locks_max`. With a number: fewer records are acquired than `record_locks_max`, and the window holds a
        fetchable offset or its span is below `window_max`. False while the group is paused or its limit (`allowance`)
        is used up.
        """
        window, limits = self._window, self._limits
        if limits.paused or self.allowance.used_up:
            return False
        if window.heads is not None:
            return window.acquired < limits.record_locks_max
        span = window.end - window.start
        if limits.window_max is None:
            return span < limits.record_locks_max or self.next_fetch_offset() != window.end
        if window.acquired >= limits.record_locks_max:
            return False
        return span < limits.window_max or self.next_fetch_offset() != window.end

    def has_records(self, log_end: int) -> bool:
        """True if a record may be acquired, judged without reading the log. log_end: as for `next_fetch_offset`."""
        if self._window.heads is not None:
            return self.has_free_heads() or self.next_place_offset(log_end) >= 0
        return self.next_fetch_offset(log_end) < log_end

    # -- in the order of keys

    @property
    def _heads(self) -> Heads:
        assert self._window.heads is not None, "the share-partition has no order"
        return self._window.heads

    @property
    def available_count(self) -> int:
        """The number of offsets in the window that can be picked; offsets whose keys are not known yet do not count."""
        window, known_end = self._window, self._heads.known_end
        if known_end >= window.end:
            return window.tally[AVAILABLE]
        return window.states.count(AVAILABLE, window.start - window.base, max(known_end, window.start) - window.base)

    def has_free_heads(self) -> bool:
        """True if the first record of a key waits for a member."""
        window = self._window
        return window.next_available(window.start, self._heads.known_end - 1) >= 0

    def next_place_offset(self, log_end: int) -> int:
        """Return the offset at which to read the log for `place`; −1: nothing to read, or no room in the window."""
        at = self._heads.known_end
        return at if at < log_end and by_key.may_place(self._window, self._heads, self._limits) else -1

    def place(self, batches: Sequence[KeyedBatch], *, log_epoch: int = -1) -> PartitionUpdate | None:
        """Take in the keys of the records read from `next_place_offset()` on, ascending; None: nothing to store.

        Offsets that were read but are missing from the batches count as removed by compaction. The caller leaves out
        records that no member is to get, those of aborted transactions included.
        """
        stored = by_key.place(self._window, self._heads, self._limits, batches)
        self.log_epoch = max(self.log_epoch, log_epoch)
        return self._window.update(stored) if stored else None

    def single(self, hashes: Collection[int]) -> None:
        """Hand out the records of these keys one at a time, and only to members that ask with `singles`. Later changes
        of the collection count too."""
        self._heads.single = hashes

    @property
    def keys_known(self) -> bool:
        """True if the keys of all records in the window are known; after a reload they are read again."""
        return self._window.heads is None or self._window.heads.known_end >= self._window.end

    def hash_at(self, offset: int) -> int:
        """Return the hash of an unsettled offset's key; 0: a record without an order."""
        return self._heads.hashes[offset - self._window.base]

    def pick(
        self,
        member_id: str,
        *,
        records_max: int,
        heads_max: int = 0,
        chain: int = 1,
        now_ms: int,
        singles: bool = True,
    ) -> Picked:
        """Hand free heads to a member, in memory; read the records, then call `confirm` or `put_back` (SG-5).

        heads_max: the most records that may begin a key (0: no limit). Each head may be followed by up to `chain` − 1
        of its key's next records, which the member handles one after the other.

        `allowance` and `quarantine` limit the records as in `acquire`.
        """
        if self._limits.paused or records_max <= 0:
            return by_key.NOTHING
        chain = min(chain, by_key.CHAIN_MAX)
        if self.allowance.plenty(records_max):
            return self._pick(member_id, Ask(records_max, heads_max, chain, singles=singles), now_ms)
        asked = self.allowance.ask(member_id, records_max, now_ms)
        picked = by_key.NOTHING
        if asked.records > 0:
            picked = self._pick(member_id, Ask(asked.records, heads_max, chain, singles=singles), now_ms)
        self.allowance.settle(asked, picked.size, now_ms)
        return picked

    def _pick(self, member_id: str, ask: Ask, now_ms: int) -> Picked:
        window, heads, limits = self._window, self._heads, self._limits
        if self._quarantine:
            admission = self._quarantine.admit_heads(
                window, heads, member_id, now_ms, limits.lock_duration_ms, singles=ask.singles
            )
            if admission.nothing:
                return by_key.NOTHING
            ask = ask._replace(alone=admission.head, without=self._quarantine.suspects)
            if admission.head >= 0:
                self._quarantine.delivered(member_id, admission.head, unconfirmed=True)
                return by_key.pick(window, heads, limits, member_id, ask, now_ms)
        only_new = self._alternation.new
        picked = by_key.pick(window, heads, limits, member_id, ask._replace(only_new=only_new), now_ms)
        if only_new and not picked.ranges:
            picked = by_key.pick(window, heads, limits, member_id, ask, now_ms)
        self._alternation.took(new=only_new, nothing=False)
        return picked

    def confirm(self, member_id: str, picked: Picked, *, missing: Sequence[int] = ()) -> Acquisition:
        """Confirm that the picked records were read; archive the `missing` offsets (ascending)."""
        acquisition = by_key.confirm(self._window, self._limits, member_id, picked, missing)
        if acquisition.ranges:
            self._quarantine.confirmed(member_id)
        if acquisition.update is not None and self.log_epoch > self._epoch_told:
            self._epoch_told = self.log_epoch
            return acquisition._replace(update=replace(acquisition.update, log_epoch=self.log_epoch))
        return acquisition

    def put_back(self, picked: Picked) -> None:
        """Free picked records that could not be read; no delivery is counted."""
        by_key.put_back(self._window, picked)
        self.allowance.put_back(picked.size)

    def acquire(
        self,
        member_id: str,
        *,
        mode: AcquireMode,
        records_max: int,
        batch_size: int,
        fetch_offset: int,
        batches: Sequence[LogBatch],
        now_ms: int,
        aborted: Sequence[LogBatch] = (),
        log_epoch: int = -1,
    ) -> Acquisition:
        """Hand offsets to a member; applied at once (SG-5).

        fetch_offset: the offset at which the log was read, from `next_fetch_offset()`.
        batches: the batches that were read, ascending; cached AVAILABLE offsets between `fetch_offset` and the first
            batch are archived, because compaction removed them.
        aborted: offsets of aborted transactions in `batches` (read_committed); archived.
        log_epoch: leader epoch of the last of `batches`, or of a batch behind it.

        Records that a dead process held for the second time come alone, to a member that holds nothing else
        (`quarantine`). While members wait for a limit, a member that holds much leaves the next records to the others
        (`allotment`).
        """
        if self._limits.paused or records_max <= 0:
            return acquiring.NOTHING
        only_new = self._alternation.new and fetch_offset == self._next_new(batches[-1].last + 1 if batches else 0)
        read = Read(fetch_offset, batches, aborted, only_new)
        acquisition = self._allowed(member_id, mode, records_max, batch_size, read, now_ms)
        if log_epoch > self.log_epoch and acquisition.update is not None:
            self.log_epoch = log_epoch
            return acquisition._replace(update=replace(acquisition.update, log_epoch=log_epoch))
        return acquisition

    def _allowed(
        self, member_id: str, mode: AcquireMode, records_max: int, batch_size: int, read: Read, now_ms: int
    ) -> Acquisition:
        """Acquire the records that the limits leave to the member."""
        if self.allowance.plenty(records_max):
            return self._acquire(member_id, mode, records_max, batch_size, read, now_ms)
        asked = self.allowance.ask(member_id, records_max, now_ms)
        acquisition = acquiring.NOTHING
        if asked.records > 0:
            # A group's limit is kept to the record; that of record locks as Kafka does, to the batch.
            mode = AcquireMode.RECORD_LIMIT if self.allowance.exact else mode
            acquisition = self._acquire(member_id, mode, asked.records, batch_size, read, now_ms)
        got = sum(last - first + 1 for first, last, _ in acquisition.ranges)
        self.allowance.settle(asked, got, now_ms)
        return acquisition

    def may_acquire(self, member_id: str, records_max: int, now_ms: int) -> int:
        """Return how many of `records_max` available records the limits leave to a member now.

        0: other members come first, or a limit is used up; the member then counts as waiting for the limit.
        """
        if self._limits.paused:
            return 0
        if self.allowance.plenty(records_max):
            return records_max
        asked = self.allowance.ask(member_id, records_max, now_ms)
        if asked.records <= 0:
            self.allowance.settle(asked, 0, now_ms)
        return asked.records

    def first_served(self, now_ms: int) -> Callable[[str], tuple[int, int]] | None:
        """Return the sort key by which waiting members are served; None: in the order of arrival."""
        return self.allowance.places() if self.allowance.contended(now_ms) else None

    def _acquire(
        self, member_id: str, mode: AcquireMode, records_max: int, batch_size: int, read: Read, now_ms: int
    ) -> Acquisition:
        alone, batches = False, read.batches
        if self._quarantine:
            admission = self._quarantine.admit(self._window, member_id)
            if admission.nothing:
                return acquiring.NOTHING
            alone = admission.alone
            if admission.last is not None:
                batches = _cut(batches, admission.last)
        acquisition = acquiring.acquire(
            self._window,
            self._limits,
            member_id,
            read._replace(batches=batches),
            mode=AcquireMode.RECORD_LIMIT if alone else mode,
            records_max=1 if alone else records_max,
            batch_size=batch_size,
            now_ms=now_ms,
        )
        if alone and acquisition.ranges:
            self._quarantine.delivered(member_id, acquisition.ranges[0].first)
        self._alternation.took(new=read.only_new, nothing=not acquisition.ranges)
        return acquisition

    def _next_new(self, log_end: int) -> int:
        """Return the next offset never delivered; −1 if none, or if other offsets come first.

        Holes that a reload left come first whatever the priority: they may have been delivered.
        """
        window, limits = self._window, self._limits
        if not window.tally[AVAILABLE] or window.gap_start >= 0 or self._quarantine:
            return -1
        offset = window.next_new(window.start, window.end - 1)
        if offset >= 0:
            return offset
        span_max = limits.record_locks_max if limits.window_max is None else limits.window_max
        return window.end if window.end < log_end and window.end - window.start < span_max else -1

    def acknowledge(self, member_id: str, batches: Sequence[AckRange], *, now_ms: int) -> Decision:
        """Decide a member's acknowledgement, all of it or nothing (SG-7.6). Batches that name their deliveries
        (`attempt`) are decided offset by offset: valid ones count, the others are in `Decision.refused` (SG-18.12).

        Renewals are applied at once; the rest is pending until `commit` or `abort`. A range below the start offset is
        skipped and counts as success, except for a renewal that names its delivery (SG-7.2).

        Raises:
            InvalidRequest: the batches contradict themselves, or reach past the acquired offsets.
            InvalidRecordState: an offset is not acquired by this member, is being acknowledged already, or RENEW is
                turned off.
        """
        return acknowledging.decide(self._window, self._limits, self._states_after, member_id, batches, now_ms)

    def settle(self, member_id: str, batches: Sequence[AckRange], *, now_ms: int) -> Decision:
        """Decide the records that a member accepts and rejects together with their outputs: all or nothing, written in
        one step with the outputs (SG-19.1).

        Unlike with `acknowledge`, records that are finished already are refused: their outputs were written when they
        were finished, or belong to a delivery that is over.

        Raises:
            InvalidRequest: the batches contradict themselves, or use a type other than ACCEPT and REJECT.
            InvalidRecordState: this member does not hold some records for the attempts named; the error's `ranges` are
                those records.
        """
        return acknowledging.decide_whole(self._window, self._limits, self._states_after, member_id, batches, now_ms)

    def waits(self, member_id: str, batches: Sequence[AckRange], *, now_ms: int) -> bool:
        """True if `settle` would decide this, but a record before it is not finished (SG-19.8).

        Raises: InvalidRequest, as `settle`.
        """
        if min((batch.first for batch in batches), default=0) <= self._window.start:
            return False
        return acknowledging.would_decide_whole(
            self._window, self._limits, self._states_after, member_id, batches, now_ms
        )

    def commit(self, decision: Decision) -> None:
        """Apply a decision whose update is durable. Each decision is settled once."""
        acknowledging.commit(self._window, decision)

    def hold_back(self, decision: Decision) -> None:
        """Keep the next records of the decision's keys waiting until `commit`: the decision is written by itself, not
        before later ones. Call at once after `acknowledge`."""
        acknowledging.hold_back(self._window, decision)

    def committed(self, decision: Decision) -> PartitionUpdate:
        """Return the update that `commit` made of a decision's offsets, to be stored next. Call at once after
        `commit`."""
        return acknowledging.committed(self._window, decision)

    def abort(self, decision: Decision, *, now_ms: int) -> PartitionUpdate | None:
        """Undo a decision whose write failed: the member holds the records again.

        If the lock lapsed meanwhile, or `release_member` was called, the records are AVAILABLE, or finished at the
        limit; then the update is to be stored.
        """
        return acknowledging.abort(self._window, self._limits, decision, now_ms)

    def put_off(self, now_ms: int, by_ms: int) -> None:
        """Put off the locks: none lapses before `now_ms` + `by_ms`, because the leader was away and renewals may wait
        to be read."""
        self._window.holds.put_off(now_ms, by_ms)

    def lapse(self, now_ms: int) -> PartitionUpdate | None:
        """Take back the locks that lapsed at or before `now_ms`; the change stands even if its write fails (SG-8.2).

        Delayed records that became due are fetchable then. That alone needs no write and gives None, so wake parked
        fetches after each call.
        """
        if self.allowance.again_ms is not None and self.allowance.again_ms <= now_ms:
            self.allowance.again_ms = None
        lapsed = lapse.lapse(self._window, self._limits, now_ms)
        self._suspect(lapsed.orphaned)
        return lapsed.update

    def next_deadline_ms(self) -> int | None:
        """Return the next time at which `lapse` has work: the earliest lock deadline, end of a delay, or end of a
        member's wait for others."""
        due_ms, again_ms = self._window.holds.next_due_ms(), self.allowance.again_ms
        return again_ms if due_ms is None or (again_ms is not None and again_ms < due_ms) else due_ms

    def release_member(self, member_id: str, *, died: bool = False, gone: bool = False) -> PartitionUpdate | None:
        """Take back all records of a member: its session closed, or the member is gone (SG-8.4, SG-8.5).

        Acknowledgements that are being written still count; if their write fails, `abort` takes the records back.
        died: the member went without leaving. Records that lost a holder so for the second time are delivered alone
            from now on, as after a reload (`quarantine`). With an order, the records stay locked until their locks
            lapse: the member's handlers may be at work, and the next records of their keys would run beside them.
        gone: the member's process is known to have ended, so none of its handlers is at work.
        """
        self.allowance.forget(member_id)
        if died and not gone and self.ordered:
            lapse.leave_to_locks(self._window, member_id)
            return None
        update = lapse.release_member(self._window, self._limits, member_id)
        if died and update is not None:
            self._suspect(update.runs)
        return update

    def _suspect(self, runs: Iterable[StateRun]) -> None:
        for run in runs if self._limits.deliveries_end else ():
            if run.state is RecordState.AVAILABLE and run.delivery_count >= SUSPECT_AT:
                self._quarantine.suspect(run.first, run.last)

    def has_free_below(self, log_start: int) -> bool:
        """True if an offset below the log's start is free: its member gave it back after the log had lost the
        record."""
        last = min(log_start, self._window.end) - 1
        return self._window.start <= last and self._window.next_available(self._window.start, last) >= 0

    def move_log_start(self, log_start: int) -> PartitionUpdate | None:
        """Follow a log start that moved past the start offset (SG-9.1); None if the log start did not move so far."""
        return lapse.move_log_start(self._window, log_start)

    def cut(self, end_offset: int) -> PartitionUpdate | None:
        """Follow a log that lost its records from `end_offset` on; None if none of them was acquired (SG-9.2).

        The window forgets these offsets; the records that take their place are new. A start offset behind `end_offset`
        goes back to `end_offset`. A decision over lost offsets has no effect on them when settled, and says so
        (`Decision.lost`); a later acknowledgement of them raises InvalidRecordState. Only a snapshot can store a cut:
        updates never take anything away. The caller sets `log_epoch`.
        """
        window = self._window
        if end_offset >= window.end:
            if window.heads is not None:  # which may have looked further, over a gap of the log
                window.heads.known_end = min(window.heads.known_end, end_offset)
            return None
        window.drop_behind(end_offset)
        self._quarantine.cut(end_offset)
        self._operated = {offset for offset in self._operated if offset < end_offset}
        window.advance()
        return window.update(())

    @property
    def has_archiving(self) -> bool:
        """True if records wait for their dead letter to be written."""
        return bool(self._window.tally[ARCHIVING])

    def archiving(self) -> tuple[Archiving, ...]:
        """Return the records that wait for their dead letter, ascending."""
        limit = self._limits.delivery_count_max
        return tuple(
            Archiving(low, high, count, count >= limit, by_operator)
            for first, last, count in self._window.in_state(ARCHIVING)
            for low, high, by_operator in self._by_operator(first, last)
        )

    def _by_operator(self, first: int, last: int) -> Iterable[tuple[int, int, bool]]:
        """Cut ARCHIVING offsets into (first, last, given up by an operator)."""
        if not self._operated:
            return ((first, last, False),)
        found = groupby(range(first, last + 1), key=self._operated.__contains__)
        groups = ((tuple(group), by_operator) for by_operator, group in found)
        return [(offsets[0], offsets[-1], by_operator) for offsets, by_operator in groups]

    def finish_archiving(self, first: int, last: int) -> PartitionUpdate | None:
        """Finish the ARCHIVING records within `first`..`last`: their dead letter is written, or given up (SG-15.2)."""
        window = self._window
        runs: list[StateRun] = []
        for run in list(window.runs(max(first, window.start), min(last, window.end - 1))):
            if run.state == ARCHIVING:
                after = step(RecordState.ARCHIVING, Event.BURY, run.delivery_count, self._limits)
                window.put(run.first, run.last, ARCHIVING, ARCHIVED)
                runs.append(StateRun(run.first, run.last, after, run.delivery_count))
                self._operated.difference_update(range(run.first, run.last + 1) if self._operated else ())
        if not runs:
            return None
        window.advance()
        return window.update(runs)

    def state(self) -> tuple[StateRun, ...]:
        """Return all offsets in the window as merged runs, for a snapshot; pending ones as ACQUIRED."""
        window = self._window
        runs = (window.durable(run) for run in window.runs(window.start, window.end - 1))
        return merged(self._with_operators(runs) if self._operated else runs, window.start)

    def _with_operators(self, runs: Iterable[StateRun]) -> Iterable[StateRun]:
        for run in runs:
            if run.state is not RecordState.ARCHIVING:
                yield run
                continue
            for first, last, by_operator in self._by_operator(run.first, run.last):
                yield run._replace(first=first, last=last, member_id=OPERATOR if by_operator else None)

    def look(self, first: int, *, ahead_ms: int = 0) -> Look:
        """Return a read-only copy of the window from offset `first` on; see `browse`."""
        return Look(self._window, first, ahead_ms=ahead_ms)

    def intervene(self, act: Act, ranges: Sequence[tuple[int, int]], *, dry_run: bool = False) -> Intervention:
        """Apply an operator's act to records that others hold, or that wait; applied at once, as a lapse is. Store the
        returned update. See `intervene` for the table.

        ranges: ascending and disjoint.
        """
        done = intervene(self._window, self._limits, act, ranges, dry_run=dry_run)
        if done.update is not None and act is Act.DEAD_LETTER:
            given_up = (run for run in done.update.runs if run.member_id == OPERATOR)
            self._operated = {offset for offset in self._operated if offset >= self._window.start}
            self._operated.update(offset for run in given_up for offset in range(run.first, run.last + 1))
        return done

    def in_flight(self) -> tuple[MemberRun, ...]:
        """Return the records that members hold, ascending, pending acknowledgements included. Records that are still
        being read for a member are left out: they go back by themselves if the member is gone."""
        window = self._window
        flights: list[MemberRun] = []
        for state in (ACQUIRED, PENDING):
            for first, last, count in window.in_state(state):
                for low, high, hold_id in window.held(first, last):
                    lock = window.holds.by_id[hold_id]
                    if lock.unconfirmed:
                        continue
                    assert lock.member_id is not None
                    flights.append(MemberRun(low, high, lock.member_id, count, lock.due_ms))
        return tuple(sorted(flights))


def _cut(batches: Sequence[LogBatch], last: int) -> Sequence[LogBatch]:
    """Return the parts of the batches that lie at or before `last`."""
    return [LogBatch(batch.first, min(batch.last, last)) for batch in batches if batch.first <= last]
