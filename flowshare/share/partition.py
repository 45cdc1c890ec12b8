"""The share-partition: which offsets of a log partition are free, with whom, or finished, for one group.

Plain data and rules, no I/O: time comes in as `now_ms`, deadlines go out as `next_deadline_ms()`. What must be
durable before it counts is decided, written by the caller, then committed or aborted:

    decision = partition.acknowledge(member_id, batches, now_ms=now)
    if decision.update is not None:
        await store(decision.update)       # on failure: partition.abort(decision, now_ms=…)
        partition.commit(decision)

The rules stand in the modules beside this one: `state` (the transitions), `window` (the offsets), `acquire`,
`acknowledge`, `expiry`. Here is only what ties them together.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import Final, NamedTuple

from flowshare.share import acknowledge as acknowledging
from flowshare.share import acquire as acquiring
from flowshare.share import expiry
from flowshare.share.acknowledge import Decision
from flowshare.share.acquire import Acquisition
from flowshare.share.errors import StateCorrupt
from flowshare.share.quarantine import SUSPECT_AT, Quarantine
from flowshare.share.state import Event, step
from flowshare.share.types import (
    AcknowledgeBatch,
    AcquireMode,
    Limits,
    LogBatch,
    PartitionUpdate,
    RecordState,
    StateRun,
)
from flowshare.share.window import ACQUIRED, ARCHIVED, ARCHIVING, AVAILABLE, DELAYED, HOLE, PENDING, Window, merged

__all__ = ["Acquisition", "Archiving", "Decision", "InFlight", "SharePartition"]


SPAN_MAX: Final = 1 << 28
"""Offsets from start to end that a stored state may span; more is taken for corrupt, as the window holds bytes for
each."""


class Archiving(NamedTuple):
    """Records whose dead letter is to be written. `by_limit`: they used up their deliveries, else were rejected."""

    first: int
    last: int
    delivery_count: int
    by_limit: bool


class InFlight(NamedTuple):
    """Records that a member holds, and when its lock lapses."""

    first: int
    last: int
    member_id: str
    delivery_count: int
    deadline_ms: int


class SharePartition:
    """One group's view of one partition of a log (KIP-932).

    start_offset, runs: the durable state (`PartitionState`), sorted. Holes between the runs may have been delivered
        before and are acquired again (§2.4 no. 4).
    living: members whose ACQUIRED runs stay with them for one lock duration from `now_ms`; the owners of all others
        are gone, and theirs are AVAILABLE again with their delivery count (finished if that is at the limit).
    now_ms: only for `living` and for delays that are over already.

    Raises StateCorrupt if a run starts below the start offset or before the end of the run before, or ends before it
    starts, or if a run is further from the start offset than any window gets.
    """

    def __init__(
        self,
        *,
        start_offset: int,
        limits: Limits,
        runs: Sequence[StateRun] = (),
        living: Container[str] = (),
        now_ms: int = 0,
    ) -> None:
        self._window = Window(start_offset)
        self._quarantine = Quarantine()
        self.limits = limits
        self._reload(runs, living=living, now_ms=now_ms)

    @property
    def limits(self) -> Limits:
        """The group's settings; set them at any time, they count from the next step on."""
        return self._limits

    @limits.setter
    def limits(self, limits: Limits) -> None:
        self._limits = limits
        self._outcomes = acknowledging.Outcomes(limits)

    @property
    def start_offset(self) -> int:
        """SPSO: everything below it is finished, the record at it is not."""
        return self._window.start

    @property
    def end_offset(self) -> int:
        """The first offset never acquired; equal to `start_offset` when nothing is in the window."""
        return self._window.end

    @property
    def delivery_complete_count(self) -> int:
        """Finished offsets that the start offset has not passed (KIP-1226)."""
        return self._window.finished

    @property
    def acquired_count(self) -> int:
        """Offsets that members hold; an acknowledgement counts once it is committed."""
        return self._window.acquired

    @property
    def delayed_count(self) -> int:
        """Released offsets whose delay is not over."""
        return self._window.tally[DELAYED]

    @property
    def pending_count(self) -> int:
        """Offsets of decisions that are neither committed nor aborted; `state()` shows them as ACQUIRED."""
        return self._window.tally[PENDING]

    def next_fetch_offset(self) -> int:
        """Return where to read the log next: what was released comes before what is new (§2.5)."""
        window = self._window
        offset = window.next_available(window.start, window.end - 1)
        gap = window.next_gap(window.start, window.end - 1 if offset < 0 else offset)
        if gap >= 0:
            return gap
        return offset if offset >= 0 else window.end

    @property
    def choosy(self) -> bool:
        """Whether it depends on the member what it may acquire: records of dead processes come alone (`quarantine`)."""
        return bool(self._quarantine)

    def can_acquire(self) -> bool:
        """Whether a fetch may give anything (§2.6).

        With `window_max` None, exactly Kafka's: something inside the window, or a span below `record_locks_max`.
        With a number: fewer records acquired than `record_locks_max`, and something inside the window or a span
        below `window_max`.
        """
        window, limits = self._window, self._limits
        span = window.end - window.start
        if limits.window_max is None:
            return span < limits.record_locks_max or self.next_fetch_offset() != window.end
        if window.acquired >= limits.record_locks_max:
            return False
        return span < limits.window_max or self.next_fetch_offset() != window.end

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
    ) -> Acquisition:
        """Hand offsets to a member; applied at once (§2.7).

        fetch_offset: where the log was read, from `next_fetch_offset()`.
        batches: what was read, ascending; cached AVAILABLE offsets between `fetch_offset` and the first batch are
            archived, because compaction removed them.
        aborted: offsets of aborted transactions in `batches` (read_committed); they are archived.

        Records that a dead process held for the second time come alone, to a member that holds nothing else
        (`quarantine`).
        """
        alone = False
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
            mode=AcquireMode.RECORD_LIMIT if alone else mode,
            records_max=1 if alone else records_max,
            batch_size=batch_size,
            fetch_offset=fetch_offset,
            batches=batches,
            now_ms=now_ms,
            aborted=aborted,
        )
        if alone and acquisition.ranges:
            self._quarantine.delivered(member_id, acquisition.ranges[0].first)
        return acquisition

    def acknowledge(self, member_id: str, batches: Sequence[AcknowledgeBatch], *, now_ms: int) -> Decision:
        """Decide what a member says of its records, all of it or nothing (§2.10).

        Renewals are applied at once; the rest is pending until `commit` or `abort`. A range below the start offset
        is skipped and counts as success.

        Raises:
            InvalidRequest: the batches contradict themselves, or reach past what was acquired.
            InvalidRecordState: an offset is not acquired by this member, is being acknowledged already, or RENEW is
                turned off.
        """
        return acknowledging.decide(self._window, self._limits, self._outcomes, member_id, batches, now_ms)

    def commit(self, decision: Decision) -> None:
        """Apply a decision whose update is durable. A decision is settled once."""
        acknowledging.commit(self._window, decision)

    def abort(self, decision: Decision, *, now_ms: int) -> PartitionUpdate | None:
        """Undo a decision whose write failed: the records are the member's again.

        If the lock lapsed meanwhile, or `release_member` was called, they are AVAILABLE, or finished at the limit;
        then the update is to be stored.
        """
        return acknowledging.abort(self._window, self._limits, decision, now_ms)

    def expire(self, now_ms: int) -> PartitionUpdate | None:
        """Take back the locks that lapsed at or before `now_ms`; the change stands even if its write fails.

        Delayed records that became due are fetchable then. That alone needs no write and gives None, so wake parked
        fetches after each call.
        """
        return expiry.expire(self._window, self._limits, now_ms)

    def next_deadline_ms(self) -> int | None:
        """Return when `expire` has something to do next: the earliest lock deadline or end of a delay."""
        return self._window.holds.next_due_ms()

    def release_member(self, member_id: str, *, now_ms: int, died: bool = False) -> PartitionUpdate | None:
        """Take back all that a member holds: its session closed, or it is gone (§2.15).

        Acknowledgements that are being written still count; if their write fails, `abort` takes the records back.
        died: it went without a word. Records that this happened to for the second time are delivered alone from now
            on, as after a reload (`quarantine`).
        """
        del now_ms  # for symmetry with the other steps: nothing of it depends on the time
        update = expiry.release_member(self._window, self._limits, member_id)
        for run in update.runs if died and update is not None else ():
            if run.state is RecordState.AVAILABLE and run.delivery_count >= SUSPECT_AT:
                self._quarantine.suspect(run.first, run.last)
        return update

    def move_log_start(self, log_start: int) -> PartitionUpdate | None:
        """Follow a log start that moved past the start offset (§2.16); None if it did not."""
        return expiry.move_log_start(self._window, log_start)

    def archiving(self) -> tuple[Archiving, ...]:
        """Return the records whose dead letter is to be written, ascending."""
        limit = self._limits.delivery_count_max
        return tuple(
            Archiving(run.first, run.last, run.delivery_count, run.delivery_count >= limit)
            for run in (self.state() if self._window.tally[ARCHIVING] else ())
            if run.state is RecordState.ARCHIVING
        )

    def finish_archiving(self, first: int, last: int) -> PartitionUpdate | None:
        """Finish the ARCHIVING records within `first`..`last`: their dead letter is written, or given up."""
        window = self._window
        runs: list[StateRun] = []
        for run in list(window.runs(max(first, window.start), min(last, window.end - 1))):
            if run.state == ARCHIVING:
                after = step(RecordState.ARCHIVING, Event.BURY, run.delivery_count, self._limits)
                window.put(run.first, run.last, ARCHIVING, ARCHIVED)
                runs.append(StateRun(run.first, run.last, after, run.delivery_count))
        if not runs:
            return None
        window.advance()
        return window.update(runs)

    def state(self) -> tuple[StateRun, ...]:
        """Return all offsets in the window as merged runs, for a snapshot; pending ones as ACQUIRED."""
        window = self._window
        runs = (window.durable(run) for run in window.runs(window.start, window.end - 1))
        return merged(runs, window.start)

    def in_flight(self) -> tuple[InFlight, ...]:
        """Return what members hold, ascending, pending acknowledgements included."""
        window = self._window
        flights: list[InFlight] = []
        for run in window.runs(window.start, window.end - 1):
            if run.state in (ACQUIRED, PENDING):
                lock = window.holds.by_id[run.hold_id]
                assert lock.member_id is not None
                flights.append(InFlight(run.first, run.last, lock.member_id, run.delivery_count, lock.due_ms))
        return tuple(flights)

    def _reload(self, runs: Sequence[StateRun], *, living: Container[str], now_ms: int) -> None:
        window = self._window
        end, gap_start = window.start, -1
        for run in runs:
            if run.first < end or run.last < run.first:
                raise StateCorrupt(f"stored run {run.first}-{run.last} starts below {end} or ends before it starts")
            if run.last - window.start >= SPAN_MAX:
                raise StateCorrupt(f"stored run {run.first}-{run.last} is too far from the start offset {window.start}")
            if run.first > end and gap_start < 0:
                gap_start = end
            self._reload_run(run, living=living, now_ms=now_ms)
            end = run.last + 1
        window.gap_start = gap_start
        window.advance()

    def _reload_run(self, run: StateRun, *, living: Container[str], now_ms: int) -> None:
        window = self._window
        first, last, size = run.first, run.last, run.last - run.first + 1
        window.grow(last)
        window.cached.add(first, last)
        window.set_count(first, last, run.delivery_count)
        held = run.state is RecordState.ACQUIRED and run.member_id is not None and run.member_id in living
        state = int(run.state)
        if held:
            due_ms = now_ms + self._limits.lock_duration_ms
            window.hold(first, last, window.holds.open(run.member_id, due_ms, first, last, size).hold_id)
        elif run.state is RecordState.ACQUIRED:
            state = int(step(RecordState.ACQUIRED, Event.LAPSE, run.delivery_count, self._limits))
            if state == AVAILABLE and run.delivery_count >= SUSPECT_AT:
                self._quarantine.suspect(first, last)
        elif run.state is RecordState.AVAILABLE and run.not_before_ms > now_ms:
            state = DELAYED
            window.hold(first, last, window.holds.open(None, run.not_before_ms, first, last, size).hold_id)
        window.put(first, last, HOLE, state)


def _cut(batches: Sequence[LogBatch], last: int) -> Sequence[LogBatch]:
    """Return what of the batches lies at or before `last`."""
    return [LogBatch(batch.first, min(batch.last, last)) for batch in batches if batch.first <= last]
