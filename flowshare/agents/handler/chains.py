"""Chains order one chunk's records: of each key only the first may be begun, the others wait behind it.

    record          it ended in a plain accept          it ended otherwise, went back, or its lock was lost
    begins a key    the next of its key may be begun    all that wait behind it go back unrun
    has no key      –                                   –

A server gives a member one chain of each key, in one answer, and the key's next record when the chain is settled; so
order matters only within one chunk (SG-18.5). Records wait under the offset of the record before them, and are released
when that record is settled and they still wait, however it was settled. The runner of records asks for the next one
(`follow`, `go_on`); code that settles, releases or loses records takes the waiting ones (`behind`, `take`, `lose`).
These are several threads, hence the lock.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import NamedTuple

from flowshare.protocol.decoding import RawRecord
from flowshare.protocol.key_hash import NO_ORDER


class Loss(NamedTuple):
    """Records that no handler has begun, sorted after locks were lost.

    lost: their own lock is gone. back: an earlier record of their key is lost. kept: neither; they may be begun.
    """

    lost: list[RawRecord]
    back: list[RawRecord]
    kept: list[RawRecord]


class Chains:
    """Records of one chunk that wait behind other records of their key."""

    __slots__ = ("_behind", "_hashes", "_lock", "_unrunnable", "waiting")

    def __init__(self, records: Sequence[RawRecord], hashes_of: Callable[[Sequence[RawRecord]], list[int]]) -> None:
        """records: in offset order; `first` returns those that may be begun.

        hashes_of: of records' keys; 0: no key.
        """
        self._lock = threading.Lock()
        self._behind: dict[int, list[RawRecord]] = {}
        self._hashes: dict[int, int] = {}
        self._unrunnable: frozenset[int] = frozenset()
        self.waiting = 0
        """Number of records that wait for the one before them. Any thread."""
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
        """Return the chunk's records that wait for no other."""
        followers = {record.offset for rest in self._behind.values() for record in rest}
        return [record for record in records if record.offset not in followers]

    def key(self, offset: int) -> int:
        """Return the key's number of a record whose key has, or had, several records here; 0: no others."""
        return self._hashes.get(offset, NO_ORDER)

    def followers(self) -> list[RawRecord]:
        """Return the records that wait now, in no order. Any thread."""
        with self._lock:
            return [record for rest in self._behind.values() for record in rest]

    def refuse(self, offsets: Collection[int]) -> None:
        """Let nobody begin these records: they and those behind them are released when the record before them is
        settled."""
        self._unrunnable = frozenset(offsets)

    def follow(self, offset: int) -> RawRecord | None:
        """Return the record behind one that ended in an accept, or is handled together with it; it is begun now.

        None: no record waits there, or it was released.
        """
        with self._lock:
            return self._next(offset)

    def leads(self, offset: int) -> bool:
        """Tell if a record waits behind this running one; no record joins the wait later."""
        return offset in self._behind

    def go_on(self, offset: int, records: list[RawRecord]) -> bool:
        """Append the record behind an accepted one to `records`, the records that may be begun; return True if there is
        one."""
        with self._lock:
            record = self._next(offset)
            if record is not None:
                records.append(record)  # before a releasing thread can look
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
        """Count these records and those that wait behind them: all that one call could handle."""
        with self._lock:
            return sum(1 + len(self._behind.get(record.offset, ())) for record in tuple(records))

    def withdraw(self, offset: int, records: Sequence[RawRecord]) -> None:
        """Let records of one key wait behind the one at `offset`, to be released with it. records: in offset order;
        those waiting behind the last go along."""
        if not records:
            return
        with self._lock:
            rest = self._behind.pop(records[-1].offset, [])
            rest.extend(reversed(records))
            self._behind[offset] = rest
            self.waiting += len(records)

    def behind(self, offsets: Iterable[int]) -> list[RawRecord]:
        """Take all records that wait behind these offsets."""
        with self._lock:
            taken: list[RawRecord] = []
            if self._behind:
                for offset in offsets:
                    taken += self._behind.pop(offset, ())
            self.waiting -= len(taken)
            return taken

    def take(self, records: list[RawRecord]) -> list[RawRecord]:
        """Take all records that nobody has begun: `records`, and the waiting ones."""
        with self._lock:
            taken = _taken(records)
            for rest in self._behind.values():
                taken += rest
            self._behind.clear()
            self.waiting = 0
            return taken

    def lose(self, offsets: Collection[int], records: list[RawRecord]) -> Loss:
        """Sort records after the locks of `offsets` are gone: empty `records`, and take waiting ones that may not be
        begun."""
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
    """Take all records, in the order in which they would have begun; another thread may pop at the same time."""
    taken: list[RawRecord] = []
    try:
        while True:
            taken.append(records.pop())
    except IndexError:
        return taken
