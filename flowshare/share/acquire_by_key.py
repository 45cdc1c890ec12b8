"""Acquiring in an order by key: `heads` knows the free offsets, this module takes from them.

Without an order, an acquire takes the records that were read. Here the log is read to learn the keys (`place`), and
free offsets are picked from memory (`pick`); their records are read after that. So records that no member can have now
cost a scan of memory and no read. Records that turn out to be missing from the log are archived before the others leave
(`confirm`): SG-18.4.

Record batches do not count here: each record is a delivery by itself, and no batch is halved (SG-6.1, SG-6.2). A record
with one delivery left comes alone (SG-6.3).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterator, Sequence
from heapq import heapify, heappop, heappush
from itertools import pairwise
from typing import Final, NamedTuple

from flowshare.share.acquire import BATCH_MAX, HOLE_MAX, Acquisition, vanish
from flowshare.share.heads import SETTLED, Heads, KeyedBatch
from flowshare.share.lapse import untake
from flowshare.share.types import (
    ACQUIRED,
    ARCHIVING,
    AVAILABLE,
    BLOCKED,
    DELAYED,
    HOLE,
    PENDING,
    AcquiredRange,
    Limits,
    RecordState,
    StateRun,
)
from flowshare.share.window import Window

CHAIN_MAX: Final = 16
"""The most records of one key that a member gets at once."""
FAR_MAX: Final = 256
"""The number of records from which followers far ahead are not taken, unless heads are short: they would come in
pieces, and leave pieces to the next member."""
_HELD: Final = (ACQUIRED, PENDING, ARCHIVING)
_FREE: Final = (AVAILABLE, DELAYED, BLOCKED)


class Picked(NamedTuple):
    """Records that were acquired before they are read: ascending ranges under one hold (0: nothing). aborts: the value
    of `Heads.aborts` then."""

    hold_id: int
    ranges: tuple[AcquiredRange, ...]
    aborts: int = 0

    @property
    def size(self) -> int:
        """The number of records."""
        return sum(last - first + 1 for first, last, _ in self.ranges)

    def split(self, offset: int) -> tuple[Picked, Picked]:
        """Split into the records before an offset, and the rest."""
        before = tuple(one._replace(last=min(one.last, offset - 1)) for one in self.ranges if one.first < offset)
        behind = tuple(one._replace(first=max(one.first, offset)) for one in self.ranges if one.last >= offset)
        return self._replace(ranges=before), self._replace(ranges=behind)


NOTHING: Final = Picked(0, ())
NOT_CONFIRMED: Final = Acquisition((), None)


class Ask(NamedTuple):
    """A member's request: at most `records`, at most `heads` of them begin a key, each followed by up to `chain` − 1 of
    its key.

    alone: only this suspect (−1: no suspect). without: offsets that others may get. only_new: only records that were
    never delivered. singles: records of `Heads.single`, too.
    """

    records: int
    heads: int
    chain: int = 1
    alone: int = -1
    without: Collection[int] = ()
    only_new: bool = False
    singles: bool = True


# -- placing


def may_place(window: Window, heads: Heads, limits: Limits) -> bool:
    """True if the log is worth reading: the window has room, or holds records whose keys are not known."""
    if window.start <= heads.barrier and window.start < window.end:
        return False
    span_max = limits.record_locks_max if limits.window_max is None else limits.window_max
    return heads.known_end < window.end or window.end - window.start < span_max


def place(window: Window, heads: Heads, limits: Limits, batches: Sequence[KeyedBatch]) -> list[StateRun]:
    """Put the records read from `known_end` on into the window, as far as there is room; return the vanished ones."""
    stored: list[StateRun] = []
    for batch in batches:
        if batch.last < heads.known_end:
            continue
        if not may_place(window, heads, limits) or not _place_batch(window, heads, limits, batch, stored):
            break
    if window.gap_start >= 0:
        window.close_gap(heads.known_end)
    window.advance()
    if window.start == window.end < heads.known_end:
        window.clear(heads.known_end)  # the window holds no record for any member
    return stored


def _place_batch(window: Window, heads: Heads, limits: Limits, batch: KeyedBatch, stored: list[StateRun]) -> bool:
    """Place one batch; False: place nothing behind it now."""
    if not _pass_missing(window, heads, limits, batch.first, stored):
        return False
    if batch.first - window.end > HOLE_MAX and window.end > window.start:
        return False
    if batch.offsets is None or batch.last - batch.first > HOLE_MAX:
        return _place_closed(window, heads, batch)
    if not _learn(window, heads, limits, batch, stored):
        return False
    first = max(batch.first, heads.known_end, window.end)
    if first <= batch.last:
        _make_room(window, first, batch.last)
        at = bisect_left(batch.offsets, first)
        heads.append(batch.offsets[at:] if at else batch.offsets, batch.hashes[at:] if at else batch.hashes)
    heads.known_end = max(heads.known_end, batch.last + 1)
    return True


def _pass_missing(window: Window, heads: Heads, limits: Limits, end: int, stored: list[StateRun]) -> bool:
    """Pass offsets that are in the log no more, from the known end up to `end`; False: one of them is held."""
    for run in list(window.runs(max(heads.known_end, window.start), min(end, window.end) - 1)):
        if run.state in _HELD:
            heads.barrier = run.last
            heads.known_end = run.last + 1
            return False
        if run.state in _FREE:
            stored.append(vanish(window, limits, run.first, run.last, run.state, run.delivery_count))
    heads.known_end = max(heads.known_end, end)
    return True


def _place_closed(window: Window, heads: Heads, batch: KeyedBatch) -> bool:
    """Place a batch with unknown keys: only when all before it is settled, and with nothing behind it."""
    first = max(batch.first, heads.known_end)
    window.advance()
    if window.start < min(first, window.end):
        heads.barrier = first - 1
        return False
    last = min(batch.last, first + BATCH_MAX - 1)
    if last >= window.end:
        _make_room(window, max(first, window.end), last)
    at = max(first, window.start)
    while at <= last:
        until = window.same_until(at, last)
        if window.states[at - window.base] == HOLE:
            window.put(at, until, HOLE, AVAILABLE)
        at = until + 1
    heads.known_end, heads.barrier = last + 1, last
    return False


def _make_room(window: Window, first: int, last: int) -> None:
    if window.start == window.end:
        window.clear(max(first, window.start))
    window.grow(last)
    window.cached.add(first, last)
    window.cached.exploded.add(first)


def _learn(window: Window, heads: Heads, limits: Limits, batch: KeyedBatch, stored: list[StateRun]) -> bool:
    """Learn the keys of offsets that a reload put into the window; False: the key of a held offset cannot be known."""
    if heads.known_end >= window.end or batch.last < window.start:
        return True
    assert batch.offsets is not None
    first = max(batch.first, heads.known_end, window.start)
    at, until = bisect_left(batch.offsets, first), bisect_left(batch.offsets, window.end)
    offsets, hashes = batch.offsets[at:until], batch.hashes[at:until]
    if offsets and offsets[0] == first and offsets[-1] - first == len(offsets) - 1:
        _learn_runs(window, heads, first, hashes)
        return _pass_missing(window, heads, limits, min(batch.last + 1, window.end), stored)
    for offset, key in zip(offsets, hashes, strict=True):
        if not _pass_missing(window, heads, limits, offset, stored):
            return False
        _learn_one(window, heads, offset, key)
        heads.known_end = offset + 1
    return _pass_missing(window, heads, limits, min(batch.last + 1, window.end), stored)


def _learn_runs(window: Window, heads: Heads, first: int, hashes: Sequence[int]) -> None:
    """Learn the keys of consecutive offsets from `first` on, all in the log: most are in long runs of one state."""
    at, last = first, first + len(hashes) - 1
    while at <= last:
        until, state = window.same_until(at, last), window.states[at - window.base]
        keys = hashes[at - first : until + 1 - first]
        if state == HOLE:
            window.cached.add(at, until)
            window.cached.exploded.add(at)
            heads.append(range(at, until + 1), keys)
        elif state == AVAILABLE:
            heads.learn(at, keys)
        elif state not in SETTLED:
            for offset, key in enumerate(keys, at):
                _learn_one(window, heads, offset, key)
        at = until + 1
    heads.known_end = last + 1


def _learn_one(window: Window, heads: Heads, offset: int, key: int) -> None:
    state = window.states[offset - window.base]
    if state == HOLE:
        window.cached.add(offset, offset)
        window.put(offset, offset, HOLE, AVAILABLE)
        state = AVAILABLE
    before = heads.tails.get(key)
    if (state not in _HELD and state not in _FREE) or not heads.link(offset, key):
        return
    if state in _FREE:
        window.let_go(offset, offset)
        window.put(offset, offset, state, BLOCKED)
    else:
        assert before is not None
        heads.chain(before, offset)


# -- picking


def pick(window: Window, heads: Heads, limits: Limits, member_id: str, ask: Ask, now_ms: int) -> Picked:
    """Acquire free heads in log order, with chains their followers, too. Read the records, then call `confirm`.

    Nothing of the pick is written yet; only a reload forgets it, and `put_back` undoes it.
    """
    if ask.alone >= 0:
        pieces = [(ask.alone, ask.alone, window.count(ask.alone))]
    elif ask.chain > 1:
        pieces = _with_chains(window, heads, limits, ask)
    else:
        pieces = _free_heads(window, heads, limits, ask)
    if not pieces:
        return NOTHING
    ranges = _joined(pieces)
    for first, last, count in ranges:
        window.set_count(first, last, count)
        window.acquire(first, last)
    size = sum(last - first + 1 for first, last, _ in ranges)
    hold = window.holds.open(member_id, now_ms + limits.lock_duration_ms, ranges[0].first, ranges[-1].last, size)
    hold.unconfirmed = True
    for first, last, _ in ranges:
        window.hold(first, last, hold.hold_id)
    return Picked(hold.hold_id, ranges, heads.aborts)


def _free_heads(window: Window, heads: Heads, limits: Limits, ask: Ask) -> list[tuple[int, int, int]]:
    """Return free heads in log order, as runs with one delivery count."""
    left, end = min(ask.records, ask.heads or ask.records), heads.known_end - 1
    last_delivery = limits.delivery_count_max - 1 if limits.delivery_count_max > 2 else -1
    taken: list[tuple[int, int, int]] = []
    offset = window.next_available(window.start, end)
    while offset >= 0 and left > 0:
        until = window.same_until(offset, end)
        for first, last, count in window.counted(offset, until):
            if ask.only_new and count:
                continue
            without = ask.without if ask.singles else _and_singles(window, heads, first, last, ask.without)
            if count == last_delivery:  # SG-6.3
                alone = next((low for low, _ in _without(first, last, without)), -1)
                if not taken and alone >= 0:
                    return [(alone, alone, count)]
                continue
            for low, high in _without(first, last, without):
                high = min(high, low + left - 1)
                if low <= high:
                    taken.append((low, high, count))
                    left -= high - low + 1
        offset = window.next_available(until + 1, end) if until < end else -1
    return taken


def _and_singles(window: Window, heads: Heads, first: int, last: int, without: Collection[int]) -> Collection[int]:
    """Return `without` and, of `first`..`last`, the records of `Heads.single`."""
    if not heads.single:
        return without
    hashes = heads.hashes[first - window.base : last + 1 - window.base]
    return {*without, *(offset for offset, key in enumerate(hashes, first) if key in heads.single)}


def _without(first: int, last: int, without: Collection[int]) -> Iterator[tuple[int, int]]:
    """Cut `first`..`last` into the pieces without the offsets in `without`."""
    for offset in sorted(one for one in without if first <= one <= last):
        if first < offset:
            yield first, offset - 1
        first = offset + 1
    if first <= last:
        yield first, last


def _with_chains(window: Window, heads: Heads, limits: Limits, ask: Ask) -> list[tuple[int, int, int]]:
    """Return free heads and, in log order, their followers, so that a batch goes out in one piece if possible.

    Followers take no room of heads that may be begun. When heads run out, the next one of each key is taken, then the
    second of each…
    """
    taken: list[tuple[int, int, int]] = []
    chains = _Chains(window, heads, ask.chain)
    heads_max = min(ask.records, ask.heads or ask.records)
    spare, begun, at = ask.records - heads_max, 0, 0
    for first, last, count in _free_heads(window, heads, limits, ask):
        if at and spare > 0:
            spare -= chains.take_between(at, first - 1, spare, taken)
        taken.append((first, last, count))
        begun += last - first + 1
        at = last + 1
        if not count:
            chains.lead(first, last)
    room = ask.records if begun < heads_max else min(ask.records, FAR_MAX)
    chains.take_next(room - begun - chains.size, taken)
    return taken


class _Chains:
    """The records that may follow those taken by one pick: offset -> the offset before it, and its place in its
    chain."""

    def __init__(self, window: Window, heads: Heads, most: int) -> None:
        self._window = window
        self._heads = heads
        self._most = most
        self._next: dict[int, tuple[int, int]] = {}
        self.size = 0
        """The number of followers taken."""

    def lead(self, first: int, last: int) -> None:
        """Note that these heads were taken."""
        window, following = self._window, self._heads.following
        hashes, single = self._heads.hashes, self._heads.single
        for offset, far in enumerate(following[first - window.base : last + 1 - window.base], first):
            if far and (not single or hashes[offset - window.base] not in single):
                self._next[offset + far] = offset, 1

    def take_between(self, first: int, last: int, room: int, taken: list[tuple[int, int, int]]) -> int:
        """Take followers within `first`..`last`, and return their number."""
        if not self._next:
            return 0
        size, following, base = 0, self._heads.following, self._window.base
        if last - first < len(self._next):
            for offset in range(first, last + 1):
                if offset in self._next and size < room:
                    size += self._take(offset, taken)
            return size
        waiting = [offset for offset in self._next if first <= offset <= last]
        heapify(waiting)
        while waiting and size < room:
            offset = heappop(waiting)
            size += self._take(offset, taken)
            after = offset + following[offset - base]
            if offset < after <= last and after in self._next:
                heappush(waiting, after)
        return size

    def take_next(self, room: int, taken: list[tuple[int, int, int]]) -> None:
        """Take the next follower of each chain, again and again, as long as there is room."""
        while room > 0 and self._next:
            for offset in sorted(self._next):
                if room > 0:
                    room -= self._take(offset, taken)
            if room <= 0:
                return

    def _take(self, offset: int, taken: list[tuple[int, int, int]]) -> int:
        """Take an offset if possible; return 1 if taken, else 0."""
        window = self._window
        before, place = self._next.pop(offset)
        at = offset - window.base
        far = self._heads.following[at]
        if window.states[at] in SETTLED:
            if far:
                self._next[offset + far] = before, place
            return 0
        if place >= self._most or window.states[at] != BLOCKED or window.counts[at]:
            return 0
        self._heads.chain(before, offset)
        window.states[at] = ACQUIRED  # as `put` would, at the price of one for each record
        window.counts[at] = 1
        window.tally[BLOCKED] -= 1
        window.tally[ACQUIRED] += 1
        taken.append((offset, offset, 0))
        self.size += 1
        if far:
            self._next[offset + far] = offset, place + 1
        return 1


def _joined(pieces: list[tuple[int, int, int]]) -> tuple[AcquiredRange, ...]:
    """Join pieces, given with their delivery counts before the pick, into ranges with the counts after it."""
    pieces.sort()
    ranges: list[AcquiredRange] = []
    for first, last, before_this in pieces:
        count = before_this + 1
        previous = ranges[-1] if ranges else None
        if previous is not None and previous.last + 1 == first and previous.delivery_count == count:
            ranges[-1] = AcquiredRange(previous.first, last, count)
        else:
            ranges.append(AcquiredRange(first, last, count))
    return tuple(ranges)


# -- afterwards


def confirm(window: Window, limits: Limits, member_id: str, picked: Picked, missing: Sequence[int]) -> Acquisition:
    """Confirm that `picked` was read, except the `missing` offsets (ascending): those are archived.

    Records that the member lost meanwhile are left out. If a write failed meanwhile, the whole pick goes back, because
    some of its records may be behind that write's; nothing of the pick was written.
    """
    if window.heads is not None and window.heads.aborts != picked.aborts:
        put_back(window, picked)
        return NOT_CONFIRMED
    hold = window.holds.by_id.get(picked.hold_id)
    if hold is not None:
        hold.unconfirmed = False
    held = _still_held(window, picked)
    stored: list[StateRun] = []
    ranges: list[AcquiredRange] = []
    for first, last, count in held:
        gone = missing[bisect_left(missing, first) : bisect_left(missing, last + 1)] if missing else ()
        stored += [vanish(window, limits, offset, offset, ACQUIRED, count) for offset in gone]
        for before, after in pairwise((first - 1, *gone, last + 1)):
            if before + 1 < after:
                ranges.append(AcquiredRange(before + 1, after - 1, count))
    stored += [StateRun(first, last, RecordState.ACQUIRED, count, member_id) for first, last, count in ranges]
    window.advance()
    return Acquisition(tuple(ranges), window.update(stored) if stored else None)


def put_back(window: Window, picked: Picked) -> None:
    """Undo a `pick` whose records could not be read."""
    untake(window, ((first, last) for first, last, _ in _still_held(window, picked)))


def _still_held(window: Window, picked: Picked) -> list[tuple[int, int, int]]:
    """List the parts of `picked` that are still under its hold, as (first, last, delivery count)."""
    found: list[tuple[int, int, int]] = []
    for first, last, count in picked.ranges:
        low, high = max(first, window.start), min(last, window.end - 1)
        for held_first, held_last, hold_id in window.held(low, high):
            if hold_id == picked.hold_id:
                found.append((held_first, held_last, count))
    return found
