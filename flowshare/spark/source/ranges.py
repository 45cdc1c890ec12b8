"""Parts of a micro-batch: ranges of offsets, and the JSON in which Spark's checkpoint keeps the source's offsets. Pure.

An offset of the source is one acquisition. It holds the ranges that a trigger got, and `done`: ranges that a batch
committed and whose accept was refused (their lock was lost). When the group delivers `done` ranges again, they are
accepted, and put into no batch.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any, NamedTuple, Self

from flowshare.share.ranges import merged as merged_pairs
from flowshare.share.ranges import minus

Place = tuple[str, int]
"""Topic and partition."""


class Range(NamedTuple):
    """Offsets `first` to `last` (inclusive) of a partition; `delivery` is the number of their delivery, from 1."""

    topic: str
    partition: int
    first: int
    last: int
    delivery: int = 1

    @property
    def place(self) -> Place:
        """Topic and partition."""
        return self.topic, self.partition


def records_in(ranges: Iterable[Range]) -> int:
    """Return the number of offsets in all ranges."""
    return sum(one.last - one.first + 1 for one in ranges)


def by_place(ranges: Iterable[Range]) -> dict[Place, list[Range]]:
    """Group ranges by partition, ascending; neighbours of the same delivery are joined."""
    found: dict[Place, list[Range]] = {}
    for one in sorted(ranges):
        runs = found.setdefault(one.place, [])
        if runs and runs[-1].last + 1 == one.first and runs[-1].delivery == one.delivery:
            runs[-1] = runs[-1]._replace(last=one.last)
        else:
            runs.append(one)
    return found


def merged(ranges: Iterable[Range]) -> list[Range]:
    """Return the same offsets in as few ranges as possible, ascending."""
    return [one for runs in by_place(ranges).values() for one in runs]


def share_out(ranges: Iterable[Range], tasks: int) -> list[list[Range]]:
    """Split ranges into up to `tasks` parts of about the same number of records, each of neighbours in the log."""
    ascending = merged(ranges)
    total = records_in(ascending)
    tasks = min(tasks, total)  # a part without a record would be a task for nothing
    parts: list[list[Range]] = []
    given = 0
    for one in ascending:
        rest: Range | None = one
        while rest is not None:
            if not parts or given >= -(-total * len(parts) // tasks):
                parts.append([])
            room = -(-total * len(parts) // tasks) - given
            taken, rest = cut(rest, room)
            parts[-1].append(taken)
            given += taken.last - taken.first + 1
    return parts


def cut(one: Range, room: int) -> tuple[Range, Range | None]:
    """Return the first `room` offsets of a range, and the rest of it."""
    if one.last - one.first + 1 <= room:
        return one, None
    return one._replace(last=one.first + room - 1), one._replace(first=one.first + room)


class RangeSet:
    """A set of offsets, kept as runs by partition."""

    def __init__(self, ranges: Iterable[Range] = ()) -> None:
        self._runs: dict[Place, list[tuple[int, int]]] = {}
        for one in ranges:
            self.add(one)

    def __len__(self) -> int:
        return sum(last - first + 1 for runs in self._runs.values() for first, last in runs)

    def add(self, one: Range) -> None:
        """Add a range."""
        self._runs[one.place] = merged_pairs([*self._runs.get(one.place, []), (one.first, one.last)])

    def remove(self, one: Range) -> None:
        """Remove a range, as far as it is in the set."""
        self._set(one.place, minus(self._runs.get(one.place, []), [(one.first, one.last)]))

    def prune(self, starts: Mapping[Place, int]) -> None:
        """Remove all offsets before these share-partition start offsets: they never come again."""
        for place, start in starts.items():
            runs = self._runs.get(place, [])
            self._set(place, [(max(low, start), high) for low, high in runs if high >= start])

    def forget(self, topic: str) -> None:
        """Remove all offsets of a topic."""
        for place in [place for place in self._runs if place[0] == topic]:
            del self._runs[place]

    def split(self, *ranges: Range) -> tuple[list[Range], list[Range]]:
        """Return the parts of ranges that are in the set, and those that are not."""
        inside: list[Range] = []
        outside: list[Range] = []
        for one in ranges:
            runs, whole = self._runs.get(one.place, []), [(one.first, one.last)]
            begin = bisect_left(runs, one.first, key=itemgetter(1))
            out = minus(whole, runs[begin : bisect_right(runs, one.last, key=itemgetter(0))])
            inside += [one._replace(first=low, last=high) for low, high in minus(whole, out)]
            outside += [one._replace(first=low, last=high) for low, high in out]
        return inside, outside

    def covers(self, ranges: Iterable[Range]) -> bool:
        """True if this set holds all of the ranges."""
        return not self.split(*ranges)[1]

    def places(self) -> set[Place]:
        """Return the partitions with any offset in the set."""
        return set(self._runs)

    def ranges(self) -> Iterator[Range]:
        """Yield all ranges, ascending."""
        for (topic, partition), runs in sorted(self._runs.items()):
            for first, last in runs:
                yield Range(topic, partition, first, last)

    def _set(self, place: Place, runs: list[tuple[int, int]]) -> None:
        if runs:
            self._runs[place] = runs
        else:
            self._runs.pop(place, None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Offset:
    """One offset of the source, as stored in the checkpoint.

    number: counts acquires from 1; 0: none. tag: unique to this acquire, so that two of one number, in copies of a
    checkpoint, differ. source: stands for broker and group, reads: the asked topics, or `~` and a pattern, by which two
    sources of one query see that they share a group. member: id of the query's member, so that a restarted query is the
    same member to the group. topics: ids, so that a topic created anew is not taken for the old one. starts: start
    offsets of the group; one that went back shows that the group was reset or created anew. leaders: the counters of
    the deliveries of `ranges` and `done`; passed: committed ranges behind `starts`; see
    `flowshare.spark.source.progress` for both.
    """

    number: int = 0
    tag: str = ""
    source: str = ""
    reads: tuple[str, ...] = ()
    member: str = ""
    ranges: tuple[Range, ...] = ()
    done: tuple[Range, ...] = ()
    topics: Mapping[str, str] = field(default_factory=dict[str, str])
    starts: Mapping[Place, int] = field(default_factory=dict[Place, int])
    leaders: Mapping[Place, str] = field(default_factory=dict[Place, str])
    passed: tuple[Range, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the JSON that Spark writes; equal offsets give equal text."""
        found: dict[str, Any] = {
            "number": self.number,
            "tag": self.tag,
            "source": self.source,
            "reads": list(self.reads),
            "member": self.member,
            "topics": dict(sorted(self.topics.items())),
            "ranges": [list(one) for one in self.ranges],
            "done": [list(one[:4]) for one in self.done],
        }
        if self.starts:
            found["starts"] = [[*place, start] for place, start in sorted(self.starts.items())]
        if self.leaders:
            found["leaders"] = [[*place, leader] for place, leader in sorted(self.leaders.items())]
        if self.passed:
            found["passed"] = [list(one[:4]) for one in self.passed]
        return found

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Self:
        """Make an offset from its JSON. Raises: KeyError, TypeError (it is not an offset of this source)."""
        return cls(
            number=found["number"],
            tag=found.get("tag", ""),
            source=found.get("source", ""),
            reads=tuple(found.get("reads", ())),
            member=found["member"],
            ranges=tuple(Range(*one) for one in found["ranges"]),
            done=tuple(Range(*one) for one in found["done"]),
            topics=found["topics"],
            starts={(topic, partition): start for topic, partition, start in found.get("starts", ())},
            leaders={(topic, partition): leader for topic, partition, leader in found.get("leaders", ())},
            passed=tuple(Range(*one) for one in found.get("passed", ())),
        )
