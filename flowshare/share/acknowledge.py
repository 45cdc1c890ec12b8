"""Acknowledgements of members for their records: docs/share-groups.md, SG-7.

`decide` checks everything first, and changes nothing if any part of it is wrong. Then the offsets are PENDING until
`commit` or `abort`. Renewals need no write and are applied at once. Offsets keep their hold while they are PENDING, so
that `abort` sees a lock that lapsed meanwhile.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from flowshare.core_errors import CoreError, InvalidRecordState, InvalidRequest
from flowshare.share.heads import Heads
from flowshare.share.lapse import take_back
from flowshare.share.ranges import merged as merged_ranges
from flowshare.share.state import EVENTS, step
from flowshare.share.types import (
    ACKNOWLEDGED,
    ACQUIRED,
    ARCHIVED,
    AVAILABLE,
    DELAY_MS_MAX,
    DELAYED,
    HOLE,
    PENDING,
    AcknowledgeType,
    AckRange,
    Limits,
    PartitionUpdate,
    RecordState,
    StateRun,
)
from flowshare.share.window import COUNT_HIGH, Fence, Window, merged

_TOO_EARLY: Final = "comes after one of its key that is not settled"
_ACCEPT: Final = int(AcknowledgeType.ACCEPT)
_RENEW: Final = int(AcknowledgeType.RENEW)
_RELEASE: Final = int(AcknowledgeType.RELEASE)
_ONLY_RENEW: Final = bytes((AcknowledgeType.RENEW,))
_SETTLING: Final = bytes((AcknowledgeType.ACCEPT, AcknowledgeType.REJECT))
_TYPES: Final = len(AcknowledgeType)
SPLIT_MAX: Final = 10_000
"""The most offsets of refused batches that are checked one by one, in all: bounds the time for which a member makes
others wait."""
KEPT_MAX: Final = 256
"""Limits whose states are kept; groups with the same settings share them."""


class Refusal(NamedTuple):
    """The offsets of an acknowledgement that are refused, ascending, and the error of the first of them."""

    ranges: tuple[tuple[int, int], ...]
    error: CoreError


class Decision:
    """An acknowledgement that is to be written. `update`: the update to write; None: nothing, the decision is done
    already.

    `changes`: the new states of the offsets, ascending, once the write is durable. `lost`, set on settling: the log was
    cut meanwhile, so some offsets hold other records now. `refused`: the offsets left out, when each offset is decided
    by itself.
    """

    __slots__ = ("changes", "fence", "lost", "refused", "settled", "update")

    def __init__(
        self,
        changes: Sequence[StateRun],
        update: PartitionUpdate | None,
        fence: Fence,
        refused: Refusal | None = None,
    ) -> None:
        self.changes = changes
        self.refused = refused
        self.update = update
        self.fence = fence
        self.settled = False
        self.lost = False


class StatesAfter:
    """The next state for each acknowledge type under one `Limits`, looked up by the type's wire number.

    The states are read from `step` once, so that only the table in `state` defines them.
    """

    def __init__(self, limits: Limits) -> None:
        def after(kind: AcknowledgeType, count: int) -> RecordState:
            return step(RecordState.ACQUIRED, EVENTS[kind], count, limits)

        self.delivery_count_max = limits.delivery_count_max
        self.below_limit = tuple(after(kind, 0) for kind in AcknowledgeType)
        self.at_limit = tuple(after(kind, limits.delivery_count_max) for kind in AcknowledgeType)


@functools.lru_cache(maxsize=KEPT_MAX)
def states_after(limits: Limits) -> StatesAfter:
    """Return the table for these limits, shared by all share-partitions that have them."""
    return StatesAfter(limits)


def _check_shape(batches: Sequence[AckRange]) -> None:
    previous = 0
    for first, last, types, _, _, _, _, _ in batches:
        # "<", not "<=": two batches may share one offset here; the second then finds it pending (SG-7.1; scenario V22).
        if first < previous or last < first:
            raise InvalidRequest(f"batch {first}-{last}: offsets must be ascending and not negative")
        if len(types) != 1 and len(types) != last - first + 1:
            raise InvalidRequest(f"batch {first}-{last}: {len(types)} acknowledge types for {last - first + 1} offsets")
        if max(types) >= _TYPES:
            raise InvalidRequest(f"batch {first}-{last}: unknown acknowledge type {max(types)}")
        previous = last


def decide(
    window: Window,
    limits: Limits,
    after: StatesAfter,
    member_id: str,
    batches: Sequence[AckRange],
    now_ms: int,
) -> Decision:
    """Check an acknowledgement and mark its offsets PENDING; see `SharePartition.acknowledge`."""
    if len(batches) == 1:
        decision = _decide_one(window, after, member_id, batches[0])
        if decision is not None:
            return decision
    plan = _Plan(window, limits, after, member_id, now_ms)
    try:
        return _decide_all(plan, batches)
    except CoreError:
        if any(batch.attempt for batch in batches):
            return _decide_each(plan, batches)
        # The first error, and the treatment of a hole, depend on where the batches end: try them one by one.
        apart = list(_apart(batches))
        if len(apart) == len(batches):
            raise
    return _decide_all(plan, apart)


def decide_whole(
    window: Window,
    limits: Limits,
    after: StatesAfter,
    member_id: str,
    batches: Sequence[AckRange],
    now_ms: int,
) -> Decision:
    """Decide records that are settled with their outputs; see `SharePartition.settle`."""
    plan, refusal = _planned_whole(window, limits, after, member_id, batches, now_ms)
    if refusal is not None:
        plan.undo(0)
        raise InvalidRecordState(f"nothing was settled: {refusal.error}", refusal.ranges)
    return plan.decision(batches)


def would_decide_whole(
    window: Window,
    limits: Limits,
    after: StatesAfter,
    member_id: str,
    batches: Sequence[AckRange],
    now_ms: int,
) -> bool:
    """Tell if `decide_whole` would decide this now; nothing is changed. Raises: InvalidRequest."""
    plan, refusal = _planned_whole(window, limits, after, member_id, batches, now_ms)
    plan.undo(0)
    return refusal is None


def _planned_whole(
    window: Window,
    limits: Limits,
    after: StatesAfter,
    member_id: str,
    batches: Sequence[AckRange],
    now_ms: int,
) -> tuple[_Plan, Refusal | None]:
    """Plan a settle; return the plan, whose offsets are PENDING, and the refused ones. Raises: InvalidRequest."""
    _check_shape(batches)
    for batch in batches:
        if batch.types.strip(_SETTLING):
            raise InvalidRequest(f"batch {batch.first}-{batch.last}: a settle accepts and rejects, nothing else")
    plan = _Plan(window, limits, after, member_id, now_ms)
    _, refusal = _tried_each(batches, plan.tried_whole)
    return plan, refusal


def _apart(batches: Iterable[AckRange]) -> Iterator[AckRange]:
    """Yield the batches as the member sent them: joined batches are split into single offsets."""
    for batch in batches:
        if batch.joined:
            yield from (AckRange(offset, offset, batch.types) for offset in range(batch.first, batch.last + 1))
        else:
            yield batch


def _decide_all(plan: _Plan, batches: Sequence[AckRange]) -> Decision:
    _check_shape(batches)
    try:
        for batch in batches:
            plan.add(batch)
    except CoreError:
        plan.undo(0)
        raise
    return plan.decision(batches)


def _decide_each(plan: _Plan, batches: Sequence[AckRange]) -> Decision:
    """Decide each batch by itself when batches name their deliveries: deliveries that are over are refused, the others
    count (SG-18.12)."""
    _check_shape(batches)
    kept, refusal = _tried_each(batches, plan.tried)
    if refusal is not None and not kept:
        raise refusal.error
    return plan.decision(kept, refusal)


def _tried_each(
    batches: Iterable[AckRange], tried: Callable[[AckRange], CoreError | None]
) -> tuple[list[AckRange], Refusal | None]:
    """Try all batches, a refused batch offset by offset; return the accepted batches and the refusal."""
    kept: list[AckRange] = []
    refused: list[tuple[int, int]] = []
    first_error: CoreError | None = None
    room = SPLIT_MAX
    for batch in batches:
        error = tried(batch)
        if error is None:
            kept.append(batch)
            continue
        first_error = first_error or error
        size = batch.last - batch.first + 1
        if size == 1 or size > room:
            _append(refused, batch.first, batch.last)
            continue
        room -= size
        for one in _singles(batch):
            if tried(one) is None:
                kept.append(one)
            else:
                _append(refused, one.first, one.last)
    return kept, None if first_error is None else Refusal(tuple(refused), first_error)


def _singles(batch: AckRange) -> Iterator[AckRange]:
    for offset in range(batch.first, batch.last + 1):
        types = batch.types if len(batch.types) == 1 else batch.types[offset - batch.first :][:1]
        yield batch._replace(first=offset, last=offset, types=types)


def _append(ranges: list[tuple[int, int]], first: int, last: int) -> None:
    """Append a range behind all others; join it with the last one if they touch."""
    if ranges and first <= ranges[-1][1] + 1:
        first = ranges.pop()[0]
    ranges.append((first, last))


class _Plan:
    """The changes planned for the batches so far: their offsets are marked PENDING; nothing is renewed yet."""

    def __init__(self, window: Window, limits: Limits, after: StatesAfter, member_id: str, now_ms: int) -> None:
        self._window, self._limits, self._after = window, limits, after
        self._member_id, self._now_ms = member_id, now_ms
        self._changes: list[StateRun] = []
        self._renewed: list[tuple[int, int]] = []

    def add(self, batch: AckRange) -> None:
        """Add one more batch. Raises CoreError; the caller then undoes the changes planned for the batch."""
        window = self._window
        if batch.first < window.start:
            _check_renewed(window, batch)
        if batch.last >= window.start:
            _locate(window, batch.first, batch.last)
            _plan(window, self._limits, self._after, self._member_id, batch, self._now_ms, self._changes, self._renewed)

    def tried(self, batch: AckRange) -> CoreError | None:
        """Add one more batch if possible; else return the error."""
        changes, renewed = len(self._changes), len(self._renewed)
        try:
            self.add(batch)
        except CoreError as error:
            self.undo(changes)
            del self._renewed[renewed:]
            return error
        return None

    def tried_whole(self, batch: AckRange) -> CoreError | None:
        """Add one more batch as `tried` does, but refuse finished or never acquired offsets: no output may go with
        them."""
        if batch.first < self._window.start:
            return InvalidRecordState(f"offset {batch.first} is finished: all below {self._window.start} is")
        changes = len(self._changes)
        error = self.tried(batch)
        if error is not None:
            return error
        decided = sum(change.last - change.first + 1 for change in self._changes[changes:])
        if decided != batch.last - batch.first + 1:
            self.undo(changes)
            return InvalidRecordState(f"some of the offsets {batch.first}-{batch.last} were never acquired")
        return None

    def undo(self, since: int) -> None:
        """Undo all changes but the first `since`."""
        window = self._window
        for change in self._changes[since:]:
            window.put(change.first, change.last, PENDING, ACQUIRED)
            if window.heads is not None:
                window.heads.stays_open(change.first, change.last)
        del self._changes[since:]

    def decision(self, batches: Sequence[AckRange], refused: Refusal | None = None) -> Decision:
        """Return the decision over all changes; `batches` are the batches it covers."""
        window, changes = self._window, self._changes
        _explode(window, batches)
        if self._renewed:
            _renew(window, self._member_id, self._renewed, self._now_ms + self._limits.lock_duration_ms)
        return Decision(changes, _planned_update(window, changes) if changes else None, window.fence, refused)


def _decide_one(window: Window, after: StatesAfter, member_id: str, batch: AckRange) -> Decision | None:
    """Decide the common case, one offset that may be settled, without building ranges; None: not that case."""
    offset, last, types, delay_ms, unrun, _, attempt, _ = batch
    at, states = offset - window.base, window.states
    if offset != last or delay_ms or unrun or len(types) != 1 or not 0 <= at < len(states):
        return None
    if window.heads is not None and window.heads.chained:
        return None
    kind, count = types[0], window.counts[at]
    if states[at] != ACQUIRED or kind >= _RENEW or count >= COUNT_HIGH or offset < window.start:
        return None
    hold = window.holds.by_id[window.hold_ids[at]]
    if hold.member_id != member_id or hold.unconfirmed or (attempt and attempt != count):
        return None
    state = (after.below_limit if count < after.delivery_count_max else after.at_limit)[kind]
    changes = (StateRun(offset, offset, state, count),)
    tally = window.tally
    states[at] = PENDING
    tally[ACQUIRED] -= 1
    tally[PENDING] += 1
    window.cached.explode_one(offset)
    if window.heads is not None and state.terminal:
        window.heads.ends(offset, offset)
    start, finished = window.start, tally[ACKNOWLEDGED] + tally[ARCHIVED]
    if state in (ACKNOWLEDGED, ARCHIVED):
        if offset == start:
            start = window.finished_until(offset + 1)
            finished -= window.finished_between(offset + 1, start - 1)
        else:
            finished += 1
    update = PartitionUpdate(
        start_offset=start, delivery_complete_count=finished, runs=changes if offset >= start else ()
    )
    return Decision(changes, update, window.fence)


def _locate(window: Window, first: int, last: int) -> None:
    """Raise unless a batch that was acquired stands at or before `first`, and one at `last` (SG-7.3)."""
    cached = window.cached
    index = cached.floor(first)
    if index < 0 and not (first < window.start < window.end):
        raise InvalidRecordState(f"offsets {first}-{last} are not acquired")
    index = cached.floor(last)
    if index < 0 or cached.lasts[index] < last:
        if last < window.lost_end:
            raise InvalidRecordState(f"offsets {first}-{last} were lost with the log's end")
        raise InvalidRequest(f"offsets {first}-{last} reach past what was acquired")


def _pieces(window: Window, member_id: str, batch: AckRange) -> Iterator[tuple[int, int, int]]:
    """Cut a batch into (first, last, type), all acquired by the member (SG-7.4); natural holes are left out."""
    at, types = max(batch.first, window.start), batch.types
    while at <= batch.last:
        state = window.states[at - window.base]
        until = window.same_until(at, batch.last)
        if state == ACQUIRED:
            _check_owner(window, member_id, at, until)
            if len(types) == 1:
                yield at, until, types[0]
            else:
                yield from _typed(types, batch.first, at, until)
        elif state == PENDING and batch.attempt and batch.types == _ONLY_RENEW:
            # An acknowledgement has overtaken this renewal. It may still fail, and then the record is the member's.
            _check_owner(window, member_id, at, until)
            _check_attempt(window, at, until, batch.attempt)
        elif state != HOLE or batch.joined:
            raise InvalidRecordState(f"offset {at} is not acquired")
        at = until + 1


def _typed(types: bytes, base: int, first: int, last: int) -> Iterator[tuple[int, int, int]]:
    while first <= last:
        rest = types[first - base : last - base + 1]
        until = last - len(rest.lstrip(rest[:1]))
        yield first, until, rest[0]
        first = until + 1


def _check_owner(window: Window, member_id: str, first: int, last: int) -> None:
    for held_first, _, hold_id in window.held(first, last):
        hold = window.holds.by_id[hold_id]
        if hold.member_id != member_id:
            raise InvalidRecordState(f"offset {held_first} is acquired by another member")
        if hold.unconfirmed:
            raise InvalidRecordState(f"offset {held_first} is being read for the member, which has not seen it")


def _check_attempt(window: Window, first: int, last: int, attempt: int) -> None:
    """Raise InvalidRecordState if an offset is at another delivery: its lock lapsed and it was acquired again, perhaps
    by the same member."""
    for low, _, count in window.counted(first, last):
        if count != attempt:
            raise InvalidRecordState(f"offset {low} is acquired for the delivery {count}, and no more for {attempt}")


def _check_renewed(window: Window, batch: AckRange) -> None:
    """Raise if a finished record would be renewed by its delivery: the member begins the record on success, so it must
    not be finished (SG-7.2)."""
    if batch.attempt and _RENEW in batch.types:
        raise InvalidRecordState(f"offsets {batch.first}-{batch.last}: all below {window.start} is finished")


def _plan(
    window: Window,
    limits: Limits,
    after: StatesAfter,
    member_id: str,
    batch: AckRange,
    now_ms: int,
    changes: list[StateRun],
    renewed: list[tuple[int, int]],
) -> None:
    """Append the changes of a batch, one for each type and delivery count, and mark its offsets PENDING."""
    delay_until_ms = now_ms + min(batch.delay_ms, DELAY_MS_MAX) if batch.delay_ms > 0 else 0  # SG-7.10
    for first, last, kind in _pieces(window, member_id, batch):
        if batch.attempt:
            _check_attempt(window, first, last, batch.attempt)
        if kind == _RENEW:
            if not limits.renew_enabled:
                raise InvalidRecordState("renewal is turned off for this group")
            renewed.append((first, last))
            continue
        release = kind == _RELEASE
        for low, high, delivered in _in_order(window, first, last, kind):
            count = delivered - 1 if release and batch.unrun else delivered
            at_limit = count >= after.delivery_count_max
            state = (after.at_limit if at_limit else after.below_limit)[kind]
            not_before_ms = delay_until_ms if release and state is RecordState.AVAILABLE else 0
            changes.append(StateRun(low, high, state, count, None, not_before_ms))
            window.put(low, high, ACQUIRED, PENDING)
            if window.heads is not None and state.terminal:
                window.heads.ends(low, high)


def _in_order(window: Window, first: int, last: int, kind: int) -> Iterator[tuple[int, int, int]]:
    """Yield as `window.counted`, but each chained offset by itself, because it may be settled only after the one
    before. If all are accepted, only the offsets before the first matter.

    Raises: InvalidRecordState
    """
    heads = window.heads
    if heads is None or not heads.chained:
        yield from window.counted(first, last)
    elif kind == _ACCEPT:
        if (early := heads.too_early(first, last)) >= 0:
            raise InvalidRecordState(f"offset {early} {_TOO_EARLY}")
        yield from window.counted(first, last)
    else:
        for low, high, waits in heads.pieces(first, last):
            if waits and kind != _RELEASE and not heads.may_end(low):
                raise InvalidRecordState(f"offset {low} {_TOO_EARLY}")
            yield from window.counted(low, high)


def _explode(window: Window, batches: Sequence[AckRange]) -> None:
    """Track by offset the batches that are acknowledged in part, or with one type for each offset."""
    cached = window.cached
    for first, last, types, _, _, joined, _, _ in batches:
        if last < window.start:
            continue
        cached.explode(first, last)
        if len(types) > 1 or joined:
            for index in range(max(cached.floor(first), cached.head), cached.floor(last) + 1):
                if not joined or cached.firsts[index] != cached.lasts[index]:
                    cached.exploded.add(cached.firsts[index])


def _renew(window: Window, member_id: str, pieces: list[tuple[int, int]], due_ms: int) -> None:
    if window.heads is not None and window.heads.chained:
        pieces = _with_chains(window, window.heads, member_id, pieces)
    size = sum(last - first + 1 for first, last in pieces)
    lock = window.holds.open(member_id, due_ms, pieces[0][0], pieces[-1][1], size)
    for first, last in pieces:
        window.let_go(first, last)
        window.hold(first, last, lock.hold_id)


def _with_chains(window: Window, heads: Heads, member_id: str, pieces: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the pieces with the member's earlier records in their chains: an earlier record's acknowledgement may have
    failed, and the record must not go to another member while a later one of its key runs (SG-18.5)."""
    before = {
        offset
        for first, last in pieces
        for chained in heads.within(first, last)
        for offset in heads.chain_before(chained)
        if (hold := window.holds.by_id.get(window.hold_ids[offset - window.base])) and hold.member_id == member_id
    }
    return merged_ranges((*pieces, *((offset, offset) for offset in before)))


def _planned_update(window: Window, changes: Sequence[StateRun]) -> PartitionUpdate:
    """Return the update with the start offset and finished count that the partition will have after `commit`.

    Other open decisions count as not written: if they fail, no offset is skipped.
    """
    finished = window.finished
    start = window.start
    for change in changes:
        if change.state.terminal:
            finished += change.last - change.first + 1
    for change in changes:
        if change.first > start:
            start = window.finished_until(start)
        if change.first != start or not change.state.terminal:
            break
        start = change.last + 1
    if start != window.start:
        start = window.finished_until(start)
        finished -= window.finished_between(window.start, start - 1)
        finished -= sum(
            change.last - change.first + 1 for change in changes if change.last < start and change.state.terminal
        )
    return PartitionUpdate(start_offset=start, delivery_complete_count=finished, runs=merged(changes, start))


def hold_back(window: Window, decision: Decision) -> None:
    """Keep the next records of the decision's keys waiting until it is committed: it is not written with later
    decisions."""
    if window.heads is not None:
        for change in decision.changes:
            if change.state.terminal:
                window.heads.stays_open(change.first, change.last)


def committed(window: Window, decision: Decision) -> PartitionUpdate:
    """Return the update of a committed decision: its offsets in their present states."""
    return window.update(_alive(window, decision))


def commit(window: Window, decision: Decision) -> None:
    """Apply a decision whose update is durable (SG-7.7)."""
    _settle(window, decision)
    if len(decision.changes) == 1 and _commit_one(window, decision.changes[0]):
        return
    delayed: dict[int, list[StateRun]] = {}
    for change in _alive(window, decision):
        first, last, state, count, _, not_before_ms = change
        window.let_go(first, last)
        if not_before_ms:
            window.put(first, last, PENDING, DELAYED)
            delayed.setdefault(not_before_ms, []).append(change)
        else:
            window.put(first, last, PENDING, state)
        if window.count(first) != count:
            window.set_count(first, last, count)
    for not_before_ms, changes in delayed.items():
        pieces = [piece for change in changes for piece in _delayed(window, change)]
        size = sum(last - first + 1 for first, last in pieces)
        if not size:
            continue
        hold = window.holds.open(None, not_before_ms, pieces[0][0], pieces[-1][1], size)
        for first, last in pieces:
            window.hold(first, last, hold.hold_id)
    window.advance()


def _delayed(window: Window, change: StateRun) -> list[tuple[int, int]]:
    """List the DELAYED offsets of a change. An offset that waits for another one of its key has no delay of its own."""
    if window.heads is None:
        return [(change.first, change.last)]
    runs = window.runs(change.first, change.last)
    return [(run.first, run.last) for run in runs if run.state == DELAYED]


def _commit_one(window: Window, change: StateRun) -> bool:
    """Apply the common case, one offset without delay or change of count; False: not that case."""
    offset, last, state, count, _, not_before_ms = change
    at = offset - window.base
    if offset != last or not_before_ms or offset < window.start or window.counts[at] != count:
        return False
    if window.heads is not None:
        return False
    window.states[at] = state
    window.tally[PENDING] -= 1
    window.tally[state] += 1
    window.holds.let_go(window.hold_ids[at], 1)
    window.hold_ids[at] = 0
    if state == AVAILABLE:
        window.offer(offset)
    elif offset == window.start:
        window.advance()
    return True


def abort(window: Window, limits: Limits, decision: Decision, now_ms: int) -> PartitionUpdate | None:
    """Undo a decision whose write failed: the member holds the records again, or loses them if its lock lapsed
    meanwhile (SG-7.8)."""
    _settle(window, decision)
    runs: list[StateRun] = []
    if window.heads is not None:
        window.heads.aborts += 1
    for change in _alive(window, decision):
        if window.heads is not None:
            window.heads.stays_open(change.first, change.last)
        for first, last, hold_id in list(window.held(change.first, change.last)):
            hold = window.holds.by_id[hold_id]
            if hold.lapsed or hold.due_ms <= now_ms:
                runs += take_back(window, limits, [(first, last)], PENDING)
            else:
                window.put(first, last, PENDING, ACQUIRED)
    if not runs:
        return None
    window.advance()
    return window.update(runs)


def _settle(window: Window, decision: Decision) -> None:
    if decision.settled:
        raise RuntimeError("a decision is settled once")
    decision.settled = True
    if decision.fence is not window.fence:
        end = decision.fence.lowest()
        assert end is not None, "another fence stands because this one fell"
        kept = [change._replace(last=min(change.last, end - 1)) for change in decision.changes if change.first < end]
        decision.lost = kept != list(decision.changes)
        decision.changes = kept


def _alive(window: Window, decision: Decision) -> Iterator[StateRun]:
    """Yield the changes without the offsets that the log start passed meanwhile."""
    for change in decision.changes:
        if change.first >= window.start:
            yield change
        elif change.last >= window.start:
            yield change._replace(first=window.start)
