"""`Narrowing`: finds the record that kills the Python workers of a query's batches, by running them in ever smaller
parts.

The record becomes a dead letter. Pure.

Spark runs a failed batch again, with the same records, for ever; a record that kills the Python worker would stop its
query for good. So a batch that kills workers is left empty, its records go back to the group, and come again in smaller
batches:

    a batch kills  ──WHOLE times, at once if all of it is suspect──▶ void: it is run empty, its records are suspect
    it is suspect  ──batches of a PARTS-th of the last that killed──▶ those of a batch that succeeds are cleared
    one alone      ──kills──▶ accused ──kills again, a batch with records having succeeded meanwhile──▶ condemned
    condemned      ──in a batch of its own, read as a dead letter──▶ accepted with that batch
    other suspects ──batches of twice as many after each that succeeds

Invariants:

1. A record is condemned only if it killed alone twice and other records went through in between: workers that die for
   another reason condemn none.
2. The records of a void batch are not accepted with it. Void batches are written down before they are run empty.
3. Only a killed worker narrows anything, as the query's error tells (`killed`). A sink that fails, a stop, and a
   process that is killed tell nothing about a batch's records: the batch is offered again unchanged, under its number,
   by which a sink knows its parts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final, Self

from flowshare.spark.source.ranges import Range, RangeSet, cut, merged, records_in

WHOLE: Final = 2
"""The number of kills until a batch is void: one kill of a worker may be no record's fault."""
PARTS: Final = 8
"""The part of a failed batch's suspects in the next batch is one in so many: few failures, each the start of a
query."""
GROWTH: Final = 2
"""The growth of a batch of suspects after one that succeeded, if the bad record is not known to be near."""
KILLED: Final = re.compile(r"Lost task .*Python worker exited unexpectedly")
"""The text by which Spark reports a killed Python worker, in the error of a query and of a foreachBatch."""
VOID_KEPT: Final = 100
"""The most void batches that are remembered; Spark keeps 100 entries of its logs
(spark.sql.streaming.minBatchesToRetain)."""
REASON: Final = "Python workers died twice on this record alone, and ran others meanwhile"


def killed(error: str) -> bool:
    """True if a query ended because a Python worker was killed. error: the query's error with all causes."""
    return KILLED.search(error) is not None


class Narrowing:
    """Conclusions about a query's records from its failures. `to_json` holds every change; the caller stores it."""

    def __init__(self) -> None:
        self._void: list[int] = []
        self._pool = RangeSet()
        self._chunk = 1
        self._near = RangeSet()
        """The suspects of the last batch that killed: a bad one is among them."""
        self._accused = RangeSet()
        self._contrasted = RangeSet()
        """The accused records since whose failure a batch with records succeeded."""
        self._condemned = RangeSet()
        self.told = ""
        """The result of the last failure, for the log of the next process; empty: nothing new."""

    def __bool__(self) -> bool:
        return bool(len(self._pool))

    def is_void(self, number: int) -> bool:
        """True if a batch is void: it is run empty, and nothing of it is accepted."""
        return number in self._void

    def failed(self, number: int, ranges: Iterable[Range], *, times: int, whole: bool = True) -> None:
        """Take in that a batch with these ranges killed workers. times: kills by now. whole: it may be run again
        unchanged."""
        failing = merged(ranges)
        if not failing or not times or self.is_void(number) or self.buries(failing):
            return  # no record was handed to anybody, so none is at fault
        if whole and times < WHOLE and not self._pool.covers(failing):
            return
        self._void = [*self._void, number][-VOID_KEPT:]
        for one in failing:
            self._pool.add(one)
        count = records_in(failing)
        self._chunk = max(1, count // PARTS)
        self._near = RangeSet(failing if count > 1 else ())
        if count > 1:
            self.told = f"a batch of {count} records killed its workers: they come again in batches of {self._chunk}"
        else:
            self.told = self._alone(failing[0])

    def _alone(self, one: Range) -> str:
        where = f"{one.topic}-{one.partition}@{one.first}"
        if not self._accused.split(one)[0]:
            self._accused.add(one)
        elif self._contrasted.split(one)[0]:
            self._condemned.add(one)
            return f"{where} killed its worker alone again, and becomes a dead letter"
        return f"{where} killed its worker alone: it becomes a dead letter if it does so again when others went through"

    def committed(self, number: int, ranges: Iterable[Range]) -> bool:
        """Take in that a batch is committed; True: that changed anything."""
        if self.is_void(number) or not self:
            return False
        done = list(ranges)
        if not self.buries(done):
            for one in self._accused.ranges():
                self._contrasted.add(one)
            if not len(self._near) and self._pool.split(*done)[0]:
                self._chunk *= GROWTH
        for one in done:
            for kept in self._sets.values():
                kept.remove(one)
        return True

    def buries(self, ranges: Iterable[Range]) -> bool:
        """True if a batch holds only condemned records, which are read as dead letters."""
        found = list(ranges)
        return bool(found) and self._condemned.covers(found)

    def split(self, got: Iterable[Range]) -> tuple[list[Range], list[Range]]:
        """Split the held ranges into those of the next batch and those of a later one."""
        condemned, others = self._condemned.split(*got)
        if condemned:
            return condemned, others
        suspect, clean = self._pool.split(*others)
        if clean:
            return clean, suspect
        accused, suspect = self._accused.split(*suspect)
        near, suspect = self._near.split(*suspect)
        if near or suspect:
            batch, later = _first(near or suspect, self._chunk)
            return batch, [*later, *(suspect if near else ()), *accused]
        return _first(accused, 1)

    def prune(self, starts: Mapping[tuple[str, int], int]) -> None:
        """Forget finished ranges, which lie before these start offsets."""
        for kept in self._sets.values():
            kept.prune(starts)

    def forget(self, topic: str) -> None:
        """Forget a topic that was created anew."""
        for kept in self._sets.values():
            kept.forget(topic)

    @property
    def _sets(self) -> dict[str, RangeSet]:
        return {
            "pool": self._pool,
            "near": self._near,
            "accused": self._accused,
            "contrasted": self._contrasted,
            "condemned": self._condemned,
        }

    def to_json(self) -> dict[str, Any]:
        """Return the whole state as JSON."""
        return {
            "void": self._void,
            "chunk": self._chunk,
            "told": self.told,
            **{name: [list(one[:4]) for one in kept.ranges()] for name, kept in self._sets.items()},
        }

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Self:
        """Restore the state from `to_json`. Raises: KeyError, TypeError (`found` is something else)."""
        made = cls()
        made._void, made._chunk, made.told = list(found["void"]), found["chunk"], found["told"]
        for name, kept in made._sets.items():
            for one in found.get(name, ()):
                kept.add(Range(*one))
        return made

    def switched_off(self) -> Narrowing:
        """Return a state with only the void batches, which stay void: no record is suspect."""
        made = Narrowing()
        made._void = list(self._void)
        return made


def _first(ranges: Iterable[Range], records: int) -> tuple[list[Range], list[Range]]:
    """Return the first `records` records of the ranges, and the rest."""
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
