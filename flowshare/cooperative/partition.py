"""One group's view of one partition, shared by keys: what its owner decides by, one call after another.

Each call is a decision (`decisions`): it raises before anything is changed, says what is to be written, and counts for
the next ones at once.

A settle (`settle`) is a commit whose outputs are written with it. It is taken whole, and only while none of its offsets
is committed or reserved; and what is committed never comes back but by a reset. So whoever writes outputs just with a
settle that was taken writes those of an offset once, however often it is asked.

Invariants: C and K (`offsets`, `claims`); and after every `confirm` and `roll_back` without decisions under way the
state is what `restore` makes of all mutations that were confirmed.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, NamedTuple, TypeVar

from flowshare.cooperative.attempts import Attempts, AttemptsState, Begun
from flowshare.cooperative.claims import Claims, ClaimsState
from flowshare.cooperative.decisions import Decision, Decisions
from flowshare.cooperative.offsets import Change, CommittedOffsets
from flowshare.cooperative.pending import Pending, is_stored
from flowshare.cooperative.ranges import Pair, checked, merged, minus, overlaps
from flowshare.cooperative.types import (
    LEASE_MS_MAX,
    LEASE_MS_MIN,
    Blocked,
    Claim,
    CommitEntry,
    DropPending,
    Entry,
    KeyRange,
    Mutation,
    OffsetColumns,
    OffsetRange,
    PendingOffsets,
    PutPending,
    PutRange,
    PutStable,
    Terms,
)
from flowshare.core_errors import (
    BoundReached,
    ConcurrentTransactions,
    CoreError,
    FencedMemberEpoch,
    FencedStateEpoch,
    InvalidRequest,
    NonEmptyGroup,
)

Answer = TypeVar("Answer")
HOLDERS_TOLD: Final = 3


class Progress(NamedTuple):
    """How far the partition is: S, E, how many ranges there are behind S, and M."""

    stable: int
    reset_epoch: int
    range_count: int
    furthest: int


class HoldAnswer(NamedTuple):
    """The answer to `hold`: see `Held`. ranges: R, when something was granted, else None; pending: offsets of open
    transactions, which nobody is to begin. horizon: the member's. begun: told with R."""

    progress: Progress
    held: tuple[Claim, ...]
    granted: tuple[KeyRange, ...]
    blocked: tuple[Blocked, ...]
    taken: tuple[Claim, ...]
    superseded: bool
    ranges: OffsetColumns | None
    pending: tuple[Pair, ...]
    horizon: int
    begun: Begun


class CommitAnswer(NamedTuple):
    """The answer to a commit. fenced: the places of the entries of which nothing was taken, because the member does not
    hold their keys any more, or because starts of so many records are counted already. lost: offsets that count as
    committed and were not finished."""

    progress: Progress
    fenced: tuple[int, ...] = ()
    lost: int = 0


class SettleAnswer(NamedTuple):
    """The answer to a settle: all of it was taken, or nothing. fenced: offsets whose keys the member does not hold any
    more. committed: offsets that are finished already, by whomever."""

    progress: Progress
    fenced: tuple[OffsetRange, ...] = ()
    committed: tuple[OffsetRange, ...] = ()

    @property
    def taken(self) -> bool:
        """True if the settle was accepted."""
        return not (self.fenced or self.committed)


class Completed(NamedTuple):
    """The answer to `complete`: what was pending; `StableWait` takes it."""

    progress: Progress
    ranges: tuple[OffsetRange, ...]


class Read(NamedTuple):
    """The answer to `read`. unstable: an open transaction has offsets of it. ranges: R, if asked for."""

    progress: Progress
    unstable: bool
    ranges: OffsetColumns | None
    claims: tuple[Claim, ...]
    begun: Begun


class PartitionState(NamedTuple):
    """All that is stored of a partition, from `stored.load`."""

    offsets: CommittedOffsets
    claims: Claims
    pending: Pending
    attempts: Attempts

    @classmethod
    def fresh(cls, offsets: CommittedOffsets) -> PartitionState:
        """Of a partition that nobody has to do with."""
        return cls(offsets, Claims(), Pending(), Attempts())


class _Before(NamedTuple):
    """The state before a decision, without the committed set: that one is restored by its `Change`."""

    claims: ClaimsState
    pending: Mapping[int, PendingOffsets]
    attempts: AttemptsState


class CooperativePartition:
    """See the head of the module. `offsets`, `claims`, `pending`, `attempts` are for reading.

    They show what was decided, which may not be durable yet; what is to be told outside comes from `read`.
    """

    __slots__ = ("_decisions", "attempts", "claims", "offsets", "pending")

    def __init__(self, state: PartitionState) -> None:
        """Go on from what was stored (`stored.load`)."""
        self.offsets, self.claims, self.pending, self.attempts = state
        self._decisions = Decisions()

    @classmethod
    def new(cls, stable: int, *, reset_epoch: int = 0) -> CooperativePartition:
        """A partition of which nothing is stored yet, at the offset where the group begins; write its `snapshot`.

        reset_epoch: larger than any that this group and partition had before, were they deleted: from the clock.
        """
        return cls(PartitionState.fresh(CommittedOffsets(stable, (), reset_epoch)))

    # -- looking

    @property
    def progress(self) -> Progress:
        """How far it is."""
        offsets = self.offsets
        return Progress(offsets.stable, offsets.reset_epoch, offsets.count, offsets.furthest)

    @property
    def in_use(self) -> bool:
        """True if a member holds anything, or a transaction has something pending."""
        return bool(self.claims or self.pending)

    def check_unused(self) -> None:
        """Raises: NonEmptyGroup while a member holds something, or a transaction has something pending."""
        if not self.in_use:
            return
        holders = sorted({one.member for one in self.claims.state.claims})
        if not holders:
            raise NonEmptyGroup("an open transaction has offsets of the partition: try again when it has ended")
        named = ", ".join(holders[:HOLDERS_TOLD]) + (", …" if len(holders) > HOLDERS_TOLD else "")
        raise NonEmptyGroup(
            f"keys of the partition are held by {len(holders)} of the members ({named}): stop the group's "
            "workers and try again; what a dead one held is free when its lease ends"
        )

    def next_deadline_ms(self) -> int | None:
        """When `lapse` has something to do; None: never."""
        return self.claims.next_deadline_ms()

    def snapshot(self) -> tuple[Mutation, ...]:
        """All that there is, as mutations of an empty store. Nothing is under way."""
        assert not self._decisions.under_way, "a snapshot is taken when all decisions are settled"
        offsets = self.offsets
        ranges = (PutRange(first, end, offsets.reset_epoch) for first, end in offsets.ranges())
        claims = self.claims.changed_since(ClaimsState((), {}, 0))
        open_ = (PutPending(number, one) for number, one in self.pending.state.items() if is_stored(number))
        stable = PutStable(offsets.stable, offsets.reset_epoch)
        begun = self.attempts.changed_since(AttemptsState())
        return (stable, *ranges, *(() if claims is None else (claims,)), *open_, *begun)

    # -- settling

    def confirm(self, decision: Decision[Any]) -> None:
        """Its mutations are durable; decisions are confirmed in their order."""
        self._decisions.confirm(decision)

    def roll_back(self, decision: Decision[Any]) -> tuple[Decision[Any], ...]:
        """Its mutations were not written: take it back, and all that were decided after it: `Decisions.roll_back`."""
        return self._decisions.roll_back(decision, self._undo)

    def _undo(self, decision: Decision[Any]) -> None:
        if decision.change is not None:
            self.offsets.undo(decision.change)
        self._back_to(decision.before)

    # -- sharing by keys

    def hold(
        self,
        member: str,
        generation: int,
        sequence: int,
        wanted: Sequence[Pair],
        now_ms: int,
        *,
        terms: Terms,
        ranges: bool = False,
    ) -> Decision[HoldAnswer]:
        """Say all keys that a member wants to hold here from now on: `Claims.hold`. ranges: answer with R though
        nothing is granted: the answer before, which granted, was lost. What is new to a member is what it did not know
        that it holds, or knew under another epoch.

        Raises: InvalidRequest, FencedMemberEpoch.
        """
        keys = checked(wanted)
        _check_lease(terms.lease_ms)
        with self._step(now_ms) as step:
            held = self.claims.hold(
                member, generation, sequence, keys, now_ms, terms=terms, reserved=self.pending.reserved()
            )
            self.attempts.ended(held.taken)
            begun, columns = Begun(), None
            if ranges or held.granted:
                begun, columns = self.attempts.begun, self.offsets.columns
            if held.granted and not terms.exact_starts:
                self.attempts.granted(member, self.offsets.furthest)
            pending, horizon = tuple(self.pending.ranges()), self.attempts.horizon(member)
            return step.decided(HoldAnswer(self.progress, *held, columns, pending, horizon, begun))

    # -- committing

    def commit(
        self,
        member: str,
        reset_epoch: int,
        entries: Sequence[Entry],
        now_ms: int,
        *,
        log_end: int | None = None,
    ) -> Decision[CommitAnswer]:
        """Commit what a member has finished, and count what it begins; entries that are fenced are left out, and told.

        Raises: FencedStateEpoch if there was a reset since, InvalidRequest, OffsetOutOfRange, BoundReached.
        """
        with self._step(now_ms) as step:
            self._check_epoch(reset_epoch)
            passed = [self._lets_through(member, entry) for entry in entries]
            passed = [through and self._begins(member, entry) for through, entry in zip(passed, entries, strict=True)]
            fenced = tuple(at for at, through in enumerate(passed) if not through)
            taken = [entry for through, entry in zip(passed, entries, strict=True) if through]
            ranges = [pair for entry in taken if isinstance(entry, CommitEntry) for pair in entry.ranges]
            step.change = self.offsets.commit(ranges, log_end=log_end)
            self.attempts.shrink(self.offsets, ranges)
            return step.decided(CommitAnswer(self.progress, fenced))

    def settle(
        self,
        member: str,
        reset_epoch: int,
        entries: Sequence[CommitEntry],
        now_ms: int,
        *,
        log_end: int | None = None,
        apart: int | None = None,
    ) -> Decision[SettleAnswer]:
        """Commit what a member has finished, whose outputs are written with it: all of it, and only what is not
        committed yet, or nothing.

        apart: a number below 0: the outputs are written elsewhere first: the offsets are reserved under it until
        `settled_apart`. That is in memory only: until then what was reserved stands in the log of whoever leads.

        Raises: as `commit`; ConcurrentTransactions while it is not known yet whether some of it is committed.
        """
        with self._step(now_ms) as step:
            self._check_epoch(reset_epoch)
            ranges = [pair for entry in entries for pair in entry.ranges]
            self.offsets.undo(self.offsets.commit(ranges, log_end=log_end))  # it raises what the rest could not
            refused = self._refused(member, entries, ranges)
            if not refused.taken:
                return step.decided(refused)
            if overlaps(ranges := merged(ranges), self.pending.ranges()):
                raise ConcurrentTransactions("whether these offsets are committed is not known yet: ask again")
            if apart is not None:
                keys = [entry.keys for entry in entries]
                self.pending.reserve(apart, 0, ranges, keys)
            else:
                step.change = self.offsets.commit(ranges)
                self.attempts.shrink(self.offsets, ranges)
            return step.decided(SettleAnswer(self.progress))

    def waits(self, member: str, reset_epoch: int, entries: Sequence[CommitEntry]) -> bool:
        """True if a settle would be accepted but is not next: an offset before its first one is not committed."""
        ranges = [pair for entry in entries for pair in entry.ranges]
        if reset_epoch != self.offsets.reset_epoch or min(ranges)[0] <= self.offsets.stable:
            return False
        return self._refused(member, entries, ranges).taken

    def settled_apart(self, number: int, now_ms: int, *, committed: bool) -> Decision[Completed]:
        """It is known what became of the outputs of a settle that was reserved under this number."""
        return self._completed(number, 0, now_ms, committed=committed)

    def _refused(self, member: str, entries: Sequence[CommitEntry], ranges: Sequence[Pair]) -> SettleAnswer:
        fenced = [pair for entry in entries if not self._lets_through(member, entry) for pair in entry.ranges]
        open_ = [one for pair in ranges for one in self.offsets.uncommitted(*pair)]
        committed = minus(merged(ranges), merged(open_))
        return SettleAnswer(
            self.progress,
            tuple(OffsetRange(*one) for one in merged(fenced)),
            tuple(OffsetRange(*one) for one in committed),
        )

    def reserve(
        self,
        member: str,
        reset_epoch: int,
        producer: tuple[int, int],
        entries: Sequence[CommitEntry],
        now_ms: int,
        *,
        log_end: int | None = None,
    ) -> Decision[Progress]:
        """Let the open transaction of a producer (id, epoch) commit these, if it is committed.

        Raises: FencedMemberEpoch if one entry is fenced: the transaction is to be aborted; else as `commit` and
        `Pending.reserve`.
        """
        with self._step(now_ms) as step:
            self._check_epoch(reset_epoch)
            if not all(self._lets_through(member, entry) for entry in entries):
                raise FencedMemberEpoch(
                    f"member {member} does not hold what it commits any more: abort the transaction"
                )
            ranges = [pair for entry in entries for pair in entry.ranges]
            self.offsets.undo(self.offsets.commit(ranges, log_end=log_end))  # it raises what the end could not
            keys = [entry.keys for entry in entries]
            pending = self.pending.reserve(*producer, ranges, keys)
            return step.decided(self.progress, PutPending(producer[0], pending))

    def complete(self, producer_id: int, producer_epoch: int, now_ms: int, *, committed: bool) -> Decision[Completed]:
        """The transaction has ended. Raises: InvalidProducerEpoch."""
        return self._completed(producer_id, producer_epoch, now_ms, committed=committed)

    def _completed(self, producer_id: int, producer_epoch: int, now_ms: int, *, committed: bool) -> Decision[Completed]:
        with self._step(now_ms) as step:
            ranges = self.pending.complete(producer_id, producer_epoch)
            if ranges is None:
                return step.decided(Completed(self.progress, ()))
            if committed:
                step.change = self.offsets.commit(ranges, bounded=False)
                self.attempts.shrink(self.offsets, ranges)
            dropped = (DropPending(producer_id),) if is_stored(producer_id) else ()
            return step.decided(Completed(self.progress, tuple(ranges)), *dropped)

    def sequential(self, offset: int, now_ms: int, *, log_end: int | None = None) -> Decision[CommitAnswer]:
        """Everything before `offset` is finished, whoever holds what. Raises: InvalidRequest, OffsetOutOfRange."""
        with self._step(now_ms) as step:
            return self._passed(step, self.offsets.sequential(offset, log_end=log_end))

    # -- what happens to it

    def read(self, *, ranges: bool = False) -> Decision[Read]:
        """Return the facts that may be told when all earlier decisions are durable. ranges: R, too."""
        columns = self.offsets.columns if ranges else None
        with self._step(None) as step:
            begun = self.attempts.begun if ranges else Begun()
            return step.decided(Read(self.progress, self.pending.unstable, columns, self.claims.state.claims, begun))

    def leave(self, member: str, now_ms: int) -> Decision[Progress]:
        """The member is gone, and stopped before: what it has is free."""
        with self._step(now_ms) as step:
            self.claims.leave(member)
            return step.decided(self.progress)

    def lapse(self, now_ms: int) -> Decision[Progress]:
        """End the leases that are over; every other step does so, too."""
        with self._step(now_ms) as step:
            return step.decided(self.progress)

    def move_log_start(self, log_start: int, now_ms: int) -> Decision[CommitAnswer]:
        """Follow a log that begins at `log_start` now; the answer says how many offsets are lost."""
        with self._step(now_ms) as step:
            return self._passed(step, self.offsets.move_log_start(log_start))

    def truncate(self, end: int, now_ms: int) -> Decision[Progress]:
        """Follow a log that was cut at `end`: E grows, so what members have of it is fenced; they read again."""
        with self._step(now_ms) as step:
            step.change = self.offsets.truncate(end)
            self.attempts.cut(end)
            changed = filter(is_stored, self.pending.cut(end))
            return step.decided(self.progress, *(PutPending(one, self.pending.state[one]) for one in changed))

    def reset(self, offset: int, now_ms: int) -> Decision[Progress]:
        """Begin anew at an offset. Raises: NonEmptyGroup while members hold something, InvalidRequest."""
        with self._step(now_ms) as step:
            self.check_unused()
            step.change = self.offsets.reset(offset)
            self.attempts.clear()
            return step.decided(self.progress)

    # -- inside

    def _passed(self, step: _Step, change: Change) -> Decision[CommitAnswer]:
        step.change = change
        self.attempts.shrink(self.offsets, [(0, self.offsets.stable)])
        return step.decided(CommitAnswer(self.progress, (), change.lost))

    def _begins(self, member: str, entry: Entry) -> bool:
        """Count starts, if the entry is of some; False: there is no room for more records, others are to end first."""
        if isinstance(entry, CommitEntry):
            return True
        try:
            self.attempts.begin(member, entry.starts, entry.horizon, self.offsets)
        except BoundReached:
            return False
        return True

    def _check_epoch(self, reset_epoch: int) -> None:
        if reset_epoch != self.offsets.reset_epoch:
            raise FencedStateEpoch(
                f"the partition was reset: its epoch is {self.offsets.reset_epoch}, not {reset_epoch}; read it again"
            )

    def _lets_through(self, member: str, entry: Entry) -> bool:
        return self.claims.holds(member, entry.epoch, entry.keys)

    def _back_to(self, before: _Before) -> None:
        self.claims.state, self.pending.state, self.attempts.state = before

    @contextmanager
    def _step(self, now_ms: int | None) -> Generator[_Step]:
        """One decision. What lapsed goes with it; if it raises, nothing has changed."""
        before = _Before(self.claims.state, self.pending.state, self.attempts.state)
        try:
            if now_ms is not None:
                self.attempts.ended(self.claims.lapse(now_ms))
            yield _Step(self, self._decisions, before)
        except CoreError:
            self._back_to(before)
            raise


class _Step:
    """A decision as it is made. change: what it does to the committed set."""

    __slots__ = ("_before", "_decisions", "_partition", "change")

    def __init__(self, partition: CooperativePartition, decisions: Decisions, before: _Before) -> None:
        self._partition, self._decisions, self._before = partition, decisions, before
        self.change: Change | None = None

    def decided(self, answer: Answer, *pending: Mutation) -> Decision[Answer]:
        """Gather what is to be written: it counts from now on."""
        partition, before = self._partition, self._before
        claims = partition.claims.changed_since(before.claims)
        offsets = () if self.change is None else self.change.mutations
        if partition.claims.state is not before.claims:
            partition.attempts.follow(claim.member for claim in partition.claims.state.claims)
        attempts = partition.attempts
        if not attempts.grew_since(before.attempts):  # one table, written first or last
            attempts.forget(partition.offsets.stable)
        counted, dropped = attempts.counted_since(before.attempts), attempts.dropped_since(before.attempts)
        mutations = (*counted, *offsets, *pending, *(() if claims is None else (claims,)), *dropped)
        decision = Decision(answer, mutations, before, self.change)
        self._decisions.begin(decision)
        return decision


def _check_lease(lease_ms: int) -> None:
    if not LEASE_MS_MIN <= lease_ms <= LEASE_MS_MAX:
        raise InvalidRequest(f"a lease of {lease_ms} ms: it may have {LEASE_MS_MIN} to {LEASE_MS_MAX} ms")
