"""Finds the record that makes a query's batches fail, by running them in ever smaller parts; it becomes a
dead letter. Pure.

Spark runs a batch that failed again, with the same records, for ever; a record that kills the Python worker would stop
its query for good. So a batch that has failed is left empty, its records go back to the group, and come again in
smaller batches:

    a batch fails ──WHOLE times, at once if all of it is suspect──▶ void: it is run empty, its records are suspect
    suspects      ──batches of a PARTS-th of the last that failed──▶ those of a batch that succeeds are cleared
    one alone     ──fails──▶ accused ──fails again, a batch with records having succeeded meanwhile──▶ condemned
    condemned     ──in a batch of its own, read as a dead letter──▶ accepted with that batch

Invariants:

1. A record is condemned only if it failed alone twice and other records went through in between: a sink that is away
   makes all fail, and condemns none.
2. What a void batch held is not accepted with it. Which batches are void is written down before they are run so.
3. Only what failed narrows anything: a process that is killed says nothing of its batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, Self

from flowshare.spark.source.ranges import Range, RangeSet, cut, merged, records_in

WHOLE: Final = 2
"""How often a batch is run as it is: much that fails once is no record's fault."""
PARTS: Final = 8
"""A batch of suspects has so small a part of those among which one is bad: few failures, each the start of a query."""
VOID_KEPT: Final = 100
"""Void batches that are remembered; Spark keeps 100 entries of its logs (spark.sql.streaming.minBatchesToRetain)."""
REASON: Final = "the query failed twice on this record alone, and ran others meanwhile"


class Narrowing:
    """What the failures of one query say of its records. A change is in `to_json`, which the caller keeps."""

    def __init__(self) -> None:
        self._number = 0
        self._failures = 0
        self._void: list[int] = []
        self._pool = RangeSet()
        self._chunk = 1
        self._accused = RangeSet()
        self._contrasted = RangeSet()
        """Of the accused, those since whose failure a batch with records succeeded."""
        self._condemned = RangeSet()
        self.told = ""
        """What the last failure led to, for the log of the process that comes next; empty: nothing new."""

    def __bool__(self) -> bool:
        return bool(len(self._pool))

    def is_void(self, number: int) -> bool:
        """Whether a batch is run empty, and nothing of it is accepted."""
        return number in self._void

    def failed(self, number: int, ranges: Iterable[Range], *, whole: bool = True) -> None:
        """A batch with these ranges failed; whole: it may be run once more as it is."""
        failing = merged(ranges)
        if not failing or self.is_void(number) or self.buries(failing):
            return  # no record was handed to anybody, so none is at fault
        suspect = self._pool.covers(failing)
        self._failures = self._failures + 1 if number == self._number else 1
        self._number = number
        if whole and not suspect and self._failures < WHOLE:
            return
        self._void = [*self._void, number][-VOID_KEPT:]
        for one in failing:
            self._pool.add(one)
        if (count := records_in(failing)) > 1:
            self._chunk = max(1, count // PARTS)
            self.told = f"a batch of {count} records failed: they come again in batches of {self._chunk}"
        else:
            self.told = self._alone(failing[0])

    def _alone(self, one: Range) -> str:
        where = f"{one.topic}-{one.partition}@{one.first}"
        if not self._accused.split(one)[0]:
            self._accused.add(one)
        elif self._contrasted.split(one)[0]:
            self._condemned.add(one)
            return f"{where} failed alone again, and becomes a dead letter"
        return f"{where} failed alone: it becomes a dead letter if it does so again when others went through"

    def committed(self, number: int, ranges: Iterable[Range]) -> bool:
        """A batch is committed; returns whether that changed anything."""
        if self.is_void(number) or not self:
            return False
        done = list(ranges)
        if not self.buries(done):
            for one in self._accused.ranges():
                self._contrasted.add(one)
        for one in done:
            for kept in self._sets.values():
                kept.remove(one)
        return True

    def buries(self, ranges: Iterable[Range]) -> bool:
        """Whether a batch is one of condemned records, which are read as dead letters."""
        found = list(ranges)
        return bool(found) and self._condemned.covers(found)

    def split(self, got: Iterable[Range]) -> tuple[list[Range], list[Range]]:
        """Of what is at hand, what goes into the next batch, and what waits for a later one."""
        condemned, others = self._condemned.split(*got)
        if condemned:
            return condemned, others
        suspect, clean = self._pool.split(*others)
        if clean:
            return clean, suspect
        accused, suspect = self._accused.split(*suspect)
        if suspect:
            batch, later = _first(suspect, self._chunk)
            return batch, later + accused
        return _first(accused, 1)

    def prune(self, starts: Mapping[tuple[str, int], int]) -> None:
        """Forget what the group has finished: it lies before its start offsets."""
        for kept in self._sets.values():
            kept.prune(starts)

    def forget(self, topic: str) -> None:
        """A topic was made anew."""
        for kept in self._sets.values():
            kept.forget(topic)

    @property
    def _sets(self) -> dict[str, RangeSet]:
        return {
            "pool": self._pool,
            "accused": self._accused,
            "contrasted": self._contrasted,
            "condemned": self._condemned,
        }

    def to_json(self) -> dict[str, Any]:
        """All of it."""
        return {
            "number": self._number,
            "failures": self._failures,
            "void": self._void,
            "chunk": self._chunk,
            "told": self.told,
            **{name: [list(one[:4]) for one in kept.ranges()] for name, kept in self._sets.items()},
        }

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Self:
        """What `to_json` gave. Raises: KeyError, TypeError (it is something else)."""
        made = cls()
        made._number, made._failures = found["number"], found["failures"]
        made._void, made._chunk, made.told = list(found["void"]), found["chunk"], found["told"]
        for name, kept in made._sets.items():
            for one in found[name]:
                kept.add(Range(*one))
        return made


def _first(ranges: Iterable[Range], records: int) -> tuple[list[Range], list[Range]]:
    """The first so many records of the ranges, and the rest."""
    first: list[Range] = []
    rest: list[Range] = []
    for one in merged(ranges):
        room = records - records_in(first)
        later: Range | None = one
        if room > 0:
            taken, later = cut(one, room)
            first.append(taken)
        if later is not None:
            rest.append(later)
    return first, rest
