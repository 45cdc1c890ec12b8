"""The order of one chunk's records: of each key only the first may be begun, the others wait behind it.

    record          it ended in a plain accept          it ended otherwise, went back, or its lock was lost
    begins a key    the next of its key may be begun    all that wait behind it go back unrun
    has no key      –                                   –

A server gives a member one chain of each key, all of it in one answer, and the key's next record when that is settled;
so what stands in one chunk is all that there is to order (SG-18.5). Records wait under the offset of the one before
them, and go back when that is settled and they still wait: whatever the way, nobody needs to know it. Who runs records
asks for the next one (`follow`, `go_on`); who settles, gives back or loses them takes what waits (`behind`, `take`,
`lose`). These are several threads, hence the lock.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import NamedTuple

from flowshare.protocol.decoding import RawRecord
from flowshare.protocol.key_hash import NO_ORDER


class Loss(NamedTuple):
    """What becomes of records that nobody has begun when locks are lost.

    lost: their own lock is gone. back: a record before them in their key is lost. kept: neither, and they may be begun.
    """

    lost: list[RawRecord]
    back: list[RawRecord]
    kept: list[RawRecord]


class Chains:
    """What waits in one chunk behind records of the same key."""

    __slots__ = ("_behind", "_hashes", "_lock", "_unrunnable", "waiting")

    def __init__(self, records: Sequence[RawRecord], hashes_of: Callable[[Sequence[RawRecord]], list[int]]) -> None:
        """records: in offset order; those that may be begun are `first`'s.

        hashes_of: of records' keys; 0: it has none.
        """
        self._lock = threading.Lock()
        self._behind: dict[int, list[RawRecord]] = {}
        self._hashes: dict[int, int] = {}
        self._unrunnable: frozenset[int] = frozenset()
        self.waiting = 0
        """Records that wait for the one before them. Any thread."""
        numbers = hashes_of(records)
        if len(numbers) == len(set(numbers)):
            return
        several = {number for number, count in Counter(numbers).items() if count > 1 and number != NO_ORDER}
        keys: dict[int, list[RawRecord]] = {number: [] for number in several}
        for record, number in zip(records, numbers, strict=True):
            if number in several:
                keys[number].append(record)
        for number, found in keys.items():
            for record in found:
                self._hashes[record.offset] = number
            self._behind[found[0].offset] = found[:0:-1]
            self.waiting += len(found) - 1

    def first(self, records: Iterable[RawRecord]) -> list[RawRecord]:
        """Those of the chunk's records that wait for no other."""
        followers = {record.offset for rest in self._behind.values() for record in rest}
        return [record for record in records if record.offset not in followers]

    def key(self, offset: int) -> int:
        """The key of a record that has, or had, others of its key beside it; 0: there are none."""
        return self._hashes.get(offset, NO_ORDER)

    def followers(self) -> list[RawRecord]:
        """What waits now, in no order. Any thread."""
        with self._lock:
            return [record for rest in self._behind.values() for record in rest]

    def refuse(self, offsets: Collection[int]) -> None:
        """These are begun by nobody here: they and what waits behind them go back when the one before is settled."""
        self._unrunnable = frozenset(offsets)

    def follow(self, offset: int) -> RawRecord | None:
        """The record behind this one, which has ended in an accept, or is handled in one go with it: it is begun now.

        None: there is none, or it went back.
        """
        with self._lock:
            return self._next(offset)

    def leads(self, offset: int) -> bool:
        """Whether a record waits behind this one, which runs: none comes there later."""
        return offset in self._behind

    def go_on(self, offset: int, records: list[RawRecord]) -> bool:
        """The handler of this one has ended in an accept: the record behind it becomes the last of `records`, those
        that may be begun. Whether there is one."""
        with self._lock:
            record = self._next(offset)
            if record is not None:
                records.append(record)  # before who gives back can look
            return record is not None

    def _next(self, offset: int) -> RawRecord | None:
        rest = self._behind.get(offset)
        if not rest or rest[-1].offset in self._unrunnable:
            return None
        del self._behind[offset]
        record = rest.pop()
        if rest:
            self._behind[record.offset] = rest
        self.waiting -= 1
        return record

    def startable(self, records: Iterable[RawRecord]) -> int:
        """How many there are with those of their keys: what could be handled in one go."""
        with self._lock:
            return sum(1 + len(self._behind.get(record.offset, ())) for record in tuple(records))

    def withdraw(self, offset: int, records: Sequence[RawRecord]) -> None:
        """Records of one key are to go back with the one at `offset`; in offset order, and what waits behind the last
        goes with them."""
        if not records:
            return
        with self._lock:
            rest = self._behind.pop(records[-1].offset, [])
            rest.extend(reversed(records))
            self._behind[offset] = rest
            self.waiting += len(records)

    def behind(self, offsets: Iterable[int]) -> list[RawRecord]:
        """Take all that waits behind these."""
        with self._lock:
            taken: list[RawRecord] = []
            if self._behind:
                for offset in offsets:
                    taken += self._behind.pop(offset, ())
            self.waiting -= len(taken)
            return taken

    def take(self, records: list[RawRecord]) -> list[RawRecord]:
        """Take all that nobody has begun: what is in `records`, and what waits."""
        with self._lock:
            taken = _taken(records)
            for rest in self._behind.values():
                taken += rest
            self._behind.clear()
            self.waiting = 0
            return taken

    def lose(self, offsets: Collection[int], records: list[RawRecord]) -> Loss:
        """The locks of these are gone: take what is in `records`, and of what waits all that is not to be begun."""
        first: dict[int, int] = {}
        for offset in sorted(offsets, reverse=True):
            first[self.key(offset)] = offset
        first.pop(NO_ORDER, None)
        loss = Loss([], [], [])

        def sort(record: RawRecord, kept: list[RawRecord]) -> None:
            if record.offset in offsets:
                loss.lost.append(record)
            elif record.offset > first.get(self.key(record.offset), record.offset):
                loss.back.append(record)
            else:
                kept.append(record)

        with self._lock:
            for record in _taken(records):
                sort(record, loss.kept)
            for offset, rest in list(self._behind.items()):
                kept: list[RawRecord] = []
                for record in rest:
                    sort(record, kept)
                self._behind[offset] = kept
                self.waiting -= len(rest) - len(kept)
        return loss


def _taken(records: list[RawRecord]) -> list[RawRecord]:
    """All of them, in the order in which they would have been begun; somebody may pop at the same time."""
    taken: list[RawRecord] = []
    try:
        while True:
            taken.append(records.pop())
    except IndexError:
        return taken
