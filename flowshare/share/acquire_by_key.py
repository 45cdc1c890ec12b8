"""Which offsets a member gets where a group has an order by key: `heads` says what is free, this takes of it.

Where there is no order, an acquire takes what was read. Here the log is read to learn the keys (`place`), and what is
free is picked from memory (`pick`); its records are read after that. So what nobody can have now costs a scan of memory
and no read. What turns out to be in the log no more is archived before the records leave (`confirm`): SG-18.4.

Record batches do not count here: each record is a delivery by itself, and nothing is halved (SG-6.1, SG-6.2). One that
has one delivery left comes alone (SG-6.3).
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
"""Records of one key that a member may get at once."""
FAR_MAX: Final = 256
"""With so many records nothing that follows far ahead is taken, unless heads are short: it would come in pieces, and
leave pieces to who comes next."""
_HELD: Final = (ACQUIRED, PENDING, ARCHIVING)
_FREE: Final = (AVAILABLE, DELAYED, BLOCKED)


class Picked(NamedTuple):
    """What was acquired before it was read: ascending ranges under one hold (0: nothing). aborts: `Heads.aborts`."""

    hold_id: int
    ranges: tuple[AcquiredRange, ...]
    aborts: int = 0

    @property
    def size(self) -> int:
        """How many records."""
        return sum(last - first + 1 for first, last, _ in self.ranges)

    def split(self, offset: int) -> tuple[Picked, Picked]:
        """What is before an offset, and the rest."""
        before = tuple(one._replace(last=min(one.last, offset - 1)) for one in self.ranges if one.first < offset)
        behind = tuple(one._replace(first=max(one.first, offset)) for one in self.ranges if one.last >= offset)
        return self._replace(ranges=before), self._replace(ranges=behind)


NOTHING: Final = Picked(0, ())
NOT_CONFIRMED: Final = Acquisition((), None)


class Ask(NamedTuple):
    """What a member asks for: of `records` at most `heads` begin a key, each followed by up to `chain` − 1 of its key.

    alone: this suspect and nothing else (−1: none). without: offsets that are others'. only_new: never delivered ones.
    singles: records of `Heads.single`, too.
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
    """Whether the log is worth reading: the window has room, or there is something in it whose key is not known."""
    if window.start <= heads.barrier and window.start < window.end:
        return False
    span_max = limits.record_locks_max if limits.window_max is None else limits.window_max
    return heads.known_end < window.end or window.end - window.start < span_max


def place(window: Window, heads: Heads, limits: Limits, batches: Sequence[KeyedBatch]) -> list[StateRun]:
    """Put what was read from `known_end` on into the window, as far as there is room; return what has vanished."""
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
        window.clear(heads.known_end)  # nothing is there that anybody could get
    return stored


def _place_batch(window: Window, heads: Heads, limits: Limits, batch: KeyedBatch, stored: list[StateRun]) -> bool:
    """Place one batch; False: nothing behind it is placed now."""
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
    """Pass offsets that are in the log no more, from what is known up to `end`; False: one of them is held."""
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
    """Place a batch of which nobody knows the keys: when all that is before it is settled, and nothing behind it."""
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
    """Learn the keys of what a reload has put into the window; False: the key of one that is held cannot be known."""
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
    """The same for offsets from `first` on that are all in the log: most are in long runs of one state."""
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
    """Acquire free heads in log order, and with chains what follows them. The records are to be read, then `confirm`.

    Nothing of it is written yet, and nothing but a reload forgets it: `put_back` undoes it.
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
    """Free heads in log order, as runs with one delivery count."""
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
    """The same and, of `first`..`last`, the records of `Heads.single`."""
    if not heads.single:
        return without
    hashes = heads.hashes[first - window.base : last + 1 - window.base]
    return {*without, *(offset for offset, key in enumerate(hashes, first) if key in heads.single)}


def _without(first: int, last: int, without: Collection[int]) -> Iterator[tuple[int, int]]:
    """Cut out of `first`..`last` what is others'."""
    for offset in sorted(one for one in without if first <= one <= last):
        if first < offset:
            yield first, offset - 1
        first = offset + 1
    if first <= last:
        yield first, last


def _with_chains(window: Window, heads: Heads, limits: Limits, ask: Ask) -> list[tuple[int, int, int]]:
    """Free heads and, as they come in the log, what follows them, so that a batch goes out in one piece if it can.

    What follows takes no room of heads that may be begun. When there are no more of these, the next one of each key is
    taken, then the second of each…
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
    """What may follow the records that one pick has taken: offset -> the one before it, and its place in its chain."""

    def __init__(self, window: Window, heads: Heads, most: int) -> None:
        self._window = window
        self._heads = heads
        self._most = most
        self._next: dict[int, tuple[int, int]] = {}
        self.size = 0
        """How many were taken."""

    def lead(self, first: int, last: int) -> None:
        """These heads were taken."""
        window, following = self._window, self._heads.following
        hashes, single = self._heads.hashes, self._heads.single
        for offset, far in enumerate(following[first - window.base : last + 1 - window.base], first):
            if far and (not single or hashes[offset - window.base] not in single):
                self._next[offset + far] = offset, 1

    def take_between(self, first: int, last: int, room: int, taken: list[tuple[int, int, int]]) -> int:
        """Take what may follow within `first`..`last`, and return how many."""
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
        """Take of each chain the next one, again and again, as long as there is room."""
        while room > 0 and self._next:
            for offset in sorted(self._next):
                if room > 0:
                    room -= self._take(offset, taken)
            if room <= 0:
                return

    def _take(self, offset: int, taken: list[tuple[int, int, int]]) -> int:
        """Take an offset if it may be; 1 if it was."""
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
    """Pieces with the delivery counts that they had, as ranges with those that they have now."""
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
    """The records of `picked` were read, but for the offsets that are `missing` (ascending): those are archived.

    What the member lost meanwhile is left out. If a write failed meanwhile, of whose records some may be behind, all of
    it goes back: nothing was written of it.
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
    """What of `picked` is still under its hold, as (first, last, delivery count)."""
    found: list[tuple[int, int, int]] = []
    for first, last, count in picked.ranges:
        low, high = max(first, window.start), min(last, window.end - 1)
        for held_first, held_last, hold_id in window.held(low, high):
            if hold_id == picked.hold_id:
                found.append((held_first, held_last, count))
    return found
