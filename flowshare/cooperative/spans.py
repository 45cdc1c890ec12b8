"""Free mode: members take what comes next of one partition, whatever its keys.

Invariant: an offset lies in at most one span, and in none if it is committed or pending; a span that ended never counts
again: each has an epoch of its own.

    offsets are          by                        they become
    free                 `take`                    the member's span, until its lease ends
    in a span            `renew` of its member     in it for another lease
    in a span            a commit under its epoch  committed; the span shrinks to what is left of it, or ends
    in a span            `give_back`, `leave`      free
    in a span            its lease ended           free: a commit under its epoch is fenced

What of a span that ended its member may have begun, `attempts` counts.

`take` gives the first free offsets in one piece, so records come again before new ones are begun. It goes no further
than SPAN_MAX behind the stable offset, and while there are as many committed ranges as there may be, no further than
the last one. State is replaced, never changed in place: `state` before a step is what undoes it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from operator import itemgetter
from typing import Final, NamedTuple

from flowshare.cooperative.offsets import CommittedOffsets
from flowshare.cooperative.ranges import Pair
from flowshare.cooperative.types import OffsetRange, PutSpans, Span
from flowshare.core_errors import BoundReached, FencedMemberEpoch, InvalidRequest

SPANS_MAX: Final = 1_000
"""Spans of one partition at once."""
TAKE_MAX: Final = 10_000
"""Offsets of one span."""


class SpansState(NamedTuple):
    """All spans ascending, the newest epoch; nothing is free before `floor`. lapsed: a counter."""

    spans: tuple[Span, ...]
    epoch: int
    floor: int = 0
    lapsed: int = 0


class Spans:
    """The spans of one partition."""

    __slots__ = ("state",)

    def __init__(self, epoch: int = 0, spans: Iterable[Span] = (), *, now_ms: int = 0) -> None:
        """Start from what was stored; every lease begins now."""
        known = tuple(sorted(span._replace(deadline_ms=now_ms + span.lease_ms) for span in spans))
        self.state = SpansState(known, max([epoch, *(span.epoch for span in known)]))

    def __bool__(self) -> bool:
        return bool(self.state.spans)

    def of(self, member: str) -> tuple[Span, ...]:
        """Return the spans of a member, ascending."""
        return tuple(span for span in self.state.spans if span.member == member)

    @property
    def full(self) -> bool:
        """True if there are as many spans as there may be."""
        return len(self.state.spans) >= SPANS_MAX

    def next_deadline_ms(self) -> int | None:
        """When the next lease ends; None: there is none."""
        return min((span.deadline_ms for span in self.state.spans), default=None)

    def changed_since(self, before: SpansState) -> PutSpans | None:
        """Return the mutation to write after a step; None: nothing. A lease is stored by its length, not by its end."""
        if self.state.spans is before.spans or _stored(self.state) == _stored(before):
            return None
        return PutSpans(self.state.epoch, self.state.spans)

    def holds(self, member: str, epoch: int, offsets: Pair) -> bool:
        """True if a commit of the member for these offsets, under this epoch, is accepted."""
        spans = self.state.spans
        place = bisect_right(spans, offsets[0], key=itemgetter(0)) - 1
        if place < 0:
            return False
        span = spans[place]
        return span.member == member and span.epoch == epoch and offsets[1] <= span.end

    def take(
        self,
        member: str,
        count: int,
        committed: CommittedOffsets,
        log_end: int,
        now_ms: int,
        *,
        lease_ms: int,
        exact_starts: bool = False,
        pending: Sequence[Pair] = (),
    ) -> Span | None:
        """Give the member up to `count` of the first free offsets; None: there is none. exact_starts: as in `Terms`.
        pending: of open transactions, ascending and disjoint.

        Raises: InvalidRequest for a count that is not from 1 to TAKE_MAX, BoundReached.
        """
        if not 1 <= count <= TAKE_MAX:
            raise InvalidRequest(f"{count} offsets at once: ask for 1 to {TAKE_MAX}")
        if self.full:
            raise BoundReached(f"{SPANS_MAX} spans of one partition are with members: commit or give back some first")
        limit = min(log_end, committed.stable + committed.span_max)
        if committed.count >= committed.ranges_max:
            limit = min(limit, committed.furthest)
        first = self._first_free(committed, pending, limit)
        if first >= limit:
            self.state = self.state._replace(floor=first)
            return None
        ends = (first + count, limit, committed.committed_next(first), _next(self.state.spans, first))
        end = min(end for end in (*ends, _next(pending, first)) if end is not None)
        epoch = self.state.epoch + 1
        span = Span(first, end, member, epoch, lease_ms, now_ms + lease_ms, exact_starts)
        self.state = self.state._replace(spans=tuple(sorted((*self.state.spans, span))), epoch=epoch, floor=end)
        return span

    def renew(self, member: str, epochs: Iterable[int], now_ms: int, *, lease_ms: int) -> tuple[int, ...]:
        """Begin the leases of a member's spans anew; the epochs of those that it has no more."""
        asked = set(epochs)
        mine = {span.epoch for span in self.state.spans if span.member == member} & asked
        renewed = (
            span._replace(lease_ms=lease_ms, deadline_ms=now_ms + lease_ms) if span.epoch in mine else span
            for span in self.state.spans
        )
        self.state = self.state._replace(spans=tuple(renewed))
        return tuple(sorted(asked - mine))

    def give_back(self, member: str, epoch: int) -> None:
        """End a span; its offsets that are not committed are free. Raises: FencedMemberEpoch if the member has no such
        span."""
        if not self._end(lambda span: span.member == member and span.epoch == epoch):
            raise FencedMemberEpoch(f"member {member} has no span of epoch {epoch} any more")

    def leave(self, member: str) -> None:
        """The member is gone, in order: what it has is free."""
        self._end(lambda span: span.member == member)

    def lapse(self, now_ms: int) -> tuple[Span, ...]:
        """End the spans whose leases are over; these."""
        ended = self._end(lambda span: span.deadline_ms <= now_ms)
        if ended:
            self.state = self.state._replace(lapsed=self.state.lapsed + len(ended))
        return ended

    def shrink(self, committed: CommittedOffsets, touched: Sequence[Pair]) -> None:
        """Follow a commit of these offsets: spans end where nothing of them is left."""
        if not self.state.spans:
            return
        left: list[Span] = []
        for span in self.state.spans:
            if any(first < span.end and span.first < end for first, end in touched):
                open_ = committed.uncommitted(span.first, span.end)
                if open_:
                    left.append(span._replace(first=open_[0].first, end=open_[-1].end))
            else:
                left.append(span)
        self.state = self.state._replace(spans=tuple(left))

    def clear(self) -> None:
        """All spans end, and everything may be free."""
        self.state = self.state._replace(spans=(), floor=0)

    def look_from(self, offset: int) -> None:
        """Something at `offset` or behind is free again, or may be."""
        self.state = self.state._replace(floor=min(self.state.floor, offset))

    def _end(self, ends: Callable[[Span], bool]) -> tuple[Span, ...]:
        ended = tuple(filter(ends, self.state.spans))
        if ended:
            left = tuple(span for span in self.state.spans if not ends(span))
            self.state = self.state._replace(spans=left, floor=min(self.state.floor, ended[0].first))
        return ended

    def _first_free(self, committed: CommittedOffsets, pending: Sequence[Pair], limit: int) -> int:
        taken = [OffsetRange(span.first, span.end) for span in self.state.spans]
        at = max(committed.stable, self.state.floor)
        while at < limit:
            further = max(committed.committed_end(at), _inside(taken, at), _inside(pending, at))
            if further == at:
                break
            at = further
        return at


def _stored(state: SpansState) -> list[tuple[object, ...]]:
    return [(*span[:5], span.exact_starts) for span in state.spans]


def _inside(ranges: Sequence[Pair], offset: int) -> int:
    """The end of the range that the offset lies in; the offset if in none."""
    at = bisect_right(ranges, offset, key=itemgetter(0)) - 1
    return max(offset, ranges[at][1]) if at >= 0 else offset


def _next(ranges: Sequence[tuple[int, ...] | Span], offset: int) -> int | None:
    """Where the next range behind the offset begins."""
    at = bisect_right(ranges, offset, key=itemgetter(0))
    return ranges[at][0] if at < len(ranges) else None
