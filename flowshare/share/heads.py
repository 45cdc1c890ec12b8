"""Order by key: which offsets of a window wait for another one of their key (SG-18.3).

A window with `Heads` hands out its offsets key by key. The hash of a record's key decides (`place` is given the hash; 0
is no key and no order), so two keys with one hash only wait for each other.

Settled are ACKNOWLEDGED and ARCHIVED. *Ending* is a PENDING offset that will be settled (but not of a parked key); it
is written before later decisions, or with them. All other placed offsets are *open*: among them DELAYED (a retry),
ARCHIVING (a dead letter under way). Invariant, for each hash, of its open offsets in log order:

- the first, the *head*, is not BLOCKED, and all others are;
- but for a *chain*: the next ones may be ACQUIRED or PENDING, if they were acquired together with the one before, all
  of them for the first time (so that none reaches its last delivery behind another).

| what happens to an offset | it becomes | its key's next |
|---|---|---|
| placed, no offset of its key is open | AVAILABLE | – |
| placed behind another | BLOCKED | – |
| ending, as head | PENDING | AVAILABLE if it was BLOCKED; of a chain: the head |
| settled, as head | settled | the same |
| settled within a chain (it was not in the log) | settled | waits for the one before |
| AVAILABLE or DELAYED again (released, lapsed), as head | that | as it is |
| the same, within a chain | BLOCKED | as it is |
| accept or reject within a chain whose one before is open | refused | |
| ending no more: its write failed, or was not begun | ACQUIRED | BLOCKED again; ACQUIRED: in a chain behind it |

So the next record of a key is acquired as soon as the one before is decided, and leaves with the write that holds both,
or a later one. When a write fails, all later decisions and acquires of its keys fail with it and go back
(`server.share.writing`); `aborts` finds the records that were picked then and not confirmed yet (`acquire_by_key`).

BLOCKED is stored as AVAILABLE, and offsets that were placed and never acquired are not stored. So a reload knows no
hashes: everything below `known_end` is placed, offsets behind are not handed out until the log was read again so far. A
held offset that is in the log no more, or cannot be read, is a *barrier*: its key may be any, and no offset behind it
is placed before it is settled.

When a key's head is settled, `following` leads to the key's next offset; offsets that were settled before their turn
are skipped on the way. So no key needs a list of its own: 8 bytes an offset, and a dict of the keys with unsettled
offsets.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from itertools import compress
from typing import TYPE_CHECKING, Final, NamedTuple

from flowshare.share.types import ACKNOWLEDGED, ACQUIRED, ARCHIVED, AVAILABLE, BLOCKED, DELAYED, PENDING

if TYPE_CHECKING:
    from flowshare.share.window import Window

SETTLED: Final = frozenset((ACKNOWLEDGED, ARCHIVED))
_TAKEN: Final = (ACQUIRED, PENDING)
_ONLY_BLOCKED: Final = bytes(state == BLOCKED for state in range(256))


class KeyedBatch(NamedTuple):
    """One record batch of the log: first and last offset, and the offset and key hash of each record to be delivered.

    offsets: None: the batch could not be opened.
    """

    first: int
    last: int
    offsets: Sequence[int] | None
    hashes: Sequence[int] = ()


class Heads:
    """The order of one window. `hashes` and `following` are as long as the window's `states`, index by index."""

    __slots__ = (
        "_freed",
        "_window",
        "aborts",
        "barrier",
        "chained",
        "ending",
        "following",
        "hashes",
        "known_end",
        "single",
        "tails",
    )

    def __init__(self, window: Window, known_end: int) -> None:
        self._window = window
        self.hashes = array("I")
        """Key hashes of unsettled offsets; 0: no order, or settled."""
        self.following = array("I")
        """Distance from an offset to the next one of its key; 0: none."""
        self.tails: dict[int, int] = {}
        """Hash -> the last offset placed with the hash, as long as one of its offsets is unsettled."""
        self.chained: dict[int, int] = {}
        """Offset within a chain -> the one before it."""
        self.ending: set[int] = set()
        """PENDING offsets that will be settled, without those of keys in `single`."""
        self._freed: dict[int, int] = {}
        """Offset that became free because the offset before it is ending -> that earlier offset. May name settled
        offsets."""
        self.aborts = 0
        """The number of ending offsets that were not settled, because their write failed."""
        self.known_end = known_end
        """The end of the placed offsets: everything below is placed."""
        self.single: Collection[int] = ()
        """Hashes whose records begin no chain, and go only to members that know of parked keys (`parking`)."""
        self.barrier = -1
        """The barrier's last offset: no offset is placed before the start offset has passed it."""

    # -- reading

    def waits(self, offset: int) -> bool:
        """True if an offset is within a chain and one before it is unsettled."""
        return self._before(offset) is not None

    def may_end(self, offset: int) -> bool:
        """True if an offset may be settled: no offset before it in its chain is open."""
        before = self._before(offset)
        return before is None or before in self.ending

    def too_early(self, first: int, last: int) -> int:
        """Return the first of `first`..`last` that may not be settled even if all of them are; −1: none."""
        for offset in self.within(first, last):
            before = self._before(offset)
            if before is not None and before < first and before not in self.ending:
                return offset
        return -1

    def _before(self, offset: int) -> int | None:
        """Return the nearest unsettled offset before an offset in its chain; None: none."""
        window, before = self._window, self.chained.get(offset)
        while before is not None and before >= window.start:
            if window.states[before - window.base] not in SETTLED:
                return before
            before = self.chained.get(before)
        return None

    def chain_before(self, offset: int) -> Iterator[int]:
        """Yield the unsettled offsets before an offset in its chain, the nearest first."""
        before = self._before(offset)
        while before is not None:
            yield before
            before = self._before(before)

    def within(self, first: int, last: int) -> list[int]:
        """Return the offsets of `first`..`last` that are within a chain, ascending."""
        if not self.chained:
            return []
        if last - first < len(self.chained):
            return [offset for offset in range(first, last + 1) if offset in self.chained]
        return sorted(offset for offset in self.chained if first <= offset <= last)

    def unsure(self, first: int, last: int) -> list[int]:
        """Return the offsets of `first`..`last` that are free only because the one before is ending, ascending."""
        freed = self._freed.items()
        return sorted(offset for offset, ending in freed if first <= offset <= last and ending in self.ending)

    def pieces(self, first: int, last: int) -> Iterator[tuple[int, int, bool]]:
        """Cut `first`..`last` into (first, last, waits within a chain)."""
        for offset in self.within(first, last):
            if self.waits(offset):
                if first < offset:
                    yield first, offset - 1, False
                yield offset, offset, True
                first = offset + 1
        if first <= last:
            yield first, last, False

    def waiting(self) -> Iterator[int]:
        """Yield the held offsets that wait for one before them in their chain: no handler works on them."""
        states, base, start = self._window.states, self._window.base, self._window.start
        for offset, before in self.chained.items():
            if offset < start or states[offset - base] not in _TAKEN:
                continue
            if before >= start and states[before - base] in _TAKEN:  # most are; a call for each costs thrice as much
                if before not in self.ending:
                    yield offset
            elif not self.may_end(offset):
                yield offset

    def most_blocked(self, count: int) -> list[tuple[int, int]]:
        """Return the keys with the most records behind their head, BLOCKED or chained, at most `count`: the head's
        offset, and the number of those records."""
        window = self._window
        at = window.start - window.base
        waiting = Counter(compress(self.hashes[at:], window.states[at:].translate(_ONLY_BLOCKED)))
        waiting.update(self.hashes[offset - window.base] for offset in self.waiting())
        return [(window.base + self.hashes.index(key, at), blocked) for key, blocked in waiting.most_common(count)]

    # -- placing

    def append(self, offsets: Sequence[int], hashes: Sequence[int]) -> None:
        """Place records behind all placed ones; the window has grown over them already."""
        window, tails, following, known = self._window, self.tails, self.following, self.hashes
        base, states, ending = window.base, window.states, self.ending
        available = 0
        first_available = -1
        for offset, key in zip(offsets, hashes, strict=True):
            if key:
                tail = tails.get(key)
                tails[key] = offset
                known[offset - base] = key
                if tail is not None:
                    following[tail - base] = offset - tail
                    if tail not in ending:
                        states[offset - base] = BLOCKED
                        continue
                    self._freed[offset] = tail
            states[offset - base] = AVAILABLE
            available += 1
            if first_available < 0:
                first_available = offset
        window.placed(len(offsets), available, first_available)

    def learn(self, first: int, hashes: Sequence[int]) -> None:
        """Learn the keys of AVAILABLE offsets from `first` on; offsets behind another one of their key become
        BLOCKED."""
        window, tails, following = self._window, self.tails, self.following
        base, states = window.base, window.states
        self.hashes[first - base : first - base + len(hashes)] = array("I", hashes)
        blocked = 0
        for offset, key in enumerate(hashes, first):
            if key:
                tail = tails.get(key)
                tails[key] = offset
                if tail is not None:
                    following[tail - base] = offset - tail
                    if tail in self.ending:
                        self._freed[offset] = tail
                        continue
                    states[offset - base] = BLOCKED
                    blocked += 1
        window.tally[AVAILABLE] -= blocked
        window.tally[BLOCKED] += blocked

    def link(self, offset: int, key: int) -> bool:
        """Put an unsettled offset behind those of its key; return True if an open one is before it."""
        if not key:
            return False
        base, tail = self._window.base, self.tails.get(key)
        self.tails[key] = offset
        self.hashes[offset - base] = key
        if tail is None:
            return False
        self.following[tail - base] = offset - tail
        if tail in self.ending:
            self._freed[offset] = tail
            return False
        return True

    # -- acquiring

    def chain(self, before: int, offset: int) -> None:
        """Note that `offset` is held together with `before`, the open offset before it in its key."""
        self.chained[offset] = before
        self.ending.discard(offset)  # before its key was known it may have been acknowledged out of turn

    # -- what became of offsets

    def ends(self, first: int, last: int) -> None:
        """Note that PENDING offsets will be settled: the next ones of their keys become free, except for keys in
        `single`, whose fate the write decides."""
        base, following = self._window.base, self.following
        offsets: Sequence[int] = range(first, last + 1)
        if self.single:
            offsets = [offset for offset in offsets if self.hashes[offset - base] not in self.single]
        self.ending.update(offsets)
        if any(following[first - base : last + 1 - base]):
            for offset in offsets:
                if following[offset - base]:
                    self._free_next(offset, offset)

    def stays_open(self, first: int, last: int) -> None:
        """Note that offsets will not be settled: free offsets behind them are blocked again, held ones are in a chain
        with them."""
        self.ending.difference_update(range(first, last + 1))
        window, following = self._window, self.following
        for offset in range(first, last + 1):
            at = self._next(offset) if following[offset - window.base] else None
            if at is None or self._before(at) is not None:
                continue
            self._freed.pop(at, None)
            state = window.states[at - window.base]
            if state in (AVAILABLE, DELAYED):
                window.let_go(at, at)
                window.put(at, at, state, BLOCKED)
            elif state in (ACQUIRED, PENDING):
                self.chain(offset, at)

    def _next(self, offset: int) -> int | None:
        """Return the next unsettled offset of the key, cutting the link past settled ones; None: none."""
        base, states = self._window.base, self._window.states
        while far := self.following[offset - base]:
            offset += far
            if states[offset - base] not in SETTLED:
                return offset
            self.hashes[offset - base] = 0
        return None

    def _free_next(self, offset: int, ending: int) -> None:
        """Free the next unsettled offset behind `offset`: it waits for nothing but the write of `ending`."""
        at = self._next(offset)
        if at is None:
            self.tails[self.hashes[ending - self._window.base]] = ending
        elif self._window.states[at - self._window.base] == BLOCKED:
            self._freed[at] = ending
            self._free(at)
        elif at in self.chained:
            self.chained[at] = ending

    def _free(self, offset: int) -> None:
        window = self._window
        window.states[offset - window.base] = AVAILABLE  # as `put` would, at the price of one for each record
        window.tally[BLOCKED] -= 1
        window.tally[AVAILABLE] += 1
        window.offer(offset)

    def moved(self, first: int, last: int, old: int, new: int) -> None:
        """Follow offsets that moved from one state to another."""
        if new in SETTLED:
            if old == BLOCKED:
                self._skip(first, last)
            else:
                self._settle(first, last)
        elif new in (AVAILABLE, DELAYED) and self.chained:
            for offset in self.within(first, last):
                before = self._before(offset)
                if before is not None and before in self.ending:
                    self._freed[offset] = before
                elif before is not None:
                    self._window.put(offset, offset, new, BLOCKED)
                del self.chained[offset]

    def _skip(self, first: int, last: int) -> None:
        """Note that offsets were settled while they waited: walks over their keys pass them."""
        base = self._window.base
        for at in range(first - base, last + 1 - base):
            self.hashes[at] = 0

    def _settle(self, first: int, last: int) -> None:
        window, hashes, following, freed = self._window, self.hashes, self.following, self._freed
        base = window.base
        if self.ending:
            self.ending.difference_update(range(first, last + 1))
        for at in range(first - base, last + 1 - base):
            ending = freed.pop(at + base, None) if freed else None
            key = hashes[at]
            if not key:
                continue
            hashes[at] = 0
            if ending is not None and ending in self.ending:
                self._free_next(at + base, ending)  # the offset was not in the log
                continue
            if at + base in self.chained:  # most are not; a call for each costs more than all the rest
                before = self._before(at + base)
                if before is not None:
                    if before in self.ending:
                        self._free_next(at + base, before)
                    continue
                del self.chained[at + base]
            if following[at]:
                self._release(at + base, key)
            else:
                del self.tails[key]

    def _release(self, offset: int, key: int) -> None:
        """Make the next unsettled offset of a key its head, after the head was settled."""
        window = self._window
        base, states, chained = window.base, window.states, self.chained
        while far := self.following[offset - base]:
            offset += far
            chained.pop(offset, None)
            at = offset - base
            if states[at] not in SETTLED:
                if states[at] == BLOCKED:
                    self._free(offset)
                return
            self.hashes[at] = 0
        del self.tails[key]

    # -- the window's edges

    def grow(self, size: int) -> None:
        """Extend the columns by `size` offsets, as the window was."""
        nothing = bytes(4 * size)
        self.hashes.frombytes(nothing)
        self.following.frombytes(nothing)

    def trim(self, size: int) -> None:
        """Cut `size` offsets off the head, as the window did."""
        del self.hashes[:size]
        del self.following[:size]

    def clear(self, start: int) -> None:
        """Empty the order, as the window was emptied; the window stands at `start`."""
        del self.hashes[:]
        del self.following[:]
        self.tails.clear()
        self.chained.clear()
        self.ending.clear()
        self._freed.clear()
        self.known_end = max(self.known_end, start)

    def cut(self, end: int) -> None:
        """Drop the offsets from `end` on, as the window did; link the ones before anew."""
        window = self._window
        del self.hashes[end - window.base :]
        del self.following[end - window.base :]
        self.tails.clear()
        for offset in [offset for offset in self.chained if offset >= end]:
            del self.chained[offset]
        self.ending = {offset for offset in self.ending if offset < end}
        self._freed.clear()
        self.known_end = min(self.known_end, end)
        self.barrier = min(self.barrier, end - 1)
        for at in range(window.start - window.base, len(self.hashes)):
            key, self.following[at] = self.hashes[at], 0
            if key:
                self.link(at + window.base, key)
