"""Journal of handlers' events, in a mapped file of fixed entries: cheap to write, and complete after a kill.

A header of 16 bytes; its first byte says "do not sleep any more" (the rest of the records is let through). Then entries
of 16 bytes, little endian: number of the record + 1 (0: no entry here yet), member, kind, seconds of the machine's
monotonic clock, which processes and JVMs share. java/modes/Journal.java writes the same.
"""

from __future__ import annotations

import itertools
import mmap
import struct
import time
from bisect import bisect_left
from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pathlib import Path

HEADER = 16
ENTRY = struct.Struct("<IHHd")
NUMBER = struct.Struct("<I")


class Kind(IntEnum):
    """Kind of an event in a record's life."""

    BEGUN = 1
    ENDED = 2
    FAILED = 3


class Event(NamedTuple):
    """One entry, sorted by time."""

    at: float
    record: int
    member: int
    kind: int


def create(file: Path, entries: int) -> None:
    """An empty journal with room for so many entries."""
    with file.open("wb") as made:
        made.truncate(HEADER + ENTRY.size * (entries + 1))


class Journal:
    """The writing end, for any number of threads of one process."""

    def __init__(self, file: Path) -> None:
        with file.open("r+b") as opened:
            self._map = mmap.mmap(opened.fileno(), 0)
        self._last = len(self._map) - 2 * ENTRY.size
        self._next = itertools.count(HEADER, ENTRY.size).__next__

    @property
    def hurried(self) -> bool:
        """True if handlers are to sleep no more."""
        return self._map[0] != 0

    def note(self, record: int, member: int, kind: int) -> None:
        """An event. What has no room any more is dropped: the trial was over long before."""
        place = self._next()
        if place <= self._last:
            ENTRY.pack_into(self._map, place, record + 1, member, kind, time.monotonic())


class Reader:
    """The reading end, in another process."""

    def __init__(self, file: Path) -> None:
        with file.open("r+b") as opened:
            self._map = mmap.mmap(opened.fileno(), 0)
        self._entries = range((len(self._map) - HEADER) // ENTRY.size)

    def hurry(self) -> None:
        """Handlers are to sleep no more."""
        self._map[0] = 1

    def count(self) -> int:
        """How many entries there are."""
        return bisect_left(self._entries, True, key=self._is_empty)

    def events(self, first: int = 0) -> list[Event]:
        """From entry `first` on, as they were written."""
        end = HEADER + ENTRY.size * self.count()
        begin = HEADER + ENTRY.size * first
        found = ENTRY.iter_unpack(self._map[begin:end]) if begin < end else ()
        return [Event(at, number - 1, member, kind) for number, member, kind, at in found if kind]

    def close(self) -> None:
        """Forget it."""
        self._map.close()

    def _is_empty(self, place: int) -> bool:
        return NUMBER.unpack_from(self._map, HEADER + ENTRY.size * place)[0] == 0
